//! How a worker's thread starts.

use std::io;
use std::sync::{Arc, mpsc};

use squall_core::Stage;
use squall_udp::Socket;
use tokio::runtime::Runtime;

use super::Worker;
use super::common::lock;
use super::drive::run;
use super::shared::Shared;
use crate::sys;

/// What a worker's thread begins with.
pub(crate) struct Start {
    pub(crate) shared: Arc<Shared>,
    /// All workers of the endpoint, by index.
    pub(crate) workers: Arc<[Arc<Shared>]>,
    pub(crate) socket: Arc<Socket>,
    pub(crate) endpoint: squall_core::Endpoint,
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
        drop(entered);
        self.shared.set_runtime(runtime.handle().clone());
        let _ = report.send(Ok(sys::thread_id()));
        let worker = Worker::new(self.shared, self.workers, self.socket, self.endpoint);
        // A task of its own, and not the future that `block_on` drives: the worker then stands in one line with the
        // applications' tasks. Whatever ends it, its state is dropped and tells all who wait.
        let worker = runtime.spawn(run(worker, fd));
        let _ = runtime.block_on(worker);
    }
}

/// The worker thread's preparations: its CPU and its runtime. With accounting, time in which the thread is parked is told
/// apart.
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
