//! Connections to the application: a pool over HTTP/1.1, a single one over HTTP/2.

use std::io;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::port;
use crate::serve::body::BoxError;

/// The body of a request to the application.
pub(super) type Upload = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, BoxError>;

/// The port of `http`.
const HTTP: u16 = 80;

/// Idle connections that are kept, and for how long.
const IDLE_CONNECTIONS: usize = 256;
const IDLE: Duration = Duration::from_secs(60);

/// Where the application is, as `http://HOST:PORT` or `h2c://HOST:PORT`.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    authority: Authority,
    is_h2c: bool,
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = || "give http://HOST:PORT, or h2c://HOST:PORT for HTTP/2".to_owned();
        let uri: Uri = text.parse().map_err(|_| hint())?;
        let is_h2c = match uri.scheme_str() {
            Some("http") => false,
            Some("h2c") => true,
            Some("https") => {
                return Err(
                    "the application is reached without TLS: give http://HOST:PORT".to_owned(),
                );
            }
            _ => return Err(hint()),
        };
        let authority = uri.authority().ok_or_else(hint)?.clone();
        let has_more = uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some();
        if has_more || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(hint());
        }
        port::of(&authority, HTTP)?;
        Ok(Self { authority, is_h2c })
    }
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum Failure {
    /// The application cannot be reached.
    Connect(BoxError),
    /// The request was sent, or a part of it.
    Request(BoxError),
}

/// Sends requests to the application.
pub(super) struct Upstream {
    address: Address,
    pool: Client<HttpConnector, Upload>,
    /// The connection of HTTP/2, if there is one.
    shared: Mutex<Option<SendRequest<Upload>>>,
    connect_timeout: Duration,
}

impl Upstream {
    pub(super) fn new(address: Address, connect_timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        let pool = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(connector);
        Self {
            address,
            pool,
            shared: Mutex::new(None),
            connect_timeout,
        }
    }

    /// Whether requests go over HTTP/2.
    pub(super) fn is_h2c(&self) -> bool {
        self.address.is_h2c
    }

    /// Sends a request. `host` is the name by which the client calls this server.
    ///
    /// # Errors
    /// There is no response. A request that a pooled connection did not take, because the
    /// application had closed it, has been retried.
    pub(super) async fn send(
        &self,
        mut request: Request<Upload>,
        host: Option<Authority>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.path_and_query = match request.uri().path_and_query() {
            Some(path) => Some(path.clone()),
            None => Some(PathAndQuery::from_static("/")),
        };
        uri.authority = Some(match host {
            Some(host) if self.address.is_h2c => host,
            _ => self.address.authority.clone(),
        });
        *request.uri_mut() =
            Uri::from_parts(uri).map_err(|error| Failure::Request(error.into()))?;
        if self.address.is_h2c {
            *request.version_mut() = Version::HTTP_2;
            let mut sender = self.shared().await.map_err(Failure::Connect)?;
            sender
                .ready()
                .await
                .map_err(|error| Failure::Request(error.into()))?;
            let response = sender.send_request(request).await;
            return response.map_err(|error| Failure::Request(error.into()));
        }
        *request.version_mut() = Version::HTTP_11;
        self.pool.request(request).await.map_err(|error| {
            if error.is_connect() {
                Failure::Connect(error.into())
            } else {
                Failure::Request(error.into())
            }
        })
    }

    /// The connection of HTTP/2, which is made if there is none. Others wait for it.
    async fn shared(&self) -> Result<SendRequest<Upload>, BoxError> {
        let mut shared = self.shared.lock().await;
        if let Some(sender) = shared.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let authority = &self.address.authority;
        let host = authority.host().trim_matches(['[', ']']);
        let connecting = TcpStream::connect((host, authority.port_u16().unwrap_or(HTTP)));
        let tcp = timeout(self.connect_timeout, connecting)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        tcp.set_nodelay(true)?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .adaptive_window(true)
            .handshake(TokioIo::new(tcp))
            .await?;
        tokio::spawn(async move {
            // The task that waits for a response learns why the connection ended.
            let _ = connection.await;
        });
        *shared = Some(sender.clone());
        Ok(sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_address_has_a_host_and_no_path() {
        for text in [
            "http://127.0.0.1:8080",
            "http://localhost:1/",
            "http://[::1]:80",
            "http://app",
            "http://app:",
        ] {
            assert!(
                text.parse::<Address>().is_ok_and(|address| !address.is_h2c),
                "{text}"
            );
        }
        assert!(
            "h2c://app:1"
                .parse::<Address>()
                .is_ok_and(|address| address.is_h2c)
        );
        for text in [
            "",
            "localhost:80",
            "https://a",
            "ftp://a",
            "http://",
            "http://a/b",
            "http://a?b",
            "http://u@a",
            "/a",
            "http://a b",
            "http://a:99999",
            "h2c://a:x",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
