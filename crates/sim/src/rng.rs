//! The only source of randomness in a simulation: one seed.

use std::time::Duration;

/// A small seeded generator (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014). The same seed gives the same run on every machine and in every release, so
/// it does not come from a library, which may change.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product is uniform except for a bias of end / 2^64.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        // An f64 holds 53 bits exactly.
        ((self.bits() >> 11) as f64) < p * (1_u64 << 53) as f64
    }

    /// A duration below `end`.
    pub fn duration(&mut self, end: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(end.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_match_the_reference_implementation() {
        // The first outputs of SplitMix64 for seed 1234567, as its authors' code produces them.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn chances_and_ranges_are_respected() {
        let mut rng = Rng::new(7);
        let hits = (0..100_000).filter(|_| rng.chance(0.1)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !rng.chance(0.0)) && (0..1000).all(|_| rng.chance(1.0)));
        assert!((0..1000).all(|_| rng.below(3) < 3) && rng.below(0) == 0);
        let mut bytes = [0; 13];
        rng.fill(&mut bytes);
        assert_ne!(bytes[8..], [0; 5]);
    }
}
