//! One request and its response.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use squall::{CloseReason, SendStream, Stage};
use tokio::runtime::Handle;

use crate::body::{ActiveGuard, Body, Fault, broken, error_of};
use crate::error::{Code, Error, is_graceful};
use crate::informational::OnInformational;
use crate::message::{
    Malformed, Protocol, ResponseHead, complete_path, never_has_body, request_fields, response,
};
use crate::qpack::FieldSection;
use crate::receive::{Broken, MessageReader, Part};
use crate::send::MessageSender;
use crate::service::SendBody;
use crate::shared::Shared;

/// Sends a request and waits for the head of the response.
pub(super) async fn send<B: SendBody>(
    shared: &Arc<Shared>,
    request: Request<B>,
) -> Result<Response<Body>, Error> {
    shared.mark(Stage::Application);
    let (mut parts, body) = request.into_parts();
    announce_length(&mut parts, body.size_hint().exact());
    complete_path(&mut parts.uri);
    let protocol = parts.extensions.get::<Protocol>();
    let on_informational = parts.extensions.get::<OnInformational>();
    check(&parts, protocol)?;
    // RFC 9220 §3: not before the server has announced support.
    if protocol.is_some() && !shared.settings_arrived().await?.enable_connect_protocol {
        return Err(Error::InvalidRequest(
            "the server does not accept extended CONNECT",
        ));
    }
    // Active before the check: otherwise the driver might end the connection in between.
    let guard = ActiveGuard::new(Arc::clone(shared));
    let mut goaway = pin!(shared.goaway_arrived());
    if shared.goaway().is_some() {
        return Err(Error::GoingAway);
    }
    // RFC 9114 §5.2: the server need not allow more streams from now on.
    let (mut send, recv) = tokio::select! {
        biased;
        opened = shared.connection.open_bi() => opened.map_err(not_sent)?,
        () = goaway.as_mut() => return Err(Error::GoingAway),
    };
    if shared.goaway().is_some_and(|from| send.id().0 >= from) {
        return Err(Error::GoingAway);
    }
    send.set_drop_code(Code::H3_REQUEST_CANCELLED.0);
    let is_tunnel = parts.method == Method::CONNECT;
    let with_body = is_tunnel || !body.is_end_stream();
    let encode = |shared: &Shared, send: &SendStream, out: &mut Vec<u8>| {
        let fields = request_fields(&parts.method, &parts.uri, &parts.headers, protocol);
        shared.encode(send.id(), fields, out)
    };
    let sender = MessageSender::new(send, Arc::clone(shared), body, with_body, encode);
    let mut sender = sender.map_err(|(_, error)| error)?;
    sender.set_fault(parts.extensions.get::<Fault>().cloned());
    let mut sender = Box::pin(sender);
    let mut reader = MessageReader::new(recv, Arc::clone(shared));
    let mut is_sent = false;
    let mut block = None;
    let mut poll = |cx: &mut Context<'_>| {
        if !is_sent {
            match sender.as_mut().poll(cx) {
                // RFC 9114 §4.1: a server that needs no more of the request stops the stream, and
                // its response counts. The response reports other errors too.
                Poll::Ready(Ok(()) | Err(Error::Stream(_) | Error::Connection(_))) => {
                    is_sent = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        let head = poll_head(&mut reader, &mut block, on_informational, cx);
        // RFC 9114 §5.2: nor need it reset a request that it does not process.
        while head.is_pending() && goaway.as_mut().poll(cx).is_ready() {
            goaway.set(shared.goaway_arrived());
            if shared.goaway().is_some_and(|from| reader.id().0 >= from) {
                return Poll::Ready(Err(Error::GoingAway));
            }
        }
        head
    };
    let head = poll_fn(|cx| shared.enter(|| poll(cx))).await;
    let (response, length) = match head {
        Ok(head) => head,
        Err(error) => return Err(unprocessed(shared, &reader, error)),
    };
    if !is_sent {
        spawn(shared, sender);
    }
    let status = response.status();
    if protocol.is_some() && !status.is_success() {
        shared.tunnels.end(reader.id().0);
    }
    let body = shared.enter(|| body_of(reader, guard, &parts.method, status, length))?;
    Ok(response.map(|()| body))
}

/// RFC 9110 §8.6: a client announces the length of a body if it is known, and that of an empty one
/// if the method gives it a meaning.
fn announce_length(parts: &mut http::request::Parts, length: Option<u64>) {
    let takes_body = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    if let Some(length) = length.filter(|length| *length > 0 || takes_body)
        && parts.method != Method::CONNECT
    {
        let entry = parts.headers.entry(CONTENT_LENGTH);
        entry.or_insert_with(|| HeaderValue::from(length));
    }
}

/// Checks that the request can be expressed in HTTP/3.
fn check(parts: &http::request::Parts, protocol: Option<&Protocol>) -> Result<(), Error> {
    if parts.uri.authority().is_none() && !parts.headers.contains_key(http::header::HOST) {
        return Err(Error::InvalidRequest("the URI has no host"));
    }
    if protocol.is_some() && parts.method != Method::CONNECT {
        return Err(Error::InvalidRequest("only CONNECT has a protocol"));
    }
    Ok(())
}

/// The head of a response and its content-length.
type Head = (Response<()>, Option<u64>);

/// The head of the final response.
fn poll_head(
    reader: &mut MessageReader,
    block: &mut Option<bytes::Bytes>,
    on_informational: Option<&OnInformational>,
    cx: &mut Context<'_>,
) -> Poll<Result<Head, Error>> {
    loop {
        let section = match block {
            Some(section) => section,
            None => match std::task::ready!(reader.poll_part(cx)) {
                Ok(Part::Section(section)) => block.insert(section),
                Ok(Part::Data(_) | Part::End | Part::WebTransport(..)) => return Poll::Pending,
                Err(broken) => return Poll::Ready(Err(fail(reader, broken))),
            },
        };
        let decoded = reader.shared().poll_decode(cx, reader.id(), section, read);
        let head = std::task::ready!(decoded);
        *block = None;
        match head {
            // RFC 9114 §4.1: any number of informational responses precede the final one.
            Ok((response, _)) if response.status().is_informational() => {
                reader.expect_another_head();
                if let Some(on_informational) = on_informational {
                    on_informational.call(response);
                }
            }
            Ok(head) => return Poll::Ready(Ok(head)),
            Err(error) => return Poll::Ready(Err(fail(reader, broken(&error)))),
        }
    }
}

fn fail(reader: &mut MessageReader, broken: Broken) -> Error {
    reader.give_up(&broken);
    error_of(broken)
}

fn read(section: &FieldSection) -> Result<Head, Malformed> {
    let head = ResponseHead::parse(section)?;
    Ok((response(&head)?, head.content_length))
}

/// The connection ended before the request was sent. A server that ends it gracefully may do so
/// before its GOAWAY has arrived.
fn not_sent(reason: CloseReason) -> Error {
    if is_graceful(&reason) {
        return Error::GoingAway;
    }
    reason.into()
}

/// RFC 9114 §5.2: the server has processed none of the requests that GOAWAY covers.
fn unprocessed(shared: &Shared, reader: &MessageReader, error: Error) -> Error {
    match error {
        Error::Connection(_) if shared.goaway().is_some_and(|from| reader.id().0 >= from) => {
            Error::GoingAway
        }
        error => error,
    }
}

/// The body after a response's head.
fn body_of(
    mut reader: MessageReader,
    guard: ActiveGuard,
    method: &Method,
    status: StatusCode,
    length: Option<u64>,
) -> Result<Body, Error> {
    if *method == Method::CONNECT && status.is_success() {
        reader.set_connect();
    } else if *method != Method::HEAD && !never_has_body(status) {
        // RFC 9114 §4.1.2: elsewhere the length may be that of another response.
        reader.set_content_length(length);
    }
    // Small responses end with their first packet.
    let mut cx = Context::from_waker(Waker::noop());
    match reader.poll_part(&mut cx) {
        // A reset, which the body reports again: the response has arrived all the same.
        Poll::Pending | Poll::Ready(Err(Broken::Lost(Error::Stream(_)))) => {
            Ok(Body::incoming(reader, None, Some(guard)))
        }
        Poll::Ready(Ok(Part::End)) => Ok(Body::empty()),
        Poll::Ready(Ok(part)) => Ok(Body::incoming(reader, Some(part), Some(guard))),
        Poll::Ready(Err(broken)) => Err(fail(&mut reader, broken)),
    }
}

/// Sends the rest of a request whose response has already arrived.
fn spawn<B: SendBody>(shared: &Shared, sender: Pin<Box<MessageSender<B>>>) {
    let task = async move {
        // The application learns everything from the response.
        let _ = sender.await;
    };
    match Handle::try_current() {
        Ok(handle) => drop(handle.spawn(task)),
        Err(_) => drop(shared.connection.spawn(task)),
    }
}
