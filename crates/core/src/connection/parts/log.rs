//! What a connection writes down: its qlog, and events for `tracing`.

use std::time::Duration;

use squall_wire::PacketType;

use crate::error::CloseReason;
use crate::event::Event;
use crate::path::PathState;
use crate::qlog::{Metrics, Packet, Qlog};
use crate::space::SpaceId;
use crate::time::Time;
use crate::trace::Trace;

/// The type of a space's packets. Those of the data space may also be 0-RTT packets.
pub(crate) const fn packet_type(id: SpaceId) -> PacketType {
    match id {
        SpaceId::Initial => PacketType::Initial,
        SpaceId::Handshake => PacketType::Handshake,
        SpaceId::Data => PacketType::OneRtt,
    }
}

/// The logs of a connection.
pub(crate) struct Log {
    /// `None` unless the owner has set one.
    pub(crate) qlog: Option<Box<Qlog>>,
    trace: Trace,
}

impl Log {
    /// A log without a qlog.
    pub(crate) const fn new(trace: Trace) -> Self {
        Self { qlog: None, trace }
    }

    /// Whether packets and frames are logged one by one.
    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        self.qlog.is_some()
    }

    /// The connection has ended.
    pub(crate) fn closed(&mut self, now: Time, reason: &CloseReason) {
        if let Some(log) = &mut self.qlog {
            log.connection_closed(now, reason);
        }
        self.trace.closed(reason);
    }

    /// The handshake is complete, or confirmed (RFC 9001 §4.1).
    pub(crate) fn handshake(&mut self, now: Time, state: &'static str, version: u32) {
        if let Some(log) = &mut self.qlog {
            log.state(now, state);
        }
        self.trace.handshake(state, version);
    }

    /// The connection has moved, or could not.
    pub(crate) fn moved(&self, event: &Event) {
        self.trace.moved(event);
    }

    /// Round-trip times, congestion and path, if they have changed.
    pub(crate) fn metrics(&mut self, now: Time, path: &PathState, pto_count: u32) {
        let Some(log) = &mut self.qlog else { return };
        let flow = &path.flow;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let metrics = Metrics {
            min_rtt: ms(flow.rtt.min()),
            smoothed_rtt: ms(flow.rtt.smoothed()),
            latest_rtt: ms(flow.rtt.latest()),
            rtt_variance: ms(flow.rtt.var()),
            pto_count,
            congestion_window: flow.congestion.window(),
            bytes_in_flight: flow.in_flight(),
        };
        log.metrics_updated(now, metrics);
    }

    /// The path in use and the connection id that it sends to.
    pub(crate) fn path(&mut self, now: Time, path: &PathState, id: squall_wire::ConnectionId) {
        if let Some(log) = &mut self.qlog {
            log.path(now, path.path, &id, path.mtu.current());
        }
    }

    /// A packet is written and not sealed yet.
    #[inline]
    pub(crate) fn packet_sent(&mut self, now: Time, packet: Packet<'_>, is_mtu_probe: bool) {
        if let Some(log) = &mut self.qlog {
            log.packet_sent(now, packet, is_mtu_probe);
        }
    }

    /// A packet of `len` bytes is dropped.
    pub(crate) fn packet_dropped(
        &mut self,
        now: Time,
        id: SpaceId,
        len: u32,
        trigger: &'static str,
    ) {
        if let Some(log) = &mut self.qlog {
            log.packet_dropped(now, packet_type(id), len as usize, trigger);
        }
    }

    /// A key update; `phase` counts all of them.
    pub(crate) fn key_updated(&mut self, now: Time, remote: bool, phase: u64) {
        if let Some(log) = &mut self.qlog {
            log.key_updated(now, remote, phase);
        }
    }
}
