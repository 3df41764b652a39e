//! How a connection begins: the data from its endpoint.

use std::sync::Arc;

use rand::rngs::StdRng;
use rustls::pki_types::ServerName;
use squall_protect::initial::FirstKeys;
use squall_wire::{ConnectionId, FixedBit, Path, PreferredAddress, Side, TransportParameters};

use super::handshake::tls::{Restart, Tls};
use crate::config::TransportConfig;
use crate::path::cid::IdSource;
use crate::token::TokenKey;

/// Data that only a client has at the beginning.
pub(crate) struct Opening {
    /// The configuration of its TLS session.
    pub(crate) tls: Arc<rustls::ClientConfig>,
    /// The name of the server.
    pub(crate) server_name: ServerName<'static>,
    /// The token from an earlier connection (RFC 9000 §8.1.3); empty if there is none.
    pub(crate) token: Vec<u8>,
}

/// Data that only a server has at the beginning.
pub(crate) struct Accepted {
    /// The configuration of its TLS session.
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// The destination id of the client's very first packet.
    pub(crate) original_dcid: ConnectionId,
    /// The source id of the Retry that the client followed.
    pub(crate) retry_scid: Option<ConnectionId>,
    /// Whether a token has validated the client's address.
    pub(crate) validated: bool,
    /// The keys that opened its first Initial.
    pub(crate) keys: Option<Box<FirstKeys>>,
}

/// Data that depends on the side.
pub(crate) enum Role {
    Client(Opening),
    Server(Accepted),
}

impl Role {
    /// Client or server.
    pub(crate) const fn side(&self) -> Side {
        match self {
            Self::Client(_) => Side::Client,
            Self::Server(_) => Side::Server,
        }
    }
}

/// How a connection begins.
pub(crate) struct Start {
    pub(crate) role: Role,
    pub(crate) config: Arc<TransportConfig>,
    /// The version of the client's first packet.
    pub(crate) version: u32,
    pub(crate) path: Path,
    /// The id that this end has chosen for itself.
    pub(crate) local_id: ConnectionId,
    /// The peer's id; for a client, the one that it made up.
    pub(crate) remote_id: ConnectionId,
    /// The source of the Initial keys: the destination id of the client's first packet, or of the
    /// first after a Retry.
    pub(crate) initial_dcid: ConnectionId,
    pub(crate) ids: Arc<IdSource>,
    pub(crate) tokens: Arc<TokenKey>,
    pub(crate) rng: StdRng,
    /// Which packets are accepted, and what is declared about that.
    pub(crate) fixed_bit: FixedBit,
    /// A reserved transport parameter: its id and length.
    pub(crate) grease: (u64, u8),
}

/// The TLS side of a new connection.
pub(super) struct TlsStart {
    pub(super) tls: Tls,
    /// Clients: the data needed to start over.
    pub(super) restart: Option<Restart>,
    /// The token of the client's Initial packets.
    pub(super) token: Vec<u8>,
    /// The destination id of the client's very first packet.
    pub(super) original_dcid: ConnectionId,
    /// Whether the peer's address is validated.
    pub(super) validated: bool,
    /// Servers: the keys that opened the first Initial.
    pub(super) first_keys: Option<Box<FirstKeys>>,
    /// Servers: the connection id of the preferred address.
    pub(super) preferred_id: Option<ConnectionId>,
}

impl TlsStart {
    /// A client's, whose session begins at once.
    ///
    /// # Errors
    /// If rustls refuses the configuration.
    pub(super) fn client(
        opening: Opening,
        version: u32,
        initial_dcid: ConnectionId,
        params: TransportParameters,
        config: &TransportConfig,
        grease: (u64, u8),
    ) -> Result<Self, squall_tls::Error> {
        let restart = Restart {
            tls: opening.tls,
            server_name: opening.server_name,
            params,
            grease,
        };
        let session = restart.session(version, config)?;
        Ok(Self {
            tls: Tls::Running(Box::new(session)),
            restart: Some(restart),
            token: opening.token,
            original_dcid: initial_dcid,
            validated: true,
            first_keys: None,
            preferred_id: None,
        })
    }

    /// A server's, which waits for the ClientHello.
    pub(super) fn server(
        accepted: Accepted,
        mut params: TransportParameters,
        config: &TransportConfig,
        ids: &IdSource,
        rng: &mut StdRng,
        grease: (u64, u8),
    ) -> Self {
        let local_id = params.initial_source_connection_id;
        params.stateless_reset_token = local_id.map(|id| ids.reset_token(id.as_slice()));
        params.original_destination_connection_id = Some(accepted.original_dcid);
        params.retry_source_connection_id = accepted.retry_scid;
        let prefers = config.preferred_ipv4.is_some() || config.preferred_ipv6.is_some();
        let preferred_id = prefers.then(|| ids.make(rng));
        params.preferred_address = preferred_id.map(|id| PreferredAddress {
            ipv4: config.preferred_ipv4,
            ipv6: config.preferred_ipv6,
            connection_id: id,
            stateless_reset_token: ids.reset_token(id.as_slice()),
        });
        Self {
            tls: Tls::waiting(accepted.tls, params, grease),
            restart: None,
            token: Vec::new(),
            original_dcid: accepted.original_dcid,
            validated: accepted.validated,
            first_keys: accepted.keys,
            preferred_id,
        }
    }
}
