//! ProbeBW (§5.3.3): the cycle that probes for bandwidth.

use std::time::Duration;

use super::{
    AckPhase, BETA, Bbr, DEFAULT_CWND_GAIN, INFINITY, LOSS_THRESH, PROBE_WAIT, State, share,
};
use crate::congestion::delivery::RateSample;
use crate::time::Time;

/// Headroom left for other flows, in hundredths.
const HEADROOM: u64 = 15;
/// Rounds after which bandwidth is probed at the latest, so that competing Reno flows get their
/// share.
const MAX_RENO_ROUNDS: u64 = 63;
/// The random part of the longest time between two probes, next to `PROBE_WAIT`.
const PROBE_WAIT_RANDOM_NANOS: u64 = 1_000_000_000;
/// In hundredths.
const UP_CWND_GAIN: u64 = 225;

impl Bbr {
    pub(super) const fn is_probing_bw_state(&self) -> bool {
        matches!(
            self.state,
            State::Down | State::Cruise | State::Refill | State::Up
        )
    }

    pub(super) const fn is_probing_bw(&self) -> bool {
        matches!(self.state, State::Startup | State::Refill | State::Up)
    }

    pub(super) fn roll(&mut self, below: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % below
    }

    pub(super) fn start_down(&mut self, now: Time) {
        self.is_loss_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
        self.probe_up_acked_per_inc = INFINITY;
        self.dice ^= now.as_nanos();
        self.dice |= 1;
        self.rounds_since_probe_up = self.roll(2);
        self.bw_probe_wait = PROBE_WAIT + Duration::from_nanos(self.roll(PROBE_WAIT_RANDOM_NANOS));
        self.cycle_stamp = now;
        self.ack_phase = AckPhase::Stopping;
        self.start_round();
        self.state = State::Down;
        self.pacing_gain = 90;
        self.cwnd_gain = DEFAULT_CWND_GAIN;
    }

    pub(super) const fn start_cruise(&mut self) {
        self.state = State::Cruise;
        self.pacing_gain = 100;
        self.cwnd_gain = DEFAULT_CWND_GAIN;
    }

    pub(super) const fn start_refill(&mut self) {
        self.reset_short_term_model();
        self.bw_probe_up_rounds = 0;
        self.bw_probe_up_acked = 0;
        self.prev_probe_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = State::Refill;
        self.pacing_gain = 100;
        self.cwnd_gain = DEFAULT_CWND_GAIN;
    }

    pub(super) fn start_up(&mut self, sample: &RateSample) {
        self.ack_phase = AckPhase::Starting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = sample.delivery_rate;
        self.state = State::Up;
        self.pacing_gain = 125;
        self.cwnd_gain = UP_CWND_GAIN;
        self.raise_inflight_longterm_slope();
    }

    pub(super) const fn reset_short_term_model(&mut self) {
        self.bw_shortterm = INFINITY;
        self.inflight_shortterm = INFINITY;
    }

    pub(super) fn update_probe_bw_cycle_phase(&mut self, now: Time, sample: &RateSample) {
        if !self.full_bw_reached || self.adapt_long_term_model(now, sample) {
            return;
        }
        let state = self.state;
        match state {
            State::Down | State::Cruise if self.is_time_to_probe(now) => self.start_refill(),
            State::Down if self.is_time_to_cruise() => self.start_cruise(),
            State::Refill if self.round_start => {
                self.is_bw_probe_sample = true;
                self.start_up(sample);
            }
            State::Up if self.is_time_to_go_down(sample) => {
                self.prev_probe_too_high = false;
                self.start_down(now);
            }
            _ => {}
        }
    }

    pub(super) fn is_time_to_probe(&self, now: Time) -> bool {
        // §5.3.3.8.2: after some time, or after as many rounds as Reno would need.
        let reno = (self.target_inflight() / self.smss.max(1)).min(MAX_RENO_ROUNDS);
        now > self.cycle_stamp + self.bw_probe_wait || self.rounds_since_probe_up >= reno.max(1)
    }

    pub(super) fn is_time_to_cruise(&self) -> bool {
        self.in_flight <= self.inflight_with_headroom() && self.in_flight <= self.inflight(100)
    }

    pub(super) fn is_time_to_go_down(&mut self, sample: &RateSample) -> bool {
        if self.prev_probe_too_high && self.in_flight >= self.inflight_longterm {
            self.prev_probe_precautionary = true;
            return true;
        }
        if self.is_cwnd_limited && self.cwnd >= self.inflight_longterm {
            self.reset_full_bw();
            self.full_bw = sample.delivery_rate;
            return false;
        }
        self.full_bw_now
    }

    pub(super) fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_longterm == INFINITY {
            return INFINITY;
        }
        let headroom = share(self.inflight_longterm, HEADROOM).max(self.smss);
        self.inflight_longterm
            .saturating_sub(headroom)
            .max(self.min_pipe_cwnd())
    }

    pub(super) fn raise_inflight_longterm_slope(&mut self) {
        let growth = 1_u64 << self.bw_probe_up_rounds;
        self.bw_probe_up_rounds = (self.bw_probe_up_rounds + 1).min(30);
        self.probe_up_acked_per_inc = (self.cwnd / growth).max(self.smss);
    }

    pub(super) fn probe_inflight_longterm_upward(&mut self, sample: &RateSample) {
        if !self.is_cwnd_limited || self.cwnd < self.inflight_longterm {
            return;
        }
        self.bw_probe_up_acked += sample.newly_acked;
        let steps = self.bw_probe_up_acked / self.probe_up_acked_per_inc.max(1);
        self.bw_probe_up_acked -= steps * self.probe_up_acked_per_inc;
        self.inflight_longterm = self.inflight_longterm.saturating_add(steps * self.smss);
        if self.round_start {
            self.raise_inflight_longterm_slope();
        }
    }

    /// Whether it has decided on a state.
    pub(super) fn adapt_long_term_model(&mut self, now: Time, sample: &RateSample) -> bool {
        if self.ack_phase == AckPhase::Starting && self.round_start {
            self.ack_phase = AckPhase::Feedback;
        }
        if self.ack_phase == AckPhase::Stopping && self.round_start {
            self.is_bw_probe_sample = false;
            self.ack_phase = AckPhase::Init;
            if self.is_probing_bw_state() && !sample.is_app_limited {
                self.max_bw.advance();
            }
            if self.is_probing_bw_state()
                && self.prev_probe_precautionary
                && !self.prev_probe_too_high
            {
                self.start_refill();
                return true;
            }
        }
        if Self::is_inflight_too_high(sample) {
            if self.is_bw_probe_sample {
                self.handle_inflight_too_high(now, sample);
            }
            return false;
        }
        if self.inflight_longterm == INFINITY {
            return false;
        }
        self.inflight_longterm = self.inflight_longterm.max(sample.tx_in_flight);
        if self.state == State::Up {
            self.probe_inflight_longterm_upward(sample);
        }
        false
    }

    pub(super) const fn is_inflight_too_high(sample: &RateSample) -> bool {
        sample.lost > share(sample.tx_in_flight, LOSS_THRESH)
    }

    pub(super) fn handle_inflight_too_high(&mut self, now: Time, sample: &RateSample) {
        self.prev_probe_too_high = true;
        self.is_bw_probe_sample = false;
        if !sample.is_app_limited {
            self.inflight_longterm = sample.tx_in_flight.max(share(self.target_inflight(), BETA));
        }
        if self.state == State::Up {
            self.start_down(now);
        }
    }
}
