//! A server and clients over loopback sockets.
#[path = "../../../../squall/tests/common/proxy.rs"]
pub(crate) mod proxy;

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use squall::tls::Identity;
use squall::{
    Builder, ClientConfig, CloseReason, Connection, Endpoint, ServerConfig, TransportConfig,
};
use squall_h3::client::SendRequest;
use squall_h3::{Body, Config, Error, SendBody, server};
use tower_service::Service;

pub(crate) const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Fails instead of waiting for ever.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, future)
        .await
        .expect("the test timed out")
}

/// A bound server and what its clients need.
pub(crate) struct Site {
    pub(crate) endpoint: Endpoint,
    roots: squall::rustls::RootCertStore,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with(TransportConfig::default())
    }

    pub(crate) fn with(transport: TransportConfig) -> Self {
        Self::built(transport, |builder| builder)
    }

    pub(crate) fn built(
        transport: TransportConfig,
        build: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let identity = Identity::self_signed(["localhost"]).unwrap();
        let roots = identity.roots().unwrap();
        let tls = squall::tls::server(identity, &[b"h3"]).unwrap();
        let config = ServerConfig::new(tls).transport(transport);
        let builder = Builder::new(ANY_PORT).server(config);
        let endpoint = build(builder).bind().unwrap();
        Self { endpoint, roots }
    }

    /// A connection of a new client.
    pub(crate) async fn connection(&self) -> Connection {
        self.connection_with(TransportConfig::default()).await
    }

    pub(crate) async fn connection_with(&self, transport: TransportConfig) -> Connection {
        let address = self.endpoint.local_addr().unwrap();
        self.connection_by(address, transport).await
    }

    /// The same to another address, which forwards datagrams.
    pub(crate) async fn connection_by(
        &self,
        address: SocketAddr,
        transport: TransportConfig,
    ) -> Connection {
        let config = self.client_config().transport(transport);
        let client = Endpoint::client(ANY_PORT).unwrap();
        let connecting = client.connect_with(config, address, "localhost").unwrap();
        within(connecting).await.unwrap()
    }

    /// Connects, to see how that fails.
    pub(crate) async fn connect(&self) -> Result<Connection, CloseReason> {
        let address = self.endpoint.local_addr().unwrap();
        let client = Endpoint::client(ANY_PORT).unwrap();
        client
            .connect_with(self.client_config(), address, "localhost")
            .unwrap()
            .await
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        ClientConfig::new(squall::client_tls(self.roots.clone(), &[b"h3"]).unwrap())
    }

    pub(crate) async fn client(&self) -> SendRequest {
        squall_h3::client::handshake(self.connection().await)
    }
}

/// Serves with a function, on the connections' worker or on the caller's runtime.
pub(crate) fn start<F, R, B>(site: &Site, config: Config, on_worker: bool, answer: F)
where
    F: Fn(Request<Body>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: SendBody,
{
    let builder = builder(on_worker).config(config);
    let serving = builder.serve(site.endpoint.clone(), service_fn(answer));
    tokio::spawn(serving.into_future());
}

/// A server whose requests are handled on the workers or on the test's runtime.
pub(crate) fn builder(on_worker: bool) -> server::Builder {
    let builder = server::Builder::new();
    if on_worker {
        builder.on_worker()
    } else {
        builder
    }
}

/// What [`service_fn`] makes. All functions share one type, or the server would be compiled for
/// each.
pub(crate) struct Serve<B>(Arc<dyn Fn(Request<Body>) -> Answer<B> + Send + Sync>);

type Answer<B> = Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>;

/// A function as a service.
pub(crate) fn service_fn<F, R, B>(answer: F) -> Serve<B>
where
    F: Fn(Request<Body>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
{
    Serve(Arc::new(move |request| {
        let answer = answer(request);
        Box::pin(async move { Ok(answer.await) })
    }))
}

impl<B> Clone for Serve<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Service<Request<Body>> for Serve<B> {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answer<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        (self.0)(request)
    }
}

/// A body's data.
pub(crate) async fn read(body: Body) -> Result<Vec<u8>, Error> {
    Ok(read_all(body).await?.0)
}

/// A body's data and trailers.
pub(crate) async fn read_all(mut body: Body) -> Result<(Vec<u8>, Option<http::HeaderMap>), Error> {
    let (mut data, mut trailers) = (Vec::new(), None);
    loop {
        let next = std::future::poll_fn(|cx| http_body::Body::poll_frame(Pin::new(&mut body), cx));
        let Some(frame) = within(next).await else {
            return Ok((data, trailers));
        };
        match frame?.into_data() {
            Ok(chunk) => data.extend_from_slice(&chunk),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
}

pub(crate) fn get(path: &str) -> Request<Body> {
    let uri = format!("https://localhost{path}");
    Request::get(uri).body(Body::empty()).unwrap()
}

pub(crate) fn response(text: impl Into<Bytes>) -> Response<Body> {
    Response::new(Body::from(text.into()))
}
