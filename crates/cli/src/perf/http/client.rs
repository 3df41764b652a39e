//! Connections to the server: hyper's clients over TLS over TCP, and squall-h3's.
//!
//! All run on one thread, the client's. HTTP/3's endpoint is a task of the same runtime.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use squall::{Builder, ClientConfig, Endpoint, TransportConfig};
use squall_yard::certificate::{NAME, trusting_anyone};
use squall_yard::error::{Failure, Result, context};
use squall_yard::live::Counter;
use squall_yard::options::Options;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::files::File;
use super::protocol::Protocol;

/// RFC 9114 §8.1: H3_NO_ERROR.
const NO_ERROR: u64 = 0x100;
/// How long to wait for connections to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// The clients' counts over all connections.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Bytes of content that arrived.
    pub(super) bytes: Arc<Counter>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

impl Tally {
    /// A request in flight until the end of its response.
    fn begin(&self) -> InFlight<'_> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        InFlight(self)
    }

    /// The most requests in flight at a time.
    pub(super) fn most_in_flight(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

struct InFlight<'a>(&'a Tally);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connects with one protocol.
pub(super) struct Client {
    protocol: Protocol,
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    /// HTTP/3's.
    endpoint: Option<Endpoint>,
}

impl Client {
    /// A client on the current runtime. Without resumption, all handshakes are full.
    ///
    /// # Errors
    /// No port is available.
    pub(super) fn new(
        protocol: Protocol,
        address: SocketAddr,
        options: &Options,
        resumption: bool,
    ) -> Result<Self> {
        // The server generates its own certificate, as it does by default.
        let mut tls = trusting_anyone(options.provider())?;
        tls.alpn_protocols = vec![protocol.alpn().to_vec()];
        if !resumption {
            tls.resumption = Resumption::disabled();
        }
        tls.key_log = options.key_log()?;
        let tls = Arc::new(tls);
        let endpoint = (protocol == Protocol::H3)
            .then(|| endpoint(address.ip(), options, Arc::clone(&tls)))
            .transpose()?;
        Ok(Self {
            protocol,
            address,
            tls,
            endpoint,
        })
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// The server cannot be reached, or does not speak the protocol.
    pub(super) async fn connect(&self) -> Result<Connection> {
        let kind = match &self.endpoint {
            Some(endpoint) => {
                let connecting = (endpoint.connect(self.address, NAME)).map_err(failed(self))?;
                let connection = connecting.await.map_err(failed(self))?;
                Kind::H3(squall_h3::client::handshake(connection))
            }
            None => self.over_tcp().await?,
        };
        Ok(Connection {
            kind,
            protocol: self.protocol,
            address: self.address,
        })
    }

    async fn over_tcp(&self) -> Result<Kind> {
        let io = TokioIo::new(self.tls().await?);
        if self.protocol == Protocol::H2 {
            let builder = http2::Builder::new(TokioExecutor::new());
            let (sender, connection) = builder.handshake(io).await.map_err(failed(self))?;
            // Requests report its failure.
            tokio::spawn(connection);
            return Ok(Kind::H2(sender));
        }
        let (sender, connection) = http1::handshake(io).await.map_err(failed(self))?;
        tokio::spawn(connection);
        Ok(Kind::H1(sender))
    }

    async fn tls(&self) -> Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address).await;
        let tcp = tcp.map_err(failed(self))?;
        tcp.set_nodelay(true).map_err(failed(self))?;
        let name = ServerName::try_from(NAME).map_err(failed(self))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let tls = connector.connect(name, tcp).await.map_err(failed(self))?;
        if tls.get_ref().1.alpn_protocol() != Some(self.protocol.alpn()) {
            let text = format!("the server does not speak {}", self.protocol);
            return Err(Failure::new(text));
        }
        Ok(tls)
    }

    /// Waits until the server knows that connections have ended, so that they cost it nothing
    /// later. Those over TCP end with their sockets.
    pub(super) async fn close(&self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.close(NO_ERROR, b"");
            let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
        }
    }
}

fn failed<E: fmt::Display>(client: &Client) -> impl Fn(E) -> Failure + use<E> {
    let protocol = client.protocol;
    move |error| Failure::new(format!("no {protocol} connection to the server: {error}"))
}

fn broken<E: fmt::Display>(error: E) -> Failure {
    Failure::new(format!("a request failed: {error}"))
}

/// HTTP/3's endpoint. Its receive limit is the size of the server's datagrams (RFC 9000 §18.2).
fn endpoint(
    loopback: IpAddr,
    options: &Options,
    tls: Arc<rustls::ClientConfig>,
) -> Result<Endpoint> {
    let transport = TransportConfig::default()
        .max_udp_payload(options.payload)
        .max_received_udp_payload(options.payload);
    Builder::new((loopback, 0).into())
        .client(ClientConfig::new(tls).transport(transport))
        .on_runtime(Handle::current())
        .bind()
        .map_err(context("cannot start the QUIC client"))
}

/// A connection, or a handle to it.
pub(super) struct Connection {
    kind: Kind,
    protocol: Protocol,
    address: SocketAddr,
}

enum Kind {
    H3(squall_h3::client::SendRequest),
    H2(http2::SendRequest<Empty<Bytes>>),
    H1(http1::SendRequest<Empty<Bytes>>),
}

impl Connection {
    /// Handles for this many concurrent requests; HTTP/1.1 has only one.
    pub(super) fn split(self, streams: usize) -> Vec<Self> {
        let (protocol, address) = (self.protocol, self.address);
        let kinds = match self.kind {
            Kind::H3(sender) => (0..streams).map(|_| Kind::H3(sender.clone())).collect(),
            Kind::H2(sender) => (0..streams).map(|_| Kind::H2(sender.clone())).collect(),
            only @ Kind::H1(_) => vec![only],
        };
        let handle = |kind| Self {
            kind,
            protocol,
            address,
        };
        kinds.into_iter().map(handle).collect()
    }

    /// A GET like curl's.
    ///
    /// # Errors
    /// The path contains an invalid character.
    pub(super) fn request(&self, file: &File) -> Result<Request<Empty<Bytes>>> {
        let mut request = Request::builder()
            .header(USER_AGENT, concat!("squall/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "*/*");
        let (path, port) = (&file.path, self.address.port());
        request = match self.kind {
            Kind::H1(_) => request.uri(path).header(HOST, format!("{NAME}:{port}")),
            _ => request.uri(format!("https://{NAME}:{port}{path}")),
        };
        request.body(Empty::new()).map_err(context("a request"))
    }

    /// Sends a request and reads its response to the end.
    ///
    /// # Errors
    /// The connection failed, or the response is not the expected one.
    pub(super) async fn get(
        &mut self,
        request: Request<Empty<Bytes>>,
        file: &File,
        tally: &Tally,
    ) -> Result<()> {
        let _in_flight = tally.begin();
        let protocol = self.protocol;
        match &mut self.kind {
            Kind::H3(sender) => {
                let response = sender.send(request).await.map_err(broken)?;
                read(response, protocol, file, tally).await
            }
            Kind::H2(sender) => {
                sender.ready().await.map_err(broken)?;
                let response = sender.send_request(request).await.map_err(broken)?;
                read(response, protocol, file, tally).await
            }
            Kind::H1(sender) => {
                sender.ready().await.map_err(broken)?;
                let response = sender.send_request(request).await.map_err(broken)?;
                read(response, protocol, file, tally).await
            }
        }
    }
}

/// Reads a response whose status, version and length must be right.
async fn read<B>(
    response: Response<B>,
    protocol: Protocol,
    file: &File,
    tally: &Tally,
) -> Result<()>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    let (head, mut body) = response.into_parts();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(context("a response was cut short"))?;
        let len = frame.data_ref().map_or(0, Bytes::len) as u64;
        bytes += len;
        tally.bytes.add(len);
    }
    if (head.status, head.version, bytes) == (StatusCode::OK, protocol.version(), file.len) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the response to {} is {:?} {} with {bytes} of {} bytes",
        file.path, head.version, head.status, file.len
    )))
}
