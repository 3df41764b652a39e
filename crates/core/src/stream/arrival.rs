//! Received frames of streams (RFC 9000 §19.4 to §19.14).

use std::ops::Range;

use bytes::BytesMut;
use squall_wire::{Direction, StreamId, TransportErrorCode};

use super::chunk_pool::ChunkPool;
use super::reassembly::Reassembly;
use super::recv::{Received, RecvState};
use super::{SendState, Streams, index};
use crate::event::Event;

/// The cost of a piece of stream data after a gap in addition to its bytes: a segment's place in
/// the list and its allocation, or the room that a cell leaves in its page (its 64 bytes lie within
/// the stream's credit).
pub(super) const PIECE: usize = 128;

impl Streams {
    /// Processes a STREAM frame. `Ok(false)`: the packet must be dropped unacknowledged.
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
        // RFC 9000 §21.7: the cost of a piece in addition to its bytes is charged too; a packet
        // that would cost more than allowed is not accepted.
        let before = recv.data.pieces();
        let unread = self.recv_credit.received() - self.recv_credit.consumed();
        let cost = unread + (self.fragments * PIECE) as u64;
        if cost > self.pieces_budget && !recv.data.continues(offset) {
            return Ok(false);
        }
        let received = recv.receive(offset, data, fin, pool);
        self.fragments = self.fragments + recv.data.pieces() - before;
        let rise = match received? {
            Received::More(rise) => rise,
            Received::Refused => return Ok(false),
        };
        let stopped = recv.stop.is_some();
        if stopped {
            recv.credit.consume(rise);
        }
        self.charge(rise, stopped)?;
        if self.opening[index(Direction::Bidirectional)].local_refused {
            self.ask_for_room(slot);
        }
        self.tell_reader(slot);
        if stopped {
            self.remove_if_done(slot);
        }
        Ok(true)
    }

    /// Has a packet acknowledged at once if it completed a stream of ours while the peer's limit
    /// keeps us from opening another: the peer counts the stream as closed, and may raise the limit
    /// (RFC 9000 §4.6), only when its data is acknowledged.
    #[cold]
    fn ask_for_room(&mut self, slot: u32) {
        let side = self.side;
        self.room_awaits_ack |= self.get(slot).is_some_and(|stream| {
            stream.id.initiator() == side
                && stream.id.direction() == Direction::Bidirectional
                && stream.recv.as_mut().is_some_and(|recv| {
                    recv.state == RecvState::ResetReceived || recv.has_received_all()
                })
        });
    }

    /// Processes consecutive frames of one stream, without a FIN: `pieces` are their data, `len`
    /// bytes from `offset` on. `false` if this is more than appending bytes; then nothing is done.
    pub(crate) fn on_stream_run(
        &mut self,
        id: StreamId,
        offset: u64,
        len: u64,
        pieces: &[&[u8]],
    ) -> bool {
        self.append_run(id, offset, len, pieces.len(), |data, pool| {
            let mut offset = offset;
            for piece in pieces {
                let taken = data.insert(offset, piece, pool);
                debug_assert!(taken.is_ok(), "there is room for each");
                offset += piece.len() as u64;
            }
        })
    }

    /// As [`on_stream_run`](Self::on_stream_run), for data that lies in one piece, `part`, of a
    /// chunk from [`whole_chunk`](Self::whole_chunk). The chunk is taken only if this succeeds.
    pub(crate) fn on_stream_chunk(
        &mut self,
        id: StreamId,
        offset: u64,
        chunk: &mut BytesMut,
        part: Range<usize>,
    ) -> bool {
        self.append_run(id, offset, part.len() as u64, 1, |data, pool| {
            let chunk = std::mem::take(chunk).freeze();
            data.push(offset, chunk.slice(part), chunk.len(), pool);
            pool.give_filled(chunk);
        })
    }

    /// A chunk of [`LARGEST`](super::chunk_pool::LARGEST) bytes, which have any values, if one is
    /// free.
    pub(crate) fn whole_chunk(&mut self) -> Option<BytesMut> {
        self.pool.take_filled()
    }

    /// Takes back a chunk that no stream has taken.
    pub(crate) fn give_whole_chunk(&mut self, chunk: BytesMut) {
        self.pool.give_filled(chunk.freeze());
    }

    /// Has `store` append `len` bytes in so many pieces, unless this is more than appending.
    #[inline]
    fn append_run(
        &mut self,
        id: StreamId,
        offset: u64,
        len: u64,
        pieces: usize,
        store: impl FnOnce(&mut Reassembly, &mut ChunkPool),
    ) -> bool {
        let Some(slot) = self.find(id) else {
            return false;
        };
        let pool = &mut self.pool;
        let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return false;
        };
        let Some(recv) = stream.recv.as_mut() else {
            return false;
        };
        let Some(rise) = recv.rise_of_run(offset, len, pieces) else {
            return false;
        };
        if self.recv_credit.receive_more(rise).is_none() {
            return false;
        }
        let before = recv.data.pieces();
        store(&mut recv.data, pool);
        recv.receive_run(offset + len);
        self.fragments = self.fragments + recv.data.pieces() - before;
        self.tell_reader(slot);
        true
    }

    /// Processes a RESET_STREAM frame (`reliable` is 0) or a RESET_STREAM_AT one.
    ///
    /// # Errors
    /// The code of RFC 9000 §19.4.
    pub(crate) fn on_reset(
        &mut self,
        id: StreamId,
        code: u64,
        final_size: u64,
        reliable: u64,
    ) -> Result<(), TransportErrorCode> {
        let Some(slot) = self.find_receiving(id)? else {
            return Ok(());
        };
        let Some(recv) = self.get(slot).and_then(|s| s.recv.as_mut()) else {
            return Ok(());
        };
        let before = recv.data.pieces();
        let rise = recv.receive_reset(code, final_size, reliable)?;
        let after = recv.data.pieces();
        // Data that will never be read counts as read: the connection's credit must not leak.
        let unread = if recv.state == RecvState::SizeKnown && recv.stop.is_none() {
            0
        } else {
            recv.unread()
        };
        recv.credit.consume(unread);
        self.fragments -= before - after;
        self.charge(rise, false)?;
        self.recv_credit.consume(unread);
        self.max_data_pending |= self.recv_credit.wants_update();
        if self.opening[index(Direction::Bidirectional)].local_refused {
            self.ask_for_room(slot);
        }
        self.tell_reader(slot);
        self.remove_if_done(slot);
        Ok(())
    }

    /// Processes a STOP_SENDING frame: the sending part is reset in response (RFC 9000 §3.5).
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
        let (before, late) = (send.is_delivering(), send.late);
        let freed = send.reset(code);
        self.count_delivering(before, false, late);
        self.release(freed);
        self.control.push_back(id);
        self.events.push_back(Event::Stopped(id, code));
        Ok(())
    }

    /// Processes a MAX_DATA frame.
    pub(crate) fn on_max_data(&mut self, limit: u64) {
        if self.send_credit.raise(limit) {
            self.feed_starved();
        }
    }

    /// Processes a MAX_STREAM_DATA frame.
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
            self.wake_writer(slot);
        }
        Ok(())
    }

    /// Processes a MAX_STREAMS frame.
    pub(crate) fn on_max_streams(&mut self, direction: Direction, limit: u64) {
        let opening = &mut self.opening[index(direction)];
        let before = opening.local_limit;
        opening.local_limit = before.max(limit);
        // Streams from rejected early data may have waited for this.
        for index in before..opening.local_limit.min(opening.local_next) {
            self.release_withheld(StreamId::new(self.side, direction, index));
        }
        let opening = &mut self.opening[index(direction)];
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

    /// Notifies the reader once that there is something to read.
    #[inline]
    pub(super) fn tell_reader(&mut self, slot: u32) {
        let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let Some(recv) = stream.recv.as_mut() else {
            return;
        };
        if stream.known && !recv.reader_told && recv.is_readable() {
            recv.reader_told = true;
            self.events.push_back(Event::Readable(stream.id));
        } else if recv.reset_awaited {
            self.tell_of_reset(slot);
        }
    }

    /// Notifies a waiting reader once a reset has come or can no longer come.
    #[cold]
    fn tell_of_reset(&mut self, slot: u32) {
        let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        if let Some(recv) = stream.recv.as_mut()
            && recv.received_reset().is_ok()
        {
            recv.reset_awaited = false;
            self.events.push_back(Event::Readable(stream.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use squall_wire::Side;

    use super::*;
    use crate::config::{MAX_STREAM_FRAGMENTS, TransportConfig};

    fn streams(initial_window: u64) -> (Streams, [StreamId; 2]) {
        let config = TransportConfig::default()
            .initial_stream_window(1 << 24)
            .stream_receive_window(1 << 24)
            .initial_window(initial_window)
            .receive_window(1 << 24);
        let ids = [0, 1].map(|i| StreamId::new(Side::Client, Direction::Unidirectional, i));
        (Streams::new(Side::Server, &config), ids)
    }

    /// A stream in the place of an ended one has nothing of it left: neither of what it sent nor of
    /// what it received, in any state.
    #[test]
    fn a_stream_in_the_place_of_another_is_new() {
        use crate::stream::queue::Priority;
        use crate::stream::recv::RecvState;
        use crate::stream::send::{Reset, ResetFrame, SendState};

        let (mut streams, _) = streams(40_000);
        let bidi = |index| StreamId::new(Side::Client, Direction::Bidirectional, index);
        let slot = streams.create(bidi(0), true);
        let mut pool = ChunkPool::default();
        let stream = streams.get(slot).unwrap();
        stream.background = true;
        let send = stream.send.as_mut().unwrap();
        send.credit.raise(99);
        send.credit.consume(40);
        for _ in 0..3 {
            send.buffer.write_copy(&[7; 100]);
        }
        send.buffer.on_sent(&(0..200));
        send.buffer.on_acked(20..30);
        send.buffer.on_lost(40..50);
        send.state = SendState::ResetSent;
        (send.fin_pending, send.fin_acked) = (true, true);
        send.reset = Some(Reset {
            code: 1,
            reliable: 2,
            frame: ResetFrame::Sent,
        });
        (send.stopped, send.unsent_awaited) = (Some(3), Some(4));
        (send.writer_waits, send.writer_listed) = (true, true);
        (send.queued, send.starved, send.late) = (true, true, true);
        send.priority = Priority {
            level: 5,
            incremental: true,
        };
        send.rank_changes = 6;
        let recv = stream.recv.as_mut().unwrap();
        for (offset, fin) in [(0, false), (200, false), (1_000, true)] {
            recv.receive(offset, &[7; 100], fin, &mut pool).unwrap();
        }
        recv.read(10, &mut pool).unwrap();
        recv.receive_reset(7, 1_100, 300).unwrap();
        recv.state = RecvState::ResetRead;
        recv.stop = Some((8, true));
        (recv.credit_pending, recv.early) = (true, true);
        (recv.reader_told, recv.reset_awaited) = (true, true);

        let mut ended = streams.slots[slot as usize].take().unwrap();
        let before = format!("{ended:?}");
        ended.drain();
        streams.spare.push(ended);
        let again = streams.create(bidi(1), false);
        let again = format!("{:?}", streams.get(again).unwrap());
        assert!(streams.spare.is_empty(), "it took the ended one's place");
        streams.table.remove_if(bidi(1), |_| true);
        let new = streams.create(bidi(1), false);
        assert_eq!(again, format!("{:?}", streams.get(new).unwrap()));
        assert_ne!(again, before);
        // One half alone.
        let mut ended = streams.slots[new as usize].take().unwrap();
        ended.drain();
        streams.spare.push(ended);
        let uni = StreamId::new(Side::Client, Direction::Unidirectional, 0);
        let slot = streams.create(uni, true);
        let stream = streams.get(slot).unwrap();
        assert!(stream.send.is_none() && stream.recv.is_some());
    }

    // test: RFC 9000 §4.1 — SECURITY.md row 5
    #[test]
    fn a_run_is_accepted_only_in_order_and_within_flow_control() {
        let (mut streams, [a, b]) = streams(40_000);
        let pieces: [&[u8]; 8] = [&[7; 100]; 8];
        assert!(!streams.on_stream_run(a, 0, 800, &pieces), "no stream yet");
        assert_eq!(streams.on_stream(a, 0, pieces[0], false), Ok(true));
        for offset in [0, 50, 101, 10_000] {
            // Known bytes, and gaps, which cost more than their bytes.
            assert!(
                !streams.on_stream_run(a, offset, 800, &pieces),
                "at {offset}"
            );
        }
        assert!(streams.on_stream_run(a, 100, 800, &pieces));
        assert_eq!(streams.on_stream(b, 0, &[7; 39_000], false), Ok(true));
        let few = &pieces[..1];
        assert!(streams.on_stream_run(a, 900, 100, few), "the last credit");
        assert!(!streams.on_stream_run(a, 1000, 100, few), "no credit left");
    }

    // test: SECURITY.md row 5
    #[test]
    fn a_run_is_not_accepted_on_a_nearly_too_fragmented_stream() {
        let (mut streams, [a, _]) = streams(1 << 24);
        let last = 1024 * (MAX_STREAM_FRAGMENTS as u64 - 8);
        for offset in (1024..=last).step_by(1024) {
            assert_eq!(streams.on_stream(a, offset, &[7; 600], false), Ok(true));
        }
        let pieces: [&[u8]; 8] = [&[7; 100]; 8];
        assert!(!streams.on_stream_run(a, last + 600, 800, &pieces));
        assert!(streams.on_stream_run(a, last + 600, 700, &pieces[..7]));
    }
}
