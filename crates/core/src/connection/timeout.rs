//! What happens as time passes (RFC 9002 §6.2, RFC 9000 §10.1).

use std::time::Duration;

use squall_wire::{Side, TransportError, TransportErrorCode};

use super::parts::clock::{MAX_BACKOFF, Timer};
use super::parts::spaces::ProbeTimeout;
use super::{Connection, State};
use crate::error::CloseReason;
use crate::space::SpaceId;
use crate::time::Time;

impl Connection {
    /// Handles every timer that is due at `now`. All datagrams that have arrived by then have been
    /// received.
    pub fn on_timeout(&mut self, now: Time) {
        self.clock.end_put_off(now);
        self.run_timers(now, false);
    }

    /// Handles every timer that is due at `now`, while datagrams that have arrived wait to be read.
    ///
    /// Something that ends a silence may be among them, so the probe timeout (RFC 9002 §6.2), the
    /// idle timeout (RFC 9000 §10.1) and the end of a path's validation (RFC 9000 §8.2.4) are put
    /// off until [`on_timeout`](Self::on_timeout) is called, by 350 ms at most. Otherwise an
    /// endpoint under load repeats packets whose acknowledgements it has not read yet, and adds to
    /// the load.
    ///
    /// If this call starts putting timers off, it returns until when.
    pub fn on_timeout_while_unread(&mut self, now: Time) -> Option<Time> {
        let were_put_off = self.clock.put_off_until(now).is_some();
        self.run_timers(now, true);
        self.clock.put_off_until(now).filter(|_| !were_put_off)
    }

    fn run_timers(&mut self, now: Time, unread: bool) {
        (self.endpoint).forget_retired_ids(&mut self.paths.local_ids, now);
        for timer in Timer::ALL {
            if !self.clock.take_due(timer, now) {
                continue;
            }
            match timer {
                Timer::LossDetection => self.on_loss_timer(now, unread),
                // Both only make `transmit` check again.
                Timer::AckDelay | Timer::Pacing => {}
                Timer::Idle if unread && self.clock.put_off(Timer::Idle, now) => {}
                Timer::Idle if self.is_handshaking() => {
                    self.abandon(now, CloseReason::HandshakeTimeout);
                }
                Timer::Idle => self.abandon(now, CloseReason::IdleTimeout),
                Timer::Close => self.on_close_timer(now),
                Timer::KeepAlive => {
                    let in_use = self.streams.any_in_foreground();
                    self.duties.ping |= self.clock.keeps_alive(in_use);
                }
                Timer::Handshake => self.abandon(now, CloseReason::HandshakeTimeout),
                Timer::KeyDiscard => {
                    if let Some(ring) = &mut self.spaces.ring {
                        ring.drop_previous();
                    }
                }
                Timer::Path
                    if unread
                        && self.paths.has_failed(now)
                        && self.clock.put_off(Timer::Path, now) => {}
                Timer::Path => self.on_path_timer(now),
                Timer::Quiet => {
                    let pto = self.probe_timeout();
                    let probes = self.expects_data() && self.clock.probes_for_data(now, pto);
                    self.duties.ping |= probes;
                }
                Timer::Shed => self.on_shed_timer(now),
            }
            if self.is_drained() {
                return;
            }
        }
    }

    /// The probe timeout without backoff, `max_ack_delay` included (RFC 9002 §6.2.1).
    pub(super) fn probe_timeout(&self) -> Duration {
        self.paths.pto_base() + self.handshake.peer.max_ack_delay
    }

    /// Whether the server may have something to send: the handshake is confirmed, and there are
    /// streams other than background ones.
    pub(super) fn expects_data(&self) -> bool {
        self.handshake.confirmed && self.streams.any_in_foreground()
    }

    /// Silence starts over at `now` (RFC 9000 §10.1).
    pub(super) fn restart_idle_timer(&mut self, now: Time) {
        let established = matches!(self.state, State::Established);
        let pto = self.probe_timeout();
        self.clock.restart_idle(now, pto, established);
    }

    // ---- losses ---------------------------------------------------------------------------------

    /// RFC 9002 §A.8: the probe timeout that expires first, and its space.
    fn next_probe(&self, now: Time) -> Option<(Time, SpaceId)> {
        let backoff = 1 << self.clock.pto_count.min(MAX_BACKOFF);
        let flow = &self.paths.active.flow;
        let asked = ProbeTimeout {
            timeout: flow.rtt.pto_base() * backoff,
            ack_delay: self.handshake.peer.max_ack_delay * backoff,
            ack_threshold: self.duties.ack_frequency.threshold(),
            confirmed: self.handshake.confirmed,
            peer_validated_us: self.peer_completed_validation(),
            window_full: flow.is_full(),
        };
        self.spaces.next_probe(now, &asked)
    }

    /// Whether the peer is known to have validated our address.
    pub(super) fn peer_completed_validation(&self) -> bool {
        self.side == Side::Server
            || self.handshake.confirmed
            || self.spaces[SpaceId::Handshake].largest_acked.is_some()
    }

    /// RFC 9002 §A.8, SetLossDetectionTimer.
    pub(super) fn set_loss_timer(&mut self, now: Time) {
        let due = match self.spaces.loss_time() {
            Some(time) => Some(time),
            // Nothing can be sent: receiving restarts the timer.
            None if self.paths.active.allowance() == 0 => None,
            None => self.next_probe(now).map(|(due, _)| due),
        };
        self.clock.set(Timer::LossDetection, due);
    }

    fn on_loss_timer(&mut self, now: Time, unread: bool) {
        if let Some(id) = self.spaces.overdue(now) {
            self.detect_losses(id, now);
        } else if let Some((_, id)) = self.next_probe(now) {
            if unread && self.clock.put_off(Timer::LossDetection, now) {
                return;
            }
            self.stats.probe_timeouts += 1;
            self.clock.pto_count += 1;
            self.make_room_for_probes(now);
            let large_vanish = (self.paths.active.mtu).wants_small_probe(self.clock.pto_count);
            self.duties.small_probe = id == SpaceId::Data && large_vanish;
            let established = matches!(self.state, State::Established);
            for frame in self.spaces.owe_probes(id, established) {
                self.on_frame_lost(id, frame);
            }
        } else {
            return;
        }
        self.set_loss_timer(now);
    }

    // ---- silence --------------------------------------------------------------------------------

    /// Frees memory that a transfer needed once the connection has been silent for a while: most of
    /// many connections are idle at any time.
    fn on_shed_timer(&mut self, now: Time) {
        if self.clock.is_at_rest(now) {
            self.streams.shed();
            self.spaces.shed();
            self.datagrams.shed();
            self.paths.active.flow.reordering.shed();
            self.endpoint.events.shrink_to_fit();
            // Rarely: three probe timeouts are longer than this silence.
            let mut next = self.paths.local_ids.next_expiry();
            if let Some(due) = self.clock.blocked_again_at()
                && self.streams.is_held_back()
            {
                if due <= now {
                    self.streams.tell_blocked_again();
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
            self.clock.set(Timer::Shed, next);
        }
    }

    // ---- keys -----------------------------------------------------------------------------------

    /// The previous keys are kept for three probe timeouts (RFC 9001 §6.5).
    pub(super) fn schedule_key_discard(&mut self, now: Time) {
        let due = now + 3 * self.probe_timeout();
        let due = self.spaces.schedule_key_discard(due);
        self.clock.set(Timer::KeyDiscard, due);
    }

    /// Starts a key update if the last one is done; returns whether it did.
    pub(super) fn update_keys(&mut self, now: Time) -> bool {
        let next = self.spaces[SpaceId::Data].sent.next_number();
        let Some(ring) = self.spaces.ring.as_mut() else {
            return false;
        };
        let begun = ring.initiate(next);
        if begun {
            self.log.key_updated(now, false, ring.updates());
        }
        begun
    }

    /// Starts a key update when the current key has sealed enough, and ends the connection at the
    /// AEAD's limit.
    pub(super) fn renew_keys(&mut self, now: Time) {
        let Some(ring) = self.spaces.ring.as_ref() else {
            return;
        };
        if ring.sealed() < self.config.key_update_after || !self.handshake.confirmed {
            return;
        }
        let limit = ring.local.suite().confidentiality_limit();
        let limit = limit.min(self.config.confidentiality_limit);
        let exhausted = ring.sealed() + squall_protect::MAX_GROUP as u64 >= limit;
        if !self.update_keys(now) && exhausted {
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
}
