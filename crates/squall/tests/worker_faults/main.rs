//! Faults that the operating system may cause in a worker: the endpoint lives on, or reports why
//! not.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::fs::File;
use std::future::Future;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Wake};
use std::time::Duration;

use common::{ALPN, ANY, Identity, Pair, namespace, pattern, within};
use squall::rustls::server::{ClientHello, ResolvesServerCert};
use squall::rustls::sign::CertifiedKey;
use squall::{
    Builder, Bytes, CloseReason, Connection, Endpoint, ServerConfig, TokenStore, TransportConfig,
    WorkerEndReason,
};
use squall_udp::{Options, SendBatch, Socket};
use squall_wire::{Ecn, Path, Transmit};

const EAGAIN: i32 = 11;
const EBADF: i32 = 9;
const EACCES: i32 = 13;
const ENOKEY: i32 = 126;

fn server(identity: &Identity, workers: usize) -> Endpoint {
    let config = identity.server(ALPN, TransportConfig::default());
    let builder = Builder::new(ANY).server(config).workers(workers);
    builder.bind().unwrap()
}

fn client(identity: &Identity) -> Endpoint {
    let config = identity.client(ALPN, TransportConfig::default());
    Builder::new(ANY).client(config).bind().unwrap()
}

/// Both ends of a new connection. Unfinished attempts of other clients, left behind by tests, are
/// skipped.
async fn connect(client: &Endpoint, server: &Endpoint) -> (Connection, Connection) {
    let connecting = client.connect(server.local_addr().unwrap(), "localhost");
    let accepting = async {
        loop {
            let incoming = server.accept().await.unwrap();
            if incoming.remote_address().port() == client.local_addr().unwrap().port() {
                return incoming.await;
            }
        }
    };
    let (near, far) = within(async { tokio::join!(connecting.unwrap(), accepting) }).await;
    (near.unwrap(), far.unwrap())
}

/// Sends a message of a few packets and waits until the peer has acknowledged it.
async fn deliver(from: &Connection, to: &Connection) {
    let bytes = pattern(5_000, 1);
    let mut send = within(from.open_uni()).await.unwrap();
    within(send.write_all(&bytes)).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(to.accept_uni()).await.unwrap();
    assert!(within(recv.read_to_end(bytes.len())).await.unwrap() == bytes);
    assert_eq!(within(send.stopped()).await, Ok(None));
}

// test: SECURITY.md row 50: an error that no list knows costs one datagram
#[tokio::test(flavor = "multi_thread")]
async fn no_errno_of_a_send_ends_a_worker_while_there_is_a_socket() {
    let pair = Pair::new().await;
    // 133 is the last error number of Linux; EINTR and EAGAIN concern the call, not the datagram.
    let odd = (1..=133).filter(|errno| ![4, EAGAIN, EBADF, 14, 88].contains(errno));
    for errno in odd.clone() {
        pair.server.inject_send_error(errno);
        deliver(&pair.far, &pair.near).await;
    }
    let stats = pair.server.stats();
    assert_eq!(stats.worker_ends, 0);
    let udp = stats.udp;
    let lost = udp.send_errors + udp.send_too_large + udp.gso_fallbacks;
    assert_eq!(lost, odd.count() as u64, "{udp:?}");
    assert!(udp.errors.of(EACCES).sends > 0, "{udp:?}");
}

// test: SECURITY.md row 50: receiving that fails is retried now and then, and everything else goes
// on
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_receive_sends_and_does_not_spin() {
    for errno in [ENOKEY, EACCES] {
        let pair = Pair::new().await;
        deliver(&pair.far, &pair.near).await;
        let before = pair.server.stats();
        pair.server.inject_recv_error(errno);
        // Datagrams, so that nothing sent needs an acknowledgement.
        let received = async {
            for _ in 0..20 {
                pair.far.send_datagram(Bytes::from_static(b"on")).unwrap();
                // Arriving data keeps the socket readable all the time.
                pair.near.send_datagram(Bytes::from_static(b"in")).unwrap();
                pair.near.read_datagram().await.unwrap();
            }
        };
        within(received).await;
        // Failures are 1, 2, 4, ... ms apart: 2^k ms after the first there were k + 2, give or take
        // a timer's delay.
        within(async {
            while pair.server.stats().udp.errors.of(errno).receives < 7 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let began = std::time::Instant::now();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let after = pair.server.stats();
        // An attempt skips errors that look like ICMP's up to 16 times.
        let attempts = after.udp.errors.of(errno).receives - before.udp.errors.of(errno).receives;
        let elapsed = began.elapsed().as_millis() as u64;
        let most = 16 * (12 + elapsed / 1000 + 7);
        assert!(attempts <= most, "{attempts} attempts in {elapsed} ms");
        assert!(
            after.turns - before.turns < 2_000,
            "{} turns",
            after.turns - before.turns
        );
        pair.server.inject_recv_error(0);
        deliver(&pair.near, &pair.far).await;
        deliver(&pair.far, &pair.near).await;
        assert_eq!(pair.server.stats().worker_ends, 0);
    }
}

// test: SECURITY.md row 50: a hook or a route that answers EAGAIN does not hold up everything
// behind its datagram
#[tokio::test(flavor = "multi_thread")]
async fn a_datagram_that_would_block_for_ever_is_given_up() {
    let pair = Pair::new().await;
    deliver(&pair.far, &pair.near).await;
    let before = pair.server.stats();
    let mut send = within(pair.far.open_uni()).await.unwrap();
    within(send.write_all(b"late")).await.unwrap();
    send.finish().unwrap();
    let refused = || {
        let stats = pair.server.stats();
        (
            stats.udp.errors.of(EAGAIN).sends,
            stats.turns - before.turns,
        )
    };
    // Every attempt to send fails, although the socket is empty.
    within(async {
        while refused().0 < 3 {
            for _ in 0..10_000 {
                pair.server.inject_send_error(EAGAIN);
            }
            let _ = pair.far.send_datagram(Bytes::from_static(b"more"));
            tokio::task::yield_now().await;
        }
    })
    .await;
    pair.server.inject_send_error(0);
    let mut recv = within(pair.near.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"late");
    deliver(&pair.far, &pair.near).await;
    assert_eq!(pair.server.stats().worker_ends, 0);
}

/// Breaks only the socket of the worker that `connection` lives on.
async fn break_worker(server: &Endpoint, connection: &Connection) {
    server.inject_worker_send_error(connection.worker(), EBADF);
    // The next send hits the error.
    if let Ok(mut send) = connection.open_uni().await {
        let _ = send.write_all(b"x").await;
    }
    within(connection.closed()).await;
}

/// Connections on each of the server's workers.
async fn on_each(
    client: &Endpoint,
    server: &Endpoint,
    workers: usize,
) -> Vec<(Connection, Connection)> {
    let mut found: Vec<Option<(Connection, Connection)>> = vec![None; workers];
    while found.iter().any(Option::is_none) {
        let (near, far) = connect(client, server).await;
        let worker = far.worker();
        found[worker] = Some((near, far));
    }
    found.into_iter().flatten().collect()
}

/// Checks that each worker's datagrams arrive at its own socket.
async fn are_steered(server: &Endpoint, connections: &[(Connection, Connection)]) {
    let forwarded = || server.stats().runs_forwarded;
    // Datagrams that waited in sockets' queues while a worker was down may have to be forwarded.
    for (near, far) in connections {
        deliver(near, far).await;
    }
    let before = forwarded();
    for (near, far) in connections {
        deliver(near, far).await;
        deliver(far, near).await;
    }
    assert_eq!(forwarded(), before);
}

// test: SECURITY.md row 50: the other workers go on, the application is told, and the worker can be
// had again
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_outlives_a_worker_and_gets_it_back() {
    const WORKERS: usize = 3;
    let identity = Identity::new();
    // Single datagrams: the kernel steers a bundle by its first one, whatever else it holds.
    let single = |builder: Builder| builder.gso(false).gro(false).bind().unwrap();
    let config = identity.server(ALPN, TransportConfig::default());
    let server = single(Builder::new(ANY).server(config).workers(WORKERS));
    let config = identity.client(ALPN, TransportConfig::default());
    let client = single(Builder::new(ANY).client(config));
    let connections = on_each(&client, &server, WORKERS).await;
    assert!(server.restart_worker(1).is_err(), "it runs");
    assert!(
        server.restart_worker(WORKERS).is_err(),
        "there is no such worker"
    );
    let waiting = tokio::spawn({
        let server = server.clone();
        async move { server.worker_ended().await }
    });
    break_worker(&server, &connections[1].1).await;
    let end = within(waiting).await.unwrap().unwrap();
    assert_eq!((end.worker, end.connections >= 1), (1, true));
    let WorkerEndReason::Socket(error) = &end.reason else {
        panic!("{end}");
    };
    assert_eq!(error.raw_os_error(), Some(EBADF));
    assert_eq!(server.worker_stats()[1].worker_ends, 1);
    // Its connections report why they ended; the others did not notice.
    let CloseReason::Transport {
        reason,
        remote: false,
        ..
    } = connections[1].1.close_reason().unwrap()
    else {
        panic!("{:?}", connections[1].1.close_reason());
    };
    assert!(reason.contains("the socket is gone"), "{reason}");
    for other in [0, 2] {
        let (near, far) = &connections[other];
        deliver(near, far).await;
        deliver(far, near).await;
    }
    // The peer of an ended connection is told by the worker that stands in.
    if let Ok(mut send) = connections[1].0.open_uni().await {
        let _ = send.write_all(b"anybody?").await;
    }
    assert_eq!(
        within(connections[1].0.closed()).await,
        CloseReason::Reset,
        "not an idle timeout"
    );
    // Every new client is served, whatever its id: a third of the first ids name the worker that is
    // gone.
    for _ in 0..40 {
        let (near, far) = connect(&client, &server).await;
        assert_ne!(far.worker(), 1);
        deliver(&near, &far).await;
    }
    assert!(server.rebind(ANY).is_err(), "not with a worker missing");

    server.restart_worker(1).unwrap();
    let again = on_each(&client, &server, WORKERS).await;
    are_steered(&server, &again).await;
    // It may happen again, to another one.
    break_worker(&server, &again[0].1).await;
    assert_eq!(within(server.worker_ended()).await.unwrap().worker, 0);
    server.restart_worker(0).unwrap();
    are_steered(&server, &on_each(&client, &server, WORKERS).await).await;
    server.rebind(ANY).unwrap();
    connect(&client, &server).await;
    server.close(0, b"");
    assert!(within(server.worker_ended()).await.is_none());
    assert!(server.restart_worker(0).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_handled_on_their_worker_also_after_a_restart() {
    const WORKERS: usize = 2;
    let identity = Identity::new();
    let (server, client) = (server(&identity, WORKERS), client(&identity));
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let serving = server.clone();
    let task = tokio::spawn(async move {
        let handler = move |incoming: squall::Incoming| {
            let (tell, here) = (tell.clone(), std::thread::current());
            let decided_on = here.name().unwrap_or_default().to_owned();
            async move {
                let connection = incoming.await.unwrap();
                let here = std::thread::current();
                let names = [decided_on, here.name().unwrap_or_default().to_owned()];
                tell.send((names, connection)).unwrap();
            }
        };
        serving.serve_incoming(handler).await;
    });
    for round in 0..3 {
        let mut connections: [Option<(Connection, Connection)>; WORKERS] = Default::default();
        let mut count = 0;
        while count < 10 || connections.iter().any(Option::is_none) {
            count += 1;
            let connecting = client.connect(server.local_addr().unwrap(), "localhost");
            let near = within(connecting.unwrap()).await.unwrap();
            let (names, far) = within(told.recv()).await.unwrap();
            let worker = far.worker();
            let own = format!("squall-worker-{worker}");
            assert_eq!(names[1], own, "the handler runs there");
            // The first attempt at a worker that has just begun may find no task there.
            if connections[worker].replace((near, far)).is_some() {
                assert_eq!(names[0], own, "round {round}");
            }
        }
        let (_, far) = connections[round % WORKERS].as_ref().unwrap();
        break_worker(&server, far).await;
        let end = within(server.worker_ended()).await.unwrap();
        server.restart_worker(end.worker).unwrap();
    }
    server.close(0, b"");
    within(task).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_of_one_worker_says_so_and_starts_anew_on_its_port() {
    let identity = Identity::new();
    let (server, client, other) = (server(&identity, 1), client(&identity), client(&identity));
    let address = server.local_addr().unwrap();
    let (near, far) = connect(&client, &server).await;
    // Neither an attempt nor a task that waits for one outlives it.
    let stale = other.connect(address, "localhost").unwrap();
    let attempt = within(server.accept()).await.unwrap();
    break_worker(&server, &far).await;
    assert!(within(server.accept()).await.is_none());
    let end = within(server.worker_ended()).await.unwrap();
    assert_eq!((end.worker, end.connections), (0, 1));
    within(server.wait_idle()).await;

    server.restart_worker(0).unwrap();
    assert_eq!(server.local_addr().unwrap(), address);
    assert!(
        within(attempt.accept()).await.is_err(),
        "of an earlier life"
    );
    drop(stale);
    // Packets from the peer of the old connection are answered with a reset.
    if let Ok(mut send) = near.open_uni().await {
        let _ = send.write_all(b"anybody?").await;
    }
    assert_eq!(within(near.closed()).await, CloseReason::Reset);
    let (near, far) = connect(&client, &server).await;
    deliver(&near, &far).await;
    server.close(0, b"");
    drop((near, far));
    within(server.wait_idle()).await;
}

/// A faulty certificate resolver.
#[derive(Debug)]
struct Panics {
    armed: AtomicBool,
    inner: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Panics {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        assert!(
            !self.armed.swap(false, Ordering::Relaxed),
            "a defect in the resolver"
        );
        Some(Arc::clone(&self.inner))
    }
}

/// A server whose resolver panics once it is armed.
fn with_resolver(identity: &Identity, workers: usize) -> (Endpoint, Arc<Panics>) {
    let (chain, key) = identity.chain_and_key();
    let provider = squall::provider();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let resolver = Arc::new(Panics {
        armed: AtomicBool::new(false),
        inner: Arc::new(CertifiedKey::new(chain, key)),
    });
    let config = identity.server(ALPN, TransportConfig::default());
    let mut tls = squall::rustls::ServerConfig::clone(&config.tls);
    tls.cert_resolver = Arc::clone(&resolver) as Arc<dyn ResolvesServerCert>;
    let server = Builder::new(ANY).server(ServerConfig::new(tls));
    (server.workers(workers).bind().unwrap(), resolver)
}

// test: SECURITY.md row 50: a panic in a TLS callback costs one handshake
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_tls_callback_costs_one_handshake() {
    let identity = Identity::new();
    let (server, resolver) = with_resolver(&identity, 1);
    let client = client(&identity);
    let (near, far) = connect(&client, &server).await;
    resolver.armed.store(true, Ordering::Relaxed);
    let connecting = client.connect(server.local_addr().unwrap(), "localhost");
    let (at_client, at_server) = common::meet(connecting.unwrap(), &server).await;
    for (reason, closed_by) in [(at_client, "the peer"), (at_server, "this end")] {
        let reason = reason.unwrap_err().to_string();
        assert!(reason.contains("alert 80"), "{reason}");
        assert!(reason.contains(closed_by), "{reason}");
        assert!(reason.contains("callback"), "{reason}");
        // The peer is not shown what went wrong here.
        assert!(!reason.contains("defect"), "{reason}");
    }
    deliver(&near, &far).await;
    connect(&client, &server).await;
    assert_eq!(server.stats().worker_ends, 0);
}

/// A store whose methods panic.
#[derive(Debug)]
struct BadStore;

impl TokenStore for BadStore {
    fn insert(&self, _: &str, _: u32, _: &[u8]) {
        panic!("a defect in the store");
    }

    fn take(&self, _: &str, _: u32) -> Option<Vec<u8>> {
        panic!("a defect in the store");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_a_client_s_callbacks_costs_no_other_connection() {
    let identity = Identity::new();
    let (server, _) = with_resolver(&identity, 1);
    let address = server.local_addr().unwrap();
    let client = client(&identity);
    let config = identity.client(ALPN, TransportConfig::default());
    let bad_store = config.clone().token_store(Arc::new(BadStore));
    let connecting = client.connect_with(bad_store, address, "localhost");
    let (near, far) = common::meet(connecting.unwrap(), &server).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    // The server's NEW_TOKEN frames have arrived.
    deliver(&far, &near).await;
    let bad_id = config.original_destination_id(|| panic!("a defect in the closure"));
    let refused = within(client.connect_with(bad_id, address, "localhost").unwrap()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("original_destination_id"), "{refused}");
    deliver(&near, &far).await;
    assert_eq!(client.stats().worker_ends, 0);
}

/// Polls a future with a waker that panics when it is woken.
struct Wakes;

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        panic!("a defect in the waker");
    }
}

// test: SECURITY.md row 50: a panic on a worker's thread ends one worker, and is reported
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_callback_is_the_end_of_a_worker_and_not_of_the_endpoint() {
    const WORKERS: usize = 2;
    let identity = Identity::new();
    let (server, _) = with_resolver(&identity, WORKERS);
    let client = client(&identity);
    let connections = on_each(&client, &server, WORKERS).await;
    let (near, far) = &connections[0];
    let mut waits = std::pin::pin!(far.accept_uni());
    let waker = Arc::new(Wakes).into();
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let mut send = within(near.open_uni()).await.unwrap();
    send.write_all(b"wakes it").await.unwrap();
    let end = within(server.worker_ended()).await.unwrap();
    let WorkerEndReason::Panic(message) = &end.reason else {
        panic!("{end}");
    };
    assert!(message.contains("a defect in the waker"), "{message}");
    let dead = end.worker;
    assert_eq!(dead, far.worker());
    let reason = within(connections[dead].1.closed()).await;
    assert!(format!("{reason:?}").contains("panicked"), "{reason:?}");
    let (near, far) = &connections[1 - dead];
    deliver(near, far).await;
    server.restart_worker(dead).unwrap();
    on_each(&client, &server, WORKERS).await;
}

/// Collects warnings and errors of all tests of this process, each with its fields in one string.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl Warnings {
    /// From here on, warnings are collected.
    fn keep() {
        static SET: Once = Once::new();
        SET.call_once(|| tracing::subscriber::set_global_default(&WARNINGS).unwrap());
    }

    /// The warnings that mention this.
    fn naming(what: &str) -> Vec<String> {
        let all = WARNINGS.0.lock().unwrap();
        all.iter()
            .filter(|text| text.contains(what))
            .cloned()
            .collect()
    }
}

impl tracing::Subscriber for &'static Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_sends_are_warned_about_once_a_minute() {
    Warnings::keep();
    let pair = Pair::new().await;
    let local = format!("local={} ", pair.server.local_addr().unwrap());
    // A firewall's refusal is not unusual.
    for (errno, warnings) in [(EACCES, 0), (ENOKEY, 1), (ENOKEY, 1), (89, 1)] {
        pair.server.inject_send_error(errno);
        deliver(&pair.far, &pair.near).await;
        assert_eq!(Warnings::naming(&local).len(), warnings, "errno {errno}");
    }
    let warning = Warnings::naming(&local).remove(0);
    assert!(
        warning.contains("lost=1 ") && warning.contains("os error 126"),
        "{warning}"
    );
    assert_eq!(pair.server.stats().udp.send_errors_unknown, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn qlogs_that_cannot_be_opened_are_counted_and_reported_once() {
    Warnings::keep();
    let folder = std::env::temp_dir().join(format!("squall-no-qlog-{}", std::process::id()));
    let identity = Identity::new();
    let build = |builder: Builder| {
        let builder = builder.qlog_dir(folder.clone());
        builder.bind().unwrap()
    };
    let config = identity.server(ALPN, TransportConfig::default());
    let server = build(Builder::new(ANY).server(config));
    let client = client(&identity);
    let (near, far) = connect(&client, &server).await;
    assert_eq!(server.stats().qlogs_failed, 0);
    std::fs::remove_dir_all(&folder).unwrap();
    for failed in 1..=3 {
        let (near, far) = connect(&client, &server).await;
        assert_eq!(server.stats().qlogs_failed, failed);
        deliver(&near, &far).await;
    }
    let folder = folder.to_str().unwrap();
    assert_eq!(Warnings::naming(folder).len(), 1);
    deliver(&near, &far).await;
}

/// The kernel's treatment of datagrams to 127.0.0.5: 20 Mbit/s, with a queue longer than a small
/// send buffer.
const SHAPED: &str = "
    ip link set lo mtu 1500
    tc qdisc add dev lo root handle 1: htb
    tc class add dev lo parent 1: classid 1:5 htb rate 20mbit burst 32kb
    tc qdisc add dev lo parent 1:5 bfifo limit 4mb
    tc filter add dev lo parent 1: protocol ip u32 match ip dst 127.0.0.5/32 flowid 1:5
";

/// A server with a small send buffer, and a client behind the shaped link that has asked for
/// endless data.
struct Shaped {
    server: Endpoint,
    _client: Endpoint,
    near: Connection,
    far: Connection,
}

impl Shaped {
    async fn new() -> Self {
        let identity = Identity::new();
        let config = identity.server(ALPN, TransportConfig::default());
        let builder = Builder::new(ANY).server(config).send_buffer(64 << 10);
        let server = builder.bind().unwrap();
        let config = identity.client(ALPN, TransportConfig::default());
        let behind = "127.0.0.5:0".parse().unwrap();
        let client = Builder::new(behind).client(config).bind().unwrap();
        let (near, far) = connect(&client, &server).await;
        let mut send = far.open_uni().await.unwrap();
        tokio::spawn(async move {
            let chunk = Bytes::from(vec![7; 1 << 20]);
            while send.write_chunk(chunk.clone()).await.is_ok() {}
        });
        let mut recv = within(near.accept_uni()).await.unwrap();
        tokio::spawn(async move { while let Ok(Some(_)) = recv.read_chunk(usize::MAX).await {} });
        Self {
            server,
            _client: client,
            near,
            far,
        }
    }

    fn sent(&self) -> u64 {
        self.server.stats().udp.datagrams_sent
    }

    /// Waits until this many more datagrams have been sent.
    async fn send_more(&self, datagrams: u64) {
        let before = self.sent();
        within(async {
            while self.sent() - before < datagrams {
                assert_eq!(self.far.close_reason(), None);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

// test: SECURITY.md row 50: a full socket, and no descriptor left in the process
#[tokio::test(flavor = "multi_thread")]
async fn a_full_socket_needs_no_new_descriptor() {
    let name = "a_full_socket_needs_no_new_descriptor";
    let setup = format!("{SHAPED}\nulimit -n 64");
    if !namespace::inside(name, &setup) {
        return;
    }
    let shaped = Shaped::new().await;
    shaped.send_more(100).await;
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    assert!(!files.is_empty() && files.len() < 64);
    let before = shaped.server.stats().udp;
    // Two seconds of the link: it has been full many times.
    shaped.send_more(3_000).await;
    let after = shaped.server.stats().udp;
    let blocked = after.send_blocked - before.send_blocked;
    assert!(blocked > 10, "{blocked}");
    // When the system reports room, there is room.
    assert_eq!(after.errors.of(EAGAIN).sends, 0);
    assert_eq!(shaped.server.stats().worker_ends, 0);
    assert_eq!(
        (shaped.near.close_reason(), shaped.far.close_reason()),
        (None, None)
    );
}

/// Keeps the server receiving Initials that do not open, but never so many that the kernel drops
/// others' datagrams.
fn flood(server: &Endpoint, stop: &AtomicBool) {
    const WAITING: u64 = 600;
    let socket = Socket::bind(ANY, &Options::default()).unwrap();
    let received = || server.stats().udp.datagrams_received;
    let (path, before) = (
        Path {
            remote: server.local_addr().unwrap(),
            local: None,
        },
        received(),
    );
    let mut n = 0_u64;
    let mut batch = SendBatch::new(4, 12_000);
    while !stop.load(Ordering::Relaxed) {
        if socket.stats().datagrams_sent > received() - before + WAITING {
            std::thread::yield_now();
            continue;
        }
        while let Some(slot) = batch.free_slot() {
            for initial in slot[..12_000].chunks_exact_mut(1200) {
                n += 1;
                initial.fill(0x55);
                // A version 1 Initial with a unique destination id, no source id, no token, and
                // 1180 bytes that do not open.
                initial[..7].copy_from_slice(&[0xc0, 0, 0, 0, 1, 8, 0]);
                initial[6..14].copy_from_slice(&n.to_be_bytes());
                initial[14..18].copy_from_slice(&[0, 0, 0x44, 0x9e]);
            }
            batch.push(Transmit {
                path,
                ecn: Ecn::NotEct,
                segment_size: 1200,
                len: 12_000,
            });
        }
        let _ = socket.send(&mut batch);
    }
}

// test: SECURITY.md row 50: a socket that was full is tried again, however much there is to receive
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_keep_a_full_socket_from_being_tried_again() {
    let name = "a_flood_does_not_keep_a_full_socket_from_being_tried_again";
    if !namespace::inside(name, SHAPED) {
        return;
    }
    let shaped = Shaped::new().await;
    shaped.send_more(500).await;
    let stop = Arc::new(AtomicBool::new(false));
    let flooder = std::thread::spawn({
        let (server, stop) = (shaped.server.clone(), Arc::clone(&stop));
        move || flood(&server, &stop)
    });
    // From here on, there is always something to receive.
    let received = || shaped.server.stats().udp.datagrams_received;
    let before = received();
    within(async {
        while received() - before < 20_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let before = shaped.server.stats();
    shaped.send_more(2_000).await;
    let after = shaped.server.stats();
    let turns = after.turns - before.turns;
    let blocked = after.udp.send_blocked - before.udp.send_blocked;
    // In most turns, of which there are 200 to 2,000. When it was left alone until the system
    // reported room, which it does to a sleeping worker, it was tried two dozen times.
    assert!(blocked > turns / 4, "{blocked} attempts in {turns} turns");
    stop.store(true, Ordering::Relaxed);
    flooder.join().unwrap();
    shaped.send_more(100).await;
}

// test: SECURITY.md row 50: routes that refuse, of the kernel's own making
#[tokio::test(flavor = "multi_thread")]
async fn routes_that_refuse_cost_only_their_own_datagrams() {
    let name = "routes_that_refuse_cost_only_their_own_datagrams";
    let setup = "
        ip route add blackhole 10.2.0.0/16
        ip route add prohibit 10.3.0.0/16
        ip route add unreachable 10.4.0.0/16
        ip route add throw 10.5.0.0/16
    ";
    if !namespace::inside(name, setup) {
        return;
    }
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let any = "0.0.0.0:0".parse().unwrap();
    let client = Builder::new(any).client(config).bind().unwrap();
    let server = server(&identity, 1);
    let (near, far) = connect(&client, &server).await;
    let mut lost = Vec::new();
    for net in 2..=5 {
        let nowhere = ([10, net, 0, 1], 4433).into();
        lost.push(client.connect(nowhere, "localhost").unwrap());
    }
    deliver(&near, &far).await;
    within(async {
        // EINVAL, EACCES, EHOSTUNREACH, ENETUNREACH.
        for errno in [22, EACCES, 113, 101] {
            while client.stats().udp.errors.of(errno).sends == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    })
    .await;
    deliver(&far, &near).await;
    assert_eq!(client.stats().worker_ends, 0);
}

/// As with TCP, a client without a route to the server need not wait for a timeout. A connection
/// that exists waits: the route may come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_route_is_told_at_once() {
    let name = "a_client_without_a_route_is_told_at_once";
    let setup = "
        ip link add near type veth peer name far
        ip addr add 192.0.2.5/24 dev near
        ip link set near up
        ip route add unreachable 10.4.0.0/16
    ";
    if !namespace::inside(name, setup) {
        return;
    }
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let any = "0.0.0.0:0".parse().unwrap();
    let client = Builder::new(any).client(config.clone()).bind().unwrap();
    let of_loopback = Builder::new(ANY).client(config).bind().unwrap();
    let server = server(&identity, 1);
    let (near, far) = connect(&client, &server).await;
    for (client, to, why) in [
        (&client, "198.51.100.1:443", ErrorKind::NetworkUnreachable),
        (&client, "10.4.0.1:443", ErrorKind::HostUnreachable),
        (&of_loopback, "192.0.2.1:443", ErrorKind::InvalidInput),
    ] {
        let addresses = [to.parse().unwrap(), "198.51.100.77:443".parse().unwrap()];
        let [first, second] = addresses.map(|to| client.connect(to, "localhost").unwrap());
        let (first, second) = within(async { tokio::join!(first, second) }).await;
        assert_eq!(first.err(), Some(CloseReason::Unreachable(why)));
        let second = second.err();
        assert!(
            matches!(second, Some(CloseReason::Unreachable(_))),
            "{second:?}"
        );
    }
    assert_eq!(client.stats().connections, 1);
    let loopback = |state: &str| {
        let args = ["link", "set", "lo", state];
        let set = std::process::Command::new("ip").args(args).status();
        assert!(set.unwrap().success());
    };
    loopback("down");
    let sent = |near: &Connection| near.stats().datagrams_sent;
    let before = sent(&near);
    let mut late = near.open_uni().await.unwrap();
    late.write_all(b"late").await.unwrap();
    within(async {
        while sent(&near) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    loopback("up");
    late.finish().unwrap();
    let mut found = within(far.accept_uni()).await.unwrap();
    assert_eq!(within(found.read_to_end(10)).await.unwrap(), b"late"[..]);
}
