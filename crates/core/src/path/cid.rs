//! Connection ids (RFC 9000 §5.1): those that we handed out and those that the peer gave us.

use std::collections::VecDeque;

use hmac::{Hmac, KeyInit, Mac};
use rand::RngCore;
use sha2::Sha256;
use squall_wire::{ConnectionId, TransportErrorCode};

use crate::config::{MAX_LOCAL_IDS, MAX_REMOTE_IDS, MAX_RETIRE_BACKLOG};

/// Makes connection ids and their stateless-reset tokens.
#[derive(Clone)]
pub(crate) struct IdSource {
    /// Length of every id, in bytes.
    pub(crate) len: usize,
    /// First byte of every id: which worker the connection lives on.
    pub(crate) worker_index: u8,
    /// Key of the tokens.
    pub(crate) reset_key: [u8; 32],
}

impl IdSource {
    /// A fresh id.
    pub(crate) fn make(&self, rng: &mut impl RngCore) -> ConnectionId {
        let mut bytes = [0; ConnectionId::MAX_LEN];
        rng.fill_bytes(&mut bytes);
        bytes[0] = self.worker_index;
        ConnectionId::new(&bytes[..self.len.min(ConnectionId::MAX_LEN)])
            .unwrap_or(ConnectionId::EMPTY)
    }

    /// The token that resets the connection behind `id` (RFC 9000 §10.3.2): any process with the key can make it.
    pub(crate) fn reset_token(&self, id: &[u8]) -> [u8; 16] {
        let mut token = [0; 16];
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.reset_key) {
            mac.update(id);
            token.copy_from_slice(&mac.finalize().into_bytes()[..16]);
        }
        token
    }
}

/// Connection ids that this end handed out.
#[derive(Debug)]
pub(crate) struct LocalIds {
    /// Active ids with their sequence numbers.
    active: VecDeque<(u64, ConnectionId)>,
    next_sequence: u64,
    /// How many the peer is willing to hold.
    peer_limit: u64,
    /// Sequence numbers whose NEW_CONNECTION_ID is to be sent (again).
    pending: VecDeque<u64>,
}

impl LocalIds {
    /// Starts with the id of the handshake, number 0.
    #[must_use]
    pub(crate) fn new(first: ConnectionId) -> Self {
        Self {
            active: VecDeque::from([(0, first)]),
            next_sequence: 1,
            peer_limit: 1,
            pending: VecDeque::new(),
        }
    }

    /// The id of the handshake while it is active, else the oldest.
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

    /// Whether one more id may be issued.
    #[must_use]
    pub(crate) fn wants_more(&self) -> bool {
        (self.active.len() as u64) < self.peer_limit
    }

    /// Issues `id`.
    pub(crate) fn issue(&mut self, id: ConnectionId) {
        self.active.push_back((self.next_sequence, id));
        self.pending.push_back(self.next_sequence);
        self.next_sequence += 1;
    }

    /// The next id to be announced.
    pub(crate) fn next_pending(&mut self) -> Option<(u64, ConnectionId)> {
        while let Some(sequence) = self.pending.pop_front() {
            if let Some(entry) = self.active.iter().find(|(s, _)| *s == sequence) {
                return Some(*entry);
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
        if self.active.iter().any(|(s, _)| *s == sequence) {
            self.pending.push_back(sequence);
        }
    }

    /// The peer retires an id; returns it if it was active.
    ///
    /// # Errors
    /// `PROTOCOL_VIOLATION` for a number never issued (RFC 9000 §19.16).
    pub(crate) fn retire(
        &mut self,
        sequence: u64,
    ) -> Result<Option<ConnectionId>, TransportErrorCode> {
        if sequence >= self.next_sequence {
            return Err(TransportErrorCode::PROTOCOL_VIOLATION);
        }
        let at = self.active.iter().position(|(s, _)| *s == sequence);
        Ok(at.and_then(|i| self.active.remove(i)).map(|(_, id)| id))
    }
}

/// One id of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteId {
    sequence: u64,
    id: ConnectionId,
    reset_token: Option<[u8; 16]>,
}

/// Connection ids that the peer gave us.
#[derive(Debug)]
pub(crate) struct RemoteIds {
    current: RemoteId,
    spare: Vec<RemoteId>,
    retire_prior_to: u64,
    /// Sequence numbers to be retired by a frame.
    retiring: VecDeque<u64>,
    /// RETIRE_CONNECTION_ID frames sent and not acknowledged.
    unacknowledged: usize,
}

/// What a NEW_CONNECTION_ID frame changed among the reset tokens that count.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenChange {
    /// No longer valid.
    pub(crate) removed: Option<[u8; 16]>,
    /// Valid from now on.
    pub(crate) added: Option<[u8; 16]>,
}

impl RemoteIds {
    /// Starts with the id of the peer's first packet (or, for a client, the one it made up).
    #[must_use]
    pub(crate) const fn new(id: ConnectionId) -> Self {
        let current = RemoteId {
            sequence: 0,
            id,
            reset_token: None,
        };
        Self {
            current,
            spare: Vec::new(),
            retire_prior_to: 0,
            retiring: VecDeque::new(),
            unacknowledged: 0,
        }
    }

    /// The id to send to.
    #[must_use]
    pub(crate) const fn current(&self) -> ConnectionId {
        self.current.id
    }

    /// Replaces the first id: a client learns the server's from its first packet (RFC 9000 §7.2).
    pub(crate) const fn set_first(&mut self, id: ConnectionId) {
        self.current.id = id;
    }

    /// The reset token that came with the transport parameters.
    pub(crate) const fn set_first_token(&mut self, token: [u8; 16]) {
        self.current.reset_token = Some(token);
    }

    /// The current id's reset token.
    #[must_use]
    pub(crate) const fn reset_token(&self) -> Option<[u8; 16]> {
        self.current.reset_token
    }

    /// Takes a NEW_CONNECTION_ID frame.
    ///
    /// # Errors
    /// The codes of RFC 9000 §19.15 and §5.1.1.
    pub(crate) fn on_new(
        &mut self,
        sequence: u64,
        retire_prior_to: u64,
        id: ConnectionId,
        token: [u8; 16],
    ) -> Result<TokenChange, TransportErrorCode> {
        if self.current.id.is_empty() {
            return Err(TransportErrorCode::PROTOCOL_VIOLATION);
        }
        let new = RemoteId {
            sequence,
            id,
            reset_token: Some(token),
        };
        for known in self.spare.iter().chain([&self.current]) {
            // RFC 9000 §19.15: a number means one id, an id one number; a repetition is no error.
            let same = known.sequence == sequence
                && known.id == id
                && known.reset_token.is_none_or(|t| t == token);
            if (known.sequence == sequence || known.id == id) && !same {
                return Err(TransportErrorCode::PROTOCOL_VIOLATION);
            }
            if same {
                return Ok(TokenChange::default());
            }
        }
        if sequence < self.retire_prior_to {
            self.retiring.push_back(sequence);
            return self.check_backlog().map(|()| TokenChange::default());
        }
        self.spare.push(new);
        let mut change = TokenChange::default();
        if retire_prior_to > self.retire_prior_to {
            self.retire_prior_to = retire_prior_to;
            let retiring = &mut self.retiring;
            self.spare.retain(|s| {
                let keep = s.sequence >= retire_prior_to;
                if !keep {
                    retiring.push_back(s.sequence);
                }
                keep
            });
            if self.current.sequence < retire_prior_to {
                self.retiring.push_back(self.current.sequence);
                let lowest = (0..self.spare.len()).min_by_key(|i| self.spare[*i].sequence);
                // The frame itself brings a number of at least `retire_prior_to`, so there is one.
                let Some(lowest) = lowest else {
                    return Err(TransportErrorCode::PROTOCOL_VIOLATION);
                };
                change.removed = self.current.reset_token;
                self.current = self.spare.swap_remove(lowest);
                change.added = self.current.reset_token;
            }
        }
        // RFC 9000 §5.1.1.
        if self.spare.len() as u64 + 1 > MAX_REMOTE_IDS {
            return Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR);
        }
        self.check_backlog()?;
        Ok(change)
    }

    fn check_backlog(&self) -> Result<(), TransportErrorCode> {
        // RFC 9000 §5.1.2: ids whose retirement is not acknowledged are limited.
        if self.retiring.len() + self.unacknowledged > MAX_RETIRE_BACKLOG {
            return Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR);
        }
        Ok(())
    }

    /// Whether a RETIRE_CONNECTION_ID is due.
    #[must_use]
    pub(crate) fn has_pending(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// The next number to be retired by a frame.
    pub(crate) fn next_pending(&mut self) -> Option<u64> {
        let sequence = self.retiring.pop_front()?;
        self.unacknowledged += 1;
        Some(sequence)
    }

    /// The peer has seen a retirement.
    pub(crate) fn on_acked(&mut self) {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
    }

    /// A retirement was lost.
    pub(crate) fn on_lost(&mut self, sequence: u64) {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
        self.retiring.push_back(sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ConnectionId {
        ConnectionId::new(&[n; 8]).unwrap()
    }

    // test: RFC 9000 §19.15, §5.1.1, §5.1.2
    #[test]
    fn floods_and_contradictions_are_refused() {
        let mut ids = RemoteIds::new(id(0));
        for n in 1..MAX_REMOTE_IDS {
            ids.on_new(n, 0, id(n as u8), [n as u8; 16]).unwrap();
        }
        ids.on_new(1, 0, id(1), [1; 16]).unwrap();
        assert_eq!(
            ids.on_new(1, 0, id(9), [1; 16]),
            Err(TransportErrorCode::PROTOCOL_VIOLATION)
        );
        assert_eq!(
            ids.on_new(9, 0, id(9), [9; 16]),
            Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR)
        );
        let mut ids = RemoteIds::new(id(0));
        let mut result = Ok(TokenChange::default());
        for n in 1..100 {
            result = ids.on_new(n, n, id(n as u8), [n as u8; 16]);
            if result.is_err() {
                break;
            }
        }
        assert_eq!(
            result,
            Err(TransportErrorCode::CONNECTION_ID_LIMIT_ERROR),
            "retirements must not pile up"
        );
    }

    #[test]
    fn retire_prior_to_moves_to_the_next() {
        let mut ids = RemoteIds::new(id(0));
        let change = ids.on_new(1, 1, id(1), [1; 16]).unwrap();
        assert_eq!(
            change,
            TokenChange {
                removed: None,
                added: Some([1; 16])
            }
        );
        assert_eq!(ids.current(), id(1));
        assert_eq!(ids.next_pending(), Some(0));
    }

    // test: RFC 9000 §19.16
    #[test]
    fn ids_never_issued_cannot_be_retired() {
        let mut ids = LocalIds::new(id(0));
        ids.set_peer_limit(8);
        assert!(ids.wants_more());
        ids.issue(id(1));
        assert_eq!(ids.retire(2), Err(TransportErrorCode::PROTOCOL_VIOLATION));
        assert_eq!(ids.retire(1), Ok(Some(id(1))));
        assert_eq!(ids.next_pending(), None, "a retired id is not announced");
    }
}
