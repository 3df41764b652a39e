//! BBR version 3 (draft-ietf-ccwg-bbr): a model of the path's bandwidth and round-trip time, rather
//! than losses, determines how much is in flight and how fast it leaves. Names are the draft's.
//!
//! ```text
//!  Startup ──▶ Drain ──▶ ProbeBW: Down ─▶ Cruise ─▶ Refill ─▶ Up ─▶ Down …
//!      ▲                    │ every 5 s without a smaller round-trip time
//!      └──── ProbeRtt ◀─────┘
//! ```
//!
//! It is driven by bundles sent and by runs of acknowledgements and losses, never by single
//! packets.

mod probe_bw;
mod probe_rtt;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::delivery::{RateSample, Sampler, volume};
use crate::recovery::pacer::initial_window;
use crate::recovery::rtt::RttEstimator;
use crate::time::Time;

/// Gains, in hundredths.
const STARTUP_PACING_GAIN: u64 = 277;
const DRAIN_PACING_GAIN: u64 = 50;
const DEFAULT_CWND_GAIN: u64 = 200;
/// Loss above this share of the bytes in flight means that there were too many, in hundredths.
const LOSS_THRESH: u64 = 2;
/// The share of a bound that is kept after congestion, in hundredths.
const BETA: u64 = 70;
/// Pacing is this much slower than the bandwidth, in hundredths.
const PACING_MARGIN: u64 = 1;
/// Separate losses in a round that end Startup.
const STARTUP_FULL_LOSS_COUNT: u32 = 6;
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const MIN_RTT_FILTER: Duration = Duration::from_secs(10);
/// Rounds over which the aggregation of acknowledgements is remembered.
const EXTRA_ACKED_FILTER: u64 = 10;
/// The fixed part of the longest time between two probes for bandwidth.
const PROBE_WAIT: Duration = Duration::from_secs(2);

const INFINITY: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// The phase that incoming acknowledgements belong to (§5.3.3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

/// The larger of the values in two slots, the current and the previous one.
#[derive(Clone, Copy, Debug, Default)]
struct MaxFilter {
    slots: [u64; 2],
}

impl MaxFilter {
    fn update(&mut self, value: u64) {
        self.slots[0] = self.slots[0].max(value);
    }

    const fn advance(&mut self) {
        self.slots = [0, self.slots[0]];
    }

    fn max(&self) -> u64 {
        self.slots[0].max(self.slots[1])
    }
}

/// The contents of a run of acknowledgements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// Bytes newly acknowledged.
    pub(crate) bytes: u64,
    /// When the newest of their packets was sent.
    pub(crate) newest_sent: Time,
    /// Whether they had not filled the window when they were sent (RFC 9002 §7.8).
    pub(crate) app_limited: bool,
    /// Bytes in flight now.
    pub(crate) in_flight: u64,
    /// Whether there is nothing more to send.
    pub(crate) idle: bool,
}

/// The controller.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    sampler: Sampler,
    smss: u64,
    cwnd: u64,
    initial_cwnd: u64,
    prior_cwnd: u64,
    pacing_rate: Option<u64>,
    state: State,
    pacing_gain: u64,
    cwnd_gain: u64,

    round_count: u64,
    round_start: bool,
    next_round_delivered: u64,

    max_bw: MaxFilter,
    bw: u64,
    bw_latest: u64,
    bw_shortterm: u64,
    inflight_latest: u64,
    inflight_shortterm: u64,
    inflight_longterm: u64,

    min_rtt: Duration,
    min_rtt_stamp: Time,
    probe_rtt_min_delay: Duration,
    probe_rtt_min_stamp: Time,
    probe_rtt_expired: bool,
    probe_rtt_done_stamp: Option<Time>,
    probe_rtt_round_done: bool,
    idle_restart: bool,

    full_bw: u64,
    full_bw_count: u32,
    full_bw_now: bool,
    full_bw_reached: bool,
    drain_start_round: u64,

    is_loss_in_round: bool,
    is_marked_in_round: bool,
    losses_in_round: u32,
    /// Bytes lost and delivered when the loss round began.
    lost_before_round: u64,
    delivered_before_round: u64,
    loss_round_delivered: u64,
    loss_round_start: bool,

    extra_acked_interval_start: Time,
    extra_acked_delivered: u64,
    /// Values of the current and the previous span of rounds, and when the current one began.
    extra_acked: MaxFilter,
    extra_acked_since: u64,

    ack_phase: AckPhase,
    cycle_stamp: Time,
    bw_probe_wait: Duration,
    rounds_since_probe_up: u64,
    bw_probe_up_rounds: u32,
    bw_probe_up_acked: u64,
    probe_up_acked_per_inc: u64,
    is_bw_probe_sample: bool,
    prev_probe_too_high: bool,
    prev_probe_precautionary: bool,
    /// Spreads the probes of flows that began together; need not be unpredictable.
    dice: u64,
    in_flight: u64,
    is_cwnd_limited: bool,
    /// What the losses of this round changed, in case they turn out to be spurious (§5.5.11).
    before: Option<Before>,
}

/// The model before losses were reported.
#[derive(Clone, Copy, Debug)]
struct Before {
    state: State,
    bw_shortterm: u64,
    inflight_shortterm: u64,
    inflight_longterm: u64,
}

const fn share(value: u64, hundredths: u64) -> u64 {
    ((value as u128 * hundredths as u128) / 100) as u64
}

impl Bbr {
    /// The initial window, without a model.
    pub(super) fn new(max_datagram: u16) -> Self {
        let cwnd = initial_window(max_datagram);
        Self {
            sampler: Sampler::new(),
            smss: max_datagram.into(),
            cwnd,
            initial_cwnd: cwnd,
            prior_cwnd: 0,
            pacing_rate: None,
            state: State::Startup,
            pacing_gain: STARTUP_PACING_GAIN,
            cwnd_gain: DEFAULT_CWND_GAIN,
            round_count: 0,
            round_start: false,
            next_round_delivered: 0,
            max_bw: MaxFilter::default(),
            bw: 0,
            bw_latest: 0,
            bw_shortterm: INFINITY,
            inflight_latest: 0,
            inflight_shortterm: INFINITY,
            inflight_longterm: INFINITY,
            min_rtt: Duration::MAX,
            min_rtt_stamp: Time::ZERO,
            probe_rtt_min_delay: Duration::MAX,
            probe_rtt_min_stamp: Time::ZERO,
            probe_rtt_expired: false,
            probe_rtt_done_stamp: None,
            probe_rtt_round_done: false,
            idle_restart: false,
            full_bw: 0,
            full_bw_count: 0,
            full_bw_now: false,
            full_bw_reached: false,
            drain_start_round: 0,
            is_loss_in_round: false,
            is_marked_in_round: false,
            losses_in_round: 0,
            lost_before_round: 0,
            delivered_before_round: 0,
            loss_round_delivered: 0,
            loss_round_start: false,
            extra_acked_interval_start: Time::ZERO,
            extra_acked_delivered: 0,
            extra_acked: MaxFilter::default(),
            extra_acked_since: 0,
            ack_phase: AckPhase::Init,
            cycle_stamp: Time::ZERO,
            bw_probe_wait: PROBE_WAIT,
            rounds_since_probe_up: 0,
            bw_probe_up_rounds: 0,
            bw_probe_up_acked: 0,
            probe_up_acked_per_inc: INFINITY,
            is_bw_probe_sample: false,
            prev_probe_too_high: false,
            prev_probe_precautionary: false,
            dice: 0x9e37_79b9_7f4a_7c15,
            in_flight: 0,
            is_cwnd_limited: false,
            before: None,
        }
    }

    /// Bytes that may be in flight.
    pub(super) const fn window(&self) -> u64 {
        self.cwnd
    }

    /// Bytes per second at which packets leave; `None` before anything is known.
    pub(super) const fn pacing_rate(&self) -> Option<u64> {
        self.pacing_rate
    }

    /// Whether it is still searching for the path's capacity for the first time.
    pub(super) const fn is_startup(&self) -> bool {
        matches!(self.state, State::Startup)
    }

    pub(super) fn set_max_datagram(&mut self, max_datagram: u16) {
        if self.cwnd == self.initial_cwnd && self.sampler.delivered == 0 {
            self.initial_cwnd = initial_window(max_datagram);
            self.cwnd = self.initial_cwnd;
        }
        self.smss = max_datagram.into();
        self.cwnd = self.cwnd.max(self.min_pipe_cwnd());
    }

    const fn min_pipe_cwnd(&self) -> u64 {
        4 * self.smss
    }

    // ---- what happens --------------------------------------------------------------------------

    /// A bundle of `bytes` leaves; `in_flight` counts it (§5.2.2).
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        if in_flight <= bytes && self.sampler.is_app_limited() {
            self.idle_restart = true;
            self.extra_acked_interval_start = now;
            if self.is_probing_bw_state() {
                self.set_pacing_rate(100);
            } else if self.state == State::ProbeRtt {
                self.check_probe_rtt_done(now);
            }
        }
        self.sampler.on_sent(now, bytes, in_flight);
        self.in_flight = in_flight;
    }

    /// Packets are acknowledged (§5.2.3).
    pub(super) fn on_ack(&mut self, now: Time, acked: &Acknowledged, rtt: &RttEstimator) {
        self.in_flight = acked.in_flight;
        self.is_cwnd_limited = !acked.app_limited;
        if self.sampler.delivered == 0 {
            self.min_rtt_stamp = now;
            self.probe_rtt_min_stamp = now;
            self.extra_acked_interval_start = now;
            self.cycle_stamp = now;
        }
        let sample = self
            .sampler
            .on_ack(now, acked.bytes, acked.newest_sent, rtt.min());
        self.update_model_and_state(now, &sample, rtt);
        if acked.idle && self.in_flight < self.cwnd {
            self.sampler.mark_app_limited(self.in_flight);
        }
        self.set_pacing_rate(self.pacing_gain);
        self.set_cwnd(&sample);
    }

    /// Packets of `bytes` in all were lost, in this many separate `ranges`, the newest of them sent
    /// at `newest_sent` (§5.5.10.2). Returns whether they are the first of their round.
    pub(super) fn on_lost(
        &mut self,
        now: Time,
        bytes: u64,
        ranges: u32,
        newest_sent: Time,
    ) -> bool {
        let first = !self.is_loss_in_round;
        if first {
            self.before = Some(Before {
                state: self.state,
                bw_shortterm: self.bw_shortterm,
                inflight_shortterm: self.inflight_shortterm,
                inflight_longterm: self.inflight_longterm,
            });
        }
        self.note_loss();
        self.bound_by_loss(now, bytes, ranges, newest_sent);
        first
    }

    fn bound_by_loss(&mut self, now: Time, bytes: u64, ranges: u32, newest_sent: Time) {
        self.sampler.lost += bytes;
        self.losses_in_round += ranges;
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if !self.is_bw_probe_sample {
            return;
        }
        let Some(flight) = self.sampler.flight(newest_sent).copied() else {
            return;
        };
        let sample = RateSample {
            tx_in_flight: flight.tx_in_flight,
            lost: self.sampler.lost.saturating_sub(flight.lost),
            is_app_limited: flight.is_app_limited,
            ..RateSample::default()
        };
        if Self::is_inflight_too_high(&sample) {
            // Finds the point in the bundle at which losses exceeded the threshold.
            let before = sample.tx_in_flight.saturating_sub(bytes);
            let lost_before = sample.lost.saturating_sub(bytes);
            let prefix = share(before, LOSS_THRESH).saturating_sub(lost_before) * 100;
            let at_loss = RateSample {
                tx_in_flight: before + prefix / (100 - LOSS_THRESH),
                ..sample
            };
            self.handle_inflight_too_high(now, &at_loss);
        }
    }

    /// Packets of `bytes` that were reported as lost have arrived. `undo`: so have all of the last
    /// round with losses. Returns whether a reduction was undone.
    pub(super) fn on_spurious_loss(&mut self, bytes: u64, undo: bool) -> bool {
        self.sampler.on_spurious_loss(bytes);
        let Some(before) = self.before.filter(|_| undo) else {
            return false;
        };
        self.before = None;
        self.is_loss_in_round = false;
        self.losses_in_round = 0;
        self.reset_full_bw();
        self.bw_shortterm = self.bw_shortterm.max(before.bw_shortterm);
        self.inflight_shortterm = self.inflight_shortterm.max(before.inflight_shortterm);
        self.inflight_longterm = self.inflight_longterm.max(before.inflight_longterm);
        if self.state != State::ProbeRtt && self.state != before.state {
            match before.state {
                State::Startup => {
                    self.full_bw_reached = false;
                    self.enter_startup();
                }
                State::Up => self.start_refill(),
                _ => {}
            }
        }
        true
    }

    /// Congestion marks count as losses of no bytes: they bound the short-term model.
    pub(super) fn on_marked(&mut self) {
        self.before = None;
        self.is_marked_in_round = true;
        self.note_loss();
    }

    /// Persistent congestion: everything sent over a long time was lost (§5.6.4.4).
    pub(super) fn on_persistent_congestion(&mut self) {
        self.before = None;
        self.save_cwnd();
        self.cwnd = self.min_pipe_cwnd();
    }

    fn note_loss(&mut self) {
        if !self.is_loss_in_round {
            self.loss_round_delivered = self.sampler.delivered;
            self.save_cwnd();
        }
        self.is_loss_in_round = true;
    }

    fn save_cwnd(&mut self) {
        self.prior_cwnd = if !self.is_loss_in_round && self.state != State::ProbeRtt {
            self.cwnd
        } else {
            self.prior_cwnd.max(self.cwnd)
        };
    }

    fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }

    // ---- the model (§5.5) ----------------------------------------------------------------------

    fn update_model_and_state(&mut self, now: Time, sample: &RateSample, rtt: &RttEstimator) {
        self.update_latest_delivery_signals(sample);
        self.update_congestion_signals(sample);
        self.update_ack_aggregation(now, sample);
        self.check_full_bw_reached(sample);
        self.check_startup_done(sample);
        self.check_drain_done(now);
        self.update_probe_bw_cycle_phase(now, sample);
        self.update_min_rtt(now, rtt);
        self.check_probe_rtt(now, sample);
        if self.loss_round_start {
            self.bw_latest = sample.delivery_rate;
            self.inflight_latest = sample.delivered;
            self.losses_in_round = 0;
        }
        self.bw = self.max_bw.max().min(self.bw_shortterm);
    }

    fn update_latest_delivery_signals(&mut self, sample: &RateSample) {
        self.loss_round_start = false;
        self.bw_latest = self.bw_latest.max(sample.delivery_rate);
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
        if sample.prior_delivered >= self.loss_round_delivered {
            self.loss_round_delivered = self.sampler.delivered;
            self.loss_round_start = true;
        }
    }

    fn update_congestion_signals(&mut self, sample: &RateSample) {
        self.update_max_bw(sample);
        if !self.loss_round_start {
            return;
        }
        if !self.is_probing_bw() && self.is_congested_in_round() {
            if self.bw_shortterm == INFINITY {
                self.bw_shortterm = self.max_bw.max();
            }
            if self.inflight_shortterm == INFINITY {
                self.inflight_shortterm = self.cwnd;
            }
            self.bw_shortterm = self.bw_latest.max(share(self.bw_shortterm, BETA));
            self.inflight_shortterm = self
                .inflight_latest
                .max(share(self.inflight_shortterm, BETA));
        }
        self.is_loss_in_round = false;
        self.is_marked_in_round = false;
        self.lost_before_round = self.sampler.lost;
        self.delivered_before_round = self.sampler.delivered;
    }

    /// Whether a round lost more than is tolerated elsewhere, or saw marks. The draft (§5.5.10.3)
    /// lowers its bounds for any loss: at 1 % random loss every round has some, and the bounds sink
    /// round after round until bandwidth is probed again.
    fn is_congested_in_round(&self) -> bool {
        let lost = self.sampler.lost.saturating_sub(self.lost_before_round);
        let delivered = (self.sampler.delivered).saturating_sub(self.delivered_before_round);
        self.is_marked_in_round
            || (self.is_loss_in_round && lost > share(lost + delivered, LOSS_THRESH))
    }

    fn update_max_bw(&mut self, sample: &RateSample) {
        self.round_start = sample.prior_delivered >= self.next_round_delivered;
        if self.round_start {
            self.start_round();
            self.round_count += 1;
            self.rounds_since_probe_up += 1;
        }
        if sample.delivery_rate > 0
            && (sample.delivery_rate >= self.max_bw.max() || !sample.is_app_limited)
        {
            self.max_bw.update(sample.delivery_rate);
        }
    }

    const fn start_round(&mut self) {
        self.next_round_delivered = self.sampler.delivered;
    }

    fn update_ack_aggregation(&mut self, now: Time, sample: &RateSample) {
        let mut expected = volume(self.bw, now - self.extra_acked_interval_start);
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_interval_start = now;
            expected = 0;
        }
        self.extra_acked_delivered += sample.newly_acked;
        let extra = (self.extra_acked_delivered - expected).min(self.cwnd);
        let rounds = if self.full_bw_reached {
            EXTRA_ACKED_FILTER
        } else {
            1
        };
        if self.round_count >= self.extra_acked_since + rounds {
            self.extra_acked.advance();
            self.extra_acked_since = self.round_count;
        }
        self.extra_acked.update(extra);
    }

    fn update_min_rtt(&mut self, now: Time, rtt: &RttEstimator) {
        self.probe_rtt_expired = now > self.probe_rtt_min_stamp + PROBE_RTT_INTERVAL;
        let sample = rtt.latest();
        if sample < self.probe_rtt_min_delay || self.probe_rtt_expired {
            self.probe_rtt_min_delay = sample;
            self.probe_rtt_min_stamp = now;
        }
        let expired = now > self.min_rtt_stamp + MIN_RTT_FILTER;
        if self.probe_rtt_min_delay < self.min_rtt || expired {
            self.min_rtt = self.probe_rtt_min_delay;
            self.min_rtt_stamp = self.probe_rtt_min_stamp;
        }
    }

    // ---- Startup and Drain (§5.3.1, §5.3.2) ---------------------------------------------------

    fn enter_startup(&mut self) {
        self.state = State::Startup;
        self.pacing_gain = STARTUP_PACING_GAIN;
        self.cwnd_gain = DEFAULT_CWND_GAIN;
    }

    const fn reset_full_bw(&mut self) {
        self.full_bw = 0;
        self.full_bw_count = 0;
        self.full_bw_now = false;
    }

    fn check_full_bw_reached(&mut self, sample: &RateSample) {
        if self.full_bw_now || !self.round_start || sample.is_app_limited {
            return;
        }
        if sample.delivery_rate >= share(self.full_bw, 125) {
            self.reset_full_bw();
            self.full_bw = sample.delivery_rate;
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= 3;
        self.full_bw_reached |= self.full_bw_now;
    }

    fn check_startup_done(&mut self, sample: &RateSample) {
        if self.state != State::Startup {
            return;
        }
        // §5.3.1.3: a round with more loss than a queue's worth.
        if !self.full_bw_reached
            && self.loss_round_start
            && self.losses_in_round >= STARTUP_FULL_LOSS_COUNT
            && Self::is_inflight_too_high(sample)
        {
            self.full_bw_reached = true;
            self.inflight_longterm = self.bdp(100).max(self.inflight_latest);
        }
        if self.full_bw_reached {
            self.state = State::Drain;
            self.pacing_gain = DRAIN_PACING_GAIN;
            self.cwnd_gain = DEFAULT_CWND_GAIN;
            self.drain_start_round = self.round_count;
        }
    }

    fn check_drain_done(&mut self, now: Time) {
        if self.state == State::Drain
            && (self.in_flight <= self.inflight(100)
                || self.round_count > self.drain_start_round + 3)
        {
            self.start_down(now);
        }
    }

    // ---- control (§5.6) ------------------------------------------------------------------------

    /// The bandwidth-delay product times a gain in hundredths.
    fn bdp(&self, gain: u64) -> u64 {
        if self.min_rtt == Duration::MAX {
            return self.initial_cwnd;
        }
        share(volume(self.bw, self.min_rtt), gain)
    }

    fn target_inflight(&self) -> u64 {
        self.bdp(100).min(self.cwnd)
    }

    fn quantized(&self, inflight: u64) -> u64 {
        // §5.5.8: three quanta keep both hosts busy when bundles are used.
        let quantum = volume(self.pacing_rate.unwrap_or(0), Duration::from_millis(1))
            .clamp(2 * self.smss, 65_536);
        let probing = if self.state == State::Up {
            2 * self.smss
        } else {
            0
        };
        inflight.max(3 * quantum).max(self.min_pipe_cwnd()) + probing
    }

    fn inflight(&self, gain: u64) -> u64 {
        self.quantized(self.bdp(gain))
    }

    fn set_pacing_rate(&mut self, gain: u64) {
        if self.bw == 0 {
            return;
        }
        let rate = share(share(self.bw, gain), 100 - PACING_MARGIN).max(1);
        if self.full_bw_reached || self.pacing_rate.is_none_or(|known| rate > known) {
            self.pacing_rate = Some(rate);
        }
    }

    fn set_cwnd(&mut self, sample: &RateSample) {
        let max_inflight = self.quantized(
            self.bdp(self.cwnd_gain)
                .saturating_add(self.extra_acked.max()),
        );
        if self.full_bw_reached {
            self.cwnd = (self.cwnd + sample.newly_acked).min(max_inflight);
        } else if self.cwnd < max_inflight || self.sampler.delivered < self.initial_cwnd {
            self.cwnd += sample.newly_acked;
        }
        self.cwnd = self.cwnd.max(self.min_pipe_cwnd());
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd());
        }
        let cap = match self.state {
            State::Down | State::Refill | State::Up => self.inflight_longterm,
            State::ProbeRtt | State::Cruise => self.inflight_with_headroom(),
            State::Startup | State::Drain => INFINITY,
        };
        let cap = cap.min(self.inflight_shortterm).max(self.min_pipe_cwnd());
        self.cwnd = self.cwnd.min(cap);
    }
}
