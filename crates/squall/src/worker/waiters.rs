//! Tasks that wait for the same thing.
//!
//! A future takes a ticket when it first has to wait and returns it when it is done or dropped, so
//! a line is never longer than the number of waiting futures. Joining, leaving and finding a place
//! again each take constant time.

use std::task::Waker;

/// If an emptied line has room for more than this, it frees its memory.
const KEPT_SLOTS: usize = 64;

/// Tasks that wait for the same thing. All are woken; each checks for itself.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    slots: Vec<Slot>,
    /// Slots without a waker.
    free: Vec<u32>,
    /// Number of the next ticket. Never reused: a ticket that outlives its slot must not find
    /// another's.
    next: u64,
}

#[derive(Debug)]
struct Slot {
    ticket: u64,
    waker: Option<Waker>,
}

/// A future's place in a line, if it has one: slot and number.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<(u32, u64)>);

impl Ticket {
    /// Whether the holder may still be in a line.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}

/// Stores a waker in a slot, unless it holds an equivalent one. Returns the one that it replaces.
#[must_use]
pub(crate) fn replace(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    if slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
        return None;
    }
    slot.replace(waker.clone())
}

impl Waiters {
    /// Has `waker` woken with the others; a ticket that is in line keeps its place. Returns the
    /// waker that it replaces there, which must not be dropped under a lock (see
    /// [`Locked`](super::state::Locked)).
    #[must_use]
    pub(crate) fn register(&mut self, ticket: &mut Ticket, waker: &Waker) -> Option<Waker> {
        if let Some(slot) = self.find(ticket) {
            return replace(&mut slot.waker, waker);
        }
        let slot = Slot {
            ticket: self.next,
            waker: Some(waker.clone()),
        };
        self.next += 1;
        let number = slot.ticket;
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        ticket.0 = Some((index, number));
        None
    }

    /// Leaves the line. Returns the waker that was there, which must not be dropped under a lock.
    #[inline]
    #[must_use]
    pub(crate) fn remove(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        if !ticket.is_taken() {
            return None;
        }
        self.remove_taken(ticket)
    }

    fn remove_taken(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        let removed = self.find(ticket).and_then(|slot| slot.waker.take());
        if removed.is_some() {
            self.free.extend(ticket.0.map(|(index, _)| index));
        }
        ticket.0 = None;
        removed
    }

    fn find(&mut self, ticket: &Ticket) -> Option<&mut Slot> {
        let (index, number) = ticket.0?;
        let slot = self.slots.get_mut(index as usize)?;
        (slot.ticket == number && slot.waker.is_some()).then_some(slot)
    }

    /// Whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Takes all of them and leaves the line empty.
    pub(crate) fn take(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.move_into(&mut wakers);
        wakers
    }

    /// Moves all of them into `wakers` and leaves the line empty.
    #[inline]
    pub(crate) fn move_into(&mut self, wakers: &mut Vec<Waker>) {
        // Usually no task waits, and most events check.
        if !self.slots.is_empty() {
            self.move_all(wakers);
        }
    }

    fn move_all(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(self.slots.drain(..).filter_map(|slot| slot.waker));
        self.free.clear();
        if self.slots.capacity() > KEPT_SLOTS {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// Number of tasks in line.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_waiters_does_not_grow_with_cancelled_ones() {
        let mut line = Waiters::default();
        for _ in 0..10_000 {
            let mut ticket = Ticket::default();
            assert!(line.register(&mut ticket, Waker::noop()).is_none());
            assert!(line.register(&mut ticket, Waker::noop()).is_none());
            assert_eq!(line.len(), 1, "registering again keeps the place");
            drop(line.remove(&mut ticket));
            assert!(!ticket.is_taken());
        }
        assert_eq!((line.len(), line.slots.len()), (0, 1));
    }

    #[test]
    fn a_stale_ticket_removes_no_other_waiter() {
        let mut line = Waiters::default();
        let (mut old, mut new) = (Ticket::default(), Ticket::default());
        assert!(line.register(&mut old, Waker::noop()).is_none());
        let mut woken = Vec::new();
        line.move_into(&mut woken);
        assert_eq!((woken.len(), line.len()), (1, 0));
        assert!(line.register(&mut new, Waker::noop()).is_none());
        drop(line.remove(&mut old));
        assert_eq!(line.len(), 1, "the new one is in the old one's slot");
        assert!(line.register(&mut old, Waker::noop()).is_none());
        assert_eq!(
            line.len(),
            2,
            "a woken task that waits again is queued again"
        );
        drop(line.remove(&mut new));
        drop(line.remove(&mut old));
        line.move_into(&mut woken);
        assert_eq!(woken.len(), 1);
    }

    #[test]
    fn a_long_queue_of_waiters_frees_its_memory() {
        let mut line = Waiters::default();
        let mut tickets: Vec<Ticket> = (0..1000).map(|_| Ticket::default()).collect();
        for ticket in &mut tickets {
            assert!(line.register(ticket, Waker::noop()).is_none());
        }
        line.move_into(&mut Vec::new());
        assert_eq!(line.slots.capacity(), 0);
        for ticket in &mut tickets {
            drop(line.remove(ticket));
        }
        assert_eq!(line.free.len(), 0);
    }
}
