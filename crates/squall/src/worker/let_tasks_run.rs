//! Giving the other tasks of a runtime their turn.

use std::future::poll_fn;
use std::task::Poll;

/// Goes to the end of the runtime's queue: every task that is ready runs first. Unlike `yield_now`,
/// this does not make the runtime poll the socket in between, which would cost a system call; the
/// runtime polls it now and then anyway. A multi-thread runtime wakes a parked thread, if there is
/// one, and the caller may move to it.
pub(super) async fn let_tasks_run() {
    let mut passed = false;
    poll_fn(|cx| {
        if passed {
            return Poll::Ready(());
        }
        passed = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
