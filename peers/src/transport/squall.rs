//! squall: the endpoint's worker is the only busy thread; the application's tasks run on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use squall::{Builder, Endpoint, TransportConfig};
use squall_yard::error::{Failure, Result, context};

use super::identity;
use super::job::{
    CONNECTION_WINDOW, Job, MAX_STREAMS, MAX_UDP_PAYLOAD, NAME, PIECE, Role, SOCKET_BUFFER,
    STREAM_WINDOW,
};
use super::process::Count;
use super::stack::{self, Client, Connection, Opener, Rx, Server, Spawn, Tx};

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let mut builder = Builder::new((Ipv4Addr::LOCALHOST, 0).into());
    builder.receive_buffer = SOCKET_BUFFER;
    builder.send_buffer = SOCKET_BUFFER;
    let provider = identity::limited(&squall::provider());
    let bind = context("cannot start squall on loopback");
    let workload = job.workload;
    match job.role {
        Role::Server => {
            let endpoint = builder
                .server(squall::ServerConfig {
                    tls: Arc::new(identity::server(job, provider)?),
                    transport: Arc::new(transport()),
                })
                .bind()
                .map_err(bind)?;
            let address = endpoint.local_addr().map_err(context("local address"))?;
            let server = Accepting(endpoint.clone());
            on_worker(
                &endpoint,
                stack::serve(server, endpoint.clone(), address, workload),
            )
        }
        Role::Client(address) => {
            let endpoint = builder
                .client(squall::ClientConfig {
                    tls: Arc::new(identity::client(job, provider, count)?),
                    transport: Arc::new(transport()),
                })
                .bind()
                .map_err(bind)?;
            let (check, count) = (job.check, Arc::clone(count));
            let load = stack::load(endpoint.clone(), address, workload, check, count);
            on_worker(&endpoint, load)
        }
    }
}

fn transport() -> TransportConfig {
    TransportConfig {
        max_udp_payload: MAX_UDP_PAYLOAD,
        stream_receive_window: STREAM_WINDOW.into(),
        receive_window: CONNECTION_WINDOW.into(),
        stream_send_window: STREAM_WINDOW.into(),
        send_window: CONNECTION_WINDOW.into(),
        max_concurrent_bidi_streams: MAX_STREAMS.into(),
        ..TransportConfig::default()
    }
}

/// Runs a task on the endpoint's worker and waits for it here.
fn on_worker(
    endpoint: &Endpoint,
    task: impl Future<Output = Result<()>> + Send + 'static,
) -> Result<()> {
    let (result, done) = std::sync::mpsc::sync_channel(1);
    endpoint.spawn(async move {
        // The receiver is waiting below.
        let _ = result.send(task.await);
    });
    done.recv()
        .map_err(|_| Failure::new("squall's worker ended"))?
}

impl Spawn for Endpoint {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Endpoint::spawn(self, task);
    }
}

impl Client for Endpoint {
    type Connection = squall::Connection;

    async fn connect(&self, address: SocketAddr) -> Result<squall::Connection> {
        Endpoint::connect(self, address, NAME)
            .map_err(context("cannot connect"))?
            .await
            .map_err(context("handshake"))
    }
}

struct Accepting(Endpoint);

impl Server for Accepting {
    type Connection = squall::Connection;

    async fn accept(
        &mut self,
    ) -> Option<impl Future<Output = Result<squall::Connection>> + Send + 'static> {
        let incoming = self.0.accept().await?;
        Some(async move { incoming.accept().await.map_err(context("handshake")) })
    }
}

impl Connection for squall::Connection {
    type Opener = Self;
    type Tx = squall::SendStream;
    type Rx = squall::RecvStream;

    fn opener(&self) -> Self {
        self.clone()
    }

    async fn accept(&mut self) -> Option<(Self::Tx, Self::Rx)> {
        self.accept_bi().await.ok()
    }

    fn close(self) {
        squall::Connection::close(&self, 0, b"");
    }
}

impl Opener for squall::Connection {
    type Tx = squall::SendStream;
    type Rx = squall::RecvStream;

    async fn open(&mut self) -> Result<(Self::Tx, Self::Rx)> {
        self.open_bi().await.map_err(context("no stream"))
    }
}

impl Tx for squall::SendStream {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.write_chunk(bytes).await.map_err(context("write"))
    }

    fn finish(&mut self) -> Result<()> {
        squall::SendStream::finish(self).map_err(context("finish"))
    }
}

impl Rx for squall::RecvStream {
    async fn read(&mut self, sink: &mut (dyn FnMut(&[u8]) + Send)) -> Result<bool> {
        let chunk = self.read_chunk(PIECE).await.map_err(context("read"))?;
        if let Some(chunk) = &chunk {
            sink(chunk);
        }
        Ok(chunk.is_some())
    }
}
