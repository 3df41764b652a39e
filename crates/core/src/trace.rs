//! Events of a connection for `tracing`. Without the feature of that name they are compiled out.

use std::net::SocketAddr;

use squall_wire::{ConnectionId, Side};

use crate::error::CloseReason;
use crate::event::Event;

/// What `tracing` shows of a connection belongs to one span; to none unless there is a subscriber.
pub(crate) struct Trace {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

#[cfg(feature = "tracing")]
impl Trace {
    pub(crate) fn new(side: Side, peer: SocketAddr, id: ConnectionId) -> Self {
        let span = tracing::debug_span!("connection", ?side, %peer, ?id);
        Self { span }
    }

    /// The connection has ended.
    pub(crate) fn closed(&self, reason: &CloseReason) {
        self.span.in_scope(|| tracing::debug!(%reason, "closed"));
    }

    /// The handshake is complete, or confirmed (RFC 9001 §4.1).
    pub(crate) fn handshake(&self, state: &'static str, version: u32) {
        self.span
            .in_scope(|| tracing::debug!(version = format_args!("{version:#x}"), "{state}"));
    }

    /// The connection has moved, or could not.
    pub(crate) fn moved(&self, event: &Event) {
        self.span.in_scope(|| tracing::debug!(?event, "path"));
    }
}

#[cfg(not(feature = "tracing"))]
impl Trace {
    pub(crate) fn new(_: Side, _: SocketAddr, _: ConnectionId) -> Self {
        Self {}
    }

    pub(crate) fn closed(&self, _: &CloseReason) {}

    pub(crate) fn handshake(&self, _: &'static str, _: u32) {}

    pub(crate) fn moved(&self, _: &Event) {}
}
