//! A client that begins very many connections at once.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use common::{ANY, endpoints, within};
use squall::{Connecting, Endpoint, TransportConfig};

/// More than a worker begins before the first of them is established, however slow the machine is.
const MANY: usize = 4000;

/// Begins connections while the client's worker is blocked, so that it finds all of them at once.
fn begin(client: &Endpoint, server: std::net::SocketAddr, count: usize) -> Vec<Connecting> {
    let (done, all_are_there) = std::sync::mpsc::channel();
    client.spawn(async move { all_are_there.recv() });
    let begin = |_| client.connect(server, "localhost").unwrap();
    let all = (0..count).map(begin).collect();
    done.send(()).unwrap();
    all
}

/// A server that accepts everything.
fn accept_all(server: &Endpoint) {
    let own = server.clone();
    server.spawn(async move {
        own.serve(|connection| async move { drop(connection.closed().await) })
            .await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_worker_receives_while_it_starts_connections() {
    let (server, client) = endpoints(TransportConfig::default);
    accept_all(&server);
    let mut connecting = begin(&client, server.local_addr().unwrap(), MANY);
    let first = within(poll_fn(|cx| {
        let mut all = connecting.iter_mut();
        all.find_map(|one| match Pin::new(one).poll(cx) {
            Poll::Ready(connected) => Some(Poll::Ready(connected)),
            Poll::Pending => None,
        })
        .unwrap_or(Poll::Pending)
    }))
    .await;
    let begun = client.stats().connections;
    assert!(first.is_ok(), "{first:?}");
    assert!(begun < MANY as u64 / 2, "{begun} had begun");
    // Dropped attempts do not begin at all.
    drop(connecting);
    drop(first);
    within(client.wait_idle()).await;
    let packets = client.stats().udp.datagrams_sent;
    assert!(packets < MANY as u64, "{packets}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_busy_worker_runs_tasks_woken_by_other_threads() {
    const TASKS: usize = 200;
    let (_server, client) = endpoints(TransportConfig::default);
    let silent = std::net::UdpSocket::bind(ANY).unwrap();
    let connecting = begin(&client, silent.local_addr().unwrap(), MANY);
    let tasks: Vec<_> = (0..TASKS).map(|_| client.spawn(async {})).collect();
    for task in tasks {
        within(task).await.unwrap();
    }
    let begun = client.stats().connections;
    assert!(begun < MANY as u64, "all of them had begun");
    drop(connecting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn connections_of_a_dropped_endpoint_still_start() {
    let (server, client) = endpoints(TransportConfig::default);
    accept_all(&server);
    let connecting = begin(&client, server.local_addr().unwrap(), 50);
    drop(client);
    for one in connecting {
        let connected = within(one).await;
        assert!(connected.is_ok(), "{connected:?}");
    }
}
