//! Endpoints that are rebound while their connections are in use: all workers move, or none.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::{ALPN, ANY, Identity, echo, meet, pattern, until, within};
use squall::{Builder, Connection, Endpoint, TransportConfig};
use tokio::task::JoinSet;

const WORKERS: usize = 2;
const CONNECTIONS: usize = 8;

/// A client and a server of two workers each, and connections between them whose streams the server
/// echoes.
struct Setup {
    client: Endpoint,
    server: Endpoint,
    near: Vec<Connection>,
    far: Vec<Connection>,
}

impl Setup {
    async fn new() -> Self {
        let identity = Identity::new();
        let server = identity.server(ALPN, TransportConfig::default());
        let server = (Builder::new(ANY).server(server).workers(WORKERS).bind()).unwrap();
        let client = identity.client(ALPN, TransportConfig::default());
        let client = (Builder::new(ANY).client(client).workers(WORKERS).bind()).unwrap();
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let connecting = client.connect(server.local_addr().unwrap(), "localhost");
            let (here, there) = meet(connecting.unwrap(), &server).await;
            let (here, there) = (here.unwrap(), there.unwrap());
            let echoing = there.clone();
            there.spawn(async move {
                while let Ok((send, recv)) = echoing.accept_bi().await {
                    echoing.spawn(echo(send, recv));
                }
            });
            near.push(here);
            far.push(there);
        }
        Self {
            client,
            server,
            near,
            far,
        }
    }

    /// Sends a pattern on each connection and expects it back; `progress` counts the bytes that
    /// have come back.
    fn ask_all(&self, len: usize, progress: &Arc<AtomicUsize>) -> JoinSet<()> {
        let mut asking = JoinSet::new();
        for (seed, connection) in self.near.iter().cloned().enumerate() {
            let progress = Arc::clone(progress);
            asking.spawn(async move { ask(&connection, len, seed as u64, &progress).await });
        }
        asking
    }

    /// Which worker each connection lives on, and how many each worker counts, on both sides.
    fn placement(&self) -> (Vec<usize>, Vec<u64>) {
        let connections = self.near.iter().chain(&self.far);
        let workers = connections.map(Connection::worker).collect();
        let stats = (self.client.worker_stats().into_iter()).chain(self.server.worker_stats());
        (workers, stats.map(|worker| worker.connections).collect())
    }
}

async fn ask(connection: &Connection, len: usize, seed: u64, progress: &AtomicUsize) {
    let sent = pattern(len, seed);
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let writing = async {
        send.write_all(&sent).await.unwrap();
        send.finish().unwrap();
    };
    let reading = async {
        let mut back = Vec::with_capacity(len);
        while let Some(chunk) = recv.read_chunk(usize::MAX).await.unwrap() {
            progress.fetch_add(chunk.len(), Ordering::Relaxed);
            back.extend_from_slice(&chunk);
        }
        back
    };
    let ((), back) = tokio::join!(writing, reading);
    assert!(back == sent, "what came back is not what was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_rebind_during_transfers() {
    const LEN: usize = 3_000_000;
    let setup = Setup::new().await;
    let placement = setup.placement();
    assert_eq!(placement.1.iter().sum::<u64>(), 2 * CONNECTIONS as u64);
    let progress = Arc::new(AtomicUsize::new(0));
    let asking = setup.ask_all(LEN, &progress);
    let all = LEN * CONNECTIONS;
    let mut ports = vec![setup.client.local_addr().unwrap().port()];
    for eighths in 1..4 {
        until(|| progress.load(Ordering::Relaxed) >= all * eighths / 8).await;
        setup.client.rebind(ANY).unwrap();
        let done = progress.load(Ordering::Relaxed);
        assert!(done < all, "the transfers were over before the move");
        ports.push(setup.client.local_addr().unwrap().port());
    }
    within(asking.join_all()).await;
    assert_eq!(progress.load(Ordering::Relaxed), all);
    ports.dedup();
    assert_eq!(ports.len(), 4, "{ports:?}");
    assert_eq!(setup.placement(), placement);
    for far in &setup.far {
        assert_eq!(Some(&far.remote_address().port()), ports.last());
    }
    // No packet was unknown to either end: those are answered.
    let stats = [setup.client.stats(), setup.server.stats()];
    for stats in stats {
        assert_eq!(
            (stats.responses, stats.forwards_dropped),
            (0, 0),
            "{stats:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_steers_to_the_new_sockets_too() {
    let setup = Setup::new().await;
    setup.client.rebind(ANY).unwrap();
    let progress = Arc::new(AtomicUsize::new(0));
    let before = setup.client.worker_stats();
    within(setup.ask_all(2_000_000, &progress).join_all()).await;
    for (before, after) in before.iter().zip(setup.client.worker_stats()) {
        let runs = after.runs_received - before.runs_received;
        let forwarded = after.runs_forwarded - before.runs_forwarded;
        assert!(runs > 100, "{runs}");
        // Except for bundles that GRO makes from several connections' datagrams.
        assert!(forwarded * 20 < runs, "{forwarded} of {runs}");
        // Each worker by its own socket.
        assert!(
            after.udp.bytes_received
                >= before.udp.bytes_received + CONNECTIONS as u64 / 2 * 2_000_000
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_continue_across_a_rebind() {
    let setup = Setup::new().await;
    let progress = Arc::new(AtomicUsize::new(0));
    within(setup.ask_all(100_000, &progress).join_all()).await;
    let before = setup.client.stats().udp;
    assert!(before.bytes_sent > 100_000 * CONNECTIONS as u64);
    setup.client.rebind(ANY).unwrap();
    // From the start, and once the workers have moved.
    assert!(setup.client.stats().udp.bytes_sent >= before.bytes_sent);
    within(setup.ask_all(100_000, &progress).join_all()).await;
    let after = setup.client.stats().udp;
    assert!(after.bytes_sent > before.bytes_sent + 100_000 * CONNECTIONS as u64);
}

/// A move that fails: checks the error, and that nothing has changed, with transfers in progress.
async fn stays(setup: &Setup, refused: ErrorKind, move_it: impl Fn() -> Result<()>) {
    let (address, placement) = (setup.client.local_addr().unwrap(), setup.placement());
    let progress = Arc::new(AtomicUsize::new(0));
    let asking = setup.ask_all(1_000_000, &progress);
    until(|| progress.load(Ordering::Relaxed) > 0).await;
    assert_eq!(move_it().unwrap_err().kind(), refused);
    within(asking.join_all()).await;
    assert_eq!(setup.client.local_addr().unwrap(), address);
    assert_eq!(setup.placement(), placement);
    for far in &setup.far {
        assert_eq!(far.remote_address(), address);
    }
    assert_eq!(setup.client.stats().responses, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebind_to_a_busy_port_changes_nothing() {
    let setup = Setup::new().await;
    let taken = std::net::UdpSocket::bind(ANY).unwrap();
    let busy = taken.local_addr().unwrap();
    stays(&setup, ErrorKind::AddrInUse, || setup.client.rebind(busy)).await;
    // A port shared by another endpoint's workers is also busy, as is one's own: the kernel would
    // mix the sockets.
    let others = setup.server.local_addr().unwrap();
    stays(&setup, ErrorKind::AddrInUse, || setup.client.rebind(others)).await;
    let own = setup.client.local_addr().unwrap();
    stays(&setup, ErrorKind::AddrInUse, || setup.client.rebind(own)).await;
    let bound = Builder::new(own).workers(WORKERS).bind();
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrInUse);
}

/// Runs the next test in a separate process with a low limit on open files.
#[test]
fn a_rebind_that_lacks_a_descriptor_changes_nothing() {
    let this = std::env::current_exe().unwrap();
    let ran = Command::new("sh")
        .args(["-c", "ulimit -n 200 && exec \"$0\" \"$@\""])
        .arg(this)
        .args(["--exact", "out_of_descriptors", "--ignored"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("1 passed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes all descriptors of its process: the test before runs it"]
async fn out_of_descriptors() {
    let setup = Setup::new().await;
    let mut fill = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        fill.push(file);
    }
    let too_many = setup.client.rebind(ANY).unwrap_err();
    // Two per worker: the socket, and the descriptor that reports room in it.
    for _ in 0..2 * WORKERS {
        stays(&setup, too_many.kind(), || setup.client.rebind(ANY)).await;
        drop(fill.pop());
    }
    setup.client.rebind(ANY).unwrap();
    let progress = Arc::new(AtomicUsize::new(0));
    within(setup.ask_all(100_000, &progress).join_all()).await;
    let port = setup.client.local_addr().unwrap().port();
    assert!((setup.far.iter()).all(|far| far.remote_address().port() == port));
}

/// Simultaneous moves from several threads end with all workers in one place.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_rebinds_do_not_mix() {
    let setup = Setup::new().await;
    let progress = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        let start = Arc::new(Barrier::new(4));
        let moving: Vec<_> = (0..4)
            .map(|_| (setup.client.clone(), Arc::clone(&start)))
            .map(|(client, start)| {
                tokio::task::spawn_blocking(move || {
                    start.wait();
                    client.rebind(ANY).unwrap();
                })
            })
            .collect();
        for one in moving {
            within(one).await.unwrap();
        }
        within(setup.ask_all(1_000, &progress).join_all()).await;
        let port = setup.client.local_addr().unwrap().port();
        for far in &setup.far {
            assert_eq!(far.remote_address().port(), port);
        }
    }
}

#[tokio::test]
async fn idle_connections_move_one_by_one() {
    const MANY: usize = 200;
    let identity = Identity::new();
    let server = identity.server(ALPN, TransportConfig::default());
    let server = Builder::new(ANY).server(server).bind().unwrap();
    let client = identity.client(ALPN, TransportConfig::default());
    let client = Builder::new(ANY).client(client).bind().unwrap();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..MANY {
        let connecting = client.connect(server.local_addr().unwrap(), "localhost");
        let (here, there) = meet(connecting.unwrap(), &server).await;
        near.push(here.unwrap());
        far.push(there.unwrap());
    }
    // A client may not migrate before the handshake is confirmed (RFC 9000 §9).
    within(async {
        for connection in &near {
            let (mut send, _recv) = connection.open_bi().await.unwrap();
            send.write_all(b"x").await.unwrap();
            send.finish().unwrap();
        }
        for connection in &far {
            connection
                .accept_bi()
                .await
                .unwrap()
                .1
                .read_to_end(1)
                .await
                .unwrap();
        }
    })
    .await;
    // The last acknowledgements have been sent.
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.rebind(ANY).unwrap();
    let new = client.local_addr().unwrap();
    let moved = async {
        for connection in &far {
            while connection.remote_address() != new {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    // Before their timers would make them send something, after four seconds.
    let moved = tokio::time::timeout(Duration::from_secs(2), moved).await;
    assert!(moved.is_ok());
    assert!(
        near.iter()
            .all(|connection| connection.stats().migrations == 1)
    );
}
