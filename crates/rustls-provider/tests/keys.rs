//! Packets through the interface of rustls: those of RFC 9001, and those of another provider.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider, aws_lc_rs};
use rustls::quic::{DirectionalKeys, Keys, Suite, Version};
use rustls::{CipherSuite, Side, SupportedCipherSuite, Tls13CipherSuite};

const SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

fn suite(provider: &CryptoProvider, name: CipherSuite) -> Suite {
    let suites = provider.cipher_suites.iter();
    let suite = suites
        .filter_map(SupportedCipherSuite::tls13)
        .find(|suite| suite.common.suite == name);
    suite.unwrap().quic_suite().unwrap()
}

fn wrapped() -> CryptoProvider {
    squall_rustls::wrap_all(aws_lc_rs::default_provider())
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

/// Seals a packet with this header and packet number.
fn seal(keys: &DirectionalKeys, number: u64, header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut payload = payload.to_vec();
    let tag = keys
        .packet
        .encrypt_in_place(number, header, &mut payload)
        .unwrap();
    let mut packet = [header, &payload, tag.as_ref()].concat();
    let number_at = header.len() - 1 - usize::from(header[0] & 3);
    let sample = packet[number_at + 4..][..keys.header.sample_len()].to_vec();
    let (head, rest) = packet.split_at_mut(number_at);
    let number = &mut rest[..header.len() - number_at];
    keys.header
        .encrypt_in_place(&sample, &mut head[0], number)
        .unwrap();
    packet
}

/// Opens a packet whose number begins there; returns header and payload.
fn open(
    keys: &DirectionalKeys,
    number: u64,
    number_at: usize,
    packet: &[u8],
) -> (Vec<u8>, Vec<u8>) {
    let mut packet = packet.to_vec();
    let sample = packet[number_at + 4..][..keys.header.sample_len()].to_vec();
    let (head, rest) = packet.split_at_mut(number_at);
    // Four bytes, as passed by a receiver that does not know the number's length yet.
    keys.header
        .decrypt_in_place(&sample, &mut head[0], &mut rest[..4])
        .unwrap();
    let header_len = number_at + 1 + usize::from(packet[0] & 3);
    let (header, payload) = packet.split_at_mut(header_len);
    let payload = keys
        .packet
        .decrypt_in_place(number, header, payload)
        .unwrap();
    (header.to_vec(), payload.to_vec())
}

#[test]
// test: RFC 9001 §A.3
fn the_rfcs_server_initial_packet_is_reproduced() {
    let suite = suite(&wrapped(), CipherSuite::TLS13_AES_128_GCM_SHA256);
    let dcid = hex("8394c8f03e515708");
    let keys = |side| Keys::initial(Version::V1, suite.suite, suite.quic, &dcid, side);
    let header = hex("c1000000010008f067a5502a4262b50040750001");
    let payload = hex(concat!(
        "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf73988cfc79825df566dc5430b9a04",
        "5a1200130100002e00330024001d00209d3c940d89690b84d08a60993c144eca684d1081287c834d5311bcf32b",
        "b9da1a002b00020304",
    ));
    let packet = hex(concat!(
        "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69797554",
        "780bb38cc5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b",
        "562bfb19fb84022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee",
    ));
    assert_eq!(
        seal(&keys(Side::Server).local, 1, &header, &payload),
        packet
    );
    let opened = open(&keys(Side::Client).remote, 1, 18, &packet);
    assert_eq!(opened, (header, payload));
}

#[test]
// test: RFC 9001 §A.5
fn the_rfcs_chacha20_packet_is_reproduced() {
    let suite = suite(&wrapped(), CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    let key = |text| AeadKey::from(<[u8; 32]>::try_from(hex(text)).unwrap());
    let packet_key = key("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8");
    let header_key = key("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4");
    let iv = Iv::from(<[u8; 12]>::try_from(hex("e0459b3474bdd0e44a41c144")).unwrap());
    let keys = DirectionalKeys {
        header: suite.quic.header_protection_key(header_key),
        packet: suite.quic.packet_key(packet_key, iv),
    };
    let packet = hex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
    let (number, header) = (654_360_564, hex("4200bff4"));
    assert_eq!(seal(&keys, number, &header, &[1]), packet);
    assert_eq!(open(&keys, number, 1, &packet), (header, vec![1]));
}

/// The same keys from both providers: the suite's, for some connection id.
fn both(name: CipherSuite) -> [Keys; 2] {
    [wrapped(), aws_lc_rs::default_provider()]
        .map(|provider| suite(&provider, name).keys(b"any", Side::Client, Version::V1))
}

#[test]
// test: RFC 9001 §5.3, §5.4
fn packets_match_the_wrapped_providers() {
    for name in SUITES {
        let [ours, stock] = both(name);
        for number_len in 1..=4 {
            for payload_len in [4, 20, 64, 300, 1200, 1452, 20_000] {
                for first in [0x40, 0xe0] {
                    // Also past the number from which a key has larger tables.
                    let number = 60 + payload_len as u64;
                    let payload: Vec<u8> = (0..payload_len).map(|i| (i * 3) as u8).collect();
                    let mut header = vec![first | (number_len - 1) as u8, 1, 2, 3, 4, 5, 6, 7];
                    header.extend(&number.to_be_bytes()[8 - number_len..]);
                    let packet = seal(&ours.local, number, &header, &payload);
                    assert!(
                        packet == seal(&stock.local, number, &header, &payload),
                        "{name:?}"
                    );
                    let expected = (header, payload);
                    assert!(
                        open(&ours.local, number, 8, &packet) == expected,
                        "{name:?}"
                    );
                    assert!(
                        open(&stock.local, number, 8, &packet) == expected,
                        "{name:?}"
                    );
                }
            }
        }
    }
}

#[test]
// test: draft-ietf-quic-multipath §2.4
fn a_path_is_part_of_the_nonce_as_in_the_wrapped_provider() {
    for name in SUITES {
        let [ours, stock] = both(name);
        let (ours, stock) = (ours.local.packet, stock.local.packet);
        for path_id in [0, 1, 0x0102_0304, u32::MAX] {
            let (mut payload, mut expected) = ([7; 100], [7; 100]);
            let tag = ours.encrypt_in_place_for_path(path_id, 99, b"header", &mut payload);
            let expected_tag =
                stock.encrypt_in_place_for_path(path_id, 99, b"header", &mut expected);
            let tag = tag.unwrap();
            assert_eq!(
                tag.as_ref(),
                expected_tag.unwrap().as_ref(),
                "{name:?} {path_id}"
            );
            assert_eq!(payload, expected);
            let mut received = [&payload[..], tag.as_ref()].concat();
            let other = path_id ^ 1;
            let mut copy = received.clone();
            let opened = ours.decrypt_in_place_for_path(other, 99, b"header", &mut copy);
            assert!(opened.is_err());
            let opened = ours.decrypt_in_place_for_path(path_id, 99, b"header", &mut received);
            assert_eq!(opened.unwrap(), [7; 100]);
        }
    }
}

#[test]
fn forged_or_too_short_packets_are_errors() {
    for name in SUITES {
        let [ours, _] = both(name);
        let (packet, header) = (ours.local.packet, ours.local.header);
        for len in [0, 15] {
            assert!(
                packet
                    .decrypt_in_place(1, b"header", &mut vec![0; len])
                    .is_err()
            );
        }
        let mut payload = [7; 50];
        let tag = packet.encrypt_in_place(1, b"header", &mut payload).unwrap();
        let received = [&payload[..], tag.as_ref()].concat();
        for damaged in [0, 49, 50, 65] {
            let mut received = received.clone();
            received[damaged] ^= 1;
            assert!(
                packet
                    .decrypt_in_place(1, b"header", &mut received)
                    .is_err()
            );
        }
        for (number, associated) in [(2, b"header"), (1, b"Header")] {
            assert!(
                packet
                    .decrypt_in_place(number, associated, &mut received.clone())
                    .is_err()
            );
        }
        // Nothing is modified if a length is wrong.
        let (mut first, mut number) = (0x43, [1; 5]);
        assert!(
            header
                .encrypt_in_place(&[0; 16], &mut first, &mut number)
                .is_err()
        );
        assert!(
            header
                .decrypt_in_place(&[0; 15], &mut first, &mut number[..4])
                .is_err()
        );
        assert_eq!((first, number), (0x43, [1; 5]));
    }
}

#[test]
// test: RFC 9001 §6.6, §B.1.1: for packets of up to 2^11 bytes; rustls' own limits are no higher.
fn limits_match_the_suite() {
    let expected = [(1 << 23, 1 << 52), (1 << 23, 1 << 52), (1 << 62, 1 << 36)];
    for (name, (confidentiality, integrity)) in SUITES.into_iter().zip(expected) {
        let [ours, _] = both(name);
        assert_eq!(ours.local.packet.confidentiality_limit(), confidentiality);
        assert_eq!(ours.local.packet.integrity_limit(), integrity);
        assert_eq!(ours.local.packet.tag_len(), 16);
        assert_eq!(ours.local.header.sample_len(), 16);
    }
}

#[test]
fn everything_but_quic_is_the_wrapped_providers() {
    let base = aws_lc_rs::default_provider();
    let ours = squall_rustls::wrap_all(base.clone());
    assert_eq!(ours.cipher_suites.len(), base.cipher_suites.len());
    for (ours, base) in ours.cipher_suites.iter().zip(&base.cipher_suites) {
        assert_eq!(ours.suite(), base.suite());
        if let (Some(ours), Some(base)) = (ours.tls13(), base.tls13()) {
            assert!(std::ptr::addr_eq(ours.hkdf_provider, base.hkdf_provider));
            assert!(std::ptr::addr_eq(ours.aead_alg, base.aead_alg));
            assert!(!std::ptr::addr_eq(ours.quic.unwrap(), base.quic.unwrap()));
        }
    }
    assert_eq!(ours.kx_groups.len(), base.kx_groups.len());
}

#[test]
fn chacha20_is_wrapped_only_if_its_kernel_is_wide() {
    let chacha20 = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
    let kernel = squall_protect::chosen_kernel(squall_protect::Suite::ChaCha20Poly1305);
    let is_wide = kernel == squall_protect::KernelKind::Avx512;
    let base = aws_lc_rs::default_provider();
    let ours = squall_rustls::wrap(base.clone());
    for name in SUITES {
        let (ours, base) = (suite(&ours, name).quic, suite(&base, name).quic);
        let is_kept = name == chacha20 && !is_wide;
        assert_eq!(std::ptr::addr_eq(ours, base), is_kept, "{name:?}");
    }

    // A provider without QUIC support gets it for every suite.
    let mut without = base;
    for suite in &mut without.cipher_suites {
        if let Some(with) = suite.tls13() {
            *suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: CipherSuiteCommon {
                    suite: with.common.suite,
                    hash_provider: with.common.hash_provider,
                    confidentiality_limit: with.common.confidentiality_limit,
                },
                hkdf_provider: with.hkdf_provider,
                aead_alg: with.aead_alg,
                quic: None,
            })));
        }
    }
    let ours = squall_rustls::wrap(without);
    for name in SUITES {
        assert_eq!(suite(&ours, name).suite.common.suite, name);
    }
}
