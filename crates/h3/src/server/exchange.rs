//! A request in the hands of a service, until its response is sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderValue, Method, Request, Response};
use squall::{SendStream, Stage, Stopped, StreamId};

use super::hints::Hints;
use super::trace;
use crate::body::{ActiveGuard, Fault};
use crate::error::{BoxError, Code, Error};
use crate::message::{never_has_body, response_fields};
use crate::patience::Patience;
use crate::priority::Wish;
use crate::send::MessageSender;
use crate::service::SendBody;
use crate::shared::Shared;
use crate::webtransport;

pin_project_lite::pin_project! {
    /// Waits for the service's response and sends it.
    pub(super) struct Exchange<F, B> {
        #[pin]
        state: State<F, B>,
        // For the answer; `None` once it is being sent.
        send: Option<SendStream>,
        id: StreamId,
        // Detects that the client no longer waits for the response.
        stopped: Option<Stopped>,
        how: How,
        // For requests with a body.
        fault: Option<Fault>,
        // Sends informational responses, until the final one begins.
        hints: Option<Box<Hints>>,
        // How long the client may read nothing of the response.
        patience: Patience,
        guard: ActiveGuard,
    }
}

pin_project_lite::pin_project! {
    #[project = StateProjection]
    enum State<F, B> {
        Calling { #[pin] future: F },
        // Anything that precedes the response is not yet written.
        Answered { response: Option<Response<B>> },
        Sending { #[pin] sender: MessageSender<B> },
        Done,
    }
}

/// What the response depends on besides the service.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) is_head: bool,
    pub(super) is_connect: bool,
    is_session: bool,
    /// Whether datagrams and streams that belong to the request end with it.
    ends_tunnel: bool,
}

impl How {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let is_connect = *request.method() == Method::CONNECT;
        Self {
            is_head: *request.method() == Method::HEAD,
            is_connect,
            is_session: webtransport::is_session(request),
            ends_tunnel: is_connect,
        }
    }
}

impl<F, B, E> Exchange<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: SendBody,
{
    pub(super) fn new(
        future: F,
        send: SendStream,
        how: How,
        fault: Option<Fault>,
        guard: ActiveGuard,
        hints: Option<Box<Hints>>,
    ) -> Self {
        // A tunnel may stand still.
        let limit = guard.shared().config.send_timeout;
        Self {
            fault,
            hints,
            patience: Patience::new(limit.filter(|_| !how.is_connect)),
            state: State::Calling { future },
            id: send.id(),
            send: Some(send),
            stopped: None,
            how,
            guard,
        }
    }
}

impl<F, B: SendBody> Exchange<F, B> {
    /// Encodes the head of the final response.
    fn begin(self: Pin<&mut Self>, response: Response<B>) {
        let mut this = self.project();
        let Some(mut send) = this.send.take() else {
            return this.state.set(State::Done);
        };
        if let Some(code) = this.fault.as_ref().and_then(Fault::code) {
            let _ = send.reset(code.0);
            return this.state.set(State::Done);
        }
        let is_accepted = response.status().is_success();
        match send_response(send, this.guard.shared(), response, *this.how) {
            Ok(mut sender) => {
                // A session ends a little later: the peer may have more to say about its end.
                this.how.ends_tunnel &= !(this.how.is_session && is_accepted);
                sender.set_fault(this.fault.clone());
                this.state.set(State::Sending { sender });
            }
            Err((mut send, error)) => {
                trace::response_failed(this.guard.shared(), *this.id, &error);
                let _ = send.reset(Code::H3_INTERNAL_ERROR.0);
                this.state.set(State::Done);
            }
        }
    }
}

impl<F, B, E> Future for Exchange<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: SendBody,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let result = self.as_mut().poll_all(cx);
        let this = self.project();
        let shared = this.guard.shared();
        if result.is_ready() && this.how.ends_tunnel {
            shared.tunnels.end(this.id.0);
        }
        shared.mark(Stage::Http);
        result
    }
}

impl<F, B, E> Exchange<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: SendBody,
{
    fn poll_all(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut this = self.as_mut().project();
            match this.state.as_mut().project() {
                StateProjection::Calling { future } => {
                    let shared = this.guard.shared();
                    let polled = shared.call(|| catch_unwind(AssertUnwindSafe(|| future.poll(cx))));
                    let response = match polled {
                        Ok(Poll::Ready(Ok(response))) => response,
                        Ok(Poll::Pending) => {
                            let Some(send) = this.send.as_mut() else {
                                return Poll::Ready(());
                            };
                            if let Some(hints) = this.hints {
                                // If this fails, so will the final response.
                                let _ = hints.poll_send(this.guard.shared(), send, cx);
                            }
                            let stopped = this.stopped.get_or_insert_with(|| send.stopped());
                            ready!(Pin::new(stopped).poll(cx)).ok();
                            // Nobody waits for the response: the service's future is dropped.
                            this.guard.shared().on_cancelled();
                            this.state.set(State::Done);
                            return Poll::Ready(());
                        }
                        // The stream is reset, here or when it is dropped.
                        failed => {
                            if let Ok(Poll::Ready(Err(error))) = failed {
                                trace::service_failed(shared, *this.id, error);
                            }
                            if let (Some(fault), Some(send)) = (&this.fault, this.send.as_mut()) {
                                let _ = send.reset(fault.code_of_failure().0);
                            }
                            this.state.set(State::Done);
                            return Poll::Ready(());
                        }
                    };
                    let Some(hints) = this.hints else {
                        self.as_mut().begin(response);
                        continue;
                    };
                    hints.end();
                    let response = Some(response);
                    this.state.set(State::Answered { response });
                }
                StateProjection::Answered { response } => {
                    if let (Some(hints), Some(send)) = (&mut *this.hints, this.send.as_mut())
                        && hints.poll_send(this.guard.shared(), send, cx).is_pending()
                    {
                        ready!(this.patience.poll(send, cx));
                        let _ = send.reset(Code::H3_REQUEST_CANCELLED.0);
                        this.guard.shared().on_stalled();
                        this.state.set(State::Done);
                        return Poll::Ready(());
                    }
                    *this.hints = None;
                    let Some(response) = response.take() else {
                        return Poll::Ready(());
                    };
                    self.as_mut().begin(response);
                }
                StateProjection::Sending { mut sender } => {
                    if let Some(code) = this.fault.as_ref().and_then(Fault::code) {
                        if this.how.is_session {
                            // The client learns that its session was accepted.
                            sender.as_mut().end_with(code);
                        } else {
                            sender.as_mut().give_up(code);
                        }
                        this.state.set(State::Done);
                        return Poll::Ready(());
                    }
                    let polled = catch_unwind(AssertUnwindSafe(|| sender.as_mut().poll(cx)));
                    match polled {
                        Ok(Poll::Pending) => {
                            // A service with nothing to send may take its time.
                            let Some(send) = sender.waiting() else {
                                return Poll::Pending;
                            };
                            ready!(this.patience.poll(send, cx));
                            sender.as_mut().give_up(Code::H3_REQUEST_CANCELLED);
                            this.guard.shared().on_stalled();
                        }
                        Ok(Poll::Ready(Err(Error::Stream(_)))) => {
                            // A client that has waited for a response to begin may cancel the rest.
                            if !sender.has_begun() {
                                this.guard.shared().on_cancelled();
                            }
                        }
                        Ok(Poll::Ready(Ok(()))) => {
                            // The client may still send datagrams, unless a session was refused.
                            this.how.ends_tunnel &= this.how.is_session;
                            this.guard.shared().on_completed();
                        }
                        // Dropping the stream resets it, if it is not reset yet.
                        Ok(Poll::Ready(Err(Error::Connection(_)))) | Err(_) => {}
                        Ok(Poll::Ready(Err(error))) => {
                            trace::response_failed(this.guard.shared(), *this.id, &error);
                        }
                    }
                    this.state.set(State::Done);
                    return Poll::Ready(());
                }
                StateProjection::Done => return Poll::Ready(()),
            }
        }
    }
}

/// Adds the fields that every response has, and encodes its head.
fn send_response<B: SendBody>(
    send: SendStream,
    shared: &Arc<Shared>,
    response: Response<B>,
    how: How,
) -> Result<MessageSender<B>, (SendStream, Error)> {
    let (mut parts, body) = response.into_parts();
    let status = parts.status;
    // RFC 9110 §6.4.1.
    let has_body = !never_has_body(status);
    let is_tunnel = how.is_connect && status.is_success();
    if is_tunnel {
        // RFC 9110 §8.6: what follows is the tunnel.
        parts.headers.remove(CONTENT_LENGTH);
    } else if has_body
        && let Some(length) = body.size_hint().exact()
        // Otherwise the end of the stream says as much, and an empty body in the answer to HEAD
        // says nothing about that of GET.
        && length > 0
        && !parts.headers.contains_key(CONTENT_LENGTH)
    {
        parts
            .headers
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if shared.config.date && !parts.headers.contains_key(DATE) {
        parts.headers.insert(DATE, super::date::now());
    }
    let with_body = !how.is_head && has_body;
    MessageSender::new(
        send,
        Arc::clone(shared),
        body,
        with_body,
        |shared, send, out| {
            let mut wish = Wish::default();
            let fields = response_fields(&parts).inspect(|field| wish.note(field));
            let encoded = shared.encode(send.id(), fields, out);
            wish.apply_to(send);
            encoded
        },
    )
}
