//! How an endpoint is built.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// Key of the address-validation tokens (RFC 9000 §8.1.1); endpoints with the same key take each other's. By default
    /// derived from `reset_key`.
    pub token_key: Option<[u8; 32]>,
    /// Connections in all; attempts beyond are refused.
    pub max_connections: usize,
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
            max_connections: core.max_connections,
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
            only_v6: false,
        }
    }

    /// Finds settings that no connection could work with, so that they are told at once and not by the first peer.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.workers == 0 || self.workers > MAX_WORKERS {
            return Err(invalid(format!("workers must be 1 to {MAX_WORKERS}")));
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
