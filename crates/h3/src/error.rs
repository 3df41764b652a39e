//! Error codes and errors.

use std::fmt;

/// An HTTP/3 or QPACK error code: the application error code of a QUIC stream or connection.
///
/// RFC 9114 §8.1, RFC 9204 §6, RFC 9297 §5.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u64);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name in the RFC; `None` if the code has none.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The peer sent a malformed HTTP datagram or capsule (RFC 9297 §5.2).
    H3_DATAGRAM_ERROR = 0x33;
    /// The connection or stream ends without an error.
    H3_NO_ERROR = 0x100;
    /// The peer broke a rule for which there is no more specific code.
    H3_GENERAL_PROTOCOL_ERROR = 0x101;
    /// Something failed inside the HTTP stack.
    H3_INTERNAL_ERROR = 0x102;
    /// The peer opened a stream that it must not open.
    H3_STREAM_CREATION_ERROR = 0x103;
    /// A stream that the connection needs was closed or reset.
    H3_CLOSED_CRITICAL_STREAM = 0x104;
    /// A frame arrived in a state or on a stream where it is not permitted.
    H3_FRAME_UNEXPECTED = 0x105;
    /// A frame's layout or size is wrong.
    H3_FRAME_ERROR = 0x106;
    /// The peer causes more load than this end accepts.
    H3_EXCESSIVE_LOAD = 0x107;
    /// A stream id or push id was used wrongly.
    H3_ID_ERROR = 0x108;
    /// A SETTINGS frame has a wrong payload.
    H3_SETTINGS_ERROR = 0x109;
    /// The control stream does not begin with SETTINGS.
    H3_MISSING_SETTINGS = 0x10a;
    /// The server did not process the request; it may be sent again.
    H3_REQUEST_REJECTED = 0x10b;
    /// The request or its response is no longer wanted.
    H3_REQUEST_CANCELLED = 0x10c;
    /// The client's stream ended before the request was complete.
    H3_REQUEST_INCOMPLETE = 0x10d;
    /// A message is malformed.
    H3_MESSAGE_ERROR = 0x10e;
    /// The TCP connection behind a CONNECT request was reset or closed abnormally.
    H3_CONNECT_ERROR = 0x10f;
    /// The request cannot be served over HTTP/3.
    H3_VERSION_FALLBACK = 0x110;
    /// A field section cannot be decoded (RFC 9204 §6).
    QPACK_DECOMPRESSION_FAILED = 0x200;
    /// The encoder stream cannot be interpreted (RFC 9204 §6).
    QPACK_ENCODER_STREAM_ERROR = 0x201;
    /// The decoder stream cannot be interpreted (RFC 9204 §6).
    QPACK_DECODER_STREAM_ERROR = 0x202;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
