//! Packet numbers received in one space, and the decision when to acknowledge them.
//!
//! The decision is taken once a received run (`design.md` §3 step 6), not once a packet.

use squall_wire::Ecn;
use squall_wire::frame::EcnCounts;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::MAX_ACK_RANGES;
use crate::range_set::RangeSet;
use crate::time::Time;

/// Whether and how urgently an acknowledgement is owed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owed {
    #[default]
    Nothing,
    By(Time),
    Now,
}

/// The packet numbers received in one space.
#[derive(Debug, Default)]
pub(crate) struct ReceivedPackets {
    numbers: RangeSet,
    /// Numbers below were received or given up: the oldest ranges are forgotten beyond `MAX_ACK_RANGES`.
    forgotten_below: u64,
    /// Numbers below need not be reported again: the peer has seen their acknowledgement (RFC 9000 §13.2.4).
    reported_below: u64,
    largest_time: Time,
    eliciting_since_ack: u32,
    out_of_order: bool,
    owed: Owed,
    ecn: EcnCounts,
    ecn_seen: bool,
}

impl ReceivedPackets {
    /// The largest number received.
    #[must_use]
    pub(crate) fn largest(&self) -> Option<u64> {
        self.numbers.last().map(|r| r.end - 1)
    }

    /// Notes an opened packet; `false` if it is a duplicate, whose frames must not act (RFC 9000 §12.3).
    #[inline]
    pub(crate) fn insert(&mut self, number: u64, now: Time) -> bool {
        if number < self.forgotten_below {
            return false;
        }
        let expected = self.numbers.last().map_or(0, |r| r.end);
        if !self.numbers.insert_one(number) {
            return false;
        }
        if number >= expected {
            self.largest_time = now;
        }
        if number != expected {
            // RFC 9000 §13.2.1: reordering and gaps are acknowledged at once.
            self.out_of_order = true;
            self.numbers.reserve(MAX_ACK_RANGES + 1);
            while self.numbers.len() > MAX_ACK_RANGES {
                if let Some(range) = self.numbers.pop_first() {
                    self.forgotten_below = range.end;
                }
            }
        }
        true
    }

    /// Takes back a number noted by `insert`: the packet was dropped after all and must not be acknowledged.
    pub(crate) fn forget(&mut self, number: u64) {
        self.numbers.remove(number..number + 1);
    }

    /// Counts one ack-eliciting packet, and its ECN mark.
    #[inline]
    pub(crate) fn note(&mut self, ack_eliciting: bool, ecn: Ecn) {
        self.eliciting_since_ack += u32::from(ack_eliciting);
        match ecn {
            Ecn::NotEct => return,
            Ecn::Ect0 => self.ecn.ect0 += 1,
            Ecn::Ect1 => self.ecn.ect1 += 1,
            Ecn::Ce => {
                self.ecn.ce += 1;
                // RFC 9000 §13.2.1: congestion is reported at once.
                self.out_of_order |= ack_eliciting;
            }
        }
        self.ecn_seen = true;
    }

    /// The one decision of a received run: acknowledge now, or within `max_ack_delay` of `now`.
    pub(crate) fn settle(&mut self, now: Time, immediately: bool, max_ack_delay: Duration) {
        if self.eliciting_since_ack == 0 {
            self.out_of_order = false;
            return;
        }
        // RFC 9000 §13.2.2: at the latest every second ack-eliciting packet; within a run they count as one.
        if immediately || self.out_of_order || self.eliciting_since_ack >= 2 {
            self.owed = Owed::Now;
        } else if self.owed == Owed::Nothing {
            self.owed = Owed::By(now + max_ack_delay);
        }
    }

    /// Whether an acknowledgement must go out now.
    #[must_use]
    pub(crate) fn must_ack(&self, now: Time) -> bool {
        match self.owed {
            Owed::Nothing => false,
            Owed::By(time) => time <= now,
            Owed::Now => true,
        }
    }

    /// Whether an acknowledgement is owed at all, so that it rides along with other frames.
    #[must_use]
    pub(crate) fn may_ack(&self) -> bool {
        self.eliciting_since_ack > 0
    }

    /// When an acknowledgement held back must go out.
    #[must_use]
    pub(crate) const fn deadline(&self) -> Option<Time> {
        match self.owed {
            Owed::By(time) => Some(time),
            Owed::Nothing | Owed::Now => None,
        }
    }

    /// The ranges to report, descending, as an ACK frame wants them.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> + Clone + '_ {
        let below = self.reported_below;
        self.numbers
            .iter()
            .rev()
            .take_while(move |r| r.end > below)
            .map(|r| r.start..=r.end - 1)
    }

    /// How long the largest number has waited for its acknowledgement.
    #[must_use]
    pub(crate) fn delay(&self, now: Time) -> Duration {
        now - self.largest_time
    }

    /// The ECN counts to report, once any mark was seen (RFC 9000 §13.4.1).
    #[must_use]
    pub(crate) fn ecn_counts(&self) -> Option<EcnCounts> {
        self.ecn_seen.then_some(self.ecn)
    }

    /// Notes that an acknowledgement was written.
    pub(crate) fn on_ack_sent(&mut self) {
        self.owed = Owed::Nothing;
        self.eliciting_since_ack = 0;
        self.out_of_order = false;
    }

    /// The peer has seen our acknowledgement up to `largest`: ranges wholly below it need no further report.
    pub(crate) fn on_ack_acked(&mut self, largest: u64) {
        self.reported_below = self.reported_below.max(largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(25);

    // test: RFC 9000 §12.3, §13.2.3
    #[test]
    fn keeps_64_ranges_and_never_takes_a_number_twice() {
        let mut received = ReceivedPackets::default();
        for n in 0..1000 {
            assert!(received.insert(2 * n, Time::ZERO));
        }
        assert_eq!(received.ranges().count(), MAX_ACK_RANGES);
        assert!(
            (0..1000).all(|n| !received.insert(2 * n, Time::ZERO)),
            "duplicates, forgotten ones too, are refused"
        );
    }

    // test: RFC 9000 §13.2.1, §13.2.2
    #[test]
    fn one_packet_waits_two_do_not() {
        let mut received = ReceivedPackets::default();
        let now = Time::from_nanos(1_000);
        received.insert(0, now);
        received.note(true, Ecn::NotEct);
        received.settle(now, false, DELAY);
        assert!(!received.must_ack(now) && received.deadline() == Some(now + DELAY));
        received.insert(1, now);
        received.note(true, Ecn::NotEct);
        received.settle(now, false, DELAY);
        assert!(received.must_ack(now));
        received.on_ack_sent();
        received.insert(5, now);
        received.note(true, Ecn::NotEct);
        received.settle(now, false, DELAY);
        assert!(received.must_ack(now), "a gap is reported at once");
    }
}
