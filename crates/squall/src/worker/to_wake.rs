//! The tasks that a turn wakes, by who wakes them.
//!
//! ```text
//! tasks of a multi-thread runtime ── its relay, with the whole list (`relay`)
//! all others ─────────────────────── the worker, one by one
//! ```

use std::sync::Arc;
use std::task::Waker;

use super::relay::Relay;
use super::state::State;

/// The tasks that a turn wakes.
#[derive(Default)]
pub(super) struct ToWake {
    /// Those that the worker wakes itself.
    pub(super) direct: Vec<Waker>,
    relayed: Vec<(Arc<Relay>, Vec<Waker>)>,
}

impl ToWake {
    /// Takes a connection's events, and collects the tasks to wake.
    pub(super) fn collect(&mut self, state: &mut State) {
        let before = self.direct.len();
        state.take_events(&mut self.direct);
        if self.direct.len() > before
            && let Some(relay) = &state.relay
        {
            self.sort(before, relay);
        }
    }

    /// The tasks from `first` on are for this relay to wake.
    pub(super) fn sort(&mut self, first: usize, relay: &Arc<Relay>) {
        let woken = self.direct.drain(first..);
        let mut lists = self.relayed.iter_mut();
        match lists.find(|(one, _)| Arc::ptr_eq(one, relay)) {
            Some((_, list)) => list.extend(woken),
            None => {
                // Runtimes come and go.
                (self.relayed).retain(|(one, list)| !list.is_empty() || !one.is_gone());
                self.relayed.push((Arc::clone(relay), woken.collect()));
            }
        }
    }

    /// Wakes all; returns how many the worker woke itself, and how many there were.
    pub(super) fn wake(&mut self) -> (usize, usize) {
        let direct = self.direct.len();
        let mut all = direct;
        self.direct.drain(..).for_each(Waker::wake);
        for (relay, wakers) in &mut self.relayed {
            if !wakers.is_empty() {
                all += wakers.len();
                relay.wake_all(wakers);
            }
        }
        (direct, all)
    }
}
