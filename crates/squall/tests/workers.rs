//! Several workers on one port: which worker serves which connection, unnoticed by applications.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::proxy::{Faults, Proxy};
use common::{ALPN, ANY, Identity, ask, echo, meet, pattern, within};
use squall::rustls::HandshakeKind;
use squall::{AckFrequencyRequest, Builder, Connection, Endpoint, TransportConfig};
use squall_udp::{Options, RecvBatch, SendBatch, Socket};
use squall_wire::{Ecn, Path, Transmit};
use tokio::task::JoinSet;

const WORKERS: usize = 2;

/// A server of two workers that echoes every stream, on the connection's own worker.
fn echo_server(identity: &Identity, build: impl Fn(Builder) -> Builder) -> Endpoint {
    let config = identity.server(ALPN, TransportConfig::default());
    let server = build(Builder::new(ANY).server(config).workers(WORKERS))
        .bind()
        .unwrap();
    let accepting = server.clone();
    tokio::spawn(async move {
        accepting
            .serve(|connection: Connection| async move {
                while let Ok((send, recv)) = connection.accept_bi().await {
                    connection.spawn(echo(send, recv));
                }
            })
            .await;
    });
    server
}

fn client(identity: &Identity) -> Endpoint {
    Builder::new(ANY)
        .client(identity.client(ALPN, TransportConfig::default()))
        .bind()
        .unwrap()
}

/// Connections go to the workers in turn, even if each is used by a task of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_clients_connections_are_distributed_over_its_workers() {
    let identity = Identity::new();
    let server = echo_server(&identity, |builder| builder);
    let client = Builder::new(ANY)
        .client(identity.client(ALPN, TransportConfig::default()))
        .workers(WORKERS)
        .bind()
        .unwrap();
    let address = server.local_addr().unwrap();
    let mut of_worker = [0; WORKERS];
    for seed in 0..10 {
        let own = client.clone();
        let task = client.spawn(async move { own.connect(address, "localhost").unwrap().await });
        let connection = within(task).await.unwrap().unwrap();
        within(ask(&connection, 1000, seed)).await;
        of_worker[connection.worker()] += 1;
    }
    assert_eq!(of_worker, [5; WORKERS]);
}

/// A thousand connections are all served, 400 to 600 by each worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_connections_are_distributed_over_two_workers() {
    let identity = Identity::new();
    let server = echo_server(&identity, |builder| builder);
    let client = client(&identity);
    let address = server.local_addr().unwrap();
    let mut connections = Vec::new();
    for _ in 0..20 {
        let mut fifty = JoinSet::new();
        for _ in 0..50 {
            fifty.spawn(client.connect(address, "localhost").unwrap());
        }
        connections.extend(within(fifty.join_all()).await);
    }
    let connections: Vec<Connection> = connections.into_iter().map(Result::unwrap).collect();
    let mut asking = JoinSet::new();
    for (seed, connection) in connections.iter().cloned().enumerate() {
        asking.spawn(async move { ask(&connection, 3_000, seed as u64).await });
    }
    within(asking.join_all()).await;
    let stats = server.worker_stats();
    let counts: Vec<u64> = stats.iter().map(|worker| worker.connections).collect();
    assert_eq!(counts.iter().sum::<u64>(), 1000);
    assert!(counts.iter().all(|n| (400..=600).contains(n)), "{counts:?}");
    // The kernel steers: only GRO brings datagrams to the wrong worker.
    let runs: u64 = stats.iter().map(|worker| worker.runs_received).sum();
    let forwarded: u64 = stats.iter().map(|worker| worker.runs_forwarded).sum();
    assert!(forwarded * 20 < runs, "{forwarded} of {runs}");
}

/// A client's port changes, and its connection stays where it is.
#[tokio::test(flavor = "multi_thread")]
async fn connections_stay_with_their_worker_when_the_clients_port_changes() {
    let identity = Identity::new();
    let server = echo_server(&identity, |builder| builder);
    let faults = Faults {
        rebind_after: 40,
        ..Faults::default()
    };
    let proxy = Proxy::start(server.local_addr().unwrap(), 1, faults).await;
    for seed in 0..8 {
        let client = client(&identity);
        let connecting = client.connect(proxy.address, "localhost").unwrap();
        let connection = within(connecting).await.unwrap();
        for part in 0..5 {
            within(ask(&connection, 100_000, seed * 8 + part)).await;
        }
        assert!(connection.close_reason().is_none());
        // Packets that the server sent under an id retired since then still belong to the client.
        assert_eq!(client.stats().responses, 0);
    }
    assert!(proxy.counts.rebound.load(Ordering::Relaxed) > 8);
    let stats = server.stats();
    // Resets would be answers to packets that a worker does not know.
    assert_eq!((stats.responses, stats.forwards_dropped), (0, 0));
}

/// Forwards what 100 connections of one client send to the server in bundles that mix datagrams of
/// several connections, as a network card's receive offload makes them from one flow.
struct Merger {
    address: std::net::SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Merger {
    fn start(server: std::net::SocketAddr) -> Self {
        let plain = Options {
            gro: false,
            ..Options::default()
        };
        let front = Socket::bind(ANY, &plain).unwrap();
        let back = Socket::bind(ANY, &plain).unwrap();
        let address = front.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut client = server;
            while !stopped.load(Ordering::Relaxed) {
                // Long enough for several connections to have sent.
                std::thread::sleep(Duration::from_millis(1));
                if let Some(from) = pass(&front, &back, server) {
                    client = from;
                }
                pass(&back, &front, client);
            }
        });
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Forwards what has arrived, neighbours of one size as one bundle. Returns where it came from.
fn pass(from: &Socket, to: &Socket, remote: std::net::SocketAddr) -> Option<std::net::SocketAddr> {
    let mut came_from = None;
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    let mut batch = RecvBatch::new(64, 1 << 16);
    while from.recv(&mut batch).is_ok() {
        for bundle in batch.iter_mut() {
            came_from = Some(bundle.path.remote);
            let each = bundle.bytes.chunks(bundle.segment_size.into());
            datagrams.extend(each.map(<[u8]>::to_vec));
        }
    }
    for bundle in datagrams.chunk_by(|one, next| one.len() == next.len()) {
        for part in bundle.chunks(32) {
            let bytes = part.concat();
            let mut batch = SendBatch::new(1, 1 << 16);
            batch.free_slot().unwrap()[..bytes.len()].copy_from_slice(&bytes);
            batch.push(Transmit {
                path: Path {
                    remote,
                    local: None,
                },
                ecn: Ecn::NotEct,
                segment_size: part[0].len() as u16,
                len: bytes.len(),
            });
            to.send(&mut batch).unwrap();
        }
    }
    came_from
}

/// Bundles that hold datagrams of both workers' connections.
#[tokio::test(flavor = "multi_thread")]
async fn bundles_of_many_connections_are_split_by_worker() {
    let identity = Identity::new();
    let server = echo_server(&identity, |builder| builder);
    let client = client(&identity);
    let merger = Merger::start(server.local_addr().unwrap());
    let mut connecting = JoinSet::new();
    for _ in 0..100 {
        connecting.spawn(client.connect(merger.address, "localhost").unwrap());
    }
    let connections = within(connecting.join_all()).await;
    let mut asking = JoinSet::new();
    for (seed, connection) in connections.into_iter().enumerate() {
        let connection = connection.unwrap();
        asking.spawn(async move {
            for part in 0..6 {
                ask(&connection, 20_000, (seed * 6 + part) as u64).await;
            }
        });
    }
    within(asking.join_all()).await;
    let stats = server.stats();
    assert!(stats.runs_forwarded > 100, "{stats:?}");
    assert_eq!(stats.forwards_dropped, 0);
}

/// Address-validation tokens and session tickets are valid at every worker.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_tickets_are_valid_at_every_worker() {
    let identity = Identity::new();
    let config = identity.server(ALPN, TransportConfig::default());
    let builder = Builder::new(ANY).server(config).workers(WORKERS);
    // A client without a token is sent a Retry.
    let builder = builder.retry_from(0);
    let server = builder.bind().unwrap();
    let client = client(&identity);
    let address = server.local_addr().unwrap();
    let mut last: Option<usize> = None;
    let mut others = 0;
    for attempt in 0..24 {
        let connecting = client.connect(address, "localhost").unwrap();
        let accepting = async {
            let incoming = server.accept().await.unwrap();
            // Retried or with a token of the last connection: an address is never simply trusted.
            assert!(incoming.remote_address_validated());
            let retried = !incoming.may_retry();
            (retried, incoming.await.unwrap())
        };
        let (near, (retried, far)) = within(async { tokio::join!(connecting, accepting) }).await;
        let near = near.unwrap();
        assert_eq!(retried, attempt == 0, "attempt {attempt}");
        let wanted = if attempt == 0 {
            HandshakeKind::Full
        } else {
            HandshakeKind::Resumed
        };
        assert_eq!(near.handshake_kind(), Some(wanted), "attempt {attempt}");
        if last.is_some_and(|last| last != far.worker()) {
            others += 1;
        }
        last = Some(far.worker());
        // Tickets and tokens have arrived once data sent after them has.
        let (mut send, _recv) = far.open_bi().await.unwrap();
        send.write_all(b"!").await.unwrap();
        let (_send, mut recv) = within(near.accept_bi()).await.unwrap();
        within(recv.read_exact(&mut [0])).await.unwrap();
    }
    assert!(others > 0, "every connection came to the same worker");
}

/// Forwards datagrams between a client and a server, and records the destination ids of the short
/// headers that the client sends (RFC 9000 §17.3): the `len` bytes after the first.
async fn watch(
    relay: Arc<tokio::net::UdpSocket>,
    server: std::net::SocketAddr,
    len: usize,
    seen: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
) {
    let mut client = None;
    let mut buffer = vec![0; 65_536];
    loop {
        let (received, from) = relay.recv_from(&mut buffer).await.unwrap();
        let datagram = &buffer[..received];
        let to = if from == server {
            client
        } else {
            if datagram[0] & 0x80 == 0 {
                seen.lock().unwrap().push(datagram[1..=len].to_vec());
            }
            client = Some(from);
            Some(server)
        };
        if let Some(to) = to {
            let _ = relay.send_to(datagram, to).await;
        }
    }
}

// test: draft-ietf-quic-load-balancers §3.4, §7.2
#[tokio::test(flavor = "multi_thread")]
async fn quic_lb_ids_name_the_server_and_the_worker() {
    const WORKERS: u8 = 3;
    let identity = Identity::new();
    let ids = squall::QuicLb::new(2, [0xab, 0xcd], 8);
    let ids = squall::ConnectionIdGenerator::QuicLb(ids);
    let len = ids.len();
    let server = echo_server(&identity, |builder| {
        let builder = builder.workers(WORKERS.into());
        builder.connection_ids(ids.clone())
    });
    let mut missing: Vec<usize> = (0..WORKERS.into()).collect();
    while !missing.is_empty() {
        let relay = tokio::net::UdpSocket::bind(ANY).await.unwrap();
        let address = relay.local_addr().unwrap();
        let seen = Arc::default();
        let at = server.local_addr().unwrap();
        let watching = tokio::spawn(watch(Arc::new(relay), at, len, Arc::clone(&seen)));
        let config = identity.client(ALPN, TransportConfig::default());
        let client = Builder::new(ANY).client(config).gso(false).bind().unwrap();
        let near = within(client.connect(address, "localhost").unwrap()).await;
        let near = near.unwrap();
        let sent = pattern(100_000, 3);
        let (mut send, mut recv) = near.open_bi().await.unwrap();
        let writing = async {
            send.write_all(&sent).await.unwrap();
            send.finish().unwrap();
        };
        let ((), back) = within(async { tokio::join!(writing, recv.read_to_end(200_000)) }).await;
        assert!(back.unwrap() == sent);
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert!(!seen.is_empty());
        let worker = usize::from(squall_core::worker_of(seen[0][0], WORKERS));
        for id in seen {
            assert_eq!((id[0] >> 5, &id[1..3]), (2, &[0xab, 0xcd][..]));
            let named = squall_core::worker_of(id[0], WORKERS);
            assert_eq!(usize::from(named), worker);
        }
        let before = server.worker_stats()[worker].runs_received;
        assert!(before > 0, "worker {worker} has served this client");
        missing.retain(|other| *other != worker);
        watching.abort();
    }
    // The kernel found each worker by itself.
    assert_eq!(server.stats().runs_forwarded, 0);
    let unfit = squall::QuicLb::new(2, [0xab], 8).encode_length(true);
    let unfit = squall::ConnectionIdGenerator::QuicLb(unfit);
    let refused = Builder::new(ANY).workers(2).connection_ids(unfit).bind();
    assert!(refused.unwrap_err().to_string().contains("encode_length"));
}

/// This many connections, both ends of each.
async fn connect(
    client: &Endpoint,
    server: &Endpoint,
    count: usize,
) -> Vec<(Connection, Connection)> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let connecting = client.connect(server.local_addr().unwrap(), "localhost");
        let (near, far) = meet(connecting.unwrap(), server).await;
        pairs.push((near.unwrap(), far.unwrap()));
    }
    pairs
}

#[tokio::test]
async fn connections_to_one_peer_share_messages_but_not_across_its_workers() {
    const CONNECTIONS: usize = 40;
    let identity = Identity::new();
    let server = Builder::new(ANY)
        .server(identity.server(ALPN, TransportConfig::default()))
        .bind()
        .unwrap();
    let client = Builder::new(ANY)
        .client(identity.client(ALPN, TransportConfig::default()))
        .workers(2)
        .bind()
        .unwrap();
    let pairs = connect(&client, &server, CONNECTIONS).await;
    let datagram = Bytes::from(vec![7; 500]);
    // The client's workers take connections in turn: group those of one worker.
    let (one, other) = (pairs.iter().step_by(2), pairs.iter().skip(1).step_by(2));
    let senders: Vec<Connection> = one.chain(other).map(|(_, far)| far.clone()).collect();
    let (before, forwarded) = (server.stats().udp, client.stats().runs_forwarded);
    for _ in 0..20 {
        let (senders, datagram) = (senders.clone(), datagram.clone());
        let sent = datagram.clone();
        // On the server's worker, which sends nothing until this is done.
        let sending = pairs[0].1.spawn(async move {
            for sender in &senders {
                sender.send_datagram(datagram.clone()).unwrap();
            }
        });
        within(sending).await.unwrap();
        for (near, _) in &pairs {
            assert_eq!(within(near.read_datagram()).await.unwrap(), sent);
        }
    }
    let after = server.stats().udp;
    let datagrams = after.datagrams_sent - before.datagrams_sent;
    let messages = after.messages_sent - before.messages_sent;
    // Each connection has one datagram to send at a time.
    assert!(
        messages < datagrams / 4,
        "{messages} messages, {datagrams} datagrams"
    );
    assert_eq!(client.stats().runs_forwarded, forwarded);
}

#[tokio::test]
async fn acknowledgements_of_concurrent_connections_have_one_length() {
    const CONNECTIONS: usize = 32;
    /// A header of 11 bytes, 22 of ACK, and the tag.
    const LENGTH: u64 = 49;
    let identity = Identity::new();
    // RFC 9000 §13.2.2: two packets are enough for an acknowledgement.
    let transport = || TransportConfig::default().ack_frequency(AckFrequencyRequest::Nothing);
    let server = Builder::new(ANY)
        .server(identity.server(ALPN, transport()))
        .bind()
        .unwrap();
    let client = Builder::new(ANY)
        .client(identity.client(ALPN, transport()))
        .bind()
        .unwrap();
    let pairs = connect(&client, &server, CONNECTIONS).await;
    let sent = || -> Vec<_> {
        let stats = pairs.iter().map(|(near, _)| near.stats());
        stats
            .map(|one| (one.datagrams_sent, one.bytes_sent))
            .collect()
    };
    // On a busy machine a round outlasts the rate's validity.
    for _ in 0..500 {
        let before = sent();
        let senders: Vec<Connection> = pairs.iter().map(|(_, far)| far.clone()).collect();
        let sending = pairs[0].1.spawn(async move {
            for sender in &senders {
                for _ in 0..2 {
                    sender.send_datagram(Bytes::from(vec![7; 1000])).unwrap();
                }
            }
        });
        within(sending).await.unwrap();
        for (near, _) in &pairs {
            for _ in 0..2 {
                within(near.read_datagram()).await.unwrap();
            }
        }
        let after = sent();
        let like_all = before.iter().zip(&after).filter(|(before, after)| {
            let datagrams = after.0 - before.0;
            datagrams > 0 && after.1 - before.1 == datagrams * LENGTH
        });
        if like_all.count() > CONNECTIONS / 2 {
            return;
        }
    }
    panic!("acknowledgements of many lengths");
}
