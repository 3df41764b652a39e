//! Settings of endpoints and connections, with every limit in one place.

use std::net::{SocketAddrV4, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use squall_wire::{ConnectionId, VERSION_1, VERSION_2, varint};

use crate::algorithm::CongestionAlgorithm;

/// ACK ranges remembered for each packet number space (`SECURITY.md` row 8).
pub(crate) const MAX_ACK_RANGES: usize = 64;
/// CRYPTO bytes buffered ahead of the handshake for each level, RFC 9000 §7.5.
pub(crate) const MAX_CRYPTO_BUFFER: u64 = 64 * 1024;
/// The same once the handshake is complete: what comes then is tickets.
pub(crate) const MAX_CRYPTO_BUFFER_AFTER: u64 = 16 * 1024;
/// Pieces of the handshake that wait behind gaps, for each level: a full buffer in small packets, every other lost.
pub(crate) const MAX_CRYPTO_PIECES: usize = 64;
/// Packets held that came before their keys.
pub(crate) const MAX_EARLY_PACKETS: usize = 16;
/// Bytes held of packets that came before their keys.
pub(crate) const MAX_EARLY_BYTES: usize = 24_000;
/// Connection ids of ours that a peer may hold at a time.
pub(crate) const MAX_LOCAL_IDS: u64 = 4;
/// Connection ids of the peer that we hold at a time: our `active_connection_id_limit`.
pub(crate) const MAX_REMOTE_IDS: u64 = 4;
/// Retired ids of the peer whose RETIRE_CONNECTION_ID is not yet acknowledged (RFC 9000 §5.1.2).
pub(crate) const MAX_RETIRE_BACKLOG: usize = 3 * MAX_REMOTE_IDS as usize;
/// Gaps remembered among the numbers of the peer's ids; an honest peer leaves none but by loss.
pub(crate) const MAX_ID_GAPS: usize = 16;
/// Paths of one connection: the one in use, the one before it, and those being probed (`SECURITY.md` row 34).
pub(crate) const MAX_PATHS: usize = 4;
/// PATH_RESPONSE frames waiting to be sent; the newest win.
pub(crate) const MAX_PATH_RESPONSES: usize = 4;
/// Pieces of one stream that wait behind gaps; a packet that would add one more is dropped unacknowledged.
pub(crate) const MAX_STREAM_FRAGMENTS: usize = 8192;
/// The smallest UDP payload that a QUIC path carries, and the least size of a datagram with an Initial (RFC 9000 §14.1).
pub(crate) const MIN_UDP_PAYLOAD: u16 = 1200;
/// The least `max_udp_payload`: a packet must hold any frame that cannot be split, a full ACK among them.
pub(crate) const LEAST_MAX_UDP_PAYLOAD: u16 = 512;
/// Room needed behind the packet number for the header-protection sample (RFC 9001 §5.4.2).
pub(crate) const MIN_PROTECTED: usize = 4;
/// The most NEW_TOKEN frames that a server sends.
pub(crate) const MAX_NEW_TOKENS: u8 = 8;
/// The shortest time for which acknowledgements are held back on request (draft-ietf-quic-ack-frequency §3).
pub(crate) const MIN_ACK_DELAY: Duration = Duration::from_millis(1);
/// The largest DATAGRAM frame taken, in bytes (RFC 9221 §3): any that fits into a packet.
pub(crate) const MAX_DATAGRAM_FRAME: u64 = 65_535;
/// The least `max_packets_in_flight`: a few full bundles.
pub(crate) const LEAST_PACKETS_IN_FLIGHT: usize = 256;
/// Packets in one coalesced datagram that are looked at.
pub(crate) const MAX_COALESCED: usize = 8;

const _: () = assert!(MAX_EARLY_BYTES >= MAX_EARLY_PACKETS * MIN_UDP_PAYLOAD as usize);
// Every path has an id of its own.
const _: () = assert!(MAX_PATHS as u64 <= MAX_REMOTE_IDS);
const _: () = assert!(MAX_LOCAL_IDS >= 2 && MAX_REMOTE_IDS >= 2);

/// Settings of one connection's transport.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Silence after which the connection ends without a word; zero: never (RFC 9000 §10.1).
    pub max_idle_timeout: Duration,
    /// Time in which the handshake must be done.
    pub handshake_timeout: Duration,
    /// Send a PING after this much silence, to keep the connection.
    pub keep_alive: Option<Duration>,
    /// First credit for one stream, in bytes; grows by use up to `stream_receive_window`.
    pub initial_stream_window: u64,
    /// First credit for the connection, in bytes; grows by use up to `receive_window`.
    pub initial_window: u64,
    /// Largest credit ahead of the reader for one stream, in bytes.
    pub stream_receive_window: u64,
    /// Largest credit ahead of the readers for the connection, in bytes. Data that the application does not read counts
    /// against it: once unread streams fill it, the peer can send on no stream, and
    /// `Stats::blocked_by_unread_data` counts it. An application that leaves streams unread, or reads them one after the
    /// other, needs more than the sum of their stream windows here, or stops them.
    pub receive_window: u64,
    /// What one stream holds for sending and sending again, in bytes; a writer beyond waits. A writer also waits for the
    /// peer's credit for the stream (RFC 9000 §4.1).
    pub stream_send_window: u64,
    /// The same for the connection. It bounds memory: each chunk held counts with its length and an overhead of 96 bytes.
    pub send_window: u64,
    /// The application error code of a stream that is reset because its owner dropped it without finishing or resetting
    /// it; 0 by default.
    pub reset_on_drop_code: u64,
    /// Bidirectional streams that the peer may have open.
    pub max_concurrent_bidi_streams: u64,
    /// Unidirectional streams that the peer may have open.
    pub max_concurrent_uni_streams: u64,
    /// Largest UDP payload sent, in bytes: path MTU discovery goes up to it. Datagrams of the handshake have 1200
    /// bytes whatever is set here (RFC 9000 §14.1).
    pub max_udp_payload: u16,
    /// RTT assumed before the first sample: a third of the time after which a lost first packet is sent again. The default is 200 ms
    /// instead of the 333 ms that RFC 9002 §6.2.2 recommends: at 30 % loss each way a handshake takes 0.44 s instead of 0.72 s on a
    /// path of 10 ms and 1.97 s instead of 2.25 s on one of 300 ms, and nothing more is sent up to 600 ms (means of 200 seeds of the
    /// simulator). On slower paths than that, a larger value saves datagrams.
    pub initial_rtt: Duration,
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// Whether sending is paced (RFC 9002 §7.7).
    pub pacing: bool,
    /// 1-RTT packets sealed under one key before a key update is initiated; below the AEAD's limit (RFC 9001 §6.6).
    pub key_update_after: u64,
    /// 1-RTT packets sealed under one key at which the connection is closed, where the AEAD's own limit is not lower
    /// (RFC 9001 §6.6).
    pub confidentiality_limit: u64,
    /// Packets that fail to authenticate, over all keys, at which the connection is closed, where the AEAD's own limit is
    /// not lower (RFC 9001 §6.6).
    pub integrity_limit: u64,
    /// Longest time that an acknowledgement is held back.
    pub max_ack_delay: Duration,
    /// Whether the peer may move to another address (RFC 9000 §9). Otherwise `disable_active_migration` is declared, and what
    /// comes from elsewhere is dropped: a client whose NAT forgets its binding is lost, too.
    pub allow_migration: bool,
    /// Whether packets are marked ECN-capable where the path carries the marks (RFC 9000 §13.4): routers then tell of
    /// congestion before they drop. Marks received are reported in any case.
    pub ecn: bool,
    /// Whether the latency spin bit lets observers on the way measure round-trip times (RFC 9000 §17.4); one connection in
    /// sixteen does not take part in any case.
    pub spin_bit: bool,
    /// Servers: where clients over IPv4 are asked to move to after the handshake (RFC 9000 §9.6). The endpoint must hear what
    /// arrives there, with that address as `Path::local`.
    pub preferred_ipv4: Option<SocketAddrV4>,
    /// The same for clients over IPv6.
    pub preferred_ipv6: Option<SocketAddrV6>,
    /// Clients: whether to move to a server's preferred address, if it can be validated.
    pub follow_preferred_address: bool,
    /// QUIC versions, the favourite first: `squall_wire::VERSION_1` and `VERSION_2`.
    ///
    /// A client begins with version 1 where that is among them, since every server knows it, and offers all of them
    /// (RFC 9368 §2.5). A server takes connections of any of them, and goes on with the one that it likes best of those
    /// that the client offers (compatible version negotiation, RFC 9368 §2.3, RFC 9369 §4).
    pub versions: Vec<u32>,
    /// Whether the peer's certificates can be asked for after the handshake. A server lets go of its TLS session then.
    pub keep_peer_certificates: bool,
    /// Key material bound to the session that can be asked for after the handshake (RFC 8446 §7.5).
    pub exporters: Vec<Exporter>,
    /// Servers: tokens that a client gets after the handshake, to show with a later connection that its address is its
    /// own (RFC 9000 §8.1.3).
    pub new_tokens: u8,
    /// What the peer is asked to do about its acknowledgements, where it can be asked (draft-ietf-quic-ack-frequency).
    pub ack_frequency: AckFrequencyRequest,
    /// Bytes of received datagrams that wait for their reader, 64 more for each; beyond, the oldest are dropped. Zero: no
    /// datagrams are taken (RFC 9221 §3).
    pub datagram_receive_buffer: usize,
    /// Bytes of datagrams that wait to be sent, 64 more for each.
    pub datagram_send_buffer: usize,
    /// Packets whose fate is open, at most: what limits the memory that a peer without acknowledgements costs, 64 bytes
    /// for each. Data leaves an eighth of them for acknowledgements, and these some for probes.
    pub max_packets_in_flight: usize,
}

/// Key material to be exported from the TLS session (RFC 8446 §7.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exporter {
    /// What it is for.
    pub label: Vec<u8>,
    /// What it is bound to beside the session.
    pub context: Option<Vec<u8>>,
    /// How many bytes; at least 1.
    pub len: usize,
}

/// Whether and what a sender asks of the receiver of its packets (draft-ietf-quic-ack-frequency).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckFrequencyRequest {
    /// Nothing: what RFC 9000 §13.2 says.
    Nothing,
    /// An acknowledgement for every eighth of the congestion window, and none held back for more than a quarter of a round
    /// trip (5 to 25 ms). Nothing while the window is below 32 packets.
    #[default]
    Adaptive,
    /// Always the same.
    Fixed(AckFrequencyConfig),
}

/// What a sender asks of the receiver of its packets (draft-ietf-quic-ack-frequency §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrequencyConfig {
    /// Ack-eliciting packets that may come without being acknowledged at once.
    pub ack_eliciting_threshold: u64,
    /// The longest time that an acknowledgement may be held back; not shorter than the peer is able to, and below 2^14
    /// ms.
    pub max_ack_delay: Duration,
    /// How far packets may be out of order before they are acknowledged at once; 0 is any distance. Larger values than
    /// loss detection's, which is 3, make losses known late.
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
            initial_rtt: Duration::from_millis(200),
            congestion: CongestionAlgorithm::default(),
            pacing: true,
            // AES-GCM may seal 2^23 packets; an eighth of that is left for the peer's acknowledgement to arrive.
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
            exporters: Vec::new(),
            new_tokens: 2,
            ack_frequency: AckFrequencyRequest::default(),
            datagram_receive_buffer: 64 * 1024,
            datagram_send_buffer: 64 * 1024,
            max_packets_in_flight: 65_536,
        }
    }
}

impl TransportConfig {
    /// Says in one line what is wrong with the settings, if anything is.
    ///
    /// # Errors
    /// A sentence that names the setting and its bounds.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.max_udp_payload < LEAST_MAX_UDP_PAYLOAD {
            return Err("max_udp_payload must be at least 512 bytes");
        }
        if self.max_concurrent_bidi_streams > 1 << 60 || self.max_concurrent_uni_streams > 1 << 60 {
            return Err("at most 2^60 concurrent streams can be allowed (RFC 9000 §4.6)");
        }
        if self.receive_window > varint::MAX || self.stream_receive_window > varint::MAX {
            return Err("receive windows must be below 2^62 bytes");
        }
        if self.initial_window > self.receive_window
            || self.initial_stream_window > self.stream_receive_window
        {
            return Err("an initial window must not be larger than the window that it grows to");
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
            return Err("versions must name version 1, version 2 or both, each once");
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

/// Settings of a client's connection.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// An ordinary rustls configuration, built from `squall_tls::provider()`.
    pub tls: Arc<rustls::ClientConfig>,
    /// The transport's settings.
    pub transport: Arc<TransportConfig>,
}

/// Settings of a server's connections.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// An ordinary rustls configuration, built from `squall_tls::provider()`.
    pub tls: Arc<rustls::ServerConfig>,
    /// The transport's settings.
    pub transport: Arc<TransportConfig>,
}

/// How an endpoint makes the connection ids that it hands out.
#[derive(Clone, PartialEq, Eq)]
pub enum ConnectionIdGenerator {
    /// The worker's index and random bytes behind it.
    Plain {
        /// Length in bytes, 4 to 20.
        len: usize,
        /// First byte of every id: what datagrams are steered by to the worker on which their connection lives.
        worker_index: u8,
    },
    /// Ids that load balancers read the server's number from. Their first byte names no worker: workers that are to be
    /// told apart by somebody in front of them need server ids of their own
    /// (draft-ietf-quic-load-balancers §7.2).
    QuicLb(QuicLb),
}

impl Default for ConnectionIdGenerator {
    /// 8 bytes, of worker 0.
    fn default() -> Self {
        Self::Plain {
            len: 8,
            worker_index: 0,
        }
    }
}

impl ConnectionIdGenerator {
    /// Bytes of every id.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain { len, .. } => *len,
            Self::QuicLb(config) => 1 + config.plaintext_len(),
        }
    }

    /// Never: a connection without an id of its own could not be told from others on the socket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The worker whose index ids carry; 0 where they carry none.
    #[must_use]
    pub const fn worker_index(&self) -> u8 {
        match self {
            Self::Plain { worker_index, .. } => *worker_index,
            Self::QuicLb(_) => 0,
        }
    }

    /// Says in one line what is wrong with the settings, if anything is.
    ///
    /// # Errors
    /// A sentence that names the setting and its bounds.
    pub fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Plain { len, .. } if !(4..=ConnectionId::MAX_LEN).contains(len) => {
                Err("connection ids must have 4 to 20 bytes")
            }
            Self::Plain { .. } => Ok(()),
            Self::QuicLb(config) => config.check(),
        }
    }
}

// Where a server id lies behind a key, the log is no place for either.
impl std::fmt::Debug for ConnectionIdGenerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain { len, worker_index } => f
                .debug_struct("Plain")
                .field("len", len)
                .field("worker_index", worker_index)
                .finish(),
            Self::QuicLb(config) => f
                .debug_struct("QuicLb")
                .field("rotation", &config.rotation)
                .field("len", &self.len())
                .finish_non_exhaustive(),
        }
    }
}

/// A configuration of draft-ietf-quic-load-balancers: what a server and the load balancers before it agree on.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicLb {
    /// The configuration's number, 0 to 6 (§3.1).
    pub rotation: u8,
    /// This server's number among all of the configuration; at least 1 byte (§5.1).
    pub server_id: Vec<u8>,
    /// Bytes that make ids differ: at least 4, without a key at least 8; with the server id at most 19 (§5.3).
    pub nonce_len: usize,
    /// Hides the server's number from everybody else; `None`: anybody can tell which server a connection is on.
    pub key: Option<[u8; 16]>,
    /// Whether the first byte tells the length of the rest, for crypto offload (§3.3).
    pub encode_length: bool,
}

impl QuicLb {
    pub(crate) fn plaintext_len(&self) -> usize {
        self.server_id.len() + self.nonce_len
    }

    /// What the draft asks for.
    pub(crate) fn check_fields(&self) -> Result<(), &'static str> {
        if self.rotation > 6 {
            return Err("the configuration's rotation must be 0 to 6: 7 means that there is none");
        }
        if self.server_id.is_empty() || self.nonce_len < 4 {
            return Err("a server id needs 1 byte, a nonce 4 bytes at least");
        }
        if self.plaintext_len() >= ConnectionId::MAX_LEN {
            return Err("server id and nonce have at most 19 bytes together");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), &'static str> {
        self.check_fields()?;
        // A random nonce of fewer bytes would come twice among a few ten thousand connections.
        if self.key.is_none() && self.nonce_len < 8 {
            return Err("without a key the nonce is random and needs 8 bytes at least");
        }
        Ok(())
    }
}

/// Settings of an endpoint: what all connections on a socket share.
#[derive(Clone)]
pub struct EndpointConfig {
    /// How connection ids are made.
    pub cid_generator: ConnectionIdGenerator,
    /// Workers that share the port, this one included, each with an endpoint of its own: a datagram of nobody here whose
    /// destination id names another one goes there ([`Route::Worker`](crate::Route::Worker)). 1: there is no other.
    pub workers: u8,
    /// Key of the stateless-reset tokens (RFC 9000 §10.3.2).
    pub reset_key: [u8; 32],
    /// Connections in all, handshakes included; an Initial beyond is answered with CONNECTION_REFUSED.
    pub max_connections: usize,
    /// Key of the address-validation tokens (RFC 9000 §8.1.1): workers and hosts with the same key take each other's.
    pub token_key: [u8; 32],
    /// How long a client may take to come back with the token of a Retry.
    pub retry_token_lifetime: Duration,
    /// How long the token of a NEW_TOKEN frame is good. Each is good once (RFC 9000 §8.1.4): the endpoint remembers which
    /// are spent, in up to 4 MB for each day, see [`SpentTokens`](crate::SpentTokens).
    pub new_token_lifetime: Duration,
    /// What the wall clock shows at `Time::ZERO`, as the time since the Unix epoch: tokens carry the time. NEW_TOKEN tokens
    /// issued before count as spent, for what was spent before the endpoint was made is not known.
    pub unix_time_at_zero: Duration,
    /// Attempts under way (offered, or in their handshake) from which on an Initial without a good token is answered with
    /// a Retry, for which nothing is kept (RFC 9000 §8.1.2). Zero: always.
    pub retry_from: usize,
    /// Connections accepted that may be in their handshake at a time; an Initial beyond is answered with
    /// CONNECTION_REFUSED.
    pub max_handshakes: usize,
    /// Attempts that may wait for the application's word at a time; an Initial beyond is answered with
    /// CONNECTION_REFUSED (RFC 9000 §5.2.2).
    pub max_incoming: usize,
    /// Connections that clients of one source prefix may have, where their address is validated: one more is answered with
    /// CONNECTION_REFUSED. A handshake from an address that is not validated is never refused for it, for the address may be
    /// forged: once those that are in their handshake and the prefix's connections are as many, it is answered with a Retry.
    /// `None`: no limit, since a whole carrier can be behind one address. A connection that moves is counted where it goes,
    /// and is never cut for it.
    pub max_connections_per_prefix: Option<usize>,
    /// Bits of an IPv4 address that make a source prefix, up to 32.
    pub ipv4_prefix_bits: u8,
    /// Bits of an IPv6 address that make a source prefix, up to 128.
    pub ipv6_prefix_bits: u8,
    /// Bytes of memory that all connections may take, as [`Endpoint::set_memory`](crate::Endpoint::set_memory) was told: from
    /// three quarters of it on, attempts without a good token are answered with a Retry; from all of it on, those with one are
    /// answered with CONNECTION_REFUSED. `None`: no limit.
    pub max_memory: Option<usize>,
}

/// Which of `workers` the first byte of a destination id names: the index that a worker put there, and for an id that a
/// client made up any of them, always the same one. What steers by it in the kernel calculates the same.
#[must_use]
pub const fn worker_of(first_byte: u8, workers: u8) -> u8 {
    if workers == 0 {
        0
    } else {
        first_byte % workers
    }
}

impl EndpointConfig {
    /// Says in one line what is wrong with the settings, if anything is.
    ///
    /// # Errors
    /// A sentence that names the setting and its bounds.
    pub fn check(&self) -> Result<(), &'static str> {
        self.cid_generator.check()?;
        if self.workers == 0 {
            return Err("an endpoint has at least one worker");
        }
        if self.workers > 1 && matches!(self.cid_generator, ConnectionIdGenerator::QuicLb(_)) {
            return Err(
                "connection ids for QUIC-LB carry no worker's index: they are for one worker",
            );
        }
        if self.cid_generator.worker_index() >= self.workers {
            return Err("a worker's index must be below the number of workers");
        }
        if self.ipv4_prefix_bits > 32 || self.ipv6_prefix_bits > 128 {
            return Err("a source prefix has at most 32 bits of an IPv4 or 128 of an IPv6 address");
        }
        Ok(())
    }

    /// The usual settings, with the secret that only the caller can make; the key of the tokens is derived from it.
    #[must_use]
    pub fn new(reset_key: [u8; 32]) -> Self {
        Self {
            cid_generator: ConnectionIdGenerator::default(),
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
