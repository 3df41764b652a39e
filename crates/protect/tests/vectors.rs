//! The packets of RFC 9001 Appendix A and RFC 9369 Appendix A, through the public interface and
//! through every kernel.

#![allow(
    clippy::unwrap_used,
    reason = "a broken vector file should fail the test"
)]

mod common;

use serde_json::Value;
use squall_protect::{
    HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, MASK_LEN, Outcome, PacketMemory, PacketSpan,
    ScatteredPacket, Suite, TAG_LEN, initial, kernels_available, retry,
};

fn appendices() -> [Value; 2] {
    [
        include_str!("vectors/rfc9001/appendix_a.json"),
        include_str!("vectors/rfc9369/appendix_a.json"),
    ]
    .map(|text| serde_json::from_str(text).unwrap())
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

fn keys_of(suite: Suite, keys: &Value, kind: KernelKind) -> Option<Keys> {
    let iv = hex(&keys["iv"]).try_into().unwrap();
    let packet = KeyMaterial::new(suite, &hex(&keys["key"]), &iv).unwrap();
    let header = HeaderKeyMaterial::new(suite, &hex(&keys["hp"])).unwrap();
    common::expand(&packet, &header, kind)
}

/// Opens the vector's packet with `keys`, and seals its payload back into the vector's packet.
fn check(case: &Value, keys: &Keys) {
    let (sealed, header, payload) = (
        hex(&case["packet"]),
        hex(&case["header"]),
        hex(&case["payload"]),
    );
    let number = case["pn"].as_u64().unwrap();
    let pn_len = usize::from(header[0] & 3) + 1;
    let pn_offset = (header.len() - pn_len) as u16;

    let mut masks = [[0; MASK_LEN]];
    let sample = hex(&case["sample"]).try_into().unwrap();
    keys.header.masks(&[sample], &mut masks);
    assert_eq!(masks[0], *hex(&case["mask"]));

    let mut buf = sealed.clone();
    let mut spans = [PacketSpan::new(0, buf.len() as u32, pn_offset)];
    keys.header.unprotect(&mut buf, &mut spans);
    assert_eq!(buf[..header.len()], header);
    assert_eq!(usize::from(spans[0].header_len), header.len());
    assert_eq!(
        spans[0].packet_number,
        number & (u64::MAX >> (64 - 8 * pn_len))
    );
    assert_eq!(spans[0].outcome, Outcome::Pending);
    spans[0].packet_number = number;
    keys.packet.open(&mut buf, &mut spans, 0);
    assert_eq!(spans[0].outcome, Outcome::Open);
    let end = buf.len() - TAG_LEN;
    assert_eq!(buf[header.len()..end], payload);

    spans[0].outcome = Outcome::Pending;
    buf[end..].fill(0xee);
    keys.packet.seal(&keys.header, &mut buf, &mut spans, &[]);
    assert_eq!(spans[0].outcome, Outcome::Open);
    assert_eq!(buf, sealed);
    check_in_parts(&header, &payload, (number, &masks[0]), &sealed, keys);
}

/// The same packet with header, payload and tag apart, and its mask applied here.
fn check_in_parts(
    header: &[u8],
    plain: &[u8],
    (number, mask): (u64, &[u8; MASK_LEN]),
    sealed: &[u8],
    keys: &Keys,
) {
    let (mut payload, mut tag) = (plain.to_vec(), [0; TAG_LEN]);
    let in_parts = PacketMemory::Parts {
        header,
        payload: &mut payload,
        tag: &mut tag,
    };
    let mut packets = [ScatteredPacket::new(in_parts, number)];
    keys.packet.seal_scattered(&mut packets);
    assert_eq!(packets[0].outcome, Outcome::Open);

    let mut protected = header.to_vec();
    let number_at = header.len() - 1 - usize::from(header[0] & 3);
    // RFC 9001 §5.4.1
    protected[0] ^= mask[0] & if header[0] & 0x80 == 0 { 0x1f } else { 0x0f };
    for (byte, mask) in protected[number_at..].iter_mut().zip(&mask[1..]) {
        *byte ^= mask;
    }
    assert_eq!([&protected[..], &payload, &tag].concat(), sealed);

    let in_parts = PacketMemory::Parts {
        header,
        payload: &mut payload,
        tag: &mut tag,
    };
    let mut packets = [ScatteredPacket::new(in_parts, number)];
    keys.packet.open_scattered(&mut packets);
    assert_eq!(packets[0].outcome, Outcome::Open);
    assert_eq!(payload, plain);
}

#[test]
// test: RFC 9001 §A.1 to §A.3, RFC 9369 §A.1 to §A.3
fn the_rfcs_initial_packets_are_reproduced() {
    for appendix in appendices() {
        let version = appendix["version"].as_u64().unwrap() as u32;
        let dcid = hex(&appendix["client_dcid"]);
        let mut client = initial::keys(version, &dcid, true);
        let mut server = initial::keys(version, &dcid, false);
        for keys in [&mut client.local, &mut server.remote] {
            check(&appendix["client_initial"], keys);
        }
        for keys in [&mut server.local, &mut client.remote] {
            check(&appendix["server_initial"], keys);
        }
        for kind in kernels_available() {
            for case in ["client_initial", "server_initial"] {
                let case = &appendix[case];
                if let Some(keys) = keys_of(Suite::Aes128Gcm, &case["keys"], kind) {
                    check(case, &keys);
                }
            }
        }
    }
}

#[test]
// test: RFC 9001 §A.4, RFC 9369 §A.4
fn the_rfcs_retry_integrity_tag_is_reproduced() {
    for appendix in appendices() {
        let version = appendix["version"].as_u64().unwrap() as u32;
        let packet = hex(&appendix["retry"]["packet"]);
        let odcid = hex(&appendix["retry"]["odcid"]);
        let (rest, tag) = packet.split_at(packet.len() - TAG_LEN);
        assert_eq!(retry::integrity_tag(version, &odcid, rest), tag);
        assert_ne!(retry::integrity_tag(version, &odcid[1..], rest), tag);
    }
}

#[test]
// test: RFC 9001 §A.5, RFC 9369 §A.5
fn the_rfcs_chacha20_packet_is_reproduced() {
    let mut ran = 0;
    for appendix in appendices() {
        let case = &appendix["chacha20_short"];
        for kind in kernels_available() {
            let Some(keys) = keys_of(Suite::ChaCha20Poly1305, &case["keys"], kind) else {
                assert_ne!(kind, KernelKind::Portable);
                continue;
            };
            check(case, &keys);
            ran += 1;
        }
    }
    assert!(ran >= 2);
}
