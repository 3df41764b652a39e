//! An endpoint: a UDP socket and the worker thread that drives it.

use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use rustls::pki_types::ServerName;
use squall_core::{ClientConfig, EndpointConfig, ServerConfig, Stage, Stages};
use squall_udp::Socket;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::{Builder, check_client};
use crate::connection::Connecting;
use crate::error::ConnectError;
use crate::sys;
use crate::worker::{self, Accounted, Command, EndpointStats, Offer, Shared, Worker};

/// A UDP socket with its worker thread: makes connections, accepts connections, or both. Cheap to clone.
///
/// When the last handle is dropped, no new connections come in; those that exist go on, and the worker ends with the
/// last of them. To end at once: [`close`](Self::close), then [`wait_idle`](Self::wait_idle).
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
    runtime: tokio::runtime::Handle,
    client: Option<ClientConfig>,
    accounting: bool,
    worker_thread_id: i32,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Refused only by a worker that has ended.
        self.shared.command(Command::Detach);
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
    /// There is no client configuration, `server_name` is no name, or the endpoint is closed. What comes later, the
    /// returned future tells.
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
        if self.0.shared.is_closed() {
            return Err(ConnectError::EndpointClosed);
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Connect {
            config,
            remote,
            server_name: server_name.to_owned(),
            reply,
        };
        if !self.0.shared.command(command) {
            return Err(ConnectError::EndpointClosed);
        }
        Ok(Connecting::new(answer))
    }

    /// Waits for the next attempt to connect to this endpoint; `None` once it is closed.
    pub async fn accept(&self) -> Option<Incoming> {
        let offer = poll_fn(|cx| self.0.shared.poll_accept(cx)).await?;
        Some(Incoming {
            offer: Some(offer),
            shared: Arc::clone(&self.0.shared),
        })
    }

    /// The address that the socket is bound to, with the port that the system chose.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// Closes all connections with `code` and `reason`, refuses what comes, and makes [`accept`](Self::accept) end.
    /// Returns at once; [`wait_idle`](Self::wait_idle) waits until the peers were told.
    pub fn close(&self, code: u64, reason: &[u8]) {
        self.0.shared.command(Command::Close {
            code,
            reason: Bytes::copy_from_slice(reason),
        });
    }

    /// Waits until no connection is left, closing ones included (RFC 9000 §10.2: some three probe timeouts).
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.0.shared.idle.notified();
            let mut idle = std::pin::pin!(idle);
            // Registered before the look, so that no notice falls between.
            idle.as_mut().enable();
            if self.0.shared.is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// The counters since the endpoint was built.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.0.shared.counters.read(self.0.socket.stats())
    }

    /// What the kernel granted: bundles and buffers.
    #[must_use]
    pub fn limits(&self) -> squall_udp::Limits {
        self.0.socket.limits()
    }

    /// Time by stage of the worker's work, in ticks of [`ticks`](crate::ticks); all zero unless
    /// [`Builder::accounting`] was set.
    #[must_use]
    pub fn stages(&self) -> Stages {
        worker::lock(&self.0.shared.stages).clone()
    }

    /// Runs a task on the worker's thread, where it reaches its connections without waking another thread. It shares
    /// that thread with the transport: it must not block. It ends, unfinished, with the worker.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if self.0.accounting {
            self.0.runtime.spawn(Accounted {
                task: Box::pin(task),
                shared: Arc::clone(&self.0.shared),
            })
        } else {
            self.0.runtime.spawn(task)
        }
    }

    /// Makes the worker's next send call fail once with `errno`: for tests of what happens then.
    #[doc(hidden)]
    pub fn inject_send_error(&self, errno: i32) {
        self.0.socket.inject_send_error(errno);
    }

    /// The worker thread's number in the system's lists (Linux: its tid), for CPU accounting; 0 where there is none.
    #[must_use]
    pub fn worker_thread_id(&self) -> i32 {
        self.0.worker_thread_id
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("local_addr", &self.local_addr().ok())
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Binds the socket and starts the worker.
    ///
    /// # Errors
    /// A setting cannot work (`InvalidInput`, with the reason), or the system refused the socket, the thread or the
    /// CPU.
    pub fn bind(self) -> io::Result<Endpoint> {
        self.check()?;
        let socket = Arc::new(Socket::bind(self.addr, &self.socket_options())?);
        let stages = if self.accounting {
            Stages::on(sys::ticks)
        } else {
            Stages::off()
        };
        let shared = Arc::new(Shared::new(self.max_incoming, stages));
        let mut config = EndpointConfig::new(self.reset_key);
        config.max_connections = self.max_connections;
        config.max_incoming = self.max_incoming.max(1);
        config.max_handshakes = self.max_handshakes;
        config.retry_from = self.retry_from;
        config.token_key = self.token_key.unwrap_or(config.token_key);
        config.unix_time_at_zero = shared.clock.unix_time_at_zero();
        let endpoint =
            squall_core::Endpoint::new(config, self.server.map(Arc::new), rand::random());

        let (report, started) = mpsc::sync_channel(1);
        let (thread_shared, thread_socket) = (Arc::clone(&shared), Arc::clone(&socket));
        let (cpu, accounting) = (self.cpu, self.accounting);
        std::thread::Builder::new()
            .name("squall-worker".to_owned())
            .spawn(move || {
                let runtime = match prepare(cpu, accounting.then(|| Arc::clone(&thread_shared))) {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(report.send(Err(error))),
                };
                let entered = runtime.enter();
                let fd = match sys::readable(Arc::clone(&thread_socket)) {
                    Ok(fd) => fd,
                    Err(error) => return drop(report.send(Err(error))),
                };
                drop(entered);
                let _ = report.send(Ok((runtime.handle().clone(), sys::thread_id())));
                drop(report);
                // A task of its own, and not the future that `block_on` drives: the worker then stands in one line with
                // the applications' tasks. Whatever ends it, its state is dropped and tells all who wait.
                let worker = runtime.spawn(worker::run(
                    Worker::new(thread_shared, thread_socket, endpoint),
                    fd,
                ));
                let _ = runtime.block_on(worker);
            })?;
        let gone = || io::Error::other("the worker thread ended before it started");
        let (runtime, worker_thread_id) = started.recv().map_err(|_| gone())??;
        let inner = Inner {
            shared,
            socket,
            runtime,
            client: self.client,
            accounting,
            worker_thread_id,
        };
        Ok(Endpoint(Arc::new(inner)))
    }
}

/// The worker thread's preparations: its CPU and its runtime. With `accounting`, time in which the thread is parked is
/// told apart.
fn prepare(cpu: Option<usize>, accounting: Option<Arc<Shared>>) -> io::Result<Runtime> {
    if let Some(cpu) = cpu {
        sys::pin_to_cpu(cpu)?;
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time();
    if let Some(shared) = accounting {
        let unparked = Arc::clone(&shared);
        builder.on_thread_park(move || worker::mark(&shared, Stage::Other));
        builder.on_thread_unpark(move || worker::mark(&unparked, Stage::Idle));
    }
    builder.build()
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
            self.shared.command(Command::Ignore {
                remote: offer.run.path.remote,
            });
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
