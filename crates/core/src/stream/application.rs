//! The application's operations on streams.

use bytes::Bytes;
use squall_wire::{Direction, StreamId};

use super::chunk_pool::ChunkPool;
use super::flow::ReachedLimit;
use super::recv::{RecvStream, Taken};
use super::send_buffer::SendBuffer;
use super::{SendState, Streams, index};
use crate::error::{ReadError, WriteError};

/// The longest message that is read when its stream is accepted, in bytes. The peer gets its credit
/// back before the application has looked at it.
const LONGEST_MESSAGE: u64 = 2 * 1024;

/// A stream that the peer opened, as
/// [`Connection::accept_and_read`](crate::Connection::accept_and_read) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The stream.
    pub id: StreamId,
    /// The code with which the peer has stopped this end's sending on it (STOP_SENDING, RFC 9000
    /// §19.5).
    pub stopped: Option<u64>,
    /// All that the peer has sent on it, if that is a short message and has arrived to its end.
    pub message: Option<Message>,
}

/// All bytes of a stream, read together with its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The bytes, at least one.
    pub data: Bytes,
    /// Whether any of them arrived as early data, see
    /// [`Connection::is_early`](crate::Connection::is_early).
    pub early: bool,
}

impl Streams {
    /// Opens a stream; `None` at the peer's limit, and `StreamsAvailable` follows when it rises.
    pub(crate) fn open(&mut self, direction: Direction) -> Option<StreamId> {
        let opening = &mut self.opening[index(direction)];
        if opening.local_next >= opening.local_limit {
            // RFC 9000 §4.6: sent once for each limit.
            opening.blocked_pending |= !std::mem::replace(&mut opening.local_refused, true);
            return None;
        }
        let id = StreamId::new(self.side, direction, opening.local_next);
        opening.local_next += 1;
        self.create(id, true);
        Some(id)
    }

    /// The next stream that the peer opened, in order of ids. An event reports what it has brought.
    pub(crate) fn accept(&mut self, direction: Direction) -> Option<StreamId> {
        let (id, slot) = self.take_opened(direction)?;
        self.tell_reader(slot);
        Some(id)
    }

    /// As [`accept`](Self::accept), without that event: what has arrived is for the caller to read.
    /// A short message on a bidirectional stream is read at once if all of it has arrived. The
    /// stream stays open for the answer, so the peer gets no credit for another one.
    pub(crate) fn accept_and_read(&mut self, direction: Direction) -> Option<Accepted> {
        let (id, slot) = self.take_opened(direction)?;
        let mut accepted = Accepted {
            id,
            stopped: None,
            message: None,
        };
        let Some(stream) = self.get(slot) else {
            return Some(accepted);
        };
        let send = stream.send.as_ref();
        accepted.stopped = send.and_then(|send| send.stopped);
        let recv = stream.recv.as_mut();
        let whole = recv.is_some_and(|recv| {
            recv.reader_told = true;
            recv.holds_message(LONGEST_MESSAGE)
        });
        if whole && direction == Direction::Bidirectional {
            accepted.message = self.read_message(id, slot);
        }
        Some(accepted)
    }

    /// Reads a stream that holds a message, and its end.
    fn read_message(&mut self, id: StreamId, slot: u32) -> Option<Message> {
        let read = self.read_at(id, slot, |recv, pool| recv.read(usize::MAX, pool));
        let data = read.ok().flatten()?;
        let early = self.read_end_at(slot)?;
        Some(Message { data, early })
    }

    fn take_opened(&mut self, direction: Direction) -> Option<(StreamId, u32)> {
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
        Some((id, slot))
    }

    /// Takes as much from the front of `data` as there is room for, without copying unless it is
    /// small; at least one byte, or an error.
    ///
    /// # Errors
    /// `Blocked`, `Stopped`, `Closed`.
    pub(crate) fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, WriteError> {
        let (slot, n) = self.room_to_write(id, data.len())?;
        self.fill(slot, |buffer| buffer.write(data.split_to(n)));
        Ok(n)
    }

    /// Copies from the front of `data` what there is room for; at least one byte, or an error.
    ///
    /// # Errors
    /// `Blocked`, `Stopped`, `Closed`.
    pub(crate) fn write_copy(&mut self, id: StreamId, data: &[u8]) -> Result<usize, WriteError> {
        let (slot, n) = self.room_to_write(id, data.len())?;
        let data = data.get(..n).unwrap_or(data);
        self.fill(slot, |buffer| buffer.write_copy(data));
        Ok(n)
    }

    /// Whether at most `bytes` of the written data were never sent.
    ///
    /// # Errors
    /// `Blocked`, and the writer is woken when they have been; `Stopped`, `Closed`.
    pub(crate) fn await_unsent(&mut self, id: StreamId, bytes: u64) -> Result<(), WriteError> {
        let slot = self.find(id).ok_or(WriteError::Closed)?;
        let send = (self.get(slot).and_then(|s| s.send.as_mut())).ok_or(WriteError::Closed)?;
        if let Some(code) = send.stopped {
            return Err(WriteError::Stopped(code));
        }
        if send.state != SendState::Send {
            return Err(WriteError::Closed);
        }
        let waits = send.buffer.unsent_len() > bytes;
        send.unsent_awaited = waits.then_some(bytes);
        if waits {
            return Err(WriteError::Blocked);
        }
        Ok(())
    }

    /// The peer's limit that holds the stream back: all of its credit is used up.
    pub(crate) fn reached_limit(&mut self, id: StreamId) -> Option<ReachedLimit> {
        let connection = self.send_credit;
        let slot = self.find(id)?;
        let stream = self.get(slot)?.send.as_ref()?.credit;
        if stream.available() == 0 {
            return Some(ReachedLimit::Stream(stream.limit()));
        }
        (connection.available() == 0).then_some(ReachedLimit::Connection(connection.limit()))
    }

    /// The stream's slot, and how many of `len` bytes it takes now: as many as the peer's credit
    /// for the stream covers and both send windows have room for. Bytes beyond that credit would
    /// hold the connection's window for as long as the peer does not read the stream, and so block
    /// all other streams.
    ///
    /// # Errors
    /// `Blocked`, and the writer is woken when there is room; `Stopped`, `Closed`.
    fn room_to_write(&mut self, id: StreamId, len: usize) -> Result<(u32, usize), WriteError> {
        let slot = self.find(id).ok_or(WriteError::Closed)?;
        let (limits, buffered) = (self.limits, self.charged());
        let withheld = self.is_withheld(id);
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
        // A stream that the peer does not allow yet gets none of the room that others need.
        let stream_room = match withheld {
            true => 0,
            false => (limits.stream_send_window.saturating_sub(send.buffer.cost()))
                .min(send.unused_credit()),
        };
        let room = stream_room.min(limits.send_window.saturating_sub(buffered));
        let n = room.min(len as u64) as usize;
        if n == 0 && len > 0 {
            let waited = std::mem::replace(&mut send.writer_waits, true);
            let blocked = !waited && send.is_blocked();
            if stream_room > 0 && !std::mem::replace(&mut send.writer_listed, true) {
                self.blocked_writers.push(id);
            }
            if blocked {
                self.control.push_back(id);
            }
            return Err(WriteError::Blocked);
        }
        Ok((slot, n))
    }

    /// Lets `write` add to a stream's buffer what [`room_to_write`](Self::room_to_write) allowed,
    /// and queues the stream for sending.
    fn fill(&mut self, slot: u32, write: impl FnOnce(&mut SendBuffer)) {
        let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
            return;
        };
        let before = send.buffer.cost();
        write(&mut send.buffer);
        let rise = send.buffer.cost() - before;
        self.buffered += rise;
        self.enqueue(slot);
    }

    /// Ends the stream after the data written so far.
    ///
    /// # Errors
    /// `Stopped`, `Closed`.
    pub(crate) fn finish(&mut self, id: StreamId) -> Result<(), WriteError> {
        let slot = self.find(id).ok_or(WriteError::Closed)?;
        let closing = self.closing;
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
        send.late = closing;
        self.count_delivering(false, true, closing);
        self.enqueue(slot);
        Ok(())
    }

    /// Abandons the sending part with RESET_STREAM (RFC 9000 §19.4).
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
        let (before, late) = (send.is_delivering(), send.late);
        let freed = send.reset(code);
        self.count_delivering(before, false, late);
        self.release(freed);
        self.control.push_back(id);
        Ok(())
    }

    /// Discards everything after the first `reliable` bytes with RESET_STREAM_AT.
    ///
    /// # Errors
    /// `Closed` if nothing is left to reset.
    pub(crate) fn reset_at(
        &mut self,
        id: StreamId,
        code: u64,
        reliable: u64,
    ) -> Result<(), WriteError> {
        let slot = self.find(id).ok_or(WriteError::Closed)?;
        let (partial_resets, closing) = (self.limits.partial_resets, self.closing);
        let send = self
            .get(slot)
            .and_then(|s| s.send.as_mut())
            .ok_or(WriteError::Closed)?;
        if !matches!(send.state, SendState::Send | SendState::DataSent) {
            return Err(WriteError::Closed);
        }
        let before = send.is_delivering();
        send.late |= closing && !before;
        let freed = send.reset_at(code, reliable);
        send.reset_becomes_due(partial_resets);
        let (after, late) = (send.is_delivering(), send.late);
        self.count_delivering(before, after, late);
        self.release(freed);
        self.control.push_back(id);
        Ok(())
    }

    /// The next bytes in order, at most `max`; `None` is the end of the stream.
    ///
    /// # Errors
    /// `Blocked`, `Reset`, `Closed`.
    #[inline]
    pub(crate) fn read(&mut self, id: StreamId, max: usize) -> Result<Option<Bytes>, ReadError> {
        self.read_by(id, |recv, pool| recv.read(max, pool))
    }

    /// Takes the end of a stream if nothing else is left to read: a read would return `None`.
    /// Returns whether data of the stream arrived in 0-RTT packets.
    #[inline]
    pub(crate) fn read_end(&mut self, id: StreamId) -> Option<bool> {
        let slot = self.find(id)?;
        self.read_end_at(slot)
    }

    #[inline]
    fn read_end_at(&mut self, slot: u32) -> Option<bool> {
        let recv = self.get(slot)?.recv.as_mut()?;
        let early = recv.early;
        recv.read_end().then(|| {
            self.remove_if_done(slot);
            early
        })
    }

    /// Gives the application bytes of a stream in order of arrival, with their offset.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_unordered(
        &mut self,
        id: StreamId,
        max: usize,
    ) -> Result<Option<(u64, Bytes)>, ReadError> {
        self.read_by(id, |recv, pool| recv.read_unordered(max, pool))
    }

    /// The code of the peer's reset; `None` if none can come any more.
    ///
    /// # Errors
    /// `Blocked` while one may come: `Event::Readable` follows when that is decided.
    pub(crate) fn received_reset(&mut self, id: StreamId) -> Result<Option<u64>, ReadError> {
        let slot = self.find(id).ok_or(ReadError::Closed)?;
        let stream = self.get(slot).ok_or(ReadError::Closed)?;
        let recv = stream.recv.as_mut().ok_or(ReadError::Closed)?;
        let outcome = recv.received_reset();
        recv.reset_awaited = outcome.is_err();
        outcome
    }

    #[inline]
    fn read_by<T: Taken>(
        &mut self,
        id: StreamId,
        read: impl FnOnce(&mut RecvStream, &mut ChunkPool) -> Result<Option<T>, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        let slot = self.find(id).ok_or(ReadError::Closed)?;
        self.read_at(id, slot, read)
    }

    #[inline]
    fn read_at<T: Taken>(
        &mut self,
        id: StreamId,
        slot: u32,
        read: impl FnOnce(&mut RecvStream, &mut ChunkPool) -> Result<Option<T>, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        let pool = &mut self.pool;
        let stream = self
            .slots
            .get_mut(slot as usize)
            .and_then(Option::as_mut)
            .ok_or(ReadError::Closed)?;
        let recv = stream.recv.as_mut().ok_or(ReadError::Closed)?;
        let pieces = recv.data.pieces();
        let result = read(recv, pool);
        // A different order may take more pieces.
        self.fragments = self.fragments + recv.data.pieces() - pieces;
        match &result {
            Ok(Some(taken)) => {
                let taken = taken.count();
                if recv.wants_credit() && !recv.credit_pending {
                    recv.credit_pending = true;
                    self.control.push_back(id);
                }
                self.recv_credit.consume(taken);
                self.max_data_pending |= self.recv_credit.wants_update();
                self.renew_used_up_credit();
            }
            Ok(None) | Err(ReadError::Reset(_)) => {
                // Data after a partial reset is never read.
                let unread = recv.unread();
                recv.credit.consume(unread);
                self.recv_credit.consume(unread);
                self.max_data_pending |= self.recv_credit.wants_update();
                self.remove_if_done(slot);
            }
            Err(_) => {}
        }
        result
    }

    /// Gives the peer more of the connection's credit if it has used all of it and unread data
    /// holds back the rest. Called once a run and by every reader, since either may come last.
    pub(crate) fn renew_used_up_credit(&mut self) {
        self.max_data_pending |= self.recv_credit.is_used_up();
        if self.recv_credit.is_full() && self.full_at != Some(self.recv_credit.advertised()) {
            self.full_at = Some(self.recv_credit.advertised());
            self.blocked_by_unread_data += 1;
        }
    }

    /// Number of times that unread data filled the connection's whole receive window.
    pub(crate) const fn blocked_by_unread_data(&self) -> u64 {
        self.blocked_by_unread_data
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
        let pieces = recv.data.pieces();
        recv.stop(code);
        let unread = recv.unread();
        recv.credit.consume(unread);
        let pieces = pieces - recv.data.pieces();
        self.fragments -= pieces;
        self.recv_credit.consume(unread);
        self.max_data_pending |= self.recv_credit.wants_update();
        self.control.push_back(id);
        self.remove_if_done(slot);
        Ok(())
    }
}
