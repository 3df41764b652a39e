//! A client that speaks HTTP/3 where it can, and HTTP/2 or HTTP/1.1 where it cannot.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use squall::rustls::ClientConfig;
use squall::rustls::pki_types::ServerName;
use squall::{Builder, ConnectionClosed, ConnectionInfo, Endpoint, Events};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use super::args::Resolve;
use super::exit::{Code, Failed};

/// How long HTTP/3 has to connect before HTTP/2 is tried, if that is allowed.
const HTTP3_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait until servers have been told that their connections end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A worker that still receives reports the end of a connection shortly before it sends it.
const SENDING: Duration = Duration::from_millis(2);

/// The body of a response of any version.
pub(crate) type Body = UnsyncBoxBody<Bytes, Failed>;

/// The settings of a client.
pub(crate) struct Settings {
    /// TLS without application protocols.
    pub(crate) tls: ClientConfig,
    pub(crate) resolve: Vec<Resolve>,
    pub(crate) http3_only: bool,
    pub(crate) connect_timeout: Duration,
}

/// Fetches over any version that the server speaks.
pub(crate) struct Client {
    /// The endpoint of HTTP/3's connections.
    endpoint: Endpoint,
    open: Arc<Open>,
    http3: squall_h3::client::Client,
    tcp: legacy::Client<Tcp, Full<Bytes>>,
    http3_only: bool,
    connect_timeout: Duration,
    /// Whether HTTP/3 reaches an authority, once known.
    speaks_http3: Mutex<HashMap<String, Arc<Reached>>>,
}

/// Whether HTTP/3 reaches an authority, once tried.
type Reached = tokio::sync::OnceCell<Result<(), Arc<Failed>>>;

impl Client {
    pub(crate) fn new(settings: Settings) -> io::Result<Self> {
        let names = Arc::new(Names(settings.resolve));
        let with = |protocols: &[&[u8]]| {
            let mut tls = settings.tls.clone();
            tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            tls
        };
        let any = SocketAddr::from(([0u16; 8], 0));
        let v4_only = SocketAddr::from(([0u8; 4], 0));
        let open = Arc::new(Open::default());
        let bind = |to| Builder::new(to).events(Arc::clone(&open) as _).bind();
        let endpoint = bind(any).or_else(|_| bind(v4_only))?;
        let http3 = squall_h3::client::Client::with(
            endpoint.clone(),
            squall::ClientConfig::new(with(&[b"h3"])),
            squall_h3::Config::new(),
            Some(Arc::clone(&names) as _),
        );
        let tcp = Tcp {
            names,
            tls: TlsConnector::from(Arc::new(with(&[b"h2", b"http/1.1"]))),
        };
        Ok(Self {
            endpoint,
            open,
            http3,
            tcp: legacy::Client::builder(TokioExecutor::new()).build(tcp),
            http3_only: settings.http3_only,
            connect_timeout: settings.connect_timeout,
            speaks_http3: Mutex::default(),
        })
    }

    /// Sends a request and waits for the head of the response.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Body>, Failed> {
        match self.http3_reaches(request.uri()).await {
            Ok(()) => {
                let response = self.http3.send(request).await;
                let response = response.map_err(|error| Failed::http3(&error))?;
                Ok(response.map(|body| body.map_err(|error| Failed::http3(&error)).boxed_unsync()))
            }
            Err(failed) if self.http3_only => Err(Failed::new(failed.code, &failed)),
            // A server with the wrong identity over QUIC is no better over TCP.
            Err(failed) if failed.code == Code::Certificate => {
                Err(Failed::new(failed.code, &failed))
            }
            Err(_) => self.send_over_tcp(request).await,
        }
    }

    /// Closes the connections of HTTP/3, and waits for a short time until their servers have
    /// been informed. Those over TCP end with the process.
    pub(crate) async fn close(&self) {
        self.endpoint.close(squall_h3::Code::H3_NO_ERROR.0, b"");
        let mut open = self.open.0.subscribe();
        if *open.borrow() == 0 {
            return;
        }
        let told = async {
            let _ = open.wait_for(|open| *open == 0).await;
            tokio::time::sleep(SENDING).await;
        };
        // A server that is not told waits for its idle timeout.
        let _ = tokio::time::timeout(FAREWELL, told).await;
    }

    /// Connects with HTTP/3, once per authority.
    async fn http3_reaches(&self, uri: &Uri) -> Result<(), Arc<Failed>> {
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let cell = {
            let mut known = self
                .speaks_http3
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(authority).or_default())
        };
        let patience = if self.http3_only {
            self.connect_timeout
        } else {
            self.connect_timeout.min(HTTP3_PATIENCE)
        };
        let connect = || async {
            match tokio::time::timeout(patience, self.http3.connect(uri)).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(Arc::new(Failed::http3(&error))),
                Err(_) => {
                    let text = "the server does not answer over HTTP/3";
                    Err(Arc::new(Failed::new(Code::Timeout, text)))
                }
            }
        };
        cell.get_or_init(connect).await.clone()
    }

    async fn send_over_tcp(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Body>, Failed> {
        *request.version_mut() = http::Version::HTTP_11;
        let response = self.tcp.request(request).await;
        let response = response.map_err(|error| Failed::tcp(&error))?;
        let failed = |error: hyper::Error| Failed::new(Code::Receive, error);
        Ok(response.map(|body| body.map_err(failed).boxed_unsync()))
    }
}

/// The number of connections of an endpoint that have not ended.
#[derive(Default)]
struct Open(watch::Sender<usize>);

impl Events for Open {
    fn connection_started(&self, _: &ConnectionInfo) {
        self.0.send_modify(|open| *open += 1);
    }

    fn connection_closed(&self, _: &ConnectionInfo, _: &ConnectionClosed) {
        self.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

/// Addresses of hosts: those of `--resolve` first, then the operating system's.
struct Names(Vec<Resolve>);

impl Names {
    fn fixed(&self, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
        let fixed = self
            .0
            .iter()
            .filter(|one| one.host == host && one.port == port);
        let fixed: Vec<_> = fixed
            .map(|one| SocketAddr::new(one.address, port))
            .collect();
        (!fixed.is_empty()).then_some(fixed)
    }
}

impl squall_h3::client::Resolve for Names {
    fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        let (fixed, host) = (self.fixed(host, port), host.to_owned());
        Box::pin(async move {
            match fixed {
                Some(fixed) => Ok(fixed),
                None => Ok(tokio::net::lookup_host((&*host, port)).await?.collect()),
            }
        })
    }
}

/// Connects with TCP and TLS.
#[derive(Clone)]
struct Tcp {
    names: Arc<Names>,
    tls: TlsConnector,
}

impl Service<Uri> for Tcp {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            let host = host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned();
            let port = uri.port_u16().unwrap_or(443);
            let addresses = squall_h3::client::Resolve::resolve(&*this.names, &host, port).await?;
            let tcp = TcpStream::connect(&*addresses).await?;
            tcp.set_nodelay(true)?;
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            Ok(TokioIo::new(Stream(this.tls.connect(name, tcp).await?)))
        })
    }
}

/// A TLS connection that knows whether it speaks HTTP/2.
struct Stream(TlsStream<TcpStream>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let (_, tls) = self.0.get_ref();
        if tls.alpn_protocol() == Some(b"h2") {
            Connected::new().negotiated_h2()
        } else {
            Connected::new()
        }
    }
}

impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl tokio::io::AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
