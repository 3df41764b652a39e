//! What the endpoint reports to `tracing`. Without the feature of that name it is compiled out.

#[cfg(feature = "tracing")]
mod on {
    use std::fmt::Display;
    use std::io;
    use std::net::SocketAddr;

    /// Receiving fails, and is retried.
    pub(crate) fn cannot_receive(local: SocketAddr, worker: usize, error: &io::Error) {
        tracing::warn!(%local, worker, %error, "cannot receive; retrying");
    }

    /// The system refuses to send datagrams, with errors that networks do not cause.
    pub(crate) fn cannot_send(local: SocketAddr, worker: usize, lost: u64, errnos: &str) {
        tracing::warn!(%local, worker, lost, %errnos, "the system refuses to send datagrams");
    }

    /// A worker ended early.
    pub(crate) fn worker_ended(
        local: SocketAddr,
        worker: usize,
        connections: u64,
        reason: &dyn Display,
    ) {
        tracing::error!(%local, worker, connections, %reason, "a worker has ended");
    }

    /// A process asked for the port and did not take it over.
    #[cfg(target_os = "linux")]
    pub(crate) fn not_handed_over(path: &std::path::Path, error: &io::Error) {
        tracing::warn!(path = %path.display(), %error, "the port was not handed over");
    }

    /// A connection goes on without its qlog.
    pub(crate) fn no_qlog(name: &str, error: &io::Error) {
        tracing::warn!(name, %error, "cannot write the qlog; the connection continues without one");
    }

    /// A subscriber of events panicked.
    pub(crate) fn event_panicked(message: &str) {
        tracing::warn!(
            message,
            "a subscriber of squall::Events panicked; EndpointStats::event_panics counts these"
        );
    }

    /// The first stream of a connection that a dropped handle reset without a code of its own.
    pub(crate) fn stream_dropped(stream: u64) {
        tracing::warn!(
            stream,
            "a SendStream was dropped without finish() or reset(), so its stream was reset; \
             Stats::streams_reset_on_drop counts all such resets on this connection"
        );
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use std::fmt::Display;
    use std::io;
    use std::net::SocketAddr;

    pub(crate) fn cannot_receive(_: SocketAddr, _: usize, _: &io::Error) {}

    pub(crate) fn cannot_send(_: SocketAddr, _: usize, _: u64, _: &str) {}

    pub(crate) fn worker_ended(_: SocketAddr, _: usize, _: u64, _: &dyn Display) {}

    #[cfg(target_os = "linux")]
    pub(crate) fn not_handed_over(_: &std::path::Path, _: &io::Error) {}

    pub(crate) fn no_qlog(_: &str, _: &io::Error) {}

    pub(crate) fn event_panicked(_: &str) {}

    pub(crate) fn stream_dropped(_: u64) {}
}

#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;
#[cfg(feature = "tracing")]
pub(crate) use on::*;
