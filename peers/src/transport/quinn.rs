//! quinn with ring, on a current-thread or multi-thread runtime; and, unmodified, with packets
//! protected by squall's kernels.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, EndpointConfig, TokioRuntime, TransportConfig, VarInt};
use squall_yard::error::{Result, context};

use super::job::{
    CONNECTION_WINDOW, Contender, DATAGRAM_BUFFER, Job, MAX_STREAMS, MAX_UDP_PAYLOAD, NAME, Role,
    STREAM_WINDOW,
};
use super::process::Count;
use super::stack::{
    self, Client, Connection, Datagrams, Endpoints, Opener, Rx, Server, Spawn, Tokio, Tx,
};
use super::{identity, socket};

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let runtime = stack::runtime(job.contender == Contender::QuinnMulti)?;
    // A task rather than `block_on`'s own future: it is scheduled like those that it spawns.
    let (job, count) = (job.clone(), Arc::clone(count));
    let work = runtime.spawn(async move { work(&job, &count).await });
    runtime.block_on(work).map_err(context("quinn's task"))?
}

async fn work(job: &Job, count: &Arc<Count>) -> Result<()> {
    let ring = rustls::crypto::ring::default_provider();
    let provider = identity::limited(&match job.contender {
        Contender::QuinnSquall => squall_rustls::wrap(ring),
        _ => ring,
    });
    let transport = Arc::new(transport());
    let make = |server| {
        let socket = socket::bind((job.local, 0).into()).map_err(context("no UDP port"))?;
        Endpoint::new(
            EndpointConfig::default(),
            server,
            socket,
            Arc::new(TokioRuntime),
        )
        .map_err(context("cannot start quinn on loopback"))
    };
    match job.role {
        Role::Server => {
            let tls = identity::server(job, provider)?;
            let crypto = QuicServerConfig::try_from(tls).map_err(context("quinn's TLS"))?;
            let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
            config.transport_config(transport);
            let endpoint = make(Some(config))?;
            let address = endpoint.local_addr().map_err(context("local address"))?;
            stack::serve(Accepting(endpoint), Tokio, address, job.case).await
        }
        Role::Client(address) => {
            let tls = identity::client(job, provider, count)?;
            let crypto = QuicClientConfig::try_from(tls).map_err(context("quinn's TLS"))?;
            let mut config = quinn::ClientConfig::new(Arc::new(crypto));
            config.transport_config(transport);
            let client = Endpoints::new(job.case.sockets(), || {
                let mut endpoint = make(None)?;
                endpoint.set_default_client_config(config.clone());
                Ok(Connecting(endpoint))
            })?;
            stack::load(client, address, job, Arc::clone(count)).await
        }
    }
}

fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .initial_mtu(MAX_UDP_PAYLOAD)
        .mtu_discovery_config(None)
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(CONNECTION_WINDOW.into())
        .datagram_send_buffer_size(DATAGRAM_BUFFER)
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .max_concurrent_bidi_streams(MAX_STREAMS.into());
    config
}

#[derive(Clone)]
struct Connecting(Endpoint);

impl Spawn for Connecting {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Tokio.spawn(task);
    }
}

impl Client for Connecting {
    type Connection = quinn::Connection;

    async fn connect(&self, address: SocketAddr) -> Result<quinn::Connection> {
        self.0
            .connect(address, NAME)
            .map_err(context("cannot connect"))?
            .await
            .map_err(context("handshake"))
    }
}

struct Accepting(Endpoint);

impl Server for Accepting {
    type Connection = quinn::Connection;

    async fn accept(
        &mut self,
    ) -> Option<impl Future<Output = Result<quinn::Connection>> + Send + 'static> {
        let incoming = self.0.accept().await?;
        Some(async move { incoming.await.map_err(context("handshake")) })
    }
}

impl Connection for quinn::Connection {
    type Opener = Self;
    type Tx = quinn::SendStream;
    type Rx = quinn::RecvStream;
    type Datagrams = Self;

    fn opener(&self) -> Self {
        self.clone()
    }

    fn datagrams(&self) -> Self {
        self.clone()
    }

    async fn accept(&mut self) -> Option<(Self::Tx, Self::Rx)> {
        self.accept_bi().await.ok()
    }

    fn close(self) {
        quinn::Connection::close(&self, VarInt::from_u32(0), b"");
    }
}

impl Opener for quinn::Connection {
    type Tx = quinn::SendStream;
    type Rx = quinn::RecvStream;

    async fn open(&mut self) -> Result<(Self::Tx, Self::Rx)> {
        self.open_bi().await.map_err(context("no stream"))
    }
}

impl Datagrams for quinn::Connection {
    async fn send(&mut self, datagram: &Bytes, copies: usize) -> Result<()> {
        for _ in 0..copies {
            let sent = self.send_datagram_wait(datagram.clone()).await;
            sent.map_err(context("a datagram"))?;
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<Bytes> {
        self.read_datagram().await.map_err(context("a datagram"))
    }
}

impl Tx for quinn::SendStream {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.write_chunk(bytes).await.map_err(context("write"))
    }

    fn finish(&mut self) -> Result<()> {
        quinn::SendStream::finish(self).map_err(context("finish"))
    }
}

impl Rx for quinn::RecvStream {
    async fn read(&mut self, sink: &mut (dyn FnMut(&[u8]) + Send)) -> Result<bool> {
        // As many packets' pieces as may have arrived in one wake-up.
        let mut chunks: [Bytes; 64] = std::array::from_fn(|_| Bytes::new());
        let read = self
            .read_chunks(&mut chunks)
            .await
            .map_err(context("read"))?;
        for chunk in &chunks[..read.unwrap_or(0)] {
            sink(chunk);
        }
        Ok(read.is_some())
    }
}
