//! How large datagrams are: the assumed path MTU, what the peer may send, and padding.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use squall_core::{EndpointConfig, Time, TransportConfig};
use squall_wire::{Direction, StreamId};

use crate::common::link::{Host, Link};
use crate::common::tls;

const NOW: Time = Time::from_nanos(1_000_000_000);

/// A connection whose handshake is over, and its handle at the client.
fn connected(client: TransportConfig, server: TransportConfig) -> (Link, usize) {
    let (client_tls, server_tls) = tls();
    let server = Host::server(EndpointConfig::new([1; 32]), server_tls, server);
    let mut link = Link::new(Host::client(), server);
    let handle = link.client.connect(NOW, client_tls, client);
    link.run();
    link.forget();
    (link, handle)
}

/// Writes to a new stream of the client's and ends it.
fn write(link: &mut Link, handle: usize, data: &[u8]) -> StreamId {
    let connection = link.client.connections.get_mut(&handle).unwrap();
    let id = connection.open(Direction::Unidirectional).unwrap();
    let mut rest = Bytes::copy_from_slice(data);
    assert_eq!(connection.write(id, &mut rest), Ok(data.len()));
    connection.finish(id).unwrap();
    id
}

/// Reads what the server has received on a stream, to its end.
fn read(link: &mut Link, id: StreamId) -> Vec<u8> {
    let connection = link.server.connections.values_mut().next().unwrap();
    let mut all = Vec::new();
    while let Some(chunk) = connection.read(id, usize::MAX).unwrap() {
        all.extend_from_slice(&chunk);
    }
    all
}

fn sizes(datagrams: &[Vec<u8>]) -> BTreeSet<usize> {
    datagrams.iter().map(Vec::len).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// The longest datagram of a client that only acknowledges.
const ACK_ONLY: usize = 60;

#[test]
fn padded_datagrams_all_have_one_size() {
    for pads in [true, false] {
        let transport = TransportConfig::default().pad_to_mtu(pads);
        let (mut link, handle) = connected(transport, TransportConfig::default());
        // The path MTU is found.
        write(&mut link, handle, &pattern(300_000));
        link.run();
        link.forget();
        for len in [
            0, 1, 20, 300, 1400, 1420, 1427, 1430, 1440, 1450, 5000, 40_000,
        ] {
            let data = pattern(len);
            // Several streams share packets: all but the last piece of a packet are copied anyway.
            let ids: Vec<_> = (0..3).map(|_| write(&mut link, handle, &data)).collect();
            let connection = link.client.connections.get_mut(&handle).unwrap();
            connection
                .send_datagram(Bytes::from(pattern(len.min(1200))))
                .unwrap();
            link.run();
            for id in ids {
                assert!(read(&mut link, id) == data, "{len} bytes");
            }
            let server = link.server.connections.values_mut().next().unwrap();
            assert_eq!(server.read_datagram(), Some(pattern(len.min(1200)).into()));
        }
        let seen = sizes(&link.to_server);
        let data: BTreeSet<_> = seen.range(ACK_ONLY..).copied().collect();
        if pads {
            assert_eq!(data, [1472].into(), "of {seen:?}");
        } else {
            assert!(data.len() > 10, "{seen:?}");
        }
        for connection in link
            .client
            .connections
            .values()
            .chain(link.server.connections.values())
        {
            assert_eq!(connection.stats().packets_forged, 0);
        }
    }
}

// test: RFC 9002 §6.2.4: one or two probes, padded or not
#[test]
fn padding_does_not_make_a_probe_timeout_send_more_packets() {
    for pads in [true, false] {
        let transport = TransportConfig::default().pad_to_mtu(pads);
        let (mut link, handle) = connected(transport, TransportConfig::default());
        write(&mut link, handle, &pattern(100));
        let lost = link.client.send(link.now);
        assert_eq!(lost.len(), 1);
        for _ in 0..3 {
            let connection = link.client.connections.get_mut(&handle).unwrap();
            link.now = connection.next_timeout().unwrap();
            connection.on_timeout(link.now);
            let mut buffer = vec![0; 65_536];
            let mut datagrams = 0;
            let stages = &mut squall_core::Stages::off();
            while let Some(sent) = connection.transmit(link.now, &mut buffer, 64, stages) {
                datagrams += sent.len.div_ceil(sent.segment_size.into());
            }
            assert!(
                (1..=2).contains(&datagrams),
                "{datagrams} datagrams, {pads}"
            );
        }
    }
}

#[test]
fn early_data_is_padded_too() {
    let (client_tls, server_tls) = crate::common::tls();
    let (mut client_tls, mut server_tls) = ((*client_tls).clone(), (*server_tls).clone());
    client_tls.enable_early_data = true;
    server_tls.max_early_data_size = u32::MAX;
    let (client_tls, server_tls) = (Arc::new(client_tls), Arc::new(server_tls));
    for pads in [true, false] {
        let transport = TransportConfig::default().pad_to_mtu(pads);
        let config = EndpointConfig::new([1; 32]);
        let server = Host::server(config, Arc::clone(&server_tls), TransportConfig::default());
        let mut link = Link::new(Host::client(), server);
        link.client
            .connect(NOW, Arc::clone(&client_tls), transport.clone());
        link.run();
        let again = link
            .client
            .connect(link.now, Arc::clone(&client_tls), transport);
        write(&mut link, again, &pattern(5));
        let flight = link.client.send(link.now);
        // The ClientHello, then early data, in separate datagrams if it fits nowhere else.
        let seen = sizes(&flight);
        assert!(flight.len() >= 2, "{seen:?}");
        write(&mut link, again, &pattern(5));
        let more = link.client.send(link.now);
        assert_eq!(more.len(), 1);
        assert_eq!(more[0].len() == 1200, pads, "{}", more[0].len());
    }
}

// test: RFC 9000 §18.2, max_udp_payload_size
#[test]
fn max_udp_payload_size_bounds_the_peers_datagrams() {
    for (wanted, largest) in [(1200, 1200), (1300, 1300), (65_527, 1472)] {
        let client = TransportConfig::default().max_received_udp_payload(wanted);
        assert_eq!(client.check(), Ok(()));
        let (client_tls, server_tls) = tls();
        let config = EndpointConfig::new([1; 32]);
        let server = Host::server(config, server_tls, TransportConfig::default());
        let mut link = Link::new(Host::client(), server);
        link.client.connect(NOW, client_tls, client);
        link.run();
        let server = link.server.connections.values_mut().next().unwrap();
        let id = server.open(Direction::Unidirectional).unwrap();
        let mut data = Bytes::from(pattern(300_000));
        server.write(id, &mut data).unwrap();
        link.run();
        assert_eq!(sizes(&link.to_client).last(), Some(&largest));
    }
    for wrong in [0, 1199, 65_528] {
        let config = TransportConfig::default().max_received_udp_payload(wrong);
        assert!(
            config
                .check()
                .unwrap_err()
                .contains("max_received_udp_payload")
        );
    }
}

#[test]
fn min_udp_payload_is_used_from_the_first_data_on() {
    let transport = || TransportConfig::default().mtu_discovery(false);
    for (least, size) in [(1200, 1200), (1400, 1400), (1472, 1472)] {
        let client = transport().min_udp_payload(least);
        assert_eq!(client.check(), Ok(()));
        let (mut link, handle) = connected(client, transport());
        write(&mut link, handle, &pattern(20_000));
        link.run();
        assert_eq!(sizes(&link.to_server).last(), Some(&size));
    }
    for wrong in [
        transport().min_udp_payload(1199),
        transport().min_udp_payload(1473),
    ] {
        assert!(wrong.check().unwrap_err().contains("min_udp_payload"));
    }
    assert_eq!(transport().max_udp_payload(600).check(), Ok(()));
}

// test: RFC 9000 §18.2 — no datagram is larger.
#[test]
fn settings_above_the_largest_udp_payload_are_rejected() {
    let transport = TransportConfig::default;
    let largest = transport()
        .max_udp_payload(65_527)
        .initial_udp_payload(65_527);
    assert_eq!(largest.check(), Ok(()));
    for (wrong, name) in [
        (transport().max_udp_payload(65_528), "max_udp_payload"),
        (
            transport().initial_udp_payload(65_528),
            "initial_udp_payload",
        ),
    ] {
        assert!(wrong.check().unwrap_err().contains(name));
    }
}

/// Probe timeouts are multiples of it.
#[test]
fn the_first_estimate_of_the_rtt_is_bounded() {
    let initial_rtt = |rtt| TransportConfig::default().initial_rtt(rtt);
    let minute = Duration::from_secs(60);
    assert_eq!(initial_rtt(minute).check(), Ok(()));
    for wrong in [
        Duration::ZERO,
        minute + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        assert!(
            initial_rtt(wrong)
                .check()
                .unwrap_err()
                .contains("initial_rtt")
        );
    }
}
