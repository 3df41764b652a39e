//! How a worker ends before its time, and how the application is told.

use std::{fmt, io};

/// A worker that ended although its endpoint is in use. [`Endpoint::worker_ended`](crate::Endpoint::worker_ended) reports
/// it.
#[derive(Debug)]
#[non_exhaustive]
pub struct WorkerEnd {
    /// The worker's index, as [`Connection::worker`](crate::Connection::worker) gives it.
    pub worker: usize,
    /// Why it ended.
    pub reason: WorkerEndReason,
    /// Connections that ended with it, closing ones included.
    pub connections: u64,
}

impl fmt::Display for WorkerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            worker,
            reason,
            connections,
        } = self;
        write!(
            f,
            "worker {worker} ended with {connections} connections: {reason}"
        )
    }
}

/// Why a worker ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkerEndReason {
    /// A call said that there is no socket any more: EBADF, ENOTSOCK or EFAULT.
    Socket(io::Error),
    /// For ten minutes every attempt to receive failed; the last error.
    Receive(io::Error),
    /// Code on the worker's thread panicked, with this message: a TLS callback of the application, say, or a defect of
    /// squall. A panic in a task that runs there ends that task only.
    Panic(String),
}

impl fmt::Display for WorkerEndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(error) => write!(f, "the socket is gone: {error}"),
            Self::Receive(error) => write!(f, "nothing can be received: {error}"),
            Self::Panic(message) => write!(f, "it panicked: {message}"),
        }
    }
}

impl WorkerEndReason {
    /// The reason of a task that panicked.
    pub(super) fn of_panic(payload: &(dyn std::any::Any + Send)) -> Self {
        let message = payload.downcast_ref::<&str>().copied();
        let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self::Panic(message.unwrap_or("no message").to_owned())
    }
}
