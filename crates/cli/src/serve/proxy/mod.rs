//! A reverse proxy: forwards requests to an application, and its responses back.
//!
//! ```text
//!   fields    what belongs to a connection goes, and what a client claims to be is replaced
//!   upload    bodies in both directions, streamed, with a limit on pauses
//!   upstream  the pool of connections to the application
//!   tunnel    WebSocket and other protocols after an upgrade
//! ```

mod fields;
mod tunnel;
mod upload;
mod upstream;

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, TE};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use squall_h3::{Early, Informational};
use tokio::time::sleep;

pub(crate) use self::upstream::Address;

use self::fields::Client;
use self::upload::{Progress, Slow, Timed};
use self::upstream::{Failure, Upload, Upstream};
use super::body::{Body, BoxError};
use super::files::short;
use super::peer::Peer;

/// How long the parts of an exchange may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// To connect to the application.
    pub(crate) connect: Duration,
    /// For the application's response to begin, and for each pause in it.
    pub(crate) response: Duration,
    /// For each pause in a client's body.
    pub(crate) body: Duration,
}

/// The application behind this server.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<Inner>);

struct Inner {
    upstream: Upstream,
    timeouts: Timeouts,
}

impl Proxy {
    pub(crate) fn new(address: Address, timeouts: Timeouts) -> Self {
        Self(Arc::new(Inner {
            upstream: Upstream::new(address, timeouts.connect),
            timeouts,
        }))
    }

    /// Forwards a request.
    pub(crate) async fn respond<B>(
        self,
        mut head: Parts,
        body: B,
        peer: Arc<Peer>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        if head.method == Method::TRACE {
            // Would show scripts what they must not see.
            return short(StatusCode::METHOD_NOT_ALLOWED);
        }
        let is_early = head.extensions.get::<Early>().is_some();
        if is_early && !head.method.is_safe() {
            // RFC 8470 §5.2: the client sends it again after the handshake.
            return short(StatusCode::TOO_EARLY);
        }
        let upgrade = match tunnel::Upgrade::of(&mut head) {
            Ok(upgrade) => upgrade,
            Err(status) => return short(status),
        };
        let host = match host(&head) {
            Ok(host) => host,
            Err(status) => return short(status),
        };
        fields::to_application(
            &mut head.headers,
            &Client {
                address: peer.address.ip(),
                host: host.as_ref().map(Authority::as_str),
                version: peer.protocol.version().trim_start_matches("HTTP/"),
                is_early,
            },
        );
        if let Some(upgrade) = &upgrade {
            if self.0.upstream.is_h2c() {
                return short(StatusCode::NOT_IMPLEMENTED);
            }
            upgrade.ask(&mut head);
        } else if head.headers.contains_key(TE) && !self.0.upstream.is_h2c() {
            // RFC 9110 §10.1.4
            head.headers
                .insert(CONNECTION, HeaderValue::from_static("te"));
        }
        if self.0.upstream.is_h2c() {
            // `:authority` carries it there.
            head.headers.remove(HOST);
        }
        let informational = head.extensions.remove::<Informational>();
        let limit = self.0.timeouts.response;
        if let Some(upgrade) = upgrade {
            // Data from the client belongs to the tunnel.
            return match self.exchange(head, Empty::new(), host, &peer).await {
                Ok(response) => upgrade.finish(response, body, peer, limit),
                Err(status) => short(status),
            };
        }
        if let Some(informational) = informational {
            pass_on(informational, &mut head);
        }
        match self.exchange(head, body, host, &peer).await {
            Ok(response) if response.status().is_informational() => short(StatusCode::BAD_GATEWAY),
            Ok(response) => answer(response, limit),
            Err(status) => short(status),
        }
    }

    /// Sends a request, and repeats it if that does no harm.
    async fn exchange<B>(
        &self,
        head: Parts,
        body: B,
        host: Option<Authority>,
        peer: &Arc<Peer>,
    ) -> Result<Response<Incoming>, StatusCode>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let inner = &self.0;
        let progress = Progress::new(peer);
        if body.is_end_stream() {
            // RFC 9110 §9.2.2: repeated if the connection fails before there is a response, which
            // happens when the application closes an idle one at this moment.
            let again = head.method.is_idempotent().then(|| head.clone());
            let empty = || Empty::new().map_err(|never| match never {}).boxed_unsync();
            let request = Request::from_parts(head, empty());
            let first = inner.wait(request, host.clone(), &progress).await;
            return match (first, again) {
                (Err(Lost::Failed(Failure::Request(_))), Some(head)) => {
                    let request = Request::from_parts(head, empty());
                    inner.wait(request, host, &Progress::new(peer)).await
                }
                (first, _) => first,
            }
            .map_err(|lost| lost.status());
        }
        let limit = inner.timeouts.body;
        let upload = Timed::new(body, limit, Slow::Client, Some(progress.clone()));
        let request = Request::from_parts(head, upload.boxed_unsync());
        let response = inner.wait(request, host, &progress).await;
        response.map_err(|lost| progress.fault().unwrap_or_else(|| lost.status()))
    }
}

/// Has the informational responses to a request passed on to its client (RFC 9110 §15.2).
fn pass_on(informational: Informational, head: &mut Parts) {
    // hyper takes a whole request, of which only the extensions matter.
    let mut request = Request::new(());
    *request.extensions_mut() = std::mem::take(&mut head.extensions);
    hyper::ext::on_informational(&mut request, move |response| {
        // This server sends the client its own 100, when the application takes the body.
        if response.status() == StatusCode::CONTINUE {
            return;
        }
        let mut headers = response.headers().clone();
        fields::to_client(&mut headers);
        let mut copy = Response::new(());
        *copy.status_mut() = response.status();
        *copy.headers_mut() = headers;
        // A client that accepts no more gets the final response only.
        let _ = informational.send(copy);
    });
    head.extensions = std::mem::take(request.extensions_mut());
}

/// The name by which the client calls this server. Over HTTP/1.1 it may be empty.
///
/// # Errors
/// 400: it is not a host (RFC 9112 §3.2), or has user information, which misleads (RFC 9110
/// §4.2.4).
fn host(head: &Parts) -> Result<Option<Authority>, StatusCode> {
    let named = head.headers.get(HOST).filter(|host| !host.is_empty());
    let host = match (head.uri.authority(), named) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => {
            Authority::try_from(host.as_bytes()).map_err(|_| StatusCode::BAD_REQUEST)?
        }
        (None, None) => return Ok(None),
    };
    if host.as_str().contains('@') {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok(Some(host))
}

/// Why there is no response.
enum Lost {
    Failed(Failure),
    TooLate,
}

impl Inner {
    /// Waits for a response to begin, while the request's body moves and for the limit after that.
    async fn wait(
        &self,
        request: Request<Upload>,
        host: Option<Authority>,
        progress: &Progress,
    ) -> Result<Response<Incoming>, Lost> {
        let limit = self.timeouts.response;
        let mut response = std::pin::pin!(self.upstream.send(request, host));
        loop {
            let left = limit.saturating_sub(progress.age());
            if left.is_zero() {
                return Err(Lost::TooLate);
            }
            tokio::select! {
                biased;
                response = &mut response => return response.map_err(Lost::Failed),
                () = sleep(left) => {}
            }
        }
    }
}

impl Lost {
    /// The status for the client.
    fn status(&self) -> StatusCode {
        let error = match self {
            Self::TooLate => return StatusCode::GATEWAY_TIMEOUT,
            Self::Failed(Failure::Connect(error) | Failure::Request(error)) => error,
        };
        let mut cause: Option<&(dyn Error + 'static)> = Some(&**error);
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>();
            if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
                return StatusCode::GATEWAY_TIMEOUT;
            }
            cause = error.source();
        }
        StatusCode::BAD_GATEWAY
    }
}

/// The application's response as the client gets it.
fn answer(response: Response<Incoming>, limit: Duration) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    fields::to_client(&mut head.headers);
    // A response from HTTP/1.1 may leave over HTTP/2.
    head.version = http::Version::default();
    let body = if http_body::Body::is_end_stream(&body) {
        Body::Empty
    } else {
        Body::Stream(Timed::new(body, limit, Slow::Application, None).boxed_unsync())
    };
    Response::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_host_is_rejected() {
        let host_of = |uri: &str, field: Option<&str>| {
            let mut request = Request::builder().uri(uri);
            if let Some(field) = field {
                request = request.header(HOST, field);
            }
            let (head, ()) = request.body(()).expect("a request").into_parts();
            host(&head).map(|host| host.map(|host| host.to_string()))
        };
        let named = |host: &str| Ok(Some(host.to_owned()));
        assert_eq!(host_of("/", Some("a.example:1")), named("a.example:1"));
        assert_eq!(
            host_of("https://b.example/", Some("a.example")),
            named("b.example")
        );
        assert_eq!(host_of("/", None), Ok(None));
        assert_eq!(host_of("/", Some("")), Ok(None));
        for bad in ["a b", "u@a", "a/b", "a\"b", "[::1"] {
            assert_eq!(
                host_of("/", Some(bad)),
                Err(StatusCode::BAD_REQUEST),
                "{bad}"
            );
        }
        assert_eq!(host_of("https://u@a/", None), Err(StatusCode::BAD_REQUEST));
    }
}
