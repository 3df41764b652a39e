//! Tokens for later connections (RFC 9000 §8.1.3).

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use squall_core::{EndpointConfig, Event, TokenStore, TransportConfig};
use squall_wire::{Header, VERSION_1, VERSION_2, header};

use crate::common::link::{Host, Link, Policy, initial};

/// A store that the test can inspect.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<Entry>>>);

/// Server name, version, token.
type Entry = (String, u32, Vec<u8>);

impl TokenStore for Seen {
    fn insert(&self, server_name: &str, version: u32, token: &[u8]) {
        let entry = (server_name.to_owned(), version, token.to_vec());
        self.0.lock().unwrap().push(entry);
    }

    fn take(&self, server_name: &str, version: u32) -> Option<Vec<u8>> {
        let mut entries = self.0.lock().unwrap();
        let at = (entries.iter()).position(|(n, v, _)| n == server_name && *v == version)?;
        Some(entries.remove(at).2)
    }
}

struct Setup {
    link: Link,
    seen: Seen,
    tls: Arc<rustls::ClientConfig>,
    server_tls: Arc<rustls::ServerConfig>,
    /// The client's.
    transport: TransportConfig,
}

fn config() -> EndpointConfig {
    EndpointConfig::new([1; 32])
}

fn is_retry(datagram: &[u8]) -> bool {
    matches!(header::parse(datagram, 8), Ok(Header::Retry { .. }))
}

fn setup(transport: TransportConfig) -> Setup {
    let (tls, server_tls) = crate::common::tls();
    let server = Host::server(config(), Arc::clone(&server_tls), transport);
    let mut client = Host::client();
    let seen = Seen::default();
    client.token_store = Arc::new(seen.clone());
    Setup {
        link: Link::new(client, server),
        seen,
        tls,
        server_tls,
        transport: TransportConfig::default(),
    }
}

impl Setup {
    /// Runs a new connection; returns whether its token validated the address without a Retry.
    fn connect(&mut self) -> bool {
        self.link.to_client.clear();
        let tls = Arc::clone(&self.tls);
        let handle = (self.link.client).connect(self.link.now, tls, self.transport.clone());
        self.link.server.validated = None;
        self.link.run();
        assert!(self.link.client.has(handle, &Event::Connected));
        self.link.client.events.clear();
        // Only the first Initial of an attempt counts as one.
        self.link.server.validated.unwrap() && !self.was_sent_a_retry()
    }

    /// Whether the last connection began with a Retry.
    fn was_sent_a_retry(&self) -> bool {
        self.link
            .to_client
            .iter()
            .any(|datagram| is_retry(datagram))
    }

    fn tokens(&self) -> Vec<Entry> {
        self.seen.0.lock().unwrap().clone()
    }
}

#[test]
fn a_server_issues_the_configured_number_of_tokens_and_a_client_uses_each_once() {
    let mut setup = setup(TransportConfig::default());
    assert!(!setup.connect(), "the first connection has no token");
    let tokens = setup.tokens();
    assert_eq!(tokens.len(), 2);
    assert_ne!(tokens[0].2, tokens[1].2);
    for (name, version, _) in &tokens {
        assert_eq!((name.as_str(), *version), ("localhost", VERSION_1));
    }
    assert!(setup.connect());
    let after = setup.tokens();
    assert_eq!(after.len(), 3, "one token was used, two were issued");
    assert_eq!(after[0], tokens[1]);
    setup.seen.0.lock().unwrap().clear();
    assert!(!setup.connect(), "no token is left, and none is used twice");
}

#[test]
fn no_tokens_are_issued_if_disabled() {
    let mut setup = setup(TransportConfig::default().new_tokens(0));
    setup.connect();
    assert_eq!(setup.tokens(), []);
}

#[test]
fn lost_tokens_are_replaced() {
    let mut setup = setup(TransportConfig::default());
    let handle = setup.link.client.connect(
        setup.link.now,
        Arc::clone(&setup.tls),
        TransportConfig::default(),
    );
    let link = &mut setup.link;
    // The server's first short packet is the one with the tokens.
    let mut lost = false;
    link.run_losing(|to_server, datagram| {
        let short = !to_server && datagram[0] & 0x80 == 0;
        short && !std::mem::replace(&mut lost, true)
    });
    while setup.seen.0.lock().unwrap().len() < 2 {
        setup.link.wait();
        setup.link.run();
    }
    assert!(lost && setup.link.client.closed(handle).is_none());
}

// test: RFC 9000 §8.1: with a token there is no limit of three times what was received
#[test]
fn a_token_lifts_the_amplification_limit() {
    let mut setup = setup(TransportConfig::default());
    setup.connect();
    for with_token in [true, false] {
        if !with_token {
            setup.seen.0.lock().unwrap().clear();
        }
        let Setup { link, tls, .. } = &mut setup;
        let now = link.now;
        link.client
            .connect(now, Arc::clone(tls), TransportConfig::default());
        let (mut received, mut sent) = (0, 0);
        for datagram in link.client.send(now) {
            received += datagram.len();
            link.server.receive(now, link.client.address, &datagram);
        }
        // The client is silent: the server may send only what it sends now and at its probe
        // timeouts.
        for _ in 0..8 {
            sent += link
                .server
                .send(link.now)
                .iter()
                .map(Vec::len)
                .sum::<usize>();
            let due = (link.server.connections.values())
                .filter_map(|c| c.next_timeout())
                .min();
            // At the limit no timer runs.
            let Some(due) = due else { break };
            link.now = due;
            for connection in link.server.connections.values_mut() {
                connection.on_timeout(link.now);
            }
        }
        let over = sent > 3 * received;
        assert_eq!(over, with_token, "{sent} bytes for {received}");
    }
}

// test: RFC 9000 §8.1.3: a token that is not good counts as none
#[test]
fn expired_or_foreign_tokens_count_as_none() {
    // Old.
    let mut one = setup(TransportConfig::default());
    one.connect();
    one.link.now += Duration::from_secs(24 * 3600 + 1);
    assert!(!one.connect() && !one.was_sent_a_retry());
    // Another address.
    let mut one = setup(TransportConfig::default());
    one.connect();
    one.link.client.address = "192.0.2.77:5000".parse().unwrap();
    assert!(!one.connect());
    // Another port of the same address is accepted.
    let mut one = setup(TransportConfig::default());
    one.connect();
    one.link.client.address = "192.0.2.2:6000".parse().unwrap();
    assert!(one.connect());
    // A restarted server: with another key the tokens mean nothing to it; with its own they are
    // valid, but those from before its start count as spent.
    let before = Duration::ZERO;
    let after = Duration::from_secs(3600);
    for (key, unix_time_at_zero, good, retried) in [
        (config().token_key, before, true, false),
        (config().token_key, after, false, true),
        ([8; 32], after, false, false),
    ] {
        let mut one = setup(TransportConfig::default());
        one.connect();
        let config = config().token_key(key).unix_time_at_zero(unix_time_at_zero);
        let tls = Arc::clone(&one.server_tls);
        one.link.server = Host::server(config, tls, TransportConfig::default());
        one.link.client.connections.clear();
        assert_eq!((one.connect(), one.was_sent_a_retry()), (good, retried));
    }
    // RFC 9369 §5: a connection that changed to version 2 issues tokens for version 2.
    let rather_2 = TransportConfig::default().versions(vec![VERSION_2, VERSION_1]);
    let mut one = setup(rather_2.clone());
    one.transport = rather_2;
    one.connect();
    assert_eq!(one.tokens()[0].1, VERSION_2);
    assert!(
        !one.connect(),
        "the connection starts in version 1, for which there is no token"
    );
}

/// A client that reuses one token.
#[derive(Clone, Debug)]
struct Same(Vec<u8>);

impl TokenStore for Same {
    fn insert(&self, _: &str, _: u32, _: &[u8]) {}

    fn take(&self, _: &str, _: u32) -> Option<Vec<u8>> {
        Some(self.0.clone())
    }
}

// test: RFC 9000 §8.1.4, §21.3, SECURITY.md row 49
#[test]
fn a_token_validates_one_connection_of_100() {
    let mut setup = setup(TransportConfig::default());
    setup.connect();
    let token = setup.tokens()[0].2.clone();
    setup.link.client.token_store = Arc::new(Same(token));
    let mut validated = 0;
    for n in 0..100 {
        let by_token = setup.connect();
        validated += u32::from(by_token);
        assert_eq!(setup.was_sent_a_retry(), !by_token, "attempt {n}");
    }
    assert_eq!(validated, 1);
    let counts = setup.link.server.endpoint.counts();
    assert_eq!(
        (counts.tokens_spent, counts.retries),
        (1, counts.tokens_replayed)
    );
    assert!(counts.tokens_replayed >= 99);
}

#[test]
fn a_token_too_long_for_a_first_packet_is_not_sent() {
    let mut setup = setup(TransportConfig::default());
    for (len, is_sent) in [(512, true), (513, false), (60_000, false)] {
        setup.link.client.token_store = Arc::new(Same(vec![7; len]));
        setup.link.to_server.clear();
        assert!(!setup.connect());
        let first = header::parse(&setup.link.to_server[0], 8);
        let Ok(Header::Long { token, .. }) = first else {
            panic!("{first:?}");
        };
        assert_eq!(token.len(), if is_sent { len } else { 0 });
    }
}

/// A server that leaves attempts waiting, and a token for it.
fn waiting(config: EndpointConfig) -> (Host, Setup, Vec<u8>) {
    let mut setup = setup(TransportConfig::default());
    setup.connect();
    let token = setup.tokens()[0].2.clone();
    let tls = Arc::clone(&setup.server_tls);
    let mut server = Host::server(config, tls, TransportConfig::default());
    server.policy = Policy::Wait;
    (server, setup, token)
}

#[test]
fn further_packets_of_an_attempt_are_not_a_replay() {
    let (mut server, setup, token) = waiting(config());
    let (now, from) = (setup.link.now, setup.link.client.address);
    let first = initial(VERSION_1, &[1; 8], &token);
    for _ in 0..3 {
        assert!(server.receive(now, from, &first).is_empty());
    }
    assert_eq!(server.endpoint.undecided(), 1);
    let mut waiting = server.waiting.iter();
    assert!(waiting.all(squall_core::Incoming::remote_address_validated));
    // Another destination id, or the same from another port, is another attempt.
    let other = initial(VERSION_1, &[2; 8], &token);
    let port = (from.ip(), 6000).into();
    for (datagram, from) in [(&other, from), (&first, port)] {
        let answers = server.receive(now, from, datagram);
        assert!(is_retry(&answers[0]));
    }
    // So is the same one once the first has ended.
    server.waiting.clear();
    let answers = server.receive(now, from, &first);
    assert!(is_retry(&answers[0]));
}

#[test]
fn the_token_of_a_refused_attempt_is_not_spent() {
    let (mut server, setup, token) = waiting(config().max_incoming(1));
    let (now, from) = (setup.link.now, setup.link.client.address);
    server.receive(now, from, &initial(VERSION_1, &[1; 8], &[]));
    let first = initial(VERSION_1, &[2; 8], &token);
    let answers = server.receive(now, from, &first);
    assert!(
        !is_retry(&answers[0]),
        "the attempt is refused for lack of room"
    );
    server.waiting.clear();
    assert!(server.receive(now, from, &first).is_empty());
    assert!(server.waiting[0].remote_address_validated());
}
