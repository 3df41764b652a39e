//! What a connection reports to its owner.

use std::net::IpAddr;

use squall_wire::{ConnectionId, Direction, Path, StreamId};

use crate::error::CloseReason;

/// Events for the application. Each kind names a stream at most once per received run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The peer's first flight has been read: the application protocol and, on a server, the server
    /// name are known (`Connection::alpn`, `Connection::server_name`). None of it is authenticated
    /// before [`Connected`](Self::Connected).
    HandshakeData,
    /// The handshake is complete: data can be sent, and the peer is authenticated.
    Connected,
    /// The client's early data was accepted (RFC 9001 §4.6.2). Reported at both ends, and only if
    /// early data was offered.
    EarlyDataAccepted,
    /// A client's early data was rejected: all of it is sent again, now that the handshake is
    /// complete.
    EarlyDataRejected,
    /// The peer opened at least one stream: `accept` returns it.
    StreamOpened(Direction),
    /// The peer raised its stream limit: `open` may succeed again.
    StreamsAvailable(Direction),
    /// Data, the end or a reset can be read. Reported again only after a read returned nothing.
    Readable(StreamId),
    /// The stream can be written again.
    Writable(StreamId),
    /// The peer has acknowledged all data and the end of the stream.
    Finished(StreamId),
    /// The peer sent STOP_SENDING with this code.
    Stopped(StreamId, u64),
    /// The connection now uses this validated path: after `Connection::migrate`, after migrating to
    /// a server's preferred address, or because the peer's address changed (RFC 9000 §9).
    Migrated(Path),
    /// This path could not be validated (RFC 9000 §8.2.4): the connection stays on, or returns to,
    /// the previous path.
    MigrationFailed(Path),
    /// Datagrams can be read. Reported again only after a read returned nothing.
    DatagramsReadable,
    /// Datagrams can be sent again, after one was refused: half of the queue is free.
    DatagramsWritable,
    /// The connection ended. This is the last event.
    Closed(CloseReason),
}

/// Events for the endpoint that routes datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointEvent {
    /// Datagrams to this connection id belong to the connection.
    AddId(ConnectionId),
    /// Datagrams to this connection id no longer belong to the connection.
    RemoveId(ConnectionId),
    /// A datagram that ends in this token resets the connection (RFC 9000 §10.3).
    AddResetToken([u8; 16]),
    /// The token's connection id was retired.
    RemoveResetToken([u8; 16]),
    /// A server's handshake is complete.
    HandshakeComplete,
    /// A server has validated that its client is at this address, which the connection now uses
    /// (RFC 9000 §8).
    AddressValidated(IpAddr),
    /// The server issued a token for a later connection (RFC 9000 §19.7).
    NewToken {
        /// The QUIC version of the connection.
        version: u32,
        /// The opaque token.
        token: Box<[u8]>,
    },
}
