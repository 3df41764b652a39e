//! What is the same in every version of QUIC: RFC 8999 §5.

use crate::cursor::{Reader, Truncated};

/// The header form bit (RFC 8999 §5.1 and §5.2).
pub(super) const FORM_LONG: u8 = 0x80;

/// Whether a packet that starts with this byte has a long header (RFC 8999 §5.1).
#[inline]
#[must_use]
pub const fn is_long(first: u8) -> bool {
    first & FORM_LONG != 0
}

/// The destination connection id of a datagram's first packet: all that a router uses.
///
/// A short header does not say how long its connection id is: `short_cid_len` is the length that
/// this endpoint issues. `None` if the datagram is too short to have one. Long headers of unknown
/// versions may have up to 255 bytes (RFC 8999 §5.1).
#[inline]
#[must_use]
pub fn destination(datagram: &[u8], short_cid_len: usize) -> Option<&[u8]> {
    let (&first, rest) = datagram.split_first()?;
    if is_long(first) {
        let (&len, id) = rest.get(4..)?.split_first()?;
        id.get(..usize::from(len))
    } else {
        rest.get(..short_cid_len)
    }
}

/// The fields of a long header that no version can change (RFC 8999 §5.1).
pub(super) struct Invariants<'a> {
    pub(super) version: u32,
    pub(super) dcid: &'a [u8],
    pub(super) scid: &'a [u8],
}

impl<'a> Invariants<'a> {
    /// Reads them; `r` is positioned after the first byte.
    pub(super) fn read(r: &mut Reader<'a>) -> Result<Self, Truncated> {
        let version = r.u32()?;
        let len = r.u8()?;
        let dcid = r.bytes(len.into())?;
        let len = r.u8()?;
        let scid = r.bytes(len.into())?;
        Ok(Self {
            version,
            dcid,
            scid,
        })
    }
}
