//! Quantiles and their confidence intervals.

/// Number of bootstrap resamples.
const RESAMPLES: usize = 1000;

/// The value below which a share of the values lies; 0 if there are none.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else {
        return 0.0;
    };
    let at = (last as f64 * share).round() as usize;
    *values
        .select_nth_unstable_by(at.min(last), f64::total_cmp)
        .1
}

/// The lower quartile.
///
/// On a shared machine, noise only ever adds time: the lower quartile sees little of it, and unlike
/// the minimum it does not depend on one lucky round.
pub fn lower_quartile(values: &[f64]) -> f64 {
    quantile(&mut values.to_vec(), 0.25)
}

/// Median, lower and upper quartile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lower quartile.
    pub low: f64,
    /// The upper quartile.
    pub high: f64,
}

impl Spread {
    /// The spread of these values.
    pub fn of(mut values: Vec<f64>) -> Self {
        Self {
            median: quantile(&mut values, 0.5),
            low: quantile(&mut values, 0.25),
            high: quantile(&mut values, 0.75),
        }
    }
}

/// How much longer the second of two alternated things takes than the first, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// The estimate.
    pub percent: f64,
    /// 95 % confidence interval, lower end.
    pub low_percent: f64,
    /// 95 % confidence interval, upper end.
    pub high_percent: f64,
}

/// The lower quartile of `with` against that of `without`; entries at the same index are a pair.
///
/// The quartile is taken of each side, not of the differences: the lower quartile of differences
/// would favour pairs in which noise hit `without`, and so underestimate. The interval comes from
/// the percentile bootstrap: whole pairs are drawn, since both of a pair see the machine in the
/// same state.
pub fn overhead(without: &[f64], with: &[f64]) -> Overhead {
    let percent = |without: f64, with: f64| {
        if without > 0.0 {
            (with / without - 1.0) * 100.0
        } else {
            0.0
        }
    };
    let pairs: Vec<(f64, f64)> = without.iter().copied().zip(with.iter().copied()).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut drawn_without, mut drawn_with) = (Vec::new(), Vec::new());
    let mut estimates: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            drawn_without.clear();
            drawn_with.clear();
            for _ in 0..pairs.len() {
                if let Some(&(without, with)) = pairs.get(random.below(pairs.len())) {
                    drawn_without.push(without);
                    drawn_with.push(with);
                }
            }
            percent(
                quantile(&mut drawn_without, 0.25),
                quantile(&mut drawn_with, 0.25),
            )
        })
        .collect();
    Overhead {
        percent: percent(lower_quartile(without), lower_quartile(with)),
        low_percent: quantile(&mut estimates, 0.025),
        high_percent: quantile(&mut estimates, 0.975),
    }
}

/// The middle value, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        let below = values.get(middle.checked_sub(1)?)?;
        Some((below + values.get(middle)?) / 2.0)
    } else {
        values.get(middle).copied()
    }
}

/// A random number generator (xorshift) with a fixed seed: the same samples give the same interval.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((self.draw() >> 32) % limit.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn quantiles() {
        let mut values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.25), 25.0);
        assert_eq!(lower_quartile(&values), 25.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
        let spread = Spread::of(values);
        assert_eq!((spread.low, spread.median, spread.high), (25.0, 50.0, 75.0));
    }

    #[test]
    fn the_confidence_interval_contains_the_overhead_and_narrows_with_more_pairs() {
        // Noise of up to 20 % on either side, a true overhead of 10 %.
        let mut random = Random(1);
        let mut noisy = |value: f64| value * (1.0 + random.below(2_000) as f64 / 10_000.0);
        let mut of = |pairs: usize| {
            let (without, with): (Vec<f64>, Vec<f64>) =
                (0..pairs).map(|_| (noisy(100.0), noisy(110.0))).unzip();
            overhead(&without, &with)
        };
        let (few, many) = (of(50), of(5_000));
        for one in [few, many] {
            assert!(
                one.low_percent <= 10.0 && 10.0 <= one.high_percent,
                "{one:?}"
            );
            assert!(one.low_percent <= one.percent && one.percent <= one.high_percent);
        }
        let width = |one: Overhead| one.high_percent - one.low_percent;
        assert!(width(many) < width(few) / 3.0, "{few:?} {many:?}");
    }

    #[test]
    fn one_pair_or_none_give_finite_numbers() {
        let one = overhead(&[10.0], &[11.0]);
        assert!((one.percent - 10.0).abs() < 1e-9 && one.low_percent == one.high_percent);
        assert_eq!(overhead(&[], &[]).percent, 0.0);
    }
}
