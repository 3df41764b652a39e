//! Which stream sends next.
//!
//! ```text
//!  level 3   ordered: 4  8          one after the other, lowest id first
//!            fair:    12 16 20      in turn, a bundle each
//!  level 0   …                      only while nothing above has anything to send
//! ```
//!
//! Lines are emptied lazily: an entry whose stream has ended, has nothing more to send or has since
//! changed its rank is stale, and is skipped when it comes to the front. No operation looks beyond
//! the front of the lines, except `retain`, which the owner calls when most entries must be stale.

use std::collections::{BTreeSet, VecDeque};

use squall_protect::prefetch;
use squall_wire::StreamId;

/// A stream's rank among those of its connection that have something to send.
///
/// The levels are the application's own; RFC 9218's urgency `u` is level `-u`, and its
/// `incremental` the one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Streams of a higher level send first.
    pub level: i32,
    /// Whether the stream takes turns with the others of its level. If not, it sends all its data
    /// before streams of its level that were opened later.
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

/// A queued stream: its id, the slot that it had, and how often its rank had changed. A stream
/// whose rank changes back and forth leaves a stale entry each time, and only the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) id: StreamId,
    pub(super) slot: u32,
    pub(super) rank_changes: u32,
}

/// The queues of one level.
#[derive(Debug, Default)]
struct Level {
    level: i32,
    ordered: BTreeSet<Entry>,
    fair: VecDeque<Entry>,
    /// Whether the queue of streams that take turns is served next, when neither queue is empty.
    fair_turn: bool,
}

impl Level {
    fn serves_fair(&self) -> bool {
        !self.fair.is_empty() && (self.fair_turn || self.ordered.is_empty())
    }
}

/// Levels that are kept although they are empty: HTTP/3 has one for its own streams, and one or two
/// for requests.
const KEPT_LEVELS: usize = 3;

/// The streams of a connection that have something to send.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// Highest first. A few empty ones are kept for their memory.
    levels: Vec<Level>,
    /// Entries, stale ones included.
    len: usize,
}

impl SendQueue {
    /// Prefetches the highest line.
    #[inline]
    pub(super) fn prefetch(&self) {
        self.levels.first().inspect(|level| prefetch(*level));
    }

    /// Entries in all lines, stale ones included.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Drops every entry that is not wanted.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Entry) -> bool) {
        for level in &mut self.levels {
            level.fair.retain(&wanted);
            level.ordered.retain(&wanted);
        }
        self.levels
            .retain(|l| !l.fair.is_empty() || !l.ordered.is_empty());
        let lens = self.levels.iter().map(|l| l.fair.len() + l.ordered.len());
        self.len = lens.sum();
    }

    /// Frees the memory of empty lines.
    pub(super) fn shed(&mut self) {
        if self.is_empty() {
            (self.levels, self.len) = (Vec::new(), 0);
        }
    }

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
            self.len += 1;
        } else {
            self.len += usize::from(self.levels[at].ordered.insert(entry));
        }
    }

    /// The stream that sends next, and the rank under which it is queued.
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

    /// Removes the front from its line.
    pub(super) fn pop_front(&mut self) {
        let somebody = |l: &Level| !l.fair.is_empty() || !l.ordered.is_empty();
        let Some(at) = self.levels.iter().position(somebody) else {
            return;
        };
        self.len -= 1;
        let level = &mut self.levels[at];
        if level.serves_fair() {
            level.fair.pop_front();
        } else {
            level.ordered.pop_first();
        }
        if self.levels.len() > KEPT_LEVELS && !somebody(&self.levels[at]) {
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
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use squall_wire::{Direction, Side, TransportParameters};

    use super::super::Streams;
    use super::super::schedule::STALE_SLACK;
    use super::*;
    use crate::config::TransportConfig;

    fn entry(id: u64) -> Entry {
        Entry {
            id: StreamId(id),
            slot: id as u32,
            rank_changes: 0,
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
    fn higher_levels_go_first_and_streams_of_a_level_take_turns() {
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
        // In order of ids, each until it is done.
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
    fn incremental_and_other_streams_of_a_level_both_progress() {
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

    /// A stream whose rank changes back and forth is in the line once, and takes one turn.
    #[test]
    fn changing_a_priority_leaves_no_stale_entry() {
        let params = TransportParameters {
            initial_max_data: 1 << 20,
            initial_max_stream_data_uni: 1 << 20,
            initial_max_streams_uni: 10,
            ..TransportParameters::default()
        };
        let mut streams = Streams::new(Side::Client, &TransportConfig::default());
        streams.set_peer_parameters(&params);
        let [a, b] = [(); 2].map(|()| {
            let id = streams
                .open(Direction::Unidirectional)
                .expect("ten streams are allowed");
            let mut data = Bytes::from(vec![1; 10_000]);
            streams
                .write(id, &mut data)
                .expect("the send window has room");
            id
        });
        let urgent = Priority {
            level: 3,
            incremental: true,
        };
        for _ in 0..10_000 {
            assert!(streams.set_priority(a, urgent));
            assert!(streams.set_priority(a, Priority::default()));
        }
        let entries = streams.queue.len();
        assert!(entries <= 2 * 2 + STALE_SLACK, "{entries} entries");
        let turns: Vec<StreamId> = (0..6)
            .map(|_| {
                let (range, _) = streams
                    .next_range(1000)
                    .expect("both streams have more to send");
                streams.on_sent(&range);
                streams.rotate();
                range.id
            })
            .collect();
        assert!(
            turns == [a, b, a, b, a, b] || turns == [b, a, b, a, b, a],
            "{turns:?}"
        );
    }
}
