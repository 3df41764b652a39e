//! Why a connection ended, and why a call on a stream had no effect.

use bytes::Bytes;
use squall_tls::InvalidLength;
use squall_wire::TransportErrorCode;
use std::fmt::{self, Write};
use std::io;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// A CONNECTION_CLOSE of type 0x1c, sent or received (RFC 9000 §19.19).
    Transport {
        /// The error code (RFC 9000 §20.1).
        code: TransportErrorCode,
        /// The reason phrase.
        reason: String,
        /// Whether the peer closed the connection.
        remote: bool,
    },
    /// A CONNECTION_CLOSE of type 0x1d, sent or received: an application closed the connection.
    Application {
        /// The application's error code.
        code: u64,
        /// The application's reason phrase.
        reason: Bytes,
        /// Whether the peer closed the connection.
        remote: bool,
    },
    /// The idle timeout expired without a packet from the peer (RFC 9000 §10.1).
    IdleTimeout,
    /// The handshake did not complete in time.
    HandshakeTimeout,
    /// The system cannot send to the server: there is no route, or none from the local address.
    /// Only a client's connection ends with this reason, and only before anything has arrived.
    Unreachable(io::ErrorKind),
    /// The peer no longer has state for this connection and sent a stateless reset (RFC 9000
    /// §10.3).
    Reset,
    /// The peer supports none of our versions (RFC 9000 §6.2).
    VersionMismatch,
    /// No packet was sent, for this reason: for example, the endpoint is closed or has reached one
    /// of its limits.
    NotStarted(String),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |remote: bool| if remote { "the peer" } else { "this end" };
        match self {
            Self::Transport {
                code,
                reason,
                remote,
            } if reason.is_empty() => write!(f, "closed by {}: {code}", by(*remote)),
            Self::Transport {
                code,
                reason,
                remote,
            } => write!(f, "closed by {}: {code}: {}", by(*remote), OneLine(reason)),
            Self::Application {
                code,
                reason,
                remote,
            } if reason.is_empty() => {
                write!(f, "closed by {} with application code {code}", by(*remote))
            }
            Self::Application {
                code,
                reason,
                remote,
            } => {
                write!(
                    f,
                    "closed by {} with application code {code}: {}",
                    by(*remote),
                    OneLine(&String::from_utf8_lossy(reason))
                )
            }
            Self::IdleTimeout => {
                write!(f, "the idle timeout expired without a packet from the peer")
            }
            Self::HandshakeTimeout => write!(f, "the peer did not complete the handshake in time"),
            Self::Unreachable(io::ErrorKind::AddrNotAvailable | io::ErrorKind::InvalidInput) => {
                write!(f, "no route from the local address to the peer")
            }
            Self::Unreachable(_) => write!(f, "no route to the peer"),
            Self::Reset => write!(
                f,
                "the peer has lost the connection's state (stateless reset)"
            ),
            Self::VersionMismatch => {
                write!(f, "the peer supports neither QUIC version 1 nor version 2")
            }
            Self::NotStarted(why) => write!(f, "the connection could not be started: {why}"),
        }
    }
}

impl std::error::Error for CloseReason {}

impl From<CloseReason> for io::Error {
    /// Uses the closest kind of I/O error.
    fn from(reason: CloseReason) -> Self {
        let kind = match &reason {
            CloseReason::IdleTimeout | CloseReason::HandshakeTimeout => io::ErrorKind::TimedOut,
            CloseReason::Unreachable(kind) => *kind,
            CloseReason::Reset => io::ErrorKind::ConnectionReset,
            CloseReason::Application { remote: false, .. } | CloseReason::NotStarted(_) => {
                io::ErrorKind::NotConnected
            }
            _ => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, reason)
    }
}

/// A peer's text within a line: anything that would break it or control a terminal is escaped.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            c if c.is_control() => write!(f, "{}", c.escape_default()),
            c => f.write_char(c),
        })
    }
}

/// Why a connection cannot migrate to another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateError {
    /// Only clients migrate (RFC 9000 §9).
    NotAClient,
    /// The handshake is not confirmed yet (RFC 9000 §9).
    NotConfirmed,
    /// The server forbids it (RFC 9000 §18.2, `disable_active_migration`).
    Forbidden,
    /// The server has issued no connection id that could be used there (RFC 9000 §9.5). Retrying
    /// later may succeed.
    NoConnectionId,
    /// The path does not lead to the server's address.
    OtherServer,
    /// The local address and the server's are of different address families.
    OtherFamily,
    /// The connection already uses this path.
    SamePath,
    /// Path validation failed: no response arrived on the path (RFC 9000 §8.2.4).
    NotValidated,
    /// The connection is closed.
    Closed,
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAClient => "only clients migrate to other paths",
            Self::NotConfirmed => "the handshake is not confirmed yet",
            Self::Forbidden => "the server forbids migration (disable_active_migration)",
            Self::NoConnectionId => "the server has issued no spare connection id",
            Self::OtherServer => "the path does not lead to the server's address",
            Self::OtherFamily => {
                "the local address and the server's are of different address families"
            }
            Self::SamePath => "the connection already uses this path",
            Self::NotValidated => "path validation failed: the server did not answer on that path",
            Self::Closed => "the connection is closed",
        })
    }
}

impl std::error::Error for MigrateError {}

/// Why a write, finish or reset had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The send buffer is full; `Event::Writable` follows.
    Blocked,
    /// The peer sent STOP_SENDING with this code.
    Stopped(u64),
    /// The stream is finished, reset or unknown, or the connection is closed.
    Closed,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked => write!(f, "the stream's send buffer is full"),
            Self::Stopped(code) => {
                write!(f, "the peer stopped reading the stream with code {code}")
            }
            Self::Closed => write!(f, "the stream is closed for sending"),
        }
    }
}

impl std::error::Error for WriteError {}

/// Why a read returned no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// No in-order data has arrived; `Event::Readable` follows.
    Blocked,
    /// The peer reset the stream with this code.
    Reset(u64),
    /// The stream was stopped, read to its end or unknown, or the connection is closed.
    Closed,
    /// Bytes of the stream were read in order of arrival; they can no longer be read in order.
    IllegalOrderedRead,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked => write!(f, "no data has arrived yet"),
            Self::Reset(code) => write!(f, "the peer reset the stream with code {code}"),
            Self::Closed => write!(f, "the stream is closed for reading"),
            Self::IllegalOrderedRead => {
                write!(f, "the stream has already been read in order of arrival")
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// Why a datagram was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatagramError {
    /// The peer does not accept datagrams (RFC 9221 §3), or the handshake has not yet shown whether
    /// it does.
    Unsupported,
    /// The datagram is larger than the path or the peer allows; see `max_datagram_size`.
    TooLarge,
    /// The queue is full; `Event::DatagramsWritable` follows.
    Blocked,
    /// The connection is closed.
    Closed,
}

impl fmt::Display for DatagramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => "the peer does not accept datagrams",
            Self::TooLarge => "the datagram is larger than the path or the peer allows",
            Self::Blocked => "the datagram queue is full",
            Self::Closed => "the connection is closed",
        })
    }
}

impl std::error::Error for DatagramError {}

/// Why no key material was exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportError {
    /// The handshake is not complete: the peer is not authenticated yet.
    HandshakeIncomplete,
    /// The secret was not kept; see
    /// [`keep_exporter_secret`](crate::TransportConfig::keep_exporter_secret).
    NotKept,
    /// The output or the label has a length that TLS does not allow.
    InvalidLength(InvalidLength),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HandshakeIncomplete => f.write_str("the handshake is not complete yet"),
            Self::NotKept => {
                f.write_str("the exporter secret was not kept: `keep_exporter_secret` is off")
            }
            Self::InvalidLength(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for ExportError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_reason_is_escaped_to_one_line() {
        let words = "bad\nnews \u{1b}[31mü";
        let application = CloseReason::Application {
            code: 1,
            reason: Bytes::from_static(words.as_bytes()),
            remote: true,
        };
        let transport = CloseReason::Transport {
            code: TransportErrorCode::PROTOCOL_VIOLATION,
            reason: words.to_owned(),
            remote: true,
        };
        for reason in [application, transport] {
            let line = reason.to_string();
            assert!(line.ends_with("bad\\nnews \\u{1b}[31mü"), "{line}");
        }
    }
}
