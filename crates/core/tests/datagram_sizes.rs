//! How large datagrams are.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::collections::BTreeSet;

use bytes::Bytes;
use common::link::{Host, Link};
use common::tls;
use squall_core::{EndpointConfig, Time, TransportConfig};
use squall_wire::{Direction, StreamId};

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

fn sizes(datagrams: &[Vec<u8>]) -> BTreeSet<usize> {
    datagrams.iter().map(Vec::len).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

#[test]
fn what_every_path_carries_is_sent_from_the_first_data_on() {
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
