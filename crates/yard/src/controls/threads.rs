//! One end of a control as a thread on its core.

use std::net::TcpStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::channel::Protocol;
use crate::error::{Failure, Result, context};
use crate::sys;

/// One end of a connection before its handshake.
pub(super) struct End<P> {
    protocol: Arc<P>,
    is_server: bool,
    socket: TcpStream,
    pub(super) core: Option<usize>,
}

impl<P: Protocol> End<P> {
    pub(super) fn new(
        protocol: &Arc<P>,
        is_server: bool,
        socket: TcpStream,
        core: Option<usize>,
    ) -> Self {
        Self {
            protocol: Arc::clone(protocol),
            is_server,
            socket,
            core,
        }
    }

    /// Name for its thread and its errors.
    pub(super) fn name(&self) -> String {
        let side = if self.is_server { "server" } else { "client" };
        format!("{} {side}", P::NAME)
    }

    /// Makes the handshake.
    pub(super) fn open(self) -> Result<P::Channel> {
        let doing = format!("{} handshake", self.name());
        let channel = if self.is_server {
            self.protocol.server(self.socket)
        } else {
            self.protocol.client(self.socket)
        };
        channel.map_err(context(&doing))
    }
}

/// The results of all threads, or the first failure.
pub(super) fn join<T>(threads: Vec<JoinHandle<Result<T>>>) -> Result<Vec<T>> {
    threads
        .into_iter()
        .map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::new("a thread of the control panicked")))
        })
        .collect()
}

/// Starts a thread on a core.
pub(super) fn spawn<T: Send + 'static>(
    name: String,
    core: Option<usize>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            if let Some(core) = core {
                sys::pin(core).map_err(context("cannot pin a thread"))?;
            }
            work()
        })
        .map_err(context("cannot start a thread"))
}
