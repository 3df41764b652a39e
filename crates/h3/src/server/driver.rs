//! A server's end of a connection: reads requests and has them answered.
//!
//! ```text
//!   accepted streams ─ HeadReader ─> Reply           written at once
//!                         │     └──> http::Request ─ service ─> Exchange   polled once, here
//!                         └ not all of the head is here: a task            └ pending: a task
//! ```
//! All streams that arrive in one turn of the worker are handled in one poll, without a task for
//! each unless the service needs one. On the caller's runtime every request has a task of its own,
//! since a service may block there.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use squall::{AcceptBi, Connection, Priority, RecvStream, SendStream, Stage, Stopped, WriteError};
use tokio::runtime::Handle;
use tokio::time::Sleep;

use super::exchange::{Exchange, How};
use super::hints::Hints;
use super::peer::Peer;
use super::raw::{Opening, RawStream, RawStreams};
use super::reply::Reply;
use super::trace;
use crate::body::{ActiveGuard, Body, Fault, broken};
use crate::control::ControlEvent;
use crate::error::{Code, Error};
use crate::informational::Informational;
use crate::message::{Early, Malformed, RequestHead, request};
use crate::patience::Patience;
use crate::priority::Wish;
use crate::qpack::FieldSection;
use crate::receive::{Broken, MessageReader, Part};
use crate::service::HttpService;
use crate::shared::Shared;
use crate::streams::{Ended, Streams};
use crate::tunnels::Arrival;
use crate::webtransport;

/// Streams accepted in one poll: after this many, pending writes are sent first.
const STREAMS_A_POLL: usize = 256;

/// GOAWAY with this id announces the end but still allows every request (RFC 9114 §5.2).
const EVERY_REQUEST: u64 = (1 << 62) - 4;

/// How long a client gets, beyond a round trip, to learn that it should send no more requests.
const GOING_AWAY: Duration = Duration::from_millis(20);

/// How long a client gets to end the connection itself, beyond four round trips: two probe timeouts
/// (RFC 9002 §6.2), in which a lost GOAWAY is sent again. CONNECTION_CLOSE is not resent, and a
/// client that has missed both waits for its idle timeout once the server is gone.
const FAREWELL: Duration = Duration::from_millis(200);
/// Its upper limit: round trips look long when many connections end at once.
const LONGEST_FAREWELL: Duration = Duration::from_secs(1);

/// Answers requests at once, from their heads, or leaves them to the service.
pub(super) type Immediate = Arc<dyn Fn(&RequestHead<'_>) -> Option<Reply> + Send + Sync>;

/// Reusable memory for an exchange.
type Slot<F, B> = Pin<Box<Option<Exchange<F, B>>>>;

/// Where requests are handled.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Each in a task of its own on this runtime.
    Runtime(Handle),
    /// On the connection's worker.
    Worker,
}

impl Place {
    fn spawn(&self, connection: &Connection, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Runtime(handle) => drop(handle.spawn(task)),
            Self::Worker => drop(connection.spawn(task)),
        }
    }
}

/// Serves a connection; see [`Builder::serve_connection`](super::Builder::serve_connection).
pub(super) struct Driver<S: HttpService> {
    shared: Arc<Shared>,
    streams: Streams,
    accept: AcceptBi,
    immediate: Option<Immediate>,
    raw: Option<RawStreams>,
    service: S,
    place: Place,
    /// Memory for the exchange that is polled at once.
    slot: Slot<S::Future, S::ResponseBody>,
    ending: Ending,
    /// The id after that of the last request.
    next_id: u64,
}

/// The progress of a graceful end.
enum Ending {
    Serving,
    /// The client has been told that the end is near.
    Announced(Pin<Box<Sleep>>),
    /// Requests from this id on are rejected.
    Rejecting(u64),
    /// All requests are answered; any that still arrive are rejected.
    Parting(Pin<Box<Sleep>>),
    /// The client has not ended the connection.
    Closing(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl<S: HttpService> Driver<S> {
    pub(super) fn new(
        shared: Arc<Shared>,
        service: S,
        immediate: Option<Immediate>,
        raw: Option<RawStreams>,
        place: Place,
    ) -> Self {
        Self {
            streams: Streams::new(Arc::clone(&shared)),
            accept: shared.connection.accept_bi(),
            immediate,
            raw,
            service,
            place,
            slot: Box::pin(None),
            ending: Ending::Serving,
            next_id: 0,
            shared,
        }
    }

    /// Starts to end the connection gracefully: requests that have arrived are answered, later ones
    /// are rejected.
    pub(super) fn shut_down(&mut self, cx: &mut Context<'_>) {
        if let Ending::Serving = self.ending {
            self.streams.go_away(EVERY_REQUEST, cx);
            self.shared.set_goaway(EVERY_REQUEST);
            let wait = self.shared.connection.rtt() + GOING_AWAY;
            self.ending = Ending::Announced(Box::pin(tokio::time::sleep(wait)));
        }
    }

    /// Serves until the connection ends.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.mark(Stage::Application);
        let result = self.poll_all(cx);
        self.shared.mark(Stage::Http);
        result
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.set_driver(cx.waker());
        let next_id = self.next_id;
        let result = self.streams.poll(cx, |shared, event| match event {
            ControlEvent::Priority(id, value) => shared.set_priority(id, &value, id < next_id),
            // The client's, which concerns its sessions.
            ControlEvent::GoAway(_) => shared.set_goaway(EVERY_REQUEST),
            ControlEvent::Settings(_) => {}
        });
        let ended = match result {
            Ok(()) => match self.poll_requests(cx) {
                Ok(()) => {
                    self.shared.flush(cx);
                    return self.poll_end(cx);
                }
                Err(ended) => ended,
            },
            Err(ended) => ended,
        };
        Poll::Ready(match ended {
            Ended::Closed(_) if matches!(self.ending, Ending::Parting(_)) => Ok(()),
            Ended::Closed(reason) => Err(Error::Connection(reason)),
            Ended::Failed(code, why) => {
                self.shared.fail(code, why);
                Err(Error::Malformed(why))
            }
        })
    }

    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        for _ in 0..STREAMS_A_POLL {
            match Pin::new(&mut self.accept).poll(cx) {
                Poll::Ready(Ok((send, recv))) => {
                    self.accept = self.shared.connection.accept_bi();
                    let id = send.id().0;
                    let rejected = matches!(self.ending, Ending::Rejecting(from) if id >= from)
                        || matches!(self.ending, Ending::Parting(_) | Ending::Closing(_));
                    if rejected {
                        reject(send, recv);
                        continue;
                    }
                    self.next_id = self.next_id.max(id + 4);
                    self.begin(HeadReader::new(send, recv, self.raw.clone(), &self.shared));
                }
                Poll::Ready(Err(reason)) => return Err(Ended::Closed(reason)),
                Poll::Pending => return Ok(()),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// A graceful end, step by step.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            match &mut self.ending {
                Ending::Serving => return Poll::Pending,
                Ending::Announced(wait) => {
                    ready!(wait.as_mut().poll(cx));
                    self.streams.go_away(self.next_id, cx);
                    self.shared.wake_when_inactive();
                    self.ending = Ending::Rejecting(self.next_id);
                }
                Ending::Rejecting(_) => {
                    if self.shared.active() > 0 {
                        return Poll::Pending;
                    }
                    let wait = self.shared.connection.rtt() * 4 + FAREWELL;
                    let wait = tokio::time::sleep(wait.min(LONGEST_FAREWELL));
                    self.ending = Ending::Parting(Box::pin(wait));
                }
                Ending::Parting(wait) => {
                    ready!(wait.as_mut().poll(cx));
                    let connection = self.shared.connection.clone();
                    self.ending = Ending::Closing(Box::pin(async move {
                        connection.shutdown(Code::H3_NO_ERROR.0, b"").await;
                    }));
                }
                Ending::Closing(closing) => {
                    ready!(closing.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Starts a request, of which some or all has arrived.
    fn begin(&mut self, mut head: HeadReader) {
        let mut cx = Context::from_waker(Waker::noop());
        match head.poll(&mut cx, self.immediate.as_ref()) {
            Poll::Ready(next) => {
                if let Some(arrived) = head.conclude(next) {
                    self.dispatch(arrived);
                }
            }
            Poll::Pending => {
                let service = self.service.clone();
                let immediate = self.immediate.clone();
                let (timeout, connection) =
                    (self.shared.config.header_timeout, &self.shared.connection);
                self.place.spawn(connection, async move {
                    // Counted, so that a graceful end waits for it.
                    let _guard = ActiveGuard::new(Arc::clone(head.reader.shared()));
                    let mut stopped = None;
                    let arrived = poll_fn(|cx| {
                        if let Poll::Ready(next) = head.poll(cx, immediate.as_ref()) {
                            return Poll::Ready(Some(next));
                        }
                        head.poll_cancelled(&mut stopped, cx).map(|()| None)
                    });
                    match tokio::time::timeout(timeout, arrived).await {
                        Ok(Some(next)) => {
                            if let Some(arrived) = head.conclude(next) {
                                arrived.answer(service).await;
                            }
                        }
                        Ok(None) => {
                            head.reader.shared().on_cancelled();
                            head.give_up(Code::H3_REQUEST_CANCELLED);
                        }
                        Err(_) => head.give_up(Code::H3_REQUEST_INCOMPLETE),
                    }
                });
            }
        }
    }

    /// Has the service answer a request.
    fn dispatch(&mut self, arrived: Arrived) {
        let mut cx = Context::from_waker(Waker::noop());
        let connection = &self.shared.connection;
        if matches!(self.place, Place::Runtime(_)) || arrived.waits_for_place {
            let service = self.service.clone();
            self.place.spawn(connection, arrived.answer(service));
            return;
        }
        let Arrived {
            request,
            send,
            fault,
            guard,
            hints,
            waits_for_place: _,
        } = arrived;
        let how = How::of(&request);
        let (service, shared) = (&mut self.service, &self.shared);
        let ready = shared.call(|| catch_unwind(AssertUnwindSafe(|| service.poll_ready(&mut cx))));
        if let Ok(Poll::Pending) = ready {
            // Pass on the instance that was polled: it has a place in the queue that it waits in,
            // and would be given a permit there that is never used.
            let service = self.service.clone();
            let service = std::mem::replace(&mut self.service, service);
            let arrived = Arrived {
                request,
                send,
                fault,
                guard,
                hints,
                waits_for_place: false,
            };
            self.place.spawn(connection, arrived.answer(service));
            return;
        }
        // Otherwise dropping the stream resets it.
        let Ok(Poll::Ready(Ok(()))) = ready else {
            if let Ok(Poll::Ready(Err(error))) = ready {
                trace::service_failed(shared, send.id(), error);
            }
            return;
        };
        let future = shared.call(|| catch_unwind(AssertUnwindSafe(|| service.call(request))));
        let Ok(future) = future else {
            return;
        };
        self.slot
            .as_mut()
            .set(Some(Exchange::new(future, send, how, fault, guard, hints)));
        let Some(exchange) = self.slot.as_mut().as_pin_mut() else {
            return;
        };
        if exchange.poll(&mut cx).is_ready() {
            self.slot.as_mut().set(None);
            return;
        }
        let mut slot = std::mem::replace(&mut self.slot, Box::pin(None));
        self.place.spawn(connection, async move {
            if let Some(exchange) = slot.as_mut().as_pin_mut() {
                exchange.await;
            }
        });
    }
}

/// Refuses a request; the client may send it again elsewhere (RFC 9114 §5.2).
fn reject(mut send: SendStream, mut recv: RecvStream) {
    let code = Code::H3_REQUEST_REJECTED.0;
    let _ = send.reset(code);
    let _ = recv.stop(code);
}

/// A request whose head has arrived.
struct Arrived {
    request: Request<Body>,
    send: SendStream,
    fault: Option<Fault>,
    guard: ActiveGuard,
    hints: Option<Box<Hints>>,
    /// Whether it asks for a session beyond the limit.
    waits_for_place: bool,
}

impl Arrived {
    /// Waits until the service is ready, and for its response. A request that the client cancels
    /// meanwhile does not reach the service.
    async fn answer<S: HttpService>(mut self, mut service: S) {
        if self.waits_for_place {
            let place = self.guard.shared().session_place_soon().await;
            if place.is_none() {
                let code = Code::H3_REQUEST_REJECTED;
                let _ = self.send.reset(code.0);
                return self.request.into_body().refuse(code);
            }
            self.guard.keep_place(place);
        }
        let how = How::of(&self.request);
        let mut stopped = None;
        let ready = poll_fn(|cx| {
            // A service that is ready at once costs no lock. One that was not is asked again only
            // if the response is still wanted.
            if stopped.is_none() {
                if let Poll::Ready(ready) = service.poll_ready(cx) {
                    return Poll::Ready(Some(ready));
                }
                stopped = Some(self.send.stopped());
            }
            if let Some(stopped) = &mut stopped
                && Pin::new(stopped).poll(cx).is_ready()
            {
                return Poll::Ready(None);
            }
            service.poll_ready(cx).map(Some)
        });
        match ready.await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                return trace::service_failed(self.guard.shared(), self.send.id(), error);
            }
            None => return self.guard.shared().on_cancelled(),
        }
        let future = service.call(self.request);
        Exchange::new(future, self.send, how, self.fault, self.guard, self.hints).await;
    }
}

/// Reads the head of a request.
struct HeadReader {
    reader: MessageReader,
    send: SendStream,
    /// While the stream may turn out to be none of a request.
    opening: Option<(Opening, RawStreams)>,
    /// The encoded head, which may wait for the dynamic table.
    block: Option<Bytes>,
    /// Whether a PRIORITY_UPDATE arrived before the stream.
    has_priority: bool,
}

/// The result of reading a head.
enum Next {
    Reply {
        reply: Reply,
        is_head: bool,
    },
    Request {
        request: Request<()>,
        content_length: Option<u64>,
        expects_continue: bool,
    },
    /// The stream is one of this WebTransport session; these are its first bytes.
    WebTransport(u64, Bytes),
    /// The stream is none of HTTP/3; these are its first bytes after the type.
    Raw(RawStreams, Bytes),
}

impl HeadReader {
    fn new(
        mut send: SendStream,
        recv: RecvStream,
        raw: Option<RawStreams>,
        shared: &Arc<Shared>,
    ) -> Self {
        send.set_drop_code(Code::H3_INTERNAL_ERROR.0);
        let priority = shared.take_priority(send.id());
        if let Some(priority) = priority {
            let _ = send.set_priority(priority);
        }
        Self {
            reader: MessageReader::new(recv, Arc::clone(shared)),
            send,
            opening: raw.map(|raw| (Opening::new(raw.kind), raw)),
            block: None,
            has_priority: priority.is_some(),
        }
    }

    /// Returns the head once it has arrived.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        immediate: Option<&Immediate>,
    ) -> Poll<Result<Next, Broken>> {
        if let Some((opening, _)) = &mut self.opening {
            let first = ready!(opening.poll(&mut self.reader, cx))?;
            if let (Some(first), Some((_, raw))) = (first, self.opening.take()) {
                return Poll::Ready(Ok(Next::Raw(raw, first)));
            }
        }
        let block = match &self.block {
            Some(block) => block,
            None => match ready!(self.reader.poll_part(cx))? {
                Part::Section(block) => self.block.insert(block),
                Part::WebTransport(session, first) => {
                    return Poll::Ready(Ok(Next::WebTransport(session, first)));
                }
                // Nothing precedes the head.
                Part::Data(_) | Part::End => return Poll::Pending,
            },
        };
        let (shared, id, send) = (self.reader.shared(), self.reader.id(), &self.send);
        let has_priority = self.has_priority;
        let next = shared.poll_decode(cx, id, block, |section| {
            read(section, immediate, send, has_priority, shared)
        });
        Poll::Ready(ready!(next).map_err(|error| broken(&error)))
    }

    /// Ready when the client has cancelled a request whose head waits for the dynamic table.
    /// Nothing is read meanwhile, so the reset would go unnoticed, while the client no longer
    /// counts the stream as blocked: its next one might exceed the limit on blocked streams.
    fn poll_cancelled(&mut self, stopped: &mut Option<Stopped>, cx: &mut Context<'_>) -> Poll<()> {
        if self.block.is_none() {
            return Poll::Pending;
        }
        let stopped = stopped.get_or_insert_with(|| self.send.stopped());
        if Pin::new(stopped).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match pin!(self.reader.recv.received_reset()).poll(cx) {
            Poll::Ready(Ok(Some(_)) | Err(_)) => Poll::Ready(()),
            // Once the whole request has arrived, a client only stops the response.
            Poll::Ready(Ok(None)) | Poll::Pending => Poll::Pending,
        }
    }

    /// Sends the reply, or returns the request for the service.
    fn conclude(mut self, next: Result<Next, Broken>) -> Option<Arrived> {
        match next {
            Ok(Next::Reply { reply, is_head }) => {
                self.reply(reply, is_head);
                None
            }
            Ok(Next::Request {
                request,
                content_length,
                expects_continue,
            }) => {
                self.reader.set_content_length(content_length);
                self.arrive(request, expects_continue)
            }
            Ok(Next::WebTransport(session, first)) => {
                let shared = Arc::clone(self.reader.shared());
                let arrival = Arrival::Bi(self.send, self.reader.recv, first);
                shared.tunnels.route(session, arrival);
                None
            }
            Ok(Next::Raw(raw, first)) => {
                self.reader.is_no_message();
                let shared = Arc::clone(self.reader.shared());
                let stream = RawStream {
                    connection: shared.connection.clone(),
                    send: self.send,
                    recv: self.reader.recv,
                    first,
                };
                // If this panics, the stream is dropped, which resets it.
                let _ = shared.call(|| catch_unwind(AssertUnwindSafe(|| (raw.take)(stream))));
                None
            }
            Err(why) => {
                self.on_broken(&why);
                None
            }
        }
    }

    /// Passes the request on to the service.
    fn arrive(mut self, mut request: Request<()>, expects_continue: bool) -> Option<Arrived> {
        if !self.reader.shared().is_handshake_complete() && self.reader.recv.is_early() {
            request.extensions_mut().insert(Early);
        }
        if self.reader.shared().config.peer_info {
            let peer = Peer::new(&self.reader.shared().connection);
            request.extensions_mut().insert(peer);
        }
        if *request.method() == http::Method::CONNECT {
            self.reader.set_connect();
        }
        // Most requests end with their head.
        let mut cx = Context::from_waker(Waker::noop());
        let part = match self.reader.poll_part(&mut cx) {
            Poll::Pending => None,
            Poll::Ready(Ok(part)) => Some(part),
            Poll::Ready(Err(why)) => {
                self.on_broken(&why);
                return None;
            }
        };
        let mut guard = ActiveGuard::new(Arc::clone(self.reader.shared()));
        // Without sessions of its own, a service may still pass them on.
        let is_limited = guard.shared().config.webtransport > 0;
        let is_session = is_limited && webtransport::is_session(&request);
        let place = is_session.then(|| guard.shared().session_place()).flatten();
        let waits_for_place = is_session && place.is_none();
        guard.keep_place(place);
        let expects = (expects_continue && part.is_none()).then(Informational::default);
        let is_open = self.reader.shared().config.informational;
        let informational = (expects.clone()).or_else(|| is_open.then(Informational::default));
        if let Some(informational) = informational.clone().filter(|_| is_open) {
            request.extensions_mut().insert(informational);
        }
        let hints = informational.map(|informational| Box::new(Hints::new(informational)));
        let mut fault = None;
        let body = match part {
            Some(Part::End) => Body::empty(),
            part => {
                let fault = fault.insert(Fault::default()).clone();
                Body::of_request(self.reader, part, fault, expects)
            }
        };
        Some(Arrived {
            request: request.map(|()| body),
            send: self.send,
            fault,
            guard,
            hints,
            waits_for_place,
        })
    }

    /// Writes a reply, and leaves to a task what there is no room for.
    fn reply(mut self, reply: Reply, is_head: bool) {
        let shared = Arc::clone(self.reader.shared());
        let mut cx = Context::from_waker(Waker::noop());
        // Read to the end, so that the client is not told to stop sending.
        let _ = self.reader.poll_part(&mut cx);
        reply.log(&shared.qlog, self.send.id(), is_head);
        reply.wish.apply_to(&self.send);
        let mut chunks = [reply.head, reply.body];
        if is_head {
            chunks[1].clear();
        }
        let mut send = self.send;
        match poll_reply(&mut send, &mut chunks, &mut cx) {
            Poll::Ready(Ok(())) => shared.on_completed(),
            Poll::Ready(Err(_)) if chunks[0].is_empty() => {}
            Poll::Ready(Err(_)) => shared.on_cancelled(),
            Poll::Pending => reply_later(send, chunks, &shared),
        }
    }

    fn on_broken(mut self, why: &Broken) {
        self.reader.give_up(why);
        match why {
            Broken::TooLarge => {
                // RFC 9114 §4.2.2.
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                self.reply(Reply::new(response), false);
            }
            Broken::Stream(code, _) => self.give_up(*code),
            Broken::Lost(Error::Stream(_)) => self.reader.shared().on_cancelled(),
            Broken::Lost(_) | Broken::Connection(..) => {}
        }
    }

    fn give_up(mut self, code: Code) {
        let _ = self.send.reset(code.0);
        let _ = self.reader.recv.stop(code.0);
    }
}

/// Writes a reply's head and body, and ends the stream with the last of them.
fn poll_reply(
    send: &mut SendStream,
    [head, body]: &mut [Bytes; 2],
    cx: &mut Context<'_>,
) -> Poll<Result<(), WriteError>> {
    while !head.is_empty() && !body.is_empty() {
        ready!(send.poll_write_chunk(cx, head))?;
    }
    let last = if head.is_empty() { body } else { head };
    loop {
        ready!(send.poll_write_last_chunk(cx, last))?;
        if last.is_empty() {
            return Poll::Ready(Ok(()));
        }
    }
}

/// Writes the rest of a reply as there is room for it.
fn reply_later(mut send: SendStream, mut rest: [Bytes; 2], shared: &Arc<Shared>) {
    let guard = ActiveGuard::new(Arc::clone(shared));
    shared.connection.spawn(async move {
        let shared = guard.shared();
        let mut patience = Patience::new(shared.config.send_timeout);
        let writing = poll_fn(|cx| match poll_reply(&mut send, &mut rest, cx) {
            Poll::Ready(written) => Poll::Ready(written.map(|()| true)),
            Poll::Pending => {
                ready!(patience.poll(&send, cx));
                Poll::Ready(Ok(false))
            }
        });
        match writing.await {
            Ok(true) => shared.on_completed(),
            Err(_) if rest[0].is_empty() => {}
            Err(_) => shared.on_cancelled(),
            Ok(false) => {
                let _ = send.reset(Code::H3_REQUEST_CANCELLED.0);
                shared.on_stalled();
            }
        }
    });
}

/// Reads a head, and either answers at once or makes a request of it.
fn read(
    section: &FieldSection,
    immediate: Option<&Immediate>,
    send: &SendStream,
    has_priority: bool,
    shared: &Shared,
) -> Result<Next, Malformed> {
    let head = RequestHead::parse(section)?;
    if head.protocol().is_some() && !shared.config.accepts_connect_protocol() {
        // RFC 9220 §3, RFC 8441 §4: not allowed without the setting.
        return Err(Malformed(":protocol without permission"));
    }
    if let Some(value) = head.priority {
        shared.qlog.priority_updated(send.id(), value);
        // RFC 9218 §7: PRIORITY_UPDATE overrides the field. It may have arrived between the stream
        // and its head.
        if !has_priority && send.priority() == Some(Priority::default()) {
            let _ = send.set_priority(Wish::of_request(value));
        }
    }
    if let Some(immediate) = immediate {
        let reply = shared.call(|| catch_unwind(AssertUnwindSafe(|| immediate(&head))));
        if let Some(reply) = reply.unwrap_or_default() {
            return Ok(Next::Reply {
                reply,
                is_head: head.method() == "HEAD",
            });
        }
    }
    Ok(Next::Request {
        request: request(&head)?,
        content_length: head.content_length,
        expects_continue: head.expects_continue,
    })
}
