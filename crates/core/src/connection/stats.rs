//! Counters of a connection.

use std::time::Duration;

/// Counters since the connection began. Sizes are bytes of UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Datagrams received, including discarded ones.
    pub datagrams_received: u64,
    /// Bytes in received datagrams.
    pub bytes_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Bytes in sent datagrams.
    pub bytes_sent: u64,
    /// Packets decrypted and processed.
    pub packets_received: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// ACK frames received.
    pub acks_received: u64,
    /// ACK frames sent.
    pub acks_sent: u64,
    /// Runs of datagrams received: calls of `receive`.
    pub runs: u64,
    /// Calls of the header-protection kernel when receiving.
    pub unprotect_calls: u64,
    /// Calls of the AEAD kernel when receiving.
    pub open_calls: u64,
    /// Calls of the AEAD and header-protection kernel when sending; plus one for each separate pass
    /// of header protection ([`Ablation`](crate::Ablation)).
    pub seal_calls: u64,
    /// Duplicate packets received.
    pub packets_duplicate: u64,
    /// Packets dropped because they were malformed, came from another address, or had no keys.
    pub packets_dropped: u64,
    /// Packets that failed authentication.
    pub packets_forged: u64,
    /// Times the peer reported that the connection's flow control blocks it (DATA_BLOCKED).
    pub data_blocked_received: u64,
    /// Times the peer reported that a stream's flow control blocks it (STREAM_DATA_BLOCKED).
    pub stream_data_blocked_received: u64,
    /// Times the peer reported that the stream limit blocks it (STREAMS_BLOCKED).
    pub streams_blocked_received: u64,
    /// DATAGRAM frames received (RFC 9221).
    pub datagram_frames_received: u64,
    /// DATAGRAM frames sent.
    pub datagram_frames_sent: u64,
    /// Datagrams dropped by this end: the oldest of a full queue, or datagrams that became too
    /// large for the path.
    pub datagram_frames_dropped: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets declared lost but acknowledged later (RFC 9002 §6.1).
    pub spurious_losses: u64,
    /// Times the congestion window was reduced.
    pub congestion_events: u64,
    /// Window reductions that were undone, since all losses that caused them were spurious (RFC
    /// 9438 §4.9).
    pub reductions_undone: u64,
    /// Probe timeouts.
    pub probe_timeouts: u64,
    /// Packets written or taken in runs. For tests: an idle connection has to stay small.
    #[cfg(test)]
    pub(crate) packets_in_runs: u64,
    /// Packets whose data was opened into the reader's chunk.
    #[cfg(test)]
    pub(crate) packets_ahead: u64,
    /// Key updates so far, by either side (RFC 9001 §6).
    pub key_updates: u64,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Minimum round-trip time of the path (RFC 9002 §5.2); the initial estimate before the first
    /// sample.
    pub min_rtt: Duration,
    /// Bytes that congestion control allows in flight.
    pub congestion_window: u64,
    /// Bytes in flight.
    pub bytes_in_flight: u64,
    /// UDP payload that the path is known to carry.
    pub max_udp_payload: u16,
    /// Times the connection migrated to another path (RFC 9000 §9), including returns to the
    /// previous one.
    pub migrations: u64,
    /// Times a path was validated after the handshake (RFC 9000 §8.2.3).
    pub paths_validated: u64,
    /// Packets of ours that experienced congestion, as reported by the peer's ECN counts (RFC 9000
    /// §19.3.2).
    pub ecn_ce: u64,
    /// Whether the path in use is known to carry ECN marks (RFC 9000 §13.4.2).
    pub ecn_capable: bool,
    /// Times large packets stopped arriving, so that the search for the path MTU started over (RFC
    /// 8899 §4.3).
    pub black_holes: u64,
    /// Streams that were reset because their owner dropped them without finishing or resetting
    /// them.
    pub streams_reset_on_drop: u64,
    /// Times the peer used up the connection's credit while data that the application has not read
    /// filled `TransportConfig::receive_window`: the peer cannot send on any stream until some of
    /// it is read.
    pub blocked_by_unread_data: u64,
    /// Streams that currently have state.
    pub open_streams: usize,
}
