//! Clients whose address disappears, as when a phone leaves its Wi-Fi: in their own network
//! namespace, over real sockets.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{ALPN, Identity, Pair, namespace, within};
use squall::{Builder, Bytes, Connection, RecvStream, SendStream, TransportConfig};

const SERVER: &str = "10.9.0.1:4433";
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 3);
const LEN: usize = 40_000_000;

/// The system reaches the server from the first address.
const SETUP: &str = "ip addr add 10.9.0.1/32 dev lo; ip addr add 10.9.0.2/32 dev lo; \
    ip route replace local 10.9.0.1 dev lo table local src 10.9.0.2; \
    tc qdisc add dev lo root tbf rate 200mbit burst 256kb latency 50ms";

/// The first address disappears, another one appears.
fn change_address() {
    let script = "ip addr add 10.9.0.3/32 dev lo && \
        ip route replace local 10.9.0.1 dev lo table local src 10.9.0.3 && \
        ip addr del 10.9.0.2/32 dev lo";
    let status = Command::new("sh").args(["-ec", script]).status();
    assert!(status.unwrap().success());
}

/// A client bound to all addresses and a server, with connections that do not survive silence for
/// long.
async fn pair() -> Pair {
    let transport = || {
        TransportConfig::default()
            .max_idle_timeout(Duration::from_secs(10))
            .max_udp_payload(1472)
    };
    let identity = Identity::new();
    let address: SocketAddr = SERVER.parse().unwrap();
    let server = Builder::new(address)
        .server(identity.server(ALPN, transport()))
        .bind()
        .unwrap();
    let client = Builder::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
        .client(identity.client(ALPN, transport()))
        .bind()
        .unwrap();
    let connecting = client.connect(address, "localhost").unwrap();
    let (near, far) = common::meet(connecting, &server).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    Pair {
        client,
        server,
        near,
        far,
    }
}

async fn send(mut send: SendStream) -> SendStream {
    let chunk = Bytes::from(vec![7; 100_000]);
    for _ in 0..LEN / chunk.len() {
        send.write_chunk(chunk.clone()).await.unwrap();
    }
    send.finish().unwrap();
    send
}

/// Reads to the end, changes the address on the way, and returns the longest time without data.
async fn receive(mut recv: RecvStream) -> Duration {
    let (mut received, mut changed, mut longest) = (0, false, Duration::ZERO);
    let mut last = Instant::now();
    while let Some(chunk) = within(recv.read_chunk(usize::MAX)).await.unwrap() {
        longest = longest.max(last.elapsed());
        received += chunk.len();
        if received > LEN / 4 && !changed {
            tokio::task::spawn_blocking(change_address).await.unwrap();
            changed = true;
        }
        last = Instant::now();
    }
    assert_eq!(received, LEN);
    longest
}

async fn is_at(far: &Connection, address: Ipv4Addr) {
    within(async {
        while far.remote_address().ip() != IpAddr::V4(address) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_continues_from_another_address() {
    if !namespace::inside("an_upload_continues_from_another_address", SETUP) {
        return;
    }
    let pair = pair().await;
    is_at(&pair.far, FIRST).await;
    let sender = tokio::spawn(send(pair.near.open_uni().await.unwrap()));
    let longest = receive(within(pair.far.accept_uni()).await.unwrap()).await;
    println!("upload: at most {longest:?} without data");
    within(sender).await.unwrap();
    is_at(&pair.far, SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_continues_to_another_address() {
    if !namespace::inside("a_download_continues_to_another_address", SETUP) {
        return;
    }
    let pair = pair().await;
    is_at(&pair.far, FIRST).await;
    let sender = tokio::spawn(send(pair.far.open_uni().await.unwrap()));
    let longest = receive(within(pair.near.accept_uni()).await.unwrap()).await;
    println!("download: at most {longest:?} without data");
    within(sender).await.unwrap();
    is_at(&pair.far, SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_client_shows_its_server_a_new_address() {
    if !namespace::inside("an_idle_client_shows_its_server_a_new_address", SETUP) {
        return;
    }
    let pair = pair().await;
    is_at(&pair.far, FIRST).await;
    // No stream is open: only the system's notification makes the client send.
    tokio::time::sleep(Duration::from_millis(200)).await;
    change_address();
    is_at(&pair.far, SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chosen_address_is_abandoned_when_it_disappears() {
    if !namespace::inside("a_chosen_address_is_abandoned_when_it_disappears", SETUP) {
        return;
    }
    let pair = pair().await;
    is_at(&pair.far, FIRST).await;
    // To another address and back: from then on it is the application's choice.
    let third = Ipv4Addr::new(10, 9, 0, 4);
    let added = Command::new("ip")
        .args(["addr", "add", "10.9.0.4/32", "dev", "lo"])
        .status();
    assert!(added.unwrap().success());
    within(pair.near.migrate(third.into())).await.unwrap();
    is_at(&pair.far, third).await;
    within(pair.near.migrate(FIRST.into())).await.unwrap();
    is_at(&pair.far, FIRST).await;
    let sender = tokio::spawn(send(pair.near.open_uni().await.unwrap()));
    let longest = receive(within(pair.far.accept_uni()).await.unwrap()).await;
    println!("upload from a chosen address: at most {longest:?} without data");
    within(sender).await.unwrap();
    is_at(&pair.far, SECOND).await;
}
