//! How a worker starts: on a thread of its own, or as a task of the application's runtime.

use std::future::Future;
use std::io;
use std::sync::{Arc, mpsc};

use squall_core::Stage;
use tokio::runtime::{Handle, Runtime};

use super::Worker;
use super::drive::run;
use super::ended::{WorkerEnd, WorkerEndReason};
use super::lock::lock;
use super::shared::Shared;
use super::to_wake::ToWake;
use crate::socket::{self, Socket};
use crate::sys;

/// What a worker starts with.
pub(crate) struct Start {
    pub(crate) shared: Arc<Shared>,
    /// All workers of the endpoint, by index.
    pub(crate) workers: Arc<[Arc<Shared>]>,
    pub(crate) socket: Arc<Socket>,
    pub(crate) endpoint: squall_core::Endpoint,
    /// Whether to watch for changes of the machine's addresses, for client connections.
    pub(crate) watch_addresses: bool,
}

impl Start {
    /// Starts a thread, pinned to `cpu` if there is one, and waits until it is ready; returns its
    /// id in the operating system.
    ///
    /// # Errors
    /// The system refused the thread, the CPU or the runtime.
    pub(crate) fn on_thread(self, cpu: Option<usize>) -> io::Result<i32> {
        let (report, started) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name(format!("squall-worker-{}", self.shared.index))
            .spawn(move || self.run_thread(cpu, &report))?;
        let gone = || io::Error::other("the worker thread ended before it started");
        started.recv().map_err(|_| gone())?
    }

    fn run_thread(self, cpu: Option<usize>, report: &mpsc::SyncSender<io::Result<i32>>) {
        let started = prepare(cpu, &self.shared).and_then(|runtime| {
            let supervisor = self.spawn(runtime.handle())?;
            Ok((runtime, supervisor))
        });
        match started {
            Ok((runtime, supervisor)) => {
                let _ = report.send(Ok(sys::thread_id()));
                runtime.block_on(supervisor);
            }
            Err(error) => drop(report.send(Err(error))),
        }
    }

    /// Starts the worker as a task of the application's runtime.
    ///
    /// # Errors
    /// The system refused to watch the socket.
    pub(crate) fn on_runtime(self, runtime: &Handle) -> io::Result<()> {
        let supervisor = self.spawn(runtime)?;
        runtime.spawn(supervisor);
        Ok(())
    }

    /// Spawns the worker; the returned future reports its end. The worker is a task of its own,
    /// rather than the future that `block_on` drives, so that it is scheduled like the
    /// applications' tasks. Whatever ends it, its state is dropped, which wakes all waiting tasks.
    fn spawn(self, runtime: &Handle) -> io::Result<impl Future<Output = ()> + Send + use<>> {
        let entered = runtime.enter();
        let fd = socket::readable(Arc::clone(&self.socket))?;
        // A client would find out without this, but later.
        let addresses = (self.watch_addresses)
            .then(sys::AddressWatch::new)
            .flatten();
        drop(entered);
        let shared = Arc::clone(&self.shared);
        let lost_before = shared.counters.connections_lost.get();
        shared.begin(runtime.clone(), &self.socket);
        let to_wake = ToWake::on(runtime);
        let worker = Worker::new(
            self.shared,
            self.workers,
            self.socket,
            self.endpoint,
            to_wake,
        );
        let worker = runtime.spawn(run(worker, fd, addresses));
        Ok(async move {
            let reason = match worker.await {
                Ok(Ok(())) => return,
                Ok(Err(reason)) => reason,
                Err(error) => match error.try_into_panic() {
                    Ok(payload) => WorkerEndReason::of_panic(payload.as_ref()),
                    // The runtime is shutting down; nothing runs there any more.
                    Err(_) => return,
                },
            };
            shared.on_end(WorkerEnd {
                worker: shared.index,
                reason,
                connections: shared.counters.connections_lost.get() - lost_before,
            });
        })
    }
}

/// Prepares the worker thread: its CPU and its runtime. With accounting, time in which the thread
/// is parked is counted separately.
fn prepare(cpu: Option<usize>, shared: &Arc<Shared>) -> io::Result<Runtime> {
    if let Some(cpu) = cpu {
        sys::pin_to_cpu(cpu)?;
    }
    shared.set_thread(std::thread::current());
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time();
    // Weak: `Shared` holds a handle of the runtime, which holds these functions.
    let (parked, unparked) = (Arc::downgrade(shared), Arc::downgrade(shared));
    builder.on_thread_park(move || {
        if let Some(shared) = parked.upgrade() {
            if shared.accounting {
                lock(&shared.stages).wait_begins(Stage::Runtime);
            }
            // No task is ready. The runtime polls its sockets and timers afterwards.
            shared.nap();
        }
    });
    if shared.accounting {
        builder.on_thread_unpark(move || {
            if let Some(shared) = unparked.upgrade() {
                lock(&shared.stages).wait_ends();
            }
        });
    }
    builder.build()
}
