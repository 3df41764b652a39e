//! Error codes and errors.

use std::fmt;

use squall::{CloseReason, ReadError, WriteError};

/// Any error that services and bodies return.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An HTTP/3 or QPACK error code: the application error code of a QUIC stream or connection.
///
/// RFC 9114 §8.1, RFC 9204 §6, RFC 9297 §5.2, draft-ietf-webtrans-http3 §9.5.
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
    /// The stream belongs to a WebTransport session that has ended.
    WT_SESSION_GONE = 0x170d_7b68;
    /// The stream belongs to a WebTransport session that this end does not know yet, and more such
    /// streams have arrived than it keeps.
    WT_BUFFERED_STREAM_REJECTED = 0x3994_bd84;
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

/// Why a request, a response or a connection failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No connection to the request's origin could be made.
    Connect(std::io::Error),
    /// The connection ended. This includes a peer that broke a rule of HTTP/3; the reason then has
    /// the code.
    Connection(CloseReason),
    /// The peer reset the stream, or stopped reading it, with this code.
    Stream(Code),
    /// The peer's message breaks this rule of RFC 9114 §4.
    Malformed(&'static str),
    /// The peer's field section is larger than this end's limit.
    FieldsTooLarge,
    /// The application's own field section is larger than the peer's limit.
    TooLargeForPeer,
    /// The application's body failed.
    Body(BoxError),
    /// The application's body is longer or shorter than its `content-length` or size hint says.
    BodyLength,
    /// The server is about to end the connection and has not processed the request (RFC 9114 §5.2).
    /// It may be sent again on another one.
    GoingAway,
    /// Nothing of the request's body has arrived for
    /// [`Config::body_timeout`](crate::Config::body_timeout).
    Timeout,
    /// The request cannot be expressed in HTTP/3, for this reason.
    InvalidRequest(&'static str),
}

impl Error {
    /// Whether the server has certainly not processed the request, so that it may be sent again
    /// (RFC 9114 §4.1.1, §5.2).
    #[must_use]
    pub fn is_unprocessed(&self) -> bool {
        matches!(
            self,
            Self::GoingAway | Self::Stream(Code::H3_REQUEST_REJECTED)
        )
    }
}

/// Whether the server ended the connection without blaming it (RFC 9114 §5.2): it may stop before
/// its GOAWAY has arrived.
pub(crate) fn is_graceful(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::Application { code, remote: true, .. } if Code(*code) == Code::H3_NO_ERROR)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Connection(reason) => write!(f, "connection lost: {reason}"),
            Self::Stream(code) => write!(f, "the peer reset or stopped the stream with {code}"),
            Self::Malformed(why) => write!(f, "malformed message: {why}"),
            Self::FieldsTooLarge => f.write_str("the field section is larger than the limit"),
            Self::TooLargeForPeer => {
                f.write_str("the field section is larger than the peer's limit")
            }
            Self::Body(error) => write!(f, "the body failed: {error}"),
            Self::BodyLength => f.write_str("the body is not as long as announced"),
            Self::GoingAway => f.write_str("the server is shutting the connection down"),
            Self::Timeout => f.write_str("the client sends its body too slowly"),
            Self::InvalidRequest(why) => write!(f, "invalid request: {why}"),
        }
    }
}

impl std::error::Error for Error {
    /// The source of the error in the variant, whose own text is part of this error's.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Body(error) => error.source(),
            Self::Connect(error) => error.source(),
            _ => None,
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Stream(Code(code)),
            ReadError::ConnectionLost(reason) => Self::Connection(reason),
            _ => Self::Stream(Code::H3_REQUEST_CANCELLED),
        }
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Stream(Code(code)),
            WriteError::ConnectionLost(reason) => Self::Connection(reason),
            _ => Self::Stream(Code::H3_REQUEST_CANCELLED),
        }
    }
}

impl From<CloseReason> for Error {
    fn from(reason: CloseReason) -> Self {
        Self::Connection(reason)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;

    /// A report that prints an error and its sources says nothing twice.
    #[test]
    fn an_errors_text_does_not_repeat_its_sources() {
        let refused = || io::Error::other(Error::Malformed("a rule"));
        for error in [Error::Connect(refused()), Error::Body(refused().into())] {
            let text = error.to_string();
            let mut next = error.source();
            while let Some(source) = next {
                assert!(!text.contains(&source.to_string()), "{text}: {source}");
                next = source.source();
            }
        }
    }
}
