//! A controller supplied by the application, isolated from the connection: it may panic, and its
//! figures may be anything.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{minimum_window, newreno::NewReno};
use crate::algorithm::{
    AckedBundle, CongestionController, CongestionControllerFactory, LostBundle, RttEstimate,
};
use crate::recovery::pacer::initial_window;
use crate::recovery::rtt::RttEstimator;
use crate::time::Time;

/// A larger window or rate is equivalent to none.
const MOST: u64 = 1 << 48;

/// An application's controller, and its last figures.
pub(crate) struct Supplied {
    /// `None` once it has panicked; `fallback` takes over from then on.
    controller: Option<Box<dyn CongestionController>>,
    fallback: NewReno,
    max_datagram: u16,
    window: u64,
    pacing_rate: Option<u64>,
    slow_start: bool,
}

impl Supplied {
    pub(super) fn new(factory: &dyn CongestionControllerFactory, max_datagram: u16) -> Self {
        let made = catch_unwind(AssertUnwindSafe(|| factory.new_controller(max_datagram)));
        let mut supplied = Self {
            controller: made.ok(),
            fallback: NewReno::new(max_datagram),
            max_datagram,
            window: initial_window(max_datagram),
            pacing_rate: None,
            slow_start: true,
        };
        supplied.tell(|_| ());
        supplied
    }

    /// Calls the controller and then asks for its figures. `None` if there is no controller any
    /// more.
    fn tell<T>(&mut self, tell: impl FnOnce(&mut dyn CongestionController) -> T) -> Option<T> {
        let controller = self.controller.as_deref_mut()?;
        let heard = catch_unwind(AssertUnwindSafe(|| {
            let answer = tell(controller);
            let figures = (
                controller.window(),
                controller.pacing_rate(),
                controller.is_slow_start(),
            );
            (answer, figures)
        }));
        if let Ok((answer, (window, rate, slow_start))) = heard {
            self.window = window.clamp(minimum_window(self.max_datagram), MOST);
            self.pacing_rate = rate.map(|rate| rate.clamp(1, MOST));
            self.slow_start = slow_start;
            return Some(answer);
        }
        let broken = self.controller.take();
        // Dropping it may panic as well.
        drop(catch_unwind(AssertUnwindSafe(|| drop(broken))));
        self.pacing_rate = None;
        self.follow_fallback();
        None
    }

    fn follow_fallback(&mut self) {
        self.window = self.fallback.window();
        let ssthresh = self.fallback.ssthresh();
        self.slow_start = ssthresh.is_none_or(|ssthresh| self.window < ssthresh);
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) const fn pacing_rate(&self) -> Option<u64> {
        self.pacing_rate
    }

    pub(super) const fn is_slow_start(&self) -> bool {
        self.slow_start
    }

    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        self.tell(|controller| controller.on_sent(now, bytes, in_flight));
    }

    pub(super) fn on_ack(&mut self, now: Time, acked: &AckedBundle) {
        if (self.tell(|controller| controller.on_acked(now, acked))).is_none() {
            (self.fallback).on_ack(acked.bytes, acked.newest_sent, acked.app_limited);
            self.follow_fallback();
        }
    }

    pub(super) fn on_lost(&mut self, now: Time, lost: &LostBundle) -> bool {
        (self.tell(|controller| controller.on_lost(now, lost))).unwrap_or_else(|| {
            let reduced = self.fallback.on_congestion_event(now, lost.newest_sent);
            self.follow_fallback();
            reduced
        })
    }

    pub(super) fn on_marked(&mut self, now: Time, newest_sent: Time) {
        if (self.tell(|controller| controller.on_marked(now, newest_sent))).is_none() {
            self.fallback.on_congestion_event(now, newest_sent);
            self.follow_fallback();
        }
    }

    pub(super) fn on_spurious_loss(&mut self, bytes: u64, undo: bool) -> bool {
        (self.tell(|controller| controller.on_spurious_loss(bytes, undo))).unwrap_or_else(|| {
            let undone = undo && self.fallback.undo();
            self.follow_fallback();
            undone
        })
    }

    pub(super) fn on_persistent_congestion(&mut self) {
        if (self.tell(|controller| controller.on_persistent_congestion())).is_none() {
            self.fallback.on_persistent_congestion();
            self.follow_fallback();
        }
    }

    pub(super) fn set_max_datagram(&mut self, max_datagram: u16) {
        self.max_datagram = max_datagram;
        // Kept up to date in case it takes over.
        self.fallback.set_max_datagram(max_datagram);
        if (self.tell(|controller| controller.on_max_datagram(max_datagram))).is_none() {
            self.follow_fallback();
        }
    }
}

impl fmt::Debug for Supplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supplied")
            .field("window", &self.window)
            .field("pacing_rate", &self.pacing_rate)
            .finish_non_exhaustive()
    }
}

/// The round-trip times as shown to a controller.
pub(super) fn estimate(rtt: &RttEstimator) -> RttEstimate {
    RttEstimate {
        latest: rtt.latest(),
        smoothed: rtt.smoothed(),
        variance: rtt.var(),
        min: rtt.min(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// Panics in the method of this name.
    #[derive(Debug, Default)]
    struct Script {
        panic_in: &'static str,
        window: u64,
        rate: Option<u64>,
    }

    #[derive(Debug)]
    struct Scripts(Mutex<Script>);

    impl CongestionControllerFactory for Scripts {
        fn new_controller(&self, _: u16) -> Box<dyn CongestionController> {
            let script = std::mem::take(&mut *self.0.lock().unwrap());
            script.enter("new");
            Box::new(script)
        }
    }

    impl Script {
        fn enter(&self, method: &str) {
            assert_ne!(self.panic_in, method, "requested by the test");
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            // The second panic of a controller, after the one that disabled it.
            if !self.panic_in.is_empty() && !std::thread::panicking() {
                panic!("requested by the test");
            }
        }
    }

    impl CongestionController for Script {
        fn window(&self) -> u64 {
            self.enter("window");
            self.window
        }

        fn pacing_rate(&self) -> Option<u64> {
            self.rate
        }

        fn on_acked(&mut self, _: Time, acked: &AckedBundle) {
            self.enter("on_acked");
            self.window += acked.bytes;
        }

        fn on_lost(&mut self, _: Time, _: &LostBundle) -> bool {
            self.enter("on_lost");
            true
        }

        fn on_max_datagram(&mut self, _: u16) {
            self.enter("on_max_datagram");
        }
    }

    fn supplied(script: Script) -> Supplied {
        Supplied::new(&Scripts(Mutex::new(script)), 1000)
    }

    fn acked(bytes: u64) -> AckedBundle {
        AckedBundle {
            bytes,
            newest_sent: Time::from_nanos(5),
            in_flight: 0,
            app_limited: false,
            rtt: estimate(&RttEstimator::new(Duration::from_millis(100))),
        }
    }

    fn lost() -> LostBundle {
        LostBundle {
            bytes: 1000,
            ranges: 1,
            newest_sent: Time::from_nanos(7),
            rtt: estimate(&RttEstimator::new(Duration::from_millis(100))),
        }
    }

    #[test]
    fn reported_figures_are_clamped() {
        for (window, rate, bounded) in [
            (0, Some(0), (2_000, Some(1))),
            (u64::MAX, Some(u64::MAX), (MOST, Some(MOST))),
            (5_000, None, (5_000, None)),
        ] {
            let supplied = supplied(Script {
                window,
                rate,
                ..Script::default()
            });
            assert_eq!((supplied.window(), supplied.pacing_rate()), bounded);
        }
    }

    #[test]
    fn a_controller_that_panics_is_replaced() {
        let now = Time::from_nanos(10);
        for panic_in in ["new", "window", "on_acked", "on_lost", "on_max_datagram"] {
            let mut supplied = supplied(Script {
                panic_in,
                window: 5_000,
                rate: Some(7),
            });
            let had_begun = !["new", "window"].contains(&panic_in);
            assert_eq!(supplied.window(), if had_begun { 5_000 } else { 10_000 });
            supplied.set_max_datagram(1_000);
            supplied.on_ack(now, &acked(500));
            assert!(supplied.on_lost(now, &lost()));
            // NewReno, which has halved the window since.
            assert_eq!(supplied.pacing_rate(), None, "{panic_in}");
            let before = supplied.window();
            assert!((5_000..6_000).contains(&before), "{panic_in}: {before}");
            supplied.on_persistent_congestion();
            assert_eq!(supplied.window(), 2_000);
        }
    }
}
