//! The records of a connection: its qlog, events for `tracing`, and observations for its owner.
//! Whatever the three have in common is recorded in one place, `observe`.

use std::time::Duration;

use squall_wire::{ConnectionId, PacketType};

use crate::connection::handshake::tls::Tls;
use crate::error::CloseReason;
use crate::observation::{
    Closed, Congestion, CongestionCause, EarlyDataAnswered, HandshakeCompleted, HandshakeConfirmed,
    KeysUpdated, MtuChanged, Observation, Observations, VersionChanged,
};
use crate::path::{Flow, PathState};
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
#[repr(C)]
pub(crate) struct Log {
    trace: Trace,
    begun: Time,
    /// Whether early data was accepted, once known.
    early_data: Option<bool>,

    // For every packet.
    /// `None` unless the owner observes.
    observed: Option<Box<Observations>>,
    /// `None` unless the owner has set one.
    pub(crate) qlog: Option<Box<Qlog>>,
}

impl Log {
    /// A log without a qlog.
    pub(crate) const fn new(trace: Trace, now: Time) -> Self {
        Self {
            qlog: None,
            observed: None,
            trace,
            begun: now,
            early_data: None,
        }
    }

    /// Whether packets and frames are logged one by one.
    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        self.qlog.is_some()
    }

    /// Keeps observations for the owner from now on.
    pub(crate) fn watch(&mut self) {
        self.observed.get_or_insert_default();
    }

    /// The next observation that the owner has not seen.
    #[inline]
    pub(crate) fn poll_observation(&mut self) -> Option<Observation> {
        self.observed.as_mut()?.pop()
    }

    /// Records a rare change, which is formatted only if there is a subscriber.
    pub(crate) fn observe(&mut self, observation: impl FnOnce() -> Observation) {
        let traced = self.trace.is_on();
        if !traced && self.observed.is_none() {
            return;
        }
        let observation = observation();
        if traced {
            self.trace.observe(&observation);
        }
        if let Some(observed) = &mut self.observed {
            observed.push(observation);
        }
    }

    /// The connection has ended.
    pub(crate) fn closed(&mut self, now: Time, reason: &CloseReason) {
        if let Some(log) = &mut self.qlog {
            log.connection_closed(now, reason);
        }
        let duration = now - self.begun;
        self.observe(|| {
            let reason = reason.clone();
            Observation::Closed(Closed { reason, duration })
        });
    }

    /// The version may have changed.
    pub(crate) fn version(&mut self, from: u32, to: u32) {
        if from != to {
            self.observe(|| Observation::VersionChanged(VersionChanged { from, to }));
        }
    }

    /// A client has received a Version Negotiation packet with these versions, four bytes each. It
    /// begins anew with `chosen`, or gives up.
    pub(crate) fn version_negotiation(&mut self, now: Time, versions: &[u8], chosen: Option<u32>) {
        if let Some(log) = &mut self.qlog {
            log.version_negotiation(now, versions, chosen);
        }
    }

    /// A client follows a Retry.
    pub(crate) fn retry(&mut self, now: Time, scid: &ConnectionId, token: &[u8]) {
        if let Some(log) = &mut self.qlog {
            log.retry(now, scid, token);
        }
        self.observe(|| Observation::RetryReceived);
    }

    /// The server has answered the early data.
    pub(crate) fn early_data(&mut self, accepted: bool) {
        self.early_data = Some(accepted);
        self.observe(|| Observation::EarlyDataAnswered(EarlyDataAnswered { accepted }));
    }

    /// The handshake is complete (RFC 9001 §4.1.1).
    pub(crate) fn handshake_completed(&mut self, now: Time, version: u32, tls: &Tls) {
        if let Some(log) = &mut self.qlog {
            log.state(now, "handshake_complete");
            log.chosen_version(now, version);
            log.alpn_information(now, tls.alpn());
        }
        let (duration, early_data) = (now - self.begun, self.early_data);
        self.observe(|| {
            Observation::HandshakeCompleted(HandshakeCompleted {
                duration,
                version,
                alpn: tls.alpn().map(<[u8]>::to_vec),
                server_name: tls.server_name().map(str::to_owned),
                resumed: tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
                early_data,
            })
        });
    }

    /// The handshake is confirmed (RFC 9001 §4.1.2).
    pub(crate) fn handshake_confirmed(&mut self, now: Time) {
        if let Some(log) = &mut self.qlog {
            log.state(now, "handshake_confirmed");
        }
        let duration = now - self.begun;
        self.observe(|| Observation::HandshakeConfirmed(HandshakeConfirmed { duration }));
    }

    /// The size that the path carries may have changed from `before`.
    #[inline]
    pub(crate) fn mtu(&mut self, before: u16, max_udp_payload: u16) {
        if before != max_udp_payload {
            self.observe(|| {
                Observation::MtuChanged(MtuChanged {
                    before,
                    max_udp_payload,
                })
            });
        }
    }

    /// The congestion window was reduced from `window_before`.
    #[cold]
    pub(crate) fn congestion(
        &mut self,
        cause: CongestionCause,
        window_before: u64,
        packets_lost: u64,
        flow: &Flow,
    ) {
        self.observe(|| {
            Observation::Congestion(Congestion {
                cause,
                window_before,
                window: flow.congestion.window(),
                packets_lost,
                rtt: flow.rtt.smoothed(),
            })
        });
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

    /// A packet is written but not yet sealed.
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
        self.observe(|| {
            Observation::KeysUpdated(KeysUpdated {
                by_peer: remote,
                updates: phase,
            })
        });
    }
}
