//! The dynamic table: RFC 9204 §3.2.

use super::field::LINE_OVERHEAD;
use std::collections::VecDeque;

/// The text of entries that have been dropped is removed when there is more of it than this, and
/// more than of entries that are there. So every byte is moved once, on average, at most.
const DEAD_TEXT: usize = 1024;

/// The smallest entry: of it the table can have `capacity / 32` (RFC 9204 §4.5.1.1).
pub(super) const SMALLEST_ENTRY: usize = LINE_OVERHEAD;

/// An entry that was not made: it is larger than the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryTooLarge;

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// The first index of the name in the static table, where known.
    pub(super) static_name: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Where its name begins, counted from the first byte that the table ever had.
    start: u64,
    name_len: u32,
    value_len: u32,
    static_name: Option<u8>,
}

impl Place {
    const fn len(&self) -> usize {
        self.name_len as usize + self.value_len as usize
    }

    const fn size(&self) -> usize {
        self.len() + LINE_OVERHEAD
    }
}

/// Entries, first in, first out.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Names and values, those of the oldest entry first, perhaps after some of dropped ones. At
    /// the end there may be those of an entry in the making.
    text: Vec<u8>,
    /// Bytes that were removed before `text`.
    removed: u64,
    /// Where the text of the entry in the making begins, counted as in [`Place`].
    draft: u64,
    entries: VecDeque<Place>,
    /// Entries that were evicted, and so the absolute index of the oldest.
    dropped: u64,
    size: usize,
    capacity: usize,
}

impl Table {
    /// All entries that were ever inserted: the absolute index of the next one.
    #[inline]
    pub(super) fn insert_count(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// The size of all entries (RFC 9204 §3.2.1).
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// The largest size.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the largest size, and evicts what exceeds it. Returns how many entries that were.
    pub(super) fn set_capacity(&mut self, capacity: usize) -> usize {
        self.capacity = capacity;
        self.evict_to(capacity)
    }

    fn place(&self, absolute: u64) -> Option<&Place> {
        let at = absolute.checked_sub(self.dropped)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    fn text_of(&self, place: &Place) -> Option<(&[u8], &[u8])> {
        let start = usize::try_from(place.start - self.removed).ok()?;
        let text = self.text.get(start..start + place.len())?;
        text.split_at_checked(place.name_len as usize)
    }

    /// The entry with this absolute index, unless it was dropped or is still to come.
    #[inline]
    pub(super) fn get(&self, absolute: u64) -> Option<Entry<'_>> {
        let place = self.place(absolute)?;
        let (name, value) = self.text_of(place)?;
        Some(Entry {
            name,
            value,
            static_name: place.static_name,
        })
    }

    /// Begins an entry: its name and then its value are to be appended to what is returned, and
    /// [`insert`](Self::insert) makes it one.
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        let start = self.start_of_live();
        let dead = usize::try_from(start - self.removed).unwrap_or(usize::MAX);
        let live = self.text.len().saturating_sub(dead);
        if dead > DEAD_TEXT.max(live) {
            self.text.drain(..dead.min(self.text.len()));
            self.removed = start;
        }
        self.draft = self.removed + self.text.len() as u64;
        &mut self.text
    }

    /// What was appended to the entry in the making.
    pub(super) fn draft_mut(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    fn start_of_live(&self) -> u64 {
        let end = self.removed + self.text.len() as u64;
        self.entries.front().map_or(end, |oldest| oldest.start)
    }

    /// Begins an entry with the name of another one, which may be evicted by it. Returns the length
    /// of the name and its static index; `None` if there is no such entry.
    pub(super) fn begin_with_name_of(&mut self, absolute: u64) -> Option<(usize, Option<u8>)> {
        self.begin();
        let place = *self.place(absolute)?;
        let start = usize::try_from(place.start - self.removed).ok()?;
        let name_len = place.name_len as usize;
        self.text.extend_from_within(start..start + name_len);
        Some((name_len, place.static_name))
    }

    /// Makes an entry of what was appended since it began: a name of `name_len` bytes and a
    /// value. Evicts others for it, and returns how many.
    pub(super) fn insert(
        &mut self,
        name_len: usize,
        static_name: Option<u8>,
    ) -> Result<usize, EntryTooLarge> {
        let end = self.removed + self.text.len() as u64;
        let start = self.draft;
        let len = usize::try_from(end - start).map_err(|_| EntryTooLarge)?;
        let size = len + LINE_OVERHEAD;
        let room = self.capacity.checked_sub(size).ok_or(EntryTooLarge)?;
        let value_len = len.checked_sub(name_len).ok_or(EntryTooLarge)?;
        let narrow = |value: usize| u32::try_from(value).map_err(|_| EntryTooLarge);
        let place = Place {
            start,
            name_len: narrow(name_len)?,
            value_len: narrow(value_len)?,
            static_name,
        };
        let evicted = self.evict_to(room);
        self.entries.push_back(place);
        self.size += size;
        Ok(evicted)
    }

    /// Inserts a copy of an entry. Returns how many were evicted for it; `None` if there is no such
    /// entry.
    pub(super) fn duplicate(&mut self, absolute: u64) -> Option<usize> {
        self.begin();
        let place = *self.place(absolute)?;
        let start = usize::try_from(place.start - self.removed).ok()?;
        self.text.extend_from_within(start..start + place.len());
        self.insert(place.name_len as usize, place.static_name).ok()
    }

    /// Evicts the oldest entries until their size is at most `size`.
    fn evict_to(&mut self, size: usize) -> usize {
        let mut evicted = 0;
        while self.size > size
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size();
            evicted += 1;
        }
        self.dropped += evicted as u64;
        evicted
    }
}
