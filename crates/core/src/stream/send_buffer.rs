//! The bytes of a stream from the application's write to the peer's acknowledgement.
//!
//! The application's `Bytes` are kept as they are, unless they are small: small ones, and slices,
//! are copied one after the other into chunks of our own, so that memory follows the number of
//! bytes written, not the number of writes. Packets refer to ranges of offsets. A loss queues a
//! range again, and an acknowledgement frees the chunks that it completes.

use std::collections::VecDeque;
use std::ops::{Deref, Range};

use bytes::Bytes;

use crate::range_tree::RangeTree;

/// `Bytes` of at most this length are copied: a packet that takes several of them copies most of
/// them anyway, and a handle costs more memory than it saves. A response of 1 KiB is not copied:
/// copying it cost a server a sixth more.
const COPIED_UP_TO: usize = 256;
/// The same if nothing waits before them: a message that is sent at once, such as a request, is not
/// copied into an allocation of its own. Tiny ones still are, so that they do not keep alive a
/// larger buffer of which they may be a slice.
const COPIED_ALONE: usize = FIRST_CHUNK;
/// The cost of a chunk besides its bytes: its place in the queue and the allocation that it keeps
/// alive.
const CHUNK_OVERHEAD: u64 = 96;
/// Capacity of a stream's first chunk for copies.
const FIRST_CHUNK: usize = 64;
/// Each further chunk for copies is twice as large as the previous one, up to this.
const GROWN_CHUNK: usize = 16 * 1024;
/// The largest chunk for copies whose memory is kept for the next one.
const KEPT_CHUNK: usize = 256;
/// Chunk places kept for the next stream.
const KEPT_PLACES: usize = 8;
/// The largest chunk that one write makes.
const LARGEST_CHUNK: usize = 64 * 1024;

/// Consecutive bytes of a stream.
#[derive(Debug)]
enum Chunk {
    /// The application's own bytes.
    Shared(Bytes),
    /// Bytes copied here. Spare capacity takes those that follow.
    Copied(Vec<u8>),
}

impl Chunk {
    fn truncate(&mut self, len: usize) {
        match self {
            Self::Shared(bytes) => bytes.truncate(len),
            Self::Copied(bytes) => bytes.truncate(len),
        }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

/// Bytes written and not yet acknowledged.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SendBuffer {
    // What shows that there is nothing to send.
    /// Offset after the last byte written.
    end: u64,
    /// Offset of the first byte never sent.
    unsent: u64,
    /// Ranges to be sent again.
    lost: RangeTree,

    /// All bytes below are acknowledged and gone.
    base: u64,
    /// Offset of each chunk's first byte, and the chunk.
    chunks: VecDeque<(u64, Chunk)>,
    /// Acknowledged ranges above `base`.
    acked: RangeTree,
    /// An empty chunk for the next copy.
    spare: Vec<u8>,
}

impl SendBuffer {
    /// Resets this to the buffer of a new stream, and keeps memory for its first chunk.
    pub(crate) fn recycle(&mut self) {
        // Every part is named, so that none is forgotten.
        let Self {
            end,
            unsent,
            lost,
            base,
            chunks,
            acked,
            spare,
        } = self;
        (*end, *unsent, *base) = (0, 0, 0);
        (*lost, *acked) = (RangeTree::default(), RangeTree::default());
        if let Some((_, Chunk::Copied(last))) = chunks.pop_back()
            && last.capacity() <= KEPT_CHUNK
        {
            *spare = last;
        }
        chunks.clear();
        if chunks.capacity() > KEPT_PLACES {
            *chunks = VecDeque::new();
        }
        spare.clear();
    }

    /// Offset after the last byte written.
    #[must_use]
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// Offset of the first byte that was never sent.
    #[must_use]
    pub(crate) const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Bytes that were never sent.
    #[must_use]
    pub(crate) const fn unsent_len(&self) -> u64 {
        self.end - self.unsent
    }

    /// The cost of the buffer, in bytes: those written but not acknowledged, and an overhead for
    /// each chunk.
    #[must_use]
    pub(crate) fn cost(&self) -> u64 {
        self.end - self.base + self.chunks.len() as u64 * CHUNK_OVERHEAD
    }

    /// Whether every byte written is acknowledged.
    #[must_use]
    pub(crate) const fn is_settled(&self) -> bool {
        self.base == self.end
    }

    /// Whether lost bytes wait to be sent again.
    #[must_use]
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Whether anything waits to be sent, ignoring flow control.
    #[must_use]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.unsent < self.end || self.has_lost()
    }

    /// Appends `data`, without copying it unless it is small.
    pub(crate) fn write(&mut self, data: Bytes) {
        let copied = match self.chunks.is_empty() {
            true => COPIED_ALONE,
            false => COPIED_UP_TO,
        };
        if data.len() <= copied {
            self.write_copy(&data);
        } else {
            self.push(Chunk::Shared(data));
        }
    }

    /// Appends a copy of `data`, in the last chunk while that has room.
    pub(crate) fn write_copy(&mut self, mut data: &[u8]) {
        let mut capacity = FIRST_CHUNK;
        if let Some((_, Chunk::Copied(last))) = self.chunks.back_mut() {
            let (fits, rest) = data.split_at(data.len().min(last.capacity() - last.len()));
            last.extend_from_slice(fits);
            self.end += fits.len() as u64;
            capacity = (2 * last.capacity()).min(GROWN_CHUNK);
            data = rest;
        }
        while !data.is_empty() {
            let (now, rest) = data.split_at(data.len().min(LARGEST_CHUNK));
            let capacity = now.len().max(capacity);
            // Chunks keep growing: a smaller one is left for the next stream.
            let mut chunk = if self.spare.capacity() >= capacity {
                std::mem::take(&mut self.spare)
            } else {
                Vec::with_capacity(capacity)
            };
            chunk.clear();
            chunk.extend_from_slice(now);
            self.push(Chunk::Copied(chunk));
            data = rest;
        }
    }

    fn push(&mut self, chunk: Chunk) {
        let start = self.end;
        self.end += chunk.len() as u64;
        self.chunks.push_back((start, chunk));
    }

    /// The next range to be sent, at most `max` bytes long, with new bytes only below `limit`; lost
    /// bytes come first.
    #[inline]
    pub(crate) fn next_range(&self, max: u64, limit: u64) -> Option<Range<u64>> {
        if let Some(lost) = self.lost.first() {
            return Some(lost.start..lost.end.min(lost.start + max));
        }
        let end = self.end.min(limit).min(self.unsent + max);
        (end > self.unsent).then_some(self.unsent..end)
    }

    /// Records that `range` is now in a packet.
    #[inline]
    pub(crate) fn on_sent(&mut self, range: &Range<u64>) {
        if !self.lost.is_empty() {
            self.lost.remove(range.clone());
        }
        self.unsent = self.unsent.max(range.end);
    }

    /// Records that the peer has `range`; returns by how much that lowers the cost.
    pub(crate) fn on_acked(&mut self, range: Range<u64>) -> u64 {
        // Beyond the end is data that was discarded after it was sent.
        let range = range.start.min(self.end)..range.end.min(self.end);
        self.lost.remove(range.clone());
        let before = self.cost();
        if range.start <= self.base {
            self.base = self.base.max(range.end);
            while let Some(first) = self.acked.first() {
                if first.start > self.base {
                    break;
                }
                self.base = self.base.max(first.end);
                self.acked.pop_first();
            }
            while self
                .chunks
                .front()
                .is_some_and(|(start, data)| start + data.len() as u64 <= self.base)
            {
                self.drop_front();
            }
        } else {
            self.acked.insert(range);
        }
        before - self.cost()
    }

    /// Drops the first chunk, whose memory may serve the next copy.
    fn drop_front(&mut self) {
        if let Some((_, Chunk::Copied(chunk))) = self.chunks.pop_front()
            && chunk.capacity() <= KEPT_CHUNK
        {
            self.spare = chunk;
        }
    }

    /// Records that `range` was lost: its unacknowledged parts are sent again.
    pub(crate) fn on_lost(&mut self, range: Range<u64>) {
        let range = range.start.max(self.base)..range.end.min(self.end);
        self.lost.insert(range.clone());
        for acked in self.acked.overlapping(range) {
            self.lost.remove(acked);
        }
    }

    /// Nothing that was sent has arrived, and nothing is acknowledged: everything counts as new.
    pub(crate) fn rewind(&mut self) {
        self.unsent = self.base;
        self.lost = RangeTree::default();
    }

    /// Queues everything unacknowledged again (RFC 9002 §6.2.4 and Retry).
    pub(crate) fn on_all_lost(&mut self) {
        self.on_lost(self.base..self.unsent);
    }

    /// Discards all bytes from `end` on. Returns by how much that lowers the cost.
    pub(crate) fn truncate(&mut self, end: u64) -> u64 {
        let before = self.cost();
        let end = end.clamp(self.base, self.end);
        self.lost.remove(end..u64::MAX);
        self.acked.remove(end..u64::MAX);
        while let Some((start, data)) = self.chunks.back_mut() {
            if *start >= end {
                self.chunks.pop_back();
            } else {
                data.truncate((end - *start) as usize);
                break;
            }
        }
        (self.end, self.unsent) = (end, self.unsent.min(end));
        before - self.cost()
    }

    /// The contiguous bytes at `offset`, at most `max`; empty if they are gone. `chunk` says which
    /// chunk may hold them, and then which one does: the next bytes are there or one further.
    #[inline]
    #[must_use]
    pub(crate) fn piece(&self, chunk: &mut usize, offset: u64, max: usize) -> &[u8] {
        let holds = |c: Option<&(u64, Chunk)>| {
            c.is_some_and(|(s, d)| *s <= offset && offset < s + d.len() as u64)
        };
        if !holds(self.chunks.get(*chunk)) {
            *chunk = if holds(self.chunks.get(*chunk + 1)) {
                *chunk + 1
            } else {
                self.chunks
                    .partition_point(|(start, _)| *start <= offset)
                    .saturating_sub(1)
            };
        }
        let Some((start, data)) = self.chunks.get(*chunk) else {
            return &[];
        };
        let at = offset.saturating_sub(*start) as usize;
        data.get(at..data.len().min(at + max)).unwrap_or(&[])
    }

    /// Copies `out.len()` bytes from `offset` on; the range must be held.
    pub(crate) fn copy_to(&self, mut offset: u64, mut out: &mut [u8]) {
        let mut chunk = 0;
        while !out.is_empty() {
            let piece = self.piece(&mut chunk, offset, out.len());
            if piece.is_empty() {
                debug_assert!(false, "a range that is not held was asked for");
                return;
            }
            let (now, rest) = out.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            offset += piece.len() as u64;
            out = rest;
        }
    }

    /// Drops all bytes because the stream was reset. Returns their cost.
    pub(crate) fn clear(&mut self) -> u64 {
        let cost = self.cost();
        self.chunks = VecDeque::new();
        self.base = self.end;
        self.unsent = self.end;
        self.acked = RangeTree::default();
        self.lost = RangeTree::default();
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_ranges_are_sent_first_and_acknowledged_ones_never_again() {
        let mut buffer = SendBuffer::default();
        buffer.push(Chunk::Shared(Bytes::from_static(b"0123456789")));
        buffer.push(Chunk::Shared(Bytes::from_static(b"abcdefghij")));
        while let Some(range) = buffer.next_range(4, 18) {
            buffer.on_sent(&range);
        }
        assert_eq!(buffer.unsent(), 18, "flow control blocks new bytes");
        assert_eq!(buffer.on_acked(4..8), 0);
        let cost = buffer.cost();
        buffer.on_lost(0..12);
        assert_eq!(buffer.next_range(100, 18), Some(0..4));
        buffer.on_sent(&(0..4));
        assert_eq!(buffer.next_range(100, 18), Some(8..12));
        assert_eq!(
            buffer.on_acked(0..4),
            8,
            "bytes 0 to 8 are now fully acknowledged"
        );
        assert_eq!(buffer.cost(), cost - 8);
        let mut out = [0; 6];
        buffer.copy_to(8, &mut out);
        assert_eq!(&out, b"89abcd");
        assert_eq!(buffer.piece(&mut 7, 9, 10), b"9");
        assert_eq!(
            buffer.on_acked(8..18),
            10 + CHUNK_OVERHEAD,
            "the bytes and their chunk are freed"
        );
        assert_eq!(buffer.next_range(9, 20), Some(18..20));
    }

    /// The memory that the buffer occupies: capacities of its own chunks, lengths of shared ones,
    /// and places in the queue.
    fn occupied(buffer: &SendBuffer) -> usize {
        let of = |(_, chunk): &(u64, Chunk)| match chunk {
            Chunk::Shared(bytes) => bytes.len(),
            Chunk::Copied(bytes) => bytes.capacity(),
        };
        let places = buffer.chunks.capacity() * size_of::<(u64, Chunk)>();
        buffer.chunks.iter().map(of).sum::<usize>() + places
    }

    #[test]
    fn memory_follows_the_bytes_written_not_the_number_of_writes() {
        const TOTAL: usize = 300_000;
        for size in [1, 2, 7, 64, 100, 1000, 1024, 1025, 5000, 70_000] {
            for copies in [false, true] {
                let mut buffer = SendBuffer::default();
                let bytes = vec![7; size];
                for _ in 0..TOTAL.div_ceil(size) {
                    if copies {
                        buffer.write_copy(&bytes);
                    } else {
                        // A separate allocation, as an application makes it.
                        buffer.write(Bytes::from(bytes.clone()));
                    }
                }
                let written = buffer.end() as usize;
                let occupied = occupied(&buffer);
                assert!(
                    occupied <= 3 * written,
                    "{occupied} bytes for {written} in writes of {size}"
                );
                assert!(buffer.cost() >= written as u64);
                let cost = buffer.cost();
                assert_eq!(buffer.on_acked(0..written as u64), cost);
                assert_eq!((buffer.cost(), buffer.chunks.len()), (0, 0));
            }
        }
    }

    #[test]
    fn chunks_for_copies_grow_while_the_first_ones_are_acknowledged() {
        const LAG: u64 = 20_000;
        let mut buffer = SendBuffer::default();
        for _ in 0..10_000 {
            buffer.write_copy(&[7; 10]);
            if let Some(acked) = buffer.end().checked_sub(LAG) {
                buffer.on_acked(0..acked);
            }
        }
        assert!(buffer.chunks.len() <= 4, "{} chunks", buffer.chunks.len());
    }

    #[test]
    fn a_single_message_is_not_copied() {
        let mut buffer = SendBuffer::default();
        let message = Bytes::from(vec![7; 100]);
        buffer.write(message.clone());
        buffer.write(message.clone());
        assert_eq!(buffer.piece(&mut 0, 0, 200).as_ptr(), message.as_ptr());
        assert_ne!(buffer.piece(&mut 0, 100, 200).as_ptr(), message.as_ptr());
        let tiny = message.slice(..FIRST_CHUNK);
        let mut buffer = SendBuffer::default();
        buffer.write(tiny.clone());
        assert_ne!(buffer.piece(&mut 0, 0, 200).as_ptr(), tiny.as_ptr());
    }

    #[test]
    fn copies_and_shared_chunks_keep_their_order() {
        let written: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        let mut buffer = SendBuffer::default();
        let (mut rest, mut size) = (&written[..], 1);
        while !rest.is_empty() {
            size = (size * 7 + 3) % 3000 + 1;
            let (now, then) = rest.split_at(size.min(rest.len()));
            if size % 2 == 0 {
                buffer.write(Bytes::copy_from_slice(now));
            } else {
                buffer.write_copy(now);
            }
            rest = then;
        }
        let mut out = vec![0; written.len()];
        buffer.copy_to(0, &mut out);
        assert_eq!(out, written);
        buffer.truncate(9_999);
        let mut out = vec![0; 9_999];
        buffer.copy_to(0, &mut out);
        assert_eq!(out, written[..9_999]);
    }
}
