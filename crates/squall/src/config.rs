//! How an endpoint is built.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use squall_core::{ClientConfig, ServerConfig};

/// Workers that an endpoint may have: half of what a connection id's first byte can tell apart.
const MAX_WORKERS: usize = 128;

/// All that an endpoint is made of. [`Builder::bind`] makes it.
///
/// ```no_run
/// # async fn example(server: squall::ServerConfig) -> std::io::Result<()> {
/// let endpoint = squall::Builder { server: Some(server), ..squall::Builder::new(([0, 0, 0, 0], 4433).into()) }.bind()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    /// Where to bind. `[::]` serves IPv6 and IPv4.
    pub addr: SocketAddr,
    /// Accept connections with this; `None`: an endpoint for clients only.
    pub server: Option<ServerConfig>,
    /// What [`connect`](crate::Endpoint::connect) uses.
    pub client: Option<ClientConfig>,
    /// Worker threads, 1 to 128. Each has a socket of its own on the same port, and connections that stay with it for life:
    /// the worker's index is in every connection id that it hands out, and the kernel steers by it.
    pub workers: usize,
    /// Run each worker's thread on one CPU only: worker `i` on number `i` of these, and round again. Empty: anywhere.
    pub cpus: Vec<usize>,
    /// Send bundles where the kernel can.
    pub gso: bool,
    /// Receive bundles where the kernel can.
    pub gro: bool,
    /// Wanted socket receive buffer in bytes.
    pub receive_buffer: usize,
    /// Wanted socket send buffer in bytes.
    pub send_buffer: usize,
    /// Let other sockets of this user bind the same address (`SO_REUSEPORT`). With several workers they are strangers to
    /// the steering: each worker then may get what is not its own, and hands it on.
    pub reuse_port: bool,
    /// Write a qlog of every connection into this folder. By default the folder that the environment variable `QLOGDIR`
    /// names, if it does. What is logged of a connection is in its file when the connection is closed, so all of it after
    /// [`Endpoint::wait_idle`](crate::Endpoint::wait_idle).
    pub qlog_dir: Option<PathBuf>,
    /// Time the stages of the worker's work, see [`Endpoint::stages`](crate::Endpoint::stages).
    pub accounting: bool,
    /// Connection attempts that wait for [`accept`](crate::Endpoint::accept) and the word on them. More are refused.
    pub max_incoming: usize,
    /// Connections in their handshake at a time. More are refused.
    pub max_handshakes: usize,
    /// Attempts and handshakes from which on clients have to show first that their address is their own (a Retry, RFC
    /// 9000 §8.1.2), for which nothing is kept. Zero: always.
    pub retry_from: usize,
    /// Key of the address-validation tokens (RFC 9000 §8.1.1); endpoints with the same key take each other's, and each takes
    /// a token once. By default derived from `reset_key`.
    pub token_key: Option<[u8; 32]>,
    /// How long a token that a client was given for a later connection is good (RFC 9000 §8.1.3). Each is good once: all
    /// workers share a record of those that are spent, which takes up to 4 MB for each day and mistakes fewer than 1 new
    /// token in 1,000 for a spent one if a million come each day. A token that is spent, seems so, or is older than the
    /// endpoint costs its client a Retry.
    pub new_token_lifetime: Duration,
    /// Connections in all; attempts beyond are refused.
    pub max_connections: usize,
    /// Connections that clients of one source prefix may have at all workers together, where their address is validated;
    /// attempts beyond are refused. An attempt from an address that is not validated is never refused for it, since the
    /// address may be forged, but has to show first that it is its own (a Retry) once the prefix's connections and handshakes
    /// are as many. A connection that moves to another prefix is counted there and goes on in any case. `None`, the default:
    /// no limit, since a whole carrier can be behind one address.
    pub max_connections_per_prefix: Option<usize>,
    /// Bits of an IPv4 address that make a source prefix, up to 32, the default.
    pub ipv4_prefix_bits: u8,
    /// Bits of an IPv6 address that make a source prefix, up to 128; by default 56, what a provider gives to one customer.
    pub ipv6_prefix_bits: u8,
    /// Bytes of memory that the connections of all workers together may take, by the estimate of
    /// [`EndpointStats::memory`](crate::EndpointStats::memory). From three quarters of it on, clients have to show first that
    /// their address is their own (a Retry); from all of it on, new connections are refused. Those that exist go on, and may
    /// take more: what one can take is bounded by `send_window`, `receive_window` and `max_packets_in_flight` of its
    /// [`TransportConfig`](crate::TransportConfig). `None`, the default: no limit.
    pub max_memory: Option<usize>,
    /// Key of the stateless-reset tokens (RFC 9000 §10.3.2). Keep it over restarts, and peers learn at once that their
    /// connections are gone. Random by default.
    pub reset_key: [u8; 32],
}

impl Builder {
    /// The usual settings for an endpoint at `addr`: no configurations yet, all offloads on.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        let udp = squall_udp::Options::default();
        let reset_key = rand::random();
        let core = squall_core::EndpointConfig::new(reset_key);
        Self {
            addr,
            server: None,
            client: None,
            workers: 1,
            cpus: Vec::new(),
            gso: udp.gso,
            gro: udp.gro,
            receive_buffer: udp.receive_buffer,
            send_buffer: udp.send_buffer,
            reuse_port: udp.reuse_port,
            qlog_dir: std::env::var_os("QLOGDIR")
                .filter(|name| !name.is_empty())
                .map(PathBuf::from),
            accounting: false,
            max_incoming: 1024,
            max_handshakes: core.max_handshakes,
            retry_from: core.retry_from,
            token_key: None,
            new_token_lifetime: core.new_token_lifetime,
            max_connections: core.max_connections,
            max_connections_per_prefix: core.max_connections_per_prefix,
            ipv4_prefix_bits: core.ipv4_prefix_bits,
            ipv6_prefix_bits: core.ipv6_prefix_bits,
            max_memory: core.max_memory,
            reset_key,
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

    /// Sets the number of worker threads. On Windows, where sockets cannot share a port, more than one is an error of the
    /// bind.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Pins the next worker's thread to a CPU: called once, all of them.
    #[must_use]
    pub fn cpu(mut self, cpu: usize) -> Self {
        self.cpus.push(cpu);
        self
    }

    /// Turns sending of bundles on or off.
    #[must_use]
    pub fn gso(mut self, on: bool) -> Self {
        self.gso = on;
        self
    }

    /// Turns receiving of bundles on or off.
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

    /// What a worker's socket is to be like.
    pub(crate) fn socket_options(&self) -> squall_udp::Options {
        squall_udp::Options {
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            gso: self.gso,
            gro: self.gro,
            reuse_port: self.reuse_port,
            ..squall_udp::Options::default()
        }
    }

    /// Finds settings that no connection could work with, so that they are told at once and not by the first peer.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.workers == 0 || self.workers > MAX_WORKERS {
            return Err(invalid(format!("workers must be 1 to {MAX_WORKERS}")));
        }
        if self.ipv4_prefix_bits > 32 || self.ipv6_prefix_bits > 128 {
            return Err(invalid(
                "ipv4_prefix_bits must be at most 32, ipv6_prefix_bits at most 128",
            ));
        }
        if let Some(server) = &self.server {
            check_server(server)?;
        }
        match &self.client {
            Some(client) => check_client(client).map_err(invalid),
            None => Ok(()),
        }
    }
}

/// Finds what no connection of this configuration could work with.
pub(crate) fn check_client(config: &ClientConfig) -> Result<(), String> {
    config.transport.check().map_err(str::to_owned)?;
    let name = rustls::pki_types::ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
    let session = squall_tls::Session::client(
        config.tls.clone(),
        squall_wire::header::VERSION_1,
        name,
        Vec::new(),
    );
    session.map(drop).map_err(|error| error.to_string())
}

/// Finds what no connection of this configuration could work with.
pub(crate) fn check_server(config: &ServerConfig) -> io::Result<()> {
    config.transport.check().map_err(invalid)?;
    // The session tells a foreign provider and a missing TLS 1.3; it is thrown away unused.
    let version = squall_wire::header::VERSION_1;
    squall_tls::Session::server(config.tls.clone(), version, version, Vec::new(), &[])
        .map(drop)
        .map_err(invalid)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// A server's TLS configuration with this certificate chain and key, for clients without certificates. `alpn` lists
/// the application protocols (RFC 7301) in order of preference; QUIC demands at least one (RFC 9001 §8.1). Secrets go to the
/// file that `SSLKEYLOGFILE` names, if it does.
///
/// # Errors
/// rustls does not like the key, or it does not belong to the certificate.
pub fn server_tls(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    alpn: &[&[u8]],
) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut config = rustls::ServerConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// A client's TLS configuration that trusts these roots and offers these application protocols. Secrets go to the file that
/// `SSLKEYLOGFILE` names, if it does.
///
/// # Errors
/// rustls does not support TLS 1.3 with the provider: it does.
pub fn client_tls(
    roots: impl Into<Arc<rustls::RootCertStore>>,
    alpn: &[&[u8]],
) -> Result<rustls::ClientConfig, rustls::Error> {
    let mut config = rustls::ClientConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}
