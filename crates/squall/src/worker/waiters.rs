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
    /// The first in line, and usually the only one.
    first: Option<Waiter>,
    /// Those that found the first place taken.
    others: Option<Box<Others>>,
    /// Number of the next ticket. Never reused: a ticket that outlives its slot must not find
    /// another's.
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Others {
    slots: Vec<Option<Waiter>>,
    /// Slots without a waiter.
    free: Vec<u32>,
}

impl Others {
    /// Takes a free slot and returns its index.
    fn add(&mut self, waiter: Waiter) -> u32 {
        let waiter = Some(waiter);
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = waiter;
            return index;
        }
        self.slots.push(waiter);
        (self.slots.len() - 1) as u32
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Where a waiter is in its line.
#[derive(Clone, Copy, Debug)]
enum Slot {
    First,
    /// By index.
    Other(u32),
}

/// A future's place in a line, if it has one: slot and number.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<(Slot, u64)>);

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
        if let Some(waiter) = self.find(ticket) {
            if waiter.waker.will_wake(waker) {
                return None;
            }
            return Some(std::mem::replace(&mut waiter.waker, waker.clone()));
        }
        let number = self.next;
        self.next += 1;
        let waiter = Waiter {
            ticket: number,
            waker: waker.clone(),
        };
        let slot = if self.first.is_none() {
            self.first = Some(waiter);
            Slot::First
        } else {
            Slot::Other(self.others.get_or_insert_default().add(waiter))
        };
        ticket.0 = Some((slot, number));
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
        let (slot, number) = ticket.0.take()?;
        let is_own = |waiter: &mut Waiter| waiter.ticket == number;
        let removed = match slot {
            Slot::First => self.first.take_if(is_own),
            Slot::Other(index) => {
                let others = self.others.as_mut()?;
                let removed = others.slots.get_mut(index as usize)?.take_if(is_own);
                others.free.extend(removed.is_some().then_some(index));
                removed
            }
        };
        removed.map(|waiter| waiter.waker)
    }

    fn find(&mut self, ticket: &Ticket) -> Option<&mut Waiter> {
        let (slot, number) = ticket.0?;
        let waiter = match slot {
            Slot::First => self.first.as_mut(),
            Slot::Other(index) => (self.others.as_mut()?.slots)
                .get_mut(index as usize)?
                .as_mut(),
        };
        waiter.filter(|waiter| waiter.ticket == number)
    }

    /// Whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.as_ref().is_none_or(|others| others.len() == 0)
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
        if let Some(waiter) = self.first.take() {
            wakers.push(waiter.waker);
        }
        if self.others.is_some() {
            self.move_others(wakers);
        }
    }

    fn move_others(&mut self, wakers: &mut Vec<Waker>) {
        if let Some(others) = &mut self.others {
            let waiters = others.slots.drain(..).flatten();
            wakers.extend(waiters.map(|waiter| waiter.waker));
            others.free.clear();
            if others.slots.capacity() > KEPT_SLOTS {
                self.others = None;
            }
        }
    }

    /// Number of tasks in line.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.as_ref().map_or(0, |others| others.len())
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
        assert_eq!(line.len(), 0);
        assert!(line.others.is_none());
        let (mut stays, mut ticket) = (Ticket::default(), Ticket::default());
        assert!(line.register(&mut stays, Waker::noop()).is_none());
        for _ in 0..10_000 {
            assert!(line.register(&mut ticket, Waker::noop()).is_none());
            drop(line.remove(&mut ticket));
        }
        assert_eq!(line.len(), 1);
        assert_eq!(line.others.map(|others| others.slots.len()), Some(1));
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
    fn a_woken_task_does_not_take_the_place_of_another() {
        let mut line = Waiters::default();
        let mut old = [Ticket::default(), Ticket::default()];
        let mut new = [Ticket::default(), Ticket::default()];
        for ticket in &mut old {
            assert!(line.register(ticket, Waker::noop()).is_none());
        }
        line.move_into(&mut Vec::new());
        for ticket in new.iter_mut().chain(&mut old) {
            assert!(line.register(ticket, Waker::noop()).is_none());
        }
        assert_eq!(line.len(), 4);
    }

    #[test]
    fn a_long_queue_of_waiters_frees_its_memory() {
        let mut line = Waiters::default();
        let mut tickets: Vec<Ticket> = (0..1000).map(|_| Ticket::default()).collect();
        for ticket in &mut tickets {
            assert!(line.register(ticket, Waker::noop()).is_none());
        }
        line.move_into(&mut Vec::new());
        assert!(line.others.is_none());
        for ticket in &mut tickets {
            drop(line.remove(ticket));
        }
        assert!(line.others.is_none());
    }
}
