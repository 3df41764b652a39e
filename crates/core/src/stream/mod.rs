//! All streams of a connection (RFC 9000 §2 to §4).
//!
//! Received frames come in through `on_*`, the application through `open` to `stop_sending`; `next_range` and
//! `write_control` say what the send path puts into packets; `on_acked` and `on_lost` settle what packets carried. A
//! stream exists from its first frame or use until both its parts are done.

mod control;
pub(crate) mod flow;
pub(crate) mod reassembly;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod send_buffer;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use squall_wire::{Direction, Side, StreamId, TransportErrorCode, TransportParameters, frame};

use crate::config::TransportConfig;
use crate::error::{ReadError, WriteError};
use crate::event::Event;
use crate::range_set::RangeSet;
use flow::{ReceiveCredit, SendCredit};
use reassembly::ChunkPool;
use recv::{Received, RecvStream};
use send::{SendState, SendStream, StreamRange};

/// One stream: up to two parts.
#[derive(Debug)]
struct Stream {
    id: StreamId,
    send: Option<SendStream>,
    recv: Option<RecvStream>,
    /// Whether the application knows the stream: it opened or accepted it.
    known: bool,
}

/// Streams that one side may open in one direction.
#[derive(Clone, Debug, Default)]
struct Opening {
    /// Index of the next stream that we open, and the peer's limit.
    local_next: u64,
    local_limit: u64,
    local_refused: bool,
    /// Streams that the peer has opened, of these accepted, and the limit that it was told.
    peer_opened: u64,
    peer_accepted: u64,
    peer_limit: u64,
    peer_window: u64,
    /// Indexes of the peer's streams that have ended.
    peer_ended: RangeSet,
    peer_ended_count: u64,
    limit_pending: bool,
}

/// Limits of a stream's two parts, from configuration and the peer's transport parameters.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    recv_initial: u64,
    recv_max: u64,
    send_bidi_local: u64,
    send_bidi_remote: u64,
    send_uni: u64,
    stream_send_window: u64,
    send_window: u64,
}

/// All streams of a connection.
pub(crate) struct Streams {
    side: Side,
    table: HashMap<StreamId, u32>,
    slots: Vec<Option<Box<Stream>>>,
    free: Vec<u32>,
    /// The stream of the previous look-up: consecutive frames mostly belong to one.
    last: Option<(StreamId, u32)>,
    opening: [Opening; 2],
    limits: Limits,
    send_credit: SendCredit,
    recv_credit: ReceiveCredit,
    max_data_pending: bool,
    /// Streams with data to send, served in turn.
    ready: VecDeque<u32>,
    /// Streams with a control frame to send.
    control: VecDeque<StreamId>,
    /// Bytes held in all send buffers.
    buffered: u64,
    /// Writers refused for the connection's sake.
    blocked_writers: Vec<StreamId>,
    pool: ChunkPool,
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
    /// No streams yet; the peer's limits come with `set_peer_parameters`.
    #[must_use]
    pub(crate) fn new(side: Side, config: &TransportConfig) -> Self {
        let opening = |limit| Opening {
            peer_limit: limit,
            peer_window: limit,
            ..Opening::default()
        };
        Self {
            side,
            table: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
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
            ready: VecDeque::new(),
            control: VecDeque::new(),
            buffered: 0,
            blocked_writers: Vec::new(),
            pool: ChunkPool::default(),
            events: VecDeque::new(),
        }
    }

    /// Takes the peer's limits (RFC 9000 §18.2); streams opened before get theirs now.
    pub(crate) fn set_peer_parameters(&mut self, params: &TransportParameters) {
        self.limits.send_bidi_local = params.initial_max_stream_data_bidi_local;
        self.limits.send_bidi_remote = params.initial_max_stream_data_bidi_remote;
        self.limits.send_uni = params.initial_max_stream_data_uni;
        self.send_credit.raise(params.initial_max_data);
        self.on_max_streams(Direction::Bidirectional, params.initial_max_streams_bidi);
        self.on_max_streams(Direction::Unidirectional, params.initial_max_streams_uni);
    }

    // ---- the application's side -------------------------------------------------------------------------------------

    /// Opens a stream; `None` at the peer's limit, and `StreamsAvailable` follows when it rises.
    pub(crate) fn open(&mut self, direction: Direction) -> Option<StreamId> {
        let opening = &mut self.opening[index(direction)];
        if opening.local_next >= opening.local_limit {
            opening.local_refused = true;
            return None;
        }
        let id = StreamId::new(self.side, direction, opening.local_next);
        opening.local_next += 1;
        self.create(id, true);
        Some(id)
    }

    /// The next stream that the peer opened, in the order of ids.
    pub(crate) fn accept(&mut self, direction: Direction) -> Option<StreamId> {
        let opening = &mut self.opening[index(direction)];
        if opening.peer_accepted >= opening.peer_opened {
            return None;
        }
        let index = opening.peer_accepted;
        opening.peer_accepted += 1;
        let id = StreamId::new(self.side.peer(), direction, index);
        let slot = match self.find(id) {
            Some(slot) => slot,
            None => self.create(id, true),
        };
        if let Some(stream) = self.get(slot) {
            stream.known = true;
        }
        self.tell_reader(slot);
        Some(id)
    }

    /// Takes from the front of `data` what there is room for; at least one byte, or an error.
    ///
    /// # Errors
    /// `Blocked`, `Stopped`, `Closed`.
    pub(crate) fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, WriteError> {
        let slot = self.find(id).ok_or(WriteError::Closed)?;
        let (limits, buffered) = (self.limits, self.buffered);
        let send = self
            .get(slot)
            .and_then(|s| s.send.as_mut())
            .ok_or(WriteError::Closed)?;
        if let Some(code) = send.stopped {
            return Err(WriteError::Stopped(code));
        }
        if send.state != SendState::Send {
            return Err(WriteError::Closed);
        }
        let stream_room = limits.stream_send_window.saturating_sub(send.buffer.held());
        let room = stream_room.min(limits.send_window.saturating_sub(buffered));
        let n = room.min(data.len() as u64) as usize;
        if n == 0 && !data.is_empty() {
            send.writer_waits = true;
            if stream_room > 0 {
                self.blocked_writers.push(id);
            }
            return Err(WriteError::Blocked);
        }
        send.buffer.write(data.split_to(n));
        self.buffered += n as u64;
        self.enqueue(slot);
        Ok(n)
    }

    /// Ends the stream behind the data written so far.
    ///
    /// # Errors
    /// `Stopped`, `Closed`.
    pub(crate) fn finish(&mut self, id: StreamId) -> Result<(), WriteError> {
        let slot = self.find(id).ok_or(WriteError::Closed)?;
        let send = self
            .get(slot)
            .and_then(|s| s.send.as_mut())
            .ok_or(WriteError::Closed)?;
        if let Some(code) = send.stopped {
            return Err(WriteError::Stopped(code));
        }
        if send.state != SendState::Send {
            return Err(WriteError::Closed);
        }
        send.state = SendState::DataSent;
        send.fin_pending = true;
        self.enqueue(slot);
        Ok(())
    }

    /// Gives the sending part up with RESET_STREAM (RFC 9000 §19.4).
    ///
    /// # Errors
    /// `Closed` if nothing is left to reset.
    pub(crate) fn reset(&mut self, id: StreamId, code: u64) -> Result<(), WriteError> {
        let slot = self.find(id).ok_or(WriteError::Closed)?;
        let send = self
            .get(slot)
            .and_then(|s| s.send.as_mut())
            .ok_or(WriteError::Closed)?;
        if !matches!(send.state, SendState::Send | SendState::DataSent) {
            return Err(WriteError::Closed);
        }
        let freed = send.reset(code);
        self.release(freed);
        self.control.push_back(id);
        Ok(())
    }

    /// The next bytes in order, at most `max`; `None` is the end of the stream.
    ///
    /// # Errors
    /// `Blocked`, `Reset`, `Closed`.
    pub(crate) fn read(&mut self, id: StreamId, max: usize) -> Result<Option<Bytes>, ReadError> {
        let slot = self.find(id).ok_or(ReadError::Closed)?;
        let pool = &mut self.pool;
        let stream = self
            .slots
            .get_mut(slot as usize)
            .and_then(Option::as_mut)
            .ok_or(ReadError::Closed)?;
        let recv = stream.recv.as_mut().ok_or(ReadError::Closed)?;
        let result = recv.read(max, pool);
        match &result {
            Ok(Some(bytes)) => {
                let taken = bytes.len() as u64;
                if recv.wants_credit() && !recv.credit_pending {
                    recv.credit_pending = true;
                    self.control.push_back(id);
                }
                self.recv_credit.consume(taken);
                self.max_data_pending |= self.recv_credit.wants_update();
            }
            Ok(None) | Err(ReadError::Reset(_)) => self.remove_if_done(slot),
            Err(_) => {}
        }
        result
    }

    /// Stops reading, with STOP_SENDING (RFC 9000 §19.5).
    ///
    /// # Errors
    /// `Closed` if there is nothing to stop.
    pub(crate) fn stop_sending(&mut self, id: StreamId, code: u64) -> Result<(), ReadError> {
        let slot = self.find(id).ok_or(ReadError::Closed)?;
        let recv = self
            .get(slot)
            .and_then(|s| s.recv.as_mut())
            .ok_or(ReadError::Closed)?;
        recv.stop(code);
        let unread = recv.unread();
        recv.credit.consume(unread);
        self.recv_credit.consume(unread);
        self.max_data_pending |= self.recv_credit.wants_update();
        self.control.push_back(id);
        self.remove_if_done(slot);
        Ok(())
    }

    // ---- the receive path -------------------------------------------------------------------------------------------

    /// Takes a STREAM frame. `Ok(false)`: the packet must be dropped unacknowledged.
    ///
    /// # Errors
    /// The code of RFC 9000 §19.8.
    #[inline]
    pub(crate) fn on_stream(
        &mut self,
        id: StreamId,
        offset: u64,
        data: &[u8],
        fin: bool,
    ) -> Result<bool, TransportErrorCode> {
        let Some(slot) = self.find_receiving(id)? else {
            return Ok(true);
        };
        let pool = &mut self.pool;
        let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return Ok(true);
        };
        let Some(recv) = stream.recv.as_mut() else {
            return Ok(true);
        };
        let rise = match recv.receive(offset, data, fin, pool)? {
            Received::More(rise) => rise,
            Received::Refused => return Ok(false),
        };
        let stopped = recv.stop.is_some();
        if stopped {
            recv.credit.consume(rise);
        }
        self.charge(rise, stopped)?;
        self.tell_reader(slot);
        if stopped {
            self.remove_if_done(slot);
        }
        Ok(true)
    }

    /// Takes a RESET_STREAM frame.
    ///
    /// # Errors
    /// The code of RFC 9000 §19.4.
    pub(crate) fn on_reset(
        &mut self,
        id: StreamId,
        code: u64,
        final_size: u64,
    ) -> Result<(), TransportErrorCode> {
        let Some(slot) = self.find_receiving(id)? else {
            return Ok(());
        };
        let Some(recv) = self.get(slot).and_then(|s| s.recv.as_mut()) else {
            return Ok(());
        };
        let rise = recv.receive_reset(code, final_size)?;
        // What nobody will read counts as read: the connection's credit must not leak away.
        let unread = recv.unread();
        recv.credit.consume(unread);
        self.charge(rise, false)?;
        self.recv_credit.consume(unread);
        self.max_data_pending |= self.recv_credit.wants_update();
        self.tell_reader(slot);
        self.remove_if_done(slot);
        Ok(())
    }

    /// Takes a STOP_SENDING frame: the sending part is reset in answer (RFC 9000 §3.5).
    ///
    /// # Errors
    /// The code of RFC 9000 §19.5.
    pub(crate) fn on_stop_sending(
        &mut self,
        id: StreamId,
        code: u64,
    ) -> Result<(), TransportErrorCode> {
        let Some(slot) = self.find_sending(id)? else {
            return Ok(());
        };
        let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
            return Ok(());
        };
        if send.stopped.is_some() || !matches!(send.state, SendState::Send | SendState::DataSent) {
            return Ok(());
        }
        send.stopped = Some(code);
        send.writer_waits = false;
        let freed = send.reset(code);
        self.release(freed);
        self.control.push_back(id);
        self.events.push_back(Event::Stopped(id, code));
        Ok(())
    }

    /// Takes a MAX_DATA frame.
    pub(crate) fn on_max_data(&mut self, limit: u64) {
        self.send_credit.raise(limit);
    }

    /// Takes a MAX_STREAM_DATA frame.
    ///
    /// # Errors
    /// The code of RFC 9000 §19.10.
    pub(crate) fn on_max_stream_data(
        &mut self,
        id: StreamId,
        limit: u64,
    ) -> Result<(), TransportErrorCode> {
        let Some(slot) = self.find_sending(id)? else {
            return Ok(());
        };
        if self
            .get(slot)
            .and_then(|s| s.send.as_mut())
            .is_some_and(|send| send.credit.raise(limit))
        {
            self.enqueue(slot);
        }
        Ok(())
    }

    /// Takes a MAX_STREAMS frame.
    pub(crate) fn on_max_streams(&mut self, direction: Direction, limit: u64) {
        let opening = &mut self.opening[index(direction)];
        opening.local_limit = opening.local_limit.max(limit);
        if opening.local_refused && opening.local_next < opening.local_limit {
            opening.local_refused = false;
            self.events.push_back(Event::StreamsAvailable(direction));
        }
    }

    /// Checks the stream named by a STREAM_DATA_BLOCKED frame (RFC 9000 §19.13).
    ///
    /// # Errors
    /// `STREAM_STATE_ERROR` or `STREAM_LIMIT_ERROR`.
    pub(crate) fn on_stream_data_blocked(
        &mut self,
        id: StreamId,
    ) -> Result<(), TransportErrorCode> {
        self.find_receiving(id).map(|_| ())
    }

    fn charge(&mut self, rise: u64, nobody_reads: bool) -> Result<(), TransportErrorCode> {
        if rise > 0 {
            self.recv_credit
                .receive_more(rise)
                .ok_or(TransportErrorCode::FLOW_CONTROL_ERROR)?;
            if nobody_reads {
                self.recv_credit.consume(rise);
                self.max_data_pending |= self.recv_credit.wants_update();
            }
        }
        Ok(())
    }

    /// Tells the reader once that there is something to read.
    #[inline]
    fn tell_reader(&mut self, slot: u32) {
        let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let Some(recv) = stream.recv.as_mut() else {
            return;
        };
        if stream.known && !recv.reader_told && recv.is_readable() {
            recv.reader_told = true;
            self.events.push_back(Event::Readable(stream.id));
        }
    }

    // ---- the send path ----------------------------------------------------------------------------------------------

    /// Whether a packet could carry stream data or a stream's control frame now.
    #[must_use]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.has_control() || !self.ready.is_empty()
    }

    /// The next piece of stream data for a packet with `room` bytes left, its header's size counted in.
    ///
    /// The piece fills the room when its stream has enough (the frame then needs no length), else it is all that the
    /// stream may send now. The caller writes it and tells `on_sent`.
    #[inline]
    pub(crate) fn next_range(&mut self, room: usize) -> Option<(StreamRange, bool)> {
        for _ in 0..self.ready.len() {
            let slot = *self.ready.front()?;
            let connection = self.send_credit.available();
            if let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut)
                && let Some(send) = stream.send.as_mut()
                && send.wants_to_send()
            {
                let offset = send
                    .buffer
                    .next_range(1, u64::MAX)
                    .map_or(send.buffer.unsent(), |r| r.start);
                let header = frame::write::stream_header_size(stream.id, offset, None);
                if room <= header + 2 {
                    return None;
                }
                let max = (room - header) as u64;
                let limit = send
                    .credit
                    .limit()
                    .min(send.buffer.unsent().saturating_add(connection));
                let range = send.buffer.next_range(max, limit).unwrap_or(offset..offset);
                let at_end = send.state == SendState::DataSent && range.end == send.buffer.end();
                let fin = at_end && (send.fin_pending || !range.is_empty());
                if !range.is_empty() || fin {
                    let fills = range.end - range.start == max;
                    // Room for an explicit length, should the frame not fill the packet.
                    let shortened = if fills {
                        0
                    } else {
                        (range.end - range.start + 4)
                            .saturating_sub(max)
                            .min(range.end - range.start)
                    };
                    let len = (range.end - range.start - shortened) as u32;
                    let fin = fin && shortened == 0;
                    return Some((
                        StreamRange {
                            id: stream.id,
                            start: range.start,
                            len,
                            fin,
                        },
                        fills,
                    ));
                }
                // Blocked by the connection's credit alone: let the others try (some may have lost bytes).
                self.ready.rotate_left(1);
                continue;
            }
            self.dequeue_front();
        }
        None
    }

    /// Notes that the piece is in a packet.
    #[inline]
    pub(crate) fn on_sent(&mut self, range: &StreamRange) {
        let Some(slot) = self.find(range.id) else {
            return;
        };
        let connection = &mut self.send_credit;
        let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let Some(send) = stream.send.as_mut() else {
            return;
        };
        let end = range.start + u64::from(range.len);
        let fresh = end.saturating_sub(send.buffer.unsent());
        send.credit.consume(fresh);
        connection.consume(fresh);
        send.buffer.on_sent(&(range.start..end));
        if range.fin {
            send.fin_pending = false;
        }
        if !send.wants_to_send() && self.ready.front() == Some(&slot) {
            self.dequeue_front();
        }
    }

    /// Lets the next stream in line send first; called once a bundle.
    pub(crate) fn rotate(&mut self) {
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
    }

    /// The bytes at the end of a range that lie in one piece, for sealing without a copy: at most `len` bytes.
    ///
    /// Returns how many bytes precede them. Call `copy_head` for those.
    #[must_use]
    pub(crate) fn tail(&self, range: &StreamRange) -> (usize, &[u8]) {
        let Some(buffer) = self.send_buffer(range.id) else {
            return (0, &[]);
        };
        let (mut offset, mut left) = (range.start, range.len as usize);
        loop {
            let piece = buffer.slice_at(offset, left);
            if piece.len() >= left || piece.is_empty() {
                return ((offset - range.start) as usize, piece);
            }
            offset += piece.len() as u64;
            left -= piece.len();
        }
    }

    /// Copies the first `out.len()` bytes of a range.
    pub(crate) fn copy_head(&self, range: &StreamRange, out: &mut [u8]) {
        if let Some(buffer) = self.send_buffer(range.id) {
            buffer.copy_to(range.start, out);
        }
    }

    /// Prepares the look-up of the bytes of a range.
    #[inline]
    pub(crate) fn seek(&mut self, range: &StreamRange) {
        if let Some(slot) = self.find(range.id)
            && let Some(send) = self.get(slot).and_then(|s| s.send.as_mut())
        {
            send.buffer.seek(range.start);
        }
    }

    #[inline]
    fn send_buffer(&self, id: StreamId) -> Option<&send_buffer::SendBuffer> {
        let slot = match self.last {
            Some((last, slot)) if last == id => slot,
            _ => *self.table.get(&id)?,
        };
        Some(
            &self
                .slots
                .get(slot as usize)?
                .as_ref()?
                .send
                .as_ref()?
                .buffer,
        )
    }

    /// Notes that the peer has bytes of a stream, and perhaps its end.
    pub(crate) fn on_acked(&mut self, id: StreamId, start: u64, len: u64, fin: bool) {
        let Some(slot) = self.find(id) else { return };
        let (limits, buffered) = (self.limits, self.buffered);
        let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
            return;
        };
        let (freed, done) = send.on_acked(start, len, fin);
        // A writer is woken for a quarter of the buffer, not for every packet.
        let room = buffered - freed <= limits.send_window / 4 * 3;
        if send.writer_waits && room && send.buffer.held() <= limits.stream_send_window / 4 * 3 {
            send.writer_waits = false;
            self.events.push_back(Event::Writable(id));
        }
        self.release(freed);
        if done {
            self.events.push_back(Event::Finished(id));
            self.remove_if_done(slot);
        }
    }

    /// Puts bytes of a stream, and perhaps its end, back in line.
    pub(crate) fn on_lost(&mut self, id: StreamId, start: u64, len: u32, fin: bool) {
        let Some(slot) = self.find(id) else { return };
        if let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) {
            send.on_lost(start, len, fin);
            self.enqueue(slot);
        }
    }

    /// Bytes are gone from the send buffers: writers that waited for the connection's sake may go on.
    fn release(&mut self, freed: u64) {
        self.buffered -= freed;
        if freed > 0
            && !self.blocked_writers.is_empty()
            && self.buffered <= self.limits.send_window / 4 * 3
        {
            for id in std::mem::take(&mut self.blocked_writers) {
                let Some(slot) = self.find(id) else { continue };
                let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
                    continue;
                };
                if std::mem::take(&mut send.writer_waits) {
                    self.events.push_back(Event::Writable(id));
                }
            }
        }
    }

    // ---- the table --------------------------------------------------------------------------------------------------

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
        let slot = *self.table.get(&id)?;
        self.last = Some((id, slot));
        Some(slot)
    }

    fn create(&mut self, id: StreamId, known: bool) -> u32 {
        let ours = id.initiator() == self.side;
        let limits = &self.limits;
        let send = match (id.direction(), ours) {
            // The names are from the point of view of the peer that sent the parameter.
            (Direction::Bidirectional, true) => Some(SendStream::new(limits.send_bidi_remote)),
            (Direction::Bidirectional, false) => Some(SendStream::new(limits.send_bidi_local)),
            (Direction::Unidirectional, true) => Some(SendStream::new(limits.send_uni)),
            (Direction::Unidirectional, false) => None,
        };
        let recv = (id.direction() == Direction::Bidirectional || !ours)
            .then(|| RecvStream::new(limits.recv_initial, limits.recv_max));
        let stream = Some(Box::new(Stream {
            id,
            send,
            recv,
            known,
        }));
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

    /// The stream that a frame for its receiving part names; `None` if it has ended (RFC 9000 §3.2).
    #[inline]
    fn find_receiving(&mut self, id: StreamId) -> Result<Option<u32>, TransportErrorCode> {
        if let Some(slot) = self.find(id)
            && self.get(slot).is_some_and(|s| s.recv.is_some())
        {
            return Ok(Some(slot));
        }
        if id.direction() == Direction::Unidirectional && id.initiator() == self.side {
            return Err(TransportErrorCode::STREAM_STATE_ERROR);
        }
        self.find_or_open(id)
    }

    fn find_sending(&mut self, id: StreamId) -> Result<Option<u32>, TransportErrorCode> {
        if id.direction() == Direction::Unidirectional && id.initiator() != self.side {
            return Err(TransportErrorCode::STREAM_STATE_ERROR);
        }
        self.find_or_open(id)
    }

    fn find_or_open(&mut self, id: StreamId) -> Result<Option<u32>, TransportErrorCode> {
        if let Some(slot) = self.find(id) {
            return Ok(Some(slot));
        }
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
        if opening.peer_ended.contains(id.index()) {
            return Ok(None);
        }
        if id.index() >= opening.peer_opened {
            // RFC 9000 §3.2: opening a stream opens all of its kind below it; they get state when they are used.
            opening.peer_opened = id.index() + 1;
            self.events.push_back(Event::StreamOpened(id.direction()));
        }
        let known = id.index() < self.opening[index(id.direction())].peer_accepted;
        Ok(Some(self.create(id, known)))
    }

    fn remove_if_done(&mut self, slot: u32) {
        let Some(stream) = self.get(slot) else { return };
        let done = stream.known
            && stream.send.as_ref().is_none_or(SendStream::is_terminal)
            && stream.recv.as_ref().is_none_or(RecvStream::is_terminal);
        if !done {
            return;
        }
        let id = stream.id;
        self.slots[slot as usize] = None;
        self.table.remove(&id);
        self.last = None;
        // A slot still in the line of senders must not be given to another stream yet.
        self.ready.retain(|s| *s != slot);
        self.free.push(slot);
        if id.initiator() != self.side {
            let opening = &mut self.opening[index(id.direction())];
            opening.peer_ended.insert_one(id.index());
            opening.peer_ended_count += 1;
            // Tell the peer once half of its allowance has been used and returned.
            opening.limit_pending |= opening.peer_ended_count + opening.peer_window
                >= opening.peer_limit + opening.peer_window.div_ceil(2);
        }
    }

    fn enqueue(&mut self, slot: u32) {
        if let Some(send) = self.get(slot).and_then(|s| s.send.as_mut())
            && !send.queued
            && send.wants_to_send()
        {
            send.queued = true;
            self.ready.push_back(slot);
        }
    }

    fn dequeue_front(&mut self) {
        if let Some(slot) = self.ready.pop_front()
            && let Some(send) = self.get(slot).and_then(|s| s.send.as_mut())
        {
            send.queued = false;
        }
    }

    /// Streams that exist.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.table.len()
    }

    /// Lets all stream memory go; the connection has ended.
    pub(crate) fn clear(&mut self) {
        self.table = HashMap::new();
        self.slots = Vec::new();
        self.free = Vec::new();
        self.last = None;
        self.ready = VecDeque::new();
        self.control = VecDeque::new();
        self.blocked_writers = Vec::new();
        self.pool.clear();
    }

    fn rtt_for_credit(rtt: Duration) -> Duration {
        // A path without a sample yet would make every window look quickly used.
        rtt.min(Duration::from_millis(500))
    }
}
