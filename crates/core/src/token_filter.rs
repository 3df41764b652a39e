//! Which NEW_TOKEN tokens are spent (RFC 9000 §8.1.4).
//!
//! ```text
//! by time of issue  ...│ generation g-1 │ generation g ...  each a bit longer than a token lives
//!                            ▲─── good tokens ───▲          so these span at most two generations
//! ```
//! A token's generation is that of its issue, so each look-up checks one Bloom filter, and a
//! generation is forgotten when its last token has expired.

use std::fmt;
use std::time::Duration;

/// Tokens per day that a filter is sized for.
pub const TOKENS_PER_DAY: u64 = 1_000_000;
/// Filter bits for each of them: with 11 hashes, 1 new token in 2,100 seems spent when all have
/// been.
const BITS_PER_TOKEN: u64 = 16;
const HASHES: u64 = 11;
/// Clocks of hosts that share a key may differ: a token may have been issued this far in the
/// future.
pub(crate) const SKEW: Duration = Duration::from_secs(60);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Remembers spent tokens. The workers of an endpoint share one; otherwise a client could use each
/// of its tokens once at each worker.
pub trait TokenFilter: fmt::Debug + Send {
    /// Marks a token as spent; `false` if it already was, or seems to be. Of several concurrent
    /// calls with one token, at most one returns `true`. `id` is random and unique; `issued` is the
    /// time since the Unix epoch.
    fn spend(&mut self, id: &[u8; 16], issued: Duration) -> bool;
}

/// In-memory filter: two Bloom filters, allocated when needed. For `TOKENS_PER_DAY` spent each day,
/// at most 1 new token in 2,000 seems spent, and each filter takes 2 MB for each day of a token's
/// life, or a day if that is longer. With more tokens that probability rises, but memory does not.
#[derive(Debug)]
pub struct SpentTokens {
    /// Range of issue times that a generation spans, in milliseconds.
    span_ms: u64,
    /// Words of a filter.
    words: usize,
    /// By generation modulo 2.
    generations: [Generation; 2],
}

#[derive(Default)]
struct Generation {
    number: u64,
    /// Empty until a token of this generation is spent.
    bits: Vec<u64>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("number", &self.number)
            .field("words", &self.bits.len())
            .finish()
    }
}

impl SpentTokens {
    /// A filter for tokens that are valid for `lifetime`. If tokens are divided among several
    /// filters by their id, each is one of `parts`.
    #[must_use]
    pub fn new(lifetime: Duration, parts: u32) -> Self {
        let seconds = lifetime.max(DAY).as_secs();
        let tokens = u128::from(seconds) * u128::from(TOKENS_PER_DAY) / u128::from(DAY.as_secs());
        let bits = tokens * u128::from(BITS_PER_TOKEN) / u128::from(parts.max(1));
        // One millisecond more than the range of issue times of valid tokens, so that this range
        // never touches three generations.
        let span = (lifetime.saturating_add(SKEW))
            .as_millis()
            .saturating_add(1);
        Self {
            span_ms: u64::try_from(span).unwrap_or(u64::MAX),
            words: usize::try_from(bits.div_ceil(64))
                .unwrap_or(usize::MAX)
                .max(1),
            generations: Default::default(),
        }
    }

    /// Bytes allocated now.
    #[must_use]
    pub fn allocated(&self) -> usize {
        let words = self.generations.iter().map(|g| g.bits.capacity());
        words.sum::<usize>() * size_of::<u64>()
    }

    /// The most bytes that are ever allocated.
    #[must_use]
    pub const fn most_allocated(&self) -> usize {
        2 * self.words * size_of::<u64>()
    }
}

impl TokenFilter for SpentTokens {
    fn spend(&mut self, id: &[u8; 16], issued: Duration) -> bool {
        let number = u64::try_from(issued.as_millis()).unwrap_or(u64::MAX) / self.span_ms;
        let generation = &mut self.generations[(number % 2) as usize];
        if generation.bits.is_empty() || generation.number < number {
            // The tokens of the previous generation here have expired. Its memory is reused.
            generation.number = number;
            generation.bits.clear();
            generation.bits.resize(self.words, 0);
        } else if generation.number > number {
            // Older than the remembered generations.
            return false;
        }
        // The id is as good as a hash: the endpoint that issued the token drew it at random. Kirsch
        // and Mitzenmacher: two hashes make any number of them.
        let value = u128::from_be_bytes(*id);
        let (first, step) = ((value >> 64) as u64, value as u64 | 1);
        let count = self.words as u64 * 64;
        let mut new = false;
        for n in 0..HASHES {
            let hash = first.wrapping_add(n.wrapping_mul(step));
            let at = ((u128::from(hash) * u128::from(count)) >> 64) as u64;
            let bit = 1 << (at % 64);
            if let Some(word) = generation.bits.get_mut((at / 64) as usize) {
                new |= *word & bit == 0;
                *word |= bit;
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngCore, SeedableRng};

    use super::*;

    const EPOCH: Duration = Duration::from_secs(1_800_000_000);

    fn ids(seed: u8) -> impl Iterator<Item = [u8; 16]> {
        let mut rng = StdRng::from_seed([seed; 32]);
        std::iter::repeat_with(move || {
            let mut id = [0; 16];
            rng.fill_bytes(&mut id);
            id
        })
    }

    // test: RFC 9000 §8.1.4
    #[test]
    fn a_million_tokens_a_day_take_4_mb_at_a_false_positive_rate_of_1_in_1000() {
        let mut filter = SpentTokens::new(DAY, 1);
        assert_eq!(filter.allocated(), 0, "without tokens, no memory is used");
        let million = TOKENS_PER_DAY as usize;
        let mistaken = ids(1)
            .take(million)
            .filter(|id| !filter.spend(id, EPOCH))
            .count();
        assert_eq!(filter.allocated(), 2_000_000);
        // Most were spent in a filter that was less full.
        assert!(mistaken < million / 1000, "{mistaken}");
        for id in ids(1).take(million) {
            assert!(!filter.spend(&id, EPOCH), "none is forgotten");
        }
        // One that is full: each spent token makes it a little fuller.
        let mistaken = ids(2)
            .take(100_000)
            .filter(|id| !filter.spend(id, EPOCH))
            .count();
        println!("of 100,000 new tokens after a million {mistaken} seem spent");
        assert!(mistaken < 100, "{mistaken} of 100,000");
        // The next day starts empty, and the day before is remembered.
        let next = EPOCH + DAY + SKEW + Duration::from_millis(1);
        assert!(ids(1).take(1000).all(|id| filter.spend(&id, next)));
        assert!(ids(1).take(1000).all(|id| !filter.spend(&id, EPOCH)));
        assert_eq!(filter.allocated(), 4_000_000);
        assert_eq!(filter.most_allocated(), 4_000_000);
        for days in 2..10 {
            assert!(filter.spend(&[7; 16], EPOCH + days * (DAY + 2 * SKEW)));
        }
        assert_eq!(filter.allocated(), 4_000_000, "filters are used again");
    }

    #[test]
    fn a_token_is_remembered_for_its_lifetime() {
        let hour = Duration::from_secs(3600);
        for lifetime in [hour, DAY, 14 * DAY] {
            for offset in 0..48 {
                let issued = EPOCH + offset * hour;
                let mut filter = SpentTokens::new(lifetime, 64);
                assert!(filter.spend(&[1; 16], issued));
                // Tokens issued and spent in the meantime, up to the last moment at which the first
                // one is valid.
                for n in 1..=10 {
                    let mut id = [2; 16];
                    id[0] = n as u8;
                    filter.spend(&id, issued + SKEW + lifetime * n / 10);
                }
                assert!(!filter.spend(&[1; 16], issued), "{lifetime:?} {offset}");
            }
        }
    }

    #[test]
    fn a_filters_size_follows_the_token_lifetime_and_its_share() {
        assert_eq!(SpentTokens::new(DAY / 24, 1).most_allocated(), 4_000_000);
        assert_eq!(SpentTokens::new(14 * DAY, 1).most_allocated(), 56_000_000);
        let part = SpentTokens::new(DAY, 64).most_allocated();
        assert!((62_500..62_600).contains(&part), "{part}");
    }
}
