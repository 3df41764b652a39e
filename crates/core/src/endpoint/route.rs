//! From the datagrams of a bundle to runs, and the answers to datagrams that belong to nobody.

use rand::RngCore;
use squall_wire::{FixedBit, Header, LongType, Path, Writer, header, is_long};

use super::{ConnectionHandle, Endpoint, Incoming};
use crate::config::MIN_UDP_PAYLOAD;
use crate::time::Time;

/// RFC 9000 §10.3: the least size of a stateless reset.
const MIN_RESET: usize = 21;
/// The usual size: hard to tell from a short packet.
const RESET: usize = 42;
/// Answers to datagrams of nobody, in all, a second (RFC 9000 §10.3.3, `threats.md` row 31).
const RESPONSES_PER_SECOND: u32 = 1000;
/// Versions offered by version negotiation.
const VERSIONS: [u32; 2] = [squall_wire::VERSION_1, squall_wire::VERSION_2];

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
    /// A client wants a connection. Accepting it, hand the run to the new connection.
    Incoming(Incoming),
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
        let mut len = first.len();
        while len < datagrams.len() {
            let next = &datagrams[len..(len + segment).min(datagrams.len())];
            if header::destination(next, cid_len) != Some(destination) {
                break;
            }
            len += next.len();
        }
        let known = squall_wire::ConnectionId::new(destination).and_then(|id| self.routes.get(&id));
        let to = match known {
            Some(handle) => Route::Connection(*handle),
            None => {
                let to = self.route_unknown(now, path, first);
                // Only a new connection takes the datagrams behind its first.
                if !matches!(to, Route::Incoming(_)) {
                    len = first.len();
                }
                to
            }
        };
        Run { len, to }
    }

    fn route_unknown(&mut self, now: Time, path: Path, datagram: &[u8]) -> Route {
        if !is_long(datagram[0]) {
            return self.route_short(now, datagram);
        }
        match header::parse_with(datagram, self.ids.len, FixedBit::Greased) {
            Ok(Header::Long {
                ty: LongType::Initial,
                version,
                dcid,
                scid,
                token,
                pn_offset,
                len,
            }) => {
                // RFC 9000 §14.1, §7.2: too small, or an id that is too easy to guess.
                if self.server.is_none()
                    || datagram.len() < usize::from(MIN_UDP_PAYLOAD)
                    || dcid.len() < 8
                {
                    return Route::Discard;
                }
                let incoming = Incoming::new(path, version, dcid, scid, token.to_vec());
                // No state for what does not open (`threats.md` row 9): Initial keys are public, the test is cheap.
                if !incoming.opens(&datagram[..len], pn_offset) {
                    return Route::Discard;
                }
                if self.connections() >= self.config.max_connections {
                    return if self.responses.take(now) {
                        Route::Respond(self.refusal(&incoming))
                    } else {
                        Route::Discard
                    };
                }
                Route::Incoming(incoming)
            }
            // RFC 9000 §6.1: not in answer to a negotiation, nor to a datagram that it could amplify.
            Ok(Header::Unsupported { dcid, scid, .. })
                if self.server.is_some()
                    && datagram.len() >= usize::from(MIN_UDP_PAYLOAD)
                    && self.responses.take(now) =>
            {
                Route::Respond(self.negotiate(dcid, scid))
            }
            _ => Route::Discard,
        }
    }

    /// A short header of nobody: a reset from a peer, or a peer to be told that its connection is gone.
    fn route_short(&mut self, now: Time, datagram: &[u8]) -> Route {
        if let Some(token) = datagram.last_chunk::<16>()
            && datagram.len() >= MIN_RESET
            && let Some(handle) = self.tokens.get(token)
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

    fn negotiate(&mut self, dcid: &[u8], scid: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; 7 + dcid.len() + scid.len() + 4 * VERSIONS.len()];
        let mut w = Writer::new(&mut datagram);
        // RFC 8999 §6: the ids change places.
        header::write_version_negotiation(
            &mut w,
            scid,
            dcid,
            &VERSIONS,
            (self.rng.next_u32() & 0xff) as u8,
        );
        let len = w.len();
        datagram.truncate(len);
        datagram
    }
}
