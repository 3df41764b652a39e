//! One QUIC connection: its state and the verbs of its owner.
//!
//! ```text
//!            a run of datagrams                        a bundle of datagrams
//!                   │ receive                                 ▲ transmit
//!   split · unprotect · number · open · frames · settle       allow · plan · write · seal · settle
//!                   │                                         │
//!        spaces  ring  streams  path  recovery  congestion  timers       ← the fields below
//!                   │                                         ▲
//!                   └── events ──►  the application  ── verbs ┘
//! ```
//!
//! The pipelines are `impl Connection` blocks in the files beside this one; what lies on lower floors gets plain data.

mod ack;
mod bundle;
mod close;
mod datagrams;
mod early;
mod flight;
mod frames;
mod handshake;
mod keyring;
mod log;
mod memory;
mod migration;
mod probe;
mod receive;
mod receive_run;
mod stats;
mod timeout;
mod timers;
mod tls;
mod transmit;
mod version;
mod zero_rtt;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rustls::pki_types::ServerName;
use squall_protect::initial::FirstKeys;
use squall_wire::{
    ConnectionId, Direction, Path, PreferredAddress, Side, StreamId, TransportParameters,
};

use crate::config::{AckFrequencyConfig, TransportConfig};
use crate::datagram::Datagrams;
use crate::error::{ReadError, WriteError};
use crate::event::{EndpointEvent, Event};
use crate::path::cid::{IdSource, LocalIds, RemoteIds};
use crate::path::ecn::EcnTotals;
use crate::path::mtu::Mtu;
use crate::path::spin::Spin;
use crate::path::{PathState, Paths};
use crate::qlog::Qlog;
use crate::recovery::loss::Lost;
use crate::space::received::AckPolicy;
use crate::space::{LevelKeys, Space, SpaceId};
use crate::stream::chunk_pool::ChunkPool;
use crate::stream::{Priority, Streams};
use crate::time::Time;
use crate::token::TokenKey;
use close::CloseFrame;
use early::EarlyPackets;
use keyring::KeyRing;
pub use migration::Move;
pub use stats::Stats;
use timers::Timers;
use tls::Tls;
use version::Restart;

/// Where the connection stands (RFC 9000 §7, §10).
#[derive(Debug)]
enum State {
    /// Until TLS is done.
    Handshaking,
    /// TLS is done.
    Established,
    /// A CONNECTION_CLOSE of ours answers whatever still comes (RFC 9000 §10.2.1).
    Closing(CloseFrame),
    /// The peer has closed: nothing is sent any more (RFC 9000 §10.2.2).
    Draining,
    /// Nothing is left to do; the owner may forget the connection.
    Drained,
}

/// What the peer's transport parameters say beside what streams and ids have taken.
#[derive(Clone, Copy, Debug)]
struct PeerParameters {
    ack_delay_exponent: u32,
    max_ack_delay: std::time::Duration,
    /// How short a delay it can be asked for; `None`: it cannot be asked (draft-ietf-quic-ack-frequency §3).
    min_ack_delay: Option<std::time::Duration>,
    /// The largest DATAGRAM frame that it takes; 0 is none (RFC 9221 §3).
    max_datagram_frame: u64,
    /// Whether it takes packets with any value of the fixed bit (RFC 9287 §3).
    greased: bool,
    /// Whether it takes RESET_STREAM_AT.
    reset_stream_at: bool,
    /// Whether it forbids this end to move (RFC 9000 §18.2, disable_active_migration).
    forbids_migration: bool,
}

/// What this end asks of the peer's acknowledgements (draft-ietf-quic-ack-frequency §4).
#[derive(Clone, Copy, Debug)]
struct AckRequest {
    /// Requests made so far.
    count: u64,
    due: bool,
    /// What is asked, now or last.
    wanted: AckFrequencyConfig,
}

impl Default for AckRequest {
    /// What RFC 9000 §13.2 says is what nobody has to ask for.
    fn default() -> Self {
        Self {
            count: 0,
            due: false,
            wanted: AckFrequencyConfig {
                ack_eliciting_threshold: 1,
                max_ack_delay: Duration::ZERO,
                reordering_threshold: 3,
            },
        }
    }
}

/// What only a client knows at the beginning.
pub(crate) struct Opening {
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) server_name: ServerName<'static>,
    /// From an earlier connection (RFC 9000 §8.1.3); empty if there is none.
    pub(crate) token: Vec<u8>,
}

/// What only a server knows at the beginning.
pub(crate) struct Accepted {
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// The destination of the client's very first packet.
    pub(crate) original_dcid: ConnectionId,
    /// The source of the Retry that the client followed.
    pub(crate) retry_scid: Option<ConnectionId>,
    /// Whether a token has shown that the client's address is its own.
    pub(crate) validated: bool,
    /// The keys that its first Initial was opened with.
    pub(crate) keys: Option<Box<FirstKeys>>,
}

/// What depends on the side.
pub(crate) enum Role {
    Client(Opening),
    Server(Accepted),
}

/// How a connection begins: what the endpoint knows.
pub(crate) struct Start {
    pub(crate) role: Role,
    pub(crate) config: Arc<TransportConfig>,
    /// Of the client's first packet.
    pub(crate) version: u32,
    pub(crate) path: Path,
    /// The id that this end has chosen for itself.
    pub(crate) local_id: ConnectionId,
    /// The id of the peer; for a client the one that it made up.
    pub(crate) remote_id: ConnectionId,
    /// What the Initial keys are made from: the destination of the client's first packet, or of the first behind a Retry.
    pub(crate) initial_dcid: ConnectionId,
    pub(crate) ids: Arc<IdSource>,
    pub(crate) tokens: Arc<TokenKey>,
    pub(crate) rng: StdRng,
    /// A reserved transport parameter: its id and length.
    pub(crate) grease: (u64, u8),
}

/// A QUIC connection in either role, free of I/O, clock and locks.
///
/// After `receive`, `on_timeout` or any other method, the owner polls the events, calls `transmit`
/// until it returns nothing, and reads `next_timeout` once.
pub struct Connection {
    side: Side,
    config: Arc<TransportConfig>,
    version: u32,
    /// That of the client's first packet (RFC 9368 §1.2), or of its first behind a Version Negotiation packet.
    original_version: u32,
    /// A server has changed the version and has sent nothing in the new one yet.
    announces_version: bool,
    state: State,
    tls: Tls,
    spaces: [Space; 3],
    ring: Option<KeyRing>,
    streams: Streams,
    path: PathState,
    local_ids: LocalIds,
    remote_ids: RemoteIds,
    ids: Arc<IdSource>,
    tokens: Arc<TokenKey>,
    rng: StdRng,
    /// Destination of the client's first packet, to be confirmed by the server (RFC 9000 §7.3).
    original_dcid: ConnectionId,
    initial_dcid: ConnectionId,
    /// Servers: Initial keys of the original version, for a client that does not know yet that another was chosen.
    other_initial: Option<Box<LevelKeys>>,
    /// Clients, until the server's first packet: what it takes to begin anew in another version.
    restart: Option<Box<Restart>>,
    /// Clients that send early data: what they remember of the server, until it has answered.
    remembered: Option<Box<TransportParameters>>,
    /// Clients: whether a Version Negotiation packet made them begin anew.
    negotiated: bool,
    /// Source of the Retry that the client followed.
    retry_scid: Option<ConnectionId>,
    /// Source of the peer's first packet, once there was one.
    peer_scid: Option<ConnectionId>,
    /// The token for Initial packets.
    token: Vec<u8>,
    peer: PeerParameters,
    /// When acknowledgements of 1-RTT packets are due.
    ack_policy: AckPolicy,
    ack_request: AckRequest,
    datagrams: Datagrams,
    peer_parameters_taken: bool,
    early: EarlyPackets,
    pto_count: u32,
    timers: Timers,
    /// Scratch of loss detection.
    lost: Lost,
    /// Whether the path's size is looked for when there is nothing else to send: not right after the handshake.
    seeks_size_idly: bool,
    /// Whether the next probe of a timeout is no larger than any path must carry (RFC 8899 §4.3).
    small_probe_due: bool,
    handshake_confirmed: bool,
    handshake_done_pending: bool,
    /// NEW_TOKEN frames to be sent.
    new_tokens_due: u8,
    /// Whether an ack-eliciting packet left since the last receipt (RFC 9000 §10.1).
    eliciting_since_receipt: bool,
    idle_timeout: std::time::Duration,
    ecn: EcnTotals,
    /// The paths beside the active one, once there is any.
    paths: Option<Box<Paths>>,
    ping_pending: bool,
    /// Clients: the address in use was left at once, for a path that is not validated yet (`Move::AtOnce`).
    left_at_once: bool,
    /// Clients: when the server last sent something that asks for an acknowledgement, and the probes sent since.
    server_heard: Time,
    quiet_probes: u32,
    /// When something was last received or sent that restarts the idle timer.
    last_active: Time,
    /// ACK-only packets since the last ack-eliciting one.
    ack_only_run: u32,
    /// The packet number that is left out next (RFC 9000 §21.4).
    skip_number: u64,
    forged: u64,
    endpoint_events: VecDeque<EndpointEvent>,
    /// Servers: the client's address that the endpoint knows to be the client's.
    told_address: Option<IpAddr>,
    stats: Stats,
    /// What happens, for who wants to read it.
    qlog: Option<Box<Qlog>>,
    /// What `tracing` shows of it belongs to this span; none unless somebody subscribes.
    span: tracing::Span,
}

impl Connection {
    /// A connection before its first packet.
    ///
    /// # Errors
    /// If rustls refuses a client's configuration.
    pub(crate) fn new(start: Start, now: Time) -> Result<Self, squall_tls::Error> {
        let Start {
            role,
            config,
            version,
            path,
            local_id,
            remote_id,
            initial_dcid,
            ids,
            tokens,
            mut rng,
            grease,
        } = start;
        let mut params = handshake::declared(&config, local_id);
        let mut preferred_id = None;
        let mut first_keys = None;
        let (side, tls, restart, token, original_dcid, validated) = match role {
            Role::Client(Opening {
                tls,
                server_name,
                token,
            }) => {
                let restart = Restart {
                    tls,
                    server_name,
                    params,
                    grease,
                };
                let tls = Tls::Running(Box::new(restart.session(version, &config)?));
                let restart = Some(Box::new(restart));
                (Side::Client, tls, restart, token, initial_dcid, true)
            }
            Role::Server(accepted) => {
                params.original_destination_connection_id = Some(accepted.original_dcid);
                params.retry_source_connection_id = accepted.retry_scid;
                params.stateless_reset_token = Some(ids.reset_token(local_id.as_slice()));
                if config.preferred_ipv4.is_some() || config.preferred_ipv6.is_some() {
                    let id = ids.make(&mut rng);
                    preferred_id = Some(id);
                    params.preferred_address = Some(PreferredAddress {
                        ipv4: config.preferred_ipv4,
                        ipv6: config.preferred_ipv6,
                        connection_id: id,
                        stateless_reset_token: ids.reset_token(id.as_slice()),
                    });
                }
                first_keys = accepted.keys;
                let tls = Tls::waiting(accepted.tls, params, grease);
                let (original, validated) = (accepted.original_dcid, accepted.validated);
                (Side::Server, tls, None, Vec::new(), original, validated)
            }
        };
        let mtu = Mtu::new(config.max_udp_payload);
        let mut path = PathState::new(path, 0, side == Side::Server, mtu, &config);
        path.validated = validated;
        path.spin = Spin::draw(config.spin_bit, &mut rng);
        let mut connection = Self {
            side,
            version,
            original_version: version,
            announces_version: false,
            state: State::Handshaking,
            tls,
            spaces: Default::default(),
            ring: None,
            streams: Streams::new(side, &config),
            local_ids: LocalIds::new(local_id),
            remote_ids: RemoteIds::new(remote_id),
            ids,
            tokens,
            rng,
            original_dcid,
            initial_dcid,
            other_initial: None,
            restart,
            remembered: None,
            negotiated: false,
            retry_scid: None,
            peer_scid: (side == Side::Server).then_some(remote_id),
            token,
            peer: PeerParameters {
                ack_delay_exponent: 3,
                max_ack_delay: std::time::Duration::from_millis(25),
                min_ack_delay: None,
                max_datagram_frame: 0,
                greased: false,
                reset_stream_at: false,
                forbids_migration: false,
            },
            ack_policy: AckPolicy::new(config.max_ack_delay),
            ack_request: AckRequest::default(),
            datagrams: Datagrams::default(),
            peer_parameters_taken: false,
            early: EarlyPackets::default(),
            pto_count: 0,
            timers: Timers::default(),
            lost: Lost::default(),
            seeks_size_idly: false,
            small_probe_due: false,
            handshake_confirmed: false,
            handshake_done_pending: false,
            new_tokens_due: 0,
            eliciting_since_receipt: false,
            idle_timeout: config.max_idle_timeout,
            ecn: EcnTotals::default(),
            paths: None,
            ping_pending: false,
            left_at_once: false,
            server_heard: now,
            quiet_probes: 0,
            last_active: now,
            ack_only_run: 0,
            skip_number: 0,
            forged: 0,
            endpoint_events: VecDeque::new(),
            told_address: validated.then(|| path.path.remote.ip()),
            stats: Stats::default(),
            qlog: None,
            span: tracing::debug_span!("connection", ?side, peer = %path.path.remote, id = ?original_dcid),
            path,
            config,
        };
        if let Some(id) = preferred_id {
            connection.local_ids.issue_preferred(id);
            let event = EndpointEvent::AddId(id);
            connection.endpoint_events.push_back(event);
        }
        connection.choose_skip_number();
        match first_keys {
            Some(keys) => connection.space(SpaceId::Initial).keys = Some(keys.into_pair().into()),
            None => connection.install_initial_keys(),
        }
        connection.timers.set(
            timers::Timer::Handshake,
            Some(now + connection.config.handshake_timeout),
        );
        connection.restart_idle_timer(now);
        if side == Side::Client {
            connection.offer_early_data();
            connection.advance_handshake(now);
        }
        Ok(connection)
    }

    fn space(&mut self, id: SpaceId) -> &mut Space {
        &mut self.spaces[id as usize]
    }

    // ---- streams ----------------------------------------------------------------------------------------------------

    /// Opens a stream. Returns `None` at the peer's stream limit; `Event::StreamsAvailable` follows
    /// when the limit rises.
    pub fn open(&mut self, direction: Direction) -> Option<StreamId> {
        if self.is_closed() {
            None
        } else {
            self.streams.open(direction)
        }
    }

    /// The next stream opened by the peer, even if the peer has closed it since.
    pub fn accept(&mut self, direction: Direction) -> Option<StreamId> {
        self.streams.accept(direction)
    }

    /// Swaps the pool from which received stream data takes its memory. An owner of many
    /// connections has one pool, lends it for the duration of a call of [`receive`](Self::receive),
    /// and absorbs what readers return in between; otherwise every connection keeps the most that
    /// its streams ever needed.
    pub const fn swap_chunks(&mut self, pool: &mut ChunkPool) {
        self.streams.swap_chunks(pool);
    }

    /// The chunks that readers have returned since the last swap, if any.
    pub fn spare_chunks(&mut self) -> Option<&mut ChunkPool> {
        self.streams.spare_chunks()
    }

    /// Takes from the front of `data` what the peer's credit for the stream covers and the send buffer has room for: at
    /// least one byte, or an error. The bytes are kept as they are and read from where they lie when packets are sealed.
    /// Small writes are copied instead, which costs less: up to 256 bytes behind data that waits, up to 64 on their own.
    ///
    /// # Errors
    /// `Blocked` when there is no credit or the buffer is full (`Event::Writable` follows), `Stopped` after STOP_SENDING,
    /// `Closed`.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.streams.write(id, data)
    }

    /// As [`write`](Self::write), but copies the bytes that it takes from the front of `data`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_copy(&mut self, id: StreamId, data: &[u8]) -> Result<usize, WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.streams.write_copy(id, data)
    }

    /// Ends a stream after the data written so far (RFC 9000 §3.1). `Event::Finished` follows when
    /// the peer has acknowledged everything.
    ///
    /// # Errors
    /// `Stopped`, `Closed`.
    pub fn finish(&mut self, id: StreamId) -> Result<(), WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.streams.finish(id)
    }

    /// Resets the sending part of a stream: sends RESET_STREAM with the application's `code`, below
    /// 2^62 (RFC 9000 §19.4).
    ///
    /// # Errors
    /// `Closed` if nothing is left to reset.
    pub fn reset(&mut self, id: StreamId, code: u64) -> Result<(), WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.streams.reset(id, code.min(squall_wire::varint::MAX))
    }

    /// Resets a stream whose owner dropped it without ending it: the written data may be an
    /// incomplete message, which must not look complete to the peer. `code` defaults to
    /// [`TransportConfig::reset_on_drop_code`]. Returns how many streams of the connection have
    /// ended this way, or `None` if there was nothing left to reset.
    pub fn reset_dropped(&mut self, id: StreamId, code: Option<u64>) -> Option<u64> {
        self.reset(id, code.unwrap_or(self.config.reset_on_drop_code))
            .ok()?;
        self.stats.streams_reset_on_drop += 1;
        Some(self.stats.streams_reset_on_drop)
    }

    /// Resets a stream except for its first `reliable` bytes: sends RESET_STREAM_AT with the
    /// application's `code`, below 2^62, and the peer still receives those bytes
    /// (draft-ietf-quic-reliable-stream-reset). A peer without support for the frame receives
    /// RESET_STREAM once it has acknowledged them. May be repeated with a smaller `reliable`.
    ///
    /// # Errors
    /// `Closed` if nothing is left to reset.
    pub fn reset_at(&mut self, id: StreamId, code: u64, reliable: u64) -> Result<(), WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        let code = code.min(squall_wire::varint::MAX);
        self.streams.reset_at(id, code, reliable)
    }

    /// The stream's priority among the streams that have data to send; `None` if the stream no
    /// longer sends anything.
    pub fn priority(&mut self, id: StreamId) -> Option<Priority> {
        self.streams.priority(id)
    }

    /// Changes the stream's priority, from the next packet on.
    ///
    /// # Errors
    /// `Closed` if the stream no longer sends anything.
    pub fn set_priority(&mut self, id: StreamId, priority: Priority) -> Result<(), WriteError> {
        let known = self.streams.set_priority(id, priority);
        known.then_some(()).ok_or(WriteError::Closed)
    }

    /// The next bytes in order, at most `max`, without a copy; `None` at the end of the stream.
    /// Reading gives the peer credit to send more.
    ///
    /// # Errors
    /// `Blocked` if no data is available (`Event::Readable` follows), `Reset`, `Closed`.
    pub fn read(&mut self, id: StreamId, max: usize) -> Result<Option<Bytes>, ReadError> {
        self.streams.read(id, max)
    }

    /// Stops reading: sends STOP_SENDING with the application's `code` (RFC 9000 §19.5).
    ///
    /// # Errors
    /// `Closed` if there is nothing to stop.
    pub fn stop_sending(&mut self, id: StreamId, code: u64) -> Result<(), ReadError> {
        if self.is_closed() {
            return Err(ReadError::Closed);
        }
        self.streams
            .stop_sending(id, code.min(squall_wire::varint::MAX))
    }

    /// Requests an acknowledgement from the peer: sends a PING in the next packet (RFC 9000 §19.2).
    pub fn ping(&mut self) {
        self.ping_pending = !self.is_closed();
    }

    // ---- what there is to know --------------------------------------------------------------------------------------

    /// The next event for the application.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.streams.events.pop_front()
    }

    /// The next event for the endpoint; the owner passes it to `Endpoint::apply`.
    pub fn poll_endpoint_event(&mut self) -> Option<EndpointEvent> {
        self.endpoint_events.pop_front()
    }

    /// Whether a finished stream has data, or its end, that the peer has not acknowledged: closing
    /// now would lose it. A field read. Call it after polling all events, because a stream may end
    /// without an event of its own.
    #[must_use]
    pub const fn is_delivering(&self) -> bool {
        self.streams.is_delivering()
    }

    /// The connection id to which the client's first packet was addressed; both ends' logs identify
    /// the connection by it.
    #[must_use]
    pub const fn original_destination_id(&self) -> ConnectionId {
        self.original_dcid
    }

    /// Whether a method left something to transmit. Cheap; on `true`, call `transmit`.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        match &self.state {
            State::Closing(close) => close.due,
            State::Draining | State::Drained => false,
            State::Handshaking | State::Established => {
                self.ping_pending || self.streams.wants_to_send() || self.datagrams.wants_to_send()
            }
        }
    }

    /// When `on_timeout` must be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Whether the TLS handshake is still in progress.
    #[must_use]
    pub const fn is_handshaking(&self) -> bool {
        matches!(self.state, State::Handshaking)
    }

    /// Whether the connection has ended or is closing.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(
            self.state,
            State::Closing(_) | State::Draining | State::Drained
        )
    }

    /// Whether the connection is finished: the owner may call `Endpoint::remove` and drop it.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        matches!(self.state, State::Drained)
    }

    /// Client or server.
    #[must_use]
    pub const fn side(&self) -> Side {
        self.side
    }

    /// The addresses in use.
    #[must_use]
    pub const fn path(&self) -> Path {
        self.path.path
    }

    /// Number of paths that the connection has state for: the active one, the previous one, and
    /// those being probed. At most 4.
    #[must_use]
    pub fn paths(&self) -> usize {
        1 + self.paths.as_ref().map_or(0, |p| p.others.len())
    }

    /// The QUIC version in use.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Counters since the connection began.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            rtt: self.path.flow.rtt.smoothed(),
            congestion_window: self.path.flow.congestion.window(),
            bytes_in_flight: self.path.flow.bytes_in_flight,
            max_udp_payload: self.path.mtu.current(),
            ecn_capable: self.path.flow.ecn.is_capable(),
            key_updates: self.ring.as_ref().map_or(0, KeyRing::updates),
            open_streams: self.streams.count(),
            blocked_by_unread_data: self.streams.blocked_by_unread_data(),
            ..self.stats
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("side", &self.side)
            .field("path", &self.path.path)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
