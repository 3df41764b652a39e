//! What happens when time passes (RFC 9002 §6.2, RFC 9000 §10.1).

use std::time::Duration;

use squall_wire::{Side, TransportError, TransportErrorCode};

use super::keyring::KeyRing;
use super::timers::Timer;
use super::{Connection, State};
use crate::error::CloseReason;
use crate::recovery::loss::Lost;
use crate::recovery::rtt::GRANULARITY;
use crate::sent_frame::SentFrame;
use crate::space::SpaceId;
use crate::time::Time;

/// RFC 9002 §6.2.4: probes sent when a probe timeout expires.
const PROBES: u8 = 2;
/// Probe timeouts without a word of a server from which data is expected, before a client probes, and the least time.
const QUIET_PROBE_TIMEOUTS: u32 = 3;
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// Silence after which memory that is not in use is given back.
const SHED_AFTER: Duration = Duration::from_secs(1);
/// A probe timeout is doubled at most so often.
const MAX_BACKOFF: u32 = 10;

impl Connection {
    /// Handles every timer that is due at `now`.
    pub fn on_timeout(&mut self, now: Time) {
        for timer in Timer::ALL {
            if !self.timers.take_due(timer, now) {
                continue;
            }
            match timer {
                Timer::LossDetection => self.on_loss_timer(now),
                // Both only make `transmit` look again.
                Timer::AckDelay | Timer::Pacing => {}
                Timer::Idle => self.abandon(
                    now,
                    if matches!(self.state, State::Handshaking) {
                        CloseReason::HandshakeTimeout
                    } else {
                        CloseReason::IdleTimeout
                    },
                ),
                Timer::KeepAlive => self.ping_pending = true,
                Timer::Handshake => self.abandon(now, CloseReason::HandshakeTimeout),
                Timer::KeyDiscard => {
                    if let Some(ring) = &mut self.ring {
                        ring.drop_previous();
                    }
                }
                Timer::Close => self.abandon(now, CloseReason::IdleTimeout),
                Timer::Path => self.on_path_timer(now),
                Timer::PathSize => self.seeks_size_idly = true,
                Timer::Quiet => self.on_quiet_timer(now),
                Timer::Shed => self.on_shed_timer(now),
            }
            if self.is_drained() {
                return;
            }
        }
    }

    /// The probe timeout without backoff, `max_ack_delay` included (RFC 9002 §6.2.1).
    pub(super) fn probe_timeout(&self) -> Duration {
        self.path.flow.rtt.pto_base().max(GRANULARITY) + self.peer.max_ack_delay
    }

    /// RFC 9002 §A.8: the probe timeout that expires first, and its space.
    fn next_probe(&self, now: Time) -> Option<(Time, SpaceId)> {
        let backoff = 1 << self.pto_count.min(MAX_BACKOFF);
        let base = self.path.flow.rtt.pto_base() * backoff;
        let open = |id: SpaceId| self.spaces[id as usize].sent.outstanding_eliciting() > 0;
        let handshake_open = open(SpaceId::Initial) || open(SpaceId::Handshake);
        if !handshake_open && (!open(SpaceId::Data) || !self.peer_completed_validation()) {
            // RFC 9002 §6.2.2.1: a client keeps the server's amplification limit from locking both up. Early data in flight
            // does not: it is not probed before the handshake is confirmed.
            if self.peer_completed_validation() {
                return None;
            }
            let space = if self.spaces[SpaceId::Handshake as usize].keys.is_some() {
                SpaceId::Handshake
            } else {
                SpaceId::Initial
            };
            return Some((now + base, space));
        }
        // Handshake data that was lost may have to wait for a window full of 1-RTT packets, which the peer acknowledges
        // only after that data: a probe breaks the circle (RFC 9002 §7.5).
        let window_full = self.path.flow.bytes_in_flight >= self.path.flow.congestion.window();
        let last_sent = self.spaces.iter().map(|s| s.last_eliciting).max();
        let mut earliest = None::<(Time, SpaceId)>;
        for id in SpaceId::ALL {
            let space = &self.spaces[id as usize];
            let locked_out =
                window_full && id != SpaceId::Data && space.crypto_send.wants_to_send();
            let sent = match space.sent.outstanding_eliciting() {
                0 if locked_out => last_sent.unwrap_or(now),
                0 => continue,
                _ => space.last_eliciting,
            };
            let mut due = sent + base;
            if id == SpaceId::Data {
                // RFC 9002 §6.2.1: not before the handshake is confirmed.
                if !self.handshake_confirmed {
                    continue;
                }
                // RFC 9002 §6.2.1 adds what the peer may hold an acknowledgement back. It does not where more packets are open
                // than it leaves unacknowledged (RFC 9000 §13.2.2: two, unless we asked for less), as RFC 8985 §7.2 has it.
                let held = space.sent.outstanding_eliciting() as u64;
                if held <= self.ack_request.wanted.ack_eliciting_threshold {
                    due += self.peer.max_ack_delay * backoff;
                }
            }
            if earliest.is_none_or(|(time, _)| due < time) {
                earliest = Some((due, id));
            }
        }
        earliest
    }

    /// Whether the peer is known to have validated our address.
    fn peer_completed_validation(&self) -> bool {
        self.side == Side::Server
            || self.handshake_confirmed
            || self.spaces[SpaceId::Handshake as usize]
                .largest_acked
                .is_some()
    }

    /// RFC 9002 §A.8, SetLossDetectionTimer.
    pub(super) fn set_loss_timer(&mut self, now: Time) {
        let loss = self.spaces.iter().filter_map(|s| s.loss_time).min();
        let due = if loss.is_some() {
            loss
        } else if self.path.allowance() == 0 {
            // Nothing could be sent: receiving restarts the timer.
            None
        } else {
            self.next_probe(now).map(|(due, _)| due)
        };
        self.timers.set(Timer::LossDetection, due);
    }

    fn on_loss_timer(&mut self, now: Time) {
        if let Some(id) = SpaceId::ALL.into_iter().find(|id| {
            self.spaces[*id as usize]
                .loss_time
                .is_some_and(|t| t <= now)
        }) {
            self.detect_and_handle_loss(id, now);
            self.set_loss_timer(now);
            return;
        }
        let Some((_, id)) = self.next_probe(now) else {
            return;
        };
        self.stats.probe_timeouts += 1;
        self.pto_count += 1;
        self.spaces[id as usize].probes = PROBES;
        self.small_probe_due =
            id == SpaceId::Data && self.path.mtu.wants_small_probe(self.pto_count);
        self.requeue_oldest(id);
        // RFC 9002 §6.2.4: the other handshake level's data may go along.
        if id != SpaceId::Data {
            for id in [SpaceId::Initial, SpaceId::Handshake] {
                self.spaces[id as usize].crypto_send.on_all_lost();
            }
            if self.ring.is_some() && matches!(self.state, State::Established) {
                // A server that has confirmed the handshake ignores all but 1-RTT packets; should our address have changed
                // since, only such a packet shows it where we are.
                self.space(SpaceId::Data).probes = 1;
            }
        }
        self.set_loss_timer(now);
    }

    /// Puts what the oldest open packets carried back in line, so that a probe says something useful.
    fn requeue_oldest(&mut self, id: SpaceId) {
        let space = &self.spaces[id as usize];
        let oldest: Vec<SentFrame> = space
            .sent
            .outstanding()
            .filter(|(_, p)| p.ack_eliciting && p.frames > 0)
            .take(PROBES as usize)
            .flat_map(|(_, p)| space.sent.frames(p))
            .collect();
        for frame in oldest {
            self.on_frame_lost(id, frame);
        }
    }

    /// Silence is counted from now on (RFC 9000 §10.1).
    pub(super) fn restart_idle_timer(&mut self, now: Time) {
        self.last_active = now;
        if !self.timers.is_set(Timer::Shed) {
            self.timers.set(Timer::Shed, Some(now + SHED_AFTER));
        }
        let timeout = self.idle_timeout;
        if timeout.is_zero() {
            self.timers.set(Timer::Idle, None);
        } else {
            // RFC 9000 §10.1: at least three probe timeouts, so that lost packets can be repaired.
            self.timers.set(
                Timer::Idle,
                Some(now + timeout.max(3 * self.probe_timeout())),
            );
        }
        if let Some(interval) = self.config.keep_alive
            && matches!(self.state, State::Established)
        {
            self.timers.set(Timer::KeepAlive, Some(now + interval));
        }
    }

    /// A client has heard something from the server that asks for an acknowledgement.
    #[inline]
    pub(super) fn note_server_heard(&mut self, now: Time) {
        if self.side == Side::Client {
            self.server_heard = now;
            self.quiet_probes = 0;
            // A timer that runs is moved when it fires, not with every run.
            if !self.timers.is_set(Timer::Quiet) && self.expects_data() {
                self.timers.set(Timer::Quiet, Some(self.quiet_until()));
            }
        }
    }

    /// Whether the server may have something to send: the handshake is confirmed, and there are streams.
    fn expects_data(&self) -> bool {
        self.handshake_confirmed && self.streams.count() > 0
    }

    /// How long the server may be quiet before the next probe: a few probe timeouts, twice as many each time up to a limit, and
    /// as many again from then on.
    fn quiet_until(&self) -> Time {
        let patience = (QUIET_PROBE_TIMEOUTS * self.probe_timeout()).max(LEAST_PATIENCE);
        let beyond = self.quiet_probes.saturating_sub(MAX_BACKOFF) + 1;
        self.server_heard + patience * (1 << self.quiet_probes.min(MAX_BACKOFF)) * beyond
    }

    /// A client that only receives finds out by nothing but silence that its address has changed, since the server sends to
    /// the one before. A PING shows the server where it is (RFC 9000 §9.2). Probes stop after half of the idle timeout: they must
    /// not keep a connection alive on which nothing happens.
    fn on_quiet_timer(&mut self, now: Time) {
        let idle = self.idle_timeout;
        if !self.expects_data() || (!idle.is_zero() && now - self.server_heard > idle / 2) {
            return;
        }
        if self.quiet_until() <= now {
            self.ping_pending = true;
            self.quiet_probes += 1;
        }
        self.timers.set(Timer::Quiet, Some(self.quiet_until()));
    }

    /// What a transfer needed is given back when the connection has been silent for a while: of many connections most are
    /// idle at any time. The timer is moved when it fires, not with every run.
    fn on_shed_timer(&mut self, now: Time) {
        let due = self.last_active + SHED_AFTER;
        if now < due {
            self.timers.set(Timer::Shed, Some(due));
            return;
        }
        self.streams.shed();
        for space in &mut self.spaces {
            space.sent.shed();
            space.received.shed();
        }
        if let Some(ring) = &mut self.ring {
            ring.shed();
        }
        self.path.flow.reordering.shed();
        self.lost = Lost::default();
        self.endpoint_events.shrink_to_fit();
    }

    /// Starts a key update when the current key has sealed enough, and ends the connection at the AEAD's limit.
    pub(super) fn renew_keys(&mut self, now: Time) {
        let Some(ring) = self.ring.as_mut() else {
            return;
        };
        if ring.sealed() < self.config.key_update_after || !self.handshake_confirmed {
            return;
        }
        let next = self.spaces[SpaceId::Data as usize].sent.next_number();
        let limit = ring.local.suite().confidentiality_limit();
        let limit = limit.min(self.config.confidentiality_limit);
        if ring.initiate(next) {
            let phase = ring.updates();
            if let Some(log) = &mut self.qlog {
                log.key_updated(now, false, phase);
            }
        } else if ring.sealed() + squall_protect::MAX_GROUP as u64 >= limit {
            // RFC 9001 §6.6.
            self.close_with_error(
                now,
                &TransportError {
                    code: TransportErrorCode::AEAD_LIMIT_REACHED,
                    frame_type: 0,
                    reason: "the peer did not follow a key update before the AEAD's limit",
                },
            );
        }
    }

    /// The previous keys are kept for three probe timeouts (RFC 9001 §6.5).
    pub(super) fn schedule_key_discard(&mut self, now: Time) {
        let due = now + 3 * self.probe_timeout();
        if let Some(ring) = self
            .ring
            .as_mut()
            .filter(|r| KeyRing::awaits_first_of_phase(r))
        {
            ring.drop_previous_at = Some(due);
        }
        self.timers.set(
            Timer::KeyDiscard,
            self.ring.as_ref().and_then(|r| r.drop_previous_at),
        );
    }
}
