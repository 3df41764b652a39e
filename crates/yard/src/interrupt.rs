//! Ctrl-C: a measurement ends early and reports what it has; a server closes its connections.
//!
//! ```text
//!   SIGINT, SIGTERM  ->  blocked in every thread, awaited by one  ->  raised(), wait()
//!   the second one   ->  the process ends at once
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Notify;

use crate::error::{Result, context};
use crate::sys;

static RAISED: AtomicBool = AtomicBool::new(false);
static WAITING: Notify = Notify::const_new();

/// What a shell reports for a command that Ctrl-C ended: 128 + SIGINT.
const IMPATIENT: i32 = 130;

/// Starts listening. Call it before other threads start: they inherit the blocked signals.
///
/// # Errors
/// The thread could not be started.
pub fn listen() -> Result<()> {
    sys::block_end_signals();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(|| {
            while sys::wait_for_end_signal() {
                if RAISED.swap(true, Ordering::Relaxed) {
                    std::process::exit(IMPATIENT);
                }
                WAITING.notify_waiters();
            }
        })
        .map(drop)
        .map_err(context("cannot start a thread"))
}

/// Whether the user has asked to stop.
pub fn raised() -> bool {
    RAISED.load(Ordering::Relaxed)
}

/// Waits until the user asks to stop.
pub async fn wait() {
    let mut notified = std::pin::pin!(WAITING.notified());
    // Registered before the check, so that no signal is missed in between.
    notified.as_mut().enable();
    if !raised() {
        notified.await;
    }
}

/// Whether it is time to stop: the deadline has passed, or the user has asked to.
pub fn due(deadline: Option<Instant>) -> bool {
    raised() || deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Runs a future until it is done, the deadline passes or the user asks to stop; `None` in the last
/// two cases.
pub async fn unless_due<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    let stop = async {
        match deadline {
            // An error means that the time is up.
            Some(deadline) => drop(tokio::time::timeout_at(deadline.into(), wait()).await),
            None => wait().await,
        }
    };
    let (mut future, mut stop) = (std::pin::pin!(future), std::pin::pin!(stop));
    std::future::poll_fn(|cx| {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(cx) {
            return std::task::Poll::Ready(Some(output));
        }
        stop.as_mut().poll(cx).map(|()| None)
    })
    .await
}
