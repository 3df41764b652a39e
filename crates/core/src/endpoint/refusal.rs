//! Refused attempts, for an owner that observes them.

use std::collections::VecDeque;
use std::net::SocketAddr;

use squall_wire::TransportErrorCode;

/// Refusals that wait to be polled; under a flood, further ones are only counted.
const MAX_WAITING: usize = 64;

/// A connection attempt that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The address that the attempt came from. It may be forged.
    pub remote: SocketAddr,
    /// Why it was refused.
    pub reason: RefusalReason,
}

impl Refusal {
    /// An attempt from `remote`, refused for `reason`.
    #[must_use]
    pub const fn new(remote: SocketAddr, reason: RefusalReason) -> Self {
        Self { remote, reason }
    }
}

/// Why an attempt was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The endpoint has reached its connection limit.
    Connections,
    /// The limit of concurrent handshakes is reached.
    Handshakes,
    /// The limit of undecided attempts is reached.
    Attempts,
    /// The client's source prefix has reached its connection limit.
    Prefix,
    /// Connections have reached the memory limit.
    Memory,
    /// The Retry token is not valid (RFC 9000 §8.1.2).
    InvalidToken,
    /// The application refused it.
    Application,
    /// The endpoint accepts no connections, or no longer does.
    Closed,
    /// Too many others were in progress, some of which were accepted or completed recently: the
    /// attempt was dropped without an answer, and its client retries.
    QueueFull,
    /// rustls, or a setting, did not allow the connection.
    Configuration,
}

impl RefusalReason {
    /// The reason as one word, for labels of metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Handshakes => "handshakes",
            Self::Attempts => "attempts",
            Self::Prefix => "prefix",
            Self::Memory => "memory",
            Self::InvalidToken => "invalid_token",
            Self::Application => "application",
            Self::Closed => "closed",
            Self::QueueFull => "queue_full",
            Self::Configuration => "configuration",
        }
    }

    /// The error code for the client.
    pub(super) const fn code(self) -> TransportErrorCode {
        match self {
            Self::InvalidToken => TransportErrorCode::INVALID_TOKEN,
            _ => TransportErrorCode::CONNECTION_REFUSED,
        }
    }
}

/// Refusals that wait to be polled.
#[derive(Debug, Default)]
pub(super) struct Refusals(VecDeque<Refusal>);

impl Refusals {
    pub(super) fn push(&mut self, remote: SocketAddr, reason: RefusalReason) {
        if self.0.len() < MAX_WAITING {
            self.0.push_back(Refusal::new(remote, reason));
        }
    }

    pub(super) fn pop(&mut self) -> Option<Refusal> {
        self.0.pop_front()
    }
}
