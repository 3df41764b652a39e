//! The sending half of a stream.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::quic::{self, StreamErrorIncoming, StreamId, WriteBuf};

use crate::error;

/// Payload of at least this many bytes is shared with the transport; shorter payload is copied into
/// its buffer. Sharing costs an allocation and some reference counting, 55 ns; copying costs 50 ns
/// for 1,024 bytes, 71 for 2,048 and 238 for 8,192 (Emerald Rapids).
const SHARED_FROM: usize = 2048;

/// The sending half of a stream. Dropping it unfinished resets the stream.
pub struct SendStream<B: Buf> {
    stream: squall::SendStream,
    id: StreamId,
    outgoing: Outgoing<B>,
}

/// Data that h3 has handed over but the stream has not accepted yet, in order.
struct Outgoing<B: Buf> {
    /// The rest of a payload that is shared with the transport.
    payload: Bytes,
    /// The frame being written; its header and any part that is not shared.
    frame: Option<WriteBuf<B>>,
    /// Frames behind it. There are some only if a future of h3 was dropped while it waited.
    later: VecDeque<WriteBuf<B>>,
}

/// A frame whose header is written, as the owner of its payload.
struct Payload<B: Buf>(WriteBuf<B>);

impl<B: Buf> AsRef<[u8]> for Payload<B> {
    fn as_ref(&self) -> &[u8] {
        self.0.chunk()
    }
}

impl<B: Buf + Send + 'static> Outgoing<B> {
    /// Writes until nothing is left.
    fn poll_write(
        &mut self,
        stream: &mut squall::SendStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), squall::WriteError>> {
        loop {
            while !self.payload.is_empty() {
                ready!(stream.poll_write_chunk(cx, &mut self.payload))?;
            }
            let Some(mut frame) = self.frame.take().or_else(|| self.later.pop_front()) else {
                return Poll::Ready(Ok(()));
            };
            let piece = frame.chunk().len();
            if piece >= SHARED_FROM && piece == frame.remaining() {
                self.payload = Bytes::from_owner(Payload(frame));
                continue;
            }
            let written = stream.poll_write(cx, frame.chunk());
            if let Poll::Ready(Ok(written)) = written {
                frame.advance(written);
            }
            if frame.has_remaining() {
                self.frame = Some(frame);
            }
            ready!(written)?;
        }
    }
}

impl<B: Buf> Outgoing<B> {
    fn clear(&mut self) {
        self.payload.clear();
        self.frame = None;
        self.later.clear();
    }
}

impl<B: Buf> SendStream<B> {
    /// Takes over a stream that is dropped with `drop_code`.
    pub(crate) fn new(mut stream: squall::SendStream, id: StreamId, drop_code: u64) -> Self {
        stream.set_drop_code(drop_code);
        Self {
            stream,
            id,
            outgoing: Outgoing {
                payload: Bytes::new(),
                frame: None,
                later: VecDeque::new(),
            },
        }
    }
}

impl<B: Buf + Send + 'static> SendStream<B> {
    /// Writes everything that was handed over.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        (self.outgoing.poll_write(&mut self.stream, cx)).map_err(error::of_write)
    }
}

impl<B: Buf + Send + 'static> quic::SendStream<B> for SendStream<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.poll_flush(cx)
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        let frame = data.into();
        if self.outgoing.frame.is_none() && self.outgoing.payload.is_empty() {
            self.outgoing.frame = Some(frame);
        } else {
            self.outgoing.later.push_back(frame);
        }
        Ok(())
    }

    /// Writes what is left, and ends the stream.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_flush(cx))?;
        Poll::Ready(self.stream.finish().map_err(error::of_write))
    }

    fn reset(&mut self, reset_code: u64) {
        self.outgoing.clear();
        // An error means that there is nothing left to reset.
        let _ = self.stream.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.id
    }
}

impl<B: Buf + Send + 'static> quic::SendStreamUnframed<B> for SendStream<B> {
    /// Copies from the front of `buf`: how much there is room for is known only afterwards, when a
    /// part already taken out could not be put back.
    fn poll_send<D: Buf>(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut D,
    ) -> Poll<Result<usize, StreamErrorIncoming>> {
        ready!(self.poll_flush(cx))?;
        let written = ready!(self.stream.poll_write(cx, buf.chunk())).map_err(error::of_write)?;
        buf.advance(written);
        Poll::Ready(Ok(written))
    }
}

impl<B: Buf> std::fmt::Debug for SendStream<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendStream")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
