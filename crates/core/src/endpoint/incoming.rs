//! A client's first Initial, before anything is kept of it.

use std::fmt;
use std::sync::Arc;

use squall_protect::{Outcome, PacketSpan, TAG_LEN, initial};
use squall_tls::Session;
use squall_wire::{ConnectionId, LongType, Path, Side, TransportErrorCode, Writer, frame, header};

use super::{ConnectionHandle, Endpoint};
use crate::config::MIN_UDP_PAYLOAD;
use crate::connection::{Connection, Start, declared};
use crate::time::Time;

/// A client that wants a connection. Dropping it ignores the client.
pub struct Incoming {
    path: Path,
    version: u32,
    dcid: ConnectionId,
    scid: ConnectionId,
    token: Vec<u8>,
}

impl Incoming {
    pub(super) const fn new(
        path: Path,
        version: u32,
        dcid: ConnectionId,
        scid: ConnectionId,
        token: Vec<u8>,
    ) -> Self {
        Self {
            path,
            version,
            dcid,
            scid,
            token,
        }
    }

    /// The client's address, not yet validated.
    #[must_use]
    pub const fn remote(&self) -> std::net::SocketAddr {
        self.path.remote
    }

    /// The QUIC version of the Initial.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// The token of the Initial, empty if there was none.
    #[must_use]
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    /// Whether the first packet is authentic under the keys that its destination gives.
    pub(super) fn opens(&self, packet: &[u8], pn_offset: usize) -> bool {
        let mut keys = initial::keys(self.version, self.dcid.as_slice(), false);
        let mut copy = packet.to_vec();
        let mut spans = [PacketSpan::new(0, copy.len() as u32, pn_offset as u16)];
        keys.remote.header.unprotect(&mut copy, &mut spans);
        // A first packet has a small number: nothing to expand it against.
        keys.remote.packet.open(&mut copy, &mut spans, 0);
        spans[0].outcome == Outcome::Open
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("remote", &self.path.remote)
            .finish_non_exhaustive()
    }
}

/// Why an incoming connection was not made.
#[derive(Debug)]
pub struct AcceptError {
    /// What was wrong, in one line.
    pub reason: String,
    /// One datagram to be sent to the client.
    pub response: Option<Vec<u8>>,
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)
    }
}

impl std::error::Error for AcceptError {}

impl Endpoint {
    /// Makes the connection. The caller hands it the run that came with `incoming`.
    ///
    /// # Errors
    /// If this endpoint takes no connections, or rustls or a setting refuses; with the answer for the client.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an attempt is decided once: who accepts it cannot refuse it after"
    )]
    pub fn accept(
        &mut self,
        now: Time,
        incoming: Incoming,
    ) -> Result<(ConnectionHandle, Connection), AcceptError> {
        let error = |this: &mut Self, reason: String| AcceptError {
            reason,
            response: Some(this.refusal(&incoming)),
        };
        let Some(server) = self.server.clone() else {
            return Err(error(self, "this endpoint takes no connections".to_owned()));
        };
        if let Err(what) = server.transport.check() {
            return Err(error(self, what.to_owned()));
        }
        let local_id = self.ids.make(&mut self.rng);
        let mut params = Vec::with_capacity(160);
        declared(
            Side::Server,
            &server.transport,
            local_id,
            incoming.dcid,
            &self.ids,
        )
        .encode(&mut params, self.grease());
        let tls = match Session::server(Arc::clone(&server.tls), incoming.version, params) {
            Ok(tls) => tls,
            Err(refused) => return Err(error(self, refused.to_string())),
        };
        let start = Start {
            side: Side::Server,
            config: Arc::clone(&server.transport),
            version: incoming.version,
            tls,
            path: incoming.path,
            local_id,
            remote_id: incoming.scid,
            original_dcid: incoming.dcid,
            ids: self.ids.clone(),
            rng: self.fork_rng(),
        };
        let handle = self.occupy(&[local_id, incoming.dcid]);
        Ok((handle, Connection::new(start, now)))
    }

    /// The datagram that tells a client that it is refused (RFC 9000 §5.2.2): nothing is kept.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what is refused cannot be accepted later"
    )]
    pub fn refuse(&mut self, incoming: Incoming) -> Vec<u8> {
        self.refusal(&incoming)
    }

    pub(super) fn refusal(&mut self, incoming: &Incoming) -> Vec<u8> {
        let mut keys = initial::keys(incoming.version, incoming.dcid.as_slice(), false);
        let scid = self.ids.make(&mut self.rng);
        let mut datagram = vec![0; usize::from(MIN_UDP_PAYLOAD)];
        let mut w = Writer::new(&mut datagram);
        let pn_len = 2;
        let length = header::write_long(
            &mut w,
            LongType::Initial,
            incoming.version,
            &incoming.scid,
            &scid,
            &[],
            0,
            pn_len,
        );
        let header_len = w.len();
        frame::write::connection_close(
            &mut w,
            TransportErrorCode::CONNECTION_REFUSED.0,
            Some(0),
            b"",
        );
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
