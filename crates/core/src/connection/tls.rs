//! The TLS session in its three states: waited for, at work, over.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use squall_tls::{Alert, ClientHello, Session};
use squall_wire::{TransportError, TransportErrorCode, TransportParameters, VersionInformation};

use super::Connection;
use crate::config::TransportConfig;
use crate::space::SpaceId;

/// What becomes of the bytes of a CRYPTO stream.
pub(super) enum Tls {
    /// A server's, until the client's ClientHello is whole: which version is chosen depends on it, and TLS has to say
    /// which in the server's transport parameters (RFC 9368 §2.3).
    Waiting(Box<Waiting>),
    /// At work.
    Running(Box<Session>),
}

/// What a server's session will be made of.
pub(super) struct Waiting {
    config: Arc<rustls::ServerConfig>,
    params: TransportParameters,
    grease: (u64, u8),
    /// The ClientHello so far; CRYPTO buffering bounds it.
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

    pub(super) fn running(&self) -> Option<&Session> {
        match self {
            Self::Waiting(_) => None,
            Self::Running(session) => Some(session),
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Session> {
        match self {
            Self::Waiting(_) => None,
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
                None => Ok(()),
            };
        };
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
        }
        self.tls = Tls::Running(Box::new(session));
        Ok(result?)
    }

    // ---- what there is to know of the handshake ---------------------------------------------------------------------

    /// The protocol that ALPN chose.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.tls.running()?.alpn()
    }

    /// The server name that the client asked for (RFC 6066 §3); servers only.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        self.tls.running()?.server_name()
    }

    /// The key exchange group agreed on.
    #[must_use]
    pub fn key_exchange_group(&self) -> Option<rustls::NamedGroup> {
        self.tls.running()?.key_exchange_group()
    }

    /// Whether the handshake was a full one or resumed an earlier session.
    #[must_use]
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        self.tls.running()?.handshake_kind()
    }

    /// The peer's certificates, its own first; `None` before they arrived or when it sent none.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.tls.running()?.peer_certificates()
    }
}
