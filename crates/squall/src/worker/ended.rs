//! How a worker ends prematurely, and how that is reported to the application.

use std::{fmt, io};

use squall_core::CloseReason;

/// A worker that ended while its endpoint was in use, as reported by
/// [`Endpoint::worker_ended`](crate::Endpoint::worker_ended).
#[derive(Debug)]
#[non_exhaustive]
pub struct WorkerEnd {
    /// The worker's index, as returned by [`Connection::worker`](crate::Connection::worker).
    pub worker: usize,
    /// Why it ended.
    pub reason: WorkerEndReason,
    /// Connections that ended with it, including closing ones.
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
    /// A system call reported that the socket no longer exists: EBADF, ENOTSOCK or EFAULT.
    Socket(io::Error),
    /// Every attempt to receive failed for ten minutes; this is the last error.
    Receive(io::Error),
    /// Code on the worker's thread panicked with this message, for example a `DatagramSocket`, or
    /// because of a bug in squall. A panic in a task that runs there only ends that task, and one
    /// in a TLS callback only its handshake.
    Panic(String),
    /// The runtime that the worker was a task of has shut down; see
    /// [`Builder::on_runtime`](crate::Builder::on_runtime).
    RuntimeShutDown,
}

impl fmt::Display for WorkerEndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(error) => write!(f, "the socket is gone: {error}"),
            Self::Receive(error) => write!(f, "nothing can be received: {error}"),
            Self::Panic(message) => write!(f, "panic: {message}"),
            Self::RuntimeShutDown => write!(f, "its runtime has shut down"),
        }
    }
}

impl WorkerEndReason {
    /// The reason of a task that panicked.
    pub(super) fn of_panic(payload: &(dyn std::any::Any + Send)) -> Self {
        Self::Panic(crate::events::panic_message(payload))
    }
}

/// Why a connection is not started on an endpoint that is closed, or whose worker has ended.
pub(crate) fn endpoint_closed() -> CloseReason {
    CloseReason::NotStarted("the endpoint is closed, or its worker has ended".to_owned())
}
