//! Bodies on their way through the proxy, with a limit on pauses.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::serve::body::BoxError;
use crate::serve::metrics::TimedOut;
use crate::serve::peer::Peer;
use crate::serve::watch::now_ms;

/// A body paused for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slow {
    Client,
    Application,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the client sends its body too slowly",
            Self::Application => "the application sends its body too slowly",
        })
    }
}

impl std::error::Error for Slow {}

/// The state of a client's body, for the task that waits for the response. hyper's client does not
/// report why a body failed.
#[derive(Clone)]
pub(super) struct Progress(Arc<State>);

struct State {
    peer: Arc<Peer>,
    /// When it last moved, as [`now_ms`].
    moved: AtomicU64,
    is_slow: AtomicBool,
    is_broken: AtomicBool,
}

impl Progress {
    /// The progress of a body of this client.
    pub(super) fn new(peer: &Arc<Peer>) -> Self {
        Self(Arc::new(State {
            peer: Arc::clone(peer),
            moved: now_ms().into(),
            is_slow: false.into(),
            is_broken: false.into(),
        }))
    }

    /// The body failed. Over HTTP/3, squall-h3 may be the first to notice that it has stalled.
    fn fail(&self, error: &BoxError) {
        let State { peer, .. } = &*self.0;
        let is_slow = matches!(error.downcast_ref(), Some(squall_h3::Error::Timeout))
            || error.downcast_ref() == Some(&Slow::Client);
        if is_slow {
            self.0.is_slow.store(true, Relaxed);
            peer.metrics.timed_out(peer.protocol, TimedOut::Request);
        } else {
            self.0.is_broken.store(true, Relaxed);
        }
    }

    /// How long ago it last moved.
    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.0.moved.load(Relaxed)))
    }

    /// The status for the client if its body is the reason for a missing response.
    pub(super) fn fault(&self) -> Option<StatusCode> {
        if self.0.is_slow.load(Relaxed) {
            Some(StatusCode::REQUEST_TIMEOUT)
        } else if self.0.is_broken.load(Relaxed) {
            Some(StatusCode::BAD_REQUEST)
        } else {
            None
        }
    }
}

/// A body that fails when nothing arrives for a while.
pub(super) struct Timed<B> {
    body: B,
    limit: Duration,
    slow: Slow,
    progress: Option<Progress>,
    /// Made at the first pause.
    pause: Option<Pin<Box<Sleep>>>,
    is_paused: bool,
}

impl<B> Timed<B> {
    /// `slow` says whose fault a pause is.
    pub(super) fn new(body: B, limit: Duration, slow: Slow, progress: Option<Progress>) -> Self {
        Self {
            body,
            limit,
            slow,
            progress,
            pause: None,
            is_paused: false,
        }
    }

    /// Records that the body has failed, and why.
    fn fail(&self, error: BoxError) -> BoxError {
        if let Some(progress) = &self.progress {
            progress.fail(&error);
        }
        error
    }
}

impl<B> Body for Timed<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.is_paused = false;
            if let Some(Progress(state)) = &self.progress {
                state.moved.store(now_ms(), Relaxed);
            }
            return Poll::Ready(match frame {
                Some(Err(error)) => Some(Err(self.fail(error.into()))),
                Some(Ok(frame)) => Some(Ok(frame)),
                None => None,
            });
        }
        let limit = self.limit;
        let starts = !std::mem::replace(&mut self.is_paused, true);
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(limit)));
        if starts {
            pause.as_mut().reset(Instant::now() + limit);
        }
        ready!(pause.as_mut().poll(cx));
        Poll::Ready(Some(Err(self.fail(self.slow.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
