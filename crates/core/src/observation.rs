//! Rare changes in the life of a connection, off the data path, for an owner that observes them:
//! one event for each. They carry no application data.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::CloseReason;

/// Observations that wait to be polled; the oldest are dropped. A connection produces a handful
/// between two polls.
const MAX_WAITING: usize = 256;

/// A change in the life of a connection, as returned by `Connection::poll_observation`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Observation {
    /// A client follows the server's Retry (RFC 9000 §8.1.2).
    RetryReceived,
    /// The handshake continues in another version, after a Version Negotiation packet or by
    /// compatible version negotiation (RFC 9368).
    VersionChanged(VersionChanged),
    /// The server has answered the client's early data. Reported at both ends, if early data was
    /// offered.
    EarlyDataAnswered(EarlyDataAnswered),
    /// TLS is done (RFC 9001 §4.1.1).
    HandshakeCompleted(HandshakeCompleted),
    /// The peer has completed the handshake, and its address is validated (RFC 9001 §4.1.2).
    HandshakeConfirmed(HandshakeConfirmed),
    /// The connection moved to another path, or failed to (RFC 9000 §9).
    PathChanged(PathChanged),
    /// The keys were updated (RFC 9001 §6).
    KeysUpdated(KeysUpdated),
    /// The path turned out to carry larger packets, or no longer does.
    MtuChanged(MtuChanged),
    /// The congestion window was reduced: at most once per round trip.
    Congestion(Congestion),
    /// The connection ended. This is the last observation.
    Closed(Closed),
}

macro_rules! observed {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    )*};
}

observed! {
    /// The QUIC version of a handshake has changed.
    VersionChanged {
        /// The version of the client's first packet.
        from: u32,
        /// The version in use from now on.
        to: u32,
    }
    /// Whether early data was accepted (RFC 9001 §4.6.2).
    EarlyDataAnswered {
        /// If not, a client sends it again after the handshake.
        accepted: bool,
    }
    /// A completed handshake.
    HandshakeCompleted {
        /// Time since the connection began at this end.
        duration: Duration,
        /// The QUIC version.
        version: u32,
        /// The application protocol (RFC 7301).
        alpn: Option<Vec<u8>>,
        /// The server name that the client requested; `None` on the client.
        server_name: Option<String>,
        /// Whether an earlier session was resumed.
        resumed: bool,
        /// Whether early data was accepted; `None` if none was offered.
        early_data: Option<bool>,
    }
    /// A confirmed handshake.
    HandshakeConfirmed {
        /// Time since the connection began at this end.
        duration: Duration,
    }
    /// A change of path.
    PathChanged {
        /// The peer's address on the path in use.
        remote: SocketAddr,
        /// The local address of the path in use; `None` if the system does not report it.
        local: Option<IpAddr>,
        /// The peer's address on the path that could not be validated, if that is what happened.
        failed: Option<SocketAddr>,
    }
    /// A key update.
    KeysUpdated {
        /// Whether the peer started it.
        by_peer: bool,
        /// Key updates so far, by either side.
        updates: u64,
    }
    /// A change of the packet size that the path carries.
    MtuChanged {
        /// UDP payload before, in bytes.
        before: u16,
        /// UDP payload from now on, in bytes.
        max_udp_payload: u16,
    }
    /// A reduction of the congestion window.
    Congestion {
        /// The cause of the reduction.
        cause: CongestionCause,
        /// The window before, in bytes.
        window_before: u64,
        /// The window after, in bytes.
        window: u64,
        /// Packets that were found lost at this moment. More from the same episode may follow,
        /// without reducing the window again.
        packets_lost: u64,
        /// The smoothed round-trip time.
        rtt: Duration,
    }
    /// The end of a connection.
    Closed {
        /// Why it ended.
        reason: CloseReason,
        /// Time since the connection began at this end.
        duration: Duration,
    }
}

/// The cause of a reduction of the congestion window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CongestionCause {
    /// Packets were lost (RFC 9002 §7.3.2).
    Loss,
    /// Nothing arrived for so long that the window falls to its minimum (RFC 9002 §7.6).
    PersistentCongestion,
    /// The network marked packets (ECN, RFC 9002 §7.1).
    Ecn,
}

/// Observations that wait to be polled.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    waiting: VecDeque<Observation>,
}

impl Observations {
    pub(crate) fn push(&mut self, observation: Observation) {
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(observation);
    }

    pub(crate) fn pop(&mut self) -> Option<Observation> {
        self.waiting.pop_front()
    }
}
