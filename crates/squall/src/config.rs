//! Building an endpoint.

use std::io;
use std::net::{SocketAddr, UdpSocket};
#[cfg(feature = "qlog")]
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::Mutex;
use std::time::Duration;

use squall_core::{ClientConfig, ConnectionIdGenerator, ServerConfig};

use crate::datagram_socket::{DatagramSocket, SharedDatagramSocket};
use crate::events::{Events, Subscribers};
use crate::qlog::Qlogs;
#[cfg(feature = "qlog")]
use crate::qlog::{QlogConnection, QlogSink};
#[cfg(target_os = "linux")]
use crate::takeover::Takeover;

/// Maximum number of workers: half the number of values that the first byte of a connection id can
/// take.
const MAX_WORKERS: usize = 128;

/// How long bulk data may wait in a socket, by default.
const RECEIVE_COALESCING: Duration = Duration::from_millis(2);

/// Generates a setter for each field: same name, takes the value, can be chained.
macro_rules! setters {
    ($($(#[$condition:meta])? $field:ident: $type:ty,)*) => {$(
        $(#[$condition])?
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field.into();
            self
        }
    )*};
}

/// All settings of an endpoint. [`Builder::bind`] builds it.
///
/// ```no_run
/// # async fn example(server: squall::ServerConfig) -> std::io::Result<()> {
/// let endpoint = squall::Builder::new(([0, 0, 0, 0], 4433).into())
///     .server(server)
///     .workers(4)
///     .max_connections(50_000)
///     .bind()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Builder {
    /// Address to bind. `[::]` serves both IPv6 and IPv4, unless [`only_v6`](field@Self::only_v6)
    /// is set.
    pub addr: SocketAddr,
    /// Bound sockets to use instead of binding [`addr`](field@Self::addr). See
    /// [`sockets`](Self::sockets).
    pub(crate) sockets: Vec<Arc<UdpSocket>>,
    /// The port of another process; see [`take_over`](Self::take_over). Empty once it is bound.
    #[cfg(target_os = "linux")]
    pub(crate) takeover: Arc<Mutex<Option<Takeover>>>,
    /// What carries datagrams instead of sockets; see [`datagram_socket`](Self::datagram_socket).
    pub(crate) carrier: Option<SharedDatagramSocket>,
    /// Configuration for accepted connections. `None`: the endpoint is a client only.
    pub server: Option<ServerConfig>,
    /// Configuration that [`connect`](crate::Endpoint::connect) uses.
    pub client: Option<ClientConfig>,
    /// Number of worker threads, 1 to 128. Each has its own socket on the same port, and a
    /// connection stays with its worker for life: every connection id that a worker issues contains
    /// the worker's index, by which the kernel steers datagrams.
    pub workers: usize,
    /// CPUs to pin the worker threads to: worker `i` runs on entry `i`, starting over at the end of
    /// the list. Empty: not pinned.
    pub cpus: Vec<usize>,
    /// Runtime on which the workers run as tasks. `None`, the default: each worker has a thread of
    /// its own. See [`on_runtime`](Self::on_runtime).
    pub runtime: Option<tokio::runtime::Handle>,
    /// Send bundles of datagrams (GSO) where the kernel supports it.
    pub gso: bool,
    /// Receive bundles of datagrams (GRO) where the kernel supports it.
    pub gro: bool,
    /// Requested size of the socket receive buffer, in bytes.
    pub receive_buffer: usize,
    /// Requested size of the socket send buffer, in bytes.
    pub send_buffer: usize,
    /// How long bulk data may wait in the socket for more to arrive, so that the worker is woken
    /// less often: at most 2 ms by default. It waits no longer than an eighth of the round-trip
    /// time, or than until the sender wants an acknowledgement if it has asked for fewer of them
    /// (draft-ietf-quic-ack-frequency), whichever is longer. Zero turns this off. It saves a
    /// receiver that is faster than its link up to a third of its CPU time, as `SO_RCVLOWAT` does
    /// for TCP.
    ///
    /// A worker waits only if it has its own thread and a UDP socket, and only while it receives
    /// hardly anything but full-sized datagrams, several at a time. Tasks on the worker wait just
    /// as long. [`EndpointStats::naps`](crate::EndpointStats::naps) counts these waits.
    pub receive_coalescing: Duration,
    /// Allow other sockets of the same user to bind this address (`SO_REUSEPORT`). With several
    /// workers, steering does not account for these sockets: a worker may then receive another
    /// worker's datagrams, and forwards them.
    pub reuse_port: bool,
    /// Make an IPv6 socket refuse IPv4 traffic.
    pub only_v6: bool,
    /// Mark of all outgoing datagrams, for routing rules and packet filters (`SO_MARK`). Linux
    /// only; requires CAP_NET_ADMIN.
    pub mark: Option<u32>,
    /// Name of the network interface that all datagrams go through (`SO_BINDTODEVICE`). Linux only.
    pub device: Option<String>,
    /// Directory to which a qlog of every connection is written. Defaults to the environment
    /// variable `QLOGDIR`, if set. A connection's log is complete when the connection is closed, so
    /// all logs are complete after [`Endpoint::wait_idle`](crate::Endpoint::wait_idle).
    #[cfg(feature = "qlog")]
    pub qlog_dir: Option<PathBuf>,
    /// Where qlogs are written to, instead of `qlog_dir`. See [`qlog`](Self::qlog).
    #[cfg(feature = "qlog")]
    pub(crate) qlog: Option<QlogSink>,
    /// The event subscribers; see [`events`](Self::events).
    pub(crate) events: Subscribers,
    /// Measure the time spent in each stage of the workers' loop, see
    /// [`Endpoint::stages`](crate::Endpoint::stages).
    pub accounting: bool,
    /// For tests only: the seed of the workers' random generators, instead of a random one.
    /// Endpoints with the same seed draw the same connection ids for the same events in the same
    /// order. Ids and path challenges are then predictable, so attackers can interfere with
    /// connections (RFC 9000 §8.2.1). TLS stays random, and so does `reset_key` unless it is set.
    pub rng_seed: Option<[u8; 32]>,
    /// Maximum number of connection attempts that wait to be [accepted](crate::Endpoint::accept) or
    /// otherwise decided. Each worker has an equal share of them. Further attempts are dropped, as
    /// with a full listen(2) backlog, and their clients retry; if none was accepted in the last
    /// three seconds, they are refused.
    pub max_incoming: usize,
    /// Bytes of datagrams kept for each undecided attempt in addition to its first datagram: more
    /// Initial packets of a long ClientHello, and early data. Anything beyond this is dropped, and
    /// the client sends it again. 64 KiB by default.
    pub incoming_buffer_size: usize,
    /// The same limit, for all undecided attempts of all workers together; 4 MiB by default.
    pub incoming_buffer_size_total: usize,
    /// Maximum number of concurrent handshakes. Each worker has an equal share of them. Further
    /// attempts are dropped, and their clients retry; if no handshake was completed in the last
    /// three seconds, they are refused.
    pub max_handshakes: usize,
    /// Number of pending attempts and handshakes from which on a client must first validate its
    /// address (a Retry, RFC 9000 §8.1.2), which costs the server no state. Each worker counts its
    /// own, up to an equal share. Zero: always.
    pub retry_from: usize,
    /// Key of the address-validation tokens (RFC 9000 §8.1.1). Endpoints with the same key accept
    /// each other's tokens, and each endpoint accepts a token once. Derived from `reset_key` by
    /// default.
    pub token_key: Option<[u8; 32]>,
    /// Time within which a client must return with the token of a Retry (RFC 9000 §8.1.2).
    pub retry_token_lifetime: Duration,
    /// Lifetime of a token issued for a later connection (RFC 9000 §8.1.3). Each token is valid
    /// once: all workers share a record of spent tokens, which takes up to 4 MB per day of lifetime
    /// and mistakes fewer than 1 in 1,000 new tokens for a spent one at a million tokens per day. A
    /// token that is spent, is mistaken for a spent one, or is older than the endpoint costs its
    /// client a Retry.
    pub new_token_lifetime: Duration,
    /// Maximum number of stateless resets that each worker sends per second, 1000 by default; a
    /// tenth of them may go to one source prefix (RFC 9000 §10.3.3). Zero: none, so the peers of
    /// lost connections wait for their idle timeout.
    pub stateless_resets_per_second: u32,
    /// Maximum number of connections of all workers together; further attempts are refused.
    pub max_connections: usize,
    /// Maximum number of connections, over all workers, from clients of one source prefix with a
    /// validated address; further attempts are refused. An attempt from an unvalidated address,
    /// which may be forged, is never refused because of this limit, but must first validate its
    /// address (a Retry) once the prefix has this many connections and handshakes. A connection
    /// that migrates to another prefix counts there and continues in any case. `None`, the default:
    /// no limit, since a whole carrier can share one address.
    pub max_connections_per_prefix: Option<usize>,
    /// Length of an IPv4 source prefix in bits, at most and by default 32.
    pub ipv4_prefix_bits: u8,
    /// Length of an IPv6 source prefix in bits, at most 128. The default, 56, is what a provider
    /// assigns to one customer.
    pub ipv6_prefix_bits: u8,
    /// Memory that the connections of all workers together may take, in bytes, as estimated by
    /// [`EndpointStats::memory`](crate::EndpointStats::memory). From three quarters of the limit
    /// on, clients must first validate their address (a Retry); at the limit, new connections are
    /// refused. Existing connections continue and may grow further: each is bounded by
    /// `send_window`, `receive_window` and `max_packets_in_flight` of its
    /// [`TransportConfig`](crate::TransportConfig). `None`, the default: no limit.
    pub max_memory: Option<usize>,
    /// How connection ids are generated. Each names the worker of its connection, by which the
    /// kernel steers datagrams; ids for load balancers (QUIC-LB) name the server as well. Plain ids
    /// of 8 bytes by default.
    pub connection_ids: ConnectionIdGenerator,
    /// Key of the stateless-reset tokens (RFC 9000 §10.3.2). Keep it across restarts so that peers
    /// learn at once that their connections are gone. Random by default.
    pub reset_key: [u8; 32],
    /// Whether to grease the fixed bit of packets (RFC 9287); on by default. Peers are then told
    /// that packets with any value of the bit are accepted, and the bit is random in packets to
    /// peers that also accept them. Turn it off if the port is shared with protocols that are told
    /// apart by this bit (RFC 7983): packets without it are then dropped.
    pub grease_quic_bit: bool,
}

impl Builder {
    /// Default settings for an endpoint at `addr`: no server or client configuration, all offloads
    /// on.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        let udp = squall_udp::Options::default();
        let reset_key = rand::random();
        let core = squall_core::EndpointConfig::new(reset_key);
        Self {
            addr,
            sockets: Vec::new(),
            #[cfg(target_os = "linux")]
            takeover: Arc::default(),
            carrier: None,
            server: None,
            client: None,
            workers: 1,
            cpus: Vec::new(),
            runtime: None,
            gso: udp.gso,
            gro: udp.gro,
            receive_buffer: udp.receive_buffer,
            send_buffer: udp.send_buffer,
            receive_coalescing: RECEIVE_COALESCING,
            reuse_port: udp.reuse_port,
            only_v6: udp.only_v6,
            mark: udp.mark,
            device: udp.device,
            #[cfg(feature = "qlog")]
            qlog: None,
            #[cfg(feature = "qlog")]
            qlog_dir: std::env::var_os("QLOGDIR")
                .filter(|name| !name.is_empty())
                .map(PathBuf::from),
            events: Subscribers::default(),
            accounting: false,
            rng_seed: None,
            max_incoming: 1024,
            incoming_buffer_size: 64 * 1024,
            incoming_buffer_size_total: 4 * 1024 * 1024,
            max_handshakes: core.max_handshakes,
            retry_from: core.retry_from,
            token_key: None,
            retry_token_lifetime: core.retry_token_lifetime,
            new_token_lifetime: core.new_token_lifetime,
            stateless_resets_per_second: core.stateless_resets_per_second,
            max_connections: core.max_connections,
            max_connections_per_prefix: core.max_connections_per_prefix,
            ipv4_prefix_bits: core.ipv4_prefix_bits,
            ipv6_prefix_bits: core.ipv6_prefix_bits,
            max_memory: core.max_memory,
            connection_ids: core.cid_generator,
            reset_key,
            grease_quic_bit: core.grease_quic_bit,
        }
    }

    /// Sets the server configuration.
    #[must_use]
    pub fn server(mut self, config: ServerConfig) -> Self {
        self.server = Some(config);
        self
    }

    /// Sets the default client configuration.
    #[must_use]
    pub fn client(mut self, config: ClientConfig) -> Self {
        self.client = Some(config);
        self
    }

    /// Sets the number of worker threads. On Windows, where sockets cannot share a port,
    /// [`bind`](Self::bind) fails with more than one.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    setters! {
        receive_buffer: usize,
        send_buffer: usize,
        receive_coalescing: Duration,
        reuse_port: bool,
        only_v6: bool,
        mark: u32,
        device: String,
        #[cfg(feature = "qlog")]
        qlog_dir: PathBuf,
        rng_seed: [u8; 32],
        max_incoming: usize,
        incoming_buffer_size: usize,
        incoming_buffer_size_total: usize,
        max_handshakes: usize,
        retry_from: usize,
        token_key: [u8; 32],
        retry_token_lifetime: Duration,
        new_token_lifetime: Duration,
        stateless_resets_per_second: u32,
        max_connections: usize,
        max_connections_per_prefix: usize,
        ipv4_prefix_bits: u8,
        ipv6_prefix_bits: u8,
        max_memory: usize,
        connection_ids: ConnectionIdGenerator,
        reset_key: [u8; 32],
        grease_quic_bit: bool,
    }

    /// Writes qlogs to the application's own sinks: `choose` is called for each new connection, and
    /// returns `None` for those that are not logged. See [`QlogSink::new`].
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # let builder = squall::Builder::new(([127, 0, 0, 1], 0).into());
    /// // One connection in a thousand.
    /// let count = AtomicU64::new(0);
    /// let builder = builder.qlog(move |connection| {
    ///     let sampled = count.fetch_add(1, Ordering::Relaxed) % 1000 == 0;
    ///     sampled.then(|| Box::new(std::io::sink()) as _)
    /// });
    /// ```
    #[cfg(feature = "qlog")]
    #[must_use]
    pub fn qlog<F>(mut self, choose: F) -> Self
    where
        F: Fn(&QlogConnection) -> Option<Box<dyn io::Write + Send>> + Send + Sync + 'static,
    {
        self.qlog = Some(QlogSink::new(choose));
        self
    }

    /// Uses this bound socket, for one worker; [`addr`](field@Self::addr) is not bound. See
    /// [`sockets`](Self::sockets).
    #[must_use]
    pub fn socket(self, socket: UdpSocket) -> Self {
        self.sockets([socket])
    }

    /// Uses these bound sockets, one per worker, and sets the number of workers to match;
    /// [`addr`](field@Self::addr) is not bound. For sockets that come from a service manager or a
    /// parent process, or that need options of their own.
    ///
    /// All must be bound to one address, and none connected. Several sockets share their port by
    /// `SO_REUSEPORT`; pass them in the order in which they were bound, which is how the kernel
    /// numbers them. Datagrams then arrive at the right worker; otherwise they are forwarded.
    ///
    /// [`receive_buffer`](field@Self::receive_buffer), [`send_buffer`](field@Self::send_buffer),
    /// [`gso`](field@Self::gso) and [`gro`](field@Self::gro) apply to them.
    /// [`restart_worker`](crate::Endpoint::restart_worker) binds a new socket to the same address.
    #[must_use]
    pub fn sockets(mut self, sockets: impl IntoIterator<Item = UdpSocket>) -> Self {
        self.sockets = sockets.into_iter().map(Arc::new).collect();
        self.workers = self.sockets.len();
        self
    }

    /// Takes over the port of another process with its sockets, and sets the number of workers to
    /// its number; [`addr`](field@Self::addr) is not bound. See
    /// [`Endpoint::hand_over`](crate::Endpoint::hand_over). Linux only.
    ///
    /// [`reset_key`](field@Self::reset_key) and [`token_key`](field@Self::token_key) become the
    /// other process's, and [`connection_ids`](field@Self::connection_ids) must have the same
    /// length as its own; use the same generator. The socket settings apply as for
    /// [`sockets`](Self::sockets).
    ///
    /// [`bind`](Self::bind) then blocks until the other process no longer reads the sockets,
    /// usually for less than a millisecond. If it fails, the other process goes on as before.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn take_over(mut self, mut takeover: Takeover) -> Self {
        let sockets = takeover.take_sockets();
        self.reset_key = takeover.greeting().reset_key;
        self.token_key = takeover.greeting().token_key;
        self.takeover = Arc::new(Mutex::new(Some(takeover)));
        self.sockets(sockets)
    }

    /// Uses this instead of UDP sockets, for one worker: a channel in a test, or an overlay
    /// network. See [`DatagramSocket`]. [`addr`](field@Self::addr) and the socket settings have no
    /// effect.
    #[must_use]
    pub fn datagram_socket(mut self, socket: Arc<dyn DatagramSocket>) -> Self {
        self.carrier = Some(SharedDatagramSocket(socket));
        self.workers = 1;
        self
    }

    /// Adds a CPU to [`cpus`](Self::cpus), for the next worker's thread. A single call pins all of
    /// them to that CPU.
    #[must_use]
    pub fn cpu(mut self, cpu: usize) -> Self {
        self.cpus.push(cpu);
        self
    }

    /// Runs the workers as tasks of this tokio runtime instead of threads of their own. The runtime
    /// must have its I/O and time drivers enabled
    /// ([`enable_all`](tokio::runtime::Builder::enable_all)).
    ///
    /// An application whose tasks run on the same runtime then uses a connection without waking
    /// another thread. The workers share the runtime's threads with all its tasks, though, and a
    /// task that blocks holds up the network. A current-thread runtime drives them only inside
    /// `block_on`. When the runtime shuts down, the endpoint's connections end without a
    /// CONNECTION_CLOSE.
    #[must_use]
    pub fn on_runtime(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Adds a subscriber for the events of the endpoint and its connections. May be called several
    /// times: all of them receive each event.
    #[must_use]
    pub fn events(mut self, events: Arc<dyn Events>) -> Self {
        self.events.add(events);
        self
    }

    /// Turns sending of bundles (GSO) on or off.
    #[must_use]
    pub fn gso(mut self, on: bool) -> Self {
        self.gso = on;
        self
    }

    /// Turns receiving of bundles (GRO) on or off.
    #[must_use]
    pub fn gro(mut self, on: bool) -> Self {
        self.gro = on;
        self
    }

    /// Turns stage accounting on or off.
    #[must_use]
    pub fn accounting(mut self, on: bool) -> Self {
        self.accounting = on;
        self
    }

    /// The options of a worker's socket.
    pub(crate) fn socket_options(&self) -> squall_udp::Options {
        squall_udp::Options {
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            gso: self.gso,
            gro: self.gro,
            reuse_port: self.reuse_port,
            only_v6: self.only_v6,
            mark: self.mark,
            device: self.device.clone(),
            ..squall_udp::Options::default()
        }
    }

    /// Where qlogs go.
    ///
    /// # Errors
    /// The directory cannot be created, or is not a directory.
    #[cfg_attr(
        not(feature = "qlog"),
        expect(
            clippy::unused_self,
            clippy::unnecessary_wraps,
            reason = "there is nothing to open without qlog"
        )
    )]
    pub(crate) fn qlogs(&self) -> io::Result<Option<Qlogs>> {
        #[cfg(feature = "qlog")]
        return Qlogs::wanted(self.qlog.as_ref(), self.qlog_dir.as_deref());
        #[cfg(not(feature = "qlog"))]
        Ok(None)
    }

    /// Finds settings that no connection could work with, so that they are reported at once rather
    /// than by the first connection.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.workers == 0 || self.workers > MAX_WORKERS {
            return Err(invalid(format!("workers must be from 1 to {MAX_WORKERS}")));
        }
        if self.carrier.is_some() && (self.workers != 1 || !self.sockets.is_empty()) {
            return Err(invalid(
                "with a datagram socket there is one worker, and no other socket",
            ));
        }
        if self.runtime.is_some() && !self.cpus.is_empty() {
            return Err(invalid(
                "a CPU can be chosen only for worker threads, not for tasks of a runtime",
            ));
        }
        if self.ipv4_prefix_bits > 32 || self.ipv6_prefix_bits > 128 {
            return Err(invalid(
                "ipv4_prefix_bits must be at most 32, and ipv6_prefix_bits at most 128",
            ));
        }
        self.connection_ids.check(self.workers).map_err(invalid)?;
        if let Some(server) = &self.server {
            check_server(server)?;
        }
        match &self.client {
            Some(client) => check_client(client).map_err(invalid),
            None => Ok(()),
        }
    }
}

/// Finds settings that no connection of this configuration could work with.
pub(crate) fn check_client(config: &ClientConfig) -> Result<(), String> {
    config.transport.check().map_err(str::to_owned)?;
    let name = rustls::pki_types::ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
    let session = squall_tls::Session::client(
        &config.tls,
        squall_wire::header::VERSION_1,
        name,
        Vec::new(),
    );
    session.map(drop).map_err(|error| error.to_string())
}

/// Finds settings that no connection of this configuration could work with.
pub(crate) fn check_server(config: &ServerConfig) -> io::Result<()> {
    config.transport.check().map_err(invalid)?;
    // Making a session detects a provider without QUIC and a missing TLS 1.3; it is dropped unused.
    let version = squall_wire::header::VERSION_1;
    squall_tls::Session::server(&config.tls, version, version, Vec::new(), &[])
        .map(drop)
        .map_err(invalid)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
