//! The receiving half of a stream.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use squall_core::Accepted;
use squall_wire::StreamId;
use tokio::io::{AsyncRead, ReadBuf};

use crate::error::{ReadError, ReadExactError, ReadToEndError};
use crate::worker::Handle;

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
    /// `Some`: dropping does nothing more, and the connection's state no longer knows of this half.
    end: Option<RecvEnd>,
    /// Whether data arrived as early data. Set with the end, after which the core may forget the
    /// stream.
    early: bool,
    /// What is left of a short message that was read, to its end, when the stream was accepted.
    message: Bytes,
    /// How many bytes of it the application has.
    message_read: u64,
    /// Whether the application has begun to read it in order of arrival.
    unordered: bool,
}

/// How a receiving half ended; every further read reports it again.
#[derive(Clone, Copy, Debug)]
enum RecvEnd {
    /// Nothing is left to read, which the next read reports.
    ReadAll,
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
            Self::ReadAll | Self::Finished => Ok(None),
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
            early: false,
            message: Bytes::new(),
            message_read: 0,
            unordered: false,
        }
    }

    /// The receiving half of a stream that the peer opened.
    pub(crate) fn accepted(connection: Arc<Handle>, accepted: Accepted) -> Self {
        let mut stream = Self::new(connection, accepted.id);
        if let Some(message) = accepted.message {
            (stream.message, stream.early) = (message.data, message.early);
            stream.end = Some(RecvEnd::ReadAll);
        }
        stream
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

    /// Marks the stream as background; see
    /// [`SendStream::set_background`](crate::SendStream::set_background).
    pub fn set_background(&self) {
        self.connection.0.lock().core.set_background(self.id);
    }

    /// On a server: whether data of the stream arrived as early data, which an attacker can replay
    /// (RFC 9001 §9.2). Once the handshake is complete, the client has shown that it is live.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.early || self.connection.0.lock().core.is_early(self.id)
    }

    /// The next bytes in order, at most `max`, as they lie in the receive buffer; `None` is the
    /// end.
    fn poll_read_bytes(
        &mut self,
        cx: &Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        if max == 0 && self.is_unread() {
            return Poll::Ready(Ok(Some(Bytes::new())));
        }
        if !self.message.is_empty() {
            if self.unordered {
                return Poll::Ready(Err(ReadError::IllegalOrderedRead));
            }
            return Poll::Ready(Ok(Some(self.take_message(max))));
        }
        self.poll_read_by(cx, |core, id| core.read(id, max))
    }

    /// Whether there may be something to read.
    fn is_unread(&self) -> bool {
        self.end.is_none() || !self.message.is_empty()
    }

    /// The next bytes, at most `max`, of a message that was read when the stream was accepted.
    fn take_message(&mut self, max: usize) -> Bytes {
        let taken = if max < self.message.len() {
            self.message.split_to(max)
        } else {
            mem::take(&mut self.message)
        };
        self.message_read += taken.len() as u64;
        taken
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
            if matches!(end, RecvEnd::ReadAll) {
                self.end = Some(RecvEnd::Finished);
            }
            return Poll::Ready(end.read());
        }
        let (end, early) = (&mut self.end, &mut self.early);
        let (id, worker) = (self.id, &self.connection.0.worker);
        self.connection.0.call(|state| {
            // Data that arrived before the connection ended can still be read.
            let error = match state.read(&worker.chunks, |core| read(core, id)) {
                Ok(None) => {
                    *end = Some(RecvEnd::Finished);
                    state.release_stream(id);
                    return Poll::Ready(Ok(None));
                }
                Ok(taken) => {
                    // The next call, and the drop, then need no lock.
                    if let Some(was_early) = state.core.read_end(id) {
                        (*end, *early) = (Some(RecvEnd::ReadAll), was_early);
                        state.release_stream(id);
                    }
                    return Poll::Ready(Ok(taken));
                }
                Err(error) => error,
            };
            Poll::Ready(Err(match (error, &state.closed) {
                (squall_core::ReadError::Reset(code), _) => {
                    *end = Some(RecvEnd::Reset(code));
                    state.release_stream(id);
                    ReadError::Reset(code)
                }
                (squall_core::ReadError::IllegalOrderedRead, _) => ReadError::IllegalOrderedRead,
                (_, Some(reason)) => ReadError::ConnectionLost(reason.clone()),
                (squall_core::ReadError::Blocked, None) => {
                    state.await_readable(id, cx.waker());
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
            if max == 0 && self.is_unread() {
                return Poll::Ready(Ok(Some(Chunk::default())));
            }
            if !self.message.is_empty() {
                self.unordered = true;
                let offset = self.message_read;
                let bytes = self.take_message(max);
                return Poll::Ready(Ok(Some(Chunk { offset, bytes })));
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
                Some(RecvEnd::ReadAll | RecvEnd::Finished | RecvEnd::Stopped) => {
                    return Poll::Ready(Ok(None));
                }
                None => {}
            }
            let id = self.id;
            self.connection.0.call(|state| {
                Poll::Ready(match (state.core.received_reset(id), &state.closed) {
                    (Ok(outcome), _) => Ok(outcome),
                    (Err(_), Some(reason)) => Err(ReadError::ConnectionLost(reason.clone())),
                    (Err(squall_core::ReadError::Blocked), None) => {
                        state.await_readable(id, cx.waker());
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
        self.message = Bytes::new();
        match self.end.replace(RecvEnd::Stopped) {
            None => {}
            // Nothing is left to stop, but the caller cannot know that.
            Some(RecvEnd::ReadAll) => return Ok(()),
            end @ Some(_) => {
                self.end = end;
                return Err(ReadError::Closed);
            }
        }
        self.connection.0.call(|state| {
            state.release_stream(self.id);
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
        if self.end.is_some() {
            return;
        }
        self.connection.0.call(|state| {
            // An error means that the stream has ended anyway.
            let _ = state.core.stop_sending(self.id, self.drop_code);
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
