//! The receiving half of a message: a stream of frames, and the rules about their order.
//!
//! ```text
//!   request, response:   HEADERS … (DATA …)* HEADERS?     RFC 9114 §4.1
//! ```

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use squall::{RecvStream, StreamId};

use crate::error::{Code, Error};
use crate::frame::{Fate, FrameReader, Piece, kind};
use crate::qlog::{Frame, Side};
use crate::shared::Shared;
use crate::tunnels::is_session_id;

/// A part of a message.
#[derive(Debug)]
pub(crate) enum Part {
    /// An encoded field section: the head first, then perhaps trailers.
    Section(Bytes),
    Data(Bytes),
    /// Not a message, but a stream of this WebTransport session, and its first bytes.
    WebTransport(u64, Bytes),
    End,
}

/// Why a message broke off.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The peer broke a rule of the connection.
    Connection(Code, &'static str),
    /// The message is unusable: the stream is abandoned with this code.
    Stream(Code, Error),
    /// Its field section is larger than the limit.
    TooLarge,
    /// The peer reset the stream, or the connection ended.
    Lost(Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Body,
    /// Nothing may follow trailers.
    Trailers,
    End,
}

/// Reads a message.
#[derive(Debug)]
pub(crate) struct MessageReader {
    pub(crate) recv: RecvStream,
    frames: FrameReader,
    phase: Phase,
    /// Bytes still missing from the body, if its length was announced.
    left: Option<u64>,
    is_connect: bool,
    /// Whether the stream's first chunk is read.
    has_begun: bool,
    /// Reports that no section of the stream will be decoded, if it comes to that.
    undecoded: Undecoded,
}

/// A stream whose field sections still have to be decoded.
#[derive(Debug)]
struct Undecoded {
    id: StreamId,
    shared: Arc<Shared>,
    armed: bool,
}

impl MessageReader {
    pub(crate) fn new(mut recv: RecvStream, shared: Arc<Shared>) -> Self {
        // RFC 9114 §4.1: a server may stop reading a request that it has answered; a client that
        // stops reading cancels it.
        let code = if shared.is_server {
            Code::H3_NO_ERROR
        } else {
            Code::H3_REQUEST_CANCELLED
        };
        recv.set_drop_code(code.0);
        let id = recv.id();
        Self {
            recv,
            frames: FrameReader::new(),
            phase: Phase::Head,
            left: None,
            is_connect: false,
            has_begun: false,
            undecoded: Undecoded {
                id,
                shared,
                armed: true,
            },
        }
    }

    pub(crate) fn id(&self) -> StreamId {
        self.recv.id()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.undecoded.shared
    }

    /// The beginning of the stream, which has been read elsewhere.
    pub(crate) fn begin_with(&mut self, chunk: Bytes) {
        self.frames.push(chunk);
    }

    /// The stream is not a message: nothing of it will have to be decoded.
    pub(crate) fn is_no_message(&mut self) {
        self.undecoded.armed = false;
    }

    /// The body's length, as announced in the head.
    pub(crate) fn set_content_length(&mut self, length: Option<u64>) {
        self.left = length;
    }

    /// Bytes still missing from the body, if its length is known.
    pub(crate) fn left(&self) -> Option<u64> {
        self.left
    }

    /// The head was an informational response: another head follows (RFC 9114 §4.1).
    pub(crate) fn expect_another_head(&mut self) {
        self.phase = Phase::Head;
    }

    /// The stream is that of a CONNECT request: only DATA follows (RFC 9114 §4.4).
    pub(crate) fn set_connect(&mut self) {
        self.is_connect = true;
    }

    /// How long the body of a request may stand still, if there is a limit.
    pub(crate) fn body_timeout(&self) -> Option<Duration> {
        let config = &self.undecoded.shared.config;
        config.body_timeout.filter(|_| !self.is_connect)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::End
    }

    /// The next part. After the end, [`Part::End`] is returned every time.
    pub(crate) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Part, Broken>> {
        let limit = self.undecoded.shared.config.max_field_section_size;
        let (is_server, is_connect) = (self.undecoded.shared.is_server, self.is_connect);
        let webtransport = self.undecoded.shared.config.webtransport > 0;
        loop {
            if self.phase == Phase::End {
                return Poll::Ready(Ok(Part::End));
            }
            let phase = self.phase;
            let has_begun = &mut self.has_begun;
            let (qlog, id) = (&self.undecoded.shared.qlog, self.undecoded.id);
            let piece = self.frames.next(|kind, len| {
                let is_first = !std::mem::replace(has_begun, true);
                match kind {
                    // Encoded, a field section takes no more bytes than RFC 9114 §4.2.2 counts for
                    // it.
                    kind::HEADERS if len > limit && phase != Phase::Trailers => {
                        Err(Broken::TooLarge)
                    }
                    kind::WEBTRANSPORT_STREAM if webtransport && is_first => Ok(Fate::NoFrame),
                    // draft-ietf-webtrans-http3 §4.3.
                    kind::WEBTRANSPORT_STREAM if webtransport => Err(Broken::Connection(
                        Code::H3_FRAME_ERROR,
                        "WT_STREAM not at the beginning",
                    )),
                    _ => {
                        let fate = fate(is_server, is_connect, phase, kind)?;
                        if kind == kind::DATA {
                            qlog.frame(Side::Remote, id, Frame::Data(len));
                        }
                        Ok(fate)
                    }
                }
            });
            match piece {
                Ok(Some(Piece::Frame(_, section))) => {
                    self.phase = if phase == Phase::Head {
                        Phase::Body
                    } else {
                        Phase::Trailers
                    };
                    return Poll::Ready(Ok(Part::Section(section)));
                }
                Ok(Some(Piece::Data(data))) => {
                    if let Some(left) = &mut self.left {
                        *left = match left.checked_sub(data.len() as u64) {
                            Some(left) => left,
                            None => return Poll::Ready(Err(wrong_length())),
                        };
                    }
                    return Poll::Ready(Ok(Part::Data(data)));
                }
                Ok(Some(Piece::NoFrame(_, session))) => {
                    self.undecoded.armed = false;
                    if !is_session_id(session) {
                        let why = "no session has this id";
                        return Poll::Ready(Err(Broken::Connection(Code::H3_ID_ERROR, why)));
                    }
                    let rest = self.frames.take_rest();
                    return Poll::Ready(Ok(Part::WebTransport(session, rest)));
                }
                Ok(None) => {}
                Err(broken) => return Poll::Ready(Err(broken)),
            }
            match ready!(self.recv.poll_read_chunk(cx, usize::MAX)) {
                Ok(Some(chunk)) => self.frames.push(chunk),
                Ok(None) => return Poll::Ready(self.end()),
                Err(error) => return Poll::Ready(Err(Broken::Lost(error.into()))),
            }
        }
    }

    /// The stream has ended.
    fn end(&mut self) -> Result<Part, Broken> {
        if !self.frames.is_between_frames() {
            // RFC 9114 §7.1.
            return Err(Broken::Connection(Code::H3_FRAME_ERROR, "frame cut short"));
        }
        if self.phase == Phase::Head {
            let code = if self.undecoded.shared.is_server {
                Code::H3_REQUEST_INCOMPLETE
            } else {
                Code::H3_MESSAGE_ERROR
            };
            return Err(Broken::Stream(code, Error::Malformed("no head")));
        }
        if self.left.is_some_and(|left| left > 0) {
            return Err(wrong_length());
        }
        self.phase = Phase::End;
        self.undecoded.armed = false;
        Ok(Part::End)
    }

    /// Gives up the stream for this reason, or the connection if necessary.
    pub(crate) fn give_up(&mut self, broken: &Broken) {
        match broken {
            Broken::Connection(code, why) => self.undecoded.shared.fail(*code, why),
            Broken::Stream(code, _) => {
                self.recv.set_drop_code(code.0);
                let _ = self.recv.stop(code.0);
            }
            Broken::TooLarge => {
                let _ = self.recv.stop(Code::H3_EXCESSIVE_LOAD.0);
            }
            Broken::Lost(_) => {}
        }
    }
}

impl Drop for Undecoded {
    fn drop(&mut self) {
        if self.armed {
            self.shared.cancel_decoding(self.id);
        }
    }
}

/// RFC 9114 §4.1.2: the body's length differs from `content-length`.
fn wrong_length() -> Broken {
    let error = Error::Malformed("content-length differs from the length of the body");
    Broken::Stream(Code::H3_MESSAGE_ERROR, error)
}

/// Which frames are expected on a request stream: RFC 9114 §4.1, §7.2, table 1.
fn fate(is_server: bool, is_connect: bool, phase: Phase, kind: u64) -> Result<Fate, Broken> {
    let unexpected = Err(Broken::Connection(
        Code::H3_FRAME_UNEXPECTED,
        "frame not allowed here",
    ));
    match (kind, phase) {
        (kind::HEADERS, Phase::Head) => Ok(Fate::Whole),
        (kind::HEADERS, Phase::Body) if !is_connect => Ok(Fate::Whole),
        (kind::DATA, Phase::Body) => Ok(Fate::Stream),
        (kind::PUSH_PROMISE, _) if !is_server => Err(Broken::Connection(
            // RFC 9114 §7.2.5: this end allows no push.
            Code::H3_ID_ERROR,
            "push without MAX_PUSH_ID",
        )),
        (
            kind::HEADERS
            | kind::DATA
            | kind::PUSH_PROMISE
            | kind::SETTINGS
            | kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::CANCEL_PUSH
            | kind::PRIORITY_UPDATE_REQUEST
            | kind::PRIORITY_UPDATE_PUSH,
            _,
        ) => unexpected,
        (kind, _) if kind::is_reserved(kind) => unexpected,
        _ => Ok(Fate::Skip),
    }
}
