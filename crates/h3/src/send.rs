//! The sending half of a message: head and body as frames.
//!
//! The head, the header of the first DATA frame and the beginning of the body are written together,
//! so that a small message leaves in one packet. A body of a known length is one DATA frame.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use squall::{SendStream, Stopped};

use crate::body::Fault;
use crate::error::{Code, Error};
use crate::frame::{kind, put_header};
use crate::message::trailer_fields;
use crate::qlog::{Frame, Side};
use crate::service::SendBody;
use crate::shared::Shared;

/// Data of the body up to this length is copied behind the head. Longer data is sealed from where
/// it lies.
const COPIED: usize = 4096;

/// A body is asked for more once at most this much of it waits to be sent for the first time: data
/// that the service reads from a file or elsewhere is then sent while it is still in the cache, and
/// a slow client costs little memory.
const UNSENT: u64 = 128 << 10;

/// How many buffers a thread keeps.
const KEPT_BUFFERS: usize = 16;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer for heads and small bodies, reused from earlier messages of the thread.
#[derive(Default)]
pub(crate) struct Buffer {
    pub(crate) bytes: Vec<u8>,
    /// Bytes at the front that have been written, or that hold nothing.
    pub(crate) begin: usize,
}

impl Buffer {
    pub(crate) fn take() -> Self {
        let bytes = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
        Self { bytes, begin: 0 }
    }

    pub(crate) fn unwritten(&self) -> &[u8] {
        self.bytes.get(self.begin..).unwrap_or_default()
    }

    /// Writes everything, and ends the stream with it if it is the last of the message.
    pub(crate) fn poll_write(
        &mut self,
        send: &mut SendStream,
        cx: &mut Context<'_>,
        is_last: bool,
    ) -> Poll<Result<(), Error>> {
        loop {
            let rest = self.unwritten();
            let written = if is_last {
                ready!(send.poll_write_last(cx, rest))?
            } else if rest.is_empty() {
                0
            } else {
                ready!(send.poll_write(cx, rest))?
            };
            let is_whole = written == rest.len();
            self.begin += written;
            if is_whole {
                break;
            }
        }
        self.bytes.clear();
        self.begin = 0;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() == 0 || bytes.capacity() > 4 * COPIED {
            return;
        }
        bytes.clear();
        // A thread that is ending keeps nothing.
        let _ = BUFFERS.try_with(|buffers| {
            let mut buffers = buffers.borrow_mut();
            if buffers.len() < KEPT_BUFFERS {
                buffers.push(bytes);
            }
        });
    }
}

pin_project_lite::pin_project! {
    /// Sends a message's body behind its head.
    pub(crate) struct MessageSender<B> {
        send: SendStream,
        shared: Arc<Shared>,
        // Framed but not yet written: first the buffer, then the chunk.
        buffer: Buffer,
        chunk: Bytes,
        // Bytes still missing from the frame of a body of known length.
        left: Option<u64>,
        state: State,
        // Whether written data waits for room in the stream.
        waits: bool,
        // Whether the head is written, so that it is on its way.
        has_begun: bool,
        // A fault in the message in the other direction.
        fault: Option<Fault>,
        // Bytes of the body framed so far.
        written: u64,
        // Detects that the peer no longer wants the message, while the body has nothing.
        stopped: Option<Stopped>,
        #[pin]
        body: B,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Body,
    /// Everything is framed: the stream ends once it is written.
    Ending,
    Done,
}

impl<B: SendBody> MessageSender<B> {
    /// Encodes the head with `encode`, which is given a buffer and returns where the head begins in
    /// it, and writes it with any data that the body has at once. Poll the sender to send the rest.
    ///
    /// `with_body` is false for messages whose body is not sent, such as the answer to HEAD.
    ///
    /// # Errors
    /// The head cannot be encoded. Later errors are the sender's.
    pub(crate) fn new(
        send: SendStream,
        shared: Arc<Shared>,
        body: B,
        with_body: bool,
        encode: impl FnOnce(&Shared, &SendStream, &mut Vec<u8>) -> Result<usize, Error>,
    ) -> Result<Self, (SendStream, Error)> {
        let is_empty = !with_body || body.is_end_stream();
        let left = if is_empty {
            Some(0)
        } else {
            body.size_hint().exact()
        };
        let mut buffer = Buffer::take();
        match encode(&shared, &send, &mut buffer.bytes) {
            Ok(begin) => buffer.begin = begin,
            Err(error) => return Err((send, error)),
        }
        if let Some(len) = left.filter(|len| *len > 0) {
            put_header(&mut buffer.bytes, kind::DATA, len);
            shared.qlog.frame(Side::Local, send.id(), Frame::Data(len));
        }
        Ok(Self {
            send,
            shared,
            buffer,
            chunk: Bytes::new(),
            left,
            state: if is_empty { State::Ending } else { State::Body },
            waits: false,
            has_begun: false,
            fault: None,
            written: 0,
            stopped: None,
            body,
        })
    }
}

impl<B: SendBody> Future for MessageSender<B> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(code) = self.fault.as_ref().and_then(Fault::code) {
            self.end_with(code);
            let why = "the message in the other direction";
            return Poll::Ready(Err(Error::Malformed(why)));
        }
        let result = ready!(self.as_mut().poll_all(cx));
        let this = self.project();
        *this.state = State::Done;
        if let Err(error) = &result {
            // RFC 9114 §4.1.1, §8.1: a message that is cut short must not look complete.
            let code = match error {
                Error::Body(_) | Error::BodyLength => {
                    (this.fault.as_ref()).map_or(Code::H3_INTERNAL_ERROR, Fault::code_of_failure)
                }
                _ => Code::H3_REQUEST_CANCELLED,
            };
            let _ = this.send.reset(code.0);
        }
        Poll::Ready(result)
    }
}

impl<B: SendBody> MessageSender<B> {
    /// The message fails with one in the other direction that may turn out to be malformed.
    pub(crate) fn set_fault(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    /// Whether the transport has taken the head, and so the peer has given credit for it.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The stream, if the message waits for room in it rather than for its body.
    pub(crate) fn waiting(&self) -> Option<&SendStream> {
        self.waits.then_some(&self.send)
    }

    /// Resets the stream after what has been written of it.
    pub(crate) fn end_with(self: Pin<&mut Self>, code: Code) {
        let this = self.project();
        *this.state = State::Done;
        let _ = this.send.reset_at(code.0, u64::MAX);
    }

    /// Resets the stream.
    pub(crate) fn give_up(self: Pin<&mut Self>, code: Code) {
        let this = self.project();
        *this.state = State::Done;
        let _ = this.send.reset(code.0);
    }

    fn poll_all(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        *self.as_mut().project().waits = true;
        loop {
            // Small data waits for what follows it.
            let this = self.as_mut().project();
            let waits = *this.state == State::Body
                && this.chunk.is_empty()
                && this.buffer.unwritten().len() <= COPIED;
            if !waits {
                ready!(self.as_mut().poll_write(cx))?;
            }
            let this = self.as_mut().project();
            match this.state {
                State::Done | State::Ending => return Poll::Ready(Ok(())),
                State::Body if *this.written > UNSENT => {
                    ready!(this.send.poll_unsent(cx, UNSENT))?;
                }
                State::Body => {}
            }
            let body = this.body;
            match this.shared.call(|| body.poll_frame(cx)) {
                Poll::Pending => {
                    // There is nothing to wait for: write what there is.
                    ready!(self.as_mut().poll_write(cx))?;
                    let this = self.project();
                    *this.waits = false;
                    let stopped = this.stopped.get_or_insert_with(|| this.send.stopped());
                    return match Pin::new(stopped).poll(cx) {
                        Poll::Ready(Ok(Some(code))) => Poll::Ready(Err(Error::Stream(Code(code)))),
                        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
                        _ => Poll::Pending,
                    };
                }
                Poll::Ready(frame) => self.as_mut().on_frame(frame)?,
            }
        }
    }

    /// Writes what is waiting, and ends the stream with it if nothing follows: an end that is sent
    /// by itself costs a packet.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let this = self.project();
        let ends = *this.state == State::Ending;
        let is_last = ends && this.chunk.is_empty();
        ready!(this.buffer.poll_write(this.send, cx, is_last))?;
        // The head is the first that the buffer holds.
        *this.has_begun = true;
        while !this.chunk.is_empty() {
            ready!(match ends {
                true => this.send.poll_write_last_chunk(cx, this.chunk),
                false => this.send.poll_write_chunk(cx, this.chunk),
            })?;
        }
        Poll::Ready(Ok(()))
    }

    /// The body's next frame, or its end.
    fn on_frame(
        self: Pin<&mut Self>,
        frame: Option<Result<http_body::Frame<B::Data>, B::Error>>,
    ) -> Result<(), Error> {
        let this = self.project();
        let Some(frame) = frame else {
            if this.left.is_some_and(|left| left > 0) {
                return Err(Error::BodyLength);
            }
            *this.state = State::Ending;
            return Ok(());
        };
        let frame = frame.map_err(|error| Error::Body(error.into()))?;
        match frame.into_data() {
            Ok(mut data) => {
                let len = data.remaining();
                let Some(data_len) = (len > 0).then_some(len as u64) else {
                    return Ok(());
                };
                *this.written += data_len;
                match this.left {
                    Some(left) => {
                        *left = left.checked_sub(data_len).ok_or(Error::BodyLength)?;
                    }
                    None => {
                        put_header(&mut this.buffer.bytes, kind::DATA, data_len);
                        let frame = Frame::Data(data_len);
                        this.shared.qlog.frame(Side::Local, this.send.id(), frame);
                    }
                }
                if len <= COPIED {
                    while data.has_remaining() {
                        let len = data.chunk().len();
                        this.buffer.bytes.extend_from_slice(data.chunk());
                        data.advance(len);
                    }
                } else {
                    *this.chunk = data.copy_to_bytes(len);
                }
                if this.body.is_end_stream() && this.left.is_none_or(|left| left == 0) {
                    *this.state = State::Ending;
                }
                Ok(())
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    if this.left.is_some_and(|left| left > 0) {
                        return Err(Error::BodyLength);
                    }
                    Self::put_trailers(this.send, this.shared, &mut this.buffer.bytes, &trailers)?;
                    *this.state = State::Ending;
                }
                Ok(())
            }
        }
    }

    fn put_trailers(
        send: &SendStream,
        shared: &Shared,
        buffer: &mut Vec<u8>,
        trailers: &HeaderMap,
    ) -> Result<(), Error> {
        let mut frame = Buffer::take();
        frame.begin = shared.encode(send.id(), trailer_fields(trailers), &mut frame.bytes)?;
        buffer.extend_from_slice(frame.unwritten());
        Ok(())
    }
}
