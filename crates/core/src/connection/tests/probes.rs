//! Probes: challenges and responses, and the other contents of a probe.

use std::time::Duration;

use squall_wire::{ConnectionId, Direction, Ecn, Path, Side, TransportError, TransportErrorCode};

use crate::common::Pair;
use crate::config::TransportConfig;
use crate::connection::receive::Trip;
use crate::path;
use crate::space::SpaceId;
use crate::stages::Stages;

const ELSEWHERE: &str = "198.51.100.7:7000";

fn path(remote: &str) -> Path {
    Path {
        remote: remote.parse().unwrap(),
        local: None,
    }
}

fn connected() -> Pair {
    let mut pair = Pair::new();
    pair.run();
    pair
}

/// Processes the frames of a 1-RTT packet from `from`; returns the bytes not credited to any path,
/// and whether they move the connection.
fn take(
    pair: &mut Pair,
    side: Side,
    from: Path,
    payload: &[u8],
) -> Result<(usize, bool), TransportError> {
    let now = pair.now;
    let connection = pair.connection(side);
    let home = path::same(&from, &connection.paths.active.path);
    let (none, mut stages) = (ConnectionId::EMPTY, Stages::off());
    let mut trip = Trip::new(now, none, from, home, Ecn::NotEct, &mut stages);
    trip.uncredited = if home { 0 } else { payload.len() };
    connection.take_frames(SpaceId::Data, payload, &mut trip)?;
    Ok((trip.uncredited, trip.moved))
}

fn challenges(count: usize) -> Vec<u8> {
    let mut payload = vec![0; 9 * count];
    for (n, frame) in payload.chunks_exact_mut(9).enumerate() {
        frame[0] = 0x1a;
        frame[1..].copy_from_slice(&(n as u64).to_be_bytes());
    }
    payload
}

// test: RFC 9000 §8.2.2, §21.9 — SECURITY.md row 1
#[test]
fn a_million_challenges_queue_four_responses() {
    let mut pair = connected();
    let now = pair.now;
    let payload = challenges(100);
    let home = pair.connection(Side::Server).path();
    for _ in 0..10_000 {
        take(&mut pair, Side::Server, home, &payload).unwrap();
    }
    let mut buffer = vec![0; 65_536];
    let server = pair.connection(Side::Server);
    let frames = server.spaces[SpaceId::Data].sent.frame_mark();
    let mut sent = Vec::new();
    while let Some(transmit) = server.transmit(now, &mut buffer, 64, &mut Stages::off()) {
        sent.push(transmit.len);
    }
    // One datagram with the remaining ones; nothing is remembered that could be sent again.
    assert_eq!(sent, [1200]);
    assert_eq!(server.spaces[SpaceId::Data].sent.frame_mark(), frames);
    assert!(
        server
            .paths
            .inactive
            .as_ref()
            .is_some_and(|p| p.next_response().is_none())
    );
}

// test: RFC 9000 §8.2.2 — SECURITY.md row 1: with a full window the newest wait.
#[test]
fn responses_wait_for_the_window_on_the_active_path() {
    let mut pair = connected();
    let now = pair.now;
    let home = pair.connection(Side::Server).path();
    let flow = &mut pair.connection(Side::Server).paths.active.flow;
    flow.enter(flow.room());
    let mut buffer = vec![0; 65_536];
    let server = pair.connection(Side::Server);
    // One per round trip exceeds the window.
    let rtt = server.paths.active.flow.rtt.smoothed();
    for (later, sends) in [(0, true), (0, false), (1, true), (1, false)] {
        take(&mut pair, Side::Server, home, &challenges(100)).unwrap();
        let server = pair.connection(Side::Server);
        let now = now + rtt * later;
        let sent = server.transmit_path_probe(now, &mut buffer, &mut Stages::off());
        assert_eq!(sent.is_some(), sends, "{later}");
    }
    let server = pair.connection(Side::Server);
    server.paths.active.flow.leave(u64::MAX);
    let one = server.transmit_path_probe(now, &mut buffer, &mut Stages::off());
    assert_eq!(one.map(|t| t.len), Some(1200));
    let paths = server.paths.inactive.as_mut().unwrap();
    assert_eq!(paths.take_response(server.paths.active.tag), None);
}

// test: RFC 9000 §8.2.2, §9.3.1
#[test]
fn a_response_goes_to_the_challenges_source_within_the_amplification_limit() {
    let mut pair = connected();
    let now = pair.now;
    let home = pair.connection(Side::Server).path();
    let there = path(ELSEWHERE);
    take(&mut pair, Side::Server, there, &challenges(1)).unwrap();
    let mut buffer = vec![0; 65_536];
    let server = pair.connection(Side::Server);
    // 9 bytes arrived: neither response nor challenge fits.
    assert_eq!(
        server.transmit(now, &mut buffer, 64, &mut Stages::off()),
        None
    );
    let mut payload = challenges(1);
    payload.resize(60, 0);
    let (uncredited, moved) = take(&mut pair, Side::Server, there, &payload).unwrap();
    let server = pair.connection(Side::Server);
    assert_eq!(server.paths.credit_elsewhere(&there, uncredited), 0);
    let sent = server
        .transmit(now, &mut buffer, 64, &mut Stages::off())
        .unwrap();
    assert_eq!((sent.path, sent.len), (there, 3 * 69));
    assert_eq!(server.path(), home, "a probe moves no connection");
    assert!(!moved);
    assert_eq!(
        server.transmit(now, &mut buffer, 64, &mut Stages::off()),
        None
    );
}

// test: RFC 9000 §19.18
#[test]
fn an_unsolicited_response_is_an_error_only_if_no_challenge_was_ever_sent() {
    let mut pair = connected();
    let home = pair.connection(Side::Server).path();
    let mut response = challenges(1);
    response[0] = 0x1b;
    let error = take(&mut pair, Side::Server, home, &response).err();
    assert_eq!(
        error.map(|e| e.code),
        Some(TransportErrorCode::PROTOCOL_VIOLATION)
    );
    let mut payload = challenges(1);
    payload.resize(1200, 0);
    take(&mut pair, Side::Server, path(ELSEWHERE), &payload).unwrap();
    let mut buffer = vec![0; 65_536];
    let now = pair.now;
    let server = pair.connection(Side::Server);
    let sent = server.transmit(now, &mut buffer, 64, &mut Stages::off());
    assert_eq!(sent.map(|t| t.path), Some(path(ELSEWHERE)));
    take(&mut pair, Side::Server, home, &response).unwrap();
    assert_eq!(pair.connection(Side::Server).stats().paths_validated, 0);
}

/// Bytes of the server that are neither acknowledged nor lost.
fn in_flight(pair: &mut Pair) -> u64 {
    let server = pair.connection(Side::Server);
    server.paths.active.flow.in_flight()
}

// test: RFC 9002 §6.2.1
#[test]
fn a_probe_repeats_an_acknowledgement_that_was_lost() {
    let mut pair = connected();
    let before = in_flight(&mut pair);
    let ping = pair.take_ping(Side::Server);
    pair.deliver(Side::Client, &ping);
    pair.now += Duration::from_millis(50);
    let now = pair.now;
    pair.connection(Side::Client).on_timeout(now);
    pair.take_datagram(Side::Client)
        .expect("an acknowledgement, which is lost");
    assert!(in_flight(&mut pair) > before);
    let probe = pair.take_ping(Side::Client);
    pair.deliver(Side::Server, &probe);
    assert_eq!(in_flight(&mut pair), before);
}

/// A client that sent something so long ago that a probe is due.
fn unanswered() -> Pair {
    let mut pair = connected();
    pair.take_ping(Side::Client);
    pair.now += Duration::from_secs(1);
    pair
}

fn probe_timeouts(pair: &mut Pair) -> u64 {
    pair.connection(Side::Client).stats().probe_timeouts
}

// test: RFC 9002 §6.2
#[test]
fn a_probe_timeout_is_deferred_while_datagrams_are_unread() {
    let mut pair = unanswered();
    let now = pair.now;
    let client = pair.connection(Side::Client);
    let until = client.on_timeout_while_unread(now).expect("put off");
    assert_eq!(until - now, Duration::from_millis(350));
    assert!(client.next_timeout().is_some_and(|due| due <= until));
    let later = now + Duration::from_millis(100);
    assert_eq!(client.on_timeout_while_unread(later), None);
    assert_eq!(probe_timeouts(&mut pair), 0);
    // There was no acknowledgement in the data that has been read.
    pair.connection(Side::Client).on_timeout(later);
    assert_eq!(probe_timeouts(&mut pair), 1);
}

#[test]
fn a_probe_timeout_is_not_deferred_for_ever() {
    let mut pair = unanswered();
    let now = pair.now;
    let client = pair.connection(Side::Client);
    let until = client.on_timeout_while_unread(now).expect("put off");
    assert_eq!(client.on_timeout_while_unread(until), None);
    assert_eq!(probe_timeouts(&mut pair), 1);
    // Nor do those that follow, if the socket is never empty.
    let later = until + Duration::from_secs(2);
    let client = pair.connection(Side::Client);
    assert_eq!(client.on_timeout_while_unread(later), None);
    assert_eq!(probe_timeouts(&mut pair), 2);
}

#[test]
fn an_unread_acknowledgement_makes_the_probe_unnecessary() {
    let mut pair = connected();
    let ping = pair.take_ping(Side::Client);
    pair.deliver(Side::Server, &ping);
    pair.now += Duration::from_secs(1);
    let now = pair.now;
    pair.connection(Side::Server).on_timeout(now);
    let acknowledgement = pair.take_datagram(Side::Server).unwrap();
    let client = pair.connection(Side::Client);
    client.on_timeout_while_unread(now).expect("put off");
    pair.deliver(Side::Client, &acknowledgement);
    pair.connection(Side::Client).on_timeout(now);
    assert_eq!(probe_timeouts(&mut pair), 0);
}

// test: RFC 9000 §10.1
#[test]
fn the_idle_timeout_is_deferred_while_datagrams_are_unread() {
    let mut pair = connected();
    let ping = pair.take_ping(Side::Client);
    pair.now += Duration::from_secs(3600);
    let now = pair.now;
    let server = pair.connection(Side::Server);
    assert!(server.on_timeout_while_unread(now).is_some());
    pair.deliver(Side::Server, &ping);
    let server = pair.connection(Side::Server);
    server.on_timeout(now);
    assert!(!server.is_drained());
    let now = now + Duration::from_secs(3600);
    server.on_timeout(now);
    assert!(server.is_drained());
}

// test: RFC 9000 §9.2 — HTTP/3's control streams stay open while nothing is expected
#[test]
fn a_client_with_only_background_streams_does_not_probe_a_silent_server() {
    for (background, others, looks) in [
        (0, 1, true),
        (1, 0, false),
        (2, 0, false),
        (2, 1, true),
        (0, 0, false),
    ] {
        let mut pair = connected();
        let client = pair.connection(Side::Client);
        let mut ids = Vec::new();
        for stream in 0..background + others {
            let id = client.open(Direction::Bidirectional).unwrap();
            client.finish(id).unwrap();
            if stream < background {
                // Twice counts as once.
                client.set_background(id);
                client.set_background(id);
            }
            ids.push(id);
        }
        let looks_now = |pair: &mut Pair| {
            pair.run();
            pair.now += Duration::from_secs(1);
            let now = pair.now;
            let client = pair.connection(Side::Client);
            client.on_timeout(now);
            std::mem::take(&mut client.duties.ping)
        };
        assert_eq!(looks_now(&mut pair), looks, "{background}, {others}");
        // All streams end, including background ones; a new one counts again.
        for id in ids {
            for side in [Side::Client, Side::Server] {
                pair.connection(side).accept(Direction::Bidirectional);
                let _ = pair.connection(side).reset(id, 0);
                let _ = pair.connection(side).stop_sending(id, 0);
            }
        }
        pair.run();
        let client = pair.connection(Side::Client);
        assert_eq!(client.stats().open_streams, 0);
        let id = client.open(Direction::Bidirectional).unwrap();
        client.finish(id).unwrap();
        assert!(looks_now(&mut pair), "{background}, {others}");
    }
}

#[test]
fn open_streams_keep_a_connection_alive_if_configured() {
    for (with_streams, background, alive) in [
        (true, false, true),
        (true, true, false),
        (false, false, false),
    ] {
        let transport = TransportConfig::default().keep_alive_with_streams(with_streams);
        let idle = transport.max_idle_timeout;
        let mut pair = Pair::with(transport);
        pair.run();
        let client = pair.connection(Side::Client);
        let id = client.open(Direction::Bidirectional).unwrap();
        client.finish(id).unwrap();
        if background {
            client.set_background(id);
        }
        pair.run();
        let mut pings_after = |wait: Duration| {
            pair.now += wait;
            let now = pair.now;
            let client = pair.connection(Side::Client);
            client.on_timeout(now);
            std::mem::take(&mut client.duties.ping)
        };
        // Until then a client looks for a server that has gone quiet.
        pings_after(idle / 2 - Duration::from_secs(1));
        let pings = pings_after(Duration::from_secs(2));
        assert_eq!(pings, alive, "{with_streams}, {background}");
    }
}
