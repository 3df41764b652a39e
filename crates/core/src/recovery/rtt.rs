//! The round-trip time of a path (RFC 9002 §5).

use std::time::Duration;

/// kGranularity, the assumed resolution of timers (RFC 9002 §6.1.2).
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// An estimate of the round-trip time, from samples.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    latest: Duration,
    smoothed: Duration,
    var: Duration,
    min: Duration,
    has_sample: bool,
}

impl RttEstimator {
    /// An estimator without samples; `initial` stands in for them.
    pub(crate) fn new(initial: Duration) -> Self {
        // RFC 9002 §5.3: smoothed_rtt = kInitialRtt, rttvar = kInitialRtt / 2.
        Self {
            latest: initial,
            smoothed: initial,
            var: initial / 2,
            min: initial,
            has_sample: false,
        }
    }

    /// Adds one sample: the time from sending the largest newly acknowledged packet to its
    /// acknowledgement. `ack_delay` is the delay reported by the peer, capped by the caller at the
    /// peer's max_ack_delay once the handshake is confirmed (RFC 9002 §5.3).
    pub(crate) fn update(&mut self, sample: Duration, ack_delay: Duration) {
        self.latest = sample;
        if !self.has_sample {
            self.has_sample = true;
            self.min = sample;
            self.smoothed = sample;
            self.var = sample / 2;
            return;
        }
        // RFC 9002 §5.2: min_rtt ignores the delay that the peer reports.
        self.min = self.min.min(sample);
        // RFC 9002 §5.3: never subtract so much that the result is below min_rtt.
        let adjusted = if sample >= self.min + ack_delay {
            sample - ack_delay
        } else {
            sample
        };
        // RFC 9002 §5.3 takes the deviation from the new smoothed_rtt, unlike RFC 6298.
        self.smoothed = (self.smoothed * 7 + adjusted) / 8;
        let deviation = self.smoothed.abs_diff(adjusted);
        self.var = (self.var * 3 + deviation) / 4;
    }

    /// The newest sample.
    pub(crate) fn latest(&self) -> Duration {
        self.latest
    }

    /// smoothed_rtt; the initial RTT before the first sample.
    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// rttvar.
    pub(crate) fn var(&self) -> Duration {
        self.var
    }

    /// min_rtt.
    pub(crate) fn min(&self) -> Duration {
        self.min
    }

    /// The probe timeout without backoff and without max_ack_delay, which only the application
    /// space adds (RFC 9002 §6.2.1).
    pub(crate) fn pto_base(&self) -> Duration {
        self.smoothed + (self.var * 4).max(GRANULARITY)
    }

    /// Whether there has been a sample.
    pub(crate) fn has_sample(&self) -> bool {
        self.has_sample
    }

    /// Forgets the minimum: after persistent congestion the path may be a different one, so min_rtt
    /// starts again at the newest sample (RFC 9002 §5.2).
    pub(crate) fn reset_min(&mut self) {
        self.min = self.latest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    // test: RFC 9002 §5.3, §6.2.2
    #[test]
    fn the_first_sample_replaces_the_initial_rtt() {
        let mut rtt = RttEstimator::new(ms(333));
        assert!(!rtt.has_sample());
        assert_eq!(rtt.pto_base(), ms(333) + ms(333) * 2);
        rtt.update(ms(40), ms(25));
        assert!(rtt.has_sample());
        // The first sample is used in full, whatever delay is reported.
        assert_eq!((rtt.smoothed(), rtt.var()), (ms(40), ms(20)));
        assert_eq!((rtt.latest(), rtt.min()), (ms(40), ms(40)));
        assert_eq!(rtt.pto_base(), ms(40) + ms(80));
    }

    // test: RFC 9002 §5.3 — samples, delays and the estimates worked out by hand.
    #[test]
    fn samples_follow_the_formulas_of_the_rfc() {
        let mut rtt = RttEstimator::new(ms(333));
        rtt.update(ms(80), ms(0));
        for (sample, ack_delay, smoothed_us, var_us) in [
            (96, 16, 80_000, 30_000), // adjusted 80: 80, (3*40+0)/4
            (88, 16, 81_000, 24_250), // 72 would be below the minimum: 88; (3*30+7)/4
            (160, 0, 90_875, 35_468), // 90.875; (3*24.25+69.125)/4
        ] {
            rtt.update(ms(sample), ms(ack_delay));
            assert_eq!(rtt.smoothed().as_micros(), smoothed_us);
            assert_eq!(rtt.var().as_micros(), var_us);
            assert_eq!(rtt.latest(), ms(sample));
            assert_eq!(rtt.min(), ms(80));
        }
    }

    // test: RFC 9002 §6.2.1 — the variation counts as at least the timers' granularity.
    #[test]
    fn the_probe_timeout_has_a_floor() {
        let mut rtt = RttEstimator::new(ms(333));
        for _ in 0..100 {
            rtt.update(Duration::from_micros(50), ms(0));
        }
        assert!(rtt.var() < Duration::from_micros(1));
        assert_eq!(rtt.pto_base(), Duration::from_micros(1050));
    }

    #[test]
    fn the_minimum_can_be_forgotten() {
        let mut rtt = RttEstimator::new(ms(333));
        rtt.update(ms(10), ms(0));
        rtt.update(ms(90), ms(0));
        assert_eq!(rtt.min(), ms(10));
        rtt.reset_min();
        assert_eq!(rtt.min(), ms(90));
    }
}
