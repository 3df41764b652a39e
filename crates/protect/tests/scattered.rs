//! Packets whose parts lie anywhere, and nonces with a path id: every kernel does the same as
//! RustCrypto's AEADs, called here directly.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes128Gcm, Aes256Gcm, KeyInit};
use chacha20poly1305::ChaCha20Poly1305;
use common::{Batch, HEADER_LEN, for_every_kernel};
use squall_protect::{
    KeyMaterial, Outcome, PacketKey, PacketMemory, ScatteredPacket, Suite, TAG_LEN,
    kernels_available,
};

const KEY: [u8; 32] = [0x3c; 32];
const IV: [u8; 12] = [0x51; 12];
const HEADER_LENS: [usize; 8] = [0, 1, 5, 13, 16, 17, 33, 40];
/// Lengths around blocks, chunks and the room for copies.
const PAYLOAD_LENS: [usize; 16] = [
    0, 1, 3, 15, 16, 17, 63, 64, 65, 68, 255, 300, 1200, 1452, 9000, 17_000,
];
const PATHS: [u32; 4] = [0, 1, 0x0102_0304, u32::MAX];

/// draft-ietf-quic-multipath §2.4: 32 bits of path id, two zero bits and 62 of packet number.
fn nonce(path_id: u32, number: u64) -> [u8; 12] {
    let combined = u128::from(path_id) << 64 | u128::from(number);
    let [_, _, _, _, combined @ ..] = combined.to_be_bytes();
    std::array::from_fn(|i| IV[i] ^ combined[i])
}

/// The slow twin.
fn seal_one(suite: Suite, nonce: [u8; 12], header: &[u8], payload: &mut [u8]) -> [u8; TAG_LEN] {
    let (nonce, payload) = ((&nonce).into(), InOutBuf::from(payload));
    let tag = match suite {
        Suite::Aes128Gcm => Aes128Gcm::new_from_slice(&KEY[..16])
            .unwrap()
            .encrypt_inout_detached(nonce, header, payload),
        Suite::Aes256Gcm => {
            Aes256Gcm::new(&KEY.into()).encrypt_inout_detached(nonce, header, payload)
        }
        Suite::ChaCha20Poly1305 => {
            ChaCha20Poly1305::new(&KEY.into()).encrypt_inout_detached(nonce, header, payload)
        }
    };
    tag.unwrap().into()
}

/// A packet in owned memory, and its expected result.
#[derive(Clone)]
struct Owned {
    is_whole: bool,
    number: u64,
    path_id: u32,
    header: Vec<u8>,
    /// Plaintext in place; the last `source_len` bytes are in `source`.
    plain: Vec<u8>,
    source_len: usize,
    sealed: Vec<u8>,
    tag: [u8; TAG_LEN],
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed * 13 + 1) as u8).collect()
}

fn owned(suite: Suite) -> Vec<Owned> {
    let shapes = HEADER_LENS
        .into_iter()
        .flat_map(|header| PAYLOAD_LENS.map(|payload| (header, payload)));
    let shapes = shapes.enumerate().map(|(i, (header_len, payload_len))| {
        let (header, plain) = (bytes(header_len, i), bytes(payload_len, i + 1));
        let (path_id, number) = (PATHS[i / 3 % 4], ((1 << 62) - 1) >> (i % 61));
        let mut sealed = plain.clone();
        let tag = seal_one(suite, nonce(path_id, number), &header, &mut sealed);
        Owned {
            is_whole: i % 5 > 2,
            number,
            path_id,
            header,
            source_len: [0, payload_len, payload_len / 3][i / 2 % 3],
            plain,
            sealed,
            tag,
        }
    });
    shapes.collect()
}

/// The bytes of a packet where it lies: in one piece, or in three.
struct Memory {
    whole: Vec<u8>,
    header: Vec<u8>,
    payload: Vec<u8>,
    tag: [u8; TAG_LEN],
    source: Vec<u8>,
}

impl Memory {
    /// A payload whose end is still elsewhere.
    fn new(owned: &Owned, payload: &[u8], tag: [u8; TAG_LEN]) -> Self {
        let (head, source) = payload.split_at(payload.len() - owned.source_len);
        let mut payload = head.to_vec();
        payload.resize(owned.plain.len(), 0xee);
        Self {
            whole: [&owned.header, &payload, &tag[..]].concat(),
            header: owned.header.clone(),
            payload,
            tag,
            source: source.to_vec(),
        }
    }

    fn packet(&mut self, owned: &Owned) -> ScatteredPacket<'_> {
        let memory = if owned.is_whole {
            PacketMemory::Whole {
                packet: &mut self.whole,
                header_len: owned.header.len(),
            }
        } else {
            PacketMemory::Parts {
                header: &self.header,
                payload: &mut self.payload,
                tag: &mut self.tag,
            }
        };
        ScatteredPacket {
            source: &self.source,
            path_id: owned.path_id,
            ..ScatteredPacket::new(memory, owned.number)
        }
    }

    /// Header, payload and tag, wherever they lie.
    fn all(&self, owned: &Owned) -> Vec<u8> {
        if owned.is_whole {
            self.whole.clone()
        } else {
            [&self.header, &self.payload, &self.tag[..]].concat()
        }
    }
}

/// Processes all packets, a number of them per call; returns memory and outcomes.
fn work(
    owned: &[Owned],
    mut memory: Vec<Memory>,
    in_a_call: usize,
    work: impl Fn(&mut [ScatteredPacket<'_>]),
) -> (Vec<Vec<u8>>, Vec<Outcome>) {
    let mut packets: Vec<_> = (memory.iter_mut().zip(owned))
        .map(|(memory, owned)| memory.packet(owned))
        .collect();
    packets.chunks_mut(in_a_call).for_each(work);
    let outcomes = packets.iter().map(|packet| packet.outcome).collect();
    drop(packets);
    let all = memory.iter().zip(owned).map(|(memory, it)| memory.all(it));
    (all.collect(), outcomes)
}

#[test]
// test: RFC 9001 §5.3, draft-ietf-quic-multipath §2.4
fn scattered_packets_agree_with_the_slow_twin() {
    for_every_kernel(|suite, kind, keys| {
        let owned = owned(suite);
        for in_a_call in [1, 5, 17, owned.len()] {
            let plain = |owned: &Owned| Memory::new(owned, &owned.plain, [0xdd; TAG_LEN]);
            let memory = owned.iter().map(plain).collect();
            let seal = |packets: &mut [ScatteredPacket<'_>]| keys.packet.seal_scattered(packets);
            let (sealed, outcomes) = work(&owned, memory, in_a_call, seal);
            for ((sealed, outcome), owned) in sealed.iter().zip(outcomes).zip(&owned) {
                assert_eq!(outcome, Outcome::Open);
                let expected = [&owned.header, &owned.sealed, &owned.tag[..]].concat();
                let (header_len, payload_len) = (owned.header.len(), owned.plain.len());
                assert!(
                    *sealed == expected,
                    "{suite:?} {kind:?} {header_len} {payload_len}"
                );
            }
            let received = |owned: &Owned| Memory::new(owned, &owned.sealed, owned.tag);
            let memory = owned.iter().map(received).collect();
            let open = |packets: &mut [ScatteredPacket<'_>]| keys.packet.open_scattered(packets);
            let (opened, outcomes) = work(&owned, memory, in_a_call, open);
            for ((opened, outcome), owned) in opened.iter().zip(outcomes).zip(&owned) {
                assert_eq!(outcome, Outcome::Open);
                let expected = [&owned.header, &owned.plain, &owned.tag[..]].concat();
                assert!(*opened == expected, "{suite:?} {kind:?}");
            }
        }
    });
}

#[test]
fn a_forged_packet_is_wiped_and_affects_no_other() {
    for_every_kernel(|suite, kind, keys| {
        let genuine = owned(suite);
        let mut received = genuine.clone();
        for (i, owned) in received.iter_mut().enumerate().step_by(3) {
            match (i / 3 % 5, &mut *owned.header, &mut *owned.sealed) {
                (0, [first, ..], _) => *first ^= 1,
                (1, _, [.., last]) => *last ^= 0x80,
                (2, ..) => owned.number ^= 1,
                (3, ..) => owned.path_id ^= 1 << 31,
                _ => owned.tag[15] ^= 1,
            }
        }
        let memory = received
            .iter()
            .map(|owned| Memory::new(owned, &owned.sealed, owned.tag));
        let open = |packets: &mut [ScatteredPacket<'_>]| keys.packet.open_scattered(packets);
        let (opened, outcomes) = work(&received, memory.collect(), 23, open);
        for (i, (opened, owned)) in opened.iter().zip(&received).enumerate() {
            let is_forged = i % 3 == 0;
            let (outcome, payload) = if is_forged {
                (Outcome::Forged, vec![0; owned.plain.len()])
            } else {
                (Outcome::Open, owned.plain.clone())
            };
            assert_eq!(outcomes[i], outcome, "{suite:?} {kind:?} {i}");
            let expected = [&owned.header, &payload, &owned.tag[..]].concat();
            assert!(*opened == expected, "{suite:?} {kind:?} {i}");
        }
    });
}

#[test]
fn invalid_or_settled_packets_are_left_untouched() {
    for_every_kernel(|_, _, keys| {
        let (mut first, mut second, mut third, mut fourth) = ([1; 40], [2; 20], [3; 24], [4; 24]);
        let (mut payload, mut tag) = ([5; 24], [6; TAG_LEN]);
        let whole = |packet, header_len| {
            ScatteredPacket::new(PacketMemory::Whole { packet, header_len }, 7)
        };
        let parts = PacketMemory::Parts {
            header: &[0x40],
            payload: &mut payload,
            tag: &mut tag,
        };
        let mut packets = [
            whole(&mut first, 4),
            // No room for header and tag.
            whole(&mut second, 5),
            // RFC 9000 §12.3: above 2^62-1.
            ScatteredPacket {
                packet_number: 1 << 62,
                ..whole(&mut third, 4)
            },
            // A source longer than the payload.
            ScatteredPacket {
                source: &[0; 5],
                ..whole(&mut fourth, 4)
            },
            ScatteredPacket {
                outcome: Outcome::NoKey,
                ..ScatteredPacket::new(parts, 7)
            },
        ];
        keys.packet.seal_scattered(&mut packets);
        let outcomes = packets.map(|packet| packet.outcome);
        let [opened, refused @ .., foreign] = outcomes;
        assert_eq!((opened, foreign), (Outcome::Open, Outcome::NoKey));
        assert_eq!(refused, [Outcome::Skip; 3]);
        assert_ne!(first, [1; 40]);
        assert_eq!((second, third, fourth), ([2; 20], [3; 24], [4; 24]));
        assert_eq!((payload, tag), ([5; 24], [6; TAG_LEN]));
    });
}

#[test]
// test: draft-ietf-quic-multipath §2.4, Figure 3
fn the_nonce_matches_the_draft() {
    let iv = *b"\x6b\x26\x11\x4b\x9c\xba\x2b\x63\xa9\xe8\xdd\x4f";
    let nonce = *b"\x6b\x26\x11\x48\x9c\xba\x2b\x63\xa9\xe8\x09\x7e";
    for suite in common::SUITES {
        for kind in kernels_available() {
            let key = |iv| {
                let material = KeyMaterial::new(suite, &KEY[..suite.key_len()], iv).unwrap();
                PacketKey::with_kernel(&material, kind)
            };
            // The nonce as it is, as number 0 without a path, and built from its parts.
            let (Some(plain), Some(key)) = (key(&nonce), key(&iv)) else {
                continue;
            };
            for payload_len in [20, 300] {
                let mut expected = Batch::new(payload_len, 1);
                expected.spans[0].packet_number = 0;
                let mut batch = expected.clone();
                batch.spans[0].packet_number = 54_321;
                plain.seal_aead(&mut expected.buf, &mut expected.spans, &[]);
                let path = key.on_path(3);
                path.seal_aead(&mut batch.buf, &mut batch.spans, &[]);
                assert_eq!(batch.buf, expected.buf, "{suite:?} {kind:?}");

                batch.pend();
                key.on_path(2)
                    .open(&mut batch.buf.clone(), &mut batch.spans, 0);
                assert_eq!(batch.spans[0].outcome, Outcome::Forged, "another path");
                batch.pend();
                path.open(&mut batch.buf, &mut batch.spans, 0);
                assert_eq!(batch.spans[0].outcome, Outcome::Open);
            }
        }
    }
}

#[test]
fn header_protection_does_not_depend_on_the_path() {
    // test: draft-ietf-quic-multipath changes the nonce alone: masks are those of RFC 9001 §5.4.
    for_every_kernel(|suite, kind, keys| {
        let mut batch = Batch::new(100, 20);
        let plain = batch.buf.clone();
        let path = keys.packet.on_path(9);
        path.seal(&keys.header, &mut batch.buf, &mut batch.spans, &[]);
        batch.pend();
        keys.header.unprotect(&mut batch.buf, &mut batch.spans);
        path.open(&mut batch.buf, &mut batch.spans, 0);
        for span in &batch.spans {
            assert_eq!(span.outcome, Outcome::Open, "{suite:?} {kind:?}");
            let range = span.start as usize..(span.start + span.len) as usize - TAG_LEN;
            assert!(range.len() > HEADER_LEN);
            assert_eq!(batch.buf[range.clone()], plain[range]);
        }
    });
}
