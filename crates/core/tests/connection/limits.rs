//! Connections of a source prefix, and memory of all connections: row 53 of the threat table in
//! `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use squall_core::{
    ClientConfig, CloseReason, ConnectionCount, ConnectionHandle, EndpointConfig, Event, Prefix,
    PrefixConnections, PrefixCounts, PrefixTable, StartError, TransportConfig,
};
use squall_wire::{Header, Path, TransportErrorCode, VERSION_1, header};

use crate::common::link::{Host, Link, Policy, initial};
use crate::common::tls;

const OTHER: &str = "198.51.100.7:5000";

fn is_retry(datagram: &[u8]) -> bool {
    matches!(header::parse(datagram, 8), Ok(Header::Retry { .. }))
}

fn limited(limit: usize) -> EndpointConfig {
    EndpointConfig::new([1; 32]).max_connections_per_prefix(Some(limit))
}

struct Setup {
    link: Link,
    tls: Arc<rustls::ClientConfig>,
}

fn setup(config: EndpointConfig) -> Setup {
    let (tls, server_tls) = tls();
    let transport = TransportConfig::default().new_tokens(0);
    let server = Host::server(config, server_tls, transport);
    let link = Link::new(Host::client(), server);
    Setup { link, tls }
}

impl Setup {
    /// Runs a new connection; returns its handle at the client.
    fn connect(&mut self) -> usize {
        let (now, tls) = (self.link.now, Arc::clone(&self.tls));
        self.link.to_client.clear();
        let handle = (self.link.client).connect(now, tls, TransportConfig::default());
        self.link.run();
        handle
    }

    fn was_sent_a_retry(&self) -> bool {
        self.link
            .to_client
            .iter()
            .any(|datagram| is_retry(datagram))
    }

    fn is_connected(&self, handle: usize) -> bool {
        self.link.client.has(handle, &Event::Connected) && self.link.client.closed(handle).is_none()
    }

    fn is_refused(&self, handle: usize) -> bool {
        let refused = TransportErrorCode::CONNECTION_REFUSED;
        matches!(self.link.client.closed(handle),
            Some(CloseReason::Transport { code, remote: true, .. }) if *code == refused)
    }

    /// The server forgets a connection.
    fn end_one(&mut self) {
        let (handle, _) = self.link.server.connections.pop_first().unwrap();
        let handle = ConnectionHandle(handle);
        self.link.server.endpoint.remove(handle);
    }
}

/// Counts that the test can inspect.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<PrefixTable>>);

impl PrefixCounts for Seen {
    fn get(&self, prefix: Prefix) -> PrefixConnections {
        self.0.lock().unwrap().get(prefix)
    }

    fn add(&mut self, prefix: Prefix, validated: bool, limit: usize) -> bool {
        self.0.lock().unwrap().add(prefix, validated, limit)
    }

    fn remove(&mut self, prefix: Prefix, validated: bool) {
        self.0.lock().unwrap().remove(prefix, validated);
    }
}

impl Seen {
    /// Validated and unvalidated connections of an address.
    fn of(&self, address: SocketAddr) -> (usize, usize) {
        let counts = self.get(Prefix::of(address.ip(), 32, 56));
        (counts.validated, counts.unvalidated)
    }
}

// test: SECURITY.md row 53
#[test]
fn each_prefix_has_its_own_share_of_connections() {
    let mut setup = setup(limited(3));
    for n in 0..3 {
        let handle = setup.connect();
        assert!(
            setup.is_connected(handle) && !setup.was_sent_a_retry(),
            "{n}"
        );
    }
    // One more has to validate its address; the address is genuine, so it is refused.
    let handle = setup.connect();
    assert!(setup.was_sent_a_retry() && setup.is_refused(handle));
    let home = std::mem::replace(&mut setup.link.client.address, OTHER.parse().unwrap());
    let handle = setup.connect();
    assert!(setup.is_connected(handle) && !setup.was_sent_a_retry());
    // A connection that ends makes room.
    setup.link.client.address = home;
    setup.end_one();
    let handle = setup.connect();
    assert!(setup.is_connected(handle));
    let counts = setup.link.server.endpoint.counts();
    assert!(counts.prefix_retries >= 1 && counts.prefix_refusals >= 1);
}

#[test]
fn by_default_a_prefix_has_no_limit() {
    let mut setup = setup(EndpointConfig::new([1; 32]));
    for _ in 0..20 {
        let handle = setup.connect();
        assert!(setup.is_connected(handle) && !setup.was_sent_a_retry());
    }
}

// test: SECURITY.md row 53: forging an address must not lock out its owner
#[test]
fn handshakes_from_forged_addresses_cause_a_retry_and_lock_no_client_out() {
    let mut setup = setup(limited(3));
    let (now, victim) = (setup.link.now, setup.link.client.address);
    for n in 0..20_u32 {
        let id = [&[7; 4][..], &n.to_be_bytes()].concat();
        let answers = setup
            .link
            .server
            .receive(now, victim, &initial(VERSION_1, &id, &[]));
        assert_eq!(answers.iter().any(|a| is_retry(a)), n >= 3);
    }
    assert_eq!(setup.link.server.endpoint.connections(), 3);
    for _ in 0..3 {
        let handle = setup.connect();
        assert!(setup.was_sent_a_retry() && setup.is_connected(handle));
    }
    let handle = setup.connect();
    assert!(setup.is_refused(handle));
}

#[test]
fn attempts_that_wait_concurrently_do_not_exceed_the_prefix_limit() {
    let mut setup = setup(limited(2));
    setup.link.server.policy = Policy::Wait;
    let (now, from) = (setup.link.now, setup.link.client.address);
    for n in 0..5 {
        let answers = setup
            .link
            .server
            .receive(now, from, &initial(VERSION_1, &[n; 8], &[]));
        assert!(answers.is_empty());
    }
    let waiting = std::mem::take(&mut setup.link.server.waiting);
    let mut responses = Vec::new();
    for incoming in waiting {
        if let Err(error) = setup.link.server.endpoint.accept(now, incoming) {
            responses.extend(error.response);
        }
    }
    assert_eq!(setup.link.server.endpoint.connections(), 2);
    assert_eq!(responses.len(), 3);
    assert!(responses.iter().all(|response| is_retry(response)));
}

#[test]
fn attempts_that_wait_concurrently_do_not_exceed_the_total_limit() {
    let mut setup = setup(EndpointConfig::new([1; 32]).max_connections(2));
    setup.link.server.policy = Policy::Wait;
    let (now, from) = (setup.link.now, setup.link.client.address);
    for n in 0..5 {
        let datagram = initial(VERSION_1, &[n; 8], &[]);
        assert!(setup.link.server.receive(now, from, &datagram).is_empty());
    }
    let waiting = std::mem::take(&mut setup.link.server.waiting);
    let server = &mut setup.link.server.endpoint;
    let accepted: Vec<_> = (waiting.into_iter())
        .map(|incoming| server.accept(now, incoming))
        .collect();
    assert_eq!(server.connections(), 2);
    for (n, accepted) in accepted.iter().enumerate() {
        let refusal = accepted.as_ref().err().map(|e| e.response.is_some());
        assert_eq!(refusal, (n >= 2).then_some(true), "{n}");
    }
    assert_eq!(server.counts().refusals, 3);
}

#[test]
fn endpoints_share_a_count_of_connections() {
    let count = ConnectionCount::default();
    let (mut setup, mut other) = (setup_of_two(&count), setup_of_two(&count));
    let handles = [setup.connect(), other.connect()];
    assert!(setup.is_connected(handles[0]) && other.is_connected(handles[1]));
    assert_eq!(count.get(), 2);
    let handle = setup.connect();
    assert!(setup.is_refused(handle));
    let tls = Arc::clone(&setup.tls);
    let path = Path {
        remote: setup.link.client.address,
        local: None,
    };
    let (now, own) = (setup.link.now, &mut setup.link.server.endpoint);
    let started = own.connect(now, ClientConfig::new(tls), path, "localhost");
    assert!(matches!(started, Err(StartError::TooMany)));
    // A connection that ends at one makes room at the other, as does an endpoint dropped with its
    // own.
    other.end_one();
    let handle = setup.connect();
    assert!(setup.is_connected(handle));
    setup.link.server = Setup::server_of_none();
    assert_eq!(count.get(), 0);
}

fn setup_of_two(count: &ConnectionCount) -> Setup {
    let mut setup = setup(EndpointConfig::new([1; 32]).max_connections(2));
    (setup.link.server.endpoint).set_connection_count(count.clone());
    setup
}

#[test]
fn a_handshake_validated_after_the_share_is_used_up_is_refused() {
    let mut setup = setup(limited(1));
    let (now, from) = (setup.link.now, setup.link.client.address);
    // The first has begun and waits.
    let tls = Arc::clone(&setup.tls);
    let first = (setup.link.client).connect(now, tls, TransportConfig::default());
    for datagram in setup.link.client.send(now) {
        setup.link.server.receive(now, from, &datagram);
    }
    let held = setup.link.server.send(now);
    // Meanwhile another one completes, with a Retry.
    let waiting = std::mem::replace(&mut setup.link.client, Host::client());
    // Its random generator returns the same numbers as the first one's.
    let tls = Arc::clone(&setup.tls);
    (setup.link.client).connect(now, tls, TransportConfig::default());
    setup.link.client.connections.clear();
    let second = setup.connect();
    assert!(setup.was_sent_a_retry() && setup.is_connected(second));
    setup.link.client = waiting;
    for datagram in held {
        let server = setup.link.server.address;
        setup.link.client.receive(setup.link.now, server, &datagram);
    }
    setup.link.run();
    assert!(
        setup.is_refused(first),
        "{:?}",
        setup.link.client.closed(first)
    );
    assert_eq!(setup.link.server.endpoint.counts().prefix_refusals, 1);
}

#[test]
fn counts_follow_connections_that_migrate_and_end() {
    let mut setup = setup(limited(2));
    let seen = Seen::default();
    (setup.link.server.endpoint).set_prefix_counts(Box::new(seen.clone()));
    let (home, away) = (setup.link.client.address, OTHER.parse().unwrap());
    let handle = setup.connect();
    assert_eq!(seen.of(home), (1, 0));
    // Another address of the client: counted there once validated, here until then.
    setup.link.client.address = away;
    let connection = setup.link.client.connections.get_mut(&handle).unwrap();
    connection.ping();
    let ping = setup.link.client.send(setup.link.now);
    setup.link.server.receive(setup.link.now, away, &ping[0]);
    assert_eq!((seen.of(home), seen.of(away)), ((1, 0), (0, 0)));
    setup.link.run();
    assert_eq!((seen.of(home), seen.of(away)), ((0, 0), (1, 0)));
    // If all are taken, a connection that moves is not cut.
    setup.link.client.address = home;
    let others = [setup.connect(), setup.connect()];
    assert!(others.iter().all(|other| setup.is_connected(*other)));
    let connection = setup.link.client.connections.get_mut(&handle).unwrap();
    connection.ping();
    setup.link.run();
    assert_eq!(
        (seen.of(home), seen.of(away)),
        ((3, 0), (0, 0)),
        "the client is back at its first address"
    );
    assert!(setup.is_connected(handle));
    setup.end_one();
    assert_eq!(seen.of(home), (2, 0));
    // An attempt that ends in its handshake, and an endpoint dropped with its connections.
    let datagram = initial(VERSION_1, &[5; 8], &[]);
    setup.link.server.receive(setup.link.now, away, &datagram);
    assert_eq!(seen.of(away), (0, 1));
    setup.link.server = Setup::server_of_none();
    assert!(seen.0.lock().unwrap().is_empty());
}

impl Setup {
    fn server_of_none() -> Host {
        Host::server(limited(1), tls().1, TransportConfig::default())
    }
}

// test: SECURITY.md row 53
#[test]
fn memory_pressure_causes_a_retry_first_and_then_refusal() {
    let config = EndpointConfig::new([1; 32]).max_memory(Some(1_000_000));
    for (memory, retried, refused) in [
        (0, false, false),
        (749_999, false, false),
        (750_000, true, false),
        (999_999, true, false),
        (1_000_000, true, true),
        (2_000_000, true, true),
    ] {
        let mut setup = setup(config.clone());
        setup.link.server.endpoint.set_memory(memory);
        let handle = setup.connect();
        assert_eq!(setup.was_sent_a_retry(), retried, "{memory}");
        assert_eq!(setup.is_refused(handle), refused, "{memory}");
        assert_eq!(setup.is_connected(handle), !refused, "{memory}");
        let counts = setup.link.server.endpoint.counts();
        assert_eq!(counts.memory_retries > 0, retried);
        assert_eq!(counts.memory_refusals > 0, refused);
        // Existing connections continue, and the end of the shortage is noticed.
        setup.link.server.endpoint.set_memory(0);
        let handle = setup.connect();
        assert!(setup.is_connected(handle) && !setup.was_sent_a_retry());
    }
}

#[test]
fn invalid_prefix_lengths_are_reported() {
    let config = |ipv4_prefix_bits, ipv6_prefix_bits| {
        EndpointConfig::new([1; 32])
            .ipv4_prefix_bits(ipv4_prefix_bits)
            .ipv6_prefix_bits(ipv6_prefix_bits)
    };
    assert!(config(33, 56).check().is_err());
    assert!(config(32, 129).check().is_err());
    assert!(config(0, 128).check().is_ok());
}
