//! A client for any number of origins: one connection for each, made on demand.
//!
//! ```text
//!   request ─ origin ─> Place ─ Connected ──────────────────────────> connection
//!                         │ Connecting ─> Attempt, shared by requests ─^    │
//!                         ^ none: begins an attempt                         │
//!                         └──────────── forgotten when it ends ─────────────┘
//! ```

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use http::header::ALT_SVC;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use squall::{ClientConfig, Connection, Endpoint};
use tower_service::Service;

use super::attempt::{Attempt, Progress, Reached, Reporter};
use super::connect::{connect, in_turns, resolve};
use super::origin::{AltSvc, Alternatives, Origin, alt_svc};
use super::{ResponseFuture, SendRequest, handshake_with};
use crate::body::Body;
use crate::config::Config;
use crate::error::{Error, is_graceful};
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
/// - The addresses of a host are tried by "Happy Eyeballs" (RFC 8305). Requests to an origin that
///   begin meanwhile wait for the same attempt, and share its error if no address answers. An
///   attempt ends when no request waits for it any more.
/// - An alternative that a response names in `Alt-Svc` is used for the next connection (RFC 7838).
///   It is tried first, and forgotten if an address of the origin itself answers before it.
/// - With early data enabled in the TLS configuration, requests with safe methods and without a
///   body are sent at once when a session is resumed, to the first address; others wait for the
///   handshake. If that address does not answer, and another one does, they are sent again to that
///   one. After a response 425 Too Early, such a request is sent again once the handshake is
///   complete (RFC 8470).
/// - A request without a body is sent again if the server has certainly not processed it (RFC 9114
///   §4.1.1). It is also sent again if its method is idempotent and its connection ended, provided
///   that it had been used before or the server ended it gracefully (RFC 9110 §9.2.2).
/// - A connection is kept alive while requests are in flight, however long the server takes to
///   answer ([`Config::keep_alive`]); a limit is up to the application. Without requests it ends
///   after the idle timeout.
/// - A connection that ends is forgotten, and its origin with it. At most 1,000 alternatives are
///   kept.
///
/// Clones share the connections. It is a [`Service`] for use on a tokio runtime, or on several: an
/// attempt to connect is a task of the runtime of the request that began it. If that runtime ends,
/// the other requests begin another attempt. While it exists and is not driven, as a current-thread
/// runtime outside of `block_on`, they wait.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    tls: ClientConfig,
    config: Config,
    resolver: Arc<dyn Resolve>,
    origins: Mutex<HashMap<Origin, Place>>,
    alternatives: Mutex<Alternatives>,
}

/// The connection to an origin, or the attempt to make one.
enum Place {
    /// An attempt, which replaces this or removes it when it ends.
    Connecting(Weak<Reporter>),
    /// A connection, removed when it ends.
    Connected(SendRequest),
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
        mut tls: ClientConfig,
        config: Config,
        resolver: Option<Arc<dyn Resolve>>,
    ) -> Self {
        if config.keep_alive {
            let transport = (*tls.transport).clone();
            tls = tls.transport(transport.keep_alive_with_streams(true));
        }
        Self(Arc::new(Inner {
            endpoint,
            tls,
            config,
            resolver: resolver.unwrap_or_else(|| Arc::new(System)),
            origins: Mutex::default(),
            alternatives: Mutex::default(),
        }))
    }

    /// Sends a request to the origin of its URI and waits for the head of the response, as
    /// [`SendRequest::send`] does. Dropping the future cancels the request and its upload.
    ///
    /// # Errors
    /// No connection could be made; otherwise see [`Error`].
    pub fn send<B: SendBody>(&self, request: Request<B>) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        ResponseFuture(Box::pin(async move { inner.send(request).await }))
    }

    /// Connects to the origin of `uri`, unless there is a connection that takes requests. Waits
    /// until the handshake is complete. Cancel-safe.
    ///
    /// # Errors
    /// No connection could be made, or the URI has no origin.
    pub async fn connect(&self, uri: &http::Uri) -> Result<(), Error> {
        let origin = Origin::of(uri)?;
        self.0.reach(&origin, false).await.map(drop)
    }

    /// Closes all connections once their responses are complete, and forgets the alternatives to
    /// origins. Later requests make new connections.
    pub fn close_idle(&self) {
        let origins = std::mem::take(&mut *lock(&self.0.origins));
        drop(origins);
        *lock(&self.0.alternatives) = Alternatives::default();
    }
}

impl Inner {
    async fn send<B: SendBody>(
        self: &Arc<Self>,
        request: Request<B>,
    ) -> Result<Response<Body>, Error> {
        let origin = Origin::of(request.uri())?;
        let (head, body) = request.into_parts();
        // A body can be sent once.
        let repeatable = body.is_end_stream();
        let mut body = Some(body);
        // Early data may have to be sent again.
        let mut may_be_early = repeatable && head.method.is_safe();
        // The attempt whose early data was lost.
        let mut lost: Option<Attempt> = None;
        for attempt in 1.. {
            let other = match lost.take() {
                Some(attempt) => attempt.connection(false).await?,
                None => None,
            };
            let reached = match other {
                Some(reached) => reached,
                None => self.reach(&origin, may_be_early).await?,
            };
            let mut request = Request::new(MaybeBody { body: body.take() });
            request.method_mut().clone_from(&head.method);
            request.uri_mut().clone_from(&head.uri);
            request.headers_mut().clone_from(&head.headers);
            request.extensions_mut().clone_from(&head.extensions);
            let sending = reached.requests.send(request);
            let was_early = reached.early.is_some();
            let result = match reached.early {
                None => sending.await,
                Some(attempt) => match unless_lost(sending, &reached.requests, attempt).await {
                    Ok(result) => result,
                    Err(attempt) => {
                        lost = Some(attempt);
                        continue;
                    }
                },
            };
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
                        if (!reached.is_new || is_graceful(reason))
                            && head.method.is_idempotent() =>
                    {
                        continue;
                    }
                    _ => {}
                }
            }
            if let Ok(response) = &result {
                self.learn(&origin, response);
            }
            return result;
        }
        Err(Error::GoingAway)
    }

    /// The connection to an origin, made if there is none that takes requests. If `may_be_early`,
    /// its handshake need not be complete.
    async fn reach(
        self: &Arc<Self>,
        origin: &Origin,
        may_be_early: bool,
    ) -> Result<Reached, Error> {
        loop {
            let (attempt, is_own) = {
                let mut origins = lock(&self.origins);
                let joined = match origins.get(origin) {
                    Some(Place::Connected(requests)) if !requests.is_closed() => {
                        return Ok(Reached {
                            requests: requests.clone(),
                            is_new: false,
                            early: None,
                        });
                    }
                    Some(Place::Connecting(reporter)) => Attempt::join(reporter),
                    _ => None,
                };
                let is_own = joined.is_none();
                let attempt = joined.unwrap_or_else(|| {
                    let (reporter, attempt) = Attempt::begin();
                    let place = Place::Connecting(Arc::downgrade(&reporter));
                    origins.insert(origin.clone(), place);
                    tokio::spawn(Arc::clone(self).attempt(origin.clone(), reporter));
                    attempt
                });
                (attempt, is_own)
            };
            match attempt.connection(may_be_early).await? {
                Some(reached) => return Ok(reached),
                None if is_own => {
                    let error = io::Error::other("the attempt to connect was cancelled");
                    return Err(Error::Connect(error));
                }
                // It was begun on a runtime that has ended; this request's runtime still runs.
                None => {}
            }
        }
    }

    /// Connects to an origin for the requests that wait, as long as there are any.
    async fn attempt(self: Arc<Self>, origin: Origin, reporter: Arc<Reporter>) {
        let connecting = pin!(self.connect(&origin, &reporter));
        let connected = tokio::select! {
            biased;
            connected = connecting => connected,
            () = self.abandoned(&origin, &reporter) => Err(io::ErrorKind::Interrupted.into()),
        };
        let early = match &*reporter.borrow() {
            Progress::Connecting(early) => early.clone(),
            _ => None,
        };
        let is_early = |early: &SendRequest, connection: &Connection| {
            early.connection().stable_id() == connection.stable_id()
        };
        let connected = match (connected, &early) {
            (Ok(connection), Some(early)) if is_early(early, &connection) => Ok(early.clone()),
            (Ok(connection), _) => Ok(handshake_with(connection, self.config.clone())),
            (Err(error), _) => Err(error),
        };
        if let Ok(requests) = &connected {
            if self.replace(&origin, &reporter, Some(requests)) {
                self.forget_when_closed(&origin, requests.connection());
            }
        } else {
            self.replace(&origin, &reporter, None);
        }
        let lost =
            early.filter(|early| !matches!(&connected, Ok(requests) if requests.is_same(early)));
        reporter.send_replace(match connected {
            Ok(requests) => Progress::Connected(requests),
            Err(error) => Progress::Failed(Arc::new(error)),
        });
        if let Some(lost) = lost {
            lost.close();
        }
    }

    /// Replaces an attempt by its connection, or removes it. Returns false, and changes nothing, if
    /// the pool has forgotten it.
    fn replace(
        &self,
        origin: &Origin,
        reporter: &Arc<Reporter>,
        requests: Option<&SendRequest>,
    ) -> bool {
        let mut origins = lock(&self.origins);
        let is_known = is_attempt(origins.get(origin), reporter);
        match requests {
            _ if !is_known => {}
            Some(requests) => {
                origins.insert(origin.clone(), Place::Connected(requests.clone()));
            }
            None => {
                origins.remove(origin);
            }
        }
        is_known
    }

    /// Ready when no request waits for an attempt. The pool has then forgotten it, so that none
    /// will.
    async fn abandoned(&self, origin: &Origin, reporter: &Arc<Reporter>) {
        loop {
            reporter.closed().await;
            let is_answered = match &*reporter.borrow() {
                Progress::Connecting(Some(early)) => early.connection().handshake_kind().is_some(),
                _ => false,
            };
            if is_answered {
                // The response to early data has arrived before the attempt has taken note.
                std::future::pending::<()>().await;
            }
            // Requests join under the lock.
            let mut origins = lock(&self.origins);
            if reporter.receiver_count() == 0 {
                if is_attempt(origins.get(origin), reporter) {
                    origins.remove(origin);
                }
                return;
            }
        }
    }

    /// Connects to the alternative, if there is one, or to the origin itself, whichever answers
    /// first.
    async fn connect(&self, origin: &Origin, reporter: &Arc<Reporter>) -> io::Result<Connection> {
        let alternative = lock(&self.alternatives).get(origin, Instant::now());
        let own = self.resolver.resolve(&origin.host, origin.port);
        let (alternatives, addresses) = match &alternative {
            None => (Vec::new(), in_turns(own.await?)),
            Some(alternative) => {
                // RFC 7838 §2.1: whatever the address, the certificate is the origin's.
                let host = alternative.host.as_deref().unwrap_or(&origin.host);
                let alternatives = self.resolver.resolve(host, alternative.port);
                let (alternatives, own) = tokio::join!(alternatives, own);
                let alternatives = in_turns(alternatives.unwrap_or_default());
                let mut addresses = alternatives.clone();
                match own {
                    Err(error) if alternatives.is_empty() => return Err(error),
                    own => {
                        let mut own = in_turns(own.unwrap_or_default());
                        own.retain(|address| !alternatives.contains(address));
                        addresses.extend(own);
                    }
                }
                (alternatives, addresses)
            }
        };
        let (config, reporter) = (self.config.clone(), Arc::downgrade(reporter));
        let offer = move |connection: &Connection| {
            if let Some(reporter) = reporter.upgrade() {
                offer(&reporter, connection, &config);
            }
        };
        let name = &origin.host;
        let connected = connect(&self.endpoint, &self.tls, name, addresses, offer).await;
        let is_used = matches!(&connected, Ok((_, address)) if alternatives.contains(address));
        if alternative.is_some() && !is_used {
            lock(&self.alternatives).remove(origin);
        }
        connected.map(|(connection, _)| connection)
    }

    /// Removes a connection from the pool when it ends.
    fn forget_when_closed(self: &Arc<Self>, origin: &Origin, connection: &Connection) {
        let (inner, origin) = (Arc::downgrade(self), origin.clone());
        let closed = connection.closed();
        connection.spawn(async move {
            closed.await;
            let Some(inner) = inner.upgrade() else {
                return;
            };
            let mut origins = lock(&inner.origins);
            if let Some(Place::Connected(requests)) = origins.get(&origin)
                // By now there may be another one.
                && requests.connection().close_reason().is_some()
            {
                origins.remove(&origin);
                if origins.len() < origins.capacity() / 4 {
                    let room = 2 * origins.len();
                    origins.shrink_to(room);
                }
            }
        });
    }

    /// Learns from a response about its origin.
    fn learn(&self, origin: &Origin, response: &Response<Body>) {
        if let Some(value) = response.headers().get(ALT_SVC) {
            let now = Instant::now();
            match alt_svc(value, now) {
                Some(AltSvc::Use(alternative)) => {
                    lock(&self.alternatives).insert(origin, alternative, now);
                }
                Some(AltSvc::Clear) => lock(&self.alternatives).remove(origin),
                None => {}
            }
        }
    }
}

/// Whether a place is this attempt.
fn is_attempt(place: Option<&Place>, reporter: &Arc<Reporter>) -> bool {
    matches!(place, Some(Place::Connecting(other)) if other.as_ptr() == Arc::as_ptr(reporter))
}

/// Offers a connection for early data, unless there is one.
fn offer(reporter: &Reporter, connection: &Connection, config: &Config) {
    reporter.send_if_modified(|progress| match progress {
        Progress::Connecting(early) if early.as_ref().is_none_or(SendRequest::is_closed) => {
            *early = Some(handshake_with(connection.clone(), config.clone()));
            true
        }
        _ => false,
    });
}

/// Waits for the response to early data, unless it is lost because no server is at that address, or
/// another one answers first.
///
/// # Errors
/// It is lost: the attempt has another connection, or none.
async fn unless_lost(
    sending: ResponseFuture,
    requests: &SendRequest,
    mut attempt: Attempt,
) -> Result<Result<Response<Body>, Error>, Attempt> {
    let result = tokio::select! {
        biased;
        result = sending => result,
        () = attempt.leaves(requests) => return Err(attempt),
    };
    match result {
        // Unless its handshake was complete, there was no connection.
        Err(Error::Connection(_)) if !attempt.ends_with(requests).await => Err(attempt),
        result => Ok(result),
    }
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
