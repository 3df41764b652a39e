//! Sessions: their opening, their end, and what they carry.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body as _, Frame};
use squall::DatagramError;

use super::stream::{RecvStream, SendStream, StreamError};
use super::{PROTOCOL, PROTOCOL_H3, is_session};
use crate::body::Body;
use crate::client::SendRequest;
use crate::error::Error;
use crate::frame::{Fate, FrameReader, Piece, kind, put_frame, put_varint, stream_type};
use crate::lock::lock;
use crate::message::Protocol;
use crate::shared::Shared;
use crate::tunnel::TunnelHandle;

/// The capsule that ends a session (§6).
const CLOSE_SESSION: u64 = 0x2843;

/// The longest reason in it, in bytes.
const MAX_REASON: usize = 1024;

/// A WebTransport session. Clones share it. It ends when its last clone and last stream are
/// dropped, by [`close`](Self::close), or when the peer ends it.
#[derive(Clone)]
pub struct Session {
    tunnel: Arc<TunnelHandle>,
    control: Arc<Control>,
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
#[derive(Default)]
struct Control(Mutex<State>);

#[derive(Default)]
struct State {
    /// Capsules to be sent.
    outgoing: VecDeque<Bytes>,
    /// The peer's capsules; `None` before the response has arrived, and after their end.
    incoming: Option<Body>,
    capsules: Option<FrameReader>,
    closed: Option<Closed>,
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
    let asks = request.method() == Method::CONNECT
        && (request.extensions().get::<Protocol>()).is_some_and(is_session);
    let tunnel = request.body().tunnel().filter(|_| asks);
    let Some(tunnel) = tunnel.map(Arc::new) else {
        return Err(request);
    };
    let control = Arc::new(Control::default());
    control.begin(request.into_body(), &tunnel);
    let body = SessionBody(Some(Arc::clone(&control)));
    Ok((Response::new(body), Session { tunnel, control }))
}

/// Opens a session with a server by an extended CONNECT request for `uri` with these `headers`.
///
/// # Errors
/// The request failed, or the server refused the session; in the latter case its response is
/// returned.
pub async fn connect(
    client: &SendRequest,
    uri: http::Uri,
    headers: http::HeaderMap,
) -> Result<Result<Session, Response<Body>>, Error> {
    let settings = client.shared().settings_arrived().await?;
    // Servers of draft 15 and later know the new name; those of several drafts know both.
    let protocol = if settings.only_new_webtransport {
        PROTOCOL_H3
    } else {
        PROTOCOL
    };
    let control = Arc::new(Control::default());
    let mut request = Request::new(SessionBody(Some(Arc::clone(&control))));
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
    let Some(tunnel) = response.body().tunnel().map(Arc::new) else {
        return Err(Error::Malformed("the session ended with the response"));
    };
    control.begin(response.into_body(), &tunnel);
    Ok(Ok(Session { tunnel, control }))
}

impl Control {
    /// The CONNECT stream is open in both directions.
    fn begin(&self, incoming: Body, tunnel: &Arc<TunnelHandle>) {
        let mut state = lock(&self.0);
        state.incoming = Some(incoming);
        state.capsules = Some(FrameReader::new());
        state.tunnel = Some(Arc::downgrade(tunnel));
        state.shared = Some(Arc::clone(&tunnel.shared));
        let sender = state.sender.take();
        drop(state);
        sender.into_iter().for_each(Waker::wake);
    }

    /// The session has ended. The first reason counts.
    fn end(&self, closed: Closed) {
        let mut state = lock(&self.0);
        if state.closed.is_none() {
            state.closed = Some(closed);
        }
        let tunnel = state.tunnel.take();
        let sender = state.sender.take();
        drop(state);
        if let Some(tunnel) = tunnel.and_then(|tunnel| tunnel.upgrade()) {
            tunnel.close();
        }
        sender.into_iter().for_each(Waker::wake);
    }

    /// Nothing more is sent. The peer's capsules are read to their end: the peer may have closed
    /// the session too, and if told to stop sending it could not say why.
    fn linger(self: &Arc<Self>) {
        let mut state = lock(&self.0);
        let (incoming, capsules) = (state.incoming.take(), state.capsules.take());
        let shared = state.shared.take();
        drop(state);
        let (Some(mut incoming), Some(mut capsules), Some(shared)) = (incoming, capsules, shared)
        else {
            return self.end(Closed::default());
        };
        let control = Arc::clone(self);
        let timeout = shared.config.header_timeout;
        shared.connection.spawn(async move {
            let closed = poll_fn(|cx| poll_capsules(&mut incoming, &mut capsules, cx));
            let closed = tokio::time::timeout(timeout, closed).await;
            control.end(closed.unwrap_or_default());
        });
    }
}

impl Session {
    /// Waits for the next bidirectional stream from the peer; `None` when the session has ended.
    /// Cancel-safe.
    pub async fn accept_bi(&self) -> Option<(SendStream, RecvStream)> {
        let (send, recv, first) = poll_fn(|cx| self.tunnel.poll_bi(cx)).await?;
        let send = SendStream::new(send, 0, Arc::clone(&self.tunnel));
        Some((send, RecvStream::new(recv, first, Arc::clone(&self.tunnel))))
    }

    /// Waits for the next unidirectional stream from the peer; `None` when the session has ended.
    /// Cancel-safe.
    pub async fn accept_uni(&self) -> Option<RecvStream> {
        let (recv, first) = poll_fn(|cx| self.tunnel.poll_uni(cx)).await?;
        Some(RecvStream::new(recv, first, Arc::clone(&self.tunnel)))
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
        let send = SendStream::new(send, header.len(), Arc::clone(&self.tunnel));
        let recv = RecvStream::new(recv, Bytes::new(), Arc::clone(&self.tunnel));
        Ok((send, recv))
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
        Ok(SendStream::new(
            send,
            header.len(),
            Arc::clone(&self.tunnel),
        ))
    }

    /// Waits for `opening`, but not beyond the session's end.
    async fn while_open<T>(
        &self,
        opening: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        let mut opening = pin!(opening);
        poll_fn(|cx| {
            if let Poll::Ready(opened) = opening.as_mut().poll(cx) {
                return Poll::Ready(opened);
            }
            self.tunnel
                .poll_closed(cx)
                .map(|()| Err(StreamError::Ended))
        })
        .await
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
    /// The datagram is too large, the peer accepts none, or the connection ended.
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
        let mut state = lock(&self.control.0);
        if state.closed.is_none() {
            state.outgoing.push_back(capsule.into());
        }
        drop(state);
        let reason = reason.to_owned();
        self.control.end(Closed { code, reason });
    }

    /// Waits for the session's end. Cancel-safe.
    pub async fn closed(&self) -> Closed {
        poll_fn(|cx| self.tunnel.poll_closed(cx)).await;
        lock(&self.control.0).closed.clone().unwrap_or_default()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.tunnel.id)
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
            let mut state = lock(&control.0);
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
            let State {
                incoming, capsules, ..
            } = &mut *state;
            let (Some(incoming), Some(capsules)) = (incoming, capsules) else {
                return Poll::Pending;
            };
            let closed = ready!(poll_capsules(incoming, capsules, cx));
            drop(state);
            control.end(closed);
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

/// Waits for the peer to end the session.
fn poll_capsules(
    incoming: &mut Body,
    capsules: &mut FrameReader,
    cx: &mut Context<'_>,
) -> Poll<Closed> {
    loop {
        let closed = match ready!(Pin::new(&mut *incoming).poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => read_capsules(capsules, data),
                Err(_) => None,
            },
            // The stream ended without a capsule (§6): as if with code 0.
            Some(Err(_)) | None => Some(Closed::default()),
        };
        if let Some(closed) = closed {
            return Poll::Ready(closed);
        }
    }
}

/// Reads the peer's capsules; all but the one that closes the session are skipped (RFC 9297 §3.2).
fn read_capsules(capsules: &mut FrameReader, data: Bytes) -> Option<Closed> {
    capsules.push(data);
    let fate = |kind: u64, len: u64| match kind {
        CLOSE_SESSION if !(4..=MAX_REASON as u64 + 4).contains(&len) => Err(()),
        CLOSE_SESSION => Ok(Fate::Whole),
        _ => Ok(Fate::Skip),
    };
    let capsule = match capsules.next(fate) {
        Ok(Some(Piece::Frame(_, capsule))) => capsule,
        Ok(_) => return None,
        // The draft does not allow this: the session ends without a reason.
        Err(()) => return Some(Closed::default()),
    };
    let (code, reason) = capsule.split_first_chunk()?;
    Some(Closed {
        code: u32::from_be_bytes(*code),
        reason: String::from_utf8_lossy(reason).into_owned(),
    })
}
