//! Streams take their places in the queue of those that have something to send, and leave it.

use squall_wire::StreamId;

use super::Streams;
use super::queue::{Entry, Priority};
use super::send::SendStream;

/// Stale entries that the send queue may always hold, so that a short queue is not cleaned
/// constantly.
pub(super) const STALE_SLACK: usize = 64;

impl Streams {
    /// Puts a stream that has something to send into the queue, unless it is there.
    pub(super) fn enqueue(&mut self, slot: u32) {
        let withheld = (self.get(slot).map(|s| s.id)).is_some_and(|id| self.is_withheld(id));
        if !withheld
            && let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut)
            && let Some(send) = stream.send.as_mut()
            && !send.queued
            && send.wants_to_send()
        {
            send.queued = true;
            let entry = Entry {
                id: stream.id,
                slot,
                rank_changes: send.rank_changes,
            };
            self.queue.push(send.priority, entry);
            if self.queue.len() > 2 * self.table.len() + STALE_SLACK {
                self.drop_stale();
            }
        }
    }

    /// Removes stale entries from the queue. Every stream has at most one valid entry, so at least
    /// half of the entries go, and the cost is amortised over the calls that added them.
    pub(super) fn drop_stale(&mut self) {
        let slots = &self.slots;
        let counts = |entry: &Entry, stands: fn(&SendStream) -> bool| {
            let stream = slots.get(entry.slot as usize).and_then(Option::as_ref);
            let stream = stream.filter(|s| s.id == entry.id);
            let send = stream.and_then(|s| s.send.as_ref());
            send.is_some_and(|s| stands(s) && s.rank_changes == entry.rank_changes)
        };
        self.queue.retain(|entry| counts(entry, |s| s.queued));
        self.starved.retain(|entry| counts(entry, |s| s.starved));
    }

    /// The stream that sends next, dropping stale entries on the way.
    #[inline]
    pub(super) fn next_sender(&mut self) -> Option<u32> {
        loop {
            let Some((_, entry)) = self.queue.front() else {
                if !self.may_feed() {
                    return None;
                }
                self.feed_starved();
                continue;
            };
            let Entry { id, slot, .. } = entry;
            let waits = self
                .slots
                .get(slot as usize)
                .and_then(Option::as_ref)
                .filter(|s| s.id == id)
                .and_then(|s| s.send.as_ref())
                .is_some_and(|s| {
                    s.queued && s.rank_changes == entry.rank_changes && s.wants_to_send()
                });
            if waits {
                return Some(slot);
            }
            self.dequeue(slot, id);
        }
    }

    /// Removes the front of the queue, which is this stream.
    pub(super) fn dequeue(&mut self, slot: u32, id: StreamId) {
        let Some((_, entry)) = self.queue.front() else {
            return;
        };
        self.queue.pop_front();
        if let Some(stream) = self.get(slot).filter(|s| s.id == id)
            && let Some(send) = stream.send.as_mut()
            && send.rank_changes == entry.rank_changes
        {
            send.queued = false;
        }
    }

    /// A stream's priority; `None` if it no longer has a sending part.
    pub(crate) fn priority(&mut self, id: StreamId) -> Option<Priority> {
        let slot = self.find(id)?;
        Some(self.get(slot)?.send.as_ref()?.priority)
    }

    /// Changes a stream's priority; returns whether it has a sending part.
    pub(crate) fn set_priority(&mut self, id: StreamId, priority: Priority) -> bool {
        let Some(slot) = self.find(id) else {
            return false;
        };
        let Some(send) = self.get(slot).and_then(|s| s.send.as_mut()) else {
            return false;
        };
        if send.priority != priority {
            send.priority = priority;
            // The entry under the old rank is stale from now on.
            send.rank_changes = send.rank_changes.wrapping_add(1);
            (send.queued, send.starved) = (false, false);
            self.enqueue(slot);
        }
        true
    }

    /// Marks a stream as background, if it exists.
    pub(crate) fn set_background(&mut self, id: StreamId) {
        if let Some(stream) = self.find(id).and_then(|slot| self.get(slot)) {
            let was = std::mem::replace(&mut stream.background, true);
            self.background += usize::from(!was);
        }
    }

    /// Whether there are streams that are not background.
    pub(crate) fn any_in_foreground(&self) -> bool {
        self.table.len() > self.background
    }
}
