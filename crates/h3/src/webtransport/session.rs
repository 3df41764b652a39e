//! Sessions: their opening, their end, and what they carry.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body as _, Frame};
use squall::DatagramError;
use tokio::sync::Notify;

use super::stream::{RecvStream, SendStream, StreamError};
use super::{PROTOCOL, PROTOCOL_H3, is_session};
use crate::body::{Body, Fault};
use crate::client::SendRequest;
use crate::error::{Code, Error};
use crate::frame::{Fate, FrameReader, Piece, kind, put_frame, put_varint, stream_type};
use crate::lock::lock;
use crate::message::Protocol;
use crate::shared::Shared;
use crate::tunnel::TunnelHandle;

/// The capsule that ends a session (§6).
const CLOSE_SESSION: u64 = 0x2843;

/// The capsule that asks the peer to end the session soon (§4.7).
const DRAIN_SESSION: u64 = 0x78ae;

/// The longest reason in [`CLOSE_SESSION`], in bytes.
const MAX_REASON: usize = 1024;

/// A WebTransport session. Clones share it. It ends when its last clone and last stream are
/// dropped, by [`close`](Self::close), or when the peer ends it. Streams that are still in use then
/// fail at both ends with [`StreamError::Ended`].
#[derive(Clone)]
pub struct Session {
    tunnel: Arc<TunnelHandle>,
    control: Arc<Control>,
    /// Those of the peer's request or response.
    headers: Arc<HeaderMap>,
}

/// How a session ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// The application's code.
    pub code: u32,
    /// The application's reason.
    pub reason: String,
}

/// The CONNECT stream of a session: capsules in both directions.
struct Control {
    state: Mutex<State>,
    /// Tasks that wait for the peer to ask for the session's end.
    drain_awaited: Notify,
    /// Makes the capsules to the peer fail if its own are malformed.
    fault: Fault,
}

#[derive(Default)]
struct State {
    /// Capsules to be sent.
    outgoing: VecDeque<Bytes>,
    /// The peer's capsules; `None` before the response has arrived, and after their end.
    incoming: Option<Incoming>,
    closed: Option<Closed>,
    /// Whether the peer has been asked to end the session soon.
    has_drained: bool,
    /// Whether the peer has asked this end.
    is_draining: bool,
    /// The task that sends the body.
    sender: Option<Waker>,
    tunnel: Option<Weak<TunnelHandle>>,
    shared: Option<Arc<Shared>>,
}

/// Accepts the session that `request` asks for. Returns the session and the response that the
/// service has to return.
///
/// # Errors
/// The request asks for no session; it is returned.
#[expect(
    clippy::result_large_err,
    reason = "the caller goes on with the request"
)]
pub fn accept(request: Request<Body>) -> Result<(Response<SessionBody>, Session), Request<Body>> {
    let tunnel = is_session(&request).then(|| request.body().tunnel(true));
    let tunnel = tunnel.flatten();
    let Some(tunnel) = tunnel.map(Arc::new) else {
        return Err(request);
    };
    let fault = request.body().fault().cloned().unwrap_or_default();
    let control = Arc::new(Control::new(fault));
    let (parts, body) = request.into_parts();
    control.begin(body, &tunnel);
    let session = Session {
        tunnel,
        control: Arc::clone(&control),
        headers: Arc::new(parts.headers),
    };
    Ok((Response::new(SessionBody(Some(control))), session))
}

/// Opens a session with a server by an extended CONNECT request for `uri` with these `headers`.
///
/// # Errors
/// The request failed, or the server refused the session; in the latter case its response is
/// returned.
pub async fn connect(
    client: &SendRequest,
    uri: http::Uri,
    headers: HeaderMap,
) -> Result<Result<Session, Response<Body>>, Error> {
    let settings = client.shared().settings_arrived().await?;
    // Servers of draft 15 and later know the new name; those of several drafts know both.
    let protocol = if settings.only_new_webtransport {
        PROTOCOL_H3
    } else {
        PROTOCOL
    };
    let fault = Fault::default();
    let control = Arc::new(Control::new(fault.clone()));
    let mut request = Request::new(SessionBody(Some(Arc::clone(&control))));
    request.extensions_mut().insert(fault);
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
        .extensions_mut()
        .insert(Protocol::from_static(protocol));
    let response = client.send(request).await?;
    if !response.status().is_success() {
        control.end(Closed::default());
        return Ok(Err(response));
    }
    let Some(tunnel) = response.body().tunnel(true).map(Arc::new) else {
        control.end(Closed::default());
        return Err(Error::Malformed("the session ended with the response"));
    };
    let (parts, body) = response.into_parts();
    control.begin(body, &tunnel);
    Ok(Ok(Session {
        tunnel,
        control,
        headers: Arc::new(parts.headers),
    }))
}

impl State {
    /// Waits for the next of the peer's capsules that means something; `None` when they have ended.
    /// Notes why the peer closes the session before anyone else can look.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let event = ready!(incoming.poll(cx));
        if let Some(Event::Closed(closed)) = &event
            && self.closed.is_none()
        {
            self.closed = Some(closed.clone());
        }
        Poll::Ready(event)
    }
}

impl Control {
    fn new(fault: Fault) -> Self {
        Self {
            state: Mutex::default(),
            drain_awaited: Notify::new(),
            fault,
        }
    }

    /// The CONNECT stream is open in both directions.
    fn begin(&self, incoming: Body, tunnel: &Arc<TunnelHandle>) {
        let mut state = lock(&self.state);
        state.incoming = Some(Incoming::new(incoming));
        state.tunnel = Some(Arc::downgrade(tunnel));
        state.shared = Some(Arc::clone(&tunnel.shared));
        let sender = state.sender.take();
        drop(state);
        sender.into_iter().for_each(Waker::wake);
    }

    /// The session has ended. The first reason counts.
    fn end(&self, closed: Closed) {
        let mut state = lock(&self.state);
        if state.closed.is_none() {
            state.closed = Some(closed);
        }
        let tunnel = state.tunnel.take();
        let sender = state.sender.take();
        drop(state);
        if let Some(tunnel) = tunnel.and_then(|tunnel| tunnel.upgrade()) {
            tunnel.end();
        }
        sender.into_iter().for_each(Waker::wake);
    }

    /// The peer asks for the end of the session.
    fn set_draining(&self) {
        let had_asked = std::mem::replace(&mut lock(&self.state).is_draining, true);
        if !had_asked {
            self.drain_awaited.notify_waiters();
        }
    }

    /// Nothing more is sent. The peer's capsules are read to their end: the peer may have closed
    /// the session too, and if told to stop sending it could not say why.
    fn linger(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let shared = state.shared.take();
        let shared = shared.filter(|_| state.incoming.is_some());
        drop(state);
        let Some(shared) = shared else {
            return self.end(Closed::default());
        };
        let control = Arc::clone(self);
        let timeout = shared.config.header_timeout;
        shared.connection.spawn(async move {
            let reading = async {
                while let Some(event) = poll_fn(|cx| lock(&control.state).poll_event(cx)).await {
                    match event {
                        Event::Draining => control.set_draining(),
                        Event::Closed(closed) => control.end(closed),
                        Event::Malformed => return true,
                    }
                }
                false
            };
            let is_malformed = tokio::time::timeout(timeout, reading).await;
            let incoming = lock(&control.state).incoming.take();
            control.end(Closed::default());
            if is_malformed == Ok(true)
                && let Some(incoming) = incoming
            {
                incoming.body.refuse(Code::H3_MESSAGE_ERROR);
            }
        });
    }
}

impl Session {
    /// The header fields of the server's response, at a client; those of the client's request, at a
    /// server. Applications that negotiate a protocol find its name in `wt-protocol`, and the names
    /// to choose from in `wt-available-protocols` (§3.3).
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Waits for the next bidirectional stream from the peer; `None` when the session has ended.
    /// Cancel-safe.
    pub async fn accept_bi(&self) -> Option<(SendStream, RecvStream)> {
        let (send, recv, first) = poll_fn(|cx| self.tunnel.poll_bi(cx)).await?;
        let send = SendStream::new(send, 0, &self.tunnel);
        let recv = RecvStream::new(recv, first, &self.tunnel);
        Some((send?, recv?))
    }

    /// Waits for the next unidirectional stream from the peer; `None` when the session has ended.
    /// Cancel-safe.
    pub async fn accept_uni(&self) -> Option<RecvStream> {
        let (recv, first) = poll_fn(|cx| self.tunnel.poll_uni(cx)).await?;
        RecvStream::new(recv, first, &self.tunnel)
    }

    /// Opens a bidirectional stream; waits while the peer's limit is reached. Cancel-safe: a future
    /// that is dropped leaves no stream open.
    ///
    /// # Errors
    /// The session or the connection ended.
    pub async fn open_bi(&self) -> Result<(SendStream, RecvStream), StreamError> {
        let header = self.header(kind::WEBTRANSPORT_STREAM);
        let opening = async {
            let opening = self.tunnel.shared.connection.open_bi();
            let (mut send, recv) = opening.await.map_err(StreamError::ConnectionLost)?;
            send.write_all(&header).await?;
            Ok((send, recv))
        };
        let (send, recv) = self.while_open(opening).await?;
        let send = SendStream::new(send, header.len(), &self.tunnel);
        let recv = RecvStream::new(recv, Bytes::new(), &self.tunnel);
        send.zip(recv).ok_or(StreamError::Ended)
    }

    /// Opens a unidirectional stream; waits while the peer's limit is reached. Cancel-safe: a
    /// future that is dropped leaves no stream open.
    ///
    /// # Errors
    /// The session or the connection ended.
    pub async fn open_uni(&self) -> Result<SendStream, StreamError> {
        let header = self.header(stream_type::WEBTRANSPORT);
        let opening = async {
            let opening = self.tunnel.shared.connection.open_uni();
            let mut send = opening.await.map_err(StreamError::ConnectionLost)?;
            send.write_all(&header).await?;
            Ok(send)
        };
        let send = self.while_open(opening).await?;
        SendStream::new(send, header.len(), &self.tunnel).ok_or(StreamError::Ended)
    }

    /// Waits for `opening`, but not beyond the session's end.
    async fn while_open<T>(
        &self,
        opening: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        if self.tunnel.is_closed() {
            return Err(StreamError::Ended);
        }
        tokio::select! {
            biased;
            opened = opening => opened,
            () = self.tunnel.closed() => Err(StreamError::Ended),
        }
    }

    fn header(&self, kind: u64) -> Vec<u8> {
        let mut header = Vec::new();
        put_varint(&mut header, kind);
        put_varint(&mut header, self.tunnel.id);
        header
    }

    /// Sends a datagram. If the connection's queue is full, the oldest datagrams in it are dropped.
    ///
    /// # Errors
    /// The datagram is too large, the peer accepts none, or the session or the connection ended.
    pub fn send_datagram(&self, payload: &[u8]) -> Result<(), DatagramError> {
        self.datagrams().send(payload)
    }

    /// Waits for the next datagram; `None` when the session has ended. Cancel-safe.
    pub async fn recv_datagram(&self) -> Option<Bytes> {
        self.datagrams().recv().await
    }

    /// The largest datagram that can be sent now, in bytes; `None` if the peer accepts none.
    #[must_use]
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.datagrams().max_size()
    }

    fn datagrams(&self) -> crate::Datagrams {
        crate::Datagrams(Arc::clone(&self.tunnel))
    }

    /// Ends the session: the peer's application gets `code` and `reason`, of which at most 1,024
    /// bytes are sent.
    pub fn close(&self, code: u32, reason: &str) {
        let mut end = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = reason.get(..end).unwrap_or_default();
        let mut payload = code.to_be_bytes().to_vec();
        payload.extend_from_slice(reason.as_bytes());
        let mut capsule = Vec::new();
        put_frame(&mut capsule, CLOSE_SESSION, &payload);
        let mut state = lock(&self.control.state);
        if state.closed.is_none() {
            state.outgoing.push_back(capsule.into());
        }
        drop(state);
        let reason = reason.to_owned();
        self.control.end(Closed { code, reason });
    }

    /// Asks the peer to end the session soon: its [`draining`](Self::draining) returns. Both ends
    /// can go on using the session meanwhile (§4.7).
    pub fn drain(&self) {
        let mut state = lock(&self.control.state);
        if state.has_drained || state.closed.is_some() {
            return;
        }
        state.has_drained = true;
        let mut capsule = Vec::new();
        put_frame(&mut capsule, DRAIN_SESSION, &[]);
        state.outgoing.push_back(capsule.into());
        let sender = state.sender.take();
        drop(state);
        sender.into_iter().for_each(Waker::wake);
    }

    /// Waits until the application should end the session: the peer asks for that by
    /// [`drain`](Self::drain), one of the ends is about to end the connection gracefully (GOAWAY,
    /// RFC 9114 §5.2), or the session has ended. A server that ends gracefully waits for its
    /// sessions. Cancel-safe.
    pub async fn draining(&self) {
        let asked = self.control.drain_awaited.notified();
        let goaway = self.tunnel.shared.goaway_arrived();
        if lock(&self.control.state).is_draining || self.tunnel.shared.goaway().is_some() {
            return;
        }
        tokio::select! {
            () = asked => {}
            () = goaway => {}
            () = self.tunnel.closed() => {}
        }
    }

    /// Waits for the session's end. Cancel-safe.
    pub async fn closed(&self) -> Closed {
        self.tunnel.closed().await;
        let is_connected = self.tunnel.shared.connection.close_reason().is_none();
        poll_fn(|cx| {
            let mut state = lock(&self.control.state);
            // A peer may close the connection right after the session, as Firefox does. Its reason
            // has then arrived, though nothing may have read it yet.
            while !is_connected
                && state.closed.is_none()
                && matches!(state.poll_event(cx), Poll::Ready(Some(Event::Draining)))
            {}
            Poll::Ready(state.closed.clone().unwrap_or_default())
        })
        .await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.tunnel.id)
            .field("halves_of_streams", &self.tunnel.held())
            .finish_non_exhaustive()
    }
}

/// The body of the request or response that carries a session. By default it is empty.
#[derive(Default)]
pub struct SessionBody(Option<Arc<Control>>);

impl http_body::Body for SessionBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(control) = &self.0 else {
            return Poll::Ready(None);
        };
        loop {
            let mut state = lock(&control.state);
            if let Some(capsule) = state.outgoing.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(capsule))));
            }
            if state.closed.is_some() {
                return Poll::Ready(None);
            }
            if let Some(tunnel) = &state.tunnel
                && tunnel
                    .upgrade()
                    .is_none_or(|tunnel| tunnel.poll_closed(cx).is_ready())
            {
                // The session has no holder any more.
                return Poll::Ready(None);
            }
            state.sender = Some(cx.waker().clone());
            if state.incoming.is_none() {
                return Poll::Pending;
            }
            let event = ready!(state.poll_event(cx));
            if matches!(event, Some(Event::Draining)) {
                drop(state);
                control.set_draining();
                continue;
            }
            let is_malformed = matches!(event, Some(Event::Malformed));
            let refused =
                (state.incoming).take_if(|incoming| is_malformed || incoming.is_malformed());
            drop(state);
            let Some(refused) = refused else {
                control.end(event.map(Event::closed).unwrap_or_default());
                continue;
            };
            control.fault.set(Code::H3_MESSAGE_ERROR);
            refused.body.refuse(Code::H3_MESSAGE_ERROR);
            control.end(event.map(Event::closed).unwrap_or_default());
            // The sender of this body resets the stream when it is polled again.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for SessionBody {
    fn drop(&mut self) {
        if let Some(control) = &self.0 {
            control.linger();
        }
    }
}

impl fmt::Debug for SessionBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionBody").finish_non_exhaustive()
    }
}

/// The peer's capsules.
struct Incoming {
    body: Body,
    capsules: FrameReader,
    /// Whether the one that closes the session has arrived, so that nothing may follow.
    is_closed: bool,
}

/// What the peer's capsules mean for the session.
enum Event {
    /// It should end soon.
    Draining,
    Closed(Closed),
    /// A capsule that the draft does not allow (RFC 9297 §3.3).
    Malformed,
}

impl Event {
    /// How the session ends: without a reason, if the peer's is not valid.
    fn closed(self) -> Closed {
        match self {
            Self::Closed(closed) => closed,
            Self::Draining | Self::Malformed => Closed::default(),
        }
    }
}

impl Incoming {
    fn new(mut body: Body) -> Self {
        body.set_drop_code(Code::WT_SESSION_GONE);
        Self {
            body,
            capsules: FrameReader::new(),
            is_closed: false,
        }
    }

    /// Waits for the next event; `None` when the peer's capsules have ended. That means the same as
    /// closing the session without a reason (§6).
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            if let Some(event) = self.next() {
                return Poll::Ready(Some(event));
            }
            let data = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                // RFC 9297 §3.3: the last capsule must be whole.
                None if !self.capsules.is_between_frames() => {
                    return Poll::Ready(Some(Event::Malformed));
                }
                Some(Err(_)) | None => return Poll::Ready(None),
            };
            if !self.is_closed {
                self.capsules.push(data);
            } else if !data.is_empty() {
                // §6: nothing follows.
                return Poll::Ready(Some(Event::Malformed));
            }
        }
    }

    /// The next capsule that means something here; others are skipped (RFC 9297 §3.2).
    fn next(&mut self) -> Option<Event> {
        if self.is_closed {
            return None;
        }
        let fate = |kind: u64, len: u64| match kind {
            CLOSE_SESSION if (4..=MAX_REASON as u64 + 4).contains(&len) => Ok(Fate::Whole),
            DRAIN_SESSION if len == 0 => Ok(Fate::Whole),
            CLOSE_SESSION | DRAIN_SESSION => Err(()),
            _ => Ok(Fate::Skip),
        };
        let capsule = match self.capsules.next(fate) {
            Ok(Some(Piece::Frame(DRAIN_SESSION, _))) => return Some(Event::Draining),
            Ok(Some(Piece::Frame(_, capsule))) => capsule,
            Ok(_) => return None,
            Err(()) => return Some(Event::Malformed),
        };
        self.is_closed = true;
        let (code, reason) = capsule.split_first_chunk()?;
        Some(Event::Closed(Closed {
            code: u32::from_be_bytes(*code),
            reason: String::from_utf8_lossy(reason).into_owned(),
        }))
    }

    /// Whether something follows the capsule that closes the session.
    fn is_malformed(&self) -> bool {
        self.is_closed && !self.capsules.is_between_frames()
    }
}
