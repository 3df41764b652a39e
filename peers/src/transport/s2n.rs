//! s2n-quic with its default TLS (s2n-tls), on a runtime of one thread: the process has one core.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};
use std::time::SystemTime;

use bytes::Bytes;
use s2n_quic::client::Connect;
use s2n_quic::connection::Handle;
use s2n_quic::provider::datagram::default::{
    Endpoint as DatagramEndpoint, Receiver as DatagramReceiver, Sender as DatagramSender,
};
use s2n_quic::provider::io;
use s2n_quic::provider::limits::Limits;
use s2n_quic::provider::tls::s2n_tls;
use s2n_quic::stream::{BidirectionalStream, ReceiveStream, SendStream};
use s2n_tls::callbacks::{
    ConnectionFuture, SessionTicket, SessionTicketCallback, VerifyHostNameCallback,
};
use s2n_tls::config::ConnectionInitializer;
use s2n_tls::security::Policy;
use squall_yard::error::{Failure, Result, context};

use super::case::Workload;
use super::job::{
    ALPN, CONNECTION_WINDOW, DATAGRAM_BUFFER, Job, MAX_STREAMS, MAX_UDP_PAYLOAD, NAME, Role,
    SOCKET_BUFFER, STREAM_WINDOW,
};
use super::process::Count;
use super::stack::{
    self, Client, Connection, Datagrams, Endpoints, Opener, Rx, Server, Spawn, Tokio, Tx,
};

/// An IPv4 packet with the largest UDP payload: s2n-quic includes the headers.
const MTU: u16 = MAX_UDP_PAYLOAD + 28;
/// s2n-tls' newest policy that prefers X25519; the default prefers P-256. AES-128-GCM is its first
/// suite.
const POLICY: &str = "20240603";

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(context("no runtime"))?;
    runtime.block_on(async {
        let start = context("cannot start s2n-quic on loopback");
        match job.role {
            Role::Server => {
                let server = server(job).map_err(&start)?;
                let address = server.local_addr().map_err(context("local address"))?;
                stack::serve(Accepting(server), Tokio, address, job.case).await
            }
            Role::Client(address) => {
                let client = Endpoints::new(job.case.sockets(), || {
                    Ok(Connecting(client(job, count).map_err(&start)?))
                })?;
                stack::load(client, address, job, Arc::clone(count)).await
            }
        }
    })
}

fn limits() -> std::result::Result<Limits, Error> {
    Ok(Limits::new()
        .with_data_window(CONNECTION_WINDOW.into())?
        .with_bidirectional_local_data_window(STREAM_WINDOW.into())?
        .with_bidirectional_remote_data_window(STREAM_WINDOW.into())?
        .with_max_send_buffer_size(STREAM_WINDOW)?
        .with_max_open_local_bidirectional_streams(MAX_STREAMS.into())?
        .with_max_open_remote_bidirectional_streams(MAX_STREAMS.into())?)
}

fn datagrams(job: &Job) -> std::result::Result<DatagramEndpoint, Error> {
    let queue = DATAGRAM_BUFFER / usize::try_from(job.case.size)?.max(1);
    Ok(DatagramEndpoint::builder()
        .with_send_capacity(queue.max(1))?
        .with_recv_capacity(queue.max(1))?
        .build()?)
}

fn sockets(job: &Job) -> std::result::Result<io::tokio::Provider, Error> {
    Ok(io::tokio::Provider::builder()
        .with_receive_address((job.local, 0).into())?
        .with_send_buffer_size(SOCKET_BUFFER)?
        .with_recv_buffer_size(SOCKET_BUFFER)?
        .with_max_mtu(MTU)?
        .with_initial_mtu(MTU)?
        .with_base_mtu(MTU)?
        .build()?)
}

fn server(job: &Job) -> std::result::Result<s2n_quic::Server, Error> {
    let mut tls = s2n_tls::Server::builder()
        .with_certificate(job.certificate.as_path(), job.key.as_path())?
        .with_application_protocols([ALPN])?;
    let config = tls.config_mut();
    config.set_security_policy(&Policy::from_version(POLICY)?)?;
    if job.case.workload == Workload::W4Resumed {
        let mut key = [0; 32];
        aws_lc_rs::rand::fill(&mut key)?;
        config
            .enable_session_tickets(true)?
            .add_session_ticket_key(b"one run", &key, SystemTime::now())?;
    }
    Ok(s2n_quic::Server::builder()
        .with_tls(tls.build()?)?
        .with_io(sockets(job)?)?
        .with_limits(limits()?)?
        .with_datagram(datagrams(job)?)?
        .start()?)
}

fn client(job: &Job, count: &Arc<Count>) -> std::result::Result<s2n_quic::Client, Error> {
    let mut tls = s2n_tls::Client::builder()
        .with_empty_trust_store()?
        .with_certificate(job.certificate.as_path())?
        .with_verify_host_name_callback(Counting(Arc::clone(count)))?
        .with_application_protocols([ALPN])?;
    let config = tls.config_mut();
    config.set_security_policy(&Policy::from_version(POLICY)?)?;
    if job.case.workload == Workload::W4Resumed {
        let tickets = Tickets::default();
        config
            .enable_session_tickets(true)?
            .set_session_ticket_callback(tickets.clone())?
            .set_connection_initializer(tickets)?;
    }
    Ok(s2n_quic::Client::builder()
        .with_tls(tls.build()?)?
        .with_io(sockets(job)?)?
        .with_limits(limits()?)?
        .with_datagram(datagrams(job)?)?
        .start()?)
}

/// Called for every certificate, so once per full handshake.
struct Counting(Arc<Count>);

impl VerifyHostNameCallback for Counting {
    fn verify_host_name(&self, host_name: &str) -> bool {
        self.0.add_full();
        host_name == NAME
    }
}

/// The newest ticket, used until there is another: a server does not send one with every resumed
/// handshake.
#[derive(Clone, Default)]
struct Tickets(Arc<Mutex<Option<Vec<u8>>>>);

impl SessionTicketCallback for Tickets {
    fn on_session_ticket(
        &self,
        _connection: &mut s2n_tls::connection::Connection,
        ticket: &SessionTicket,
    ) {
        let mut bytes = vec![0; ticket.len().unwrap_or_default()];
        // Otherwise the next handshake is a full one, which is counted.
        if ticket.data(&mut bytes).is_ok() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
        }
    }
}

impl ConnectionInitializer for Tickets {
    fn initialize_connection(
        &self,
        connection: &mut s2n_tls::connection::Connection,
    ) -> std::result::Result<Option<Pin<Box<dyn ConnectionFuture>>>, s2n_tls::error::Error> {
        let newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ticket) = &*newest {
            connection.set_session_ticket(ticket)?;
        }
        Ok(None)
    }
}

#[derive(Clone)]
struct Connecting(s2n_quic::Client);

impl Spawn for Connecting {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Tokio.spawn(task);
    }
}

impl Client for Connecting {
    type Connection = s2n_quic::Connection;

    async fn connect(&self, address: SocketAddr) -> Result<s2n_quic::Connection> {
        self.0
            .connect(Connect::new(address).with_server_name(NAME))
            .await
            .map_err(context("handshake"))
    }
}

struct Accepting(s2n_quic::Server);

impl Server for Accepting {
    type Connection = s2n_quic::Connection;

    async fn accept(
        &mut self,
    ) -> Option<impl Future<Output = Result<s2n_quic::Connection>> + Send + 'static> {
        // Its handshake is already done.
        let connection = self.0.accept().await?;
        Some(std::future::ready(Ok(connection)))
    }
}

impl Connection for s2n_quic::Connection {
    type Opener = Handle;
    type Tx = SendStream;
    type Rx = ReceiveStream;
    type Datagrams = Handle;

    fn opener(&self) -> Handle {
        self.handle()
    }

    fn datagrams(&self) -> Handle {
        self.handle()
    }

    async fn accept(&mut self) -> Option<(SendStream, ReceiveStream)> {
        let stream = self.accept_bidirectional_stream().await.ok()??;
        Some(halves(stream))
    }

    fn close(self) {
        s2n_quic::Connection::close(&self, 0_u32.into());
    }
}

fn halves(stream: BidirectionalStream) -> (SendStream, ReceiveStream) {
    let (receive, send) = stream.split();
    (send, receive)
}

impl Opener for Handle {
    type Tx = SendStream;
    type Rx = ReceiveStream;

    async fn open(&mut self) -> Result<(SendStream, ReceiveStream)> {
        self.open_bidirectional_stream()
            .await
            .map(halves)
            .map_err(context("no stream"))
    }
}

impl Datagrams for Handle {
    async fn send(&mut self, datagram: &Bytes, copies: usize) -> Result<()> {
        for _ in 0..copies {
            let mut waiting = datagram.clone();
            poll_fn(|cx| {
                // It accepts the datagram when it is ready.
                let sent = self.datagram_mut(|sender: &mut DatagramSender| {
                    sender.poll_send_datagram(&mut waiting, cx)
                });
                let sent = ready!(sent.map_err(context("no datagrams"))?);
                Poll::Ready(sent.map_err(|error| Failure::new(format!("a datagram: {error}"))))
            })
            .await?;
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<Bytes> {
        poll_fn(|cx| {
            let read = self
                .datagram_mut(|receiver: &mut DatagramReceiver| receiver.poll_recv_datagram(cx));
            let read = ready!(read.map_err(context("no datagrams"))?);
            Poll::Ready(read.map_err(|error| Failure::new(format!("a datagram: {error}"))))
        })
        .await
    }
}

impl Tx for SendStream {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.send(bytes).await.map_err(context("write"))
    }

    fn finish(&mut self) -> Result<()> {
        SendStream::finish(self).map_err(|error| Failure::new(format!("finish: {error}")))
    }
}

impl Rx for ReceiveStream {
    async fn read(&mut self, sink: &mut (dyn FnMut(&[u8]) + Send)) -> Result<bool> {
        // As many packets' pieces as may have arrived in one wake-up.
        let mut chunks: [Bytes; 64] = std::array::from_fn(|_| Bytes::new());
        let (count, open) = self
            .receive_vectored(&mut chunks)
            .await
            .map_err(context("read"))?;
        for chunk in &chunks[..count] {
            sink(chunk);
        }
        Ok(open)
    }
}
