//! The bytes of a stream from the application's hands to the peer's acknowledgement.
//!
//! The application's `Bytes` are kept as they came; packets refer to ranges of offsets. A loss puts a range back in
//! line, an acknowledgement frees the chunks that it completes. Nothing is copied here.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use crate::range_set::RangeSet;

/// Bytes written and not yet acknowledged.
#[derive(Debug, Default)]
pub(crate) struct SendBuffer {
    /// Offset of each chunk's first byte, and the chunk.
    chunks: VecDeque<(u64, Bytes)>,
    /// All bytes below are acknowledged and gone.
    base: u64,
    /// Offset behind the last byte written.
    end: u64,
    /// Offset of the first byte never sent.
    unsent: u64,
    /// Acknowledged ranges above `base`.
    acked: RangeSet,
    /// Ranges to be sent again.
    lost: RangeSet,
}

impl SendBuffer {
    /// Offset behind the last byte written.
    #[must_use]
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// Offset of the first byte that was never sent.
    #[must_use]
    pub(crate) const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Bytes held: written and not acknowledged.
    #[must_use]
    pub(crate) const fn held(&self) -> u64 {
        self.end - self.base
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

    /// Whether anything waits to be sent, flow control aside.
    #[must_use]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.unsent < self.end || self.has_lost()
    }

    /// Appends `data`.
    pub(crate) fn write(&mut self, data: Bytes) {
        if !data.is_empty() {
            let start = self.end;
            self.end += data.len() as u64;
            self.chunks.push_back((start, data));
        }
    }

    /// The next range to be sent, at most `max` bytes long, new bytes only below `limit`; lost bytes come first.
    #[inline]
    pub(crate) fn next_range(&self, max: u64, limit: u64) -> Option<Range<u64>> {
        if let Some(lost) = self.lost.first() {
            return Some(lost.start..lost.end.min(lost.start + max));
        }
        let end = self.end.min(limit).min(self.unsent + max);
        (end > self.unsent).then_some(self.unsent..end)
    }

    /// Notes that `range` is in a packet now.
    #[inline]
    pub(crate) fn on_sent(&mut self, range: &Range<u64>) {
        if !self.lost.is_empty() {
            self.lost.remove(range.clone());
        }
        self.unsent = self.unsent.max(range.end);
    }

    /// Notes that the peer has `range`; returns how many bytes that freed.
    pub(crate) fn on_acked(&mut self, range: Range<u64>) -> u64 {
        // Behind the end lies what was given up after it was sent.
        let range = range.start.min(self.end)..range.end.min(self.end);
        self.lost.remove(range.clone());
        let before = self.base;
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
                self.chunks.pop_front();
            }
        } else {
            self.acked.insert(range);
        }
        self.base - before
    }

    /// Notes that `range` was lost: what is not acknowledged of it is sent again.
    pub(crate) fn on_lost(&mut self, range: Range<u64>) {
        let range = range.start.max(self.base)..range.end.min(self.end);
        self.lost.insert(range.clone());
        for acked in self
            .acked
            .iter()
            .filter(|a| a.start < range.end && a.end > range.start)
        {
            self.lost.remove(acked.clone());
        }
    }

    /// Nothing of what was sent has arrived, and nothing is acknowledged: all is as new.
    pub(crate) fn rewind(&mut self) {
        self.unsent = self.base;
        self.lost = RangeSet::new();
    }

    /// Puts everything not acknowledged back in line (RFC 9002 §6.2.4 and Retry).
    pub(crate) fn on_all_lost(&mut self) {
        self.on_lost(self.base..self.unsent);
    }

    /// Gives up all bytes from `end` on. Returns how many were held.
    pub(crate) fn truncate(&mut self, end: u64) -> u64 {
        let before = self.held();
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
        before - self.held()
    }

    /// The contiguous bytes at `offset`, at most `max`; empty if they are gone. `chunk` says which chunk may hold them, and then
    /// which one does: the next bytes are there or one further.
    #[inline]
    #[must_use]
    pub(crate) fn piece(&self, chunk: &mut usize, offset: u64, max: usize) -> &[u8] {
        let holds = |c: Option<&(u64, Bytes)>| {
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

    /// Drops all bytes: the stream was reset. Returns how many were held.
    pub(crate) fn clear(&mut self) -> u64 {
        let held = self.held();
        self.chunks = VecDeque::new();
        self.base = self.end;
        self.unsent = self.end;
        self.acked = RangeSet::new();
        self.lost = RangeSet::new();
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_ranges_come_first_and_acknowledged_ones_never_again() {
        let mut buffer = SendBuffer::default();
        buffer.write(Bytes::from_static(b"0123456789"));
        buffer.write(Bytes::from_static(b"abcdefghij"));
        while let Some(range) = buffer.next_range(4, 18) {
            buffer.on_sent(&range);
        }
        assert_eq!(buffer.unsent(), 18, "flow control stops new bytes");
        assert_eq!(buffer.on_acked(4..8), 0);
        buffer.on_lost(0..12);
        assert_eq!(buffer.next_range(100, 18), Some(0..4));
        buffer.on_sent(&(0..4));
        assert_eq!(buffer.next_range(100, 18), Some(8..12));
        assert_eq!(buffer.on_acked(0..4), 8, "0 to 8 are complete now");
        assert_eq!(buffer.held(), 12);
        let mut out = [0; 6];
        buffer.copy_to(8, &mut out);
        assert_eq!(&out, b"89abcd");
        assert_eq!(buffer.piece(&mut 7, 9, 10), b"9");
        assert_eq!(buffer.on_acked(8..18), 10);
        assert_eq!(buffer.next_range(9, 20), Some(18..20));
    }
}
