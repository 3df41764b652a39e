//! When requests begin, if they do not simply follow responses.
//!
//! A place makes one request at a time: a stream of a connection. Runtimes' timers tick once a
//! millisecond, so requests begin in groups. If a request is late, the next follows at once, until
//! the place has caught up.

use std::time::{Duration, Instant};

/// When a place's requests begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Begin {
    /// Each when the previous one is answered.
    AfterAnswer,
    /// At equal intervals, but not before the previous one is answered.
    Every(Duration),
    /// At random intervals with this mean, but not before the previous one is answered.
    AtRandom(Duration),
}

impl Begin {
    /// At equal intervals, this many a second over all places.
    pub fn evenly(per_second: f64, places: usize) -> Self {
        Self::Every(Duration::from_secs_f64(places as f64 / per_second))
    }

    /// At random, this many a second over all places.
    pub fn at_random(per_second: f64, places: usize) -> Self {
        Self::AtRandom(Duration::from_secs_f64(places as f64 / per_second))
    }
}

/// The schedule of one place.
#[derive(Clone, Debug)]
pub struct Pace {
    begin: Begin,
    next: Instant,
    random: u64,
}

impl Pace {
    /// For a place, counted from zero; the places' first requests are spread evenly from `start`
    /// on.
    pub fn new(begin: Begin, places: usize, place: usize, start: Instant) -> Self {
        let phase = match begin {
            Begin::AfterAnswer => Duration::ZERO,
            Begin::Every(distance) | Begin::AtRandom(distance) => {
                distance.mul_f64(place as f64 / places.max(1) as f64)
            }
        };
        Self {
            begin,
            next: start + phase,
            // Any number but zero; neighbours must start differently.
            random: (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// The moment of the next request; `None`: at once.
    pub fn next_due(&mut self) -> Option<Instant> {
        let now = self.next;
        match self.begin {
            Begin::AfterAnswer => return None,
            Begin::Every(distance) => self.next += distance,
            // Intervals between independent events (a Poisson process) are exponential.
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

    #[test]
    fn places_share_the_rate_evenly() {
        let start = Instant::now();
        // 200 MB/s in pieces of 256 KiB, a hundredth at each place.
        let begin = Begin::evenly(200e6 / 262_144.0, 100);
        let distance = 262_144.0 / 2e6;
        for place in [0, 50, 99_u8] {
            let mut pace = Pace::new(begin, 100, place.into(), start);
            for index in 0..3_u8 {
                let at = pace.next_due().expect("by the clock") - start;
                let wanted = distance * (f64::from(index) + f64::from(place) / 100.0);
                assert!((at.as_secs_f64() - wanted).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn random_times_have_the_rate_and_spread_of_a_poisson_process() {
        let mut pace = Pace::new(Begin::at_random(1000.0, 100), 100, 7, Instant::now());
        let moments: Vec<Instant> = (0..20_000).filter_map(|_| pace.next_due()).collect();
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
