//! Events reach their subscribers: in order, without locks, whatever a subscriber does.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use common::{ALPN, ANY, Identity, deliver, meet, until, within};
use squall::{
    Builder, CloseReason, Congestion, Connection, ConnectionClosed, ConnectionInfo,
    DatagramsUnrouted, EarlyDataAnswered, Endpoint, Events, HandshakeCompleted, HandshakeConfirmed,
    KeysUpdated, MtuChanged, PathChanged, Refusal, RefusalReason, Side, TransportConfig,
    VersionChanged, WorkerEnded,
};

/// Records what is reported.
#[derive(Default)]
struct Recorder {
    /// Names of the events of each connection, in order.
    connections: Mutex<BTreeMap<u64, Vec<&'static str>>>,
    infos: Mutex<BTreeMap<u64, ConnectionInfo>>,
    completed: Mutex<Vec<HandshakeCompleted>>,
    moved: Mutex<Vec<PathChanged>>,
    closed: Mutex<Vec<ConnectionClosed>>,
    refused: Mutex<Vec<Refusal>>,
    unrouted: Mutex<Vec<DatagramsUnrouted>>,
    ended: Mutex<Vec<WorkerEnded>>,
}

impl Recorder {
    fn note(&self, connection: &ConnectionInfo, name: &'static str) {
        let mut connections = self.connections.lock().unwrap();
        connections.entry(connection.number).or_default().push(name);
        let mut infos = self.infos.lock().unwrap();
        infos.insert(connection.number, connection.clone());
    }

    /// The names of all events of the only connection, except those that depend on time.
    fn names(&self) -> Vec<&'static str> {
        let connections = self.connections.lock().unwrap();
        assert_eq!(connections.keys().collect::<Vec<_>>(), [&1]);
        let timed = ["mtu_changed", "congestion"];
        let names = connections[&1].iter().copied();
        names.filter(|name| !timed.contains(name)).collect()
    }
}

impl Events for Recorder {
    fn connection_started(&self, connection: &ConnectionInfo) {
        self.note(connection, "started");
    }
    fn retry_received(&self, connection: &ConnectionInfo) {
        self.note(connection, "retry_received");
    }
    fn version_changed(&self, connection: &ConnectionInfo, _: &VersionChanged) {
        self.note(connection, "version_changed");
    }
    fn early_data_answered(&self, connection: &ConnectionInfo, _: &EarlyDataAnswered) {
        self.note(connection, "early_data_answered");
    }
    fn handshake_completed(&self, connection: &ConnectionInfo, event: &HandshakeCompleted) {
        self.note(connection, "handshake_completed");
        self.completed.lock().unwrap().push(event.clone());
    }
    fn handshake_confirmed(&self, connection: &ConnectionInfo, _: &HandshakeConfirmed) {
        self.note(connection, "handshake_confirmed");
    }
    fn path_changed(&self, connection: &ConnectionInfo, event: &PathChanged) {
        self.note(connection, "path_changed");
        self.moved.lock().unwrap().push(event.clone());
    }
    fn keys_updated(&self, connection: &ConnectionInfo, _: &KeysUpdated) {
        self.note(connection, "keys_updated");
    }
    fn mtu_changed(&self, connection: &ConnectionInfo, _: &MtuChanged) {
        self.note(connection, "mtu_changed");
    }
    fn congestion(&self, connection: &ConnectionInfo, _: &Congestion) {
        self.note(connection, "congestion");
    }
    fn connection_closed(&self, connection: &ConnectionInfo, event: &ConnectionClosed) {
        self.note(connection, "closed");
        self.closed.lock().unwrap().push(event.clone());
    }
    fn attempt_refused(&self, _: usize, event: &Refusal) {
        self.refused.lock().unwrap().push(*event);
    }
    fn datagrams_unrouted(&self, _: usize, event: &DatagramsUnrouted) {
        self.unrouted.lock().unwrap().push(*event);
    }
    fn worker_ended(&self, event: &WorkerEnded) {
        self.ended.lock().unwrap().push(event.clone());
    }
}

/// A server and a client, each with its own subscriber.
struct Watched {
    server: Endpoint,
    client: Endpoint,
    at_server: Arc<Recorder>,
    at_client: Arc<Recorder>,
}

fn watched(build: impl Fn(Builder) -> Builder) -> Watched {
    let identity = Identity::new();
    let transport = TransportConfig::default;
    let (at_server, at_client) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let server = Builder::new(ANY).server(identity.server(ALPN, transport()));
    let client = Builder::new(ANY).client(identity.client(ALPN, transport()));
    Watched {
        server: build(server.events(at_server.clone())).bind().unwrap(),
        client: client.events(at_client.clone()).bind().unwrap(),
        at_server,
        at_client,
    }
}

impl Watched {
    async fn meet(&self) -> (Connection, Connection) {
        let address = self.server.local_addr().unwrap();
        let connecting = self.client.connect(address, "localhost").unwrap();
        let (near, far) = meet(connecting, &self.server).await;
        (near.unwrap(), far.unwrap())
    }
}

#[tokio::test]
async fn the_life_of_a_connection_is_reported_at_both_ends() {
    let ends = watched(|builder| builder);
    let (near, far) = ends.meet().await;
    deliver(&near, &far, 100_000).await;
    // Confirmed, and no key update is in progress.
    until(|| near.force_key_update()).await;
    deliver(&near, &far, 1000).await;
    ends.client.rebind(ANY).unwrap();
    let port = ends.client.local_addr().unwrap().port();
    until(|| !ends.at_client.moved.lock().unwrap().is_empty()).await;
    until(|| far.remote_address().port() == port).await;
    until(|| !ends.at_server.moved.lock().unwrap().is_empty()).await;
    let (id, remote) = (near.original_destination_id(), far.remote_address());
    near.close(3, b"bye");
    until(|| ends.at_server.names().contains(&"closed")).await;
    until(|| ends.at_client.names().contains(&"closed")).await;
    for (recorder, side) in [
        (&ends.at_client, Side::Client),
        (&ends.at_server, Side::Server),
    ] {
        assert_eq!(
            recorder.names(),
            [
                "started",
                "handshake_completed",
                "handshake_confirmed",
                "keys_updated",
                "path_changed",
                "closed"
            ],
            "{side:?}"
        );
        let info = &recorder.infos.lock().unwrap()[&1];
        assert_eq!((info.side, info.worker), (side, 0));
        assert_eq!(info.original_destination_id, id);
        let done = &recorder.completed.lock().unwrap()[0];
        assert_eq!(done.alpn.as_deref(), Some(ALPN));
        assert_eq!((done.resumed, done.early_data), (false, None));
        let closed = &recorder.closed.lock().unwrap()[0];
        let CloseReason::Application {
            code: 3, remote, ..
        } = &closed.reason
        else {
            panic!("{}", closed.reason);
        };
        assert_eq!(*remote, side == Side::Server);
        assert!(closed.stats.bytes_received > 0 && closed.duration > done.duration);
    }
    assert_eq!(ends.at_server.infos.lock().unwrap()[&1].remote, remote);
    assert_eq!(ends.at_server.moved.lock().unwrap()[0].remote, remote);
    let stats = ends.at_server.closed.lock().unwrap()[0].stats;
    assert!(
        stats.bytes_received > 101_000 && stats.packets_received > 70,
        "{stats:?}"
    );
}

#[tokio::test]
async fn refused_attempts_are_reported_with_the_reason() {
    let reasons = |recorder: &Recorder| -> Vec<RefusalReason> {
        let refused = recorder.refused.lock().unwrap();
        refused.iter().map(|refusal| refusal.reason).collect()
    };
    // By the application.
    let ends = watched(|builder| builder);
    let address = ends.server.local_addr().unwrap();
    let connecting = ends.client.connect(address, "localhost").unwrap();
    within(ends.server.accept()).await.unwrap().refuse();
    within(connecting).await.unwrap_err();
    until(|| reasons(&ends.at_server) == [RefusalReason::Application]).await;
    let refused = ends.at_server.refused.lock().unwrap()[0];
    assert_eq!(refused.remote, ends.client.local_addr().unwrap());
    // By closing the endpoint.
    ends.server.close(0, b"");
    let connecting = ends.client.connect(address, "localhost").unwrap();
    within(connecting).await.unwrap_err();
    until(|| reasons(&ends.at_server).contains(&RefusalReason::Closed)).await;
    // By limits.
    let ends = watched(|builder| builder.max_connections(1));
    let (_near, _far) = ends.meet().await;
    let address = ends.server.local_addr().unwrap();
    let connecting = ends.client.connect(address, "localhost").unwrap();
    within(connecting).await.unwrap_err();
    // A ClientHello fills two packets; each of them is an attempt here.
    until(|| reasons(&ends.at_server).contains(&RefusalReason::Connections)).await;
    let (refused, unrouted) = (reasons(&ends.at_server), &ends.at_server.unrouted);
    assert!(
        refused
            .iter()
            .all(|reason| *reason == RefusalReason::Connections),
        "{refused:?}"
    );
    let counted = || {
        unrouted
            .lock()
            .unwrap()
            .iter()
            .map(|one| one.counts.refusals)
            .sum::<u64>()
    };
    until(|| counted() == reasons(&ends.at_server).len() as u64).await;
}

#[tokio::test]
async fn unroutable_datagrams_are_reported_once_per_turn() {
    let ends = watched(|builder| builder);
    let address = ends.server.local_addr().unwrap();
    let stranger = UdpSocket::bind(ANY).unwrap();
    for _ in 0..10 {
        // A short header of no connection, long enough for a reset, and too short for one.
        stranger.send_to(&[0x41; 100], address).unwrap();
        stranger.send_to(&[0x41; 12], address).unwrap();
    }
    let sum = |pick: fn(&DatagramsUnrouted) -> u64| {
        ends.at_server
            .unrouted
            .lock()
            .unwrap()
            .iter()
            .map(pick)
            .sum::<u64>()
    };
    let resets = || sum(|one| one.counts.stateless_resets + one.counts.stateless_resets_withheld);
    until(|| resets() == 10 && sum(|one| one.runs_discarded) >= 10).await;
    let stats = ends.server.stats();
    assert_eq!(sum(|one| one.runs_discarded), stats.runs_discarded);
    assert_eq!(ends.at_server.refused.lock().unwrap().len(), 0);
    assert!(ends.at_server.connections.lock().unwrap().is_empty());
}

/// Panics at every event.
struct Panicking;

impl Events for Panicking {
    fn connection_started(&self, _: &ConnectionInfo) {
        panic!("started");
    }
    fn handshake_completed(&self, _: &ConnectionInfo, _: &HandshakeCompleted) {
        panic!("completed");
    }
    fn handshake_confirmed(&self, _: &ConnectionInfo, _: &HandshakeConfirmed) {
        std::panic::panic_any(DropPanics);
    }
    fn connection_closed(&self, _: &ConnectionInfo, _: &ConnectionClosed) {
        panic!("closed");
    }
}

/// A payload whose destructor panics, too.
struct DropPanics;

impl Drop for DropPanics {
    fn drop(&mut self) {
        panic!("panic in the payload's destructor");
    }
}

#[tokio::test]
async fn a_panicking_subscriber_affects_no_one_else() {
    let identity = Identity::new();
    let recorder = Arc::new(Recorder::default());
    let server = Builder::new(ANY).server(identity.server(ALPN, TransportConfig::default()));
    let server = server
        .events(Arc::new(Panicking))
        .events(recorder.clone())
        .bind()
        .unwrap();
    let client = Builder::new(ANY).client(identity.client(ALPN, TransportConfig::default()));
    let client = client.bind().unwrap();
    for round in 0..3 {
        let address = server.local_addr().unwrap();
        let (near, far) = meet(client.connect(address, "localhost").unwrap(), &server).await;
        let (near, far) = (near.unwrap(), far.unwrap());
        deliver(&near, &far, 200_000).await;
        near.close(0, b"");
        within(far.closed()).await;
        let closed = || recorder.closed.lock().unwrap().len();
        until(|| closed() == round + 1).await;
    }
    // Counted after the call of the last one.
    until(|| server.stats().event_panics == 12).await;
    assert_eq!(server.stats().worker_ends, 0);
    let connections = recorder.connections.lock().unwrap();
    for names in connections.values() {
        assert_eq!(names.first(), Some(&"started"));
        assert_eq!(names.last(), Some(&"closed"));
        assert!(names.contains(&"handshake_completed") && names.contains(&"handshake_confirmed"));
    }
    assert_eq!(connections.len(), 3);
}

/// Uses the endpoint and the connection that an event is about.
#[derive(Default)]
struct Curious {
    endpoint: OnceLock<Endpoint>,
    connection: OnceLock<Connection>,
    bytes: AtomicU64,
}

impl Events for Curious {
    fn keys_updated(&self, connection: &ConnectionInfo, _: &KeysUpdated) {
        let endpoint = self.endpoint.get().unwrap();
        assert!(endpoint.stages().ticks().iter().sum::<u64>() > 0);
        assert_eq!(endpoint.stats().connections, 1);
        let handle = self.connection.get().unwrap();
        assert_eq!(handle.remote_address(), connection.remote);
        self.bytes
            .store(handle.stats().bytes_received, Ordering::SeqCst);
        handle.close(5, b"from an event");
    }
}

#[tokio::test]
async fn a_subscriber_may_use_the_endpoint_and_the_connection() {
    let curious = Arc::new(Curious::default());
    let ends = watched(|builder| builder.accounting(true).events(curious.clone()));
    let (near, far) = ends.meet().await;
    curious.endpoint.set(ends.server.clone()).unwrap();
    assert!(curious.connection.set(far.clone()).is_ok());
    deliver(&near, &far, 1000).await;
    until(|| near.force_key_update()).await;
    let reason = within(near.closed()).await;
    assert!(
        matches!(reason, CloseReason::Application { code: 5, .. }),
        "{reason}"
    );
    assert!(curious.bytes.load(Ordering::SeqCst) > 1000);
    assert_eq!(ends.server.stats().event_panics, 0);
}

/// Blocks when a connection of the first worker updates its keys.
struct Blocking {
    blocked: mpsc::SyncSender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Events for Blocking {
    fn keys_updated(&self, connection: &ConnectionInfo, _: &KeysUpdated) {
        if connection.worker == 0 {
            self.blocked.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_subscriber_delays_only_its_own_worker() {
    let (blocked, is_blocked) = mpsc::sync_channel(1);
    let (release, go_on) = mpsc::channel();
    let events = Arc::new(Blocking {
        blocked,
        go_on: Mutex::new(go_on),
    });
    let ends = watched(|builder| builder.workers(2).events(events.clone()));
    let mut on: [Option<(Connection, Connection)>; 2] = [None, None];
    // Clients' first ids are random: each worker gets some.
    while on.iter().any(Option::is_none) {
        let (near, far) = ends.meet().await;
        let worker = far.worker();
        on[worker] = Some((near, far));
    }
    let [(near_0, far_0), (near_1, far_1)] = on.map(Option::unwrap);
    until(|| near_0.force_key_update()).await;
    tokio::task::spawn_blocking(move || is_blocked.recv().unwrap())
        .await
        .unwrap();
    deliver(&near_1, &far_1, 300_000).await;
    release.send(()).unwrap();
    deliver(&near_0, &far_0, 300_000).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_that_end_with_their_worker_are_reported_before_its_end() {
    const EBADF: i32 = 9;
    let ends = watched(|builder| builder);
    let (near, far) = ends.meet().await;
    deliver(&near, &far, 1000).await;
    ends.server.inject_recv_error(EBADF);
    near.force_key_update();
    let _ = near.send_datagram(squall::Bytes::from_static(b"wakes it"));
    within(far.closed()).await;
    until(|| ends.at_server.ended.lock().unwrap().len() == 1).await;
    let ended = ends.at_server.ended.lock().unwrap()[0].clone();
    assert_eq!((ended.worker, ended.connections), (0, 1));
    assert!(
        ended.reason.starts_with("the socket is gone"),
        "{}",
        ended.reason
    );
    assert_eq!(ends.at_server.names().last(), Some(&"closed"));
    let closed = ends.at_server.closed.lock().unwrap();
    assert_eq!(closed.len(), 1);
    assert!(
        closed[0].reason.to_string().contains("worker has ended"),
        "{}",
        closed[0].reason
    );
    assert!(closed[0].duration > Duration::ZERO && closed[0].stats.bytes_received > 1000);
}
