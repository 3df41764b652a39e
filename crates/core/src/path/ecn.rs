//! Explicit congestion notification of one path (RFC 9000 §13.4, §A.4).
//!
//! ```text
//!  Fresh ─ first bundle ─▶ Testing ─ some packets sent ─▶ Waiting ─ counts fit ─▶ Capable
//!                             └───────── counts fit ───────────────────▶ │
//!          counts missing or wrong, or all test packets lost: Off ◀──────┘
//! ```
//!
//! No packet remembers its mark: the marked packets of a path are a range of numbers, and counting
//! them costs a comparison per packet.

use squall_wire::Ecn;
use squall_wire::frame::EcnCounts;

/// Packets that are marked before anything is known; RFC 9000 §A.4 suggests ten. Bundles are not
/// split for it.
const TEST_PACKETS: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Off,
    Fresh,
    Testing,
    Waiting,
    Capable,
}

/// What is known about how a path treats ECN marks.
#[derive(Clone, Debug)]
pub(crate) struct EcnPath {
    phase: Phase,
    /// The marked packets: those of the path with numbers from `first` to below `end`.
    first: u64,
    end: u64,
    /// Test packets sent, and how many of them were lost.
    sent: u64,
    lost: u64,
}

/// Which packets of a path must be checked to count the marked ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Counting {
    /// None is marked.
    #[default]
    None,
    /// All are.
    All,
    /// It depends on the number.
    EachByNumber,
}

/// The marked packets sent on all paths of a connection, and the peer's last report: its counts
/// cover all paths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EcnTotals {
    marked: u64,
    reported: EcnCounts,
}

impl EcnTotals {
    /// Marked packets were sent.
    pub(crate) fn on_sent(&mut self, packets: u64) {
        self.marked += packets;
    }
}

impl EcnPath {
    /// An untested path; if not `wanted`, it is never tested.
    #[must_use]
    pub(crate) const fn new(wanted: bool) -> Self {
        Self {
            phase: if wanted { Phase::Fresh } else { Phase::Off },
            first: 0,
            end: 0,
            sent: 0,
            lost: 0,
        }
    }

    /// Starts marking, from packet number `next` on, if that was not done before.
    pub(crate) fn begin(&mut self, next: u64) {
        if self.phase == Phase::Fresh {
            self.phase = Phase::Testing;
            (self.first, self.end) = (next, u64::MAX);
        }
    }

    /// The mark of packets sent now.
    #[must_use]
    pub(crate) const fn mark(&self) -> Ecn {
        match self.phase {
            Phase::Testing | Phase::Capable => Ecn::Ect0,
            Phase::Off | Phase::Fresh | Phase::Waiting => Ecn::NotEct,
        }
    }

    /// Whether the path is known to carry marks.
    #[must_use]
    pub(crate) fn is_capable(&self) -> bool {
        self.phase == Phase::Capable
    }

    /// `packets` left with the mark; `next` is the number after them.
    pub(crate) fn on_sent(&mut self, packets: u64, next: u64) {
        if self.phase == Phase::Testing {
            self.sent += packets;
            if self.sent >= TEST_PACKETS {
                self.phase = Phase::Waiting;
                self.end = next;
            }
        }
    }

    /// Whether packet `number` of this path was marked.
    #[inline]
    #[must_use]
    pub(crate) const fn covers(&self, number: u64) -> bool {
        self.first <= number && number < self.end
    }

    /// How to count the marked packets among those with numbers from `lowest` on, at almost no
    /// cost.
    #[must_use]
    pub(crate) const fn counting(&self, lowest: u64) -> Counting {
        if self.end == 0 {
            Counting::None
        } else if self.first <= lowest && self.end == u64::MAX {
            Counting::All
        } else {
            Counting::EachByNumber
        }
    }

    /// Packet `number` of this path was lost.
    pub(crate) fn on_lost(&mut self, number: u64) {
        if matches!(self.phase, Phase::Testing | Phase::Waiting) && self.covers(number) {
            self.lost += 1;
            // RFC 9000 §A.4: something on the way drops marked packets.
            if self.phase == Phase::Waiting && self.lost >= self.sent {
                self.fail();
            }
        }
    }

    fn fail(&mut self) {
        (self.phase, self.end) = (Phase::Off, 0);
    }

    /// Processes the counts of an ACK frame that raised the largest acknowledged number and newly
    /// acknowledged `acked` > 0 marked packets; `next` is the next packet number. Returns how many
    /// more packets were marked as having met congestion.
    pub(crate) fn on_counts(
        &mut self,
        totals: &mut EcnTotals,
        counts: Option<EcnCounts>,
        acked: u64,
        next: u64,
    ) -> u64 {
        let before = totals.reported;
        let fits = counts.filter(|c| {
            // RFC 9000 §13.4.2.1: no count shrinks, every marked packet is in one of them, and none
            // is counted that was not sent so; ECT(1) never was.
            let grown = (c.ect0.checked_sub(before.ect0), c.ce.checked_sub(before.ce));
            let sum = c.ect0.checked_add(c.ce);
            matches!(grown, (Some(ect0), Some(ce)) if ect0.saturating_add(ce) >= acked)
                && sum.is_some_and(|sum| sum <= totals.marked)
                && c.ect1 == 0
        });
        let Some(counts) = fits else {
            self.fail();
            return 0;
        };
        totals.reported = counts;
        if matches!(self.phase, Phase::Testing | Phase::Waiting) {
            if self.phase == Phase::Waiting {
                self.first = next;
            }
            (self.phase, self.end) = (Phase::Capable, u64::MAX);
        }
        counts.ce - before.ce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ect0: u64, ect1: u64, ce: u64) -> Option<EcnCounts> {
        Some(EcnCounts { ect0, ect1, ce })
    }

    /// A path that has sent `packets` marked from number 100 on.
    fn tested(packets: u64) -> (EcnPath, EcnTotals) {
        let (mut path, mut totals) = (EcnPath::new(true), EcnTotals::default());
        assert_eq!(path.mark(), Ecn::NotEct);
        path.begin(100);
        assert_eq!(path.mark(), Ecn::Ect0);
        path.on_sent(packets, 100 + packets);
        totals.on_sent(packets);
        (path, totals)
    }

    // test: RFC 9000 §13.4.2, §A.4
    #[test]
    fn a_few_packets_test_ecn_and_later_ones_stay_unmarked() {
        let (mut path, mut totals) = tested(9);
        assert_eq!(path.mark(), Ecn::Ect0);
        assert!(!path.covers(99) && path.covers(100) && path.covers(1000));
        assert_eq!(path.counting(100), Counting::All);
        assert_eq!(path.counting(99), Counting::EachByNumber);
        path.on_sent(3, 112);
        totals.on_sent(3);
        assert_eq!(path.mark(), Ecn::NotEct);
        assert!(!path.covers(99) && path.covers(100) && path.covers(111) && !path.covers(112));
        assert_eq!(path.on_counts(&mut totals, counts(11, 0, 1), 12, 150), 1);
        assert!(path.is_capable() && path.mark() == Ecn::Ect0);
        assert!(!path.covers(149) && path.covers(150));
    }

    // test: RFC 9000 §13.4.2.1 — SECURITY.md row 39
    #[test]
    fn wrong_ecn_counts_disable_ecn() {
        for (what, counts, acked) in [
            ("no counts", None, 1),
            ("too few", counts(4, 0, 0), 5),
            ("too few, even with marks", counts(2, 0, 2), 5),
            ("more than were sent", counts(21, 0, 0), 5),
            ("more than were sent, with marks", counts(15, 0, 6), 5),
            ("a mark that was never sent", counts(5, 1, 0), 5),
            ("a sum beyond all numbers", counts(u64::MAX, 0, u64::MAX), 5),
        ] {
            let (mut path, mut totals) = tested(20);
            assert_eq!(path.on_counts(&mut totals, counts, acked, 150), 0, "{what}");
            assert_eq!(path.mark(), Ecn::NotEct, "{what}");
            path.begin(200);
            assert_eq!(path.mark(), Ecn::NotEct, "{what}: for good");
        }
        // The same later on.
        let (mut path, mut totals) = tested(20);
        path.on_counts(&mut totals, counts(5, 0, 5), 10, 150);
        assert!(path.is_capable());
        path.on_counts(&mut totals, counts(16, 0, 4), 10, 150);
        assert_eq!(path.mark(), Ecn::NotEct, "a count that shrinks");
    }

    // test: RFC 9000 §A.4
    #[test]
    fn a_path_that_drops_marked_packets_gets_none() {
        let (mut path, _) = tested(20);
        for number in 90..119 {
            path.on_lost(number);
            assert_eq!(path.phase, Phase::Waiting);
        }
        path.on_lost(119);
        assert_eq!(path.phase, Phase::Off);
    }

    #[test]
    fn disabled_ecn_is_never_tested() {
        let mut path = EcnPath::new(false);
        path.begin(0);
        assert_eq!(path.mark(), Ecn::NotEct);
        assert!(!path.covers(0));
    }
}
