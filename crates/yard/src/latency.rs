//! How long things took: a histogram of fixed size, and its percentiles.
//!
//! The histogram is HdrHistogram's, with two significant digits: a percentile is within 1 % of the
//! truth. Recording, which happens for every request, is a shift and an addition.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// The longest time that can be told from longer ones, in nanoseconds: 18 minutes.
const LONGEST_NS: u64 = 1 << 40;
/// Significant decimal digits.
const DIGITS: u8 = 2;

/// Times, counted by size.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: hdrhistogram::Histogram<u64>,
    /// Exact to the nanosecond.
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        Self {
            counts: counts.expect("the bounds are constants that the library accepts"),
            max: Duration::ZERO,
        }
    }
}

impl Histogram {
    /// Counts one time. Times above 18 minutes are counted as 18 minutes.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts.saturating_record(ns);
        self.max = self.max.max(time);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        let added = self.counts.add(&other.counts);
        debug_assert!(added.is_ok(), "all histograms have the same bounds");
        self.max = self.max.max(other.max);
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// The usual percentiles, or `None` if nothing was counted.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let max = self.max.as_secs_f64() * 1e6;
        let us = |share| (self.counts.value_at_quantile(share) as f64 / 1e3).min(max);
        (!self.counts.is_empty()).then(|| Percentiles {
            p50: us(0.5),
            p90: us(0.9),
            p99: us(0.99),
            p99_9: us(0.999),
            max,
        })
    }
}

/// A histogram filled by several tasks. Tasks of one thread never contend for its lock.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Histogram>>);

impl Shared {
    /// Counts one time.
    pub fn record(&self, time: Duration) {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histogram.record(time);
    }

    /// The counts so far.
    pub fn read(&self) -> Histogram {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histogram.clone()
    }
}

#[cfg(test)]
impl FromIterator<Duration> for Histogram {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut histogram = Self::default();
        times.into_iter().for_each(|time| histogram.record(time));
        histogram
    }
}

/// Percentiles of times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 90 % took at most this long.
    pub p90: f64,
    /// 99 % took at most this long.
    pub p99: f64,
    /// 99.9 % took at most this long.
    pub p99_9: f64,
    /// The longest time, exact.
    pub max: f64,
}

impl Percentiles {
    /// All of them, the smallest first.
    pub fn all(&self) -> [f64; 5] {
        [self.p50, self.p90, self.p99, self.p99_9, self.max]
    }
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p90, p99, p99_9, max] = self.all();
        write!(
            f,
            "p50 {p50:.0}, p90 {p90:.0}, p99 {p99:.0}, p99.9 {p99_9:.0}, max {max:.0} µs"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_match_the_sorted_times() {
        let times = (1..=1000).map(Duration::from_micros);
        let of = times.collect::<Histogram>().percentiles().expect("times");
        for (found, true_us) in of
            .all()
            .into_iter()
            .zip([500.0, 900.0, 990.0, 999.0, 1000.0])
        {
            assert!((found / true_us - 1.0).abs() < 0.011, "{found} {true_us}");
        }
        assert!((of.max - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn times_beyond_the_bounds_are_counted_and_the_longest_is_exact() {
        let hour = Duration::from_secs(3600);
        let all: Histogram = [Duration::ZERO, hour].into_iter().collect();
        assert_eq!(all.count(), 2);
        let all = all.percentiles().expect("two");
        assert!((all.max - 3600e6).abs() < 1e-3);
        assert!((1000e6..1200e6).contains(&all.p99), "{all}");
    }

    #[test]
    fn sums_count_everything_and_an_empty_histogram_has_no_percentiles() {
        let mut sum = Histogram::default();
        assert_eq!(sum.percentiles(), None);
        sum.add(&[Duration::from_micros(1)].into_iter().collect());
        sum.add(&[Duration::from_micros(3)].into_iter().collect());
        assert_eq!(sum.count(), 2);
        assert!((sum.percentiles().expect("two").max - 3.0).abs() < 1e-9);
    }
}
