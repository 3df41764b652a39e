//! The dynamic table: RFC 9204 §3.2.

use super::field::LINE_OVERHEAD;
use std::collections::VecDeque;

/// The text of dropped entries is removed when there is more of it than this, and more than of
/// present entries. So on average every byte is moved at most once.
const DEAD_TEXT: usize = 1024;

/// The smallest entry: the table holds at most `capacity / 32` of them (RFC 9204 §4.5.1.1).
pub(super) const SMALLEST_ENTRY: usize = LINE_OVERHEAD;

/// An entry was not made because it is larger than the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryTooLarge;

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// The first index of the name in the static table, if known.
    pub(super) static_name: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Where its name begins, counted from the first byte ever in the table.
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
    /// Names and values, oldest entry first, perhaps preceded by those of dropped ones. The end may
    /// hold those of an entry under construction.
    text: Vec<u8>,
    /// Bytes removed before `text`.
    removed: u64,
    /// Where the text of the entry under construction begins, counted as in [`Place`].
    draft: u64,
    entries: VecDeque<Place>,
    /// Number of entries evicted, and so the absolute index of the oldest.
    dropped: u64,
    size: usize,
    capacity: usize,
}

impl Table {
    /// Number of entries ever inserted: the absolute index of the next one.
    #[inline]
    pub(super) fn insert_count(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// The size of all entries together (RFC 9204 §3.2.1).
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// The largest size.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the largest size, and evicts entries beyond it. Returns how many.
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

    /// The entry with this absolute index, unless it was dropped or does not exist yet.
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

    /// Begins an entry: append its name and then its value to the returned buffer;
    /// [`insert`](Self::insert) then makes it an entry.
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

    /// The text appended to the entry under construction.
    pub(super) fn draft_mut(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    fn start_of_live(&self) -> u64 {
        let end = self.removed + self.text.len() as u64;
        self.entries.front().map_or(end, |oldest| oldest.start)
    }

    /// Begins an entry with the name of another one, which the new entry may evict. Returns the
    /// length of the name and its static index; `None` if there is no such entry.
    pub(super) fn begin_with_name_of(&mut self, absolute: u64) -> Option<(usize, Option<u8>)> {
        self.begin();
        let place = *self.place(absolute)?;
        let start = usize::try_from(place.start - self.removed).ok()?;
        let name_len = place.name_len as usize;
        self.text.extend_from_within(start..start + name_len);
        Some((name_len, place.static_name))
    }

    /// Makes an entry of the text appended since it began: a name of `name_len` bytes and a value.
    /// Evicts others to make room, and returns how many.
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

    /// Inserts a copy of an entry. Returns how many were evicted to make room; `None` if there is
    /// no such entry.
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
