//! What a connection costs in memory, and what somebody who is none costs, by counting what is allocated: rows 9 and 15 of
//! the threat table in `SECURITY.md`.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::sync::Arc;

use common::link::{Host, Link, initial};
use common::tls;
use counting::held;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use squall_core::{EndpointConfig, Time, TransportConfig};
use squall_wire::VERSION_1;

const NOW: Time = Time::from_nanos(1_000_000_000);

/// Connections that a server gets; the test's own notes of datagrams are let go.
fn connect(link: &mut Link, tls: &Arc<rustls::ClientConfig>, count: usize) {
    for _ in 0..count {
        let transport = TransportConfig::default();
        link.client.connect(link.now, Arc::clone(tls), transport);
        link.run();
        link.to_client = Vec::new();
        link.to_server = Vec::new();
        link.client.events = Vec::new();
        link.server.events = Vec::new();
    }
}

#[test]
fn an_idle_connection_of_a_server_takes_at_most_16_kb() {
    const COUNT: usize = 20;
    let (client_tls, server_tls) = tls();
    let config = EndpointConfig::new([1; 32]);
    let server = Host::server(config, server_tls, TransportConfig::default());
    let mut link = Link::new(Host::client(), server);
    // What is made once is made by the first; the clients' halves are dropped.
    connect(&mut link, &client_tls, 3);
    link.client.connections.clear();
    let before = held();
    connect(&mut link, &client_tls, COUNT);
    let both = held() - before;
    link.client.connections.clear();
    let after = held();
    let server = (after - before) / COUNT as isize;
    let client = both / COUNT as isize - server;
    println!("bytes of an idle connection: server {server}, client {client}");
    assert!(server <= 16 * 1024, "{server} bytes");
}

fn config() -> EndpointConfig {
    EndpointConfig::new([1; 32])
}

fn server(config: EndpointConfig) -> Host {
    Host::server(config, tls().1, TransportConfig::default())
}

// test: RFC 9000 §5.2.2, §14.1, threats row 9
#[test]
fn datagrams_that_open_nothing_leave_nothing() {
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
            // Another id, so that the tag is wrong; noise behind a good header; a damaged header; all noise; too short;
            // an id that is easy to guess.
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

// test: RFC 9000 §8.1.2, threats row 15: a flood from many addresses, each with a good first packet
#[test]
fn clients_that_are_sent_a_retry_leave_nothing() {
    let mut server = server(EndpointConfig {
        retry_from: 0,
        ..config()
    });
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
