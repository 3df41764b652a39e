//! The moments at which a place's requests begin, where they do not follow upon answers.
//!
//! The runtimes' timers tick once a millisecond, so that requests begin in groups. Those of an
//! answer that is late follow at once, until the place has caught up.

use std::time::{Duration, Instant};

use super::case::{Begin, Shape};

/// Of one place.
pub(super) struct Pace {
    begin: Begin,
    next: Instant,
    random: u64,
}

impl Pace {
    /// For a place; all places' first moments are spread evenly from `start` on.
    pub(super) fn new(shape: &Shape, place: usize, start: Instant) -> Self {
        let places = (shape.connections * shape.streams).max(1);
        let phase = match shape.begin {
            Begin::AfterAnswer => Duration::ZERO,
            Begin::Every(distance) | Begin::AtRandom(distance) => {
                distance.mul_f64(place as f64 / places as f64)
            }
        };
        Self {
            begin: shape.begin,
            next: start + phase,
            // Any number but zero; neighbours must not begin alike.
            random: (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// The moment of the next request; `None`: at once.
    pub(super) fn next(&mut self) -> Option<Instant> {
        let now = self.next;
        match self.begin {
            Begin::AfterAnswer => return None,
            Begin::Every(distance) => self.next += distance,
            // Distances of independent moments (a Poisson process) are exponential.
            Begin::AtRandom(mean) => {
                let times = -self.uniform().ln();
                self.next += mean.mul_f64(times);
            }
        }
        Some(now)
    }

    /// Above 0, at most 1; xorshift64.
    fn uniform(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::case::{Case, Mode, Workload};

    fn shape(rate: Option<f64>) -> Shape {
        let workload = match rate {
            Some(_) => Workload::W6,
            None => Workload::W5,
        };
        let case = Case {
            mode: Mode::Open,
            ..Case::of(workload, &[100])[0]
        };
        case.shape(false, rate)
    }

    #[test]
    fn viewers_share_the_rate_evenly() {
        let start = Instant::now();
        let shape = shape(None);
        // 256 KiB at 2 MB/s.
        let distance = 262_144.0 / 2e6;
        for place in [0, 50, 99] {
            let mut pace = Pace::new(&shape, place, start);
            for index in 0..3 {
                let at = pace.next().expect("by the clock") - start;
                let wanted = distance * (index as f64 + place as f64 / 100.0);
                assert!((at.as_secs_f64() - wanted).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn random_moments_have_the_rate_and_the_spread_of_independent_ones() {
        let start = Instant::now();
        let shape = shape(Some(1000.0));
        let mut pace = Pace::new(&shape, 7, start);
        let moments: Vec<Instant> = (0..20_000).filter_map(|_| pace.next()).collect();
        let distances: Vec<f64> = (moments.windows(2))
            .map(|pair| (pair[1] - pair[0]).as_secs_f64())
            .collect();
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        // 10 requests a second at each of 100 places.
        assert!((mean - 0.1).abs() < 0.003, "{mean}");
        let above = distances.iter().filter(|one| **one > mean).count() as f64;
        let share = above / distances.len() as f64;
        assert!((share - (-1_f64).exp()).abs() < 0.02, "{share}");
    }
}
