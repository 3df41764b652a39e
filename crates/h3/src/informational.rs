//! Informational responses, such as 103 Early Hints: they precede the final response (RFC 9110
//! §15.2, RFC 9114 §4.1).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use http::{Response, StatusCode};
use squall::SendStream;

use crate::error::Error;
use crate::lock::lock;
use crate::message::response_fields;
use crate::send::Buffer;
use crate::shared::Shared;

/// The most responses that may wait to be sent.
const MAX_WAITING: usize = 16;

/// Sends informational responses to a request: an extension of requests at servers with
/// [`Config::informational`](crate::Config::informational). Clones belong to the same request.
#[derive(Clone, Default)]
pub struct Informational(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Response<()>>,
    /// The task that sends them.
    waker: Option<Waker>,
    has_ended: bool,
}

impl Informational {
    /// Sends a response with a status from 100 to 199, except 101, which HTTP/3 does not have. It
    /// leaves at once, without waiting for the final response.
    ///
    /// # Errors
    /// Returns the response if its status is out of range, if the final response has begun, or if
    /// 16 others are waiting because the client accepts nothing.
    pub fn send(&self, response: Response<()>) -> Result<(), Response<()>> {
        let status = response.status();
        let mut queue = lock(&self.0);
        if !status.is_informational()
            || status == StatusCode::SWITCHING_PROTOCOLS
            || queue.has_ended
            || queue.waiting.len() >= MAX_WAITING
        {
            return Err(response);
        }
        queue.waiting.push_back(response);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// The next one to send. If there is none, the task is woken when there is.
    fn next(&self, cx: &Context<'_>) -> Option<Response<()>> {
        let mut queue = lock(&self.0);
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.waker = Some(cx.waker().clone());
        }
        next
    }
}

impl fmt::Debug for Informational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informational").finish_non_exhaustive()
    }
}

/// The sending end of an [`Informational`].
pub(crate) struct Hints {
    from: Informational,
    /// Encoded, but not yet written.
    unwritten: Buffer,
}

impl Hints {
    pub(crate) fn new(from: Informational) -> Self {
        Self {
            from,
            unwritten: Buffer::default(),
        }
    }

    /// Sends what is waiting; ready when all is written.
    pub(crate) fn poll_send(
        &mut self,
        shared: &Shared,
        send: &mut SendStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.unwritten.poll_write(send, cx))?;
            let Some(response) = self.from.next(cx) else {
                return Poll::Ready(Ok(()));
            };
            let (head, ()) = response.into_parts();
            let out = &mut self.unwritten.bytes;
            match shared.encode(send.id(), response_fields(&head), out) {
                Ok(begin) => self.unwritten.begin = begin,
                // The peer accepts no section of this size: the others and the final response may
                // still be sent.
                Err(_) => out.clear(),
            }
        }
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        lock(&self.from.0).has_ended = true;
    }
}

/// A client's callback for each informational response to a request: an extension of requests.
/// Without it they are skipped.
#[derive(Clone)]
pub struct OnInformational(Arc<dyn Fn(Response<()>) + Send + Sync>);

impl OnInformational {
    /// Calls `call` with each of them, in order, while waiting for the final response.
    pub fn new(call: impl Fn(Response<()>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(crate) fn call(&self, response: Response<()>) {
        (self.0)(response);
    }
}

impl fmt::Debug for OnInformational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnInformational").finish_non_exhaustive()
    }
}
