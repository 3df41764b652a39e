//! A worker ends, or would: by an error of its socket, or by a panic in the application's code.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};

use squall::rustls::server::{ClientHello, ResolvesServerCert};
use squall::rustls::sign::CertifiedKey;
use squall::{
    Builder, CloseReason, Connection, Endpoint, ServerConfig, TokenStore, TransportConfig,
    WorkerEndReason,
};

use crate::common::{ALPN, ANY, Identity, connect, deliver, meet, within};
use crate::{EBADF, MESSAGE, client, server};

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
        deliver(near, far, MESSAGE).await;
    }
    let before = forwarded();
    for (near, far) in connections {
        deliver(near, far, MESSAGE).await;
        deliver(far, near, MESSAGE).await;
    }
    assert_eq!(forwarded(), before);
}

// test: SECURITY.md row 50: the other workers continue, the application is informed, and the
// worker can be restarted
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_outlives_a_worker_and_can_restart_it() {
    const WORKERS: usize = 3;
    let identity = Identity::new();
    // Single datagrams: the kernel steers a bundle by its first one, whatever else it holds.
    let single = |builder: Builder| builder.gso(false).gro(false).bind().unwrap();
    let config = identity.server(ALPN, TransportConfig::default());
    let server = single(Builder::new(ANY).server(config).workers(WORKERS));
    let config = identity.client(ALPN, TransportConfig::default());
    let client = single(Builder::new(ANY).client(config));
    let connections = on_each(&client, &server, WORKERS).await;
    assert!(
        server.restart_worker(1).is_err(),
        "a running worker cannot be restarted"
    );
    assert!(
        server.restart_worker(WORKERS).is_err(),
        "a worker that does not exist cannot be restarted"
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
        deliver(near, far, MESSAGE).await;
        deliver(far, near, MESSAGE).await;
    }
    // The worker that stands in resets the connection's peer.
    if let Ok(mut send) = connections[1].0.open_uni().await {
        let _ = send.write_all(b"anybody?").await;
    }
    assert_eq!(
        within(connections[1].0.closed()).await,
        CloseReason::Reset,
        "the peer is reset and need not time out"
    );
    // Every new client is served, whatever its id: a third of the first ids name the worker that is
    // gone.
    for _ in 0..40 {
        let (near, far) = connect(&client, &server).await;
        assert_ne!(far.worker(), 1);
        deliver(&near, &far, MESSAGE).await;
    }
    assert!(
        server.rebind(ANY).is_err(),
        "an endpoint that lacks a worker cannot be rebound"
    );

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
    let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let serving = server.clone();
    let task = tokio::spawn(async move {
        let handler = move |incoming: squall::Incoming| {
            let (report, here) = (report.clone(), std::thread::current());
            let decided_on = here.name().unwrap_or_default().to_owned();
            async move {
                let connection = incoming.await.unwrap();
                let here = std::thread::current();
                let names = [decided_on, here.name().unwrap_or_default().to_owned()];
                report.send((names, connection)).unwrap();
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
            let (names, far) = within(reported.recv()).await.unwrap();
            let worker = far.worker();
            let own = format!("squall-worker-{worker}");
            assert_eq!(names[1], own, "the handler runs on the connection's worker");
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
async fn an_endpoint_reports_the_end_of_its_only_worker_and_restarts_on_its_port() {
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
        "an attempt from before the restart cannot be accepted"
    );
    drop(stale);
    // Packets from the peer of the old connection are answered with a reset.
    if let Ok(mut send) = near.open_uni().await {
        let _ = send.write_all(b"anybody?").await;
    }
    assert_eq!(within(near.closed()).await, CloseReason::Reset);
    let (near, far) = connect(&client, &server).await;
    deliver(&near, &far, MESSAGE).await;
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
    let (at_client, at_server) = meet(connecting.unwrap(), &server).await;
    for (reason, closed_by) in [(at_client, "the peer"), (at_server, "this end")] {
        let reason = reason.unwrap_err().to_string();
        assert!(reason.contains("alert 80"), "{reason}");
        assert!(reason.contains(closed_by), "{reason}");
        assert!(reason.contains("callback"), "{reason}");
        // The peer is not shown what went wrong here.
        assert!(!reason.contains("defect"), "{reason}");
    }
    deliver(&near, &far, MESSAGE).await;
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
async fn a_panic_in_a_clients_callback_affects_no_other_connection() {
    let identity = Identity::new();
    let (server, _) = with_resolver(&identity, 1);
    let address = server.local_addr().unwrap();
    let client = client(&identity);
    let config = identity.client(ALPN, TransportConfig::default());
    let bad_store = config.clone().token_store(Arc::new(BadStore));
    let connecting = client.connect_with(bad_store, address, "localhost");
    let (near, far) = meet(connecting.unwrap(), &server).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    // The server's NEW_TOKEN frames have arrived.
    deliver(&far, &near, MESSAGE).await;
    let bad_id = config.original_destination_id(|| panic!("a defect in the closure"));
    let refused = within(client.connect_with(bad_id, address, "localhost").unwrap()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("original_destination_id"), "{refused}");
    deliver(&near, &far, MESSAGE).await;
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
async fn a_panic_in_a_callback_ends_a_worker_but_not_the_endpoint() {
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
    deliver(near, far, MESSAGE).await;
    server.restart_worker(dead).unwrap();
    on_each(&client, &server, WORKERS).await;
}
