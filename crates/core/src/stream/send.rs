//! The sending part of a stream (RFC 9000 §3.1).

use squall_wire::StreamId;

use super::flow::SendCredit;
use super::queue::Priority;
use super::send_buffer::SendBuffer;

/// States of RFC 9000 §3.1, figure 2; Ready and Send are one state here, because no decision
/// depends on the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// Data may be written.
    Send,
    /// The end is known; data or FIN may be unsent.
    DataSent,
    /// All is acknowledged.
    DataReceived,
    /// RESET_STREAM is sent or to be sent.
    ResetSent,
    /// RESET_STREAM is acknowledged.
    ResetReceived,
}

/// The progress of a reset's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetFrame {
    /// The promised data has to be sent first: until then flow control may forbid the final size.
    Waits,
    /// To be sent (again).
    Due,
    /// Sent.
    Sent,
    /// The peer has it.
    Acknowledged,
}

/// The reset of a sending part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reset {
    /// The application's code.
    pub(crate) code: u64,
    /// Bytes that are delivered all the same (RESET_STREAM_AT); 0 is RESET_STREAM.
    pub(crate) reliable: u64,
    /// Its frame.
    pub(crate) frame: ResetFrame,
}

/// The sending part of a stream.
#[derive(Debug)]
pub(crate) struct SendStream {
    /// State of RFC 9000 §3.1.
    pub(crate) state: SendState,
    /// The bytes.
    pub(crate) buffer: SendBuffer,
    /// Credit given by the peer.
    pub(crate) credit: SendCredit,
    /// Whether the FIN is to be sent (again).
    pub(crate) fin_pending: bool,
    /// Whether the FIN is acknowledged.
    pub(crate) fin_acked: bool,
    /// Whether and how it was reset.
    pub(crate) reset: Option<Reset>,
    /// Code of the peer's STOP_SENDING.
    pub(crate) stopped: Option<u64>,
    /// A writer was refused for lack of room and is to be notified.
    pub(crate) writer_waits: bool,
    /// The writer waits until at most this many bytes remain unsent.
    pub(crate) unsent_awaited: Option<u64>,
    /// Whether the writer is in the connection's list of those that wait for its buffer.
    pub(crate) writer_listed: bool,
    /// Whether the stream is in the line of those with something to send.
    pub(crate) queued: bool,
    /// Whether it is in the line of those held back only by the connection's credit.
    pub(crate) starved: bool,
    /// Whether the stream was finished when the application was already closing the connection.
    pub(crate) late: bool,
    /// Its priority.
    pub(crate) priority: Priority,
    /// How often the priority has changed.
    pub(crate) rank_changes: u32,
    /// The limit last reported to the peer as blocking.
    blocked_at: Option<u64>,
}

impl SendStream {
    /// A new stream with the peer's initial credit.
    #[must_use]
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            state: SendState::Send,
            buffer: SendBuffer::default(),
            credit: SendCredit::new(limit),
            fin_pending: false,
            fin_acked: false,
            reset: None,
            stopped: None,
            writer_waits: false,
            unsent_awaited: None,
            writer_listed: false,
            queued: false,
            starved: false,
            late: false,
            priority: Priority::default(),
            rank_changes: 0,
            blocked_at: None,
        }
    }

    /// Becomes a new stream, with the memory of the buffer, which was
    /// [recycled](SendBuffer::recycle).
    pub(crate) fn renew(&mut self, limit: u64) {
        // Every part is named, so that none is forgotten.
        let Self {
            state,
            buffer: _,
            credit,
            fin_pending,
            fin_acked,
            reset,
            stopped,
            writer_waits,
            unsent_awaited,
            writer_listed,
            queued,
            starved,
            late,
            priority,
            rank_changes,
            blocked_at,
        } = self;
        (*state, *credit) = (SendState::Send, SendCredit::new(limit));
        (*fin_pending, *fin_acked) = (false, false);
        (*reset, *stopped) = (None, None);
        (*writer_waits, *unsent_awaited, *writer_listed) = (false, None, false);
        (*queued, *starved, *late) = (false, false, false);
        (*priority, *rank_changes) = (Priority::default(), 0);
        *blocked_at = None;
    }

    /// Whether a STREAM frame could be sent now, ignoring the connection's credit.
    #[must_use]
    pub(crate) fn wants_to_send(&self) -> bool {
        if !matches!(self.state, SendState::Send | SendState::DataSent) {
            return false;
        }
        self.buffer.has_lost()
            || (self.buffer.unsent() < self.buffer.end() && self.credit.available() > 0)
            || (self.fin_pending && self.buffer.unsent() == self.buffer.end())
    }

    /// The peer has received nothing of the stream: all of it is sent again, within `limit`.
    pub(crate) fn rewind(&mut self, limit: u64) {
        self.credit = SendCredit::new(limit);
        self.buffer.rewind();
        self.fin_pending = self.state == SendState::DataSent && self.reset.is_none();
        self.blocked_at = None;
        if let Some(reset) = &mut self.reset {
            reset.frame = if reset.reliable > 0 {
                ResetFrame::Waits
            } else {
                ResetFrame::Due
            };
        }
    }

    /// Whether the stream was finished, and the peer has not acknowledged everything it should get.
    #[must_use]
    pub(crate) fn is_delivering(&self) -> bool {
        self.state == SendState::DataSent
    }

    /// Whether nothing more will happen here.
    #[must_use]
    pub(crate) const fn is_terminal(&self) -> bool {
        matches!(
            self.state,
            SendState::DataReceived | SendState::ResetReceived
        )
    }

    /// Bytes of the peer's credit for which nothing has been written yet.
    #[must_use]
    pub(crate) const fn unused_credit(&self) -> u64 {
        self.credit.limit().saturating_sub(self.buffer.end())
    }

    /// Whether all credit of the stream is used, a writer or bytes wait for more, and the peer has
    /// not been told at this limit (RFC 9000 §4.1).
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_held_back() && self.blocked_at != Some(self.credit.limit())
    }

    /// As [`is_blocked`](Self::is_blocked), but the peer has been told at this limit.
    #[must_use]
    pub(crate) fn is_told_blocked(&self) -> bool {
        self.is_held_back() && self.blocked_at == Some(self.credit.limit())
    }

    fn is_held_back(&self) -> bool {
        self.credit.available() == 0
            && (self.writer_waits || self.buffer.unsent() < self.buffer.end())
    }

    /// Records that the limit is reported to the peer, and returns the limit.
    pub(crate) const fn tell_blocked(&mut self) -> u64 {
        self.blocked_at = Some(self.credit.limit());
        self.credit.limit()
    }

    /// Undoes that record.
    pub(crate) const fn untell_blocked(&mut self) {
        self.blocked_at = None;
    }

    /// Changes to ResetSent: unsent and lost data is discarded. Returns the bytes freed.
    pub(crate) fn reset(&mut self, code: u64) -> u64 {
        if !matches!(self.state, SendState::Send | SendState::DataSent) {
            return 0;
        }
        self.state = SendState::ResetSent;
        // draft-ietf-quic-reliable-stream-reset §5.2: the code never changes.
        self.reset = Some(Reset {
            code: self.reset.map_or(code, |r| r.code),
            reliable: 0,
            frame: ResetFrame::Due,
        });
        self.fin_pending = false;
        self.buffer.clear()
    }

    /// Discards everything after the first `reliable` bytes (draft-ietf-quic-reliable-stream-reset
    /// §5). Returns the bytes freed.
    pub(crate) fn reset_at(&mut self, code: u64, reliable: u64) -> u64 {
        let promised = self.reset.map_or(u64::MAX, |r| r.reliable);
        let reliable = reliable.min(self.buffer.end()).min(promised);
        if reliable == 0 {
            return self.reset(code);
        }
        if !matches!(self.state, SendState::Send | SendState::DataSent) || reliable == promised {
            return 0;
        }
        self.state = SendState::DataSent;
        self.reset = Some(Reset {
            code: self.reset.map_or(code, |r| r.code),
            reliable,
            frame: ResetFrame::Waits,
        });
        self.fin_pending = false;
        self.buffer.truncate(reliable)
    }

    /// Whether the frame of a partial reset may be sent now; called when data was sent or
    /// acknowledged. A peer that does not support RESET_STREAM_AT gets RESET_STREAM once it has all
    /// that was promised.
    pub(crate) fn reset_becomes_due(&mut self, partial_resets: bool) -> bool {
        match &mut self.reset {
            Some(reset) if reset.frame == ResetFrame::Waits => {
                if partial_resets && self.buffer.unsent() >= reset.reliable {
                    reset.frame = ResetFrame::Due;
                } else if !partial_resets && self.buffer.is_settled() {
                    let code = reset.code;
                    self.reset(code);
                } else {
                    return false;
                }
                true
            }
            _ => false,
        }
    }

    /// Records that a RESET_STREAM or RESET_STREAM_AT is acknowledged; returns whether everything
    /// is now settled.
    pub(crate) fn on_reset_acked(&mut self, reliable: u64) -> bool {
        match &mut self.reset {
            Some(reset) if reset.reliable == reliable => reset.frame = ResetFrame::Acknowledged,
            _ => return false,
        }
        if self.state == SendState::ResetSent {
            self.state = SendState::ResetReceived;
            return false;
        }
        self.settle()
    }

    fn settle(&mut self) -> bool {
        let told = match self.reset {
            None => self.fin_acked,
            Some(reset) => reset.frame == ResetFrame::Acknowledged,
        };
        let done = self.state == SendState::DataSent && told && self.buffer.is_settled();
        if done {
            self.state = SendState::DataReceived;
        }
        done
    }

    /// The final size that a reset reports: the bytes charged to flow control (RFC 9000 §4.5).
    #[must_use]
    pub(crate) const fn charged(&self) -> u64 {
        self.credit.limit() - self.credit.available()
    }

    /// Records that a range, and perhaps the FIN, is acknowledged. Returns the bytes freed and
    /// whether everything is now settled.
    pub(crate) fn on_acked(&mut self, start: u64, len: u64, fin: bool) -> (u64, bool) {
        if !matches!(self.state, SendState::Send | SendState::DataSent) {
            return (0, false);
        }
        let freed = self.buffer.on_acked(start..start + len);
        self.fin_acked |= fin;
        self.fin_pending &= !self.fin_acked;
        (freed, self.settle())
    }

    /// Records that a range, and perhaps the FIN, was lost.
    pub(crate) fn on_lost(&mut self, start: u64, len: u32, fin: bool) {
        if matches!(self.state, SendState::Send | SendState::DataSent) {
            self.buffer.on_lost(start..start + u64::from(len));
            self.fin_pending |= fin && !self.fin_acked && self.reset.is_none();
        }
    }
}

/// A STREAM frame for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRange {
    /// The stream.
    pub(crate) id: StreamId,
    /// Offset of the first byte.
    pub(crate) start: u64,
    /// Number of bytes.
    pub(crate) len: u32,
    /// Whether the stream ends after them.
    pub(crate) fin: bool,
}

impl StreamRange {
    /// No bytes of any stream.
    pub(crate) const NONE: Self = Self {
        id: StreamId(0),
        start: 0,
        len: 0,
        fin: false,
    };
}
