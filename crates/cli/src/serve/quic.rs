//! HTTP/3, on the UDP port with the same number as TCP's.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use rustls::ServerConfig as Tls;
use sha2::{Digest as _, Sha256};
use squall::{Builder, Connection, Endpoint, Incoming, ServerConfig, TransportConfig};
use squall_h3::Config;
use squall_h3::server;
use squall_yard::error::{Failure, Result, context};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::metrics::{Protocol, TimedOut};
use super::peer::Peer;
use super::site::{Content, Service, Site};
use super::takeover::Inherited;
use super::watch::{Limits, supervise};

/// The application protocol's name (RFC 9114 §3.1).
const ALPN: &[u8] = b"h3";

/// RFC 9114 §8.1: H3_NO_ERROR.
const NO_ERROR: u64 = 0x100;

/// Concurrent requests on a connection.
const STREAMS: u64 = 128;

/// How long to wait for connections to end, so that clients learn of it.
const FAREWELL: Duration = Duration::from_secs(1);

/// Everything that serves connections.
pub(crate) struct Server {
    pub(crate) site: Arc<Site>,
    pub(crate) limits: Limits,
    /// One for each connection that may be open, shared with TCP.
    pub(crate) permits: Arc<Semaphore>,
    /// Turns true when no connection is to be accepted any more.
    pub(crate) closing: watch::Receiver<bool>,
    /// Turns true when no request is to be accepted any more.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// The settings of the endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The address of TCP's listener.
    pub(crate) address: SocketAddr,
    pub(crate) workers: usize,
    /// Whether every client must prove its address first.
    pub(crate) retry: bool,
    pub(crate) max_connections: usize,
    /// Whether requests may arrive in early data, as replays do.
    pub(crate) early_data: bool,
    /// Whether the workers' time is measured by stage.
    pub(crate) stage_times: bool,
    /// The secret of stateless resets and tokens. `None`: random.
    pub(crate) host_key: Option<[u8; 32]>,
}

/// Reads the secret of stateless resets and tokens.
///
/// # Errors
/// The file cannot be read, or has too few bytes, or far too many.
pub(crate) fn read_host_key(path: &Path) -> Result<[u8; 32]> {
    /// A file that is longer is not a key.
    const LONGEST: u64 = 4096;
    let failed = format!("cannot read the key {}", path.display());
    let file = File::open(path).map_err(context(&failed))?;
    let mut key = Vec::new();
    file.take(LONGEST + 1)
        .read_to_end(&mut key)
        .map_err(context(&failed))?;
    if key.len() < 32 || key.len() as u64 > LONGEST {
        return Err(Failure::new(format!(
            "{} must have 32 to {LONGEST} random bytes; make one with: head -c 32 /dev/urandom > {}",
            path.display(),
            path.display()
        )));
    }
    Ok(Sha256::digest(&key).into())
}

/// Binds the port, or takes over another process's. `tls` holds the certificate.
///
/// # Errors
/// The port is not available; the error says what to do.
pub(crate) fn bind(
    settings: &Settings,
    mut tls: Tls,
    limits: &Limits,
    inherited: Option<Inherited>,
) -> Result<Endpoint> {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    if settings.early_data {
        // RFC 9001 §4.6.1: QUIC's own limits apply.
        tls.max_early_data_size = u32::MAX;
    }
    let transport = TransportConfig::default()
        .max_idle_timeout(limits.idle)
        .max_concurrent_bidi_streams(STREAMS);
    let mut builder = Builder::new(settings.address)
        .server(ServerConfig::new(tls).transport(transport))
        .workers(settings.workers)
        .accounting(settings.stage_times)
        // Permits keep the limit. Connections that are closing hold none, but count here.
        .max_connections(settings.max_connections.saturating_mul(2));
    if let Some(key) = settings.host_key {
        builder = builder.reset_key(key);
    }
    if settings.retry {
        builder = builder.retry_from(0);
    }
    if let Some(inherited) = inherited {
        let bound = inherited.apply(builder).bind();
        return bound.map_err(context("cannot take over the UDP port"));
    }
    let address = settings.address;
    builder.bind().map_err(|error| {
        Failure::new(format!(
            "cannot listen on {address} (UDP): {error}; choose another port with --listen ADDR:PORT, or leave HTTP/3 \
             out with --no-h3"
        ))
    })
}

impl Server {
    /// Accepts connections until the server stops, and ignores attempts from then on.
    pub(crate) async fn run(self: Arc<Self>, endpoint: Endpoint) {
        let mut closing = self.closing.clone();
        let (server, runtime) = (Arc::clone(&self), Handle::current());
        // On the workers: files are answered there, and no other thread is woken for a connection.
        let serving = endpoint.serve_incoming(move |incoming| {
            let (server, runtime) = (Arc::clone(&server), runtime.clone());
            async move { server.serve(incoming, &runtime).await }
        });
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => {}
            () = serving => {}
        }
        // From now on attempts are not answered: when clients repeat them, they reach the process
        // that takes over the port. Browsers would remember a refusal.
        let _ = endpoint.set_server_config(None);
        while let Some(incoming) = endpoint.accept().await {
            incoming.ignore();
        }
    }

    async fn serve(self: Arc<Self>, incoming: Incoming, runtime: &Handle) {
        if *self.closing.borrow() {
            return incoming.ignore();
        }
        // Instead of waiting for its turn, a client gets an answer, and can use TCP.
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return incoming.refuse();
        };
        // Before the handshake is complete, so that early data is answered at once.
        let Ok((connection, _)) = incoming.accept().into_0rtt().await else {
            return;
        };
        let address = connection.remote_address();
        let metrics = Arc::clone(&self.site.metrics);
        let peer = Arc::new(Peer::new(address, Protocol::Http3, metrics, Some(permit)));
        match self.site.content {
            // Files are answered from memory, or read by other threads.
            Content::Files(_) => self.drive(connection, peer, true).await,
            Content::Application(_) => {
                drop(runtime.spawn(self.drive(connection, peer, false)));
            }
        }
    }

    /// Serves a connection until it ends, is too slow, or has been idle.
    async fn drive(self: Arc<Self>, connection: Connection, peer: Arc<Peer>, on_worker: bool) {
        let service = Service::new(Arc::clone(&self.site), Arc::clone(&peer));
        // RFC 9220: for the application's WebSocket. Files need neither it nor 103 (Early Hints).
        let config = Config::new()
            .header_timeout(self.limits.header)
            .body_timeout(Some(self.limits.body))
            .send_timeout(Some(self.limits.send))
            .enable_connect_protocol(!on_worker)
            .informational(!on_worker);
        let noted = Arc::clone(&peer);
        let mut builder = server::Builder::new()
            .config(config)
            .on_send_timeout(move || {
                noted.metrics.timed_out(noted.protocol, TimedOut::Response);
            });
        if on_worker {
            let (site, peer) = (Arc::clone(&self.site), Arc::clone(&peer));
            builder = builder
                .on_worker()
                .answer_first(move |head| site.reply(head, &peer));
        }
        let serving = pin!(builder.serve_connection(connection.clone(), service));
        let shut_down = |serving: Pin<&mut server::ServeConnection<_>>, cx: &mut Context<'_>| {
            serving.get_mut().poll_shutdown(cx);
        };
        let stopping = self.stopping.clone();
        supervise(serving, shut_down, &peer.activity, &self.limits, stopping).await;
        connection.close(NO_ERROR, b"");
    }
}

/// Closes an endpoint and waits until its clients know.
pub(crate) async fn close(endpoint: Endpoint) {
    endpoint.close(NO_ERROR, b"the server stops");
    // Clients that do not answer find out by themselves.
    let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
}
