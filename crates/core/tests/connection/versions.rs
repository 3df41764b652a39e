//! Version negotiation (RFC 9000 §6, RFC 9368, RFC 9369 §4): rows 31 and 32 of the threat table in
//! `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use bytes::Bytes;
use squall_core::{CloseReason, EndpointConfig, Event, TransportConfig};
use squall_wire::{
    Direction, Header, TransportErrorCode, VERSION_1, VERSION_2, Writer, header, is_long,
};

use crate::common::link::{Host, Link, initial};
use crate::common::tls;

fn link(client: &[u32], server: &[u32]) -> (Link, usize) {
    let (client_tls, server_tls) = tls();
    let transport = |versions: &[u32]| TransportConfig::default().versions(versions.to_vec());
    let config = EndpointConfig::new([1; 32]);
    let server = Host::server(config, server_tls, transport(server));
    let mut link = Link::new(Host::client(), server);
    let handle = (link.client).connect(link.now, client_tls, transport(client));
    (link, handle)
}

fn version_of(datagram: &[u8]) -> Option<u32> {
    let version = datagram.get(1..5)?.try_into().ok()?;
    is_long(datagram[0]).then(|| u32::from_be_bytes(version))
}

/// Moves a few bytes each way.
fn exchange(link: &mut Link, handle: usize) {
    let client = link.client.connections.get_mut(&handle).unwrap();
    let id = client.open(Direction::Bidirectional).unwrap();
    client.write(id, &mut Bytes::from_static(b"ping")).unwrap();
    link.run();
    let server = link.server.connections.values_mut().next().unwrap();
    assert_eq!(server.accept(Direction::Bidirectional), Some(id));
    assert_eq!(server.read(id, 100).unwrap().unwrap(), &b"ping"[..]);
    server.write(id, &mut Bytes::from_static(b"pong")).unwrap();
    link.run();
    let client = link.client.connections.get_mut(&handle).unwrap();
    assert_eq!(client.read(id, 100).unwrap().unwrap(), &b"pong"[..]);
}

const V1: &[u32] = &[VERSION_1];
const V2: &[u32] = &[VERSION_2];
const BOTH: &[u32] = &[VERSION_1, VERSION_2];
const BOTH_2: &[u32] = &[VERSION_2, VERSION_1];

// test: RFC 9368 §2.1, §2.3, RFC 9369 §4
#[test]
fn both_ends_negotiate_the_expected_version() {
    for (client, server, first, version) in [
        (V1, V1, VERSION_1, VERSION_1),
        (V2, V2, VERSION_2, VERSION_2),
        (BOTH, BOTH, VERSION_1, VERSION_1),
        (BOTH_2, BOTH, VERSION_1, VERSION_1),
        // Compatible: the server changes.
        (BOTH_2, BOTH_2, VERSION_1, VERSION_2),
        // Only to a version that the client offers, and none that it likes less.
        (V1, BOTH_2, VERSION_1, VERSION_1),
        (BOTH, BOTH_2, VERSION_1, VERSION_1),
        (V2, BOTH, VERSION_2, VERSION_2),
        // Incompatible: by a Version Negotiation packet.
        (BOTH, V2, VERSION_1, VERSION_2),
        (BOTH_2, V2, VERSION_1, VERSION_2),
    ] {
        let (mut link, handle) = link(client, server);
        link.run();
        let what = format!("{client:x?} and {server:x?}");
        assert!(link.client.has(handle, &Event::Connected), "{what}");
        assert_eq!(version_of(&link.to_server[0]), Some(first), "{what}");
        let client_end = &link.client.connections[&handle];
        assert_eq!(client_end.version(), version, "{what}");
        assert_eq!(link.server.connections.len(), 1, "{what}");
        let server_end = link.server.connections.values().next().unwrap();
        assert_eq!(server_end.version(), version, "{what}");
        let negotiations = (link.to_client.iter()).filter(|d| version_of(d) == Some(0));
        let asked = usize::from(server == V2 && first == VERSION_1);
        assert_eq!(negotiations.count() > 0, asked > 0, "{what}");
        exchange(&mut link, handle);
    }
    let (mut link, handle) = link(V2, V1);
    link.run();
    assert_eq!(
        link.client.closed(handle),
        Some(&CloseReason::VersionMismatch)
    );
    assert_eq!(link.server.connections.len(), 0);
}

// test: RFC 9369 §4.1: each end learns of the change whatever is lost
#[test]
fn a_change_of_version_survives_the_loss_of_any_datagram() {
    for lost in 0..12 {
        let (mut link, handle) = link(BOTH_2, BOTH_2);
        let mut at = 0;
        for _ in 0..20 {
            link.run_losing(|_, _| {
                at += 1;
                at == lost + 1
            });
            let server = link.server.connections.values().next();
            if link.client.has(handle, &Event::Connected)
                && server.is_some_and(|c| !c.is_handshaking())
            {
                break;
            }
            link.wait();
        }
        assert_eq!(link.client.connections[&handle].version(), VERSION_2);
        exchange(&mut link, handle);
    }
}

// picoquic treats the first packet of another version as a sign to change keys, and acknowledges
// number 0 without opening it.
#[test]
fn the_first_packet_of_a_changed_version_carries_only_an_ack() {
    let (mut link, handle) = link(BOTH_2, BOTH_2);
    link.run();
    assert!(link.client.has(handle, &Event::Connected));
    let first = &link.to_client[0];
    assert_eq!(version_of(first), Some(VERSION_2));
    // Too short for a ServerHello: ids, a packet number, an ACK frame and the tag.
    assert!(first.len() < 70, "{}", first.len());
    let at_once = link
        .to_client
        .iter()
        .skip(1)
        .take_while(|d| d.len() >= 1200);
    assert!(at_once.count() > 0, "the ServerHello follows");
}

fn ids(datagram: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match header::parse(datagram, 8).unwrap() {
        Header::Long { dcid, scid, .. } => (dcid.as_slice().to_vec(), scid.as_slice().to_vec()),
        other => panic!("{other:?}"),
    }
}

/// A Version Negotiation packet from `dcid` to `scid`, the ids of a client's Initial.
fn negotiation(dcid: &[u8], scid: &[u8], versions: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let mut w = Writer::new(&mut bytes);
    header::write_version_negotiation(&mut w, scid, dcid, versions, 0);
    let len = w.len();
    bytes.truncate(len);
    bytes
}

// test: RFC 9368 §4, SECURITY.md row 32
#[test]
fn a_forged_version_negotiation_is_detected() {
    let (mut link, handle) = link(BOTH, BOTH);
    let first = link.client.send(link.now);
    let (dcid, scid) = ids(&first[0]);
    let forged = negotiation(&dcid, &scid, V2);
    let server = link.server.address;
    link.client.receive(link.now, server, &forged);
    link.run();
    assert_eq!(
        version_of(&link.to_server[0]),
        Some(VERSION_2),
        "the client follows the forged negotiation"
    );
    let expected = TransportErrorCode::VERSION_NEGOTIATION_ERROR;
    match link.client.closed(handle) {
        Some(CloseReason::Transport {
            code,
            remote: false,
            ..
        }) => assert_eq!(*code, expected),
        other => panic!("{other:?}"),
    }
    assert!(!link.client.has(handle, &Event::Connected));
    // The server receives the reason.
    let heard = link.server.events.iter().any(|(_, event)| {
        matches!(event, Event::Closed(CloseReason::Transport { code, remote: true, .. }) if *code == expected)
    });
    assert!(heard, "{:?}", link.server.events);
    // The same negotiation is valid from a server whose handshake confirms it.
    let (mut link, handle) = self::link(BOTH, V2);
    link.run();
    assert!(link.client.has(handle, &Event::Connected));
}

// test: RFC 9000 §6.2, RFC 9368 §4: which Version Negotiation packets a client ignores
#[test]
fn a_client_ignores_invalid_version_negotiations() {
    let (mut link, handle) = link(BOTH, BOTH);
    let server = link.server.address;
    let first = link.client.send(link.now);
    let (dcid, scid) = ids(&first[0]);
    let mut foreign = dcid.clone();
    foreign[0] ^= 1;
    for ignored in [
        // With the version of the packet that it answers.
        negotiation(&dcid, &scid, BOTH),
        negotiation(&dcid, &scid, V1),
        // From a sender that has not seen that packet.
        negotiation(&foreign, &scid, V2),
        // Cut off, or without versions.
        negotiation(&dcid, &scid, &[]),
        negotiation(&dcid, &scid, V2)[..26].to_vec(),
    ] {
        link.client.receive(link.now, server, &ignored);
        assert!(link.client.send(link.now).is_empty());
        assert_eq!(link.client.connections[&handle].version(), VERSION_1);
    }
    // A second one.
    let good = negotiation(&dcid, &scid, V2);
    link.client.receive(link.now, server, &good);
    let second = link.client.send(link.now);
    assert_eq!(version_of(&second[0]), Some(VERSION_2));
    let (dcid, scid) = ids(&second[0]);
    let back = negotiation(&dcid, &scid, V1);
    link.client.receive(link.now, server, &back);
    assert!(link.client.send(link.now).is_empty());
    assert_eq!(link.client.connections[&handle].version(), VERSION_2);
    assert_eq!(link.client.closed(handle), None);
    // One after the server's first packet.
    let (mut link, handle) = self::link(BOTH, BOTH);
    let first = link.client.send(link.now);
    let (dcid, scid) = ids(&first[0]);
    link.server
        .receive(link.now, link.client.address, &first[0]);
    for datagram in link.server.send(link.now) {
        link.client.receive(link.now, server, &datagram);
    }
    let late = negotiation(&dcid, &scid, V2);
    link.client.receive(link.now, server, &late);
    assert_eq!(link.client.connections[&handle].version(), VERSION_1);
}

// test: RFC 9000 §6.1, §6.3, SECURITY.md row 31
#[test]
fn a_server_sends_one_version_negotiation_per_datagram_and_never_in_answer_to_one() {
    let (mut link, _) = link(BOTH, V2);
    let (now, from) = (link.now, link.client.address);
    let answer = |link: &mut Link, datagram: &[u8]| link.server.receive(now, from, datagram);
    let datagram = initial(VERSION_1, &[7; 8], &[]);
    let mut unknown = datagram.clone();
    unknown[1..5].copy_from_slice(&0x5c5c_5c5c_u32.to_be_bytes());
    let mut places = std::collections::BTreeSet::new();
    for asked in [&datagram, &unknown].into_iter().cycle().take(40) {
        let answers = answer(&mut link, asked);
        assert_eq!(answers.len(), 1);
        let Header::VersionNegotiation {
            versions,
            dcid,
            scid,
        } = header::parse(&answers[0], 8).unwrap()
        else {
            panic!("no negotiation")
        };
        assert_eq!((dcid, scid), (&[9; 8][..], &[7; 8][..]));
        let versions: Vec<u32> = (versions.chunks_exact(4))
            .map(|v| u32::from_be_bytes(v.try_into().unwrap()))
            .collect();
        // RFC 9000 §6.3: a reserved one among them, in any place.
        assert_eq!(versions.len(), 2);
        let reserved = (versions.iter())
            .position(|v| v & 0x0f0f_0f0f == 0x0a0a_0a0a)
            .unwrap();
        assert_eq!(versions[1 - reserved], VERSION_2);
        places.insert(reserved);
        // The answer is not answered, however large it is.
        let mut long = answers[0].clone();
        long.resize(1200, 0);
        assert!(answer(&mut link, &answers[0]).is_empty());
        assert!(answer(&mut link, &long).is_empty());
    }
    assert_eq!(places.len(), 2);
    // Too small to begin a connection.
    assert!(answer(&mut link, &unknown[..1199]).is_empty());
    // Answers are limited in number.
    let answered = (0..5000).filter(|_| !answer(&mut link, &unknown).is_empty());
    assert!(answered.count() <= 1000);
    // An endpoint that accepts no connections sends nothing.
    assert!(link.client.receive(now, from, &unknown).is_empty());
}
