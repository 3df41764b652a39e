//! Every rule of the handshake with an error code: transport parameters, TLS and key updates (RFC
//! 9000 §7, §18.2; RFC 9001 §4, §6, §8). The offender is the one of `errors`.

use squall_sim::{Duel, Terms, frames};
use squall_wire::frame::{ty, write};
use squall_wire::{ConnectionId, PacketType, Side, TransportErrorCode, TransportParameters};

use PacketType::{Handshake, Initial, OneRtt};
use TransportErrorCode as Code;

use crate::errors::{terms, transport, unfinished};

/// The peer's transport parameters, and the code that they must cause.
fn with_parameters(
    victim: Side,
    parameters: impl Fn(&mut TransportParameters) + 'static,
    more: &[u8],
) -> Option<Code> {
    let mut duel = Duel::new(
        victim,
        Terms {
            transport: transport(),
            parameters: Box::new(parameters),
            more_parameters: more.to_vec(),
            ..Terms::default()
        },
    );
    duel.shake_hands();
    duel.closed()
}

fn parameter(id: u64, value: &[u8]) -> Vec<u8> {
    frames(|w| {
        w.varint(id);
        w.varint(value.len() as u64);
        w.bytes(value);
    })
}

fn integer(id: u64, value: u64) -> Vec<u8> {
    let value = frames(|w| w.varint(value));
    parameter(id, &value)
}

// test: RFC 9000 §7.3, §7.4, §18.2; RFC 9221 §3; RFC 9287 §3; the drafts
#[test]
fn invalid_transport_parameters_have_their_error() {
    const WRONG: Option<Code> = Some(Code::TRANSPORT_PARAMETER_ERROR);
    for victim in [Side::Client, Side::Server] {
        assert_eq!(with_parameters(victim, |_| {}, &[]), None, "a good peer");
        for (what, more) in [
            ("max_udp_payload_size below 1200", integer(0x03, 1199)),
            (
                "more than 2^60 bidirectional streams",
                integer(0x08, (1 << 60) + 1),
            ),
            (
                "more than 2^60 unidirectional streams",
                integer(0x09, (1 << 60) + 1),
            ),
            ("an ack_delay_exponent above 20", integer(0x0a, 21)),
            ("a max_ack_delay of 2^14", integer(0x0b, 1 << 14)),
            ("an active_connection_id_limit below 2", integer(0x0e, 1)),
            (
                "disable_active_migration with a value",
                parameter(0x0c, &[0]),
            ),
            ("grease_quic_bit with a value", parameter(0x2ab2, &[0])),
            ("an integer with a byte too many", parameter(0x01, &[1, 1])),
            ("an integer cut off", parameter(0x01, &[0x80])),
            ("a parameter that ends early", vec![0x01, 4, 0]),
            (
                "a parameter twice",
                [integer(0x0b, 20), integer(0x0b, 20)].concat(),
            ),
            ("a connection id of 21 bytes", parameter(0x0f, &[0; 21])),
            (
                "min_ack_delay above max_ack_delay",
                integer(0xff04_de1b, 25_001),
            ),
            ("reset_stream_at with a value", parameter(0x1d, &[1])),
        ] {
            // Appended parameters must not occur twice.
            let without = |p: &mut TransportParameters| {
                *p = TransportParameters {
                    original_destination_connection_id: p.original_destination_connection_id,
                    initial_source_connection_id: p.initial_source_connection_id,
                    ..TransportParameters::default()
                };
            };
            assert_eq!(
                with_parameters(victim, without, &more),
                WRONG,
                "{what} to a {victim:?}"
            );
        }
        // RFC 9000 §7.3
        let absent = |p: &mut TransportParameters| p.initial_source_connection_id = None;
        assert_eq!(with_parameters(victim, absent, &[]), WRONG);
        let other = |p: &mut TransportParameters| {
            p.initial_source_connection_id = ConnectionId::new(&[1; 8]);
        };
        assert_eq!(with_parameters(victim, other, &[]), WRONG);
    }
    // RFC 9000 §18.2: what only a server may send.
    let preferred = [&[0; 24][..], &[8], &[1; 8], &[2; 16]].concat();
    for (what, more) in [
        (
            "original_destination_connection_id",
            parameter(0x00, &[1; 8]),
        ),
        ("stateless_reset_token", parameter(0x02, &[1; 16])),
        ("preferred_address", parameter(0x0d, &preferred)),
        ("retry_source_connection_id", parameter(0x10, &[1; 8])),
    ] {
        assert_eq!(
            with_parameters(Side::Server, |_| {}, &more),
            WRONG,
            "{what}"
        );
    }
    // RFC 9000 §7.3, §9.6, §10.3: what a server may get wrong.
    let no_original = |p: &mut TransportParameters| p.original_destination_connection_id = None;
    assert_eq!(with_parameters(Side::Client, no_original, &[]), WRONG);
    let other_original = |p: &mut TransportParameters| {
        p.original_destination_connection_id = ConnectionId::new(&[1; 8]);
    };
    assert_eq!(with_parameters(Side::Client, other_original, &[]), WRONG);
    for (what, more) in [
        (
            "a retry_source_connection_id without a Retry",
            parameter(0x10, &[1; 8]),
        ),
        (
            "a stateless_reset_token of 15 bytes",
            parameter(0x02, &[1; 15]),
        ),
        (
            "a preferred_address that is cut off",
            parameter(0x0d, &preferred[..40]),
        ),
        (
            "a preferred_address without a connection id",
            parameter(0x0d, &[&[0; 24][..], &[0], &[2; 16]].concat()),
        ),
        (
            "a preferred_address with a long connection id",
            parameter(0x0d, &[&[0; 24][..], &[21], &[1; 21], &[2; 16]].concat()),
        ),
    ] {
        assert_eq!(
            with_parameters(Side::Client, |_| {}, &more),
            WRONG,
            "{what}"
        );
    }
}

/// RFC 9001 §4: what TLS inside QUIC must not do.
#[test]
fn tls_violations_have_their_error() {
    let crypto = |offset: u64, data: &[u8]| {
        frames(|w| {
            write::crypto_header(w, offset, data.len());
            w.bytes(data);
        })
    };
    // §6: no TLS KeyUpdate; unexpected_message.
    let key_update = [24, 0, 0, 1, 0];
    // §4.4: no CertificateRequest after the handshake.
    let certificate_request = [13, 0, 0, 3, 0, 0, 0];
    for victim in [Side::Client, Side::Server] {
        let mut duel = Duel::connected(victim, terms());
        // A raw server's tickets came first.
        let offset = duel.peer.crypto_sent(OneRtt);
        duel.send(OneRtt, &crypto(offset, &key_update));
        assert_eq!(
            duel.closed(),
            Some(Code::crypto(10)),
            "KeyUpdate to a {victim:?}"
        );
    }
    let mut duel = Duel::connected(Side::Client, terms());
    let offset = duel.peer.crypto_sent(OneRtt);
    duel.send(OneRtt, &crypto(offset, &certificate_request));
    assert_eq!(
        duel.closed(),
        Some(Code::PROTOCOL_VIOLATION),
        "CertificateRequest"
    );

    // §4.1.3: new bytes at a level that is done.
    for victim in [Side::Client, Side::Server] {
        let mut duel = unfinished(victim, Handshake);
        let offset = duel.peer.crypto_sent(Initial);
        duel.send(Initial, &crypto(offset, b"more"));
        assert_eq!(
            duel.closed(),
            Some(Code::PROTOCOL_VIOLATION),
            "to a {victim:?}"
        );
    }

    // §4.8: anything that is not a handshake message causes a TLS alert.
    for victim in [Side::Client, Side::Server] {
        let mut duel = Duel::new(victim, terms());
        duel.send(Initial, &crypto(0, &[99, 0, 0, 4, 1, 2, 3, 4]));
        let code = duel.closed().expect("the victim closes");
        assert!(code.alert().is_some(), "{code:?} of a {victim:?}");
    }

    // §8.4: a server refuses a client that asks for middlebox compatibility.
    let mut duel = Duel::new(Side::Server, terms());
    let mut hello = duel.peer.handshake_bytes();
    // Type, length, version, random; then the legacy_session_id.
    assert_eq!((hello[0], hello[38]), (1, 0));
    hello.splice(38..39, [&[32][..], &[5; 32]].concat());
    let len = (hello.len() - 4) as u32;
    hello[1..4].copy_from_slice(&len.to_be_bytes()[1..]);
    for (i, piece) in hello.chunks(1000).enumerate() {
        duel.send(Initial, &crypto(1000 * i as u64, piece));
    }
    assert_eq!(
        duel.closed(),
        Some(Code::PROTOCOL_VIOLATION),
        "a legacy_session_id is a violation"
    );
}

// test: RFC 9001 §8.1
#[test]
fn an_application_protocol_must_be_agreed_on() {
    let mut terms = terms();
    let mut client = (*terms.tls.0).clone();
    client.alpn_protocols = vec![b"something else".to_vec()];
    terms.tls.0 = client.into();
    let mut duel = Duel::new(Side::Server, terms);
    duel.shake_hands();
    assert_eq!(duel.closed(), Some(Code::crypto(120)));
}

/// RFC 9001 §6.
#[test]
fn key_update_violations_have_their_error() {
    for victim in [Side::Client, Side::Server] {
        // §6.2: an update, acknowledged, and one more.
        let mut duel = Duel::connected(victim, terms());
        for _ in 0..3 {
            duel.peer.update_keys();
            for _ in 0..4 {
                duel.send(OneRtt, &[ty::PING as u8]);
            }
        }
        assert_eq!(duel.closed(), None, "{victim:?}");
        assert_eq!(duel.victim().stats().key_updates, 3);

        // §6.2: two updates and no acknowledgement between them.
        let mut duel = Duel::connected(victim, terms());
        let mut run = Vec::new();
        for _ in 0..2 {
            duel.peer.update_keys();
            run.push(duel.peer.datagram(OneRtt, &[ty::PADDING as u8; 20]));
        }
        for datagram in run {
            duel.deliver(&datagram);
        }
        assert_eq!(duel.closed(), Some(Code::KEY_UPDATE_ERROR), "{victim:?}");
    }
}
