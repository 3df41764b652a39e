//! Which stream sends next.
//!
//! ```text
//!  level 3   ordered: 4  8          one after the other, lowest id first
//!            fair:    12 16 20      in turn, a bundle each
//!  level 0   …                      only while nothing above has anything to send
//! ```
//!
//! Lines are emptied lazily: an entry whose stream has ended, has nothing to send any more or has moved to another level
//! is stale, and passed over when it comes to the front. No operation looks at more than the front of the lines.

use std::collections::{BTreeSet, VecDeque};

use squall_wire::StreamId;

/// How a stream ranks among those of its connection that have something to send.
///
/// The levels are the application's own; RFC 9218's urgency `u` is level `-u`, and its `incremental` the one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Streams of a higher level send first.
    pub level: i32,
    /// Whether the stream takes turns with the others of its level; if not, it sends all it has before streams of its
    /// level that were opened later.
    pub incremental: bool,
}

impl Default for Priority {
    /// Level 0, in turn with the others.
    fn default() -> Self {
        Self {
            level: 0,
            incremental: true,
        }
    }
}

/// A stream in line: its id, and the slot that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) id: StreamId,
    pub(super) slot: u32,
}

/// The lines of one level.
#[derive(Debug, Default)]
struct Level {
    level: i32,
    ordered: BTreeSet<Entry>,
    fair: VecDeque<Entry>,
    /// Whether the line of those that take turns is served next, when both lines have somebody.
    fair_turn: bool,
}

impl Level {
    fn serves_fair(&self) -> bool {
        !self.fair.is_empty() && (self.fair_turn || self.ordered.is_empty())
    }
}

/// The streams of a connection that have something to send.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// Levels with somebody in line, the highest first; at least one is kept for its memory.
    levels: Vec<Level>,
}

impl SendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.levels
            .iter()
            .all(|l| l.fair.is_empty() && l.ordered.is_empty())
    }

    pub(super) fn push(&mut self, priority: Priority, entry: Entry) {
        let at = self.levels.partition_point(|l| l.level > priority.level);
        if self
            .levels
            .get(at)
            .is_none_or(|l| l.level != priority.level)
        {
            let level = Level {
                level: priority.level,
                ..Level::default()
            };
            self.levels.insert(at, level);
        }
        if priority.incremental {
            self.levels[at].fair.push_back(entry);
        } else {
            self.levels[at].ordered.insert(entry);
        }
    }

    /// The stream that sends next, and the rank under which it stands there.
    #[inline]
    pub(super) fn front(&self) -> Option<(Priority, Entry)> {
        self.levels.iter().find_map(|level| {
            let incremental = level.serves_fair();
            let entry = if incremental {
                level.fair.front()
            } else {
                level.ordered.first()
            };
            let priority = Priority {
                level: level.level,
                incremental,
            };
            entry.map(|entry| (priority, *entry))
        })
    }

    /// Takes the front out of its line.
    pub(super) fn pop_front(&mut self) {
        let somebody = |l: &Level| !l.fair.is_empty() || !l.ordered.is_empty();
        let Some(at) = self.levels.iter().position(somebody) else {
            return;
        };
        let level = &mut self.levels[at];
        if level.serves_fair() {
            level.fair.pop_front();
        } else {
            level.ordered.pop_first();
        }
        if self.levels.len() > 1 && !somebody(&self.levels[at]) {
            self.levels.remove(at);
        }
    }

    /// A bundle is full: the next one belongs to the next in turn.
    pub(super) fn rotate(&mut self) {
        let somebody = |l: &&mut Level| !l.fair.is_empty() || !l.ordered.is_empty();
        if let Some(level) = self.levels.iter_mut().find(somebody) {
            if level.serves_fair() {
                level.fair.rotate_left(1);
            }
            level.fair_turn = !level.fair_turn;
        }
    }

    pub(super) fn clear(&mut self) {
        self.levels = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> Entry {
        Entry {
            id: StreamId(id),
            slot: id as u32,
        }
    }

    fn order(queue: &mut SendQueue, bundles: usize) -> Vec<u64> {
        (0..bundles)
            .filter_map(|_| {
                let id = queue.front().map(|(_, e)| e.id.0);
                queue.rotate();
                id
            })
            .collect()
    }

    #[test]
    fn levels_then_turns() {
        let mut queue = SendQueue::default();
        assert!(queue.is_empty() && queue.front().is_none());
        for id in [0, 4, 8] {
            queue.push(Priority::default(), entry(id));
        }
        assert_eq!(order(&mut queue, 4), [0, 4, 8, 0]);
        let urgent = Priority {
            level: 7,
            incremental: false,
        };
        for id in [24, 20] {
            queue.push(urgent, entry(id));
        }
        // In the order of ids, and each until it is done.
        assert_eq!(order(&mut queue, 3), [20, 20, 20]);
        queue.pop_front();
        assert_eq!(order(&mut queue, 2), [24, 24]);
        queue.pop_front();
        assert_eq!(queue.front(), Some((Priority::default(), entry(4))));
        for _ in 0..3 {
            queue.pop_front();
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn both_kinds_of_a_level_move() {
        let mut queue = SendQueue::default();
        let ordered = Priority {
            level: 0,
            incremental: false,
        };
        queue.push(ordered, entry(0));
        queue.push(Priority::default(), entry(4));
        queue.push(Priority::default(), entry(8));
        assert_eq!(order(&mut queue, 6), [0, 4, 0, 8, 0, 4]);
    }
}
