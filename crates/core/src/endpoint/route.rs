//! Turns the datagrams of a bundle into runs, and answers datagrams that belong to no connection.

use std::time::Duration;

use rand::{Rng, RngCore};
use squall_wire::{ConnectionId, Header, LongType, Path, Writer, header, is_long};

use super::answers::Answer;
use super::incoming::{Opening, opening};
use super::limits::Admission;
use super::refusal::RefusalReason;
use super::{ConnectionHandle, Endpoint, Incoming};
use crate::config::{LEAST_ORIGINAL_ID, MIN_UDP_PAYLOAD, ServerConfig, worker_of};
use crate::time::Time;
use crate::token::{NewToken, Verdict};

/// RFC 9000 §10.3: the minimum size of a stateless reset.
const MIN_RESET: usize = 21;
/// The usual size: hard to distinguish from a short packet.
const RESET: usize = 42;
/// If an attempt was accepted, or a handshake completed, within this time, there will be room for
/// more, even if the server was blocked for a while. Clients repeat their first packet after about
/// a second, and again after two more.
const RECENT: Duration = Duration::from_secs(3);

/// Consecutive datagrams at the front of a bundle that go to the same place.
#[derive(Debug)]
pub struct Run {
    /// Their length in bytes: a multiple of the bundle's segment size, except at the bundle's end.
    pub len: usize,
    /// Where they go.
    pub to: Route,
}

/// Where a run goes.
#[derive(Debug)]
pub enum Route {
    /// To this connection's `receive`.
    Connection(ConnectionHandle),
    /// A client's attempt to connect. When accepting it, pass the run to the new connection.
    /// Further runs of the same attempt are returned in the same way until one of them is accepted.
    Incoming(Incoming),
    /// To the worker with this index: its connection, or its share of new clients.
    Worker(u8),
    /// To the process that had the port before: it may belong to a connection there, or to none.
    /// See [`Endpoint::set_predecessor`].
    Predecessor,
    /// To no connection; send this one datagram back.
    Respond(Vec<u8>),
    /// To no connection.
    Discard,
}

impl Endpoint {
    /// Prefetches the memory for routing the datagrams of a bundle, unless the first and the last
    /// one have the same destination, as in bulk data.
    pub fn prefetch_routes(&self, datagrams: &[u8], segment_size: u16) {
        let destination = |datagram| header::destination(datagram, self.ids.len);
        let mut each = datagrams.chunks(usize::from(segment_size).max(1));
        let last = each.clone().next_back().and_then(destination);
        let Some(mut before) = each.next().and_then(destination) else {
            return;
        };
        if last == Some(before) {
            return;
        }
        self.routes.prefetch(before);
        for id in each.filter_map(destination) {
            if id != before {
                self.routes.prefetch(id);
                before = id;
            }
        }
    }

    /// Returns where the datagrams at the front of `datagrams` go and how many of them belong
    /// together. The caller cuts them off and calls again with the rest. There is one look-up per
    /// run, not per datagram.
    pub fn route(&mut self, now: Time, path: Path, datagrams: &[u8], segment_size: u16) -> Run {
        self.route_as(now, path, datagrams, segment_size, false)
    }

    /// As [`route`](Self::route), for datagrams that name a worker that has ended: this one stands
    /// in for it. New connections become this worker's, and the peers of the ended worker's
    /// connections are sent stateless resets.
    pub fn route_orphan(
        &mut self,
        now: Time,
        path: Path,
        datagrams: &[u8],
        segment_size: u16,
    ) -> Run {
        self.route_as(now, path, datagrams, segment_size, true)
    }

    fn route_as(
        &mut self,
        now: Time,
        path: Path,
        datagrams: &[u8],
        segment_size: u16,
        orphan: bool,
    ) -> Run {
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
            Some(handle) => Route::Connection(handle),
            None => {
                let to = match self.foreign_worker(first, destination) {
                    Some(worker) if !orphan => Route::Worker(worker),
                    _ => self.route_unknown(now, path, first),
                };
                // Of the runs that belong to no connection here, only these include the datagrams
                // after the first.
                if !matches!(
                    to,
                    Route::Incoming(_) | Route::Worker(_) | Route::Predecessor
                ) {
                    len = first.len();
                }
                to
            }
        };
        Run { len, to }
    }

    /// The other worker that a datagram without a connection here is for.
    fn foreign_worker(&self, datagram: &[u8], destination: &[u8]) -> Option<u8> {
        let workers = self.config.workers;
        if workers == 1 {
            return None;
        }
        // A reset's bytes do not name its worker: the one that gets it by chance looks up the owner
        // (RFC 9000 §10.3), and the owner keeps it.
        let token = reset_token(datagram);
        if token.is_some_and(|token| self.reset_tokens.contains_key(token)) {
            return None;
        }
        let own = self.config.worker_index;
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
            return self.route_short(now, path, datagram);
        }
        let Some(server) = self.server.clone() else {
            return self.not_here();
        };
        let fixed_bit = self.config.fixed_bit();
        // Early data of an undecided attempt belongs to it, whatever its size.
        if let Ok(Header::Long {
            ty: LongType::ZeroRtt,
            version,
            dcid,
            scid,
            ..
        }) = header::parse_with(datagram, self.ids.len, fixed_bit)
            && let Some(attempt) = self.undecided.find(path.remote, &dcid)
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
        // RFC 9000 §14.1: too small for an Initial. RFC 9000 §6.1: for version negotiation too,
        // which might amplify.
        if datagram.len() < usize::from(MIN_UDP_PAYLOAD) {
            return self.not_here();
        }
        match header::parse_with(datagram, self.ids.len, fixed_bit) {
            Ok(Header::Long { version, ty, .. })
                if ty == LongType::Initial && server.transport.versions.contains(&version) =>
            {
                self.route_initial(now, path, datagram)
            }
            // RFC 9000 §5.2.2: any packet that might start a connection in a version that this end
            // does not support.
            Ok(Header::Long {
                version,
                dcid,
                scid,
                ..
            }) if !server.transport.versions.contains(&version) => {
                self.negotiate(now, path, &server, dcid.as_slice(), scid.as_slice())
            }
            Ok(Header::Unsupported { dcid, scid, .. }) => {
                self.negotiate(now, path, &server, dcid, scid)
            }
            // RFC 9000 §6.1: a Version Negotiation packet is not answered.
            _ => self.not_here(),
        }
    }

    /// A datagram that belongs to no connection of this endpoint and begins none.
    const fn not_here(&self) -> Route {
        if self.has_predecessor {
            Route::Predecessor
        } else {
            Route::Discard
        }
    }

    /// An Initial that may start a connection.
    fn route_initial(&mut self, now: Time, path: Path, datagram: &[u8]) -> Route {
        let Ok(Header::Long {
            version,
            dcid,
            scid,
            token,
            pn_offset,
            len,
            ..
        }) = header::parse_with(datagram, self.ids.len, self.config.fixed_bit())
        else {
            return Route::Discard;
        };
        // RFC 9000 §7.2: an id that a client makes up must be hard to guess. That of a Retry may be
        // shorter.
        let is_short = dcid.len() < LEAST_ORIGINAL_ID;
        if is_short && (token.is_empty() || dcid.len() != self.ids.len) {
            return self.not_here();
        }
        // There is no state for a packet that does not open (`SECURITY.md` row 9): Initial keys are
        // public, so the test is cheap.
        let opening = opening(version, &dcid, &datagram[..len], pn_offset);
        let Some(Opening { keys, continues }) = opening else {
            return self.not_here();
        };
        let incoming = |verdict, attempt| {
            Route::Incoming(Incoming {
                path,
                version,
                dcid,
                scid,
                verdict,
                keys: Some(keys),
                _attempt: attempt,
            })
        };
        // Another packet of an attempt that was admitted, with the token that was accepted in the
        // first.
        if let Some(attempt) = self.undecided.find(path.remote, &dcid) {
            return incoming(attempt.verdict, attempt);
        }
        let verdict = (self.tokens).open(token, now, path.remote, version, &dcid);
        if is_short && !matches!(verdict, Verdict::Retry(_) | Verdict::Invalid) {
            return Route::Discard;
        }
        match self.admit(path, verdict) {
            Admission::Granted => {
                let attempt = self.undecided.begin(path.remote, dcid, verdict);
                incoming(verdict, attempt)
            }
            // Much smaller than the packet that it answers, and it keeps a flood from going
            // further: not counted as an answer.
            Admission::NotYet => {
                Route::Respond(self.retry_datagram(now, path, version, &dcid, &scid))
            }
            // One answer for all packets of a ClientHello.
            Admission::Refused(_) if continues => Route::Discard,
            Admission::Refused(why) if self.will_have_room(now, why) => {
                self.note_refusal(path, RefusalReason::QueueFull);
                self.counts.attempts_dropped += 1;
                Route::Discard
            }
            Admission::Refused(why) => {
                self.note_refusal(path, why);
                if self.may_answer(now, Answer::Refusal, path) {
                    Route::Respond(self.close_datagram(version, &dcid, &scid, why.code()))
                } else {
                    Route::Discard
                }
            }
        }
    }

    /// Whether the reason for a refusal will soon pass: the application accepts waiting attempts,
    /// or handshakes are being completed.
    fn will_have_room(&mut self, now: Time, why: RefusalReason) -> bool {
        if std::mem::take(&mut self.has_completed) {
            self.completed = Some(now);
        }
        let last = match why {
            RefusalReason::Attempts => self.accepted,
            RefusalReason::Handshakes => self.completed,
            _ => None,
        };
        last.is_some_and(|last| now - last < RECENT)
    }

    /// Whether a new attempt is admitted.
    fn admit(&mut self, path: Path, verdict: Verdict) -> Admission {
        if verdict == Verdict::Invalid {
            // RFC 9000 §8.1.2: the client would not follow another Retry.
            return Admission::Refused(RefusalReason::InvalidToken);
        }
        if !verdict.validates() && self.handshakes + self.undecided() >= self.config.retry_from {
            return Admission::NotYet;
        }
        if self.is_full() {
            return Admission::Refused(RefusalReason::Connections);
        }
        if self.handshakes >= self.config.max_handshakes {
            return Admission::Refused(RefusalReason::Handshakes);
        }
        if self.undecided() >= self.config.max_incoming {
            return Admission::Refused(RefusalReason::Attempts);
        }
        let admission = self.admit_to_limits(path.remote.ip(), verdict.validates());
        if admission != Admission::Granted {
            return admission;
        }
        // Last, because the token of an attempt that is not admitted must not be spent.
        if let Verdict::Address(token) = verdict {
            if !self.spend(&token) {
                self.counts.tokens_replayed += 1;
                return Admission::NotYet;
            }
            self.counts.tokens_spent += 1;
        }
        Admission::Granted
    }

    /// Marks a token as spent (RFC 9000 §8.1.4); `false` if it already was. Which tokens were spent
    /// before this endpoint was created is unknown, so all from before count as spent.
    fn spend(&mut self, token: &NewToken) -> bool {
        token.issued >= self.config.unix_time_at_zero
            && self.token_filter.spend(&token.id, token.issued)
    }

    /// Whether a stateless answer may be sent; counts those that may not.
    fn may_answer(&mut self, now: Time, answer: Answer, path: Path) -> bool {
        let may = self.answers.take(now, answer, path.remote.ip());
        if !may {
            *match answer {
                Answer::VersionNegotiation => &mut self.counts.version_negotiations_withheld,
                Answer::StatelessReset => &mut self.counts.stateless_resets_withheld,
                Answer::Refusal => &mut self.counts.refusals_withheld,
            } += 1;
        }
        may
    }

    /// A short header of no known connection: a reset from a peer, or a peer that must learn that
    /// its connection is gone.
    fn route_short(&mut self, now: Time, path: Path, datagram: &[u8]) -> Route {
        if let Some(token) = reset_token(datagram)
            && let Some(handle) = self.reset_tokens.get(token)
        {
            return Route::Connection(*handle);
        }
        if self.has_predecessor {
            return Route::Predecessor;
        }
        // RFC 9000 §10.3.3: shorter than the packet that it answers, so that two endpoints cannot
        // answer each other for ever.
        let len = RESET.min(datagram.len().saturating_sub(1));
        // If the fixed bit is not greased, a datagram without it is not a QUIC packet (RFC 9000
        // §17.3.1).
        let is_packet = self.config.fixed_bit().admits(datagram[0]);
        if !is_packet || len < MIN_RESET || !self.may_answer(now, Answer::StatelessReset, path) {
            return Route::Discard;
        }
        self.counts.stateless_resets += 1;
        let mut reset = vec![0; len];
        self.rng.fill_bytes(&mut reset);
        reset[0] = 0x40 | (reset[0] & 0x3f);
        let token = self.ids.reset_token(&datagram[1..=self.ids.len]);
        reset[len - 16..].copy_from_slice(&token);
        Route::Respond(reset)
    }

    /// RFC 9000 §6.1: the versions that this end supports, and a reserved one (§6.3) so that
    /// clients keep ignoring those.
    fn negotiate(
        &mut self,
        now: Time,
        path: Path,
        server: &ServerConfig,
        dcid: &[u8],
        scid: &[u8],
    ) -> Route {
        if !self.may_answer(now, Answer::VersionNegotiation, path) {
            return Route::Discard;
        }
        self.counts.version_negotiations += 1;
        let mut versions = server.transport.versions.clone();
        let reserved = (self.rng.next_u32() & 0xf0f0_f0f0) | 0x0a0a_0a0a;
        versions.insert(self.rng.random_range(0..=versions.len()), reserved);
        let mut datagram = vec![0; 7 + dcid.len() + scid.len() + 4 * versions.len()];
        let mut w = Writer::new(&mut datagram);
        let random = (self.rng.next_u32() & 0xff) as u8;
        // RFC 8999 §6: the ids are swapped.
        header::write_version_negotiation(&mut w, scid, dcid, &versions, random);
        let len = w.len();
        datagram.truncate(len);
        Route::Respond(datagram)
    }
}

/// The token at the end of the datagram, in case it is a stateless reset.
fn reset_token(datagram: &[u8]) -> Option<&[u8; 16]> {
    let may_be = datagram.len() >= MIN_RESET && !is_long(datagram[0]);
    datagram.last_chunk().filter(|_| may_be)
}
