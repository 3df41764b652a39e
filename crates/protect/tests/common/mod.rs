#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
//! Keys of every suite and kernel, and batches of equal packets.

use squall_protect::{
    HeaderKey, HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, Outcome, PacketKey, PacketSpan,
    Suite, TAG_LEN, kernels_available,
};

pub(crate) const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
pub(crate) const PN_OFFSET: usize = 9;
pub(crate) const HEADER_LEN: usize = PN_OFFSET + 4;
/// Form bit and fixed bit of a short header, and a number of four bytes.
const FIRST_BYTE: u8 = 0x43;

/// Keys for a kernel; `None` if it lacks the suite.
pub(crate) fn expand(
    packet: &KeyMaterial,
    header: &HeaderKeyMaterial,
    kind: KernelKind,
) -> Option<Keys> {
    Some(Keys {
        packet: PacketKey::with_kernel(packet, kind)?,
        header: HeaderKey::with_kernel(header, kind)?,
    })
}

/// The same keys for all kernels.
pub(crate) fn keys(suite: Suite, kind: KernelKind) -> Option<Keys> {
    let (key, hp) = ([0x3c; 32], [0xa7; 32]);
    let packet = KeyMaterial::new(suite, &key[..suite.key_len()], &[0x51; 12]).unwrap();
    let header = HeaderKeyMaterial::new(suite, &hp[..suite.key_len()]).unwrap();
    expand(&packet, &header, kind)
}

/// Runs a check for every suite and every kernel that has it.
pub(crate) fn for_every_kernel(mut check: impl FnMut(Suite, KernelKind, &Keys)) {
    let mut ran = 0;
    for suite in SUITES {
        for kind in kernels_available() {
            if let Some(keys) = keys(suite, kind) {
                check(suite, kind, &keys);
                ran += 1;
            }
        }
    }
    assert!(ran >= SUITES.len(), "the portable kernel has every suite");
}

/// Packets of one payload length, one after another, with plaintext that is never zero.
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) buf: Vec<u8>,
    pub(crate) spans: Vec<PacketSpan>,
    payload_len: usize,
}

impl Batch {
    pub(crate) fn new(payload_len: usize, count: usize) -> Self {
        let len = HEADER_LEN + payload_len + TAG_LEN;
        let mut buf: Vec<u8> = (0..len * count).map(|i| (i % 251) as u8 + 1).collect();
        let spans = (0..count).map(|i| {
            buf[i * len] = FIRST_BYTE;
            let number = i as u32 + 7;
            buf[i * len + PN_OFFSET..][..4].copy_from_slice(&number.to_be_bytes());
            PacketSpan {
                header_len: HEADER_LEN as u16,
                packet_number: number.into(),
                ..PacketSpan::new((i * len) as u32, len as u32, PN_OFFSET as u16)
            }
        });
        let spans = spans.collect();
        Self {
            buf,
            spans,
            payload_len,
        }
    }

    pub(crate) fn payload(&mut self, i: usize) -> &mut [u8] {
        let at = self.spans[i].start as usize + HEADER_LEN;
        &mut self.buf[at..at + self.payload_len]
    }

    pub(crate) fn tag(&mut self, i: usize) -> &mut [u8] {
        let at = self.spans[i].start as usize + HEADER_LEN + self.payload_len;
        &mut self.buf[at..at + TAG_LEN]
    }

    pub(crate) fn pend(&mut self) {
        self.spans
            .iter_mut()
            .for_each(|span| span.outcome = Outcome::Pending);
    }

    pub(crate) fn seal(&mut self, keys: &Keys) {
        keys.packet
            .seal(&keys.header, &mut self.buf, &mut self.spans, &[]);
    }

    /// Removes header protection and opens, with the packet numbers already expanded.
    pub(crate) fn open(&mut self, keys: &Keys) {
        self.pend();
        keys.header.unprotect(&mut self.buf, &mut self.spans);
        keys.packet.open(&mut self.buf, &mut self.spans, 0);
    }
}
