//! Locks that ignore poisoning: what they guard is changed in single steps, so it is consistent
//! even after a holder has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
