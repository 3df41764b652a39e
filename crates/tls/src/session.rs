//! One TLS handshake and its results (RFC 9001 §4).
//!
//! The connection gives the session the bytes of each level's CRYPTO stream in order
//! ([`Session::read`]) and sends the output of [`Session::write`], at the level of the most
//! recently installed keys, until there is no more. Each [`KeyChange`] opens a level.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, HandshakeKind, NamedGroup, ServerConfig,
    Tls13CipherSuite,
};

use crate::exporter::ExporterSecret;
use crate::schedule::{
    DirectionMaterial, LevelMaterial, LevelSecrets, Schedule, Secrets, suite_of,
};
use crate::secrets::{SecretKind, Tap};
use crate::storage::Bound;

/// RFC 8446 §6.
const DECODE_ERROR: u8 = 50;
/// RFC 8446 §6.
const UNEXPECTED_MESSAGE: u8 = 10;
/// RFC 8446 §6.
const INTERNAL_ERROR: u8 = 80;
/// What a panic is reported as. The peer reads it too, so it does not contain the panic's message,
/// which the panic hook prints.
const PANICKED: &str = "a TLS callback of the application panicked";
/// QUIC version 1 (RFC 9000 §15).
const VERSION_1: u32 = 1;
/// QUIC version 2 (RFC 9369 §3.1).
const VERSION_2: u32 = 0x6b33_43cf;

/// One end of a TLS 1.3 handshake over QUIC.
pub struct Session {
    connection: Connection,
    /// The source of the secrets.
    tap: Arc<Tap>,
    /// The version whose labels make the keys.
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
    /// (RFC 9001 §4.8). `None` if TLS named none.
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

/// Why there is no session, or no keys from it: an error on this side, never the peer's.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The crypto provider of the rustls configuration has no cipher suite for QUIC.
    NoSuite,
    /// The crypto provider offers a cipher suite for QUIC that squall does not support.
    UnsupportedSuite(CipherSuite),
    /// TLS is defined for QUIC versions 1 and 2 here, not for this one.
    UnsupportedVersion(u32),
    /// `max_early_data_size` is neither 0 nor 2^32 - 1, the only values in QUIC, whose own limits
    /// apply (RFC 9001 §4.6.1).
    EarlyDataSize(u32),
    /// rustls rejected the configuration.
    Tls(rustls::Error),
    /// Code of the application that rustls calls has panicked.
    Panicked,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuite => f.write_str(
                "the crypto provider of this rustls configuration has no cipher suite for QUIC: \
                 build the configuration on `squall::provider()`, or on your own provider after \
                 passing it to `squall::wrap`",
            ),
            Self::UnsupportedSuite(suite) => write!(
                f,
                "squall has no packet protection for {suite:?}, which the crypto provider of this \
                 rustls configuration offers for QUIC: leave the suite out, or pass the provider \
                 to `squall::wrap`"
            ),
            Self::UnsupportedVersion(version) => {
                write!(f, "no TLS for QUIC version 0x{version:08x}")
            }
            Self::EarlyDataSize(size) => write!(
                f,
                "max_early_data_size is {size}: QUIC allows 0 and 4294967295 (RFC 9001 §4.6.1)"
            ),
            Self::Tls(error) => write!(f, "rustls rejected the configuration: {error}"),
            Self::Panicked => f.write_str(PANICKED),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Tls(error) => Some(error),
            Self::NoSuite
            | Self::UnsupportedSuite(_)
            | Self::UnsupportedVersion(_)
            | Self::EarlyDataSize(_)
            | Self::Panicked => None,
        }
    }
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// No tickets: neither issued nor accepted.
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

/// Calls the application's code, here through rustls: certificate resolvers, verifiers, stores of
/// sessions and tickets. `None` if that panics: one handshake fails then, and not all connections
/// of a thread. What was used meanwhile, such as a session, must only be dropped.
#[doc(hidden)]
pub fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(call));
    result
        .map_err(|payload| {
            // Dropping the payload may panic as well.
            drop(catch_unwind(AssertUnwindSafe(|| drop(payload))));
        })
        .ok()
}

/// rustls' text, with what to look for where it does not say. Both ends read it.
fn explained(error: &rustls::Error) -> String {
    let hint = match error {
        rustls::Error::General(text) if text == "no server certificate chain resolved" => {
            // Not an unexpected error, as rustls calls it.
            return "the server has no certificate for the server name that the client asked for"
                .to_owned();
        }
        rustls::Error::NoApplicationProtocol => "the ends have no ALPN protocol in common",
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its issuer is not among the trusted roots"
        }
        rustls::Error::InvalidCertificate(CertificateError::BadSignature) => {
            "a trusted root has the name of its issuer, but another key"
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            "it is a CA's certificate; use one without the CA flag, which the CA has issued or \
             which is trusted itself"
        }
        _ => return error.to_string(),
    };
    format!("{error} ({hint})")
}

fn check(provider: &CryptoProvider, versions: &[u32]) -> Result<(), Error> {
    let known = |version: &&u32| ![VERSION_1, VERSION_2].contains(*version);
    if let Some(unknown) = versions.iter().find(known) {
        return Err(Error::UnsupportedVersion(*unknown));
    }
    let mut suites = (provider.cipher_suites.iter())
        .filter_map(rustls::SupportedCipherSuite::tls13)
        .filter(|suite| suite.quic.is_some())
        .peekable();
    if suites.peek().is_none() {
        return Err(Error::NoSuite);
    }
    match suites.find(|suite| suite_of(suite).is_none()) {
        Some(unknown) => Err(Error::UnsupportedSuite(unknown.common.suite)),
        None => Ok(()),
    }
}

impl Session {
    /// Checks whether a server's session could be made from `config`.
    ///
    /// # Errors
    /// [`Error::NoSuite`], [`Error::UnsupportedSuite`], [`Error::EarlyDataSize`].
    pub fn check_server(config: &ServerConfig) -> Result<(), Error> {
        if ![0, u32::MAX].contains(&config.max_early_data_size) {
            return Err(Error::EarlyDataSize(config.max_early_data_size));
        }
        check(config.crypto_provider(), &[])
    }

    /// A client's session. `version` is the QUIC version of its first packet, `params` the encoded
    /// transport parameters (RFC 9001 §8.2).
    ///
    /// A ticket is valid only for the version in which it was issued (RFC 9369 §5), and rustls does
    /// not distinguish versions: sessions are resumed, and tickets kept, only in version 1.
    ///
    /// # Errors
    /// [`Error::NoSuite`], [`Error::UnsupportedSuite`], [`Error::UnsupportedVersion`]; and
    /// [`Error::Tls`] for a configuration without TLS 1.3.
    pub fn client(
        config: &ClientConfig,
        version: u32,
        server_name: ServerName<'static>,
        params: Vec<u8>,
    ) -> Result<Self, Error> {
        check(config.crypto_provider(), &[version])?;
        let tap = Tap::new(Arc::clone(&config.key_log));
        let mut config = ClientConfig::clone(config);
        config.key_log = Arc::<Tap>::clone(&tap);
        if version != VERSION_1 {
            config.resumption = Resumption::disabled();
        }
        // The labels that rustls derives from the version are not used: see `secrets`.
        let connect = || ClientConnection::new(config.into(), Version::V1, server_name, params);
        let connection = guarded(connect).ok_or(Error::Panicked)??;
        Ok(Self {
            connection: connection.into(),
            tap,
            version,
        })
    }

    /// A server's session; see [`Session::client`]. `original` is the version of the client's first
    /// packet, `negotiated` the one with which the connection continues (RFC 9368 §2.3). With early
    /// data allowed, `limits` are those that a ticket promises a client and the server has to keep:
    /// only tickets from servers with the same limits are accepted.
    ///
    /// # Errors
    /// As [`Session::client`].
    pub fn server(
        config: &ServerConfig,
        original: u32,
        negotiated: u32,
        params: Vec<u8>,
        limits: &[u8],
    ) -> Result<Self, Error> {
        Self::check_server(config)?;
        check(config.crypto_provider(), &[original, negotiated])?;
        let tap = Tap::new(Arc::clone(&config.key_log));
        let mut config = ServerConfig::clone(config);
        config.key_log = Arc::<Tap>::clone(&tap);
        if negotiated != VERSION_1 {
            config.send_tls13_tickets = 0;
            if original != VERSION_1 {
                config.session_storage = Arc::new(NoServerSessionStorage {});
                config.ticketer = Arc::new(NoTickets);
            }
        }
        if config.max_early_data_size > 0 {
            config.session_storage = Arc::new(Bound {
                inner: config.session_storage,
                limits: limits.to_vec(),
            });
        }
        let accept = || ServerConnection::new(config.into(), Version::V1, params);
        let connection = guarded(accept).ok_or(Error::Panicked)??;
        Ok(Self {
            connection: connection.into(),
            tap,
            version: negotiated,
        })
    }

    /// The server has chosen another version (RFC 9368 §2.3): the keys of all later levels belong
    /// to that one.
    pub const fn set_version(&mut self, version: u32) {
        self.version = version;
    }

    /// Keys of 0-RTT packets (RFC 9001 §4.6), with which a client seals or a server opens. `None`
    /// if there is no ticket for 0-RTT, or it is not allowed. They belong to `version`, that of the
    /// client's first packet.
    #[must_use]
    pub fn early_keys(&self, version: u32) -> Option<DirectionMaterial> {
        // A server logs the secret before it decides; that there are keys shows its decision.
        match &self.connection {
            Connection::Client(client) => client.zero_rtt_keys(),
            Connection::Server(server) => server.zero_rtt_keys(),
        }?;
        let secret = self.tap.take(SecretKind::ClientEarly)?;
        Some(Schedule::new(self.suite()?, version)?.direction(&secret))
    }

    /// The negotiated suite; before that, the one that protects the client's early data.
    fn suite(&self) -> Option<&'static Tls13CipherSuite> {
        self.connection.negotiated_cipher_suite()?.tls13()
    }

    /// Whether the server has accepted the client's early data; known once the handshake keys of
    /// the server's flight have arrived. Clients only.
    #[must_use]
    pub fn is_early_data_accepted(&self) -> bool {
        match &self.connection {
            Connection::Client(client) => client.is_early_data_accepted(),
            Connection::Server(_) => false,
        }
    }

    /// Processes the next bytes of a CRYPTO stream, in order. Bytes of different levels go into
    /// different calls (RFC 9001 §4.1.3).
    ///
    /// # Errors
    /// The alert to close the connection with (RFC 9001 §4.8). If the application's code panics,
    /// that is `internal_error`.
    pub fn read(&mut self, crypto: &[u8]) -> Result<(), Alert> {
        let read = guarded(|| self.connection.read_hs(crypto)).ok_or_else(|| Alert {
            code: Some(INTERNAL_ERROR),
            reason: PANICKED.to_owned(),
        })?;
        read.map_err(|error| {
            // rustls names no alert if it cannot even separate the messages.
            let unnamed = match error {
                rustls::Error::InvalidMessage(_) => Some(DECODE_ERROR),
                rustls::Error::PeerMisbehaved(_) => Some(UNEXPECTED_MESSAGE),
                _ => None,
            };
            Alert {
                code: self.connection.alert().map(u8::from).or(unnamed),
                reason: explained(&error),
            }
        })
    }

    /// Appends handshake bytes to `out`, all of them for the level of the last [`KeyChange`] (none
    /// yet: Initial). After a [`KeyChange`], call again: bytes for the new level may wait.
    ///
    /// # Errors
    /// [`Error::NoSuite`], if rustls makes keys without logging their secrets; [`Error::Panicked`].
    pub fn write(&mut self, out: &mut Vec<u8>) -> Result<Option<KeyChange>, Error> {
        let written = guarded(|| self.connection.write_hs(out)).ok_or(Error::Panicked)?;
        let Some(change) = written else {
            return Ok(None);
        };
        let one_rtt = matches!(change, rustls::quic::KeyChange::OneRtt { .. });
        let (schedule, secrets) = self.level(one_rtt).ok_or(Error::NoSuite)?;
        let level = schedule.level(&secrets);
        Ok(Some(if one_rtt {
            KeyChange::OneRtt(level, Secrets::new(schedule, secrets))
        } else {
            KeyChange::Handshake(level)
        }))
    }

    /// The secrets of a level for which rustls has just made keys, and their schedule.
    fn level(&self, one_rtt: bool) -> Option<(Schedule, LevelSecrets)> {
        let [client, server] = if one_rtt {
            [SecretKind::ClientTraffic, SecretKind::ServerTraffic]
        } else {
            [SecretKind::ClientHandshake, SecretKind::ServerHandshake]
        };
        let (local, remote) = match self.connection {
            Connection::Client(_) => (client, server),
            Connection::Server(_) => (server, client),
        };
        let secrets = LevelSecrets {
            local: self.tap.take(local)?,
            remote: self.tap.take(remote)?,
        };
        Some((Schedule::new(self.suite()?, self.version)?, secrets))
    }

    /// Whether the handshake is incomplete in the sense of RFC 9001 §4.1.1: this side has not both
    /// sent its Finished and verified the peer's.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The peer's encoded transport parameters once they have arrived. Authenticated only when the
    /// handshake is complete (RFC 9001 §8.2).
    #[must_use]
    pub fn peer_transport_parameters(&self) -> Option<&[u8]> {
        self.connection.quic_transport_parameters()
    }

    /// The negotiated application protocol (RFC 7301).
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// The peer's certificates, its own first; `None` before they arrive or if it sent none.
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

    /// The negotiated key exchange group.
    #[must_use]
    pub fn key_exchange_group(&self) -> Option<NamedGroup> {
        Some(self.connection.negotiated_key_exchange_group()?.name())
    }

    /// Full, full with a HelloRetryRequest, or resumed.
    #[must_use]
    pub fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.connection.handshake_kind()
    }

    /// A secret from which key material can be exported at any later time, without the session.
    /// `None` before the handshake is complete.
    #[must_use]
    pub fn exporter_secret(&self) -> Option<ExporterSecret> {
        if self.is_handshaking() {
            return None;
        }
        let secret = self.tap.copy(SecretKind::Exporter)?;
        Some(ExporterSecret::new(self.suite()?, secret))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("handshaking", &self.is_handshaking())
            .finish_non_exhaustive()
    }
}
