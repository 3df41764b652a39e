//! The TLS session in its three states: waited for, at work, over.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use squall_tls::{Alert, ClientHello, Session};
use squall_wire::{
    Side, TransportError, TransportErrorCode, TransportParameters, VERSION_1, VersionInformation,
};

use zeroize::Zeroizing;

use super::Connection;
use crate::config::{Exporter, MAX_CRYPTO_BUFFER, TransportConfig};
use crate::event::Event;
use crate::space::SpaceId;

/// What becomes of the bytes of a CRYPTO stream.
pub(super) enum Tls {
    /// A server's, until the client's ClientHello is whole: which version is chosen depends on it, and TLS has to say
    /// which in the server's transport parameters (RFC 9368 §2.3).
    Waiting(Box<Waiting>),
    /// At work.
    Running(Box<Session>),
    /// It has said all that it had to say: what is asked for later is kept, the session, a few kilobytes, is not.
    Over(Box<Facts>),
}

/// Bytes that a session at work takes, about: rustls' state, its transcript and its key exchange, as measured in the middle
/// of a handshake (`crates/core/tests/memory.rs`).
const SESSION: usize = 8 * 1024;

/// What is known of a handshake when its session is gone.
pub(super) struct Facts {
    alpn: Option<Box<[u8]>>,
    server_name: Option<Box<str>>,
    group: Option<rustls::NamedGroup>,
    kind: Option<rustls::HandshakeKind>,
    certificates: Option<Vec<CertificateDer<'static>>>,
    /// In the order of the configuration.
    exported: Vec<Zeroizing<Vec<u8>>>,
}

impl Facts {
    fn of(session: &Session, config: &TransportConfig) -> Self {
        let export = |exporter: &Exporter| {
            let mut out = Zeroizing::new(vec![0; exporter.len]);
            let context = exporter.context.as_deref();
            let done = session.export_keying_material(&mut out, &exporter.label, context);
            // rustls refuses lengths that no secret has.
            done.map_or_else(|_| Zeroizing::default(), |()| out)
        };
        let certificates = session.peer_certificates();
        Self {
            alpn: session.alpn().map(Into::into),
            server_name: session.server_name().map(Into::into),
            group: session.key_exchange_group(),
            kind: session.handshake_kind(),
            certificates: certificates
                .filter(|_| config.keep_peer_certificates)
                .map(<[_]>::to_vec),
            exported: config.exporters.iter().map(export).collect(),
        }
    }
}

/// What a server's session will be made of.
pub(super) struct Waiting {
    config: Arc<rustls::ServerConfig>,
    params: TransportParameters,
    grease: (u64, u8),
    /// The ClientHello so far, at most as much as CRYPTO data is buffered.
    hello: Vec<u8>,
}

/// The encoded transport parameters of an end that has chosen `version`.
pub(super) fn encoded(
    params: &TransportParameters,
    version: u32,
    config: &TransportConfig,
    grease: (u64, u8),
) -> Vec<u8> {
    let params = TransportParameters {
        version_information: Some(VersionInformation::new(version, &config.versions)),
        ..params.clone()
    };
    let mut bytes = Vec::with_capacity(192);
    params.encode(&mut bytes, Some(grease));
    bytes
}

impl Tls {
    /// Bytes of memory that it takes, about.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Waiting(waiting) => size_of::<Waiting>() + waiting.hello.capacity(),
            Self::Running(_) => SESSION,
            Self::Over(_) => size_of::<Facts>(),
        }
    }

    pub(super) fn waiting(
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

    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }

    pub(super) fn running(&self) -> Option<&Session> {
        match self {
            Self::Waiting(_) | Self::Over(_) => None,
            Self::Running(session) => Some(session),
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Session> {
        match self {
            Self::Waiting(_) | Self::Over(_) => None,
            Self::Running(session) => Some(session),
        }
    }
}

/// A mistake on this side.
fn internal(error: &squall_tls::Error) -> Alert {
    Alert {
        code: None,
        reason: error.to_string(),
    }
}

/// Why handshake bytes end the connection.
pub(super) enum Refusal {
    /// TLS says so (RFC 9001 §4.8).
    Alert(Alert),
    /// QUIC does.
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

/// Whether one of the handshake messages in `bytes`, which begin with one, is of type `ty` (RFC 8446 §4).
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

impl Connection {
    /// Hands bytes of a CRYPTO stream to TLS, in order.
    ///
    /// # Errors
    /// What TLS, or RFC 9001, has against them.
    pub(super) fn read_tls(&mut self, id: SpaceId, bytes: &[u8]) -> Result<(), Refusal> {
        let Tls::Waiting(waiting) = &mut self.tls else {
            return match self.tls.running_mut() {
                Some(session) => session.read(bytes).map_err(|alert| {
                    if id == SpaceId::Data && has_message(bytes, CERTIFICATE_REQUEST) {
                        return violation("a CertificateRequest after the handshake").into();
                    }
                    alert.into()
                }),
                // A client hears of tickets that it has no use for.
                None if self.side == Side::Client => Ok(()),
                // RFC 8446 §4.6, RFC 9001 §6: a server is told nothing any more.
                None => Err(Alert {
                    code: Some(UNEXPECTED_MESSAGE),
                    reason: "a TLS message after the handshake".to_owned(),
                }
                .into()),
            };
        };
        // RFC 9000 §7.5: what is read here is buffered all the same.
        if waiting.hello.len() + bytes.len() > MAX_CRYPTO_BUFFER as usize {
            return Err(TransportError {
                code: TransportErrorCode::CRYPTO_BUFFER_EXCEEDED,
                frame_type: 0x06,
                reason: "a ClientHello beyond the buffer",
            }
            .into());
        }
        waiting.hello.extend_from_slice(bytes);
        let params = match ClientHello::peek(&waiting.hello) {
            ClientHello::Incomplete => return Ok(()),
            ClientHello::Complete(params) => params,
            ClientHello::Compatible => {
                return Err(violation("a ClientHello with a session id").into());
            }
        };
        let version = super::version::choose(&self.config, self.original_version, params);
        let params = encoded(&waiting.params, version, &self.config, waiting.grease);
        let hello = std::mem::take(&mut waiting.hello);
        let config = Arc::clone(&waiting.config);
        let limits = super::zero_rtt::limits(&waiting.params);
        let mut session = Session::server(config, self.original_version, version, params, &limits)
            .map_err(|error| internal(&error))?;
        self.change_version(version);
        let result = session.read(&hello);
        if let Some(material) = session.early_keys(self.original_version) {
            self.install_zero_rtt_keys(&material);
            self.streams.events.push_back(Event::EarlyDataAccepted);
        }
        self.tls = Tls::Running(Box::new(session));
        Ok(result?)
    }

    /// The handshake is complete: lets go of the session if it is of no use any more. A server's has written its tickets; a
    /// client's still has to take some, in the one version in which they are kept.
    pub(super) fn retire_tls(&mut self) {
        if self.side == Side::Client && self.version == VERSION_1 {
            return;
        }
        if let Tls::Running(session) = &self.tls {
            self.tls = Tls::Over(Box::new(Facts::of(session, &self.config)));
        }
    }

    // ---- what there is to know of the handshake ---------------------------------------------------------------------

    /// The application protocol negotiated by ALPN.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        match &self.tls {
            Tls::Waiting(_) => None,
            Tls::Running(session) => session.alpn(),
            Tls::Over(facts) => facts.alpn.as_deref(),
        }
    }

    /// The server name that the client requested (RFC 6066 §3); servers only.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        match &self.tls {
            Tls::Waiting(_) => None,
            Tls::Running(session) => session.server_name(),
            Tls::Over(facts) => facts.server_name.as_deref(),
        }
    }

    /// The negotiated key exchange group.
    #[must_use]
    pub fn key_exchange_group(&self) -> Option<rustls::NamedGroup> {
        match &self.tls {
            Tls::Waiting(_) => None,
            Tls::Running(session) => session.key_exchange_group(),
            Tls::Over(facts) => facts.group,
        }
    }

    /// Whether the handshake was full or resumed an earlier session.
    #[must_use]
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        match &self.tls {
            Tls::Waiting(_) => None,
            Tls::Running(session) => session.handshake_kind(),
            Tls::Over(facts) => facts.kind,
        }
    }

    /// The peer's certificates, end-entity certificate first. `None` before they arrived, if the
    /// peer sent none, and once the handshake is complete, unless
    /// [`keep_peer_certificates`](TransportConfig::keep_peer_certificates) was set.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        match &self.tls {
            Tls::Waiting(_) => None,
            Tls::Running(session) => session
                .peer_certificates()
                .filter(|_| self.config.keep_peer_certificates || self.is_handshaking()),
            Tls::Over(facts) => facts.certificates.as_deref(),
        }
    }

    /// Exported key material of the session (RFC 8446 §7.5), once the handshake is complete, for an
    /// exporter listed in [`exporters`](TransportConfig::exporters).
    #[must_use]
    pub fn exported(&self, exporter: &Exporter) -> Option<Zeroizing<Vec<u8>>> {
        let at = self.config.exporters.iter().position(|e| e == exporter)?;
        let material = match &self.tls {
            Tls::Running(session) if !self.is_handshaking() => {
                Facts::of(session, &self.config).exported.swap_remove(at)
            }
            Tls::Waiting(_) | Tls::Running(_) => return None,
            Tls::Over(facts) => facts.exported.get(at)?.clone(),
        };
        (!material.is_empty()).then_some(material)
    }
}
