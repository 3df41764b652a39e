//! Congestion control (RFC 9002 §7): how many bytes may be in flight.
//!
//! ```text
//!  one run of ACKs ──▶ on_ack(bytes newly acknowledged, …) ──▶ window grows
//!                  ──▶ on_lost(…), on_marked(…)            ──▶ window shrinks, once a round trip
//!  one bundle      ──▶ on_sent(…)                          ──▶ what BBR measures by
//! ```
//!
//! Controllers see ACK frames, never packets: they use only the sum over a frame, so their cost is
//! paid once per bundle. The built-in ones are variants of an enum, called without dynamic
//! dispatch; an application's own is `supplied`.

mod bbr;
mod cubic;
mod delivery;
mod newreno;
mod supplied;

pub(crate) use self::bbr::Acknowledged;
use self::bbr::Bbr;
use self::cubic::Cubic;
use self::newreno::NewReno;
use self::supplied::{Supplied, estimate};
use crate::algorithm::{AckedBundle, CongestionAlgorithm, LostBundle};
use crate::config::TransportConfig;
use crate::recovery::rtt::RttEstimator;
use crate::time::Time;

/// RFC 9002 §7.2: kMinimumWindow.
fn minimum_window(max_datagram: u16) -> u64 {
    2 * u64::from(max_datagram)
}

/// When the current recovery period began (RFC 9002 §7.3.2).
#[derive(Clone, Copy, Debug, Default)]
struct RecoveryPeriod {
    start: Option<Time>,
}

impl RecoveryPeriod {
    /// Whether a packet sent at `sent` predates the reduction, so that neither its loss shrinks the
    /// window again nor its acknowledgement grows it.
    fn covers(self, sent: Time) -> bool {
        self.start.is_some_and(|start| sent <= start)
    }
}

/// The congestion controller of a path.
#[derive(Debug)]
pub(crate) enum Controller {
    /// RFC 9002 §7.
    NewReno(NewReno),
    /// RFC 9438.
    Cubic(Cubic),
    /// draft-ietf-ccwg-bbr; boxed because of its size.
    Bbr(Box<Bbr>),
    /// The application's; boxed because of its size.
    Supplied(Box<Supplied>),
}

impl Controller {
    /// The controller of a new path whose datagrams have up to `max_datagram` bytes.
    pub(crate) fn of(config: &TransportConfig, max_datagram: u16) -> Self {
        match &config.congestion_controller {
            Some(factory) => Self::Supplied(Box::new(Supplied::new(&**factory, max_datagram))),
            None => Self::new(config.congestion, max_datagram),
        }
    }

    /// A controller with the initial window for datagrams of up to `max_datagram` bytes.
    pub(crate) fn new(algorithm: CongestionAlgorithm, max_datagram: u16) -> Self {
        match algorithm {
            CongestionAlgorithm::NewReno => Self::NewReno(NewReno::new(max_datagram)),
            CongestionAlgorithm::Cubic => Self::Cubic(Cubic::new(max_datagram)),
            CongestionAlgorithm::Bbr => Self::Bbr(Box::new(Bbr::new(max_datagram))),
        }
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        match self {
            Self::NewReno(newreno) => newreno.window(),
            Self::Cubic(cubic) => cubic.window(),
            Self::Bbr(bbr) => bbr.window(),
            Self::Supplied(supplied) => supplied.window(),
        }
    }

    /// The window at which slow start ends; `None` before any congestion.
    pub(crate) fn ssthresh(&self) -> Option<u64> {
        match self {
            Self::NewReno(newreno) => newreno.ssthresh(),
            Self::Cubic(cubic) => cubic.ssthresh(),
            Self::Bbr(_) | Self::Supplied(_) => None,
        }
    }

    /// Bytes per second at which packets are to leave, if the algorithm decides that; `None` leaves
    /// it to the window and the round-trip time (RFC 9002 §7.7).
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        match self {
            Self::NewReno(_) | Self::Cubic(_) => None,
            Self::Bbr(bbr) => bbr.pacing_rate(),
            Self::Supplied(supplied) => supplied.pacing_rate(),
        }
    }

    /// Whether the window is below [`ssthresh`](Self::ssthresh) (RFC 9002 §7.3.1).
    pub(crate) fn is_slow_start(&self) -> bool {
        match self {
            Self::Bbr(bbr) => bbr.is_startup(),
            Self::Supplied(supplied) => supplied.is_slow_start(),
            _ => self
                .ssthresh()
                .is_none_or(|ssthresh| self.window() < ssthresh),
        }
    }

    /// A bundle of `bytes` is sent; `in_flight` includes it.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        match self {
            Self::NewReno(_) | Self::Cubic(_) => {}
            Self::Bbr(bbr) => bbr.on_sent(now, bytes, in_flight),
            Self::Supplied(supplied) => supplied.on_sent(now, bytes, in_flight),
        }
    }

    /// A run of acknowledgements. `acked.app_limited`: the packets had not filled the window when
    /// sent, so they prove nothing about it (RFC 9002 §7.8). `rtt` includes this run's samples.
    ///
    /// A run that spans the start of a recovery period counts in full: its older packets are at
    /// most one window, and at most once per period.
    pub(crate) fn on_ack(&mut self, now: Time, acked: &Acknowledged, rtt: &RttEstimator) {
        let Acknowledged {
            bytes,
            newest_sent,
            app_limited,
            ..
        } = *acked;
        match self {
            Self::NewReno(newreno) => newreno.on_ack(bytes, newest_sent, app_limited),
            Self::Cubic(cubic) => cubic.on_ack(now, bytes, newest_sent, app_limited, rtt),
            Self::Bbr(bbr) => bbr.on_ack(now, acked, rtt),
            Self::Supplied(supplied) => {
                let acked = AckedBundle {
                    bytes,
                    newest_sent,
                    in_flight: acked.in_flight,
                    app_limited,
                    rtt: estimate(rtt),
                };
                supplied.on_ack(now, &acked);
            }
        }
    }

    /// Packets of `bytes` in all were lost, in this many separate `ranges` of numbers; the newest
    /// of them was sent at `newest_sent`. Ignored for packets from before the current recovery
    /// period (RFC 9002 §7.3.2). Returns whether a new reduction begins with them.
    pub(crate) fn on_lost(
        &mut self,
        now: Time,
        bytes: u64,
        ranges: u32,
        newest_sent: Time,
        rtt: &RttEstimator,
    ) -> bool {
        match self {
            Self::NewReno(newreno) => newreno.on_congestion_event(now, newest_sent),
            Self::Cubic(cubic) => {
                let queued = cubic.queued(rtt);
                cubic.on_congestion_event(now, newest_sent, queued)
            }
            Self::Bbr(bbr) => bbr.on_lost(now, bytes, ranges, newest_sent),
            Self::Supplied(supplied) => {
                let lost = LostBundle {
                    bytes,
                    ranges,
                    newest_sent,
                    rtt: estimate(rtt),
                };
                supplied.on_lost(now, &lost)
            }
        }
    }

    /// Packets of `bytes` that were reported as lost have arrived. `undo`: so has everything that
    /// caused the last reduction, which is therefore undone (RFC 9438 §4.9.2). Returns whether one
    /// was.
    pub(crate) fn on_spurious_loss(&mut self, bytes: u64, undo: bool) -> bool {
        match self {
            Self::NewReno(newreno) => undo && newreno.undo(),
            Self::Cubic(cubic) => undo && cubic.undo(),
            Self::Bbr(bbr) => bbr.on_spurious_loss(bytes, undo),
            Self::Supplied(supplied) => supplied.on_spurious_loss(bytes, undo),
        }
    }

    /// Packets arrived marked with ECN-CE: treated like a loss (RFC 9002 §7.1).
    pub(crate) fn on_marked(&mut self, now: Time, newest_sent: Time) {
        match self {
            Self::NewReno(newreno) => drop(newreno.on_congestion_event(now, newest_sent)),
            Self::Cubic(cubic) => drop(cubic.on_congestion_event(now, newest_sent, f64::INFINITY)),
            Self::Bbr(bbr) => bbr.on_marked(),
            Self::Supplied(supplied) => supplied.on_marked(now, newest_sent),
        }
    }

    /// Persistent congestion: everything sent over a long time was lost (RFC 9002 §7.6.2). Called
    /// after [`on_lost`](Self::on_lost) for the same packets.
    pub(crate) fn on_persistent_congestion(&mut self) {
        match self {
            Self::NewReno(newreno) => newreno.on_persistent_congestion(),
            Self::Cubic(cubic) => cubic.on_persistent_congestion(),
            Self::Bbr(bbr) => bbr.on_persistent_congestion(),
            Self::Supplied(supplied) => supplied.on_persistent_congestion(),
        }
    }

    /// The path's datagrams are now up to `max_datagram` bytes. A window that has not changed yet
    /// is set to the initial one of the new size (RFC 9002 §7.2).
    pub(crate) fn set_max_datagram(&mut self, max_datagram: u16) {
        match self {
            Self::NewReno(newreno) => newreno.set_max_datagram(max_datagram),
            Self::Cubic(cubic) => cubic.set_max_datagram(max_datagram),
            Self::Bbr(bbr) => bbr.set_max_datagram(max_datagram),
            Self::Supplied(supplied) => supplied.set_max_datagram(max_datagram),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOTH: [CongestionAlgorithm; 2] =
        [CongestionAlgorithm::NewReno, CongestionAlgorithm::Cubic];

    fn ack(
        controller: &mut Controller,
        now: Time,
        bytes: u64,
        newest_sent: Time,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let acked = Acknowledged {
            bytes,
            newest_sent,
            app_limited,
            in_flight: 0,
            idle: false,
        };
        controller.on_ack(now, &acked, rtt);
    }

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn rtt(millis: u64) -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_millis(millis), Duration::ZERO);
        rtt
    }

    // test: RFC 9002 §7.2
    #[test]
    fn initial_windows_follow_the_rfc() {
        for (max_datagram, window) in [
            (1200, 12_000),
            (1472, 14_720),
            (1500, 14_720),
            (9000, 18_000),
        ] {
            for algorithm in BOTH {
                assert_eq!(Controller::new(algorithm, max_datagram).window(), window);
            }
        }
    }

    // test: RFC 9002 §7.3.1 — slow start doubles the window each round trip.
    #[test]
    fn slow_start_doubles_the_window_every_round_trip() {
        for algorithm in BOTH {
            let mut controller = Controller::new(algorithm, 1200);
            for (round, window) in [24_000, 48_000, 96_000, 192_000, 384_000]
                .into_iter()
                .enumerate()
            {
                let now = at(100 * (round as u64 + 1));
                // Two ACK frames a round, each for half of what was sent a round trip ago.
                let half = controller.window() / 2;
                for _ in 0..2 {
                    ack(
                        &mut controller,
                        now,
                        half,
                        at(100 * round as u64),
                        false,
                        &rtt(100),
                    );
                }
                assert_eq!(controller.window(), window);
                assert!(controller.is_slow_start());
                assert_eq!(controller.ssthresh(), None);
            }
        }
    }

    // test: RFC 9002 §7.8
    #[test]
    fn an_unused_window_does_not_grow() {
        for algorithm in BOTH {
            let mut controller = Controller::new(algorithm, 1200);
            for round in 1..20 {
                ack(
                    &mut controller,
                    at(100 * round),
                    12_000,
                    at(100 * (round - 1)),
                    true,
                    &rtt(100),
                );
            }
            assert_eq!(controller.window(), 12_000);
            controller.on_marked(at(2_000), at(1_950));
            let reduced = controller.window();
            for round in 21..200 {
                ack(
                    &mut controller,
                    at(100 * round),
                    6_000,
                    at(100 * (round - 1)),
                    true,
                    &rtt(100),
                );
            }
            assert_eq!(controller.window(), reduced);
        }
    }

    // test: RFC 9002 §7.3.2
    #[test]
    fn the_window_is_reduced_once_per_recovery_period() {
        for (algorithm, after_first, after_second) in [
            (CongestionAlgorithm::NewReno, 50_000, 25_000),
            (CongestionAlgorithm::Cubic, 70_000, 49_000),
        ] {
            let mut controller = Controller::new(algorithm, 1000);
            ack(&mut controller, at(100), 90_000, at(0), false, &rtt(100));
            assert_eq!(controller.window(), 100_000);

            controller.on_marked(at(150), at(60));
            assert_eq!(controller.window(), after_first);
            assert_eq!(controller.ssthresh(), Some(after_first));
            assert!(!controller.is_slow_start());
            // Losses and acknowledgements of packets sent up to the reduction change nothing.
            controller.on_marked(at(160), at(149));
            controller.on_marked(at(170), at(150));
            ack(&mut controller, at(180), 50_000, at(150), false, &rtt(100));
            assert_eq!(controller.window(), after_first);
            // Those of later packets do.
            controller.on_marked(at(260), at(151));
            assert_eq!(controller.window(), after_second);
        }
    }

    // test: RFC 9002 §7.6.2, §7.2 — down to two datagrams and into slow start, never lower.
    #[test]
    fn persistent_congestion_reduces_the_window_to_the_minimum() {
        for algorithm in BOTH {
            let mut controller = Controller::new(algorithm, 1000);
            ack(&mut controller, at(100), 90_000, at(0), false, &rtt(100));
            controller.on_marked(at(150), at(60));
            controller.on_persistent_congestion();
            assert_eq!(controller.window(), 2_000);
            assert!(controller.is_slow_start());
            let ssthresh = controller.ssthresh().unwrap();
            // B.8: the recovery period is forgotten, so old packets grow the window again. Slow
            // start stops at the threshold, mid-frame if need be.
            ack(&mut controller, at(151), 2_000, at(149), false, &rtt(100));
            assert_eq!(controller.window(), 4_000);
            ack(
                &mut controller,
                at(152),
                ssthresh,
                at(149),
                false,
                &rtt(100),
            );
            assert!((ssthresh..ssthresh + 1_000).contains(&controller.window()));
            assert!(!controller.is_slow_start());

            for round in 0..20 {
                controller.on_marked(at(200 + round), at(200 + round));
            }
            assert_eq!(controller.window(), 2_000);
            assert_eq!(controller.ssthresh(), Some(2_000));
        }
    }

    // test: RFC 9002 §7.2
    #[test]
    fn a_new_datagram_size_rescales_only_the_initial_and_minimum_windows() {
        for algorithm in BOTH {
            let mut controller = Controller::new(algorithm, 1200);
            controller.set_max_datagram(1400);
            assert_eq!(controller.window(), 14_000);
            ack(&mut controller, at(100), 14_000, at(0), false, &rtt(100));
            controller.set_max_datagram(1200);
            assert_eq!(
                controller.window(),
                28_000,
                "a window that has changed is not rescaled"
            );
            controller.on_persistent_congestion();
            controller.set_max_datagram(9000);
            assert_eq!(
                controller.window(),
                18_000,
                "the minimum window rises with the size"
            );
        }
    }

    // test: RFC 9438 §4.9.2
    #[test]
    fn a_spurious_reduction_is_undone() {
        for algorithm in BOTH {
            let mut controller = Controller::new(algorithm, 1000);
            ack(&mut controller, at(100), 90_000, at(0), false, &rtt(100));
            assert!(controller.on_lost(at(150), 1000, 1, at(60), &rtt(100)));
            assert!(controller.window() < 100_000 && !controller.is_slow_start());
            // Another loss from the same time belongs to it.
            assert!(!controller.on_lost(at(151), 1000, 1, at(61), &rtt(100)));
            assert!(
                !controller.on_spurious_loss(1000, false),
                "a partly genuine episode is not undone"
            );
            assert!(controller.on_spurious_loss(1000, true));
            assert_eq!(
                (controller.window(), controller.ssthresh()),
                (100_000, None)
            );
            assert!(!controller.on_spurious_loss(1000, true), "once");
            // The recovery period is forgotten: packets sent in it grow the window.
            ack(&mut controller, at(180), 50_000, at(140), false, &rtt(100));
            assert_eq!(controller.window(), 150_000);

            controller.on_lost(at(300), 1000, 1, at(200), &rtt(100));
            controller.on_persistent_congestion();
            assert!(!controller.on_spurious_loss(1000, true));
            assert_eq!(controller.window(), 2_000);
        }
    }

    // test: draft-ietf-ccwg-bbr §5.5.11
    #[test]
    fn bbr_restores_its_short_term_bounds_after_spurious_loss() {
        let mut bbr = Bbr::new(1000);
        assert!(bbr.on_lost(at(100), 1000, 1, at(50)));
        assert!(!bbr.on_lost(at(101), 1000, 1, at(50)));
        assert!(!bbr.on_spurious_loss(1000, false));
        assert!(bbr.on_spurious_loss(1000, true));
        assert!(
            bbr.on_lost(at(102), 1000, 1, at(60)),
            "the round counts as one without loss so far"
        );
        bbr.on_marked();
        assert!(
            !bbr.on_spurious_loss(1000, true),
            "a CE mark is genuine congestion"
        );
    }
}
