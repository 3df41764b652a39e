//! An HTTP/3 server and a client, both h3 over squall, on loopback.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]
#![allow(dead_code, reason = "every test file uses a part")]
#![allow(unreachable_pub, reason = "shared by several test crates")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::{Request, Response};
use squall::rustls::RootCertStore;
use squall::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use squall::{Builder, Bytes, ClientConfig, Endpoint, ServerConfig, TransportConfig};

pub const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
pub const ALPN: &[u8] = b"h3";

pub type Server = h3::server::Connection<h3_squall::Connection, Bytes>;
pub type ServerStream = h3::server::RequestStream<h3_squall::BidiStream<Bytes>, Bytes>;
pub type ClientStream = h3::client::RequestStream<h3_squall::BidiStream<Bytes>, Bytes>;
pub type SendRequest = h3::client::SendRequest<h3_squall::OpenStreams, Bytes>;

/// Both configurations, with a self-signed certificate for `localhost`.
pub fn configurations(transport: &TransportConfig) -> (ServerConfig, ClientConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let server = squall::server_tls(vec![certificate.clone()], key, &[ALPN]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = squall::client_tls(roots, &[ALPN]).unwrap();
    (
        ServerConfig::new(server).transport(transport.clone()),
        ClientConfig::new(client).transport(transport.clone()),
    )
}

/// Both ends of a connection before HTTP/3.
pub struct Transport {
    pub endpoints: (Endpoint, Endpoint),
    pub near: squall::Connection,
    pub far: squall::Connection,
}

impl Transport {
    pub async fn new(transport: TransportConfig) -> Self {
        let (server, client) = configurations(&transport);
        let server = Builder::new(ANY).server(server).bind().unwrap();
        let client = Builder::new(ANY).client(client).bind().unwrap();
        let connecting = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap();
        let accepting = async { server.accept().await.unwrap().await };
        let (near, far) = within(async { tokio::join!(connecting, accepting) }).await;
        Self {
            endpoints: (server, client),
            near: near.unwrap(),
            far: far.unwrap(),
        }
    }
}

/// Handles each request with `handler`, in its own task.
pub async fn serve<H, F>(connection: squall::Connection, handler: H)
where
    H: Fn(Request<()>, ServerStream) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let connection = h3_squall::Connection::new(connection);
    let mut server = Server::new(connection).await.unwrap();
    while let Ok(Some(request)) = server.accept().await {
        let handler = handler.clone();
        tokio::spawn(async move {
            let (request, stream) = request.resolve_request().await.unwrap();
            handler(request, stream).await;
        });
    }
}

/// A client whose server handles each request with `handler`.
pub struct Client {
    pub transport: Transport,
    pub requests: SendRequest,
    pub driver: tokio::task::JoinHandle<h3::error::ConnectionError>,
}

impl Client {
    pub async fn new<H, F>(handler: H) -> Self
    where
        H: Fn(Request<()>, ServerStream) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::with(TransportConfig::default(), handler).await
    }

    pub async fn with<H, F>(config: TransportConfig, handler: H) -> Self
    where
        H: Fn(Request<()>, ServerStream) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let transport = Transport::new(config).await;
        let far = transport.far.clone();
        tokio::spawn(serve(far, handler));
        let connection = h3_squall::Connection::new(transport.near.clone());
        let (mut driver, requests) = within(h3::client::new(connection)).await.unwrap();
        let driver =
            tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
        Self {
            transport,
            requests,
            driver,
        }
    }

    /// Begins a request.
    pub async fn ask(&mut self, path: &str) -> ClientStream {
        let request = Request::post(format!("https://localhost{path}"))
            .body(())
            .unwrap();
        within(self.requests.send_request(request)).await.unwrap()
    }
}

/// The head of every answer.
pub fn ok() -> Response<()> {
    Response::builder().status(200).body(()).unwrap()
}

/// Limits the time, so that no test hangs.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("30 seconds are over")
}

/// Bytes that identify their position and their stream.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
