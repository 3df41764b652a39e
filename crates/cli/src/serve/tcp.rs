//! HTTP/1.1 and HTTP/2 over TLS over TCP.
//!
//! ```text
//!   accept ─► TLS handshake ─► ALPN ─► hyper ─► site::Service
//!     │ a permit each            │
//!     ▼                          ▼
//!   as many as may be open     watch: each connection looks at its own progress
//! ```

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::metrics::{Metrics, Protocol, TimedOut};
use super::peer::Peer;
use super::site::{self, Service, Site};
use super::standstill::Tasks;
use super::watch::{Kind, Limits, Watched, supervise};

/// The application protocols, the preferred one first.
pub(crate) const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Concurrent requests on an HTTP/2 connection.
const STREAMS: u32 = 128;
/// The most bytes of a request's fields.
const FIELDS: u32 = 64 << 10;
/// Data buffered per HTTP/2 response for a client that does not read.
const SEND_BUFFER: usize = 256 << 10;
/// The pause after an accept that failed for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// Everything that serves connections.
pub(crate) struct Server {
    pub(crate) site: Arc<Site>,
    pub(crate) tls: TlsAcceptor,
    pub(crate) limits: Limits,
    /// One for each connection that may be open.
    pub(crate) permits: Arc<Semaphore>,
    /// Turns true when no connection is to be accepted any more.
    pub(crate) closing: watch::Receiver<bool>,
    /// Turns true when no request is to be accepted any more.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Server {
    /// Accepts connections until the server stops. Connections continue by themselves.
    pub(crate) async fn run(self: Arc<Self>, listener: Arc<TcpListener>) {
        let mut closing = self.closing.clone();
        loop {
            let accepted = async {
                // One client waits here for its permit, and others in the kernel's queue. A permit
                // that waited for a client would be missing for HTTP/3.
                let accepted = listener.accept().await;
                let permit = Arc::clone(&self.permits).acquire_owned().await;
                (accepted, permit.ok())
            };
            let (accepted, permit) = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((tcp, address)) => {
                    let server = Arc::clone(&self);
                    tokio::spawn(async move { server.serve(tcp, address, permit).await });
                }
                Err(error) if is_exhausted(&error) => tokio::time::sleep(PAUSE).await,
                // The client has already gone.
                Err(_) => {}
            }
        }
    }

    async fn serve(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        // Without it, the last packet of a response may wait for an acknowledgement.
        let _ = tcp.set_nodelay(true);
        let mut stopping = self.stopping.clone();
        let handshake = timeout(self.limits.header, self.tls.accept(tcp));
        let tls = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            tls = handshake => tls,
        };
        // Scanners, and clients that do not trust the certificate: not worth a line.
        let Ok(Ok(tls)) = tls else { return };
        let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let (protocol, kind) = if is_h2 {
            (Protocol::Http2, Kind::Http2)
        } else {
            (Protocol::Http1, Kind::Http1)
        };
        let peer = Arc::new(Peer::new(
            address,
            protocol,
            Arc::clone(&self.site.metrics),
            permit,
        ));
        let io = TokioIo::new(Watched::new(tls, Arc::clone(&peer.activity), kind));
        let service = Service::new(Arc::clone(&self.site), Arc::clone(&peer));
        let respond = service_fn(move |request: Request<Incoming>| service.respond(request));
        if is_h2 {
            let mut builder = http2::Builder::new(Tasks {
                peer: Arc::clone(&peer),
                limit: self.limits.send,
            });
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(FIELDS)
                .max_send_buf_size(SEND_BUFFER)
                .enable_connect_protocol();
            let connection = builder.serve_connection(io, respond);
            let end = http2::Connection::graceful_shutdown;
            self.see_through(connection, end, &peer, stopping).await;
        } else {
            let mut builder = http1::Builder::new();
            // This server times heads itself: see `watch`.
            builder
                .header_read_timeout(None)
                .max_buf_size(FIELDS as usize);
            let connection = builder.serve_connection(io, respond).with_upgrades();
            let end = http1::UpgradeableConnection::graceful_shutdown;
            self.see_through(connection, end, &peer, stopping).await;
        }
    }

    /// Serves a connection until it ends, is too slow, or has been idle. `end` makes it end
    /// gracefully.
    async fn see_through<C: Future>(
        &self,
        connection: C,
        end: impl Fn(Pin<&mut C>),
        peer: &Peer,
        stopping: watch::Receiver<bool>,
    ) {
        let connection = pin!(connection);
        let end = |connection: Pin<&mut C>, _: &mut Context<'_>| end(connection);
        if supervise(connection, end, &peer.activity, &self.limits, stopping).await {
            peer.metrics.timed_out(peer.protocol, TimedOut::Response);
        }
    }
}

/// Whether no connection can be accepted until another one ends.
fn is_exhausted(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    )
}

/// Serves the metrics over plain HTTP/1.1, on a separate address.
pub(crate) async fn serve_metrics(
    listener: Arc<TcpListener>,
    metrics: Arc<Metrics>,
    mut stopping: watch::Receiver<bool>,
) {
    /// Concurrent scrapers, and how long one may take.
    const SCRAPERS: usize = 16;
    const TIME: Duration = Duration::from_secs(10);
    let permits = Arc::new(Semaphore::new(SCRAPERS));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((tcp, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            let respond = service_fn(move |request: Request<Incoming>| {
                let response = match request.uri().path() {
                    "/metrics" => site::metrics(&metrics, request.method()),
                    _ => super::files::short(http::StatusCode::NOT_FOUND),
                };
                async move { Ok::<_, std::convert::Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.header_read_timeout(None).keep_alive(false);
            // A scraper that fails will retry.
            let _ = timeout(TIME, builder.serve_connection(TokioIo::new(tcp), respond)).await;
            drop(permit);
        });
    }
}
