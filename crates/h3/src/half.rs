//! Stream halves with two owners: the application, which uses one, and the session that the stream
//! belongs to, which ends its streams when it ends.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use squall::{RecvStream, SendStream, StreamId};

use crate::error::Code;
use crate::lock::{lock, replace};

/// One half of a stream.
pub(crate) struct Half<S>(Mutex<State<S>>);

struct State<S> {
    stream: S,
    /// The task that waits for the stream. The transport does not wake it when this end gives the
    /// stream up.
    waiting: Option<Waker>,
    is_gone: bool,
}

impl<S> Half<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(Mutex::new(State {
            stream,
            waiting: None,
            is_gone: false,
        }))
    }

    /// Polls the stream; `None` if the session has ended.
    pub(crate) fn poll<R>(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut S, &mut Context<'_>) -> Poll<R>,
    ) -> Poll<Option<R>> {
        let mut state = lock(&self.0);
        if state.is_gone {
            return Poll::Ready(None);
        }
        let polled = poll(&mut state.stream, cx);
        let discarded = if polled.is_ready() {
            state.waiting.take()
        } else {
            replace(&mut state.waiting, cx.waker())
        };
        drop(state);
        drop(discarded);
        polled.map(Some)
    }

    /// Calls the stream; `None` if the session has ended.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut state = lock(&self.0);
        (!state.is_gone).then(|| call(&mut state.stream))
    }

    /// Whether the session has ended, and the stream with it.
    pub(crate) fn is_gone(&self) -> bool {
        lock(&self.0).is_gone
    }

    /// The session has ended, and the stream with it.
    fn end(&self, end: impl FnOnce(&mut S)) {
        let mut state = lock(&self.0);
        state.is_gone = true;
        end(&mut state.stream);
        let waiting = state.waiting.take();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A half that its session ends.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// Also the length of the header that says which session the stream belongs to; 0 on streams of
    /// the peer.
    Send(Arc<Half<SendStream>>, u64),
    Recv(Arc<Half<RecvStream>>),
}

/// Identifies a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HalfId {
    Send(u64),
    Recv(u64),
}

impl HalfId {
    pub(crate) const fn send(id: StreamId) -> Self {
        Self::Send(id.0)
    }

    pub(crate) const fn recv(id: StreamId) -> Self {
        Self::Recv(id.0)
    }
}

impl Held {
    /// Ends the half with its session (draft-ietf-webtrans-http3 §6).
    pub(crate) fn end(&self) {
        let code = Code::WT_SESSION_GONE.0;
        // An error means that the stream has ended anyway.
        match self {
            Self::Send(half, header) => half.end(|send| drop(send.reset_at(code, *header))),
            Self::Recv(half) => half.end(|recv| drop(recv.stop(code))),
        }
    }
}

impl<S> fmt::Debug for Half<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Half").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// A waker that uses the half that it waits for when it is dropped.
    struct Busy(Arc<Half<()>>);

    impl Wake for Busy {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.is_gone();
        }
    }

    #[test]
    fn a_waker_that_is_dropped_may_use_its_half() {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let half = Arc::new(Half::new(()));
            let poll_with = |waker: &Waker, result: Poll<()>| {
                let mut cx = Context::from_waker(waker);
                half.poll(&mut cx, |(), _| result)
            };
            for result in [Poll::Pending, Poll::Ready(())] {
                let busy = Arc::new(Busy(Arc::clone(&half))).into();
                assert!(poll_with(&busy, Poll::Pending).is_pending());
                drop(busy);
                // The half has the last reference.
                assert_eq!(poll_with(Waker::noop(), result), result.map(Some));
            }
            done.send(()).expect("the test waits");
        });
        let limit = std::time::Duration::from_secs(30);
        is_done.recv_timeout(limit).expect("no lock is taken twice");
    }
}
