//! The timers of a worker's connections: one deadline per connection, set again every turn.
//!
//! ```text
//! level 0   64 slots of 1 ms
//! level 1   64 slots of 64 ms
//! …
//! level 5   64 slots of 12 days
//! ```
//! A deadline lies in the lowest level whose slot it does not share with "now". When a slot of a
//! higher level comes due, its deadlines move down or fire.
//!
//! A hierarchical wheel (Varghese and Lauck, 1987): setting a deadline costs the same however many
//! there are. Most deadlines only ever move later (each acknowledgement moves the loss timer), and
//! that costs one store here: the entry stays where it is filed, and is filed again when that slot
//! comes due.

use std::time::Duration;

use squall_core::{Time, prefetch};

const TICK: Duration = Duration::from_millis(1);
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 6;
/// The farthest deadline, in ticks from now: about 2 years. A farther one is set again when this
/// comes due.
const HORIZON: u64 = (1 << (LEVEL_BITS as usize * LEVELS)) - 1;

const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;

/// One connection's entry, a node of its slot's list.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The deadline in ticks; `NEVER`: none.
    wanted: u64,
    /// The tick that the node is filed under, at most `wanted`; `NEVER`: not filed.
    filed: u64,
    slot: u16,
    previous: u32,
    next: u32,
}

const UNFILED: Node = Node {
    wanted: NEVER,
    filed: NEVER,
    slot: 0,
    previous: NONE,
    next: NONE,
};

/// Deadlines by small dense index.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    /// All deadlines up to this tick have fired.
    elapsed: u64,
    occupied: [u64; LEVELS],
    heads: [u32; LEVELS * SLOTS],
    nodes: Vec<Node>,
}

/// Rounded up: a timer never fires early.
fn tick_at_or_after(time: Time) -> u64 {
    time.as_nanos().div_ceil(TICK.as_nanos() as u64)
}

impl TimerWheel {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            elapsed: now.as_nanos() / TICK.as_nanos() as u64,
            occupied: [0; LEVELS],
            heads: [NONE; LEVELS * SLOTS],
            nodes: Vec::new(),
        }
    }

    /// Sets or clears the deadline of `index`. Returns whether the wheel itself had to be changed.
    pub(crate) fn set(&mut self, index: usize, deadline: Option<Time>) -> bool {
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, UNFILED);
        }
        let Some(node) = self.nodes.get_mut(index) else {
            return false;
        };
        let Some(deadline) = deadline else {
            node.wanted = NEVER;
            let filed = node.filed != NEVER;
            self.unlink(index);
            return filed;
        };
        node.wanted = tick_at_or_after(deadline).max(self.elapsed + 1);
        if node.filed <= node.wanted {
            return false;
        }
        self.unlink(index);
        self.link(index);
        true
    }

    /// Prefetches what [`set`](Self::set) needs.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        self.nodes.get(index).inspect(|node| prefetch(*node));
    }

    /// When to call `expire` next: no deadline comes earlier. (It may find none due: see the head
    /// of this file.)
    pub(crate) fn next(&self) -> Option<Time> {
        let tick = self.next_slot().map(|(_, tick)| tick)?;
        Some(Time::from_nanos(
            tick.saturating_mul(TICK.as_nanos() as u64),
        ))
    }

    /// Removes the deadlines up to `now` and puts their indices into `due`.
    pub(crate) fn expire(&mut self, now: Time, due: &mut Vec<usize>) {
        let now = now.as_nanos() / TICK.as_nanos() as u64;
        while let Some((slot, tick)) = self.next_slot().filter(|&(_, tick)| tick <= now) {
            self.elapsed = self.elapsed.max(tick);
            self.empty_slot(slot, due);
        }
        self.elapsed = self.elapsed.max(now);
    }

    /// The slot that comes due first, and when.
    fn next_slot(&self) -> Option<(usize, u64)> {
        // A slot of a lower level always comes before one of a higher: it lies within the current
        // higher slot.
        let (level, occupied) = self
            .occupied
            .iter()
            .enumerate()
            .find(|(_, occupied)| **occupied != 0)?;
        let shift = level as u32 * LEVEL_BITS;
        let position = (self.elapsed >> shift) % SLOTS as u64;
        let ahead = u64::from(occupied.rotate_right(position as u32).trailing_zeros());
        let slot = (position + ahead) % SLOTS as u64;
        let start = self.elapsed >> shift << shift;
        Some((level * SLOTS + slot as usize, start + (ahead << shift)))
    }

    /// Fires or refiles everything in a slot whose time has come.
    fn empty_slot(&mut self, slot: usize, due: &mut Vec<usize>) {
        let mut at = self.heads.get(slot).copied().unwrap_or(NONE);
        while at != NONE {
            let index = at as usize;
            let Some(&Node { wanted, next, .. }) = self.nodes.get(index) else {
                break;
            };
            at = next;
            self.unlink(index);
            if wanted <= self.elapsed {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.wanted = NEVER;
                }
                due.push(index);
            } else {
                self.link(index);
            }
        }
    }

    /// Files an unfiled node under its wanted tick, which lies ahead.
    fn link(&mut self, index: usize) {
        let elapsed = self.elapsed;
        let Some(node) = self.nodes.get_mut(index) else {
            return;
        };
        let tick = node
            .wanted
            .min(elapsed + HORIZON - (elapsed & HORIZON))
            .max(elapsed + 1);
        // The highest group of 6 bits in which the tick differs from now is its level.
        let level = ((elapsed ^ tick).ilog2() / LEVEL_BITS).min(LEVELS as u32 - 1);
        let in_level = ((tick >> (level * LEVEL_BITS)) % SLOTS as u64) as usize;
        let slot = level as usize * SLOTS + in_level;
        let (Some(head), Some(occupied)) = (
            self.heads.get_mut(slot),
            self.occupied.get_mut(level as usize),
        ) else {
            return;
        };
        let next = std::mem::replace(head, index as u32);
        *occupied |= 1 << in_level;
        (node.filed, node.slot, node.previous, node.next) = (tick, slot as u16, NONE, next);
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = index as u32;
        }
    }

    fn unlink(&mut self, index: usize) {
        let Some(node) = self.nodes.get_mut(index).filter(|node| node.filed != NEVER) else {
            return;
        };
        let Node {
            slot,
            previous,
            next,
            ..
        } = *node;
        (node.filed, node.previous, node.next) = (NEVER, NONE, NONE);
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = previous;
        }
        if let Some(previous) = self.nodes.get_mut(previous as usize) {
            previous.next = next;
            return;
        }
        let slot = usize::from(slot);
        if let Some(head) = self.heads.get_mut(slot) {
            *head = next;
        }
        if next == NONE
            && let Some(occupied) = self.occupied.get_mut(slot / SLOTS)
        {
            *occupied &= !(1 << (slot % SLOTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn expired(wheel: &mut TimerWheel, now: Time) -> Vec<usize> {
        let mut due = Vec::new();
        wheel.expire(now, &mut due);
        due.sort_unstable();
        due
    }

    #[test]
    fn fires_once_at_the_deadline_and_never_before() {
        let mut wheel = TimerWheel::new(ms(1000));
        wheel.set(3, Some(Time::from_nanos(1_005_200_000)));
        assert_eq!(wheel.next(), Some(ms(1006)));
        assert!(expired(&mut wheel, ms(1005)).is_empty());
        assert_eq!(expired(&mut wheel, ms(1006)), [3]);
        assert_eq!(wheel.next(), None);
        assert!(expired(&mut wheel, ms(9000)).is_empty());
    }

    #[test]
    fn a_postponed_deadline_costs_nothing_and_fires_later() {
        let mut wheel = TimerWheel::new(ms(0));
        assert!(wheel.set(0, Some(ms(10))));
        assert!(!wheel.set(0, Some(ms(500))));
        assert!(expired(&mut wheel, ms(499)).is_empty());
        assert_eq!(expired(&mut wheel, ms(500)), [0]);
    }

    #[test]
    fn an_advanced_deadline_fires_earlier() {
        let mut wheel = TimerWheel::new(ms(0));
        wheel.set(0, Some(ms(5000)));
        assert!(wheel.set(0, Some(ms(7))));
        assert_eq!(wheel.next(), Some(ms(7)));
        assert_eq!(expired(&mut wheel, ms(7)), [0]);
        assert!(expired(&mut wheel, ms(6000)).is_empty());
    }

    #[test]
    fn a_cleared_deadline_does_not_fire() {
        let mut wheel = TimerWheel::new(ms(0));
        wheel.set(0, Some(ms(5)));
        wheel.set(1, Some(ms(5)));
        assert!(wheel.set(0, None));
        assert!(!wheel.set(0, None));
        assert_eq!(expired(&mut wheel, ms(10)), [1]);
        wheel.set(1, Some(ms(11)));
        wheel.set(1, None);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_deadline_in_the_past_fires_at_the_next_tick() {
        let mut wheel = TimerWheel::new(ms(100));
        wheel.set(0, Some(ms(50)));
        assert_eq!(wheel.next(), Some(ms(101)));
        assert_eq!(expired(&mut wheel, ms(101)), [0]);
    }

    #[test]
    fn deadlines_beyond_the_horizon_fire() {
        let start = (HORIZON + 1) * 3 / 2;
        let mut wheel = TimerWheel::new(ms(start));
        let far = start + HORIZON * 2;
        wheel.set(0, Some(ms(far)));
        assert!(expired(&mut wheel, ms(far - 1)).is_empty());
        assert_eq!(expired(&mut wheel, ms(far)), [0]);
    }

    /// The slow twin: a list of deadlines, scanned one by one.
    #[test]
    fn agrees_with_a_plain_list() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let mut now = 123_456_789;
        let mut wheel = TimerWheel::new(ms(now));
        let mut list: Vec<Option<u64>> = vec![None; 50];
        for _ in 0..200_000 {
            let index = random(50) as usize;
            match random(10) {
                0 => {
                    wheel.set(index, None);
                    list[index] = None;
                }
                1..=6 => {
                    let scale = [3, 70, 5000, 300_000, 30_000_000][random(5) as usize];
                    let deadline = now + 1 + random(scale);
                    wheel.set(index, Some(ms(deadline)));
                    list[index] = Some(deadline);
                }
                _ => {
                    let scale = [2, 2, 100, 10_000, 1_000_000][random(5) as usize];
                    now += random(scale);
                    let fires = |at: &Option<u64>| at.is_some_and(|at| at <= now);
                    let expected: Vec<usize> = (0..50).filter(|&i| fires(&list[i])).collect();
                    list.iter_mut()
                        .filter(|at| fires(at))
                        .for_each(|at| *at = None);
                    assert_eq!(expired(&mut wheel, ms(now)), expected);
                }
            }
            let earliest = list.iter().flatten().min();
            assert_eq!(wheel.next().is_some(), earliest.is_some());
            if let (Some(next), Some(&earliest)) = (wheel.next(), earliest) {
                assert!(next > ms(now) && next <= ms(earliest));
            }
        }
    }
}
