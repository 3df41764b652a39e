//! The end of a connection (RFC 9000 §10).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use squall_wire::{Side, TransportError, TransportErrorCode};

use super::parts::clock::Timer;
use super::{Connection, State};
use crate::error::CloseReason;
use crate::event::Event;
use crate::time::Time;

/// The longest time that a connection waits for its first CONNECTION_CLOSE to be sent: its owner
/// may have many others to close, or no room in its socket.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The contents of our CONNECTION_CLOSE, and when it is repeated.
#[derive(Debug)]
pub(super) struct CloseFrame {
    /// When the connection was closed.
    begun: Time,
    pub(super) code: u64,
    /// The frame type that caused it; `None` is an application's close.
    pub(super) frame_type: Option<u64>,
    pub(super) reason: Bytes,
    /// Whether it is to be sent now.
    pub(super) due: bool,
    /// The datagram that was sent, and is repeated.
    pub(super) sent: Option<Closing>,
}

/// The remainder of a connection that this end has closed: the datagram with its CONNECTION_CLOSE,
/// which answers packets that still arrive (RFC 9000 §10.2.1). See [`Connection::take_closing`].
#[derive(Debug)]
pub struct Closing {
    remote: SocketAddr,
    pub(super) datagram: Box<[u8]>,
    /// Datagrams received since it was first sent.
    received: u64,
    /// Bytes that may be sent: three times those received (RFC 9000 §8.1), since packets are no
    /// longer authenticated.
    allowance: usize,
}

impl Closing {
    /// The datagram was sent to `remote` for the first time.
    pub(super) fn new(remote: SocketAddr, datagram: &[u8]) -> Self {
        Self {
            remote,
            datagram: datagram.into(),
            received: 0,
            allowance: 0,
        }
    }

    /// Records datagrams for the connection, of `bytes` in all, that came from `remote`. Returns
    /// the datagram that answers them, if one is due: ever more rarely, only to the peer's last
    /// address, and at most three times the bytes received from there.
    pub fn on_received(
        &mut self,
        remote: SocketAddr,
        datagrams: u64,
        bytes: usize,
    ) -> Option<&[u8]> {
        if remote != self.remote {
            return None;
        }
        // RFC 9000 §10.2.1: when the count reaches a power of two.
        let before = self.received.checked_ilog2();
        self.received = self.received.saturating_add(datagrams);
        let is_due = before != self.received.checked_ilog2();
        self.allowance = self.allowance.saturating_add(bytes.saturating_mul(3));
        let left = self.allowance.checked_sub(self.datagram.len());
        self.allowance = left.filter(|_| is_due)?;
        Some(&self.datagram)
    }
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
        // An application that closes has read all it wants.
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

    /// Closes a server's connection that the endpoint refuses after accepting it (RFC 9000 §5.2.2,
    /// CONNECTION_REFUSED).
    pub fn refuse(&mut self, now: Time) {
        let error = TransportError {
            code: TransportErrorCode::CONNECTION_REFUSED,
            frame_type: 0,
            reason: "too many connections",
        };
        self.close_with_error(now, &error);
    }

    /// Ends the connection because of a TLS alert (RFC 9001 §4.8).
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
        self.state = State::Closing(Box::new(CloseFrame {
            begun: now,
            code,
            frame_type,
            reason,
            due: true,
            sent: None,
        }));
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

    /// Whether this is a client's connection on which nothing has arrived yet.
    #[must_use]
    pub fn is_first_flight(&self) -> bool {
        self.side == Side::Client && !self.is_closed() && self.stats.datagrams_received == 0
    }

    /// Reports that the system cannot send to `remote`, for this reason. If nothing has arrived
    /// yet, a client's connection to it ends. Any other waits: there may be a route again, or the
    /// client may migrate. Returns whether the connection has ended.
    pub fn on_unreachable(&mut self, now: Time, remote: SocketAddr, why: io::ErrorKind) -> bool {
        let concerned = self.is_first_flight() && self.paths.active.path.remote == remote;
        if concerned {
            self.abandon(now, CloseReason::Unreachable(why));
        }
        concerned
    }

    /// Ends the connection without a packet, for an owner that can no longer send. What has arrived
    /// can still be read.
    pub fn cut_off(&mut self, now: Time, reason: CloseReason) {
        if !self.is_drained() {
            self.abandon(now, reason);
        }
    }

    /// Ends the connection without CONNECTION_CLOSE: idle timeout, stateless reset, no route.
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
        self.set_close_timer(now);
        self.datagrams.end_sending();
        self.streams.end_sending();
    }

    /// RFC 9000 §10.2: long enough for packets in flight to be discarded.
    fn set_close_timer(&mut self, now: Time) {
        let due = now + 3 * self.probe_timeout();
        self.clock.set(Timer::Close, Some(due));
    }

    /// The closing or draining period is over. It starts again if the owner has not asked for the
    /// CONNECTION_CLOSE yet: without it, the peer would keep the connection until its idle timeout.
    pub(super) fn on_close_timer(&mut self, now: Time) {
        match &self.state {
            State::Closing(close)
                if close.due && close.sent.is_none() && now - close.begun < LONGEST_WAIT =>
            {
                self.set_close_timer(now);
            }
            _ => self.abandon(now, CloseReason::IdleTimeout),
        }
    }

    /// Takes the answer to further packets, once CONNECTION_CLOSE has been written; `None` before
    /// that, and for a connection that this end has not closed. From then on the connection drains
    /// ([`is_draining`](Self::is_draining)), so that its owner may drop it at once and keep only
    /// the answer. Calling this is optional: a connection that is kept answers by itself.
    pub fn take_closing(&mut self) -> Option<Closing> {
        let State::Closing(close) = &mut self.state else {
            return None;
        };
        let closing = close.sent.take_if(|_| !close.due)?;
        self.state = State::Draining;
        Some(closing)
    }

    /// Datagrams arrived from `remote` while closing: they are answered as by [`Closing`]. While
    /// the amplification limit holds back the first CONNECTION_CLOSE, they raise it.
    pub(super) fn answer_while_closing(
        &mut self,
        remote: SocketAddr,
        datagrams: u64,
        bytes: usize,
    ) {
        let State::Closing(close) = &mut self.state else {
            return;
        };
        match &mut close.sent {
            Some(closing) => {
                let answer = closing.on_received(remote, datagrams, bytes);
                close.due |= answer.is_some();
            }
            None if remote == self.paths.active.path.remote => {
                self.paths.active.on_received(bytes);
                close.due = true;
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_answers_become_rarer_and_never_amplify() {
        let [peer, other]: [SocketAddr; 2] =
            ["192.0.2.1:1", "192.0.2.2:1"].map(|address| address.parse().unwrap());
        let mut closing = Closing::new(peer, &[7; 60]);
        assert_eq!(closing.on_received(other, 1, 1200), None);
        let answers = (1..=100).filter(|_| closing.on_received(peer, 1, 40).is_some());
        assert_eq!(answers.count(), 7);
        // 100 and 30 more: past 128.
        assert_eq!(
            closing.on_received(peer, 30, 1200),
            Some([7; 60].as_slice())
        );

        // A datagram with a client's Initial packet, in reply to a few bytes.
        let mut closing = Closing::new(peer, &[7; 1200]);
        assert_eq!(closing.on_received(peer, 1, 300), None);
        assert!(closing.on_received(peer, 1, 100).is_some());
        assert_eq!(closing.on_received(peer, 2, 399), None);
    }
}
