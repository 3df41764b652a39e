//! The end of a connection (RFC 9000 §10).

use bytes::Bytes;
use squall_wire::{TransportError, TransportErrorCode};

use super::parts::clock::Timer;
use super::{Connection, State};
use crate::error::CloseReason;
use crate::event::Event;
use crate::time::Time;

/// What our CONNECTION_CLOSE says, and when it is said again.
#[derive(Debug)]
pub(super) struct CloseFrame {
    pub(super) code: u64,
    /// The frame type that caused it; `None` is an application's close.
    pub(super) frame_type: Option<u64>,
    pub(super) reason: Bytes,
    /// Whether it is to be sent now.
    pub(super) due: bool,
    /// Packets that came since it was first sent.
    received: u64,
}

impl Connection {
    /// Closes the connection with the application's `code`, below 2^62, and `reason`.
    /// Unacknowledged data is lost; acknowledged data is not.
    pub fn close(&mut self, now: Time, code: u64, reason: &[u8]) {
        if self.is_closed() {
            return;
        }
        let code = code.min(squall_wire::varint::MAX);
        let reason = Bytes::copy_from_slice(reason);
        self.begin_closing(now, code, None, reason.clone());
        // An application that closes has read what it wants.
        self.streams.clear();
        let reason = CloseReason::Application {
            code,
            reason,
            remote: false,
        };
        self.report_closed(now, reason);
    }

    /// The connection has ended: reports and logs it.
    pub(super) fn report_closed(&mut self, now: Time, reason: CloseReason) {
        self.log.closed(now, &reason);
        self.streams.events.push_back(Event::Closed(reason));
    }

    /// Ends the connection because the peer violated the protocol.
    pub(super) fn close_with_error(&mut self, now: Time, error: &TransportError) {
        if self.is_closed() {
            return;
        }
        let reason = Bytes::from_static(error.reason.as_bytes());
        self.begin_closing(now, error.code.0, Some(error.frame_type), reason);
        let reason = CloseReason::Transport {
            code: error.code,
            reason: error.reason.to_owned(),
            remote: false,
        };
        self.report_closed(now, reason);
    }

    /// Closes a server's connection that the endpoint refuses after all (RFC 9000 §5.2.2,
    /// CONNECTION_REFUSED).
    pub fn refuse(&mut self, now: Time) {
        let error = TransportError {
            code: TransportErrorCode::CONNECTION_REFUSED,
            frame_type: 0,
            reason: "too many connections",
        };
        self.close_with_error(now, &error);
    }

    /// Ends the connection for what TLS found (RFC 9001 §4.8).
    pub(super) fn close_with_alert(&mut self, now: Time, alert: &squall_tls::Alert) {
        if self.is_closed() {
            return;
        }
        let code = alert.code.map_or(
            TransportErrorCode::INTERNAL_ERROR,
            TransportErrorCode::crypto,
        );
        self.begin_closing(
            now,
            code.0,
            Some(0x06),
            Bytes::copy_from_slice(alert.reason.as_bytes()),
        );
        let reason = CloseReason::Transport {
            code,
            reason: alert.reason.clone(),
            remote: false,
        };
        self.report_closed(now, reason);
    }

    fn begin_closing(&mut self, now: Time, code: u64, frame_type: Option<u64>, reason: Bytes) {
        self.state = State::Closing(CloseFrame {
            code,
            frame_type,
            reason,
            due: true,
            received: 0,
        });
        self.end(now);
    }

    /// The peer closed: nothing more is sent (RFC 9000 §10.2.2).
    pub(super) fn drain(&mut self, now: Time, reason: CloseReason) {
        if matches!(self.state, State::Draining | State::Drained) {
            return;
        }
        let reported = matches!(self.state, State::Closing(_));
        self.state = State::Draining;
        self.end(now);
        if !reported {
            self.report_closed(now, reason);
        }
    }

    /// Ends the connection without CONNECTION_CLOSE: idle timeout, stateless reset.
    pub(super) fn abandon(&mut self, now: Time, reason: CloseReason) {
        let reported = self.is_closed();
        self.state = State::Drained;
        self.clock.clear();
        self.streams.end_sending();
        if !reported {
            self.report_closed(now, reason);
        }
    }

    fn end(&mut self, now: Time) {
        self.clock.clear();
        // RFC 9000 §10.2: long enough for packets under way to be discarded.
        self.clock
            .set(Timer::Close, Some(now + 3 * self.probe_timeout()));
        self.datagrams.end_sending();
        self.streams.end_sending();
    }

    /// A packet came while closing: the answer is repeated, ever more rarely (RFC 9000 §10.2.1).
    pub(super) fn answer_while_closing(&mut self, datagrams: u64) {
        if let State::Closing(close) = &mut self.state {
            let before = close.received;
            close.received += datagrams;
            let due = before.checked_ilog2() != close.received.checked_ilog2();
            close.due |= due;
        }
    }
}
