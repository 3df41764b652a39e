//! HTTP/2 responses that the client has stopped reading, although it may read others.
//!
//! hyper asks a body for more when the stream's window has room, but does not report windows. So
//! each response's task is watched: it waits for the client if its body was last asked for a frame
//! and returned one. If the stream then stalls although the transport has taken everything, its
//! window is used up.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::{Instant, Sleep, sleep};

use super::metrics::TimedOut;
use super::peer::Peer;

/// How often a stream is checked within the time for which it may stand still.
const LOOKS: u32 = 4;

/// The shortest time between two checks.
const LEAST_STEP: Duration = Duration::from_millis(1);

/// What a response's body did when last asked for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It was not asked.
    No,
    /// It returned one, for which the client must have room.
    Gave,
    /// It has none for now.
    Waits,
}

thread_local! {
    /// For the task that is polled on this thread.
    static ASKED: Cell<Asked> = const { Cell::new(Asked::No) };
}

/// Records that the body of a response was asked.
pub(super) fn note(is_pending: bool) {
    ASKED.set(if is_pending {
        Asked::Waits
    } else {
        Asked::Gave
    });
}

/// Runs the tasks of an HTTP/2 connection, and drops those whose client reads nothing for too long:
/// hyper then resets the stream with CANCEL (RFC 9113 §7).
#[derive(Clone)]
pub(super) struct Tasks {
    pub(super) peer: Arc<Peer>,
    /// How long a client may read nothing of a response.
    pub(super) limit: Duration,
}

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let peer = Arc::clone(&self.peer);
        let mut standstill = Standstill::new(self.limit);
        tokio::spawn(async move {
            let mut task = pin!(task);
            std::future::poll_fn(|cx| {
                ASKED.set(Asked::No);
                if task.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let is_blocked = || peer.activity.is_blocked();
                ready!(standstill.poll(ASKED.get(), is_blocked, cx));
                peer.metrics.timed_out(peer.protocol, TimedOut::Response);
                Poll::Ready(())
            })
            .await;
        });
    }
}

/// Tracks whether a response stands still.
struct Standstill {
    limit: Duration,
    /// Whether it waits for the client.
    waits: bool,
    /// Since when it has certainly had no window.
    since: Option<Instant>,
    /// For the next check; made when it first waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Standstill {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            waits: false,
            since: None,
            timer: None,
        }
    }

    /// Ready when the client has read nothing for too long. `is_blocked` returns whether the
    /// transport accepts nothing at the moment, for any stream.
    fn poll(
        &mut self,
        asked: Asked,
        is_blocked: impl Fn() -> bool,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if asked != Asked::No {
            self.waits = asked == Asked::Gave;
            self.since = None;
        }
        if !self.waits {
            return Poll::Pending;
        }
        let step = (self.limit / LOOKS).max(LEAST_STEP);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(step)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if !is_blocked() {
                let since = *self.since.get_or_insert(now);
                if now.duration_since(since) >= self.limit {
                    return Poll::Ready(());
                }
            }
            timer.as_mut().reset(now + step);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    /// How long it takes to give up the client, with the transport blocked or not; `None`: not
    /// within this time.
    fn given_up(asked: Asked, is_blocked: bool, within: Duration) -> Option<Duration> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let begin = Instant::now();
            let mut standstill = Standstill::new(LIMIT);
            let mut first = Some(asked);
            let end = poll_fn(|cx| {
                let asked = first.take().unwrap_or(Asked::No);
                standstill.poll(asked, || is_blocked, cx)
            });
            let end = tokio::time::timeout(within, end).await;
            end.ok().map(|()| begin.elapsed())
        })
    }

    #[test]
    fn a_client_that_grants_no_window_is_given_up() {
        let after =
            given_up(Asked::Gave, false, Duration::from_secs(30)).expect("the client is given up");
        assert!(after >= LIMIT, "{after:?}");
    }

    #[test]
    fn a_stream_is_not_given_up_for_a_slow_body_or_a_blocked_transport() {
        assert_eq!(given_up(Asked::Waits, false, 10 * LIMIT), None);
        assert_eq!(given_up(Asked::Gave, true, 10 * LIMIT), None);
    }
}
