//! Which of the peer's streams of one kind have ended.

use crate::range_tree::RangeTree;

/// Indexes of streams that have ended. Most end in the order in which they were opened, which takes
/// no memory of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedStreams {
    /// All streams below this index have ended.
    below: u64,
    /// Those above it.
    above: RangeTree,
}

impl EndedStreams {
    #[inline]
    pub(super) fn insert(&mut self, index: u64) {
        if index != self.below {
            self.above.insert(index..index + 1);
            return;
        }
        self.below += 1;
        if let Some(next) = self.above.first()
            && next.start == self.below
        {
            self.below = next.end;
            self.above.pop_first();
        }
    }

    #[inline]
    pub(super) fn contains(&self, index: u64) -> bool {
        index < self.below || self.above.contains(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn equals_a_plain_set_in_any_order() {
        let mut next = crate::common::numbers(1);
        for spread in [1, 2, 5, 100] {
            let (mut ended, mut twin) = (EndedStreams::default(), BTreeSet::new());
            for step in 0..900 {
                // Behind the front as often as before it.
                let index = (step / 3 + next(spread)).saturating_sub(next(spread));
                if twin.insert(index) {
                    ended.insert(index);
                }
                assert!((0..410).all(|index| ended.contains(index) == twin.contains(&index)));
            }
            let in_order = (0..).take_while(|index| twin.contains(index)).count() as u64;
            assert_eq!(ended.below, in_order);
            assert_eq!(ended.above.is_empty(), twin.len() as u64 == in_order);
        }
    }
}
