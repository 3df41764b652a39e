//! What of a connection goes into its qlog.

use std::io::Write;

use squall_wire::PacketType;

use super::Connection;
use crate::error::CloseReason;
use crate::event::Event;
use crate::qlog::{Metrics, Packet, Qlog};
use crate::space::SpaceId;
use crate::time::Time;

/// The kind of packet that a space's packets are, 0-RTT apart.
pub(super) const fn packet_type(id: SpaceId) -> PacketType {
    match id {
        SpaceId::Initial => PacketType::Initial,
        SpaceId::Handshake => PacketType::Handshake,
        SpaceId::Data => PacketType::OneRtt,
    }
}

impl Connection {
    /// Writes a qlog of all events from now on to `sink`: JSON text sequences after
    /// draft-ietf-quic-qlog-quic-events, with times in milliseconds of the caller's clock. Call it
    /// right after creating the connection, so that the log is complete. Once the connection has
    /// ended, the sink is flushed after every record. Errors of the sink do not affect the
    /// connection.
    pub fn set_qlog(&mut self, now: Time, sink: Box<dyn Write + Send>) {
        let mut log = Qlog::new(sink, self.side, &self.original_dcid);
        let ids = [self.local_ids.current(), self.remote_ids.current()];
        log.connection_started(now, self.path.path, ids);
        log.version_information(now, &self.config.versions, self.version);
        self.qlog = Some(Box::new(log));
    }

    /// Tells the application, and the log, that the connection has ended.
    pub(super) fn tell_closed(&mut self, now: Time, reason: CloseReason) {
        if let Some(log) = &mut self.qlog {
            log.connection_closed(now, &reason);
        }
        self.span.in_scope(|| tracing::debug!(%reason, "closed"));
        self.streams.events.push_back(Event::Closed(reason));
    }

    /// The handshake is complete, or confirmed (RFC 9001 §4.1).
    pub(super) fn log_handshake(&mut self, now: Time, state: &'static str) {
        if let Some(log) = &mut self.qlog {
            log.state(now, state);
        }
        let version = self.version;
        self.span
            .in_scope(|| tracing::debug!(version = format_args!("{version:#x}"), "{state}"));
    }

    /// Tells the application where the connection is now, or could not move to.
    pub(super) fn tell_moved(&mut self, event: Event) {
        self.span.in_scope(|| tracing::debug!(?event, "path"));
        self.streams.events.push_back(event);
        self.note_validated_address();
    }

    /// Round-trip times, congestion and path, if they have changed.
    pub(super) fn log_metrics(&mut self, now: Time) {
        let Some(log) = &mut self.qlog else { return };
        let flow = &self.path.flow;
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let metrics = Metrics {
            min_rtt: ms(flow.rtt.min()),
            smoothed_rtt: ms(flow.rtt.smoothed()),
            latest_rtt: ms(flow.rtt.latest()),
            rtt_variance: ms(flow.rtt.var()),
            pto_count: self.pto_count,
            congestion_window: flow.congestion.window(),
            bytes_in_flight: flow.bytes_in_flight,
        };
        log.metrics_updated(now, metrics);
        let id = self.remote_ids.current();
        log.path(now, self.path.path, &id, self.path.mtu.current());
    }

    /// A packet that was written and is not sealed yet.
    #[inline]
    pub(super) fn log_sent(&mut self, now: Time, packet: Packet<'_>, is_mtu_probe: bool) {
        if let Some(log) = &mut self.qlog {
            log.packet_sent(now, packet, is_mtu_probe);
        }
    }
}
