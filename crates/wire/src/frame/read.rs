//! Reading the frames of a packet.

use super::ack::Ack;
use super::kind::{AckFrequency, Frame};
use super::ty;
use crate::connection_id::ConnectionId;
use crate::cursor::{Reader, Truncated};
use crate::error_code::{TransportError, TransportErrorCode};
use crate::stream_id::{Direction, StreamId};
use crate::varint;

/// A frame that breaks the rules of its own layout; [`Frames`] adds the type.
#[cold]
const fn malformed(reason: &'static str) -> TransportError {
    TransportError::new(TransportErrorCode::FRAME_ENCODING_ERROR, reason)
}

/// The frames of one packet's payload, in order. After an error there are no more.
///
/// A payload without a single frame is an error too: PROTOCOL_VIOLATION (RFC 9000 §12.4).
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    reader: Reader<'a>,
    /// Whether neither a frame nor an error has been returned yet.
    untouched: bool,
}

impl<'a> Frames<'a> {
    /// The frames of `payload`, the whole plaintext of a packet.
    #[inline]
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self {
            reader: Reader::new(payload),
            untouched: true,
        }
    }

    /// Skips the frames that repeat the last one read, if it consists only of its type: PING,
    /// IMMEDIATE_ACK, HANDSHAKE_DONE. They have no further effect, and there could be a thousand in
    /// a packet.
    #[inline]
    pub fn skip_repeated(&mut self, frame: &Frame<'_>) {
        if matches!(
            frame,
            Frame::Ping | Frame::ImmediateAck | Frame::HandshakeDone
        ) {
            let ty = frame.ty() as u8;
            while self.reader.peek_u8() == Some(ty) && self.reader.u8().is_ok() {}
        }
    }

    /// Bytes of the payload read so far.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.reader.position()
    }

    /// Whether all of the payload has been read.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }

    /// The next frame, for a loop that checks [`is_empty`](Self::is_empty) first:
    /// [`next`](Iterator::next) without the `Option`, which would cost a copy of the frame right
    /// after the stores that made it. That copy stalls: with it a frame of two bytes takes half as
    /// long again.
    ///
    /// Always inlined, and each frame is read by a copy of the reader: so the position stays in
    /// registers across the caller's loop, and a frame is built where it is used.
    ///
    /// # Errors
    /// FRAME_ENCODING_ERROR for a malformed frame, PROTOCOL_VIOLATION if no frame is left (RFC 9000
    /// §12.4).
    #[inline(always)]
    pub fn read(&mut self) -> Result<Frame<'a>, TransportError> {
        self.untouched = false;
        let Some(first) = self.reader.peek_u8() else {
            return Err(NO_FRAME);
        };
        let first = u64::from(first);
        let mut r = self.reader;
        // The one frame that matters for speed comes before the table of all others.
        let mut frame = if (ty::STREAM..=ty::STREAM_LAST).contains(&first) {
            stream(&mut r, first)
        } else {
            other(&mut r, first)
        };
        self.reader = r;
        if let Err(error) = &mut frame {
            self.reader = Reader::new(&[]);
            if first < TWO_BYTES {
                error.frame_type = first;
            }
        }
        frame
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, TransportError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        (!self.is_empty() || self.untouched).then(|| self.read())
    }
}

impl std::iter::FusedIterator for Frames<'_> {}

/// First bytes from here on start a frame type of two bytes or more.
const TWO_BYTES: u64 = 0x40;

/// RFC 9000 §12.4: a packet has at least one frame.
const NO_FRAME: TransportError = TransportError::new(
    TransportErrorCode::PROTOCOL_VIOLATION,
    "packet without a frame",
);
const UNKNOWN: &str = "unknown frame type";
const BEYOND: &str = "data beyond offset 2^62 - 1";

/// A frame whose type takes two bytes or more: one is known, the others are errors; this finds out
/// which.
#[cold]
fn long_type<'a>(r: &mut Reader<'_>) -> Result<Frame<'a>, TransportError> {
    let before = r.remaining();
    let ty = r.varint()?;
    // RFC 9000 §12.4: a frame type MUST use the shortest possible encoding.
    if varint::size(ty) < before - r.remaining() {
        return Err(TransportError {
            code: TransportErrorCode::PROTOCOL_VIOLATION,
            frame_type: ty,
            reason: "frame type in more bytes than necessary",
        });
    }
    // RFC 9000 §12.4: an unknown type is a FRAME_ENCODING_ERROR.
    let error = |error: TransportError| TransportError {
        frame_type: ty,
        ..error
    };
    if ty == ty::ACK_FREQUENCY {
        ack_frequency(r).map_err(|truncated| error(truncated.into()))
    } else {
        Err(error(malformed(UNKNOWN)))
    }
}

/// draft-ietf-quic-ack-frequency §4.
fn ack_frequency<'a>(r: &mut Reader<'_>) -> Result<Frame<'a>, Truncated> {
    Ok(Frame::AckFrequency(AckFrequency {
        sequence: r.varint()?,
        ack_eliciting_threshold: r.varint()?,
        max_ack_delay_us: r.varint()?,
        reordering_threshold: r.varint()?,
    }))
}

/// RFC 9000 §19.8.
#[inline]
fn stream<'a>(r: &mut Reader<'a>, ty: u64) -> Result<Frame<'a>, TransportError> {
    r.u8()?;
    let id = StreamId(r.varint()?);
    let offset = if ty & ty::STREAM_OFF != 0 {
        r.varint()?
    } else {
        0
    };
    let data = if ty & ty::STREAM_LEN != 0 {
        let len = r.varint()?;
        r.bytes_u64(len)?
    } else {
        r.rest()
    };
    check_end(offset, data)?;
    Ok(Frame::Stream {
        id,
        offset,
        fin: ty & ty::STREAM_FIN != 0,
        data,
    })
}

/// RFC 9000 §19.6, §19.8: the end of the data cannot exceed 2^62 - 1.
#[inline]
fn check_end(offset: u64, data: &[u8]) -> Result<(), TransportError> {
    if offset + data.len() as u64 > varint::MAX {
        return Err(malformed(BEYOND));
    }
    Ok(())
}

/// Every frame except STREAM; `ty` is the value of the next byte.
#[inline(never)]
fn other<'a>(r: &mut Reader<'a>, ty: u64) -> Result<Frame<'a>, TransportError> {
    if ty == ty::PADDING {
        return Ok(Frame::Padding(padding(r)));
    }
    if ty >= TWO_BYTES {
        return long_type(r);
    }
    r.u8()?;
    Ok(match ty {
        ty::PING => Frame::Ping,
        ty::ACK | ty::ACK_ECN => Frame::Ack(Ack::read(r, ty == ty::ACK_ECN)?),
        ty::RESET_STREAM => Frame::ResetStream {
            id: StreamId(r.varint()?),
            error_code: r.varint()?,
            final_size: r.varint()?,
        },
        ty::STOP_SENDING => Frame::StopSending {
            id: StreamId(r.varint()?),
            error_code: r.varint()?,
        },
        ty::CRYPTO => crypto(r)?,
        ty::NEW_TOKEN => new_token(r)?,
        ty::MAX_DATA => Frame::MaxData(r.varint()?),
        ty::MAX_STREAM_DATA => Frame::MaxStreamData {
            id: StreamId(r.varint()?),
            maximum: r.varint()?,
        },
        ty::MAX_STREAMS_BIDI | ty::MAX_STREAMS_UNI => Frame::MaxStreams {
            direction: direction(ty),
            maximum: stream_count(r)?,
        },
        ty::DATA_BLOCKED => Frame::DataBlocked(r.varint()?),
        ty::STREAM_DATA_BLOCKED => Frame::StreamDataBlocked {
            id: StreamId(r.varint()?),
            limit: r.varint()?,
        },
        ty::STREAMS_BLOCKED_BIDI | ty::STREAMS_BLOCKED_UNI => Frame::StreamsBlocked {
            direction: direction(ty),
            limit: stream_count(r)?,
        },
        ty::NEW_CONNECTION_ID => new_connection_id(r)?,
        ty::RETIRE_CONNECTION_ID => Frame::RetireConnectionId {
            sequence: r.varint()?,
        },
        ty::PATH_CHALLENGE => Frame::PathChallenge(r.array()?),
        ty::PATH_RESPONSE => Frame::PathResponse(r.array()?),
        ty::CONNECTION_CLOSE | ty::CONNECTION_CLOSE_APPLICATION => connection_close(r, ty)?,
        ty::HANDSHAKE_DONE => Frame::HandshakeDone,
        ty::IMMEDIATE_ACK => Frame::ImmediateAck,
        ty::RESET_STREAM_AT => reset_stream_at(r)?,
        ty::DATAGRAM => Frame::Datagram { data: r.rest() },
        ty::DATAGRAM_LEN => {
            let len = r.varint()?;
            Frame::Datagram {
                data: r.bytes_u64(len)?,
            }
        }
        _ => return Err(malformed(UNKNOWN)),
    })
}

/// Reads a run of PADDING frames and returns its length: padded packets have hundreds of them.
fn padding(r: &mut Reader<'_>) -> usize {
    let before = r.remaining();
    let mut ahead = *r;
    while let Ok(block) = ahead.array() {
        if u128::from_be_bytes(block) != 0 {
            break;
        }
        *r = ahead;
    }
    while r.peek_u8() == Some(0) && r.u8().is_ok() {}
    before - r.remaining()
}

/// RFC 9000 §19.6.
fn crypto<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, TransportError> {
    let offset = r.varint()?;
    let len = r.varint()?;
    let data = r.bytes_u64(len)?;
    check_end(offset, data)?;
    Ok(Frame::Crypto { offset, data })
}

/// RFC 9000 §19.7.
fn new_token<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, TransportError> {
    let len = r.varint()?;
    let token = r.bytes_u64(len)?;
    if token.is_empty() {
        return Err(malformed("NEW_TOKEN with an empty token"));
    }
    Ok(Frame::NewToken { token })
}

/// draft-ietf-quic-reliable-stream-reset §4.
fn reset_stream_at<'a>(r: &mut Reader<'_>) -> Result<Frame<'a>, TransportError> {
    let id = StreamId(r.varint()?);
    let error_code = r.varint()?;
    let final_size = r.varint()?;
    let reliable_size = r.varint()?;
    if reliable_size > final_size {
        return Err(malformed("RESET_STREAM_AT promises more than there is"));
    }
    Ok(Frame::ResetStreamAt {
        id,
        error_code,
        final_size,
        reliable_size,
    })
}

/// RFC 9000 §19.11, §19.14: a count above 2^60 permits stream ids that cannot be encoded.
fn stream_count(r: &mut Reader<'_>) -> Result<u64, TransportError> {
    let count = r.varint()?;
    if count > crate::stream_id::MAX_COUNT {
        return Err(malformed("more than 2^60 streams"));
    }
    Ok(count)
}

/// The low bit of the types of MAX_STREAMS and STREAMS_BLOCKED.
const fn direction(ty: u64) -> Direction {
    if ty & 1 == 0 {
        Direction::Bidirectional
    } else {
        Direction::Unidirectional
    }
}

/// RFC 9000 §19.15.
fn new_connection_id<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, TransportError> {
    let sequence = r.varint()?;
    let retire_prior_to = r.varint()?;
    if retire_prior_to > sequence {
        return Err(malformed("NEW_CONNECTION_ID retires itself"));
    }
    let len = r.u8()?;
    if !(1..=ConnectionId::MAX_LEN).contains(&len.into()) {
        return Err(malformed("NEW_CONNECTION_ID with a length outside 1 to 20"));
    }
    let id = ConnectionId::new(r.bytes(len.into())?).ok_or(Truncated)?;
    Ok(Frame::NewConnectionId {
        sequence,
        retire_prior_to,
        id,
        reset_token: r.array()?,
    })
}

/// RFC 9000 §19.19.
fn connection_close<'a>(r: &mut Reader<'a>, ty: u64) -> Result<Frame<'a>, TransportError> {
    let error_code = r.varint()?;
    let frame_type = if ty == ty::CONNECTION_CLOSE {
        Some(r.varint()?)
    } else {
        None
    };
    let len = r.varint()?;
    Ok(Frame::ConnectionClose {
        error_code,
        frame_type,
        reason: r.bytes_u64(len)?,
    })
}
