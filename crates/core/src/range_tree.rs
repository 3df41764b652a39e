//! Sets of `u64` whose ranges the peer chooses, in a balanced tree.
//!
//! Used if the number of ranges has no small bound and they come in any order: stream bytes
//! acknowledged out of order, stream bytes to be sent again, peer streams that have ended. A range
//! is added or removed in logarithmic time wherever it lies;
//! [`RangeSet`](crate::range_set::RangeSet) moves everything after it, which becomes quadratic with
//! a peer that acknowledges every other packet of a large flight.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::ops::Range;

/// A set of `u64`, in memory proportional to the number of its gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeTree {
    /// Disjoint, non-adjacent ranges: the end of each by its start.
    ranges: BTreeMap<u64, u64>,
}

impl RangeTree {
    /// Whether the set has no member.
    #[inline]
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The lowest range.
    #[inline]
    #[must_use]
    pub(crate) fn first(&self) -> Option<Range<u64>> {
        self.ranges
            .first_key_value()
            .map(|(start, end)| *start..*end)
    }

    /// Removes the lowest range.
    pub(crate) fn pop_first(&mut self) {
        self.ranges.pop_first();
    }

    /// Whether `value` is a member.
    #[must_use]
    pub(crate) fn contains(&self, value: u64) -> bool {
        let below = self.ranges.range(..=value).next_back();
        below.is_some_and(|(_, end)| value < *end)
    }

    /// The ranges that have members in common with `range`, ascending.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let range = range.start..range.end.max(range.start);
        let below = self.ranges.range(..=range.start).next_back();
        let first = below.filter(|(_, end)| **end > range.start && !range.is_empty());
        let first = first.map_or(range.start, |(start, _)| *start);
        let ranges = self.ranges.range(first..range.end);
        ranges.map(|(start, end)| *start..*end)
    }

    /// Adds every member of `range`.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Most ranges continue the last one.
        if let Some(mut last) = self.ranges.last_entry()
            && *last.get() == start
        {
            *last.get_mut() = end;
            return;
        }
        if let Some((below, until)) = self.ranges.range_mut(..=start).next_back()
            && *until >= start
        {
            if *until >= end {
                return;
            }
            *until = end;
            start = *below;
        }
        while let Some((above, until)) = self
            .ranges
            .range((Excluded(start), Included(end)))
            .next()
            .map(|(above, until)| (*above, *until))
        {
            self.ranges.remove(&above);
            end = end.max(until);
        }
        self.ranges.insert(start, end);
    }

    /// Removes every member of `range`.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() || self.ranges.is_empty() {
            return;
        }
        if let Some((_, until)) = self.ranges.range_mut(..range.start).next_back()
            && *until > range.start
        {
            let end = std::mem::replace(until, range.start);
            if end > range.end {
                self.ranges.insert(range.end, end);
                return;
            }
        }
        while let Some((start, end)) = self
            .ranges
            .range(range.clone())
            .next()
            .map(|(start, end)| (*start, *end))
        {
            self.ranges.remove(&start);
            if end > range.end {
                self.ranges.insert(range.end, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn equals_a_plain_set_under_random_operations() {
        let mut next = crate::common::numbers(1);
        for _ in 0..200 {
            let (mut set, mut twin) = (RangeTree::default(), BTreeSet::new());
            for _ in 0..100 {
                let start = next(120);
                let end = start + next(12);
                if next(3) == 0 {
                    set.remove(start..end);
                    twin.retain(|v| !(start..end).contains(v));
                } else {
                    set.insert(start..end);
                    twin.extend(start..end);
                }
                let ranges: Vec<Range<u64>> = set.overlapping(0..u64::MAX).collect();
                let members: Vec<u64> = ranges.iter().cloned().flatten().collect();
                assert_eq!(members, twin.iter().copied().collect::<Vec<_>>());
                let apart = ranges.iter().zip(ranges.iter().skip(1));
                assert!(
                    apart.clone().all(|(a, b)| a.end < b.start),
                    "ranges must not touch"
                );
                assert!((0..140).all(|v| set.contains(v) == twin.contains(&v)));
                assert_eq!(set.first(), ranges.first().cloned());
                let (start, end) = (next(120), next(140));
                let common = |r: &&Range<u64>| r.start < end && r.end > start;
                let expected: Vec<_> = ranges.iter().filter(common).cloned().collect();
                let found: Vec<_> = set.overlapping(start..end.max(start)).collect();
                let expected = if start < end { expected } else { Vec::new() };
                assert!(found == expected, "{start}..{end}: {found:?}, {expected:?}");
            }
        }
    }
}
