//! Early data (RFC 9001 §4.6): row 33 of the threat table in `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::sync::Arc;

use bytes::Bytes;
use squall_core::{CloseReason, Connection, EndpointConfig, Event, ReadError, TransportConfig};
use squall_wire::{
    Direction, Header, LongType, StreamId, TransportErrorCode, VERSION_1, VERSION_2, header,
};

use crate::common::link::{Host, Link, Policy};

type Tls = (Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>);

/// Both ends ask for early data.
fn tls() -> Tls {
    let (client, server) = crate::common::tls();
    let (mut client, mut server) = ((*client).clone(), (*server).clone());
    client.enable_early_data = true;
    server.max_early_data_size = u32::MAX;
    (Arc::new(client), Arc::new(server))
}

fn server(tls: &Tls, transport: TransportConfig) -> Host {
    Host::server(EndpointConfig::new([1; 32]), Arc::clone(&tls.1), transport)
}

/// A client that has a ticket from a server, which is restarted with `transport`.
fn link(tls: &Tls, transport: TransportConfig) -> Link {
    let defaults = TransportConfig::default;
    let mut link = Link::new(Host::client(), server(tls, defaults()));
    let handle = (link.client).connect(link.now, Arc::clone(&tls.0), defaults());
    link.run();
    assert!(link.client.has(handle, &Event::Connected));
    link.client = Host::client();
    link.server = server(tls, transport);
    (link.to_server, link.to_client) = (Vec::new(), Vec::new());
    link
}

/// The server loses its tickets.
fn forget_tickets(link: &mut Link, tls: &Tls) {
    let mut forgetful = (*tls.1).clone();
    forgetful.session_storage = rustls::server::ServerSessionMemoryCache::new(10);
    let anew = (Arc::clone(&tls.0), Arc::new(forgetful));
    link.server = server(&anew, TransportConfig::default());
}

fn connect(link: &mut Link, tls: &Tls) -> usize {
    connect_as(link, tls, TransportConfig::default())
}

fn connect_as(link: &mut Link, tls: &Tls, transport: TransportConfig) -> usize {
    (link.client).connect(link.now, Arc::clone(&tls.0), transport)
}

/// For an end that prefers version 2.
fn rather_version_2() -> TransportConfig {
    TransportConfig::default().versions(vec![VERSION_2, VERSION_1])
}

/// Opens a stream, writes to it and ends it.
fn write(connection: &mut Connection, data: &Bytes) -> StreamId {
    let id = connection.open(Direction::Unidirectional).unwrap();
    assert_eq!(connection.write(id, &mut data.clone()), Ok(data.len()));
    connection.finish(id).unwrap();
    id
}

/// Everything that can be read from a stream, and whether it has ended.
fn read(connection: &mut Connection, id: StreamId) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    loop {
        match connection.read(id, usize::MAX) {
            Ok(Some(bytes)) => all.extend_from_slice(&bytes),
            Ok(None) => return (all, true),
            Err(ReadError::Blocked) => return (all, false),
            Err(error) => panic!("{error}"),
        }
    }
}

fn server_end(link: &mut Link) -> &mut Connection {
    assert_eq!(link.server.connections.len(), 1);
    link.server.connections.values_mut().next().unwrap()
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// The packets with long headers of a datagram.
fn types(mut datagram: &[u8]) -> Vec<(LongType, u32)> {
    let mut types = Vec::new();
    while let Ok(Header::Long {
        ty, len, version, ..
    }) = header::parse(datagram, 8)
    {
        types.push((ty, version));
        datagram = &datagram[len..];
    }
    types
}

#[test]
fn early_data_arrives_with_the_first_flight() {
    let tls = tls();
    let mut link = link(&tls, TransportConfig::default());
    let handle = connect(&mut link, &tls);
    let client = link.client.connections.get_mut(&handle).unwrap();
    assert!(client.has_early_data());
    let data = bytes(5_000);
    let id = write(client, &data);
    let from = link.client.address;
    let flight = link.client.send(link.now);
    // RFC 9000 §12.2: the first of it travels with the end of the ClientHello.
    let coalesced = (flight.iter()).any(|d| {
        let types = types(d);
        let has = |ty| types.iter().any(|(t, _)| *t == ty);
        has(LongType::Initial) && has(LongType::ZeroRtt)
    });
    assert!(coalesced);
    for datagram in &flight {
        link.server.receive(link.now, from, datagram);
    }
    let server = server_end(&mut link);
    assert!(server.is_handshaking());
    assert_eq!(server.accept(Direction::Unidirectional), Some(id));
    assert_eq!(read(server, id), (data.to_vec(), true));
    // No longer known once the stream is gone, so ask while it exists.
    link.run();
    for event in [Event::EarlyDataAccepted, Event::Connected] {
        assert!(link.client.has(handle, &event), "{event:?}");
    }
    assert!(link.client.has(handle, &Event::Finished(id)));
    let client = &link.client.connections[&handle];
    assert!(
        !client.has_early_data(),
        "the stream's data no longer counts as early"
    );
    assert_eq!(
        client.handshake_kind(),
        Some(rustls::HandshakeKind::Resumed)
    );
    assert_eq!(client.stats().packets_lost, 0);
}

#[test]
fn streams_with_early_data_are_marked() {
    let tls = tls();
    let mut link = link(&tls, TransportConfig::default());
    let handle = connect(&mut link, &tls);
    let client = link.client.connections.get_mut(&handle).unwrap();
    let early = write(client, &bytes(100));
    link.run();
    let late = write(
        link.client.connections.get_mut(&handle).unwrap(),
        &bytes(100),
    );
    link.run();
    let server = server_end(&mut link);
    assert!(server.is_early(early) && !server.is_early(late));
}

// test: SECURITY.md row 33: off unless asked for, by both ends
#[test]
fn early_data_requires_both_ends_to_enable_it() {
    for (client_asks, server_asks) in [(true, false), (false, true), (false, false)] {
        let (client, server) = tls();
        let (mut client, mut server) = ((*client).clone(), (*server).clone());
        client.enable_early_data = client_asks;
        server.max_early_data_size = if server_asks { u32::MAX } else { 0 };
        let tls = (Arc::new(client), Arc::new(server));
        let mut link = link(&tls, TransportConfig::default());
        let handle = connect(&mut link, &tls);
        let client = link.client.connections.get_mut(&handle).unwrap();
        assert!(!client.has_early_data());
        assert_eq!(client.open(Direction::Unidirectional), None);
        link.run();
        let client = &link.client.connections[&handle];
        let kind = client.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::Resumed));
    }
}

// test: RFC 9001 §4.6.2
#[test]
fn rejected_early_data_is_sent_again() {
    let tls = tls();
    let mut link = link(&tls, TransportConfig::default());
    forget_tickets(&mut link, &tls);
    let handle = connect(&mut link, &tls);
    let client = link.client.connections.get_mut(&handle).unwrap();
    let data = bytes(8_000);
    let first = write(client, &data);
    let second = write(client, &data);
    let third = client.open(Direction::Unidirectional).unwrap();
    client.write(third, &mut data.clone()).unwrap();
    let answered = client.open(Direction::Bidirectional).unwrap();
    client.write(answered, &mut data.clone()).unwrap();
    // It is in flight when it is given up, and so is the data on the other stream.
    let flight = link.client.send(link.now);
    assert!(flight.len() > 3);
    let client = link.client.connections.get_mut(&handle).unwrap();
    client.reset(third, 77).unwrap();
    client.stop_sending(answered, 78).unwrap();
    let from = link.client.address;
    for datagram in flight {
        link.server.receive(link.now, from, &datagram);
    }
    assert!(server_end(&mut link).is_handshaking());
    let known = [(0, Event::HandshakeData)];
    assert_eq!(
        link.server.events, known,
        "none of the rejected data is delivered"
    );
    link.run();
    assert!(link.client.has(handle, &Event::EarlyDataRejected));
    assert!(link.client.has(handle, &Event::Connected));
    let server = server_end(&mut link);
    for id in [first, second] {
        assert_eq!(server.accept(Direction::Unidirectional), Some(id));
        assert_eq!(read(server, id), (data.to_vec(), true));
        assert!(!server.is_early(id));
    }
    assert_eq!(server.accept(Direction::Unidirectional), Some(third));
    assert_eq!(server.read(third, 10), Err(ReadError::Reset(77)));
    assert_eq!(server.accept(Direction::Bidirectional), Some(answered));
    assert_eq!(read(server, answered), (data.to_vec(), false));
    link.run();
    let stopped = |(_, event): &(usize, Event)| *event == Event::Stopped(answered, 78);
    assert!(link.server.events.iter().any(stopped));
    for id in [first, second] {
        assert!(link.client.has(handle, &Event::Finished(id)));
    }
}

// test: RFC 9001 §4.6.2 — limits that were raised in early data are raised again, and a stream that
// was reset except for its first bytes delivers those.
#[test]
fn limits_and_partial_resets_survive_a_rejection() {
    let tls = tls();
    let mut link = link(&tls, TransportConfig::default());
    forget_tickets(&mut link, &tls);
    let few = TransportConfig::default().max_concurrent_uni_streams(1);
    let handle = (link.client).connect(link.now, Arc::clone(&tls.0), few);
    let client = link.client.connections.get_mut(&handle).unwrap();
    let id = client.open(Direction::Unidirectional).unwrap();
    client.write(id, &mut bytes(5_000)).unwrap();
    client.reset_at(id, 77, 1_000).unwrap();
    client.set_max_concurrent_streams(Direction::Unidirectional, 3);
    let flight = link.client.send(link.now);
    assert!(flight.len() > 1);
    let from = link.client.address;
    for datagram in flight {
        link.server.receive(link.now, from, &datagram);
    }
    link.run();
    assert!(link.client.has(handle, &Event::EarlyDataRejected));
    let server = server_end(&mut link);
    for opened in 0..3 {
        let stream = server.open(Direction::Unidirectional);
        assert!(stream.is_some(), "{opened} streams");
    }
    assert_eq!(server.accept(Direction::Unidirectional), Some(id));
    let mut first = Vec::new();
    let end = loop {
        match server.read(id, 5_000) {
            Ok(Some(read)) => first.extend_from_slice(&read),
            end => break end,
        }
    };
    assert!(bytes(5_000).starts_with(&first) && first.len() >= 1_000);
    assert_eq!(end, Err(ReadError::Reset(77)));
}

// test: RFC 9000 §7.4.1: a server with lower limits does not accept
#[test]
fn a_server_that_has_lowered_its_limits_rejects_early_data() {
    let tls = tls();
    let lower = TransportConfig::default()
        .max_concurrent_uni_streams(3)
        .initial_window(20_000)
        .initial_stream_window(5_000);
    let mut link = link(&tls, lower);
    let handle = connect(&mut link, &tls);
    let data = bytes(2_000);
    let client = link.client.connections.get_mut(&handle).unwrap();
    let ids: Vec<StreamId> = (0..12).map(|_| write(client, &data)).collect();
    link.run();
    assert!(link.client.has(handle, &Event::EarlyDataRejected));
    assert_eq!(link.client.closed(handle), None);
    // Streams beyond the limit follow as others make room.
    for id in ids {
        let server = server_end(&mut link);
        assert_eq!(server.accept(Direction::Unidirectional), Some(id));
        assert_eq!(read(server, id), (data.to_vec(), true));
        link.run();
        assert!(link.client.has(handle, &Event::Finished(id)));
    }
    assert_eq!(link.client.closed(handle), None);
    assert!(link.server.closed(0).is_none());
}

#[test]
fn early_data_survives_the_loss_of_any_datagram_and_any_order() {
    let tls = tls();
    for lost in 0..12 {
        let mut link = link(&tls, TransportConfig::default());
        let handle = connect(&mut link, &tls);
        let data = bytes(6_000);
        let id = write(link.client.connections.get_mut(&handle).unwrap(), &data);
        let mut at = 0;
        while !link.client.has(handle, &Event::Finished(id)) {
            link.run_losing(|_, _| {
                at += 1;
                at == lost + 1
            });
            assert!(link.client.closed(handle).is_none());
            if !link.client.has(handle, &Event::Finished(id)) {
                link.wait();
            }
        }
        let server = server_end(&mut link);
        server.accept(Direction::Unidirectional).unwrap();
        assert_eq!(read(server, id), (data.to_vec(), true), "{lost}");
    }
    // Backwards: the end of the ClientHello, with early data, arrives before its beginning, and
    // more before both.
    let mut link = link(&tls, TransportConfig::default());
    let handle = connect(&mut link, &tls);
    let data = bytes(3_000);
    let id = write(link.client.connections.get_mut(&handle).unwrap(), &data);
    let mut flight = link.client.send(link.now);
    flight[..2].reverse();
    let end = flight.len();
    flight[1..end].rotate_left(1);
    let from = link.client.address;
    for datagram in &flight {
        link.server.receive(link.now, from, datagram);
    }
    let server = server_end(&mut link);
    server.accept(Direction::Unidirectional).unwrap();
    assert_eq!(read(server, id), (data.to_vec(), true));
}

// test: RFC 9000 §17.2.5.3
#[test]
fn early_data_follows_a_retry() {
    let tls = tls();
    let mut link = link(&tls, TransportConfig::default());
    link.server.policy = Policy::Retry;
    let handle = connect(&mut link, &tls);
    let data = bytes(4_000);
    let id = write(link.client.connections.get_mut(&handle).unwrap(), &data);
    link.run();
    assert_eq!(link.server.validated, Some(true));
    assert!(link.client.has(handle, &Event::EarlyDataAccepted));
    let server = server_end(&mut link);
    server.accept(Direction::Unidirectional).unwrap();
    assert!(server.is_early(id));
    assert_eq!(read(server, id), (data.to_vec(), true));
}

/// An application may take its time to accept; the early data behind the ClientHello is offered
/// with it.
#[test]
fn early_data_of_a_waiting_attempt_belongs_to_it() {
    let tls = tls();
    let mut link = link(&tls, TransportConfig::default());
    link.server.policy = Policy::Wait;
    let handle = connect(&mut link, &tls);
    let client = link.client.connections.get_mut(&handle).unwrap();
    write(client, &bytes(4_000));
    let flight = link.client.send(link.now);
    let from = link.client.address;
    let alone = |d: &Vec<u8>| types(d).iter().all(|(ty, _)| *ty == LongType::ZeroRtt);
    assert!(flight.iter().filter(|d| alone(d)).count() >= 2);
    // Early data without an attempt belongs to no connection.
    let last = flight.last().unwrap();
    link.server.receive(link.now, from, last);
    assert_eq!(link.server.waiting.len(), 0);
    for datagram in &flight {
        link.server.receive(link.now, from, datagram);
    }
    assert_eq!(link.server.waiting.len(), flight.len());
    assert_eq!(link.server.endpoint.undecided(), 1);
}

// test: RFC 9001 §9.2, SECURITY.md row 33
#[test]
fn a_replayed_flight_is_rejected() {
    let tls = tls();
    let mut link = link(&tls, TransportConfig::default());
    let handle = connect(&mut link, &tls);
    let client = link.client.connections.get_mut(&handle).unwrap();
    write(client, &bytes(3_000));
    let flight = link.client.send(link.now);
    // To the server, to it again, and to another of its workers, which shares the tickets.
    let mut worker = server(&tls, TransportConfig::default());
    let from = link.client.address;
    for datagram in &flight {
        link.server.receive(link.now, from, datagram);
    }
    let opened = Event::StreamOpened(Direction::Unidirectional);
    assert!(link.server.has(0, &opened));
    link.server.events.clear();
    for datagram in &flight {
        link.server.receive(link.now, from, datagram);
        worker.receive(link.now, from, datagram);
    }
    assert_eq!(link.server.events, []);
    assert_eq!(link.server.connections.len(), 1);
    assert_eq!(worker.connections.len(), 1);
    let known = [(0, Event::HandshakeData)];
    assert_eq!(
        worker.events, known,
        "no data is delivered without a handshake"
    );
}

// test: RFC 9369 §4.1, §5
#[test]
fn early_data_uses_the_version_of_its_ticket() {
    let tls = tls();
    // The server now changes the version: early data is sent in the original version, and accepted.
    let mut link = link(&tls, rather_version_2());
    let handle = connect_as(&mut link, &tls, rather_version_2());
    let data = bytes(4_000);
    let id = write(link.client.connections.get_mut(&handle).unwrap(), &data);
    link.run();
    assert!(link.client.has(handle, &Event::EarlyDataAccepted));
    assert_eq!(link.client.connections[&handle].version(), VERSION_2);
    let zero_rtt: Vec<_> = (link.to_server.iter().flat_map(|d| types(d)))
        .filter(|(ty, _)| *ty == LongType::ZeroRtt)
        .collect();
    assert!(!zero_rtt.is_empty());
    assert!(zero_rtt.iter().all(|(_, version)| *version == VERSION_1));
    let server = server_end(&mut link);
    server.accept(Direction::Unidirectional).unwrap();
    assert_eq!(read(server, id), (data.to_vec(), true));
    // RFC 9369 §5: no ticket of version 1 in version 2. The server accepts only version 2: the
    // client starts over.
    let mut link = self::link(&tls, TransportConfig::default().versions(vec![VERSION_2]));
    let handle = connect(&mut link, &tls);
    let id = write(link.client.connections.get_mut(&handle).unwrap(), &data);
    link.run();
    assert!(link.client.has(handle, &Event::EarlyDataRejected));
    let client = &link.client.connections[&handle];
    assert_eq!(client.version(), VERSION_2);
    assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
    let server = server_end(&mut link);
    server.accept(Direction::Unidirectional).unwrap();
    assert_eq!(read(server, id), (data.to_vec(), true));
    // And no ticket of version 2 is kept.
    let fresh = self::tls();
    link.server = self::server(&fresh, rather_version_2());
    for _ in 0..2 {
        let handle = connect_as(&mut link, &fresh, rather_version_2());
        assert!(!link.client.connections[&handle].has_early_data());
        link.run();
        let client = &link.client.connections[&handle];
        assert_eq!(client.version(), VERSION_2);
        assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}

// Tickets exist for version 1 only: a client that does not prefer version 2 stays with version 1.
#[test]
fn a_client_resumes_with_a_server_that_prefers_version_2() {
    let tls = tls();
    let mut link = Link::new(Host::client(), server(&tls, rather_version_2()));
    for early in [false, true] {
        let handle = connect(&mut link, &tls);
        let connection = link.client.connections.get_mut(&handle).unwrap();
        assert_eq!(connection.has_early_data(), early);
        if early {
            write(connection, &bytes(100));
        }
        link.run();
        assert_eq!(link.client.has(handle, &Event::EarlyDataAccepted), early);
        let client = &link.client.connections[&handle];
        assert_eq!(client.version(), VERSION_1);
        let kind = client.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        assert_eq!(kind, early);
    }
}

/// Checks that this end closed the connection with PROTOCOL_VIOLATION.
fn assert_is_violation(closed: Option<&CloseReason>, what: &str) {
    match closed {
        Some(CloseReason::Transport {
            code,
            remote: false,
            ..
        }) => assert_eq!(*code, TransportErrorCode::PROTOCOL_VIOLATION, "{what}"),
        other => panic!("{what}: {other:?}"),
    }
}

/// Session storage of a server that accepts early data although it has lowered its limits.
#[derive(Debug)]
struct Careless {
    inner: Arc<dyn rustls::server::StoresServerSessions>,
    /// The limits that entries are bound to: those of the newest.
    limits: std::sync::Mutex<Vec<u8>>,
}

/// Bytes of the limits at the end of an entry.
const LIMITS: usize = 65;

impl rustls::server::StoresServerSessions for Careless {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        *self.limits.lock().unwrap() = value[value.len() - LIMITS..].to_vec();
        self.inner.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.inner.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = self.inner.take(key)?;
        value.truncate(value.len() - LIMITS);
        value.extend_from_slice(&self.limits.lock().unwrap());
        Some(value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

// test: RFC 9000 §7.4.1
#[test]
fn a_client_detects_a_server_that_accepts_early_data_with_lower_limits() {
    let lowered: [fn(&mut TransportConfig); 7] = [
        |t| t.initial_window /= 2,
        |t| t.initial_stream_window /= 2,
        |t| t.max_concurrent_bidi_streams -= 1,
        |t| t.max_concurrent_uni_streams -= 1,
        |t| t.datagram_receive_buffer = 0,
        |t| t.max_datagram_frame_size = 1200,
        // A higher limit is fine.
        |t| t.max_concurrent_uni_streams += 1,
    ];
    for (i, lower) in lowered.into_iter().enumerate() {
        let (client, mut server_tls) = tls();
        let config = Arc::make_mut(&mut server_tls);
        config.session_storage = Arc::new(Careless {
            inner: Arc::clone(&config.session_storage),
            limits: std::sync::Mutex::default(),
        });
        let tls = (client, server_tls);
        let mut transport = TransportConfig::default();
        lower(&mut transport);
        let mut link = link(&tls, transport);
        // Another client, to which the server now issues tickets: from then on, entries are bound
        // to its present limits.
        let mut other = (*tls.0).clone();
        other.resumption = rustls::client::Resumption::in_memory_sessions(1);
        let (now, other) = (link.now, Arc::new(other));
        link.client.connect(now, other, TransportConfig::default());
        link.run();
        let handle = connect(&mut link, &tls);
        write(
            link.client.connections.get_mut(&handle).unwrap(),
            &bytes(10),
        );
        link.run();
        let closed = link.client.closed(handle);
        if i == lowered.len() - 1 {
            assert_eq!(closed, None);
            assert!(link.client.has(handle, &Event::EarlyDataAccepted));
            continue;
        }
        assert_is_violation(closed, &i.to_string());
    }
}

/// A client made by hand, up to its first flight: a ClientHello with a ticket, and one 0-RTT packet
/// with `payload`.
fn flight_with(tls: &Tls, payload: &[u8]) -> Vec<Vec<u8>> {
    use squall_protect::{HeaderKey, Keys, PacketKey, PacketSpan, TAG_LEN};
    use squall_wire::{ConnectionId, TransportParameters, Writer, frame};
    let [dcid, scid] = [[7; 8], [9; 8]].map(|id| ConnectionId::new(&id).unwrap());
    let mut params = Vec::new();
    let declared = TransportParameters {
        initial_source_connection_id: Some(scid),
        ..TransportParameters::default()
    };
    declared.encode(&mut params, None);
    let name = "localhost".try_into().unwrap();
    let mut session = squall_tls::Session::client(&tls.0, VERSION_1, name, params).unwrap();
    let mut hello = Vec::new();
    assert!(session.write(&mut hello).unwrap().is_none());
    let material = session
        .early_keys(VERSION_1)
        .expect("the client has a ticket");
    let mut early = Keys {
        packet: PacketKey::new(&material.packet),
        header: HeaderKey::new(&material.header),
    };
    let mut initial = squall_protect::initial::keys(VERSION_1, dcid.as_slice(), true).local;
    let seal = |keys: &Keys, ty, number, payload: &[u8], size: usize| {
        let mut datagram = vec![0; 1300];
        let mut w = Writer::new(&mut datagram);
        let length = header::write_long(&mut w, ty, VERSION_1, &dcid, &scid, &[], number, 2);
        let header_len = w.len();
        w.bytes(payload);
        let len = (w.len() + TAG_LEN).max(size);
        header::patch_length(&mut datagram, length, len - (header_len - 2));
        let mut span = PacketSpan::new(0, len as u32, (header_len - 2) as u16);
        (span.header_len, span.packet_number) = (header_len as u16, number);
        keys.packet
            .seal(&keys.header, &mut datagram, &mut [span], &[]);
        datagram.truncate(len);
        datagram
    };
    let mut flight = Vec::new();
    for (i, part) in hello.chunks(1000).enumerate() {
        let mut crypto = vec![0; 1100];
        let mut w = Writer::new(&mut crypto);
        frame::write::crypto_header(&mut w, i as u64 * 1000, part.len());
        w.bytes(part);
        let len = w.len();
        let ty = LongType::Initial;
        flight.push(seal(&mut initial, ty, i as u64, &crypto[..len], 1200));
    }
    flight.push(seal(&mut early, LongType::ZeroRtt, 0, payload, 100));
    flight
}

// test: RFC 9000 §12.4 table 3, §12.5
#[test]
fn frames_forbidden_in_0_rtt_are_rejected() {
    // A type and the fields that it needs; zero padding is more PADDING.
    let stream = [0x0a, 2, 3, 1, 2, 3];
    for (payload, refused) in [
        (&stream[..], false),
        // PING, MAX_DATA, STREAMS_BLOCKED, PATH_CHALLENGE
        (&[0x01], false),
        (&[0x10, 0x3f], false),
        (&[0x16, 0x3f], false),
        (&[0x1a, 1, 2, 3, 4, 5, 6, 7, 8], false),
        // ACK, CRYPTO, NEW_TOKEN, RETIRE_CONNECTION_ID, PATH_RESPONSE, HANDSHAKE_DONE
        (&[0x02, 0, 0, 0, 0], true),
        (&[0x06, 0, 1, 9], true),
        (&[0x07, 1, 9], true),
        (&[0x19, 0], true),
        (&[0x1b, 1, 2, 3, 4, 5, 6, 7, 8], true),
        (&[0x1e], true),
    ] {
        let tls = tls();
        let mut link = link(&tls, TransportConfig::default());
        let from = link.client.address;
        for datagram in flight_with(&tls, payload) {
            link.server.receive(link.now, from, &datagram);
        }
        let what = format!("{payload:x?}");
        let closed = link.server.closed(0);
        if !refused {
            assert_eq!(closed, None, "{what}");
            let id = StreamId(2);
            let opened = Event::StreamOpened(Direction::Unidirectional);
            assert_eq!(link.server.has(0, &opened), payload == stream, "{what}");
            if payload == stream {
                let server = server_end(&mut link);
                assert_eq!(server.accept(Direction::Unidirectional), Some(id));
                assert!(server.is_early(id));
                assert_eq!(read(server, id), (vec![1, 2, 3], false));
            }
            continue;
        }
        assert_is_violation(closed, &what);
    }
}
