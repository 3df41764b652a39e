//! A server and a client on loopback, with a certificate generated for the test.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]
#![allow(dead_code, reason = "every test file uses a part")]
#![allow(unreachable_pub, reason = "shared by several test crates")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use squall::rustls::RootCertStore;
use squall::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use squall::{
    Builder, ClientConfig, CloseReason, Connecting, Connection, Endpoint, RecvStream, SendStream,
    ServerConfig, TransportConfig,
};

pub mod namespace;
pub mod proxy;

pub const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
pub const ALPN: &[u8] = b"test";

/// A self-signed certificate for `localhost` and its key.
pub struct Identity {
    pub certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Identity {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self {
            certificate: made.cert.der().clone(),
            key: made.signing_key.serialize_der(),
        }
    }

    pub fn chain_and_key(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = PrivateKeyDer::Pkcs8(self.key.clone().into());
        (vec![self.certificate.clone()], key)
    }

    pub fn server(&self, alpn: &[u8], transport: TransportConfig) -> ServerConfig {
        let (chain, key) = self.chain_and_key();
        let tls = squall::server_tls(chain, key, &[alpn]).unwrap();
        ServerConfig::new(tls).transport(transport)
    }

    pub fn client(&self, alpn: &[u8], transport: TransportConfig) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let tls = squall::client_tls(roots, &[alpn]).unwrap();
        ClientConfig::new(tls).transport(transport)
    }
}

/// A server and a client, each with its own endpoint.
pub fn endpoints(transport: impl Fn() -> TransportConfig) -> (Endpoint, Endpoint) {
    let identity = Identity::new();
    let server = Builder::new(ANY).server(identity.server(ALPN, transport()));
    let client = Builder::new(ANY).client(identity.client(ALPN, transport()));
    (server.bind().unwrap(), client.bind().unwrap())
}

/// Two endpoints and a connection between them.
pub struct Pair {
    pub client: Endpoint,
    pub server: Endpoint,
    pub near: Connection,
    pub far: Connection,
}

impl Pair {
    pub async fn new() -> Self {
        Self::with(
            TransportConfig::default(),
            TransportConfig::default(),
            |builder| builder,
        )
        .await
    }

    pub async fn with(
        client: TransportConfig,
        server: TransportConfig,
        build: impl Fn(Builder) -> Builder,
    ) -> Self {
        let identity = Identity::new();
        let server = build(Builder::new(ANY).server(identity.server(ALPN, server)))
            .bind()
            .unwrap();
        let client = build(Builder::new(ANY).client(identity.client(ALPN, client)))
            .bind()
            .unwrap();
        let connecting = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap();
        let incoming = within(server.accept()).await.unwrap();
        assert_eq!(incoming.remote_address(), client.local_addr().unwrap());
        let (near, far) = within(async { tokio::join!(connecting, incoming.accept()) }).await;
        Self {
            client,
            server,
            near: near.unwrap(),
            far: far.unwrap(),
        }
    }
}

/// Both ends of a connection to the server's next attempt, or why there is none.
pub async fn meet(
    connecting: Connecting,
    server: &Endpoint,
) -> (
    Result<Connection, CloseReason>,
    Result<Connection, CloseReason>,
) {
    within(async { tokio::join!(connecting, async { server.accept().await.unwrap().await }) }).await
}

/// Both ends of a new connection. Attempts of other clients, which a test may have left behind, are
/// skipped.
pub async fn connect(client: &Endpoint, server: &Endpoint) -> (Connection, Connection) {
    let connecting = client.connect(server.local_addr().unwrap(), "localhost");
    let accepting = async {
        loop {
            let incoming = server.accept().await.unwrap();
            if incoming.remote_address().port() == client.local_addr().unwrap().port() {
                return incoming.await;
            }
        }
    };
    let (near, far) = within(async { tokio::join!(connecting.unwrap(), accepting) }).await;
    (near.unwrap(), far.unwrap())
}

/// Sends this many bytes on a new stream, compares what arrives, and waits until all of it is
/// acknowledged.
pub async fn deliver(from: &Connection, to: &Connection, len: usize) {
    let bytes = pattern(len, 1);
    let mut send = within(from.open_uni()).await.unwrap();
    let sending = async {
        send.write_all(&bytes).await.unwrap();
        send.finish().unwrap();
    };
    let receiving = async {
        let mut recv = to.accept_uni().await.unwrap();
        assert!(recv.read_to_end(len).await.unwrap() == bytes);
    };
    within(async { tokio::join!(sending, receiving) }).await;
    assert_eq!(within(send.stopped()).await, Ok(None));
}

/// Sends back what arrives on a stream.
pub async fn echo(mut send: SendStream, mut recv: RecvStream) {
    while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
        if send.write_chunk(chunk).await.is_err() {
            return;
        }
    }
    // Fails if the peer has stopped the stream.
    let _ = send.finish();
}

/// Sends a pattern on a new stream and expects it back.
pub async fn ask(connection: &Connection, len: usize, seed: u64) {
    let sent = pattern(len, seed);
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let writing = async {
        send.write_all(&sent).await.unwrap();
        send.finish().unwrap();
    };
    let reading = recv.read_to_end(len);
    let ((), back) = tokio::join!(writing, reading);
    assert!(back.unwrap() == sent, "what came back is not what was sent");
}

/// Waits until the condition holds. Workers publish counters and events at the end of a turn.
pub async fn until(condition: impl Fn() -> bool) {
    within(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Waits until the client has the server's tickets and tokens: they have arrived once data sent
/// after them has.
pub async fn ticket(near: &Connection, far: &Connection) {
    let mut send = far.open_uni().await.unwrap();
    within(send.write_all(b"!")).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(near.accept_uni()).await.unwrap();
    within(recv.read_to_end(1)).await.unwrap();
}

/// A closed port, and the socket that keeps others from getting it: it is connected to another
/// socket, so the system refuses all other datagrams.
pub fn closed_port() -> (std::net::UdpSocket, SocketAddr) {
    let socket = std::net::UdpSocket::bind(ANY).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, 9)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
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
