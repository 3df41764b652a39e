//! The application's sinks for qlogs.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use squall_wire::{ConnectionId, Side};

/// A connection that may be logged, see [`Builder::qlog`](crate::Builder::qlog).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QlogConnection {
    /// The destination connection id of the client's first packet, by which logs of both ends are
    /// matched.
    pub original_destination_id: ConnectionId,
    /// Which end of the connection this is.
    pub side: Side,
    /// The peer's address.
    pub remote_address: SocketAddr,
}

type Choose = dyn Fn(&QlogConnection) -> Option<Box<dyn Write + Send>> + Send + Sync;

/// Chooses where a connection's qlog is written to, if it is logged at all.
#[derive(Clone)]
pub struct QlogSink(Arc<Choose>);

impl QlogSink {
    /// Calls `choose` for each new connection: it returns the sink of the log, or `None` for a
    /// connection that is not logged.
    ///
    /// Both run on the worker, which they should not block; the sink also runs where
    /// [`Connection::log_event`](crate::Connection::log_event) is called. A sink that writes to a
    /// disk or to the network should hand the bytes to another thread. A closure or a sink that
    /// panics, or a sink that fails, costs its connection the log and nothing else.
    pub fn new<F>(choose: F) -> Self
    where
        F: Fn(&QlogConnection) -> Option<Box<dyn Write + Send>> + Send + Sync + 'static,
    {
        Self(Arc::new(choose))
    }

    /// The sink of a connection.
    pub(super) fn choose(&self, connection: &QlogConnection) -> io::Result<Option<Guarded>> {
        let chosen = catch_unwind(AssertUnwindSafe(|| (self.0)(connection)));
        let sink = chosen.map_err(|_| panicked("the closure of `qlog`"))?;
        Ok(sink.map(Guarded))
    }
}

impl fmt::Debug for QlogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QlogSink").finish_non_exhaustive()
    }
}

/// A sink of the application whose panics become errors.
pub(super) struct Guarded(Box<dyn Write + Send>);

impl Guarded {
    fn call<T>(&mut self, call: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        catch_unwind(AssertUnwindSafe(|| call(&mut self.0)))
            .unwrap_or_else(|_| Err(panicked("the sink")))
    }
}

impl Write for Guarded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|sink| sink.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.call(|sink| sink.flush())
    }
}

fn panicked(who: &str) -> io::Error {
    io::Error::other(format!("{who} panicked"))
}
