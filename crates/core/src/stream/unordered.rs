//! Stream bytes in order of arrival, for readers that want them so.
//!
//! A reader that has switched to this order gets each byte once, with its offset, and waits for no
//! byte before it. Received ranges are remembered, so that repeated bytes are dropped; a stream
//! without losses is one range.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::chunk_pool::{ChunkPool, LARGEST};
use super::segment::Segment;
use crate::config::MAX_STREAM_FRAGMENTS;
use crate::range_tree::RangeTree;

/// The smallest chunk for bytes that continue the previous ones.
const LEAST_CHUNK: usize = 4 * 1024;

/// Bytes received of one stream, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Unordered {
    /// Everything received, whether or not the reader has it.
    received: RangeTree,
    /// The data that the reader gets next.
    queue: VecDeque<Segment>,
    /// Where the most recent piece ends.
    last_end: u64,
    /// Size of the next chunk for bytes that continue the last ones.
    next_chunk: usize,
}

impl Unordered {
    /// Starts with a stream whose reader has everything below `read`.
    pub(super) fn new(read: u64) -> Self {
        let mut received = RangeTree::default();
        received.insert(0..read);
        Self {
            received,
            last_end: read,
            ..Self::default()
        }
    }

    /// Adds a chunk of bytes that were all new.
    pub(super) fn push(&mut self, segment: Segment) {
        self.received.insert(segment.start..segment.end());
        self.last_end = segment.end();
        self.queue.push_back(segment);
    }

    /// Number of pieces, which cost memory in addition to their bytes.
    #[cold]
    pub(super) fn pieces(&self) -> usize {
        self.queue.len() + self.received.len()
    }

    /// Bytes of the chunks.
    pub(super) fn held(&self) -> usize {
        self.queue.iter().map(Segment::size).sum()
    }

    pub(super) fn is_readable(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether bytes at `offset` extend the last piece, or fill the first gap while nothing waits:
    /// accepted even if no memory is left for more pieces.
    pub(super) fn continues(&self, offset: u64) -> bool {
        offset == self.last_end || (self.queue.is_empty() && self.covers(offset))
    }

    /// Whether every byte below `offset` was received.
    pub(super) fn covers(&self, offset: u64) -> bool {
        let first = self.received.first().filter(|first| first.start == 0);
        first.map_or(0, |first| first.end) >= offset
    }

    /// How many more ranges and pieces there may be.
    pub(super) fn room(&self) -> usize {
        MAX_STREAM_FRAGMENTS.saturating_sub(self.pieces())
    }

    /// Stores the bytes at `offset`; bytes received before are ignored.
    pub(super) fn insert(&mut self, mut offset: u64, mut data: &[u8], pool: &mut ChunkPool) {
        while !data.is_empty() {
            let end = offset + data.len() as u64;
            let next = self.received.overlapping(offset..end).next();
            let fresh = next.as_ref().map_or(end, |held| held.start.max(offset));
            let (new, rest) = data.split_at((fresh - offset) as usize);
            self.append(offset, new, pool);
            let held = next.map_or(0, |held| held.end.min(end) - fresh);
            offset = fresh + held;
            data = rest.get(held as usize..).unwrap_or_default();
        }
    }

    /// Queues new bytes.
    fn append(&mut self, mut offset: u64, mut data: &[u8], pool: &mut ChunkPool) {
        while !data.is_empty() {
            let continues = self.last_end == offset;
            let taken = match self.queue.back_mut() {
                Some(last) if continues && last.room() > 0 => last.append(data),
                _ => self.begin(offset, data, continues, pool),
            };
            self.received.insert(offset..offset + taken as u64);
            offset += taken as u64;
            self.last_end = offset;
            data = &data[taken..];
        }
    }

    /// Queues a chunk with as many of the bytes as it holds; returns how many.
    fn begin(&mut self, offset: u64, data: &[u8], more: bool, pool: &mut ChunkPool) -> usize {
        let (mut chunk, class) = if more {
            self.next_chunk = (2 * self.next_chunk).clamp(LEAST_CHUNK, LARGEST);
            pool.take(self.next_chunk)
        } else {
            // After a gap memory follows the bytes that have arrived, not those that may come.
            self.next_chunk = 0;
            (BytesMut::with_capacity(data.len()), None)
        };
        let size = chunk.capacity();
        pool.note(size);
        let n = data.len().min(size);
        chunk.extend_from_slice(&data[..n]);
        self.queue.push_back(Segment::growing(offset, chunk, class));
        n
    }

    /// The bytes that arrived first, at most `max`, and their offset.
    pub(super) fn read(&mut self, max: usize, pool: &mut ChunkPool) -> Option<(u64, Bytes)> {
        let segment = self.queue.front_mut().filter(|_| max > 0)?;
        let offset = segment.start;
        let bytes = segment.take(max);
        if segment.is_empty()
            && let Some(segment) = self.queue.pop_front()
        {
            segment.give_back(pool);
        }
        Some((offset, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reassembly::Reassembly;
    use super::*;

    fn byte(offset: u64) -> u8 {
        (offset * 31 % 251) as u8
    }

    // test: a reader that switches order in the middle gets every byte once, no matter how often
    // and in which order data arrives.
    #[test]
    fn every_byte_is_delivered_once() {
        let mut next = crate::common::numbers(11);
        for round in 0..500 {
            let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
            let total = 1 + next(if round % 10 == 0 { 100_000 } else { 3_000 });
            let step = 1 + next(total / 3 + 1);
            let change = next(total);
            let mut seen = vec![false; total as usize];
            let mut count = 0;
            let mut see = |offset: u64, bytes: &[u8]| {
                for (at, value) in (offset..).zip(bytes) {
                    assert_eq!(*value, byte(at), "at {at}");
                    assert!(
                        !std::mem::replace(&mut seen[at as usize], true),
                        "{at} again"
                    );
                }
                bytes.len() as u64
            };
            let mut rounds = 0;
            while !stream.has_read(total) {
                rounds += 1;
                // Finally in order, so that there is an end.
                let start = if rounds > 300 {
                    (rounds - 301) * step % total
                } else {
                    next(total)
                };
                let end = (start + 1 + next(step)).min(total);
                let end = if rounds > 300 {
                    (start + step).min(total)
                } else {
                    end
                };
                let data: Vec<u8> = (start..end).map(byte).collect();
                stream.insert(start, &data, &mut pool).unwrap();
                if next(3) > 0 {
                    continue;
                }
                if count < change && !stream.is_unordered() {
                    let offset = stream.read_offset();
                    if let Some(bytes) = stream.read(1 + next(500) as usize, &mut pool) {
                        count += see(offset, &bytes);
                    }
                } else {
                    while let Some((offset, bytes)) =
                        stream.read_unordered(1 + next(500) as usize, &mut pool)
                    {
                        count += see(offset, &bytes);
                    }
                    assert!(!stream.is_readable() && stream.held() == 0);
                }
            }
            assert_eq!(count, total);
            assert!(stream.has_received(total) && !stream.has_received(total + 1));
            assert!(stream.pieces() <= 1, "one range is left");
        }
    }

    #[test]
    fn a_steady_stream_is_copied_into_large_chunks() {
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        assert!(stream.read_unordered(1, &mut pool).is_none());
        for i in 0..1000 {
            stream.insert(1200 * i, &[7; 1200], &mut pool).unwrap();
        }
        let mut chunks = 0;
        while stream.read_unordered(usize::MAX, &mut pool).is_some() {
            chunks += 1;
        }
        assert!(chunks < 30, "{chunks} chunks for 1.2 MB");
    }

    // test: SECURITY.md row 5: what a peer makes us remember is bounded.
    #[test]
    fn gaps_and_pieces_are_bounded() {
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        let _ = stream.read_unordered(1, &mut pool);
        let mut taken = 0;
        while stream.insert(2 * taken, &[7], &mut pool).is_ok() {
            taken += 1;
            // The reader takes everything, but the gaps remain.
            while stream.read_unordered(100, &mut pool).is_some() {}
        }
        assert!(
            (1000..=MAX_STREAM_FRAGMENTS as u64).contains(&taken),
            "{taken}"
        );
        // Filling the first gap is always possible, so that the stream can continue.
        for i in 0..taken {
            stream.insert(2 * i + 1, &[7], &mut pool).unwrap();
            while stream.read_unordered(100, &mut pool).is_some() {}
        }
        assert_eq!(stream.pieces(), 1);
    }
}
