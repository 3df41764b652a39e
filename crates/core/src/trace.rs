//! Events of a connection for `tracing`. Without the feature of that name they are compiled out.
//!
//! Each connection has a span, `connection`, at level debug, with its side, its peer and the
//! destination id of the client's first packet. Within it are the events listed in [`Observation`],
//! also at level debug.

use std::net::SocketAddr;

use squall_wire::{ConnectionId, Side};

use crate::observation::Observation;

/// The span of a connection's events for `tracing`; none unless there is a subscriber.
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

    /// Whether there is a subscriber.
    pub(crate) fn is_on(&self) -> bool {
        !self.span.is_disabled()
    }

    pub(crate) fn observe(&self, observation: &Observation) {
        self.span.in_scope(|| match observation {
            Observation::RetryReceived => tracing::debug!("retry received"),
            Observation::VersionChanged(change) => tracing::debug!(
                from = format_args!("{:#x}", change.from),
                to = format_args!("{:#x}", change.to),
                "version changed"
            ),
            Observation::EarlyDataAnswered(answer) => {
                tracing::debug!(accepted = answer.accepted, "early data answered");
            }
            Observation::HandshakeCompleted(done) => tracing::debug!(
                duration_us = done.duration.as_micros() as u64,
                version = format_args!("{:#x}", done.version),
                alpn = done.alpn.as_deref().map(String::from_utf8_lossy).as_deref(),
                server_name = done.server_name.as_deref(),
                resumed = done.resumed,
                early_data = done.early_data,
                "handshake completed"
            ),
            Observation::HandshakeConfirmed(done) => tracing::debug!(
                duration_us = done.duration.as_micros() as u64,
                "handshake confirmed"
            ),
            Observation::PathChanged(change) => match change.failed {
                None => tracing::debug!(remote = %change.remote, "path changed"),
                Some(failed) => {
                    tracing::debug!(remote = %change.remote, %failed, "path not validated");
                }
            },
            Observation::KeysUpdated(update) => tracing::debug!(
                by_peer = update.by_peer,
                updates = update.updates,
                "keys updated"
            ),
            Observation::MtuChanged(change) => tracing::debug!(
                before = change.before,
                max_udp_payload = change.max_udp_payload,
                "MTU changed"
            ),
            Observation::Congestion(event) => tracing::debug!(
                cause = ?event.cause,
                window_before = event.window_before,
                window = event.window,
                packets_lost = event.packets_lost,
                rtt_us = event.rtt.as_micros() as u64,
                "congestion"
            ),
            Observation::Closed(end) => tracing::debug!(
                reason = %end.reason,
                duration_us = end.duration.as_micros() as u64,
                "closed"
            ),
        });
    }
}

#[cfg(not(feature = "tracing"))]
impl Trace {
    pub(crate) fn new(_: Side, _: SocketAddr, _: ConnectionId) -> Self {
        Self {}
    }

    pub(crate) fn is_on(&self) -> bool {
        false
    }

    pub(crate) fn observe(&self, _: &Observation) {}
}
