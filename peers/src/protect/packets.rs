//! The packets that all contenders process: 64 distinct ones one after another in one buffer, as in
//! a bundle.

use squall_protect::{PacketSpan, TAG_LEN};

/// Distinct packets.
pub(crate) const PACKETS: usize = 64;
/// First byte and a connection id of 8 bytes.
pub(crate) const PN_OFFSET: usize = 9;
/// With a packet number of 4 bytes.
pub(crate) const HEADER_LEN: usize = PN_OFFSET + 4;
/// Where the sample of header protection begins: 4 bytes after the start of the number (RFC 9001
/// §5.4.2).
pub(crate) const SAMPLE_OFFSET: usize = PN_OFFSET + 4;
/// Short header (RFC 9000 §17.3.1): the fixed bit, a number of four bytes.
const FIRST_BYTE: u8 = 0x43;
const FIRST_NUMBER: u32 = 0x00c0_ffee;
/// Copies of the 64 packets follow each other up to this many bytes: a first-level cache's worth.
const COPIES_LEN: usize = 32 * 1024;

/// Packets as they stand at one moment.
#[derive(Clone)]
pub(crate) struct Packets {
    /// Header, payload, and the tag or room for it, one packet directly after another.
    pub(crate) buf: Vec<u8>,
    /// One for each packet.
    pub(crate) spans: Vec<PacketSpan>,
    /// Bytes of a packet.
    pub(crate) len: usize,
}

impl Packets {
    /// Unsealed packets with `size` bytes of payload: as many copies of the 64 as fit the cache, at
    /// least one.
    pub(crate) fn plain(size: usize) -> Self {
        let mut packets = Self {
            buf: Vec::new(),
            spans: Vec::new(),
            len: 0,
        };
        packets.fill(size);
        packets
    }

    /// Makes these unsealed packets of another size; in the same memory, if it held larger ones.
    pub(crate) fn fill(&mut self, size: usize) {
        let len = HEADER_LEN + size + TAG_LEN;
        let copies = (COPIES_LEN / (PACKETS * len)).max(1);
        let Self { buf, spans, .. } = self;
        buf.clear();
        buf.resize(PACKETS * copies * len, 0);
        spans.clear();
        for (at, packet) in buf.chunks_exact_mut(len).enumerate() {
            let index = at % PACKETS;
            let number = FIRST_NUMBER + index as u32;
            for (offset, byte) in packet[..len - TAG_LEN].iter_mut().enumerate() {
                *byte = (offset * 31 + index * 7) as u8;
            }
            packet[0] = FIRST_BYTE;
            packet[PN_OFFSET..HEADER_LEN].copy_from_slice(&number.to_be_bytes());
            spans.push(PacketSpan {
                header_len: HEADER_LEN as u16,
                packet_number: number.into(),
                ..PacketSpan::new((at * len) as u32, len as u32, PN_OFFSET as u16)
            });
        }
        self.len = len;
    }

    /// Makes these packets equal to `pristine`.
    pub(crate) fn restore(&mut self, pristine: &Self) {
        self.buf.copy_from_slice(&pristine.buf);
        self.spans.copy_from_slice(&pristine.spans);
    }

    /// Header and payload of a packet, without its tag.
    pub(crate) fn content(&self, index: usize) -> &[u8] {
        &self.buf[index * self.len..(index + 1) * self.len - TAG_LEN]
    }
}
