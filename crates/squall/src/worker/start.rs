//! How a worker's thread starts.

use std::io;
use std::sync::{Arc, mpsc};

use squall_core::Stage;
use squall_udp::Socket;
use tokio::runtime::Runtime;

use super::Worker;
use super::drive::run;
use super::ended::{WorkerEnd, WorkerEndReason};
use super::lock::lock;
use super::shared::Shared;
use crate::sys;

/// What a worker's thread begins with.
pub(crate) struct Start {
    pub(crate) shared: Arc<Shared>,
    /// All workers of the endpoint, by index.
    pub(crate) workers: Arc<[Arc<Shared>]>,
    pub(crate) socket: Arc<Socket>,
    pub(crate) endpoint: squall_core::Endpoint,
    /// Whether to look out for changes of the machine's addresses, for clients' connections.
    pub(crate) watch_addresses: bool,
    /// The only CPU that the thread runs on.
    pub(crate) cpu: Option<usize>,
}

impl Start {
    /// Starts the thread and waits until it is ready; returns its number in the system's lists.
    ///
    /// # Errors
    /// The system refused the thread, the CPU or the runtime.
    pub(crate) fn start(self) -> io::Result<i32> {
        let (report, started) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name(format!("squall-worker-{}", self.shared.index))
            .spawn(move || self.run(&report))?;
        let gone = || io::Error::other("the worker thread ended before it started");
        started.recv().map_err(|_| gone())?
    }

    fn run(self, report: &mpsc::SyncSender<io::Result<i32>>) {
        let runtime = match prepare(self.cpu, &self.shared) {
            Ok(runtime) => runtime,
            Err(error) => return drop(report.send(Err(error))),
        };
        let entered = runtime.enter();
        let fd = match sys::readable(Arc::clone(&self.socket)) {
            Ok(fd) => fd,
            Err(error) => return drop(report.send(Err(error))),
        };
        // A client finds out without it too, only later.
        let addresses = (self.watch_addresses)
            .then(sys::AddressWatch::new)
            .flatten();
        drop(entered);
        let shared = Arc::clone(&self.shared);
        let lost_before = shared.counters.connections_lost.get();
        shared.begin(runtime.handle().clone(), &self.socket);
        let worker = Worker::new(self.shared, self.workers, self.socket, self.endpoint);
        let _ = report.send(Ok(sys::thread_id()));
        // A task of its own, and not the future that `block_on` drives: the worker then stands in
        // one line with the applications' tasks. Whatever ends it, its state is dropped and tells
        // all who wait.
        let worker = runtime.spawn(run(worker, fd, addresses));
        let reason = match runtime.block_on(worker) {
            Ok(Ok(())) => return,
            Ok(Err(reason)) => reason,
            Err(error) => match error.try_into_panic() {
                Ok(payload) => WorkerEndReason::of_panic(payload.as_ref()),
                // Nobody cancels it.
                Err(_) => return,
            },
        };
        shared.counters.worker_ends.add(1);
        shared.common.on_worker_end(WorkerEnd {
            worker: shared.index,
            reason,
            connections: shared.counters.connections_lost.get() - lost_before,
        });
    }
}

/// The worker thread's preparations: its CPU and its runtime. With accounting, time in which the
/// thread is parked is told apart.
fn prepare(cpu: Option<usize>, shared: &Arc<Shared>) -> io::Result<Runtime> {
    if let Some(cpu) = cpu {
        sys::pin_to_cpu(cpu)?;
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time();
    if shared.accounting {
        let (parked, unparked) = (Arc::clone(shared), Arc::clone(shared));
        builder.on_thread_park(move || lock(&parked.stages).wait_begins(Stage::Runtime));
        builder.on_thread_unpark(move || lock(&unparked.stages).wait_ends());
    }
    builder.build()
}
