//! A connection: streams opened and accepted.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use squall::{AcceptBi, AcceptUni, OpenBi, OpenUni, Side};

use crate::error;
use crate::recv::RecvStream;
use crate::send::SendStream;

/// A squall connection in the form that h3 needs: pass it to [`h3::server::Connection::new`] or
/// [`h3::client::new`].
pub struct Connection {
    opener: OpenStreams,
    accepting_bi: Option<AcceptBi>,
    accepting_uni: Option<AcceptUni>,
}

impl Connection {
    /// Wraps a connection. The application protocol must have been negotiated as `h3` (RFC 9114
    /// §3.1), and the peer must be allowed at least three unidirectional streams, for HTTP/3's own
    /// (RFC 9114 §6.2); the default is more.
    #[must_use]
    pub fn new(connection: squall::Connection) -> Self {
        Self {
            opener: OpenStreams::new(connection),
            accepting_bi: None,
            accepting_uni: None,
        }
    }

    pub(crate) fn squall(&self) -> &squall::Connection {
        &self.opener.connection
    }
}

impl<B: Buf + Send + 'static> quic::Connection<B> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = OpenStreams;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        let connection = &self.opener.connection;
        let accepting = (self.accepting_uni).get_or_insert_with(|| connection.accept_uni());
        let stream = ready!(Pin::new(accepting).poll(cx));
        self.accepting_uni = None;
        let stream = stream.map_err(error::of_connection)?;
        // Control and QPACK streams. An application that waits for data on others also has the
        // stream of their session open.
        stream.set_background();
        let id = id_of(stream.id());
        Poll::Ready(Ok(RecvStream::new(stream, id, Code::H3_NO_ERROR.value())))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream<B>, ConnectionErrorIncoming>> {
        let connection = &self.opener.connection;
        let accepting = (self.accepting_bi).get_or_insert_with(|| connection.accept_bi());
        let streams = ready!(Pin::new(accepting).poll(cx));
        self.accepting_bi = None;
        let streams = streams.map_err(error::of_connection)?;
        Poll::Ready(Ok(BidiStream::new(streams, self.opener.side)))
    }

    fn opener(&self) -> OpenStreams {
        self.opener.clone()
    }
}

impl<B: Buf + Send + 'static> quic::OpenStreams<B> for Connection {
    type BidiStream = BidiStream<B>;
    type SendStream = SendStream<B>;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream<B>, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SendStream<B>, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        quic::OpenStreams::<B>::close(&mut self.opener, code, reason);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connection").field(self.squall()).finish()
    }
}

/// Opens streams on a connection.
pub struct OpenStreams {
    connection: squall::Connection,
    side: Side,
    opening_bi: Option<OpenBi>,
    opening_uni: Option<OpenUni>,
}

impl OpenStreams {
    fn new(connection: squall::Connection) -> Self {
        Self {
            side: connection.side(),
            connection,
            opening_bi: None,
            opening_uni: None,
        }
    }
}

impl<B: Buf + Send + 'static> quic::OpenStreams<B> for OpenStreams {
    type BidiStream = BidiStream<B>;
    type SendStream = SendStream<B>;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream<B>, StreamErrorIncoming>> {
        let opening = (self.opening_bi).get_or_insert_with(|| self.connection.open_bi());
        let streams = ready!(Pin::new(opening).poll(cx));
        self.opening_bi = None;
        let streams = streams.map_err(error::of_lost)?;
        Poll::Ready(Ok(BidiStream::new(streams, self.side)))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SendStream<B>, StreamErrorIncoming>> {
        let opening = (self.opening_uni).get_or_insert_with(|| self.connection.open_uni());
        let stream = ready!(Pin::new(opening).poll(cx));
        self.opening_uni = None;
        let stream = stream.map_err(error::of_lost)?;
        stream.set_background();
        let id = id_of(stream.id());
        Poll::Ready(Ok(SendStream::new(stream, id, Code::H3_NO_ERROR.value())))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.connection.close(code.value(), reason);
    }
}

impl Clone for OpenStreams {
    fn clone(&self) -> Self {
        Self {
            connection: self.connection.clone(),
            side: self.side,
            opening_bi: None,
            opening_uni: None,
        }
    }
}

impl std::fmt::Debug for OpenStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpenStreams")
            .field(&self.connection)
            .finish()
    }
}

/// A bidirectional stream.
#[derive(Debug)]
pub struct BidiStream<B: Buf> {
    send: SendStream<B>,
    recv: RecvStream,
}

impl<B: Buf> BidiStream<B> {
    fn new((send, recv): (squall::SendStream, squall::RecvStream), side: Side) -> Self {
        let id = id_of(send.id());
        let cancelled = Code::H3_REQUEST_CANCELLED.value();
        let unread = match side {
            Side::Client => cancelled,
            // A server may have answered without reading all of the request (RFC 9114 §4.1).
            Side::Server => Code::H3_NO_ERROR.value(),
        };
        Self {
            send: SendStream::new(send, id, cancelled),
            recv: RecvStream::new(recv, id, unread),
        }
    }
}

impl<B: Buf + Send + 'static> quic::BidiStream<B> for BidiStream<B> {
    type SendStream = SendStream<B>;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream<B>, RecvStream) {
        (self.send, self.recv)
    }
}

impl<B: Buf> quic::RecvStream for BidiStream<B> {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.recv.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

impl<B: Buf + Send + 'static> quic::SendStream<B> for BidiStream<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, reset_code: u64) {
        self.send.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

impl<B: Buf + Send + 'static> quic::SendStreamUnframed<B> for BidiStream<B> {
    fn poll_send<D: Buf>(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut D,
    ) -> Poll<Result<usize, StreamErrorIncoming>> {
        self.send.poll_send(cx, buf)
    }
}

/// The id in h3's type.
fn id_of(id: squall::StreamId) -> StreamId {
    StreamId::try_from(id.0).expect("every stream id is below 2^62 (RFC 9000 §2.1)")
}
