//! Transport error codes: RFC 9000 §20.1.

use crate::cursor::Truncated;
use std::fmt;

/// The code of a transport error, as carried by CONNECTION_CLOSE frames of type 0x1c.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct TransportErrorCode(pub u64);

/// Defines the codes and their names in one table, so that each has both.
macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal;)+) => {
        impl TransportErrorCode {
            $($(#[doc = $doc])+ pub const $name: Self = Self($value);)+

            /// The name of the code in the RFC; `None` for those without one of their own.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The connection is closed abruptly, without an error.
    NO_ERROR = 0x00;
    /// The endpoint met an internal error and cannot continue.
    INTERNAL_ERROR = 0x01;
    /// The server refused a new connection.
    CONNECTION_REFUSED = 0x02;
    /// More data than the advertised limits allow.
    FLOW_CONTROL_ERROR = 0x03;
    /// A stream id above the advertised stream limit.
    STREAM_LIMIT_ERROR = 0x04;
    /// A frame for a stream in a state that does not permit it.
    STREAM_STATE_ERROR = 0x05;
    /// A final size that changed, or data beyond it.
    FINAL_SIZE_ERROR = 0x06;
    /// A badly formatted frame, or one of an unknown type.
    FRAME_ENCODING_ERROR = 0x07;
    /// Badly formatted, invalid, forbidden or missing transport parameters.
    TRANSPORT_PARAMETER_ERROR = 0x08;
    /// More connection ids than the advertised limit.
    CONNECTION_ID_LIMIT_ERROR = 0x09;
    /// A breach of the protocol without a more specific code.
    PROTOCOL_VIOLATION = 0x0a;
    /// A client Initial with an invalid token.
    INVALID_TOKEN = 0x0b;
    /// The application closed the connection before it may send its own code.
    APPLICATION_ERROR = 0x0c;
    /// More CRYPTO data than can be buffered.
    CRYPTO_BUFFER_EXCEEDED = 0x0d;
    /// An error in a key update (RFC 9001 §6).
    KEY_UPDATE_ERROR = 0x0e;
    /// The confidentiality or integrity limit of the AEAD (RFC 9001 §6.6).
    AEAD_LIMIT_REACHED = 0x0f;
    /// The path cannot carry QUIC.
    NO_VIABLE_PATH = 0x10;
    /// An error in version negotiation (RFC 9368 §5).
    VERSION_NEGOTIATION_ERROR = 0x11;
}

impl TransportErrorCode {
    /// The code of a TLS alert: CRYPTO_ERROR, 0x0100 + `alert` (RFC 9001 §4.8).
    #[must_use]
    pub const fn crypto(alert: u8) -> Self {
        Self(0x100 + alert as u64)
    }

    /// The TLS alert of a CRYPTO_ERROR.
    #[must_use]
    pub const fn alert(self) -> Option<u8> {
        match self.0 {
            0x100..=0x1ff => Some((self.0 & 0xff) as u8),
            _ => None,
        }
    }
}

/// The name of a TLS alert (RFC 8446 §6, RFC 7301 §3.2).
const fn alert_name(alert: u8) -> Option<&'static str> {
    Some(match alert {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        109 => "missing_extension",
        110 => "unsupported_extension",
        112 => "unrecognized_name",
        113 => "bad_certificate_status_response",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        120 => "no_application_protocol",
        _ => return None,
    })
}

impl fmt::Display for TransportErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.alert()) {
            (Some(name), _) => f.write_str(name),
            (None, Some(alert)) => match alert_name(alert) {
                Some(name) => write!(f, "CRYPTO_ERROR (TLS alert {alert}, {name})"),
                None => write!(f, "CRYPTO_ERROR (TLS alert {alert})"),
            },
            (None, None) => write!(f, "unknown error {:#x}", self.0),
        }
    }
}

impl fmt::Debug for TransportErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error that closes the connection, as this end will report it in a CONNECTION_CLOSE frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TransportError {
    /// The code sent to the peer.
    pub code: TransportErrorCode,
    /// The type of the frame that caused it; 0 when unknown (RFC 9000 §19.19).
    pub frame_type: u64,
    /// What exactly was wrong, for people.
    pub reason: &'static str,
}

impl TransportError {
    /// An error that no single frame caused.
    #[must_use]
    pub const fn new(code: TransportErrorCode, reason: &'static str) -> Self {
        Self {
            code,
            frame_type: 0,
            reason,
        }
    }
}

/// A frame that ends in the middle of a field is badly formatted (RFC 9000 §20.1).
impl From<Truncated> for TransportError {
    #[inline]
    fn from(_: Truncated) -> Self {
        Self::new(TransportErrorCode::FRAME_ENCODING_ERROR, "frame ends early")
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frame_type {
            0 => write!(f, "{}: {}", self.code, self.reason),
            ty => write!(f, "{} (frame type {ty:#04x}): {}", self.code, self.reason),
        }
    }
}

impl std::error::Error for TransportError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_displayed_by_their_rfc_names() {
        assert_eq!(TransportErrorCode(0x0a).to_string(), "PROTOCOL_VIOLATION");
        assert_eq!(
            TransportErrorCode(0x11).to_string(),
            "VERSION_NEGOTIATION_ERROR"
        );
        assert_eq!(TransportErrorCode(0x12).to_string(), "unknown error 0x12");
        let no_application_protocol = TransportErrorCode::crypto(120);
        assert_eq!(no_application_protocol, TransportErrorCode(0x178));
        assert_eq!(no_application_protocol.alert(), Some(120));
        assert_eq!(
            no_application_protocol.to_string(),
            "CRYPTO_ERROR (TLS alert 120, no_application_protocol)"
        );
        assert_eq!(
            TransportErrorCode::crypto(1).to_string(),
            "CRYPTO_ERROR (TLS alert 1)"
        );
    }

    #[test]
    fn an_error_names_code_frame_and_reason() {
        let mut error = TransportError::new(TransportErrorCode::FRAME_ENCODING_ERROR, "ends early");
        assert_eq!(error.to_string(), "FRAME_ENCODING_ERROR: ends early");
        error.frame_type = 6;
        assert_eq!(
            error.to_string(),
            "FRAME_ENCODING_ERROR (frame type 0x06): ends early"
        );
    }
}
