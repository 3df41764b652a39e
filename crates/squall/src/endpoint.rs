//! An endpoint: a UDP port and the worker threads that drive it.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustls::pki_types::ServerName;
use squall_core::{ClientConfig, EndpointConfig, ServerConfig, Stages};
use squall_wire::Path;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::{Builder, check_client, check_server};
use crate::connection::Connecting;
use crate::datagram_socket::DatagramSocket;
use crate::error::ConnectError;
use crate::incoming::Incoming;
use crate::socket::Socket;
use crate::sys;
use crate::takeover::Claim;
use crate::worker::{
    self, AcceptPlace, Command, Common, EndpointStats, Shared, SocketGroup, WorkerEnd,
};

/// A UDP port with its worker threads. It makes connections, accepts connections, or both, and is
/// cheap to clone.
///
/// When the last handle is dropped, new connections are no longer accepted; existing ones continue,
/// and the workers end with the last of them. To end at once, call [`close`](Self::close) and then
/// [`wait_idle`](Self::wait_idle).
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    common: Arc<Common>,
    workers: Vec<WorkerFace>,
    /// The same workers, as they see each other.
    shared: Arc<[Arc<Shared>]>,
    /// Which worker gets the next connection that begins here. Counted apart from tasks: a program
    /// that spawns a task for each connection would otherwise have all connections on every second
    /// worker.
    next_connection: AtomicUsize,
    /// Which worker gets the next task.
    next_task: AtomicUsize,
    /// The configuration for new connections. Locked while it is passed to the workers, so that one
    /// that starts at that time gets it too.
    server: Mutex<Option<Arc<ServerConfig>>>,
    /// The settings that workers start and restart with.
    settings: Builder,
}

/// A worker, seen from outside.
struct WorkerFace {
    shared: Arc<Shared>,
    thread_id: AtomicI32,
}

impl Inner {
    /// The next running worker in turn, or an ended one if none runs.
    fn in_turn(&self, turn: &AtomicUsize) -> &Arc<Shared> {
        let next = turn.fetch_add(1, Ordering::Relaxed);
        let after = |step: usize| &self.workers[(next + step) % self.workers.len()].shared;
        let mut all = (0..self.workers.len()).map(after);
        all.find(|worker| !worker.is_dead())
            .unwrap_or_else(|| after(0))
    }

    /// Sends each worker a command; `false` when none of them runs.
    fn command_all(&self, command: impl Fn() -> Command) -> bool {
        let workers = self.workers.iter();
        let told = workers.filter(|worker| worker.shared.command(command()));
        told.count() > 0
    }

    /// Starts a worker; returns its thread's number, 0 if it is a task.
    fn start(&self, index: usize, socket: Arc<Socket>) -> io::Result<i32> {
        let shared = &self.shared[index];
        let server = worker::lock(&self.server);
        let config = self.settings.core_config(shared);
        let seed = self.settings.seed(shared);
        let mut endpoint = squall_core::Endpoint::new(config, server.clone(), seed);
        endpoint.set_predecessor(!self.common.links(index).is_empty());
        endpoint.set_token_filter(Box::new(self.common.spent_tokens.clone()));
        endpoint.set_connection_count(self.common.connections.clone());
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
        };
        match &self.settings.runtime {
            Some(runtime) => start.on_runtime(runtime).map(|()| 0),
            None => start.on_thread(cpus.get(index % cpus.len().max(1)).copied()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for worker in &self.workers {
            // Refused only by a worker that has ended.
            worker.shared.command(Command::Detach);
        }
        self.common.on_detach();
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

    /// An endpoint for outgoing connections, bound to `addr` (`0.0.0.0:0` or `[::]:0` for any
    /// address and port). Pass the configuration to [`connect_with`](Self::connect_with), or set a
    /// default with [`Builder::client`].
    ///
    /// # Errors
    /// As [`Builder::bind`].
    pub fn client(addr: SocketAddr) -> io::Result<Self> {
        Builder::new(addr).bind()
    }

    /// Connects to the server at `addr` with the endpoint's client configuration. The server must
    /// present a certificate for `server_name`. When many attempts are made at once, a worker
    /// begins a few at a time, and the handshake timeout of each counts from when it begins.
    ///
    /// # Errors
    /// The endpoint has no client configuration, `server_name` is not a valid DNS name or IP
    /// address, the endpoint's socket cannot reach `addr`, or the endpoint is closed. Later
    /// failures are reported by the returned future.
    pub fn connect(&self, addr: SocketAddr, server_name: &str) -> Result<Connecting, ConnectError> {
        let config = self.0.settings.client.clone();
        let config = config.ok_or(ConnectError::NoClientConfig)?;
        self.start(config, addr, server_name)
    }

    /// As [`connect`](Self::connect), but with the given configuration.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), or the configuration is invalid.
    pub fn connect_with(
        &self,
        config: ClientConfig,
        addr: SocketAddr,
        server_name: &str,
    ) -> Result<Connecting, ConnectError> {
        check_client(&config).map_err(ConnectError::InvalidConfig)?;
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
        // Unmap IPv4-mapped IPv6 addresses: replies carry the plain IPv4 address.
        let remote = match remote.ip().to_canonical() {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), remote.port()),
            // Keeps its zone.
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
        let worker = self.0.in_turn(&self.0.next_connection);
        if !worker.command(command) {
            return Err(ConnectError::EndpointClosed);
        }
        let local = None;
        Ok(Connecting::new(answer, Path { remote, local }))
    }

    /// Whether a datagram to `remote` can leave the socket at all.
    fn reaches(&self, remote: SocketAddr) -> bool {
        let ip = remote.ip();
        let is_of_a_host = match ip {
            // RFC 1122 §3.2.1.3: 0.0.0.0/8 is "this network".
            IpAddr::V4(ip) => ip.octets()[0] != 0 && !ip.is_broadcast(),
            IpAddr::V6(ip) => !ip.is_unspecified(),
        };
        if remote.port() == 0 || !is_of_a_host || ip.is_multicast() {
            return false;
        }
        // fe80::1 without its zone: the system does not know the interface, unless the socket is
        // bound to one. Sockets of the application's own may be.
        let settings = &self.0.settings;
        let may_be_bound =
            settings.device.is_some() || settings.carrier.is_some() || !settings.sockets.is_empty();
        if let SocketAddr::V6(v6) = remote
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
            && !may_be_bound
            && self
                .local_addr()
                .is_ok_and(|local| local.ip().is_unspecified())
        {
            return false;
        }
        // If the system does not report where the socket is bound, the send will fail instead.
        self.local_addr().map_or(true, |local| match local {
            SocketAddr::V4(_) => remote.is_ipv4(),
            SocketAddr::V6(local) => {
                let local = local.ip();
                let both = local.is_unspecified() && !self.0.settings.only_v6;
                remote.is_ipv6() && local.to_ipv4_mapped().is_none()
                    || remote.is_ipv4() && (both || local.to_ipv4_mapped().is_some())
            }
        })
    }

    /// Waits for the next incoming connection attempt. Returns `None` once the endpoint is closed,
    /// and while none of its workers runs (see [`worker_ended`](Self::worker_ended)): restart a
    /// worker, then call again. Without a server configuration it waits until there is one.
    /// Cancel-safe: a future that is dropped has taken no attempt.
    pub fn accept(&self) -> Accept {
        Accept {
            place: AcceptPlace::for_offers(&self.0.common),
            endpoint: Arc::clone(&self.0),
        }
    }

    /// Replaces the server configuration for new connections, for example after a certificate
    /// renewal. Existing connections keep theirs. With `None`, attempts to connect are ignored:
    /// clients repeat them until their handshake timeout. [`Incoming::refuse`] tells them at once.
    ///
    /// # Errors
    /// The configuration is invalid (`InvalidInput`, with the reason).
    pub fn set_server_config(&self, config: Option<ServerConfig>) -> io::Result<()> {
        config.as_ref().map_or(Ok(()), check_server)?;
        let config = config.map(Arc::new);
        let mut server = worker::lock(&self.0.server);
        (self.0).command_all(|| Command::SetServer(config.clone()));
        *server = config;
        Ok(())
    }

    /// The address that the sockets are bound to, with the port chosen by the system.
    ///
    /// # Errors
    /// None: the address has been known since the bind.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.common.address())
    }

    /// Closes all connections with `code` and `reason`, refuses new ones, and makes
    /// [`accept`](Self::accept) return `None`. Returns at once; [`wait_idle`](Self::wait_idle)
    /// waits until the peers have been informed.
    pub fn close(&self, code: u64, reason: &[u8]) {
        let told = self.0.command_all(|| Command::Close {
            code,
            reason: Bytes::copy_from_slice(reason),
        });
        if !told {
            self.0.common.close();
        }
    }

    /// Stops accepting connections, closes each connection once the streams that were finished
    /// before this call are delivered, and waits until none is left. Other streams are lost, as
    /// with [`close`](Self::close).
    ///
    /// If the future is dropped after it was polled, the shutdown goes on.
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

    /// Replaces the sockets with new ones bound to `addr`, one per worker, as in [`Builder::bind`].
    /// Client connections migrate there without waiting for validation (RFC 9000 §9.2): each when
    /// it next sends, and idle ones at 32 per millisecond and worker. Their servers validate the
    /// new address. Every connection stays on its worker. A connection whose server is of another
    /// address family than `addr` can send nothing until the next call.
    ///
    /// # Errors
    /// The system refused a socket, or a worker has ended and was not
    /// [restarted](Self::restart_worker) (`NotConnected`). All workers then keep their current
    /// sockets.
    pub fn rebind(&self, addr: SocketAddr) -> io::Result<()> {
        let options = self.0.settings.socket_options();
        self.move_to(SocketGroup::bind(addr, &options, self.0.workers.len())?)
    }

    /// As [`rebind`](Self::rebind), with bound sockets, one per worker; see
    /// [`Builder::sockets`].
    ///
    /// # Errors
    /// There is not one socket per worker, or the sockets are not bound to one address or are
    /// connected (`InvalidInput`); or as [`rebind`](Self::rebind).
    pub fn rebind_sockets(&self, sockets: impl IntoIterator<Item = UdpSocket>) -> io::Result<()> {
        let group = SocketGroup::adopt(sockets, &self.0.settings.socket_options())?;
        let (sockets, workers) = (group.sockets().count(), self.0.workers.len());
        if sockets != workers {
            return Err(unequal(sockets, workers));
        }
        self.move_to(group)
    }

    /// As [`rebind`](Self::rebind), but to a carrier of datagrams other than a UDP socket; see
    /// [`Builder::datagram_socket`]. The endpoint may have used UDP before.
    ///
    /// # Errors
    /// The endpoint has several workers (`InvalidInput`), or the socket does not know its address;
    /// or as [`rebind`](Self::rebind).
    pub fn rebind_datagram_socket(&self, socket: Arc<dyn DatagramSocket>) -> io::Result<()> {
        if self.0.workers.len() != 1 {
            let why = "with a datagram socket there is one worker";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.move_to(SocketGroup::carried_by(socket)?)
    }

    fn move_to(&self, group: SocketGroup) -> io::Result<()> {
        let mut current = worker::lock(&self.0.common.sockets);
        if let Some(worker) = current.first_down() {
            let why = format!("worker {worker} has ended; restart it first");
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        // Everything that can fail comes before the first worker is informed.
        let readable = (self.0.workers.iter().zip(group.sockets()))
            .map(|(worker, socket)| worker.shared.watch(Arc::clone(socket)))
            .collect::<io::Result<Vec<_>>>()?;
        for (worker, readable) in self.0.workers.iter().zip(readable) {
            worker.shared.command(Command::Rebind(readable));
        }
        *current = group;
        Ok(())
    }

    /// Waits until a worker ends while the endpoint is in use, and returns the reason: its socket
    /// is gone, nothing could be received for ten minutes, or code on its thread panicked. By then
    /// the worker's connections have ended and tasks spawned on it are cancelled; the other workers
    /// continue and take over its share of new connections. Returns `None` once the endpoint is
    /// closed.
    ///
    /// Each end is reported once, to one caller, even if no caller was waiting when it happened;
    /// the last 64 are kept. Cancel-safe: dropping the future loses no report.
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

    /// Restarts a worker that has ended, with a new thread and a new socket on the same port, which
    /// replaces the old one in datagram steering. The worker starts without connections. Peers of
    /// its former connections receive a stateless reset (RFC 9000 §10.3) when they next send; the
    /// workers that stood in for it send the same resets.
    ///
    /// Blocks until the worker's thread, if it has one, runs: well below a millisecond on an idle
    /// machine.
    ///
    /// # Errors
    /// There is no such worker (`InvalidInput`), it is running (`AlreadyExists`), the endpoint is
    /// closed (`NotConnected`), or the system refused a socket, a thread or a CPU; the last can be
    /// retried later.
    pub fn restart_worker(&self, worker: usize) -> io::Result<()> {
        let inner = &self.0;
        let Some(face) = inner.workers.get(worker) else {
            let why = format!("no such worker: the endpoint has {}", inner.workers.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        if inner.common.is_closed() {
            let why = "the endpoint is closed";
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        // Locked to the end, so that concurrent calls start only one worker.
        let mut sockets = worker::lock(&inner.common.sockets);
        if !sockets.is_down(worker) {
            let why = format!("worker {worker} is already running");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let socket = sockets.replace(worker, &inner.settings.socket_options())?;
        let started = inner.start(worker, socket);
        if started.is_err() {
            // The new socket holds the worker's place, as the old one did.
            sockets.on_end(worker);
        }
        let thread_id = started?;
        face.thread_id.store(thread_id, Ordering::Relaxed);
        sockets.on_start(worker);
        Ok(())
    }

    /// Waits until no connection is left, including closing ones (RFC 9000 §10.2: about three probe
    /// timeouts). Cancel-safe.
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.0.common.idle.notified();
            let mut idle = std::pin::pin!(idle);
            // Registered before the check, so that no notification is missed.
            idle.as_mut().enable();
            if (self.0.workers.iter()).all(|worker| worker.shared.is_idle()) {
                return;
            }
            idle.await;
        }
    }

    /// A future that waits until the endpoint's sockets are closed, so that its port can be bound
    /// again. They close once all handles of the endpoint are dropped and no connection is left;
    /// handles of connections that have ended do not keep them open. The future is no handle: take
    /// it, call [`shutdown`](Self::shutdown), drop the endpoint, then await it. Cancel-safe.
    ///
    /// Duplicates of the sockets are not waited for: one that was passed to
    /// [`Builder::sockets`], or that another process has taken over.
    ///
    /// ```no_run
    /// # use squall::{Endpoint, ServerConfig};
    /// # async fn restart(endpoint: Endpoint, config: ServerConfig) -> std::io::Result<()> {
    /// let address = endpoint.local_addr()?;
    /// let closed = endpoint.sockets_closed();
    /// endpoint.shutdown(0, b"").await;
    /// drop(endpoint);
    /// closed.await;
    /// let endpoint = Endpoint::server(address, config)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sockets_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let common = Arc::clone(&self.0.common);
        async move { common.sockets_closed().await }
    }

    /// The counters of all workers since the endpoint was built, summed.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let mut sum = EndpointStats::default();
        self.worker_stats().into_iter().for_each(|one| sum += one);
        sum
    }

    /// The counters of each worker since the endpoint was built.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<EndpointStats> {
        let workers = self.0.workers.iter();
        workers.map(|one| one.shared.stats()).collect()
    }

    /// What the kernel granted to each socket: bundle sizes and buffer sizes. All zero while no
    /// worker runs.
    #[must_use]
    pub fn limits(&self) -> squall_udp::Limits {
        let sockets = worker::lock(&self.0.common.sockets);
        let first = sockets.sockets().next();
        first.map_or_else(squall_udp::Limits::default, |socket| socket.limits())
    }

    /// Time spent in each stage of the workers' loop, summed over all workers, in ticks of
    /// [`ticks`](crate::ticks). All zero unless [`Builder::accounting`] was set.
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

    /// Duplicates of the workers' sockets.
    ///
    /// # Errors
    /// As [`SocketGroup::duplicates`].
    #[cfg(target_os = "linux")]
    pub(crate) fn duplicate_sockets(&self) -> io::Result<Vec<std::os::fd::OwnedFd>> {
        worker::lock(&self.0.common.sockets).duplicates()
    }

    /// The settings that the endpoint was built with.
    #[cfg(target_os = "linux")]
    pub(crate) fn settings(&self) -> &Builder {
        &self.0.settings
    }

    /// The state that all workers share, and each worker's own.
    pub(crate) fn workers(&self) -> (&Arc<Common>, &[Arc<Shared>]) {
        (&self.0.common, &self.0.shared)
    }

    /// Runs a task on a worker's thread, choosing the workers in turn. The task shares that thread
    /// with the transport and must not block. Tasks that work with a connection belong on the
    /// connection's worker: use [`Connection::spawn`](crate::Connection::spawn). If the worker
    /// ends, the task is cancelled.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        worker::spawn(self.0.in_turn(&self.0.next_task), task)
    }

    /// For tests: makes each worker's next send call fail once with `errno`.
    #[doc(hidden)]
    pub fn inject_send_error(&self, errno: i32) {
        for worker in 0..self.0.workers.len() {
            self.inject_worker_send_error(worker, errno);
        }
    }

    /// For tests: as [`inject_send_error`](Self::inject_send_error), for one worker.
    #[doc(hidden)]
    pub fn inject_worker_send_error(&self, worker: usize, errno: i32) {
        if let Some(worker) = self.0.workers.get(worker) {
            worker.shared.inject_send_error(errno);
        }
    }

    /// For tests: makes each worker's receive calls fail with `errno` until 0 is passed.
    #[doc(hidden)]
    pub fn inject_recv_error(&self, errno: i32) {
        for worker in &self.0.workers {
            worker.shared.inject_recv_error(errno);
        }
    }

    /// The worker threads' ids in the operating system (on Linux: their tids), for CPU accounting;
    /// 0 where there is none, and for workers that are tasks of a
    /// [runtime](Builder::on_runtime).
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

/// There must be a socket for each worker.
fn unequal(sockets: usize, workers: usize) -> io::Error {
    let why = format!("there must be a socket for each worker, not {sockets} for {workers}");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl Builder {
    /// Binds the sockets and starts the workers.
    ///
    /// # Errors
    /// A setting is invalid (`InvalidInput`, with the reason), or the system refused a socket, a
    /// thread or a CPU.
    ///
    /// # Panics
    /// The runtime given to [`on_runtime`](Self::on_runtime) has no I/O or time driver.
    pub fn bind(mut self) -> io::Result<Endpoint> {
        self.check()?;
        self.start_random();
        let mut claim = self.claim()?;
        let group = self.open_sockets(claim.is_some())?;
        let sockets: Vec<Arc<Socket>> = group.sockets().cloned().collect();
        let qlog = self.qlogs()?;
        let links = claim.take_links();
        let common = Common::new(&self, qlog, group, links);
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
            next_connection: AtomicUsize::new(0),
            next_task: AtomicUsize::new(0),
            server: Mutex::new(self.server.clone().map(Arc::new)),
            settings: self,
        };
        claim.stop_predecessor()?;
        for (index, socket) in sockets.into_iter().enumerate() {
            // If this one does not start, `inner` is dropped, which ends those started before it.
            let thread_id = inner.start(index, socket)?;
            inner.workers.push(WorkerFace {
                shared: Arc::clone(&inner.shared[index]),
                thread_id: AtomicI32::new(thread_id),
            });
        }
        claim.finish()?;
        inner.common.on_taken_over();
        Ok(Endpoint(Arc::new(inner)))
    }

    /// The workers' sockets: those given, or new ones.
    fn open_sockets(&mut self, is_inherited: bool) -> io::Result<SocketGroup> {
        let options = self.socket_options();
        if let Some(socket) = &self.carrier {
            let group = SocketGroup::carried_by(Arc::clone(&socket.0))?;
            self.addr = group.address();
            return Ok(group);
        }
        if self.sockets.is_empty() {
            return SocketGroup::bind(self.addr, &options, self.workers);
        }
        if self.sockets.len() != self.workers {
            let (sockets, workers) = (self.sockets.len(), self.workers);
            return Err(unequal(sockets, workers));
        }
        let own = |socket: Arc<UdpSocket>| match Arc::try_unwrap(socket) {
            Ok(socket) => Ok(socket),
            // A copy of these settings holds it too.
            Err(shared) => shared.try_clone(),
        };
        // Not kept: a worker that ends closes its socket.
        let sockets = std::mem::take(&mut self.sockets).into_iter().map(own);
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        let group = if is_inherited {
            SocketGroup::inherit(sockets, &options)?
        } else {
            SocketGroup::adopt(sockets, &options)?
        };
        self.addr = group.address();
        Ok(group)
    }

    /// What the endpoint takes over from another process.
    #[cfg(target_os = "linux")]
    fn claim(&self) -> io::Result<Claim> {
        let takeover = worker::lock(&self.takeover).take();
        Claim::new(takeover, self.connection_ids.len())
    }

    /// What the endpoint takes over from another process: nothing.
    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as on Linux")]
    fn claim(&self) -> io::Result<Claim> {
        Ok(Claim)
    }

    /// Draws a byte from the random generators of the TLS configurations. aws-lc gathers entropy on
    /// first use, which takes up to 150 ms and would otherwise delay the first handshake.
    fn start_random(&self) {
        let server = (self.server.as_ref()).map(|config| config.tls.crypto_provider());
        let client = (self.client.as_ref()).map(|config| config.tls.crypto_provider());
        for provider in server.into_iter().chain(client) {
            // A failure recurs in the handshake, where it can be reported.
            let _ = provider.secure_random.fill(&mut [0]);
        }
    }

    /// The seed of a worker's random generator.
    fn seed(&self, shared: &Shared) -> [u8; 32] {
        let Some(mut seed) = self.rng_seed else {
            return rand::random();
        };
        // Neither two workers nor two lives of one worker may draw the same ids.
        let index = shared.index as u64;
        let apart = [index.to_le_bytes(), u64::from(shared.life()).to_le_bytes()];
        for (byte, of_worker) in seed.iter_mut().zip(apart.as_flattened()) {
            *byte ^= of_worker;
        }
        seed
    }

    /// The settings of one worker's part of the endpoint.
    fn core_config(&self, shared: &Shared) -> EndpointConfig {
        let share = |limit: usize| limit.div_ceil(self.workers);
        let mut config = EndpointConfig::new(self.reset_key);
        config.cid_generator = self.connection_ids.clone();
        config.worker_index = u8::try_from(shared.index).unwrap_or(0);
        config.workers = u8::try_from(self.workers).unwrap_or(1);
        config.max_incoming = share(self.max_incoming.max(1));
        config.max_handshakes = share(self.max_handshakes);
        config.retry_from = share(self.retry_from);
        config.stateless_resets_per_second = self.stateless_resets_per_second;
        config.token_key = self.token_key.unwrap_or(config.token_key);
        // Counted by all workers together.
        config.max_connections = self.max_connections;
        config.max_connections_per_prefix = self.max_connections_per_prefix;
        config.ipv4_prefix_bits = self.ipv4_prefix_bits;
        config.ipv6_prefix_bits = self.ipv6_prefix_bits;
        config.max_memory = self.max_memory;
        config.grease_quic_bit = self.grease_quic_bit;
        config.retry_token_lifetime = self.retry_token_lifetime;
        config.new_token_lifetime = self.new_token_lifetime;
        config.unix_time_at_zero = shared.clock.unix_time_at_zero();
        config
    }
}

/// Waits for an attempt to connect, see [`Endpoint::accept`].
///
/// It borrows nothing, so a hand-written `poll_…` function can keep it between calls, and it counts
/// as a handle of the endpoint. Dropping it loses nothing. Once it has returned an attempt, it can
/// be polled again for the next.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Accept {
    place: AcceptPlace,
    endpoint: Arc<Inner>,
}

impl Future for Accept {
    type Output = Option<Incoming>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        let offer = ready!(self.place.poll_offer(cx));
        let shared = &self.endpoint.shared;
        Poll::Ready(offer.map(|offer| Incoming::new(Arc::clone(&shared[offer.worker]), offer)))
    }
}

impl std::fmt::Debug for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accept").finish_non_exhaustive()
    }
}
