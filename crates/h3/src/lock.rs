//! Locks that ignore poisoning: what they guard is changed in single steps, so it is consistent
//! even after a holder has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores a waker in a slot, unless it holds an equivalent one. Returns the one that it replaces,
/// which must not be dropped under a lock: that may run code of the application's, which may take
/// the same lock.
#[must_use]
pub(crate) fn replace(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    if slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
        return None;
    }
    slot.replace(waker.clone())
}
