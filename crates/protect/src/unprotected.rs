//! Packets without protection, for one measurement: what the transport costs without it.
//!
//! Compiled only with `--cfg squall_unprotected`, which no feature, environment variable of the
//! program or configuration sets; `cargo xtask tidy` checks that none does. Such a build can talk
//! only to itself.

use crate::scattered::{Direction, PacketMemory, ScatteredPacket};
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

/// What sealing and opening leave of packets that lie anywhere.
pub(crate) fn scattered(packets: &mut [ScatteredPacket<'_>], direction: Direction) {
    for packet in packets {
        let (payload, tag) = match &mut packet.memory {
            PacketMemory::Whole { packet, header_len } => {
                let payload_end = packet.len() - TAG_LEN;
                let (payload, tag) = packet[*header_len..].split_at_mut(payload_end - *header_len);
                (payload, tag)
            }
            PacketMemory::Parts { payload, tag, .. } => (&mut **payload, tag.as_mut_slice()),
        };
        let head_len = payload.len() - packet.source.len();
        payload[head_len..].copy_from_slice(packet.source);
        if direction == Direction::Seal {
            tag.fill(0);
        }
        packet.outcome = Outcome::Open;
    }
}

/// What `open_into` leaves of packets that are all genuine: the targets' bytes copied.
pub(crate) fn open_into(buf: &[u8], spans: &mut [PacketSpan], slot: u8, targets: &mut [&mut [u8]]) {
    for (span, target) in spans.iter_mut().zip(targets) {
        if span.slot == slot && span.outcome == Outcome::Pending {
            let end = (span.start + span.len) as usize - TAG_LEN;
            target.copy_from_slice(&buf[end - target.len()..end]);
            span.outcome = Outcome::Open;
        }
    }
}
