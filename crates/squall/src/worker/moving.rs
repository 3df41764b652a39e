//! Connections move to a new socket, a few each millisecond.
//!
//! A move takes a client some 10 µs and a datagram of 1,200 bytes. Tens of thousands at once would
//! keep the worker from everything else for a second and overrun the server's socket, and all that
//! are lost there would be repeated at the same time. A connection with something to send does not
//! wait for its turn.

use std::sync::Arc;
use std::time::Duration;

use squall_core::{Move, Time};
use squall_wire::Path;

use super::Worker;
use super::state::State;

/// The time between two steps.
const STEP: Duration = Duration::from_millis(1);
/// Connections that move in a step: they send some 300 Mbit/s.
const CONNECTIONS: usize = 32;

/// Which connections, by index, are still to move.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Where the next step begins.
    next: usize,
    left: usize,
    due: Time,
}

impl Moving {
    /// All `len` connections are to move. Those already waiting to move are not delayed by that.
    pub(super) fn begin(&mut self, now: Time, len: usize) {
        if self.left == 0 {
            self.due = now;
        }
        self.left = len;
    }

    /// When the next step is due.
    pub(super) fn due(&self) -> Option<Time> {
        (self.left > 0).then_some(self.due)
    }

    /// The next of `len` indices, if a step is due in which `moved` connections have moved.
    fn take(&mut self, now: Time, len: usize, moved: usize) -> Option<usize> {
        if self.left == 0 || now < self.due {
            return None;
        }
        if moved == CONNECTIONS {
            self.due = now + STEP;
            return None;
        }
        self.left -= 1;
        let index = if self.next < len { self.next } else { 0 };
        self.next = index + 1;
        Some(index)
    }
}

impl Worker {
    /// Queues connections whose turn it is to move.
    pub(super) fn move_some(&mut self) {
        let mut moved = 0;
        while let Some(index) = self.moving.take(self.now, self.connections.len(), moved) {
            if let Some(Some(connection)) = self.connections.get(index) {
                moved += 1;
                if !std::mem::replace(&mut connection.lock().queued, true) {
                    self.ready.push_back(Arc::clone(connection));
                }
            }
        }
    }

    /// Moves a connection that is about to send to the worker's socket, unless it is already there.
    pub(super) fn move_to_socket(&self, state: &mut State) {
        if std::mem::replace(&mut state.moved_to, self.replaced) == self.replaced {
            return;
        }
        let path = Path {
            local: None,
            ..state.core.path()
        };
        // A connection that cannot migrate yet, or is a server's, continues all the same: its peer
        // sees the new address.
        let _ = state.core.migrate(self.now, path, Move::AtOnce);
        state.core.ping();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(moving: &mut Moving, now: Time, len: usize) -> Vec<usize> {
        let mut taken = Vec::new();
        while let Some(index) = moving.take(now, len, taken.len()) {
            taken.push(index);
        }
        taken
    }

    #[test]
    fn every_connection_moves_in_its_turn() {
        let (mut moving, mut now) = (Moving::default(), Time::ZERO);
        assert_eq!(moving.due(), None);
        assert!(step(&mut moving, now, 100).is_empty());
        moving.begin(now, 100);
        let mut seen = Vec::new();
        while let Some(due) = moving.due() {
            now = now.max(due);
            let taken = step(&mut moving, now, 100);
            assert!(taken.len() <= CONNECTIONS);
            assert!(
                step(&mut moving, now, 100).is_empty(),
                "one step per interval"
            );
            seen.extend(taken);
        }
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert_eq!(now, Time::ZERO + 3 * STEP);
    }

    #[test]
    fn repeated_rebinds_do_not_starve_any_connection() {
        let (mut moving, mut now) = (Moving::default(), Time::ZERO);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10 {
            moving.begin(now, 100);
            seen.extend(step(&mut moving, now, 100));
            now += STEP;
        }
        assert_eq!(seen.len(), 100);
        // There are fewer connections now.
        moving.begin(now, 40);
        while let Some(due) = moving.due() {
            assert!(step(&mut moving, due, 40).iter().all(|index| *index < 40));
        }
    }
}
