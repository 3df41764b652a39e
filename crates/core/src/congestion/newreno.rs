//! NewReno, as specified in RFC 9002 §7.3 and its appendix B.

use super::{RecoveryPeriod, minimum_window};
use crate::recovery::pacer::initial_window;
use crate::time::Time;

/// NewReno. All sizes in bytes.
#[derive(Clone, Debug)]
pub(crate) struct NewReno {
    max_datagram: u16,
    window: u64,
    ssthresh: Option<u64>,
    recovery: RecoveryPeriod,
    /// Acknowledged in congestion avoidance since the window last grew.
    acked: u64,
    /// What the last reduction changed: the window, ssthresh and the recovery period before it.
    before: Option<(u64, Option<u64>, RecoveryPeriod)>,
}

impl NewReno {
    pub(crate) fn new(max_datagram: u16) -> Self {
        Self {
            max_datagram,
            window: initial_window(max_datagram),
            ssthresh: None,
            recovery: RecoveryPeriod::default(),
            acked: 0,
            before: None,
        }
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn ssthresh(&self) -> Option<u64> {
        self.ssthresh
    }

    pub(crate) fn on_ack(&mut self, acked_bytes: u64, newest_sent: Time, app_limited: bool) {
        // RFC 9002 §7.8, §7.3.2
        if app_limited || self.recovery.covers(newest_sent) {
            return;
        }
        // RFC 9002 §7.3.1: slow start adds the acknowledged bytes, up to the threshold.
        let room = self
            .ssthresh
            .map_or(u64::MAX, |ssthresh| ssthresh.saturating_sub(self.window));
        let slow_start = acked_bytes.min(room);
        self.window += slow_start;
        // RFC 9002 §7.3.3: at most one datagram for each window acknowledged.
        self.acked += acked_bytes - slow_start;
        if self.acked >= self.window {
            self.acked -= self.window;
            self.window += u64::from(self.max_datagram);
        }
    }

    /// Returns whether the window is reduced.
    pub(crate) fn on_congestion_event(&mut self, now: Time, newest_lost_sent: Time) -> bool {
        if self.recovery.covers(newest_lost_sent) {
            return false;
        }
        self.before = Some((self.window, self.ssthresh, self.recovery));
        self.recovery.start = Some(now);
        // RFC 9002 §7.3.2: half the window; kLossReductionFactor = 0.5.
        self.window = (self.window / 2).max(minimum_window(self.max_datagram));
        self.ssthresh = Some(self.window);
        self.acked = 0;
        true
    }

    /// Undoes the last reduction, which was a mistake, as RFC 9438 §4.9.2 does for CUBIC; `false`
    /// if there is none to undo.
    pub(crate) fn undo(&mut self) -> bool {
        let Some((window, ssthresh, recovery)) = self.before.take() else {
            return false;
        };
        self.window = self.window.max(window);
        (self.ssthresh, self.recovery) = (ssthresh, recovery);
        true
    }

    pub(crate) fn on_persistent_congestion(&mut self) {
        self.before = None;
        // RFC 9002 §7.6.2, B.8
        self.window = minimum_window(self.max_datagram);
        self.recovery = RecoveryPeriod::default();
        self.acked = 0;
    }

    pub(crate) fn set_max_datagram(&mut self, max_datagram: u16) {
        if self.ssthresh.is_none() && self.window == initial_window(self.max_datagram) {
            self.window = initial_window(max_datagram);
        }
        self.max_datagram = max_datagram;
        self.window = self.window.max(minimum_window(max_datagram));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 9002 §7.3.3 — congestion avoidance adds one datagram a window.
    #[test]
    fn congestion_avoidance_adds_one_datagram_per_window() {
        let mut newreno = NewReno::new(1000);
        newreno.on_congestion_event(Time::from_nanos(10), Time::from_nanos(5));
        assert_eq!(newreno.window(), 5_000);
        for window in [6_000, 7_000, 8_000] {
            let acked = newreno.window() / 4;
            for _ in 0..3 {
                newreno.on_ack(acked, Time::from_nanos(20), false);
                assert_eq!(newreno.window(), window - 1_000);
            }
            newreno.on_ack(acked, Time::from_nanos(20), false);
            assert_eq!(newreno.window(), window);
        }
    }
}
