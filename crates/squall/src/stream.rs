//! The two halves of a stream, as the application sees them.
//!
//! Every call takes the connection's lock once. A half that has to wait registers its waker with
//! the connection and is woken at most once per received run of datagrams.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use squall_core::{CloseReason, Priority, ReachedLimit};
use squall_wire::StreamId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::{ReadError, ReadExactError, ReadToEndError, WriteError};
use crate::worker::{Handle, Line, SendEnd, Ticket, register};

/// The most that one write of borrowed bytes copies, while the connection is locked.
const MAX_COPY: usize = 64 * 1024;

/// The sending half of a stream.
///
/// Written bytes are owned by the connection and sent in bundles.
///
/// End the stream with [`finish`](Self::finish) (or `AsyncWrite::shutdown`). Dropping a half that
/// was neither finished nor reset resets the stream, so that the response of a handler that
/// panicked, returned early or was cancelled never looks complete to the peer. The error code is
/// the one set by [`set_drop_code`](Self::set_drop_code), or else
/// [`TransportConfig::reset_on_drop_code`](crate::TransportConfig::reset_on_drop_code). Such resets
/// are counted in [`Stats::streams_reset_on_drop`](crate::Stats::streams_reset_on_drop), and the
/// first on each connection is logged as a warning.
///
/// Libraries that want one type for both directions, such as TLS or proxies, get it from
/// [`tokio::io::join`]`(recv, send)`, which is `AsyncRead + AsyncWrite`.
pub struct SendStream {
    connection: Arc<Handle>,
    id: StreamId,
    /// The error code of the reset sent on drop, if it differs from the configured one.
    drop_code: Option<u64>,
    /// `Some`: dropping does nothing more.
    ended: Option<Ended>,
}

/// How this end has ended a sending half.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Finished,
    Reset,
}

impl SendStream {
    pub(crate) fn new(connection: Arc<Handle>, id: StreamId) -> Self {
        Self {
            connection,
            id,
            drop_code: None,
            ended: None,
        }
    }

    /// The stream's id (RFC 9000 §2.1).
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Takes as much from the front of `data` as there is room for, without copying unless it is
    /// small. Waits while there is no room.
    fn poll_write_bytes(
        &self,
        cx: &Context<'_>,
        data: &mut Bytes,
    ) -> Poll<Result<usize, WriteError>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |core| core.write(self.id, data))
    }

    /// Copies as much from the front of `data` as there is room for. Waits while there is none.
    fn poll_write_slice(&self, cx: &Context<'_>, data: &[u8]) -> Poll<Result<usize, WriteError>> {
        let front = data.get(..MAX_COPY).unwrap_or(data);
        if front.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |core| core.write_copy(self.id, front))
    }

    fn poll_write_with(
        &self,
        cx: &Context<'_>,
        write: impl FnOnce(&mut squall_core::Connection) -> Result<usize, squall_core::WriteError>,
    ) -> Poll<Result<usize, WriteError>> {
        self.connection.0.call(|state| {
            let error = match write(&mut state.core) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(error) => error,
            };
            Poll::Ready(Err(match (error, &state.closed) {
                (squall_core::WriteError::Stopped(code), _) => WriteError::Stopped(code),
                (_, Some(reason)) => WriteError::ConnectionLost(reason.clone()),
                (squall_core::WriteError::Blocked, None) => {
                    state.note_relay();
                    register(&mut state.waiters(self.id).writer, cx.waker());
                    return Poll::Pending;
                }
                // A stream that the peer stopped may be gone by now; its code is kept.
                (_, None) => match state.waiters(self.id).send_end {
                    Some(SendEnd::Stopped(code)) => WriteError::Stopped(code),
                    _ => WriteError::Closed,
                },
            }))
        })
    }

    /// Writes with `write`, and ends the stream if that has taken all `len` bytes, before anything
    /// of it can be sent.
    fn poll_write_last_with(
        &mut self,
        cx: &Context<'_>,
        len: usize,
        write: impl FnOnce(&mut squall_core::Connection) -> Result<usize, squall_core::WriteError>,
    ) -> Poll<Result<usize, WriteError>> {
        let id = self.id;
        let written = self.poll_write_with(cx, |core| {
            // Only the end needs no room.
            let written = if len > 0 { write(core)? } else { 0 };
            if written == len {
                core.finish(id)?;
            }
            Ok(written)
        });
        if matches!(written, Poll::Ready(Ok(written)) if written == len) {
            self.ended = Some(Ended::Finished);
        }
        written
    }

    /// As [`write`](Self::write), for futures written by hand. The task of the last call is woken
    /// when there is room.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<Result<usize, WriteError>> {
        self.poll_write_slice(cx, data)
    }

    /// Takes as much from the front of `chunk` as there is room for, without copying it unless it
    /// is small, and returns how many bytes; for futures written by hand. The task of the last call
    /// is woken when there is room.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn poll_write_chunk(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut Bytes,
    ) -> Poll<Result<usize, WriteError>> {
        self.poll_write_bytes(cx, chunk)
    }

    /// As [`poll_write`](Self::poll_write), for the last data of the stream: if all of `data` is
    /// taken, the stream is finished in the same step, so that the end is sent in the frame of the
    /// last byte. After separate calls of `write` and [`finish`](Self::finish) it may need a packet
    /// of its own. Without data it only finishes the stream.
    ///
    /// If fewer bytes than `data` has are taken, call it again with the rest.
    ///
    /// # Errors
    /// As [`write`](Self::write). The stream is not finished.
    pub fn poll_write_last(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<Result<usize, WriteError>> {
        let (id, front) = (self.id, data.get(..MAX_COPY).unwrap_or(data));
        self.poll_write_last_with(cx, data.len(), |core| core.write_copy(id, front))
    }

    /// As [`poll_write_chunk`](Self::poll_write_chunk), for the last data of the stream: see
    /// [`poll_write_last`](Self::poll_write_last). The stream is finished if `chunk` is empty
    /// afterwards.
    ///
    /// # Errors
    /// As [`write`](Self::write). The stream is not finished.
    pub fn poll_write_last_chunk(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut Bytes,
    ) -> Poll<Result<usize, WriteError>> {
        let id = self.id;
        self.poll_write_last_with(cx, chunk.len(), |core| core.write(id, chunk))
    }

    /// Ready when at most `bytes` of the written data still wait to be sent for the first time, as
    /// with the socket option `TCP_NOTSENT_LOWAT`; for futures written by hand. The task of the
    /// last call, of this or of a write, is woken. A writer that fetches its data only then keeps
    /// little of it in memory, however large the send window is.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn poll_unsent(
        &mut self,
        cx: &mut Context<'_>,
        bytes: u64,
    ) -> Poll<Result<(), WriteError>> {
        let id = self.id;
        self.poll_write_with(cx, |core| core.await_unsent(id, bytes).map(|()| 0))
            .map_ok(drop)
    }

    /// The peer's limit that the stream has reached: nothing more can be sent on it until the peer
    /// grants credit (RFC 9000 §4.1). If a waiting writer finds the same limit reached after a
    /// while, its peer is taking nothing. `None` if congestion control or other streams hold this
    /// one back, or nothing does.
    pub fn reached_limit(&self) -> Option<ReachedLimit> {
        (self.connection.0).call(|state| state.core.reached_limit(self.id))
    }

    /// Copies some of `data` and returns how much; waits while the send buffer is full or the
    /// peer's credit for the stream is used up. Small writes are gathered into chunks, so each
    /// costs no more memory than its bytes. Cancel-safe: a future that is dropped has written
    /// nothing.
    ///
    /// # Errors
    /// The peer stopped the stream, it was finished or reset, or the connection ended.
    pub async fn write(&mut self, data: &[u8]) -> Result<usize, WriteError> {
        poll_fn(|cx| self.poll_write_slice(cx, data)).await
    }

    /// Writes all of `data`. Not cancel-safe: if the future is dropped, a part is written, and how
    /// much is not known; use [`write`](Self::write) or
    /// [`write_all_chunks`](Self::write_all_chunks) where that matters.
    ///
    /// # Errors
    /// As [`write`](Self::write); some of `data` may have been written.
    pub async fn write_all(&mut self, mut data: &[u8]) -> Result<(), WriteError> {
        while !data.is_empty() {
            let written = self.write(data).await?;
            data = data.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes all of `data` and finishes the stream, so that the end is sent in the frame of the
    /// last byte. After separate calls of [`write_all`](Self::write_all) and
    /// [`finish`](Self::finish) it may need a packet of its own. Not cancel-safe: if the future is
    /// dropped, a part is written, and how much is not known.
    ///
    /// # Errors
    /// As [`write`](Self::write); some of `data` may have been written, and the stream is not
    /// finished.
    pub async fn write_last(&mut self, mut data: &[u8]) -> Result<(), WriteError> {
        loop {
            let written = poll_fn(|cx| self.poll_write_last(cx, data)).await?;
            if written == data.len() {
                return Ok(());
            }
            data = data.get(written..).unwrap_or_default();
        }
    }

    /// Writes a whole chunk without copying it. A small one is copied, which costs less: up to 256
    /// bytes if it follows data that waits, up to 64 on its own. Not cancel-safe: if the future is
    /// dropped, a part is written, and the rest of the chunk is lost; use
    /// [`write_all_chunks`](Self::write_all_chunks) where that matters.
    ///
    /// # Errors
    /// As [`write`](Self::write); some of the chunk may have been written.
    pub async fn write_chunk(&mut self, mut chunk: Bytes) -> Result<(), WriteError> {
        while !chunk.is_empty() {
            poll_fn(|cx| self.poll_write_bytes(cx, &mut chunk)).await?;
        }
        Ok(())
    }

    /// Writes some of a list of chunks, from the first on, without copying them, and returns how
    /// many bytes; waits while the send buffer is full. Each chunk keeps its unwritten rest and is
    /// empty once written whole. Cancel-safe: a future that is dropped has written nothing.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_chunks(&mut self, chunks: &mut [Bytes]) -> Result<usize, WriteError> {
        poll_fn(|cx| {
            let mut written = 0;
            for chunk in chunks.iter_mut() {
                while !chunk.is_empty() {
                    match self.poll_write_bytes(cx, chunk) {
                        Poll::Ready(Ok(bytes)) => written += bytes,
                        // Report the bytes accepted so far; the error surfaces on the next call.
                        _ if written > 0 => return Poll::Ready(Ok(written)),
                        other => return other,
                    }
                }
            }
            Poll::Ready(Ok(written))
        })
        .await
    }

    /// Writes all of a list of chunks without copying them; if the future is dropped early, each
    /// keeps its unwritten rest. Cancel-safe: call it again with the same chunks.
    ///
    /// # Errors
    /// As [`write`](Self::write); some of the chunks may have been written.
    pub async fn write_all_chunks(&mut self, chunks: &mut [Bytes]) -> Result<(), WriteError> {
        while chunks.iter().any(|chunk| !chunk.is_empty()) {
            self.write_chunks(chunks).await?;
        }
        Ok(())
    }

    /// Ends the stream after the data written so far. Does not wait for delivery;
    /// [`stopped`](Self::stopped) does.
    ///
    /// # Errors
    /// The peer stopped the stream, it was already finished or reset, or the connection ended.
    pub fn finish(&mut self) -> Result<(), WriteError> {
        self.ended.get_or_insert(Ended::Finished);
        self.connection.0.call(|state| {
            state
                .core
                .finish(self.id)
                .map_err(|error| self.ending_error(error, state))
        })
    }

    /// Resets the stream: undelivered data is dropped, and the peer receives `code` (RFC 9000
    /// §19.4).
    ///
    /// # Errors
    /// There is nothing left to reset, or the connection ended.
    pub fn reset(&mut self, code: u64) -> Result<(), WriteError> {
        self.give_up(|core, id| core.reset(id, code))
    }

    /// Resets the stream except for its first `reliable` bytes: the peer receives those bytes and
    /// then `code` (draft-ietf-quic-reliable-stream-reset). A peer without support for this
    /// receives a plain reset once it has the bytes.
    ///
    /// # Errors
    /// There is nothing left to reset, or the connection ended.
    pub fn reset_at(&mut self, code: u64, reliable: u64) -> Result<(), WriteError> {
        self.give_up(|core, id| core.reset_at(id, code, reliable))
    }

    /// Ends the stream undelivered.
    fn give_up(
        &mut self,
        reset: impl FnOnce(
            &mut squall_core::Connection,
            StreamId,
        ) -> Result<(), squall_core::WriteError>,
    ) -> Result<(), WriteError> {
        self.ended = Some(Ended::Reset);
        let mut waiting = Vec::new();
        let result = self.connection.0.call(|state| {
            state.wake(Line::Delivery, &mut waiting);
            let result = reset(&mut state.core, self.id);
            if result.is_ok() {
                state.on_reset(self.id, &mut waiting);
            }
            result.map_err(|error| self.ending_error(error, state))
        });
        // Tasks that wait for delivery, or for the outcome, no longer wait for this stream.
        waiting.into_iter().for_each(Waker::wake);
        result
    }

    /// Sets the application error code of the reset that dropping this half sends if the stream was
    /// neither finished nor reset. Values above 2^62 − 1 are clamped.
    pub fn set_drop_code(&mut self, code: u64) {
        self.drop_code = Some(code);
    }

    /// The stream's priority among the streams of the connection that have data to send; `None`
    /// after the stream's end.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        self.connection.0.lock().core.priority(self.id)
    }

    /// Changes the stream's priority, from the next packet on.
    ///
    /// # Errors
    /// The stream no longer sends anything.
    pub fn set_priority(&self, priority: Priority) -> Result<(), WriteError> {
        self.connection.0.call(|state| {
            state
                .core
                .set_priority(self.id, priority)
                .map_err(|error| self.ending_error(error, state))
        })
    }

    fn ending_error(
        &self,
        error: squall_core::WriteError,
        state: &crate::worker::State,
    ) -> WriteError {
        match (error, &state.closed) {
            (squall_core::WriteError::Stopped(code), _) => WriteError::Stopped(code),
            (_, Some(reason)) => WriteError::ConnectionLost(reason.clone()),
            (_, None) => WriteError::Closed,
        }
    }

    /// Marks the stream as background: it stays open whether or not the application expects
    /// anything on it, like HTTP/3's control streams. When a server has gone quiet, a client sends
    /// PINGs in case its own address has changed, but only while there are other streams. Either
    /// half marks the whole stream. No effect once the stream has ended.
    pub fn set_background(&self) {
        self.connection.0.lock().core.set_background(self.id);
    }

    /// A future that waits until the stream's outcome is known: `None` if the peer has acknowledged
    /// all data and the end, `Some(code)` if the peer stopped the stream. It borrows nothing, so it
    /// can wait alongside writes, in another task, and after the stream is dropped. Cancel-safe.
    ///
    /// Fails if this end reset the stream before it was delivered, or the connection ended first.
    pub fn stopped(&self) -> Stopped {
        self.connection.0.lock().hold_stream(self.id);
        Stopped {
            connection: Arc::clone(&self.connection),
            id: self.id,
            ticket: Ticket::default(),
        }
    }
}

/// Waits for the outcome of a stream, see [`SendStream::stopped`]. Dropping it stops waiting and
/// changes nothing. Like a stream, it keeps the connection open.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Stopped {
    connection: Arc<Handle>,
    id: StreamId,
    ticket: Ticket,
}

impl Future for Stopped {
    type Output = Result<Option<u64>, WriteError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            connection,
            id,
            ticket,
        } = &mut *self;
        let end = |end, closed: Option<&CloseReason>| match (end, closed) {
            (Some(SendEnd::Delivered), _) => Poll::Ready(Ok(None)),
            (Some(SendEnd::Stopped(code)), _) => Poll::Ready(Ok(Some(code))),
            (Some(SendEnd::Reset), _) => Poll::Ready(Err(WriteError::Closed)),
            (None, Some(reason)) => Poll::Ready(Err(WriteError::ConnectionLost(reason.clone()))),
            (None, None) => Poll::Pending,
        };
        let mut state = connection.0.lock();
        state.poll_send_end(*id, ticket, cx.waker(), end)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let mut state = self.connection.0.lock();
        state.leave_send_end(self.id, &mut self.ticket);
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let mut waiting = Vec::new();
        let dropped = self.connection.0.call(|state| {
            let dropped = self
                .ended
                .is_none()
                .then(|| state.core.reset_dropped(self.id, self.drop_code))
                .flatten();
            if dropped.is_some() {
                state.on_reset(self.id, &mut waiting);
            }
            state.release_stream(self.id);
            dropped
        });
        waiting.into_iter().for_each(Waker::wake);
        if dropped == Some(1) {
            crate::warnings::stream_dropped(self.id.0);
        }
    }
}

impl std::fmt::Debug for SendStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendStream")
            .field("id", &self.id.0)
            .finish_non_exhaustive()
    }
}

impl AsyncWrite for SendStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slice(cx, data).map_err(Into::into)
    }

    /// Does nothing: written data is sent without a flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Finishes the stream, if it is not finished yet. Fails if it was reset.
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.ended {
            None => self.finish().map_err(Into::into),
            Some(Ended::Finished) => Ok(()),
            Some(Ended::Reset) => Err(WriteError::Closed.into()),
        })
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncWrite for SendStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(self, cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(self, cx)
    }

    /// Finishes the stream.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(self, cx)
    }
}

/// Bytes of a stream and where they belong, see [`RecvStream::read_chunk_unordered`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// The receiving half of a stream.
///
/// Dropping it before the stream was read to its end stops the stream, with code 0 or the one set
/// by [`set_drop_code`](Self::set_drop_code).
pub struct RecvStream {
    connection: Arc<Handle>,
    id: StreamId,
    /// The code with which dropping stops the stream.
    drop_code: u64,
    /// `Some`: dropping does nothing more.
    end: Option<RecvEnd>,
}

/// How a receiving half ended; every further read reports it again.
#[derive(Clone, Copy, Debug)]
enum RecvEnd {
    /// Read to the end.
    Finished,
    /// The peer reset the stream with this code.
    Reset(u64),
    /// Stopped by us.
    Stopped,
}

impl RecvEnd {
    fn read<T>(self) -> Result<Option<T>, ReadError> {
        match self {
            Self::Finished => Ok(None),
            Self::Reset(code) => Err(ReadError::Reset(code)),
            Self::Stopped => Err(ReadError::Closed),
        }
    }
}

impl RecvStream {
    pub(crate) fn new(connection: Arc<Handle>, id: StreamId) -> Self {
        Self {
            connection,
            id,
            drop_code: 0,
            end: None,
        }
    }

    /// The stream's id (RFC 9000 §2.1).
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Sets the application error code with which dropping this half stops the stream if it was not
    /// read to its end; 0 by default. Values above 2^62 − 1 are clamped.
    pub fn set_drop_code(&mut self, code: u64) {
        self.drop_code = code;
    }

    /// Marks the stream as background; see [`SendStream::set_background`].
    pub fn set_background(&self) {
        self.connection.0.lock().core.set_background(self.id);
    }

    /// On a server: whether data of the stream arrived as early data, which an attacker can replay
    /// (RFC 9001 §9.2). Once the handshake is complete, the client has shown that it is live.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.connection.0.lock().core.is_early(self.id)
    }

    /// The next bytes in order, at most `max`, as they lie in the receive buffer; `None` is the
    /// end.
    fn poll_read_bytes(
        &mut self,
        cx: &Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        if max == 0 && self.end.is_none() {
            return Poll::Ready(Ok(Some(Bytes::new())));
        }
        self.poll_read_by(cx, |core, id| core.read(id, max))
    }

    #[inline]
    fn poll_read_by<T>(
        &mut self,
        cx: &Context<'_>,
        read: impl FnOnce(
            &mut squall_core::Connection,
            StreamId,
        ) -> Result<Option<T>, squall_core::ReadError>,
    ) -> Poll<Result<Option<T>, ReadError>> {
        if let Some(end) = self.end {
            return Poll::Ready(end.read());
        }
        let end = &mut self.end;
        let (id, worker) = (self.id, &self.connection.0.worker);
        self.connection.0.call(|state| {
            // Data that arrived before the connection ended can still be read.
            let error = match state.read(&worker.chunks, |core| read(core, id)) {
                Ok(taken) => {
                    if taken.is_none() {
                        *end = Some(RecvEnd::Finished);
                    }
                    return Poll::Ready(Ok(taken));
                }
                Err(error) => error,
            };
            Poll::Ready(Err(match (error, &state.closed) {
                (squall_core::ReadError::Reset(code), _) => {
                    *end = Some(RecvEnd::Reset(code));
                    ReadError::Reset(code)
                }
                (squall_core::ReadError::IllegalOrderedRead, _) => ReadError::IllegalOrderedRead,
                (_, Some(reason)) => ReadError::ConnectionLost(reason.clone()),
                (squall_core::ReadError::Blocked, None) => {
                    state.note_relay();
                    register(&mut state.waiters(id).reader, cx.waker());
                    return Poll::Pending;
                }
                // The stream is stopped.
                (_, None) => ReadError::Closed,
            }))
        })
    }

    /// As [`read_chunk`](Self::read_chunk), for futures written by hand. The task of the last call
    /// is woken when there is something to read.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub fn poll_read_chunk(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        self.poll_read_bytes(cx, max)
    }

    /// As [`read`](Self::read), for futures written by hand. The task of the last call is woken
    /// when there is something to read.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<Option<usize>, ReadError>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(Some(0)));
        }
        let Some(chunk) = ready!(self.poll_read_bytes(cx, buffer.len()))? else {
            return Poll::Ready(Ok(None));
        };
        // A chunk is never longer than requested.
        if let Some(front) = buffer.get_mut(..chunk.len()) {
            front.copy_from_slice(&chunk);
        }
        Poll::Ready(Ok(Some(chunk.len())))
    }

    /// Reads the next chunk, at most `max` bytes, without copying it; `None` at the end of the
    /// stream. With a `max` of 0 it returns an empty chunk without waiting. Cancel-safe: a future
    /// that is dropped has read nothing.
    ///
    /// # Errors
    /// The peer reset the stream, it was stopped, or the connection ended. Every further call
    /// returns the error again.
    pub async fn read_chunk(&mut self, max: usize) -> Result<Option<Bytes>, ReadError> {
        poll_fn(|cx| self.poll_read_bytes(cx, max)).await
    }

    /// Reads the chunk that arrived first, at most `max` bytes, without copying it and without
    /// waiting for lost bytes before it; `None` at the end of the stream, once every byte has been
    /// returned. With a `max` of 0 it returns an empty chunk without waiting.
    ///
    /// From the first call on, other reads fail with [`ReadError::IllegalOrderedRead`].
    /// Cancel-safe: a chunk that is not returned is not lost.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub async fn read_chunk_unordered(&mut self, max: usize) -> Result<Option<Chunk>, ReadError> {
        poll_fn(|cx| {
            if max == 0 && self.end.is_none() {
                return Poll::Ready(Ok(Some(Chunk::default())));
            }
            let read = self.poll_read_by(cx, |core, id| core.read_unordered(id, max));
            read.map_ok(|chunk| chunk.map(|(offset, bytes)| Chunk { offset, bytes }))
        })
        .await
    }

    /// Waits until the peer resets the stream, and returns its code. Returns `None` once all data
    /// has arrived or the stream is stopped: a reset would then mean nothing. Data that has arrived
    /// can still be read. Cancel-safe.
    ///
    /// # Errors
    /// The connection ended first.
    pub async fn received_reset(&mut self) -> Result<Option<u64>, ReadError> {
        poll_fn(|cx| {
            match self.end {
                Some(RecvEnd::Reset(code)) => return Poll::Ready(Ok(Some(code))),
                Some(RecvEnd::Finished | RecvEnd::Stopped) => return Poll::Ready(Ok(None)),
                None => {}
            }
            let id = self.id;
            self.connection.0.call(|state| {
                Poll::Ready(match (state.core.received_reset(id), &state.closed) {
                    (Ok(outcome), _) => Ok(outcome),
                    (Err(_), Some(reason)) => Err(ReadError::ConnectionLost(reason.clone())),
                    (Err(squall_core::ReadError::Blocked), None) => {
                        state.note_relay();
                        register(&mut state.waiters(id).reader, cx.waker());
                        return Poll::Pending;
                    }
                    (Err(_), None) => Err(ReadError::Closed),
                })
            })
        })
        .await
    }

    /// Reads as many chunks as have arrived, up to the length of `chunks`, without copying them,
    /// and returns how many; waits for the first. `None` at the end of the stream. Cancel-safe.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk). Chunks read before an error are returned first.
    pub async fn read_chunks(&mut self, chunks: &mut [Bytes]) -> Result<Option<usize>, ReadError> {
        if chunks.is_empty() {
            return Ok(Some(0));
        }
        poll_fn(|cx| {
            let mut read = 0;
            for room in chunks.iter_mut() {
                match self.poll_read_bytes(cx, usize::MAX) {
                    Poll::Ready(Ok(Some(chunk))) => *room = chunk,
                    _ if read > 0 => break,
                    other => return other.map_ok(|_| None),
                }
                read += 1;
            }
            Poll::Ready(Ok(Some(read)))
        })
        .await
    }

    /// Reads some bytes into `buffer` and returns how many; `None` at the end of the stream.
    /// Cancel-safe: a future that is dropped has read nothing.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, ReadError> {
        poll_fn(|cx| self.poll_read(cx, buffer)).await
    }

    /// Fills `buffer`. Not cancel-safe: if the future is dropped, a part of `buffer` is filled, and
    /// how much is not known.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk), or the stream ended before `buffer` was full.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ReadExactError> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read(rest).await? {
                Some(read) => filled += read,
                None => return Err(ReadExactError::FinishedEarly(filled)),
            }
        }
        Ok(())
    }

    /// Reads the stream to its end, at most `limit` bytes. Not cancel-safe: if the future is
    /// dropped, what was read is lost.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk), or the stream is longer than `limit`. What was read is
    /// lost then, too.
    pub async fn read_to_end(&mut self, limit: usize) -> Result<Vec<u8>, ReadToEndError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.read_chunk(usize::MAX).await? {
            if chunk.len() > limit - all.len() {
                return Err(ReadToEndError::TooLong);
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// Asks the peer to stop sending, with `code` (RFC 9000 §19.5). Data that has arrived is
    /// dropped.
    ///
    /// # Errors
    /// The stream has already ended, or the connection ended.
    pub fn stop(&mut self, code: u64) -> Result<(), ReadError> {
        if self.end.is_some() {
            return Err(ReadError::Closed);
        }
        self.end = Some(RecvEnd::Stopped);
        self.connection.0.call(|state| {
            state
                .core
                .stop_sending(self.id, code)
                .map_err(|_| match &state.closed {
                    Some(reason) => ReadError::ConnectionLost(reason.clone()),
                    None => ReadError::Closed,
                })
        })
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.connection.0.call(|state| {
            if self.end.is_none() {
                // An error means that the stream has ended anyway.
                let _ = state.core.stop_sending(self.id, self.drop_code);
            }
            state.release_stream(self.id);
        });
    }
}

impl std::fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvStream")
            .field("id", &self.id.0)
            .finish_non_exhaustive()
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
        if let Some(chunk) = ready!(self.poll_read_bytes(cx, room))? {
            buffer.put_slice(chunk.get(..room).unwrap_or(&chunk));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncRead for RecvStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(AsyncRead::poll_read(self, cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}
