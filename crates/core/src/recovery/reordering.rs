//! Reordering and spurious losses (RFC 9002 §6.1; RFC 8985 §3 for the idea; RFC 9438 §4.9).
//!
//! ```text
//!  declared lost ──▶ remembered ──▶ acknowledged after all ──▶ thresholds rise;
//!                        │          the last one of an episode: the reduction is undone
//!                        └────────▶ nothing for two probe timeouts: it was lost
//!  sixteen losses without a late packet ──▶ thresholds fall back
//! ```
//!
//! An episode consists of the losses that caused one reduction of the congestion window, and those
//! discovered in its recovery period. Only if all of them were spurious was the reduction a
//! mistake.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::rtt::{GRANULARITY, RttEstimator};
use crate::config::TransportConfig;
use crate::time::Time;

/// The time threshold is kept in these parts of a round trip, so that no run of acknowledgements
/// needs floating point; 9/8 is a multiple.
const THRESHOLD_UNIT: u32 = 128;
/// Ranges of lost packets that are remembered, which bounds memory and search.
const MAX_REMEMBERED: usize = 256;
/// Losses without a late packet after which reordering counts as over; RFC 8985 §6.2 uses as many
/// recoveries.
const CALM: u32 = 16;

/// Packets with neighbouring numbers that were sent at the same time and declared lost.
#[derive(Clone, Copy, Debug)]
struct LostRange {
    first: u64,
    last: u64,
    time_sent: Time,
    /// Size of each, in bytes.
    size: u16,
}

impl LostRange {
    const fn count(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// What an acknowledgement reveals about losses declared before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spurious {
    /// Packets that were not lost.
    pub(crate) packets: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// The newest of them that was larger than any path is known to carry.
    pub(crate) large: Option<u64>,
    /// Whether no loss of the episode remains: the reduction is to be undone.
    pub(crate) undo: bool,
}

/// What is known about the reordering of a path.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Reordering {
    // Only after losses.
    /// Lost packets that may yet be acknowledged, ascending.
    lost: VecDeque<LostRange>,
    /// The first number of the current episode.
    episode: u64,
    /// Packets of the episode whose loss may be spurious; `None` if one was certainly lost, or
    /// there is no episode.
    open: Option<u64>,
    /// The threshold without any reordering.
    least: u64,

    packet_threshold: u64,
    /// kTimeThreshold, in `THRESHOLD_UNIT`ths.
    time_threshold: u32,
    /// How long a packet may be late beyond what RFC 9002 §6.1.2 allows.
    patience: Duration,
    /// Losses since a packet was late.
    calm: u32,
    /// Bytes of a packet that every path is known to carry.
    floor: u16,
}

impl Reordering {
    /// A path that has shown no reordering so far.
    pub(crate) fn new(config: &TransportConfig) -> Self {
        let least = config.packet_threshold.into();
        Self {
            packet_threshold: least,
            least,
            // Between 1 and 8, as the configuration is checked.
            time_threshold: (config.time_threshold * THRESHOLD_UNIT as f32) as u32,
            patience: Duration::ZERO,
            calm: 0,
            floor: config.min_udp_payload,
            lost: VecDeque::new(),
            episode: 0,
            open: None,
        }
    }

    /// kTimeThreshold (RFC 9002 §6.1.2) times this.
    fn overdue(&self, base: Duration) -> Duration {
        base * self.time_threshold / THRESHOLD_UNIT
    }

    /// kPacketThreshold (RFC 9002 §6.1.1), raised by observed reordering.
    pub(crate) fn packet_threshold(&self) -> u64 {
        self.packet_threshold
    }

    /// How long a packet may be overtaken before it counts as lost (RFC 9002 §6.1.2): at most two
    /// round trips.
    pub(crate) fn loss_delay(&self, rtt: &RttEstimator) -> Duration {
        let base = rtt.latest().max(rtt.smoothed());
        let patience = self.patience.min(base * 7 / 8);
        (self.overdue(base) + patience).max(GRANULARITY)
    }

    /// Packet `number` was declared lost. Numbers ascend.
    pub(crate) fn on_lost(&mut self, number: u64, time_sent: Time, size: u16) {
        self.open = self.open.map(|open| open + 1);
        if let Some(range) = self.lost.back_mut()
            && (range.last + 1, range.time_sent, range.size) == (number, time_sent, size)
        {
            range.last = number;
            return;
        }
        if self.lost.len() == MAX_REMEMBERED {
            self.forget_oldest();
        }
        self.lost.push_back(LostRange {
            first: number,
            last: number,
            time_sent,
            size,
        });
    }

    /// The window was reduced for losses from number `first` on; they have been reported.
    pub(crate) fn begin_episode(&mut self, first: u64) {
        self.episode = first;
        let ranges = self.lost.iter().rev().take_while(|r| r.last >= first);
        self.open = Some(ranges.map(LostRange::count).sum());
    }

    /// The reduction was justified in any case, or is no longer in force.
    pub(crate) fn end_episode(&mut self) {
        self.open = None;
    }

    /// Gives up on packets that are not acknowledged `patience` after they were sent.
    pub(crate) fn expire(&mut self, now: Time, patience: Duration) {
        while let Some(range) = self.lost.front()
            && range.time_sent + patience <= now
        {
            self.calm = self.calm.saturating_add(1);
            if self.calm >= CALM {
                (self.packet_threshold, self.patience) = (self.least, Duration::ZERO);
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(range) = self.lost.pop_front()
            && range.last >= self.episode
        {
            self.open = None;
        }
    }

    /// The lowest number whose loss may yet turn out to be spurious.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.lost.front().map(|range| range.first)
    }

    /// A packet sent at `time_sent` is acknowledged for the first time, although numbers up to
    /// `distance` above it were acknowledged before.
    pub(crate) fn on_late(
        &mut self,
        now: Time,
        distance: u64,
        time_sent: Time,
        rtt: &RttEstimator,
    ) {
        let base = rtt.latest().max(rtt.smoothed());
        let needed = (now - time_sent).saturating_sub(self.overdue(base));
        if distance < self.least && needed.is_zero() {
            return;
        }
        self.calm = 0;
        self.packet_threshold = self.packet_threshold.max(distance + 1);
        if !needed.is_zero() {
            // An eighth more: the next one may be a little later still.
            self.patience = self.patience.max((needed + base / 8).min(base * 7 / 8));
        }
    }

    /// Packets of a range are acknowledged; `largest` is the largest acknowledged number.
    pub(crate) fn on_acked(
        &mut self,
        now: Time,
        range: &RangeInclusive<u64>,
        largest: u64,
        rtt: &RttEstimator,
        spurious: &mut Spurious,
    ) {
        let (start, end) = (*range.start(), *range.end());
        let mut at = self.lost.partition_point(|lost| lost.last < start);
        while let Some(lost) = self.lost.get(at).copied().filter(|l| l.first <= end) {
            let (first, last) = (lost.first.max(start), lost.last.min(end));
            let count = last - first + 1;
            spurious.packets += count;
            spurious.bytes += count * u64::from(lost.size);
            if lost.size > self.floor {
                spurious.large = spurious.large.max(Some(last));
            }
            self.on_late(now, largest.saturating_sub(first), lost.time_sent, rtt);
            if first >= self.episode {
                self.open = self.open.map(|open| open.saturating_sub(count));
                spurious.undo = self.open == Some(0);
            }
            let below = (lost.first < first).then(|| LostRange {
                last: first - 1,
                ..lost
            });
            let above = (last < lost.last).then(|| LostRange {
                first: last + 1,
                ..lost
            });
            match (below, above) {
                (None, None) => drop(self.lost.remove(at)),
                (Some(rest), None) | (None, Some(rest)) => {
                    self.lost[at] = rest;
                    at += 1;
                }
                (Some(below), Some(above)) => {
                    self.lost[at] = above;
                    self.lost.insert(at, below);
                    at += 2;
                }
            }
        }
        while self.lost.len() > MAX_REMEMBERED {
            self.forget_oldest();
        }
        if spurious.undo {
            self.open = None;
        }
    }

    /// Frees unused memory.
    pub(crate) fn shed(&mut self) {
        self.lost.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000)
    }

    fn rtt() -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_millis(80), Duration::ZERO);
        rtt
    }

    fn acked(reordering: &mut Reordering, now: u64, range: RangeInclusive<u64>) -> Spurious {
        let mut spurious = Spurious::default();
        reordering.on_acked(ms(now), &range, 30, &rtt(), &mut spurious);
        spurious
    }

    // test: RFC 9438 §4.9.2
    #[test]
    fn an_episode_is_undone_only_if_all_its_losses_were_spurious() {
        let mut reordering = Reordering::new(&TransportConfig::default());
        for number in [3, 4, 5, 9] {
            reordering.on_lost(number, ms(0), 1000);
        }
        reordering.begin_episode(3);
        // Discovered in the recovery period.
        reordering.on_lost(12, ms(1), 1000);
        assert_eq!(reordering.lost.len(), 3);
        let spurious = acked(&mut reordering, 90, 4..=9);
        assert_eq!(
            (spurious.packets, spurious.bytes, spurious.undo),
            (3, 3000, false)
        );
        assert!(!acked(&mut reordering, 90, 3..=11).undo);
        assert!(acked(&mut reordering, 90, 12..=13).undo);
        assert!(reordering.oldest().is_none());

        reordering.on_lost(20, ms(100), 1000);
        reordering.begin_episode(20);
        reordering.on_lost(21, ms(101), 1000);
        reordering.expire(ms(200), Duration::from_millis(100));
        let spurious = acked(&mut reordering, 190, 15..=25);
        assert_eq!((spurious.packets, spurious.undo), (1, false));
    }

    #[test]
    fn an_older_loss_does_not_undo_a_newer_episode() {
        let mut reordering = Reordering::new(&TransportConfig::default());
        reordering.on_lost(3, ms(0), 1000);
        reordering.begin_episode(3);
        reordering.on_lost(10, ms(80), 1000);
        reordering.begin_episode(10);
        assert!(!acked(&mut reordering, 90, 3..=3).undo);
        assert!(acked(&mut reordering, 170, 10..=10).undo);
    }

    // test: RFC 9002 §6.1.1, §6.1.2
    #[test]
    fn thresholds_adapt_to_reordering_and_decay() {
        let (rtt, mut reordering) = (rtt(), Reordering::new(&TransportConfig::default()));
        assert_eq!(reordering.packet_threshold(), 3);
        assert_eq!(reordering.loss_delay(&rtt), Duration::from_millis(90));
        reordering.on_late(ms(85), 2, ms(0), &rtt);
        assert_eq!(
            reordering.packet_threshold(),
            3,
            "lateness within the threshold changes nothing"
        );
        reordering.on_late(ms(110), 7, ms(0), &rtt);
        assert_eq!(reordering.packet_threshold(), 8);
        assert_eq!(reordering.loss_delay(&rtt), Duration::from_millis(120));
        reordering.on_late(ms(900), 7, ms(0), &rtt);
        assert_eq!(reordering.loss_delay(&rtt), Duration::from_millis(160));
        for number in 0..15 {
            reordering.on_lost(100 + 2 * number, ms(1000), 1000);
        }
        reordering.expire(ms(2000), Duration::from_millis(100));
        assert_eq!(reordering.packet_threshold(), 8);
        reordering.on_lost(200, ms(1000), 1000);
        reordering.expire(ms(2000), Duration::from_millis(100));
        assert_eq!(reordering.packet_threshold(), 3);
        assert_eq!(reordering.loss_delay(&rtt), Duration::from_millis(90));
    }

    /// Whatever is lost and acknowledged, a plain set of numbers gives the same result, and no more
    /// ranges than allowed are held.
    #[test]
    fn ranges_agree_with_a_plain_set() {
        let mut next = crate::common::numbers(7);
        for _ in 0..50 {
            let mut reordering = Reordering::new(&TransportConfig::default());
            let mut set = std::collections::BTreeSet::new();
            let mut number = 0;
            for step in 0..200 {
                for _ in 0..next(4) {
                    number += 1 + next(2) * next(3);
                    reordering.on_lost(number, ms(step / 8), 100);
                    set.insert(number);
                }
                let start = next(number + 1);
                let end = start + next(9);
                let spurious = acked(&mut reordering, step, start..=end);
                let before = set.len();
                set.retain(|n| !(start..=end).contains(n));
                assert_eq!(spurious.packets as usize, before - set.len());
                assert!(reordering.lost.len() <= MAX_REMEMBERED);
                let held = reordering.lost.iter().flat_map(|r| r.first..=r.last);
                assert!(held.eq(set.iter().copied()));
            }
        }
    }
}
