//! All streams of a connection (RFC 9000 §2 to §4).
//!
//! Received frames enter through `on_*`, the application through `open` to `stop_sending`;
//! `next_range` and `write_control` tell the send path what to put into packets; `on_acked` and
//! `on_lost` settle the contents of packets. A stream exists from its first frame or use until both
//! its parts are done.

mod application;
mod arrival;
pub(crate) mod chunk_pool;
mod control;
mod departure;
mod ended;
pub(crate) mod flow;
mod queue;
pub(crate) mod reassembly;
pub(crate) mod recv;
mod schedule;
mod segment;
pub(crate) mod send;
pub(crate) mod send_buffer;
mod unordered;

use std::collections::VecDeque;
use std::time::Duration;

use squall_protect::prefetch;
use squall_wire::{Direction, Side, StreamId, TransportErrorCode, TransportParameters};

use crate::config::{MAX_STREAMS, TransportConfig};
use crate::event::Event;
use crate::stream_map::StreamMap;
pub use application::{Accepted, Message};
use chunk_pool::ChunkPool;
use ended::EndedStreams;
pub use flow::ReachedLimit;
use flow::{ReceiveCredit, SendCredit};
pub use queue::Priority;
use queue::SendQueue;
use recv::RecvStream;
use send::{SendState, SendStream};

/// The cost of pieces after gaps allowed in addition to the connection's receive window, in bytes.
const PIECES_SLACK: u64 = 128 * 1024;

/// Ended streams whose memory is kept for new ones until the connection is quiet.
const SPARE_STREAMS: usize = 64;

/// Streams of a connection that are prefetched before it receives.
const PREFETCHED_STREAMS: usize = 2;

/// One stream: up to two parts.
#[derive(Debug)]
struct Stream {
    id: StreamId,
    send: Option<SendStream>,
    recv: Option<RecvStream>,
    /// Whether the application knows the stream: it opened or accepted it.
    known: bool,
    /// Whether the application has marked it as background.
    background: bool,
}

impl Stream {
    /// The stream has ended: its contents are freed, except for memory that a new one can use.
    fn drain(&mut self) {
        if let Some(send) = &mut self.send {
            send.buffer.recycle();
        }
        if let Some(recv) = &mut self.recv {
            recv.data.recycle();
        }
    }

    /// Becomes a new stream in the place of an ended one that was drained. `send` is the peer's
    /// initial credit, `recv` the initial and the largest window.
    fn renew(&mut self, id: StreamId, known: bool, send: Option<u64>, recv: Option<(u64, u64)>) {
        (self.id, self.known, self.background) = (id, known, false);
        match (&mut self.send, send) {
            (Some(part), Some(limit)) => part.renew(limit),
            (part, limit) => *part = limit.map(SendStream::new),
        }
        match (&mut self.recv, recv) {
            (Some(part), Some((window, most))) => part.renew(window, most),
            (part, limits) => *part = limits.map(|(window, most)| RecvStream::new(window, most)),
        }
    }
}

/// Streams that one side may open in one direction.
#[derive(Clone, Debug, Default)]
struct Opening {
    /// Index of the next stream that we open, and the peer's limit.
    local_next: u64,
    local_limit: u64,
    local_refused: bool,
    /// Whether to report to the peer that its limit blocks us (RFC 9000 §4.6).
    blocked_pending: bool,
    /// Streams that the peer has opened, how many of them were accepted, and the limit last
    /// advertised.
    peer_opened: u64,
    peer_accepted: u64,
    peer_limit: u64,
    peer_window: u64,
    /// The highest limit that has blocked the peer, as far as it has reported.
    peer_blocked_at: u64,
    /// Indexes of the peer's streams that have ended.
    peer_ended: EndedStreams,
    peer_ended_count: u64,
    limit_pending: bool,
}

impl Opening {
    /// Allows the peer to open new streams in place of ended ones, once those are half of the
    /// window, or more than the peer may still open: it may have the whole window open at a time.
    fn raise_limit(&mut self) {
        let raised = (self.peer_window + self.peer_ended_count).saturating_sub(self.peer_limit);
        let left = self.peer_limit - self.peer_opened.max(self.peer_blocked_at);
        self.limit_pending |=
            raised > 0 && (raised > left || raised >= self.peer_window.div_ceil(2));
    }

    /// The peer reports that `limit` blocks it (RFC 9000 §19.14). It may have opened streams on
    /// which it has sent nothing.
    fn on_peer_blocked(&mut self, limit: u64) {
        self.peer_blocked_at = self.peer_blocked_at.max(limit.min(self.peer_limit));
        self.raise_limit();
    }
}

/// Limits of a stream's two parts, from configuration and the peer's transport parameters.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    recv_initial: u64,
    recv_max: u64,
    send_bidi_local: u64,
    send_bidi_remote: u64,
    send_uni: u64,
    /// Whether the peer supports RESET_STREAM_AT.
    partial_resets: bool,
    stream_send_window: u64,
    send_window: u64,
}

/// All streams of a connection.
pub(crate) struct Streams {
    side: Side,
    table: StreamMap<u32>,
    slots: Vec<Option<Box<Stream>>>,
    free: Vec<u32>,
    /// Ended streams, kept for their memory.
    #[expect(clippy::vec_box, reason = "they come from the slots and go back there")]
    spare: Vec<Box<Stream>>,
    /// The stream of the previous look-up: consecutive frames mostly belong to one.
    last: Option<(StreamId, u32)>,
    opening: [Opening; 2],
    limits: Limits,
    send_credit: SendCredit,
    recv_credit: ReceiveCredit,
    max_data_pending: bool,
    /// The connection's limit at which unread data was last seen to fill the window, and how often
    /// it has.
    full_at: Option<u64>,
    blocked_by_unread_data: u64,
    /// Streams with data to send.
    queue: SendQueue,
    /// Streams held back only by the connection's credit; queued again, a few at a time, when it
    /// rises.
    starved: SendQueue,
    /// The connection's limit that was last reported as blocking, and whether to report it now.
    blocked_at: Option<u64>,
    blocked_pending: bool,
    /// Whether the peer may allow another stream once it gets an acknowledgement.
    pub(crate) room_awaits_ack: bool,
    /// Pieces of all streams that wait for missing data (`SECURITY.md` row 5).
    fragments: usize,
    /// The total cost that unread data may have, in bytes: the receive window and some slack.
    pieces_budget: u64,
    /// Streams with a control frame to send.
    control: VecDeque<StreamId>,
    /// The cost of all send buffers, in bytes.
    buffered: u64,
    /// The part of it for streams that the peer does not allow yet: it must not keep allowed
    /// streams from ending, since only that raises the peer's limit.
    withheld: u64,
    /// Writers refused because of the connection's limit.
    blocked_writers: Vec<StreamId>,
    /// Existing streams that are background.
    background: usize,
    /// Streams that were finished but are not yet delivered: all of them, and those that were
    /// finished after the application began to close the connection.
    delivering: usize,
    delivering_late: usize,
    /// Whether the application has begun to close the connection.
    closing: bool,
    /// Memory for received data: of streams, and of CRYPTO frames.
    pub(crate) pool: ChunkPool,
    /// Events for the application, in order.
    pub(crate) events: VecDeque<Event>,
}

const fn index(direction: Direction) -> usize {
    match direction {
        Direction::Bidirectional => 0,
        Direction::Unidirectional => 1,
    }
}

impl Streams {
    /// Prefetches the index of the streams.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.slots.first().inspect(|first| prefetch(*first));
        self.spare.last().inspect(|last| prefetch(*last));
        self.queue.prefetch();
    }

    /// Prefetches a few of the streams themselves, and the memory of the next one.
    #[inline]
    pub(crate) fn prefetch_each(&self) {
        let some = self.slots.iter().take(PREFETCHED_STREAMS);
        for stream in some.flatten().chain(self.spare.last()) {
            prefetch(&**stream);
        }
    }

    /// No streams yet; the peer's limits are set with `set_peer_parameters`.
    #[must_use]
    pub(crate) fn new(side: Side, config: &TransportConfig) -> Self {
        let opening = |limit| Opening {
            peer_limit: limit,
            peer_window: limit,
            ..Opening::default()
        };
        Self {
            side,
            table: StreamMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            last: None,
            opening: [
                opening(config.max_concurrent_bidi_streams),
                opening(config.max_concurrent_uni_streams),
            ],
            limits: Limits {
                recv_initial: config.initial_stream_window,
                recv_max: config.stream_receive_window,
                stream_send_window: config.stream_send_window,
                send_window: config.send_window,
                ..Limits::default()
            },
            send_credit: SendCredit::default(),
            recv_credit: ReceiveCredit::new(config.initial_window, config.receive_window),
            max_data_pending: false,
            full_at: None,
            blocked_by_unread_data: 0,
            queue: SendQueue::default(),
            starved: SendQueue::default(),
            blocked_at: None,
            blocked_pending: false,
            room_awaits_ack: false,
            fragments: 0,
            pieces_budget: config.receive_window.saturating_add(PIECES_SLACK),
            control: VecDeque::new(),
            buffered: 0,
            withheld: 0,
            blocked_writers: Vec::new(),
            background: 0,
            delivering: 0,
            delivering_late: 0,
            closing: false,
            pool: ChunkPool::default(),
            events: VecDeque::new(),
        }
    }

    /// Changes how many streams the peer may have open; streams already allowed remain so.
    pub(crate) fn set_max_concurrent(&mut self, direction: Direction, limit: u64) {
        let opening = &mut self.opening[index(direction)];
        opening.peer_window = limit.min(MAX_STREAMS);
        opening.limit_pending |=
            opening.peer_ended_count + opening.peer_window > opening.peer_limit;
    }

    /// The peer reports that `limit` keeps it from opening streams.
    pub(crate) fn on_peer_blocked(&mut self, direction: Direction, limit: u64) {
        self.opening[index(direction)].on_peer_blocked(limit);
    }

    /// Changes how far the connection's receive window may grow.
    pub(crate) fn set_receive_window(&mut self, bytes: u64) {
        self.recv_credit.set_max_window(bytes);
        // After a window of zero, all credit may be used up with nothing left to read.
        self.max_data_pending |= bytes > 0 && self.recv_credit.wants_update();
        // The peer may still use credit granted before.
        self.pieces_budget = (self.pieces_budget).max(bytes.saturating_add(PIECES_SLACK));
    }

    /// Changes the maximum cost of all send buffers.
    pub(crate) fn set_send_window(&mut self, bytes: u64) {
        self.limits.send_window = bytes;
        self.wake_writers();
    }

    /// None of the early data has arrived (RFC 9001 §4.6.2): all of it is sent again, within the
    /// server's current limits. Streams beyond those wait for the limit to rise.
    pub(crate) fn rewind(&mut self, params: &TransportParameters) {
        self.limits.send_bidi_remote = params.initial_max_stream_data_bidi_remote;
        self.limits.send_uni = params.initial_max_stream_data_uni;
        self.opening[0].local_limit = params.initial_max_streams_bidi;
        self.opening[1].local_limit = params.initial_max_streams_uni;
        self.send_credit = SendCredit::new(params.initial_max_data);
        (self.blocked_at, self.blocked_pending) = (None, false);
        self.starved.clear();
        self.queue = SendQueue::default();
        for slot in 0..self.slots.len() as u32 {
            let limits = self.limits;
            let Some(stream) = self.get(slot) else {
                continue;
            };
            let id = stream.id;
            if let Some(send) = stream.send.as_mut() {
                let bidi = id.direction() == Direction::Bidirectional;
                send.rewind(if bidi {
                    limits.send_bidi_remote
                } else {
                    limits.send_uni
                });
                (send.starved, send.queued) = (false, false);
            }
            if let Some(recv) = stream.recv.as_mut() {
                recv.stop = recv.stop.map(|(code, _)| (code, true));
                recv.credit_pending = true;
            }
            self.control.push_back(id);
            self.enqueue(slot);
            if self.is_withheld(id) {
                self.withheld += self.held(slot);
            }
        }
        self.wake_writers();
    }

    /// The cost of a stream's send buffer, in bytes.
    fn held(&mut self, slot: u32) -> u64 {
        let send = self.get(slot).and_then(|s| s.send.as_ref());
        send.map_or(0, |s| s.buffer.cost())
    }

    /// Bytes that count against the connection's send window.
    fn charged(&self) -> u64 {
        self.buffered.saturating_sub(self.withheld)
    }

    /// Whether the peer does not allow a stream of ours yet: it was opened with early data, and the
    /// limit is now lower.
    fn is_withheld(&self, id: StreamId) -> bool {
        id.initiator() == self.side && id.index() >= self.opening[index(id.direction())].local_limit
    }

    /// The limit has risen: the stream's data and control frames are queued again.
    fn release_withheld(&mut self, id: StreamId) {
        if let Some(slot) = self.find(id) {
            self.control.push_back(id);
            self.enqueue(slot);
            self.withheld = self.withheld.saturating_sub(self.held(slot));
            if let Some(send) = self.get(slot).and_then(|s| s.send.as_mut())
                && std::mem::take(&mut send.writer_waits)
            {
                self.events.push_back(Event::Writable(id));
            }
        }
    }

    /// Records that data of a stream arrived in a 0-RTT packet.
    pub(crate) fn note_early(&mut self, id: StreamId) {
        if let Some(slot) = self.find(id)
            && let Some(recv) = self.get(slot).and_then(|s| s.recv.as_mut())
        {
            recv.early = true;
        }
    }

    /// Whether data of a stream arrived in 0-RTT packets.
    pub(crate) fn is_early(&self, id: StreamId) -> bool {
        (self.table.get(id))
            .and_then(|slot| self.slots.get(*slot as usize)?.as_ref()?.recv.as_ref())
            .is_some_and(|recv| recv.early)
    }

    /// Applies the peer's limits (RFC 9000 §18.2); streams already opened for early data get theirs
    /// now.
    pub(crate) fn set_peer_parameters(&mut self, params: &TransportParameters) {
        self.limits.send_bidi_local = params.initial_max_stream_data_bidi_local;
        self.limits.send_bidi_remote = params.initial_max_stream_data_bidi_remote;
        self.limits.send_uni = params.initial_max_stream_data_uni;
        self.limits.partial_resets = params.reset_stream_at;
        for slot in 0..self.slots.len() as u32 {
            let (limits, side) = (self.limits, self.side);
            let Some(stream) = self.get(slot) else {
                continue;
            };
            let ours = stream.id.initiator() == side;
            let limit = match (stream.id.direction(), ours) {
                (Direction::Unidirectional, _) => limits.send_uni,
                (Direction::Bidirectional, true) => limits.send_bidi_remote,
                (Direction::Bidirectional, false) => limits.send_bidi_local,
            };
            if stream.send.as_mut().is_some_and(|s| s.credit.raise(limit)) {
                self.enqueue(slot);
                self.wake_writer(slot);
            }
        }
        self.on_max_data(params.initial_max_data);
        self.on_max_streams(Direction::Bidirectional, params.initial_max_streams_bidi);
        self.on_max_streams(Direction::Unidirectional, params.initial_max_streams_uni);
    }

    #[inline]
    fn get(&mut self, slot: u32) -> Option<&mut Stream> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    #[inline]
    fn find(&mut self, id: StreamId) -> Option<u32> {
        if let Some((last, slot)) = self.last
            && last == id
        {
            return Some(slot);
        }
        let slot = *self.table.get(id)?;
        self.last = Some((id, slot));
        Some(slot)
    }

    fn create(&mut self, id: StreamId, known: bool) -> u32 {
        let ours = id.initiator() == self.side;
        let limits = &self.limits;
        let send = match (id.direction(), ours) {
            // The names are from the point of view of the peer that sent the parameter.
            (Direction::Bidirectional, true) => Some(limits.send_bidi_remote),
            (Direction::Bidirectional, false) => Some(limits.send_bidi_local),
            (Direction::Unidirectional, true) => Some(limits.send_uni),
            (Direction::Unidirectional, false) => None,
        };
        let recv = (id.direction() == Direction::Bidirectional || !ours)
            .then_some((limits.recv_initial, limits.recv_max));
        let mut stream = self.spare.pop().unwrap_or_else(|| {
            Box::new(Stream {
                id,
                send: None,
                recv: None,
                known,
                background: false,
            })
        });
        stream.renew(id, known, send, recv);
        let stream = Some(stream);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = stream;
                slot
            }
            None => {
                self.slots.push(stream);
                (self.slots.len() - 1) as u32
            }
        };
        self.table.insert(id, slot);
        self.last = Some((id, slot));
        slot
    }

    /// The stream named by a frame for its receiving part; `None` if it has ended (RFC 9000 §3.2).
    #[inline]
    fn find_receiving(&mut self, id: StreamId) -> Result<Option<u32>, TransportErrorCode> {
        if id.direction() == Direction::Unidirectional && id.initiator() == self.side {
            return Err(TransportErrorCode::STREAM_STATE_ERROR);
        }
        self.find_or_open(id)
    }

    #[inline]
    fn find_sending(&mut self, id: StreamId) -> Result<Option<u32>, TransportErrorCode> {
        if id.direction() == Direction::Unidirectional && id.initiator() != self.side {
            return Err(TransportErrorCode::STREAM_STATE_ERROR);
        }
        self.find_or_open(id)
    }

    #[inline]
    fn find_or_open(&mut self, id: StreamId) -> Result<Option<u32>, TransportErrorCode> {
        match self.find(id) {
            Some(slot) => Ok(Some(slot)),
            None => self.open_for_peer(id),
        }
    }

    /// A frame names a stream that does not exist: the peer opens it, or it has ended.
    fn open_for_peer(&mut self, id: StreamId) -> Result<Option<u32>, TransportErrorCode> {
        let opening = &mut self.opening[index(id.direction())];
        if id.initiator() == self.side {
            // RFC 9000 §19.8: a frame for a stream of ours that was never opened.
            return if id.index() < opening.local_next {
                Ok(None)
            } else {
                Err(TransportErrorCode::STREAM_STATE_ERROR)
            };
        }
        if id.index() >= opening.peer_limit {
            return Err(TransportErrorCode::STREAM_LIMIT_ERROR);
        }
        if id.index() >= opening.peer_opened {
            // RFC 9000 §3.2: opening a stream opens all lower-numbered ones of its type; they get
            // state when they are used.
            opening.peer_opened = id.index() + 1;
            opening.raise_limit();
            let event = Event::StreamOpened(id.direction());
            if self.events.back() != Some(&event) {
                self.events.push_back(event);
            }
        } else if opening.peer_ended.contains(id.index()) {
            return Ok(None);
        }
        let known = id.index() < self.opening[index(id.direction())].peer_accepted;
        Ok(Some(self.create(id, known)))
    }

    fn remove_if_done(&mut self, slot: u32) {
        let Some(stream) = self.get(slot) else { return };
        let cleared = (stream.recv.as_mut()).map_or(0, |recv| recv.data.take_cleared());
        let done = stream.known
            && stream.send.as_ref().is_none_or(SendStream::is_terminal)
            && stream.recv.as_ref().is_none_or(RecvStream::is_terminal);
        let left = (stream.recv.as_ref()).filter(|_| done);
        let dropped = cleared + left.map_or(0, |recv| recv.data.held());
        self.pool.settle(dropped);
        let Some(stream) = self.get(slot).filter(|_| done) else {
            return;
        };
        let (id, background) = (stream.id, stream.background);
        let pieces = stream.recv.as_ref().map_or(0, |r| r.data.pieces());
        self.fragments -= pieces;
        self.background -= usize::from(background);
        if let Some(mut stream) = self.slots[slot as usize].take()
            && self.spare.len() < SPARE_STREAMS
        {
            stream.drain();
            self.spare.push(stream);
        }
        self.table.remove_if(id, |_| true);
        self.last = None;
        self.free.push(slot);
        if id.initiator() != self.side {
            let opening = &mut self.opening[index(id.direction())];
            opening.peer_ended.insert(id.index());
            opening.peer_ended_count += 1;
            opening.raise_limit();
        }
    }

    /// Whether a finished stream has data, or its end, that is not acknowledged yet. Once the
    /// application is closing the connection, only streams finished before that count.
    pub(crate) const fn is_delivering(&self) -> bool {
        self.delivering > self.delivering_late
    }

    /// The application is about to close the connection, and waits for the streams that are
    /// finished now.
    pub(crate) fn prepare_to_close(&mut self) {
        self.closing = true;
        self.delivering_late = 0;
        for stream in self.slots.iter_mut().flatten() {
            if let Some(send) = &mut stream.send {
                send.late = false;
            }
        }
    }

    /// Counts a stream whose sending part has changed: whether it was delivering before, and
    /// whether it is now; `late`: whether it was finished after the application began to close the
    /// connection.
    #[inline]
    fn count_delivering(&mut self, before: bool, after: bool, late: bool) {
        let change = |count: usize| count + usize::from(after) - usize::from(before);
        self.delivering = change(self.delivering);
        if late {
            self.delivering_late = change(self.delivering_late);
        }
    }

    /// As if the peer had not announced support for RESET_STREAM_AT.
    #[cfg(test)]
    pub(crate) const fn without_partial_resets(&mut self) {
        self.limits.partial_resets = false;
    }

    /// The sending parts and the state kept over all of them, for tests that compare two histories.
    #[cfg(test)]
    pub(crate) fn departures(&self) -> String {
        let sending = self.slots.iter().flatten().filter_map(|s| s.send.as_ref());
        let delivering = sending.filter(|send| send.is_delivering()).count();
        assert_eq!(self.delivering, delivering, "the streams on their way");
        format!(
            "{:?} {:?} {} {} {:?} {:?} {:?}",
            self.slots,
            self.queue,
            self.buffered,
            self.withheld,
            self.control,
            self.blocked_writers,
            self.events
        )
    }

    /// Exchanges the pool of chunks.
    pub(crate) const fn swap_chunks(&mut self, pool: &mut ChunkPool) {
        self.pool.swap(pool);
    }

    /// The connection's own pool, if it holds chunks.
    #[inline]
    pub(crate) fn spare_chunks(&mut self) -> Option<&mut ChunkPool> {
        Some(&mut self.pool).filter(|pool| !pool.is_empty())
    }

    /// Frees unused memory, as the connection is quiet.
    pub(crate) fn shed(&mut self) {
        self.pool.clear();
        self.control.shrink_to_fit();
        self.events.shrink_to_fit();
        self.blocked_writers.shrink_to_fit();
        self.starved.shed();
        self.table.shrink_to_fit();
        self.queue.shed();
        self.spare = Vec::new();
        if self.table.is_empty() {
            self.slots = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Number of existing streams.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.table.len()
    }

    /// Nothing more is sent. Data that has arrived can still be read: the peer may close right
    /// after its last byte.
    pub(crate) fn end_sending(&mut self) {
        for send in self
            .slots
            .iter_mut()
            .flatten()
            .filter_map(|s| s.send.as_mut())
        {
            send.buffer.clear();
        }
        (self.buffered, self.withheld) = (0, 0);
        self.queue.clear();
        self.starved.clear();
        self.blocked_pending = false;
        self.control = VecDeque::new();
        self.blocked_writers = Vec::new();
        self.max_data_pending = false;
    }

    /// Roughly the bytes of memory that all streams take: written but unacknowledged data, the
    /// chunks that hold received data, pieces after gaps, and the streams' own state. Costs a few
    /// additions.
    pub(crate) fn memory(&self) -> usize {
        let streams = self.slots.len() - self.free.len();
        let places = self.slots.capacity() * size_of::<Option<Box<Stream>>>() + self.table.memory();
        usize::try_from(self.buffered).unwrap_or(usize::MAX)
            + self.pool.memory()
            + self.fragments * arrival::PIECE
            + (streams + self.spare.len()) * size_of::<Stream>()
            + places
            + self.events.capacity() * size_of::<Event>()
    }

    /// Frees all stream memory; the connection has ended.
    pub(crate) fn clear(&mut self) {
        self.table = StreamMap::default();
        self.slots = Vec::new();
        self.free = Vec::new();
        self.spare = Vec::new();
        self.last = None;
        (self.fragments, self.background) = (0, 0);
        (self.delivering, self.delivering_late) = (0, 0);
        self.queue.clear();
        self.starved.clear();
        self.control = VecDeque::new();
        self.blocked_writers = Vec::new();
        self.pool = ChunkPool::default();
    }

    fn rtt_for_credit(rtt: Duration) -> Duration {
        // A path without a sample yet would make every window look quickly used.
        rtt.min(Duration::from_millis(500))
    }
}
