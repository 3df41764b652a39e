//! Writing packet headers, before header protection is applied.

use super::invariants::FORM_LONG;
use super::kind::{FIXED_BIT, LongType};
use crate::connection_id::ConnectionId;
use crate::cursor::Writer;
use crate::{packet_number, varint};

/// Where the Length field of a long header lies, in bytes from the start of the writer's buffer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LengthOffset(usize);

/// Puts the header of an Initial, 0-RTT or Handshake packet, packet number included. `token` is
/// written for Initial packets only; `pn_len` is 1 to 4. Two bytes are reserved for the Length
/// field, for [`patch_length`], since the payload is not known yet.
#[expect(
    clippy::too_many_arguments,
    reason = "one argument a field, in the order of the RFC"
)]
pub fn write_long(
    w: &mut Writer<'_>,
    ty: LongType,
    version: u32,
    dcid: &ConnectionId,
    scid: &ConnectionId,
    token: &[u8],
    pn: u64,
    pn_len: usize,
) -> LengthOffset {
    debug_assert!(ty != LongType::Retry, "a Retry has no packet number");
    // RFC 9000 §17.2: reserved bits 0, the length of the packet number less one.
    write_invariants(
        w,
        (ty.number(version) << 4) | pn_len_bits(pn_len),
        version,
        dcid,
        scid,
    );
    if ty == LongType::Initial {
        w.varint(token.len() as u64);
        w.bytes(token);
    }
    let length = LengthOffset(w.len());
    w.varint_of_size(0, 2);
    packet_number::write(w, pn, pn_len);
    length
}

/// Writes the Length field of the long header that [`write_long`] put into `buf`: the bytes of
/// packet number, payload and tag, at most 16,383.
pub fn patch_length(buf: &mut [u8], at: LengthOffset, len_of_pn_and_payload_and_tag: usize) {
    match buf.get_mut(at.0..) {
        Some(field) => {
            let mut w = Writer::new(field);
            w.varint_of_size(len_of_pn_and_payload_and_tag as u64, 2);
            debug_assert!(!w.overflow(), "the Length field of a packet has two bytes");
        }
        None => debug_assert!(
            false,
            "the Length field lies in the buffer it was written to"
        ),
    }
}

/// Bytes of the header that [`write_long`] puts; `token_len` is `None` if it is not an Initial.
#[inline]
#[must_use]
pub const fn long_header_size(
    dcid_len: usize,
    scid_len: usize,
    token_len: Option<usize>,
    pn_len: usize,
) -> usize {
    let token = match token_len {
        Some(len) => varint::size(len as u64) + len,
        None => 0,
    };
    // First byte, version, two connection ids with their lengths, token, Length, packet number.
    1 + 4 + 1 + dcid_len + 1 + scid_len + token + 2 + pn_len
}

/// Puts the header of a 1-RTT packet, packet number included (RFC 9000 §17.3.1); `pn_len` is 1 to
/// 4.
#[inline]
pub fn write_short(
    w: &mut Writer<'_>,
    dcid: &ConnectionId,
    spin: bool,
    key_phase: bool,
    pn: u64,
    pn_len: usize,
) {
    let first =
        FIXED_BIT | (u8::from(spin) << 5) | (u8::from(key_phase) << 2) | pn_len_bits(pn_len);
    w.u8(first);
    match w.spare().first_chunk_mut::<{ ConnectionId::MAX_LEN + 4 }>() {
        // Two fixed-width stores, the second over the padding of the first. Every packet with a
        // payload has room for this.
        Some(place) if pn_len <= 4 => {
            if let Some(id) = place.first_chunk_mut() {
                *id = *dcid.padded();
            }
            if let Some(number) = place
                .get_mut(dcid.len()..)
                .and_then(<[u8]>::first_chunk_mut)
            {
                // The low `pn_len` bytes, moved to the front of four.
                *number = ((pn << (32 - 8 * pn_len)) as u32).to_be_bytes();
            }
            w.advance(dcid.len() + pn_len);
        }
        _ => {
            w.bytes(dcid.as_slice());
            packet_number::write(w, pn, pn_len);
        }
    }
}

/// Bytes of the header that [`write_short`] puts.
#[inline]
#[must_use]
pub const fn short_header_size(dcid_len: usize, pn_len: usize) -> usize {
    1 + dcid_len + pn_len
}

/// Puts a Retry packet without its integrity tag (RFC 9000 §17.2.5). The tag is computed over these
/// bytes and follows them directly (RFC 9001 §5.8).
pub fn write_retry(
    w: &mut Writer<'_>,
    version: u32,
    dcid: &ConnectionId,
    scid: &ConnectionId,
    token: &[u8],
) {
    // RFC 9000 §17.2.5: the four unused bits are arbitrary; all ones, as in the RFC's example.
    let bits = (LongType::Retry.number(version) << 4) | 0x0f;
    write_invariants(w, bits, version, dcid, scid);
    w.bytes(token);
}

/// Puts a version negotiation packet (RFC 9000 §17.2.1). The connection ids are those of the packet
/// that it answers, swapped; at most 255 bytes each. `random` fills the unused bits.
pub fn write_version_negotiation(
    w: &mut Writer<'_>,
    dcid: &[u8],
    scid: &[u8],
    versions: &[u32],
    random: u8,
) {
    // RFC 9000 §17.2.1: the bit 0x40 should be 1, for endpoints that demultiplex by it (RFC 7983).
    w.u8(FORM_LONG | FIXED_BIT | (random & 0x3f));
    w.u32(0);
    for id in [dcid, scid] {
        debug_assert!(id.len() <= 255, "a connection id has a length of one byte");
        w.u8(id.len() as u8);
        w.bytes(id);
    }
    for &version in versions {
        w.u32(version);
    }
}

fn write_invariants(
    w: &mut Writer<'_>,
    type_bits: u8,
    version: u32,
    dcid: &ConnectionId,
    scid: &ConnectionId,
) {
    w.u8(FORM_LONG | FIXED_BIT | type_bits);
    w.u32(version);
    for id in [dcid, scid] {
        w.u8(id.len() as u8);
        w.bytes(id.as_slice());
    }
}

/// RFC 9000 §17.2, §17.3.1: the length of the packet number, less one, in two bits.
#[inline]
const fn pn_len_bits(pn_len: usize) -> u8 {
    debug_assert!(
        pn_len >= 1 && pn_len <= 4,
        "a packet number takes 1 to 4 bytes"
    );
    (pn_len.wrapping_sub(1) & 3) as u8
}
