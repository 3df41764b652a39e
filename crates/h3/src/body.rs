//! Received bodies.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use squall::Stage;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

use crate::datagram::Datagrams;
use crate::error::{Code, Error};
use crate::informational::Informational;
use crate::message::trailers;
use crate::receive::{Broken, MessageReader, Part};
use crate::shared::{FieldsError, Shared};
use crate::tunnel::TunnelHandle;

/// The body of a received request or response.
///
/// Data is handed out as it arrived, without a copy, and the peer may send more only as the data is
/// taken. Dropping a body before its end tells the peer to stop sending.
#[derive(Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Incoming(Box<Incoming>),
}

struct Incoming {
    reader: MessageReader,
    /// The part that was read together with the head.
    first: Option<Part>,
    /// A trailer section that waits for the dynamic table.
    trailers: Option<Bytes>,
    fault: Option<Fault>,
    /// For a client that sends the body once it is asked to; `None` once it has been asked.
    expects: Option<Informational>,
    /// How long it may stand still.
    timeout: Option<Duration>,
    /// The timer of the current pause; made at the first one.
    pause: Option<Pin<Box<Sleep>>>,
    is_paused: bool,
    /// Dropped at the body's end, or with the body.
    _guard: Option<ActiveGuard>,
}

/// A fault found in a message after its head, passed on to the one in the other direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault(Arc<AtomicU64>);

impl Fault {
    /// The code to reset that message with if this one is malformed (RFC 9114 §4.1.2).
    pub(crate) fn code(&self) -> Option<Code> {
        let code = Code(self.0.load(Ordering::Acquire));
        (code.0 != 0 && code != Code::H3_REQUEST_CANCELLED).then_some(code)
    }

    /// The code to reset the response with if it fails: it is the client's fault if the request's
    /// body did not arrive in time.
    pub(crate) fn code_of_failure(&self) -> Code {
        match Code(self.0.load(Ordering::Acquire)) {
            Code::H3_REQUEST_CANCELLED => Code::H3_REQUEST_CANCELLED,
            _ => Code::H3_INTERNAL_ERROR,
        }
    }

    pub(crate) fn set(&self, code: Code) {
        self.0.store(code.0, Ordering::Release);
    }
}

/// Counts a request as active while it exists.
#[derive(Debug)]
pub(crate) struct ActiveGuard {
    shared: Arc<Shared>,
    /// For requests that open a session: it counts as open for as long.
    session: Option<OwnedSemaphorePermit>,
}

impl ActiveGuard {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        shared.begin_request();
        Self {
            shared,
            session: None,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn keep_place(&mut self, place: Option<OwnedSemaphorePermit>) {
        self.session = place;
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.shared.end_request();
    }
}

impl Body {
    /// A body without data.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Kind::Empty)
    }

    /// The body of a request; `fault` records whether it is malformed, and `expects` asks the
    /// client for the body once it is read.
    pub(crate) fn of_request(
        reader: MessageReader,
        first: Option<Part>,
        fault: Fault,
        expects: Option<Informational>,
    ) -> Self {
        let timeout = reader.body_timeout();
        let mut body = Self::incoming(reader, first, None);
        if let Kind::Incoming(incoming) = &mut body.0 {
            incoming.fault = Some(fault);
            incoming.expects = expects;
            incoming.timeout = timeout;
        }
        body
    }

    /// The body after a head, whose first part may already have been read.
    pub(crate) fn incoming(
        reader: MessageReader,
        first: Option<Part>,
        guard: Option<ActiveGuard>,
    ) -> Self {
        Self(Kind::Incoming(Box::new(Incoming {
            reader,
            first,
            trailers: None,
            fault: None,
            expects: None,
            timeout: None,
            pause: None,
            is_paused: false,
            _guard: guard,
        })))
    }
}

impl Body {
    /// The datagrams (RFC 9297) of the extended CONNECT request that this body belongs to or
    /// answers, as long as its stream is open. Both ends must have
    /// [`Config::datagrams`](crate::Config::datagrams) set.
    ///
    /// QUIC within a request (RFC 9298) needs datagrams of 1,201 bytes. They do not fit until path
    /// MTU discovery has found that the path carries more than 1,200, unless the connection was
    /// made with a larger
    /// [`initial_udp_payload`](squall::TransportConfig::initial_udp_payload), such as 1,300.
    #[must_use]
    pub fn datagrams(&self) -> Option<Datagrams> {
        Some(Datagrams(Arc::new(self.tunnel(false)?)))
    }

    /// Opens the request's tunnel, which carries what travels outside of its stream. A session ends
    /// when its handle is dropped.
    pub(crate) fn tunnel(&self, is_session: bool) -> Option<TunnelHandle> {
        match &self.0 {
            Kind::Incoming(incoming) => {
                let reader = &incoming.reader;
                let id = reader.id().0;
                Some(TunnelHandle::open(reader.shared(), id, is_session))
            }
            Kind::Empty | Kind::Full(_) => None,
        }
    }

    /// The code with which the stream is stopped if the body is dropped before its end.
    pub(crate) fn set_drop_code(&mut self, code: Code) {
        if let Kind::Incoming(incoming) = &mut self.0 {
            incoming.reader.recv.set_drop_code(code.0);
        }
    }

    /// The fault that makes the answer to a request fail, too; `None` for bodies of responses.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        match &self.0 {
            Kind::Incoming(incoming) => incoming.fault.as_ref(),
            Kind::Empty | Kind::Full(_) => None,
        }
    }

    /// Abandons the stream: its content breaks a rule of the protocol that it carries.
    pub(crate) fn refuse(mut self, code: Code) {
        if let Kind::Incoming(incoming) = &mut self.0 {
            let _ = incoming.reader.recv.stop(code.0);
        }
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self(if data.is_empty() {
            Kind::Empty
        } else {
            Kind::Full(data)
        })
    }
}

impl From<Vec<u8>> for Body {
    fn from(data: Vec<u8>) -> Self {
        Bytes::from(data).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(data) => {
                let data = std::mem::take(data);
                self.0 = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Kind::Incoming(incoming) => {
                let frame = ready!(incoming.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    // An error is returned once; the stream is no longer needed.
                    self.0 = Kind::Empty;
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Full(_) => false,
            Kind::Incoming(incoming) => incoming.first.is_none() && incoming.reader.has_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(data) => SizeHint::with_exact(data.len() as u64),
            Kind::Incoming(incoming) => match incoming.reader.left() {
                Some(left) => SizeHint::with_exact(left + incoming.first_len()),
                None => SizeHint::default(),
            },
        }
    }
}

impl Incoming {
    fn first_len(&self) -> u64 {
        match &self.first {
            Some(Part::Data(data)) => data.len() as u64,
            _ => 0,
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.reader.shared().mark(Stage::Application);
        let result = match self.poll_next(cx) {
            Poll::Pending => {
                if let Some(expects) = self.expects.take() {
                    expects.send_continue();
                }
                self.poll_pause(cx)
            }
            ready => {
                self.is_paused = false;
                ready
            }
        };
        self.reader.shared().mark(Stage::Http);
        result
    }

    /// Fails if the body has stood still for too long.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(timeout) = self.timeout else {
            return Poll::Pending;
        };
        let begins = !std::mem::replace(&mut self.is_paused, true);
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if begins {
            pause.as_mut().reset(Instant::now() + timeout);
        }
        ready!(pause.as_mut().poll(cx));
        if let Some(fault) = &self.fault {
            fault.set(Code::H3_REQUEST_CANCELLED);
        }
        Poll::Ready(Some(Err(Error::Timeout)))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        loop {
            if let Some(section) = &self.trailers {
                let id = self.reader.id();
                let decoded = self
                    .reader
                    .shared()
                    .poll_decode(cx, id, section, trailers_of);
                let result = ready!(decoded);
                self.trailers = None;
                return Poll::Ready(Some(match result {
                    Ok(trailers) => Ok(Frame::trailers(trailers)),
                    Err(error) => Err(self.fail(broken(&error))),
                }));
            }
            let part = match self.first.take() {
                Some(first) => Ok(first),
                None => ready!(self.reader.poll_part(cx)),
            };
            match part {
                Ok(Part::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Part::Section(section)) => self.trailers = Some(section),
                Ok(Part::End | Part::WebTransport(..)) => return Poll::Ready(None),
                Err(broken) => return Poll::Ready(Some(Err(self.fail(broken)))),
            }
        }
    }

    fn fail(&mut self, broken: Broken) -> Error {
        self.reader.give_up(&broken);
        if let (Some(fault), Broken::Stream(code, _)) = (&self.fault, &broken) {
            fault.set(*code);
        }
        error_of(broken)
    }
}

fn trailers_of(
    section: &crate::qpack::FieldSection,
) -> Result<http::HeaderMap, crate::message::Malformed> {
    crate::message::check_trailers(section)?;
    trailers(section)
}

/// The effect of a decoding failure on a message.
pub(crate) const fn broken(error: &FieldsError) -> Broken {
    match *error {
        FieldsError::Connection(code) => Broken::Connection(code, "fields cannot be decoded"),
        FieldsError::TooLarge => Broken::TooLarge,
        FieldsError::Malformed(why) => {
            Broken::Stream(Code::H3_MESSAGE_ERROR, Error::Malformed(why.0))
        }
    }
}

/// The error that the application gets for a message that broke off.
pub(crate) fn error_of(broken: Broken) -> Error {
    match broken {
        Broken::Connection(_, why) => Error::Malformed(why),
        Broken::Stream(_, error) | Broken::Lost(error) => error,
        Broken::TooLarge => Error::FieldsTooLarge,
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Kind::Empty => "empty",
            Kind::Full(_) => "full",
            Kind::Incoming(_) => "incoming",
        };
        f.debug_tuple("Body").field(&kind).finish()
    }
}
