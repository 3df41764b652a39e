//! The pacer (RFC 9002 §7.7), made for bundles.
//!
//! ```text
//!  rate = gain × window / smoothed_rtt        credit, a leaky bucket
//!      ──────────────── fills ───────────────▶ │ … │ ── a quantum is full ──▶ released ──▶ sent
//! ```
//!
//! A pacer that releases single packets as their time comes would undo every batch above and below
//! it. This one holds credit back until it amounts to a quantum (see [`quantum`]) and then releases
//! all of it. Credit that was released and not used stays released: an application that sends
//! little never waits.

use std::time::Duration;

use super::rtt::RttEstimator;
use crate::time::Time;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A quantum is at least what the rate gives in this time. It is less than a tick of the worker's
/// timers, so that there is a release in each tick: with 1 ms there was one in every other tick,
/// with twice the burst.
const QUANTUM: Duration = Duration::from_micros(750);

/// Behind a standing queue, a quantum may be what the rate gives in this part of its delay, ...
const PART_OF_QUEUE: u32 = 8;
/// ... up to this time: the queue smooths such bursts, and each burst costs a wake-up.
const LONGEST_QUANTUM: Duration = Duration::from_millis(2);

/// The part of the window that a quantum has even if the rate gives less: a third of a queue that
/// holds a tenth of the window. With a quarter of the window, such a queue lost 2 % of the packets
/// at 10 Mbit/s and 40 ms.
const SHARE_OF_WINDOW: u64 = 32;

/// On a short path, where a burst soon leaves the queues, a quantum grows by a bundle, halved once
/// for each of these in the minimum RTT (Linux: `tcp_tso_autosize`).
const SHORT_PATH: Duration = Duration::from_micros(512);

/// Unused credit is kept for this much time. A worker wakes up to a timer tick late and is busy for
/// a turn; credit cut off in that time would be lost rate.
const CARRIED: Duration = Duration::from_millis(3);

/// Shorter round-trip times are raised to this, because they are used as divisors.
const MIN_RTT: Duration = Duration::from_micros(1);

/// RFC 9002 §7.2: ten datagrams, at most 14,720 bytes or two datagrams, whichever is larger.
pub(crate) fn initial_window(max_datagram: u16) -> u64 {
    let datagram = u64::from(max_datagram);
    (10 * datagram).min((2 * datagram).max(14_720))
}

/// Decides how many bytes may leave now.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    enabled: bool,
    /// `None` before the first call.
    bucket: Option<Bucket>,
}

#[derive(Clone, Debug)]
struct Bucket {
    /// Bytes per second, at least 1.
    rate: u64,
    /// Bytes earned but not sent.
    credit: u64,
    /// The part of the credit that may be used: less than a quantum may remain here, but is never
    /// released as such.
    released: u64,
    quantum: u64,
    /// Whether the congestion window was full at some time since `credited_until`.
    window_full: bool,
    /// Up to when the rate has been credited; fractions of a byte carry over.
    credited_until: Time,
}

/// The limits from congestion control.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// Bytes per second, if congestion control sets it.
    pub(crate) rate: Option<u64>,
    /// Bytes per second that all connections together send to the same address; 0: unknown.
    pub(crate) together: u64,
    /// The congestion window, in bytes.
    pub(crate) window: u64,
    /// Whether the window still doubles every round trip.
    pub(crate) slow_start: bool,
    /// Whether nothing is in flight.
    pub(crate) path_empty: bool,
}

impl Pacer {
    /// A pacer; if not `enabled`, it lets everything pass.
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            bucket: None,
        }
    }

    /// Bytes that may be sent now; `u64::MAX` if pacing is off. Less than a datagram is returned as
    /// 0.
    ///
    /// `max_datagram` is the size of a packet and `max_bundle` that of the largest GSO bundle, in
    /// bytes.
    pub(crate) fn budget(
        &mut self,
        now: Time,
        allowed: &Allowed,
        rtt: &RttEstimator,
        max_datagram: u16,
        max_bundle: usize,
    ) -> u64 {
        let &Allowed {
            rate,
            together,
            window,
            slow_start,
            path_empty,
        } = allowed;
        if !self.enabled && rate.is_none() {
            return u64::MAX;
        }
        let by_window = rate.is_none();
        // RFC 9002 §7.7: N is 1.25, so that the window is used up despite variations of the RTT; 2
        // in slow start, where the window doubles while its bytes are on the way. There the minimum
        // RTT counts: a handshake that waited for the CPU of its end leaves a smoothed RTT many
        // times that of the path, and at that rate the window would never be used, and so would not
        // grow.
        let rate = rate.unwrap_or_else(|| {
            let (gain, rtt) = match slow_start {
                true if rtt.has_sample() => (8, rtt.min()),
                true => (8, rtt.smoothed()),
                false => (5, rtt.smoothed()),
            };
            let rtt_nanos = rtt.max(MIN_RTT).as_nanos();
            let rate = u128::from(window) * gain * NANOS_PER_SECOND / (4 * rtt_nanos);
            u64::try_from(rate).unwrap_or(u64::MAX)
        });
        let rate = rate.max(1);

        let datagram = u64::from(max_datagram);
        let quantum = quantum(rate, window, rtt, max_datagram, max_bundle).max(shared_quantum(
            together,
            window,
            max_datagram,
        ));
        // RFC 9002 §7.7: bursts are limited to the initial window, which is all that may leave
        // before the path is known; later, to what a late worker needs, if that is more.
        let burst = initial_window(max_datagram);
        let capacity = if rtt.has_sample() {
            burst.max(bytes_in(rate, CARRIED).saturating_add(quantum))
        } else {
            burst
        };
        let bucket = self.bucket.get_or_insert(Bucket {
            rate,
            credit: burst,
            released: burst,
            quantum,
            window_full: false,
            credited_until: now,
        });
        bucket.fill(now, rate, capacity);
        let window_full = std::mem::take(&mut bucket.window_full);
        if path_empty && by_window && !window_full {
            // An exchange of short messages, whose round trips are shorter than the smoothed one,
            // would wait for credit with nothing in flight: responses of 10 kB right after a
            // handshake waited a millisecond each.
            bucket.credit = bucket.credit.max(burst);
            bucket.released = bucket.released.max(burst);
        }
        if window_full && !slow_start {
            // At least what the rate gives in a quantum's time: if bundles are short for the rate,
            // the window may open for many.
            let kept = quantum.max(bytes_in(rate, QUANTUM));
            bucket.credit = bucket.credit.min(kept);
        }
        bucket.quantum = quantum;
        bucket.release();
        if bucket.released < datagram {
            0
        } else {
            bucket.released
        }
    }

    /// `bytes` were sent. Packets that exceed the budget (probes, RFC 9002 §7.5) are counted too.
    pub(crate) fn on_sent(&mut self, bytes: u64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.credit = bucket.credit.saturating_sub(bytes);
            bucket.released = bucket.released.saturating_sub(bytes);
        }
    }

    /// There is data to send, but the congestion window is full.
    ///
    /// The rate is above what the window allows, so the credit of this time would never be used up,
    /// and each acknowledgement would release at once as many packets as it covers. Such a burst
    /// loses packets in a full queue, while packets that another sender sends one by one pass.
    /// Outside of slow start, only a quantum or its time's worth of credit is kept, whichever is
    /// more.
    pub(crate) fn on_window_full(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.window_full = true;
        }
    }

    /// When the next quantum is full; call it after [`budget`](Self::budget) returned 0 or was used
    /// up. `None` if nothing holds the sender back.
    pub(crate) fn next_release(&self, now: Time) -> Option<Time> {
        let bucket = self.bucket.as_ref()?;
        let missing = bucket.quantum.saturating_sub(bucket.credit);
        if missing == 0 {
            return None;
        }
        let nanos = (u128::from(missing) * NANOS_PER_SECOND).div_ceil(bucket.rate.into());
        let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Some((bucket.credited_until + wait).max(now))
    }
}

/// How many bytes are released at once.
///
/// - What the rate gives in 750 µs or, if that is more, a share of the window up to the initial
///   window, which RFC 9002 §7.7 allows as a burst; and more on a short path. All of this up to a
///   bundle.
/// - Behind a long queue, at least what the rate gives in an eighth of its delay, that is, of the
///   smoothed RTT less the minimum.
/// - At most half the window, but at least two packets, even without GSO, when a bundle is one
///   packet.
fn quantum(
    rate: u64,
    window: u64,
    rtt: &RttEstimator,
    max_datagram: u16,
    max_bundle: usize,
) -> u64 {
    let bundle = max_bundle as u64;
    let allowed = initial_window(max_datagram).min(window / SHARE_OF_WINDOW);
    let short = match rtt.has_sample() {
        true => {
            let halvings = rtt.min().as_nanos() / SHORT_PATH.as_nanos();
            u32::try_from(halvings)
                .ok()
                .and_then(|halvings| bundle.checked_shr(halvings))
                .unwrap_or(0)
        }
        false => 0,
    };
    let queue = rtt.smoothed().saturating_sub(rtt.min()) / PART_OF_QUEUE;
    let queued = match rtt.has_sample() && queue > QUANTUM {
        true => bytes_in(rate, queue.min(LONGEST_QUANTUM)),
        false => 0,
    };
    bytes_in(rate, QUANTUM)
        .max(allowed)
        .saturating_add(short)
        .min(bundle)
        .max(queued)
        .min(window / 2)
        .max(2 * u64::from(max_datagram))
}

/// How many bytes one of many connections to an address releases at once: what they send together
/// in a quantum's time, up to the window and the initial window. The path sees such bursts anyway,
/// from one connection or from several.
fn shared_quantum(together: u64, window: u64, max_datagram: u16) -> u64 {
    bytes_in(together, QUANTUM)
        .min(window)
        .min(initial_window(max_datagram))
}

impl Bucket {
    /// Credits the time up to `now` at the previous rate; then the new one takes over.
    fn fill(&mut self, now: Time, rate: u64, capacity: u64) {
        let elapsed = now - self.credited_until;
        let earned = bytes_in(self.rate, elapsed);
        self.credit = self.credit.saturating_add(earned);
        if self.credit >= capacity || self.rate != rate {
            // A full bucket earns nothing; at a change of the rate less than a byte is lost.
            self.credited_until = self.credited_until.max(now);
        } else {
            let nanos = u128::from(earned) * NANOS_PER_SECOND / u128::from(self.rate);
            self.credited_until +=
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(elapsed);
        }
        self.credit = self.credit.min(capacity);
        self.rate = rate;
    }

    fn release(&mut self) {
        if self.credit >= self.quantum {
            self.released = self.credit;
        }
        self.released = self.released.min(self.credit);
    }
}

/// The bytes that `rate` (bytes per second) gives in `time`.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos();
    // Nearly always 64 bits are enough, and then no instruction divides.
    let product = u64::try_from(nanos).map(|nanos| rate.checked_mul(nanos));
    if let Ok(Some(product)) = product {
        return product / NANOS_PER_SECOND as u64;
    }
    let bytes = u128::from(rate).saturating_mul(nanos) / NANOS_PER_SECOND;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(window: u64, slow_start: bool) -> Allowed {
        Allowed {
            rate: None,
            together: 0,
            window,
            slow_start,
            path_empty: false,
        }
    }

    const DATAGRAM: u16 = 1200;
    const BUNDLE: usize = 65_507;
    const START: u64 = 1_000_000_000;

    fn rtt(micros: u64) -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_micros(micros), Duration::ZERO);
        rtt
    }

    /// A sender with endless data that sends all it may in whole datagrams and wakes `late` after
    /// the requested time. Returns each wake-up's time (ns) and bytes.
    fn send(
        pacer: &mut Pacer,
        window: u64,
        rtt: &RttEstimator,
        slow_start: bool,
        duration: Duration,
        late: Duration,
    ) -> Vec<(u64, u64)> {
        let mut now = Time::from_nanos(START);
        let end = now + duration;
        let mut bursts = Vec::new();
        while now < end {
            let mut sent = 0;
            loop {
                let budget = pacer.budget(now, &allowed(window, slow_start), rtt, DATAGRAM, BUNDLE);
                let packets = budget.min(BUNDLE as u64) / u64::from(DATAGRAM);
                if packets == 0 {
                    break;
                }
                let bytes = packets * u64::from(DATAGRAM);
                pacer.on_sent(bytes);
                sent += bytes;
            }
            bursts.push((now.as_nanos(), sent));
            let next = pacer.next_release(now).expect("the quantum was used up");
            assert!(next > now, "a wake-up must make progress");
            now = next + late;
        }
        bursts
    }

    #[test]
    fn a_disabled_pacer_has_no_limit() {
        let mut pacer = Pacer::new(false);
        let budget = pacer.budget(Time::ZERO, &allowed(1, false), &rtt(100), DATAGRAM, BUNDLE);
        assert_eq!(budget, u64::MAX);
        pacer.on_sent(1 << 40);
        assert_eq!(pacer.next_release(Time::ZERO), None);
    }

    // test: RFC 9002 §7.7 — quanta, and over a long run the rate: 1.25 windows a round trip, 2 in
    // slow start.
    #[test]
    fn releases_quanta_at_the_rate() {
        for (window, rtt_us, slow_start) in [
            (1_000_000, 50_000, false),
            (1_000_000, 50_000, true),
            (40_000, 100_000, false),
            (12_000, 300_000, false),
            (100_000_000, 20_000, false),
            (2_400, 1_000_000, false),
        ] {
            let seconds = 10.0;
            let bursts = send(
                &mut Pacer::new(true),
                window,
                &rtt(rtt_us),
                slow_start,
                Duration::from_secs_f64(seconds),
                Duration::ZERO,
            );
            let gain = if slow_start { 2.0 } else { 1.25 };
            let rate = gain * window as f64 / (rtt_us as f64 / 1e6);
            // No path here is short enough for the quantum to grow.
            let allowed = (window as f64 / 32.0).min(12_000.0);
            let quantum = (rate * 0.000_75)
                .max(allowed)
                .min(window as f64 / 2.0)
                .clamp(2400.0, BUNDLE as f64);
            let sent: u64 = bursts.iter().map(|burst| burst.1).sum();
            let excess = sent as f64 - rate * seconds;
            // Never more than the rate and the first burst; short of it by a quantum at most.
            assert!(excess <= 12_000.0 + quantum, "{excess} over at {rate} B/s");
            assert!(excess >= -quantum, "{excess} short at {rate} B/s");
            for pair in bursts[1..].windows(2) {
                let (gap, bytes) = ((pair[1].0 - pair[0].0) as f64 / 1e9, pair[1].1 as f64);
                assert!(
                    bytes <= quantum + 1200.0,
                    "a release of {bytes}, not a quantum"
                );
                assert!(bytes > quantum - 1200.0, "a release of {bytes}, cut small");
                assert!((gap * rate - quantum).abs() < 1200.0);
            }
        }
    }

    #[test]
    fn long_queues_get_larger_and_rarer_bursts() {
        // 1 Gbit/s; the path takes 100 µs or 20 ms, and the queue as long as `queue`.
        for (path, queue, expected_us) in [
            (100, 4_000, 524),
            (100, 8_000, 1_000),
            (100, 40_000, 2_000),
            (20_000, 2_000, 524),
            (20_000, 12_000, 1_500),
        ] {
            let mut rtt = rtt(path);
            for _ in 0..200 {
                rtt.update(Duration::from_micros(path + queue), Duration::ZERO);
            }
            let window = 100 * (path + queue);
            let bursts = send(
                &mut Pacer::new(true),
                window,
                &rtt,
                false,
                Duration::from_millis(100),
                Duration::ZERO,
            );
            // 125 bytes in a microsecond; a bundle takes 524.
            let (_, burst) = bursts[bursts.len() / 2];
            let expected = expected_us * 125;
            assert!(burst.abs_diff(expected) <= 2_400, "{path} {queue}: {burst}");
        }
    }

    #[test]
    fn late_wake_ups_lose_no_rate() {
        let late = Duration::from_millis(2);
        let window = 1_000_000;
        let bursts = send(
            &mut Pacer::new(true),
            window,
            &rtt(50_000),
            false,
            Duration::from_secs(10),
            late,
        );
        let sent: u64 = bursts.iter().map(|burst| burst.1).sum();
        let expected = 1.25 * window as f64 / 0.05 * 10.0;
        assert!((sent as f64 / expected - 1.0).abs() < 0.01, "{sent}");
    }

    // test: RFC 9002 §7.7 — room made by acknowledgements is paced, too: they come rarely, and the
    // window is full before.
    #[test]
    fn room_in_a_full_window_causes_no_burst() {
        // 200 packets of 1,200 bytes in 50 ms: 4,500 bytes in 750 µs, less than the window's 32nd.
        let (rtt, window) = (rtt(50_000), 240_000);
        for (slow_start, longest) in [(false, 7_200), (true, 38_400)] {
            let mut pacer = Pacer::new(true);
            let (mut now, mut room, mut sent) = (Time::from_nanos(START), 0, 0);
            let mut largest = 0;
            // An acknowledgement of 25 packets every eighth of a round trip.
            for ack in 1..=80 {
                room += 25 * u64::from(DATAGRAM);
                let next_ack = Time::from_nanos(START + ack * 6_250_000);
                loop {
                    let budget =
                        pacer.budget(now, &allowed(window, slow_start), &rtt, DATAGRAM, BUNDLE);
                    let bytes = budget.min(room) / u64::from(DATAGRAM) * u64::from(DATAGRAM);
                    if bytes > 0 {
                        pacer.on_sent(bytes);
                        room -= bytes;
                        sent += bytes;
                        if ack > 1 {
                            largest = bytes.max(largest);
                        }
                    } else if room < u64::from(DATAGRAM) {
                        pacer.on_window_full();
                        break;
                    } else {
                        now = pacer.next_release(now).expect("the pacer holds it");
                        if now >= next_ack {
                            break;
                        }
                    }
                }
                now = next_ack;
            }
            assert_eq!(sent, 80 * 25 * u64::from(DATAGRAM), "the window is used up");
            assert!(largest <= longest, "{largest} at once");
            // In slow start the second flight would come later.
            assert_eq!(slow_start, largest > 7_200);
        }
    }

    // test: RFC 9002 §7.7 — a window of 33 packets, which a queue of a tenth of it holds three of:
    // an acknowledgement of four makes no burst of four.
    #[test]
    fn room_in_a_small_window_releases_two_packets() {
        let (rtt, window) = (rtt(40_000), 40_000);
        let mut pacer = Pacer::new(true);
        let budget = |pacer: &mut Pacer, now: u64| {
            let now = Time::from_nanos(now);
            pacer.budget(now, &allowed(window, false), &rtt, DATAGRAM, BUNDLE)
        };
        assert_eq!(budget(&mut pacer, START), 12_000, "the initial window");
        pacer.on_sent(12_000);
        pacer.on_window_full();
        assert_eq!(budget(&mut pacer, START + 10_000_000), 2_400);
        pacer.on_sent(2_400);
        let next = pacer.next_release(Time::from_nanos(START + 10_000_000));
        // 1.25 windows a round trip: 1,250 bytes in a millisecond.
        assert_eq!(next, Some(Time::from_nanos(START + 11_920_000)));
    }

    // test: RFC 9002 §7.7 — bursts of up to the initial window, where the path sees them anyway.
    #[test]
    fn one_of_many_connections_sends_its_small_window_at_once() {
        let burst = |together, packets| {
            let (rtt, window) = (rtt(10_000), packets * u64::from(DATAGRAM));
            let allowed = Allowed {
                together,
                ..allowed(window, false)
            };
            let mut pacer = Pacer::new(true);
            pacer.budget(Time::from_nanos(START), &allowed, &rtt, DATAGRAM, BUNDLE);
            pacer.on_sent(1 << 20);
            let mut now = Time::from_nanos(START);
            loop {
                let budget = pacer.budget(now, &allowed, &rtt, DATAGRAM, BUNDLE);
                if budget > 0 {
                    return budget / u64::from(DATAGRAM);
                }
                now = pacer.next_release(now).expect("the pacer holds it");
            }
        };
        assert_eq!(burst(0, 6), 2);
        // 1 Gbit/s: 93,750 bytes in 750 µs.
        assert_eq!(burst(125_000_000, 6), 6, "the window");
        assert_eq!(burst(125_000_000, 16), 10, "the initial window");
        // 48 Mbit/s: 4,500 bytes.
        assert_eq!(burst(6_000_000, 16), 3);
    }

    // test: RFC 9002 §7.8 — a sender that paces is not limited by its application.
    #[test]
    fn slow_start_is_paced_by_the_path_not_by_a_slow_handshake() {
        // The handshake waited for a busy server; the path takes 100 µs.
        let mut rtt = rtt(20_000);
        rtt.update(Duration::from_micros(100), Duration::ZERO);
        assert!(rtt.smoothed() > Duration::from_millis(15));
        let window = 60_000;
        let sent_in_a_round_trip = |slow_start| {
            let (mut pacer, round_trip) = (Pacer::new(true), Duration::from_micros(100));
            let late = Duration::ZERO;
            // The data that may leave at the start has left.
            pacer.budget(
                Time::from_nanos(START),
                &allowed(window, slow_start),
                &rtt,
                DATAGRAM,
                BUNDLE,
            );
            pacer.on_sent(window);
            let bursts = send(&mut pacer, window, &rtt, slow_start, round_trip, late);
            bursts.iter().map(|burst| burst.1).sum::<u64>()
        };
        // The window holds the sender back, so it grows.
        assert!(sent_in_a_round_trip(true) >= window);
        assert_eq!(sent_in_a_round_trip(false), 0);
    }

    // test: RFC 9002 §7.7 — with nothing in flight, the initial window may leave at once.
    #[test]
    fn an_idle_path_gets_the_initial_window_at_once() {
        // How much of 10,000 bytes leaves a fifth of the smoothed round trip after the last ones.
        let (rtt, window) = (rtt(1_000), 14_400);
        let sent = |path_empty, rate, window_full| {
            let mut pacer = Pacer::new(true);
            let mut sent = Vec::new();
            for exchange in 0..3 {
                let now = Time::from_nanos(START + exchange * 200_000);
                let allowed = Allowed {
                    rate,
                    path_empty,
                    ..allowed(window, false)
                };
                let budget = pacer.budget(now, &allowed, &rtt, DATAGRAM, BUNDLE);
                let bytes = budget.min(9_600) / 1_200 * 1_200;
                pacer.on_sent(bytes);
                sent.push(bytes);
                if window_full {
                    pacer.on_window_full();
                }
            }
            sent
        };
        assert_eq!(sent(true, None, false), [9_600; 3]);
        assert!(sent(false, None, false)[2] < 9_600);
        // A sender of bulk data keeps its spacing, and a rate set by congestion control is a limit.
        assert!(sent(true, None, true)[2] < 9_600);
        assert!(sent(true, Some(1_000_000), false)[2] < 9_600);
    }

    // test: RFC 9002 §7.7 — after a pause the burst is bounded.
    #[test]
    fn credit_is_bounded() {
        let (rtt, window) = (rtt(50_000), 1_000_000);
        let mut pacer = Pacer::new(true);
        let mut budget = |now: u64| {
            pacer.budget(
                Time::from_nanos(now),
                &allowed(window, false),
                &rtt,
                DATAGRAM,
                BUNDLE,
            )
        };
        assert_eq!(budget(START), 12_000, "the initial window at first");
        // 25 MB/s: 18,750 bytes a quantum, 3 ms carried on top of one.
        assert_eq!(budget(START + 3_600_000_000_000), 93_750);
    }

    // test: RFC 9002 §7.7 — before the first sample no more than the initial window at once.
    #[test]
    fn before_the_first_rtt_sample_the_initial_window_is_the_limit() {
        let unknown = RttEstimator::new(Duration::from_millis(333));
        let mut pacer = Pacer::new(true);
        let budget = |now: u64, pacer: &mut Pacer| {
            pacer.budget(
                Time::from_nanos(now),
                &allowed(12_000, true),
                &unknown,
                DATAGRAM,
                BUNDLE,
            )
        };
        assert_eq!(budget(START, &mut pacer), 12_000);
        pacer.on_sent(12_000);
        assert_eq!(budget(START, &mut pacer), 0);
        assert_eq!(budget(START + 3_600_000_000_000, &mut pacer), 12_000);
    }

    #[test]
    fn released_bytes_stay_released() {
        let (rtt, window) = (rtt(100_000), 40_000);
        let mut pacer = Pacer::new(true);
        let now = Time::from_nanos(START);
        let budget =
            |pacer: &mut Pacer| pacer.budget(now, &allowed(window, false), &rtt, DATAGRAM, BUNDLE);
        for sent in 0..10 {
            assert_eq!(budget(&mut pacer), 12_000 - sent * 1200);
            pacer.on_sent(1200);
        }
        assert_eq!(budget(&mut pacer), 0);
        assert!(pacer.next_release(now).is_some());
    }

    // test: RFC 9002 §7.7 — a burst is the initial window at most, but more on a short path, even
    // while its queues are long.
    #[test]
    fn short_paths_get_larger_quanta() {
        // In packets, for a window, the minimum RTT, and the RTT now.
        let quantum = |window, min_micros, micros| {
            let mut rtt = rtt(min_micros);
            for _ in 0..100 {
                rtt.update(Duration::from_micros(micros), Duration::ZERO);
            }
            let mut pacer = Pacer::new(true);
            let now = Time::from_nanos(START);
            let mut budget =
                |now| pacer.budget(now, &allowed(window, false), &rtt, DATAGRAM, BUNDLE);
            let first = budget(now);
            pacer.on_sent(first);
            let next = pacer.next_release(now).expect("the quantum was used up");
            pacer.budget(next, &allowed(window, false), &rtt, DATAGRAM, BUNDLE) / 1200
        };
        // The rate gives less in 750 µs: two packets, a 32nd of the window, the initial window.
        assert_eq!(quantum(24_000, 40_000, 40_000), 2);
        assert_eq!(quantum(192_000, 400_000, 400_000), 5);
        assert_eq!(quantum(1_200_000, 500_000, 500_000), 10);
        // And a bundle (54), half of one, a quarter; never above half the window.
        assert_eq!(quantum(400_000, 100, 500_000), 54);
        assert_eq!(quantum(400_000, 600, 500_000), 37);
        assert_eq!(quantum(400_000, 1_100, 500_000), 23);
        assert_eq!(quantum(24_000, 100, 500_000), 10);
        assert_eq!(quantum(2_400, 100, 500_000), 2);
    }

    // Without GSO a bundle is one datagram; the quantum is two packets all the same.
    #[test]
    fn a_quantum_is_at_least_two_packets() {
        let (rtt, window) = (rtt(100_000), 40_000);
        let mut pacer = Pacer::new(true);
        let bundle = usize::from(DATAGRAM);
        let now = Time::from_nanos(START);
        let first = pacer.budget(now, &allowed(window, false), &rtt, DATAGRAM, bundle);
        pacer.on_sent(first);
        let next = pacer.next_release(now).unwrap();
        assert_eq!(
            pacer.budget(next, &allowed(window, false), &rtt, DATAGRAM, bundle),
            2400
        );
        let before = Time::from_nanos(next.as_nanos() - 1);
        let mut pacer = Pacer::new(true);
        pacer.budget(now, &allowed(window, false), &rtt, DATAGRAM, bundle);
        pacer.on_sent(first);
        assert_eq!(
            pacer.budget(before, &allowed(window, false), &rtt, DATAGRAM, bundle),
            0
        );
    }
}
