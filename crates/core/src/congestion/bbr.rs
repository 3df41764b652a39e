//! BBR version 3 (draft-ietf-ccwg-bbr): a model of the path, its bandwidth and its round-trip time,
//! rather than losses, says how much is in flight and how fast it leaves. Names are the draft's.
//!
//! ```text
//!  Startup ──▶ Drain ──▶ ProbeBW: Down ─▶ Cruise ─▶ Refill ─▶ Up ─▶ Down …
//!      ▲                    │ every 5 s without a smaller round-trip time
//!      └──── ProbeRtt ◀─────┘
//! ```
//!
//! It hears of bundles sent and of runs of acknowledgements and losses, never of single packets.

use std::time::Duration;

use super::delivery::{RateSample, Sampler, volume};
use crate::recovery::pacer::initial_window;
use crate::recovery::rtt::RttEstimator;
use crate::time::Time;

/// Gains, in hundredths.
const STARTUP_PACING_GAIN: u64 = 277;
const DRAIN_PACING_GAIN: u64 = 50;
const DEFAULT_CWND_GAIN: u64 = 200;
const PROBE_RTT_CWND_GAIN: u64 = 50;
const UP_CWND_GAIN: u64 = 225;
/// Loss above this share of what was in flight means that it was too much, in hundredths.
const LOSS_THRESH: u64 = 2;
/// What is kept of a bound after congestion, in hundredths.
const BETA: u64 = 70;
/// What is left free for others, in hundredths.
const HEADROOM: u64 = 15;
/// Pacing is this much slower than the bandwidth, in hundredths.
const PACING_MARGIN: u64 = 1;
/// Separate losses in a round that end Startup.
const STARTUP_FULL_LOSS_COUNT: u32 = 6;
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
const MIN_RTT_FILTER: Duration = Duration::from_secs(10);
/// Rounds over which the aggregation of acknowledgements is remembered.
const EXTRA_ACKED_FILTER: u64 = 10;
/// The longest time between two probes for bandwidth has a fixed and a random part.
const PROBE_WAIT: Duration = Duration::from_secs(2);
const PROBE_WAIT_RANDOM_NANOS: u64 = 1_000_000_000;
/// Rounds after which bandwidth is probed at the latest, so that Reno's flows beside it live.
const MAX_RENO_ROUNDS: u64 = 63;

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

/// What the acknowledgements that come belong to (§5.3.3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

/// The largest of the values of two slots, the present one and the one before.
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

/// What a run of acknowledgements brings.
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
    /// Values of the present and the last span of rounds, and when the present one began.
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
    /// Spreads the probes of flows that began together; nothing depends on who can guess it.
    dice: u64,
    in_flight: u64,
    is_cwnd_limited: bool,
    /// What losses of this round changed, should they turn out to be spurious (§5.5.11).
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
    /// The initial window, no model.
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

    /// Whether it still looks for the path's capacity for the first time.
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

    /// Packets of `bytes` in all were lost, in so many separate `ranges`, the newest of them sent
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
            // At which point of the bundle did losses exceed the threshold?
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

    /// Packets of `bytes` that were reported as lost have arrived; `undo`: so have all of the last
    /// round with losses. Returns whether something was taken back.
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

    /// Marks of congestion are taken as losses of nothing: they bound the short-term model.
    pub(super) fn on_marked(&mut self) {
        self.before = None;
        self.is_marked_in_round = true;
        self.note_loss();
    }

    /// Everything sent over a long time was lost (§5.6.4.4).
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

    /// Whether a round lost more than what is tolerated elsewhere, or met marks. The draft
    /// (§5.5.10.3) lowers its bounds for any loss: at 1 % random loss every round has some, and the
    /// bounds sink round after round until bandwidth is probed again.
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

    // ---- ProbeBW (§5.3.3) ----------------------------------------------------------------------

    const fn is_probing_bw_state(&self) -> bool {
        matches!(
            self.state,
            State::Down | State::Cruise | State::Refill | State::Up
        )
    }

    const fn is_probing_bw(&self) -> bool {
        matches!(self.state, State::Startup | State::Refill | State::Up)
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % below
    }

    fn start_down(&mut self, now: Time) {
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

    const fn start_cruise(&mut self) {
        self.state = State::Cruise;
        self.pacing_gain = 100;
        self.cwnd_gain = DEFAULT_CWND_GAIN;
    }

    const fn start_refill(&mut self) {
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

    fn start_up(&mut self, sample: &RateSample) {
        self.ack_phase = AckPhase::Starting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = sample.delivery_rate;
        self.state = State::Up;
        self.pacing_gain = 125;
        self.cwnd_gain = UP_CWND_GAIN;
        self.raise_inflight_longterm_slope();
    }

    const fn reset_short_term_model(&mut self) {
        self.bw_shortterm = INFINITY;
        self.inflight_shortterm = INFINITY;
    }

    fn update_probe_bw_cycle_phase(&mut self, now: Time, sample: &RateSample) {
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

    fn is_time_to_probe(&self, now: Time) -> bool {
        // §5.3.3.8.2: in time, or in as many rounds as Reno would need.
        let reno = (self.target_inflight() / self.smss.max(1)).min(MAX_RENO_ROUNDS);
        now > self.cycle_stamp + self.bw_probe_wait || self.rounds_since_probe_up >= reno.max(1)
    }

    fn is_time_to_cruise(&self) -> bool {
        self.in_flight <= self.inflight_with_headroom() && self.in_flight <= self.inflight(100)
    }

    fn is_time_to_go_down(&mut self, sample: &RateSample) -> bool {
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

    fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_longterm == INFINITY {
            return INFINITY;
        }
        let headroom = share(self.inflight_longterm, HEADROOM).max(self.smss);
        self.inflight_longterm
            .saturating_sub(headroom)
            .max(self.min_pipe_cwnd())
    }

    fn raise_inflight_longterm_slope(&mut self) {
        let growth = 1_u64 << self.bw_probe_up_rounds;
        self.bw_probe_up_rounds = (self.bw_probe_up_rounds + 1).min(30);
        self.probe_up_acked_per_inc = (self.cwnd / growth).max(self.smss);
    }

    fn probe_inflight_longterm_upward(&mut self, sample: &RateSample) {
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
    fn adapt_long_term_model(&mut self, now: Time, sample: &RateSample) -> bool {
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

    const fn is_inflight_too_high(sample: &RateSample) -> bool {
        sample.lost > share(sample.tx_in_flight, LOSS_THRESH)
    }

    fn handle_inflight_too_high(&mut self, now: Time, sample: &RateSample) {
        self.prev_probe_too_high = true;
        self.is_bw_probe_sample = false;
        if !sample.is_app_limited {
            self.inflight_longterm = sample.tx_in_flight.max(share(self.target_inflight(), BETA));
        }
        if self.state == State::Up {
            self.start_down(now);
        }
    }

    // ---- ProbeRTT (§5.3.4) ---------------------------------------------------------------------

    fn check_probe_rtt(&mut self, now: Time, sample: &RateSample) {
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

    fn handle_probe_rtt(&mut self, now: Time) {
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

    fn check_probe_rtt_done(&mut self, now: Time) {
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

    fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp(PROBE_RTT_CWND_GAIN).max(self.min_pipe_cwnd())
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
        // §5.5.8: three quanta keep both hosts busy where bundles travel.
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const DATAGRAM: u64 = 1200;

    /// A path with a bottleneck and a queue, and a sender that always has data.
    struct Link {
        bbr: Bbr,
        rtt: RttEstimator,
        now: u64,
        /// Bytes a millisecond.
        rate: u64,
        queue: u64,
        /// Sent, arrives at the sender again.
        flight: VecDeque<(u64, u64)>,
        /// When the bottleneck is free, in nanoseconds.
        free: u64,
        in_flight: u64,
        delivered: u64,
        lost: u64,
        /// What the pacer lets out.
        credit: u64,
    }

    const MS: u64 = 1_000_000;
    const RTT: u64 = 40 * MS;

    impl Link {
        fn new(rate: u64, queue: u64) -> Self {
            Self {
                bbr: Bbr::new(DATAGRAM as u16),
                rtt: RttEstimator::new(Duration::from_millis(100)),
                now: 1000 * MS,
                rate,
                queue,
                flight: VecDeque::new(),
                free: 0,
                in_flight: 0,
                delivered: 0,
                lost: 0,
                credit: 0,
            }
        }

        fn run(&mut self, millis: u64) {
            for _ in 0..millis {
                self.now += MS;
                let now = Time::from_nanos(self.now);
                let (mut bytes, mut newest) = (0, 0);
                while let Some((sent, back)) = self.flight.front().copied()
                    && back <= self.now
                {
                    self.flight.pop_front();
                    bytes += DATAGRAM;
                    newest = sent;
                }
                if bytes > 0 {
                    self.in_flight -= bytes;
                    self.delivered += bytes;
                    let sample = Duration::from_nanos(self.now - newest);
                    self.rtt.update(sample, Duration::ZERO);
                    let acked = Acknowledged {
                        bytes,
                        newest_sent: Time::from_nanos(newest),
                        app_limited: false,
                        in_flight: self.in_flight,
                        idle: false,
                    };
                    self.bbr.on_ack(now, &acked, &self.rtt);
                }
                // As the pacer does it: what a late worker may catch up with, and no more.
                let mut credit = match self.bbr.pacing_rate() {
                    Some(rate) => (self.credit + rate / 1000).min(3 * rate / 1000 + 2 * DATAGRAM),
                    None => u64::MAX / 2,
                };
                let (mut sent, mut lost) = (0, 0);
                while self.in_flight + DATAGRAM <= self.bbr.window() && credit >= DATAGRAM {
                    credit -= DATAGRAM;
                    sent += DATAGRAM;
                    let waits = self.free.saturating_sub(self.now);
                    if waits * self.rate / MS > self.queue {
                        lost += DATAGRAM;
                        continue;
                    }
                    self.in_flight += DATAGRAM;
                    self.free = self.free.max(self.now) + DATAGRAM * MS / self.rate;
                    self.flight.push_back((self.now, self.free + RTT));
                }
                self.credit = credit;
                if sent > 0 {
                    self.bbr.on_sent(now, sent, self.in_flight);
                }
                if lost > 0 {
                    self.lost += lost;
                    self.bbr.on_lost(now, lost, 1, now);
                }
            }
        }
    }

    // test: draft-ietf-ccwg-bbr §5.3
    #[test]
    fn fills_the_pipe_without_filling_the_queue() {
        // 100 Mbit/s, 40 ms, a queue of four bandwidth-delay products.
        let rate = 12_500;
        let bdp = rate * 40;
        let mut link = Link::new(rate, 4 * bdp);
        link.run(2000);
        assert!(link.bbr.full_bw_reached, "{:?}", link.bbr.state);
        let before = link.delivered;
        link.run(10_000);
        let throughput = (link.delivered - before) / 10_000;
        assert!(
            throughput * 100 >= rate * 90,
            "{throughput} of {rate} bytes a ms"
        );
        assert!(
            link.in_flight < 2 * bdp + bdp / 2,
            "{} bytes in flight, the pipe holds {bdp}",
            link.in_flight
        );
        let estimate = link.bbr.max_bw.max() / 1000;
        assert!(
            estimate * 100 >= rate * 90 && estimate * 100 <= rate * 115,
            "{estimate}"
        );
        assert!(link.bbr.min_rtt < Duration::from_millis(45));
        assert_eq!(link.lost, 0);
    }

    // test: draft-ietf-ccwg-bbr §5.5.10: a shallow queue loses little, and little is sent in vain.
    #[test]
    fn a_shallow_queue_bounds_what_is_in_flight() {
        let rate = 12_500;
        let mut link = Link::new(rate, rate * 4);
        link.run(3000);
        let (before, lost) = (link.delivered, link.lost);
        link.run(20_000);
        let throughput = (link.delivered - before) / 20_000;
        assert!(
            throughput * 100 >= rate * 80,
            "{throughput} of {rate} bytes a ms"
        );
        let lost = link.lost - lost;
        assert!(
            lost * 100 < 4 * (link.delivered - before),
            "{lost} bytes lost"
        );
    }

    // test: draft-ietf-ccwg-bbr §5.3.4
    #[test]
    fn the_round_trip_time_is_probed_every_five_seconds() {
        let mut link = Link::new(1250, 1250 * 400);
        let mut probes = 0;
        let mut probing = false;
        for _ in 0..21_000 {
            link.run(1);
            let now = link.bbr.state == State::ProbeRtt;
            probes += u32::from(now && !probing);
            probing = now;
        }
        assert!((2..=5).contains(&probes), "{probes} in 21 s");
    }

    #[test]
    fn a_path_that_becomes_faster_is_found_out() {
        let mut link = Link::new(1250, 1250 * 100);
        link.run(5000);
        link.rate = 6250;
        link.queue = 6250 * 100;
        link.run(20_000);
        let estimate = link.bbr.max_bw.max() / 1000;
        assert!(estimate > 5000, "{estimate} bytes a ms of 6250");
    }
}
