//! Letting bulk data collect in the socket before it is received.
//!
//! A receiver that is faster than its link is woken for every bundle, and being woken costs as much
//! as the bundle's packets do: on a link of 5 Gbit/s half of a receiver's CPU. Network cards
//! moderate their interrupts for the same reason, and a TCP socket can wait for more than one byte
//! (`SO_RCVLOWAT`). A UDP socket cannot, so the worker's thread waits instead:
//!
//! ```text
//! hardly anything but bulk data ─▶ all tasks have run ─▶ nap ─▶ receive all that has come ─▶ …
//! ```
//! A nap is short compared with the round-trip time, or ends when the sender wants an
//! acknowledgement. Anything but bulk data has to be rare, such as acknowledgements of the few
//! packets that a receiver sends: a worker that also serves many requests takes no naps. An
//! application's call from another thread ends a nap at once.

use std::time::Duration;

use squall_core::Time;

/// Naps are taken while the score is at least this. Each run of bulk data adds one to it, ...
const STREAK: u32 = 8;
/// ... each other run subtracts this, ...
const OTHER: u32 = 4;
/// ... and it never rises above this.
const MOST_STREAK: u32 = 16;
/// Datagrams of a run of bulk data, at least ...
const BULK_DATAGRAMS: usize = 4;
/// ... and bytes of each of them but the last.
const BULK_DATAGRAM_BYTES: u16 = 1000;

/// The part of the smoothed round-trip time that a nap may take: what a delayed acknowledgement
/// adds to the path's own variation.
const PART_OF_RTT: u32 = 8;
/// A shorter nap saves nothing: timers are this late.
const SHORTEST: Duration = Duration::from_micros(100);
/// Runs that a nap must be expected to collect: a single one would only be delayed.
const LEAST_RUNS: u32 = 2;
/// The most bytes that a nap is meant to collect.
const MOST_BYTES: usize = 512 * 1024;
/// The part of the socket's buffer that these may fill: the data may come faster than before.
const PART_OF_BUFFER: usize = 8;

/// Decides how long a worker naps before it looks at its socket again.
#[derive(Debug)]
pub(super) struct Coalescing {
    longest: Duration,
    most_bytes: usize,
    /// The score: how much of what arrives is bulk data.
    streak: u32,
    /// What arrived since `since`.
    arrived: Arrived,
    since: Time,
    /// When the last nap was to end.
    until: Time,
}

#[derive(Debug, Default)]
struct Arrived {
    runs: u32,
    bytes: usize,
    /// The least patience of the connections that receive it.
    patience: Option<Patience>,
}

/// How long a connection's data may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The smoothed round-trip time.
    rtt: Duration,
    /// Bytes that may arrive before the sender wants an acknowledgement, ...
    ack_bytes: u64,
    /// ... and the time after which it wants one anyway.
    ack_delay: Duration,
}

impl Patience {
    /// That of a connection whose packets have `segment_size` bytes.
    pub(super) fn of(connection: &squall_core::Connection, segment_size: u16) -> Self {
        let (packets, ack_delay) = connection.ack_allowance();
        Self {
            rtt: connection.rtt(),
            ack_bytes: packets.saturating_mul(segment_size.into()),
            ack_delay,
        }
    }

    /// The minimum of each.
    fn min(self, other: Self) -> Self {
        Self {
            rtt: self.rtt.min(other.rtt),
            ack_bytes: self.ack_bytes.min(other.ack_bytes),
            ack_delay: self.ack_delay.min(other.ack_delay),
        }
    }

    /// How long data that arrives at one byte per `per_byte` seconds may wait. A sender that has
    /// asked for fewer acknowledgements paces its packets, and does not wait for acknowledgements.
    fn limit(&self, per_byte: f64) -> Duration {
        let until_ack = seconds(per_byte * self.ack_bytes as f64).min(self.ack_delay);
        until_ack.max(self.rtt / PART_OF_RTT)
    }
}

/// Converts floating-point seconds, saturating.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

impl Coalescing {
    /// No nap is longer than `longest`; zero turns naps off. `receive_buffer` is the size of the
    /// socket's buffer in bytes.
    pub(super) fn new(longest: Duration, receive_buffer: usize) -> Self {
        Self {
            longest,
            most_bytes: MOST_BYTES.min(receive_buffer / PART_OF_BUFFER),
            streak: 0,
            arrived: Arrived::default(),
            since: Time::ZERO,
            until: Time::ZERO,
        }
    }

    /// A run has arrived for a connection.
    #[inline]
    pub(super) fn on_run(&mut self, bytes: usize, segment_size: u16, patience: Patience) {
        let least = BULK_DATAGRAMS * usize::from(segment_size);
        match (segment_size >= BULK_DATAGRAM_BYTES, bytes >= least) {
            (true, true) => {}
            // A burst released by the pacer rarely ends with a whole bundle.
            (true, false) if self.arrived.runs > 0 => {
                self.arrived.bytes += bytes;
                return;
            }
            _ => return self.on_other(),
        }
        self.streak = (self.streak + 1).min(MOST_STREAK);
        let Arrived {
            runs,
            bytes: sum,
            patience: least,
        } = &mut self.arrived;
        // A worker that never sleeps never asks for a nap, which would reset this.
        *runs = runs.saturating_add(1);
        *sum += bytes;
        *least = Some(least.map_or(patience, |least| least.min(patience)));
    }

    /// Something other than bulk data has arrived.
    #[inline]
    pub(super) fn on_other(&mut self) {
        self.streak = self.streak.saturating_sub(OTHER);
    }

    /// How long to nap after the turn that began at `now`; zero: not at all. Timers may be late by
    /// that much.
    pub(super) fn nap(&mut self, now: Time) -> Duration {
        if self.arrived.runs == 0 {
            // A timer or a call of the application came in between: the nap continues after it.
            let left = self.until - now;
            let goes_on = left >= SHORTEST && self.streak >= STREAK;
            return if goes_on { left } else { Duration::ZERO };
        }
        self.until = now;
        let elapsed = now - std::mem::replace(&mut self.since, now);
        let arrived = std::mem::take(&mut self.arrived);
        let Some(patience) = arrived.patience.filter(|_| self.streak >= STREAK) else {
            return Duration::ZERO;
        };
        let per_byte = elapsed.as_secs_f64() / arrived.bytes.max(1) as f64;
        let until_full = seconds(per_byte * self.most_bytes as f64);
        let nap = (self.longest).min(patience.limit(per_byte)).min(until_full);
        let least = SHORTEST.max(elapsed * LEAST_RUNS / arrived.runs);
        if nap < least {
            return Duration::ZERO;
        }
        self.until = now + nap;
        nap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUNDLE: usize = 64_768;
    const SEGMENT: u16 = 1472;
    const RTT: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_millis(2);

    /// For a sender that wants its acknowledgements as RFC 9000 says.
    fn of_rtt(rtt: Duration) -> Patience {
        Patience {
            rtt,
            ack_bytes: SEGMENT.into(),
            ack_delay: Duration::from_millis(25),
        }
    }

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    struct Test {
        coalescing: Coalescing,
        now: Time,
    }

    impl Test {
        fn new() -> Self {
            Self {
                coalescing: Coalescing::new(LONGEST, 4 << 20),
                now: Time::from_nanos(1_000_000_000),
            }
        }

        /// A turn that begins `after` the last one, with runs of bulk data.
        fn turn(&mut self, after: Duration, runs: u32, rtt: Duration) -> Duration {
            self.now += after;
            for _ in 0..runs {
                self.coalescing.on_run(BUNDLE, SEGMENT, of_rtt(rtt));
            }
            self.coalescing.nap(self.now)
        }

        /// Many turns with a bundle each.
        fn bulk(&mut self, every: Duration, rtt: Duration) -> Duration {
            (0..100).fold(Duration::ZERO, |_, _| self.turn(every, 1, rtt))
        }
    }

    #[test]
    fn a_nap_is_bounded_by_the_rtt_and_the_buffer() {
        // 5 Gbit/s: 512 KiB take 843 µs; a round trip of 4 ms allows 500.
        assert_eq!(Test::new().bulk(micros(104), RTT).as_micros(), 841);
        assert_eq!(Test::new().bulk(micros(104), micros(4000)), micros(500));
        // 1 Gbit/s: the longest nap allowed.
        assert_eq!(Test::new().bulk(micros(518), RTT), LONGEST);
        // A small buffer is not filled: an eighth of 208 KiB is less than a bundle.
        let mut small = Test::new();
        small.coalescing = Coalescing::new(LONGEST, 212_992);
        assert_eq!(small.bulk(micros(518), RTT), Duration::ZERO);
    }

    #[test]
    fn a_nap_may_last_until_the_sender_expects_an_acknowledgement() {
        // On a round trip of 1.5 ms no nap is short enough, ...
        let rtt = micros(1500);
        assert_eq!(Test::new().bulk(micros(518), rtt), Duration::ZERO);
        // ... unless the sender asks for an acknowledgement every 122 packets.
        let nap = |ack_delay| {
            let patience = Patience {
                rtt,
                ack_bytes: 122 * u64::from(SEGMENT),
                ack_delay,
            };
            let mut test = Test::new();
            (0..100).fold(Duration::ZERO, |_, _| {
                test.now += micros(518);
                test.coalescing.on_run(BUNDLE, SEGMENT, patience);
                test.coalescing.nap(test.now)
            })
        };
        assert_eq!(nap(micros(5000)).as_micros(), 1436);
        assert_eq!(
            nap(micros(1100)),
            micros(1100),
            "the sender's ack delay bounds the nap"
        );
        assert_eq!(
            nap(micros(1000)),
            Duration::ZERO,
            "less than two bundles would arrive"
        );
    }

    #[test]
    fn the_least_patient_sender_of_a_turn_decides() {
        let mut test = Test::new();
        let patient = Patience {
            ack_bytes: 1 << 30,
            ..of_rtt(RTT)
        };
        for _ in 0..100 {
            test.coalescing.on_run(BUNDLE, SEGMENT, patient);
            assert_eq!(test.turn(micros(2000), 2, micros(2000)), Duration::ZERO);
        }
    }

    #[test]
    fn naps_that_would_gain_nothing_are_skipped() {
        // A bundle every 1.1 ms: two of them take more than the longest nap.
        assert_eq!(Test::new().bulk(micros(1100), RTT), Duration::ZERO);
        assert!(Test::new().bulk(micros(1000), RTT) > Duration::ZERO);
        // A loopback's round trip.
        assert_eq!(Test::new().bulk(micros(40), micros(200)), Duration::ZERO);
        // Turned off.
        let mut off = Test::new();
        off.coalescing = Coalescing::new(Duration::ZERO, 4 << 20);
        assert_eq!(off.bulk(micros(104), RTT), Duration::ZERO);
    }

    #[test]
    fn naps_continue_while_data_arrives_and_end_with_it() {
        let mut test = Test::new();
        let nap = test.bulk(micros(518), RTT);
        // The next turn begins after the nap, with the data that came meanwhile.
        assert_eq!(test.turn(nap + micros(50), 4, RTT), LONGEST);
        assert_eq!(test.turn(nap + micros(50), 4, RTT), LONGEST);
        // Nothing came. When the data resumes, the pause says nothing about its rate.
        assert_eq!(test.turn(nap + micros(50), 0, RTT), Duration::ZERO);
        assert_eq!(test.turn(micros(100_000), 4, RTT), Duration::ZERO);
        assert_eq!(test.turn(micros(518), 1, RTT), LONGEST);
    }

    #[test]
    fn a_nap_resumes_after_an_intermediate_turn() {
        let mut test = Test::new();
        let nap = test.bulk(micros(518), RTT);
        assert_eq!(test.turn(micros(300), 0, RTT), nap - micros(300));
        assert_eq!(test.turn(micros(300), 0, RTT), nap - micros(600));
        // The rest of the nap is too short, ...
        assert_eq!(test.turn(nap - micros(650), 0, RTT), Duration::ZERO);
        // ... or a request came in between.
        assert_eq!(test.turn(micros(518), 4, RTT), LONGEST);
        for _ in 0..3 {
            test.coalescing.on_other();
        }
        assert_eq!(test.turn(micros(50), 0, RTT), Duration::ZERO);
    }

    #[test]
    fn the_short_last_bundle_of_a_burst_counts_as_bulk_data() {
        let mut test = Test::new();
        test.bulk(micros(518), RTT);
        for _ in 0..100 {
            test.coalescing.on_run(BUNDLE, SEGMENT, of_rtt(RTT));
            test.coalescing.on_run(1472, SEGMENT, of_rtt(RTT));
            assert_eq!(test.turn(micros(518), 0, RTT), LONGEST);
        }
    }

    #[test]
    fn naps_stop_unless_other_traffic_is_rare() {
        let other: [fn(&mut Coalescing); 4] = [
            Coalescing::on_other,
            // An acknowledgement, a request of one datagram, and small datagrams in a bundle.
            |coalescing| coalescing.on_run(40, 40, of_rtt(RTT)),
            |coalescing| coalescing.on_run(1400, 1400, of_rtt(RTT)),
            |coalescing| coalescing.on_run(30 * 200, 200, of_rtt(RTT)),
        ];
        for other in other {
            let mut test = Test::new();
            assert_eq!(test.bulk(micros(518), RTT), LONGEST);
            // One of six is rare.
            for turn in 1..100 {
                if turn % 6 == 0 {
                    other(&mut test.coalescing);
                }
                assert_eq!(test.turn(micros(518), 1, RTT), LONGEST);
            }
            // One of three is not.
            let naps = (1..100).filter(|turn| {
                if turn % 3 == 0 {
                    other(&mut test.coalescing);
                }
                test.turn(micros(518), 1, RTT) > Duration::ZERO
            });
            assert!(naps.count() < 30);
            for _ in 0..4 {
                other(&mut test.coalescing);
            }
            for _ in 0..STREAK - 1 {
                assert_eq!(test.turn(micros(518), 1, RTT), Duration::ZERO);
            }
            assert_eq!(test.turn(micros(518), 1, RTT), LONGEST);
        }
    }

    #[test]
    fn the_shortest_round_trip_of_a_turn_decides() {
        let mut test = Test::new();
        test.bulk(micros(518), RTT);
        test.coalescing.on_run(BUNDLE, SEGMENT, of_rtt(micros(400)));
        assert_eq!(test.turn(micros(518), 1, RTT), Duration::ZERO);
    }
}
