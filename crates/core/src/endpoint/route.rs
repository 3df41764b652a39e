//! From the datagrams of a bundle to runs, and the answers to datagrams that belong to nobody.

use rand::{Rng, RngCore};
use squall_wire::{
    ConnectionId, FixedBit, Header, LongType, Path, TransportErrorCode, Writer, header, is_long,
};

use super::incoming::opening;
use super::{ConnectionHandle, Endpoint, Incoming};
use crate::config::{MIN_UDP_PAYLOAD, ServerConfig, worker_of};
use crate::time::Time;
use crate::token::Verdict;

/// RFC 9000 §10.3: the least size of a stateless reset.
const MIN_RESET: usize = 21;
/// The usual size: hard to tell from a short packet.
const RESET: usize = 42;
/// Answers to datagrams of nobody, in all, a second (RFC 9000 §10.3.3, `threats.md` row 31).
const RESPONSES_PER_SECOND: u32 = 1000;

/// Consecutive datagrams at the front of a bundle that go to the same place.
#[derive(Debug)]
pub struct Run {
    /// Their bytes: a multiple of the bundle's segment size, but for the bundle's end.
    pub len: usize,
    /// Where they go.
    pub to: Route,
}

/// Where a run goes.
#[derive(Debug)]
pub enum Route {
    /// To this connection's `receive`.
    Connection(ConnectionHandle),
    /// A client wants a connection. Accepting it, hand the run to the new connection. More runs of the same attempt come
    /// as more of these, until one of them is accepted.
    Incoming(Incoming),
    /// To the worker with this index: its connection, or its part of the clients that come new.
    Worker(u8),
    /// To nobody; send this one datagram back.
    Respond(Vec<u8>),
    /// To nobody.
    Discard,
}

/// Bounds the answers that go to addresses nobody has validated.
#[derive(Debug, Default)]
pub(super) struct ResponseBudget {
    second: u64,
    used: u32,
}

impl ResponseBudget {
    fn take(&mut self, now: Time) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        if second != self.second {
            *self = Self { second, used: 0 };
        }
        self.used += 1;
        self.used <= RESPONSES_PER_SECOND
    }
}

impl Endpoint {
    /// Says where the datagrams at the front of `datagrams` go and how many of them belong together. The caller cuts
    /// them off and calls again with the rest. A look-up happens once a run, not once a datagram.
    pub fn route(&mut self, now: Time, path: Path, datagrams: &[u8], segment_size: u16) -> Run {
        let segment = usize::from(segment_size).max(1);
        let first = &datagrams[..segment.min(datagrams.len())];
        let cid_len = self.ids.len;
        let Some(destination) = header::destination(first, cid_len) else {
            return Run {
                len: first.len(),
                to: Route::Discard,
            };
        };
        let id = ConnectionId::new(destination);
        let mut len = first.len();
        while len < datagrams.len() {
            let next = &datagrams[len..(len + segment).min(datagrams.len())];
            let belongs = header::destination(next, cid_len).is_some_and(|other| match &id {
                Some(id) => id.is(other),
                None => other == destination,
            });
            if !belongs {
                break;
            }
            len += next.len();
        }
        let known = id.and_then(|id| self.routes.get(&id));
        let to = match known {
            Some(handle) => Route::Connection(*handle),
            None => {
                let to = match self.foreign_worker(first, destination) {
                    Some(worker) => Route::Worker(worker),
                    None => self.route_unknown(now, path, first),
                };
                // Of those that belong to nobody here, only these take the datagrams behind the first.
                if !matches!(to, Route::Incoming(_) | Route::Worker(_)) {
                    len = first.len();
                }
                to
            }
        };
        Run { len, to }
    }

    /// The other worker that a datagram of nobody here is for.
    fn foreign_worker(&self, datagram: &[u8], destination: &[u8]) -> Option<u8> {
        let workers = self.config.workers;
        if workers == 1 {
            return None;
        }
        // A reset's bytes name nobody: who is named by chance asks whose it is (RFC 9000 §10.3), and its owner keeps it.
        let token = reset_token(datagram);
        if token.is_some_and(|token| self.reset_tokens.contains_key(token)) {
            return None;
        }
        let own = self.config.cid_generator.worker_index();
        let first_byte = destination.first().copied().unwrap_or(own);
        let named = worker_of(first_byte, workers);
        if named != own {
            return Some(named);
        }
        let directory = self.reset_token_directory.as_ref()?;
        directory.worker(token?).filter(|owner| *owner != own)
    }

    fn route_unknown(&mut self, now: Time, path: Path, datagram: &[u8]) -> Route {
        if !is_long(datagram[0]) {
            return self.route_short(now, datagram);
        }
        let Some(server) = self.server.clone() else {
            return Route::Discard;
        };
        // Early data of an attempt that waits for its word belongs to it, whatever its size.
        if let Ok(Header::Long {
            ty: LongType::ZeroRtt,
            version,
            dcid,
            scid,
            ..
        }) = header::parse_with(datagram, self.ids.len, FixedBit::Greased)
            && let Some(attempt) = self.undecided.find(&dcid)
        {
            return Route::Incoming(Incoming {
                path,
                version,
                dcid,
                scid,
                verdict: attempt.verdict,
                keys: None,
                _attempt: attempt,
            });
        }
        // RFC 9000 §14.1: too small for an Initial. RFC 9000 §6.1: for a negotiation too, which might amplify.
        if datagram.len() < usize::from(MIN_UDP_PAYLOAD) {
            return Route::Discard;
        }
        match header::parse_with(datagram, self.ids.len, FixedBit::Greased) {
            Ok(Header::Long { version, ty, .. })
                if ty == LongType::Initial && server.transport.versions.contains(&version) =>
            {
                self.route_initial(now, path, datagram)
            }
            // RFC 9000 §5.2.2: any packet that might begin a connection of a version that this end does not take.
            Ok(Header::Long {
                version,
                dcid,
                scid,
                ..
            }) if !server.transport.versions.contains(&version) => {
                self.negotiate(now, &server, dcid.as_slice(), scid.as_slice())
            }
            Ok(Header::Unsupported { dcid, scid, .. }) => self.negotiate(now, &server, dcid, scid),
            // RFC 9000 §6.1: a negotiation is not answered.
            _ => Route::Discard,
        }
    }

    /// An Initial that may begin a connection.
    fn route_initial(&mut self, now: Time, path: Path, datagram: &[u8]) -> Route {
        let Ok(Header::Long {
            version,
            dcid,
            scid,
            token,
            pn_offset,
            len,
            ..
        }) = header::parse_with(datagram, self.ids.len, FixedBit::Greased)
        else {
            return Route::Discard;
        };
        // RFC 9000 §7.2: an id that is too easy to guess. And no state for what does not open (`threats.md` row 9):
        // Initial keys are public, the test is cheap.
        if dcid.len() < 8 {
            return Route::Discard;
        }
        let Some(keys) = opening(version, &dcid, &datagram[..len], pn_offset) else {
            return Route::Discard;
        };
        let verdict = (self.tokens).open(token, now, path.remote, version, &dcid);
        let known = self.undecided.find(&dcid);
        let refused = if verdict == Verdict::Invalid {
            // RFC 9000 §8.1.2: the client would follow no other Retry.
            Some(TransportErrorCode::INVALID_TOKEN)
        } else if known.is_some() {
            // One more packet of an attempt that was let in.
            None
        } else if verdict == Verdict::Nothing
            && self.handshakes + self.undecided() >= self.config.retry_from
        {
            // Much smaller than what it answers, and what keeps a flood from going further: not counted as an answer.
            return Route::Respond(self.retry_datagram(now, path, version, &dcid, &scid));
        } else if self.connections() >= self.config.max_connections
            || self.handshakes >= self.config.max_handshakes
            || self.undecided() >= self.config.max_incoming
        {
            Some(TransportErrorCode::CONNECTION_REFUSED)
        } else {
            None
        };
        match refused {
            None => Route::Incoming(Incoming {
                path,
                version,
                dcid,
                scid,
                verdict,
                keys: Some(keys),
                _attempt: known.unwrap_or_else(|| self.undecided.begin(dcid, verdict)),
            }),
            Some(code) if self.responses.take(now) => {
                Route::Respond(self.close_datagram(version, &dcid, &scid, code))
            }
            Some(_) => Route::Discard,
        }
    }

    /// A short header of nobody: a reset from a peer, or a peer to be told that its connection is gone.
    fn route_short(&mut self, now: Time, datagram: &[u8]) -> Route {
        if let Some(token) = reset_token(datagram)
            && let Some(handle) = self.reset_tokens.get(token)
        {
            return Route::Connection(*handle);
        }
        // RFC 9000 §10.3.3: shorter than what it answers, so that two endpoints cannot answer each other for ever.
        let len = RESET.min(datagram.len().saturating_sub(1));
        if len < MIN_RESET || !self.responses.take(now) {
            return Route::Discard;
        }
        let mut reset = vec![0; len];
        self.rng.fill_bytes(&mut reset);
        reset[0] = 0x40 | (reset[0] & 0x3f);
        let token = self.ids.reset_token(&datagram[1..=self.ids.len]);
        reset[len - 16..].copy_from_slice(&token);
        Route::Respond(reset)
    }

    /// RFC 9000 §6.1: the versions that this end takes, and a reserved one (§6.3) so that clients keep ignoring those.
    fn negotiate(&mut self, now: Time, server: &ServerConfig, dcid: &[u8], scid: &[u8]) -> Route {
        if !self.responses.take(now) {
            return Route::Discard;
        }
        let mut versions = server.transport.versions.clone();
        let reserved = (self.rng.next_u32() & 0xf0f0_f0f0) | 0x0a0a_0a0a;
        versions.insert(self.rng.random_range(0..=versions.len()), reserved);
        let mut datagram = vec![0; 7 + dcid.len() + scid.len() + 4 * versions.len()];
        let mut w = Writer::new(&mut datagram);
        let random = (self.rng.next_u32() & 0xff) as u8;
        // RFC 8999 §6: the ids change places.
        header::write_version_negotiation(&mut w, scid, dcid, &versions, random);
        let len = w.len();
        datagram.truncate(len);
        Route::Respond(datagram)
    }
}

/// The token that the datagram ends with, should it be a stateless reset.
fn reset_token(datagram: &[u8]) -> Option<&[u8; 16]> {
    let may_be = datagram.len() >= MIN_RESET && !is_long(datagram[0]);
    datagram.last_chunk().filter(|_| may_be)
}
