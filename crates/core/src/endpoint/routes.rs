//! Maps connection ids to connections.
//!
//! With thousands of connections, a look-up mostly waits for memory. Eight-byte ids, the length
//! that squall issues by default, have a table of their own: it takes one cache miss instead of
//! two, and the caller can prefetch it.
//!
//! ```text
//! id ── keyed hash ──► place ─┬─ taken by another: the next place, and so on
//!                             ├─ taken by this one: its handle
//!                             └─ free: no connection
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use squall_protect::prefetch;
use squall_wire::ConnectionId;

use super::ConnectionHandle;
use crate::stream_hash::StreamHash;

/// Places of an empty table.
const FEWEST: usize = 16;

/// A place of the table: an id and the connection that has it.
#[derive(Clone, Copy, Debug)]
struct Place {
    id: u64,
    handle: usize,
}

impl Place {
    /// No connection has this handle.
    const FREE: Self = Self {
        id: 0,
        handle: usize::MAX,
    };

    const fn is_free(self) -> bool {
        self.handle == usize::MAX
    }
}

/// The connections by their ids.
#[derive(Debug)]
pub(super) struct Routes {
    /// A power of two of places; at most three quarters are taken.
    places: Vec<Place>,
    taken: usize,
    /// Keyed, since peers choose the ids of their first packets.
    keys: StreamHash,
    /// Ids of other lengths.
    others: HashMap<ConnectionId, ConnectionHandle>,
}

/// An id of eight bytes as a number.
fn number(id: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(id.try_into().ok()?))
}

impl Routes {
    pub(super) fn new() -> Self {
        Self {
            places: vec![Place::FREE; FEWEST],
            taken: 0,
            keys: StreamHash::default(),
            others: HashMap::new(),
        }
    }

    /// Two rounds: a single one spreads ids chosen at equal distances less well.
    #[inline]
    fn hash(&self, id: u64) -> u64 {
        let mut hasher = self.keys.build_hasher();
        hasher.write_u64(id);
        hasher.write_u64(0);
        hasher.finish()
    }

    /// The first place where an id may be.
    #[inline]
    fn home(&self, id: u64) -> usize {
        self.hash(id) as usize & (self.places.len() - 1)
    }

    /// Where an id is, or else the free place where it would go.
    #[inline]
    fn find(&self, id: u64) -> Result<usize, usize> {
        let last = self.places.len() - 1;
        let mut at = self.home(id);
        loop {
            let place = self.places[at];
            if place.is_free() {
                return Err(at);
            }
            if place.id == id {
                return Ok(at);
            }
            at = (at + 1) & last;
        }
    }

    /// Prefetches the memory for looking up the id.
    #[inline]
    pub(super) fn prefetch(&self, id: &[u8]) {
        if let Some(id) = number(id) {
            prefetch(&self.places[self.home(id)]);
        }
    }

    /// The connection that has the id.
    #[inline]
    pub(super) fn get(&self, id: &ConnectionId) -> Option<ConnectionHandle> {
        match number(id.as_slice()) {
            Some(id) => (self.find(id).ok()).map(|at| ConnectionHandle(self.places[at].handle)),
            None => self.others.get(id).copied(),
        }
    }

    /// Assigns the id to the connection, whichever had it before.
    pub(super) fn insert(&mut self, id: ConnectionId, handle: ConnectionHandle) {
        let Some(id) = number(id.as_slice()) else {
            self.others.insert(id, handle);
            return;
        };
        let place = Place {
            id,
            handle: handle.0,
        };
        match self.find(id) {
            Ok(at) => self.places[at] = place,
            Err(at) => {
                self.places[at] = place;
                self.taken += 1;
                if self.taken > self.places.len() / 4 * 3 {
                    self.grow();
                }
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let free = vec![Place::FREE; 2 * self.places.len()];
        for place in std::mem::replace(&mut self.places, free) {
            if !place.is_free()
                && let Err(at) = self.find(place.id)
            {
                self.places[at] = place;
            }
        }
    }

    /// Removes the id.
    pub(super) fn remove(&mut self, id: &ConnectionId) {
        let Some(id) = number(id.as_slice()) else {
            self.others.remove(id);
            return;
        };
        let Ok(mut hole) = self.find(id) else { return };
        self.taken -= 1;
        // A search ends at a free place, so entries behind it move up, unless that would put them
        // before the place where the search for them begins.
        let last = self.places.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & last;
            let place = self.places[at];
            if place.is_free() {
                break;
            }
            let from_home = at.wrapping_sub(self.home(place.id)) & last;
            let from_hole = at.wrapping_sub(hole) & last;
            if from_home >= from_hole {
                self.places[hole] = place;
                hole = at;
            }
        }
        self.places[hole] = Place::FREE;
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn id(number: u64, len: usize) -> ConnectionId {
        ConnectionId::new(&[number.to_be_bytes(), [7; 8]].concat()[..len]).unwrap()
    }

    /// Thousands of ids that come and go, in a table that is full and one that is nearly empty,
    /// with consecutive ids as well as random ones.
    #[test]
    fn ids_are_found_as_in_a_map() {
        let mut rng = StdRng::seed_from_u64(1);
        for universe in [8, 24, 300, 5000] {
            let (mut routes, mut map) = (Routes::new(), HashMap::new());
            let ids: Vec<ConnectionId> = (0..universe)
                .map(|i| match i % 4 {
                    0 => id(i, 8),
                    1 => id(i << 32, 8),
                    2 => id(rng.random(), 8),
                    _ => id(i, 9 + (i % 8) as usize),
                })
                .collect();
            for step in 0..40_000 {
                let id = ids[rng.random_range(0..ids.len())];
                // First more ids are added than removed, and then the other way round.
                if rng.random_bool(if step < 20_000 { 0.8 } else { 0.2 }) {
                    routes.insert(id, ConnectionHandle(step));
                    map.insert(id, ConnectionHandle(step));
                } else {
                    routes.remove(&id);
                    map.remove(&id);
                }
                let other = ids[rng.random_range(0..ids.len())];
                assert_eq!(routes.get(&id), map.get(&id).copied());
                assert_eq!(routes.get(&other), map.get(&other).copied());
            }
            assert!(ids.iter().all(|id| routes.get(id) == map.get(id).copied()));
            let of_eight = map.keys().filter(|id| id.len() == 8).count();
            assert_eq!(routes.taken, of_eight);
            assert_eq!(routes.others.len(), map.len() - of_eight);
        }
    }

    // test: SECURITY.md row 18: ids that collide cannot be chosen without knowing the endpoint's
    // own key
    #[test]
    fn ids_are_hashed_with_a_key_per_endpoint() {
        let (one, two) = (Routes::new(), Routes::new());
        assert_eq!(one.hash(7), one.hash(7));
        assert_ne!(one.hash(7), two.hash(7));
    }

    /// Ids at equal distances, as a peer may choose them for its first packets, are found at once
    /// or after a few steps.
    #[test]
    fn equally_spaced_ids_do_not_collide() {
        for stride in [
            1_u64,
            2,
            8,
            1 << 16,
            1 << 32,
            1 << 48,
            0x0101_0101_0101_0101,
        ] {
            let mut routes = Routes::new();
            for i in 0..10_000 {
                let number = stride.wrapping_mul(i);
                let id = ConnectionId::new(&number.to_le_bytes()).unwrap();
                routes.insert(id, ConnectionHandle(i as usize));
            }
            let last = routes.places.len() - 1;
            let steps = (routes.places.iter().enumerate())
                .filter(|(_, place)| !place.is_free())
                .map(|(at, place)| at.wrapping_sub(routes.home(place.id)) & last);
            let (all, longest) = steps.fold((0, 0), |(all, most), n| (all + n, most.max(n)));
            assert!(
                all < 2 * routes.taken && longest < 200,
                "{stride}: {all} {longest}"
            );
        }
    }
}
