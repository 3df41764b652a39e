//! ProbeRTT (§5.3.4): now and then the queue is drained to measure the path's round-trip time.

use std::time::Duration;

use super::{AckPhase, Bbr, State};
use crate::congestion::delivery::RateSample;
use crate::time::Time;

/// In hundredths.
const PROBE_RTT_CWND_GAIN: u64 = 50;
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);

impl Bbr {
    pub(super) fn check_probe_rtt(&mut self, now: Time, sample: &RateSample) {
        if self.state != State::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.save_cwnd();
            self.state = State::ProbeRtt;
            self.pacing_gain = 100;
            self.cwnd_gain = PROBE_RTT_CWND_GAIN;
            self.probe_rtt_done_stamp = None;
            self.ack_phase = AckPhase::Stopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(now);
        }
        if sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    pub(super) fn handle_probe_rtt(&mut self, now: Time) {
        self.sampler.mark_app_limited(self.in_flight);
        match self.probe_rtt_done_stamp {
            None if self.in_flight <= self.probe_rtt_cwnd() => {
                self.probe_rtt_done_stamp = Some(now + PROBE_RTT_DURATION);
                self.probe_rtt_round_done = false;
                self.start_round();
            }
            None => {}
            Some(_) => {
                self.probe_rtt_round_done |= self.round_start;
                if self.probe_rtt_round_done {
                    self.check_probe_rtt_done(now);
                }
            }
        }
    }

    pub(super) fn check_probe_rtt_done(&mut self, now: Time) {
        if self.probe_rtt_done_stamp.is_some_and(|done| now > done) {
            self.probe_rtt_min_stamp = now;
            self.restore_cwnd();
            self.reset_short_term_model();
            if self.full_bw_reached {
                self.start_down(now);
                self.start_cruise();
            } else {
                self.enter_startup();
            }
        }
    }

    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp(PROBE_RTT_CWND_GAIN).max(self.min_pipe_cwnd())
    }
}
