//! Control frames of streams and of flow control: which are due, and what to do if they are lost.

use std::time::Duration;

use squall_wire::cursor::Writer;
use squall_wire::{Direction, StreamId, frame};

use super::send::{ResetFrame, SendStream};
use super::{Streams, index};
use crate::config::MAX_STREAMS;
use crate::event::Event;
use crate::sent_frame::SentFrame;
use crate::time::Time;

/// The largest of these frames.
const LARGEST: usize = frame::write::RESET_STREAM_AT_MAX_SIZE;

const DIRECTIONS: [Direction; 2] = [Direction::Bidirectional, Direction::Unidirectional];

impl Streams {
    /// Whether a control frame is due.
    #[must_use]
    pub(crate) fn has_control(&self) -> bool {
        self.max_data_pending
            || self.blocked_pending
            || !self.control.is_empty()
            || self
                .opening
                .iter()
                .any(|o| o.limit_pending || o.blocked_pending)
    }

    /// Whether to raise the peer's limit on the connection before it is due, because stream data is
    /// sent anyway. A client that requests one large object after the other then never sends its
    /// server a limit alone, which the server would have to acknowledge alone.
    #[inline]
    #[must_use]
    pub(crate) fn gives_credit_early(&self) -> bool {
        self.recv_credit.takes_update() && self.has_data_to_send()
    }

    /// Whether to report to the peer that its limit on the connection blocks us.
    #[must_use]
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked_pending
    }

    /// Whether the peer has been told about a limit that still holds back data.
    pub(crate) fn is_held_back(&mut self) -> bool {
        self.told_of_connection() || self.told_of_stream().is_some()
    }

    /// Repeats the BLOCKED frame of one limit that still holds back data.
    pub(crate) fn tell_blocked_again(&mut self) {
        if self.told_of_connection() {
            self.blocked_pending = true;
        } else if let Some(id) = self.told_of_stream() {
            self.repeat(id, |s| {
                if let Some(send) = s.send.as_mut() {
                    send.untell_blocked();
                }
            });
        }
    }

    /// Whether the connection's limit, as reported to the peer, holds back a stream.
    fn told_of_connection(&mut self) -> bool {
        self.drop_stale();
        !self.starved.is_empty() && self.blocked_at == Some(self.send_credit.limit())
    }

    /// A stream held back by its own limit, as reported to the peer.
    fn told_of_stream(&self) -> Option<StreamId> {
        let mut streams = self.slots.iter().flatten();
        let told = streams.find(|s| s.send.as_ref().is_some_and(SendStream::is_told_blocked));
        told.map(|s| s.id)
    }

    /// Writes the control frames that are due, as far as they fit, and records each with `sent`.
    pub(crate) fn write_control(
        &mut self,
        now: Time,
        rtt: Duration,
        w: &mut Writer<'_>,
        mut sent: impl FnMut(SentFrame),
    ) {
        if (self.max_data_pending || self.gives_credit_early()) && w.remaining() >= LARGEST {
            self.max_data_pending = false;
            let limit = self.recv_credit.renew(now, Self::rtt_for_credit(rtt));
            frame::write::max_data(w, limit);
            sent(SentFrame::MaxData);
        }
        if self.blocked_pending && w.remaining() >= LARGEST {
            self.blocked_pending = false;
            frame::write::data_blocked(w, self.send_credit.limit());
            sent(SentFrame::DataBlocked);
        }
        for direction in DIRECTIONS {
            let opening = &mut self.opening[index(direction)];
            if opening.limit_pending && w.remaining() >= LARGEST {
                opening.limit_pending = false;
                opening.peer_limit = opening
                    .peer_limit
                    .max(opening.peer_window + opening.peer_ended_count)
                    .min(MAX_STREAMS);
                frame::write::max_streams(w, direction, opening.peer_limit);
                sent(SentFrame::MaxStreams(direction));
            }
            if opening.blocked_pending && w.remaining() >= LARGEST {
                opening.blocked_pending = false;
                frame::write::streams_blocked(w, direction, opening.local_limit);
                sent(SentFrame::StreamsBlocked(direction));
            }
        }
        while w.remaining() >= 2 * LARGEST {
            let Some(id) = self.control.pop_front() else {
                break;
            };
            self.write_stream_control(id, now, rtt, w, &mut sent);
        }
    }

    /// Up to two frames: one for each part of the stream.
    fn write_stream_control(
        &mut self,
        id: StreamId,
        now: Time,
        rtt: Duration,
        w: &mut Writer<'_>,
        sent: &mut impl FnMut(SentFrame),
    ) {
        let Some(slot) = self.find(id) else { return };
        if self.is_withheld(id) {
            // Queued again when the limit rises.
            return;
        }
        let Some(stream) = self.get(slot) else { return };
        if let Some(send) = stream.send.as_mut() {
            let final_size = send.charged();
            let blocked = send.is_blocked();
            match &mut send.reset {
                Some(reset) if reset.frame == ResetFrame::Due => {
                    reset.frame = ResetFrame::Sent;
                    let (code, reliable) = (reset.code, reset.reliable);
                    if reliable == 0 {
                        frame::write::reset_stream(w, id, code, final_size);
                        sent(SentFrame::ResetStream(id));
                    } else {
                        frame::write::reset_stream_at(w, id, code, final_size, reliable);
                        sent(SentFrame::ResetStreamAt { id, reliable });
                    }
                }
                _ if blocked => {
                    frame::write::stream_data_blocked(w, id, send.tell_blocked());
                    sent(SentFrame::StreamDataBlocked(id));
                }
                _ => {}
            }
        }
        if let Some(recv) = stream.recv.as_mut() {
            if let Some((code, true)) = recv.stop {
                recv.stop = Some((code, false));
                frame::write::stop_sending(w, id, code);
                sent(SentFrame::StopSending(id));
            } else if std::mem::take(&mut recv.credit_pending)
                && recv.state == super::recv::RecvState::Recv
            {
                let limit = recv.credit.renew(now, Self::rtt_for_credit(rtt));
                frame::write::max_stream_data(w, id, limit);
                sent(SentFrame::MaxStreamData(id));
            }
        }
    }

    /// A packet with this control frame was lost: anything that still matters is sent again (RFC
    /// 9000 §13.3).
    pub(crate) fn on_control_lost(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::MaxData => self.max_data_pending = true,
            SentFrame::MaxStreams(direction) => self.opening[index(direction)].limit_pending = true,
            SentFrame::ResetStream(id) | SentFrame::ResetStreamAt { id, .. } => {
                self.repeat(id, |s| {
                    if let Some(send) = s.send.as_mut()
                        && !send.is_terminal()
                        && let Some(reset) = send.reset.as_mut()
                        && reset.frame == ResetFrame::Sent
                    {
                        reset.frame = ResetFrame::Due;
                    }
                });
            }
            SentFrame::DataBlocked => {
                self.blocked_pending =
                    !self.starved.is_empty() && self.blocked_at == Some(self.send_credit.limit());
            }
            SentFrame::StreamsBlocked(direction) => {
                let opening = &mut self.opening[index(direction)];
                opening.blocked_pending = opening.local_refused;
            }
            SentFrame::StreamDataBlocked(id) => self.repeat(id, |s| {
                if let Some(send) = s.send.as_mut() {
                    send.untell_blocked();
                }
            }),
            SentFrame::StopSending(id) => self.repeat(id, |s| {
                if let Some(recv) = s
                    .recv
                    .as_mut()
                    .filter(|r| r.state == super::recv::RecvState::Recv)
                    && let Some((_, due)) = recv.stop.as_mut()
                {
                    *due = true;
                }
            }),
            SentFrame::MaxStreamData(id) => self.repeat(id, |s| {
                if let Some(recv) = s.recv.as_mut() {
                    recv.credit_pending = true;
                }
            }),
            _ => {}
        }
    }

    fn repeat(&mut self, id: StreamId, mark: impl FnOnce(&mut super::Stream)) {
        if let Some(slot) = self.find(id)
            && let Some(stream) = self.get(slot)
        {
            mark(stream);
            self.control.push_back(id);
        }
    }

    /// The peer has seen our RESET_STREAM (`reliable` 0) or RESET_STREAM_AT.
    pub(crate) fn on_reset_acked(&mut self, id: StreamId, reliable: u64) {
        let Some(slot) = self.find(id) else { return };
        let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
            return;
        };
        let before = send.is_delivering();
        let done = send.on_reset_acked(reliable);
        let (after, late) = (send.is_delivering(), send.late);
        self.count_delivering(before, after, late);
        if done {
            self.events.push_back(Event::Finished(id));
        }
        self.remove_if_done(slot);
    }
}
