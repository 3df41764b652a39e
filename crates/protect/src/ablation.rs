//! The operations in pieces, for measurements: what header protection costs on top of the AEAD, and
//! what each way of combining the two saves (`squall bench protect --ablation`).
//!
//! These are for measurements only. To send and receive,
//! [`PacketKey::seal`](crate::PacketKey::seal),
//! [`HeaderKey::unprotect`](crate::HeaderKey::unprotect) and
//! [`PacketKey::open`](crate::PacketKey::open) are the best way that was found. All ways except the
//! first produce the same packets.

use crate::kernel::Fusion;
use crate::keys::{HeaderKey, Keys, PacketKey};
use crate::span::PacketSpan;

/// How header protection is combined with the AEAD.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Way {
    /// No header protection: what the AEAD costs by itself.
    AeadAlone,
    /// One cipher call for the mask of each packet, after (seal) or before (open) the AEAD of all
    /// of them, as in a stack whose library protects one header at a time.
    OneByOne,
    /// One cipher call for the masks of this many packets, at least one; MsQuic uses 8.
    Batched(usize),
    /// One packet after the other, AEAD and mask in one kernel call, as picotls fusion does. Only
    /// for kernels that [`has`] accepts.
    Fused,
    /// Both: many packets in one kernel call, and the masks of several packets in one pass next to
    /// the AEAD of others. This is what [`PacketKey::seal`](crate::PacketKey::seal) does. Only for
    /// kernels that [`has`] accepts.
    FusedAndBatched,
}

/// Whether the keys' kernel supports a way.
#[must_use]
pub fn has(way: Way, keys: &Keys) -> bool {
    fusion_of(way).is_none() || keys.packet.fuses(&keys.header)
}

/// Seals pending spans in the given way; see [`PacketKey::seal`](crate::PacketKey::seal) for the
/// other arguments.
pub fn seal(way: Way, keys: &Keys, buf: &mut [u8], spans: &mut [PacketSpan], sources: &[&[u8]]) {
    let header = fusion_of(way).map(|fusion| (&keys.header, fusion));
    keys.packet.seal_in(header, buf, spans, sources);
    if let Some(count) = packets_in_a_call(way) {
        for spans in spans.chunks(count) {
            keys.header.protect(buf, spans);
        }
    }
}

/// Seals pending spans, then applies header protection to all of them in a pass of its own, as
/// MsQuic does. [`PacketKey::seal`] does both in the AEAD's pass, with the same result.
pub fn seal_in_two_passes(
    packet: &PacketKey,
    header: &HeaderKey,
    buf: &mut [u8],
    spans: &mut [PacketSpan],
    sources: &[&[u8]],
) {
    packet.seal_in(None, buf, spans, sources);
    header.protect(buf, spans);
}

/// Removes header protection in the given way, and opens the pending spans of slot 0. Packet
/// numbers must be below 2^32 and take four bytes in the packets, since they are not expanded
/// between the two steps.
pub fn open(way: Way, keys: &Keys, buf: &mut [u8], spans: &mut [PacketSpan]) {
    if let Some(fusion) = fusion_of(way)
        && keys.packet.open_fused((&keys.header, fusion), buf, spans)
    {
        return;
    }
    if let Some(count) = packets_in_a_call(way) {
        for spans in spans.chunks_mut(count) {
            keys.header.unprotect(buf, spans);
        }
    }
    keys.packet.open(buf, spans, 0);
}

/// Packets in each call for header protection, if there are such calls.
fn packets_in_a_call(way: Way) -> Option<usize> {
    match way {
        Way::AeadAlone | Way::Fused | Way::FusedAndBatched => None,
        Way::OneByOne => Some(1),
        Way::Batched(count) => Some(count.max(1)),
    }
}

fn fusion_of(way: Way) -> Option<Fusion> {
    match way {
        Way::Fused => Some(Fusion::Each),
        Way::FusedAndBatched => Some(Fusion::Batched),
        _ => None,
    }
}
