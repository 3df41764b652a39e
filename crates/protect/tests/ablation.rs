//! Every way to combine header protection and AEAD gives the packets that `seal` gives, and opens them.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use squall_protect::ablation::{self, Way};
use squall_protect::{
    HeaderKey, HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, Outcome, PacketKey, PacketSpan,
    Suite, TAG_LEN, kernels_available,
};

const WAYS: [Way; 6] = [
    Way::OneByOne,
    Way::Batched(8),
    Way::Batched(32),
    Way::Batched(0),
    Way::Fused,
    Way::FusedAndBatched,
];
const PN_OFFSET: usize = 9;
const HEADER_LEN: usize = PN_OFFSET + 4;

fn keys(suite: Suite, kind: KernelKind) -> Option<Keys> {
    let key = [0x77; 32];
    let packet = KeyMaterial::new(suite, &key[..suite.key_len()], &[9; 12]).unwrap();
    let header = HeaderKeyMaterial::new(suite, &key[..suite.key_len()]).unwrap();
    Some(Keys {
        packet: PacketKey::with_kernel(&packet, kind)?,
        header: HeaderKey::with_kernel(&header, kind)?,
    })
}

fn packets(payload_len: usize, count: usize) -> (Vec<u8>, Vec<PacketSpan>) {
    let len = HEADER_LEN + payload_len + TAG_LEN;
    let mut buf: Vec<u8> = (0..len * count).map(|i| ((i * 7) >> 2) as u8).collect();
    let spans = (0..count).map(|i| {
        buf[i * len] = 0x43;
        buf[i * len + PN_OFFSET..][..4].copy_from_slice(&(i as u32).to_be_bytes());
        PacketSpan {
            header_len: HEADER_LEN as u16,
            packet_number: i as u64,
            ..PacketSpan::new((i * len) as u32, len as u32, PN_OFFSET as u16)
        }
    });
    let spans = spans.collect();
    (buf, spans)
}

fn pending(spans: &[PacketSpan]) -> Vec<PacketSpan> {
    let mut spans = spans.to_vec();
    spans
        .iter_mut()
        .for_each(|span| span.outcome = Outcome::Pending);
    spans
}

#[test]
fn all_ways_give_the_same_packets() {
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    for (suite, kind) in suites
        .into_iter()
        .flat_map(|s| kernels_available().into_iter().map(move |k| (s, k)))
    {
        let Some(mut keys) = keys(suite, kind) else {
            continue;
        };
        for payload_len in [4, 16, 64, 300, 1450] {
            let (plain, spans) = packets(payload_len, 35);
            let (mut sealed, mut done) = (plain.clone(), spans.clone());
            keys.packet.seal(&keys.header, &mut sealed, &mut done, &[]);
            for way in WAYS
                .into_iter()
                .filter(|way| ablation::has(*way, &keys))
                .collect::<Vec<_>>()
            {
                let (mut buf, mut done) = (plain.clone(), spans.clone());
                ablation::seal(way, &mut keys, &mut buf, &mut done, &[]);
                assert!(
                    buf == sealed,
                    "{kind:?} {suite:?} {way:?} seals {payload_len}"
                );
                let mut done = pending(&done);
                ablation::open(way, &mut keys, &mut buf, &mut done);
                assert!(done.iter().all(|span| span.outcome == Outcome::Open));
                let payload = HEADER_LEN..HEADER_LEN + payload_len;
                assert_eq!(
                    buf[payload.clone()],
                    plain[payload],
                    "{kind:?} {suite:?} {way:?}"
                );
            }
            let (mut buf, mut done) = (plain.clone(), spans.clone());
            ablation::seal(Way::AeadAlone, &mut keys, &mut buf, &mut done, &[]);
            assert_eq!(
                buf[..HEADER_LEN],
                plain[..HEADER_LEN],
                "the header stays as it is"
            );
            let len = HEADER_LEN + payload_len + TAG_LEN;
            assert_eq!(buf[HEADER_LEN..len], sealed[HEADER_LEN..len]);
        }
    }
}
