//! One TLS handshake and what comes out of it (RFC 9001 §4).
//!
//! The connection gives the session the bytes of each level's CRYPTO stream in order ([`Session::read`])
//! and sends what [`Session::write`] gives, at the level of the keys installed last, until it gives
//! nothing more. Each [`KeyChange`] opens a level.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};
use rustls::{ClientConfig, HandshakeKind, NamedGroup, ServerConfig};
use squall_protect::KeyMaterial;

use crate::capture::{self, LevelMaterial};

/// One end of a TLS 1.3 handshake over QUIC.
pub struct Session {
    connection: Connection,
}

/// A level whose keys the handshake has just produced (RFC 9001 §4.1.4).
pub enum KeyChange {
    /// Keys of Handshake packets; handshake bytes written from now on belong to them.
    Handshake(LevelMaterial),
    /// Keys of 1-RTT packets, key phase 0, and the secrets of the phases after it.
    OneRtt(LevelMaterial, Secrets),
}

/// The secrets from which the packet keys of later key phases come (RFC 9001 §6.1).
pub struct Secrets {
    secrets: rustls::quic::Secrets,
}

impl Secrets {
    /// The packet keys of the next key phase, local then remote. The first call gives those of the
    /// first key update; header protection keys stay (RFC 9001 §6.1).
    #[expect(
        clippy::should_implement_trait,
        reason = "key phases never end, and a caller that iterates over them would be wrong"
    )]
    pub fn next(&mut self) -> (KeyMaterial, KeyMaterial) {
        let keys = self.secrets.next_packet_keys();
        let [local, remote] = [&keys.local, &keys.remote].map(|key| {
            // No input reaches this: the algorithm that makes the key is the one whose keys of
            // phase 0 were exported when these secrets were made.
            capture::packet_material(&**key).expect("the suite of phase 0 is one of ours")
        });
        (local, remote)
    }
}

/// Why the handshake failed, in the peer's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// The TLS alert description (RFC 8446 §6), which CONNECTION_CLOSE carries as 0x0100 + code
    /// (RFC 9001 §4.8). `None` when TLS named none.
    pub code: Option<u8>,
    /// What went wrong, one line.
    pub reason: String,
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "TLS alert {code}: {}", self.reason),
            None => write!(f, "TLS failure: {}", self.reason),
        }
    }
}

impl std::error::Error for Alert {}

/// Why there is no session, or no keys from it: a mistake on this side, never the peer's.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The rustls configuration was not built on [`provider`](crate::provider) or on the result of
    /// [`wrap`](crate::wrap), so its key material could not reach squall.
    NotSquallProvider,
    /// TLS is defined for QUIC versions 1 and 2 here, not for this one.
    UnsupportedVersion(u32),
    /// rustls refused the configuration.
    Tls(rustls::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSquallProvider => f.write_str(
                "this rustls configuration was not built with squall's crypto provider: start it \
                 from `builder_with_provider(squall_tls::provider())`, or wrap your own provider \
                 with `squall_tls::wrap`",
            ),
            Self::UnsupportedVersion(version) => {
                write!(f, "no TLS for QUIC version 0x{version:08x}")
            }
            Self::Tls(error) => write!(f, "rustls refused the configuration: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Tls(error) => Some(error),
            Self::NotSquallProvider | Self::UnsupportedVersion(_) => None,
        }
    }
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// The labels and salts by wire version (RFC 9001 §5.1, RFC 9369 §3.3).
fn tls_version(version: u32) -> Result<Version, Error> {
    match version {
        0x0000_0001 => Ok(Version::V1),
        0x6b33_43cf => Ok(Version::V2),
        other => Err(Error::UnsupportedVersion(other)),
    }
}

impl Session {
    /// A client's session. `version` is the QUIC version on the wire, `params` the encoded transport
    /// parameters (RFC 9001 §8.2).
    ///
    /// # Errors
    /// [`Error::NotSquallProvider`] for a configuration with a foreign provider, found before a byte
    /// is sent; [`Error::UnsupportedVersion`]; [`Error::Tls`], for a configuration without TLS 1.3.
    pub fn client(
        config: Arc<ClientConfig>,
        version: u32,
        server_name: ServerName<'static>,
        params: Vec<u8>,
    ) -> Result<Self, Error> {
        let version = tls_version(version)?;
        if !capture::is_wrapped(config.crypto_provider()) {
            return Err(Error::NotSquallProvider);
        }
        let connection = ClientConnection::new(config, version, server_name, params)?;
        Ok(Self {
            connection: connection.into(),
        })
    }

    /// A server's session; see [`Session::client`].
    ///
    /// # Errors
    /// As [`Session::client`].
    pub fn server(config: Arc<ServerConfig>, version: u32, params: Vec<u8>) -> Result<Self, Error> {
        let version = tls_version(version)?;
        if !capture::is_wrapped(config.crypto_provider()) {
            return Err(Error::NotSquallProvider);
        }
        let connection = ServerConnection::new(config, version, params)?;
        Ok(Self {
            connection: connection.into(),
        })
    }

    /// Takes the next bytes of a CRYPTO stream, in order. Bytes of different levels go into
    /// different calls (RFC 9001 §4.1.3).
    ///
    /// # Errors
    /// The alert to close the connection with (RFC 9001 §4.8).
    pub fn read(&mut self, crypto: &[u8]) -> Result<(), Alert> {
        self.connection.read_hs(crypto).map_err(|error| Alert {
            code: self.connection.alert().map(u8::from),
            reason: error.to_string(),
        })
    }

    /// Appends handshake bytes to `out`, all of them for the level of the last [`KeyChange`] (none
    /// yet: Initial). After a [`KeyChange`] call again: more bytes, for the new level, may wait.
    ///
    /// # Errors
    /// [`Error::NotSquallProvider`], for a suite that slipped past the check at the start.
    pub fn write(&mut self, out: &mut Vec<u8>) -> Result<Option<KeyChange>, Error> {
        let Some(change) = self.connection.write_hs(out) else {
            return Ok(None);
        };
        let change = match change {
            rustls::quic::KeyChange::Handshake { keys } => {
                capture::level_material(&keys).map(KeyChange::Handshake)
            }
            rustls::quic::KeyChange::OneRtt { keys, next } => capture::level_material(&keys)
                .map(|level| KeyChange::OneRtt(level, Secrets { secrets: next })),
        };
        change.map(Some).ok_or(Error::NotSquallProvider)
    }

    /// Whether the handshake is not yet complete in the sense of RFC 9001 §4.1.1: this side has not
    /// both sent its Finished and verified the peer's.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The peer's encoded transport parameters once they arrived. Authenticated only when the
    /// handshake is complete (RFC 9001 §8.2).
    #[must_use]
    pub fn peer_transport_parameters(&self) -> Option<&[u8]> {
        self.connection.quic_transport_parameters()
    }

    /// The application protocol agreed on (RFC 7301).
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// The peer's certificates, its own first; `None` before they arrived or when it sent none.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.connection.peer_certificates()
    }

    /// The server name that the client asked for (RFC 6066 §3); servers only.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        match &self.connection {
            Connection::Server(server) => server.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// The key exchange group agreed on.
    #[must_use]
    pub fn key_exchange_group(&self) -> Option<NamedGroup> {
        Some(self.connection.negotiated_key_exchange_group()?.name())
    }

    /// Full, full with a HelloRetryRequest, or resumed.
    #[must_use]
    pub fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.connection.handshake_kind()
    }

    /// Fills `out` with key material bound to this session (RFC 8446 §7.5).
    ///
    /// # Errors
    /// rustls's error when the handshake is not complete or `out` is empty.
    pub fn export_keying_material(
        &self,
        out: &mut [u8],
        label: &[u8],
        context: Option<&[u8]>,
    ) -> Result<(), rustls::Error> {
        self.connection
            .export_keying_material(out, label, context)
            .map(|_| ())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("handshaking", &self.is_handshaking())
            .finish_non_exhaustive()
    }
}
