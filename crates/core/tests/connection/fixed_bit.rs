//! The fixed bit of packets, greased or not (RFC 9287).

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use bytes::Bytes;
use squall_core::{EndpointConfig, Event, Time, TransportConfig};
use squall_wire::{Direction, VERSION_1, header};

use crate::common::link::{Host, Link, initial_from};
use crate::common::tls;

const NOW: Time = Time::from_nanos(1_000_000_000);

fn config(greases: bool) -> EndpointConfig {
    EndpointConfig::new([1; 32]).grease_quic_bit(greases)
}

fn server(greases: bool) -> Host {
    Host::server(config(greases), tls().1, TransportConfig::default())
}

/// How many datagrams start with a short header, and how many of these have a fixed bit of 0.
fn short_headers(datagrams: &[Vec<u8>]) -> (usize, usize) {
    let firsts = datagrams.iter().map(|datagram| datagram[0]);
    let short: Vec<u8> = firsts.filter(|first| !header::is_long(*first)).collect();
    let greased = short
        .iter()
        .filter(|first| **first & header::FIXED_BIT == 0);
    (short.len(), greased.count())
}

// test: RFC 9287 §3: greased towards a peer that has asked for it, and by an end that does so
#[test]
fn the_fixed_bit_is_random_where_both_ends_grease_it_and_set_elsewhere() {
    for (client_greases, server_greases) in
        [(true, true), (true, false), (false, true), (false, false)]
    {
        let (client_tls, server_tls) = tls();
        let transport = TransportConfig::default();
        let mut link = Link::new(
            Host::client_with(config(client_greases)),
            Host::server(config(server_greases), server_tls, transport.clone()),
        );
        let handle = link.client.connect(NOW, client_tls, transport);
        link.run();
        // Long headers, and everything sent before the peer's parameters have arrived.
        for datagram in link.to_server.iter().chain(&link.to_client) {
            let is_long = header::is_long(datagram[0]);
            assert!(!is_long || datagram[0] & header::FIXED_BIT != 0);
        }
        link.forget();
        for _ in 0..40 {
            let connection = link.client.connections.get_mut(&handle).unwrap();
            let id = connection.open(Direction::Unidirectional).unwrap();
            let sent = connection.write(id, &mut Bytes::from_static(b"once"));
            assert_eq!(sent, Ok(4));
            connection.finish(id).unwrap();
            link.run();
        }
        let both = client_greases && server_greases;
        for datagrams in [&link.to_server, &link.to_client] {
            let (short, greased) = short_headers(datagrams);
            assert!(short >= 40, "{short} packets");
            let as_wanted = if both {
                (short / 8..short - short / 8).contains(&greased)
            } else {
                greased == 0
            };
            assert!(as_wanted, "{greased} of {short}");
        }
        let opened = (link.server.events.iter())
            .filter(|(_, event)| matches!(event, Event::StreamOpened(Direction::Unidirectional)));
        assert!(opened.count() > 0);
        for host in [&link.client, &link.server] {
            let dropped = host.connections.values().map(|c| c.stats().packets_dropped);
            assert_eq!(dropped.sum::<u64>(), 0);
        }
    }
}

// test: RFC 9000 §17.2: a packet whose fixed bit is 0 is discarded; RFC 9287 §3: unless it was
// offered
#[test]
fn an_initial_with_a_cleared_fixed_bit_begins_a_connection_only_if_greasing_is_allowed() {
    let from = "192.0.2.9:9".parse().unwrap();
    for greases in [true, false] {
        for first_bit in [true, false] {
            let mut server = server(greases);
            let clear = if first_bit { 0 } else { header::FIXED_BIT };
            let initial = initial_from(VERSION_1, &[7; 8], &[], 0, &[0x01], |first| first & !clear);
            assert!(server.receive(NOW, from, &initial).is_empty());
            let admitted = greases || first_bit;
            assert_eq!(server.connections.len(), usize::from(admitted), "{greases}");
        }
    }
}

// test: RFC 9000 §10.3: a reset answers a packet
#[test]
fn a_datagram_with_a_cleared_fixed_bit_is_reset_only_if_greasing_is_allowed() {
    let from = "192.0.2.9:9".parse().unwrap();
    for greases in [true, false] {
        for first in [0x40, 0] {
            let mut server = server(greases);
            let mut datagram = [7; 60];
            datagram[0] = first;
            let answered = !server.receive(NOW, from, &datagram).is_empty();
            assert_eq!(answered, greases || first != 0, "{greases} {first:#x}");
        }
    }
}
