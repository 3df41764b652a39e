//! CUBIC (RFC 9438) with the slow start of HyStart++ (RFC 9406).
//!
//! ```text
//!  window                     ______ W_max    Reno-friendly: W_est, a line
//!    │ slow start /        ,-'                concave, convex: W_cubic(t) = C (t - K)^3 + W_max
//!    │  (HyStart++)|  ,-'
//!    │            '└ × 0.7
//! ```
//!
//! RFC 9438 counts in segments and seconds; here windows are bytes, and C is scaled by the datagram
//! size where it is used.

use std::time::Duration;

use super::{RecoveryPeriod, minimum_window};
use crate::recovery::pacer::initial_window;
use crate::recovery::rtt::RttEstimator;
use crate::time::Time;

/// β_cubic (RFC 9438 §4.6).
const BETA: f64 = 0.7;
/// C, in segments per second cubed (RFC 9438 §5.1).
const C: f64 = 0.4;
/// α_cubic = 3 (1 - β) / (1 + β) (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A loss while fewer packets than this wait in queues is not taken as a sign of a full queue, as
/// in TCP Veno (Fu and Liew, IEEE JSAC 21(2), 2003). This works only for small windows: a few
/// packets of a large one are within the noise of the round-trip time.
const RANDOM_LOSS_QUEUE: f64 = 3.0;
/// This applies only while less than this share of the window waits: the queue of a short buffer,
/// such as a tenth of what the path holds, never has three packets of a window of thirty.
const RANDOM_LOSS_SHARE: f64 = 1.0 / 64.0;
/// The share of the window that is kept then. RFC 9438 §4.6 recommends 0.7 for any loss.
const RANDOM_LOSS_BETA: f64 = 0.875;

/// CUBIC. All sizes in bytes.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Cubic {
    max_datagram: u16,
    /// Includes a fraction: one ACK frame may add less than a byte.
    window: f64,
    ssthresh: Option<f64>,
    hystart: HyStart,
    recovery: RecoveryPeriod,
    /// The current stage of congestion avoidance; starts with its first acknowledgement.
    stage: Option<Stage>,
    /// The window before the last reduction, lowered by fast convergence; `None` if there was none
    /// to remember (RFC 9438 §4.8, §4.10).
    w_max: Option<f64>,
    /// cwnd_prior: the window when ssthresh was last set.
    prior: f64,
    /// What the last reduction changed.
    before: Option<Box<Before>>,
}

/// The state before a reduction (RFC 9438 §4.9.2).
#[derive(Clone, Debug)]
struct Before {
    window: f64,
    ssthresh: Option<f64>,
    recovery: RecoveryPeriod,
    w_max: Option<f64>,
    prior: f64,
    stage: Option<Stage>,
}

/// A stage of congestion avoidance (RFC 9438 §4.2).
#[derive(Clone, Debug)]
struct Stage {
    /// t_epoch, moved forward by the time in which the window was not used.
    epoch: Time,
    /// When the stage last saw an ACK frame.
    last_ack: Time,
    w_max: f64,
    /// K, in seconds.
    k: f64,
    w_est: f64,
}

impl Cubic {
    pub(crate) fn new(max_datagram: u16) -> Self {
        let window = initial_window(max_datagram) as f64;
        Self {
            max_datagram,
            window,
            ssthresh: None,
            recovery: RecoveryPeriod::default(),
            w_max: None,
            prior: window,
            stage: None,
            hystart: HyStart::default(),
            before: None,
        }
    }

    pub(crate) fn window(&self) -> u64 {
        self.window as u64
    }

    pub(crate) fn ssthresh(&self) -> Option<u64> {
        self.ssthresh.map(|ssthresh| ssthresh as u64)
    }

    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        acked_bytes: u64,
        newest_sent: Time,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if self.recovery.covers(newest_sent) {
            return;
        }
        let mut acked = acked_bytes as f64;
        if self.ssthresh.is_none_or(|ssthresh| self.window < ssthresh) {
            if !app_limited {
                acked = self.slow_start(acked);
            }
            // The rounds advance by time, used or not.
            if self.ssthresh.is_none() && self.hystart.on_ack(now, newest_sent, rtt.latest()) {
                // RFC 9406 §4.2: the delay grew and stayed: leave slow start without a loss.
                self.ssthresh = Some(self.window);
                self.prior = self.window;
                return;
            }
        }
        if self
            .ssthresh
            .is_some_and(|ssthresh| self.window >= ssthresh)
        {
            self.congestion_avoidance(now, acked, newest_sent, app_limited, rtt.smoothed());
        }
    }

    /// Adds what slow start allows; returns the bytes left for congestion avoidance.
    fn slow_start(&mut self, acked: f64) -> f64 {
        match self.ssthresh {
            None => {
                self.window += acked / self.hystart.divisor();
                0.0
            }
            // RFC 9406 §4.3: HyStart++ is for the first slow start; later ones know where to end.
            Some(ssthresh) => {
                let added = acked.min(ssthresh - self.window);
                self.window += added;
                acked - added
            }
        }
    }

    fn congestion_avoidance(
        &mut self,
        now: Time,
        acked: f64,
        newest_sent: Time,
        app_limited: bool,
        smoothed: Duration,
    ) {
        let datagram = f64::from(self.max_datagram);
        let (window, w_max) = (self.window, self.w_max);
        let stage = self
            .stage
            .get_or_insert_with(|| Stage::new(now, window, w_max, datagram));
        // RFC 9438 §4.2: t excludes the time in which the window was not used. Data that was sent
        // only after the last acknowledgement had arrived followed a pause.
        let unused_until = if app_limited { now } else { newest_sent };
        stage.epoch += unused_until - stage.last_ack;
        stage.last_ack = now;
        if app_limited {
            return;
        }
        // RFC 9438 §4.3, figure 4. Once W_est is where the window was, grow like Reno.
        let alpha = if stage.w_est >= self.prior {
            1.0
        } else {
            ALPHA
        };
        stage.w_est += alpha * datagram * acked / window;

        let t = (now - stage.epoch).as_secs_f64();
        if stage.w_cubic(t, datagram) < stage.w_est {
            self.window = window.max(stage.w_est);
            return;
        }
        // RFC 9438 §4.2: the target lies between the window and one and a half of it.
        let target = stage
            .w_cubic(t + smoothed.as_secs_f64(), datagram)
            .clamp(window, 1.5 * window);
        // RFC 9438 §4.4, §4.5: (target - cwnd) / cwnd for each segment acknowledged. A frame that
        // acknowledges more than a window gets no further than the target.
        self.window += (target - window) * (acked / window).min(1.0);
    }

    /// Packets of the window that wait in queues on the path, by the growth of the round-trip time.
    pub(crate) fn queued(&self, rtt: &RttEstimator) -> f64 {
        let (min, smoothed) = (rtt.min().as_secs_f64(), rtt.smoothed().as_secs_f64());
        if min <= 0.0 {
            return f64::INFINITY;
        }
        self.window / f64::from(self.max_datagram) * (1.0 - min / smoothed).max(0.0)
    }

    /// Packets sent no later than `newest_lost_sent` were lost while this many packets were
    /// `queued`. Returns whether the window is reduced.
    pub(crate) fn on_congestion_event(
        &mut self,
        now: Time,
        newest_lost_sent: Time,
        queued: f64,
    ) -> bool {
        if self.recovery.covers(newest_lost_sent) {
            return false;
        }
        self.before = Some(Box::new(Before {
            window: self.window,
            ssthresh: self.ssthresh,
            recovery: self.recovery,
            w_max: self.w_max,
            prior: self.prior,
            stage: self.stage.take(),
        }));
        self.recovery.start = Some(now);
        let minimum = minimum_window(self.max_datagram) as f64;
        let packets = self.window / f64::from(self.max_datagram);
        let few = RANDOM_LOSS_QUEUE.min(packets * RANDOM_LOSS_SHARE);
        if self.ssthresh.is_some() && queued < few {
            self.w_max = Some(self.window);
            self.window = (self.window * RANDOM_LOSS_BETA).max(minimum);
            // From here on it grows like Reno's, by a packet per round trip (RFC 9438 §4.3).
            self.prior = self.window;
            self.ssthresh = Some(self.window);
            return true;
        }
        // RFC 9438 §4.7, fast convergence: a window that did not get back to its former size makes
        // room for newcomers.
        self.w_max = Some(match self.w_max {
            Some(w_max) if self.window < w_max => self.window * f64::midpoint(1.0, BETA),
            _ => self.window,
        });
        self.prior = self.window;
        // RFC 9438 §4.6 uses the flight size, or the window if that cannot grow unused; it cannot
        // (RFC 9002 §7.8), and the flight size would punish a sender that pauses.
        self.window = (self.window * BETA).max(minimum);
        self.ssthresh = Some(self.window);
        true
    }

    /// RFC 9438 §4.9.2: the last reduction was a mistake; `false` if there is none to undo.
    pub(crate) fn undo(&mut self) -> bool {
        let Some(before) = self.before.take() else {
            return false;
        };
        self.window = self.window.max(before.window);
        self.ssthresh = before.ssthresh;
        self.recovery = before.recovery;
        self.w_max = before.w_max;
        self.prior = before.prior;
        self.stage = before.stage;
        true
    }

    pub(crate) fn on_persistent_congestion(&mut self) {
        self.before = None;
        // RFC 9002 §7.6.2
        self.window = minimum_window(self.max_datagram) as f64;
        self.recovery = RecoveryPeriod::default();
        // RFC 9438 §4.8: the next stage uses its own start as W_max, and K = 0.
        self.w_max = None;
        self.stage = None;
    }

    pub(crate) fn set_max_datagram(&mut self, max_datagram: u16) {
        if self.ssthresh.is_none() && self.window() == initial_window(self.max_datagram) {
            self.window = initial_window(max_datagram) as f64;
        }
        self.max_datagram = max_datagram;
        self.window = self.window.max(minimum_window(max_datagram) as f64);
    }
}

impl Stage {
    fn new(now: Time, window: f64, w_max: Option<f64>, datagram: f64) -> Self {
        // RFC 9438 §4.2, figure 2; without a W_max above the window K is 0 (§4.8, §4.10).
        let w_max = w_max.map_or(window, |w_max| w_max.max(window));
        Self {
            epoch: now,
            last_ack: now,
            w_max,
            k: ((w_max - window) / datagram / C).cbrt(),
            // RFC 9438 §4.3: W_est starts at cwnd_epoch.
            w_est: window,
        }
    }

    /// RFC 9438 §4.2, figure 1; `t` in seconds since the epoch.
    fn w_cubic(&self, t: f64, datagram: f64) -> f64 {
        C * datagram * (t - self.k).powi(3) + self.w_max
    }
}

/// HyStart++ (RFC 9406 §4): slow start ends when the round-trip time of a round grew, after a
/// Conservative Slow Start (CSS) in which it remained so.
///
/// RFC 9406 §4.3 bounds the growth per ACK (L) for senders that do not pace. Here sending is paced
/// or limited in its bursts, so L is infinite.
#[derive(Clone, Debug, Default)]
struct HyStart {
    /// The round ends when something sent since then is acknowledged. RFC 9406 §4.2 uses sequence
    /// numbers, which is equivalent.
    round_start: Time,
    last_min: Option<Duration>,
    current_min: Option<Duration>,
    samples: u32,
    css: Option<Css>,
}

/// Conservative Slow Start.
#[derive(Clone, Debug)]
struct Css {
    baseline: Duration,
    rounds: u32,
}

impl HyStart {
    // RFC 9406 §4.3
    const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
    const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
    const SAMPLES: u32 = 8;
    const CSS_GROWTH_DIVISOR: f64 = 4.0;
    const CSS_ROUNDS: u32 = 5;

    /// The current divisor of the growth.
    fn divisor(&self) -> f64 {
        match self.css {
            None => 1.0,
            Some(_) => Self::CSS_GROWTH_DIVISOR,
        }
    }

    /// One ACK frame with the sample `rtt`. True: slow start is over.
    fn on_ack(&mut self, now: Time, newest_sent: Time, rtt: Duration) -> bool {
        if newest_sent >= self.round_start {
            if let Some(css) = &mut self.css {
                // The round in which CSS began counts, however little of it was left.
                css.rounds += 1;
                if css.rounds >= Self::CSS_ROUNDS {
                    return true;
                }
            }
            self.round_start = now;
            self.last_min = self.current_min.take();
            self.samples = 0;
        }
        let current = self.current_min.map_or(rtt, |min| min.min(rtt));
        self.current_min = Some(current);
        self.samples += 1;
        if self.samples < Self::SAMPLES {
            return false;
        }
        match (&self.css, self.last_min) {
            // The round-trip time fell again: the exit was premature.
            (Some(css), _) if current < css.baseline => self.css = None,
            (None, Some(last)) => {
                let threshold = (last / 8).clamp(Self::MIN_RTT_THRESH, Self::MAX_RTT_THRESH);
                if current >= last + threshold {
                    self.css = Some(Css {
                        baseline: current,
                        rounds: 0,
                    });
                }
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: u16 = 1000;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn rtt(millis: u64) -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_millis(millis), Duration::ZERO);
        rtt
    }

    /// A window of `before` bytes reduced at 0 ms.
    fn after_loss(before: u64) -> Cubic {
        let mut cubic = Cubic::new(DATAGRAM);
        cubic.window = before as f64;
        cubic.on_congestion_event(at(0), at(0), f64::INFINITY);
        cubic
    }

    /// Acknowledges a full window each round trip, `frames` frames a round, up to `until`.
    fn run(cubic: &mut Cubic, from: u64, until: u64, rtt_ms: u64, frames: u64) {
        let mut now = from;
        while now <= until {
            let part = cubic.window() / frames;
            for frame in 0..frames {
                let ack = now + frame * rtt_ms / frames;
                cubic.on_ack(at(ack), part, at(ack - rtt_ms + 1), false, &rtt(rtt_ms));
            }
            now += rtt_ms;
        }
    }

    // test: RFC 9438 §4.2 — with a large window and a long RTT the window follows W_cubic(t).
    #[test]
    fn growth_follows_the_formula() {
        let before = 1_000_000.0;
        let mut cubic = after_loss(before as u64);
        assert_eq!(cubic.window(), 700_000);
        // K = cbrt(300 segments / 0.4) = 9.086 s
        let k = (300.0_f64 / 0.4).cbrt();
        assert!((k - 9.086).abs() < 0.001);
        let mut last = 100;
        for seconds in [2_u64, 5, 9, 12, 15] {
            run(&mut cubic, last, seconds * 1000, 100, 20);
            last = seconds * 1000 + 100;
            // The epoch is the first acknowledgement, at 100 ms; at the end of the last round the
            // window aims one round trip ahead of it.
            let t = (last as f64 - 100.0) / 1000.0;
            let expected = 0.4 * 1000.0 * (t - k).powi(3) + before;
            let window = cubic.window;
            assert!(
                (window - expected).abs() < 0.02 * expected,
                "{seconds} s: {window} against {expected}"
            );
        }
        assert!(
            cubic.window() > 1_050_000,
            "the convex region lies above W_max"
        );
    }

    // test: RFC 9438 §4.3 — with a small window and a short RTT CUBIC grows as AIMD(0.53, 0.7).
    #[test]
    fn small_windows_grow_as_in_the_reno_friendly_region() {
        let mut cubic = after_loss(20_000);
        assert_eq!(cubic.window(), 14_000);
        // Ten windows acknowledged within 10 ms each: W_cubic has hardly moved.
        run(&mut cubic, 10, 100, 10, 1);
        let grown = cubic.window - 14_000.0;
        assert!((grown - 10.0 * 529.4).abs() < 300.0, "{grown}");
        // From the window before the loss on, it grows by a whole segment per round trip.
        cubic.stage.as_mut().unwrap().w_est = cubic.prior;
        cubic.window = cubic.prior;
        run(&mut cubic, 110, 200, 10, 1);
        let grown = cubic.window - cubic.prior;
        assert!((grown - 10_000.0).abs() < 600.0, "{grown}");
    }

    // test: RFC 9438 §4.7
    #[test]
    fn a_further_loss_lowers_w_max_by_fast_convergence() {
        let mut cubic = after_loss(100_000);
        assert_eq!(cubic.w_max, Some(100_000.0));
        cubic.on_congestion_event(at(200), at(100), f64::INFINITY);
        // 70,000 is below the last W_max: 70,000 × (1 + 0.7) / 2.
        assert!((cubic.w_max.unwrap() - 59_500.0).abs() < 1e-6);
        assert_eq!(cubic.window(), 49_000);
        cubic.window = 80_000.0;
        cubic.on_congestion_event(at(400), at(300), f64::INFINITY);
        assert_eq!(cubic.w_max, Some(80_000.0));
    }

    #[test]
    fn a_loss_without_a_queue_costs_less() {
        let mut estimate = rtt(50);
        let mut cubic = after_loss(20_000);
        assert_eq!(cubic.window(), 14_000);
        // Fourteen packets, none of which waits in a queue.
        let queued = cubic.queued(&estimate);
        assert!(queued < 0.01, "{queued}");
        cubic.on_congestion_event(at(200), at(150), queued);
        assert_eq!(cubic.window(), 12_250);
        run(&mut cubic, 210, 260, 50, 1);
        let grown = cubic.window - 12_250.0;
        assert!((900.0..2_100.0).contains(&grown), "{grown}");
        // A third of the round-trip time is a queue: more than four packets of this window.
        for _ in 0..100 {
            estimate.update(Duration::from_millis(75), Duration::ZERO);
        }
        let (before, queued) = (cubic.window, cubic.queued(&estimate));
        assert!((4.0..5.0).contains(&queued), "{queued}");
        cubic.on_congestion_event(at(400), at(350), queued);
        assert!((cubic.window / before - 0.7).abs() < 1e-6);
    }

    // A queue of a tenth of 33 packets holds three. Half of it is a sign, though a weak one.
    #[test]
    fn a_loss_in_a_short_queue_costs_the_full_reduction() {
        let mut estimate = rtt(40);
        for _ in 0..100 {
            estimate.update(Duration::from_millis(42), Duration::ZERO);
        }
        let mut cubic = after_loss(47_143);
        let (before, queued) = (cubic.window, cubic.queued(&estimate));
        assert!((1.5..1.6).contains(&queued), "{queued}");
        cubic.on_congestion_event(at(200), at(150), queued);
        assert!((cubic.window / before - 0.7).abs() < 1e-6);
    }

    // test: RFC 9438 §4.2 — a pause does not count as time to grow.
    #[test]
    fn pauses_do_not_count() {
        let mut steady = after_loss(1_000_000);
        let mut paused = steady.clone();
        run(&mut steady, 100, 4_000, 100, 10);
        run(&mut paused, 100, 2_000, 100, 10);
        // A minute of silence in one, thirty seconds of trickle before it.
        for tick in 0..300 {
            let now = 2_100 + tick * 100;
            paused.on_ack(at(now), 1_000, at(now - 100), true, &rtt(100));
        }
        run(&mut paused, 92_100, 94_000, 100, 10);
        assert!(
            (steady.window - paused.window).abs() < 0.02 * steady.window,
            "{} against {}",
            steady.window,
            paused.window
        );
    }

    // test: RFC 9438 §4.8 — after persistent congestion: slow start to ssthresh, then K = 0.
    #[test]
    fn cubic_restarts_with_k_zero_after_persistent_congestion() {
        let mut cubic = after_loss(100_000);
        cubic.on_persistent_congestion();
        for _ in 0..10 {
            let window = cubic.window();
            cubic.on_ack(at(500), window, at(400), false, &rtt(100));
        }
        let stage = cubic.stage.unwrap();
        assert_eq!((stage.k, stage.w_max), (0.0, 70_000.0));
    }

    /// Slow start in rounds of `rtts` milliseconds, with ten ACK frames each, until slow start or
    /// the rounds end. Returns the window at the end of each round.
    fn slow_start(cubic: &mut Cubic, rtts: &[u64]) -> Vec<u64> {
        let mut sent = 1;
        let mut windows = Vec::new();
        for &rtt_ms in rtts {
            let part = cubic.window() / 10;
            for _ in 0..10 {
                cubic.on_ack(at(sent + rtt_ms), part, at(sent), false, &rtt(rtt_ms));
            }
            sent += rtt_ms;
            windows.push(cubic.window());
        }
        windows
    }

    // test: RFC 9406 §4.2 — the delay grows and stays: CSS, then congestion avoidance.
    #[test]
    fn hystart_leaves_slow_start_when_the_delay_grows() {
        let mut cubic = Cubic::new(DATAGRAM);
        let windows = slow_start(&mut cubic, &[40, 40, 40, 46, 46, 46, 46, 46, 46, 46]);
        assert_eq!(&windows[..3], &[20_000, 40_000, 80_000]);
        // The eighth sample of the fourth round starts CSS: two frames of ten at a quarter.
        assert_eq!(windows[3], 80_000 + 64_000 + 16_000 / 4);
        // Four more rounds at a quarter of the pace; the fifth boundary ends it.
        for pair in windows[3..8].windows(2) {
            let growth = pair[1] as f64 / pair[0] as f64;
            assert!((growth - 1.25).abs() < 0.02, "{growth}");
        }
        assert!(cubic.ssthresh().is_some());
        assert!(windows[9] - windows[8] < 6_000, "congestion avoidance");
        assert_eq!(cubic.stage.unwrap().k, 0.0, "RFC 9438 §4.10");
    }

    // test: RFC 9406 §4.2 — the delay falls again: slow start goes on.
    #[test]
    fn hystart_resumes_after_a_spurious_exit() {
        let mut cubic = Cubic::new(DATAGRAM);
        let windows = slow_start(&mut cubic, &[40, 40, 50, 50, 40, 40, 40]);
        assert!(windows[3] < windows[2] * 3 / 2, "CSS");
        assert_eq!(windows[6], windows[5] * 2, "slow start");
        assert_eq!(cubic.ssthresh(), None);
    }

    // test: RFC 9406 §4.3 — small changes of the RTT and short RTTs do not end slow start.
    #[test]
    fn hystart_ignores_less_than_the_threshold() {
        let mut cubic = Cubic::new(DATAGRAM);
        let windows = slow_start(&mut cubic, &[1, 2, 3, 4, 5, 5, 6]);
        assert_eq!(*windows.last().unwrap(), 10_000 << 7);
    }
}
