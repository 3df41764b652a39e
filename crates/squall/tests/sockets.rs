//! Endpoints on sockets that the application provides, and on sockets with their own options.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

use common::{ALPN, ANY, Identity, connect, deliver, namespace, within};
use squall::{Builder, TransportConfig};

fn server(identity: &Identity) -> Builder {
    Builder::new(ANY).server(identity.server(ALPN, TransportConfig::default()))
}

fn client(identity: &Identity) -> Builder {
    client_at(ANY, identity)
}

fn client_at(address: SocketAddr, identity: &Identity) -> Builder {
    Builder::new(address).client(identity.client(ALPN, TransportConfig::default()))
}

#[test]
fn bundles_are_enabled_before_loopback_is_used() {
    let name = "bundles_are_enabled_before_loopback_is_used";
    if !namespace::inside(name, "ip link set lo down") {
        return;
    }
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let endpoint = client_at(any, &Identity::new()).bind().unwrap();
    assert!(endpoint.limits().gso_segments >= 64);
}

/// Sockets that share a port, as a service manager binds them.
fn sharing(count: usize) -> Vec<UdpSocket> {
    let mut address = ANY;
    (0..count)
        .map(|_| {
            let domain = socket2::Domain::IPV4;
            let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&address.into()).unwrap();
            let socket = UdpSocket::from(socket);
            address = socket.local_addr().unwrap();
            socket
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_works_on_a_provided_socket() {
    let identity = Identity::new();
    let sockets = [(); 2].map(|()| UdpSocket::bind(ANY).unwrap());
    let [address, own] = [&sockets[0], &sockets[1]].map(|one| one.local_addr().unwrap());
    let [given, own_socket] = sockets;
    let server = server(&identity).socket(given).bind().unwrap();
    let client = client(&identity).socket(own_socket).bind().unwrap();
    assert_eq!(server.local_addr().unwrap(), address);
    assert_eq!(client.local_addr().unwrap(), own);
    let (near, far) = connect(&client, &server).await;
    assert_eq!(
        (near.remote_address(), far.remote_address()),
        (address, own)
    );
    deliver(&near, &far, 100_000).await;
    // Configured like the endpoint's own.
    assert!(server.limits().gso_segments > 1 && server.limits().gro);

    // It moves to another one, with its connections.
    let other = UdpSocket::bind(ANY).unwrap();
    let there = other.local_addr().unwrap();
    client.rebind_sockets([other]).unwrap();
    deliver(&near, &far, 100_000).await;
    assert_eq!(far.remote_address(), there);

    // The port is free again when the endpoint is gone.
    drop(near);
    within(server.shutdown(0, b"")).await;
    let closed = server.sockets_closed();
    drop((server, far));
    within(closed).await;
    UdpSocket::bind(address).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_gets_one_of_the_provided_sockets() {
    const WORKERS: usize = 3;
    let identity = Identity::new();
    let server = server(&identity).sockets(sharing(WORKERS)).bind().unwrap();
    assert_eq!(server.worker_stats().len(), WORKERS);
    let mut seen = [0; WORKERS];
    let mut kept = Vec::new();
    while seen.contains(&0) {
        let client = client(&identity).bind().unwrap();
        let (near, far) = connect(&client, &server).await;
        deliver(&near, &far, 100_000).await;
        seen[far.worker()] += 1;
        kept.push((client, near, far));
    }
    // In the order of their binds, nothing has to be forwarded.
    assert_eq!(server.stats().runs_forwarded, 0);
}

#[test]
fn unsuitable_sockets_are_rejected() {
    let identity = Identity::new();
    let refused = |builder: Builder| {
        let error = builder.bind().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        error.to_string()
    };
    let bound = || UdpSocket::bind(ANY).unwrap();
    let connected = bound();
    connected.connect(bound().local_addr().unwrap()).unwrap();
    assert!(refused(server(&identity).socket(connected)).contains("connected"));
    let unbound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None);
    assert!(refused(server(&identity).socket(unbound.unwrap().into())).contains("not bound"));
    assert!(refused(server(&identity).sockets([bound(), bound()])).contains("one address"));
    assert!(refused(server(&identity).sockets([])).contains("workers"));
    assert!(refused(server(&identity).socket(bound()).workers(2)).contains("socket for each"));
    let endpoint = server(&identity).bind().unwrap();
    let error = endpoint.rebind_sockets(sharing(2)).unwrap_err();
    assert!(error.to_string().contains("2 for 1"), "{error}");
}

#[test]
fn options_are_set_before_the_bind() {
    let identity = Identity::new();
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let mut builder = server(&identity).only_v6(true);
    builder.addr = any;
    // Its port is free for IPv4, unless another process happens to use it.
    let mut is_free = false;
    for _ in 0..10 {
        let Ok(endpoint) = builder.clone().bind() else {
            println!("there is no IPv6 here");
            return;
        };
        let port = endpoint.local_addr().unwrap().port();
        is_free |= UdpSocket::bind((ANY.ip(), port)).is_ok();
    }
    assert!(is_free);
    let mut both = server(&identity);
    both.addr = any;
    let both = both.bind().unwrap();
    let port = both.local_addr().unwrap().port();
    assert!(UdpSocket::bind((ANY.ip(), port)).is_err());

    let missing = server(&identity).device("no-such-if".into()).bind();
    let error = missing.unwrap_err();
    assert!(error.to_string().contains("no-such-if"), "{error}");
}

/// A copy of the settings can also be bound, to another handle of the same socket.
#[test]
fn settings_with_a_socket_can_be_cloned() {
    let identity = Identity::new();
    let socket = UdpSocket::bind(ANY).unwrap();
    let address = socket.local_addr().unwrap();
    let builder = server(&identity).socket(socket);
    let copy = builder.clone();
    assert_eq!(builder.bind().unwrap().local_addr().unwrap(), address);
    assert_eq!(copy.bind().unwrap().local_addr().unwrap(), address);
}
