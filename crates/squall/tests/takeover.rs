//! One endpoint takes over the port of another, as the processes of an upgrade do.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{ALPN, ANY, Identity, pattern, until, within};
use squall::{
    Builder, CloseReason, Connection, ConnectionIdGenerator, Endpoint, Takeover, TransportConfig,
};
use tokio::task::JoinHandle;

/// A path for the two processes to meet at.
struct Place {
    folder: PathBuf,
    path: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("squall-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("takeover");
        Self { folder, path }
    }

    /// The endpoint waits there for a successor.
    async fn wait_at(&self, endpoint: &Endpoint) -> JoinHandle<io::Result<()>> {
        let (endpoint, path) = (endpoint.clone(), self.path.clone());
        let waiting = tokio::spawn(async move { endpoint.hand_over(path, &[]).await });
        self.wait_for_listener().await;
        waiting
    }

    async fn wait_for_listener(&self) {
        until(|| self.path.exists()).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The identity of the servers, and where the processes meet.
struct World {
    identity: Identity,
    place: Place,
}

impl World {
    fn new(name: &str) -> Self {
        Self {
            identity: Identity::new(),
            place: Place::new(name),
        }
    }

    fn server(&self) -> Builder {
        Builder::new(ANY).server(self.identity.server(ALPN, TransportConfig::default()))
    }

    fn request(&self) -> io::Result<Option<Takeover>> {
        Takeover::request(&self.place.path)
    }

    /// As [`request`](Self::request), once a process listens and answers.
    async fn request_patiently(&self) -> Takeover {
        within(async {
            loop {
                match self.request() {
                    Ok(Some(takeover)) => break takeover,
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        })
        .await
    }

    /// The endpoint that takes over the port of another.
    async fn upgrade(&self, endpoint: &Endpoint) -> Endpoint {
        let handed_over = self.place.wait_at(endpoint).await;
        let takeover = self.request().unwrap().unwrap();
        let successor = self.server().take_over(takeover).bind().unwrap();
        within(handed_over).await.unwrap().unwrap();
        successor
    }

    fn client(&self) -> Endpoint {
        let config = self.identity.client(ALPN, TransportConfig::default());
        Builder::new(ANY).client(config).bind().unwrap()
    }
}

/// A runtime for an endpoint that is killed.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// Serves all connections by sending back what arrives on their streams.
fn serve_echo(endpoint: &Endpoint) -> JoinHandle<usize> {
    let endpoint = endpoint.clone();
    tokio::spawn(async move {
        let mut accepted = 0;
        while let Some(incoming) = endpoint.accept().await {
            accepted += 1;
            tokio::spawn(async move {
                let connection = incoming.accept().await?;
                while let Ok((send, recv)) = connection.accept_bi().await {
                    tokio::spawn(common::echo(send, recv));
                }
                Ok::<_, CloseReason>(())
            });
        }
        accepted
    })
}

async fn connect(client: &Endpoint, to: SocketAddr) -> Connection {
    within(client.connect(to, "localhost").unwrap())
        .await
        .unwrap()
}

/// Whether the other end answers.
async fn is_alive(connection: &Connection) -> bool {
    let exchange = async {
        let (mut send, mut recv) = connection.open_bi().await.ok()?;
        send.write_all(b"hello").await.ok()?;
        send.finish().ok()?;
        recv.read_to_end(16).await.ok()
    };
    within(exchange).await.as_deref() == Some(b"hello")
}

/// Sends bytes back and forth until told to stop; returns how many.
fn transfer(connection: Connection, stop: tokio::sync::watch::Receiver<bool>) -> JoinHandle<usize> {
    tokio::spawn(async move {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        let piece = pattern(100_000, 7);
        let (sent, received) = tokio::join!(
            async {
                let mut sent = 0;
                while !*stop.borrow() {
                    send.write_all(&piece).await.unwrap();
                    sent += piece.len();
                }
                send.finish().unwrap();
                sent
            },
            async {
                let (mut received, mut buffer) = (0, vec![0; piece.len()]);
                while let Ok(()) = recv.read_exact(&mut buffer).await {
                    assert!(buffer == piece, "after {received} bytes");
                    received += buffer.len();
                }
                received
            }
        );
        assert_eq!(sent, received);
        received
    })
}

#[tokio::test]
async fn no_connection_is_lost_and_new_ones_reach_the_successor() {
    for workers in [1, 3] {
        let world = World::new(&format!("all-{workers}"));
        let first = world.server().workers(workers).bind().unwrap();
        let address = first.local_addr().unwrap();
        let serving = serve_echo(&first);
        let client = world.client();
        let mut old = Vec::new();
        for _ in 0..8 {
            old.push(connect(&client, address).await);
        }
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let transfers: Vec<_> = (old.iter().take(2))
            .map(|connection| transfer(connection.clone(), stopping.clone()))
            .collect();
        let handed_over = world.place.wait_at(&first).await;
        let takeover = world.request().unwrap().unwrap();
        assert_eq!(takeover.local_addr(), address);
        let second = world.server().take_over(takeover).bind().unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
        assert_eq!(second.worker_stats().len(), workers);
        within(handed_over).await.unwrap().unwrap();
        // It accepts nothing more, and says so.
        assert_eq!(within(serving).await.unwrap(), 8);
        let serving = serve_echo(&second);
        for connection in &old {
            assert!(is_alive(connection).await);
        }
        let new = connect(&client, address).await;
        assert!(is_alive(&new).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.send(true).unwrap();
        for transfer in transfers {
            assert!(within(transfer).await.unwrap() > 0);
        }
        assert_eq!(first.stats().connections, 8);
        assert_eq!(second.stats().connections, 1);
        assert!(second.stats().runs_forwarded > 0);
        assert_eq!(second.stats().unrouted.stateless_resets, 0);
        // It ends with its last connection.
        old.iter().for_each(|connection| connection.close(0, b""));
        within(first.wait_idle()).await;
        drop(first);
        assert!(is_alive(&new).await);
        // The successor hands over in its turn.
        let third = world.upgrade(&second).await;
        assert_eq!(within(serving).await.unwrap(), 1);
        let _serving = serve_echo(&third);
        assert!(is_alive(&new).await);
        assert!(is_alive(&connect(&client, address).await).await);
    }
}

/// Datagrams for the successor do not wake the predecessor.
#[tokio::test]
async fn datagrams_of_the_successor_do_not_wake_the_predecessor() {
    let world = World::new("sleep");
    let first = world.server().bind().unwrap();
    let address = first.local_addr().unwrap();
    let _serving = serve_echo(&first);
    let client = world.client();
    let old = connect(&client, address).await;
    let second = world.upgrade(&first).await;
    let _serving = serve_echo(&second);
    let new = connect(&client, address).await;
    assert!(is_alive(&new).await && is_alive(&old).await);
    let turns = |endpoint: &Endpoint| endpoint.stats().turns;
    let before = (turns(&first), turns(&second));
    for _ in 0..200 {
        assert!(is_alive(&new).await);
    }
    let after = (turns(&first), turns(&second));
    assert!(after.1 - before.1 >= 200, "{before:?} {after:?}");
    assert!(after.0 - before.0 < 20, "{before:?} {after:?}");
}

/// Three processes: the oldest still has connections when the second one hands over.
#[tokio::test]
async fn connections_of_the_predecessors_predecessor_survive() {
    let world = World::new("chain");
    let mut endpoints = vec![world.server().bind().unwrap()];
    let address = endpoints[0].local_addr().unwrap();
    let client = world.client();
    let mut connections = Vec::new();
    for _ in 0..4 {
        let last = endpoints.last().unwrap();
        let _serving = serve_echo(last);
        connections.push(connect(&client, address).await);
        let next = world.upgrade(last).await;
        endpoints.push(next);
        for connection in &connections {
            assert!(is_alive(connection).await);
        }
    }
    for endpoint in &endpoints[..4] {
        assert_eq!(endpoint.stats().connections, 1);
    }
}

#[tokio::test]
async fn a_successor_that_fails_changes_nothing() {
    let world = World::new("failure");
    let first = world.server().bind().unwrap();
    let address = first.local_addr().unwrap();
    let _serving = serve_echo(&first);
    let client = world.client();
    let connection = connect(&client, address).await;
    let handed_over = world.place.wait_at(&first).await;
    // It ends before it is ready. The next one is answered all the same, however soon it asks.
    for _ in 0..3 {
        drop(world.request().unwrap().unwrap());
    }
    // Its settings do not fit.
    let takeover = world.request().unwrap().unwrap();
    let ids = ConnectionIdGenerator::Plain { len: 12 };
    let builder = world.server().connection_ids(ids).take_over(takeover);
    let error = builder.clone().bind().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("12 bytes"), "{error}");
    assert!(is_alive(&connection).await);
    assert!(is_alive(&connect(&client, address).await).await);
    assert!(!handed_over.is_finished());
    let takeover = world.request().unwrap().unwrap();
    let second = world.server().take_over(takeover).bind().unwrap();
    within(handed_over).await.unwrap().unwrap();
    let _serving = serve_echo(&second);
    assert!(is_alive(&connection).await);
    assert!(is_alive(&connect(&client, address).await).await);
}

/// It fails after the predecessor stopped reading. The next one finds the predecessor, however soon
/// it asks: if it found no process, it would try to bind a port that is in use.
#[tokio::test]
async fn a_successor_that_fails_late_leaves_the_path_usable() {
    let world = World::new("late");
    let first = world.server().bind().unwrap();
    let address = first.local_addr().unwrap();
    let _serving = serve_echo(&first);
    let client = world.client();
    let connection = connect(&client, address).await;
    let handed_over = world.place.wait_at(&first).await;
    for _ in 0..3 {
        let takeover = world.request().unwrap().unwrap();
        // Its worker does not start: there is no such CPU.
        let builder = world.server().cpu(1_000_000).take_over(takeover);
        builder.bind().unwrap_err();
    }
    let takeover = world.request().unwrap().unwrap();
    assert!(is_alive(&connection).await);
    assert!(is_alive(&connect(&client, address).await).await);
    // A predecessor that ends meanwhile is named as the reason.
    first.close(0, b"");
    assert!(within(handed_over).await.unwrap().is_err());
    let error = world.server().take_over(takeover).bind().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
}

/// At whatever moment the predecessor gives up, one of the two has the port.
#[tokio::test]
async fn a_cancelled_handover_leaves_exactly_one_owner() {
    let world = World::new("cancelled");
    let mut current = world.server().workers(2).bind().unwrap();
    let address = current.local_addr().unwrap();
    let _serving = serve_echo(&current);
    let client = world.client();
    let connection = connect(&client, address).await;
    let (mut taken_over, mut kept) = (0, 0);
    // Close to how long a takeover takes on this machine.
    let mut delay = 0;
    while taken_over < 5 || kept < 20 {
        let handed_over = world.place.wait_at(&current).await;
        let (builder, path) = (world.server(), world.place.path.clone());
        let successor = tokio::task::spawn_blocking(move || {
            let takeover = Takeover::request(path)?;
            takeover
                .map(|takeover| builder.take_over(takeover).bind())
                .transpose()
        });
        // The runtime's timers are not this precise.
        std::thread::sleep(Duration::from_micros(delay));
        handed_over.abort();
        match within(successor).await.unwrap() {
            Ok(Some(successor)) => {
                taken_over += 1;
                delay /= 2;
                let _serving = serve_echo(&successor);
                // The old one has given up the port.
                assert!(within(current.accept()).await.is_none());
                current = successor;
            }
            Ok(None) | Err(_) => {
                kept += 1;
                delay += 97;
            }
        }
        let _ = within(handed_over).await;
        assert!(is_alive(&connection).await, "{taken_over} {kept}");
        let new = connect(&client, address).await;
        assert!(is_alive(&new).await, "{taken_over} {kept}");
        assert!(taken_over + kept < 1000, "{taken_over} {kept}");
    }
}

#[tokio::test]
async fn a_predecessor_resumes_reading_if_its_successor_ends() {
    let world = World::new("again");
    let first = world.server().workers(2).bind().unwrap();
    let address = first.local_addr().unwrap();
    let _serving = serve_echo(&first);
    let client = world.client();
    let connections = [
        connect(&client, address).await,
        connect(&client, address).await,
    ];
    let handed_over = world.place.wait_at(&first).await;
    let takeover = world.request().unwrap().unwrap();
    let runtime = runtime();
    let second = world.server().on_runtime(runtime.handle().clone());
    let second = second.take_over(takeover).bind().unwrap();
    within(handed_over).await.unwrap().unwrap();
    // Its workers end at once, rather than in a regular turn.
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(30)))
        .await
        .unwrap();
    drop(second);
    for connection in &connections {
        assert!(is_alive(connection).await);
    }
    // Another process can take the port.
    let third = world.upgrade(&first).await;
    let _serving = serve_echo(&third);
    for connection in &connections {
        assert!(is_alive(connection).await);
    }
    assert!(is_alive(&connect(&client, address).await).await);
    first.close(0, b"");
    assert_eq!(
        within(first.hand_over(&world.place.path, &[]))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NotConnected
    );
}

#[tokio::test]
async fn peers_of_a_killed_predecessor_are_reset() {
    let world = World::new("killed");
    let runtime = runtime();
    let first = world.server().on_runtime(runtime.handle().clone());
    let first = first.bind().unwrap();
    let address = first.local_addr().unwrap();
    let _serving = serve_echo(&first);
    let client = world.client();
    let connection = connect(&client, address).await;
    let second = world.upgrade(&first).await;
    assert!(is_alive(&connection).await);
    // Its connections end without a CONNECTION_CLOSE.
    runtime.shutdown_background();
    drop(first);
    // On a busy machine, a late acknowledgement has caused the reset already.
    if let Ok(mut send) = within(connection.open_uni()).await {
        let _ = send.write(b"?").await;
    }
    let reason = within(connection.closed()).await;
    assert!(matches!(reason, CloseReason::Reset), "{reason}");
    until(|| second.stats().unrouted.stateless_resets > 0).await;
}

#[tokio::test]
async fn a_worker_of_the_successor_is_restarted_with_its_socket() {
    let world = World::new("restart");
    let first = world.server().workers(2).bind().unwrap();
    let address = first.local_addr().unwrap();
    let _serving = serve_echo(&first);
    let client = world.client();
    let mut old = Vec::new();
    for _ in 0..4 {
        old.push(connect(&client, address).await);
    }
    let second = world.upgrade(&first).await;
    let _serving = serve_echo(&second);
    for worker in 0..2 {
        // A bad descriptor ends a worker.
        second.inject_worker_send_error(worker, 9);
        while second.worker_stats()[worker].worker_ends == 0 {
            let _ = tokio::time::timeout(
                Duration::from_millis(20),
                client.connect(address, "localhost").unwrap(),
            )
            .await;
        }
        let end = within(second.worker_ended()).await.unwrap();
        second.restart_worker(end.worker).unwrap();
    }
    for connection in &old {
        assert!(is_alive(connection).await);
    }
    for _ in 0..4 {
        assert!(is_alive(&connect(&client, address).await).await);
    }
}

#[tokio::test]
async fn further_descriptors_are_handed_over() {
    let world = World::new("descriptors");
    let first = world.server().bind().unwrap();
    let tcp = TcpListener::bind(ANY).unwrap();
    let (endpoint, path) = (first.clone(), world.place.path.clone());
    let own = tcp.try_clone().unwrap();
    let handed_over =
        tokio::spawn(async move { endpoint.hand_over(path, &[own.as_fd(), own.as_fd()]).await });
    world.place.wait_for_listener().await;
    let mut takeover = world.request().unwrap().unwrap();
    let mut descriptors = takeover.take_descriptors();
    assert_eq!(descriptors.len(), 2);
    let _second = world.server().take_over(takeover).bind().unwrap();
    within(handed_over).await.unwrap().unwrap();
    let theirs = TcpListener::from(descriptors.pop().unwrap());
    assert_eq!(theirs.local_addr().unwrap(), tcp.local_addr().unwrap());
}

#[tokio::test]
async fn only_one_process_listens_at_the_path() {
    let world = World::new("path");
    let hand_over = |endpoint: &Endpoint, path: &Path| {
        let (endpoint, path) = (endpoint.clone(), path.to_owned());
        async move { within(endpoint.hand_over(path, &[])).await.unwrap_err() }
    };
    assert!(world.request().unwrap().is_none());
    // A process that could not listen at the path later does not begin.
    let nowhere = world.place.folder.join("nothing/takeover");
    let error = Takeover::request(nowhere).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // Only a path that does not fit an address is too long (unix(7)).
    let folder = world.place.folder.as_os_str().len();
    let of_bytes = |len: usize| world.place.folder.join("p".repeat(len - folder - 1));
    assert!(Takeover::request(of_bytes(107)).unwrap().is_none());
    Takeover::request(of_bytes(109)).unwrap_err();
    // A process with the same id was killed here.
    let leftover = format!("{}.{}", world.place.path.display(), std::process::id());
    std::fs::write(&leftover, b"").unwrap();
    assert!(world.request().unwrap().is_none());
    assert!(!Path::new(&leftover).exists());
    let endpoint = world.server().bind().unwrap();
    let waiting = world.place.wait_at(&endpoint).await;
    // Another process already listens.
    let other = world.server().bind().unwrap();
    let error = hand_over(&other, &world.place.path).await;
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    // Dropping the future removes the file.
    waiting.abort();
    assert!(within(waiting).await.unwrap_err().is_cancelled());
    until(|| !world.place.path.exists()).await;
    // A file that is no socket is not replaced.
    std::fs::write(&world.place.path, b"precious").unwrap();
    let error = hand_over(&endpoint, &world.place.path).await;
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert_eq!(
        world.request().unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(std::fs::read(&world.place.path).unwrap(), b"precious");
    std::fs::remove_file(&world.place.path).unwrap();
    // A process that was killed leaves a socket.
    drop(std::os::unix::net::UnixListener::bind(&world.place.path).unwrap());
    let path = world.place.path.clone();
    let abandoned = endpoint.clone();
    let waiting = tokio::spawn(async move { abandoned.hand_over(path, &[]).await });
    let takeover = world.request_patiently().await;
    let _second = world.server().take_over(takeover).bind().unwrap();
    within(waiting).await.unwrap().unwrap();
    // What is closed cannot be handed over.
    endpoint.close(0, b"");
    let error = hand_over(&endpoint, &world.place.path).await;
    assert_eq!(error.kind(), ErrorKind::NotConnected);
}

/// systemd removes a unit's folder in `/run` when the unit stops, though another unit uses it.
#[tokio::test]
async fn a_removed_socket_file_is_recreated() {
    let world = World::new("removed");
    let endpoint = world.server().bind().unwrap();
    let waiting = world.place.wait_at(&endpoint).await;
    std::fs::remove_file(&world.place.path).unwrap();
    world.place.wait_for_listener().await;
    drop(world.request_patiently().await);
    // Another process has the path now, and keeps it.
    let elsewhere = world.place.folder.join("other");
    let other = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
    std::fs::rename(elsewhere, &world.place.path).unwrap();
    let error = within(waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(world.place.path.exists());
    drop(other);
    let waiting = world.place.wait_at(&endpoint).await;
    let takeover = world.request_patiently().await;
    let successor = world.server().take_over(takeover).bind().unwrap();
    within(waiting).await.unwrap().unwrap();
    // There is no folder for it.
    let waiting = world.place.wait_at(&successor).await;
    std::fs::remove_dir_all(&world.place.folder).unwrap();
    let error = within(waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn closing_the_endpoint_ends_the_wait() {
    let world = World::new("closed");
    let endpoint = world.server().bind().unwrap();
    let first = world.place.wait_at(&endpoint).await;
    // It does not disturb the first one.
    let second = world.place.wait_at(&endpoint).await;
    assert!(world.request().unwrap().is_some());
    assert!(!first.is_finished() && !second.is_finished());
    endpoint.close(0, b"");
    for waiting in [first, second] {
        let error = within(waiting).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    }
    within(endpoint.wait_idle()).await;
}

/// Starts itself as another user, which requires root.
#[tokio::test]
async fn another_user_cannot_take_over() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    const PATH: &str = "SQUALL_TEST_TAKEOVER_PATH";
    const NOBODY: u32 = 65_534;
    if let Some(path) = std::env::var_os(PATH) {
        // The other user.
        let error = Takeover::request(path).unwrap_err();
        assert!(error.to_string().ends_with("to user 65534"), "{error}");
        return;
    }
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return;
    }
    let world = World::new("user");
    let endpoint = world.server().bind().unwrap();
    let waiting = world.place.wait_at(&endpoint).await;
    // Not even a file that everyone can open helps.
    let everyone = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&world.place.path, everyone).unwrap();
    // The test's program may be in a folder that others cannot read.
    let program = world.place.folder.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut other = std::process::Command::new(&program);
    other
        .args(["--exact", "another_user_cannot_take_over"])
        .env(PATH, &world.place.path)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    let output = tokio::task::spawn_blocking(move || other.output());
    let output = within(output).await.unwrap().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("1 passed"), "{printed}");
    assert!(output.status.success(), "{printed}");
    assert!(!waiting.is_finished());
}
