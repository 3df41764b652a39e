//! Packets whose parts may lie anywhere in memory.

use protect::{Outcome, PacketMemory, ScatteredPacket, TAG_LEN};

use crate::call::{Status, array, array_mut, guarded, one};
use crate::keys::PacketKey;
use crate::spans::{SQUALL_PENDING, SQUALL_TAG_LEN, check_outcome};

/// A packet whose parts may lie anywhere in memory.
///
/// If the payload follows the header in memory and the tag follows the payload, the packet is
/// processed in place. Otherwise it is copied, once to seal and twice to open, through 16 kB that
/// the thread allocates for its first such packet and keeps; longer ones are allocated separately.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct Packet {
    /// The header, which is the AEAD's associated data. Only read.
    pub header: *const u8,
    /// Bytes of the header.
    pub header_len: usize,
    /// Plaintext or ciphertext, replaced by the other.
    pub payload: *mut u8,
    /// Bytes of the payload.
    pub payload_len: usize,
    /// 16 bytes: written by `squall_seal_scattered`, read by `squall_open_scattered`.
    pub tag: *mut u8,
    /// The last `source_len` bytes of the payload are read from here first; null if all of it lies
    /// in place.
    pub source: *const u8,
    /// Bytes of the source, at most `payload_len`.
    pub source_len: usize,
    /// The full packet number.
    pub packet_number: u64,
    /// The path's id, a part of the nonce if both endpoints use the multipath extension; else 0.
    pub path_id: u32,
    /// The packet's result: `SQUALL_PENDING` and so on.
    pub outcome: u8,
}

/// Packets handed on at a time: as many as a kernel takes per call.
const GROUP: usize = 16;

/// Seals the pending packets (RFC 9001, section 5.3), without header protection: see
/// `squall_masks`.
///
/// Each becomes `SQUALL_OPEN`, or `SQUALL_SKIP` when its number is above 2^62 - 1 or its source is
/// longer than its payload.
///
/// # Safety
///
/// `key` is null or comes from this library. `packets` is null or points to `count` packets, whose
/// pointers are null or valid for their lengths. No memory that is written overlaps with any other
/// of the call, and nothing else uses it meanwhile.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_seal_scattered(
    key: *const PacketKey,
    packets: *mut Packet,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, packets) = unsafe { (one(key)?, array_mut(packets, count)?) };
        // SAFETY: as the caller promises.
        unsafe { work(packets, |packets| key.0.seal_scattered(packets)) }
    })
}

/// Opens the pending packets, whose headers are bare (RFC 9001, section 5.3).
///
/// Each becomes `SQUALL_OPEN`, or `SQUALL_FORGED` with its payload wiped, or `SQUALL_SKIP` when its
/// number is above 2^62 - 1 or its source is longer than its payload.
///
/// # Safety
///
/// As for `squall_seal_scattered`.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_open_scattered(
    key: *const PacketKey,
    packets: *mut Packet,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, packets) = unsafe { (one(key)?, array_mut(packets, count)?) };
        // SAFETY: as the caller promises.
        unsafe { work(packets, |packets| key.0.open_scattered(packets)) }
    })
}

/// Processes packets from C, a group at a time.
///
/// # Safety
///
/// The memory of the packets is as the functions above ask.
unsafe fn work(
    packets: &mut [Packet],
    work: impl Fn(&mut [ScatteredPacket<'_>]),
) -> Result<(), Status> {
    packets.iter().try_for_each(check)?;
    for group in packets.chunks_mut(GROUP) {
        match group {
            // A stack with one packet at a time does not pay for room for more.
            // SAFETY: as the caller promises.
            [_] => unsafe { work_on::<1>(group, &work)? },
            // SAFETY: as the caller promises.
            _ => unsafe { work_on::<GROUP>(group, &work)? },
        }
    }
    Ok(())
}

/// Whether all pointers of a packet can be followed.
fn check(packet: &Packet) -> Result<(), Status> {
    check_outcome(packet.outcome)?;
    if packet.outcome != SQUALL_PENDING {
        return Ok(());
    }
    for (is_null, len) in [
        (packet.header.is_null(), packet.header_len),
        (packet.payload.is_null(), packet.payload_len),
        (packet.tag.is_null(), SQUALL_TAG_LEN),
        (packet.source.is_null(), packet.source_len),
    ] {
        if len > 0 && is_null {
            return Err(Status::Null);
        }
        // The same limit as for a span's length.
        if u32::try_from(len).is_err() {
            return Err(Status::Length);
        }
    }
    Ok(())
}

/// Processes up to `N` packets.
///
/// # Safety
///
/// As for [`work`]; and the packets were checked.
unsafe fn work_on<const N: usize>(
    packets: &mut [Packet],
    work: &impl Fn(&mut [ScatteredPacket<'_>]),
) -> Result<(), Status> {
    let mut group: [_; N] = std::array::from_fn(|_| empty());
    for (packet, place) in packets.iter().zip(&mut group) {
        if packet.outcome == SQUALL_PENDING {
            // SAFETY: as the caller promises.
            *place = unsafe { packet_of(packet)? };
        }
    }
    let count = packets.len().min(N);
    work(&mut group[..count]);
    for (packet, worked) in packets.iter_mut().zip(&group) {
        if packet.outcome == SQUALL_PENDING {
            packet.outcome = worked.outcome as u8;
        }
    }
    Ok(())
}

/// Placeholder for a packet that is not pending.
fn empty<'a>() -> ScatteredPacket<'a> {
    let memory = PacketMemory::Whole {
        packet: &mut [],
        header_len: 0,
    };
    let mut packet = ScatteredPacket::new(memory, 0);
    packet.outcome = Outcome::NoKey;
    packet
}

/// Converts a packet from C to one of Rust.
///
/// # Safety
///
/// As for [`work`]; and the packet was checked.
unsafe fn packet_of<'a>(packet: &Packet) -> Result<ScatteredPacket<'a>, Status> {
    let payload_at = packet.header.addr().wrapping_add(packet.header_len);
    let tag_at = packet.payload.addr().wrapping_add(packet.payload_len);
    let in_one_piece = packet.header_len > 0
        && packet.payload_len > 0
        && payload_at == packet.payload.addr()
        && tag_at == packet.tag.addr();
    let memory = if in_one_piece {
        let len = packet.header_len + packet.payload_len + TAG_LEN;
        PacketMemory::Whole {
            // SAFETY: the three pieces are valid and adjacent, and C has no separate allocations
            // here; the header is not written.
            packet: unsafe { array_mut(packet.header.cast_mut(), len)? },
            header_len: packet.header_len,
        }
    } else {
        // SAFETY: as the caller promises.
        unsafe {
            PacketMemory::Parts {
                header: array(packet.header, packet.header_len)?,
                payload: array_mut(packet.payload, packet.payload_len)?,
                tag: array_mut(packet.tag, TAG_LEN)?
                    .try_into()
                    .map_err(|_| Status::Length)?,
            }
        }
    };
    let mut made = ScatteredPacket::new(memory, packet.packet_number);
    // SAFETY: as the caller promises.
    made.source = unsafe { array(packet.source, packet.source_len)? };
    made.path_id = packet.path_id;
    Ok(made)
}
