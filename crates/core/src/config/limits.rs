//! All limits that are not settings, in one place.

use std::time::Duration;

/// ACK ranges remembered for each packet number space (`SECURITY.md` row 8).
pub(crate) const MAX_ACK_RANGES: usize = 64;
/// CRYPTO bytes buffered at each level after the handshake, when only session tickets arrive (RFC
/// 9000 §7.5).
pub(crate) const MAX_CRYPTO_BUFFER_AFTER: u64 = 16 * 1024;
/// The lowest `crypto_buffer_size`, RFC 9000 §7.5.
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
/// Our connection ids that the peer has retired but that are still routed: as many as two rotations
/// retire. Beyond that, the oldest is dropped early (`SECURITY.md` row 3).
pub(crate) const MAX_RETIRED_IDS: usize = 2 * MAX_LOCAL_IDS as usize;
/// Connection ids of the peer that we hold at a time: our `active_connection_id_limit`.
pub(crate) const MAX_REMOTE_IDS: u64 = 4;
/// Retired ids of the peer whose RETIRE_CONNECTION_ID is not yet acknowledged (RFC 9000 §5.1.2).
pub(crate) const MAX_RETIRE_BACKLOG: usize = 3 * MAX_REMOTE_IDS as usize;
/// Gaps remembered in the numbers of the peer's ids; an honest peer leaves none except by loss.
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
/// The largest UDP payload, and the default of max_udp_payload_size (RFC 9000 §18.2).
pub(crate) const MAX_UDP_PAYLOAD: u16 = 65_527;
/// The lowest `max_udp_payload`: a packet must hold any frame that cannot be split, including a
/// full ACK.
pub(crate) const LEAST_MAX_UDP_PAYLOAD: u16 = 512;
/// Minimum length of the destination connection id of a client's first packet (RFC 9000 §7.2).
pub(crate) const LEAST_ORIGINAL_ID: usize = 8;
/// Bytes needed after the packet number for the header-protection sample (RFC 9001 §5.4.2).
pub(crate) const MIN_PROTECTED: usize = 4;
/// The most NEW_TOKEN frames that a server sends.
pub(crate) const MAX_NEW_TOKENS: u8 = 8;
/// The shortest time for which acknowledgements are held back on request
/// (draft-ietf-quic-ack-frequency §3).
pub(crate) const MIN_ACK_DELAY: Duration = Duration::from_millis(1);
/// The default `initial_rtt`. The validation of another path assumes no less.
pub(crate) const DEFAULT_INITIAL_RTT: Duration = Duration::from_millis(200);
/// The largest `initial_rtt`: probe timeouts are multiples of it.
pub(crate) const MAX_INITIAL_RTT: Duration = Duration::from_secs(60);
/// The default `max_datagram_frame_size`: any DATAGRAM frame that fits into a packet (RFC 9221 §3).
pub(crate) const DEFAULT_DATAGRAM_FRAME: u16 = 65_535;
/// The least `max_datagram_frame_size` other than zero: a type, a length, and a byte of data.
pub(crate) const LEAST_DATAGRAM_FRAME: u16 = 3;
/// The lowest `max_packets_in_flight`: a few full bundles.
pub(crate) const LEAST_PACKETS_IN_FLIGHT: usize = 256;
/// Packets processed in one coalesced datagram.
pub(crate) const MAX_COALESCED: usize = 8;
/// Workers that the five free bits of a QUIC-LB id's first byte can tell apart.
pub(crate) const MAX_QUIC_LB_WORKERS: usize = 32;
/// Streams of a direction that a peer may be allowed to open (RFC 9000 §19.11).
pub(crate) const MAX_STREAMS: u64 = 1 << 60;

const _: () = assert!(MAX_EARLY_BYTES >= MAX_EARLY_PACKETS * MIN_UDP_PAYLOAD as usize);
// Every path has an id of its own.
const _: () = assert!(MAX_PATHS as u64 <= MAX_REMOTE_IDS);
const _: () = assert!(MAX_LOCAL_IDS >= 2 && MAX_REMOTE_IDS >= 2);
