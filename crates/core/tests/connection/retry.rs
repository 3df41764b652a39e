//! Retry (RFC 9000 §8.1.2): rows 12, 15 and 16 of the threat table in `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::time::Duration;

use squall_core::{
    CloseReason, ConnectionIdGenerator, EndpointConfig, Event, RefusalReason, TransportConfig,
};
use squall_wire::{Header, TransportErrorCode, VERSION_1, VERSION_2, header};

use crate::common::link::{Host, Link, Policy, initial};
use crate::common::tls;

fn link(config: EndpointConfig, policy: Policy) -> (Link, usize) {
    link_in(config, policy, vec![VERSION_1, VERSION_2])
}

fn link_in(config: EndpointConfig, policy: Policy, versions: Vec<u32>) -> (Link, usize) {
    let (client_tls, server_tls) = tls();
    let transport = TransportConfig::default().versions(versions);
    let mut server = Host::server(config, server_tls, transport.clone());
    server.policy = policy;
    let mut link = Link::new(Host::client(), server);
    let handle = link.client.connect(link.now, client_tls, transport);
    (link, handle)
}

fn config() -> EndpointConfig {
    EndpointConfig::new([1; 32])
}

fn is_retry(datagram: &[u8]) -> bool {
    matches!(header::parse(datagram, 8), Ok(Header::Retry { .. }))
}

fn closed_with(reason: Option<&CloseReason>, expected: TransportErrorCode) -> bool {
    matches!(reason, Some(CloseReason::Transport { code, remote: true, .. }) if *code == expected)
}

// test: RFC 9000 §8.1.2, §7.3
#[test]
fn a_retry_validates_the_clients_address() {
    for versions in [vec![VERSION_1, VERSION_2], vec![VERSION_2]] {
        let (mut link, handle) = link_in(config(), Policy::Retry, versions);
        link.run();
        assert!(link.client.has(handle, &Event::Connected));
        assert_eq!(link.server.validated, Some(true));
        assert_eq!(link.server.connections.len(), 1);
        let retries = link.to_client.iter().filter(|d| is_retry(d)).count();
        // One for each of the two Initials that a ClientHello fills; the client follows the first.
        assert_eq!(retries, 2);
        let retry = link.to_client.iter().find(|d| is_retry(d)).unwrap();
        assert!(retry.len() < 150, "{} bytes", retry.len());
    }
}

// test: RFC 9000 §7.2: only the id of a client's very first packet has at least 8 bytes
#[test]
fn clients_follow_a_retry_to_an_id_of_any_length() {
    for len in [4, 7, 8, 20] {
        let ids = ConnectionIdGenerator::Plain { len };
        let (mut link, handle) = link(config().cid_generator(ids), Policy::Retry);
        link.run();
        assert!(link.client.has(handle, &Event::Connected), "{len}");
        assert_eq!(link.server.validated, Some(true));
    }
}

#[test]
fn lost_and_repeated_datagrams_are_harmless() {
    for lost in 0..12 {
        let (mut link, handle) = link(config(), Policy::Retry);
        let mut at = 0;
        for _ in 0..20 {
            link.run_losing(|_, _| {
                at += 1;
                at == lost + 1
            });
            if link.client.has(handle, &Event::Connected) {
                break;
            }
            link.wait();
        }
        assert!(link.client.has(handle, &Event::Connected), "{lost}");
        // Replay everything, in both directions.
        let (from_client, from_server) = (link.client.address, link.server.address);
        for datagram in std::mem::take(&mut link.to_server) {
            link.server.receive(link.now, from_client, &datagram);
        }
        for datagram in std::mem::take(&mut link.to_client) {
            link.client.receive(link.now, from_server, &datagram);
        }
        link.run();
        assert_eq!(link.client.closed(handle), None, "{lost}");
        assert_eq!(link.server.connections.len(), 1, "{lost}");
    }
}

// test: RFC 9002 §6.3
#[test]
fn a_retry_resets_the_probe_timeout_backoff() {
    let (mut link, handle) = link(config(), Policy::Retry);
    let probes = |link: &Link| link.client.connections[&handle].stats().probe_timeouts;
    // Waits for the next probe timeout; returns how many seconds it took.
    let wait = |link: &mut Link| {
        let (begin, before) = (link.now, probes(link));
        while probes(link) == before {
            link.wait();
        }
        (link.now - begin).as_secs_f64()
    };
    link.run_losing(|_, _| true);
    let first = wait(&mut link);
    for backoff in [2.0, 4.0] {
        link.run_losing(|_, _| true);
        assert_eq!((wait(&mut link) / first).round(), backoff);
    }
    // The server receives this probe; the reply to its Retry is lost.
    link.run_losing(|_, datagram| {
        matches!(header::parse(datagram, 8), Ok(Header::Long { token, .. }) if !token.is_empty())
    });
    assert!(link.to_client.iter().any(|datagram| is_retry(datagram)));
    assert_eq!((wait(&mut link) / first).round(), 1.0);
    link.run();
    assert!(link.client.has(handle, &Event::Connected));
}

// test: RFC 9000 §8.1.2: INVALID_TOKEN, at once and without state
#[test]
fn a_retry_token_from_another_address_or_too_late_is_rejected() {
    for (port, seconds, good) in [(5000, 0, true), (5001, 0, false), (5000, 20, false)] {
        let (mut link, handle) = link(config(), Policy::Retry);
        let first = link.client.send(link.now);
        let from = link.client.address;
        let retry = link.server.receive(link.now, from, &first[0]);
        assert!(is_retry(&retry[0]));
        link.client
            .receive(link.now, link.server.address, &retry[0]);
        let second = link.client.send(link.now);
        link.now += std::time::Duration::from_secs(seconds);
        let elsewhere = ([192, 0, 2, 2], port).into();
        let answers = link.server.receive(link.now, elsewhere, &second[0]);
        assert_eq!(link.server.endpoint.connections(), usize::from(good));
        if good {
            assert!(answers.is_empty());
            continue;
        }
        assert!(answers[0].len() < 100, "{} bytes", answers[0].len());
        link.client
            .receive(link.now, link.server.address, &answers[0]);
        let reason = link.client.closed(handle);
        assert!(
            closed_with(reason, TransportErrorCode::INVALID_TOKEN),
            "{reason:?}"
        );
    }
}

// test: RFC 9000 §17.2.5.2: one Retry, so a client that brings its token is not sent another
#[test]
fn an_attempt_is_accepted_once_and_retried_once() {
    let (mut link, _) = link(config(), Policy::Wait);
    let (now, from) = (link.now, link.client.address);
    let first = link.client.send(now);
    link.server.receive(now, from, &first[0]);
    let incoming = link.server.waiting.pop().unwrap();
    assert!(incoming.may_retry() && !incoming.remote_address_validated());
    let retry = link.server.endpoint.retry(now, incoming).unwrap();
    link.client.receive(now, link.server.address, &retry);
    let second = link.client.send(now);
    for _ in 0..3 {
        link.server.receive(now, from, &second[0]);
    }
    assert_eq!(link.server.waiting.len(), 3);
    assert_eq!(
        link.server.endpoint.undecided(),
        1,
        "three packets of one attempt"
    );
    let mut waiting = std::mem::take(&mut link.server.waiting).into_iter();
    let incoming = waiting.next().unwrap();
    assert!(!incoming.may_retry() && incoming.remote_address_validated());
    let incoming = link.server.endpoint.retry(now, incoming).unwrap_err();
    let (handle, connection) = link.server.endpoint.accept(now, incoming).unwrap();
    link.server
        .connections
        .insert(handle.0, Box::new(connection));
    for repeated in waiting {
        let refused = link.server.endpoint.accept(now, repeated).unwrap_err();
        assert_eq!(refused.response, None);
    }
    assert_eq!(link.server.endpoint.connections(), 1);
    for datagram in second {
        link.server.receive(now, from, &datagram);
    }
    link.run();
    assert!(link.server.has(handle.0, &Event::Connected));
}

/// Attempts of clients, each with its own destination id.
fn attempt(n: u32) -> Vec<u8> {
    initial(VERSION_1, &[&[7; 4], &n.to_be_bytes()[..]].concat(), &[])
}

// test: SECURITY.md row 15
#[test]
fn above_a_threshold_initials_are_answered_with_a_retry_and_leave_no_state() {
    let (mut link, _) = link(config().retry_from(5), Policy::Wait);
    let (now, from) = (link.now, link.client.address);
    for n in 0..5 {
        assert!(link.server.receive(now, from, &attempt(n)).is_empty());
    }
    // Handshakes count as well as attempts that wait.
    let incoming = link.server.waiting.pop().unwrap();
    link.server.endpoint.accept(now, incoming).unwrap();
    assert_eq!(link.server.endpoint.handshakes(), 1);
    assert_eq!(link.server.endpoint.undecided(), 4);
    for n in 5..50 {
        let datagram = attempt(n);
        let answers = link.server.receive(now, from, &datagram);
        assert!(is_retry(&answers[0]) && answers[0].len() < 150);
    }
    assert_eq!(link.server.endpoint.connections(), 1);
    assert_eq!(link.server.endpoint.undecided(), 4);
    // The flood is over.
    link.server.waiting.clear();
    assert!(link.server.receive(now, from, &attempt(1 << 20)).is_empty());
    assert_eq!(link.server.waiting.len(), 1);
}

// test: SECURITY.md row 16
#[test]
fn clients_of_an_application_that_never_accepts_are_refused() {
    let (mut link, handle) = link(config().max_incoming(3), Policy::Wait);
    let (now, from) = (link.now, link.client.address);
    for n in 0..3 {
        assert!(link.server.receive(now, from, &attempt(n)).is_empty());
    }
    // Further packets of waiting attempts belong to those.
    assert!(link.server.receive(now, from, &attempt(1)).is_empty());
    link.run();
    assert_eq!(link.server.endpoint.undecided(), 3);
    let reason = link.client.closed(handle);
    assert!(
        closed_with(reason, TransportErrorCode::CONNECTION_REFUSED),
        "{reason:?}"
    );
    // A ClientHello fills two Initials, and gets one answer.
    assert_eq!(link.to_server.len(), 2);
    assert_eq!(link.server.endpoint.counts().refusals, 1);
}

// test: in a burst, or after a server was blocked for a second, no client is turned away
#[test]
fn clients_retransmit_while_the_application_keeps_accepting() {
    let (mut link, handle) = link(config().max_incoming(3), Policy::Accept);
    link.server.endpoint.observe();
    let (now, from) = (link.now, link.client.address);
    link.server.receive(now, from, &attempt(100));
    link.server.policy = Policy::Wait;
    for n in 0..3 {
        assert!(link.server.receive(now, from, &attempt(n)).is_empty());
    }
    link.run();
    assert_eq!(link.server.endpoint.undecided(), 3);
    assert!(link.client.closed(handle).is_none());
    let counts = link.server.endpoint.counts();
    assert_eq!(counts.refusals, 0);
    assert_eq!(counts.attempts_dropped, 1);
    let refusal = link.server.endpoint.poll_refusal().unwrap();
    assert_eq!(refusal.reason, RefusalReason::QueueFull);
    // It continues: the client repeats its first flight, and is accepted.
    link.server.waiting.clear();
    link.server.policy = Policy::Accept;
    link.rest(Duration::from_millis(1500));
    assert!(link.client.has(handle, &Event::Connected));
    // It stops: three seconds later, clients are turned away.
    link.server.policy = Policy::Wait;
    let now = link.now + Duration::from_secs(4);
    for n in 0..3 {
        link.server.receive(now, from, &attempt(n));
    }
    assert_eq!(link.server.receive(now, from, &attempt(4)).len(), 1);
    let counts = link.server.endpoint.counts();
    assert_eq!((counts.refusals, counts.attempts_dropped), (1, 1));
}

// test: SECURITY.md row 15: slow handshakes are limited too
#[test]
fn concurrent_handshakes_are_limited() {
    let (mut link, handle) = link(config().max_handshakes(3), Policy::Accept);
    let (now, from) = (link.now, link.client.address);
    for n in 0..3 {
        link.server.receive(now, from, &attempt(n));
    }
    assert_eq!(link.server.endpoint.handshakes(), 3);
    link.run();
    let reason = link.client.closed(handle);
    assert!(
        closed_with(reason, TransportErrorCode::CONNECTION_REFUSED),
        "{reason:?}"
    );
    // A handshake that completes, or is given up, makes room.
    let gone = *link.server.connections.keys().next().unwrap();
    link.server
        .endpoint
        .remove(squall_core::ConnectionHandle(gone));
    assert_eq!(link.server.endpoint.handshakes(), 2);
    link.server.receive(now, from, &attempt(9));
    assert_eq!(link.server.endpoint.handshakes(), 3);
}

// test: in a burst of clients on long paths, none is turned away
#[test]
fn clients_retransmit_while_handshakes_keep_completing() {
    let (mut link, first) = link(config().max_handshakes(3), Policy::Accept);
    link.run();
    assert!(link.client.has(first, &Event::Connected));
    let (now, from) = (link.now, link.client.address);
    for n in 0..3 {
        link.server.receive(now, from, &attempt(n));
    }
    let (client_tls, _) = tls();
    let transport = TransportConfig::default();
    let second = link.client.connect(now, client_tls, transport);
    link.run();
    assert!(link.client.closed(second).is_none());
    assert_eq!(link.server.endpoint.counts().attempts_dropped, 1);
    // Nothing has been completed for too long.
    let later = now + Duration::from_secs(4);
    assert_eq!(link.server.receive(later, from, &attempt(9)).len(), 1);
    assert_eq!(link.server.endpoint.counts().refusals, 1);
}
