//! Ports are taken over only on Linux.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use squall::{Builder, Endpoint};
use squall_yard::error::{Failure, Result};
use tokio::net::TcpListener;

/// What comes from the running server: nothing.
pub(crate) enum Inherited {}

impl Inherited {
    pub(crate) fn request(_: &Path, _: SocketAddr) -> Result<Option<Self>> {
        Err(Failure::new("--takeover works on Linux only"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match *self {}
    }

    pub(crate) fn take_listener(&mut self, _: SocketAddr) -> io::Result<Option<TcpListener>> {
        match *self {}
    }

    pub(crate) fn apply(self, _: Builder) -> Builder {
        match self {}
    }
}

/// Waits for a successor, of which there is none.
pub(crate) enum Successor {}

impl Successor {
    pub(crate) fn new(
        _: &Path,
        _: Endpoint,
        _: Arc<TcpListener>,
        _: Option<Arc<TcpListener>>,
    ) -> Self {
        unreachable!("`Inherited::request` fails first")
    }

    pub(crate) fn without_metrics(self) -> Self {
        match self {}
    }

    pub(crate) async fn wait(&self) {
        match *self {}
    }
}
