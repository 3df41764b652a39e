//! How long a response may wait for the client's flow-control credit.
//!
//! A response that congestion control or other responses hold back is not stalled, so its
//! flow-control limits are checked (RFC 9000 §4.1), and only a few times while it waits: the usual
//! response, which waits a round trip or not at all, costs at most a timer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use squall::{ReachedLimit, SendStream};
use tokio::time::{Instant, Sleep, sleep};

/// How often a stream is checked within the time for which it may stand still.
const LOOKS: u32 = 4;

/// The shortest time between two checks.
const LEAST_STEP: Duration = Duration::from_millis(1);

/// Watches a stream whose writer waits.
#[derive(Debug)]
pub(crate) struct Patience {
    /// How long the peer may give no credit; `None`: for ever.
    limit: Option<Duration>,
    /// For the next check; made when the writer waits for the first time.
    timer: Option<Pin<Box<Sleep>>>,
    /// The limit that the stream had reached at the last check, and since when.
    stands: Option<(ReachedLimit, Instant)>,
}

impl Patience {
    pub(crate) const fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            timer: None,
            stands: None,
        }
    }

    /// Ready when the peer has given no credit for too long. Poll it only while the writer waits.
    /// When the wait ends no call is needed, since the limit has then risen.
    pub(crate) fn poll(&mut self, send: &SendStream, cx: &mut Context<'_>) -> Poll<()> {
        let Some(limit) = self.limit else {
            return Poll::Pending;
        };
        let step = (limit / LOOKS).max(LEAST_STEP);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(step)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            let reached = send.reached_limit();
            match (self.stands, reached) {
                (Some((before, since)), Some(reached)) if before == reached => {
                    if now.duration_since(since) >= limit {
                        return Poll::Ready(());
                    }
                }
                _ => self.stands = reached.map(|reached| (reached, now)),
            }
            timer.as_mut().reset(now + step);
        }
    }
}
