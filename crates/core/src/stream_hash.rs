//! Hashes stream ids, and connection ids (`endpoint::routes`), with a multiplication; the standard
//! library's SipHash takes some hundred instructions.
//!
//! Every call of an application looks up a stream, so with many streams the hash is a good part of
//! the cost of a call. The peer chooses ids only within the limit that we set, but over time it can
//! keep any of them open. The hash is therefore keyed, with random keys that nothing outside the
//! process sees: ids that share a bucket cannot be computed in advance.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes the hashers of one map.
#[derive(Clone, Debug)]
pub(crate) struct StreamHash {
    mask: u64,
    factor: u64,
}

impl Default for StreamHash {
    fn default() -> Self {
        // The standard library's keys are random, and differ for each `RandomState`.
        let keys = RandomState::new();
        Self {
            mask: keys.hash_one(0_u8),
            // A factor of 0 would give every id the same hash.
            factor: keys.hash_one(1_u8) | 1,
        }
    }
}

impl BuildHasher for StreamHash {
    type Hasher = StreamHasher;

    #[inline]
    fn build_hasher(&self) -> StreamHasher {
        StreamHasher {
            state: self.mask,
            factor: self.factor,
        }
    }
}

/// Hashes one stream id.
#[derive(Debug)]
pub(crate) struct StreamHasher {
    state: u64,
    factor: u64,
}

impl Hasher for StreamHasher {
    #[inline]
    fn write_u64(&mut self, id: u64) {
        let product = u128::from(self.state ^ id) * u128::from(self.factor);
        self.state = (product >> 64) as u64 ^ product as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use squall_wire::StreamId;

    use super::*;

    /// Ids that a peer can keep open, one in `stride` of those that it opens, spread over the
    /// places of a table and over the seven bits that it compares before the keys.
    #[test]
    fn equally_spaced_ids_do_not_collide() {
        const IDS: usize = 4096;
        let hash = StreamHash {
            mask: 0x9d5c_2f3a_71e8_b046,
            factor: 0x6a09_e667_f3bc_c909,
        };
        for stride in [
            1,
            4,
            8,
            64,
            1000,
            1 << 12,
            1 << 16,
            1 << 24,
            1 << 40,
            1 << 49,
        ] {
            for shift in [0, 64 - 12] {
                let mut places = vec![0; IDS];
                for i in 0..IDS as u64 {
                    let hash = hash.hash_one(StreamId(i * stride)) >> shift;
                    places[hash as usize % IDS] += 1;
                }
                let fullest = places.iter().max();
                assert!(
                    fullest <= Some(&12),
                    "{fullest:?} ids at distance {stride} share a place"
                );
            }
        }
    }

    #[test]
    fn each_map_has_its_own_hash_key() {
        let [a, b] = [(); 2].map(|()| StreamHash::default().hash_one(StreamId(4)));
        assert_ne!(a, b);
    }
}
