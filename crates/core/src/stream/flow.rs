//! Flow control of one stream or of the connection (RFC 9000 §4).

use std::time::Duration;

use crate::time::Time;

/// The least rise of a used-up limit that is worth a frame, in bytes; less in windows below 64 KiB.
const LEAST_GAIN: u64 = 4096;

/// The peer's limit that a stream has reached, as an offset: the stream's own (MAX_STREAM_DATA,
/// RFC 9000 §19.10), or that of all streams together (MAX_DATA, §19.9). It stays the same as long
/// as the peer grants no credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachedLimit {
    /// The stream's own.
    Stream(u64),
    /// The connection's.
    Connection(u64),
}

/// Credit granted by the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCredit {
    limit: u64,
    used: u64,
}

impl SendCredit {
    /// Credit up to `limit`, none used.
    #[must_use]
    pub(crate) const fn new(limit: u64) -> Self {
        Self { limit, used: 0 }
    }

    /// Bytes that may still be sent.
    #[must_use]
    pub(crate) const fn available(&self) -> u64 {
        self.limit - self.used
    }

    /// The absolute limit.
    #[must_use]
    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Raises the limit; a lower one is ignored (RFC 9000 §4.1). Returns whether it rose.
    pub(crate) fn raise(&mut self, limit: u64) -> bool {
        let rose = limit > self.limit;
        self.limit = self.limit.max(limit);
        rose
    }

    /// Uses `bytes` of the credit.
    pub(crate) fn consume(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.available());
        self.used += bytes;
    }
}

/// Credit granted to the peer; its window grows when the reader empties it faster than the path
/// refills it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveCredit {
    /// Offset up to which the peer may send, as last advertised.
    advertised: u64,
    /// Highest offset received.
    received: u64,
    /// Bytes that the reader has taken.
    consumed: u64,
    window: u64,
    max_window: u64,
    /// When the reader began the half window over which it is timed, and what it had taken by
    /// then. `None` until the credit is first renewed.
    measured_from: Option<Time>,
    consumed_then: u64,
}

impl ReceiveCredit {
    /// Credit of `window` bytes that may grow to `max_window`.
    #[must_use]
    pub(crate) const fn new(window: u64, max_window: u64) -> Self {
        Self {
            advertised: window,
            received: 0,
            consumed: 0,
            window,
            max_window,
            measured_from: None,
            consumed_then: 0,
        }
    }

    /// Changes how far the window may grow. Advertised credit remains valid (RFC 9000 §4.1).
    pub(crate) fn set_max_window(&mut self, max_window: u64) {
        self.max_window = max_window;
        // Something is left from which it can grow again.
        self.window = self.window.min(max_window).max(max_window.min(LEAST_GAIN));
    }

    /// Records that data up to `offset` arrived; returns by how much the highest offset rose, or
    /// `None` if the peer went beyond its credit (FLOW_CONTROL_ERROR).
    #[inline]
    pub(crate) fn receive_to(&mut self, offset: u64) -> Option<u64> {
        if offset > self.advertised {
            return None;
        }
        let rise = offset.saturating_sub(self.received);
        self.received += rise;
        Some(rise)
    }

    /// As [`receive_to`](Self::receive_to), for a sum over streams: `rise` more bytes have arrived.
    #[inline]
    pub(crate) fn receive_more(&mut self, rise: u64) -> Option<()> {
        self.receive_to(self.received.checked_add(rise)?)
            .map(|_| ())
    }

    /// The limit last advertised to the peer.
    #[must_use]
    pub(crate) const fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Highest offset received.
    #[must_use]
    pub(crate) const fn received(&self) -> u64 {
        self.received
    }

    /// Bytes taken by the reader.
    #[must_use]
    pub(crate) const fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Records that the reader took `bytes`.
    pub(crate) fn consume(&mut self, bytes: u64) {
        self.consumed += bytes;
    }

    /// Whether to advertise a new limit: half of the window is used up.
    #[must_use]
    pub(crate) const fn wants_update(&self) -> bool {
        self.unread_room() <= self.window / 2
    }

    /// Whether to advertise a new limit in a packet that is sent, and acknowledged, for another
    /// reason: a quarter of the window is used up. A packet with nothing else but a limit also
    /// costs the peer an acknowledgement.
    #[must_use]
    pub(crate) const fn takes_update(&self) -> bool {
        // Also less than the window: a window of zero, or one that was lowered, grants nothing.
        let room = self.unread_room();
        room < self.window && room <= self.window - self.window / 4
    }

    /// Whether the peer has used up its credit while so much is unread that
    /// [`wants_update`](Self::wants_update) may never return true: an application that reads one
    /// stream after the other waits for the rest of the first one while the others' data fills the
    /// window. A gain of a few packets is worth a frame, however large the window: it may be all
    /// that unread streams leave to the others.
    #[must_use]
    pub(crate) const fn is_used_up(&self) -> bool {
        let window = self.grown();
        let sixteenth = window.div_ceil(16);
        let gain = if sixteenth < LEAST_GAIN {
            sixteenth
        } else {
            LEAST_GAIN
        };
        self.received == self.advertised && self.unread_room() < window - gain
    }

    /// Whether the peer has used up its credit, and unread data leaves none to grant.
    #[must_use]
    pub(crate) const fn is_full(&self) -> bool {
        self.received == self.advertised && !self.wants_update() && !self.is_used_up()
    }

    /// Bytes that the peer may send beyond those already read. Also zero if more was read than was
    /// ever allowed: data that exceeds the connection's limit closes the connection, but can still
    /// be read.
    const fn unread_room(&self) -> u64 {
        self.advertised.saturating_sub(self.consumed)
    }

    const fn grown(&self) -> u64 {
        let twice = self.window * 2;
        if twice < self.max_window {
            twice
        } else {
            self.max_window
        }
    }

    /// The new limit to advertise. The window doubles if the reader took half of it in less than
    /// two round trips, or if it is full of unread data.
    pub(crate) fn renew(&mut self, now: Time, rtt: Duration) -> u64 {
        let full = self.received == self.advertised && !self.wants_update();
        let half = self.consumed - self.consumed_then >= self.window / 2;
        let quick = (self.measured_from).is_some_and(|from| half && now - from < 2 * rtt);
        if full || half || self.measured_from.is_none() {
            (self.measured_from, self.consumed_then) = (Some(now), self.consumed);
        }
        if full || quick {
            self.window = self.grown();
        }
        self.advertised = self.advertised.max(self.consumed + self.window);
        self.advertised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 9000 §4.1
    #[test]
    fn credit_is_renewed_at_half_and_the_window_grows_with_use() {
        let mut credit = ReceiveCredit::new(1000, 4000);
        assert_eq!(credit.receive_to(1001), None);
        assert_eq!(credit.receive_to(600), Some(600));
        assert_eq!(credit.receive_to(600), Some(0));
        credit.consume(499);
        assert!(!credit.wants_update());
        credit.consume(1);
        assert!(credit.wants_update());
        let rtt = Duration::from_millis(10);
        assert_eq!(credit.renew(Time::from_nanos(0), rtt), 1500);
        credit.consume(600);
        assert_eq!(
            credit.renew(Time::from_nanos(5_000_000), rtt),
            1100 + 2000,
            "used up fast: the window doubles"
        );
        credit.consume(1900);
        assert_eq!(
            credit.renew(Time::from_nanos(90_000_000), rtt),
            3000 + 2000,
            "used up slowly: it stays"
        );
    }

    // test: RFC 9000 §4.1
    #[test]
    fn a_packet_that_is_sent_anyway_takes_a_limit_from_a_quarter_on() {
        let rtt = Duration::from_millis(10);
        let mut credit = ReceiveCredit::new(1000, 4000);
        credit.receive_to(800);
        credit.consume(249);
        assert!(!credit.takes_update());
        credit.consume(1);
        assert!(credit.takes_update() && !credit.wants_update());
        assert_eq!(credit.renew(Time::from_nanos(0), rtt), 1250);
        assert!(!credit.takes_update());
        credit.consume(250);
        let limit = credit.renew(Time::from_nanos(1), rtt);
        assert_eq!(limit, 1500, "a quarter, however quickly it is used");
        credit.consume(250);
        let limit = credit.renew(Time::from_nanos(2), rtt);
        assert_eq!(limit, 750 + 2000, "half, in quarters");
        credit.consume(1000);
        assert_eq!(credit.renew(Time::from_nanos(90_000_000), rtt), 3750);
        for window in 0..4 {
            let mut credit = ReceiveCredit::new(window, window);
            assert!(!credit.takes_update(), "nothing was read");
            credit.consume(window);
            assert_eq!(credit.takes_update(), window > 0);
        }
    }

    // test: RFC 9000 §4.1
    #[test]
    fn a_window_full_of_unread_data_grows_to_its_limit() {
        let rtt = Duration::from_millis(10);
        let mut credit = ReceiveCredit::new(1000, 3000);
        credit.receive_to(999);
        assert!(!credit.is_used_up(), "the peer has credit left");
        credit.receive_to(1000);
        assert!(credit.is_used_up() && !credit.wants_update());
        assert_eq!(credit.renew(Time::from_nanos(0), rtt), 2000);
        assert!(!credit.is_used_up());
        credit.receive_to(2000);
        credit.consume(100);
        assert_eq!(credit.renew(Time::from_nanos(1), rtt), 3100);
        credit.receive_to(3100);
        credit.consume(188);
        assert!(!credit.is_used_up(), "too little was read for a renewal");
        credit.consume(1);
        assert!(credit.is_used_up());
        assert_eq!(credit.renew(Time::from_nanos(2), rtt), 3289);
        assert!(
            !ReceiveCredit::new(0, 0).is_used_up(),
            "a window of zero grants nothing"
        );
    }

    // test: RFC 9000 §4.1
    #[test]
    fn lowering_a_limit_revokes_no_credit() {
        let rtt = Duration::from_millis(10);
        let mut credit = ReceiveCredit::new(100_000, 100_000);
        let use_up = |credit: &mut ReceiveCredit, limit: u64| {
            credit.receive_to(limit);
            credit.consume(limit - credit.consumed);
            credit.renew(Time::from_nanos(limit), rtt)
        };
        assert_eq!(use_up(&mut credit, 100_000), 200_000);
        credit.set_max_window(300_000);
        assert_eq!(use_up(&mut credit, 200_000), 400_000);
        credit.set_max_window(0);
        assert_eq!(credit.renew(Time::from_nanos(1), rtt), 400_000);
        assert_eq!(use_up(&mut credit, 400_000), 400_000);
        credit.set_max_window(150_000);
        let one = use_up(&mut credit, 400_000);
        assert!(one > 400_000, "the window grows again");
        let two = use_up(&mut credit, one);
        assert!(two - one > one - 400_000, "the window grows again");
    }
}
