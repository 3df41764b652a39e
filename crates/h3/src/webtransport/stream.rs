//! Streams of a session: those of the connection, with the session's own error codes.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use squall::{Priority, ReadError, StreamId, WriteError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::half::{Half, HalfId, Held};
use crate::tunnel::TunnelHandle;

/// The first of the HTTP/3 codes that stand for codes of WebTransport applications (§4.4).
const FIRST_CODE: u64 = 0x52e4_a40f_a8db;

/// The HTTP/3 code for an application's code. Codes of the form 0x1f * N + 0x21 are left out.
pub(super) const fn to_http(code: u32) -> u64 {
    let code = code as u64;
    FIRST_CODE + code + code / 0x1e
}

/// The application's code for an HTTP/3 code, if there is one.
pub(super) fn from_http(code: u64) -> Option<u32> {
    let shifted = code.checked_sub(FIRST_CODE)?;
    if shifted % 0x1f == 0x1e {
        return None;
    }
    u32::try_from(shifted - shifted / 0x1f).ok()
}

/// Why a stream of a session failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer's application reset or stopped the stream with this code.
    Code(u32),
    /// The session ended, or the peer ended the stream in another way.
    Ended,
    /// The stream was already finished, reset or stopped.
    Closed,
    /// The connection ended.
    ConnectionLost(squall::CloseReason),
}

impl StreamError {
    fn of_code(code: u64) -> Self {
        from_http(code).map_or(Self::Ended, Self::Code)
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "the peer ended the stream with code {code}"),
            Self::Ended => f.write_str("the session ended, or the peer ended the stream"),
            Self::Closed => f.write_str("the stream is closed"),
            Self::ConnectionLost(reason) => write!(f, "connection lost: {reason}"),
        }
    }
}

impl std::error::Error for StreamError {}

impl From<WriteError> for StreamError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::of_code(code),
            WriteError::ConnectionLost(reason) => Self::ConnectionLost(reason),
            _ => Self::Closed,
        }
    }
}

impl From<ReadError> for StreamError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::of_code(code),
            ReadError::ConnectionLost(reason) => Self::ConnectionLost(reason),
            _ => Self::Closed,
        }
    }
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        let kind = match error {
            StreamError::Code(_) | StreamError::Ended => io::ErrorKind::ConnectionReset,
            StreamError::Closed => io::ErrorKind::NotConnected,
            StreamError::ConnectionLost(_) => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}

/// The sending half of a stream of a session. Dropping it unfinished resets the stream with code 0.
/// The end of the session resets it too, unless it was finished by then: what was written before is
/// still delivered, as far as the peer reads it.
#[derive(Debug)]
pub struct SendStream {
    half: Arc<Half<squall::SendStream>>,
    id: StreamId,
    /// Bytes of the header before the application's data; none on streams of the peer.
    header: u64,
    /// Whether this end has ended the stream, so that the session no longer does.
    has_ended: bool,
    /// The session lives as long as its streams.
    session: Arc<TunnelHandle>,
}

impl SendStream {
    /// `None` if the session has ended: the stream is reset.
    pub(super) fn new(
        mut inner: squall::SendStream,
        header: usize,
        session: &Arc<TunnelHandle>,
    ) -> Option<Self> {
        inner.set_drop_code(to_http(0));
        let (id, header) = (inner.id(), header as u64);
        let half = Arc::new(Half::new(inner));
        let held = Held::Send(Arc::clone(&half), header);
        session.hold(HalfId::send(id), held).then(|| Self {
            half,
            id,
            header,
            has_ended: false,
            session: Arc::clone(session),
        })
    }

    /// The id of the QUIC stream.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    fn poll<R>(
        &self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut squall::SendStream, &mut Context<'_>) -> Poll<Result<R, WriteError>>,
    ) -> Poll<Result<R, StreamError>> {
        let written = ready!(self.half.poll(cx, write));
        Poll::Ready(Ok(written.ok_or(StreamError::Ended)??))
    }

    /// Writes all of `data`. Not cancel-safe.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn write_all(&mut self, mut data: &[u8]) -> Result<(), StreamError> {
        while !data.is_empty() {
            let written = poll_fn(|cx| self.poll(cx, |send, cx| send.poll_write(cx, data))).await?;
            data = data.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes a whole chunk without copying it, unless it is small. Not cancel-safe.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn write_chunk(&mut self, mut chunk: Bytes) -> Result<(), StreamError> {
        while !chunk.is_empty() {
            let write = |cx: &mut Context<'_>| {
                self.poll(cx, |send, cx| send.poll_write_chunk(cx, &mut chunk))
            };
            poll_fn(write).await?;
        }
        Ok(())
    }

    /// Ends the stream after the data written so far.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn finish(&mut self) -> Result<(), StreamError> {
        self.end(squall::SendStream::finish)
    }

    /// Resets the stream: the peer's application gets `code`.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn reset(&mut self, code: u32) -> Result<(), StreamError> {
        // §4.4: without the header the peer could not tell whose stream was reset.
        let header = self.header;
        self.end(|send| send.reset_at(to_http(code), header))
    }

    /// Changes the stream's priority among the streams of the connection, from the next packet on.
    /// Requests have levels of -4 to 3, most of them 0 (RFC 9218 §4.1).
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn set_priority(&self, priority: Priority) -> Result<(), StreamError> {
        let set = self.half.call(|send| send.set_priority(priority));
        Ok(set.ok_or(StreamError::Ended)??)
    }

    /// A future that waits until the stream's outcome is known: `None` if the peer has acknowledged
    /// all data and the end, `Some(code)` if the peer's application stopped the stream. It borrows
    /// nothing, so it can wait alongside writes, and in another task. Cancel-safe.
    ///
    /// # Errors
    /// `Ended` if the session ended first, or the peer's code is not one of an application;
    /// `Closed` if this end reset the stream; `ConnectionLost`.
    pub fn stopped(&self) -> impl Future<Output = Result<Option<u32>, StreamError>> + Send + use<> {
        let stopped = self.half.call(|send| send.stopped());
        // Not a strong reference: dropping the stream must reset it.
        let half = Arc::downgrade(&self.half);
        async move {
            match stopped.ok_or(StreamError::Ended)?.await {
                Ok(code) => code
                    .map(|code| from_http(code).ok_or(StreamError::Ended))
                    .transpose(),
                Err(WriteError::Closed) if half.upgrade().is_some_and(|half| half.is_gone()) => {
                    Err(StreamError::Ended)
                }
                Err(error) => Err(error.into()),
            }
        }
    }

    fn end<E: Into<StreamError>>(
        &mut self,
        end: impl FnOnce(&mut squall::SendStream) -> Result<(), E>,
    ) -> Result<(), StreamError> {
        self.let_go();
        let ended = self.half.call(end).ok_or(StreamError::Ended)?;
        ended.map_err(Into::into)
    }

    /// The session no longer ends the stream.
    fn let_go(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.session.let_go(HalfId::send(self.id));
        }
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.has_ended && self.header > 0 {
            // An error means that the stream has ended anyway.
            let _ = self.reset(0);
        }
        self.let_go();
    }
}

impl AsyncWrite for SendStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |send, cx| send.poll_write(cx, data))
            .map_err(Into::into)
    }

    /// Does nothing: written data is sent without a flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Finishes the stream.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.let_go();
        let shut =
            |send: &mut squall::SendStream, cx: &mut Context<'_>| Pin::new(send).poll_shutdown(cx);
        let result = ready!(self.half.poll(cx, shut));
        Poll::Ready(result.unwrap_or_else(|| Err(StreamError::Ended.into())))
    }
}

/// The receiving half of a stream of a session. Dropping it before its end stops the stream with
/// code 0. The end of the session stops it too, and drops data that has not been read.
#[derive(Debug)]
pub struct RecvStream {
    half: Arc<Half<squall::RecvStream>>,
    id: StreamId,
    /// The bytes that came right after the stream's header.
    first: Bytes,
    /// Whether the stream has ended, so that the session no longer ends it.
    has_ended: bool,
    session: Arc<TunnelHandle>,
}

impl RecvStream {
    /// `None` if the session has ended: the stream is stopped.
    pub(super) fn new(
        mut inner: squall::RecvStream,
        first: Bytes,
        session: &Arc<TunnelHandle>,
    ) -> Option<Self> {
        inner.set_drop_code(to_http(0));
        let id = inner.id();
        let half = Arc::new(Half::new(inner));
        let held = Held::Recv(Arc::clone(&half));
        session.hold(HalfId::recv(id), held).then(|| Self {
            half,
            id,
            first,
            has_ended: false,
            session: Arc::clone(session),
        })
    }

    /// The id of the QUIC stream.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Reads the next chunk, at most `max` bytes, without copying it; `None` at the end.
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn read_chunk(&mut self, max: usize) -> Result<Option<Bytes>, StreamError> {
        poll_fn(|cx| self.poll_read_chunk(cx, max)).await
    }

    fn poll_read_chunk(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, StreamError>> {
        let first = &mut self.first;
        let read = ready!(self.half.poll(cx, |recv, cx| {
            if first.is_empty() {
                return recv.poll_read_chunk(cx, max);
            }
            Poll::Ready(Ok(Some(first.split_to(max.min(first.len())))))
        }));
        let read = read.ok_or(StreamError::Ended).and_then(|read| Ok(read?));
        if !matches!(read, Ok(Some(_))) {
            self.let_go();
        }
        Poll::Ready(read)
    }

    /// Waits until the peer's application resets the stream, and returns its code. Returns `None`
    /// once all data has arrived or the stream is stopped: a reset would then mean nothing. Data
    /// that has arrived can still be read. Cancel-safe.
    ///
    /// # Errors
    /// `Ended` if the session ended first, or the peer's code is not one of an application;
    /// `ConnectionLost`.
    pub async fn received_reset(&mut self) -> Result<Option<u32>, StreamError> {
        let wait = |cx: &mut Context<'_>| {
            (self.half).poll(cx, |recv, cx| pin!(recv.received_reset()).poll(cx))
        };
        let code = poll_fn(wait).await.ok_or(StreamError::Ended)??;
        code.map(|code| from_http(code).ok_or(StreamError::Ended))
            .transpose()
    }

    /// Asks the peer to stop sending, with `code`.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn stop(&mut self, code: u32) -> Result<(), StreamError> {
        self.let_go();
        let stop = |recv: &mut squall::RecvStream| recv.stop(to_http(code));
        Ok(self.half.call(stop).ok_or(StreamError::Ended)??)
    }

    /// The session no longer ends the stream.
    fn let_go(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.session.let_go(HalfId::recv(self.id));
        }
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl AsyncRead for RecvStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(chunk) = ready!(self.poll_read_chunk(cx, room))? {
            buffer.put_slice(chunk.get(..room).unwrap_or(&chunk));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: draft-ietf-webtrans-http3 §4.4
    #[test]
    fn application_codes_have_their_own_range() {
        assert_eq!(to_http(0), 0x52e4_a40f_a8db);
        assert_eq!(to_http(u32::MAX), 0x52e5_ac98_3162);
        for code in (0..1000).chain([0x1d, 0x1e, 0x1f, u32::MAX - 1, u32::MAX]) {
            assert_eq!(from_http(to_http(code)), Some(code));
            // No code of an application is one of those without a meaning.
            assert_ne!((to_http(code) - 0x21) % 0x1f, 0);
        }
        for code in [
            0,
            0x100,
            FIRST_CODE - 1,
            FIRST_CODE + 0x1e,
            to_http(u32::MAX) + 1,
        ] {
            assert_eq!(from_http(code), None, "{code:#x}");
        }
    }
}
