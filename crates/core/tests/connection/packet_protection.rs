//! How a connection treats packets before and after their tags are verified, and the AEAD's limits:
//! rows 24 and 27 of the threat table in `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::time::Duration;

use bytes::Bytes;
use squall_core::{CloseReason, Event, TransportConfig};
use squall_wire::{Direction, Side, TransportErrorCode};

use crate::common::Pair;

fn connected(transport: TransportConfig) -> Pair {
    transport.check().unwrap();
    let mut pair = Pair::with(transport);
    pair.run();
    for side in [Side::Client, Side::Server] {
        assert!(pair.collect(side).contains(&Event::Connected), "{side:?}");
    }
    pair
}

/// A 1-RTT datagram of the client that did not arrive, with some bytes of a stream.
fn short_packet(pair: &mut Pair) -> Vec<u8> {
    let client = pair.connection(Side::Client);
    let id = client.open(Direction::Unidirectional).unwrap();
    client
        .write(id, &mut Bytes::from_static(&[7; 100]))
        .unwrap();
    let datagram = pair.take_datagram(Side::Client).expect("data to send");
    assert_eq!(datagram[0] & 0x80, 0, "a short header");
    datagram
}

fn is_aead_limit(event: &Event) -> bool {
    let limit = TransportErrorCode::AEAD_LIMIT_REACHED;
    matches!(event, Event::Closed(CloseReason::Transport { code, .. }) if *code == limit)
}

// test: RFC 9001 §6.6
#[test]
fn the_connection_ends_at_the_integrity_limit() {
    let integrity_limit = 5;
    let mut pair = connected(TransportConfig::default().integrity_limit(integrity_limit));
    let mut forged = short_packet(&mut pair);
    *forged.last_mut().unwrap() ^= 1;
    for tried in 1..=integrity_limit {
        pair.deliver(Side::Server, &forged);
        let ended = pair.collect(Side::Server).iter().any(is_aead_limit);
        assert_eq!(ended, tried == integrity_limit, "{tried} forged packets");
    }
}

// test: RFC 9001 §6.6
#[test]
fn keys_are_updated_before_the_confidentiality_limit() {
    let mut pair = connected(
        TransportConfig::default()
            .key_update_after(40)
            .confidentiality_limit(150),
    );
    let id = pair
        .connection(Side::Client)
        .open(Direction::Unidirectional)
        .unwrap();
    for _ in 0..600 {
        let mut data = Bytes::from_static(&[7; 900]);
        pair.connection(Side::Client).write(id, &mut data).unwrap();
        pair.run();
        // Time for the previous keys to be dropped, which an update requires.
        pair.now += Duration::from_millis(20);
        while let Ok(Some(_)) = pair.connection(Side::Server).read(id, 10_000) {}
        pair.run();
    }
    for side in [Side::Client, Side::Server] {
        let closed = pair.collect(side);
        assert!(
            !closed.iter().any(|e| matches!(e, Event::Closed(_))),
            "{closed:?}"
        );
    }
    let stats = pair.connection(Side::Client).stats();
    assert!(stats.key_updates >= 3, "{stats:?}");
    assert_eq!(stats.packets_forged, 0, "both ends switch keys in step");
}

// test: RFC 9001 §6.6
#[test]
fn a_peer_that_ignores_key_updates_ends_the_connection_at_the_confidentiality_limit() {
    let mut pair = connected(
        TransportConfig::default()
            .key_update_after(4)
            .confidentiality_limit(squall_protect::MAX_GROUP as u64 + 12),
    );
    let client = pair.connection(Side::Client);
    let id = client.open(Direction::Unidirectional).unwrap();
    client
        .write(id, &mut Bytes::from_static(&[7; 30_000]))
        .unwrap();
    // Nothing arrives, so nothing is acknowledged, and another update is not allowed.
    let mut sent = 0;
    let closed = loop {
        while pair.take_datagram(Side::Client).is_some() {
            sent += 1;
        }
        let events = pair.collect(Side::Client);
        if let Some(closed) = events.into_iter().find(|e| matches!(e, Event::Closed(_))) {
            break closed;
        }
        let due = pair.connection(Side::Client).next_timeout();
        pair.now = pair
            .now
            .max(due.expect("a timer is set while acknowledgements are missing"));
        let now = pair.now;
        pair.connection(Side::Client).on_timeout(now);
    };
    assert!(is_aead_limit(&closed), "{closed:?} after {sent}");
    assert!(sent >= 12, "closed too early, after {sent}");
}

// test: RFC 9001 §5.4, §9.5: nothing in a header acts before the packet is authentic
#[test]
fn the_header_bits_of_a_forged_packet_have_no_effect() {
    let mut pair = connected(TransportConfig::default());
    let genuine = short_packet(&mut pair);
    // Reserved bits, which would end the connection; the key phase, which would update the keys;
    // the number's length.
    for (i, bits) in [0x08, 0x10, 0x18, 0x04, 0x1c, 0x03].into_iter().enumerate() {
        let before = pair.connection(Side::Server).stats();
        let mut forged = genuine.clone();
        forged[0] ^= bits;
        pair.deliver(Side::Server, &forged);
        let stats = pair.connection(Side::Server).stats();
        assert_eq!(stats.packets_forged, i as u64 + 1, "{bits:#x}");
        assert_eq!(stats.key_updates, 0, "{bits:#x}");
        assert_eq!(stats.packets_received, before.packets_received, "{bits:#x}");
        assert_eq!(pair.collect(Side::Server), [], "{bits:#x}");
    }
    // The number does not count as seen either, until the packet itself arrives.
    pair.deliver(Side::Server, &genuine);
    assert_eq!(pair.connection(Side::Server).stats().packets_duplicate, 0);
    let mut forged = genuine.clone();
    *forged.last_mut().unwrap() ^= 1;
    pair.deliver(Side::Server, &forged);
    assert_eq!(
        pair.connection(Side::Server).stats().packets_duplicate,
        0,
        "a forged packet never counts as a duplicate"
    );
    pair.deliver(Side::Server, &genuine);
    assert_eq!(pair.connection(Side::Server).stats().packets_duplicate, 1);
}
