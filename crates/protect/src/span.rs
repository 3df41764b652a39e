//! Where a packet lies in its buffer, and what became of it.

/// Length in bytes of the AEAD tag at the end of every packet, for all suites (RFC 9001 §5.3).
pub const TAG_LEN: usize = 16;

/// Length in bytes of the ciphertext sample that header protection reads (RFC 9001 §5.4.2).
pub const SAMPLE_LEN: usize = 16;

/// Packets in a group: callers keep the spans of at most this many on the stack at a time. A call with more is legal.
pub const MAX_GROUP: usize = 64;

/// A packet number takes up to four bytes, and the sample is taken as if it always did (RFC 9001 §5.4.2).
pub(crate) const MAX_NUMBER_LEN: usize = 4;

/// The highest packet number (RFC 9000 §12.3).
pub(crate) const MAX_PACKET_NUMBER: u64 = (1 << 62) - 1;

/// What became of a packet.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Outcome {
    /// Not worked on yet.
    Pending,
    /// Received: authentic and decrypted in place. To be sent: sealed and header protected.
    Open,
    /// Received: the tag did not match. What lies in the payload is of no use, and it is not plaintext.
    Forged,
    /// Received: its keys are not here (yet). Set by the caller, never by this crate.
    NoKey,
    /// Not worked on: too short, outside the buffer, over another span, or with an impossible packet number.
    Skip,
}

/// One packet in a buffer: offsets and results, no pointer.
///
/// Spans of one call lie in ascending order and do not overlap: a span that starts before the end of an earlier one
/// is refused with [`Outcome::Skip`].
#[derive(Copy, Clone, Debug)]
pub struct PacketSpan {
    /// The packet's first byte, from the start of the buffer.
    pub start: u32,
    /// Bytes from the first byte of the header to the end of the tag.
    pub len: u32,
    /// Where the packet number begins, from `start`.
    pub pn_offset: u16,
    /// Header bytes, packet number included. Set by `unprotect`, or by whoever writes the packet.
    pub header_len: u16,
    /// After `unprotect` the truncated number, which the caller expands before `open`. For `seal` the full number.
    pub packet_number: u64,
    /// Which of the caller's keys opens the packet; `open` works on the spans of one slot.
    pub slot: u8,
    /// What became of the packet. The operations work on [`Outcome::Pending`] spans only.
    pub outcome: Outcome,
}

const _: () = assert!(size_of::<PacketSpan>() <= 24);

impl PacketSpan {
    /// A pending span with slot 0, and with a header length and number that are still to be set.
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

/// Cuts the packets of ascending spans out of one buffer, so that the borrow checker vouches that they are disjoint.
pub(crate) struct Cutter<'a> {
    rest: &'a mut [u8],
    /// Offset of `rest` in the buffer.
    at: u64,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self { rest: buf, at: 0 }
    }

    /// The packet's bytes, or `None` where the span leaves the buffer or reaches back into what was cut before.
    #[inline(always)]
    pub(crate) fn cut(&mut self, span: &PacketSpan) -> Option<&'a mut [u8]> {
        let skip = u64::from(span.start).wrapping_sub(self.at);
        let end = skip.wrapping_add(u64::from(span.len));
        // A span that reaches back has a `skip` above every length.
        if skip > self.rest.len() as u64 || end > self.rest.len() as u64 {
            return None;
        }
        let (head, tail) = std::mem::take(&mut self.rest).split_at_mut(end as usize);
        (self.rest, self.at) = (tail, self.at + end);
        head.get_mut(skip as usize..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutter_gives_disjoint_ascending_packets_only() {
        let mut buf: Vec<u8> = (0..100).collect();
        let mut cutter = Cutter::new(&mut buf);
        assert_eq!(
            cutter.cut(&PacketSpan::new(10, 5, 0)).unwrap(),
            &[10, 11, 12, 13, 14]
        );
        assert!(
            cutter.cut(&PacketSpan::new(14, 3, 0)).is_none(),
            "reaches back"
        );
        assert!(cutter.cut(&PacketSpan::new(0, 3, 0)).is_none(), "before");
        assert!(
            cutter.cut(&PacketSpan::new(99, 2, 0)).is_none(),
            "past the end"
        );
        assert!(
            cutter
                .cut(&PacketSpan::new(u32::MAX, u32::MAX, 0))
                .is_none()
        );
        assert_eq!(cutter.cut(&PacketSpan::new(15, 0, 0)).unwrap().len(), 0);
        assert_eq!(cutter.cut(&PacketSpan::new(15, 85, 0)).unwrap().len(), 85);
        assert_eq!(cutter.cut(&PacketSpan::new(100, 0, 0)).unwrap().len(), 0);
        assert!(cutter.cut(&PacketSpan::new(100, 1, 0)).is_none());
    }
}
