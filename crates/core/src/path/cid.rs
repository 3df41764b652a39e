//! Connection ids (RFC 9000 §5.1): how they are made, and those that the peer issued. `local_ids`
//! keeps those that this end issued.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use hmac::{Hmac, KeyInit, Mac};
use rand::RngCore;
use sha2::Sha256;
use squall_wire::{ConnectionId, TransportErrorCode};

use super::quic_lb::Encoder;
use crate::config::{
    ConnectionIdGenerator, EndpointConfig, MAX_ID_GAPS, MAX_PATHS, MAX_REMOTE_IDS,
    MAX_RETIRE_BACKLOG,
};
use crate::range_set::RangeSet;

/// Makes connection ids and their stateless-reset tokens.
pub(crate) struct IdSource {
    /// Length of every id, in bytes.
    pub(crate) len: usize,
    generator: Generator,
    /// Number of ids made so far, plus a start value.
    count: AtomicU64,
    /// Makes the tokens. The key is hashed only once.
    reset_mac: Hmac<Sha256>,
}

enum Generator {
    Plain { worker_index: u8 },
    QuicLb(Box<Encoder>),
}

impl IdSource {
    /// Makes ids as configured. Non-random ids are numbered from `start`, which differs after a
    /// restart.
    pub(crate) fn new(config: &EndpointConfig, start: u64) -> Self {
        let (worker_index, workers) = (config.worker_index, config.workers);
        let (len, generator) = match &config.cid_generator {
            ConnectionIdGenerator::Plain { len } => (*len, Generator::Plain { worker_index }),
            ConnectionIdGenerator::QuicLb(config) => {
                let encoder = Box::new(Encoder::new(config.clone(), worker_index, workers));
                (encoder.len(), Generator::QuicLb(encoder))
            }
        };
        Self {
            len,
            generator,
            count: AtomicU64::new(start),
            reset_mac: Hmac::new_from_slice(&config.reset_key)
                .expect("HMAC takes keys of any length"),
        }
    }

    /// A fresh id.
    pub(crate) fn make(&self, rng: &mut impl RngCore) -> ConnectionId {
        match &self.generator {
            Generator::Plain { worker_index } => {
                let mut bytes = [0; ConnectionId::MAX_LEN];
                rng.fill_bytes(&mut bytes);
                bytes[0] = *worker_index;
                ConnectionId::new(&bytes[..self.len]).unwrap_or(ConnectionId::EMPTY)
            }
            Generator::QuicLb(encoder) => {
                encoder.make(self.count.fetch_add(1, Ordering::Relaxed), rng)
            }
        }
    }

    /// The token that resets the connection with `id` (RFC 9000 §10.3.2): any process with the key
    /// can compute it.
    pub(crate) fn reset_token(&self, id: &[u8]) -> [u8; 16] {
        let mac = self.reset_mac.clone().chain_update(id).finalize();
        let mut token = [0; 16];
        token.copy_from_slice(&mac.into_bytes()[..16]);
        token
    }
}

/// One id of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteId {
    sequence: u64,
    id: ConnectionId,
    reset_token: Option<[u8; 16]>,
}

/// A change among the valid reset tokens: those of the ids in use (RFC 9000 §10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenChange {
    /// No longer valid.
    Removed([u8; 16]),
    /// Valid from now on.
    Added([u8; 16]),
}

/// Connection ids that the peer issued.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RemoteIds {
    // For every packet.
    /// The id that the active path sends to.
    current: RemoteId,
    /// Sequence numbers whose RETIRE_CONNECTION_ID is to be sent (again).
    retiring: VecDeque<u64>,

    /// The ids that other paths send to, by their tags. A path without an id of its own shares the
    /// current one, as when a NAT moved it and no other id was available (RFC 9000 §9.5).
    lent: Vec<(u8, RemoteId)>,
    /// Paths without an id of their own, which get the next ones to arrive.
    bare: [Option<u8>; MAX_PATHS],
    spare: Vec<RemoteId>,
    /// Sequence numbers seen, so that a repeated frame does not bring back a retired id.
    seen: RangeSet,
    retire_prior_to: u64,
    /// Sequence numbers whose retirement the peer has not acknowledged, sent or not. A frame may be
    /// in flight twice after a probe timeout, so numbers are kept, not a count of frames.
    unacknowledged: Vec<u64>,
    changes: Vec<TokenChange>,
}

impl RemoteIds {
    /// Starts with the id of the peer's first packet (or, for a client, the one it made up).
    #[must_use]
    pub(crate) fn new(id: ConnectionId) -> Self {
        let current = RemoteId {
            sequence: 0,
            id,
            reset_token: None,
        };
        Self {
            current,
            lent: Vec::new(),
            bare: [None; MAX_PATHS],
            spare: Vec::new(),
            seen: RangeSet::default(),
            retire_prior_to: 0,
            retiring: VecDeque::new(),
            unacknowledged: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The id to send to on the active path.
    #[must_use]
    pub(crate) const fn current(&self) -> ConnectionId {
        self.current.id
    }

    /// The id to send to on the path with this tag.
    #[must_use]
    pub(crate) fn of(&self, tag: u8) -> ConnectionId {
        let lent = self.lent.iter().find(|(t, _)| *t == tag);
        lent.map_or(self.current.id, |(_, remote)| remote.id)
    }

    /// Whether the path with this tag has an id of its own.
    #[must_use]
    pub(crate) fn has_lent(&self, tag: u8) -> bool {
        self.lent.iter().any(|(t, _)| *t == tag)
    }

    /// Replaces the first id: a client learns the server's from its first packet (RFC 9000 §7.2).
    pub(crate) const fn set_first(&mut self, id: ConnectionId) {
        self.current.id = id;
    }

    /// The reset token that came with the transport parameters.
    pub(crate) fn set_first_token(&mut self, token: [u8; 16]) {
        self.current.reset_token = Some(token);
        self.changes.push(TokenChange::Added(token));
    }

    /// Whether `tail` is the reset token of an id in use, checked in constant time.
    #[must_use]
    pub(crate) fn is_reset(&self, tail: &[u8; 16]) -> bool {
        let used = self.lent.iter().map(|(_, r)| r).chain([&self.current]);
        used.filter_map(|r| r.reset_token).fold(false, |any, t| {
            any | (t.iter().zip(tail).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0)
        })
    }

    /// The changes to the reset tokens since the last call.
    pub(crate) fn take_changes(&mut self) -> impl Iterator<Item = TokenChange> + '_ {
        self.changes.drain(..)
    }

    /// Processes a NEW_CONNECTION_ID frame, or the id of a preferred address (RFC 9000 §18.2).
    ///
    /// # Errors
    /// The codes of RFC 9000 §19.15 and §5.1.1.
    pub(crate) fn on_new(
        &mut self,
        sequence: u64,
        retire_prior_to: u64,
        id: ConnectionId,
        token: [u8; 16],
    ) -> Result<(), TransportErrorCode> {
        if self.current.id.is_empty() {
            return Err(TransportErrorCode::PROTOCOL_VIOLATION);
        }
        let new = RemoteId {
            sequence,
            id,
            reset_token: Some(token),
        };
        let used = self.lent.iter().map(|(_, r)| r).chain([&self.current]);
        for known in self.spare.iter().chain(used) {
            // RFC 9000 §19.15: a number belongs to one id, and an id to one number; a repetition is
            // not an error.
            let same = known.sequence == sequence
                && known.id == id
                && known.reset_token.is_none_or(|t| t == token);
            if (known.sequence == sequence || known.id == id) && !same {
                return Err(TransportErrorCode::PROTOCOL_VIOLATION);
            }
            if same {
                return Ok(());
            }
        }
        if sequence == 0 || !self.seen.insert_one(sequence) {
            // Known before and retired since.
            return Ok(());
        }
        while self.seen.len() > MAX_ID_GAPS {
            self.seen.pop_first();
        }
        if sequence < self.retire_prior_to {
            self.retire_number(sequence);
            return self.check_backlog();
        }
        self.spare.push(new);
        if retire_prior_to > self.retire_prior_to {
            self.retire_below(retire_prior_to)?;
        }
        // RFC 9000 §5.1.1.
        if (self.spare.len() + self.lent.len()) as u64 + 1 > MAX_REMOTE_IDS {
            return Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR);
        }
        self.clothe();
        self.check_backlog()
    }

    /// Gives ids to the paths that have none of their own, as far as there are any.
    fn clothe(&mut self) {
        while self.can_lend()
            && let Some(tag) = self.bare.iter_mut().find_map(Option::take)
        {
            self.lend(tag);
        }
    }

    /// The path with this tag has no id of its own.
    fn note_bare(&mut self, tag: u8) {
        if let Some(free) = self.bare.iter_mut().find(|bare| bare.is_none()) {
            *free = Some(tag);
        }
    }

    fn forget_bare(&mut self, tag: u8) {
        for bare in self.bare.iter_mut().filter(|bare| **bare == Some(tag)) {
            *bare = None;
        }
    }

    /// RFC 9000 §5.1.2: ids below are no longer used; paths that use them switch to spare ones.
    fn retire_below(&mut self, retire_prior_to: u64) -> Result<(), TransportErrorCode> {
        self.retire_prior_to = retire_prior_to;
        let below = |s: &RemoteId| s.sequence < retire_prior_to;
        while let Some(at) = self.spare.iter().position(below) {
            let old = self.spare.remove(at);
            self.retire_number(old.sequence);
        }
        if self.current.sequence < retire_prior_to {
            // The frame itself brings a number of at least `retire_prior_to`, so there is one.
            let next = self
                .take_spare()
                .ok_or(TransportErrorCode::PROTOCOL_VIOLATION)?;
            let old = std::mem::replace(&mut self.current, next);
            self.retire(old);
            self.note_use(next);
        }
        for i in (0..self.lent.len()).rev() {
            let (tag, old) = self.lent[i];
            if old.sequence >= retire_prior_to {
                continue;
            }
            self.lent.swap_remove(i);
            self.retire(old);
            if let Some(next) = self.take_spare() {
                self.lent.push((tag, next));
                self.note_use(next);
            } else {
                self.note_bare(tag);
            }
        }
        Ok(())
    }

    fn take_spare(&mut self) -> Option<RemoteId> {
        let lowest = (0..self.spare.len()).min_by_key(|i| self.spare[*i].sequence)?;
        Some(self.spare.swap_remove(lowest))
    }

    fn note_use(&mut self, id: RemoteId) {
        self.changes.extend(id.reset_token.map(TokenChange::Added));
    }

    fn retire(&mut self, id: RemoteId) {
        self.retire_number(id.sequence);
        self.changes
            .extend(id.reset_token.map(TokenChange::Removed));
    }

    fn retire_number(&mut self, sequence: u64) {
        self.retiring.push_back(sequence);
        self.unacknowledged.push(sequence);
    }

    fn check_backlog(&self) -> Result<(), TransportErrorCode> {
        // RFC 9000 §5.1.2: the number of ids with unacknowledged retirement is limited.
        if self.unacknowledged.len() > MAX_RETIRE_BACKLOG {
            return Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR);
        }
        Ok(())
    }

    /// Whether this end may retire an id on its own: the backlog keeps room for the peer's
    /// requests.
    fn may_give_up(&self) -> bool {
        self.unacknowledged.len() <= MAX_REMOTE_IDS as usize
    }

    /// Whether a path can get an id of its own. If the peer uses no ids, every path has the same.
    #[must_use]
    pub(crate) fn can_lend(&self) -> bool {
        !self.spare.is_empty() && self.may_give_up()
    }

    /// Whether the peer wants no connection ids.
    #[must_use]
    pub(crate) const fn is_without(&self) -> bool {
        self.current.id.is_empty()
    }

    /// Gives the path with this tag an id of its own: now, or once there is one.
    pub(crate) fn lend(&mut self, tag: u8) {
        let allowed = self.can_lend();
        if let Some(spare) = allowed.then(|| self.take_spare()).flatten() {
            self.lent.push((tag, spare));
            self.note_use(spare);
        } else {
            self.note_bare(tag);
        }
    }

    /// The path with tag `new` becomes the active one, in place of `old`.
    pub(crate) fn activate(&mut self, new: u8, old: u8) {
        if let Some((tag, lent)) = self.lent.iter_mut().find(|(t, _)| *t == new) {
            std::mem::swap(lent, &mut self.current);
            *tag = old;
        } else {
            // It takes over the id of the old one.
            self.forget_bare(new);
            self.note_bare(old);
        }
    }

    /// The path with this tag is gone: an id that only it used is retired (RFC 9000 §5.1.2).
    pub(crate) fn release(&mut self, tag: u8) {
        self.forget_bare(tag);
        if let Some(at) = self.lent.iter().position(|(t, _)| *t == tag) {
            let (_, id) = self.lent.swap_remove(at);
            self.retire(id);
        }
    }

    /// Switches to another id and retires the previous one; `false` if there is no other.
    pub(crate) fn rotate(&mut self) -> bool {
        if !self.can_lend() {
            return false;
        }
        let Some(next) = self.take_spare() else {
            return false;
        };
        let old = std::mem::replace(&mut self.current, next);
        self.retire(old);
        self.note_use(next);
        true
    }

    /// Whether a RETIRE_CONNECTION_ID is due.
    #[must_use]
    pub(crate) fn has_pending(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// The next number to be retired by a frame.
    pub(crate) fn next_pending(&mut self) -> Option<u64> {
        self.retiring.pop_front()
    }

    /// The peer has seen a retirement.
    pub(crate) fn on_acked(&mut self, sequence: u64) {
        self.unacknowledged.retain(|s| *s != sequence);
        self.retiring.retain(|s| *s != sequence);
        self.clothe();
    }

    /// A retirement was lost.
    pub(crate) fn on_lost(&mut self, sequence: u64) {
        if self.unacknowledged.contains(&sequence) && !self.retiring.contains(&sequence) {
            self.retiring.push_back(sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ConnectionId {
        ConnectionId::new(&[n; 8]).unwrap()
    }

    /// Ids 0 to `n` of the peer.
    fn with(n: u8) -> RemoteIds {
        let mut ids = RemoteIds::new(id(0));
        for n in 1..=n {
            ids.on_new(n.into(), 0, id(n), [n; 16]).unwrap();
        }
        ids
    }

    fn retired(ids: &mut RemoteIds) -> Vec<u64> {
        std::iter::from_fn(|| ids.next_pending()).collect()
    }

    // test: RFC 9000 §19.15, §5.1.1, §5.1.2
    #[test]
    fn too_many_or_contradictory_ids_are_rejected() {
        let mut ids = with(MAX_REMOTE_IDS as u8 - 1);
        ids.on_new(1, 0, id(1), [1; 16]).unwrap();
        for (sequence, cid, token) in [(1, 9, 1), (1, 1, 9), (9, 1, 9), (0, 9, 0)] {
            assert_eq!(
                ids.on_new(sequence, 0, id(cid), [token; 16]),
                Err(TransportErrorCode::PROTOCOL_VIOLATION)
            );
        }
        assert_eq!(
            ids.on_new(9, 0, id(9), [9; 16]),
            Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR)
        );
        let mut ids = RemoteIds::new(id(0));
        let mut result = Ok(());
        for n in 1..100 {
            result = ids.on_new(n, n, id(n as u8), [n as u8; 16]);
            if result.is_err() {
                break;
            }
        }
        assert_eq!(
            result,
            Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR),
            "unacknowledged retirements are limited"
        );
    }

    #[test]
    fn retire_prior_to_switches_to_the_next_id() {
        let mut ids = RemoteIds::new(id(0));
        ids.set_first_token([0; 16]);
        ids.on_new(1, 1, id(1), [1; 16]).unwrap();
        let changes: Vec<_> = ids.take_changes().collect();
        assert_eq!(
            changes,
            [
                TokenChange::Added([0; 16]),
                TokenChange::Removed([0; 16]),
                TokenChange::Added([1; 16])
            ]
        );
        assert_eq!(ids.current(), id(1));
        assert_eq!(ids.next_pending(), Some(0));
        // RFC 9000 §10.3.1: the token of a retired id resets nothing.
        assert!(ids.is_reset(&[1; 16]) && !ids.is_reset(&[0; 16]));
    }

    // test: RFC 9000 §9.5
    #[test]
    fn each_path_has_its_own_id_and_retires_it() {
        let mut ids = with(3);
        ids.lend(7);
        ids.lend(8);
        assert!(ids.has_lent(7) && ids.has_lent(8));
        assert_eq!((ids.current(), ids.of(7), ids.of(8)), (id(0), id(1), id(2)));
        ids.activate(7, 0);
        assert_eq!((ids.current(), ids.of(0), ids.of(8)), (id(1), id(0), id(2)));
        assert!(ids.is_reset(&[1; 16]) && ids.is_reset(&[2; 16]) && !ids.is_reset(&[3; 16]));
        ids.release(0);
        ids.release(0);
        assert_eq!(retired(&mut ids), [0]);
        // A repeated frame does not bring back what is retired.
        ids.on_acked(0);
        ids.release(8);
        ids.on_new(2, 0, id(2), [2; 16]).unwrap();
        assert_eq!(retired(&mut ids), [2]);
        ids.lend(9);
        ids.lend(10);
        assert!(ids.has_lent(9) && !ids.has_lent(10));
        assert_eq!(
            ids.of(10),
            id(1),
            "a path without its own id shares another's"
        );
        // Until there is one.
        ids.on_new(4, 0, id(4), [4; 16]).unwrap();
        assert_eq!(ids.of(10), id(4));
    }

    // test: RFC 9000 §5.1.2
    #[test]
    fn every_path_stops_using_a_retired_id() {
        let mut ids = with(3);
        ids.lend(7);
        ids.lend(8);
        assert!(ids.has_lent(7) && ids.has_lent(8));
        ids.on_new(4, 3, id(4), [4; 16]).unwrap();
        assert_eq!(ids.current(), id(3));
        // One spare id for two paths: the other one shares.
        let (a, b) = (ids.of(7), ids.of(8));
        assert!(
            [(id(3), id(4)), (id(4), id(3))].contains(&(a, b)),
            "{a:?} {b:?}"
        );
        let mut numbers = retired(&mut ids);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2]);
        // The other one gets the next.
        ids.on_new(5, 3, id(5), [5; 16]).unwrap();
        assert!([ids.of(7), ids.of(8)].contains(&id(5)));
        // One that is gone gets none.
        ids.on_new(6, 6, id(6), [6; 16]).unwrap();
        ids.release(7);
        ids.on_new(7, 6, id(7), [7; 16]).unwrap();
        // The backlog has to shrink first.
        assert!(!ids.has_lent(8));
        (0..6).for_each(|n| ids.on_acked(n));
        assert_eq!(
            (ids.current(), ids.of(8), ids.has_lent(7)),
            (id(6), id(7), false)
        );
    }

    // test: SECURITY.md row 3
    #[test]
    fn ids_are_retired_no_faster_than_the_peer_acknowledges() {
        let mut ids = with(1);
        let mut rotations = 0;
        for n in 2..200_u8 {
            rotations += usize::from(ids.rotate());
            let _ = retired(&mut ids);
            if ids.spare.is_empty() {
                ids.on_new(n.into(), 0, id(n), [n; 16]).unwrap();
            }
        }
        assert!(rotations <= MAX_REMOTE_IDS as usize + 1, "{rotations}");
        for n in 0..=rotations as u64 {
            ids.on_acked(n);
        }
        assert!(ids.rotate());
    }

    // A probe timeout repeats a frame whose packet is later declared lost, or acknowledged.
    #[test]
    fn a_retransmitted_retirement_counts_once() {
        let mut ids = with(1);
        assert!(ids.rotate());
        assert_eq!(retired(&mut ids), [0]);
        for _ in 0..100 {
            ids.on_lost(0);
            ids.on_lost(0);
        }
        assert_eq!(retired(&mut ids), [0]);
        assert_eq!(ids.unacknowledged, [0]);
        ids.on_lost(0);
        ids.on_acked(0);
        ids.on_lost(0);
        assert_eq!(retired(&mut ids), [0; 0]);
        assert!(ids.unacknowledged.is_empty());
    }
}
