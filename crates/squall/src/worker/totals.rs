//! What an endpoint's workers count together: spent tokens, connections by source prefix, and
//! memory.
//!
//! Tokens and prefixes are in shards, each with a lock that is taken at most once an attempt, never
//! for a packet of a connection. Memory is one number, to which each worker adds once a turn what
//! its connections gained or lost.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use squall_core::{Prefix, PrefixConnections, PrefixCounts, PrefixTable, SpentTokens, TokenFilter};

use super::lock::lock;

/// Shards of the token filter. Each allocates its part when first needed, 31 kB for tokens of one
/// day.
const TOKEN_SHARDS: usize = 64;

/// Shards of the counts by prefix.
const PREFIX_SHARDS: usize = 16;

/// Spent NEW_TOKEN tokens of all workers.
#[derive(Clone)]
pub(crate) struct SharedTokenFilter(Arc<[Mutex<SpentTokens>; TOKEN_SHARDS]>);

impl SharedTokenFilter {
    pub(crate) fn new(lifetime: Duration) -> Self {
        let shard = |_| Mutex::new(SpentTokens::new(lifetime, TOKEN_SHARDS as u32));
        Self(Arc::new(std::array::from_fn(shard)))
    }

    #[cfg(test)]
    fn allocated(&self) -> usize {
        self.0.iter().map(|shard| lock(shard).allocated()).sum()
    }
}

impl TokenFilter for SharedTokenFilter {
    fn spend(&mut self, id: &[u8; 16], issued: Duration) -> bool {
        // Ids are random. The filter takes its bits from the upper ones of each half.
        let shard = usize::from(id[15]) % TOKEN_SHARDS;
        lock(&self.0[shard]).spend(id, issued)
    }
}

impl fmt::Debug for SharedTokenFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTokenFilter").finish_non_exhaustive()
    }
}

/// Connections by source prefix, of all workers: a client's connections are spread over them, so an
/// equal share of the limit would be too much for some clients and too little for others.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedPrefixCounts(Arc<[Mutex<PrefixTable>; PREFIX_SHARDS]>);

impl SharedPrefixCounts {
    fn shard(&self, prefix: Prefix) -> MutexGuard<'_, PrefixTable> {
        let folded = prefix.octets().iter().fold(0, |folded, byte| folded ^ byte);
        lock(&self.0[usize::from(folded) % PREFIX_SHARDS])
    }
}

impl PrefixCounts for SharedPrefixCounts {
    fn get(&self, prefix: Prefix) -> PrefixConnections {
        self.shard(prefix).get(prefix)
    }

    fn add(&mut self, prefix: Prefix, validated: bool, limit: usize) -> bool {
        self.shard(prefix).add(prefix, validated, limit)
    }

    fn remove(&mut self, prefix: Prefix, validated: bool) {
        self.shard(prefix).remove(prefix, validated);
    }
}

/// Roughly the bytes that all connections of all workers take.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory(AtomicI64);

impl SharedMemory {
    /// Adds what a worker's connections gained, or lost; returns the sum.
    pub(super) fn add(&self, bytes: i64) -> usize {
        let sum = match bytes {
            0 => self.0.load(Ordering::Relaxed),
            _ => self.0.fetch_add(bytes, Ordering::Relaxed) + bytes,
        };
        usize::try_from(sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use rand::rngs::StdRng;
    use rand::{RngCore, SeedableRng};
    use squall_core::TOKENS_PER_DAY;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const ISSUED: Duration = Duration::from_secs(1_800_000_000);

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
    fn a_million_tokens_a_day_take_4_mb_at_fewer_than_1_false_positive_in_1000() {
        let mut filter = SharedTokenFilter::new(DAY);
        assert_eq!(filter.allocated(), 0);
        filter.spend(&[1; 16], ISSUED);
        assert!(
            filter.allocated() < 32_000,
            "a server with few tokens pays for few"
        );
        for id in ids(1).take(TOKENS_PER_DAY as usize) {
            filter.spend(&id, ISSUED);
        }
        let mistaken = ids(2).take(100_000).filter(|id| !filter.spend(id, ISSUED));
        let mistaken = mistaken.count();
        println!("of 100,000 new tokens after a million {mistaken} seem spent");
        assert!(mistaken < 100, "{mistaken} of 100,000");
        // The next generation.
        for id in ids(3).take(10_000) {
            filter.spend(&id, ISSUED + DAY + DAY / 24);
        }
        let allocated = filter.allocated();
        assert!((4_000_000..4_010_000).contains(&allocated), "{allocated}");
    }

    #[test]
    fn only_one_of_several_workers_spends_a_token() {
        let filter = SharedTokenFilter::new(DAY);
        let spent = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let mut filter = filter.clone();
                let spent = &spent;
                scope.spawn(move || {
                    for id in ids(4).take(10_000) {
                        let new = filter.spend(&id, ISSUED);
                        spent.fetch_add(usize::from(new), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(spent.into_inner(), 10_000);
    }
}
