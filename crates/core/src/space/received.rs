//! Packet numbers received in one space, and the decision when to acknowledge them.
//!
//! The decision is made once per received run (step 6 of the receive trip, `ARCHITECTURE.md`), not
//! once per packet.

use squall_protect::prefetch;
use squall_wire::Ecn;
use squall_wire::frame::EcnCounts;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use crate::config::MAX_ACK_RANGES;
use crate::range_set::RangeSet;
use crate::time::Time;

/// Whether an acknowledgement is owed, and how urgently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owed {
    #[default]
    Nothing,
    By(Time),
    Now,
}

/// When acknowledgements are due: as in RFC 9000 §13.2, or as requested by the peer
/// (draft-ietf-quic-ack-frequency).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckPolicy {
    /// The largest sequence number of a request that was followed.
    pub(crate) sequence: Option<u64>,
    /// Ack-eliciting packets that may arrive without an immediate acknowledgement.
    pub(crate) eliciting_threshold: u64,
    /// The longest time by which an acknowledgement is delayed.
    pub(crate) max_ack_delay: Duration,
    /// How far packets may be out of order before they are acknowledged at once; 0: any distance.
    pub(crate) reordering_threshold: u64,
}

impl AckPolicy {
    /// RFC 9000 §13.2.1, §13.2.2.
    #[must_use]
    pub(crate) const fn new(max_ack_delay: Duration) -> Self {
        Self {
            sequence: None,
            eliciting_threshold: 1,
            max_ack_delay,
            reordering_threshold: 1,
        }
    }

    /// For Initial and Handshake packets: at once (RFC 9000 §13.2.1).
    pub(crate) const AT_ONCE: Self = Self {
        sequence: None,
        eliciting_threshold: 0,
        max_ack_delay: Duration::ZERO,
        reordering_threshold: 1,
    };
}

/// The packet numbers received in one space.
#[derive(Debug, Default)]
pub(crate) struct ReceivedPackets {
    numbers: RangeSet,
    /// The numbers among them that are never acknowledged: the packets were dropped after some of
    /// their frames had taken effect. The sender repeats their contents under other numbers; a copy
    /// must not take effect a second time.
    unacknowledged: RangeSet,
    /// Numbers below were received or given up: ranges beyond `MAX_ACK_RANGES` are forgotten,
    /// oldest first.
    forgotten_below: u64,
    /// Numbers below need not be reported again: the peer has seen their acknowledgement (RFC 9000
    /// §13.2.4).
    reported_below: u64,
    largest_time: Time,
    /// The arrival time of the previous largest number.
    largest_time_before: Time,
    /// The largest number in the last acknowledgement sent.
    largest_reported: Option<u64>,
    eliciting_since_ack: u32,
    out_of_order: bool,
    /// The lowest number below the largest that has arrived since.
    lowest_late: Option<u64>,
    /// Whether an ack-eliciting packet was marked CE since, and whether the one before it was not.
    marked: bool,
    newly_marked: bool,
    last_marked: bool,
    /// Whether the peer asked for an immediate acknowledgement (IMMEDIATE_ACK).
    asked: bool,
    owed: Owed,
    ecn: EcnCounts,
    ecn_seen: bool,
}

/// The received numbers without the omitted ones, in ranges, highest first.
#[derive(Clone)]
struct Reported<'a, I> {
    received: I,
    /// Numbers below are not reported.
    below: u64,
    /// What is left of the current range.
    rest: Range<u64>,
    left_out: &'a RangeSet,
}

impl<'a, I: Iterator<Item = &'a Range<u64>>> Iterator for Reported<'a, I> {
    type Item = RangeInclusive<u64>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.rest.is_empty() {
                let range = self.received.next().filter(|r| r.end > self.below)?;
                self.rest = range.clone();
            }
            let Range { start, end } = self.rest;
            let hole = self.left_out.last_before(end);
            let hole = hole.filter(|h| h.end > start).unwrap_or(start..start);
            self.rest.end = hole.start.max(start);
            if hole.end < end {
                return Some(hole.end..=end - 1);
            }
        }
    }
}

impl ReceivedPackets {
    /// Prefetches the highest range.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(range) = self.numbers.last() {
            prefetch(range);
        }
    }

    /// The largest number received.
    #[must_use]
    pub(crate) fn largest(&self) -> Option<u64> {
        self.numbers.last().map(|r| r.end - 1)
    }

    /// Records an opened packet; `false` if it is a duplicate, whose frames must not take effect
    /// (RFC 9000 §12.3).
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
            self.largest_time_before = std::mem::replace(&mut self.largest_time, now);
        } else {
            let lowest = self.lowest_late.map_or(number, |known| known.min(number));
            self.lowest_late = Some(lowest);
            // The peer may have declared it lost: acknowledge it at once.
            self.reported_below = self.reported_below.min(number);
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

    /// Frees the memory of closed gaps.
    pub(crate) fn shed(&mut self) {
        self.numbers.shed();
        self.unacknowledged.shed();
    }

    /// Omits the number that `insert` has just recorded from all acknowledgements, because the
    /// packet is dropped.
    pub(crate) fn leave_out(&mut self, number: u64) {
        if self.largest() == Some(number) {
            self.largest_time = self.largest_time_before;
        }
        // The sender finds out as soon as something else is acknowledged.
        self.out_of_order = true;
        self.unacknowledged.insert_one(number);
        self.unacknowledged.remove(0..self.forgotten_below);
        while self.unacknowledged.len() > MAX_ACK_RANGES {
            if let Some(range) = self.unacknowledged.pop_first() {
                // They are no longer processed or acknowledged.
                self.forgotten_below = range.end;
                self.numbers.remove(0..range.end);
            }
        }
    }

    /// Whether `number` follows the largest one.
    #[inline]
    #[must_use]
    pub(crate) fn expects(&self, number: u64) -> bool {
        self.numbers.last().is_some_and(|r| r.end == number)
    }

    /// Records `count` opened packets that follow the largest number, all ack-eliciting and with
    /// the same ECN mark: equivalent to `insert` and `note` for each.
    pub(crate) fn extend(&mut self, count: u32, ecn: Ecn, now: Time) {
        let Some(next) = self.numbers.last().map(|r| r.end).filter(|_| count > 0) else {
            return;
        };
        self.numbers.insert(next..next + u64::from(count));
        (self.largest_time_before, self.largest_time) = (now, now);
        self.note(true, ecn);
        let more = count - 1;
        self.eliciting_since_ack += more;
        match ecn {
            Ecn::NotEct => {}
            Ecn::Ect0 => self.ecn.ect0 += u64::from(more),
            Ecn::Ect1 => self.ecn.ect1 += u64::from(more),
            Ecn::Ce => self.ecn.ce += u64::from(more),
        }
    }

    /// Counts one ack-eliciting packet, and its ECN mark.
    #[inline]
    pub(crate) fn note(&mut self, ack_eliciting: bool, ecn: Ecn) {
        self.eliciting_since_ack += u32::from(ack_eliciting);
        let was_marked = std::mem::replace(&mut self.last_marked, ecn == Ecn::Ce);
        match ecn {
            Ecn::NotEct => return,
            Ecn::Ect0 => self.ecn.ect0 += 1,
            Ecn::Ect1 => self.ecn.ect1 += 1,
            Ecn::Ce => {
                self.ecn.ce += 1;
                self.marked |= ack_eliciting;
                self.newly_marked |= ack_eliciting && !was_marked;
            }
        }
        self.ecn_seen = true;
    }

    /// The peer asks for an immediate acknowledgement (draft-ietf-quic-ack-frequency §5).
    pub(crate) const fn ask(&mut self) {
        self.asked = true;
    }

    /// The one decision per received run: acknowledge now, or within the policy's delay from `now`.
    pub(crate) fn settle(&mut self, now: Time, policy: &AckPolicy) {
        if self.eliciting_since_ack == 0 {
            self.forget_reasons();
            return;
        }
        let reordered = match policy.reordering_threshold {
            0 => false,
            // RFC 9000 §13.2.1: reordering and gaps are acknowledged at once.
            1 => self.out_of_order,
            distance => self.is_reordered(distance),
        };
        // RFC 9000 §13.2.1: congestion is reported at once; draft-ietf-quic-ack-frequency §6.3:
        // only its beginning is.
        let congested = match policy.eliciting_threshold {
            0..=1 => self.marked,
            _ => self.newly_marked,
        };
        let many = u64::from(self.eliciting_since_ack) > policy.eliciting_threshold;
        if many || reordered || congested || self.asked {
            self.owed = Owed::Now;
        } else if self.owed == Owed::Nothing {
            self.owed = Owed::By(now + policy.max_ack_delay);
        }
    }

    /// draft-ietf-quic-ack-frequency §6.2: whether an unreported gap reaches back `distance` or
    /// more, or a packet has arrived that was reported as missing from that far back.
    fn is_reordered(&self, distance: u64) -> bool {
        let Some(largest) = self.largest() else {
            return false;
        };
        // Numbers up to here have already been reported from far enough.
        let reported = self.largest_reported.map(|r| r.saturating_sub(distance));
        let late = self.lowest_late.zip(reported);
        if late.is_some_and(|(lowest, reported)| lowest <= reported) {
            return true;
        }
        let from = reported.map_or(0, |r| r + 1);
        let gaps = self.numbers.iter().zip(self.numbers.iter().skip(1));
        let mut missing = gaps.map(|(below, above)| below.end.max(from)..above.start);
        let smallest = missing.find(|gap| !gap.is_empty()).map(|gap| gap.start);
        smallest.is_some_and(|smallest| largest - smallest >= distance)
    }

    fn forget_reasons(&mut self) {
        self.out_of_order = false;
        self.lowest_late = None;
        (self.marked, self.newly_marked, self.asked) = (false, false, false);
    }

    /// Whether an acknowledgement must be sent now.
    #[must_use]
    pub(crate) fn must_ack(&self, now: Time) -> bool {
        match self.owed {
            Owed::Nothing => false,
            Owed::By(time) => time <= now,
            Owed::Now => true,
        }
    }

    /// Whether an acknowledgement is owed at all, so that it can go with other frames.
    #[must_use]
    pub(crate) fn may_ack(&self) -> bool {
        self.eliciting_since_ack > 0
    }

    /// When a delayed acknowledgement must be sent.
    #[must_use]
    pub(crate) const fn deadline(&self) -> Option<Time> {
        match self.owed {
            Owed::By(time) => Some(time),
            Owed::Nothing | Owed::Now => None,
        }
    }

    /// The ranges to report, in descending order as in an ACK frame.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> + Clone + '_ {
        let reported = Reported {
            received: self.numbers.iter().rev(),
            below: self.reported_below,
            rest: 0..0,
            left_out: &self.unacknowledged,
        };
        reported.take(MAX_ACK_RANGES)
    }

    /// Whether packets are missing between those that are still reported: lost, late, or numbers
    /// that the peer has skipped.
    #[must_use]
    pub(crate) fn has_gaps(&self) -> bool {
        self.ranges().nth(1).is_some()
    }

    /// The largest number that an acknowledgement would name.
    #[must_use]
    pub(crate) fn largest_to_report(&self) -> Option<u64> {
        self.ranges().next().map(|range| *range.end())
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

    /// Records that an acknowledgement was written.
    pub(crate) fn on_ack_sent(&mut self) {
        self.owed = Owed::Nothing;
        self.eliciting_since_ack = 0;
        self.largest_reported = self.largest_to_report();
        self.forget_reasons();
    }

    /// The peer has seen our acknowledgement up to `largest`: ranges entirely below it need no
    /// further report.
    pub(crate) fn on_ack_acked(&mut self, largest: u64) {
        self.reported_below = self.reported_below.max(largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(25);
    const POLICY: AckPolicy = AckPolicy::new(DELAY);

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
    fn one_packet_delays_its_acknowledgement_and_two_do_not() {
        let mut received = ReceivedPackets::default();
        let now = Time::from_nanos(1_000);
        received.insert(0, now);
        received.note(true, Ecn::NotEct);
        received.settle(now, &POLICY);
        assert!(!received.must_ack(now) && received.deadline() == Some(now + DELAY));
        received.insert(1, now);
        received.note(true, Ecn::NotEct);
        received.settle(now, &POLICY);
        assert!(received.must_ack(now));
        received.on_ack_sent();
        received.insert(5, now);
        received.note(true, Ecn::NotEct);
        received.settle(now, &POLICY);
        assert!(received.must_ack(now), "a gap is reported at once");
    }

    /// Whether each of these packets is acknowledged at once, if reordering is the only possible
    /// reason.
    fn at_once(distance: u64, numbers: &[u64]) -> Vec<bool> {
        let policy = AckPolicy {
            eliciting_threshold: 1000,
            reordering_threshold: distance,
            ..POLICY
        };
        let mut received = ReceivedPackets::default();
        numbers
            .iter()
            .map(|n| {
                received.insert(*n, Time::ZERO);
                received.note(true, Ecn::NotEct);
                received.settle(Time::ZERO, &policy);
                let now = received.owed == Owed::Now;
                if now {
                    received.on_ack_sent();
                }
                now
            })
            .collect()
    }

    // test: draft-ietf-quic-ack-frequency §6.2.1, tables 1 and 2
    #[test]
    fn a_gap_is_reported_when_it_reaches_the_threshold() {
        let (yes, no) = (true, false);
        assert_eq!(
            at_once(3, &[0, 1, 3, 4, 5, 8, 9, 10]),
            [no, no, no, no, yes, no, yes, yes]
        );
        assert_eq!(
            at_once(5, &[0, 1, 3, 5, 6, 7, 8, 9]),
            [no, no, no, no, no, yes, no, yes]
        );
        assert_eq!(at_once(0, &[0, 9, 30, 3]), [no; 4]);
        // Late beyond the threshold: it had been reported as missing.
        assert_eq!(at_once(2, &[0, 3, 4, 5, 1]), [no, yes, yes, no, yes]);
    }

    // test: draft-ietf-quic-ack-frequency §6.3
    #[test]
    fn the_first_ce_mark_is_acknowledged_at_once() {
        let rare = AckPolicy {
            eliciting_threshold: 1000,
            ..POLICY
        };
        let mut received = ReceivedPackets::default();
        let mut numbers = 0..;
        let mut take = |ecn| {
            received.insert(numbers.next().unwrap_or(0), Time::ZERO);
            received.note(true, ecn);
            received.settle(Time::ZERO, &rare);
            let now = received.owed == Owed::Now;
            if now {
                received.on_ack_sent();
            }
            now
        };
        let marks = [Ecn::Ect0, Ecn::Ce, Ecn::Ce, Ecn::Ect0, Ecn::Ce];
        assert_eq!(marks.map(&mut take), [false, true, false, false, true]);
    }

    // test: RFC 9000 §12.3, §13.1; SECURITY.md row 5
    #[test]
    fn left_out_packets_are_recognised_and_never_acknowledged() {
        use std::collections::BTreeSet;

        let mut next = crate::common::numbers(5);
        for round in 0..50 {
            let mut received = ReceivedPackets::default();
            let (mut known, mut left_out) = (BTreeSet::new(), BTreeSet::new());
            for at in 0..400 {
                let number = at + next(20) * (1 + next(3));
                let fresh = received.insert(number, Time::from_nanos(at));
                assert!(!(fresh && known.contains(&number)), "taken twice: {number}");
                if fresh {
                    known.insert(number);
                }
                if fresh && next(4) < round % 4 {
                    received.leave_out(number);
                    left_out.insert(number);
                }
                let reported: Vec<_> = received.ranges().collect();
                assert!(reported.len() <= MAX_ACK_RANGES);
                let descending = reported.iter().zip(reported.iter().skip(1));
                assert!(descending.clone().all(|(a, b)| *b.end() + 1 < *a.start()));
                let numbers: BTreeSet<u64> = reported.into_iter().flatten().collect();
                assert!(numbers.is_subset(&known) && numbers.is_disjoint(&left_out));
                let newest = known.difference(&left_out).last();
                assert_eq!(received.largest_to_report(), newest.copied());
            }
        }
    }

    #[test]
    fn leaving_out_the_largest_number_does_not_shorten_the_delay() {
        let mut received = ReceivedPackets::default();
        received.insert(0, Time::from_nanos(1_000));
        received.insert(1, Time::from_nanos(5_000));
        received.leave_out(1);
        assert_eq!(received.largest_to_report(), Some(0));
        assert_eq!(
            received.delay(Time::from_nanos(6_000)),
            Duration::from_nanos(5_000)
        );
        assert!(received.expects(2) && !received.insert(1, Time::ZERO));
    }
}
