//! Figures of a connection.

use std::time::Duration;

/// Figures since the connection began. Sizes are UDP payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams received, discarded ones included.
    pub datagrams_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Packets opened and processed.
    pub packets_received: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets that arrived twice.
    pub packets_duplicate: u64,
    /// Packets dropped: malformed, without keys, from elsewhere.
    pub packets_dropped: u64,
    /// Packets whose tag was wrong.
    pub packets_forged: u64,
    /// Times that the peer said that the connection's flow control holds it back (DATA_BLOCKED).
    pub data_blocked_received: u64,
    /// The same for a stream (STREAM_DATA_BLOCKED).
    pub stream_data_blocked_received: u64,
    /// The same for the number of streams (STREAMS_BLOCKED).
    pub streams_blocked_received: u64,
    /// DATAGRAM frames received (RFC 9221).
    pub datagram_frames_received: u64,
    /// DATAGRAM frames sent.
    pub datagram_frames_sent: u64,
    /// Datagrams dropped here: the oldest of a full queue, or larger than the path has become.
    pub datagram_frames_dropped: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Those of them that were acknowledged after all: they were late (RFC 9002 §6.1).
    pub spurious_losses: u64,
    /// ACK frames received.
    pub acks_received: u64,
    /// ACK frames sent.
    pub acks_sent: u64,
    /// Times that the congestion window was reduced.
    pub congestion_events: u64,
    /// Reductions taken back, since all losses that had caused them were spurious (RFC 9438 §4.9).
    pub reductions_undone: u64,
    /// Probe timeouts.
    pub probe_timeouts: u64,
    /// Runs received: calls of `receive`.
    pub runs: u64,
    /// Calls of the header-protection kernel on receipt.
    pub unprotect_calls: u64,
    /// Calls of the AEAD kernel on receipt.
    pub open_calls: u64,
    /// Calls of the AEAD and header-protection kernel on sending.
    pub seal_calls: u64,
    /// Key updates so far, by either side (RFC 9001 §6).
    pub key_updates: u64,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Bytes that congestion control allows in flight.
    pub congestion_window: u64,
    /// Bytes in flight.
    pub bytes_in_flight: u64,
    /// UDP payload that the path is known to carry.
    pub max_udp_payload: u16,
    /// Times that the connection moved to another path (RFC 9000 §9), back included.
    pub migrations: u64,
    /// Times that a path was validated after the handshake (RFC 9000 §8.2.3).
    pub paths_validated: u64,
    /// Packets of ours that met congestion, by the peer's ECN counts (RFC 9000 §19.3.2).
    pub ecn_ce: u64,
    /// Whether the path in use is known to carry ECN marks (RFC 9000 §13.4.2).
    pub ecn_capable: bool,
    /// Times that large packets vanished, so that the search for the path's size began anew (RFC 8899 §4.3).
    pub black_holes: u64,
    /// Streams that were reset because their owner dropped them without ending them.
    pub streams_reset_on_drop: u64,
    /// Times that the peer used up all of the connection's credit while data that the application has not read filled
    /// `TransportConfig::receive_window`: the peer can send on no stream until some of it is read.
    pub blocked_by_unread_data: u64,
    /// Streams that have state.
    pub open_streams: usize,
}
