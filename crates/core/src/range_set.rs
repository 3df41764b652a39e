//! Sets of `u64` held as sorted, disjoint, non-adjacent ranges.
//!
//! Used for received packet numbers (ACK ranges) and sequence numbers of the peer's connection ids.
//! These almost always grow at one end, so pushing to the back of the sorted ring is the fast case.
//! They hold few ranges, because an insertion elsewhere moves those after it; sets without a small
//! bound are in a [`RangeTree`](crate::range_tree::RangeTree).

use std::collections::VecDeque;
use std::ops::Range;

/// A set of `u64`, in memory proportional to the number of its gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    ranges: VecDeque<Range<u64>>,
}

impl RangeSet {
    /// Makes room for `ranges` in total, once: growing later then allocates nothing.
    pub(crate) fn reserve(&mut self, ranges: usize) {
        self.ranges
            .reserve(ranges.saturating_sub(self.ranges.len()));
    }

    /// Frees the memory of removed ranges. The rest moves, so that it pins no page of the larger
    /// allocation.
    pub(crate) fn shed(&mut self) {
        self.ranges = self.ranges.iter().cloned().collect();
    }

    /// Number of ranges, not of members.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, ascending.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Range<u64>> + Clone {
        self.ranges.iter()
    }

    /// The highest range.
    #[must_use]
    pub(crate) fn last(&self) -> Option<&Range<u64>> {
        self.ranges.back()
    }

    /// Removes and returns the lowest range.
    pub(crate) fn pop_first(&mut self) -> Option<Range<u64>> {
        self.ranges.pop_front()
    }

    /// Whether `value` is a member.
    #[must_use]
    pub(crate) fn contains(&self, value: u64) -> bool {
        let i = self.ranges.partition_point(|r| r.end <= value);
        self.ranges.get(i).is_some_and(|r| r.start <= value)
    }

    /// The highest range that begins below `value`.
    #[inline]
    #[must_use]
    pub(crate) fn last_before(&self, value: u64) -> Option<Range<u64>> {
        // Usually there is none, or the highest is asked for.
        let last = self.ranges.back()?;
        if last.start < value {
            return Some(last.clone());
        }
        let i = self.ranges.partition_point(|r| r.start < value);
        self.ranges.get(i.checked_sub(1)?).cloned()
    }

    /// Adds one member; `false` if it was already there.
    #[inline]
    pub(crate) fn insert_one(&mut self, value: u64) -> bool {
        match self.ranges.back_mut() {
            Some(last) if last.end == value => {
                last.end += 1;
                true
            }
            Some(last) if last.end < value => {
                self.ranges.push_back(value..value + 1);
                true
            }
            None => {
                self.ranges.push_back(value..value + 1);
                true
            }
            Some(_) => {
                if self.contains(value) {
                    return false;
                }
                self.insert(value..value + 1);
                true
            }
        }
    }

    /// Adds every member of `range`.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // First range that touches or follows `range.start`; first that lies entirely after
        // `range.end`.
        let from = self.ranges.partition_point(|r| r.end < range.start);
        let to = self.ranges.partition_point(|r| r.start <= range.end);
        if from == to {
            self.ranges.insert(from, range);
            return;
        }
        let start = self.ranges[from].start.min(range.start);
        let end = self.ranges[to - 1].end.max(range.end);
        self.ranges[from] = start..end;
        if to - from > 1 {
            self.ranges.drain(from + 1..to);
        }
    }

    /// Removes every member of `range`.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut i = self.ranges.partition_point(|r| r.end <= range.start);
        while let Some(r) = self.ranges.get_mut(i) {
            if r.start >= range.end {
                break;
            }
            let (left, right) = (r.start..range.start, range.end..r.end);
            match (left.start < left.end, right.start < right.end) {
                (true, true) => {
                    *r = left;
                    self.ranges.insert(i + 1, right);
                    break;
                }
                (true, false) => {
                    *r = left;
                    i += 1;
                }
                (false, true) => {
                    *r = right;
                    break;
                }
                (false, false) => {
                    self.ranges.remove(i);
                }
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
            let (mut set, mut twin) = (RangeSet::default(), BTreeSet::new());
            for _ in 0..100 {
                let start = next(120);
                let end = start + next(12);
                match next(3) {
                    0 => {
                        set.insert(start..end);
                        twin.extend(start..end);
                    }
                    1 => {
                        set.remove(start..end);
                        twin.retain(|v| !(start..end).contains(v));
                    }
                    _ => assert_eq!(set.insert_one(start), twin.insert(start)),
                }
                let members: Vec<u64> = set.iter().cloned().flatten().collect();
                assert_eq!(members, twin.iter().copied().collect::<Vec<_>>());
                assert!(
                    set.iter()
                        .zip(set.iter().skip(1))
                        .all(|(a, b)| a.end < b.start),
                    "ranges must not touch"
                );
                assert!((0..140).all(|v| set.contains(v) == twin.contains(&v)));
            }
        }
    }
}
