//! What a connection costs in memory, and what a stranger costs, by counting allocations: rows 9
//! and 15 of the threat table in `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::link::{Host, Link, initial};
use common::{Pair, tls};
use counting::held;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use squall_core::{EndpointConfig, Time, TransportConfig};
use squall_protect::{KernelKind, Suite, chosen_kernel};
use squall_wire::{Direction, Side, VERSION_1};

const NOW: Time = Time::from_nanos(1_000_000_000);

/// Connects clients to a server; the test's own records of datagrams are dropped.
fn connect(link: &mut Link, tls: &Arc<rustls::ClientConfig>, count: usize) {
    for _ in 0..count {
        let transport = TransportConfig::default();
        link.client.connect(link.now, Arc::clone(tls), transport);
        link.run();
        link.forget();
    }
}

#[test]
fn an_idle_server_connection_takes_at_most_12_kb() {
    const COUNT: usize = 20;
    let (client_tls, server_tls) = tls();
    let config = EndpointConfig::new([1; 32]);
    let server = Host::server(config, server_tls, TransportConfig::default());
    let mut link = Link::new(Host::client(), server);
    // The first connections make what is made once; the clients' halves are dropped.
    connect(&mut link, &client_tls, 3);
    link.client.connections.clear();
    let before = held();
    connect(&mut link, &client_tls, COUNT);
    link.rest(Duration::from_secs(6));
    link.forget();
    let both = held() - before;
    link.client.connections.clear();
    let after = held();
    let server = (after - before) / COUNT as isize;
    let client = both / COUNT as isize - server;
    println!("bytes of an idle connection: server {server}, client {client}");
    // Four keys have tables for registers of 512 bits instead of 256 if those are used.
    let is_wide = chosen_kernel(Suite::Aes128Gcm) == KernelKind::Vaes512;
    let tables = if is_wide { 4 * 384 } else { 0 };
    assert!(server <= 12 * 1024 + tables, "{server} bytes");
}

/// One connection to a server; its handles at the client and at the server.
fn pair(transport: &TransportConfig) -> (Link, usize, usize) {
    let (client_tls, server_tls) = tls();
    let server = Host::server(config(), server_tls, transport.clone());
    let mut link = Link::new(Host::client(), server);
    let handle = (link.client).connect(link.now, client_tls, transport.clone());
    link.run();
    let at_server = *link.server.connections.keys().next().unwrap();
    (link, handle, at_server)
}

/// By how much the estimate and the allocated bytes have risen above their first values.
fn rises(connection: &squall_core::Connection, first: (usize, isize)) -> (f64, f64) {
    let estimate = connection.memory() - first.0;
    (estimate as f64, (held() - first.1) as f64)
}

fn assert_honest(what: &str, (estimate, allocated): (f64, f64)) {
    println!("{what}: estimated {estimate}, allocated {allocated}");
    let ratio = estimate / allocated;
    assert!((0.6..=1.6).contains(&ratio), "{what}: {ratio:.2}");
}

// test: SECURITY.md row 53: a memory limit is only as good as its estimates
#[test]
fn a_connection_reports_the_memory_that_it_takes() {
    let (client_tls, server_tls) = tls();
    let server = Host::server(config(), server_tls, TransportConfig::default());
    let mut link = Link::new(Host::client(), server);
    connect(&mut link, &client_tls, 3);
    link.client.connections.clear();
    let before = held();
    connect(&mut link, &client_tls, 20);
    link.client.connections.clear();
    let allocated = (held() - before) / 20;
    let estimate = link.server.connections.last_key_value().unwrap().1.memory();
    assert_honest("idle", (estimate as f64, allocated as f64));
}

#[test]
fn a_handshake_reports_the_memory_that_it_takes() {
    let (client_tls, server_tls) = tls();
    let mut server = Host::server(config(), server_tls, TransportConfig::default());
    let mut client = Host::client();
    let from = client.address;
    let mut sizes = Vec::new();
    for _ in 0..12 {
        client.connections.clear();
        client.connect(NOW, Arc::clone(&client_tls), TransportConfig::default());
        let datagrams = client.send(NOW);
        let before = held();
        for datagram in &datagrams {
            server.receive(NOW, from, datagram);
        }
        drop(server.send(NOW));
        sizes.push(held() - before);
    }
    let allocated = sizes[2..].iter().sum::<isize>() / 10;
    let estimate = server.connections.last_key_value().unwrap().1.memory();
    assert_honest("in its handshake", (estimate as f64, allocated as f64));
}

#[test]
fn buffered_data_is_included_in_the_reported_memory() {
    let unread = TransportConfig::default()
        .initial_stream_window(4 << 20)
        .initial_window(8 << 20);
    // Written but not sent, in large pieces and in small ones.
    for size in [1 << 20, 1000, 10] {
        let (mut link, handle, _) = pair(&unread);
        let client = link.client.connections.get_mut(&handle).unwrap();
        let id = client.open(Direction::Bidirectional).unwrap();
        let first = (client.memory(), held());
        let mut written = 0;
        while written < 2 << 20 {
            let mut data = Bytes::from(vec![7; size]);
            written += client.write(id, &mut data).unwrap();
        }
        assert_honest(&format!("unsent, {size}"), rises(client, first));
    }
    // Received but not read: one stream, and many short ones.
    for (streams, size) in [(1, 3 << 20), (100, 3000), (100, 20_000)] {
        let (mut link, handle, at_server) = pair(&unread);
        (link.to_client, link.to_server) = (Vec::new(), Vec::new());
        let server = &link.server.connections[&at_server];
        let first = (server.memory(), held());
        for _ in 0..streams {
            let client = link.client.connections.get_mut(&handle).unwrap();
            let id = client.open(Direction::Unidirectional).unwrap();
            let mut data = Bytes::from(vec![7; size]);
            while !data.is_empty() {
                client.write(id, &mut data).unwrap();
            }
            client.finish(id).unwrap();
        }
        link.run();
        (link.to_client, link.to_server) = (Vec::new(), Vec::new());
        (link.client.events, link.server.events) = (Vec::new(), Vec::new());
        link.client.connections.clear();
        let server = &link.server.connections[&at_server];
        let what = format!("unread, {streams} of {size}");
        assert_honest(&what, rises(server, first));
        // Once read to the end, only chunks for reuse are left.
        let server = link.server.connections.get_mut(&at_server).unwrap();
        while let Some(id) = server.accept(Direction::Unidirectional) {
            while let Ok(Some(_)) = server.read(id, usize::MAX) {}
        }
        let (estimate, allocated) = rises(server, first);
        println!("{what}, read: estimated {estimate}, allocated {allocated}");
        assert!((estimate - allocated).abs() < 64.0 * 1024.0 + allocated / 2.0);
    }
}

// A byte at the end of its credit costs a peer nothing, and must not be counted as a whole window.
#[test]
fn a_gap_does_not_count_as_memory() {
    let (mut link, handle, at_server) = pair(&TransportConfig::default());
    let before = link.server.connections[&at_server].memory();
    let client = link.client.connections.get_mut(&handle).unwrap();
    let id = client.open(Direction::Unidirectional).unwrap();
    client
        .write(id, &mut Bytes::from(vec![7; 400_000]))
        .unwrap();
    // All but the last packets are lost.
    let datagrams = link.client.send(link.now);
    let from = link.client.address;
    let last = datagrams.last().unwrap();
    link.server.receive(link.now, from, last);
    let after = link.server.connections[&at_server].memory();
    assert!(
        after > before && after - before < 8 * 1024,
        "{before} to {after}"
    );
}

fn config() -> EndpointConfig {
    EndpointConfig::new([1; 32])
}

fn server(config: EndpointConfig) -> Host {
    Host::server(config, tls().1, TransportConfig::default())
}

// test: RFC 9000 §5.2.2, §14.1, SECURITY.md row 9
#[test]
fn datagrams_that_cannot_be_opened_leave_no_state() {
    let mut server = server(config());
    let from = "192.0.2.9:9".parse().unwrap();
    let good = initial(VERSION_1, &[7; 8], &[]);
    let mut rng = StdRng::from_seed([3; 32]);
    let mut datagram = good.clone();
    let mut before = held();
    for n in 0..1_000_000u32 {
        if n == 100 {
            before = held();
        }
        let len = match n % 6 {
            // Another id, so that the tag is wrong; noise after a good header; a damaged header;
            // all noise; too short; an id that is easy to guess.
            0 => {
                datagram.copy_from_slice(&good);
                rng.fill_bytes(&mut datagram[6..14]);
                1200
            }
            1 => {
                datagram.copy_from_slice(&good);
                rng.fill_bytes(&mut datagram[40..80]);
                1200
            }
            2 => {
                datagram.copy_from_slice(&good);
                datagram[rng.random_range(0..32)] ^= rng.random_range(1..=255);
                1200
            }
            3 => {
                rng.fill_bytes(&mut datagram[..64]);
                1200
            }
            4 => {
                datagram.copy_from_slice(&good);
                1199
            }
            _ => {
                datagram.copy_from_slice(&good);
                datagram[5] = 7;
                1200
            }
        };
        server.receive(NOW, from, &datagram[..len]);
    }
    assert_eq!(server.endpoint.connections(), 0);
    assert_eq!(server.endpoint.undecided(), 0);
    assert_eq!(held() - before, 0);
}

// test: RFC 9000 §8.1.2, SECURITY.md row 15: a flood from many addresses, each with a good first
// packet
#[test]
fn clients_that_are_sent_a_retry_leave_no_state() {
    let mut server = server(config().retry_from(0));
    let mut before = 0;
    for n in 0..20_000u32 {
        if n == 100 {
            before = held();
        }
        let [_, a, b, c] = n.to_be_bytes();
        let from = ([127, a, b, c], 1000).into();
        let first = initial(VERSION_1, &[&[7; 4], &n.to_be_bytes()[..]].concat(), &[]);
        let answers = server.receive(NOW, from, &first);
        assert!(answers.len() == 1 && answers[0].len() < 150);
    }
    assert_eq!(server.endpoint.connections(), 0);
    assert_eq!(held() - before, 0);
}

/// Moves data over one more stream of every connection, from the side that `from_server` names, and
/// reads it to the end.
fn transfer(link: &mut Link, from_server: bool, bytes: usize) {
    let handles: Vec<usize> = link.server.connections.keys().copied().collect();
    for handle in handles {
        let piece = bytes::Bytes::from_static(&[7; 64 * 1024]);
        let (mut sent, mut received, mut accepted) = (0, 0, None);
        let mut id = None;
        while received < bytes {
            let (from, to) = match from_server {
                true => (&mut link.server, &mut link.client),
                false => (&mut link.client, &mut link.server),
            };
            let from = from.connections.get_mut(&handle).unwrap();
            let to = to.connections.get_mut(&handle).unwrap();
            let id = *id.get_or_insert_with(|| from.open(Direction::Unidirectional).unwrap());
            while sent < bytes
                && let Ok(n) = from.write(id, &mut piece.slice(..piece.len().min(bytes - sent)))
            {
                sent += n;
                if sent == bytes {
                    from.finish(id).unwrap();
                }
            }
            accepted = accepted.or_else(|| to.accept(Direction::Unidirectional));
            while let Some(id) = accepted
                && let Ok(Some(chunk)) = to.read(id, usize::MAX)
            {
                received += chunk.len();
            }
            link.run();
        }
    }
    link.forget();
}

#[test]
fn a_connection_frees_its_memory_after_a_transfer() {
    const COUNT: usize = 4;
    let (client_tls, server_tls) = tls();
    let server = Host::server(config(), server_tls, TransportConfig::default());
    let mut link = Link::new(Host::client(), server);
    let before = held();
    connect(&mut link, &client_tls, COUNT);
    let fresh = held() - before;
    for from_server in [false, true] {
        transfer(&mut link, from_server, 8_000_000);
    }
    let used = held() - before;
    // The next segment of a film reuses the memory of the last one.
    link.rest(Duration::from_secs(2));
    let between = held() - before;
    // Long enough for the remaining timers and acknowledgements.
    link.rest(Duration::from_secs(5));
    let idle = held() - before;
    let each = |bytes: isize| bytes / COUNT as isize;
    println!(
        "bytes of both ends: fresh {}, after 8 MB each way {}, 2 s later {}, idle {}",
        each(fresh),
        each(used),
        each(between),
        each(idle)
    );
    assert!(
        each(between) > each(fresh) + 8192,
        "{} bytes",
        each(between)
    );
    assert!(each(idle) <= each(fresh) + 2048, "{} bytes", each(idle));
}

/// Lets six seconds pass.
fn rest(pair: &mut Pair) {
    let until = pair.now + Duration::from_secs(6);
    while pair.now < until {
        let due = [Side::Client, Side::Server].map(|side| pair.connection(side).next_timeout());
        pair.now = due
            .into_iter()
            .flatten()
            .min()
            .map_or(until, |due| pair.now.max(due.min(until)));
        for side in [Side::Client, Side::Server] {
            let now = pair.now;
            pair.connection(side).on_timeout(now);
        }
        pair.run();
        for side in [Side::Client, Side::Server] {
            drop(pair.collect(side));
        }
    }
}

// Bundles of full packets make the keys of both ends build tables of 3 kB.
#[test]
fn busy_keys_free_their_tables_when_idle() {
    const BYTES: usize = 1_000_000;
    let mut pair = Pair::new();
    pair.run();
    rest(&mut pair);
    let fresh = held();
    for from in [Side::Client, Side::Server] {
        let to = match from {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        let id = (pair.connection(from).open(Direction::Unidirectional)).expect("a stream");
        let (mut sent, mut received) = (0, 0);
        while received < BYTES {
            let mut piece =
                bytes::Bytes::from_static(&[7; 64 * 1024]).slice(..(BYTES - sent).min(64 * 1024));
            sent += pair.connection(from).write(id, &mut piece).unwrap_or(0);
            pair.run();
            while let Ok(Some(chunk)) = pair.connection(to).read(id, usize::MAX) {
                received += chunk.len();
            }
        }
        pair.connection(from)
            .finish(id)
            .expect("the stream is open");
        pair.run();
        pair.connection(to).accept(Direction::Unidirectional);
        while pair
            .connection(to)
            .read(id, usize::MAX)
            .is_ok_and(|chunk| chunk.is_some())
        {}
    }
    rest(&mut pair);
    let more = held() - fresh;
    println!("{more} bytes more than before");
    assert!(more <= 2048, "{more} bytes");
}
