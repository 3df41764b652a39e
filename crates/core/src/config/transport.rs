//! Transport settings of a connection, and their bounds.

use std::net::{SocketAddrV4, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use squall_wire::{Side, VERSION_1, VERSION_2, varint};

use super::ablation::Ablation;
use super::limits::{
    DEFAULT_DATAGRAM_FRAME, DEFAULT_INITIAL_RTT, LEAST_CRYPTO_BUFFER, LEAST_DATAGRAM_FRAME,
    LEAST_MAX_UDP_PAYLOAD, LEAST_PACKETS_IN_FLIGHT, MAX_INITIAL_RTT, MAX_NEW_TOKENS, MAX_STREAMS,
    MAX_UDP_PAYLOAD, MIN_ACK_DELAY, MIN_UDP_PAYLOAD,
};
use crate::algorithm::{CongestionAlgorithm, CongestionControllerFactory};

/// Transport settings of a connection.
///
/// ```
/// use std::time::Duration;
/// let config = squall_core::TransportConfig::default()
///     .max_idle_timeout(Duration::from_secs(60))
///     .max_concurrent_bidi_streams(500);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransportConfig {
    /// Idle time after which the connection ends silently (RFC 9000 §10.1); zero: never. While the
    /// peer's flow control blocks data, BLOCKED frames are repeated (RFC 9000 §4.1), so the
    /// connection is not idle as long as the peer answers. If a peer may never read, limit the time
    /// of writes.
    pub max_idle_timeout: Duration,
    /// Time within which the handshake must complete.
    pub handshake_timeout: Duration,
    /// Idle time after which a PING is sent to keep the connection alive.
    pub keep_alive: Option<Duration>,
    /// Whether a PING is sent after half of the idle timeout while there are streams, other than
    /// [background](crate::Connection::set_background) ones, so that the connection does not end
    /// because the answer to a request takes long. False by default. Without effect if
    /// `keep_alive` is set.
    pub keep_alive_with_streams: bool,
    /// Initial flow-control credit of a stream, in bytes; grows with use up to
    /// `stream_receive_window`.
    pub initial_stream_window: u64,
    /// Initial flow-control credit of the connection, in bytes; grows with use up to
    /// `receive_window`.
    pub initial_window: u64,
    /// Largest credit ahead of the reader of one stream, in bytes.
    pub stream_receive_window: u64,
    /// Largest credit ahead of the readers of the whole connection, in bytes. Data that the
    /// application has not read counts against it: once unread streams fill it, the peer cannot
    /// send on any stream, and `Stats::blocked_by_unread_data` counts this. An application that
    /// leaves streams unread, or reads them one after the other, must set this above the sum of
    /// their stream windows, or stop those streams.
    pub receive_window: u64,
    /// Bytes that one stream buffers for sending and retransmission; beyond that, writers wait.
    /// Writers also wait for the peer's flow-control credit for the stream (RFC 9000 §4.1).
    pub stream_send_window: u64,
    /// The same limit for all streams of the connection together. It bounds memory: each buffered
    /// chunk counts with its length plus an overhead of 96 bytes.
    pub send_window: u64,
    /// The application error code with which a stream is reset if its owner drops it without
    /// finishing or resetting it; 0 by default.
    pub reset_on_drop_code: u64,
    /// Bidirectional streams that the peer may have open.
    pub max_concurrent_bidi_streams: u64,
    /// Unidirectional streams that the peer may have open.
    pub max_concurrent_uni_streams: u64,
    /// Largest UDP payload sent, in bytes; path MTU discovery searches up to it. Handshake
    /// datagrams have 1200 bytes regardless of this setting (RFC 9000 §14.1).
    pub max_udp_payload: u16,
    /// UDP payload that a new path is assumed to carry, in bytes: at least 1200, unless
    /// `max_udp_payload` is less (RFC 9000 §14). On a known network, a larger value saves the first
    /// round trips of path MTU discovery. If a path carries less, packets are lost until that is
    /// noticed.
    pub initial_udp_payload: u16,
    /// UDP payload that every path is known to carry, in bytes: at least 1200, which QUIC requires
    /// of a network (RFC 9000 §14), and at most `max_udp_payload`. New paths are assumed to carry
    /// it too, even if `initial_udp_payload` is less. If larger packets vanish, sending continues
    /// with this size (RFC 8899 §4.3); a path that carries less loses all packets of this size.
    pub min_udp_payload: u16,
    /// Largest UDP payload that the peer is asked to send, in bytes, 1200 to 65,527: the transport
    /// parameter `max_udp_payload_size` (RFC 9000 §18.2). The default is 65,527, that is any size,
    /// since receive buffers hold the largest datagrams. A lower value saves the peer from probing
    /// sizes that this end's network is known not to carry. Larger datagrams that arrive are
    /// processed all the same.
    pub max_received_udp_payload: u16,
    /// Whether ack-eliciting 1-RTT packets are padded to the size of the path, and datagrams with
    /// 0-RTT packets to 1200 bytes, so that their lengths do not reveal those of the data (RFC 9000
    /// §21.14). This costs bandwidth: a message of one byte takes a whole packet. Packets that only
    /// acknowledge are not padded, and the timing of packets remains visible.
    pub pad_to_mtu: bool,
    /// Whether to search for UDP payloads larger than the initial one (RFC 9000 §14.3): once a
    /// connection has sent 38,400 bytes, or as soon as its application uses datagrams.
    pub mtu_discovery: bool,
    /// Time after which a search that ended below `max_udp_payload` starts again (RFC 8899 §5.1.1).
    pub mtu_discovery_interval: Duration,
    /// Reordering, in packets, that is tolerated before an earlier packet counts as lost; at least
    /// 3 (RFC 9002 §6.1.1). It rises on a path that is seen to reorder packets.
    pub packet_threshold: u32,
    /// Reordering in time that is tolerated, as a multiple of the round-trip time: above 1, at most
    /// 8 (RFC 9002 §6.1.2). It rises on a path that is seen to reorder packets.
    pub time_threshold: f32,
    /// Number of probe timeouts over which everything must be lost before the window falls to its
    /// minimum; at least 1 (RFC 9002 §7.6.1).
    pub persistent_congestion_threshold: u32,
    /// RTT assumed before the first sample: a third of the time after which a lost first packet is
    /// retransmitted. The default is 200 ms instead of the 333 ms that RFC 9002 §6.2.2 recommends:
    /// at 30 % loss in each direction, a handshake takes 0.44 s instead of 0.72 s on a 10 ms path
    /// and 1.97 s instead of 2.25 s on a 300 ms path, and no extra datagrams are sent up to 600 ms
    /// (means of 200 simulator seeds). On slower paths, a larger value saves datagrams. At most a
    /// minute. The validation of another path assumes at least the default.
    pub initial_rtt: Duration,
    /// Congestion control algorithm.
    pub congestion: CongestionAlgorithm,
    /// The application's own congestion control, instead of `congestion`.
    pub congestion_controller: Option<Arc<dyn CongestionControllerFactory>>,
    /// Whether sending is paced (RFC 9002 §7.7).
    pub pacing: bool,
    /// 1-RTT packets sealed under one key before a key update is initiated; below the AEAD's limit
    /// (RFC 9001 §6.6).
    pub key_update_after: u64,
    /// 1-RTT packets sealed under one key at which the connection is closed, unless the AEAD's own
    /// limit is lower (RFC 9001 §6.6).
    pub confidentiality_limit: u64,
    /// Packets failing authentication, over all keys, at which the connection is closed, unless the
    /// AEAD's own limit is lower (RFC 9001 §6.6).
    pub integrity_limit: u64,
    /// Longest time by which an acknowledgement is delayed.
    pub max_ack_delay: Duration,
    /// Whether the peer may migrate to another address (RFC 9000 §9). If not,
    /// `disable_active_migration` is sent, and packets from other addresses are dropped; clients
    /// whose NAT rebinds then lose the connection, too.
    pub allow_migration: bool,
    /// Whether packets are marked ECN-capable on paths that carry the marks (RFC 9000 §13.4), so
    /// that routers can signal congestion before they drop packets. Received marks are always
    /// reported.
    pub ecn: bool,
    /// Whether the latency spin bit lets on-path observers measure round-trip times (RFC 9000
    /// §17.4). One connection in sixteen never participates.
    pub spin_bit: bool,
    /// Servers: the address that IPv4 clients are asked to migrate to after the handshake (RFC 9000
    /// §9.6). The endpoint must receive the datagrams that arrive there, with that address as
    /// `Path::local`.
    pub preferred_ipv4: Option<SocketAddrV4>,
    /// Servers: the same for IPv6 clients.
    pub preferred_ipv6: Option<SocketAddrV6>,
    /// Clients: whether to migrate to a server's preferred address, if it can be validated.
    pub follow_preferred_address: bool,
    /// QUIC versions in order of preference: `squall_wire::VERSION_1` and `VERSION_2`.
    ///
    /// A client starts with version 1 if that is in the list, since every server supports it. It
    /// offers to change to version 2 within the handshake (RFC 9368 §2.3, RFC 9369 §4) only if it
    /// prefers version 2, because tickets and early data work in version 1 only. A server accepts
    /// connections in any of its versions, and continues with its most preferred version among
    /// those that the client offers.
    ///
    /// Default: version 1, then version 2.
    pub versions: Vec<u32>,
    /// Whether the peer's certificates remain available after the handshake, when a server drops
    /// its TLS session.
    pub keep_peer_certificates: bool,
    /// Whether the secret from which key material is exported (RFC 8446 §7.5), 32 or 48 bytes, is
    /// kept after the handshake. Without it, `export_keying_material` fails.
    pub keep_exporter_secret: bool,
    /// Bytes of the handshake that are buffered for each encryption level, at least 4096 (RFC 9000
    /// §7.5): long chains of certificates may need more than the default of 64 KiB.
    pub crypto_buffer_size: usize,
    /// Servers: number of tokens that a client receives after the handshake, with which it can
    /// validate its address on a later connection (RFC 9000 §8.1.3).
    pub new_tokens: u8,
    /// How this end asks the peer to acknowledge, if the peer supports such requests
    /// (draft-ietf-quic-ack-frequency).
    pub ack_frequency: AckFrequencyRequest,
    /// Largest DATAGRAM frame that the peer may send, in bytes: the transport parameter
    /// `max_datagram_frame_size` (RFC 9221 §3). The frame's type and length count, up to 5 bytes.
    /// The default is 65,535, that is any frame that fits into a packet. A peer that sends a larger
    /// one violates the protocol: the connection is closed with PROTOCOL_VIOLATION. Zero: datagrams
    /// are not accepted; otherwise at least 3. What this end sends depends on the peer's value.
    pub max_datagram_frame_size: u16,
    /// Bytes of received datagrams that wait to be read, counting 64 more per datagram; beyond
    /// that, the oldest are dropped. Zero: datagrams are not accepted, whatever
    /// `max_datagram_frame_size` is (RFC 9221 §3).
    pub datagram_receive_buffer: usize,
    /// Bytes of datagrams that wait to be sent, counting 64 more per datagram. A single one may
    /// exceed it.
    pub datagram_send_buffer: usize,
    /// Maximum number of packets that are neither acknowledged nor declared lost. It bounds the
    /// memory that a peer that never acknowledges can cost, at some 70 bytes per packet. Data
    /// packets leave an eighth of it to acknowledgements, which in turn leave some to probes.
    /// Beyond that, probes take the place of the oldest packets, which count as lost.
    pub max_packets_in_flight: usize,
    /// For measuring only.
    #[doc(hidden)]
    pub ablation: Ablation,
}

/// What a sender requests from the receiver of its packets, if anything
/// (draft-ietf-quic-ack-frequency).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AckFrequencyRequest {
    /// No request: the peer follows RFC 9000 §13.2.
    Nothing,
    /// One acknowledgement per eighth of the congestion window, none delayed for more than a
    /// quarter of the round-trip time (5 to 25 ms). While the window is below 32 packets, the
    /// behaviour of RFC 9000 §13.2.
    #[default]
    Adaptive,
    /// A constant request.
    Fixed(AckFrequencyConfig),
}

/// A request to the receiver of our packets (draft-ietf-quic-ack-frequency §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrequencyConfig {
    /// Ack-eliciting packets that may arrive without an immediate acknowledgement.
    pub ack_eliciting_threshold: u64,
    /// The longest time for which an acknowledgement may be delayed; at least the minimum that the
    /// peer supports, and below 2^14 ms.
    pub max_ack_delay: Duration,
    /// Packet reordering distance at which packets are acknowledged immediately; 0 disables this.
    /// Values above loss detection's threshold, 3, delay the detection of losses.
    pub reordering_threshold: u64,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            max_idle_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            keep_alive: None,
            keep_alive_with_streams: false,
            initial_stream_window: 512 * 1024,
            initial_window: 1024 * 1024,
            stream_receive_window: 6 * 1024 * 1024,
            receive_window: 12 * 1024 * 1024,
            stream_send_window: 4 * 1024 * 1024,
            send_window: 16 * 1024 * 1024,
            reset_on_drop_code: 0,
            max_concurrent_bidi_streams: 100,
            max_concurrent_uni_streams: 100,
            max_udp_payload: 1472,
            initial_udp_payload: MIN_UDP_PAYLOAD,
            min_udp_payload: MIN_UDP_PAYLOAD,
            max_received_udp_payload: MAX_UDP_PAYLOAD,
            pad_to_mtu: false,
            mtu_discovery: true,
            mtu_discovery_interval: Duration::from_secs(600),
            packet_threshold: 3,
            time_threshold: 1.125,
            persistent_congestion_threshold: 3,
            initial_rtt: DEFAULT_INITIAL_RTT,
            congestion: CongestionAlgorithm::default(),
            congestion_controller: None,
            pacing: true,
            // AES-GCM may seal 2^23 packets; an eighth of that is left for the peer's
            // acknowledgement to arrive.
            key_update_after: 7 << 20,
            confidentiality_limit: u64::MAX,
            integrity_limit: u64::MAX,
            max_ack_delay: Duration::from_millis(25),
            allow_migration: true,
            ecn: true,
            spin_bit: true,
            preferred_ipv4: None,
            preferred_ipv6: None,
            follow_preferred_address: true,
            versions: vec![VERSION_1, VERSION_2],
            keep_peer_certificates: false,
            keep_exporter_secret: true,
            crypto_buffer_size: 64 * 1024,
            new_tokens: 2,
            ack_frequency: AckFrequencyRequest::default(),
            max_datagram_frame_size: DEFAULT_DATAGRAM_FRAME,
            datagram_receive_buffer: 64 * 1024,
            datagram_send_buffer: 64 * 1024,
            max_packets_in_flight: 65_536,
            ablation: Ablation::default(),
        }
    }
}

impl TransportConfig {
    setters! {
        max_idle_timeout: Duration,
        handshake_timeout: Duration,
        keep_alive: Option<Duration>,
        keep_alive_with_streams: bool,
        initial_stream_window: u64,
        initial_window: u64,
        stream_receive_window: u64,
        receive_window: u64,
        stream_send_window: u64,
        send_window: u64,
        reset_on_drop_code: u64,
        max_concurrent_bidi_streams: u64,
        max_concurrent_uni_streams: u64,
        max_udp_payload: u16,
        initial_udp_payload: u16,
        min_udp_payload: u16,
        max_received_udp_payload: u16,
        pad_to_mtu: bool,
        mtu_discovery: bool,
        mtu_discovery_interval: Duration,
        packet_threshold: u32,
        time_threshold: f32,
        persistent_congestion_threshold: u32,
        initial_rtt: Duration,
        congestion: CongestionAlgorithm,
        congestion_controller: Option<Arc<dyn CongestionControllerFactory>>,
        pacing: bool,
        key_update_after: u64,
        confidentiality_limit: u64,
        integrity_limit: u64,
        max_ack_delay: Duration,
        allow_migration: bool,
        ecn: bool,
        spin_bit: bool,
        preferred_ipv4: Option<SocketAddrV4>,
        preferred_ipv6: Option<SocketAddrV6>,
        follow_preferred_address: bool,
        versions: Vec<u32>,
        keep_peer_certificates: bool,
        keep_exporter_secret: bool,
        crypto_buffer_size: usize,
        new_tokens: u8,
        ack_frequency: AckFrequencyRequest,
        max_datagram_frame_size: u16,
        datagram_receive_buffer: usize,
        datagram_send_buffer: usize,
        max_packets_in_flight: usize,
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A sentence that names the invalid setting and its bounds.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.max_udp_payload < LEAST_MAX_UDP_PAYLOAD {
            return Err("max_udp_payload must be at least 512 bytes");
        }
        if self.max_udp_payload > MAX_UDP_PAYLOAD {
            return Err("max_udp_payload must be at most 65527 bytes");
        }
        if !(MIN_UDP_PAYLOAD..=MAX_UDP_PAYLOAD).contains(&self.initial_udp_payload) {
            return Err("initial_udp_payload must be 1200 to 65527 bytes (RFC 9000 §14)");
        }
        if self.min_udp_payload < MIN_UDP_PAYLOAD
            || self.min_udp_payload > self.max_udp_payload.max(MIN_UDP_PAYLOAD)
        {
            return Err("min_udp_payload must be at least 1200 bytes, and at most max_udp_payload");
        }
        if !(MIN_UDP_PAYLOAD..=MAX_UDP_PAYLOAD).contains(&self.max_received_udp_payload) {
            return Err("max_received_udp_payload must be 1200 to 65527 bytes (RFC 9000 §18.2)");
        }
        if self.mtu_discovery_interval.is_zero() {
            return Err("mtu_discovery_interval must not be zero");
        }
        if self.packet_threshold < 3 || self.persistent_congestion_threshold == 0 {
            return Err(
                "packet_threshold must be at least 3, and persistent_congestion_threshold 1",
            );
        }
        if !(self.time_threshold > 1.0 && self.time_threshold <= 8.0) {
            return Err("time_threshold must be above 1 and at most 8 (RFC 9002 §6.1.2)");
        }
        if self.crypto_buffer_size < LEAST_CRYPTO_BUFFER {
            return Err("crypto_buffer_size must be at least 4096 bytes (RFC 9000 §7.5)");
        }
        if self.max_concurrent_bidi_streams > MAX_STREAMS
            || self.max_concurrent_uni_streams > MAX_STREAMS
        {
            return Err("stream limits must be at most 2^60 (RFC 9000 §4.6)");
        }
        if self.receive_window > varint::MAX || self.stream_receive_window > varint::MAX {
            return Err("receive windows must be below 2^62 bytes");
        }
        if self.initial_window == 0 || self.initial_stream_window == 0 {
            return Err(
                "initial windows must not be zero: the peer could never send (to pause it, use \
                 set_receive_window)",
            );
        }
        if self.initial_window > self.receive_window
            || self.initial_stream_window > self.stream_receive_window
        {
            return Err("initial windows must not be larger than the windows they grow to");
        }
        if self.stream_send_window == 0 || self.send_window == 0 {
            return Err("send windows must not be zero");
        }
        if self.key_update_after == 0 || self.key_update_after >= 1 << 23 {
            return Err("key_update_after must be between 1 and 2^23 - 1 packets (RFC 9001 §6.6)");
        }
        if self.key_update_after >= self.confidentiality_limit || self.integrity_limit == 0 {
            return Err(
                "key_update_after must be below confidentiality_limit, and integrity_limit above 0",
            );
        }
        if self.initial_rtt.is_zero() || self.initial_rtt > MAX_INITIAL_RTT {
            return Err("initial_rtt must be above zero and at most a minute");
        }
        if self.max_ack_delay >= Duration::from_millis(1 << 14) {
            return Err("max_ack_delay must be below 2^14 ms (RFC 9000 §18.2)");
        }
        let twice = |v: &u32| self.versions.iter().filter(|other| *other == v).count() > 1;
        if self.versions.is_empty()
            || !(self.versions.iter()).all(|v| [VERSION_1, VERSION_2].contains(v))
            || self.versions.iter().any(twice)
        {
            return Err("versions must contain version 1, version 2 or both, without duplicates");
        }
        if self.new_tokens > MAX_NEW_TOKENS {
            return Err("new_tokens must be at most 8");
        }
        if self.max_ack_delay < MIN_ACK_DELAY {
            return Err("max_ack_delay must be at least 1 ms");
        }
        if let AckFrequencyRequest::Fixed(wanted) = self.ack_frequency
            && wanted.max_ack_delay >= Duration::from_millis(1 << 14)
        {
            return Err("ack_frequency's max_ack_delay must be below 2^14 ms");
        }
        if (1..LEAST_DATAGRAM_FRAME).contains(&self.max_datagram_frame_size) {
            return Err(
                "max_datagram_frame_size must be at least 3 bytes, or 0 to accept no datagrams \
                 (RFC 9221 §3)",
            );
        }
        if self.max_packets_in_flight < LEAST_PACKETS_IN_FLIGHT {
            return Err("max_packets_in_flight must be at least 256");
        }
        Ok(())
    }

    /// The largest DATAGRAM frame that this end accepts, in bytes; zero: none.
    #[must_use]
    pub(crate) fn accepted_datagram_frame(&self) -> u64 {
        match self.datagram_receive_buffer {
            0 => 0,
            _ => self.max_datagram_frame_size.into(),
        }
    }

    /// The version of a client's first packet.
    #[must_use]
    pub(crate) fn original_version(&self) -> u32 {
        let first = self.versions.first().copied().unwrap_or(VERSION_1);
        if self.versions.contains(&VERSION_1) {
            VERSION_1
        } else {
            first
        }
    }

    /// The versions that an end of `side` names as available to a peer, if it begins with `version`
    /// (RFC 9368 §3). A client leaves out version 2 where it would rather stay with version 1: a
    /// server that prefers version 2 would change to it, and the client could never resume.
    #[must_use]
    pub(crate) fn available_versions(&self, side: Side, version: u32) -> &[u32] {
        match self.versions.split_first() {
            Some((&VERSION_1, _)) if side == Side::Client && version == VERSION_1 => {
                &self.versions[..1]
            }
            _ => &self.versions,
        }
    }

    /// The version among those in `offered` that this end prefers.
    #[must_use]
    pub(crate) fn choose_version(&self, offered: impl Fn(u32) -> bool) -> Option<u32> {
        self.versions.iter().copied().find(|v| offered(*v))
    }
}
