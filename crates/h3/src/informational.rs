//! Informational responses, such as 103 Early Hints: they precede the final response (RFC 9110
//! §15.2, RFC 9114 §4.1).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use http::{Response, StatusCode};

use crate::lock::{lock, replace};

/// The most responses that may wait to be sent.
const MAX_WAITING: usize = 16;

/// Sends informational responses to a request: an extension of requests at servers with
/// [`Config::informational`](crate::Config::informational). Clones belong to the same request.
#[derive(Clone, Default)]
pub struct Informational(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Response<()>>,
    /// Whether 100 (Continue) is to be sent.
    wants_continue: bool,
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

    /// Has 100 (Continue) sent, unless the final response has begun: the service reads a body that
    /// the client holds back until then (RFC 9110 §10.1.1).
    pub(crate) fn send_continue(&self) {
        let mut queue = lock(&self.0);
        queue.wants_continue = !queue.has_ended;
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The final response has begun: only what already waits precedes it, except for 100, for which
    /// it is too late.
    pub(crate) fn end(&self) {
        let mut queue = lock(&self.0);
        queue.has_ended = true;
        queue.wants_continue = false;
    }

    /// The next one to send. If there is none, the task is woken when there is.
    pub(crate) fn next(&self, cx: &Context<'_>) -> Option<Response<()>> {
        let mut queue = lock(&self.0);
        let next = if std::mem::take(&mut queue.wants_continue) {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::CONTINUE;
            Some(response)
        } else {
            queue.waiting.pop_front()
        };
        if next.is_none() {
            let replaced = replace(&mut queue.waker, cx.waker());
            drop(queue);
            drop(replaced);
        }
        next
    }
}

impl fmt::Debug for Informational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informational").finish_non_exhaustive()
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
