//! What is sent, and what the receiver does with it: one fixed buffer, handed over repeatedly, when
//! time is measured; a seeded pattern with a digest at both ends when bytes are compared.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// The fixed buffer. Not zeroes: zero pages that are only read would all be one physical page.
static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut block = vec![0; BLOCK_LEN];
    fill(&mut block, 1, 0);
    block
});
const BLOCK_LEN: usize = 1 << 20;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// Where a sender's bytes come from.
pub struct Source {
    origin: Origin,
    pace: Option<Pace>,
}

/// An application that produces its data at a given rate.
struct Pace {
    bits_per_second: u64,
    /// When the first piece was asked for.
    begun: Option<Instant>,
    /// Bytes handed over since then.
    given: u64,
}

/// How much a paced source hands over at a time: what accumulates in this time ...
const PACED_TIME: Duration = Duration::from_millis(1);
/// ... but not less than this many bytes.
const PACED_LEAST: usize = 16 * 1024;

impl Pace {
    /// How long it takes to produce this many bytes.
    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Maximum bytes of a piece.
    fn piece(&self) -> usize {
        let bytes = u128::from(self.bits_per_second) * PACED_TIME.as_nanos() / 8_000_000_000;
        usize::try_from(bytes).map_or(usize::MAX, |bytes| bytes.max(PACED_LEAST) / 8 * 8)
    }
}

enum Origin {
    /// Slices of [`BLOCK`], from `at` on.
    Fixed { at: usize },
    /// The pattern of `seed` from `offset` (a multiple of 8) on, with the digest of what was handed
    /// over.
    Pattern {
        seed: u64,
        offset: u64,
        digest: Sha256,
    },
}

impl Source {
    /// The fixed buffer, or the pattern of a seed.
    pub fn new(seed: Option<u64>) -> Self {
        let origin = match seed {
            None => Origin::Fixed { at: 0 },
            Some(seed) => Origin::Pattern {
                seed,
                offset: 0,
                digest: Sha256::new(),
            },
        };
        Self { origin, pace: None }
    }

    /// Limits it to a rate in bits per second; `None`: as fast as it is consumed.
    #[must_use]
    pub fn paced(mut self, bits_per_second: Option<u64>) -> Self {
        self.pace = bits_per_second.map(|bits_per_second| Pace {
            bits_per_second,
            begun: None,
            given: 0,
        });
        self
    }

    /// When the next piece is available; `None`: now. A sender that was late gets what has
    /// accumulated meanwhile without further waiting.
    pub fn due(&mut self) -> Option<Instant> {
        let pace = self.pace.as_mut()?;
        let now = Instant::now();
        let due = *pace.begun.get_or_insert(now) + pace.time_of(pace.given);
        (due > now).then_some(due)
    }

    /// The next bytes of the stream: `len` of them, or fewer at the end of the fixed buffer (never
    /// zero). Only the last piece of a pattern may have a length that is not a multiple of 8.
    pub fn next(&mut self, len: usize) -> Bytes {
        let len = match &self.pace {
            Some(pace) => len.min(pace.piece()),
            None => len,
        };
        let piece = self.origin.next(len);
        if let Some(pace) = &mut self.pace {
            pace.given += piece.len() as u64;
        }
        piece
    }

    /// The digest of everything handed over so far, if there is one.
    pub fn digest(self) -> Option<Digest> {
        match self.origin {
            Origin::Fixed { .. } => None,
            Origin::Pattern { digest, .. } => Some(digest.finalize().into()),
        }
    }
}

impl Origin {
    fn next(&mut self, len: usize) -> Bytes {
        match self {
            Self::Fixed { at } => {
                let end = (*at + len).min(BLOCK_LEN);
                let piece = Bytes::from_static(&BLOCK[*at..end]);
                *at = end % BLOCK_LEN;
                piece
            }
            Self::Pattern {
                seed,
                offset,
                digest,
            } => {
                let mut piece = vec![0; len];
                fill(&mut piece, *seed, *offset / 8);
                *offset += len as u64;
                digest.update(&piece);
                piece.into()
            }
        }
    }
}

/// What a receiver does with its bytes.
pub struct Sink {
    digest: Option<Sha256>,
}

impl Sink {
    /// A sink that discards bytes, or one that digests them.
    pub fn new(digest: bool) -> Self {
        Self {
            digest: digest.then(Sha256::new),
        }
    }

    /// Takes the next bytes of the stream.
    pub fn take(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
    }

    /// The digest of everything taken.
    pub fn digest(self) -> Option<Digest> {
        self.digest.map(|digest| digest.finalize().into())
    }
}

/// One digest for all streams of an end. The two ends number their streams differently, so the
/// digests are sorted.
pub fn combine(mut digests: Vec<Digest>) -> String {
    if let [one] = digests.as_slice() {
        return hex(one);
    }
    digests.sort_unstable();
    let mut all = Sha256::new();
    for digest in &digests {
        all.update(digest);
    }
    hex(&all.finalize())
}

/// Bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The SHA-256 of some bytes, in the form that tools print certificate fingerprints in.
pub fn fingerprint(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let pairs: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

/// The pattern: word `i` is splitmix64's i-th answer to `seed`, so no part of it repeats and any
/// two places differ.
fn fill(bytes: &mut [u8], seed: u64, first_word: u64) {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |index: u64| {
        let mut z = seed.wrapping_add((first_word + index + 1).wrapping_mul(GOLDEN));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut index = 0;
    let mut words = bytes.chunks_exact_mut(8);
    for place in &mut words {
        place.copy_from_slice(&word(index));
        index += 1;
    }
    let rest = words.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&word(index)[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_does_not_depend_on_how_it_is_split() {
        let mut whole = Source::new(Some(7));
        let mut cut = Source::new(Some(7));
        let whole = whole.next(1_003);
        let mut parts = Vec::new();
        for len in [8, 16, 976, 3] {
            parts.extend_from_slice(&cut.next(len));
        }
        assert_eq!(whole, parts);
    }

    #[test]
    fn different_seeds_and_offsets_give_different_bytes() {
        let first = Source::new(Some(1)).next(64);
        let second = Source::new(Some(2)).next(64);
        assert_ne!(first, second);
        assert_ne!(first[..32], first[32..]);
    }

    #[test]
    fn both_ends_compute_the_same_digest_and_detect_a_flipped_bit() {
        let mut source = Source::new(Some(3));
        let mut sink = Sink::new(true);
        let mut broken = Sink::new(true);
        let piece = source.next(100);
        sink.take(&piece[..50]);
        sink.take(&piece[50..]);
        let mut flipped = piece.to_vec();
        flipped[99] ^= 1;
        broken.take(&flipped);
        let sent = source.digest().expect("a pattern");
        assert_eq!(sink.digest(), Some(sent));
        assert_ne!(broken.digest(), Some(sent));
    }

    #[test]
    fn the_order_of_streams_does_not_matter() {
        assert_eq!(
            combine(vec![[1; 32], [2; 32]]),
            combine(vec![[2; 32], [1; 32]])
        );
        assert_ne!(
            combine(vec![[1; 32], [2; 32]]),
            combine(vec![[1; 32], [1; 32]])
        );
    }

    #[test]
    fn the_fixed_buffer_wraps_without_a_gap() {
        let mut source = Source::new(None);
        let mut total = 0;
        while total < 3 * BLOCK_LEN {
            let piece = source.next(300_000);
            assert!(!piece.is_empty());
            total += piece.len();
        }
        assert_eq!(source.digest(), None);
    }

    #[test]
    fn a_paced_source_keeps_its_rate() {
        // 80 kB a millisecond.
        let mut source = Source::new(None).paced(Some(640_000_000));
        assert_eq!(source.due(), None);
        let begun = Instant::now();
        let mut given = 0;
        for _ in 0..5 {
            given += source.next(1 << 18).len();
        }
        assert_eq!(given, 5 * 80_000);
        let due = source
            .due()
            .expect("five milliseconds from the first piece");
        let wait = due - begun;
        assert!(wait <= Duration::from_millis(5), "{wait:?}");
        std::thread::sleep(Duration::from_millis(6));
        assert_eq!(source.due(), None);
        // Pieces of a slow source are still large enough to be worth a call.
        let mut slow = Source::new(None).paced(Some(1_000_000));
        assert_eq!(slow.next(1 << 18).len(), PACED_LEAST);
        assert_eq!(slow.next(100).len(), 100);
        assert!(Source::new(None).due().is_none());
    }

    #[test]
    fn the_digest_of_no_data_is_that_of_the_standard() {
        // FIPS 180-4: the digest of the empty message.
        assert_eq!(
            combine(vec![Sink::new(true).digest().expect("digests")]),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert!(fingerprint(b"").starts_with("E3:B0:C4:42"));
    }
}
