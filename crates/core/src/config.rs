//! Settings of endpoints and connections, with all limits in one place.

use std::net::{SocketAddrV4, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use squall_wire::{ConnectionId, VERSION_1, VERSION_2, varint};

use crate::algorithm::{CongestionAlgorithm, CongestionControllerFactory};

/// ACK ranges remembered for each packet number space (`SECURITY.md` row 8).
pub(crate) const MAX_ACK_RANGES: usize = 64;
/// CRYPTO bytes buffered at each level after the handshake, when only session tickets arrive (RFC
/// 9000 §7.5).
pub(crate) const MAX_CRYPTO_BUFFER_AFTER: u64 = 16 * 1024;
/// The least `crypto_buffer_size`, RFC 9000 §7.5.
pub(crate) const LEAST_CRYPTO_BUFFER: usize = 4096;
/// Pieces of the handshake that wait for missing data, for each level: a full buffer in small
/// packets, every other lost.
pub(crate) const MAX_CRYPTO_PIECES: usize = 64;
/// Maximum number of buffered packets that arrived before their keys.
pub(crate) const MAX_EARLY_PACKETS: usize = 16;
/// Maximum number of buffered bytes of packets that arrived before their keys.
pub(crate) const MAX_EARLY_BYTES: usize = 24_000;
/// Our connection ids that a peer may hold at a time.
pub(crate) const MAX_LOCAL_IDS: u64 = 4;
/// Connection ids of the peer that we hold at a time: our `active_connection_id_limit`.
pub(crate) const MAX_REMOTE_IDS: u64 = 4;
/// Retired ids of the peer whose RETIRE_CONNECTION_ID is not yet acknowledged (RFC 9000 §5.1.2).
pub(crate) const MAX_RETIRE_BACKLOG: usize = 3 * MAX_REMOTE_IDS as usize;
/// Gaps remembered among the numbers of the peer's ids; an honest peer leaves none but by loss.
pub(crate) const MAX_ID_GAPS: usize = 16;
/// Paths of one connection: the one in use, the one before it, and those being probed
/// (`SECURITY.md` row 34).
pub(crate) const MAX_PATHS: usize = 4;
/// PATH_RESPONSE frames waiting to be sent; the newest win.
pub(crate) const MAX_PATH_RESPONSES: usize = 4;
/// Pieces of one stream that wait for missing data; a packet that would add one more is dropped
/// unacknowledged.
pub(crate) const MAX_STREAM_FRAGMENTS: usize = 8192;
/// The smallest UDP payload that every QUIC path carries, and the minimum size of a datagram with
/// an Initial packet (RFC 9000 §14.1).
pub(crate) const MIN_UDP_PAYLOAD: u16 = 1200;
/// The least `max_udp_payload`: a packet must hold any frame that cannot be split, a full ACK among
/// them.
pub(crate) const LEAST_MAX_UDP_PAYLOAD: u16 = 512;
/// Bytes needed after the packet number for the header-protection sample (RFC 9001 §5.4.2).
pub(crate) const MIN_PROTECTED: usize = 4;
/// The most NEW_TOKEN frames that a server sends.
pub(crate) const MAX_NEW_TOKENS: u8 = 8;
/// The shortest time for which acknowledgements are held back on request
/// (draft-ietf-quic-ack-frequency §3).
pub(crate) const MIN_ACK_DELAY: Duration = Duration::from_millis(1);
/// The largest DATAGRAM frame taken, in bytes (RFC 9221 §3): any that fits into a packet.
pub(crate) const MAX_DATAGRAM_FRAME: u64 = 65_535;
/// The least `max_packets_in_flight`: a few full bundles.
pub(crate) const LEAST_PACKETS_IN_FLIGHT: usize = 256;
/// Packets processed in one coalesced datagram.
pub(crate) const MAX_COALESCED: usize = 8;
/// Workers that the five free bits of a QUIC-LB id's first byte tell apart.
pub(crate) const MAX_QUIC_LB_WORKERS: usize = 32;
/// Streams of a direction that a peer may be allowed to open (RFC 9000 §19.11).
pub(crate) const MAX_STREAMS: u64 = 1 << 60;

const _: () = assert!(MAX_EARLY_BYTES >= MAX_EARLY_PACKETS * MIN_UDP_PAYLOAD as usize);
// Every path has an id of its own.
const _: () = assert!(MAX_PATHS as u64 <= MAX_REMOTE_IDS);
const _: () = assert!(MAX_LOCAL_IDS >= 2 && MAX_REMOTE_IDS >= 2);

/// Writes a setter for each field: the same name, by value, to be chained.
macro_rules! setters {
    ($($field:ident: $type:ty,)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

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
    /// Idle time after which the connection ends silently (RFC 9000 §10.1); zero: never.
    pub max_idle_timeout: Duration,
    /// Time within which the handshake must complete.
    pub handshake_timeout: Duration,
    /// Idle time after which a PING is sent to keep the connection alive.
    pub keep_alive: Option<Duration>,
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
    /// The same for the connection. It bounds memory: each buffered chunk counts with its length
    /// plus an overhead of 96 bytes.
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
    /// UDP payload that a new path is taken to carry, in bytes: at least 1200, except where
    /// `max_udp_payload` is less (RFC 9000 §14). A larger value saves the first round trips of path
    /// MTU discovery where the network is known. Where a path carries less, packets are lost until
    /// that is noticed.
    pub initial_udp_payload: u16,
    /// Whether larger UDP payloads than the initial one are searched for (RFC 9000 §14.3).
    pub mtu_discovery: bool,
    /// Time after which a search that has ended below `max_udp_payload` begins again (RFC 8899
    /// §5.1.1).
    pub mtu_discovery_interval: Duration,
    /// Reordering, in packets, that is tolerated before an earlier packet counts as lost; at least
    /// 3 (RFC 9002 §6.1.1). It rises where a path is seen to reorder packets.
    pub packet_threshold: u32,
    /// Reordering in time that is tolerated, as a multiple of the round-trip time: above 1, at most
    /// 8 (RFC 9002 §6.1.2). It rises where a path is seen to reorder packets.
    pub time_threshold: f32,
    /// Probe timeouts over which everything must be lost until the window falls to its minimum;
    /// at least 1 (RFC 9002 §7.6.1).
    pub persistent_congestion_threshold: u32,
    /// RTT assumed before the first sample: a third of the time after which a lost first packet is
    /// retransmitted. The default is 200 ms instead of the 333 ms that RFC 9002 §6.2.2 recommends:
    /// at 30 % loss in each direction, a handshake takes 0.44 s instead of 0.72 s on a 10 ms path
    /// and 1.97 s instead of 2.25 s on a 300 ms path, and no extra datagrams are sent up to 600 ms
    /// (means of 200 simulator seeds). On slower paths, a larger value saves datagrams.
    pub initial_rtt: Duration,
    /// Congestion control algorithm.
    pub congestion: CongestionAlgorithm,
    /// Congestion control of the application's own, instead of `congestion`.
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
    /// Longest time for which an acknowledgement is delayed.
    pub max_ack_delay: Duration,
    /// Whether the peer may migrate to another address (RFC 9000 §9). If not,
    /// `disable_active_migration` is sent, and packets from other addresses are dropped; clients
    /// whose NAT rebinds then lose the connection, too.
    pub allow_migration: bool,
    /// Whether packets are marked ECN-capable where the path carries the marks (RFC 9000 §13.4), so
    /// that routers can signal congestion before they drop packets. Received marks are reported in
    /// any case.
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
    /// A client starts with version 1 if that is in the list, since every server supports it, and
    /// offers all of them (RFC 9368 §2.5). A server accepts connections of any of them, and
    /// continues with its most preferred version among those the client offers (compatible version
    /// negotiation, RFC 9368 §2.3, RFC 9369 §4).
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
    /// What to request of the peer about its acknowledgements, if it supports requests
    /// (draft-ietf-quic-ack-frequency).
    pub ack_frequency: AckFrequencyRequest,
    /// Bytes of received datagrams that wait to be read, counting 64 more per datagram; beyond
    /// that, the oldest are dropped. Zero: datagrams are not accepted (RFC 9221 §3).
    pub datagram_receive_buffer: usize,
    /// Bytes of datagrams that wait to be sent, counting 64 more per datagram.
    pub datagram_send_buffer: usize,
    /// Maximum number of packets that are neither acknowledged nor declared lost. It bounds the
    /// memory that a peer that never acknowledges can cost, at 64 bytes per packet. Data packets
    /// leave an eighth of it to acknowledgements, and these leave some to probes.
    pub max_packets_in_flight: usize,
}

/// What a sender requests of the receiver of its packets, if anything
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
            mtu_discovery: true,
            mtu_discovery_interval: Duration::from_secs(600),
            packet_threshold: 3,
            time_threshold: 1.125,
            persistent_congestion_threshold: 3,
            initial_rtt: Duration::from_millis(200),
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
            datagram_receive_buffer: 64 * 1024,
            datagram_send_buffer: 64 * 1024,
            max_packets_in_flight: 65_536,
        }
    }
}

impl TransportConfig {
    setters! {
        max_idle_timeout: Duration,
        handshake_timeout: Duration,
        keep_alive: Option<Duration>,
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
        if self.initial_udp_payload < MIN_UDP_PAYLOAD {
            return Err("initial_udp_payload must be at least 1200 bytes (RFC 9000 §14)");
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
        if self.initial_rtt.is_zero() {
            return Err("initial_rtt must not be zero");
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
        if self.max_packets_in_flight < LEAST_PACKETS_IN_FLIGHT {
            return Err("max_packets_in_flight must be at least 256");
        }
        Ok(())
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

    /// The version that this end likes best of those that `offered` contains.
    #[must_use]
    pub(crate) fn choose_version(&self, offered: impl Fn(u32) -> bool) -> Option<u32> {
        self.versions.iter().copied().find(|v| offered(*v))
    }
}

/// Settings of a client connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// A regular rustls configuration, built on a provider of `squall_tls`: a built-in one, or one
    /// that it has wrapped.
    pub tls: Arc<rustls::ClientConfig>,
    /// Transport settings.
    pub transport: Arc<TransportConfig>,
}

impl ClientConfig {
    /// These TLS settings, with the default transport settings.
    #[must_use]
    pub fn new(tls: impl Into<Arc<rustls::ClientConfig>>) -> Self {
        Self {
            tls: tls.into(),
            transport: Arc::default(),
        }
    }

    /// Sets the transport settings.
    #[must_use]
    pub fn transport(mut self, transport: impl Into<Arc<TransportConfig>>) -> Self {
        self.transport = transport.into();
        self
    }
}

/// Settings of server connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// A regular rustls configuration, built on a provider of `squall_tls`: a built-in one, or one
    /// that it has wrapped.
    pub tls: Arc<rustls::ServerConfig>,
    /// Transport settings.
    pub transport: Arc<TransportConfig>,
}

impl ServerConfig {
    /// These TLS settings, with the default transport settings.
    #[must_use]
    pub fn new(tls: impl Into<Arc<rustls::ServerConfig>>) -> Self {
        Self {
            tls: tls.into(),
            transport: Arc::default(),
        }
    }

    /// Sets the transport settings.
    #[must_use]
    pub fn transport(mut self, transport: impl Into<Arc<TransportConfig>>) -> Self {
        self.transport = transport.into();
        self
    }
}

/// How an endpoint generates the connection ids that it issues.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionIdGenerator {
    /// The worker's index followed by random bytes.
    Plain {
        /// Length in bytes, 4 to 20.
        len: usize,
    },
    /// Ids from which load balancers read the server's number. Up to 32 workers share it: the five
    /// free bits of the first byte name the worker (draft-ietf-quic-load-balancers §7.2). Which of
    /// a server's workers a connection is on is visible, as with plain ids.
    QuicLb(QuicLb),
}

impl Default for ConnectionIdGenerator {
    /// Plain ids of 8 bytes.
    fn default() -> Self {
        Self::Plain { len: 8 }
    }
}

impl ConnectionIdGenerator {
    /// Length of every id in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain { len } => *len,
            Self::QuicLb(config) => 1 + config.plaintext_len(),
        }
    }

    /// Always `false`: a connection without its own id could not be distinguished from others on
    /// the socket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the settings for an endpoint with this many workers.
    ///
    /// # Errors
    /// A sentence that names the invalid setting and its bounds.
    pub fn check(&self, workers: usize) -> Result<(), &'static str> {
        match self {
            Self::Plain { len } if !(4..=ConnectionId::MAX_LEN).contains(len) => {
                Err("connection ids must be 4 to 20 bytes long")
            }
            Self::Plain { .. } => Ok(()),
            Self::QuicLb(config) if workers > 1 && config.encode_length => Err(
                "QUIC-LB ids that encode their length have no room for a worker: turn \
                     encode_length off, or use one worker",
            ),
            Self::QuicLb(_) if workers > MAX_QUIC_LB_WORKERS => {
                Err("QUIC-LB ids tell at most 32 workers apart")
            }
            Self::QuicLb(config) => config.check(),
        }
    }
}

// A server id that is encrypted does not belong in a log, and neither does its key.
impl std::fmt::Debug for ConnectionIdGenerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain { len } => f.debug_struct("Plain").field("len", len).finish(),
            Self::QuicLb(config) => f
                .debug_struct("QuicLb")
                .field("rotation", &config.rotation)
                .field("len", &self.len())
                .finish_non_exhaustive(),
        }
    }
}

/// A configuration of draft-ietf-quic-load-balancers, shared by a server and the load balancers in
/// front of it.
///
/// ```
/// let ids = squall_core::QuicLb::new(0, [0x12, 0x34], 8).key([7; 16]);
/// let generator = squall_core::ConnectionIdGenerator::QuicLb(ids);
/// assert_eq!(generator.len(), 11);
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuicLb {
    /// The configuration's rotation number, 0 to 6 (§3.1).
    pub rotation: u8,
    /// This server's id, unique within the configuration; at least 1 byte (§5.1).
    pub server_id: Vec<u8>,
    /// Length of the nonce that makes ids unique: at least 4 bytes, without a key at least 8;
    /// together with the server id at most 19 (§5.3).
    pub nonce_len: usize,
    /// Encrypts the server id. `None`: any observer can tell which server a connection is on.
    pub key: Option<[u8; 16]>,
    /// Whether the first byte contains the length of the rest, for crypto offload (§3.3). It then
    /// has no room for a worker.
    pub encode_length: bool,
}

impl QuicLb {
    /// A configuration without a key.
    #[must_use]
    pub fn new(rotation: u8, server_id: impl Into<Vec<u8>>, nonce_len: usize) -> Self {
        Self {
            rotation,
            server_id: server_id.into(),
            nonce_len,
            key: None,
            encode_length: false,
        }
    }

    /// Sets [`key`](field@Self::key).
    #[must_use]
    pub fn key(mut self, key: [u8; 16]) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets [`encode_length`](field@Self::encode_length).
    #[must_use]
    pub fn encode_length(mut self, on: bool) -> Self {
        self.encode_length = on;
        self
    }

    pub(crate) fn plaintext_len(&self) -> usize {
        self.server_id.len() + self.nonce_len
    }

    /// What the draft asks for.
    pub(crate) fn check_fields(&self) -> Result<(), &'static str> {
        if self.rotation > 6 {
            return Err("rotation must be 0 to 6: 7 means that there is no configuration");
        }
        if self.server_id.is_empty() || self.nonce_len < 4 {
            return Err("a server id must have at least 1 byte, and a nonce at least 4 bytes");
        }
        if self.plaintext_len() >= ConnectionId::MAX_LEN {
            return Err("server id and nonce together must have at most 19 bytes");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), &'static str> {
        self.check_fields()?;
        // A random nonce of fewer bytes would come twice among a few ten thousand connections.
        if self.key.is_none() && self.nonce_len < 8 {
            return Err("without a key, the nonce is random and must have at least 8 bytes");
        }
        Ok(())
    }
}

/// Settings of an endpoint, shared by all connections on a socket.
#[derive(Clone)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// How connection ids are generated.
    pub cid_generator: ConnectionIdGenerator,
    /// Index of this worker, below `workers`. Every id names it, so that datagrams are steered to
    /// the worker of their connection; see [`worker_of`].
    pub worker_index: u8,
    /// Number of workers that share the port, including this one, each with its own endpoint. A
    /// datagram that belongs to no connection here and whose destination id names another worker is
    /// routed to it ([`Route::Worker`](crate::Route::Worker)). 1: there are no others.
    pub workers: u8,
    /// Key of the stateless-reset tokens (RFC 9000 §10.3.2).
    pub reset_key: [u8; 32],
    /// Maximum number of connections, including handshakes; further Initials are answered with
    /// CONNECTION_REFUSED.
    pub max_connections: usize,
    /// Key of the address-validation tokens (RFC 9000 §8.1.1); workers and hosts with the same key
    /// accept each other's tokens.
    pub token_key: [u8; 32],
    /// Time within which a client must return with the token of a Retry.
    pub retry_token_lifetime: Duration,
    /// Lifetime of the token of a NEW_TOKEN frame. Each token is valid once (RFC 9000 §8.1.4): the
    /// endpoint records spent tokens in up to 4 MB per day of lifetime, see
    /// [`SpentTokens`](crate::SpentTokens).
    pub new_token_lifetime: Duration,
    /// The wall-clock time at `Time::ZERO`, since the Unix epoch; tokens carry the time. NEW_TOKEN
    /// tokens issued before that count as spent, because the endpoint does not know what was spent
    /// before it was created.
    pub unix_time_at_zero: Duration,
    /// Number of attempts in progress (offered, or in their handshake) from which an Initial
    /// without a valid token is answered with a Retry, for which no state is kept (RFC 9000
    /// §8.1.2). Zero: always.
    pub retry_from: usize,
    /// Maximum number of accepted connections in their handshake; further Initials are answered
    /// with CONNECTION_REFUSED.
    pub max_handshakes: usize,
    /// Maximum number of attempts that wait for the application's decision; further Initials are
    /// answered with CONNECTION_REFUSED (RFC 9000 §5.2.2).
    pub max_incoming: usize,
    /// Maximum number of connections from clients of one source prefix with a validated address; a
    /// further one is answered with CONNECTION_REFUSED. A handshake from an unvalidated address,
    /// which may be forged, is never refused because of this limit: once the prefix has this many
    /// connections and handshakes, it is answered with a Retry. `None`: no limit, since a whole
    /// carrier can share one address. A connection that migrates counts at its new prefix, and is
    /// never closed because of it.
    pub max_connections_per_prefix: Option<usize>,
    /// Length of an IPv4 source prefix in bits, at most 32.
    pub ipv4_prefix_bits: u8,
    /// Length of an IPv6 source prefix in bits, at most 128.
    pub ipv6_prefix_bits: u8,
    /// Memory that all connections may take, in bytes, as reported through
    /// [`Endpoint::set_memory`](crate::Endpoint::set_memory). From three quarters of it on,
    /// attempts without a valid token are answered with a Retry; at the limit, attempts with one
    /// are answered with CONNECTION_REFUSED. `None`: no limit.
    pub max_memory: Option<usize>,
}

/// Which of `workers` the first byte of a destination id names: the index that a worker put there
/// or, for an id chosen by a client, an arbitrary but fixed worker. The steering program in the
/// kernel computes the same.
#[must_use]
pub const fn worker_of(first_byte: u8, workers: u8) -> u8 {
    if workers == 0 {
        0
    } else {
        first_byte % workers
    }
}

impl EndpointConfig {
    setters! {
        cid_generator: ConnectionIdGenerator,
        worker_index: u8,
        workers: u8,
        reset_key: [u8; 32],
        max_connections: usize,
        token_key: [u8; 32],
        retry_token_lifetime: Duration,
        new_token_lifetime: Duration,
        unix_time_at_zero: Duration,
        retry_from: usize,
        max_handshakes: usize,
        max_incoming: usize,
        max_connections_per_prefix: Option<usize>,
        ipv4_prefix_bits: u8,
        ipv6_prefix_bits: u8,
        max_memory: Option<usize>,
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A sentence that names the invalid setting and its bounds.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.workers == 0 {
            return Err("an endpoint must have at least one worker");
        }
        self.cid_generator.check(self.workers.into())?;
        if self.worker_index >= self.workers {
            return Err("a worker's index must be below the number of workers");
        }
        if self.ipv4_prefix_bits > 32 || self.ipv6_prefix_bits > 128 {
            return Err("a source prefix must have at most 32 bits for IPv4 and 128 bits for IPv6");
        }
        Ok(())
    }

    /// Default settings with the given secret, from which the key of the tokens is derived.
    #[must_use]
    pub fn new(reset_key: [u8; 32]) -> Self {
        Self {
            cid_generator: ConnectionIdGenerator::default(),
            worker_index: 0,
            workers: 1,
            reset_key,
            max_connections: 100_000,
            token_key: derived(&reset_key, b"squall token key"),
            retry_token_lifetime: Duration::from_secs(15),
            new_token_lifetime: Duration::from_secs(24 * 3600),
            unix_time_at_zero: Duration::ZERO,
            retry_from: 1000,
            max_handshakes: 10_000,
            max_incoming: 1024,
            max_connections_per_prefix: None,
            ipv4_prefix_bits: 32,
            ipv6_prefix_bits: 56,
            max_memory: None,
        }
    }
}

/// HMAC-SHA-256 of `label`.
fn derived(key: &[u8; 32], label: &[u8]) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("any length will do");
    mac.update(label);
    mac.finalize().into_bytes().into()
}

impl std::fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointConfig")
            .field("cid_generator", &self.cid_generator)
            .field("max_connections", &self.max_connections)
            .field("retry_from", &self.retry_from)
            .field("max_handshakes", &self.max_handshakes)
            .field("max_incoming", &self.max_incoming)
            .finish_non_exhaustive()
    }
}
