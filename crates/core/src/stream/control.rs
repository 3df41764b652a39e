//! Control frames of streams and of flow control: which are due, and what their loss means.

use std::time::Duration;

use squall_wire::cursor::Writer;
use squall_wire::{Direction, StreamId, frame};

use super::{SendState, Streams, index};
use crate::sent_frame::SentFrame;
use crate::time::Time;

/// The largest of these frames: RESET_STREAM with three eight-byte integers.
const LARGEST: usize = 25;

const DIRECTIONS: [Direction; 2] = [Direction::Bidirectional, Direction::Unidirectional];

impl Streams {
    /// Whether a control frame is due.
    #[must_use]
    pub(crate) fn has_control(&self) -> bool {
        self.max_data_pending
            || !self.control.is_empty()
            || self.opening.iter().any(|o| o.limit_pending)
    }

    /// Writes the control frames that are due, as far as they fit, and notes each with `sent`.
    pub(crate) fn write_control(
        &mut self,
        now: Time,
        rtt: Duration,
        w: &mut Writer<'_>,
        mut sent: impl FnMut(SentFrame),
    ) {
        if self.max_data_pending && w.remaining() >= LARGEST {
            self.max_data_pending = false;
            let limit = self.recv_credit.renew(now, Self::rtt_for_credit(rtt));
            frame::write::max_data(w, limit);
            sent(SentFrame::MaxData);
        }
        for direction in DIRECTIONS {
            let opening = &mut self.opening[index(direction)];
            if opening.limit_pending && w.remaining() >= LARGEST {
                opening.limit_pending = false;
                opening.peer_limit = opening
                    .peer_limit
                    .max(opening.peer_window + opening.peer_ended_count);
                frame::write::max_streams(w, direction, opening.peer_limit);
                sent(SentFrame::MaxStreams(direction));
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
        let Some(stream) = self.get(slot) else { return };
        if let Some(send) = stream.send.as_mut()
            && let Some((code, true)) = send.reset
        {
            send.reset = Some((code, false));
            frame::write::reset_stream(w, id, code, send.charged());
            sent(SentFrame::ResetStream(id));
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

    /// A packet with this control frame was lost: what still matters is sent again (RFC 9000 §13.3).
    pub(crate) fn on_control_lost(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::MaxData => self.max_data_pending = true,
            SentFrame::MaxStreams(direction) => self.opening[index(direction)].limit_pending = true,
            SentFrame::ResetStream(id) => self.repeat(id, |s| {
                if let Some(send) = s.send.as_mut().filter(|s| s.state == SendState::ResetSent)
                    && let Some((_, due)) = send.reset.as_mut()
                {
                    *due = true;
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

    /// The peer has seen our RESET_STREAM.
    pub(crate) fn on_reset_acked(&mut self, id: StreamId) {
        let Some(slot) = self.find(id) else { return };
        if let Some(send) = self.get(slot).and_then(|s| s.send.as_mut())
            && send.state == SendState::ResetSent
        {
            send.state = SendState::ResetReceived;
            self.remove_if_done(slot);
        }
    }
}
