//! How long things took: a histogram of fixed size, and percentiles out of it.
//!
//! Logarithmic with 64 steps an octave, so a percentile is within 1.6 % of the truth, and recording
//! is a shift and an addition: it happens for every request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// Steps of an octave, as a power of two.
const STEP_BITS: u32 = 6;
const STEPS: usize = 1 << STEP_BITS;
/// Octaves above the first `STEPS` nanoseconds: up to 2^40 ns, 18 minutes.
const OCTAVES: usize = 34;
const BUCKETS: usize = STEPS * (OCTAVES + 1);

/// Times, counted by size.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            max: Duration::ZERO,
        }
    }
}

/// The bucket of a time.
fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() - STEP_BITS;
    let step = (ns >> octave) as usize - STEPS;
    (STEPS * (octave as usize + 1) + step).min(BUCKETS - 1)
}

/// The middle of a bucket in nanoseconds.
fn middle(bucket: usize) -> f64 {
    let (octave, step) = (bucket / STEPS, bucket % STEPS);
    match octave.checked_sub(1) {
        None => step as f64,
        Some(octave) => ((STEPS + step) as f64 + 0.5) * (1_u64 << octave) as f64,
    }
}

impl Histogram {
    /// Counts one.
    pub(crate) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max = self.max.max(time);
    }

    /// Adds another one's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// How many were counted.
    pub(crate) fn count(&self) -> u64 {
        self.total
    }

    /// The time that `part` of all do not exceed, in microseconds.
    fn percentile_us(&self, part: f64) -> f64 {
        let rank = ((self.total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let max = self.max.as_secs_f64() * 1e6;
                return (middle(at) / 1e3).min(max);
            }
        }
        self.max.as_secs_f64() * 1e6
    }

    /// The usual percentiles; `None` where nothing was counted.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        (self.total > 0).then(|| Percentiles {
            p50: self.percentile_us(0.5),
            p90: self.percentile_us(0.9),
            p99: self.percentile_us(0.99),
            p99_9: self.percentile_us(0.999),
            max: self.max.as_secs_f64() * 1e6,
        })
    }
}

/// A histogram that several tasks fill. Those of one thread find its lock free.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Histogram>>);

impl Shared {
    /// Counts one.
    pub(crate) fn record(&self, time: Duration) {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histogram.record(time);
    }

    /// What was counted so far.
    pub(crate) fn read(&self) -> Histogram {
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

/// Percentiles of a time, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

impl Percentiles {
    /// All of them, the smallest first.
    pub(crate) fn all(&self) -> [f64; 5] {
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
    fn buckets_follow_one_another_and_their_middles_are_near() {
        let mut last = 0;
        for ns in (0..100_000).chain((100_000..1_000_000_000).step_by(99_991)) {
            let at = bucket(ns);
            assert!(at == last || at == last + 1 || ns > 100_000, "{ns}");
            assert!(at >= last, "{ns}");
            last = at;
            let error = (middle(at) - ns as f64).abs();
            assert!(error <= 0.5 + ns as f64 / 64.0, "{ns}: {}", middle(at));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let times = (1..=1000).map(Duration::from_micros);
        let of = times.collect::<Histogram>().percentiles().expect("times");
        for (found, true_us) in of
            .all()
            .into_iter()
            .zip([500.0, 900.0, 990.0, 999.0, 1000.0])
        {
            assert!((found / true_us - 1.0).abs() < 0.017, "{found} {true_us}");
        }
        assert!((of.max - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn sums_count_all_and_nothing_has_no_percentiles() {
        let mut sum = Histogram::default();
        assert_eq!(sum.percentiles(), None);
        sum.add(&[Duration::from_micros(1)].into_iter().collect());
        sum.add(&[Duration::from_micros(3)].into_iter().collect());
        assert_eq!(sum.count(), 2);
        assert!((sum.percentiles().expect("two").max - 3.0).abs() < 1e-9);
    }
}
