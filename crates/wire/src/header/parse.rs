//! Reading one packet's header.

use super::invariants::{Invariants, is_long};
use super::kind::{FixedBit, Header, HeaderError, LongType, VERSION_1, VERSION_2};
use crate::connection_id::ConnectionId;
use crate::cursor::Reader;

/// Bytes of the Retry integrity tag (RFC 9001 §5.8).
const RETRY_TAG_LEN: usize = 16;

/// Reads the header of the packet at the start of `packet`, which extends to the end of the
/// datagram; `short_cid_len` is the length of the connection ids that this endpoint issues.
///
/// # Errors
/// [`HeaderError`] if it is not a packet of version 1 or 2. The rest of the datagram is then lost
/// too, because nothing says where the next packet would start.
#[inline]
pub fn parse(packet: &[u8], short_cid_len: usize) -> Result<Header<'_>, HeaderError> {
    parse_with(packet, short_cid_len, FixedBit::Required)
}

/// As [`parse`], for an endpoint that has decided about the fixed bit.
///
/// # Errors
/// As [`parse`]; [`HeaderError::FixedBit`] only if it is [`FixedBit::Required`].
#[inline]
pub fn parse_with(
    packet: &[u8],
    short_cid_len: usize,
    fixed_bit: FixedBit,
) -> Result<Header<'_>, HeaderError> {
    let first = *packet.first().ok_or(HeaderError::Truncated)?;
    if is_long(first) {
        return parse_long(packet, first, fixed_bit);
    }
    check_fixed_bit(first, fixed_bit)?;
    let pn_offset = 1 + short_cid_len;
    // At least one byte of packet number has to follow.
    if packet.len() <= pn_offset {
        return Err(HeaderError::Truncated);
    }
    let dcid = connection_id(packet.get(1..pn_offset).unwrap_or_default())?;
    Ok(Header::Short {
        dcid,
        pn_offset,
        len: packet.len(),
    })
}

fn parse_long(packet: &[u8], first: u8, fixed_bit: FixedBit) -> Result<Header<'_>, HeaderError> {
    let mut r = Reader::new(packet);
    r.u8()?;
    let Invariants {
        version,
        dcid,
        scid,
    } = Invariants::read(&mut r)?;
    match version {
        // RFC 8999 §6: version 0 marks version negotiation; all other bits of its first byte are
        // unused.
        0 => return parse_version_negotiation(dcid, scid, r.rest()),
        VERSION_1 | VERSION_2 => {}
        _ => {
            return Ok(Header::Unsupported {
                version,
                dcid,
                scid,
            });
        }
    }
    check_fixed_bit(first, fixed_bit)?;
    let dcid = connection_id(dcid)?;
    let scid = connection_id(scid)?;
    let ty = LongType::from_first_byte(first, version);
    let token = match ty {
        LongType::Retry => {
            let (without_tag, tag) = packet
                .split_last_chunk::<RETRY_TAG_LEN>()
                .ok_or(HeaderError::Truncated)?;
            let token = without_tag
                .get(r.position()..)
                .ok_or(HeaderError::Truncated)?;
            // RFC 9000 §17.2.5.2: a Retry without a token is discarded.
            if token.is_empty() {
                return Err(HeaderError::Length);
            }
            return Ok(Header::Retry {
                version,
                dcid,
                scid,
                token,
                tag: *tag,
                without_tag,
            });
        }
        LongType::Initial => {
            let len = r.varint()?;
            r.bytes_u64(len)?
        }
        LongType::ZeroRtt | LongType::Handshake => &[],
    };
    // RFC 9000 §17.2: Length counts the packet number and all that follows, the tag included.
    let length = r.varint()?;
    let pn_offset = r.position();
    let length = usize::try_from(length).map_err(|_| HeaderError::Length)?;
    if length == 0 || length > r.remaining() {
        return Err(HeaderError::Length);
    }
    Ok(Header::Long {
        ty,
        version,
        dcid,
        scid,
        token,
        pn_offset,
        len: pn_offset + length,
    })
}

fn parse_version_negotiation<'a>(
    dcid: &'a [u8],
    scid: &'a [u8],
    versions: &'a [u8],
) -> Result<Header<'a>, HeaderError> {
    // RFC 8999 §6: without a version, or with one cut off, the packet is ignored.
    if versions.is_empty() || !versions.len().is_multiple_of(4) {
        return Err(HeaderError::Length);
    }
    Ok(Header::VersionNegotiation {
        dcid,
        scid,
        versions,
    })
}

#[inline]
fn check_fixed_bit(first: u8, rule: FixedBit) -> Result<(), HeaderError> {
    if rule.admits(first) {
        Ok(())
    } else {
        Err(HeaderError::FixedBit)
    }
}

#[inline]
fn connection_id(bytes: &[u8]) -> Result<ConnectionId, HeaderError> {
    ConnectionId::new(bytes).ok_or(HeaderError::ConnectionId)
}
