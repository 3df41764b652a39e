//! Errors of the public API, each with a one-line message.

use std::net::SocketAddr;
use std::{fmt, io};

use squall_core::CloseReason;

/// Why [`Endpoint::connect`](crate::Endpoint::connect) did not begin. Later failures are reported
/// as a [`CloseReason`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The endpoint was built without a client configuration, and the call passed none.
    NoClientConfig,
    /// The name is neither a DNS name nor an IP address.
    InvalidServerName(String),
    /// The address cannot be reached from this endpoint: it lacks a port or a host, is a link-local
    /// IPv6 address without a zone (`fe80::1` instead of `fe80::1%eth0`), a multicast or a
    /// broadcast address, or its address family differs from that of the endpoint's socket.
    InvalidRemoteAddress(SocketAddr),
    /// The endpoint is closed, or none of its workers runs; see
    /// [`Endpoint::worker_ended`](crate::Endpoint::worker_ended).
    EndpointClosed,
    /// The client configuration is unusable, for this reason.
    InvalidConfig(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClientConfig => write!(f, "the endpoint has no client configuration"),
            Self::InvalidServerName(name) => {
                write!(f, "{name:?} is not a valid DNS name or IP address")
            }
            Self::InvalidRemoteAddress(addr) => {
                write!(
                    f,
                    "{addr} cannot be reached from this endpoint: it lacks a host, a port or a zone, is a multicast or broadcast address, or its address family differs from the socket's"
                )
            }
            Self::EndpointClosed => {
                write!(f, "the endpoint is closed, or its workers have ended")
            }
            Self::InvalidConfig(why) => write!(f, "invalid client configuration: {why}"),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        let kind = match &error {
            ConnectError::NoClientConfig
            | ConnectError::InvalidServerName(_)
            | ConnectError::InvalidRemoteAddress(_)
            | ConnectError::InvalidConfig(_) => io::ErrorKind::InvalidInput,
            ConnectError::EndpointClosed => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// Why a write failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The peer stopped the stream with this code (RFC 9000 §19.5).
    Stopped(u64),
    /// The stream was already finished or reset.
    Closed,
    /// The connection ended.
    ConnectionLost(CloseReason),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(code) => {
                write!(f, "the peer stopped reading the stream with code {code}")
            }
            Self::Closed => write!(f, "the stream is finished or reset"),
            Self::ConnectionLost(reason) => write!(f, "connection lost: {reason}"),
        }
    }
}

impl std::error::Error for WriteError {}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        let kind = match &error {
            WriteError::Stopped(_) | WriteError::Closed => io::ErrorKind::BrokenPipe,
            WriteError::ConnectionLost(reason) => io::Error::from(reason.clone()).kind(),
        };
        Self::new(kind, error)
    }
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The peer reset the stream with this code (RFC 9000 §19.4).
    Reset(u64),
    /// The stream was already stopped by this end.
    Closed,
    /// The stream was read with [`read_chunk_unordered`](crate::RecvStream::read_chunk_unordered)
    /// before, and can no longer be read in order.
    IllegalOrderedRead,
    /// The connection ended before the stream did.
    ConnectionLost(CloseReason),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(f, "the peer reset the stream with code {code}"),
            Self::Closed => write!(f, "the stream is stopped"),
            Self::IllegalOrderedRead => {
                write!(
                    f,
                    "the stream was read out of order, and cannot be read in order any more"
                )
            }
            Self::ConnectionLost(reason) => write!(f, "connection lost: {reason}"),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::Reset(_) => io::ErrorKind::ConnectionReset,
            ReadError::Closed => io::ErrorKind::NotConnected,
            ReadError::IllegalOrderedRead => io::ErrorKind::InvalidInput,
            ReadError::ConnectionLost(reason) => io::Error::from(reason.clone()).kind(),
        };
        Self::new(kind, error)
    }
}

/// Why a stream could not be read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadToEndError {
    /// Reading failed.
    Read(ReadError),
    /// The stream holds more bytes than `limit`.
    TooLong,
}

impl fmt::Display for ReadToEndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::TooLong => write!(f, "the stream is longer than the limit"),
        }
    }
}

impl std::error::Error for ReadToEndError {}

impl From<ReadError> for ReadToEndError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<ReadToEndError> for io::Error {
    fn from(error: ReadToEndError) -> Self {
        match error {
            ReadToEndError::Read(error) => error.into(),
            ReadToEndError::TooLong => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}

/// Why a buffer could not be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadExactError {
    /// Reading failed.
    Read(ReadError),
    /// The stream ended after this many bytes of the buffer.
    FinishedEarly(usize),
}

impl fmt::Display for ReadExactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::FinishedEarly(read) => {
                write!(f, "the stream ended after {read} bytes of the buffer")
            }
        }
    }
}

impl std::error::Error for ReadExactError {}

impl From<ReadError> for ReadExactError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<ReadExactError> for io::Error {
    fn from(error: ReadExactError) -> Self {
        match error {
            ReadExactError::Read(error) => error.into(),
            ReadExactError::FinishedEarly(_) => Self::new(io::ErrorKind::UnexpectedEof, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line_and_keep_their_io_kind() {
        let lost = WriteError::ConnectionLost(CloseReason::IdleTimeout);
        assert!(!lost.to_string().contains('\n'));
        assert!(lost.to_string().starts_with("connection lost: "));
        assert_eq!(io::Error::from(lost).kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            io::Error::from(ReadError::Reset(7)).kind(),
            io::ErrorKind::ConnectionReset
        );
        // Errors of connecting, opening and accepting pass through `?` there, too.
        let kind = |error: io::Error| error.kind();
        assert_eq!(
            kind(CloseReason::Reset.into()),
            io::ErrorKind::ConnectionReset
        );
        assert_eq!(
            kind(ConnectError::NoClientConfig.into()),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(
            kind(CloseReason::HandshakeTimeout.into()),
            io::ErrorKind::TimedOut
        );
        for (error, kind) in [
            (
                io::Error::from(ReadToEndError::Read(ReadError::Reset(7))),
                io::ErrorKind::ConnectionReset,
            ),
            (ReadToEndError::TooLong.into(), io::ErrorKind::InvalidData),
            (
                ReadExactError::Read(ReadError::Closed).into(),
                io::ErrorKind::NotConnected,
            ),
            (
                ReadExactError::FinishedEarly(3).into(),
                io::ErrorKind::UnexpectedEof,
            ),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
        }
        assert_eq!(
            ReadToEndError::from(ReadError::Reset(7)).to_string(),
            "the peer reset the stream with code 7"
        );
    }
}
