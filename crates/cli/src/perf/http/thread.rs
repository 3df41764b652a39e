//! Runs work on a separate thread pinned to one core.

use std::thread;

use squall_yard::error::{Failure, Result, context};
use squall_yard::sys;

/// Runs a closure on a new thread, pinned to a core if one is given, and waits for it.
///
/// # Errors
/// The closure's, or the thread could not be started.
pub(super) fn on_core<T: Send>(
    core: Option<usize>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("pinned".to_owned());
        let thread = builder.spawn_scoped(scope, move || {
            if let Some(core) = core {
                sys::pin(core).map_err(context("cannot pin a thread"))?;
            }
            work()
        });
        let thread = thread.map_err(context("cannot start a thread"))?;
        let ended = thread.join();
        ended.map_err(|_| Failure::new("a thread of the measurement panicked"))?
    })
}
