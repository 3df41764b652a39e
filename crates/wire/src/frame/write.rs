//! Writing frames: one function for each.
//!
//! The precondition of [`Writer`] applies: first check that the frame fits. The constants are the
//! maximum sizes of frames of fixed layout, the `…_size` functions give the sizes of frames with
//! data. Headers of CRYPTO, STREAM and DATAGRAM end where the data starts: the data itself may come
//! from elsewhere while the packet is sealed.

use super::ack::{self, EcnCounts};
use super::kind::AckFrequency;
use super::ty;
use crate::connection_id::ConnectionId;
use crate::cursor::Writer;
use crate::stream_id::{Direction, StreamId};
use crate::varint;
use std::ops::RangeInclusive;

/// The most bytes of a varint.
const VARINT: usize = 8;

/// Bytes of PING.
pub const PING_SIZE: usize = 1;
/// Bytes of HANDSHAKE_DONE.
pub const HANDSHAKE_DONE_SIZE: usize = 1;
/// Bytes of RESET_STREAM, at most.
pub const RESET_STREAM_MAX_SIZE: usize = 1 + 3 * VARINT;
/// Bytes of STOP_SENDING, at most.
pub const STOP_SENDING_MAX_SIZE: usize = 1 + 2 * VARINT;
/// Bytes of MAX_DATA and DATA_BLOCKED, at most.
pub const MAX_DATA_MAX_SIZE: usize = 1 + VARINT;
/// Bytes of MAX_STREAM_DATA and STREAM_DATA_BLOCKED, at most.
pub const MAX_STREAM_DATA_MAX_SIZE: usize = 1 + 2 * VARINT;
/// Bytes of MAX_STREAMS and STREAMS_BLOCKED, at most.
pub const MAX_STREAMS_MAX_SIZE: usize = 1 + VARINT;
/// Bytes of NEW_CONNECTION_ID, at most.
pub const NEW_CONNECTION_ID_MAX_SIZE: usize = 1 + 2 * VARINT + 1 + ConnectionId::MAX_LEN + 16;
/// Bytes of RETIRE_CONNECTION_ID, at most.
pub const RETIRE_CONNECTION_ID_MAX_SIZE: usize = 1 + VARINT;
/// Bytes of PATH_CHALLENGE and PATH_RESPONSE.
pub const PATH_CHALLENGE_SIZE: usize = 1 + 8;
/// Bytes of RESET_STREAM_AT, at most.
pub const RESET_STREAM_AT_MAX_SIZE: usize = 1 + 4 * VARINT;
/// Bytes of ACK_FREQUENCY, at most.
pub const ACK_FREQUENCY_MAX_SIZE: usize = 2 + 4 * VARINT;
/// Bytes of IMMEDIATE_ACK.
pub const IMMEDIATE_ACK_SIZE: usize = 1;

/// Every type written here except ACK_FREQUENCY is below 0x40, and so is its own encoding (RFC 9000
/// §12.4).
#[inline]
fn put_type(w: &mut Writer<'_>, ty: u64) {
    w.u8(ty as u8);
}

/// Puts `n` PADDING frames (RFC 9000 §19.1).
#[inline]
pub fn padding(w: &mut Writer<'_>, n: usize) {
    if let Some(place) = w.spare().get_mut(..n) {
        place.fill(ty::PADDING as u8);
    }
    w.advance(n);
}

/// Puts PING (RFC 9000 §19.2).
#[inline]
pub fn ping(w: &mut Writer<'_>) {
    put_type(w, ty::PING);
}

/// Puts ACK (RFC 9000 §19.3) with as many of the ranges as fit, and returns their number. If not
/// even the first fits, or there is none, it writes nothing and returns 0.
///
/// `ranges_descending` starts with the largest packet numbers; between two ranges at least one
/// number is missing. `delay` is in microseconds, already shifted right by this end's
/// ack_delay_exponent. With ECN counts the frame has type 0x03.
#[inline]
pub fn ack(
    w: &mut Writer<'_>,
    ranges_descending: impl Iterator<Item = RangeInclusive<u64>> + Clone,
    delay: u64,
    ecn: Option<EcnCounts>,
) -> usize {
    ack::write(w, ranges_descending, delay, ecn)
}

/// Lengthens the ACK frame that `w` ends with, and that begins at byte `at`, to `len` bytes, with
/// longer encodings of its numbers (RFC 9000 §16). It is unchanged if it is already longer, if more
/// than some 20 bytes are missing, or if there is no room.
pub fn lengthen_ack(w: &mut Writer<'_>, at: usize, len: usize) {
    ack::lengthen(w, at, len);
}

/// Puts RESET_STREAM (RFC 9000 §19.4).
pub fn reset_stream(w: &mut Writer<'_>, id: StreamId, error_code: u64, final_size: u64) {
    put_type(w, ty::RESET_STREAM);
    w.varint(id.0);
    w.varint(error_code);
    w.varint(final_size);
}

/// Puts STOP_SENDING (RFC 9000 §19.5).
pub fn stop_sending(w: &mut Writer<'_>, id: StreamId, error_code: u64) {
    put_type(w, ty::STOP_SENDING);
    w.varint(id.0);
    w.varint(error_code);
}

/// Puts the header of a CRYPTO frame of `len` bytes of data (RFC 9000 §19.6).
pub fn crypto_header(w: &mut Writer<'_>, offset: u64, len: usize) {
    put_type(w, ty::CRYPTO);
    w.varint(offset);
    w.varint(len as u64);
}

/// Bytes of the header that [`crypto_header`] puts.
#[inline]
#[must_use]
pub const fn crypto_header_size(offset: u64, len: usize) -> usize {
    1 + varint::size(offset) + varint::size(len as u64)
}

/// Puts NEW_TOKEN (RFC 9000 §19.7); the token must not be empty.
pub fn new_token(w: &mut Writer<'_>, token: &[u8]) {
    put_type(w, ty::NEW_TOKEN);
    w.varint(token.len() as u64);
    w.bytes(token);
}

/// Bytes of the frame that [`new_token`] puts.
#[inline]
#[must_use]
pub const fn new_token_size(token_len: usize) -> usize {
    1 + varint::size(token_len as u64) + token_len
}

/// Puts the header of a STREAM frame (RFC 9000 §19.8). Without a length the data extends to the end
/// of the packet.
#[inline]
pub fn stream_header(w: &mut Writer<'_>, id: StreamId, offset: u64, len: Option<usize>, fin: bool) {
    let off = u64::from(offset != 0) * ty::STREAM_OFF;
    let with_len = u64::from(len.is_some()) * ty::STREAM_LEN;
    put_type(
        w,
        ty::STREAM | off | with_len | (u64::from(fin) * ty::STREAM_FIN),
    );
    w.varint(id.0);
    if offset != 0 {
        w.varint(offset);
    }
    if let Some(len) = len {
        w.varint(len as u64);
    }
}

/// Bytes of the header that [`stream_header`] puts.
#[inline]
#[must_use]
pub const fn stream_header_size(id: StreamId, offset: u64, len: Option<usize>) -> usize {
    let offset = if offset == 0 { 0 } else { varint::size(offset) };
    let len = match len {
        Some(len) => varint::size(len as u64),
        None => 0,
    };
    1 + varint::size(id.0) + offset + len
}

/// Puts MAX_DATA (RFC 9000 §19.9).
pub fn max_data(w: &mut Writer<'_>, maximum: u64) {
    put_type(w, ty::MAX_DATA);
    w.varint(maximum);
}

/// Puts MAX_STREAM_DATA (RFC 9000 §19.10).
pub fn max_stream_data(w: &mut Writer<'_>, id: StreamId, maximum: u64) {
    put_type(w, ty::MAX_STREAM_DATA);
    w.varint(id.0);
    w.varint(maximum);
}

/// Puts MAX_STREAMS (RFC 9000 §19.11); `maximum` is at most 2^60.
pub fn max_streams(w: &mut Writer<'_>, direction: Direction, maximum: u64) {
    put_type(w, ty::MAX_STREAMS_BIDI + direction as u64);
    w.varint(maximum);
}

/// Puts DATA_BLOCKED (RFC 9000 §19.12).
pub fn data_blocked(w: &mut Writer<'_>, limit: u64) {
    put_type(w, ty::DATA_BLOCKED);
    w.varint(limit);
}

/// Puts STREAM_DATA_BLOCKED (RFC 9000 §19.13).
pub fn stream_data_blocked(w: &mut Writer<'_>, id: StreamId, limit: u64) {
    put_type(w, ty::STREAM_DATA_BLOCKED);
    w.varint(id.0);
    w.varint(limit);
}

/// Puts STREAMS_BLOCKED (RFC 9000 §19.14); `limit` is at most 2^60.
pub fn streams_blocked(w: &mut Writer<'_>, direction: Direction, limit: u64) {
    put_type(w, ty::STREAMS_BLOCKED_BIDI + direction as u64);
    w.varint(limit);
}

/// Puts NEW_CONNECTION_ID (RFC 9000 §19.15); `id` is not empty, `retire_prior_to` at most
/// `sequence`.
pub fn new_connection_id(
    w: &mut Writer<'_>,
    sequence: u64,
    retire_prior_to: u64,
    id: &ConnectionId,
    reset_token: &[u8; 16],
) {
    put_type(w, ty::NEW_CONNECTION_ID);
    w.varint(sequence);
    w.varint(retire_prior_to);
    w.u8(id.len() as u8);
    w.bytes(id.as_slice());
    w.bytes(reset_token);
}

/// Puts RETIRE_CONNECTION_ID (RFC 9000 §19.16).
pub fn retire_connection_id(w: &mut Writer<'_>, sequence: u64) {
    put_type(w, ty::RETIRE_CONNECTION_ID);
    w.varint(sequence);
}

/// Puts PATH_CHALLENGE (RFC 9000 §19.17).
pub fn path_challenge(w: &mut Writer<'_>, data: [u8; 8]) {
    put_type(w, ty::PATH_CHALLENGE);
    w.bytes(&data);
}

/// Puts PATH_RESPONSE (RFC 9000 §19.18).
pub fn path_response(w: &mut Writer<'_>, data: [u8; 8]) {
    put_type(w, ty::PATH_RESPONSE);
    w.bytes(&data);
}

/// Puts CONNECTION_CLOSE (RFC 9000 §19.19): that of the transport with `frame_type` (0 when
/// unknown), that of the application with `None`. A reason that does not fit is truncated, but not
/// in the middle of a character.
pub fn connection_close(
    w: &mut Writer<'_>,
    error_code: u64,
    frame_type: Option<u64>,
    reason: &[u8],
) {
    let fixed = 1 + varint::size(error_code) + frame_type.map_or(0, varint::size);
    // The length is written in no more bytes than the whole reason would need.
    let room = w
        .remaining()
        .saturating_sub(fixed + varint::size(reason.len() as u64));
    let reason = cut(reason, room);
    put_type(
        w,
        match frame_type {
            Some(_) => ty::CONNECTION_CLOSE,
            None => ty::CONNECTION_CLOSE_APPLICATION,
        },
    );
    w.varint(error_code);
    if let Some(frame_type) = frame_type {
        w.varint(frame_type);
    }
    w.varint(reason.len() as u64);
    w.bytes(reason);
}

/// Bytes of the frame that [`connection_close`] puts when the whole reason fits.
#[inline]
#[must_use]
pub const fn connection_close_size(
    error_code: u64,
    frame_type: Option<u64>,
    reason_len: usize,
) -> usize {
    let frame_type = match frame_type {
        Some(ty) => varint::size(ty),
        None => 0,
    };
    1 + varint::size(error_code) + frame_type + varint::size(reason_len as u64) + reason_len
}

/// The first `room` bytes of a text, without a character that would be cut in two.
fn cut(text: &[u8], room: usize) -> &[u8] {
    let Some(head) = text.get(..room) else {
        return text;
    };
    let continues = text.get(room).is_some_and(|byte| byte & 0xc0 == 0x80);
    let end = match head.iter().rposition(|byte| byte & 0xc0 != 0x80) {
        Some(start) if continues => start,
        _ => room,
    };
    head.get(..end).unwrap_or(head)
}

/// Puts HANDSHAKE_DONE (RFC 9000 §19.20).
pub fn handshake_done(w: &mut Writer<'_>) {
    put_type(w, ty::HANDSHAKE_DONE);
}

/// Puts the header of a DATAGRAM frame (RFC 9221 §4). Without a length the data extends to the end
/// of the packet.
pub fn datagram_header(w: &mut Writer<'_>, len: Option<usize>) {
    match len {
        Some(len) => {
            put_type(w, ty::DATAGRAM_LEN);
            w.varint(len as u64);
        }
        None => put_type(w, ty::DATAGRAM),
    }
}

/// Bytes of the header that [`datagram_header`] puts.
#[inline]
#[must_use]
pub const fn datagram_header_size(len: Option<usize>) -> usize {
    match len {
        Some(len) => 1 + varint::size(len as u64),
        None => 1,
    }
}

/// Puts RESET_STREAM_AT (draft-ietf-quic-reliable-stream-reset §4); `reliable_size` is at most
/// `final_size`.
pub fn reset_stream_at(
    w: &mut Writer<'_>,
    id: StreamId,
    error_code: u64,
    final_size: u64,
    reliable_size: u64,
) {
    put_type(w, ty::RESET_STREAM_AT);
    w.varint(id.0);
    w.varint(error_code);
    w.varint(final_size);
    w.varint(reliable_size);
}

/// Puts ACK_FREQUENCY (draft-ietf-quic-ack-frequency §4).
pub fn ack_frequency(w: &mut Writer<'_>, request: &AckFrequency) {
    w.varint(ty::ACK_FREQUENCY);
    w.varint(request.sequence);
    w.varint(request.ack_eliciting_threshold);
    w.varint(request.max_ack_delay_us);
    w.varint(request.reordering_threshold);
}

/// Puts IMMEDIATE_ACK (draft-ietf-quic-ack-frequency §5).
pub fn immediate_ack(w: &mut Writer<'_>) {
    put_type(w, ty::IMMEDIATE_ACK);
}
