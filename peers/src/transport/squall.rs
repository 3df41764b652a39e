//! squall, by where the endpoint's worker and the application's tasks run.
//!
//! | contender | worker | tasks |
//! |---|---|---|
//! | `squall` | a thread of its own | on the worker |
//! | `squall-across` | a thread of its own | on a multi-thread runtime |
//! | `squall-current` | on the tasks' runtime | on a current-thread runtime |
//! | `squall-multi` | on the tasks' runtime | on a multi-thread runtime |

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use squall::{Builder, Endpoint, TransportConfig};
use squall_yard::error::{Result, context};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

use super::identity;
use super::job::{
    CONNECTION_WINDOW, Contender, DATAGRAM_BUFFER, Job, MAX_STREAMS, MAX_UDP_PAYLOAD, NAME, PIECE,
    Role, SOCKET_BUFFER, STREAM_WINDOW, Sent,
};
use super::process::Count;
use super::stack::{
    self, AT_ONCE, Client, Connection, Datagrams, Endpoints, Opener, Rx, Server, Spawn, Tx,
};

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let contender = match (job.contender, job.role) {
        // A thread for each of a thousand sockets would not be a fair client.
        (Contender::Squall, Role::Client(_)) if job.case.own_sockets => Contender::SquallCurrent,
        (chosen, _) => chosen,
    };
    let runtime = match contender {
        Contender::Squall => None,
        other => Some(stack::runtime(other != Contender::SquallCurrent)?),
    };
    let handle = runtime.as_ref().map(Runtime::handle);
    let builder = || {
        let mut builder = Builder::new((job.local, 0).into());
        builder.receive_buffer = SOCKET_BUFFER;
        builder.send_buffer = SOCKET_BUFFER;
        match (handle, contender) {
            (Some(handle), Contender::SquallCurrent | Contender::SquallMulti) => {
                builder.on_runtime(handle.clone())
            }
            _ => builder,
        }
    };
    let bind = |builder: Builder| {
        let endpoint = (builder.bind()).map_err(context("cannot start squall on loopback"))?;
        Ok(Tasks {
            endpoint,
            runtime: handle.cloned(),
        })
    };
    let provider = identity::limited(&squall::provider());
    match job.role {
        Role::Server => {
            let tls = identity::server(job, provider)?;
            let config = squall::ServerConfig::new(tls).transport(transport());
            let tasks = bind(builder().server(config))?;
            let endpoint = tasks.endpoint.clone();
            let address = endpoint.local_addr().map_err(context("local address"))?;
            let counters = endpoint.clone();
            count.set_sent(move || {
                let udp = counters.stats().udp;
                Sent {
                    datagrams: udp.datagrams_sent,
                    messages: udp.messages_sent,
                }
            });
            let spawn = tasks.clone();
            let serve = stack::serve(Accepting(endpoint), spawn, address, job.case);
            to_the_end(tasks.task(serve), runtime)
        }
        Role::Client(address) => {
            let tls = identity::client(job, provider, count)?;
            let config = squall::ClientConfig::new(tls).transport(transport());
            let clients = Endpoints::new(job.case.sockets(), || {
                bind(builder().client(config.clone()))
            })?;
            let (job, count, tasks) = (job.clone(), Arc::clone(count), clients.first().clone());
            let load = async move { stack::load(clients, address, &job, count).await };
            to_the_end(tasks.task(load), runtime)
        }
    }
}

fn transport() -> TransportConfig {
    TransportConfig::default()
        .max_udp_payload(MAX_UDP_PAYLOAD)
        .initial_udp_payload(MAX_UDP_PAYLOAD)
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .stream_send_window(STREAM_WINDOW.into())
        .send_window(CONNECTION_WINDOW.into())
        .datagram_send_buffer(DATAGRAM_BUFFER)
        .datagram_receive_buffer(DATAGRAM_BUFFER)
        .max_concurrent_bidi_streams(MAX_STREAMS.into())
}

/// Waits for a task's end, here or on the current-thread runtime, which runs only meanwhile.
fn to_the_end(task: JoinHandle<Result<()>>, runtime: Option<Runtime>) -> Result<()> {
    let runtime = match runtime {
        Some(runtime) => runtime,
        None => stack::runtime(false)?,
    };
    runtime
        .block_on(task)
        .map_err(context("a task of squall's"))?
}

/// An endpoint, and the runtime of the application's tasks; `None` if they run on the worker.
#[derive(Clone)]
struct Tasks {
    endpoint: Endpoint,
    runtime: Option<Handle>,
}

impl Tasks {
    fn task<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.runtime {
            Some(runtime) => runtime.spawn(task),
            None => self.endpoint.spawn(task),
        }
    }
}

impl Spawn for Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.task(task);
    }
}

impl Client for Tasks {
    type Connection = squall::Connection;

    async fn connect(&self, address: SocketAddr) -> Result<squall::Connection> {
        (self.endpoint)
            .connect(address, NAME)
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
    type Datagrams = Several;

    fn opener(&self) -> Self {
        self.clone()
    }

    fn datagrams(&self) -> Several {
        Several {
            connection: self.clone(),
            sending: VecDeque::new(),
            arrived: Vec::new(),
        }
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

/// A connection's datagrams, some at a time.
pub(super) struct Several {
    connection: squall::Connection,
    sending: VecDeque<Bytes>,
    /// Newest first.
    arrived: Vec<Bytes>,
}

impl Datagrams for Several {
    async fn send(&mut self, datagram: &Bytes, copies: usize) -> Result<()> {
        (self.sending).extend(std::iter::repeat_n(datagram, copies).cloned());
        let sent = self.connection.send_datagrams_wait(&mut self.sending).await;
        sent.map_err(context("a datagram"))
    }

    async fn receive(&mut self) -> Result<Bytes> {
        loop {
            if let Some(datagram) = self.arrived.pop() {
                return Ok(datagram);
            }
            let read = self.connection.read_datagrams(&mut self.arrived, AT_ONCE);
            read.await.map_err(context("a datagram"))?;
            self.arrived.reverse();
        }
    }
}

impl Tx for squall::SendStream {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.write_chunk(bytes).await.map_err(context("write"))
    }

    fn finish(&mut self) -> Result<()> {
        squall::SendStream::finish(self).map_err(context("finish"))
    }

    async fn write_last(self, bytes: Bytes) -> Result<()> {
        self.finish_with(bytes).await.map_err(context("write"))
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
