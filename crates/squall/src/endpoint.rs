//! An endpoint: a UDP port and the worker threads that drive it.

use std::future::{Future, IntoFuture};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustls::pki_types::ServerName;
use squall_core::{ClientConfig, ConnectionIdGenerator, EndpointConfig, ServerConfig, Stages};
use squall_udp::Socket;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::{Builder, check_client, check_server};
use crate::connection::{Connecting, Connection};
use crate::error::ConnectError;
use crate::qlog::QlogFolder;
use crate::sys;
use crate::worker::{self, Command, Common, EndpointStats, Offer, Shared, SocketGroup, WorkerEnd};

/// A UDP port with its worker threads: makes connections, accepts connections, or both. Cheap to clone.
///
/// When the last handle is dropped, no new connections come in; those that exist go on, and the workers end with the
/// last of them. To end at once: [`close`](Self::close), then [`wait_idle`](Self::wait_idle).
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    common: Arc<Common>,
    workers: Vec<WorkerFace>,
    /// The same, as the workers see each other.
    shared: Arc<[Arc<Shared>]>,
    /// Which worker gets the next connection that begins here, and the next task.
    next: AtomicUsize,
    /// What new connections are accepted with. Locked while the workers are told, so that one that starts meanwhile is told
    /// too.
    server: Mutex<Option<Arc<ServerConfig>>>,
    /// The settings that workers start with, at first and again.
    settings: Builder,
}

/// A worker, from outside.
struct WorkerFace {
    shared: Arc<Shared>,
    thread_id: AtomicI32,
}

impl Inner {
    /// The next worker that runs; if there is none, one that does not.
    fn next_worker(&self) -> &Arc<Shared> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let in_turn = |step: usize| &self.workers[(next + step) % self.workers.len()].shared;
        let running = (0..self.workers.len()).map(in_turn);
        running
            .into_iter()
            .find(|worker| !worker.is_dead())
            .unwrap_or_else(|| in_turn(0))
    }

    /// Sends each worker a command; `false` when none of them runs.
    fn command_all(&self, command: impl Fn() -> Command) -> bool {
        let workers = self.workers.iter();
        let told = workers.filter(|worker| worker.shared.command(command()));
        told.count() > 0
    }

    /// Starts a worker; returns its thread's number.
    fn start(&self, index: usize, socket: Arc<Socket>) -> io::Result<i32> {
        let shared = &self.shared[index];
        let server = worker::lock(&self.server);
        let config = self.settings.core_config(shared);
        let mut endpoint = squall_core::Endpoint::new(config, server.clone(), rand::random());
        endpoint.set_token_filter(Box::new(self.common.spent_tokens.clone()));
        if let Some(prefixes) = &self.common.prefixes {
            endpoint.set_prefix_counts(Box::new(prefixes.clone()));
        }
        if let Some(directory) = &self.common.reset_tokens {
            endpoint.set_reset_token_directory(Box::new(directory.clone()));
        }
        let cpus = &self.settings.cpus;
        let start = worker::Start {
            shared: Arc::clone(shared),
            workers: Arc::clone(&self.shared),
            socket,
            endpoint,
            watch_addresses: self.settings.client.is_some() || self.settings.server.is_none(),
            cpu: cpus.get(index % cpus.len().max(1)).copied(),
        };
        start.start()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for worker in &self.workers {
            // Refused only by a worker that has ended.
            worker.shared.command(Command::Detach);
        }
    }
}

impl Endpoint {
    /// An endpoint that accepts connections at `addr`.
    ///
    /// # Errors
    /// As [`Builder::bind`].
    pub fn server(addr: SocketAddr, config: ServerConfig) -> io::Result<Self> {
        Builder::new(addr).server(config).bind()
    }

    /// An endpoint for making connections, bound to `addr` (`0.0.0.0:0` or `[::]:0`: any). Give the configuration to
    /// [`connect_with`](Self::connect_with), or build one in with [`Builder::client`].
    ///
    /// # Errors
    /// As [`Builder::bind`].
    pub fn client(addr: SocketAddr) -> io::Result<Self> {
        Builder::new(addr).bind()
    }

    /// Starts to connect to the server at `addr`, which has to present a certificate for `server_name`, with the
    /// endpoint's client configuration.
    ///
    /// # Errors
    /// There is no client configuration, `server_name` is no name, the endpoint's socket cannot reach `addr`, or the endpoint
    /// is closed. What comes later, the returned future tells.
    pub fn connect(&self, addr: SocketAddr, server_name: &str) -> Result<Connecting, ConnectError> {
        let config = self.0.settings.client.clone();
        let config = config.ok_or(ConnectError::NoClientConfig)?;
        self.start(config, addr, server_name)
    }

    /// As [`connect`](Self::connect), with a configuration of its own.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), or the configuration cannot work.
    pub fn connect_with(
        &self,
        config: ClientConfig,
        addr: SocketAddr,
        server_name: &str,
    ) -> Result<Connecting, ConnectError> {
        check_client(&config).map_err(ConnectError::Refused)?;
        self.start(config, addr, server_name)
    }

    fn start(
        &self,
        config: ClientConfig,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<Connecting, ConnectError> {
        if ServerName::try_from(server_name).is_err() {
            return Err(ConnectError::InvalidServerName(server_name.to_owned()));
        }
        if self.0.common.is_closed() {
            return Err(ConnectError::EndpointClosed);
        }
        // An IPv4 address in IPv6's clothes: what comes from there is told by its own.
        let remote = match remote.ip().to_canonical() {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), remote.port()),
            // With its zone.
            IpAddr::V6(_) => remote,
        };
        if !self.reaches(remote) {
            return Err(ConnectError::InvalidRemoteAddress(remote));
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Connect {
            config,
            remote,
            server_name: server_name.to_owned(),
            reply,
        };
        if !self.0.next_worker().command(command) {
            return Err(ConnectError::EndpointClosed);
        }
        Ok(Connecting::new(answer))
    }

    /// Whether a datagram to `remote` can leave the socket at all.
    fn reaches(&self, remote: SocketAddr) -> bool {
        if remote.port() == 0 || remote.ip().is_unspecified() {
            return false;
        }
        // If the system does not tell where the socket is bound, sending will show it.
        self.local_addr().map_or(true, |local| match local {
            SocketAddr::V4(_) => remote.is_ipv4(),
            SocketAddr::V6(local) => {
                let local = local.ip();
                remote.is_ipv6() && local.to_ipv4_mapped().is_none()
                    || remote.is_ipv4()
                        && (local.is_unspecified() || local.to_ipv4_mapped().is_some())
            }
        })
    }

    /// Waits for the next attempt to connect to this endpoint; `None` once it is closed, and while none of its workers runs
    /// (see [`worker_ended`](Self::worker_ended)): restart one, and call again.
    pub async fn accept(&self) -> Option<Incoming> {
        let offer = self.0.common.accept().await?;
        let shared = Arc::clone(&self.0.shared[offer.worker]);
        Some(Incoming {
            offer: Some(offer),
            shared,
        })
    }

    /// Accepts every attempt and runs `handler` for each connection, on the connection's own worker, until
    /// [`accept`](Self::accept) returns `None`. Handshakes that fail are passed over: the client is told why.
    pub async fn serve<H, F>(&self, handler: H)
    where
        H: Fn(Connection) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let handler = Arc::new(handler);
        while let Some(incoming) = self.accept().await {
            let worker = Arc::clone(&incoming.shared);
            let handler = Arc::clone(&handler);
            worker::spawn(&worker, async move {
                if let Ok(connection) = incoming.await {
                    handler(connection).await;
                }
            });
        }
    }

    /// Has connections to come use another configuration, say with a renewed certificate; those that exist keep theirs.
    /// `None`: no more are accepted.
    ///
    /// # Errors
    /// The configuration cannot work (`InvalidInput`, with the reason).
    pub fn set_server_config(&self, config: Option<ServerConfig>) -> io::Result<()> {
        config.as_ref().map_or(Ok(()), check_server)?;
        let config = config.map(Arc::new);
        let mut server = worker::lock(&self.0.server);
        (self.0).command_all(|| Command::SetServer(config.clone()));
        *server = config;
        Ok(())
    }

    /// The address that the sockets are bound to, with the port that the system chose.
    ///
    /// # Errors
    /// None: the address is known since the bind.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.common.address())
    }

    /// Closes all connections with `code` and `reason`, refuses what comes, and makes [`accept`](Self::accept) end.
    /// Returns at once; [`wait_idle`](Self::wait_idle) waits until the peers were told.
    pub fn close(&self, code: u64, reason: &[u8]) {
        let told = self.0.command_all(|| Command::Close {
            code,
            reason: Bytes::copy_from_slice(reason),
        });
        if !told {
            self.0.common.close();
        }
    }

    /// Lets no new connections in, closes each one when all streams that were finished on it are delivered, and waits until
    /// none is left. Streams that were not finished are lost, as with [`close`](Self::close).
    pub async fn shutdown(&self, code: u64, reason: &[u8]) {
        let told = self.0.command_all(|| Command::ShutDown {
            code,
            reason: Bytes::copy_from_slice(reason),
        });
        if !told {
            self.0.common.close();
        }
        self.wait_idle().await;
    }

    /// Goes on with sockets bound to `addr`, one for each worker, as [`Builder::bind`] makes them: clients' connections move
    /// there at once (RFC 9000 §9.2), and their servers validate the new address. Every connection stays with its worker.
    ///
    /// # Errors
    /// The system refused a socket, or a worker has ended and was not [restarted](Self::restart_worker) (`NotConnected`). All
    /// workers go on where they are then.
    ///
    /// # Panics
    /// Never: workers have their runtime before anybody has the endpoint.
    pub fn rebind(&self, addr: SocketAddr) -> io::Result<()> {
        let options = self.0.settings.socket_options();
        let group = SocketGroup::bind(addr, &options, self.0.workers.len())?;
        let mut current = worker::lock(&self.0.common.sockets);
        if let Some(worker) = current.first_down() {
            let why = format!("worker {worker} has ended: restart it first");
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        // Whatever can fail comes before the first worker is told.
        let readable = (self.0.workers.iter().zip(group.sockets()))
            .map(|(worker, socket)| worker.shared.watch(Arc::clone(socket)))
            .collect::<io::Result<Vec<_>>>()?;
        for (worker, readable) in self.0.workers.iter().zip(readable) {
            worker.shared.command(Command::Rebind(readable));
        }
        *current = group;
        Ok(())
    }

    /// Waits until a worker ends although the endpoint is in use, and says why: its socket is gone, nothing could be received
    /// for ten minutes, or code on its thread panicked. By then its connections have ended, and tasks that were spawned on it
    /// are cancelled; the other workers go on and take its share of new connections. `None` once the endpoint is closed.
    ///
    /// Each end is reported once, to one caller, whether or not somebody waited when it came; the last 64 are kept. Dropping
    /// the future loses none.
    ///
    /// ```no_run
    /// async fn keep_running(endpoint: squall::Endpoint) -> std::io::Result<()> {
    ///     while let Some(end) = endpoint.worker_ended().await {
    ///         eprintln!("{end}");
    ///         endpoint.restart_worker(end.worker)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn worker_ended(&self) -> Option<WorkerEnd> {
        self.0.common.worker_ended().await
    }

    /// Starts a worker that has ended again: a new thread, and a new socket on the same port, which takes the place of the
    /// old one when datagrams are steered. It begins without connections. The peers of those that ended are told by a
    /// stateless reset (RFC 9000 §10.3) when they next send, by this worker as by those that stood in for it.
    ///
    /// Blocks until the thread runs, well below a millisecond on an idle machine.
    ///
    /// # Errors
    /// There is no such worker (`InvalidInput`), it runs (`AlreadyExists`), the endpoint is closed (`NotConnected`), or the
    /// system refused a socket, a thread or a CPU: the worker may then be restarted later.
    pub fn restart_worker(&self, worker: usize) -> io::Result<()> {
        let inner = &self.0;
        let Some(face) = inner.workers.get(worker) else {
            let why = format!("there are {} workers", inner.workers.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        if inner.common.is_closed() {
            let why = "the endpoint is closed";
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        // Locked to the end, so that two of these make one worker.
        let mut sockets = worker::lock(&inner.common.sockets);
        if !sockets.is_down(worker) {
            let why = format!("worker {worker} runs");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let socket = sockets.replace(worker, &inner.settings.socket_options())?;
        let started = inner.start(worker, socket);
        if started.is_err() {
            // The new socket holds the place, as the old one did.
            sockets.on_end(worker);
        }
        let thread_id = started?;
        face.thread_id.store(thread_id, Ordering::Relaxed);
        sockets.on_start(worker);
        Ok(())
    }

    /// Waits until no connection is left, closing ones included (RFC 9000 §10.2: some three probe timeouts).
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.0.common.idle.notified();
            let mut idle = std::pin::pin!(idle);
            // Registered before the look, so that no notice falls between.
            idle.as_mut().enable();
            if (self.0.workers.iter()).all(|worker| worker.shared.is_idle()) {
                return;
            }
            idle.await;
        }
    }

    /// The counters since the endpoint was built, of all its workers.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let mut sum = EndpointStats::default();
        self.worker_stats().into_iter().for_each(|one| sum += one);
        sum
    }

    /// The counters of each worker.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<EndpointStats> {
        let workers = self.0.workers.iter();
        workers.map(|one| one.shared.stats()).collect()
    }

    /// What the kernel granted each socket: bundles and buffers.
    #[must_use]
    ///
    /// All zero while no worker runs.
    pub fn limits(&self) -> squall_udp::Limits {
        let sockets = worker::lock(&self.0.common.sockets);
        let first = sockets.sockets().next();
        first.map_or_else(squall_udp::Limits::default, |socket| socket.limits())
    }

    /// Time by stage of the workers' work, summed, in ticks of [`ticks`](crate::ticks); all zero unless
    /// [`Builder::accounting`] was set.
    #[must_use]
    pub fn stages(&self) -> Stages {
        let all = self.0.workers.iter();
        all.map(|worker| worker::lock(&worker.shared.stages).clone())
            .reduce(|mut sum, one| {
                sum.add(&one);
                sum
            })
            .unwrap_or_else(Stages::off)
    }

    /// Runs a task on a worker's thread, on each in turn: it shares that thread with the transport and must not block. A
    /// task that works with a connection belongs on its worker: [`Connection::spawn`](crate::Connection::spawn). It
    /// ends, unfinished, with the worker.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        worker::spawn(self.0.next_worker(), task)
    }

    /// Makes each worker's next send call fail once with `errno`: for tests of what happens then.
    #[doc(hidden)]
    pub fn inject_send_error(&self, errno: i32) {
        for worker in 0..self.0.workers.len() {
            self.inject_worker_send_error(worker, errno);
        }
    }

    /// As [`inject_send_error`](Self::inject_send_error), for one worker.
    #[doc(hidden)]
    pub fn inject_worker_send_error(&self, worker: usize, errno: i32) {
        if let Some(worker) = self.0.workers.get(worker) {
            worker.shared.inject_send_error(errno);
        }
    }

    /// Makes each worker's receive calls fail with `errno` until it is told 0: for tests of what happens then.
    #[doc(hidden)]
    pub fn inject_recv_error(&self, errno: i32) {
        for worker in &self.0.workers {
            worker.shared.inject_recv_error(errno);
        }
    }

    /// The worker threads' numbers in the system's lists (Linux: their tids), for CPU accounting; 0 where there are none.
    #[must_use]
    pub fn worker_thread_ids(&self) -> Vec<i32> {
        let threads = self.0.workers.iter();
        threads
            .map(|one| one.thread_id.load(Ordering::Relaxed))
            .collect()
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("local_addr", &self.local_addr().ok())
            .field("workers", &self.0.workers.len())
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Binds the sockets and starts the workers.
    ///
    /// # Errors
    /// A setting cannot work (`InvalidInput`, with the reason), or the system refused a socket, a thread or a CPU.
    pub fn bind(self) -> io::Result<Endpoint> {
        self.check()?;
        self.start_random();
        let group = SocketGroup::bind(self.addr, &self.socket_options(), self.workers)?;
        let sockets: Vec<Arc<Socket>> = group.sockets().cloned().collect();
        let qlog = self.qlog_dir.as_deref().map(QlogFolder::open).transpose()?;
        let common = Common::new(&self, qlog, group);
        let common = Arc::new(common);
        let stages = || {
            if self.accounting {
                Stages::on(sys::ticks).with_cpu_clock(sys::thread_cpu)
            } else {
                Stages::off()
            }
        };
        let shared: Arc<[Arc<Shared>]> = (sockets.iter().enumerate())
            .map(|(index, socket)| {
                let (common, socket) = (Arc::clone(&common), Arc::clone(socket));
                Arc::new(Shared::new(index, common, socket, stages()))
            })
            .collect();
        let mut inner = Inner {
            common,
            workers: Vec::new(),
            shared,
            next: AtomicUsize::new(0),
            server: Mutex::new(self.server.clone().map(Arc::new)),
            settings: self,
        };
        for (index, socket) in sockets.into_iter().enumerate() {
            // Those before it end if this one does not start: `inner` is dropped.
            let thread_id = inner.start(index, socket)?;
            inner.workers.push(WorkerFace {
                shared: Arc::clone(&inner.shared[index]),
                thread_id: AtomicI32::new(thread_id),
            });
        }
        Ok(Endpoint(Arc::new(inner)))
    }

    /// Draws a byte from the random generators of the TLS configurations. aws-lc's gathers entropy on its first use, which takes up
    /// to 150 ms: the first handshake would wait for it.
    fn start_random(&self) {
        let server = (self.server.as_ref()).map(|config| config.tls.crypto_provider());
        let client = (self.client.as_ref()).map(|config| config.tls.crypto_provider());
        for provider in server.into_iter().chain(client) {
            // A failure comes back in the handshake, where it can be reported.
            let _ = provider.secure_random.fill(&mut [0]);
        }
    }

    /// The settings of one worker's part of the endpoint: limits are divided among all.
    fn core_config(&self, shared: &Shared) -> EndpointConfig {
        let share = |limit: usize| limit.div_ceil(self.workers);
        let mut config = EndpointConfig::new(self.reset_key);
        config.cid_generator = ConnectionIdGenerator::Plain {
            len: config.cid_generator.len(),
            worker_index: u8::try_from(shared.index).unwrap_or(0),
        };
        config.workers = u8::try_from(self.workers).unwrap_or(1);
        config.max_connections = share(self.max_connections);
        config.max_incoming = share(self.max_incoming.max(1));
        config.max_handshakes = share(self.max_handshakes);
        config.retry_from = share(self.retry_from);
        config.token_key = self.token_key.unwrap_or(config.token_key);
        // Counted by all workers together.
        config.max_connections_per_prefix = self.max_connections_per_prefix;
        config.ipv4_prefix_bits = self.ipv4_prefix_bits;
        config.ipv6_prefix_bits = self.ipv6_prefix_bits;
        config.max_memory = self.max_memory;
        config.new_token_lifetime = self.new_token_lifetime;
        config.unix_time_at_zero = shared.clock.unix_time_at_zero();
        config
    }
}

/// An attempt to connect to this endpoint, before any cryptography: await it or [`accept`](Self::accept) it,
/// [`refuse`](Self::refuse) it or [`ignore`](Self::ignore) it. Dropped, it is ignored.
pub struct Incoming {
    offer: Option<Box<Offer>>,
    shared: Arc<Shared>,
}

impl Incoming {
    /// Whether a token has shown that the address is the client's own (RFC 9000 §8.1).
    #[must_use]
    pub fn remote_address_validated(&self) -> bool {
        (self.offer.as_ref()).is_some_and(|offer| offer.incoming.remote_address_validated())
    }

    /// Whether [`retry`](Self::retry) would do: a client follows one Retry only.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        (self.offer.as_ref()).is_some_and(|offer| offer.incoming.may_retry())
    }

    /// Has the client show first that its address is its own (RFC 9000 §8.1.2): it comes again, as another attempt. One
    /// that has done so is refused.
    pub fn retry(mut self) {
        if let Some(offer) = self.offer.take() {
            self.shared.command_to(offer.life, Command::Retry { offer });
        }
    }

    /// Where the attempt comes from; see [`remote_address_validated`](Self::remote_address_validated).
    ///
    /// # Panics
    /// Never: the attempt is there until it is decided, which consumes it.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.offer
            .as_ref()
            .map_or_else(|| ([0, 0, 0, 0], 0).into(), |offer| offer.run.path.remote)
    }

    /// Starts the handshake.
    pub fn accept(mut self) -> Connecting {
        let (reply, answer) = oneshot::channel();
        if let Some(offer) = self.offer.take() {
            // If the worker has ended, the reply is dropped and the future tells.
            self.shared
                .command_to(offer.life, Command::Accept { offer, reply });
        }
        Connecting::new(answer)
    }

    /// Says no, with CONNECTION_REFUSED (RFC 9000 §20.1).
    pub fn refuse(mut self) {
        if let Some(offer) = self.offer.take() {
            self.shared
                .command_to(offer.life, Command::Refuse { offer });
        }
    }

    /// Says nothing, as if no packet had come.
    pub fn ignore(self) {
        drop(self);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(offer) = self.offer.take() {
            (self.shared).command_to(offer.life, Command::Ignore(offer.key()));
        }
    }
}

impl IntoFuture for Incoming {
    type Output = Result<crate::connection::Connection, ConnectError>;
    type IntoFuture = Connecting;

    fn into_future(self) -> Connecting {
        self.accept()
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("remote_address", &self.remote_address())
            .finish_non_exhaustive()
    }
}
