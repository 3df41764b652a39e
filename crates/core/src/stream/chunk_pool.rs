//! Reusable memory for received stream data and datagrams.
//!
//! ```text
//!  worker's pool ── lent for the time of a run ──▶ connection: received bytes are put into chunks
//!        ▲                                             │  the reader gets slices of them
//!        └──── the worker takes back ◀── connection: chunks that the reader got in full
//! ```
//! A chunk comes back while the reader may still hold its last slices; it is reused when they are
//! dropped. Chunk sizes are powers of two, so a stream that receives little at a time takes little
//! memory.

use bytes::{Bytes, BytesMut};

/// The smallest chunk, in bytes: it holds most requests.
const SMALLEST: usize = 512;
/// The largest, in bytes.
pub(crate) const LARGEST: usize = 64 * 1024;
/// Number of chunk sizes.
const SIZES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;
/// Bytes that a pool keeps of each size: 3 MiB of the largest 6 sizes, and one share more for
/// chunks that are written in one go.
const KEPT: usize = 512 * 1024;
/// The most chunks that it keeps of each size: 384 KiB of the smallest 2 sizes.
const MOST_KEPT: usize = 256;
/// How many chunks of a size are searched for one that has been read: the newest ones, which are
/// most likely in the cache.
const LOOKED_AT: usize = 16;
/// The most chunks that a connection keeps until its worker takes them back.
const MOST_RETURNED: usize = 16;
/// Bytes of such chunks that are worth a lock of the worker's pool.
const FEW_RETURNED: usize = 4 * 1024;

/// Used chunks whose last reader may still hold them.
///
/// A worker has one and lends it to its connections; a connection that is not lent one has its own.
#[derive(Debug, Default)]
pub struct ChunkPool {
    /// What is exchanged when a pool is lent. A connection to which its worker lends one has none
    /// of its own.
    chunks: Option<Box<Chunks>>,
    /// Chunks that came back while there was none, with their size classes.
    returned: Vec<(BytesMut, u8)>,
    /// Bytes of the chunks that hold data not yet read by a connection's reader.
    used: usize,
}

#[derive(Debug, Default)]
struct Chunks {
    sizes: [Vec<BytesMut>; SIZES],
    /// Chunks of [`LARGEST`] bytes that are written in one go. All of their bytes have a value, as
    /// writing anywhere but at the end requires.
    filled: Vec<Bytes>,
}

impl Chunks {
    fn give(&mut self, chunk: BytesMut, class: usize) {
        let Some(chunks) = self.sizes.get_mut(class) else {
            return;
        };
        if chunks.len() >= kept(class) {
            chunks.remove(0);
        }
        chunks.push(chunk);
    }

    fn give_filled(&mut self, chunk: Bytes) {
        if self.filled.len() >= kept(SIZES - 1) {
            self.filled.remove(0);
        }
        self.filled.push(chunk);
    }

    fn is_empty(&self) -> bool {
        self.sizes.iter().all(Vec::is_empty) && self.filled.is_empty()
    }

    /// Roughly the bytes of the chunks that no reader holds.
    fn memory(&self) -> usize {
        let sizes = self.sizes.iter().enumerate();
        let kept: usize = sizes
            .map(|(class, chunks)| chunks.len() * (SMALLEST << class))
            .sum();
        // Others are counted as used.
        let free = self.filled.iter().filter(|chunk| chunk.is_unique()).count();
        kept + free * LARGEST
    }
}

/// The size class of a chunk for this many bytes; `None` if a chunk of exactly that size is made
/// for them, and not kept.
fn size_class(capacity: usize) -> Option<usize> {
    let classes = capacity.max(1).div_ceil(SMALLEST).next_power_of_two();
    let class = classes.ilog2() as usize;
    (class < SIZES).then_some(class)
}

/// How many chunks of a size are kept.
const fn kept(class: usize) -> usize {
    let chunks = KEPT / (SMALLEST << class);
    if chunks < MOST_KEPT {
        chunks
    } else {
        MOST_KEPT
    }
}

impl ChunkPool {
    /// A chunk with room for at least `capacity` bytes, and the class to return it with.
    pub(crate) fn take(&mut self, capacity: usize) -> (BytesMut, Option<u8>) {
        let Some(class) = size_class(capacity) else {
            return (BytesMut::with_capacity(capacity), None);
        };
        let size = SMALLEST << class;
        let chunks = &mut self.chunks.get_or_insert_default().sizes[class];
        for i in (0..chunks.len()).rev().take(LOOKED_AT) {
            if chunks[i].try_reclaim(size) {
                return (chunks.remove(i), Some(class as u8));
            }
        }
        (BytesMut::with_capacity(size), Some(class as u8))
    }

    /// Takes back a chunk whose bytes were all handed to the reader.
    pub(crate) fn give(&mut self, mut chunk: BytesMut, class: Option<u8>) {
        let Some(class) = class else {
            return;
        };
        chunk.clear();
        match &mut self.chunks {
            Some(chunks) => chunks.give(chunk, class.into()),
            None if self.returned.len() < MOST_RETURNED => self.returned.push((chunk, class)),
            None => {}
        }
    }

    /// A chunk of [`LARGEST`] bytes, whose bytes have any values. `None` if readers hold as many as
    /// the pool keeps: data that piles up lies in chunks that are filled to their ends.
    pub(crate) fn take_filled(&mut self) -> Option<BytesMut> {
        let filled = &mut self.chunks.get_or_insert_default().filled;
        if let Some(i) = filled.iter().rposition(Bytes::is_unique) {
            return filled.remove(i).try_into_mut().ok();
        }
        if filled.len() >= kept(SIZES - 1) {
            return None;
        }
        let mut chunk = BytesMut::zeroed(LARGEST);
        // From now on the chunk is one that can be shared, and sharing it allocates nothing.
        let _ = chunk.split_off(LARGEST);
        Some(chunk)
    }

    /// Takes back a chunk from [`take_filled`](Self::take_filled), for use again once all other
    /// handles to it are dropped.
    pub(crate) fn give_filled(&mut self, chunk: Bytes) {
        self.chunks.get_or_insert_default().give_filled(chunk);
    }

    /// A chunk of this size is in use.
    pub(super) const fn note(&mut self, size: usize) {
        self.used += size;
    }

    /// Chunks of this total size are no longer in use.
    pub(crate) const fn settle(&mut self, size: usize) {
        self.used = self.used.saturating_sub(size);
    }

    /// Roughly the bytes of all chunks: those in use and those kept here.
    pub(super) fn memory(&self) -> usize {
        self.used + self.returned_bytes() + self.chunks.as_ref().map_or(0, |chunks| chunks.memory())
    }

    /// Exchanges the chunks.
    pub(super) const fn swap(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.chunks, &mut other.chunks);
    }

    /// Moves all chunks of `other` here.
    pub fn absorb(&mut self, other: &mut Self) {
        let chunks = self.chunks.get_or_insert_default();
        for (chunk, class) in other.returned.drain(..) {
            chunks.give(chunk, class.into());
        }
        // A connection has such chunks only if it has received without being lent a pool.
        if let Some(own) = other.chunks.take() {
            for (class, own) in own.sizes.into_iter().enumerate() {
                own.into_iter().for_each(|chunk| chunks.give(chunk, class));
            }
            own.filled
                .into_iter()
                .for_each(|chunk| chunks.give_filled(chunk));
        }
    }

    /// Whether there is no chunk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.returned.is_empty() && self.chunks.as_ref().is_none_or(|chunks| chunks.is_empty())
    }

    /// Whether what has come back amounts to little. It can wait until the worker looks at the
    /// connection, which needs no lock for it.
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.chunks.is_none() && self.returned_bytes() <= FEW_RETURNED
    }

    fn returned_bytes(&self) -> usize {
        let sizes = self.returned.iter().map(|(_, class)| SMALLEST << class);
        sizes.sum()
    }

    /// Frees all unused memory.
    pub(crate) fn clear(&mut self) {
        (self.chunks, self.returned) = (None, Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_return_to_the_pool_of_their_size() {
        let mut pool = ChunkPool::default();
        for (capacity, size) in [
            (1, 512),
            (513, 1024),
            (1025, 2048),
            (2048, 2048),
            (2049, 4096),
            (60_000, 65_536),
            (65_536, 65_536),
        ] {
            let (mut chunk, class) = pool.take(capacity);
            assert_eq!(chunk.capacity(), size);
            chunk.extend_from_slice(&[7; 50]);
            let place = chunk.as_ptr();
            let slice = chunk.split_to(50).freeze();
            pool.give(chunk, class);
            let (other, class) = pool.take(capacity);
            assert_ne!(other.as_ptr(), place, "the reader still has a slice");
            drop((slice, other));
            assert!(class.is_some());
            let (again, _) = pool.take(capacity);
            assert_eq!((again.as_ptr(), again.capacity()), (place, size));
        }
        let (chunk, class) = pool.take(65_537);
        assert_eq!((chunk.capacity(), class), (65_537, None));
    }

    #[test]
    fn a_filled_chunk_is_used_again_once_nobody_reads_it() {
        let mut pool = ChunkPool::default();
        let mut chunk = pool.take_filled().unwrap();
        let place = chunk.as_ptr();
        chunk[LARGEST - 1] = 7;
        let chunk = chunk.freeze();
        let slice = chunk.slice(100..200);
        pool.give_filled(chunk);
        assert_eq!(pool.memory(), 0, "counted by whoever noted its size");
        let other = pool.take_filled().unwrap();
        assert_ne!(other.as_ptr(), place, "the reader still has a slice");
        drop(slice);
        assert_eq!(pool.memory(), LARGEST);
        let again = pool.take_filled().unwrap();
        assert_eq!((again.as_ptr(), again.len()), (place, LARGEST));
        assert_eq!(again[LARGEST - 1], 7, "nothing is cleared or copied");
        // A reader that keeps its data.
        let (mut lent, mut worker, mut slices) =
            (ChunkPool::default(), ChunkPool::default(), Vec::new());
        for pool in [&mut lent, &mut worker] {
            while let Some(chunk) = pool.take_filled() {
                let chunk = chunk.freeze();
                slices.push(chunk.slice(..10));
                pool.give_filled(chunk);
            }
        }
        assert_eq!(slices.len(), 2 * KEPT / LARGEST);
        worker.absorb(&mut lent);
        drop(slices);
        assert!(lent.is_empty() && worker.memory() == KEPT);
        worker.clear();
        assert!(worker.is_empty());
    }

    #[test]
    fn a_pool_is_bounded() {
        let (mut pool, mut other) = (ChunkPool::default(), ChunkPool::default());
        for class in 0..SIZES {
            for _ in 0..1000 {
                let chunk = BytesMut::with_capacity(SMALLEST << class);
                other.give(chunk, Some(class as u8));
            }
        }
        assert!(
            other.memory() <= MOST_RETURNED * LARGEST,
            "before it is lent one"
        );
        let _ = other.take(1);
        for class in 0..SIZES {
            for _ in 0..1000 {
                let chunk = BytesMut::with_capacity(SMALLEST << class);
                other.give(chunk, Some(class as u8));
            }
        }
        pool.absorb(&mut other);
        assert!(other.is_empty() && !pool.is_empty());
        let most: usize = (0..SIZES)
            .map(|class| kept(class) * (SMALLEST << class))
            .sum();
        assert_eq!(pool.memory(), most);
        assert!(most < 4 << 20);
    }
}
