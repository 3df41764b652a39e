//! Paths that come and go.

use std::time::Duration;

use squall_wire::{ConnectionId, DatagramBatch, Ecn, Path, Side};

use crate::common::Pair;
use crate::congestion::Acknowledged;
use crate::connection::migration::Move;
use crate::connection::receive::Trip;
use crate::recovery::rtt::RttEstimator;
use crate::stages::Stages;

const ELSEWHERE: &str = "198.51.100.7:7000";

fn connected() -> Pair {
    let mut pair = Pair::new();
    pair.run();
    pair
}

fn path(remote: &str) -> Path {
    Path {
        remote: remote.parse().unwrap(),
        local: None,
    }
}

// test: RFC 9000 §9.4, §9.5
#[test]
fn a_migration_resets_path_state_unless_only_the_port_changed() {
    for (remote, keeps) in [("192.0.2.2:6000", true), (ELSEWHERE, false)] {
        let mut pair = connected();
        let now = pair.now;
        let server = pair.connection(Side::Server);
        let (rtt, id) = (
            server.paths.active.flow.rtt.smoothed(),
            server.paths.remote_ids.current(),
        );
        let window = server.paths.active.flow.congestion.window() + 5000;
        server.paths.active.flow.congestion.on_ack(
            now,
            &Acknowledged {
                bytes: 5000,
                newest_sent: now,
                app_limited: false,
                in_flight: 0,
                idle: false,
            },
            &RttEstimator::new(rtt),
        );
        assert!(server.paths.active.flow.rtt.has_sample());
        server.paths.active.mtu.on_probe_sent(77, 1472);
        server.paths.active.mtu.on_probe_acked(77);
        assert_eq!(server.paths.active.mtu.current(), 1472);
        let mut stages = Stages::off();
        let mut trip = Trip::new(now, id, path(remote), false, Ecn::NotEct, &mut stages);
        trip.uncredited = 100;
        server.follow(&mut trip);
        assert_eq!(server.path(), path(remote));
        let flow = &server.paths.active.flow;
        assert_eq!(flow.rtt.has_sample(), keeps);
        assert_eq!(flow.congestion.window() == window, keeps);
        assert_eq!(server.paths.active.mtu.current(), 1200);
        assert!(!server.paths.active.validated && server.paths.active.credit() == 300);
        assert_ne!(server.paths.remote_ids.current(), id);
        // Both paths are challenged.
        let others = server.paths.others();
        assert!(server.paths.active.validation.is_some() && others[0].validation.is_some());
    }
}

// test: RFC 9000 §21.5 — SECURITY.md row 35
#[test]
fn a_peer_is_not_followed_to_an_implausible_address() {
    let mut pair = connected();
    let (now, mut stages) = (pair.now, Stages::off());
    for remote in ["127.0.0.1:53", "[::1]:53", "224.0.0.1:53", "203.0.113.1:0"] {
        let mut datagram = pair.take_ping(Side::Client);
        let server = pair.connection(Side::Server);
        let dropped = server.stats().packets_dropped;
        let batch = DatagramBatch {
            path: path(remote),
            ecn: Ecn::NotEct,
            segment_size: datagram.len() as u16,
            bytes: &mut datagram,
        };
        server.receive(now, batch, &mut stages);
        assert_eq!(server.stats().packets_dropped, dropped + 1, "{remote}");
        assert_eq!(server.paths(), 1, "{remote}");
    }
}

// Nothing happens on the connection, and three probe timeouts are longer than the silence after
// which it frees memory.
#[test]
fn a_retired_id_expires_on_an_idle_connection() {
    let mut pair = connected();
    let expires = pair.now + Duration::from_secs(9);
    let server = pair.connection(Side::Server);
    let id = server.paths.local_ids.current();
    let retired = (server.paths.local_ids).retire(0, ConnectionId::EMPTY, expires);
    assert_eq!(retired, Ok(None));
    let mut wakes = Vec::new();
    while server.paths.local_ids.is_routed(id) {
        let due = server.next_timeout().expect("a timer runs");
        assert!(due <= expires, "{wakes:?}");
        server.on_timeout(due);
        wakes.push(due);
    }
    assert_eq!(wakes.last(), Some(&expires));
    assert!(wakes.len() <= 3, "{wakes:?}");
}

/// Hands the server a datagram of the client's from elsewhere.
fn receive_from_elsewhere(pair: &mut Pair, mut datagram: Vec<u8>) {
    let run = DatagramBatch {
        path: path(ELSEWHERE),
        ecn: Ecn::NotEct,
        segment_size: 1200,
        bytes: &mut datagram,
    };
    let now = pair.now;
    let server = pair.connection(Side::Server);
    server.receive(now, run, &mut Stages::off());
}

// test: RFC 9000 §8.2.4
#[test]
fn path_validation_does_not_fail_while_datagrams_are_unread() {
    let mut pair = connected();
    let ping = pair.take_ping(Side::Client);
    receive_from_elsewhere(&mut pair, ping);
    // Both paths are challenged.
    while let Some(challenge) = pair.take_datagram(Side::Server) {
        pair.deliver(Side::Client, &challenge);
    }
    let response = pair.take_datagram(Side::Client).expect("a response");
    pair.now += Duration::from_secs(4);
    let now = pair.now;
    let server = pair.connection(Side::Server);
    assert!(server.on_timeout_while_unread(now).is_some());
    assert_eq!(server.path(), path(ELSEWHERE));
    // An earlier attempt there has failed: later ones take longer, until one succeeds.
    let tag = server.paths.active.tag;
    let next = Duration::from_secs(9);
    server.paths.inactive.as_mut().unwrap().given_up = Some((path(ELSEWHERE).remote, next));
    assert_eq!(server.validation_interval(tag), next);
    receive_from_elsewhere(&mut pair, response);
    let server = pair.connection(Side::Server);
    server.on_timeout(now);
    assert_eq!(server.path(), path(ELSEWHERE));
    assert!(server.paths.active.validated);
    assert!(server.validation_interval(tag) < next);
}

/// A server that has followed its client elsewhere and has two more paths: the one before, and one
/// that the client has only probed.
fn moved() -> Pair {
    let mut pair = connected();
    let ping = pair.take_ping(Side::Client);
    receive_from_elsewhere(&mut pair, ping);
    let server = pair.connection(Side::Server);
    let probed = Path {
        local: Some([192, 0, 2, 77].into()),
        ..path(ELSEWHERE)
    };
    let config = std::sync::Arc::clone(&server.config);
    let tag = server.paths.add(probed, &config, &mut server.endpoint);
    server.paths.get_mut(tag).unwrap().validated = true;
    assert!(server.paths.active.validation.is_some());
    pair
}

// test: RFC 9000 §8.2.1 — its address is known to be right, and others are not better.
#[test]
fn a_server_keeps_the_path_on_which_its_client_answers() {
    let mut pair = moved();
    let later = pair.now + Duration::from_secs(60);
    let server = pair.connection(Side::Server);
    server.paths.active.validated = true;
    server.on_path_timer(later);
    assert_eq!(server.path(), path(ELSEWHERE));
    // Larger challenges follow.
    assert!(server.paths.active.validation.is_some());
}

// test: RFC 9000 §9.3.2 — the last address in use: a client drops what comes on a path that it has
// only probed.
#[test]
fn a_server_does_not_fall_back_to_a_path_that_was_only_probed() {
    let mut pair = moved();
    let later = pair.now + Duration::from_secs(60);
    let server = pair.connection(Side::Server);
    let before = server.paths.others()[0].path;
    server.on_path_timer(later);
    assert_eq!(server.path(), before);
}

// test: RFC 9000 §8.2, §13.4.2 — a path that drops marked packets must not drop its challenges.
#[test]
fn packets_are_not_ecn_marked_before_a_path_is_validated() {
    let mut pair = moved();
    let now = pair.now;
    let mut buffer = [0; 1500];
    for validated in [false, true] {
        let server = pair.connection(Side::Server);
        if validated {
            server.paths.active.validation = None;
            server.paths.active.validated = true;
        }
        server.paths.active.on_received(10_000);
        server.ping();
        let mut marks = Vec::new();
        while let Some(sent) = server.transmit(now, &mut buffer, 1, &mut Stages::off()) {
            marks.push(sent.ecn);
        }
        let marked = marks.contains(&Ecn::Ect0);
        assert!(!marks.is_empty() && marked == validated, "{marks:?}");
    }
}

// test: RFC 9000 §9.6.2 — the server may not have validated the path that its client is on.
#[test]
fn a_client_back_on_its_old_path_accepts_the_preferred_address() {
    let mut pair = connected();
    let client = pair.connection(Side::Client);
    let config = std::sync::Arc::clone(&client.config);
    let (home, preferred) = (client.path(), path(ELSEWHERE));
    let admits = |client: &crate::connection::Connection, path: &Path| {
        client.paths.admits(path, &config, true)
    };
    assert!(!admits(client, &preferred));
    let tag = (client.paths).add(preferred, &config, &mut client.endpoint);
    let home_tag = client.paths.active.tag;
    let old = client.paths.swap_active(tag, false).unwrap();
    assert!(admits(client, &home));
    (client.paths.inactive.as_mut().unwrap().others).push(old);
    // The path to the preferred address is forgotten.
    client.paths.swap_active(home_tag, false).unwrap();
    assert!(client.paths.others().is_empty());
    assert!(admits(client, &preferred));
    assert!(!admits(client, &path("203.0.113.5:443")));
}

// test: RFC 9000 §9.5 — which address the system will choose is not known, so the id of another
// path may be seen there.
#[test]
fn a_client_with_a_new_socket_uses_a_new_id() {
    let mut pair = connected();
    let now = pair.now;
    let client = pair.connection(Side::Client);
    let by_system = client.path();
    let local = |n| Path {
        local: Some([192, 0, 2, n].into()),
        ..by_system
    };
    client.paths.active.path = local(69);
    client.migrate(now, local(70), Move::AtOnce).unwrap();
    // The path from 192.0.2.69 is remembered.
    let ids = &client.paths.remote_ids;
    let known = [ids.current(), ids.of(client.paths.others()[0].tag)];
    client.migrate(now, by_system, Move::AtOnce).unwrap();
    let new = client.paths.remote_ids.current();
    assert!(!known.contains(&new), "{known:?} {new:?}");
}

// test: RFC 9000 §9.5 — a path whose id the server has retired is not used under that of another.
#[test]
fn a_client_does_not_fall_back_to_a_path_without_an_id() {
    let mut pair = connected();
    let now = pair.now;
    let client = pair.connection(Side::Client);
    let elsewhere = Path {
        local: Some([192, 0, 2, 70].into()),
        ..client.path()
    };
    client.migrate(now, elsewhere, Move::AtOnce).unwrap();
    client.paths.left_at_once = false;
    client.paths.iter().for_each(|p| assert!(p.used));
    client.paths.inactive.as_mut().unwrap().others[0].validated = true;
    let id = |n: u8| ConnectionId::new(&[n; 8]).unwrap();
    assert!(client.paths.last_validated().is_some());
    client
        .paths
        .remote_ids
        .on_new(50, 50, id(50), [50; 16])
        .unwrap();
    assert!(client.paths.last_validated().is_none());
    client
        .paths
        .remote_ids
        .on_new(51, 50, id(51), [51; 16])
        .unwrap();
    assert!(client.paths.last_validated().is_some());
}

// test: RFC 9000 §9.5 — the address at which a packet last arrived may not be the source address of
// the next.
#[test]
fn a_path_with_a_system_chosen_address_does_not_match_a_requested_one() {
    let mut pair = connected();
    let now = pair.now;
    let client = pair.connection(Side::Client);
    let local = |n| Path {
        local: Some([192, 0, 2, n].into()),
        ..path("192.0.2.1:4433")
    };
    client.paths.active.path = local(71);
    client.migrate(now, local(72), Move::AtOnce).unwrap();
    let id = client.paths.remote_ids.of(client.paths.others()[0].tag);
    client.paths.inactive.as_mut().unwrap().others[0].pinned = false;
    client.migrate(now, local(71), Move::WhenValidated).unwrap();
    let probed = client.paths.others().last().unwrap();
    assert_eq!(probed.path, local(71));
    assert_ne!(client.paths.remote_ids.of(probed.tag), id);
}

// test: RFC 9000 §9.5 — the server may retire the id of a path while its challenge is answered.
#[test]
fn a_client_does_not_move_to_a_path_without_an_id() {
    let mut pair = connected();
    let now = pair.now;
    let client = pair.connection(Side::Client);
    let server = client.path();
    let [home, elsewhere] = [69, 70].map(|n| Path {
        local: Some([192, 0, 2, n].into()),
        ..server
    });
    client.paths.active.path = home;
    let ids = [50_u8, 51].map(|n| (u64::from(n), ConnectionId::new(&[n; 8]).unwrap(), [n; 16]));
    client.migrate(now, elsewhere, Move::WhenValidated).unwrap();
    for ((sequence, id, token), expected) in ids.into_iter().zip([home, elsewhere]) {
        let remote_ids = &mut client.paths.remote_ids;
        remote_ids.on_new(sequence, 50, id, token).unwrap();
        let challenged = &mut client.paths.inactive.as_mut().unwrap();
        challenged.has_challenged = true;
        let validation = challenged.others[0].validation.as_mut().unwrap();
        validation.on_sent(now, [7; 8], 1200);
        client.on_path_response(now, [7; 8]).unwrap();
        assert_eq!(client.path(), expected);
    }
}
