//! Transport parameters: RFC 9000 §7.4 and §18, RFC 9221 §3, RFC 9287 §3.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use squall_wire::{
    ConnectionId, PreferredAddress, Side, TransportErrorCode, TransportParameters,
    VersionInformation, varint,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

fn decode(bytes: &[u8], sender: Side) -> Result<TransportParameters, &'static str> {
    TransportParameters::decode(bytes, sender).map_err(|error| {
        assert_eq!(error.code, TransportErrorCode::TRANSPORT_PARAMETER_ERROR);
        error.reason
    })
}

#[test]
fn absent_parameters_have_the_defaults_of_the_rfc() {
    let p = decode(&[], Side::Client).unwrap();
    assert_eq!(p, TransportParameters::default());
    // RFC 9000 §18.2
    assert_eq!(
        (
            p.max_udp_payload_size,
            p.ack_delay_exponent,
            p.max_ack_delay_ms
        ),
        (65_527, 3, 25)
    );
    assert_eq!(p.active_connection_id_limit, 2);
    let mut out = Vec::new();
    p.encode(&mut out, None);
    assert!(out.is_empty());
}

/// A parameter with an id and a length of one byte each.
fn parameter(id: u8, value: &[u8]) -> Vec<u8> {
    [&[id, value.len() as u8], value].concat()
}

#[test]
fn integers_out_of_range_are_rejected() {
    const MAX: u64 = varint::MAX;
    // Identifier, smallest and largest legal value, in RFC 9000 §18.2 and §4.6, RFC 9221 §3.
    for (id, least, most) in [
        (0x01, 0, MAX),
        (0x03, 1200, MAX),
        (0x04, 0, MAX),
        (0x05, 0, MAX),
        (0x06, 0, MAX),
        (0x07, 0, MAX),
        (0x08, 0, 1 << 60),
        (0x09, 0, 1 << 60),
        (0x0a, 0, 20),
        (0x0b, 0, (1 << 14) - 1),
        (0x0e, 2, MAX),
        (0x20, 0, MAX),
    ] {
        let encode = |value: u64| parameter(id, &(value | (3 << 62)).to_be_bytes());
        for sender in [Side::Client, Side::Server] {
            for value in [least, most] {
                assert!(decode(&encode(value), sender).is_ok(), "{id:#x} = {value}");
            }
            for value in [least.checked_sub(1), Some(most + 1).filter(|&v| v <= MAX)] {
                let Some(value) = value else { continue };
                assert!(decode(&encode(value), sender).is_err(), "{id:#x} = {value}");
            }
            // Empty, cut off, and with a byte too many.
            for value in [&[][..], &[0x44], &[0x44, 0xb0, 0]] {
                assert!(
                    decode(&parameter(id, value), sender).is_err(),
                    "{id:#x} = {value:?}"
                );
            }
            let legal = if id == 0x0a {
                vec![0x05]
            } else {
                vec![0x44, 0xb0]
            };
            assert!(decode(&parameter(id, &legal), sender).is_ok(), "{id:#x}");
        }
    }
}

#[test]
fn every_integer_is_stored_in_its_own_field() {
    let mut bytes = Vec::new();
    for (id, value) in [1u8, 4, 5, 6, 7, 8, 9, 0x0a, 0x0b, 0x0e]
        .into_iter()
        .zip(11u8..)
    {
        bytes.extend(parameter(id, &[value]));
    }
    bytes.extend([&parameter(3, &[0x44, 0xb0])[..], &parameter(0x20, &[63])].concat());
    let expected = TransportParameters {
        max_idle_timeout_ms: 11,
        initial_max_data: 12,
        initial_max_stream_data_bidi_local: 13,
        initial_max_stream_data_bidi_remote: 14,
        initial_max_stream_data_uni: 15,
        initial_max_streams_bidi: 16,
        initial_max_streams_uni: 17,
        ack_delay_exponent: 18,
        max_ack_delay_ms: 19,
        active_connection_id_limit: 20,
        max_udp_payload_size: 1200,
        max_datagram_frame_size: Some(63),
        ..Default::default()
    };
    assert_eq!(decode(&bytes, Side::Client), Ok(expected));
}

#[test]
fn parameters_with_a_wrong_length_are_rejected() {
    // RFC 9000 §18.2; RFC 9287 §3 asks for the error by name.
    for (id, legal, sender) in [
        (&[0x02][..], &[16][..], Side::Server),
        (&[0x0c], &[0], Side::Client),
        (&[0x6a, 0xb2], &[0], Side::Client),
        (&[0x00], &[0, 1, 8, 20], Side::Server),
        (&[0x0f], &[0, 1, 8, 20], Side::Client),
        (&[0x10], &[0, 1, 8, 20], Side::Server),
    ] {
        for len in [0, 1, 8, 15, 16, 17, 20, 21] {
            let is_connection_id = legal.len() > 1;
            let expected = if is_connection_id {
                len <= 20
            } else {
                legal.contains(&len)
            };
            let bytes = [id, &[len], &vec![7; len.into()]].concat();
            assert_eq!(
                decode(&bytes, sender).is_ok(),
                expected,
                "{id:?} of {len} bytes"
            );
        }
    }
}

#[test]
fn server_only_parameters_of_a_client_are_rejected() {
    let preferred = [&[0; 24][..], &[1, 9], &[0; 16]].concat();
    for (id, value) in [
        (0x00, &[1, 2][..]),
        (0x02, &[0; 16]),
        (0x0d, &preferred),
        (0x10, &[1]),
    ] {
        let bytes = parameter(id, value);
        assert!(decode(&bytes, Side::Server).is_ok(), "{id:#x}");
        assert!(decode(&bytes, Side::Client).is_err(), "{id:#x}");
    }
}

// test: draft-ietf-quic-ack-frequency §3
#[test]
fn min_ack_delay_above_max_ack_delay_is_rejected() {
    let of = |min_ack_delay: u64| TransportParameters {
        max_ack_delay_ms: 3,
        min_ack_delay_us: Some(min_ack_delay),
        ..Default::default()
    };
    for (min_ack_delay, legal) in [(0, true), (3000, true), (3001, false)] {
        let mut bytes = Vec::new();
        of(min_ack_delay).encode(&mut bytes, None);
        assert_eq!(decode(&bytes, Side::Client).is_ok(), legal);
    }
}

#[test]
fn a_repeated_parameter_is_rejected() {
    let preferred = [&[0; 24][..], &[1, 9], &[0; 16]].concat();
    let all: [(&[u8], &[u8]); 21] = [
        (&[0x00], &[1]),
        (&[0x01], &[1]),
        (&[0x02], &[0; 16]),
        (&[0x03], &[0x44, 0xb0]),
        (&[0x04], &[1]),
        (&[0x05], &[1]),
        (&[0x06], &[1]),
        (&[0x07], &[1]),
        (&[0x08], &[1]),
        (&[0x09], &[1]),
        (&[0x0a], &[1]),
        (&[0x0b], &[1]),
        (&[0x0c], &[]),
        (&[0x0d], &preferred),
        (&[0x0e], &[2]),
        (&[0x0f], &[1]),
        (&[0x10], &[1]),
        (&[0x20], &[1]),
        (&[0x6a, 0xb2], &[]),
        (&[0x1d], &[]),
        (&[0xc0, 0, 0, 0, 0xff, 0x04, 0xde, 0x1b], &[1]),
    ];
    let encode = |(id, value): (&[u8], &[u8])| [id, &[value.len() as u8], value].concat();
    let once: Vec<u8> = all.into_iter().flat_map(encode).collect();
    assert!(decode(&once, Side::Server).is_ok());
    for parameter in all {
        let twice = [&once[..], &encode(parameter)].concat();
        assert_eq!(
            decode(&twice, Side::Server),
            Err("a parameter occurs twice"),
            "{parameter:?}"
        );
    }
}

// test: RFC 9000 §7.4.2, §18.1
#[test]
fn unknown_parameters_are_ignored() {
    let mut bytes = Vec::new();
    TransportParameters::default().encode(&mut bytes, Some((31 * 1000 + 27, 200)));
    assert_eq!(bytes.len(), 4 + 2 + 200);
    assert_eq!(
        decode(&bytes, Side::Client),
        Ok(TransportParameters::default())
    );
    // Also at the end of the space of identifiers, and in the longest form.
    let bytes = [&[0xff; 8][..], &[0x02, 1, 2]].concat();
    assert_eq!(
        decode(&bytes, Side::Client),
        Ok(TransportParameters::default())
    );
    // Their lengths still count.
    assert!(decode(&[0x1b, 2, 0], Side::Client).is_err());
}

#[test]
fn preferred_address_has_the_layout_of_the_rfcs_figure() {
    let legal = [
        &[192, 0, 2, 1, 0x11, 0x51][..],
        &[0; 18],
        &[3, 7, 8, 9],
        &[5; 16],
    ]
    .concat();
    let address = decode(&parameter(0x0d, &legal), Side::Server)
        .unwrap()
        .preferred_address;
    let expected = PreferredAddress {
        ipv4: Some(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 4433)),
        ipv6: None,
        connection_id: ConnectionId::new(&[7, 8, 9]).unwrap(),
        stateless_reset_token: [5; 16],
    };
    assert_eq!(address, Some(expected));

    // Cut anywhere, or with a byte too many.
    for len in 0..legal.len() {
        assert!(
            decode(&parameter(0x0d, &legal[..len]), Side::Server).is_err(),
            "{len}"
        );
    }
    assert!(decode(&parameter(0x0d, &[&legal[..], &[0]].concat()), Side::Server).is_err());
    // Connection ids of 0 and 21 bytes.
    for len in [0, 21] {
        let value = [&[0; 24][..], &[len], &vec![1; len.into()], &[5; 16]].concat();
        assert!(
            decode(&parameter(0x0d, &value), Side::Server).is_err(),
            "{len}"
        );
    }
    // A server that itself has a zero-length connection id.
    let both = |scid: &[u8]| [parameter(0x0f, scid), parameter(0x0d, &legal)].concat();
    assert!(decode(&both(&[1]), Side::Server).is_ok());
    assert!(decode(&both(&[]), Side::Server).is_err());
}

// test: RFC 9221 §3: 0 is the default
#[test]
fn a_max_datagram_frame_size_of_zero_means_no_support() {
    let parameters = decode(&[0x20, 1, 0], Side::Client).unwrap();
    assert_eq!(parameters.max_datagram_frame_size, None);
}

// test: RFC 9368 §3, §4
#[test]
fn version_information_is_validated() {
    let versions = |list: &[u32]| -> Vec<u8> {
        let bytes: Vec<u8> = list.iter().flat_map(|v| v.to_be_bytes()).collect();
        // The length takes two bytes.
        [&[0x11, 0x40, bytes.len() as u8], &bytes[..]].concat()
    };
    let read = |bytes: &[u8], sender| decode(bytes, sender).map(|p| p.version_information);
    let both = VersionInformation::new(1, &[2, 1]);
    assert_eq!(read(&versions(&[1, 2, 1]), Side::Client), Ok(Some(both)));
    // Reserved versions are skipped, and a list that is too long is cut.
    let reserved = versions(&[1, 0x1a2a_3a4a, 2, 1]);
    assert_eq!(read(&reserved, Side::Client), Ok(Some(both)));
    let long: Vec<u32> = (1..60).collect();
    let cut = read(&versions(&long), Side::Server).unwrap().unwrap();
    assert_eq!(cut.available(), &long[1..17]);
    // Cut off, not divisible by four, version zero.
    for bad in [
        parameter(0x11, &[]),
        parameter(0x11, &[0, 0, 1]),
        parameter(0x11, &[0, 0, 0, 1, 0, 0]),
        versions(&[0, 1]),
        versions(&[1, 1, 0]),
    ] {
        for sender in [Side::Client, Side::Server] {
            assert!(read(&bad, sender).is_err(), "{bad:?}");
        }
    }
    // A server need not list its choice, or anything at all; a client must.
    for list in [&[1][..], &[1, 2]] {
        assert!(read(&versions(list), Side::Server).is_ok());
        assert!(read(&versions(list), Side::Client).is_err());
    }
    let mut out = Vec::new();
    let params = TransportParameters {
        version_information: Some(both),
        ..Default::default()
    };
    params.encode(&mut out, None);
    assert_eq!(out, parameter(0x11, &versions(&[1, 2, 1])[3..]));
}

fn any_id(least: usize) -> impl Strategy<Value = ConnectionId> {
    vec(any::<u8>(), least..=20).prop_map(|id| ConnectionId::new(&id).expect("at most 20 bytes"))
}

fn int() -> impl Strategy<Value = u64> {
    (0u32..62).prop_flat_map(|bits| 0..=(1u64 << bits).min(varint::MAX))
}

fn any_preferred_address() -> impl Strategy<Value = PreferredAddress> {
    let ipv4 = (any::<[u8; 4]>(), 1u16..).prop_map(|(ip, port)| SocketAddrV4::new(ip.into(), port));
    let ipv6 = (any::<[u8; 16]>(), 1u16..)
        .prop_map(|(ip, port)| SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, 0));
    (
        option::of(ipv4),
        option::of(ipv6),
        any_id(1),
        any::<[u8; 16]>(),
    )
        .prop_map(
            |(ipv4, ipv6, connection_id, stateless_reset_token)| PreferredAddress {
                ipv4,
                ipv6,
                connection_id,
                stateless_reset_token,
            },
        )
}

prop_compose! {
    fn of_a_client()(
        ints in proptest::array::uniform6(int()),
        streams in (0u64..=1 << 60, 0u64..=1 << 60),
        max_udp_payload_size in 1200u64..=varint::MAX,
        ack_delay_exponent in 0u64..=20,
        max_ack_delay_ms in 0u64..1 << 14,
        active_connection_id_limit in 2u64..=varint::MAX,
        flags: (bool, bool),
        initial_source_connection_id in option::of(any_id(1)),
    ) -> TransportParameters {
        TransportParameters {
            max_idle_timeout_ms: ints[0],
            initial_max_data: ints[1],
            initial_max_stream_data_bidi_local: ints[2],
            initial_max_stream_data_bidi_remote: ints[3],
            initial_max_stream_data_uni: ints[4],
            max_datagram_frame_size: Some(ints[5]).filter(|&size| size > 0),
            initial_max_streams_bidi: streams.0,
            initial_max_streams_uni: streams.1,
            max_udp_payload_size,
            ack_delay_exponent,
            max_ack_delay_ms,
            active_connection_id_limit,
            disable_active_migration: flags.0,
            grease_quic_bit: flags.1,
            min_ack_delay_us: flags.0.then_some(1000 * max_ack_delay_ms / 2),
            reset_stream_at: flags.1,
            initial_source_connection_id,
            ..Default::default()
        }
    }
}

prop_compose! {
    fn of_a_server()(
        client in of_a_client(),
        original_destination_connection_id in option::of(any_id(0)),
        retry_source_connection_id in option::of(any_id(0)),
        stateless_reset_token: Option<[u8; 16]>,
        preferred_address in option::of(any_preferred_address()),
    ) -> TransportParameters {
        TransportParameters {
            original_destination_connection_id,
            retry_source_connection_id,
            stateless_reset_token,
            preferred_address,
            ..client
        }
    }
}

proptest! {
    #[test]
    fn parameters_round_trip(client in of_a_client(), server in of_a_server(), grease in option::of(0u64..1000)) {
        for (parameters, sender) in [(client, Side::Client), (server, Side::Server)] {
            let mut out = b"kept".to_vec();
            parameters.encode(&mut out, grease.map(|n| (31 * n + 27, n as u8)));
            prop_assert_eq!(&out[..4], b"kept");
            prop_assert_eq!(decode(&out[4..], sender), Ok(parameters));
        }
    }

    // Cut within a parameter it is an error; whatever the bytes, there is no panic.
    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in vec(prop_oneof![0u8..0x22, any::<u8>()], 0..100)) {
        let client = decode(&bytes, Side::Client);
        let server = decode(&bytes, Side::Server);
        // Whatever a client may send, a server may send too.
        if client.is_ok() {
            prop_assert_eq!(client, server);
        }
    }
}
