//! What a connection tells its owner.

use std::net::IpAddr;

use squall_wire::{ConnectionId, Direction, Path, StreamId};

use crate::error::CloseReason;

/// What happened, for the application. A stream is named at most once a run for each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is complete: data can be sent and the peer is who it says.
    Connected,
    /// The client's early data is accepted (RFC 9001 §4.6.2): at both ends, and only where some was offered.
    EarlyDataAccepted,
    /// A client's early data was not accepted: all of it is sent again, now that the handshake is complete.
    EarlyDataRejected,
    /// The peer opened at least one stream: `accept` has it.
    StreamOpened(Direction),
    /// The peer raised its limit: `open` may succeed again.
    StreamsAvailable(Direction),
    /// There is data, the end or a reset to read. Told again only after a read came back empty-handed.
    Readable(StreamId),
    /// There is room to write again.
    Writable(StreamId),
    /// The peer has acknowledged all data and the end of the stream.
    Finished(StreamId),
    /// The peer sent STOP_SENDING with this code.
    Stopped(StreamId, u64),
    /// The connection uses this path now, which is validated: after `Connection::migrate`, after a server's preferred address
    /// was taken up, or because the peer's address changed (RFC 9000 §9).
    Migrated(Path),
    /// This path could not be validated (RFC 9000 §8.2.4): the connection stays on the path before, or is back there.
    MigrationFailed(Path),
    /// There are datagrams to read. Told again only after a read came back empty-handed.
    DatagramsReadable,
    /// There is room to send datagrams again.
    DatagramsWritable,
    /// The connection ended. The last event.
    Closed(CloseReason),
}

/// What happened, for the endpoint that routes datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// Datagrams to this connection id belong to the connection.
    AddId(ConnectionId),
    /// They do no longer.
    RemoveId(ConnectionId),
    /// A datagram that ends in this token resets the connection (RFC 9000 §10.3).
    AddResetToken([u8; 16]),
    /// The token's connection id was retired.
    RemoveResetToken([u8; 16]),
    /// A server's handshake is complete.
    HandshakeComplete,
    /// A server's connection has shown that its client is at this address, which it uses now (RFC 9000 §8).
    AddressValidated(IpAddr),
    /// The server gave a token for a later connection (RFC 9000 §19.7) in this version.
    NewToken {
        /// The version that the connection has come to.
        version: u32,
        /// Opaque.
        token: Box<[u8]>,
    },
}
