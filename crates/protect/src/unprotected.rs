//! Packets without protection, for one measurement: what the transport costs beside it.
//!
//! Compiled only with `--cfg squall_unprotected`, which no feature, environment variable of the
//! program or configuration sets; `cargo xtask tidy` looks that none does. Such a build speaks to
//! nobody but itself.

use crate::span::{Outcome, PacketSpan, TAG_LEN};

/// What `seal` leaves when nothing is encrypted: the sources copied to where they belong, tags of
/// zeros.
pub(crate) fn seal(buf: &mut [u8], spans: &mut [PacketSpan], sources: &[&[u8]]) {
    for (i, span) in spans.iter_mut().enumerate() {
        if span.outcome != Outcome::Pending {
            continue;
        }
        let end = (span.start + span.len) as usize;
        let payload_end = end - TAG_LEN;
        if let Some(source) = sources.get(i) {
            buf[payload_end - source.len()..payload_end].copy_from_slice(source);
        }
        buf[payload_end..end].fill(0);
        span.outcome = Outcome::Open;
    }
}

/// What `unprotect` leaves: header length and truncated number.
pub(crate) fn unprotect(buf: &[u8], spans: &mut [PacketSpan]) {
    for span in spans.iter_mut() {
        let start = span.start as usize;
        let pn_len = 1 + u16::from(buf[start] & 0x03);
        let at = start + usize::from(span.pn_offset);
        let number = buf[at..at + usize::from(pn_len)].iter();
        span.packet_number = number.fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        span.header_len = span.pn_offset + pn_len;
    }
}

/// What `open` leaves of packets that are all genuine.
pub(crate) fn open(spans: &mut [PacketSpan], slot: u8) {
    for span in spans.iter_mut() {
        if span.slot == slot && span.outcome == Outcome::Pending {
            span.outcome = Outcome::Open;
        }
    }
}
