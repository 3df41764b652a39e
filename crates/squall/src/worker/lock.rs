//! How every lock of the crate is taken.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock; a panic elsewhere while it was held does not make the data unusable, only perhaps
/// stale.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
