//! The TLS session in its three states: waiting, running, over.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use squall_tls::{Alert, ClientHello, DirectionMaterial, ExporterSecret, Session};
use squall_wire::{Side, TransportError, TransportErrorCode, TransportParameters, VERSION_1};

use super::parameters::{choose_version, encoded, ticket_limits};
use crate::config::TransportConfig;
use crate::error::ExportError;
use crate::space::SpaceId;

/// The reader of the CRYPTO streams.
pub(crate) enum Tls {
    /// A server's, until the client's ClientHello is complete: it determines the version, which TLS
    /// has to name in the server's transport parameters (RFC 9368 §2.3).
    Waiting(Box<Waiting>),
    /// Running.
    Running(Box<Session>),
    /// It has nothing more to send: facts that may be asked for later are kept, but not the
    /// session, which is a few kilobytes.
    Over(Box<Facts>),
}

/// Rough size of a running session: rustls' state, its transcript and its key exchange, as measured
/// in the middle of a handshake (`crates/core/tests/memory.rs`).
const SESSION: usize = 8 * 1024;

/// The facts of a handshake that are kept when its session is gone.
pub(crate) struct Facts {
    alpn: Option<Box<[u8]>>,
    server_name: Option<Box<str>>,
    group: Option<rustls::NamedGroup>,
    kind: Option<rustls::HandshakeKind>,
    certificates: Option<Vec<CertificateDer<'static>>>,
    exporter: Option<ExporterSecret>,
}

impl Facts {
    fn of(session: &Session, config: &TransportConfig) -> Self {
        let certificates = session.peer_certificates();
        Self {
            alpn: session.alpn().map(Into::into),
            server_name: session.server_name().map(Into::into),
            group: session.key_exchange_group(),
            kind: session.handshake_kind(),
            certificates: certificates
                .filter(|_| config.keep_peer_certificates)
                .map(<[_]>::to_vec),
            exporter: (session.exporter_secret()).filter(|_| config.keep_exporter_secret),
        }
    }
}

/// The ingredients of a server's session.
pub(crate) struct Waiting {
    config: Arc<rustls::ServerConfig>,
    params: TransportParameters,
    grease: (u64, u8),
    /// The ClientHello so far, at most as much as CRYPTO data is buffered.
    hello: Vec<u8>,
}

impl Tls {
    /// Roughly the bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Waiting(waiting) => size_of::<Waiting>() + waiting.hello.capacity(),
            Self::Running(_) => SESSION,
            Self::Over(_) => size_of::<Facts>(),
        }
    }

    /// Takes bytes of a CRYPTO stream, in order.
    ///
    /// # Errors
    /// An objection of TLS or of RFC 9001 to these bytes.
    pub(crate) fn read(
        &mut self,
        id: SpaceId,
        bytes: &[u8],
        side: Side,
        original_version: u32,
        config: &TransportConfig,
    ) -> Result<Option<Begun>, Refusal> {
        match self {
            Self::Running(session) => match session.read(bytes) {
                Ok(()) => Ok(None),
                Err(_) if id == SpaceId::Data && has_message(bytes, CERTIFICATE_REQUEST) => {
                    Err(violation("a CertificateRequest after the handshake").into())
                }
                Err(alert) => Err(alert.into()),
            },
            // A client receives tickets that it has no use for.
            Self::Over(_) if side == Side::Client => Ok(None),
            // RFC 8446 §4.6, RFC 9001 §6: a server receives no more messages.
            Self::Over(_) => Err(Alert {
                code: Some(UNEXPECTED_MESSAGE),
                reason: "a TLS message after the handshake".to_owned(),
            }
            .into()),
            Self::Waiting(waiting) => {
                let Some((session, begun)) = waiting.read(bytes, original_version, config)? else {
                    return Ok(None);
                };
                *self = Self::Running(Box::new(session));
                Ok(Some(begun))
            }
        }
    }

    /// The handshake is complete: drops the session if it is of no further use. A server's has
    /// written its tickets; a client's still has to receive some, in the only version in which they
    /// are kept.
    pub(crate) fn retire(&mut self, side: Side, version: u32, config: &TransportConfig) {
        if side == Side::Client && version == VERSION_1 {
            return;
        }
        if let Self::Running(session) = self {
            *self = Self::Over(Box::new(Facts::of(session, config)));
        }
    }

    pub(crate) fn waiting(
        config: Arc<rustls::ServerConfig>,
        params: TransportParameters,
        grease: (u64, u8),
    ) -> Self {
        Self::Waiting(Box::new(Waiting {
            config,
            params,
            grease,
            hello: Vec::new(),
        }))
    }

    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }

    pub(crate) fn running(&self) -> Option<&Session> {
        match self {
            Self::Waiting(_) | Self::Over(_) => None,
            Self::Running(session) => Some(session),
        }
    }

    pub(crate) fn running_mut(&mut self) -> Option<&mut Session> {
        match self {
            Self::Waiting(_) | Self::Over(_) => None,
            Self::Running(session) => Some(session),
        }
    }
}

/// An error on this side.
fn internal(error: &squall_tls::Error) -> Alert {
    Alert {
        code: None,
        reason: error.to_string(),
    }
}

/// Why handshake bytes end the connection.
pub(crate) enum Refusal {
    /// A TLS alert (RFC 9001 §4.8).
    Alert(Alert),
    /// A violation of QUIC's own rules.
    Transport(TransportError),
}

impl From<Alert> for Refusal {
    fn from(alert: Alert) -> Self {
        Self::Alert(alert)
    }
}

impl From<TransportError> for Refusal {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

const fn violation(reason: &'static str) -> TransportError {
    TransportError {
        code: TransportErrorCode::PROTOCOL_VIOLATION,
        frame_type: 0x06,
        reason,
    }
}

/// RFC 8446 §6.
const UNEXPECTED_MESSAGE: u8 = 10;
/// RFC 8446 §4: the type of a CertificateRequest, which RFC 9001 §4.4 forbids after the handshake.
const CERTIFICATE_REQUEST: u8 = 13;

/// Whether one of the handshake messages in `bytes`, which begin with one, is of type `ty` (RFC
/// 8446 §4).
fn has_message(mut bytes: &[u8], ty: u8) -> bool {
    while let [first, a, b, c, rest @ ..] = bytes {
        if *first == ty {
            return true;
        }
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        bytes = rest.get(len..).unwrap_or_default();
    }
    false
}

/// A server's session that has begun, as its ClientHello was complete.
pub(crate) struct Begun {
    /// The version with which the server continues.
    pub(crate) version: u32,
    /// The keys of early data that the server accepts.
    pub(crate) early_keys: Option<DirectionMaterial>,
    /// TLS's objection to the ClientHello. The keys of the version count first: the alert is sent
    /// with them.
    pub(crate) refusal: Option<Alert>,
}

impl Waiting {
    /// Takes more bytes of the ClientHello; once it is complete, returns the session.
    fn read(
        &mut self,
        bytes: &[u8],
        original_version: u32,
        config: &TransportConfig,
    ) -> Result<Option<(Session, Begun)>, Refusal> {
        // RFC 9000 §7.5: data read here counts as buffered all the same.
        if self.hello.len() + bytes.len() > config.crypto_buffer_size {
            return Err(TransportError {
                code: TransportErrorCode::CRYPTO_BUFFER_EXCEEDED,
                frame_type: 0x06,
                reason: "a ClientHello beyond the buffer",
            }
            .into());
        }
        self.hello.extend_from_slice(bytes);
        let params = match ClientHello::peek(&self.hello) {
            ClientHello::Incomplete => return Ok(None),
            ClientHello::Complete(params) => params,
            ClientHello::Compatible => {
                return Err(violation("a ClientHello with a session id").into());
            }
        };
        let version = choose_version(config, original_version, params);
        let params = encoded(&self.params, Side::Server, version, config, self.grease);
        let hello = std::mem::take(&mut self.hello);
        let limits = ticket_limits(&self.params);
        let mut session = Session::server(&self.config, original_version, version, params, &limits)
            .map_err(|error| internal(&error))?;
        let refusal = session.read(&hello).err();
        let early_keys = session.early_keys(original_version);
        let begun = Begun {
            version,
            early_keys,
            refusal,
        };
        Ok(Some((session, begun)))
    }
}

/// The data that a client needs to start over in another version.
pub(crate) struct Restart {
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) params: TransportParameters,
    pub(crate) grease: (u64, u8),
}

impl Restart {
    /// The TLS session of an attempt in `version`.
    ///
    /// # Errors
    /// If rustls refuses the configuration.
    pub(crate) fn session(
        &self,
        version: u32,
        config: &TransportConfig,
    ) -> Result<Session, squall_tls::Error> {
        let params = encoded(&self.params, Side::Client, version, config, self.grease);
        Session::client(&self.tls, version, self.server_name.clone(), params)
    }
}

// ---- what is known of the handshake -------------------------------------------------------------

impl Tls {
    /// The application protocol negotiated by ALPN.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Waiting(_) => None,
            Self::Running(session) => session.alpn(),
            Self::Over(facts) => facts.alpn.as_deref(),
        }
    }

    /// The server name that the client requested.
    pub(crate) fn server_name(&self) -> Option<&str> {
        match self {
            Self::Waiting(_) => None,
            Self::Running(session) => session.server_name(),
            Self::Over(facts) => facts.server_name.as_deref(),
        }
    }

    /// The negotiated key exchange group.
    pub(crate) fn key_exchange_group(&self) -> Option<rustls::NamedGroup> {
        match self {
            Self::Waiting(_) => None,
            Self::Running(session) => session.key_exchange_group(),
            Self::Over(facts) => facts.group,
        }
    }

    /// Whether the handshake was full or resumed an earlier session.
    pub(crate) fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        match self {
            Self::Waiting(_) => None,
            Self::Running(session) => session.handshake_kind(),
            Self::Over(facts) => facts.kind,
        }
    }

    /// The peer's certificates; of a session, only if they are `wanted`.
    pub(crate) fn peer_certificates(&self, wanted: bool) -> Option<&[CertificateDer<'static>]> {
        match self {
            Self::Waiting(_) => None,
            Self::Running(session) => session.peer_certificates().filter(|_| wanted),
            Self::Over(facts) => facts.certificates.as_deref(),
        }
    }

    /// Exports key material of a session whose handshake is complete (RFC 8446 §7.5). `allowed`:
    /// the configuration permits keeping the secret.
    pub(crate) fn export(
        &self,
        allowed: bool,
        out: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportError> {
        let of_session;
        let secret = match self {
            _ if !allowed => None,
            Self::Waiting(_) => None,
            Self::Running(session) => {
                of_session = session.exporter_secret();
                of_session.as_ref()
            }
            Self::Over(facts) => facts.exporter.as_ref(),
        };
        let secret = secret.ok_or(ExportError::NotKept)?;
        (secret.export(out, label, context)).map_err(ExportError::InvalidLength)
    }
}
