//! Where a packet lies in its buffer, and the outcome of the work on it.

/// Length in bytes of the AEAD tag at the end of every packet, for all suites (RFC 9001 §5.3).
pub const TAG_LEN: usize = 16;

/// Length in bytes of the ciphertext sample that header protection reads (RFC 9001 §5.4.2).
pub const SAMPLE_LEN: usize = 16;

/// Length in bytes of the mask that header protection makes of a sample: one byte for the first
/// byte of the header, four for the packet number (RFC 9001 §5.4.1).
pub const MASK_LEN: usize = 5;

/// Packets in a group: callers keep the spans of at most this many on the stack at a time. A call
/// may have more.
pub const MAX_GROUP: usize = 64;

/// A packet number takes up to four bytes, and the sample is taken as if it always did (RFC 9001
/// §5.4.2).
pub(crate) const MAX_NUMBER_LEN: usize = 4;

/// The highest packet number (RFC 9000 §12.3).
pub(crate) const MAX_PACKET_NUMBER: u64 = (1 << 62) - 1;

/// The outcome of the work on a packet.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Outcome {
    /// Not worked on yet.
    Pending,
    /// Received: authentic and decrypted in place. To be sent: sealed and header protected.
    Open,
    /// Received: the tag did not match. The payload is useless, and it is not plaintext.
    Forged,
    /// Received: its keys are not available (yet). Set by the caller, never by this crate.
    NoKey,
    /// Not worked on: too short, outside the buffer, overlapping another span, or with an
    /// impossible packet number.
    Skip,
}

/// One packet in a buffer: offsets and results, no pointer.
///
/// Spans of one call lie in ascending order and do not overlap: a span that starts before the end
/// of an earlier one is refused with [`Outcome::Skip`].
///
/// The layout is C's, with the fields in this order.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct PacketSpan {
    /// The packet's first byte, from the start of the buffer.
    pub start: u32,
    /// Bytes from the first byte of the header to the end of the tag.
    pub len: u32,
    /// After `unprotect` the truncated number, which the caller expands before `open`; for `seal`
    /// the full number.
    pub packet_number: u64,
    /// Where the packet number begins, from `start`.
    pub pn_offset: u16,
    /// Header bytes, packet number included. Set by `unprotect`, or by the writer of the packet.
    pub header_len: u16,
    /// Which of the caller's keys opens the packet; `open` works on the spans of one slot.
    pub slot: u8,
    /// The outcome. The operations work on [`Outcome::Pending`] spans only.
    pub outcome: Outcome,
}

const _: () = assert!(size_of::<PacketSpan>() == 24);

impl PacketSpan {
    /// A pending span with slot 0, whose header length and number are still to be set.
    #[must_use]
    pub fn new(start: u32, len: u32, pn_offset: u16) -> Self {
        Self {
            start,
            len,
            pn_offset,
            header_len: 0,
            packet_number: 0,
            slot: 0,
            outcome: Outcome::Pending,
        }
    }
}
