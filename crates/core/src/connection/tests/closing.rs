//! Connections that this end has closed but not yet dropped: their CONNECTION_CLOSE, and the
//! datagrams that still arrive.

use std::time::Duration;

use squall_wire::{DatagramBatch, Ecn, Path, Side};

use crate::common::Pair;
use crate::stages::Stages;

/// Hands the server a datagram from `remote`; returns its answer.
fn answer(pair: &mut Pair, remote: &str, len: usize) -> Option<Vec<u8>> {
    let run = DatagramBatch {
        path: Path {
            remote: remote.parse().expect("an address"),
            local: None,
        },
        ecn: Ecn::NotEct,
        segment_size: 1200,
        bytes: &mut vec![0x40; len],
    };
    let now = pair.now;
    pair.connection(Side::Server)
        .receive(now, run, &mut Stages::off());
    pair.take_datagram(Side::Server)
}

// test: RFC 9000 §10.2.1 — the same packet is sent again, to the peer's address and no other.
#[test]
fn only_datagrams_from_the_peers_address_are_answered() {
    let mut pair = Pair::new();
    pair.run();
    let peer = "192.0.2.2:5000";
    let now = pair.now;
    pair.connection(Side::Server).close(now, 7, b"enough");
    let first = pair.take_datagram(Side::Server).expect("CONNECTION_CLOSE");
    for stranger in ["192.0.2.66:5000", "192.0.2.2:5001"] {
        for _ in 0..16 {
            assert_eq!(answer(&mut pair, stranger, 1200), None);
        }
    }
    assert_eq!(answer(&mut pair, peer, 1200), Some(first.clone()));
    let answers = (2..=100).filter_map(|_| answer(&mut pair, peer, 1200));
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers.len(), 6);
    assert!(answers.iter().all(|answer| *answer == first));
}

// test: RFC 9000 §8.1 — before the peer's address is validated, three times what came is sent.
#[test]
fn a_close_blocked_by_the_amplification_limit_waits_for_more_datagrams() {
    let mut pair = Pair::new();
    assert!(pair.pump(Side::Client), "a ClientHello");
    let (peer, now) = ("192.0.2.2:5000", pair.now);
    let server = pair.connection(Side::Server);
    let allowance = server.paths.active.allowance();
    server
        .paths
        .active
        .on_sent(usize::try_from(allowance).expect("the allowance fits a usize"));
    server.close(now, 7, b"enough");
    assert_eq!(pair.take_datagram(Side::Server), None);
    assert_eq!(answer(&mut pair, "192.0.2.66:5000", 1200), None);
    assert_eq!(answer(&mut pair, peer, 10), None);
    assert!(answer(&mut pair, peer, 400).is_some());
}

// test: RFC 9000 §10.2 — an owner that has 100,000 connections to close needs seconds for them.
#[test]
fn a_close_not_yet_transmitted_outlives_the_closing_period() {
    let mut pair = Pair::new();
    pair.run();
    let begun = pair.now;
    pair.connection(Side::Server).close(begun, 7, b"enough");
    let later = begun + Duration::from_secs(5);
    let wait = |pair: &mut Pair, until| {
        let server = pair.connection(Side::Server);
        while let Some(due) = server.next_timeout().filter(|due| *due < until) {
            server.on_timeout(due);
        }
    };
    wait(&mut pair, later);
    pair.now = later;
    assert!(pair.take_datagram(Side::Server).is_some());
    // Now it has been sent, and the closing period ends.
    wait(&mut pair, later + Duration::from_secs(5));
    assert!(pair.connection(Side::Server).is_drained());
}

#[test]
fn a_close_never_transmitted_is_dropped_eventually() {
    let mut pair = Pair::new();
    pair.run();
    let begun = pair.now;
    let server = pair.connection(Side::Server);
    server.close(begun, 7, b"enough");
    while let Some(due) = server.next_timeout() {
        assert!(due < begun + Duration::from_secs(20));
        server.on_timeout(due);
    }
    assert!(server.is_drained());
}
