//! Streams of a session: those of the connection, with the session's own error codes.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use squall::{ReadError, StreamId, WriteError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
    /// The peer ended the stream in another way, for example with its session.
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
            Self::Ended => f.write_str("the peer ended the stream"),
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
#[derive(Debug)]
pub struct SendStream {
    inner: squall::SendStream,
    /// Bytes of the header before the application's data; none on streams of the peer.
    header: u64,
    has_ended: bool,
    /// The session lives as long as its streams.
    _session: Arc<TunnelHandle>,
}

impl SendStream {
    pub(super) fn new(
        mut inner: squall::SendStream,
        header: usize,
        session: Arc<TunnelHandle>,
    ) -> Self {
        inner.set_drop_code(to_http(0));
        Self {
            inner,
            header: header as u64,
            has_ended: false,
            _session: session,
        }
    }

    /// The id of the QUIC stream.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.inner.id()
    }

    /// Writes all of `data`. Not cancel-safe.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn write_all(&mut self, data: &[u8]) -> Result<(), StreamError> {
        Ok(self.inner.write_all(data).await?)
    }

    /// Writes a whole chunk without copying it, unless it is small. Not cancel-safe.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn write_chunk(&mut self, chunk: Bytes) -> Result<(), StreamError> {
        Ok(self.inner.write_chunk(chunk).await?)
    }

    /// Ends the stream after the data written so far.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn finish(&mut self) -> Result<(), StreamError> {
        self.has_ended = true;
        Ok(self.inner.finish()?)
    }

    /// Resets the stream: the peer's application gets `code`.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn reset(&mut self, code: u32) -> Result<(), StreamError> {
        self.has_ended = true;
        // §4.4: without the header the peer could not tell whose stream was reset.
        Ok(self.inner.reset_at(to_http(code), self.header)?)
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.has_ended && self.header > 0 {
            // An error means that the stream has ended anyway.
            let _ = self.reset(0);
        }
    }
}

impl AsyncWrite for SendStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.inner.poll_write(cx, data);
        written.map_err(|error| StreamError::from(error).into())
    }

    /// Does nothing: written data is sent without a flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Finishes the stream.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.has_ended = true;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// The receiving half of a stream of a session. Dropping it before its end stops the stream with
/// code 0.
#[derive(Debug)]
pub struct RecvStream {
    inner: squall::RecvStream,
    /// The bytes that came right after the stream's header.
    first: Bytes,
    _session: Arc<TunnelHandle>,
}

impl RecvStream {
    pub(super) fn new(
        mut inner: squall::RecvStream,
        first: Bytes,
        session: Arc<TunnelHandle>,
    ) -> Self {
        inner.set_drop_code(to_http(0));
        Self {
            inner,
            first,
            _session: session,
        }
    }

    /// The id of the QUIC stream.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.inner.id()
    }

    /// Reads the next chunk, at most `max` bytes, without copying it; `None` at the end.
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn read_chunk(&mut self, max: usize) -> Result<Option<Bytes>, StreamError> {
        if !self.first.is_empty() {
            let len = max.min(self.first.len());
            return Ok(Some(self.first.split_to(len)));
        }
        Ok(self.inner.read_chunk(max).await?)
    }

    /// Asks the peer to stop sending, with `code`.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn stop(&mut self, code: u32) -> Result<(), StreamError> {
        Ok(self.inner.stop(to_http(code))?)
    }
}

impl AsyncRead for RecvStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buffer);
        }
        let len = buffer.remaining().min(self.first.len());
        buffer.put_slice(self.first.get(..len).unwrap_or_default());
        self.first.advance(len);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: draft-ietf-webtrans-http3 §4.4
    #[test]
    fn codes_of_applications_have_a_range_of_their_own() {
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
