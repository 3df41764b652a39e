//! Admission: single-use tokens, limits per source prefix and of memory, with real sockets and
//! several workers.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{ALPN, ANY, Identity, until, within};
use squall::{Builder, ClientConfig, Endpoint, TransportConfig};
use squall_core::{
    CloseReason, Connection, ConnectionHandle, EndpointConfig, Event, MemoryTokenStore, Route,
    Stages, Time, TokenStore,
};
use squall_wire::{DatagramBatch, Ecn, Path};

const WORKERS: usize = 2;
/// How long a waiting client tolerates silence from the server: a busy machine may take its time.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client's tokens: all that it received, and the one with which every connection begins.
#[derive(Clone, Debug, Default)]
struct Tokens {
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    used: Option<Vec<u8>>,
}

impl TokenStore for Tokens {
    fn insert(&self, _: &str, _: u32, token: &[u8]) {
        self.received.lock().unwrap().push(token.to_vec());
    }

    fn take(&self, _: &str, _: u32) -> Option<Vec<u8>> {
        self.used.clone()
    }
}

/// A client of one connection on a plain socket, controlled by the test.
struct Client {
    socket: UdpSocket,
    endpoint: squall_core::Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    start: Instant,
    server: SocketAddr,
    connected: bool,
    closed: Option<CloseReason>,
}

impl Client {
    fn new(local: Ipv4Addr, server: SocketAddr, config: ClientConfig, tokens: Tokens) -> Self {
        let socket = UdpSocket::bind((local, 0)).unwrap();
        let mut endpoint =
            squall_core::Endpoint::new(EndpointConfig::new(rand_key()), None, rand_key());
        let path = Path {
            remote: server,
            local: None,
        };
        let config = config.token_store(Arc::new(tokens));
        let (handle, connection) = endpoint
            .connect(Time::ZERO, config, path, "localhost")
            .unwrap();
        Self {
            socket,
            endpoint,
            handle,
            connection,
            start: Instant::now(),
            server,
            connected: false,
            closed: None,
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Sends and receives until `done`, or until nothing has arrived for this long.
    fn run_until(&mut self, patience: Duration, mut done: impl FnMut(&Self) -> bool) {
        let mut buffer = vec![0; 2048];
        let mut heard = Instant::now();
        while !done(self) && heard.elapsed() < patience {
            let now = self.now();
            if self.connection.next_timeout().is_some_and(|due| due <= now) {
                self.connection.on_timeout(now);
            }
            self.send(&mut buffer);
            self.socket
                .set_read_timeout(Some(Duration::from_millis(10)))
                .unwrap();
            if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
                heard = Instant::now();
                self.receive(from, &mut buffer[..len]);
            }
            while let Some(event) = self.connection.poll_event() {
                match event {
                    Event::Connected => self.connected = true,
                    Event::Closed(reason) => self.closed = Some(reason),
                    _ => {}
                }
            }
            while let Some(event) = self.connection.poll_endpoint_event() {
                self.endpoint.apply(self.handle, event);
            }
        }
        // For example, the end of the handshake.
        self.send(&mut buffer);
    }

    fn send(&mut self, buffer: &mut [u8]) {
        let now = self.now();
        while let Some(sent) = (self.connection).transmit(now, buffer, 1, &mut Stages::off()) {
            let datagram = &buffer[..sent.len];
            self.socket.send_to(datagram, self.server).unwrap();
        }
    }

    fn receive(&mut self, from: SocketAddr, bytes: &mut [u8]) {
        let (now, segment_size) = (self.now(), bytes.len() as u16);
        let path = Path {
            remote: from,
            local: None,
        };
        let run = self.endpoint.route(now, path, bytes, segment_size);
        if matches!(run.to, Route::Connection(_)) {
            let run = DatagramBatch {
                path,
                ecn: Ecn::NotEct,
                segment_size,
                bytes,
            };
            self.connection.receive(now, run, &mut Stages::off());
        }
    }

    /// Whether the server has acknowledged everything.
    fn is_settled(&self) -> bool {
        self.connection.stats().bytes_in_flight == 0 && !self.connection.wants_transmit()
    }

    /// Runs until the handshake is over at both ends, one way or the other: from then on the server
    /// counts the connection as one of a validated address.
    fn shake_hands(&mut self) {
        self.run_until(PATIENCE, |client| {
            client.closed.is_some() || client.connected && client.is_settled()
        });
    }
}

fn rand_key() -> [u8; 32] {
    rand::random()
}

/// How an attempt reached the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Unvalidated,
    ByToken,
    ByRetry,
}

/// Accepts all attempts and keeps them; records how each arrived.
fn accept_all(server: &Endpoint) -> Arc<Mutex<Vec<Way>>> {
    let ways = Arc::new(Mutex::new(Vec::new()));
    let (accepting, log) = (server.clone(), Arc::clone(&ways));
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            log.lock().unwrap().push(match incoming.may_retry() {
                true if incoming.remote_address_validated() => Way::ByToken,
                true => Way::Unvalidated,
                false => Way::ByRetry,
            });
            tokio::spawn(async move {
                if let Ok(connection) = incoming.await {
                    connection.closed().await;
                }
            });
        }
    });
    ways
}

fn server(identity: &Identity, build: impl Fn(Builder) -> Builder) -> Endpoint {
    let config = identity.server(ALPN, TransportConfig::default());
    build(Builder::new(ANY).server(config).workers(WORKERS))
        .bind()
        .unwrap()
}

/// Runs a client to the end of its handshake on a separate thread.
async fn shake_hands(mut client: Client) -> Client {
    let client = tokio::task::spawn_blocking(move || {
        client.shake_hands();
        client
    });
    within(client).await.unwrap()
}

/// A token of this server for clients on 127.0.0.1.
async fn token_of(server: &Endpoint, config: &ClientConfig) -> Vec<u8> {
    let tokens = Tokens::default();
    let address = server.local_addr().unwrap();
    let client = Client::new(Ipv4Addr::LOCALHOST, address, config.clone(), tokens.clone());
    let mut client = shake_hands(client).await;
    let received = Arc::clone(&tokens.received);
    let waiting = tokio::task::spawn_blocking(move || {
        client.run_until(PATIENCE, |_| !tokens.received.lock().unwrap().is_empty());
    });
    within(waiting).await.unwrap();
    let token = received.lock().unwrap().first().cloned();
    token.expect("a token")
}

// test: RFC 9000 §8.1.4, SECURITY.md row 49
#[tokio::test(flavor = "multi_thread")]
async fn a_token_used_100_times_at_two_workers_validates_once() {
    let identity = Identity::new();
    let server = server(&identity, |builder| builder);
    let ways = accept_all(&server);
    let config = identity.client(ALPN, TransportConfig::default());
    let token = token_of(&server, &config).await;
    ways.lock().unwrap().clear();
    let address = server.local_addr().unwrap();
    let mut connected = 0;
    for _ in 0..10 {
        let mut attempts = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let tokens = Tokens {
                used: Some(token.clone()),
                ..Tokens::default()
            };
            let client = Client::new(Ipv4Addr::LOCALHOST, address, config.clone(), tokens);
            attempts.spawn(shake_hands(client));
        }
        for client in attempts.join_all().await {
            assert_eq!(
                client.closed, None,
                "a replay causes a Retry but closes no connection"
            );
            connected += usize::from(client.connected);
        }
    }
    assert_eq!(connected, 100);
    let ways = ways.lock().unwrap().clone();
    let count = |way| ways.iter().filter(|one| **one == way).count();
    assert_eq!(count(Way::ByToken), 1);
    assert_eq!((count(Way::ByRetry), count(Way::Unvalidated)), (99, 0));
    let counts = server.worker_stats();
    assert!(
        counts.iter().all(|worker| worker.connections > 20),
        "both workers served connections"
    );
    let unrouted = || server.stats().unrouted;
    until(|| unrouted().tokens_replayed >= 99).await;
    assert_eq!(unrouted().tokens_spent, 1);
    assert_eq!(unrouted().retries, unrouted().tokens_replayed);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_from_before_a_restart_cause_a_retry() {
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let keyed = |builder: Builder| builder.token_key([7; 32]);
    let first = server(&identity, keyed);
    accept_all(&first);
    let token = token_of(&first, &config).await;
    first.close(0, b"");
    // Tokens contain the millisecond in which they were made. A token from the millisecond in which
    // the second server starts could be from either.
    let next_millisecond = || tokio::time::sleep(Duration::from_millis(2));
    next_millisecond().await;
    let second = server(&identity, keyed);
    next_millisecond().await;
    let ways = accept_all(&second);
    for (token, way) in [
        (token, Way::ByRetry),
        (token_of(&second, &config).await, Way::ByToken),
    ] {
        let tokens = Tokens {
            used: Some(token),
            ..Tokens::default()
        };
        let address = second.local_addr().unwrap();
        let client = Client::new(Ipv4Addr::LOCALHOST, address, config.clone(), tokens);
        let client = shake_hands(client).await;
        assert!(client.connected);
        assert_eq!(ways.lock().unwrap().last(), Some(&way));
    }
}

// test: RFC 9000 §8.1.3
#[tokio::test(flavor = "multi_thread")]
async fn a_store_keeps_tokens_for_later_endpoints() {
    let identity = Identity::new();
    let server = server(&identity, |builder| builder);
    let ways = accept_all(&server);
    let address = server.local_addr().unwrap();
    let store = Arc::new(MemoryTokenStore::default());
    // As far as tokens are concerned, each is a separate process.
    for (keeps, way) in [
        (true, Way::Unvalidated),
        (true, Way::ByToken),
        (false, Way::Unvalidated),
        (true, Way::ByToken),
    ] {
        let mut config = identity.client(ALPN, TransportConfig::default());
        if keeps {
            config = config.token_store(store.clone());
        }
        let client = Builder::new(ANY).client(config).bind().unwrap();
        let connecting = client.connect(address, "localhost").unwrap();
        let connection = within(connecting).await.unwrap();
        assert_eq!(ways.lock().unwrap().last(), Some(&way));
        // The tokens are in the server's first packets after the handshake.
        let mut stream = within(connection.open_bi()).await.unwrap().0;
        stream.write_all(b"all").await.unwrap();
        stream.finish().unwrap();
        within(stream.stopped()).await.unwrap();
        connection.close(0, b"");
        within(client.wait_idle()).await;
    }
}

/// Tokens of one connection are used by others, of all workers.
#[tokio::test(flavor = "multi_thread")]
async fn workers_and_copies_of_a_configuration_share_tokens() {
    let identity = Identity::new();
    let server = server(&identity, |builder| builder);
    let ways = accept_all(&server);
    let address = server.local_addr().unwrap();
    let config = identity.client(ALPN, TransportConfig::default());
    let client = Builder::new(ANY).client(config.clone()).workers(WORKERS);
    let client = client.bind().unwrap();
    for copy in [false, false, true] {
        let connecting = match copy {
            true => client.connect_with(config.clone(), address, "localhost"),
            false => client.connect(address, "localhost"),
        };
        let connection = within(connecting.unwrap()).await.unwrap();
        let mut stream = within(connection.open_bi()).await.unwrap().0;
        stream.write_all(b"all").await.unwrap();
        stream.finish().unwrap();
        within(stream.stopped()).await.unwrap();
    }
    let wanted = [Way::Unvalidated, Way::ByToken, Way::ByToken];
    assert_eq!(*ways.lock().unwrap(), wanted);
}

/// A ClientHello with a post-quantum key share fills two Initial packets.
#[tokio::test(flavor = "multi_thread")]
async fn datagrams_not_buffered_for_an_attempt_are_retransmitted() {
    let identity = Identity::new();
    let config = identity.server(ALPN, TransportConfig::default());
    for (of_one, total) in [(0, usize::MAX), (usize::MAX, 0), (1200, 1200)] {
        let server = Builder::new(ANY).server(config.clone());
        let server = server.incoming_buffer_size(of_one);
        let server = server.incoming_buffer_size_total(total).bind().unwrap();
        let client = identity.client(ALPN, TransportConfig::default());
        let client = Builder::new(ANY).client(client).bind().unwrap();
        let connecting = client.connect(server.local_addr().unwrap(), "localhost");
        let incoming = within(server.accept()).await.unwrap();
        // Everything that the client has to send has arrived.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (near, far) =
            within(async { tokio::join!(connecting.unwrap(), incoming.accept()) }).await;
        assert!(near.is_ok() && far.is_ok(), "{of_one} {total}");
    }
}

/// Clients on an address, one after the other.
async fn clients(
    count: usize,
    local: Ipv4Addr,
    server: &Endpoint,
    config: &ClientConfig,
) -> Vec<Client> {
    let address = server.local_addr().unwrap();
    let mut clients = Vec::new();
    for _ in 0..count {
        let client = Client::new(local, address, config.clone(), Tokens::default());
        clients.push(shake_hands(client).await);
    }
    clients
}

/// How many are connected, and how many were refused.
fn fates(clients: &[Client]) -> (usize, usize) {
    let refused = squall::TransportErrorCode::CONNECTION_REFUSED;
    let is_refused = |client: &&Client| {
        matches!(&client.closed,
            Some(CloseReason::Transport { code, remote: true, .. }) if *code == refused)
    };
    let connected = clients.iter().filter(|c| c.connected && c.closed.is_none());
    let refused = clients.iter().filter(is_refused);
    (connected.count(), refused.count())
}

/// Closes them, and waits until the server has dropped all but `left` connections.
async fn close_all(clients: Vec<Client>, server: &Endpoint, left: u64) {
    let closing = tokio::task::spawn_blocking(move || {
        for mut client in clients {
            let now = client.now();
            client.connection.close(now, 0, b"");
            let mut sent = false;
            client.run_until(PATIENCE, |_| std::mem::replace(&mut sent, true));
        }
    });
    within(closing).await.unwrap();
    until(|| server.stats().connections <= left).await;
}

// test: SECURITY.md row 53
#[tokio::test(flavor = "multi_thread")]
async fn workers_share_the_connections_of_a_prefix() {
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let server = server(&identity, |builder| builder.max_connections_per_prefix(7));
    let ways = accept_all(&server);
    let (here, there) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
    let greedy = clients(20, here, &server, &config).await;
    // Seven, wherever they landed, rather than four at each of two workers.
    assert_eq!(fates(&greedy), (7, 13));
    let ways = ways.lock().unwrap().clone();
    // The others did not reach the application.
    assert_eq!(ways.len(), 7);
    let other = clients(3, there, &server, &config).await;
    assert_eq!(fates(&other), (3, 0));
    let unrouted = || server.stats().unrouted;
    until(|| unrouted().prefix_refusals >= 13 && unrouted().prefix_retries >= 13).await;
    close_all(greedy, &server, 3).await;
    let again = clients(8, here, &server, &config).await;
    assert_eq!(fates(&again), (7, 1), "ended connections make room");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_share_the_limit_of_connections() {
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let server = server(&identity, |builder| builder.max_connections(7));
    let ways = accept_all(&server);
    let first = clients(20, Ipv4Addr::LOCALHOST, &server, &config).await;
    // Seven, wherever they landed, rather than four at each of two workers.
    assert_eq!(fates(&first), (7, 13));
    assert_eq!(ways.lock().unwrap().len(), 7);
    close_all(first, &server, 0).await;
    let again = clients(8, Ipv4Addr::LOCALHOST, &server, &config).await;
    assert_eq!(fates(&again), (7, 1), "ended connections make room");
    // The limit also covers the connections that an endpoint starts.
    let address = server.local_addr().unwrap();
    let client = identity.client(ALPN, TransportConfig::default());
    let started = server.connect_with(client, address, "localhost").unwrap();
    let error = within(started).await.unwrap_err();
    assert!(error.to_string().contains("connection limit"), "{error}");
}

// test: SECURITY.md row 53
#[tokio::test(flavor = "multi_thread")]
async fn memory_of_all_workers_connections_is_limited() {
    const MAX: usize = 2 << 20;
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let server = server(&identity, |builder| builder.max_memory(MAX));
    let ways = accept_all(&server);
    let memory = || usize::try_from(server.stats().memory).unwrap();
    let one = clients(1, Ipv4Addr::LOCALHOST, &server, &config).await;
    until(|| memory() > 8_000).await;
    assert!(memory() < 40_000, "{}", memory());
    // The data of these clients is not read: 1.6 MB, then half as much again.
    let mut hungry = Vec::new();
    for (len, least, way, refused) in [
        (0, 0, Some(Way::Unvalidated), false),
        (400_000, MAX / 4 * 3, Some(Way::ByRetry), false),
        (200_000, MAX, None, true),
    ] {
        if len > 0 {
            for client in clients(4, Ipv4Addr::LOCALHOST, &server, &config).await {
                let client = tokio::task::spawn_blocking(move || write(client, len));
                hungry.push(within(client).await.unwrap());
            }
        }
        until(|| memory() >= least).await;
        let before = ways.lock().unwrap().len();
        let new = clients(1, Ipv4Addr::LOCALHOST, &server, &config).await;
        assert_eq!(
            fates(&new),
            if refused { (0, 1) } else { (1, 0) },
            "{}",
            memory()
        );
        let new_way = ways.lock().unwrap().get(before).copied();
        assert_eq!(new_way, way, "{}", memory());
        hungry.extend(new);
    }
    let both = server.worker_stats();
    assert!(both.iter().all(|worker| worker.memory > 0));
    let unrouted = || server.stats().unrouted;
    until(|| unrouted().memory_retries > 0 && unrouted().memory_refusals > 0).await;
    // They end, and others are accepted again.
    close_all(hungry, &server, 1).await;
    until(|| memory() < 40_000).await;
    let new = clients(1, Ipv4Addr::LOCALHOST, &server, &config).await;
    assert_eq!(fates(&new), (1, 0));
    assert_eq!(ways.lock().unwrap().last(), Some(&Way::Unvalidated));
    close_all(new, &server, 1).await;
    close_all(one, &server, 0).await;
    until(|| memory() == 0).await;
}

/// Writes bytes that are not read, until the server has them.
fn write(mut client: Client, len: usize) -> Client {
    let stream = client.connection.open(squall::Direction::Unidirectional);
    let mut data = squall::Bytes::from(vec![7; len]);
    client.connection.write(stream.unwrap(), &mut data).unwrap();
    assert!(data.is_empty());
    client.run_until(PATIENCE, Client::is_settled);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_releases_its_counts() {
    const EBADF: i32 = 9;
    const MAX: usize = 2 << 20;
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let server = server(&identity, |builder| {
        builder.max_connections_per_prefix(6).max_memory(MAX)
    });
    accept_all(&server);
    let first = clients(6, Ipv4Addr::LOCALHOST, &server, &config).await;
    assert_eq!(fates(&first), (6, 0));
    // More than the limit. At least half ends with the worker, so the next clients fit again.
    let writing = tokio::task::spawn_blocking(move || {
        let first = first.into_iter().map(|client| write(client, 400_000));
        first.collect::<Vec<_>>()
    });
    let first = within(writing).await.unwrap();
    until(|| server.stats().memory > MAX as u64).await;
    let stats = server.worker_stats();
    let (worker, most) = (stats.iter().map(|one| one.connections).enumerate())
        .max_by_key(|(_, connections)| *connections)
        .unwrap();
    server.inject_worker_send_error(worker, EBADF);
    let pinging = tokio::task::spawn_blocking(move || {
        for mut client in first {
            client.connection.ping();
            client.run_until(Duration::from_millis(200), |_| false);
        }
    });
    within(pinging).await.unwrap();
    until(|| server.stats().worker_ends == 1).await;
    assert_eq!(server.worker_stats()[worker].memory, 0);
    let most = usize::try_from(most).unwrap();
    let again = clients(8, Ipv4Addr::LOCALHOST, &server, &config).await;
    assert_eq!(fates(&again), (most, 8 - most));
}
