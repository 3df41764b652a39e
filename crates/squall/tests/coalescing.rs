//! Bulk data that collects in the socket, over a link that is slower than its ends: in a network
//! namespace, over real sockets.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{ALPN, Identity, Pair, namespace, within};
use squall::{Builder, Bytes, CongestionAlgorithm, TransportConfig};

/// A link on which bundles are most of a millisecond apart, with a queue for round trips many times
/// as long.
const SETUP: &str = "tc qdisc add dev lo root tbf rate 700mbit burst 256kb latency 50ms";
/// Half a second of data.
const LEN: usize = 40_000_000;

async fn pair(longest: Duration) -> Pair {
    let identity = Identity::new();
    // Without HyStart++, and with enough credit, the queue fills up, so round trips are long.
    let transport = || {
        TransportConfig::default()
            .congestion(CongestionAlgorithm::NewReno)
            .initial_stream_window(8 << 20)
            .stream_receive_window(8 << 20)
            .initial_window(8 << 20)
            .receive_window(8 << 20)
            .send_window(16 << 20)
            .max_udp_payload(1472)
    };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Builder::new(any)
        .server(identity.server(ALPN, transport()))
        .bind()
        .unwrap();
    let client = Builder::new(any)
        .client(identity.client(ALPN, transport()))
        .receive_coalescing(longest)
        .bind()
        .unwrap();
    let connecting = client
        .connect(server.local_addr().unwrap(), "localhost")
        .unwrap();
    let (near, far) = common::meet(connecting, &server).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    Pair {
        client,
        server,
        near,
        far,
    }
}

/// The client receives bulk data.
async fn download(pair: &Pair) {
    let mut send = within(pair.far.open_uni()).await.unwrap();
    let sender = tokio::spawn(async move {
        let chunk = Bytes::from(vec![7; 100_000]);
        for _ in 0..LEN / chunk.len() {
            send.write_chunk(chunk.clone()).await.unwrap();
        }
        send.finish().unwrap();
        send
    });
    let mut recv = within(pair.near.accept_uni()).await.unwrap();
    let mut received = 0;
    while let Some(chunk) = within(recv.read_chunk(usize::MAX)).await.unwrap() {
        received += chunk.len();
    }
    assert_eq!(received, LEN);
    within(sender).await.unwrap();
}

/// The client sends a small message and gets it back.
async fn echo(pair: &Pair) {
    let (mut send, mut recv) = within(pair.near.open_bi()).await.unwrap();
    send.write_all(b"small").await.unwrap();
    send.finish().unwrap();
    let (mut answer, mut question) = within(pair.far.accept_bi()).await.unwrap();
    let message = within(question.read_to_end(10)).await.unwrap();
    answer.write_all(&message).await.unwrap();
    answer.finish().unwrap();
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"small"[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_receiver_of_bulk_data_naps() {
    if !namespace::inside("only_a_receiver_of_bulk_data_naps", SETUP) {
        return;
    }
    let napping = pair(Duration::from_millis(2)).await;
    // A receiver that is denied its CPU finds more than it can take and never sleeps.
    for _ in 0..10 {
        download(&napping).await;
        if napping.client.stats().naps > 0 {
            break;
        }
    }
    let naps = napping.client.stats().naps;
    println!("{naps} naps");
    assert!(naps > 0);
    // A sender receives acknowledgements. Small messages are received at once, except the first
    // ones after bulk data.
    assert_eq!(napping.server.stats().naps, 0);
    for _ in 0..10 {
        echo(&napping).await;
    }
    let naps = napping.client.stats().naps;
    for _ in 0..100 {
        echo(&napping).await;
    }
    assert_eq!(napping.client.stats().naps, naps);

    let awake = pair(Duration::ZERO).await;
    download(&awake).await;
    assert_eq!(awake.client.stats().naps, 0);
}
