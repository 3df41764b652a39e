//! Datagrams that belong to no connection, and connection ids: rows 10, 13, 30, 31 and 47 of the
//! threat table in `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use squall_core::{
    CloseReason, ConnectionHandle, ConnectionIdGenerator, Endpoint, EndpointConfig, Event, QuicLb,
    ResetTokenDirectory, Route, ServerConfig, Time, TransportConfig, worker_of,
};
use squall_tls::Session;
use squall_wire::{
    ConnectionId, Direction, Path, Side, TransportParameters, VERSION_1, Writer, frame,
};

use crate::common::link::{Host, Link, initial_with};
use crate::common::tls;

const NOW: Time = Time::from_nanos(1_000_000_000);

fn config() -> EndpointConfig {
    EndpointConfig::new([1; 32])
}

fn server() -> Host {
    Host::server(config(), tls().1, TransportConfig::default())
}

fn server_config() -> ServerConfig {
    ServerConfig::new(tls().1)
}

/// A ClientHello with these transport parameters.
fn client_hello(params: Vec<u8>) -> Vec<u8> {
    let name = "localhost".try_into().unwrap();
    let mut session = Session::client(&tls().0, VERSION_1, name, params).unwrap();
    let mut hello = Vec::new();
    assert!(session.write(&mut hello).unwrap().is_none());
    hello
}

fn parameters() -> Vec<u8> {
    let declared = TransportParameters {
        initial_source_connection_id: ConnectionId::new(&[9; 8]),
        initial_max_streams_uni: 10,
        initial_max_data: 10_000,
        ..TransportParameters::default()
    };
    let mut params = Vec::new();
    declared.encode(&mut params, None);
    params
}

/// Initials with these CRYPTO bytes, `in_frame` bytes per frame.
fn initials(hello: &[u8], in_frame: usize) -> Vec<Vec<u8>> {
    let mut payloads: Vec<Vec<u8>> = vec![Vec::new()];
    for (i, part) in hello.chunks(in_frame).enumerate() {
        let mut crypto = vec![0; in_frame + 10];
        let mut w = Writer::new(&mut crypto);
        frame::write::crypto_header(&mut w, (i * in_frame) as u64, part.len());
        w.bytes(part);
        let len = w.len();
        if payloads.last().unwrap().len() + len > 1100 {
            payloads.push(Vec::new());
        }
        payloads
            .last_mut()
            .unwrap()
            .extend_from_slice(&crypto[..len]);
    }
    (0..)
        .zip(payloads)
        .map(|(number, payload)| initial_with(VERSION_1, &[7; 8], &[], number, &payload))
        .collect()
}

// test: SECURITY.md row 47: work by the byte, not by the piece
#[test]
fn a_client_hello_in_single_bytes_is_answered_once_it_is_complete() {
    let hello = client_hello(parameters());
    let mut server = server();
    let from = "192.0.2.9:9".parse().unwrap();
    let flight = initials(&hello, 1);
    for (i, datagram) in flight.iter().enumerate() {
        server.receive(NOW, from, datagram);
        let answer: usize = server.send(NOW).iter().map(Vec::len).sum();
        let last = i == flight.len() - 1;
        assert_eq!(answer > 1200, last, "{answer} bytes after {i}");
    }
    assert_eq!(server.closed(0), None);
    let connection = &server.connections[&0];
    assert!(connection.is_handshaking());
    assert_eq!(connection.stats().packets_dropped, 0);
}

// test: RFC 9000 §7.4, SECURITY.md rows 10 and 13: whatever a first flight holds, it is dropped,
// or closes the connection with an error
#[test]
fn damaged_client_hellos_and_parameters_are_dropped_or_close_with_an_error() {
    let mut rng = StdRng::from_seed([4; 32]);
    let from = "192.0.2.9:9".parse().unwrap();
    let whole = client_hello(parameters());
    for n in 0..3_000 {
        let hello = if n % 10 == 0 {
            let mut params = parameters();
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..params.len());
                params[at] = rng.random();
            }
            client_hello(params)
        } else {
            let mut hello = whole.clone();
            for _ in 0..rng.random_range(1..6) {
                let at = match rng.random_range(0..3) {
                    // Lengths are at the front.
                    0 => rng.random_range(0..50),
                    _ => rng.random_range(0..hello.len()),
                };
                hello[at] = rng.random();
            }
            if n % 3 == 0 {
                hello.truncate(rng.random_range(1..hello.len()));
            }
            hello
        };
        let mut server = server_of_all();
        for datagram in initials(&hello, 1000) {
            server.receive(NOW, from, &datagram);
            server.send(NOW);
        }
        if let Some(reason) = server.closed(0) {
            let is_error = matches!(
                reason,
                CloseReason::Transport { remote: false, code, .. } if code.0 != 1
            );
            assert!(is_error, "{n}: {reason}");
        }
    }
}

/// A server with a shared certificate, since generating one takes long.
fn server_of_all() -> Host {
    static TLS: std::sync::OnceLock<Arc<rustls::ServerConfig>> = std::sync::OnceLock::new();
    let tls = TLS.get_or_init(|| tls().1);
    Host::server(config(), Arc::clone(tls), TransportConfig::default())
}

// ---- stateless reset ---------------------------------------------------------------------------

/// A connected pair, and a short packet of the client.
fn short_packet() -> (Link, usize, Vec<u8>) {
    let (client_tls, server_tls) = tls();
    let server = Host::server(config(), server_tls, TransportConfig::default());
    let mut link = Link::new(Host::client(), server);
    let handle = link
        .client
        .connect(link.now, client_tls, TransportConfig::default());
    link.run();
    let client = link.client.connections.get_mut(&handle).unwrap();
    let id = client.open(Direction::Unidirectional).unwrap();
    client
        .write(id, &mut Bytes::from_static(&[7; 200]))
        .unwrap();
    let datagram = link.client.send(link.now).remove(0);
    assert_eq!(datagram[0] & 0x80, 0);
    (link, handle, datagram)
}

// test: RFC 9000 §10.3
#[test]
fn unroutable_datagrams_are_offered_to_the_predecessor() {
    let path = Path {
        remote: "192.0.2.9:9".parse().unwrap(),
        local: None,
    };
    let short = vec![0x41; 100];
    let first = initial_with(VERSION_1, &[7; 8], &[], 0, &[0x01]);
    // Of a handshake that has begun: its keys are derived from another id.
    let mut later = first.clone();
    later[6..14].fill(8);
    let mut handshake = first.clone();
    handshake[0] = 0xe3;
    let small = first[..60].to_vec();
    let mut unknown = first.clone();
    unknown[1..5].copy_from_slice(b"what");
    let mut negotiation = first.clone();
    negotiation[1..5].fill(0);
    let route = |exists: bool, is_server: bool, datagram: &[u8]| {
        let server = is_server.then(|| Arc::new(server_config()));
        let mut endpoint = Endpoint::new(config(), server, [5; 32]);
        endpoint.set_predecessor(exists);
        // Three datagrams of a kind belong together.
        let three = [datagram; 3].concat();
        let run = endpoint.route(NOW, path, &three, datagram.len() as u16);
        (run.to, run.len == three.len())
    };
    for datagram in [&short, &later, &handshake, &small, &negotiation] {
        for is_server in [true, false] {
            let (to, all) = route(true, is_server, datagram);
            assert!(matches!(to, Route::Predecessor) && all, "{to:?}");
            let (to, _) = route(false, is_server, datagram);
            assert!(matches!(to, Route::Respond(_) | Route::Discard), "{to:?}");
        }
    }
    // New clients are this endpoint's, and so are clients of other versions.
    for exists in [true, false] {
        assert!(matches!(route(exists, true, &first).0, Route::Incoming(_)));
        assert!(matches!(route(exists, true, &unknown).0, Route::Respond(_)));
    }
}

// test: RFC 9000 §10.3, §10.3.2, SECURITY.md row 30
#[test]
fn only_an_endpoint_with_the_same_reset_key_can_reset() {
    for (key, resets) in [([1; 32], true), ([2; 32], false)] {
        let (mut link, handle, datagram) = short_packet();
        // Another process, with no state at all; its other secrets differ.
        let mut other = Endpoint::new(EndpointConfig::new(key), None, [77; 32]);
        let path = Path {
            remote: link.client.address,
            local: None,
        };
        let size = datagram.len() as u16;
        let Route::Respond(reset) = other.route(link.now, path, &datagram, size).to else {
            panic!("no reset")
        };
        assert!(reset.len() < datagram.len());
        link.client.receive(link.now, link.server.address, &reset);
        let expected = resets.then_some(&CloseReason::Reset);
        assert_eq!(link.client.closed(handle), expected);
    }
}

// test: RFC 9000 §10.3.3, SECURITY.md row 31
#[test]
fn resets_are_shorter_than_their_triggers_and_rate_limited() {
    let path = Path {
        remote: "192.0.2.9:9".parse().unwrap(),
        local: None,
    };
    let mut one = Endpoint::new(config(), None, [5; 32]);
    let mut rng = StdRng::from_seed([9; 32]);
    let answer = |endpoint: &mut Endpoint, now, datagram: &[u8]| match endpoint
        .route(now, path, datagram, datagram.len() as u16)
        .to
    {
        Route::Respond(reset) => Some(reset),
        Route::Discard => None,
        other => panic!("{other:?}"),
    };
    let mut short = |len: usize| {
        let mut datagram = vec![0; len];
        rng.fill_bytes(&mut datagram);
        datagram[0] = 0x40 | (datagram[0] & 0x3f);
        datagram
    };
    for len in 1..1400 {
        // One second each, so that the limit is not reached.
        let now = Time::from_nanos(len as u64 * 1_000_000_000);
        match answer(&mut one, now, &short(len)) {
            Some(reset) => {
                assert!(reset.len() < len && reset.len() >= 21, "{len}");
                assert_eq!(
                    reset[0] & 0xc0,
                    0x40,
                    "a reset looks like a short-header packet"
                );
            }
            None => assert!(len < 22, "{len}"),
        }
    }
    // Two endpoints without state, face to face.
    let mut two = Endpoint::new(EndpointConfig::new([6; 32]), None, [6; 32]);
    let mut datagram = short(1400);
    let mut turns = 0;
    let now = Time::from_nanos(1 << 60);
    loop {
        let endpoint = if turns % 2 == 0 { &mut one } else { &mut two };
        match answer(endpoint, now, &datagram) {
            Some(reset) => datagram = reset,
            None => break,
        }
        turns += 1;
        assert!(turns < 100, "the two endpoints reset each other endlessly");
    }
    // A flood from one source gets that source's share.
    let now = Time::from_nanos(2 << 60);
    let flood = short(100);
    let answered = (0..5000).filter(|_| answer(&mut one, now, &flood).is_some());
    assert_eq!(answered.count(), 100);
    assert_eq!(one.counts().stateless_resets_withheld, 4900);
}

// test: RFC 9000 §10.3.3, §21.11, SECURITY.md row 54
#[test]
fn a_flood_of_one_kind_leaves_answers_for_the_others() {
    type Kind = (&'static str, fn(&[u8; 8]) -> Vec<u8>);
    let kinds: [Kind; 3] = [
        ("reset", |id| [&[0x40][..], id, &[7; 60]].concat()),
        ("negotiation", |id| {
            let header = [&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8][..], id, &[0]].concat();
            [header, vec![0; 1200]].concat()
        }),
        ("refusal", |id| initial_with(VERSION_1, id, &[], 0, &[0x01])),
    ];
    let honest = "198.51.100.7:7".parse().unwrap();
    for (flooded, flood) in kinds {
        let mut server = Host::server(
            config().max_connections(0),
            tls().1,
            TransportConfig::default(),
        );
        // From one host; then from everywhere.
        let mut sent = [0, 0];
        for n in 0..2400_u32 {
            let id = [&[9; 4][..], &n.to_be_bytes()].concat().try_into().unwrap();
            let anywhere = [10, (n >> 8) as u8, n as u8, 1];
            let spread = n >= 400;
            let from = if spread { anywhere } else { [192, 0, 2, 9] };
            let answers = server.receive(NOW, (from, 9).into(), &flood(&id));
            sent[usize::from(spread)] += answers.len();
        }
        assert_eq!(sent, [100, 900], "{flooded}");
        for (kind, datagram) in kinds {
            let answers = server.receive(NOW, honest, &datagram(&[5; 8]));
            assert_eq!(
                answers.len(),
                usize::from(kind != flooded),
                "{flooded}, {kind}"
            );
        }
        let counts = server.endpoint.counts();
        for (kind, sent_of_kind, withheld) in [
            (
                "reset",
                counts.stateless_resets,
                counts.stateless_resets_withheld,
            ),
            (
                "negotiation",
                counts.version_negotiations,
                counts.version_negotiations_withheld,
            ),
            ("refusal", counts.refusals, counts.refusals_withheld),
        ] {
            let expected = if kind == flooded {
                (1000, 1401)
            } else {
                (1, 0)
            };
            assert_eq!((sent_of_kind, withheld), expected, "{kind}");
        }
        // One second later.
        let later = Time::from_nanos(NOW.as_nanos() + 1_000_000_000);
        let answers = server.receive(later, honest, &flood(&[5; 8]));
        assert_eq!(answers.len(), 1, "{flooded}");
    }
}

// ---- connection ids ----------------------------------------------------------------------------

/// Packets that one end of a connected pair has sent and that have not arrived, each with its own
/// stream, under an id that is retired in the meantime.
fn late_packets(side: Side, count: usize) -> (Link, usize, Vec<Vec<u8>>) {
    let (client_tls, server_tls) = tls();
    let server = Host::server(config(), server_tls, TransportConfig::default());
    let mut link = Link::new(Host::client(), server);
    let transport = TransportConfig::default();
    let handle = link.client.connect(link.now, client_tls, transport);
    link.run();
    let now = link.now;
    let (sender, receiver) = match side {
        Side::Client => (&mut link.client, &mut link.server),
        Side::Server => (&mut link.server, &mut link.client),
    };
    let mut late = Vec::new();
    for _ in 0..count {
        let connection = sender.connections.get_mut(&handle).unwrap();
        let id = connection.open(Direction::Unidirectional).unwrap();
        connection
            .write(id, &mut Bytes::from_static(&[7; 200]))
            .unwrap();
        late.push(sender.send(now).remove(0));
    }
    assert!(receiver.connections.get_mut(&handle).unwrap().rotate_ids());
    link.run();
    (link, handle, late)
}

/// Hands one end a datagram of the other; returns the endpoint's own responses.
fn arrive(link: &mut Link, sender: Side, datagram: &[u8]) -> Vec<Vec<u8>> {
    let (from, receiver) = match sender {
        Side::Client => (link.client.address, &mut link.server),
        Side::Server => (link.server.address, &mut link.client),
    };
    receiver.receive(link.now, from, datagram)
}

// test: RFC 9000 §5.1.1, §10.3: ids leave the routes after the packets that were sent under them
#[test]
fn late_packets_under_a_retired_id_are_processed_for_three_probe_timeouts() {
    for side in [Side::Client, Side::Server] {
        let (mut link, handle, late) = late_packets(side, 2);
        let receiver = |link: &Link| match side {
            Side::Client => link.server.connections[&handle].stats(),
            Side::Server => link.client.connections[&handle].stats(),
        };
        let before = receiver(&link).packets_received;
        assert_eq!(
            arrive(&mut link, side, &late[0]).len(),
            0,
            "{side:?}: a reset"
        );
        assert_eq!(receiver(&link).packets_received, before + 1, "{side:?}");
        // Any later event finds that they have expired.
        link.rest(Duration::from_millis(200));
        link.client.connections.get_mut(&handle).unwrap().ping();
        link.run();
        assert_eq!(arrive(&mut link, side, &late[1]).len(), 1, "{side:?}");
        assert_eq!(link.client.closed(handle), None);
        assert_eq!(link.server.closed(handle), None);
    }
}

#[test]
fn retired_ids_expire_on_idle_connections_and_end_with_the_connection() {
    for ends in [false, true] {
        let (mut link, handle, late) = late_packets(Side::Client, 1);
        if ends {
            let server = link.server.connections.get_mut(&handle).unwrap();
            server.close(link.now, 0, b"");
            // The peer's late packet is still answered by the connection that closes.
            link.server.send(link.now);
            assert_eq!(arrive(&mut link, Side::Client, &late[0]).len(), 0);
            link.server.endpoint.remove(ConnectionHandle(handle));
            link.server.connections.clear();
        } else {
            link.rest(Duration::from_secs(6));
            assert_eq!(link.server.closed(handle), None);
        }
        assert_eq!(arrive(&mut link, Side::Client, &late[0]).len(), 1, "{ends}");
    }
}

fn quic_lb(key: Option<[u8; 16]>, nonce_len: usize) -> ConnectionIdGenerator {
    let mut ids = QuicLb::new(2, [0xab, 0xcd, 0xef], nonce_len).encode_length(true);
    ids.key = key;
    ConnectionIdGenerator::QuicLb(ids)
}

// test: draft-ietf-quic-load-balancers §5.2
#[test]
fn a_server_behind_a_load_balancer_issues_ids_that_name_it() {
    for (key, nonce_len) in [(None, 8), (Some([8; 16]), 4), (Some([8; 16]), 13)] {
        let (client_tls, server_tls) = tls();
        let config = config().cid_generator(quic_lb(key, nonce_len));
        let server = Host::server(config, server_tls, TransportConfig::default());
        let mut link = Link::new(Host::client(), server);
        let handle = link
            .client
            .connect(link.now, client_tls, TransportConfig::default());
        link.run();
        assert!(link.client.has(handle, &Event::Connected));
        let first = 0x40 | (3 + nonce_len as u8);
        let mut short = 0;
        for datagram in &link.to_server {
            if datagram[0] & 0x80 != 0 {
                continue;
            }
            short += 1;
            assert_eq!(datagram[1], first, "rotation and length");
            if key.is_none() {
                assert_eq!(datagram[2..5], [0xab, 0xcd, 0xef]);
            } else {
                assert_ne!(datagram[2..5], [0xab, 0xcd, 0xef]);
            }
        }
        assert!(short > 0);
    }
}

#[test]
fn generators_out_of_bounds_are_rejected() {
    assert!(quic_lb(None, 8).check(1).is_ok());
    assert!(quic_lb(Some([8; 16]), 16).check(1).is_ok());
    assert!(quic_lb(Some([8; 16]), 17).check(1).is_err());
    assert!(quic_lb(Some([8; 16]), 3).check(1).is_err());
    assert!(quic_lb(None, 7).check(1).is_err(), "a random nonce of 7");
    assert!(quic_lb(None, 8).check(2).is_err(), "length and worker");
    for len in [3, 21] {
        assert!(ConnectionIdGenerator::Plain { len }.check(1).is_err());
    }
    let checked = |ids: QuicLb, workers| ConnectionIdGenerator::QuicLb(ids).check(workers).is_ok();
    assert!(checked(QuicLb::new(0, [1], 8), 32));
    assert!(!checked(QuicLb::new(0, [1], 8), 33));
    assert!(!checked(QuicLb::new(7, [1], 8), 1));
    assert!(!checked(QuicLb::new(0, [], 8), 1));
}

// ---- several workers on one port ---------------------------------------------------------------

/// Which worker owns a reset token, shared by the workers of a test.
#[derive(Clone, Debug, Default)]
struct Directory(Arc<Mutex<HashMap<[u8; 16], u8>>>);

impl ResetTokenDirectory for Directory {
    fn insert(&mut self, token: [u8; 16], worker: u8) {
        self.0.lock().unwrap().insert(token, worker);
    }

    fn remove(&mut self, token: &[u8; 16]) {
        self.0.lock().unwrap().remove(token);
    }

    fn worker(&self, token: &[u8; 16]) -> Option<u8> {
        self.0.lock().unwrap().get(token).copied()
    }
}

fn worker(index: u8, workers: u8) -> EndpointConfig {
    config().worker_index(index).workers(workers)
}

#[test]
fn a_datagram_is_routed_to_the_worker_named_by_its_destination_id() {
    let now = Time::from_nanos(1);
    let path = Path {
        remote: ([127, 0, 0, 1], 1).into(),
        local: None,
    };
    for workers in 2..=5 {
        for own in 0..workers {
            let mut endpoint = Endpoint::new(worker(own, workers), None, [9; 32]);
            for first in 0..=u8::MAX {
                // A short header, and a long one with an id of 8 bytes.
                let mut short = [0x40; 100];
                short[1] = first;
                let mut long = [0xc0; 100];
                long[1..6].copy_from_slice(&[0, 0, 0, 1, 8]);
                long[6] = first;
                for datagram in [short, long] {
                    let run = endpoint.route(now, path, &datagram, 100);
                    let named = worker_of(first, workers);
                    match run.to {
                        Route::Worker(index) => assert!(index == named && named != own),
                        _ => assert_eq!(named, own),
                    }
                }
            }
        }
    }
    assert!(worker(0, 0).check().is_err() && worker(2, 2).check().is_err());
}

// A reset's bytes are random, so that it comes to any worker (RFC 9000 §10.3).
#[test]
fn a_stateless_reset_is_routed_to_the_worker_of_its_connection() {
    let (client_tls, server_tls) = tls();
    let directory = Directory::default();
    let mut client = Host::client();
    client.endpoint = Endpoint::new(worker(1, 2), None, [3; 32]);
    (client.endpoint).set_reset_token_directory(Box::new(directory.clone()));
    let server = Host::server(config(), server_tls, TransportConfig::default());
    let mut link = Link::new(client, server);
    let handle = link
        .client
        .connect(link.now, client_tls, TransportConfig::default());
    link.run();
    assert!(link.client.has(handle, &Event::Connected));
    let tokens: Vec<[u8; 16]> = directory.0.lock().unwrap().keys().copied().collect();
    assert!(!tokens.is_empty());
    let path = Path {
        remote: ([127, 0, 0, 1], 1).into(),
        local: None,
    };
    let mut other = Endpoint::new(worker(0, 2), None, [4; 32]);
    other.set_reset_token_directory(Box::new(directory.clone()));
    for first in 0..4 {
        let mut reset = [0x40; 42];
        reset[1] = first;
        reset[26..].copy_from_slice(&tokens[0]);
        let at_other = other.route(link.now, path, &reset, 42).to;
        assert!(matches!(at_other, Route::Worker(1)), "{at_other:?}");
        let at_home = link.client.endpoint.route(link.now, path, &reset, 42).to;
        assert!(
            matches!(at_home, Route::Connection(ConnectionHandle(h)) if h == handle),
            "{at_home:?}"
        );
    }
    // Removed with its connection.
    link.client.endpoint.remove(ConnectionHandle(handle));
    assert!(directory.0.lock().unwrap().is_empty());
}
