//! An endpoint: a UDP port and the worker threads that drive it.

use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
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
use crate::worker::{self, Command, Common, EndpointStats, Offer, ResetTokens, Shared};

/// A UDP port with its worker threads: makes connections, accepts connections, or both. Cheap to clone.
///
/// When the last handle is dropped, no new connections come in; those that exist go on, and the workers end with the
/// last of them. To end at once: [`close`](Self::close), then [`wait_idle`](Self::wait_idle).
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    common: Arc<Common>,
    workers: Vec<WorkerFace>,
    /// The workers' sockets, by index: in use, or about to be. Locked while all workers are told to move, so that two
    /// moves at a time end in one place.
    sockets: Mutex<Vec<Arc<Socket>>>,
    /// Which worker gets the next connection that begins here, and the next task.
    next: AtomicUsize,
    client: Option<ClientConfig>,
    /// What sockets are to be like.
    options: squall_udp::Options,
}

/// A worker, from outside.
struct WorkerFace {
    shared: Arc<Shared>,
    thread_id: i32,
}

impl Inner {
    fn next_worker(&self) -> &Arc<Shared> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.workers[next % self.workers.len()].shared
    }

    fn socket(&self) -> Arc<Socket> {
        Arc::clone(&worker::lock(&self.sockets)[0])
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
        let config = self.0.client.clone().ok_or(ConnectError::NoClientConfig)?;
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

    /// Waits for the next attempt to connect to this endpoint; `None` once it is closed.
    pub async fn accept(&self) -> Option<Incoming> {
        let offer = poll_fn(|cx| self.0.common.poll_accept(cx)).await?;
        let shared = Arc::clone(&self.0.workers[offer.worker].shared);
        Some(Incoming {
            offer: Some(offer),
            shared,
        })
    }

    /// Accepts every attempt and runs `handler` for each connection, on the connection's own worker, until the endpoint is
    /// closed. Handshakes that fail are passed over: the client is told why.
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
        for worker in &self.0.workers {
            worker.shared.command(Command::SetServer(config.clone()));
        }
        Ok(())
    }

    /// The address that the sockets are bound to, with the port that the system chose.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket().local_addr()
    }

    /// Closes all connections with `code` and `reason`, refuses what comes, and makes [`accept`](Self::accept) end.
    /// Returns at once; [`wait_idle`](Self::wait_idle) waits until the peers were told.
    pub fn close(&self, code: u64, reason: &[u8]) {
        for worker in &self.0.workers {
            worker.shared.command(Command::Close {
                code,
                reason: Bytes::copy_from_slice(reason),
            });
        }
    }

    /// Lets no new connections in, closes each one when all streams that were finished on it are delivered, and waits until
    /// none is left. Streams that were not finished are lost, as with [`close`](Self::close).
    pub async fn shutdown(&self, code: u64, reason: &[u8]) {
        for worker in &self.0.workers {
            worker.shared.command(Command::ShutDown {
                code,
                reason: Bytes::copy_from_slice(reason),
            });
        }
        self.wait_idle().await;
    }

    /// Goes on with sockets bound to `addr`, one for each worker, as [`Builder::bind`] makes them: clients' connections move
    /// there at once (RFC 9000 §9.2), and their servers validate the new address. Every connection stays with its worker.
    ///
    /// # Errors
    /// The system refused a socket, or a worker has ended. All workers go on where they are then.
    ///
    /// # Panics
    /// Never: workers have their runtime before anybody has the endpoint.
    pub fn rebind(&self, addr: SocketAddr) -> io::Result<()> {
        let sockets = bind_group(addr, &self.0.options, self.0.workers.len())?;
        // Whatever can fail comes before the first worker is told.
        let readable = (self.0.workers.iter().zip(&sockets))
            .map(|(worker, socket)| worker.shared.watch(Arc::clone(socket)))
            .collect::<io::Result<Vec<_>>>()?;
        let mut current = worker::lock(&self.0.sockets);
        for (worker, readable) in self.0.workers.iter().zip(readable) {
            worker.shared.command(Command::Rebind(readable));
        }
        *current = sockets;
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
        let read = |one: &WorkerFace| one.shared.counters.read(one.shared.udp_stats());
        self.0.workers.iter().map(read).collect()
    }

    /// What the kernel granted each socket: bundles and buffers.
    #[must_use]
    pub fn limits(&self) -> squall_udp::Limits {
        self.0.socket().limits()
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
        for worker in &self.0.workers {
            worker.shared.inject_send_error(errno);
        }
    }

    /// The worker threads' numbers in the system's lists (Linux: their tids), for CPU accounting; 0 where there are none.
    #[must_use]
    pub fn worker_thread_ids(&self) -> Vec<i32> {
        self.0.workers.iter().map(|one| one.thread_id).collect()
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
        let options = self.socket_options();
        let sockets = bind_group(self.addr, &options, self.workers)?;
        let qlog = self.qlog_dir.as_deref().map(QlogFolder::open).transpose()?;
        let common = Arc::new(Common::new(self.max_incoming, qlog));
        let stages = || {
            if self.accounting {
                Stages::on(sys::ticks).with_cpu_clock(sys::thread_cpu)
            } else {
                Stages::off()
            }
        };
        let all: Arc<[Arc<Shared>]> = (sockets.iter().enumerate())
            .map(|(index, socket)| {
                let (common, socket) = (Arc::clone(&common), Arc::clone(socket));
                Arc::new(Shared::new(index, common, socket, stages()))
            })
            .collect();
        let server = self.server.clone().map(Arc::new);
        let reset_tokens = (self.workers > 1).then(ResetTokens::default);
        let mut inner = Inner {
            common,
            workers: Vec::new(),
            sockets: Mutex::new(sockets.clone()),
            next: AtomicUsize::new(0),
            client: self.client.clone(),
            options,
        };
        for (socket, shared) in sockets.into_iter().zip(all.iter()) {
            let config = self.core_config(shared);
            let mut endpoint = squall_core::Endpoint::new(config, server.clone(), rand::random());
            if let Some(directory) = &reset_tokens {
                endpoint.set_reset_token_directory(Box::new(directory.clone()));
            }
            let start = worker::Start {
                shared: Arc::clone(shared),
                workers: Arc::clone(&all),
                socket,
                endpoint,
                cpu: (self.cpus.get(shared.index % self.cpus.len().max(1))).copied(),
            };
            // Those before it end if this one does not start: `inner` is dropped.
            let thread_id = start.start()?;
            inner.workers.push(WorkerFace {
                shared: Arc::clone(shared),
                thread_id,
            });
        }
        Ok(Endpoint(Arc::new(inner)))
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
        config.unix_time_at_zero = shared.clock.unix_time_at_zero();
        config
    }
}

/// A socket for each worker, all on one port, and datagrams steered to the one that they are for.
fn bind_group(
    addr: SocketAddr,
    options: &squall_udp::Options,
    workers: usize,
) -> io::Result<Vec<Arc<Socket>>> {
    if workers == 1 {
        return Ok(vec![Arc::new(Socket::bind(addr, options)?)]);
    }
    let shared = squall_udp::Options {
        reuse_port: true,
        ..options.clone()
    };
    // The first one has the port to itself if that is what was asked for: a busy port is told, and another endpoint's
    // sockets never come among ours, which the kernel tells apart by number. Only of Linux it is known that a port can be
    // shared later.
    let first = if cfg!(target_os = "linux") {
        let first = Socket::bind(addr, options)?;
        first.share_port()?;
        first
    } else {
        Socket::bind(addr, &shared)?
    };
    let addr = first.local_addr()?;
    let mut sockets = vec![Arc::new(first)];
    for _ in 1..workers {
        sockets.push(Arc::new(Socket::bind(addr, &shared)?));
    }
    if let Ok(count) = u8::try_from(workers) {
        // Where the kernel cannot, workers hand each other what is not their own.
        let _ = sockets[0].steer(count);
    }
    Ok(sockets)
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
            self.shared.command(Command::Retry { offer });
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
            self.shared.command(Command::Accept { offer, reply });
        }
        Connecting::new(answer)
    }

    /// Says no, with CONNECTION_REFUSED (RFC 9000 §20.1).
    pub fn refuse(mut self) {
        if let Some(offer) = self.offer.take() {
            self.shared.command(Command::Refuse { offer });
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
            self.shared.command(Command::Ignore(offer.key()));
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
