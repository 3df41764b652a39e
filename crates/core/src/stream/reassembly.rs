//! Stream bytes put in order.
//!
//! Segments are disjoint and sorted by offset; bytes are copied once, out of the datagram, behind the segment that they
//! continue. In the common case that is the last segment and its chunk has room: a compare and a copy. Chunks that the
//! reader is done with come back through the pool, so that a steady transfer allocates nothing.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::config::MAX_STREAM_FRAGMENTS;

/// Bytes of a chunk once a stream has shown that it moves much.
const LARGE_CHUNK: usize = 64 * 1024;
/// Bytes of a stream's first chunks but the very first.
const SMALL_CHUNK: usize = 16 * 1024;
/// A stream's bytes after which small chunks are taken, and not what has come. Requests and answers end before: with a
/// whole chunk each, 100 in flight were 1.6 MB of heap that came and went, and a client paid 4.5 µs for an answer of 1 KiB,
/// half of it page faults, instead of 2.0 (`peers -- transport`, W3, turn by turn on a busy Zen 5).
const SMALL_AFTER: u64 = 4 * 1024;
/// A stream's bytes after which large chunks are taken.
const LARGE_AFTER: u64 = 64 * 1024;
/// Chunks kept for reuse by one connection.
const POOLED: usize = 16;

const _: () = assert!(SMALL_CHUNK <= LARGE_CHUNK && SMALL_AFTER < LARGE_AFTER);

/// Used chunks waiting for their last reader to let go.
#[derive(Debug, Default)]
pub(crate) struct ChunkPool {
    chunks: Vec<BytesMut>,
}

impl ChunkPool {
    /// A chunk: the one used last whose reader is done, for it is the likeliest to lie in the cache still.
    fn take(&mut self, capacity: usize) -> BytesMut {
        for i in (0..self.chunks.len()).rev() {
            if self.chunks[i].try_reclaim(capacity) {
                return self.chunks.remove(i);
            }
        }
        BytesMut::with_capacity(capacity)
    }

    fn give(&mut self, mut chunk: BytesMut) {
        chunk.clear();
        if self.chunks.len() == POOLED {
            self.chunks.remove(0);
        }
        self.chunks.push(chunk);
    }

    /// Lets all memory go; for a connection that turns idle or ends.
    pub(crate) fn clear(&mut self) {
        self.chunks = Vec::new();
    }
}

#[derive(Debug)]
struct Segment {
    start: u64,
    data: BytesMut,
    /// As large as what the pool lends: it takes no smaller ones back.
    pooled: bool,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }
}

/// The stream has more gaps than memory is granted for: the packet is to be dropped unacknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFragmented;

/// Bytes received of one stream, from the reader's position on.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    read: u64,
    segments: VecDeque<Segment>,
}

impl Reassembly {
    /// Offset of the next byte that the reader gets.
    #[must_use]
    pub(crate) const fn read_offset(&self) -> u64 {
        self.read
    }

    /// Whether the reader would get at least one byte now.
    #[must_use]
    pub(crate) fn is_readable(&self) -> bool {
        self.segments
            .front()
            .is_some_and(|s| s.start == self.read && !s.data.is_empty())
    }

    /// Pieces held: one more than there are gaps, and now and then one for a chunk that is full.
    #[must_use]
    pub(crate) fn pieces(&self) -> usize {
        self.segments.len()
    }

    /// Whether bytes at `offset` go behind what is there already: where the reader stands, or at the end of the first or
    /// the last piece. They are taken when no memory is left for more pieces, so that a full line always moves on.
    #[must_use]
    pub(crate) fn continues(&self, offset: u64) -> bool {
        offset <= self.read
            || self.segments.front().is_some_and(|s| s.end() == offset)
            || self.segments.back().is_some_and(|s| s.end() == offset)
    }

    /// Whether what is here ends at `offset`.
    #[must_use]
    pub(crate) fn ends_at(&self, offset: u64) -> bool {
        self.segments.back().map_or(self.read, Segment::end) == offset
    }

    /// Takes the bytes at `offset` in; bytes already held or read are ignored.
    ///
    /// # Errors
    /// `TooFragmented` if the gaps are more than `MAX_STREAM_FRAGMENTS`.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        offset: u64,
        data: &[u8],
        pool: &mut ChunkPool,
    ) -> Result<(), TooFragmented> {
        if let Some(last) = self.segments.back_mut()
            && last.end() == offset
            && last.data.capacity() - last.data.len() >= data.len()
        {
            last.data.extend_from_slice(data);
            return Ok(());
        }
        self.insert_slow(offset, data, pool)
    }

    #[inline(never)]
    fn insert_slow(
        &mut self,
        offset: u64,
        data: &[u8],
        pool: &mut ChunkPool,
    ) -> Result<(), TooFragmented> {
        let skip = self.read.saturating_sub(offset).min(data.len() as u64) as usize;
        let (mut offset, mut data) = (offset + skip as u64, &data[skip..]);
        if self.segments.len() >= MAX_STREAM_FRAGMENTS {
            return Err(TooFragmented);
        }
        // Walk over the segments that overlap, filling the gaps before each.
        let mut i = self.segments.partition_point(|s| s.end() < offset);
        while !data.is_empty() {
            let gap = match self.segments.get(i) {
                Some(s) if s.start <= offset => {
                    // Held already up to the segment's end.
                    let held = s.end().saturating_sub(offset).min(data.len() as u64) as usize;
                    offset += held as u64;
                    data = &data[held..];
                    let next_start = self.segments.get(i + 1).map_or(u64::MAX, |n| n.start);
                    let room = (next_start - offset).min(data.len() as u64) as usize;
                    let taken = Self::extend(&mut self.segments[i].data, &data[..room]);
                    offset += taken as u64;
                    data = &data[taken..];
                    room - taken
                }
                Some(s) => (s.start - offset).min(data.len() as u64) as usize,
                None => data.len(),
            };
            if gap > 0 {
                let at = if self.segments.get(i).is_some_and(|s| s.start <= offset) {
                    i + 1
                } else {
                    i
                };
                let taken = self.place(at, offset, &data[..gap], pool);
                offset += taken as u64;
                data = &data[taken..];
                i = at;
            } else if !data.is_empty() {
                i += 1;
            }
        }
        Ok(())
    }

    /// Appends what fits to a chunk, growing a small one; returns how much.
    fn extend(chunk: &mut BytesMut, data: &[u8]) -> usize {
        let mut room = chunk.capacity() - chunk.len();
        if room < data.len() && chunk.capacity() < SMALL_CHUNK && !chunk.is_empty() {
            // A segment behind a gap starts at its exact size; the neighbours that follow make it grow by doubling.
            chunk.reserve(data.len().max(chunk.len()));
            room = chunk.capacity() - chunk.len();
        }
        let n = room.min(data.len());
        chunk.extend_from_slice(&data[..n]);
        n
    }

    /// Starts a segment at index `at` with as many bytes of `data` as its chunk holds.
    fn place(&mut self, at: usize, offset: u64, data: &[u8], pool: &mut ChunkPool) -> usize {
        let continues = at == self.segments.len()
            && (offset == self.read
                || at
                    .checked_sub(1)
                    .is_some_and(|i| self.segments[i].end() == offset));
        let pooled = continues && offset >= SMALL_AFTER;
        let mut chunk = if pooled {
            pool.take(if offset >= LARGE_AFTER {
                LARGE_CHUNK
            } else {
                SMALL_CHUNK.max(data.len())
            })
        } else {
            // In a short stream, and behind a gap, memory follows the bytes that arrived, not those that may come.
            BytesMut::with_capacity(data.len())
        };
        let n = data.len().min(chunk.capacity());
        chunk.extend_from_slice(&data[..n]);
        self.segments.insert(
            at,
            Segment {
                start: offset,
                data: chunk,
                pooled,
            },
        );
        n
    }

    /// The next bytes in order, at most `max`, without a copy.
    pub(crate) fn read(&mut self, max: usize, pool: &mut ChunkPool) -> Option<Bytes> {
        if max == 0 || !self.is_readable() {
            return None;
        }
        let several = self.segments.len() > 1;
        let segment = self.segments.front_mut()?;
        let n = max.min(segment.data.len());
        let bytes = segment.data.split_to(n).freeze();
        segment.start += n as u64;
        self.read += n as u64;
        // An empty last segment stays while its chunk has room: the next datagram goes behind it.
        let spent = segment.data.is_empty() && (several || segment.data.capacity() == 0);
        if spent
            && let Some(segment) = self.segments.pop_front()
            && segment.pooled
        {
            pool.give(segment.data);
        }
        Some(bytes)
    }

    /// Moves the reader to `offset` without reading: the stream was stopped. Drops what it held.
    pub(crate) fn clear(&mut self, offset: u64) {
        self.segments = VecDeque::new();
        self.read = self.read.max(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(offset: u64) -> u8 {
        (offset * 31 % 251) as u8
    }

    #[test]
    fn any_order_and_overlap_gives_the_stream() {
        let mut state = 7u64;
        let mut next = move |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for round in 0..300 {
            let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
            let total = 1 + next(if round % 10 == 0 { 200_000 } else { 400 });
            let step = 1 + next(total / 4 + 1);
            let mut got = Vec::new();
            let mut rounds = 0;
            while (got.len() as u64) < total {
                rounds += 1;
                let start = if rounds > 400 {
                    got.len() as u64
                } else {
                    next(total)
                };
                let end = (start + 1 + next(step)).min(total);
                let data: Vec<u8> = (start..end).map(byte).collect();
                stream.insert(start, &data, &mut pool).unwrap();
                let sorted = stream
                    .segments
                    .iter()
                    .zip(stream.segments.iter().skip(1))
                    .all(|(a, b)| a.end() <= b.start);
                assert!(sorted, "segments are disjoint and sorted");
                if next(3) == 0 {
                    while let Some(bytes) = stream.read(1 + next(100_000) as usize, &mut pool) {
                        got.extend_from_slice(&bytes);
                    }
                }
            }
            assert!(
                got.iter().enumerate().all(|(i, b)| *b == byte(i as u64)),
                "byte-exact"
            );
        }
    }

    #[test]
    fn a_steady_transfer_reuses_two_chunks() {
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        let data = [5; 1000];
        let mut seen = std::collections::HashSet::new();
        for i in 0..10_000u64 {
            stream.insert(i * 1000, &data, &mut pool).unwrap();
            while let Some(bytes) = stream.read(usize::MAX, &mut pool) {
                if i > 200 {
                    seen.insert(bytes.as_ptr() as usize / (LARGE_CHUNK / 2));
                }
            }
        }
        assert!(seen.len() <= 16, "memory is reused: {} places", seen.len());
    }

    #[test]
    fn a_short_stream_takes_memory_for_what_came() {
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        stream.insert(0, &[7; 108], &mut pool).unwrap();
        stream.insert(108, &[7; 916], &mut pool).unwrap();
        let held: usize = stream.segments.iter().map(|s| s.data.capacity()).sum();
        assert!((1024..=2048).contains(&held), "{held} bytes for 1,024");
        while stream.read(usize::MAX, &mut pool).is_some() {}
        // Chunks of that size are of no use to a long stream, and would push its own out of the pool.
        assert!(pool.chunks.is_empty());
    }

    // test: threats.md row 5
    #[test]
    fn gaps_are_bounded_and_neighbours_merge() {
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        let mut refused = 0;
        for i in 0..20_000u64 {
            refused += u64::from(stream.insert(1 + 2 * i, &[1], &mut pool).is_err());
        }
        assert_eq!(refused, 20_000 - MAX_STREAM_FRAGMENTS as u64);
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        for i in 1..20_000u64 {
            stream.insert(i, &[1], &mut pool).unwrap();
        }
        assert!(stream.segments.len() <= 3, "neighbours merge");
    }
}
