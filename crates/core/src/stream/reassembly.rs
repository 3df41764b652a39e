//! Stream bytes put in order.
//!
//! ```text
//!  segments   chunks of bytes, disjoint and sorted by offset: what the reader gets, and large
//!             pieces behind gaps
//!  cells      64 bytes each, with a bit for each byte that is there: small pieces after gaps
//! ```
//!
//! Bytes are copied once, from the datagram to the end of the segment that they continue. In the
//! common case that is the last segment and its chunk has room: a compare and a copy. Chunks that
//! the reader has finished with return through the pool (`chunk_pool`), so a steady transfer
//! allocates nothing. A bundle that bulk data fills is opened into a chunk of its own, which
//! becomes a segment without a copy (`connection/receive/ahead.rs`).
//!
//! If each small piece had its own segment, a peer that sends single bytes would make us allocate
//! for each of them, and move thousands of segments for one that lies between others: 161 ns per
//! byte of input, whereas bulk costs 0.5 (`crates/sim/tests/work/main.rs`). In a cell a piece is a
//! look-up and a copy, wherever it lies. When the bytes before it have arrived, it is copied into a
//! segment.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::chunk_pool::{ChunkPool, LARGEST};
use super::segment::Segment;
use super::unordered::Unordered;
use crate::config::MAX_STREAM_FRAGMENTS;

/// The smallest chunk for a stream that has received more than one datagram.
const LEAST_CHUNK: usize = 2 * 1024;
/// Stream bytes after which chunks have room for more data than has arrived. Requests and answers
/// end before that: with a whole chunk each, 100 in flight were 1.6 MB of heap that came and went,
/// and a client paid 4.5 µs for an answer of 1 KiB, half of it page faults, instead of 2.0
/// (`peers -- transport`, W3, alternating on a busy Zen 5).
const ROOM_AFTER: u64 = 4 * 1024;

/// The longest beginning of a stream, or piece after a gap, that gets a chunk from the pool: a
/// datagram's.
const SMALL_MESSAGE: usize = 2 * 1024;
/// Segment places kept for the next stream.
const KEPT_PLACES: usize = 8;

/// The size from which a piece after a gap gets a segment: moving its neighbours is then cheap
/// compared with its bytes.
const LARGE_PIECE: usize = 512;
/// The same if it continues the last received byte, so that nothing is moved.
const LAST_PIECE: usize = 64;

const _: () = assert!(LAST_PIECE <= LARGE_PIECE);

/// Bytes of a cell: as many as its mask has bits.
const CELL: u64 = u64::BITS as u64;

/// Some of the bytes of a stream, at a multiple of `CELL`.
#[derive(Debug)]
struct Cell {
    /// Which bytes are present, from the lowest bit on.
    mask: u64,
    bytes: [u8; CELL as usize],
}

/// Cells of a page.
const PAGE_CELLS: usize = 64;
/// Bytes of a stream that a page covers.
const PAGE: u64 = CELL * PAGE_CELLS as u64;

/// The cells for a few thousand bytes, in the order in which they were begun.
#[derive(Debug)]
struct Page {
    /// Which cell covers which bytes; `NO_CELL` if none does.
    places: [u8; PAGE_CELLS],
    cells: Vec<Cell>,
}

const NO_CELL: u8 = u8::MAX;
const _: () = assert!(PAGE_CELLS < NO_CELL as usize);

/// Small pieces that wait for missing data.
///
/// The pages are a table by offset, whose size is a five-hundredth of the flow control credit that
/// the gaps take.
#[derive(Debug, Default)]
struct Cells {
    /// Offset of the first page, in pages.
    base: u64,
    pages: VecDeque<Option<Box<Page>>>,
    /// Cells of all pages.
    count: usize,
    /// Offset after the last byte.
    end: u64,
}

impl Cells {
    const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Stores bytes, all of which lie after `gap`: the place where the first gap begins, which
    /// never moves back.
    fn write(&mut self, gap: u64, mut offset: u64, mut data: &[u8]) {
        if self.is_empty() {
            self.pages.clear();
            self.base = gap / PAGE;
        }
        while !data.is_empty() {
            let at = (offset % CELL) as usize;
            let (here, rest) = data.split_at(data.len().min(CELL as usize - at));
            let Some(cell) = self.cell(offset) else {
                debug_assert!(false, "bytes before the gap have no page");
                return;
            };
            cell.bytes[at..at + here.len()].copy_from_slice(here);
            cell.mask |= (u64::MAX >> (CELL as usize - here.len())) << at;
            offset += here.len() as u64;
            data = rest;
        }
        self.end = self.end.max(offset);
    }

    /// The cell of the byte at `offset`.
    fn cell(&mut self, offset: u64) -> Option<&mut Cell> {
        let page = (offset / PAGE).checked_sub(self.base)? as usize;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages.get_mut(page)?.get_or_insert_with(|| {
            Box::new(Page {
                places: [NO_CELL; PAGE_CELLS],
                cells: Vec::with_capacity(1),
            })
        });
        let place = page.places.get_mut((offset % PAGE / CELL) as usize)?;
        if *place == NO_CELL {
            *place = page.cells.len() as u8;
            self.count += 1;
            page.cells.push(Cell {
                mask: 0,
                bytes: [0; CELL as usize],
            });
        }
        page.cells.get_mut(usize::from(*place))
    }

    /// Forgets the pages entirely below `offset`, and all pages if nothing lies after it.
    fn drop_below(&mut self, offset: u64) {
        if self.end <= offset {
            *self = Self::default();
            return;
        }
        while (self.base + 1) * PAGE <= offset
            && let Some(page) = self.pages.pop_front()
        {
            self.base += 1;
            self.count -= page.map_or(0, |p| p.cells.len());
        }
    }

    /// All bytes, in pieces without gaps, each with its offset.
    fn runs(&self) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        let places = (self.base..).zip(&self.pages);
        let pages = places.filter_map(|(at, page)| Some((at * PAGE, page.as_deref()?)));
        let cells = pages.flat_map(|(start, page)| {
            let offsets = (start..).step_by(CELL as usize).zip(page.places);
            offsets
                .filter_map(|(offset, place)| Some((offset, page.cells.get(usize::from(place))?)))
        });
        cells.flat_map(|(start, cell)| {
            let begins =
                |i: &u32| cell.mask >> i & 1 == 1 && (*i == 0 || cell.mask >> (i - 1) & 1 == 0);
            (0..u64::BITS).filter(begins).map(move |i| {
                let len = (cell.mask >> i).trailing_ones() as usize;
                let bytes = cell.bytes.iter().skip(i as usize).take(len);
                (start + u64::from(i), bytes.copied().collect())
            })
        })
    }

    /// The bytes from `offset` up to the end of their cell or the first gap, and how many they are.
    fn at(&self, offset: u64) -> Option<([u8; CELL as usize], usize)> {
        let page = (offset / PAGE).checked_sub(self.base)? as usize;
        let page = self.pages.get(page)?.as_ref()?;
        let place = *page.places.get((offset % PAGE / CELL) as usize)?;
        let cell = page.cells.get(usize::from(place))?;
        let skip = (offset % CELL) as usize;
        let len = (cell.mask >> skip).trailing_ones() as usize;
        let mut bytes = [0; CELL as usize];
        bytes[..len].copy_from_slice(cell.bytes.get(skip..skip + len)?);
        (len > 0).then_some((bytes, len))
    }
}

/// The stream has more gaps than memory is granted for: drop the packet unacknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFragmented;

/// Bytes received of one stream, from the reader's position on.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    read: u64,
    /// Every byte from `read` up to here is in the segments; perhaps more.
    contiguous: u64,
    segments: VecDeque<Segment>,
    /// Bytes that were in none of the segments when they arrived.
    cells: Cells,
    /// Size of the next chunk, in bytes: it follows how much arrives between two times at which the
    /// reader has read everything.
    next_chunk: u32,
    /// Where the reader last had read everything.
    emptied_at: u64,
    /// Bytes of dropped chunks that the pool still counts as lent.
    cleared: usize,
    /// Small messages are put into chunks of the pool, so that a request costs no allocation. Those
    /// of the handshake are not: nothing similar follows.
    pools_small: bool,
    /// The reader wants order of arrival: its bytes are here, and neither in segments nor in cells.
    unordered: Option<Box<Unordered>>,
}

impl Reassembly {
    /// For a stream of the application.
    pub(crate) fn of_stream() -> Self {
        Self {
            pools_small: true,
            ..Self::default()
        }
    }

    /// Resets this to the state of a new stream, and keeps memory for its first segments.
    pub(crate) fn recycle(&mut self) {
        // Every part is named, so that none is forgotten.
        let Self {
            read,
            contiguous,
            segments,
            cells,
            next_chunk,
            emptied_at,
            cleared,
            pools_small,
            unordered,
        } = self;
        (*read, *contiguous, *emptied_at) = (0, 0, 0);
        (*next_chunk, *cleared, *pools_small) = (0, 0, true);
        segments.clear();
        if segments.capacity() > KEPT_PLACES {
            *segments = VecDeque::new();
        }
        (*cells, *unordered) = (Cells::default(), None);
    }

    /// Offset of the next byte that an in-order reader gets.
    #[must_use]
    pub(crate) const fn read_offset(&self) -> u64 {
        self.read
    }

    /// Whether the reader has every byte below `offset`.
    #[must_use]
    pub(crate) fn has_read(&self, offset: u64) -> bool {
        self.read >= offset
            || (self.unordered.as_ref()).is_some_and(|u| !u.is_readable() && u.covers(offset))
    }

    /// Whether every byte below `offset` has arrived.
    #[must_use]
    pub(crate) fn has_received(&mut self, offset: u64) -> bool {
        match &self.unordered {
            Some(unordered) => self.read.max(offset) == self.read || unordered.covers(offset),
            None => self.first_gap() >= offset,
        }
    }

    /// Whether the reader takes bytes in order of arrival.
    #[must_use]
    pub(crate) const fn is_unordered(&self) -> bool {
        self.unordered.is_some()
    }

    /// Whether the reader would get at least one byte now.
    #[must_use]
    pub(crate) fn is_readable(&self) -> bool {
        match self.segments.front() {
            Some(first) => first.start == self.read && !first.is_empty(),
            None => self.unordered.is_some() && self.is_readable_unordered(),
        }
    }

    #[cold]
    fn is_readable_unordered(&self) -> bool {
        self.unordered.as_ref().is_some_and(|u| u.is_readable())
    }

    /// Number of pieces, which cost memory in addition to their bytes: segments and cells.
    #[must_use]
    pub(crate) fn pieces(&self) -> usize {
        match &self.unordered {
            None => self.segments.len() + self.cells.count,
            Some(unordered) => unordered.pieces(),
        }
    }

    /// Size of the segments' chunks.
    #[must_use]
    pub(crate) fn held(&self) -> usize {
        match &self.unordered {
            None => self.segments.iter().map(Segment::size).sum(),
            Some(unordered) => unordered.held(),
        }
    }

    /// Size of the chunks that [`clear`](Self::clear) dropped, to be reported to the pool once.
    pub(crate) fn take_cleared(&mut self) -> usize {
        std::mem::take(&mut self.cleared)
    }

    /// How many more segments there may be.
    #[must_use]
    pub(crate) fn room(&self) -> usize {
        MAX_STREAM_FRAGMENTS.saturating_sub(self.segments.len())
    }

    /// Whether bytes at `offset` continue existing ones: up to the first gap, or at the end of the
    /// last segment. They are accepted even if no memory is left for more pieces, so that a full
    /// stream always makes progress.
    #[must_use]
    pub(crate) fn continues(&mut self, offset: u64) -> bool {
        if let Some(unordered) = &self.unordered {
            return unordered.continues(offset);
        }
        offset <= self.first_gap() || self.segments.back().is_some_and(|s| s.end() == offset)
    }

    /// Whether the existing bytes end at `offset`.
    #[must_use]
    pub(crate) fn ends_at(&self, offset: u64) -> bool {
        let end = self.segments.back().map_or(self.read, Segment::end);
        end == offset && self.cells.is_empty() && self.unordered.is_none()
    }

    /// Whether the bytes of a stream of this size, at least one, lie in a single segment.
    #[must_use]
    pub(crate) fn is_whole(&self, size: u64) -> bool {
        let first = self.segments.front();
        first.is_some_and(|s| s.start == 0 && s.end() == size)
    }

    /// Where the first gap in the segments begins.
    fn first_gap(&mut self) -> u64 {
        let mut end = self.contiguous.max(self.read);
        loop {
            let next = self.segments.partition_point(|s| s.start <= end);
            let last = next.checked_sub(1).and_then(|i| self.segments.get(i));
            match last {
                Some(last) if last.end() > end => end = last.end(),
                _ => break,
            }
        }
        self.contiguous = end;
        end
    }

    /// Stores the bytes at `offset`; bytes already held or read are ignored.
    ///
    /// # Errors
    /// `TooFragmented` if there are more gaps than `MAX_STREAM_FRAGMENTS`.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        offset: u64,
        data: &[u8],
        pool: &mut ChunkPool,
    ) -> Result<(), TooFragmented> {
        if let Some(last) = self.segments.back_mut()
            && last.end() == offset
            && last.room() >= data.len()
            && self.cells.is_empty()
        {
            last.append(data);
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
        if self.unordered.is_some() {
            return self.insert_unordered(offset, data, pool);
        }
        let first = self.segments.is_empty() && self.cells.is_empty();
        if first && offset == self.read && !data.is_empty() {
            // A message that arrives whole: there is nothing to compare it with.
            let taken = self.place(0, offset, data, pool);
            if taken == data.len() {
                return Ok(());
            }
        }
        let mut gap = self.first_gap();
        if offset > gap {
            if !self.gets_segment(offset, data.len()) {
                self.cells.write(gap, offset, data);
                return Ok(());
            }
            if self.segments.len() >= MAX_STREAM_FRAGMENTS {
                return Err(TooFragmented);
            }
        }
        self.insert_segments(offset, data, pool);
        while !self.cells.is_empty() {
            gap = self.first_gap().max(gap);
            self.cells.drop_below(gap);
            let Some((bytes, len)) = self.cells.at(gap) else {
                break;
            };
            self.insert_segments(gap, &bytes[..len], pool);
        }
        Ok(())
    }

    #[cold]
    fn insert_unordered(
        &mut self,
        offset: u64,
        data: &[u8],
        pool: &mut ChunkPool,
    ) -> Result<(), TooFragmented> {
        if let Some(unordered) = &mut self.unordered {
            if unordered.room() == 0 && !unordered.continues(offset) {
                return Err(TooFragmented);
            }
            unordered.insert(offset, data, pool);
        }
        Ok(())
    }

    /// Whether a piece after a gap goes into a segment.
    fn gets_segment(&self, offset: u64, len: usize) -> bool {
        let end = self.segments.back().map_or(0, Segment::end);
        len >= LARGE_PIECE
            || offset == end
            || (len >= LAST_PIECE && offset == end.max(self.cells.end))
    }

    /// Stores bytes that go into segments.
    fn insert_segments(&mut self, offset: u64, data: &[u8], pool: &mut ChunkPool) {
        let skip = self.read.saturating_sub(offset).min(data.len() as u64) as usize;
        let (mut offset, mut data) = (offset + skip as u64, &data[skip..]);
        // Walk over the segments that overlap, filling the gaps before each.
        let mut i = self.segments.partition_point(|s| s.end() < offset);
        while !data.is_empty() {
            let gap = match self.segments.get(i) {
                Some(s) if s.start <= offset => {
                    // Already held up to the segment's end.
                    let held = s.end().saturating_sub(offset).min(data.len() as u64) as usize;
                    offset += held as u64;
                    data = &data[held..];
                    let next_start = self.segments.get(i + 1).map_or(u64::MAX, |n| n.start);
                    let room = (next_start - offset).min(data.len() as u64) as usize;
                    let taken = Self::extend(&mut self.segments[i], &data[..room], pool);
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
    }

    /// Appends to a chunk what fits, growing a small one; returns how much.
    fn extend(segment: &mut Segment, data: &[u8], pool: &mut ChunkPool) -> usize {
        if segment.room() < data.len() {
            // A segment after a gap starts at its exact size; the data that follows makes it grow
            // by doubling.
            segment.grow(data.len(), LEAST_CHUNK, pool);
        }
        segment.append(data)
    }

    /// Starts a segment at index `at` with as many bytes of `data` as its chunk holds.
    fn place(&mut self, at: usize, offset: u64, data: &[u8], pool: &mut ChunkPool) -> usize {
        let continues = at == self.segments.len()
            && (offset == self.read
                || at
                    .checked_sub(1)
                    .is_some_and(|i| self.segments[i].end() == offset));
        let last = at.checked_sub(1).and_then(|i| self.segments.get(i));
        let (mut chunk, class) = if last.is_some_and(Segment::is_filled) {
            // Most likely another whole chunk follows.
            pool.take(data.len().min(LARGEST))
        } else if continues && offset >= ROOM_AFTER {
            if at > 0 {
                // The previous chunk was filled while the reader was away.
                self.next_chunk = (2 * self.next_chunk).clamp(LEAST_CHUNK as u32, LARGEST as u32);
            }
            pool.take((self.next_chunk as usize).max(data.len().min(LARGEST)))
        } else {
            // In a short stream, and after a gap, memory follows the bytes that have arrived, not
            // those that may come.
            match data.len() {
                0..=SMALL_MESSAGE if self.pools_small => pool.take(data.len()),
                len => (BytesMut::with_capacity(len), None),
            }
        };
        let size = chunk.capacity();
        pool.note(size);
        let n = data.len().min(size);
        chunk.extend_from_slice(&data[..n]);
        self.segments
            .insert(at, Segment::growing(offset, chunk, class));
        n
    }

    /// Appends a part of a chunk of `size` bytes at `offset`, where the bytes end
    /// ([`ends_at`](Self::ends_at)).
    pub(crate) fn push(&mut self, offset: u64, data: Bytes, size: usize, pool: &mut ChunkPool) {
        pool.note(size);
        self.segments.push_back(Segment::filled(offset, data, size));
    }

    /// The next bytes in order, at most `max`, without a copy.
    pub(crate) fn read(&mut self, max: usize, pool: &mut ChunkPool) -> Option<Bytes> {
        if max == 0 || !self.is_readable() {
            return None;
        }
        let several = self.segments.len() > 1;
        let segment = self.segments.front_mut()?;
        let bytes = segment.take(max);
        self.read += bytes.len() as u64;
        if segment.is_empty()
            && let Some(segment) = self.segments.pop_front()
        {
            if !several {
                // The same amount may arrive before the reader looks again. A stream that receives
                // little holds little memory, even if the reader keeps its data.
                let arrived = (self.read - self.emptied_at).min(LARGEST as u64);
                self.next_chunk = (arrived as u32).next_power_of_two();
                self.emptied_at = self.read;
            }
            segment.give_back(pool);
        }
        Some(bytes)
    }

    /// The next bytes in order of arrival, at most `max`, and their offset. From the first call on,
    /// no other order is possible.
    pub(crate) fn read_unordered(
        &mut self,
        max: usize,
        pool: &mut ChunkPool,
    ) -> Option<(u64, Bytes)> {
        if self.unordered.is_none() {
            self.become_unordered(pool);
        }
        self.unordered.as_mut()?.read(max, pool)
    }

    fn become_unordered(&mut self, pool: &mut ChunkPool) {
        let mut unordered = Unordered::new(self.read);
        for segment in std::mem::take(&mut self.segments) {
            unordered.push(segment);
        }
        for (offset, bytes) in std::mem::take(&mut self.cells).runs() {
            unordered.insert(offset, &bytes, pool);
        }
        self.unordered = Some(Box::new(unordered));
    }

    /// Moves the reader of a stopped stream to `offset` without reading. Drops the data before it.
    pub(crate) fn clear(&mut self, offset: u64) {
        self.cleared += self.held();
        self.segments = VecDeque::new();
        self.cells = Cells::default();
        self.unordered = None;
        self.next_chunk = 0;
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
    fn any_order_and_overlap_reassembles_the_stream() {
        let mut next = crate::common::numbers(7);
        for round in 0..600 {
            let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
            let total = 1 + next(match round % 10 {
                0 => 200_000,
                1..4 => 10_000,
                _ => 400,
            });
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
                    seen.insert(bytes.as_ptr() as usize / LEAST_CHUNK);
                }
            }
        }
        assert!(seen.len() <= 16, "memory is reused: {} places", seen.len());
    }

    #[test]
    fn a_short_stream_takes_memory_for_what_arrived() {
        let (mut stream, mut pool) = (Reassembly::of_stream(), ChunkPool::default());
        stream.insert(0, &[7; 108], &mut pool).unwrap();
        stream.insert(108, &[7; 916], &mut pool).unwrap();
        let held: usize = stream.segments.iter().map(Segment::size).sum();
        assert!((1024..=2048).contains(&held), "{held} bytes for 1,024");
        let read = |stream: &mut Reassembly, pool: &mut ChunkPool| {
            let mut places = Vec::new();
            while let Some(bytes) = stream.read(usize::MAX, pool) {
                places.push(bytes.as_ptr());
            }
            places
        };
        let places = read(&mut stream, &mut pool);
        // The next one gets the same memory.
        stream.recycle();
        stream.insert(0, &[7; 108], &mut pool).unwrap();
        stream.insert(108, &[7; 916], &mut pool).unwrap();
        assert_eq!(read(&mut stream, &mut pool), places);
    }

    /// Whole chunks join what was copied, for readers in either order, and small pieces between
    /// them take little memory.
    #[test]
    fn whole_chunks_are_read_in_turn_with_copied_data() {
        for unordered in [false, true] {
            let (mut stream, mut pool) = (Reassembly::of_stream(), ChunkPool::default());
            let bytes = |start: u64, len: u64| (start..start + len).map(byte).collect::<Vec<_>>();
            let mut offset = 0;
            for i in 0..6 {
                let small = bytes(offset, 1_400 + i);
                stream.insert(offset, &small, &mut pool).unwrap();
                offset += small.len() as u64;
                assert!(stream.ends_at(offset));
                let mut chunk = pool.take_filled().unwrap();
                chunk[500..60_000].copy_from_slice(&bytes(offset, 59_500));
                let chunk = chunk.freeze();
                stream.push(offset, chunk.slice(500..60_000), LARGEST, &mut pool);
                pool.give_filled(chunk);
                offset += 59_500;
            }
            assert_eq!(stream.pieces(), 12);
            assert!(stream.held() <= 6 * (LARGEST + SMALL_MESSAGE));
            let mut read = 0;
            while read < offset {
                let piece = match unordered {
                    true => {
                        let (at, piece) = stream.read_unordered(50_000, &mut pool).unwrap();
                        assert_eq!(at, read);
                        piece
                    }
                    false => stream.read(50_000, &mut pool).unwrap(),
                };
                assert_eq!(piece, bytes(read, piece.len() as u64));
                read += piece.len() as u64;
            }
            assert_eq!(stream.held(), 0);
        }
    }

    /// Chunks grow with the data that arrives between two reads, up to a limit, and shrink again.
    #[test]
    fn chunks_are_sized_by_what_arrives() {
        let (mut stream, mut pool) = (Reassembly::of_stream(), ChunkPool::default());
        let mut offset = 0;
        let mut arrive = |stream: &mut Reassembly, bytes: usize, pool: &mut ChunkPool| {
            for _ in 0..bytes / 1000 {
                stream.insert(offset, &[5; 1000], pool).unwrap();
                offset += 1000;
            }
            let held: usize = stream.segments.iter().map(Segment::size).sum();
            while stream.read(usize::MAX, pool).is_some() {}
            assert!(
                stream.segments.is_empty(),
                "nothing is held when all is read"
            );
            held
        };
        for (bytes, most) in [
            // The stream's beginning is in datagram-sized chunks.
            (200_000, 262_144 + SMALL_MESSAGE),
            (1000, 65_536),
            (1000, 2048),
            (5000, 14_336),
        ] {
            let held = arrive(&mut stream, bytes, &mut pool);
            assert!((bytes..=most).contains(&held), "{held} for {bytes}");
        }
    }

    // test: SECURITY.md row 5
    #[test]
    fn gaps_are_bounded_and_neighbours_merge() {
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        let mut refused = 0;
        for i in 0..10_000u64 {
            let data = [1; LARGE_PIECE];
            let at = 1 + 2 * i * LARGE_PIECE as u64;
            refused += u64::from(stream.insert(at, &data, &mut pool).is_err());
        }
        assert_eq!(refused, 10_000 - MAX_STREAM_FRAGMENTS as u64);
        // Data that fills the first gap is accepted all the same.
        stream.insert(0, &[1], &mut pool).unwrap();
        assert_eq!(stream.read(usize::MAX, &mut pool).unwrap(), [1].as_slice());
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        for i in 0..20_000u64 {
            stream.insert(1 + 2 * i, &[1], &mut pool).unwrap();
        }
        assert_eq!(stream.pieces(), 40_000usize.div_ceil(CELL as usize));
        let pages = stream.cells.pages.len();
        assert_eq!(pages, 40_000usize.div_ceil(PAGE as usize));
        let (mut stream, mut pool) = (Reassembly::default(), ChunkPool::default());
        for i in 1..20_000u64 {
            stream.insert(i, &[1], &mut pool).unwrap();
        }
        assert!(
            stream.pieces() <= 20_000 / CELL as usize + 3,
            "neighbours merge"
        );
        stream.insert(0, &[1], &mut pool).unwrap();
        assert!(
            stream.pieces() <= 8,
            "merged cells become segments once the gap is filled"
        );
    }
}
