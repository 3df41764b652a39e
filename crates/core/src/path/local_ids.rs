//! Connection ids that this end issued (RFC 9000 §5.1).
//!
//! ```text
//!  issue ─▶ active, to be announced ─▶ announced ─▶ retired by the peer ─▶ expired
//!           └────────────────────── routed by the endpoint ───────────────┘
//! ```

use std::collections::VecDeque;

use squall_wire::{ConnectionId, TransportErrorCode};

use crate::config::{MAX_LOCAL_IDS, MAX_RETIRED_IDS};
use crate::time::Time;

/// Connection ids that this end issued.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LocalIds {
    // For every packet.
    /// Sequence numbers whose NEW_CONNECTION_ID is to be sent (again).
    pending: VecDeque<u64>,
    /// Ids that the peer has retired but that are still routed: packets under them may be in
    /// flight, or arrive after the frame that retires them.
    retired: VecDeque<RetiredId>,

    /// Active ids with their sequence numbers.
    active: VecDeque<(u64, ConnectionId)>,
    next_sequence: u64,
    /// The number of ids that the peer accepts.
    peer_limit: u64,
    /// Numbers below this have been announced to the peer.
    announced: u64,
    /// The peer is to retire numbers below this (RFC 9000 §5.1.2).
    retire_prior_to: u64,
}

/// An id that the peer has retired.
#[derive(Debug)]
struct RetiredId {
    sequence: u64,
    id: ConnectionId,
    /// From then on it is no longer routed.
    expires: Time,
}

/// The contents of a NEW_CONNECTION_ID frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The id's number.
    pub(crate) sequence: u64,
    /// The peer is to retire numbers below this.
    pub(crate) retire_prior_to: u64,
    /// The id.
    pub(crate) id: ConnectionId,
}

impl LocalIds {
    /// Starts with the id of the handshake, number 0.
    #[must_use]
    pub(crate) fn new(first: ConnectionId) -> Self {
        Self {
            active: VecDeque::from([(0, first)]),
            retired: VecDeque::new(),
            next_sequence: 1,
            peer_limit: 1,
            pending: VecDeque::new(),
            announced: 1,
            retire_prior_to: 0,
        }
    }

    /// The id of the handshake while it is active, otherwise the oldest.
    #[must_use]
    pub(crate) fn current(&self) -> ConnectionId {
        self.active
            .front()
            .map_or(ConnectionId::EMPTY, |(_, id)| *id)
    }

    /// The peer's `active_connection_id_limit`.
    pub(crate) fn set_peer_limit(&mut self, limit: u64) {
        self.peer_limit = limit.min(MAX_LOCAL_IDS);
    }

    /// Whether one more id may be issued. Ids that the peer was asked to retire do not count (RFC
    /// 9000 §5.1.1).
    #[must_use]
    pub(crate) fn wants_more(&self) -> bool {
        let staying = self
            .active
            .iter()
            .filter(|(s, _)| *s >= self.retire_prior_to);
        (staying.count() as u64) < self.peer_limit
    }

    /// Issues `id`.
    pub(crate) fn issue(&mut self, id: ConnectionId) {
        self.active.push_back((self.next_sequence, id));
        self.pending.push_back(self.next_sequence);
        self.next_sequence += 1;
    }

    /// Issues `id` in the transport parameters, as number 1 (RFC 9000 §18.2, preferred_address).
    pub(crate) fn issue_preferred(&mut self, id: ConnectionId) {
        self.active.push_back((self.next_sequence, id));
        self.next_sequence += 1;
        self.announced = self.next_sequence;
    }

    /// Asks the peer to retire every id issued so far; new ones are to be issued now. `false` while
    /// an earlier request is unfinished, so that at most two generations of ids exist.
    pub(crate) fn rotate(&mut self) -> bool {
        let done = self.active.iter().all(|(s, _)| *s >= self.retire_prior_to);
        if done {
            self.retire_prior_to = self.next_sequence;
        }
        done
    }

    /// The next id to be announced.
    pub(crate) fn next_pending(&mut self) -> Option<Announcement> {
        while let Some(sequence) = self.pending.pop_front() {
            if let Some((_, id)) = self.active.iter().find(|(s, _)| *s == sequence) {
                self.announced = self.announced.max(sequence + 1);
                return Some(Announcement {
                    sequence,
                    // RFC 9000 §19.15: not above the number itself.
                    retire_prior_to: self.retire_prior_to.min(sequence),
                    id: *id,
                });
            }
        }
        None
    }

    /// Whether an announcement is due.
    #[must_use]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// An announcement was lost.
    pub(crate) fn on_lost(&mut self, sequence: u64) {
        let active = self.active.iter().any(|(s, _)| *s == sequence);
        if active && !self.pending.contains(&sequence) {
            self.pending.push_back(sequence);
        }
    }

    /// Whether a frame that arrived under the id `dcid` and retires this number repeats an earlier
    /// one, so that nothing needs to be done.
    #[inline]
    pub(crate) fn is_repetition(&self, sequence: u64, dcid: ConnectionId) -> bool {
        sequence < self.announced
            && !self.active.iter().any(|(s, _)| *s == sequence)
            && !(self.retired.iter()).any(|r| r.sequence == sequence && r.id == dcid)
    }

    /// The peer retires an id, by a frame that arrived under the id `dcid`. The id is routed until
    /// `expires`. Returns an id to be removed from the routes at once, as too many are retired.
    ///
    /// # Errors
    /// `PROTOCOL_VIOLATION` for a number that was never sent, and for that of `dcid` (RFC 9000
    /// §19.16).
    pub(crate) fn retire(
        &mut self,
        sequence: u64,
        dcid: ConnectionId,
        expires: Time,
    ) -> Result<Option<ConnectionId>, TransportErrorCode> {
        // A number made but not yet sent counts as never sent: a peer that guesses ahead would make
        // us issue an id per frame, without a round trip in between (`SECURITY.md` row 3).
        if sequence >= self.announced {
            return Err(TransportErrorCode::PROTOCOL_VIOLATION);
        }
        // They are issued in this order, and so are sorted.
        let Ok(at) = self.active.binary_search_by_key(&sequence, |(s, _)| *s) else {
            return match self.is_repetition(sequence, dcid) {
                true => Ok(None),
                false => Err(TransportErrorCode::PROTOCOL_VIOLATION),
            };
        };
        self.pending.retain(|s| *s != sequence);
        let Some((_, id)) = self.active.remove(at) else {
            return Ok(None);
        };
        if id == dcid {
            return Err(TransportErrorCode::PROTOCOL_VIOLATION);
        }
        self.retired.push_back(RetiredId {
            sequence,
            id,
            expires,
        });
        let full = self.retired.len() > MAX_RETIRED_IDS;
        let oldest = full.then(|| self.retired.pop_front()).flatten();
        Ok(oldest.map(|retired| retired.id))
    }

    /// A retired id that has expired: it is removed from the routes.
    #[inline]
    pub(crate) fn take_expired(&mut self, now: Time) -> Option<ConnectionId> {
        if self.retired.is_empty() {
            return None;
        }
        // Probe timeouts change, so a later one may expire earlier.
        let at = self.retired.iter().position(|r| r.expires <= now)?;
        let expired = self.retired.remove(at)?;
        if self.retired.is_empty() {
            self.retired = VecDeque::new();
        }
        Some(expired.id)
    }

    /// When the next retired id expires.
    pub(crate) fn next_expiry(&self) -> Option<Time> {
        self.retired.iter().map(|r| r.expires).min()
    }

    /// Whether datagrams to `id` are for this connection.
    pub(crate) fn is_routed(&self, id: ConnectionId) -> bool {
        self.active.iter().any(|(_, active)| *active == id)
            || self.retired.iter().any(|r| r.id == id)
    }

    /// Bytes of memory that retired ids take, here and in the endpoint's routes.
    pub(crate) fn memory(&self) -> usize {
        const ROUTED: usize = 3 * size_of::<ConnectionId>();
        self.retired.capacity() * (size_of::<RetiredId>() + ROUTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIOLATION: TransportErrorCode = TransportErrorCode::PROTOCOL_VIOLATION;

    fn id(n: u8) -> ConnectionId {
        ConnectionId::new(&[n; 8]).unwrap()
    }

    // test: RFC 9000 §19.16; SECURITY.md row 3
    #[test]
    fn retiring_an_id_never_issued_is_an_error() {
        let mut ids = LocalIds::new(id(0));
        ids.set_peer_limit(8);
        assert!(ids.wants_more());
        ids.issue(id(1));
        ids.issue(id(2));
        let retire = |ids: &mut LocalIds, n| ids.retire(n, id(0), Time::ZERO);
        assert_eq!(retire(&mut ids, 1), Err(VIOLATION));
        assert_eq!(ids.next_pending().map(|a| a.sequence), Some(1));
        assert_eq!(retire(&mut ids, 2), Err(VIOLATION));
        ids.on_lost(1);
        assert_eq!(retire(&mut ids, 1), Ok(None));
        assert_eq!(ids.take_expired(Time::ZERO), Some(id(1)));
        assert_eq!(retire(&mut ids, 1), Ok(None), "a repetition is no error");
        assert_eq!(ids.take_expired(Time::ZERO), None);
        assert_eq!(ids.next_pending().map(|a| a.sequence), Some(2));
        assert_eq!(ids.next_pending(), None, "a retired id is not announced");
    }

    // test: RFC 9000 §5.1.1, §5.1.2
    #[test]
    fn a_rotation_replaces_every_id_once() {
        let mut ids = LocalIds::new(id(0));
        ids.set_peer_limit(2);
        ids.issue(id(1));
        assert!(!ids.wants_more() && ids.rotate() && !ids.rotate());
        assert!(ids.wants_more());
        ids.issue(id(2));
        ids.issue(id(3));
        assert!(!ids.wants_more());
        let said: Vec<_> = std::iter::from_fn(|| ids.next_pending())
            .map(|a| (a.sequence, a.retire_prior_to))
            .collect();
        assert_eq!(said, [(1, 1), (2, 2), (3, 2)]);
        ids.retire(0, id(2), Time::ZERO).unwrap();
        assert!(!ids.rotate(), "1 is not retired yet");
        ids.retire(1, id(2), Time::ZERO).unwrap();
        assert!(ids.rotate());
    }

    // test: RFC 9000 §19.16
    #[test]
    fn a_frame_cannot_retire_the_id_it_arrived_under() {
        let mut ids = LocalIds::new(id(0));
        ids.issue_preferred(id(1));
        assert_eq!(ids.retire(0, id(1), Time::ZERO), Ok(None));
        // Packets still arrive under 0, and are no better a place to retire it in.
        assert_eq!(ids.retire(0, id(0), Time::ZERO), Err(VIOLATION));
        assert_eq!(ids.retire(0, id(1), Time::ZERO), Ok(None));
        assert_eq!(ids.retire(1, id(1), Time::ZERO), Err(VIOLATION));
    }

    #[test]
    fn retired_ids_are_routed_until_they_expire() {
        let at = Time::from_nanos;
        let mut ids = LocalIds::new(id(0));
        ids.issue_preferred(id(1));
        // The probe timeout has become shorter in between.
        ids.retire(0, id(9), at(300)).unwrap();
        ids.retire(1, id(9), at(200)).unwrap();
        assert!(ids.is_routed(id(0)) && ids.is_routed(id(1)) && ids.memory() > 0);
        assert_eq!(
            (ids.next_expiry(), ids.take_expired(at(199))),
            (Some(at(200)), None)
        );
        assert_eq!(ids.take_expired(at(200)), Some(id(1)));
        assert_eq!(ids.take_expired(at(299)), None);
        assert_eq!(ids.take_expired(at(300)), Some(id(0)));
        assert_eq!((ids.next_expiry(), ids.memory()), (None, 0));
        assert!(!ids.is_routed(id(0)) && !ids.is_routed(id(1)));
    }

    // test: SECURITY.md row 3
    #[test]
    fn a_peer_that_retires_constantly_keeps_few_ids_routed() {
        let number = |n: u64| ConnectionId::new(&n.to_be_bytes()).unwrap();
        let mut ids = LocalIds::new(number(0));
        ids.set_peer_limit(8);
        let (mut issued, mut gone) = (1, 0);
        for n in 0..10_000 {
            while ids.wants_more() {
                ids.issue(number(issued));
                issued += 1;
            }
            while ids.next_pending().is_some() {}
            // They never expire.
            let left = ids.retire(n, number(n + 1), Time::from_nanos(u64::MAX));
            if let Some(left) = left.unwrap() {
                assert_eq!(left, number(gone), "the oldest");
                gone += 1;
            }
            let routed = issued - gone;
            assert!(routed <= MAX_LOCAL_IDS + MAX_RETIRED_IDS as u64, "{routed}");
        }
        assert_eq!(gone, 10_000 - MAX_RETIRED_IDS as u64);
    }
}
