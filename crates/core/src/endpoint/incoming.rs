//! A client's first Initial, for which no state is kept yet.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use squall_protect::initial::FirstKeys;
use squall_protect::{Outcome, PacketSpan, TAG_LEN, initial, retry};
use squall_tls::Session;
use squall_wire::frame::{Frame, Frames};
use squall_wire::{ConnectionId, LongType, Path, TransportErrorCode, Writer, frame, header};

use super::limits::Admission;
use super::refusal::RefusalReason;
use super::{ConnectionHandle, Endpoint};
use crate::config::{MIN_UDP_PAYLOAD, ServerConfig};
use crate::connection::{Accepted, Connection, Role, Start};
use crate::time::Time;
use crate::token::Verdict;

/// A client's connection attempt. Dropping it ignores the client.
pub struct Incoming {
    pub(super) path: Path,
    pub(super) version: u32,
    pub(super) dcid: ConnectionId,
    pub(super) scid: ConnectionId,
    /// The verdict on its token.
    pub(super) verdict: Verdict,
    /// The keys that opened its Initial.
    pub(super) keys: Option<Box<FirstKeys>>,
    /// Shared by all packets of the attempt.
    pub(super) _attempt: Arc<Attempt>,
}

/// Exists while an attempt is undecided. Holds a share of the endpoint's count of attempts.
pub(super) struct Attempt {
    /// The verdict on the token of its first packet.
    pub(super) verdict: Verdict,
    _counted: Arc<()>,
}

/// The undecided attempts. A ClientHello may fill several packets, and any of them may arrive here
/// first.
#[derive(Default)]
pub(super) struct Undecided {
    counted: Arc<()>,
    /// By the source address and the destination id of their packets; decided ones are removed now
    /// and then.
    attempts: HashMap<(SocketAddr, ConnectionId), Weak<Attempt>>,
}

impl Undecided {
    pub(super) fn count(&self) -> usize {
        Arc::strong_count(&self.counted) - 1
    }

    /// The attempt that packets from `remote` to `dcid` belong to, if it is undecided.
    pub(super) fn find(&self, remote: SocketAddr, dcid: &ConnectionId) -> Option<Arc<Attempt>> {
        self.attempts.get(&(remote, *dcid))?.upgrade()
    }

    pub(super) fn begin(
        &mut self,
        remote: SocketAddr,
        dcid: ConnectionId,
        verdict: Verdict,
    ) -> Arc<Attempt> {
        if self.attempts.len() >= 2 * self.count() + 64 {
            self.attempts
                .retain(|_, attempt| attempt.strong_count() > 0);
        }
        let attempt = Arc::new(Attempt {
            verdict,
            _counted: Arc::clone(&self.counted),
        });
        (self.attempts).insert((remote, dcid), Arc::downgrade(&attempt));
        attempt
    }
}

impl Incoming {
    /// The client's address; see [`remote_address_validated`](Self::remote_address_validated).
    #[must_use]
    pub const fn remote(&self) -> std::net::SocketAddr {
        self.path.remote
    }

    /// The destination connection id of the client's packets in this attempt: the same in all of
    /// them, until the attempt is answered.
    #[must_use]
    pub const fn destination_id(&self) -> ConnectionId {
        self.dcid
    }

    /// The destination connection id of the client's very first packet, before any Retry (RFC 9000
    /// §7.3).
    #[must_use]
    pub const fn original_destination_id(&self) -> ConnectionId {
        match self.verdict {
            Verdict::Retry(original) => original,
            _ => self.dcid,
        }
    }

    /// The QUIC version of the Initial.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Whether a token has validated the client's address, so that the limit of three times the
    /// received bytes does not apply (RFC 9000 §8.1).
    #[must_use]
    pub fn remote_address_validated(&self) -> bool {
        self.verdict.validates()
    }

    /// Whether [`Endpoint::retry`] is possible: a client follows only one Retry (RFC 9000
    /// §17.2.5.2).
    #[must_use]
    pub fn may_retry(&self) -> bool {
        !matches!(self.verdict, Verdict::Retry(_))
    }
}

/// What a packet that may start a connection shows.
pub(super) struct Opening {
    /// The keys derived from its destination.
    pub(super) keys: Box<FirstKeys>,
    /// Whether it contains a later part of the ClientHello only.
    pub(super) continues: bool,
}

/// Opens a packet that may start a connection. `None` if it is not authentic under the keys derived
/// from its destination.
pub(super) fn opening(
    version: u32,
    dcid: &ConnectionId,
    packet: &[u8],
    pn_offset: usize,
) -> Option<Opening> {
    let mut first = Box::new(FirstKeys::new(version, dcid.as_slice()));
    let keys = &mut first.client;
    let mut copy = packet.to_vec();
    let mut spans = [PacketSpan::new(0, copy.len() as u32, pn_offset as u16)];
    keys.header.unprotect(&mut copy, &mut spans);
    // A first packet has a small number, which needs no expansion.
    keys.packet.open(&mut copy, &mut spans, 0);
    let [span] = spans;
    if span.outcome != Outcome::Open {
        return None;
    }
    let payload = usize::from(span.header_len)..copy.len() - TAG_LEN;
    let offsets = Frames::new(copy.get(payload)?).filter_map(|frame| match frame {
        Ok(Frame::Crypto { offset, .. }) => Some(offset),
        _ => None,
    });
    Some(Opening {
        keys: first,
        continues: offsets.min().is_some_and(|least| least > 0),
    })
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("remote", &self.path.remote)
            .finish_non_exhaustive()
    }
}

/// Why an incoming connection was not accepted.
#[derive(Debug)]
pub struct AcceptError {
    /// What was wrong, as one line.
    pub reason: String,
    /// A datagram to send to the client, if any.
    pub response: Option<Vec<u8>>,
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)
    }
}

impl std::error::Error for AcceptError {}

impl Endpoint {
    /// Accepts the connection. The caller then passes the run that came with `incoming` to it.
    ///
    /// # Errors
    /// This endpoint accepts no connections, or rustls or a setting rejects it (with the response
    /// for the client), or another packet of the same attempt was accepted before: `route` then
    /// finds the connection.
    pub fn accept(
        &mut self,
        now: Time,
        incoming: Incoming,
    ) -> Result<(ConnectionHandle, Connection), AcceptError> {
        match self.server.clone() {
            Some(server) => self.accept_with(now, incoming, &server),
            None => Err(AcceptError {
                reason: "this endpoint accepts no connections".to_owned(),
                response: Some(self.refusal(&incoming, RefusalReason::Closed)),
            }),
        }
    }

    /// As [`accept`](Self::accept), but with a configuration other than the endpoint's.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_with(
        &mut self,
        now: Time,
        mut incoming: Incoming,
        server: &ServerConfig,
    ) -> Result<(ConnectionHandle, Connection), AcceptError> {
        let keys = incoming.keys.take();
        let error = |this: &mut Self, reason: String| AcceptError {
            reason,
            response: Some(this.refusal(&incoming, RefusalReason::Configuration)),
        };
        if let Err(what) = server.transport.check() {
            return Err(error(self, what.to_owned()));
        }
        if let Err(refused) = Session::check_server(&server.tls) {
            return Err(error(self, refused.to_string()));
        }
        if self.routes.get(&incoming.dcid).is_some() {
            return Err(AcceptError {
                reason: "this attempt has already been accepted".to_owned(),
                response: None,
            });
        }
        let local_id = self.ids.make(&mut self.rng);
        let grease = self.grease();
        let original_dcid = incoming.original_destination_id();
        let retry_scid = matches!(incoming.verdict, Verdict::Retry(_)).then_some(incoming.dcid);
        let start = Start {
            role: Role::Server(Accepted {
                tls: Arc::clone(&server.tls),
                original_dcid,
                retry_scid,
                validated: incoming.remote_address_validated(),
                keys,
            }),
            config: Arc::clone(&server.transport),
            version: incoming.version,
            path: incoming.path,
            local_id,
            remote_id: incoming.scid,
            initial_dcid: incoming.dcid,
            ids: Arc::clone(&self.ids),
            tokens: Arc::clone(&self.tokens),
            rng: self.fork_rng(),
            fixed_bit: self.config.fixed_bit(),
            grease,
        };
        let connection = match Connection::new(start, now) {
            Ok(connection) => connection,
            Err(refused) => return Err(error(self, refused.to_string())),
        };
        // Others may have been accepted since this one was admitted.
        if !self.total.add(self.config.max_connections) {
            return Err(AcceptError {
                reason: "the endpoint has reached its connection limit".to_owned(),
                response: Some(self.refusal(&incoming, RefusalReason::Connections)),
            });
        }
        let address = incoming.path.remote.ip();
        let seat = match self.take_seat(address, incoming.remote_address_validated()) {
            Ok(seat) => seat,
            Err(admission) => {
                self.total.remove(1);
                return Err(self.denied(now, &incoming, admission));
            }
        };
        let handle = self.occupy(&[local_id, incoming.dcid]);
        self.slots[handle.0].seat = seat;
        self.slots[handle.0].handshaking = true;
        self.handshakes += 1;
        self.accepted = Some(now);
        Ok((handle, connection))
    }

    /// The answer to a client whose prefix reached its limit while this attempt waited.
    fn denied(&mut self, now: Time, incoming: &Incoming, admission: Admission) -> AcceptError {
        let (path, version) = (incoming.path, incoming.version);
        let (dcid, scid) = (&incoming.dcid, &incoming.scid);
        let response = match admission {
            Admission::NotYet => self.retry_datagram(now, path, version, dcid, scid),
            _ => self.refusal(incoming, RefusalReason::Prefix),
        };
        AcceptError {
            reason: "the client's network has reached its connection limit".to_owned(),
            response: Some(response),
        }
    }

    /// The datagram that asks a client to validate its address (RFC 9000 §8.1.2); no state is kept.
    ///
    /// # Errors
    /// Returns `incoming` if [`may_retry`](Incoming::may_retry) is false.
    #[expect(
        clippy::result_large_err,
        reason = "the attempt goes back to its owner, once in a while"
    )]
    pub fn retry(&mut self, now: Time, incoming: Incoming) -> Result<Vec<u8>, Incoming> {
        if !incoming.may_retry() {
            return Err(incoming);
        }
        Ok(self.retry_datagram(
            now,
            incoming.path,
            incoming.version,
            &incoming.dcid,
            &incoming.scid,
        ))
    }

    pub(super) fn retry_datagram(
        &mut self,
        now: Time,
        path: Path,
        version: u32,
        dcid: &ConnectionId,
        scid: &ConnectionId,
    ) -> Vec<u8> {
        self.counts.retries += 1;
        let retry_scid = self.ids.make(&mut self.rng);
        let rng = &mut self.rng;
        let token = (self.tokens).retry(rng, now, path.remote, version, dcid, &retry_scid);
        // First byte, version, two ids with their lengths, tag.
        let most = 7 + 2 * ConnectionId::MAX_LEN + token.len() + TAG_LEN;
        let mut datagram = vec![0; most];
        let mut w = Writer::new(&mut datagram);
        header::write_retry(&mut w, version, scid, &retry_scid, &token);
        let len = w.len();
        let tag = retry::integrity_tag(version, dcid.as_slice(), &datagram[..len]);
        datagram.truncate(len);
        datagram.extend_from_slice(&tag);
        datagram
    }

    /// The datagram that refuses a client (RFC 9000 §5.2.2); no state is kept.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what is refused cannot be accepted later"
    )]
    pub fn refuse(&mut self, incoming: Incoming) -> Vec<u8> {
        self.refusal(&incoming, RefusalReason::Application)
    }

    fn refusal(&mut self, incoming: &Incoming, why: RefusalReason) -> Vec<u8> {
        self.note_refusal(incoming.path, why);
        self.close_datagram(incoming.version, &incoming.dcid, &incoming.scid, why.code())
    }

    /// An Initial with a CONNECTION_CLOSE, for a client that is refused.
    pub(super) fn close_datagram(
        &mut self,
        version: u32,
        dcid: &ConnectionId,
        client: &ConnectionId,
        code: TransportErrorCode,
    ) -> Vec<u8> {
        self.counts.refusals += 1;
        let keys = initial::keys(version, dcid.as_slice(), false);
        let scid = self.ids.make(&mut self.rng);
        let mut datagram = vec![0; usize::from(MIN_UDP_PAYLOAD)];
        let mut w = Writer::new(&mut datagram);
        let pn_len = 2;
        let initial = LongType::Initial;
        let length = header::write_long(&mut w, initial, version, client, &scid, &[], 0, pn_len);
        let header_len = w.len();
        frame::write::connection_close(&mut w, code.0, Some(0), b"");
        let size = w.len() + TAG_LEN;
        header::patch_length(&mut datagram, length, size - (header_len - pn_len));
        let mut span = PacketSpan::new(0, size as u32, (header_len - pn_len) as u16);
        (span.header_len, span.packet_number) = (header_len as u16, 0);
        keys.local
            .packet
            .seal(&keys.local.header, &mut datagram, &mut [span], &[]);
        datagram.truncate(size);
        datagram
    }
}
