//! One TLS handshake and what comes out of it (RFC 9001 §4).
//!
//! The connection gives the session the bytes of each level's CRYPTO stream in order
//! ([`Session::read`]) and sends what [`Session::write`] gives, at the level of the keys installed
//! last, until it gives nothing more. Each [`KeyChange`] opens a level.

use std::fmt;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::{ClientConfig, HandshakeKind, NamedGroup, ServerConfig};

use crate::capture::{self, Secret};
use crate::exporter::ExporterSecret;
use crate::schedule::{DirectionMaterial, LevelMaterial, Schedule, Secrets};
use crate::storage::Bound;

/// RFC 8446 §6.
const DECODE_ERROR: u8 = 50;
/// RFC 8446 §6.
const UNEXPECTED_MESSAGE: u8 = 10;
/// QUIC version 1 (RFC 9000 §15).
const VERSION_1: u32 = 1;
/// QUIC version 2 (RFC 9369 §3.1).
const VERSION_2: u32 = 0x6b33_43cf;

/// One end of a TLS 1.3 handshake over QUIC.
pub struct Session {
    connection: Connection,
    /// Where the suites' HKDF is.
    provider: Arc<CryptoProvider>,
    /// Whose labels the keys are made with.
    version: u32,
}

/// A level whose keys the handshake has just produced (RFC 9001 §4.1.4).
pub enum KeyChange {
    /// Keys of Handshake packets; handshake bytes written from now on belong to them.
    Handshake(LevelMaterial),
    /// Keys of 1-RTT packets, key phase 0, and the secrets of the phases after it.
    OneRtt(LevelMaterial, Secrets),
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
    /// The rustls configuration was not built on `provider()` or on the result of
    /// [`wrap`](crate::wrap), so its key material could not reach squall.
    NotSquallProvider,
    /// TLS is defined for QUIC versions 1 and 2 here, not for this one.
    UnsupportedVersion(u32),
    /// `max_early_data_size` is neither 0 nor 2^32 - 1, the only values in QUIC, whose own limits
    /// apply (RFC 9001 §4.6.1).
    EarlyDataSize(u32),
    /// rustls refused the configuration.
    Tls(rustls::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSquallProvider => f.write_str(
                "this rustls configuration was not built with a crypto provider of squall: start it \
                 from `builder_with_provider(squall::provider())`, or pass your own provider to \
                 `squall::wrap` first and build the configuration on the result",
            ),
            Self::UnsupportedVersion(version) => {
                write!(f, "no TLS for QUIC version 0x{version:08x}")
            }
            Self::EarlyDataSize(size) => write!(
                f,
                "max_early_data_size is {size}: QUIC allows 0 and 4294967295 (RFC 9001 §4.6.1)"
            ),
            Self::Tls(error) => write!(f, "rustls refused the configuration: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Tls(error) => Some(error),
            Self::NotSquallProvider | Self::UnsupportedVersion(_) | Self::EarlyDataSize(_) => None,
        }
    }
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// No tickets: neither made nor taken.
#[derive(Debug)]
struct NoTickets;

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

fn check(provider: &CryptoProvider, versions: &[u32]) -> Result<(), Error> {
    let known = |version: &&u32| ![VERSION_1, VERSION_2].contains(*version);
    if let Some(unknown) = versions.iter().find(known) {
        return Err(Error::UnsupportedVersion(*unknown));
    }
    if !capture::is_wrapped(provider) {
        return Err(Error::NotSquallProvider);
    }
    Ok(())
}

impl Session {
    /// Whether a server's session could be made of `config`.
    ///
    /// # Errors
    /// [`Error::NotSquallProvider`] for a configuration with a foreign provider;
    /// [`Error::EarlyDataSize`].
    pub fn check_server(config: &ServerConfig) -> Result<(), Error> {
        if ![0, u32::MAX].contains(&config.max_early_data_size) {
            return Err(Error::EarlyDataSize(config.max_early_data_size));
        }
        check(config.crypto_provider(), &[])
    }

    /// A client's session. `version` is the QUIC version of its first packet, `params` the encoded
    /// transport parameters (RFC 9001 §8.2).
    ///
    /// A ticket is good for the version alone that it was issued in (RFC 9369 §5), and rustls does
    /// not tell them apart: sessions are resumed, and tickets kept, in version 1 only.
    ///
    /// # Errors
    /// [`Error::NotSquallProvider`] for a configuration with a foreign provider, found before a
    /// byte is sent; [`Error::UnsupportedVersion`]; [`Error::Tls`], for a configuration without TLS
    /// 1.3.
    pub fn client(
        mut config: Arc<ClientConfig>,
        version: u32,
        server_name: ServerName<'static>,
        params: Vec<u8>,
    ) -> Result<Self, Error> {
        let provider = Arc::clone(config.crypto_provider());
        check(&provider, &[version])?;
        if version != VERSION_1 {
            let mut without = ClientConfig::clone(&config);
            without.resumption = Resumption::disabled();
            config = Arc::new(without);
        }
        // What rustls makes of the version, its labels, is not used: see `capture`.
        let connection = ClientConnection::new(config, Version::V1, server_name, params)?;
        Ok(Self {
            connection: connection.into(),
            provider,
            version,
        })
    }

    /// A server's session; see [`Session::client`]. `original` is the version of the client's first
    /// packet, `negotiated` the one that the connection goes on with (RFC 9368 §2.3). With early
    /// data allowed, `limits` are what a ticket promises a client and the server has to keep:
    /// tickets are taken from servers with the same ones.
    ///
    /// # Errors
    /// As [`Session::client`].
    pub fn server(
        mut config: Arc<ServerConfig>,
        original: u32,
        negotiated: u32,
        params: Vec<u8>,
        limits: &[u8],
    ) -> Result<Self, Error> {
        Self::check_server(&config)?;
        let provider = Arc::clone(config.crypto_provider());
        check(&provider, &[original, negotiated])?;
        if negotiated != VERSION_1 {
            let mut without = ServerConfig::clone(&config);
            without.send_tls13_tickets = 0;
            if original != VERSION_1 {
                without.session_storage = Arc::new(NoServerSessionStorage {});
                without.ticketer = Arc::new(NoTickets);
            }
            config = Arc::new(without);
        }
        if config.max_early_data_size > 0 {
            let mut bound = ServerConfig::clone(&config);
            bound.session_storage = Arc::new(Bound {
                inner: Arc::clone(&config.session_storage),
                limits: limits.to_vec(),
            });
            config = Arc::new(bound);
        }
        let connection = ServerConnection::new(config, Version::V1, params)?;
        Ok(Self {
            connection: connection.into(),
            provider,
            version: negotiated,
        })
    }

    /// The server has chosen another version (RFC 9368 §2.3): keys of all levels to come are of
    /// that one.
    pub const fn set_version(&mut self, version: u32) {
        self.version = version;
    }

    /// Keys of 0-RTT packets (RFC 9001 §4.6): what a client seals with, or a server opens with.
    /// `None` if there is no ticket for it, or it is not allowed. They belong to `version`, that of
    /// the client's first packet.
    #[must_use]
    pub fn early_keys(&self, version: u32) -> Option<DirectionMaterial> {
        let keys = match &self.connection {
            Connection::Client(client) => client.zero_rtt_keys(),
            Connection::Server(server) => server.zero_rtt_keys(),
        };
        let Secret { suite, okm } = capture::direction_secret(&keys?)?;
        Some(Schedule::new(&self.provider, suite, version)?.direction(&okm))
    }

    /// Whether the server has accepted the client's early data; known once the handshake keys of
    /// the server's flight are there. Clients only.
    #[must_use]
    pub fn is_early_data_accepted(&self) -> bool {
        match &self.connection {
            Connection::Client(client) => client.is_early_data_accepted(),
            Connection::Server(_) => false,
        }
    }

    /// Takes the next bytes of a CRYPTO stream, in order. Bytes of different levels go into
    /// different calls (RFC 9001 §4.1.3).
    ///
    /// # Errors
    /// The alert to close the connection with (RFC 9001 §4.8).
    pub fn read(&mut self, crypto: &[u8]) -> Result<(), Alert> {
        self.connection.read_hs(crypto).map_err(|error| {
            // rustls names no alert where it cannot even cut the messages apart.
            let unnamed = match error {
                rustls::Error::InvalidMessage(_) => Some(DECODE_ERROR),
                rustls::Error::PeerMisbehaved(_) => Some(UNEXPECTED_MESSAGE),
                _ => None,
            };
            Alert {
                code: self.connection.alert().map(u8::from).or(unnamed),
                reason: error.to_string(),
            }
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
        let (keys, one_rtt) = match &change {
            rustls::quic::KeyChange::Handshake { keys } => (keys, false),
            rustls::quic::KeyChange::OneRtt { keys, .. } => (keys, true),
        };
        let secrets = capture::level_secrets(keys).ok_or(Error::NotSquallProvider)?;
        let schedule = Schedule::new(&self.provider, secrets.local.suite, self.version)
            .ok_or(Error::NotSquallProvider)?;
        let level = schedule.level(&secrets);
        Ok(Some(if one_rtt {
            KeyChange::OneRtt(level, Secrets::new(schedule, secrets))
        } else {
            KeyChange::Handshake(level)
        }))
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

    /// From which key material can be exported at any later time, without the session. `None`
    /// before the handshake is complete.
    #[must_use]
    pub fn exporter_secret(&self) -> Option<ExporterSecret> {
        let suite = self.connection.negotiated_cipher_suite()?.tls13()?;
        let secret = capture::exporter_secret(suite, |out, label| {
            let exported = (self.connection).export_keying_material(out, label, None);
            exported.map(|_| ())
        })?;
        Some(ExporterSecret::new(suite, secret))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("handshaking", &self.is_handshaking())
            .finish_non_exhaustive()
    }
}
