//! The sending part of a stream (RFC 9000 §3.1).

use squall_wire::StreamId;

use super::flow::SendCredit;
use super::send_buffer::SendBuffer;

/// States of RFC 9000 §3.1, figure 2; Ready and Send are one here, for no decision depends on the difference.
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
    /// Code of a RESET_STREAM and whether the frame is to be sent (again).
    pub(crate) reset: Option<(u64, bool)>,
    /// Code of the peer's STOP_SENDING.
    pub(crate) stopped: Option<u64>,
    /// A writer was refused for lack of room and is to be told.
    pub(crate) writer_waits: bool,
    /// Whether the writer is in the connection's list of those that wait for its buffer.
    pub(crate) writer_listed: bool,
    /// Whether the stream is in the line of those that have something to send.
    pub(crate) queued: bool,
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
            writer_listed: false,
            queued: false,
        }
    }

    /// Whether a STREAM frame could be sent now, the connection's credit aside.
    #[must_use]
    pub(crate) fn wants_to_send(&self) -> bool {
        if !matches!(self.state, SendState::Send | SendState::DataSent) {
            return false;
        }
        self.buffer.has_lost()
            || (self.buffer.unsent() < self.buffer.end() && self.credit.available() > 0)
            || (self.fin_pending && self.buffer.unsent() == self.buffer.end())
    }

    /// Whether nothing more will happen here.
    #[must_use]
    pub(crate) const fn is_terminal(&self) -> bool {
        matches!(
            self.state,
            SendState::DataReceived | SendState::ResetReceived
        )
    }

    /// Turns to ResetSent: unsent and lost data is given up. Returns the bytes freed.
    pub(crate) fn reset(&mut self, code: u64) -> u64 {
        if !matches!(self.state, SendState::Send | SendState::DataSent) {
            return 0;
        }
        self.state = SendState::ResetSent;
        self.reset = Some((code, true));
        self.fin_pending = false;
        self.buffer.clear()
    }

    /// The final size that a RESET_STREAM reports: what flow control was charged for (RFC 9000 §4.5).
    #[must_use]
    pub(crate) const fn charged(&self) -> u64 {
        self.credit.limit() - self.credit.available()
    }

    /// Notes that a range, and perhaps the FIN, is acknowledged. Returns the bytes freed and whether all is settled now.
    pub(crate) fn on_acked(&mut self, start: u64, len: u64, fin: bool) -> (u64, bool) {
        if !matches!(self.state, SendState::Send | SendState::DataSent) {
            return (0, false);
        }
        let freed = self.buffer.on_acked(start..start + len);
        self.fin_acked |= fin;
        self.fin_pending &= !self.fin_acked;
        let done = self.state == SendState::DataSent && self.fin_acked && self.buffer.is_settled();
        if done {
            self.state = SendState::DataReceived;
        }
        (freed, done)
    }

    /// Notes that a range, and perhaps the FIN, was lost.
    pub(crate) fn on_lost(&mut self, start: u64, len: u32, fin: bool) {
        if matches!(self.state, SendState::Send | SendState::DataSent) {
            self.buffer.on_lost(start..start + u64::from(len));
            self.fin_pending |= fin && !self.fin_acked;
        }
    }
}

/// A STREAM frame that a packet is to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRange {
    /// The stream.
    pub(crate) id: StreamId,
    /// Offset of the first byte.
    pub(crate) start: u64,
    /// Number of bytes.
    pub(crate) len: u32,
    /// Whether the stream ends behind them.
    pub(crate) fin: bool,
}
