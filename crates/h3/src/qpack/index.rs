//! The index of the encoder's table: which entries have a line or a name, and when each was used.

use std::collections::VecDeque;

/// A hash of a name, which may be given by its place in the static table.
#[inline]
pub(super) fn hash_name(name: &[u8], static_name: Option<u8>) -> u64 {
    match static_name {
        Some(first) => mix(u64::from(first), FACTORS[0]),
        None => hash(name.len() as u64, name),
    }
}

/// A hash of a line, from that of its name.
#[inline]
pub(super) fn hash_line(name: u64, value: &[u8]) -> u64 {
    hash(name ^ value.len() as u64, value)
}

/// The golden ratio and another number without a pattern, both odd.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xe703_7ed1_a0b4_28db];

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Matches of a hash are compared, and a table has so few entries that collisions cost little: the
/// hash need not withstand attacks. It takes 16 bytes at a time, and rereads some where that avoids
/// handling single bytes at the end.
#[inline]
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let both = |hash: u64, words: [u8; 16]| {
        let both = u128::from_le_bytes(words);
        mix(both as u64 ^ FACTORS[0], (both >> 64) as u64 ^ hash)
    };
    let start = seed ^ FACTORS[1];
    if let Some(last) = bytes.last_chunk::<16>() {
        let (words, _) = bytes.as_chunks::<16>();
        let hash = words.iter().fold(start, |hash, words| both(hash, *words));
        return both(hash, *last);
    }
    let mut words = [0; 16];
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        words[..8].copy_from_slice(first);
        words[8..].copy_from_slice(last);
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        words[..4].copy_from_slice(first);
        words[8..12].copy_from_slice(last);
    } else if let (Some(first), Some(last)) = (bytes.first(), bytes.last()) {
        words[0] = *first;
        words[1] = bytes.get(1).copied().unwrap_or_default();
        words[8] = *last;
    }
    both(start, words)
}

/// An entry without its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    line: u32,
    name: u32,
    /// The next older entry in the same bucket, by the low bits of its absolute index.
    older_line: u32,
    older_name: u32,
    /// When it was last inserted or referenced, counted in lines.
    pub(super) last_used: u32,
    /// The size of the entry, and of all entries ever inserted up to it.
    pub(super) size: usize,
    pub(super) end: u64,
}

/// What is known about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The newest entry.
    pub(super) newest: u64,
    /// The newest entry that may be referenced.
    pub(super) usable: Option<u64>,
}

/// Buckets of entries.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The newest entry of each bucket, by the low bits of its absolute index. A value that was
    /// never set, or whose entry is gone, is recognised by not being an index of `entries`.
    lines: Vec<u32>,
    names: Vec<u32>,
    entries: VecDeque<Meta>,
    dropped: u64,
    dropped_bytes: u64,
    inserted_bytes: u64,
}

/// The bits of a hash that are compared.
const fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32
}

impl Index {
    /// An empty index for a table of `capacity` bytes.
    pub(super) fn new(capacity: usize) -> Self {
        // Entries usually have 60 to 80 bytes.
        let buckets = (capacity / 64).next_power_of_two().clamp(16, 512);
        Self {
            lines: vec![u32::MAX; buckets],
            names: vec![u32::MAX; buckets],
            ..Self::default()
        }
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize % self.lines.len().max(1)
    }

    /// An entry by the low bits of its absolute index, if there is one.
    fn absolute(&self, low: u32) -> Option<u64> {
        let at = u64::from(low.wrapping_sub(self.dropped as u32));
        (at < self.entries.len() as u64).then_some(self.dropped + at)
    }

    pub(super) fn get(&self, absolute: u64) -> Option<&Meta> {
        let at = absolute.checked_sub(self.dropped)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// The entries, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Meta)> {
        (self.dropped..).zip(&self.entries)
    }

    /// Adds the newest entry.
    pub(super) fn insert(&mut self, name: u64, line: u64, size: usize, now: u32) {
        let absolute = (self.dropped + self.entries.len() as u64) as u32;
        self.inserted_bytes += size as u64;
        let mut meta = Meta {
            line: fingerprint(line),
            name: fingerprint(name),
            older_line: u32::MAX,
            older_name: u32::MAX,
            last_used: now,
            size,
            end: self.inserted_bytes,
        };
        let (line, name) = (self.bucket(line), self.bucket(name));
        if let Some(head) = self.lines.get_mut(line) {
            meta.older_line = std::mem::replace(head, absolute);
        }
        if let Some(head) = self.names.get_mut(name) {
            meta.older_name = std::mem::replace(head, absolute);
        }
        self.entries.push_back(meta);
    }

    /// Removes the oldest entries.
    pub(super) fn evict(&mut self, count: usize) {
        for meta in self.entries.drain(..count.min(self.entries.len())) {
            self.dropped += 1;
            self.dropped_bytes += meta.size as u64;
        }
    }

    /// Records a use of an entry. Returns how many lines ago it was last used.
    pub(super) fn touch(&mut self, absolute: u64, now: u32) -> u32 {
        let at = usize::try_from(absolute - self.dropped).unwrap_or(usize::MAX);
        let before = match self.entries.get_mut(at) {
            Some(meta) => std::mem::replace(&mut meta.last_used, now),
            None => now,
        };
        now.wrapping_sub(before)
    }

    /// The bytes to evict until this entry is gone, itself included.
    pub(super) fn bytes_to(&self, absolute: u64) -> u64 {
        self.get(absolute)
            .map_or(0, |meta| meta.end - self.dropped_bytes)
    }

    /// The newest entry of a line, and the newest one below `usable`.
    pub(super) fn find_line(
        &self,
        hash: u64,
        usable: u64,
        equals: impl Fn(u64) -> bool,
    ) -> Option<Found> {
        let wanted = fingerprint(hash);
        let mut found: Option<Found> = None;
        let mut next = self.lines.get(self.bucket(hash)).copied();
        let mut last = u64::MAX;
        while let Some(absolute) = next.and_then(|low| self.absolute(low))
            && absolute < last
            && let Some(meta) = self.get(absolute)
        {
            if meta.line == wanted && equals(absolute) {
                let newest = found.map_or(absolute, |found| found.newest);
                let here = (absolute < usable).then_some(absolute);
                found = Some(Found {
                    newest,
                    usable: here,
                });
                if here.is_some() {
                    break;
                }
            }
            last = absolute;
            next = Some(meta.older_line);
        }
        found
    }

    /// The newest entry below `usable` with a name.
    pub(super) fn find_name(
        &self,
        hash: u64,
        usable: u64,
        equals: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let wanted = fingerprint(hash);
        let mut next = self.names.get(self.bucket(hash)).copied();
        let mut last = u64::MAX;
        while let Some(absolute) = next.and_then(|low| self.absolute(low))
            && absolute < last
            && let Some(meta) = self.get(absolute)
        {
            if absolute < usable && meta.name == wanted && equals(absolute) {
                return Some(absolute);
            }
            last = absolute;
            next = Some(meta.older_name);
        }
        None
    }
}
