//! The sending half of a stream.

use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use squall_core::{CloseReason, Priority, ReachedLimit};
use squall_wire::StreamId;
use tokio::io::AsyncWrite;

use crate::error::WriteError;
use crate::worker::{Handle, Line, SendEnd, State, Ticket};

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
/// are counted in [`Stats::streams_reset_on_drop`](crate::Stats::streams_reset_on_drop). The first
/// on each connection is logged as a warning, except for streams whose owner has called
/// `set_drop_code` and so knows what a drop does.
///
/// Chunks that are passed on without a copy are dropped once the peer has acknowledged them, mostly
/// by the worker and under the connection's lock. If a chunk has an owner ([`Bytes::from_owner`]),
/// the owner's `Drop` must not call anything on a connection, nor wait: it could wait for ever.
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
    /// Finished, and the connection's state no longer knows of this half.
    LetGo,
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
        self.poll_write_with(cx, |state| state.core.write(self.id, data))
    }

    /// Copies as much from the front of `data` as there is room for. Waits while there is none.
    fn poll_write_slice(&self, cx: &Context<'_>, data: &[u8]) -> Poll<Result<usize, WriteError>> {
        let front = data.get(..MAX_COPY).unwrap_or(data);
        if front.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |state| state.core.write_copy(self.id, front))
    }

    fn poll_write_with(
        &self,
        cx: &Context<'_>,
        write: impl FnOnce(&mut State) -> Result<usize, squall_core::WriteError>,
    ) -> Poll<Result<usize, WriteError>> {
        self.connection.0.call(|state| {
            let error = match write(state) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(error) => error,
            };
            Poll::Ready(Err(match (error, &state.closed) {
                (squall_core::WriteError::Stopped(code), _) => WriteError::Stopped(code),
                (_, Some(reason)) => WriteError::ConnectionLost(reason.clone()),
                (squall_core::WriteError::Blocked, None) => {
                    state.await_writable(self.id, cx.waker());
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

    /// Writes with `write`. If that takes all `len` bytes, also ends the stream in this way, before
    /// any of them can be sent.
    fn poll_write_last_with(
        &mut self,
        cx: &Context<'_>,
        len: usize,
        end: Ended,
        write: impl FnOnce(&mut squall_core::Connection) -> Result<usize, squall_core::WriteError>,
    ) -> Poll<Result<usize, WriteError>> {
        let id = self.id;
        let written = self.poll_write_with(cx, |state| {
            // Only the end needs no room.
            let written = if len > 0 { write(&mut state.core)? } else { 0 };
            if written == len {
                state.core.finish(id)?;
                if matches!(end, Ended::LetGo) {
                    state.release_stream(id);
                }
            }
            Ok(written)
        });
        if matches!(written, Poll::Ready(Ok(written)) if written == len) {
            self.ended = Some(end);
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
        self.poll_write_last_with(cx, data.len(), Ended::Finished, |core| {
            core.write_copy(id, front)
        })
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
        self.poll_write_last_chunk_with(cx, chunk, Ended::Finished)
    }

    fn poll_write_last_chunk_with(
        &mut self,
        cx: &Context<'_>,
        chunk: &mut Bytes,
        end: Ended,
    ) -> Poll<Result<usize, WriteError>> {
        let id = self.id;
        self.poll_write_last_with(cx, chunk.len(), end, |core| core.write(id, chunk))
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
        self.poll_write_with(cx, |state| state.core.await_unsent(id, bytes).map(|()| 0))
            .map_ok(drop)
    }

    /// The peer's limit that the stream has reached: nothing more can be sent on it until the peer
    /// grants credit (RFC 9000 §4.1). If a waiting writer finds the same limit reached after a
    /// while, its peer is reading nothing. `None` if congestion control or other streams hold this
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

    /// Writes a whole chunk and finishes the stream, as [`write_last`](Self::write_last), without
    /// copying the chunk unless it is small, as [`write_chunk`](Self::write_chunk). Not
    /// cancel-safe: if the future is dropped, a part is written, and the rest of the chunk is lost.
    ///
    /// # Errors
    /// As [`write`](Self::write); some of the chunk may have been written, and the stream is not
    /// finished.
    pub async fn write_last_chunk(&mut self, mut chunk: Bytes) -> Result<(), WriteError> {
        loop {
            poll_fn(|cx| self.poll_write_last_chunk(cx, &mut chunk)).await?;
            if chunk.is_empty() {
                return Ok(());
            }
        }
    }

    /// Writes a whole chunk, finishes the stream and lets go of it: the same as
    /// [`write_last_chunk`](Self::write_last_chunk) and then a drop, in one step. Use it where the
    /// outcome does not matter, since nothing is left to ask for it. Not cancel-safe: if the future
    /// is dropped, the stream is reset, as by dropping this half.
    ///
    /// # Errors
    /// As [`write`](Self::write). The stream is reset unless the peer has stopped it.
    pub async fn finish_with(mut self, mut chunk: Bytes) -> Result<(), WriteError> {
        loop {
            poll_fn(|cx| self.poll_write_last_chunk_with(cx, &mut chunk, Ended::LetGo)).await?;
            if chunk.is_empty() {
                return Ok(());
            }
        }
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

    fn ending_error(&self, error: squall_core::WriteError, state: &State) -> WriteError {
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
        if matches!(self.ended, Some(Ended::LetGo)) {
            return;
        }
        let mut waiting = Vec::new();
        let surprises = self.connection.0.call(|state| {
            let dropped = self
                .ended
                .is_none()
                .then(|| state.core.reset_dropped(self.id, self.drop_code))
                .flatten()
                .is_some();
            if dropped {
                state.on_reset(self.id, &mut waiting);
            }
            state.release_stream(self.id);
            dropped
                && self.drop_code.is_none()
                && !mem::replace(&mut state.has_warned_of_drop, true)
        });
        waiting.into_iter().for_each(Waker::wake);
        if surprises {
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
            Some(Ended::Finished | Ended::LetGo) => Ok(()),
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
