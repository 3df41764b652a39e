//! A client for any number of origins: one connection for each, made on demand.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use http::header::ALT_SVC;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use squall::{ClientConfig, CloseReason, Endpoint};
use tokio::sync::watch;
use tower_service::Service;

use super::connect::{Connected, connect, resolve};
use super::origin::{AltSvc, Alternative, Origin, alt_svc};
use super::{ResponseFuture, SendRequest, handshake_with};
use crate::body::Body;
use crate::config::Config;
use crate::error::{Code, Error};
use crate::lock::lock;
use crate::service::SendBody;

/// The most often that a request is sent: once, and again where that is safe.
const ATTEMPTS: usize = 3;

/// Finds the addresses of a host.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of `host`, a DNS name or an IP address, with `port` or with another one named
    /// by a DNS record (RFC 9460).
    fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
}

/// The operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct System;

impl Resolve for System {
    fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        let host = host.to_owned();
        Box::pin(async move { resolve(&host, port).await })
    }
}

/// A client that connects to the origin of each request, and keeps the connection for later ones.
///
/// - The addresses of a host are tried by "Happy Eyeballs" (RFC 8305).
/// - An alternative that a response names in `Alt-Svc` is used for the next connection (RFC 7838).
/// - With early data enabled in the TLS configuration, requests with safe methods are sent at once
///   when a connection is resumed; others wait for the handshake. After a response 425 Too Early,
///   such a request is sent again once the handshake is complete (RFC 8470).
/// - A request without a body is sent again if the server has certainly not processed it (RFC 9114
///   §4.1.1). It is also sent again if its method is idempotent and its connection ended, provided
///   that it had been used before or the server ended it gracefully (RFC 9110 §9.2.2).
///
/// Clones share the connections. It is a [`Service`] for use on a tokio runtime.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    tls: ClientConfig,
    config: Config,
    resolver: Arc<dyn Resolve>,
    origins: Mutex<HashMap<Origin, Arc<Place>>>,
}

/// What is known about an origin.
#[derive(Default)]
struct Place {
    /// Held by the task that connects; others wait for the connection.
    current: tokio::sync::Mutex<Option<Pooled>>,
    alternative: Mutex<Option<Alternative>>,
}

/// A connection of the pool.
#[derive(Clone)]
struct Pooled {
    requests: SendRequest,
    /// Whether the handshake is complete.
    complete: watch::Receiver<bool>,
    /// No request has used it yet.
    is_new: bool,
}

impl Client {
    /// A client with this configuration, whose TLS must offer the protocol `h3`. It has a UDP
    /// socket of its own for IPv4 and IPv6.
    ///
    /// # Errors
    /// No socket can be made, or the configuration is unusable.
    pub fn new(tls: ClientConfig) -> io::Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let v4_only = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        // Some machines have no IPv6.
        let endpoint = Endpoint::client(any).or_else(|_| Endpoint::client(v4_only))?;
        Ok(Self::with(endpoint, tls, Config::new(), None))
    }

    /// A client on the caller's own endpoint, with limits and a resolver; `None`: the operating
    /// system's resolver.
    #[must_use]
    pub fn with(
        endpoint: Endpoint,
        tls: ClientConfig,
        config: Config,
        resolver: Option<Arc<dyn Resolve>>,
    ) -> Self {
        Self(Arc::new(Inner {
            endpoint,
            tls,
            config,
            resolver: resolver.unwrap_or_else(|| Arc::new(System)),
            origins: Mutex::default(),
        }))
    }

    /// Sends a request to the origin of its URI and waits for the head of the response. Dropping
    /// the future cancels the request.
    ///
    /// # Errors
    /// No connection could be made; otherwise see [`Error`].
    pub fn send<B: SendBody>(&self, request: Request<B>) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        ResponseFuture(Box::pin(async move { inner.send(request).await }))
    }

    /// Connects to the origin of `uri`, unless there is a connection that takes requests.
    ///
    /// # Errors
    /// No connection could be made, or the URI has no origin.
    pub async fn connect(&self, uri: &http::Uri) -> Result<(), Error> {
        let origin = Origin::of(uri)?;
        let place = self.0.place(&origin);
        self.0.connection(&origin, &place).await.map(drop)
    }

    /// Closes all connections once their responses are complete. Later requests make new ones.
    pub fn close_idle(&self) {
        lock(&self.0.origins).clear();
    }
}

impl Inner {
    async fn send<B: SendBody>(&self, request: Request<B>) -> Result<Response<Body>, Error> {
        let origin = Origin::of(request.uri())?;
        let place = self.place(&origin);
        let (head, body) = request.into_parts();
        // A body can be sent once.
        let repeatable = body.is_end_stream();
        let mut body = Some(body);
        let mut may_be_early = head.method.is_safe();
        for attempt in 1.. {
            let pooled = self.connection(&origin, &place).await?;
            if !may_be_early {
                pooled.wait_until_complete().await?;
            }
            let was_early = !*pooled.complete.borrow();
            let mut request = Request::new(MaybeBody { body: body.take() });
            request.method_mut().clone_from(&head.method);
            request.uri_mut().clone_from(&head.uri);
            request.headers_mut().clone_from(&head.headers);
            request.extensions_mut().clone_from(&head.extensions);
            let result = pooled.requests.send(request).await;
            let result = result.map_err(|error| pooled.explain(error));
            if repeatable && attempt < ATTEMPTS {
                match &result {
                    Ok(response) if was_early && response.status() == StatusCode::TOO_EARLY => {
                        may_be_early = false;
                        continue;
                    }
                    Err(error) if error.is_unprocessed() => continue,
                    // A connection may end while a request is on its way to it: an idle one, or one
                    // whose server is stopping. Others may have failed because of the request.
                    Err(Error::Connection(reason))
                        if (!pooled.is_new || is_graceful(reason))
                            && head.method.is_idempotent() =>
                    {
                        continue;
                    }
                    _ => {}
                }
            }
            if let Ok(response) = &result {
                place.learn(response);
            }
            return result;
        }
        Err(Error::GoingAway)
    }

    fn place(&self, origin: &Origin) -> Arc<Place> {
        Arc::clone(lock(&self.origins).entry(origin.clone()).or_default())
    }

    /// The connection to an origin, made if there is none that takes requests.
    async fn connection(&self, origin: &Origin, place: &Place) -> Result<Pooled, Error> {
        let mut current = place.current.lock().await;
        if let Some(pooled) = current
            .as_ref()
            .filter(|pooled| !pooled.requests.is_closed())
        {
            let mut pooled = pooled.clone();
            pooled.is_new = false;
            return Ok(pooled);
        }
        let connected = self.connect(origin, place).await.map_err(Error::Connect)?;
        let (connection, early) = connected;
        let (tell, complete) = watch::channel(early.is_none());
        if let Some(early) = early {
            connection.spawn(async move {
                early.await;
                let _ = tell.send(true);
            });
        }
        let requests = handshake_with(connection, self.config.clone());
        let pooled = Pooled {
            requests,
            complete,
            is_new: true,
        };
        *current = Some(pooled.clone());
        Ok(pooled)
    }

    /// Connects to the alternative, if there is one and it answers, or to the origin itself.
    async fn connect(&self, origin: &Origin, place: &Place) -> io::Result<Connected> {
        let alternative = lock(&place.alternative).clone();
        if let Some(alternative) = alternative.filter(|one| one.until > Instant::now()) {
            let host = alternative.host.as_deref().unwrap_or(&origin.host);
            match self.connect_to(origin, host, alternative.port).await {
                Ok(connected) => return Ok(connected),
                Err(_) => *lock(&place.alternative) = None,
            }
        }
        self.connect_to(origin, &origin.host, origin.port).await
    }

    /// RFC 7838 §2.1: whatever the address, the certificate is the origin's.
    async fn connect_to(&self, origin: &Origin, host: &str, port: u16) -> io::Result<Connected> {
        let addresses = self.resolver.resolve(host, port).await?;
        connect(&self.endpoint, &self.tls, &origin.host, addresses).await
    }
}

impl Place {
    /// Learns from a response about its origin.
    fn learn(&self, response: &Response<Body>) {
        if let Some(value) = response.headers().get(ALT_SVC) {
            match alt_svc(value, Instant::now()) {
                Some(AltSvc::Use(alternative)) => *lock(&self.alternative) = Some(alternative),
                Some(AltSvc::Clear) => *lock(&self.alternative) = None,
                None => {}
            }
        }
    }
}

impl Pooled {
    /// Waits until the handshake is complete.
    async fn wait_until_complete(&self) -> Result<(), Error> {
        let mut complete = self.complete.clone();
        tokio::select! {
            _ = complete.wait_for(|complete| *complete) => Ok(()),
            reason = self.requests.connection().closed() => {
                Err(self.explain(Error::Connection(reason)))
            }
        }
    }

    /// With early data, a request may meet a handshake that fails, for example with
    /// CONNECTION_REFUSED: then there was no connection, as without early data.
    fn explain(&self, error: Error) -> Error {
        let connection = self.requests.connection();
        match error {
            Error::Connection(reason) if connection.handshake_kind().is_none() => {
                Error::Connect(reason.into())
            }
            error => error,
        }
    }
}

/// Whether the server ended the connection without blaming it (RFC 9114 §5.2): it may stop before
/// its GOAWAY has arrived.
fn is_graceful(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::Application { code, remote: true, .. } if Code(*code) == Code::H3_NO_ERROR)
}

pin_project_lite::pin_project! {
    /// The request's body the first time, and an empty one when the request is repeated.
    struct MaybeBody<B> {
        #[pin]
        body: Option<B>,
    }
}

impl<B: http_body::Body> http_body::Body for MaybeBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().body.as_pin_mut() {
            Some(body) => body.poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let exact = SizeHint::with_exact(0);
        self.body.as_ref().map_or(exact, http_body::Body::size_hint)
    }
}

impl<B: SendBody> Service<Request<B>> for Client {
    type Response = Response<Body>;
    type Error = Error;
    type Future = ResponseFuture;

    /// Always ready: requests wait in their futures.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        self.send(request)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("origins", &lock(&self.0.origins).len())
            .finish_non_exhaustive()
    }
}
