//! Step 6, once per run: acknowledgements owed, losses, congestion, timers.

use squall_wire::Side;

use super::Trip;
use super::trip::AckTotals;
use crate::congestion::Acknowledged;
use crate::connection::Connection;
use crate::connection::parts::clock::Timer;
use crate::observation::CongestionCause;
use crate::space::SpaceId;
use crate::stages::Stage;
use crate::time::Time;

impl Connection {
    /// Settles a run whose packets have been processed.
    pub(super) fn settle(&mut self, trip: &mut Trip<'_>) {
        let now = trip.now;
        if self.is_closed() {
            trip.stages.mark(Stage::AckLoss);
            return;
        }
        if trip.opened {
            self.clock.on_received();
            self.restart_idle_timer(now);
            if self.side == Side::Client {
                let answer_due = trip.acked.any() && std::mem::take(&mut self.duties.answer_due);
                if answer_due || trip.eliciting[SpaceId::Data] {
                    let (pto, expects) = (self.probe_timeout(), self.expects_data());
                    self.clock.on_server_heard(now, pto, expects, answer_due);
                }
            }
            self.streams.renew_used_up_credit();
        }
        (self.endpoint).forget_retired_ids(&mut self.paths.local_ids, now);
        if std::mem::take(&mut self.streams.room_awaits_ack) {
            self.spaces[SpaceId::Data].received.ask();
        }
        let deadline = self.spaces.settle_received(now, &trip.eliciting);
        self.clock.set(Timer::AckDelay, deadline);
        if trip.acked.any() {
            self.settle_acks(now, &trip.acked);
        } else if !self.paths.active.validated {
            // More may be sent now: RFC 9002 §A.6.
            self.set_loss_timer(now);
        }
        if self.handshake.confirmed {
            self.handshake.conclude();
            self.spaces.conclude();
        }
        trip.stages.mark(Stage::AckLoss);
    }

    /// Applies acknowledgements to losses and congestion.
    pub(in crate::connection) fn settle_acks(&mut self, now: Time, totals: &AckTotals) {
        if totals.congested > 0 {
            // RFC 9002 §7.1: like a loss, once per round trip.
            self.stats.ecn_ce += totals.congested;
            let flow = &mut self.paths.active.flow;
            let before = flow.congestion.window();
            flow.congestion.on_marked(now, totals.newest_sent);
            // Whatever the losses turn out to be, this is congestion.
            flow.reordering.end_episode();
            if flow.congestion.window() < before {
                self.stats.congestion_events += 1;
                self.log.congestion(CongestionCause::Ecn, before, 0, flow);
            }
        }
        for id in SpaceId::ALL {
            if totals.spaces[id] {
                self.detect_losses(id, now);
            }
        }
        if totals.bytes > 0 {
            let idle = !self.wants_data();
            let flow = &mut self.paths.active.flow;
            let acked = Acknowledged {
                bytes: totals.bytes,
                newest_sent: totals.newest_sent,
                app_limited: !totals.window_limited,
                in_flight: flow.in_flight(),
                idle,
            };
            flow.congestion.on_ack(now, &acked, &flow.rtt);
            self.adapt_ack_frequency();
        }
        // RFC 9002 §6.2.1: a client that may be locked out keeps its backoff.
        if self.peer_completed_validation() {
            self.clock.reset_probe_timeout();
        }
        if self.log.is_on() {
            let (path, id) = (&self.paths.active, self.paths.remote_ids.current());
            self.log.metrics(now, path, self.clock.pto_count);
            self.log.path(now, path, id);
        }
        self.set_loss_timer(now);
    }

    /// Requests acknowledgements as rare as the congestion window allows, if the peer can do that.
    pub(in crate::connection) fn adapt_ack_frequency(&mut self) {
        if self.handshake.confirmed && self.handshake.peer.min_ack_delay.is_some() {
            let path = &self.paths.active;
            let size = u64::from(path.mtu.current()).max(1);
            let (window, rtt) = (path.flow.congestion.window(), path.flow.rtt.smoothed());
            self.duties.ack_frequency.adapt(window / size, rtt);
        }
    }
}
