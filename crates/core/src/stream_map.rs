//! A map from stream ids for connections of which most have a stream or two at a time.
//!
//! The first few entries lie in the map itself, and so in the state of the connection, which is in
//! the caches whenever a stream is looked up. A hash table has cache lines of its own, different
//! ones for each stream; only further entries are in one.

use std::collections::HashMap;

use squall_wire::StreamId;

use crate::stream_hash::StreamHash;

/// Entries in place.
const IN_PLACE: usize = 2;
/// While the table has fewer entries than this, a new stream takes the place of an older one, which
/// goes to the table: streams that are kept for long, such as HTTP/3's control streams, do not
/// occupy the places.
const FEW: usize = 16;

/// A map from stream ids.
#[derive(Debug)]
pub struct StreamMap<V> {
    in_place: [Option<(StreamId, V)>; IN_PLACE],
    /// The place that is emptied next if all are taken.
    oldest: u8,
    others: HashMap<StreamId, V, StreamHash>,
}

impl<V> Default for StreamMap<V> {
    fn default() -> Self {
        Self {
            in_place: [const { None }; IN_PLACE],
            oldest: 0,
            others: HashMap::default(),
        }
    }
}

impl<V> StreamMap<V> {
    /// The entry of a stream.
    #[inline]
    #[must_use]
    pub fn get(&self, id: StreamId) -> Option<&V> {
        for (key, value) in self.in_place.iter().flatten() {
            if *key == id {
                return Some(value);
            }
        }
        self.others.get(&id)
    }

    /// The entry of a stream.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, id: StreamId) -> Option<&mut V> {
        for (key, value) in self.in_place.iter_mut().flatten() {
            if *key == id {
                return Some(value);
            }
        }
        self.others.get_mut(&id)
    }

    /// The entry of a stream, made if there is none.
    #[inline]
    pub fn get_or_default(&mut self, id: StreamId) -> &mut V
    where
        V: Default,
    {
        match self.place_for(id) {
            Some(at) => {
                &mut self.in_place[at]
                    .get_or_insert_with(|| (id, V::default()))
                    .1
            }
            None => self.others.entry(id).or_default(),
        }
    }

    /// The place in which the entry of a stream lies, or a free one if there is none. `None`: the
    /// table.
    #[inline]
    fn place_for(&self, id: StreamId) -> Option<usize> {
        let mut places = self.in_place.iter();
        let here = places.position(|place| place.as_ref().is_some_and(|(key, _)| *key == id));
        if here.is_some() || self.others.contains_key(&id) {
            return here;
        }
        self.in_place.iter().position(Option::is_none)
    }

    /// Adds the entry of a stream, which must not have one.
    #[inline]
    pub fn insert(&mut self, id: StreamId, value: V) {
        debug_assert!(self.get(id).is_none(), "a stream has one entry");
        match self.in_place.iter_mut().find(|place| place.is_none()) {
            Some(free) => *free = Some((id, value)),
            None => self.insert_into_full(id, value),
        }
    }

    fn insert_into_full(&mut self, id: StreamId, value: V) {
        let mut to_table = (id, value);
        if self.others.len() < FEW {
            let place = &mut self.in_place[usize::from(self.oldest)];
            self.oldest = (self.oldest + 1) % IN_PLACE as u8;
            if let Some(older) = place {
                std::mem::swap(older, &mut to_table);
            }
        }
        let (id, value) = to_table;
        self.others.insert(id, value);
    }

    /// Removes the entry of a stream if it has one and `is_done` says so.
    #[inline]
    pub fn remove_if(&mut self, id: StreamId, is_done: impl FnOnce(&mut V) -> bool) {
        for place in &mut self.in_place {
            if let Some((key, value)) = place
                && *key == id
            {
                if is_done(value) {
                    *place = None;
                }
                return;
            }
        }
        if let Some(value) = self.others.get_mut(&id)
            && is_done(value)
        {
            self.others.remove(&id);
        }
    }

    /// All entries, in no particular order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let in_place = self.in_place.iter_mut().flatten().map(|(_, value)| value);
        in_place.chain(self.others.values_mut())
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_place.iter().flatten().count() + self.others.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees the table if it is empty and has room for many entries.
    #[inline]
    pub fn free_if_empty(&mut self) {
        if self.others.is_empty() && self.others.capacity() > 2 * FEW {
            self.others = HashMap::default();
        }
    }

    /// Frees unused memory.
    pub fn shrink_to_fit(&mut self) {
        self.others.shrink_to_fit();
    }

    /// Bytes of memory that the table takes, roughly.
    #[must_use]
    pub fn memory(&self) -> usize {
        // The table has a byte for each entry.
        self.others.capacity() * (size_of::<(StreamId, V)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use squall_wire::{Direction, Side};

    use super::*;

    fn id(index: u64) -> StreamId {
        StreamId::new(Side::Client, Direction::Bidirectional, index)
    }

    /// Compares with another map, however entries come, go and are looked up.
    #[test]
    fn an_entry_is_found_wherever_it_lies() {
        let mut below = crate::common::numbers(1);
        let mut map = StreamMap::<u64>::default();
        let mut twin = BTreeMap::<u64, u64>::new();
        for step in 1..20_000 {
            // So few that all lie in place at times, and more than move to the table.
            let index = below(if step % 2_000 < 1_000 { 4 } else { 60 });
            match below(5) {
                0 if !twin.contains_key(&index) => {
                    map.insert(id(index), step);
                    twin.insert(index, step);
                }
                0 | 1 => {
                    *map.get_or_default(id(index)) += step;
                    *twin.entry(index).or_default() += step;
                }
                2 => {
                    let mut seen = None;
                    map.remove_if(id(index), |value| {
                        seen = Some(*value);
                        *value % 8 != 0
                    });
                    let expected = twin.get(&index).copied();
                    assert_eq!(seen, expected);
                    if expected.is_some_and(|value| value % 8 != 0) {
                        twin.remove(&index);
                    }
                }
                3 => {
                    let values = (map.get_mut(id(index)), twin.get_mut(&index));
                    assert_eq!(values.0, values.1);
                    if let (Some(value), Some(expected)) = values {
                        *value += 1;
                        *expected += 1;
                    }
                }
                _ => assert_eq!(map.get(id(index)), twin.get(&index)),
            }
            assert_eq!((map.len(), map.is_empty()), (twin.len(), twin.is_empty()));
        }
        let (mut all, mut expected): (Vec<_>, Vec<_>) = (
            map.values_mut().map(|value| *value).collect(),
            twin.values().copied().collect(),
        );
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }

    #[test]
    fn entries_that_stay_leave_their_place_to_new_ones() {
        let mut map = StreamMap::default();
        for index in 0..6 {
            map.insert(id(index), ());
        }
        for request in 6..100 {
            map.insert(id(request), ());
            let mut in_place = map.in_place.iter().flatten();
            assert!(in_place.any(|(key, ())| *key == id(request)));
            map.remove_if(id(request), |()| true);
        }
        assert_eq!(map.others.len(), 5);
    }

    #[test]
    fn memory_is_freed() {
        let mut map = StreamMap::default();
        for index in 0..1_000 {
            map.insert(id(index), index);
        }
        assert!(map.memory() > 16_000);
        for index in 0..1_000 {
            map.remove_if(id(index), |_| true);
        }
        map.free_if_empty();
        assert_eq!(map.memory(), 0);
        for index in 0..20 {
            map.insert(id(index), index);
        }
        for index in 0..20 {
            map.remove_if(id(index), |_| true);
        }
        map.free_if_empty();
        assert!(map.memory() > 0, "room for a few is kept");
        map.shrink_to_fit();
        assert_eq!(map.memory(), 0);
    }
}
