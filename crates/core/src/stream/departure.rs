//! Stream data on its way into packets, and its acknowledgement or loss.

use squall_wire::{StreamId, frame};

use super::queue::Entry;
use super::schedule::STALE_SLACK;
use super::send::StreamRange;
use super::send_buffer::SendBuffer;
use super::{SendState, Streams};
use crate::event::Event;

/// Bytes of the connection's credit per waiting stream that is queued again: a small packet's
/// worth.
const FED_BY: u64 = 1200;

/// Finds the bytes of ranges. A neighbouring range is found where the previous one ended.
pub(crate) struct Tails<'a> {
    streams: &'a Streams,
    /// The stream of the previous range, its bytes, and the chunk that held the last of them.
    of: Option<(StreamId, &'a SendBuffer, usize)>,
}

impl<'a> Tails<'a> {
    /// The bytes at the end of a range that are contiguous, for sealing without a copy, and how
    /// many of the range precede them. Call `copy_head` for those.
    #[inline]
    pub(crate) fn tail(&mut self, range: &StreamRange) -> (usize, &'a [u8]) {
        let (buffer, chunk) = match &mut self.of {
            Some((id, buffer, chunk)) if *id == range.id => (*buffer, chunk),
            of => {
                let Some(buffer) = self.streams.send_buffer(range.id) else {
                    return (0, &[]);
                };
                let (_, buffer, chunk) = of.insert((range.id, buffer, 0));
                (*buffer, chunk)
            }
        };
        let (mut offset, mut left) = (range.start, range.len as usize);
        loop {
            let piece = buffer.piece(chunk, offset, left);
            if piece.len() >= left || piece.is_empty() {
                return ((offset - range.start) as usize, piece);
            }
            offset += piece.len() as u64;
            left -= piece.len();
        }
    }
}

impl Streams {
    /// Whether a packet could carry stream data or a stream's control frame now.
    #[must_use]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.has_control() || self.has_data_to_send()
    }

    /// Whether stream data or the end of a stream waits, and the peer's limits allow it.
    #[must_use]
    pub(super) fn has_data_to_send(&self) -> bool {
        !self.queue.is_empty() || self.may_feed()
    }

    /// Whether streams wait for the connection's credit although there is some.
    pub(super) fn may_feed(&self) -> bool {
        self.send_credit.available() > 0 && !self.starved.is_empty()
    }

    /// The next piece of stream data for a packet with `room` bytes left, including the frame
    /// header.
    ///
    /// The piece fills the room if its stream has enough (the frame then needs no length);
    /// otherwise it is all that the stream may send now. The caller writes it and calls `on_sent`.
    #[inline]
    pub(crate) fn next_range(&mut self, room: usize) -> Option<(StreamRange, bool)> {
        while let Some(slot) = self.next_sender() {
            let connection = self.send_credit.available();
            let stream = self.slots.get_mut(slot as usize).and_then(Option::as_mut)?;
            let id = stream.id;
            let send = stream.send.as_mut()?;
            let offset = send
                .buffer
                .next_range(1, u64::MAX)
                .map_or(send.buffer.unsent(), |r| r.start);
            let header = frame::write::stream_header_size(id, offset, None);
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
            let fin = at_end && send.reset.is_none() && (send.fin_pending || !range.is_empty());
            if range.is_empty() && !fin {
                // Only the connection's credit is missing: the stream leaves the queue until the
                // credit rises.
                self.starve(slot, id);
                continue;
            }
            let fills = range.end - range.start == max;
            // Room for an explicit length, in case the frame does not fill the packet.
            let shortened = if fills {
                0
            } else {
                (range.end - range.start + 4)
                    .saturating_sub(max)
                    .min(range.end - range.start)
            };
            let len = (range.end - range.start - shortened) as u32;
            let fin = fin && shortened == 0;
            if len == 0 && !fin {
                // Only a header would fit: an empty frame would say nothing.
                return None;
            }
            let range = StreamRange {
                id,
                start: range.start,
                len,
                fin,
            };
            return Some((range, fills));
        }
        None
    }

    fn starve(&mut self, slot: u32, id: StreamId) {
        debug_assert_eq!(self.send_credit.available(), 0);
        self.dequeue(slot, id);
        let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
            return;
        };
        if !std::mem::replace(&mut send.starved, true) {
            let entry = Entry {
                id,
                slot,
                rank_changes: send.rank_changes,
            };
            let priority = send.priority;
            self.starved.push(priority, entry);
            if self.starved.len() > 2 * self.table.len() + STALE_SLACK {
                self.drop_stale();
            }
        }
        // RFC 9000 §4.1: sent once for each limit.
        let limit = self.send_credit.limit();
        if self.blocked_at != Some(limit) {
            self.blocked_at = Some(limit);
            self.blocked_pending = true;
        }
    }

    /// The connection has credit: for each packet that it covers, one of the streams that waited
    /// for it is queued again, in order of rank. A peer that raises its limit by a byte at a time
    /// makes one stream move, however many wait.
    pub(super) fn feed_starved(&mut self) {
        let mut packets = self.send_credit.available().div_ceil(FED_BY);
        while packets > 0
            && let Some((
                _,
                Entry {
                    id,
                    slot,
                    rank_changes,
                },
            )) = self.starved.front()
        {
            self.starved.pop_front();
            if let Some(stream) = self.get(slot).filter(|s| s.id == id)
                && let Some(send) = stream.send.as_mut()
                && send.starved
                && send.rank_changes == rank_changes
            {
                send.starved = false;
                self.enqueue(slot);
                packets -= 1;
            }
        }
    }

    /// Records that the piece is in a packet.
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
        if (send.unsent_awaited).is_some_and(|bytes| send.buffer.unsent_len() <= bytes) {
            send.unsent_awaited = None;
            self.events.push_back(Event::Writable(range.id));
        }
        if range.fin {
            send.fin_pending = false;
        }
        if send.wants_to_send() {
            return;
        }
        // At most one frame results: data that has just been sent is not settled, so the stream is
        // still delivering.
        let control = send.is_blocked() || send.reset_becomes_due(self.limits.partial_resets);
        if control {
            self.control.push_back(range.id);
        }
        if self
            .queue
            .front()
            .is_some_and(|(_, front)| front.id == range.id)
        {
            self.dequeue(slot, range.id);
        }
    }

    /// Lets the next queued stream send first; called once a bundle.
    pub(crate) fn rotate(&mut self) {
        self.queue.rotate();
    }

    /// The bytes that the stream in front may send in packets each filled by a single frame of it:
    /// never sent before, not the stream's first, and without those that carry a FIN. Returns the
    /// offset of the first, and how many.
    ///
    /// The caller writes some of them and calls `on_sent`.
    pub(crate) fn ahead(&mut self) -> Option<(StreamId, u64, u64)> {
        let slot = self.next_sender()?;
        let connection = self.send_credit.available();
        let stream = self.slots.get(slot as usize)?.as_ref()?;
        let send = stream.send.as_ref()?;
        let (start, end) = (send.buffer.unsent(), send.buffer.end());
        if start == 0 || send.buffer.has_lost() || send.reset.is_some() {
            return None;
        }
        let end = match send.state {
            SendState::DataSent => end.saturating_sub(1),
            _ => end,
        };
        let limit = send.credit.limit().min(start.saturating_add(connection));
        let len = end.min(limit).saturating_sub(start);
        Some((stream.id, start, len))
    }

    /// Looks up the bytes of ranges, one after the other.
    pub(crate) fn tails(&self) -> Tails<'_> {
        Tails {
            streams: self,
            of: None,
        }
    }

    /// Copies the first `out.len()` bytes of a range.
    pub(crate) fn copy_head(&self, range: &StreamRange, out: &mut [u8]) {
        if let Some(buffer) = self.send_buffer(range.id) {
            buffer.copy_to(range.start, out);
        }
    }

    #[inline]
    fn send_buffer(&self, id: StreamId) -> Option<&SendBuffer> {
        let slot = match self.last {
            Some((last, slot)) if last == id => slot,
            _ => *self.table.get(id)?,
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

    /// Records that the peer has bytes of a stream, and perhaps its end.
    pub(crate) fn on_acked(&mut self, id: StreamId, start: u64, len: u64, fin: bool) {
        let Some(slot) = self.find(id) else { return };
        let partial_resets = self.limits.partial_resets;
        let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
            return;
        };
        let before = send.is_delivering();
        let (freed, done) = send.on_acked(start, len, fin);
        let reset = send.reset_becomes_due(partial_resets);
        let (after, late) = (send.is_delivering(), send.late);
        self.count_delivering(before, after, late);
        self.release(freed);
        self.wake_writer(slot);
        if reset {
            self.control.push_back(id);
        }
        if done {
            self.events.push_back(Event::Finished(id));
            self.remove_if_done(slot);
        }
    }

    /// Queues bytes of a stream, and perhaps its end, again.
    pub(crate) fn on_lost(&mut self, id: StreamId, start: u64, len: u32, fin: bool) {
        let Some(slot) = self.find(id) else { return };
        if let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) {
            send.on_lost(start, len, fin);
            self.enqueue(slot);
        }
    }

    /// Wakes a stream's writer if both windows and the peer's credit have room again: a quarter of
    /// a window, not just what one packet frees.
    pub(super) fn wake_writer(&mut self, slot: u32) {
        let (limits, has_room) = (self.limits, self.has_room());
        let Some(stream) = self.get(slot) else { return };
        let id = stream.id;
        let Some(send) = stream.send.as_mut().filter(|send| send.writer_waits) else {
            return;
        };
        if send.unused_credit() == 0 || send.buffer.cost() > limits.stream_send_window / 4 * 3 {
            return;
        }
        if has_room {
            send.writer_waits = false;
            self.events.push_back(Event::Writable(id));
        } else if !std::mem::replace(&mut send.writer_listed, true) {
            // The stream has room but the connection has none: this may be the stream's last
            // notification.
            self.blocked_writers.push(id);
        }
    }

    /// Whether the connection's send window allows writers to be woken.
    fn has_room(&self) -> bool {
        self.charged() <= self.limits.send_window / 4 * 3
    }

    /// The send buffers have shrunk: writers that waited for the connection's limit may continue.
    pub(super) fn release(&mut self, freed: u64) {
        self.buffered -= freed;
        if freed > 0 {
            self.wake_writers();
        }
    }

    /// Notifies writers that were refused because of the connection's limit, if there is room
    /// again.
    pub(super) fn wake_writers(&mut self) {
        if !self.blocked_writers.is_empty() && self.has_room() {
            for id in std::mem::take(&mut self.blocked_writers) {
                let Some(slot) = self.find(id) else { continue };
                let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
                    continue;
                };
                send.writer_listed = false;
                if std::mem::take(&mut send.writer_waits) {
                    self.events.push_back(Event::Writable(id));
                }
            }
        }
    }
}
