//! The packets of RFC 9001 Appendix A and RFC 9369 Appendix A, through the public interface and
//! through every kernel.

#![allow(
    clippy::unwrap_used,
    reason = "a broken vector file should fail the test"
)]

mod common;

use serde_json::Value;
use squall_protect::{
    HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, MASK_LEN, Outcome, PacketSpan, Suite,
    TAG_LEN, initial, kernels_available, retry,
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

/// Opens the vector's packet with `keys`, and seals its payload into the vector's packet again.
fn check(case: &Value, keys: &mut Keys) {
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
}

#[test]
// test: RFC 9001 §A.1 to §A.3, RFC 9369 §A.1 to §A.3
fn initial_packets() {
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
                if let Some(mut keys) = keys_of(Suite::Aes128Gcm, &case["keys"], kind) {
                    check(case, &mut keys);
                }
            }
        }
    }
}

#[test]
// test: RFC 9001 §A.4, RFC 9369 §A.4
fn retry_integrity_tag() {
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
fn chacha20_short_header_packet() {
    let mut ran = 0;
    for appendix in appendices() {
        let case = &appendix["chacha20_short"];
        for kind in kernels_available() {
            let Some(mut keys) = keys_of(Suite::ChaCha20Poly1305, &case["keys"], kind) else {
                assert_ne!(kind, KernelKind::Portable);
                continue;
            };
            check(case, &mut keys);
            ran += 1;
        }
    }
    assert!(ran >= 2);
}
