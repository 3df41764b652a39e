//! Packets that lie anywhere: the AEAD for a group of them, without header protection.
//!
//! ```text
//!   Whole   | header | payload | room for tag |  ─────────────▶ a job in place ──┐
//!   Parts   | header |   | payload |   | tag |   ─▶ scratch ──▶ a job there ─────┤
//!                                   ◀── payload and tag copied back ── kernel, up to 16 a call
//! ```
//! A kernel needs a packet in one piece: it reads whole registers past the end of the header, and
//! the last block of a payload reaches into the tag. So a packet in parts is put together in a
//! scratch buffer that the thread keeps. To seal, the kernel reads the payload from where it is and
//! writes the ciphertext to the scratch; to open, the packet is copied there.

use std::cell::Cell;

use crate::kernel::{Job, Kernel, MAX_JOBS, Slots};
use crate::span::{MAX_PACKET_NUMBER, Outcome, TAG_LEN};

/// What to do with packets.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Direction {
    Seal,
    Open,
}

/// Where the bytes of a [`ScatteredPacket`] lie.
#[derive(Debug)]
pub enum PacketMemory<'a> {
    /// Header, payload and tag in one slice: worked on in place. Such packets cost as much as those
    /// in one buffer.
    Whole {
        /// Header, payload, and the tag or room for it.
        packet: &'a mut [u8],
        /// Bytes of the header, which is the AEAD's associated data.
        header_len: usize,
    },
    /// Header, payload and tag apart. Sealing copies the packet once and opening twice, through a
    /// buffer of 16 kB that the thread allocates at its first such packet and keeps; a longer
    /// packet gets a buffer of its own. Copied bytes stay in the buffer until they are overwritten.
    Parts {
        /// The AEAD's associated data. Only read.
        header: &'a [u8],
        /// Plaintext or ciphertext, replaced by the other.
        payload: &'a mut [u8],
        /// Written when sealing, read when opening.
        tag: &'a mut [u8; TAG_LEN],
    },
}

/// A packet that lies anywhere, for [`PacketKey::seal_scattered`](crate::PacketKey::seal_scattered)
/// and [`PacketKey::open_scattered`](crate::PacketKey::open_scattered).
///
/// Neither applies nor removes header protection, so header, number and payload may have any
/// length, zero included. A packet is refused, with [`Outcome::Skip`], if its number is above
/// 2^62-1, its source is longer than its payload, or its slice is too short for header and tag.
///
/// ```
/// use squall_protect::{Outcome, PacketMemory, ScatteredPacket, initial};
///
/// let keys = initial::keys(1, b"\x83\x94\xc8\xf0\x3e\x51\x57\x08", true).local;
/// let header = [0x43, 0, 0, 0, 7];
/// let (mut payload, mut tag) = (*b"some frames", [0; 16]);
/// let mut packet = [ScatteredPacket::new(
///     PacketMemory::Parts { header: &header, payload: &mut payload, tag: &mut tag },
///     7,
/// )];
/// keys.packet.seal_scattered(&mut packet);
/// assert_eq!(packet[0].outcome, Outcome::Open);
///
/// // The receiver has it in one piece.
/// let mut received = [&header[..], &payload, &tag].concat();
/// let memory = PacketMemory::Whole { packet: &mut received, header_len: 5 };
/// let mut packet = [ScatteredPacket::new(memory, 7)];
/// keys.packet.open_scattered(&mut packet);
/// assert_eq!(packet[0].outcome, Outcome::Open);
/// assert_eq!(&received[5..16], b"some frames");
/// ```
#[derive(Debug)]
pub struct ScatteredPacket<'a> {
    /// Where the packet lies.
    pub memory: PacketMemory<'a>,
    /// The last bytes of the payload are read from here before the packet is sealed or opened;
    /// empty if all of it lies in place. If it is as long as the payload, the operation goes from a
    /// source to a destination.
    pub source: &'a [u8],
    /// The full packet number.
    pub packet_number: u64,
    /// The path's id, a part of the nonce (draft-ietf-quic-multipath §2.4); 0 without multipath.
    pub path_id: u32,
    /// The outcome. The operations work on [`Outcome::Pending`] packets only.
    pub outcome: Outcome,
}

impl<'a> ScatteredPacket<'a> {
    /// A pending packet of path 0 whose payload lies in place.
    #[must_use]
    pub fn new(memory: PacketMemory<'a>, packet_number: u64) -> Self {
        Self {
            memory,
            source: &[],
            packet_number,
            path_id: 0,
            outcome: Outcome::Pending,
        }
    }

    /// Bytes from the header to the tag.
    pub(crate) fn len(&self) -> usize {
        match &self.memory {
            PacketMemory::Whole { packet, .. } => packet.len(),
            PacketMemory::Parts {
                header, payload, ..
            } => header.len() + payload.len() + TAG_LEN,
        }
    }

    fn is_sound(&self) -> bool {
        let payload_len = match &self.memory {
            PacketMemory::Whole { packet, header_len } => packet
                .len()
                .checked_sub(TAG_LEN)
                .and_then(|len| len.checked_sub(*header_len)),
            PacketMemory::Parts { payload, .. } => Some(payload.len()),
        };
        self.packet_number <= MAX_PACKET_NUMBER
            // As for a span.
            && u32::try_from(self.len()).is_ok()
            && payload_len.is_some_and(|len| self.source.len() <= len)
    }

    /// Bytes of scratch that the packet needs.
    fn copy_len(&self) -> usize {
        match self.memory {
            PacketMemory::Parts { .. } => self.len(),
            PacketMemory::Whole { .. } => 0,
        }
    }

    /// The packet as a kernel takes it; one in parts gets the next bytes of the scratch.
    fn job<'r>(&'r mut self, scratch: &mut &'r mut [u8], direction: Direction) -> Job<'r> {
        let len = self.len();
        let source_at = len - TAG_LEN - self.source.len();
        let (piece, header_len, source) = match &mut self.memory {
            PacketMemory::Parts {
                header,
                payload,
                tag,
            } => {
                let copy = scratch.split_off_mut(..len);
                let copy = copy.expect("a group fits into the scratch");
                copy[..header.len()].copy_from_slice(header);
                let in_place = &payload[..payload.len() - self.source.len()];
                let source = match direction {
                    Direction::Seal if self.source.is_empty() => in_place,
                    Direction::Seal => {
                        copy[header.len()..source_at].copy_from_slice(in_place);
                        self.source
                    }
                    Direction::Open => {
                        copy[header.len()..source_at].copy_from_slice(in_place);
                        copy[source_at..len - TAG_LEN].copy_from_slice(self.source);
                        copy[len - TAG_LEN..].copy_from_slice(*tag);
                        &[]
                    }
                };
                (copy, header.len(), source)
            }
            PacketMemory::Whole { packet, header_len } => {
                let source = match direction {
                    Direction::Seal => self.source,
                    // The kernels open in place.
                    Direction::Open => {
                        packet[source_at..len - TAG_LEN].copy_from_slice(self.source);
                        &[]
                    }
                };
                (&mut **packet, *header_len, source)
            }
        };
        let job = Job::new(piece, header_len, self.packet_number, source);
        job.expect("a sound packet").on_path(self.path_id)
    }

    /// Copies payload and tag back from the next bytes of the scratch, if the packet lies in parts.
    fn take_back(&mut self, scratch: &mut &[u8], direction: Direction) {
        let PacketMemory::Parts {
            header,
            payload,
            tag,
        } = &mut self.memory
        else {
            return;
        };
        let (_, rest) = scratch.split_at(header.len());
        let (worked, rest) = rest.split_at(payload.len());
        let (worked_tag, rest) = rest.split_at(TAG_LEN);
        payload.copy_from_slice(worked);
        if direction == Direction::Seal {
            tag.copy_from_slice(worked_tag);
        }
        *scratch = rest;
    }
}

/// Bytes of the scratch: ten packets of 1,500 bytes fit, and half a first-level cache.
const SCRATCH_LEN: usize = 16 * 1024;

thread_local! {
    /// Zeroing a buffer for each call would cost as much as a copy.
    static SCRATCH: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Runs some work with the thread's scratch, which has at least `len` bytes.
fn with_scratch(len: usize, work: impl FnOnce(&mut [u8])) {
    let new = |len: usize| vec![0; len].into_boxed_slice();
    if len == 0 {
        work(&mut []);
    } else if len > SCRATCH_LEN {
        work(&mut new(len));
    } else {
        // A thread that is ending no longer has a scratch.
        let kept = SCRATCH.try_with(Cell::take).ok().flatten();
        let mut scratch = kept.unwrap_or_else(|| new(SCRATCH_LEN));
        work(&mut scratch);
        let _ = SCRATCH.try_with(|kept| kept.set(Some(scratch)));
    }
}

/// Seals or opens the pending packets; those that are not sound are skipped.
pub(crate) fn work(kernel: &Kernel, mut packets: &mut [ScatteredPacket<'_>], direction: Direction) {
    while !packets.is_empty() {
        let (mut count, mut copied) = (0, 0);
        for packet in packets.iter_mut().take(MAX_JOBS) {
            if packet.outcome == Outcome::Pending {
                if packet.is_sound() {
                    let with_it = copied + packet.copy_len();
                    if count > 0 && with_it > SCRATCH_LEN {
                        break;
                    }
                    copied = with_it;
                } else {
                    packet.outcome = Outcome::Skip;
                }
            }
            count += 1;
        }
        if let Some(group) = packets.split_off_mut(..count) {
            with_scratch(copied, |scratch| run(kernel, group, scratch, direction));
        }
    }
}

/// Seals or opens a group of sound packets in one kernel call.
fn run(
    kernel: &Kernel,
    packets: &mut [ScatteredPacket<'_>],
    scratch: &mut [u8],
    direction: Direction,
) {
    let is_pending = |packet: &&mut ScatteredPacket<'_>| packet.outcome == Outcome::Pending;
    let (mut slots, mut rest) = (Slots::new(), &mut *scratch);
    let pending = packets.iter_mut().filter(is_pending);
    let jobs = slots.fill(pending.map(|packet| packet.job(&mut rest, direction)));
    let authentic = match direction {
        Direction::Seal => {
            kernel.seal_alone(jobs);
            u32::MAX
        }
        Direction::Open => kernel.open(jobs),
    };
    let is_authentic = |i: usize| authentic >> i & 1 == 1;
    for (i, job) in jobs.iter_mut().enumerate() {
        if !is_authentic(i) {
            // What an attacker's bytes decrypt to must never be seen.
            let (header_len, _) = job.header_len_and_number();
            job.wipe_behind(header_len as usize);
        }
    }
    let mut rest = &*scratch;
    for (i, packet) in packets.iter_mut().filter(is_pending).enumerate() {
        packet.take_back(&mut rest, direction);
        packet.outcome = if is_authentic(i) {
            Outcome::Open
        } else {
            Outcome::Forged
        };
    }
}
