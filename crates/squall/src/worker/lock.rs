//! How every lock of the crate is taken.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock. If another thread panicked while holding it, the data stays usable, only perhaps
/// stale.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
