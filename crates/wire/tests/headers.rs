//! Headers: RFC 8999 §5 and §6, RFC 9000 §17, RFC 9369 §3.2, RFC 9287 §3.

use proptest::prelude::*;
use squall_wire::header::{
    destination, long_header_size, parse, parse_with, patch_length, short_header_size, write_long,
    write_retry, write_short, write_version_negotiation,
};
use squall_wire::{
    ConnectionId, FixedBit, Header, HeaderError, LongType, Reader, VERSION_1, VERSION_2, Writer,
    is_long,
};

/// What `put` writes.
fn written(put: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut buf = vec![0xee; 2048];
    let mut w = Writer::new(&mut buf);
    put(&mut w);
    assert!(!w.overflow());
    let len = w.len();
    buf.truncate(len);
    buf
}

/// A long-header packet of version 1 from its first byte, connection ids and what follows.
fn long(first: u8, dcid: &[u8], scid: &[u8], rest: &[u8]) -> Vec<u8> {
    let lens = (dcid.len() as u8, scid.len() as u8);
    [&[first, 0, 0, 0, 1, lens.0], dcid, &[lens.1], scid, rest].concat()
}

// test: RFC 9000 §17.2, table 5; RFC 9369 §3.2
#[test]
fn long_packet_types_are_numbered_by_version() {
    use LongType::{Handshake, Initial, Retry, ZeroRtt};
    for (version, types) in [
        (VERSION_1, [Initial, ZeroRtt, Handshake, Retry]),
        (VERSION_2, [Retry, Initial, ZeroRtt, Handshake]),
    ] {
        for (number, ty) in (0..).zip(types) {
            assert_eq!(ty.number(version), number);
            assert_eq!(
                LongType::from_first_byte(0xc0 | (number << 4) | 0x0f, version),
                ty
            );
        }
    }
}

#[test]
fn a_truncated_long_header_is_an_error() {
    let packet = written(|w| {
        let id = ConnectionId::new(&[1, 2, 3, 4]).unwrap();
        write_long(w, LongType::Initial, VERSION_1, &id, &id, b"token", 9, 2);
    });
    for len in 0..packet.len() - 4 {
        assert_eq!(
            parse(&packet[..len], 4),
            Err(HeaderError::Truncated),
            "{len}"
        );
    }
    // The Length is zero before it is patched: no room for a packet number.
    assert_eq!(parse(&packet, 4), Err(HeaderError::Length));
}

#[test]
fn malformed_packets_have_their_error() {
    let twenty_one = [0; 21];
    let cases: [(&str, Vec<u8>, HeaderError); 13] = [
        ("nothing", vec![], HeaderError::Truncated),
        // RFC 9000 §17.2, §17.3.1
        (
            "fixed bit, long",
            long(0x80, &[], &[], &[0, 1, 0]),
            HeaderError::FixedBit,
        ),
        ("fixed bit, short", vec![0x00; 30], HeaderError::FixedBit),
        // RFC 9000 §17.2
        (
            "long dcid",
            long(0xc0, &twenty_one, &[], &[0, 1, 0]),
            HeaderError::ConnectionId,
        ),
        (
            "long scid",
            long(0xc0, &[], &twenty_one, &[0, 1, 0]),
            HeaderError::ConnectionId,
        ),
        (
            "token beyond the end",
            long(0xc0, &[], &[], &[2, 1]),
            HeaderError::Truncated,
        ),
        (
            "length beyond the end",
            long(0xc0, &[], &[], &[0, 3, 1, 2]),
            HeaderError::Length,
        ),
        (
            "length of 2^62 - 1",
            long(0xe0, &[], &[], &[0xff; 8]),
            HeaderError::Length,
        ),
        (
            "length of zero",
            long(0xe0, &[], &[], &[0, 1]),
            HeaderError::Length,
        ),
        (
            "Retry without room for a tag",
            long(0xf0, &[], &[], &[0; 15]),
            HeaderError::Truncated,
        ),
        // RFC 9000 §17.2.5.2
        (
            "Retry without a token",
            long(0xf0, &[], &[], &[0; 16]),
            HeaderError::Length,
        ),
        (
            "short without a packet number",
            vec![0x40, 1, 2, 3, 4],
            HeaderError::Truncated,
        ),
        (
            "short without its connection id",
            vec![0x40, 1, 2],
            HeaderError::Truncated,
        ),
    ];
    for (name, packet, error) in cases {
        assert_eq!(parse(&packet, 4), Err(error), "{name}");
    }
    // RFC 8999 §6: no version, and one cut off.
    for versions in [&[][..], &[0, 0, 0], &[0, 0, 0, 1, 0]] {
        let packet = [&[0x80, 0, 0, 0, 0, 0, 0], versions].concat();
        assert_eq!(parse(&packet, 4), Err(HeaderError::Length));
    }
}

// A Retry's tag must not be taken from the connection ids.
#[test]
fn the_tag_of_a_retry_does_not_overlap_its_connection_ids() {
    let id = [0; 20];
    for len in 0..16 {
        let packet = long(0xf0, &id, &id, &vec![0; len]);
        assert_eq!(parse(&packet, 0), Err(HeaderError::Truncated));
    }
}

// test: RFC 9287 §3
#[test]
fn a_cleared_fixed_bit_is_accepted_only_if_offered() {
    let packet = [&[0x00, 1, 2, 3, 4][..], &[0; 20]].concat();
    let dcid = ConnectionId::new(&[1, 2, 3, 4]).unwrap();
    let short = Header::Short {
        dcid,
        pn_offset: 5,
        len: 25,
    };
    assert_eq!(parse_with(&packet, 4, FixedBit::Greased), Ok(short));
    assert_eq!(
        parse_with(&packet, 4, FixedBit::Required),
        Err(HeaderError::FixedBit)
    );
    let packet = long(0xa0, &[], &[], &[1, 0]);
    assert!(matches!(
        parse_with(&packet, 4, FixedBit::Greased),
        Ok(Header::Long {
            ty: LongType::Handshake,
            ..
        })
    ));
}

// test: RFC 8999 §5.1: connection ids of other versions may have up to 255 bytes
#[test]
fn long_connection_ids_of_other_versions_are_preserved() {
    let (dcid, scid) = (vec![5; 255], vec![6; 100]);
    let mut packet = long(0x80, &dcid, &scid, &[1, 2, 3]);
    packet[1..5].copy_from_slice(&[0x0a, 0x1a, 0x2a, 0x3a]);
    let version = 0x0a1a_2a3a;
    assert_eq!(
        parse(&packet, 8),
        Ok(Header::Unsupported {
            version,
            dcid: &dcid,
            scid: &scid
        })
    );
    assert_eq!(destination(&packet, 8), Some(&dcid[..]));
}

// test: RFC 9000 §17.2.1
#[test]
fn version_negotiation_round_trips() {
    let (dcid, scid) = (vec![5; 255], vec![6; 3]);
    for random in [0, 0xff] {
        let packet = written(|w| {
            write_version_negotiation(w, &dcid, &scid, &[VERSION_2, VERSION_1], random);
        });
        assert_eq!(packet[0] & 0xc0, 0xc0);
        let Ok(Header::VersionNegotiation {
            dcid: d,
            scid: s,
            versions,
        }) = parse(&packet, 8)
        else {
            panic!("{:?}", parse(&packet, 8));
        };
        assert_eq!((d, s), (&dcid[..], &scid[..]));
        let mut r = Reader::new(versions);
        assert_eq!(
            (r.u32(), r.u32(), r.is_empty()),
            (Ok(VERSION_2), Ok(VERSION_1), true)
        );
    }
}

#[test]
fn destination_is_where_parse_finds_it() {
    let id = ConnectionId::new(&[1, 2, 3, 4, 5]).unwrap();
    let other = ConnectionId::new(&[9; 20]).unwrap();
    let short = written(|w| write_short(w, &id, false, false, 0, 1));
    assert_eq!(destination(&short, 5), Some(id.as_slice()));
    assert_eq!(destination(&short[..5], 5), None);
    assert_eq!(destination(&[], 0), None);
    assert_eq!(destination(&short, 0), Some(&[][..]));
    let long = written(|w| write_retry(w, VERSION_1, &id, &other, b"t"));
    assert_eq!(destination(&long, 8), Some(id.as_slice()));
    for len in 0..6 + id.len() {
        assert_eq!(destination(&long[..len], 8), None);
    }
}

#[test]
fn the_length_field_is_patched_in_place() {
    for (len, bytes) in [(1, [0x40, 1]), (1200, [0x44, 0xb0]), (16_383, [0x7f, 0xff])] {
        let mut buf = vec![0; 20_000];
        let id = ConnectionId::EMPTY;
        let mut w = Writer::new(&mut buf);
        let at = write_long(&mut w, LongType::Handshake, VERSION_1, &id, &id, &[], 0, 1);
        patch_length(&mut buf, at, len);
        assert_eq!(buf[7..9], bytes);
        let Ok(Header::Long {
            pn_offset: 9,
            len: packet,
            ..
        }) = parse(&buf, 0)
        else {
            panic!()
        };
        assert_eq!(packet, 9 + len);
    }
}

fn any_id() -> impl Strategy<Value = ConnectionId> {
    proptest::collection::vec(any::<u8>(), 0..=20)
        .prop_map(|id| ConnectionId::new(&id).expect("at most 20 bytes"))
}

proptest! {
    #[test]
    fn long_headers_round_trip(
        ty in prop_oneof![Just(LongType::Initial), Just(LongType::ZeroRtt), Just(LongType::Handshake)],
        version in prop_oneof![Just(VERSION_1), Just(VERSION_2)],
        dcid in any_id(),
        scid in any_id(),
        token in proptest::collection::vec(any::<u8>(), 0..100),
        pn in 0u64..1 << 62,
        pn_len in 1usize..=4,
        payload in 16usize..1200,
        behind in 0usize..40,
    ) {
        let mut at = None;
        let mut packet = written(|w| {
            at = Some(write_long(w, ty, version, &dcid, &scid, &token, pn, pn_len));
        });
        let token = if ty == LongType::Initial { &token[..] } else { &[] };
        let token_len = (ty == LongType::Initial).then_some(token.len());
        prop_assert_eq!(packet.len(), long_header_size(dcid.len(), scid.len(), token_len, pn_len));
        prop_assert_eq!(packet[0] & 0x0f, pn_len as u8 - 1);
        prop_assert_eq!(&packet[packet.len() - pn_len..], &pn.to_be_bytes()[8 - pn_len..]);
        let pn_offset = packet.len() - pn_len;
        packet.resize(packet.len() + payload, 0);
        let len = packet.len();
        patch_length(&mut packet, at.unwrap(), pn_len + payload);
        packet.resize(len + behind, 0xff);
        let expected = Header::Long { ty, version, dcid, scid, token, pn_offset, len };
        prop_assert_eq!(parse(&packet, 8), Ok(expected));
    }

    #[test]
    fn short_headers_round_trip(
        dcid in any_id(),
        spin: bool,
        key_phase: bool,
        pn in 0u64..1 << 62,
        pn_len in 1usize..=4,
        spare in 0usize..30,
    ) {
        // With and without room for the stores of fixed width.
        let size = short_header_size(dcid.len(), pn_len);
        let mut buf = vec![0; size + spare];
        let mut w = Writer::new(&mut buf);
        write_short(&mut w, &dcid, spin, key_phase, pn, pn_len);
        prop_assert_eq!((w.len(), w.overflow()), (size, false));
        let bits = 0x40 | (u8::from(spin) << 5) | (u8::from(key_phase) << 2) | (pn_len as u8 - 1);
        prop_assert_eq!(buf[0], bits);
        prop_assert!(!is_long(bits));
        prop_assert_eq!(&buf[size - pn_len..size], &pn.to_be_bytes()[8 - pn_len..]);
        let expected = Header::Short { dcid, pn_offset: 1 + dcid.len(), len: buf.len() };
        prop_assert_eq!(parse(&buf, dcid.len()), Ok(expected));
    }

    #[test]
    fn retry_round_trips(
        version in prop_oneof![Just(VERSION_1), Just(VERSION_2)],
        dcid in any_id(),
        scid in any_id(),
        token in proptest::collection::vec(any::<u8>(), 1..100),
        tag: [u8; 16],
    ) {
        let without_tag = written(|w| write_retry(w, version, &dcid, &scid, &token));
        let packet = [&without_tag[..], &tag].concat();
        let expected = Header::Retry {
            version, dcid, scid, token: &token, tag, without_tag: &without_tag,
        };
        prop_assert_eq!(parse(&packet, 8), Ok(expected));
    }

    // Whatever arrives: no panic, and a packet lies within the datagram, its number after its
    // header.
    #[test]
    fn any_bytes_are_parsed_or_rejected(
        first: u8,
        version in prop_oneof![Just(VERSION_1), Just(VERSION_2), Just(0), any::<u32>()],
        rest in proptest::collection::vec(any::<u8>(), 0..80),
        small in proptest::collection::vec(0u8..24, 0..30),
        short_cid_len in 0usize..=20,
    ) {
        for tail in [&rest, &small] {
            let packet = [&[first], &version.to_be_bytes()[..], tail].concat();
            let destination = destination(&packet, short_cid_len);
            for fixed_bit in [FixedBit::Required, FixedBit::Greased] {
                match parse_with(&packet, short_cid_len, fixed_bit) {
                    Ok(Header::Long { ty, dcid, pn_offset, len, .. }) => {
                        prop_assert!(ty != LongType::Retry);
                        prop_assert!(pn_offset < len && len <= packet.len());
                        prop_assert_eq!(destination, Some(dcid.as_slice()));
                    }
                    Ok(Header::Short { dcid, pn_offset, len }) => {
                        prop_assert!(pn_offset < len && len == packet.len());
                        prop_assert_eq!(destination, Some(dcid.as_slice()));
                    }
                    Ok(Header::Retry { dcid, .. }) => {
                        prop_assert_eq!(destination, Some(dcid.as_slice()));
                    }
                    Ok(Header::VersionNegotiation { dcid, .. } | Header::Unsupported { dcid, .. }) => {
                        prop_assert_eq!(destination, Some(dcid));
                    }
                    Err(_) => {}
                }
            }
        }
    }
}
