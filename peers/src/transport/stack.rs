//! The workloads, written once for all stacks with an asynchronous interface.
//!
//! ```text
//!   client   connect ─► open ─► length, upload, FIN ─► read to the end     streams side by side,
//!                                                                          requests in turn
//!   server   accept ──► accept streams ─► read to the end ─► that many bytes, FIN
//!   W7       the server sends datagrams as long as the connection takes them
//! ```
//! A stack only defines how it does each step, in its cheapest way: bytes are handed over without a
//! copy, and several received pieces are taken in one call if it has such a call.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use squall_yard::error::{Failure, Result, context};
use squall_yard::pace::{Begin, Pace};
use squall_yard::source::Source;
use tokio::sync::mpsc;

use super::case::{Case, Shape, Workload};
use super::job::{Job, Message, PIECE};
use super::process::{Count, say};
use super::verify::{Verifier, message};

/// Where a stack's tasks run.
pub(super) trait Spawn: Clone + Send + Sync + 'static {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
}

/// Tasks of the tokio runtime that the spawning task runs on.
#[derive(Clone)]
pub(super) struct Tokio;

impl Spawn for Tokio {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }
}

/// A runtime with one thread, or with two.
pub(super) fn runtime(multi: bool) -> Result<tokio::runtime::Runtime> {
    let mut builder = match multi {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    if multi {
        builder.worker_threads(2);
    }
    builder.enable_all().build().map_err(context("no runtime"))
}

/// A client's endpoint.
pub(super) trait Client: Spawn {
    type Connection: Connection;
    fn connect(&self, address: SocketAddr)
    -> impl Future<Output = Result<Self::Connection>> + Send;
}

/// A client with several endpoints, each with a socket; its connections take turns.
#[derive(Clone)]
pub(super) struct Endpoints<C> {
    endpoints: Arc<[C]>,
    turn: Arc<AtomicUsize>,
}

impl<C: Client> Endpoints<C> {
    pub(super) fn first(&self) -> &C {
        &self.endpoints[0]
    }

    pub(super) fn new(number: usize, endpoint: impl FnMut() -> Result<C>) -> Result<Self> {
        Ok(Self {
            endpoints: std::iter::repeat_with(endpoint)
                .take(number)
                .collect::<Result<_>>()?,
            turn: Arc::default(),
        })
    }
}

impl<C: Client> Spawn for Endpoints<C> {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.endpoints[0].spawn(task);
    }
}

impl<C: Client> Client for Endpoints<C> {
    type Connection = C::Connection;

    async fn connect(&self, address: SocketAddr) -> Result<C::Connection> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let endpoint = &self.endpoints[turn % self.endpoints.len()];
        endpoint.connect(address).await
    }
}

/// A server's endpoint.
pub(super) trait Server: Send + 'static {
    type Connection: Connection;
    /// The next client and its handshake; `None` when the endpoint is closed.
    fn accept(
        &mut self,
    ) -> impl Future<
        Output = Option<impl Future<Output = Result<Self::Connection>> + Send + 'static>,
    > + Send;
}

/// A connection after its handshake.
pub(super) trait Connection: Send + 'static {
    type Opener: Opener;
    type Tx: Tx;
    type Rx: Rx;
    type Datagrams: Datagrams;
    fn opener(&self) -> Self::Opener;
    fn datagrams(&self) -> Self::Datagrams;
    /// The peer's next stream; `None` at the connection's end.
    fn accept(&mut self) -> impl Future<Output = Option<(Self::Tx, Self::Rx)>> + Send;
    fn close(self);
}

/// What opens streams, from many tasks.
pub(super) trait Opener: Clone + Send + 'static {
    type Tx: Tx;
    type Rx: Rx;
    fn open(&mut self) -> impl Future<Output = Result<(Self::Tx, Self::Rx)>> + Send;
}

/// The sending half of a stream.
pub(super) trait Tx: Send + 'static {
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = Result<()>> + Send;
    fn finish(&mut self) -> Result<()>;
    /// Writes the last bytes, finishes the stream and lets go of it, in one call where the stack
    /// has one.
    fn write_last(mut self, bytes: Bytes) -> impl Future<Output = Result<()>> + Send
    where
        Self: Sized,
    {
        async move {
            self.write(bytes).await?;
            self.finish()
        }
    }
}

/// The receiving half of a stream.
pub(super) trait Rx: Send + 'static {
    /// Takes what has arrived, at least something; false at the end.
    fn read(
        &mut self,
        sink: &mut (dyn FnMut(&[u8]) + Send),
    ) -> impl Future<Output = Result<bool>> + Send;
}

/// A connection's datagrams.
pub(super) trait Datagrams: Send + 'static {
    /// Waits until the stack accepts this many copies.
    fn send(&mut self, datagram: &Bytes, copies: usize) -> impl Future<Output = Result<()>> + Send;
    fn receive(&mut self) -> impl Future<Output = Result<Bytes>> + Send;
}

/// Serves connections until the endpoint closes.
pub(super) async fn serve<S: Server>(
    mut server: S,
    spawn: impl Spawn,
    address: SocketAddr,
    case: Case,
) -> Result<()> {
    let workload = case.workload;
    say(&Message::Listening(address));
    while let Some(connecting) = server.accept().await {
        let tasks = spawn.clone();
        spawn.spawn(async move {
            // The client reports a failed handshake.
            if let Ok(mut connection) = connecting.await {
                if workload == Workload::W7 {
                    let datagrams = connection.datagrams();
                    tasks.spawn(async move {
                        // It ends with the connection.
                        let _ = send_datagrams(datagrams, case.size).await;
                    });
                }
                while let Some((tx, rx)) = connection.accept().await {
                    run(&tasks, async move {
                        // Whatever ends a stream early shows at the client.
                        let _ = answer(tx, rx, workload).await;
                    })
                    .await;
                }
            }
        });
    }
    Ok(())
}

/// Runs an answer at once, and as a separate task only if it has to wait: a task for each small
/// request costs more than its answer.
async fn run(tasks: &impl Spawn, answer: impl Future<Output = ()> + Send + 'static) {
    let mut answer = Box::pin(answer);
    let first = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
    if first.is_pending() {
        tasks.spawn(answer);
    }
}

async fn answer(mut tx: impl Tx, mut rx: impl Rx, workload: Workload) -> Result<()> {
    let mut length = [0; 8];
    let mut have = 0;
    let mut upload = Vec::new();
    let mut sink = |mut bytes: &[u8]| {
        let head = bytes.len().min(length.len() - have);
        length[have..have + head].copy_from_slice(&bytes[..head]);
        have += head;
        bytes = &bytes[head..];
        if workload == Workload::Echo {
            upload.extend_from_slice(bytes);
        }
    };
    while rx.read(&mut sink).await? {}
    if workload == Workload::Echo {
        return tx.write_last(upload.into()).await;
    }
    let mut left = u64::from_be_bytes(length);
    let mut source = Source::new(None);
    while left > 0 {
        let piece = source.next(usize::try_from(left).map_or(PIECE, |left| left.min(PIECE)));
        left -= piece.len() as u64;
        if left == 0 {
            return tx.write_last(piece).await;
        }
        tx.write(piece).await?;
    }
    tx.finish()
}

async fn send_datagrams(mut datagrams: impl Datagrams, size: u64) -> Result<()> {
    let datagram = datagram(size);
    loop {
        datagrams.send(&datagram, AT_ONCE).await?;
    }
}

/// Datagrams that a sender has ready at a time.
pub(super) const AT_ONCE: usize = 64;

/// The datagram that W7 sends repeatedly.
pub(super) fn datagram(size: u64) -> Bytes {
    Source::new(None).next(size as usize)
}

/// Connections that a client begins at a time.
const CONNECTING: usize = 16;

/// Does a client's work, to its end where it has one.
pub(super) async fn load<C: Client>(
    client: C,
    address: SocketAddr,
    job: &Job,
    count: Arc<Count>,
) -> Result<()> {
    let (shape, check) = (job.shape(), job.check);
    let (results, mut done) = mpsc::unbounded_channel();
    let mut connections = Vec::new();
    if job.case.workload.is_handshakes() {
        for _ in 0..shape.connections {
            let (count, results, own) = (Arc::clone(&count), results.clone(), client.clone());
            client.spawn(async move {
                // Nobody listens any more once another has failed.
                let _ = results.send(handshakes(own, address, shape, check, &count).await);
            });
        }
    } else {
        // Keeps them alive as long as the work.
        connections = connect_all(&client, address, shape.connections, |connection| {
            if job.case.workload == Workload::W7 {
                // At once: unread data would fill the memory and be read later.
                let (count, results) = (Arc::clone(&count), results.clone());
                let datagrams = connection.datagrams();
                client.spawn(async move {
                    let _ = results.send(receive_datagrams(datagrams, shape, check, &count).await);
                });
            }
        })
        .await?;
    }
    say(&Message::Working);
    let start = Instant::now();
    for (index, connection) in connections.iter().enumerate() {
        if job.case.workload == Workload::W7 {
            continue;
        }
        for stream in 0..shape.streams {
            let (count, results) = (Arc::clone(&count), results.clone());
            let opener = connection.opener();
            let pace = shape.pace(index * shape.streams + stream, start);
            client.spawn(async move {
                let _ = results.send(requests(opener, shape, pace, check, &count).await);
            });
        }
    }
    drop(results);
    while let Some(result) = done.recv().await {
        result?;
    }
    for connection in connections {
        connection.close();
    }
    Ok(())
}

async fn connect_all<C: Client>(
    client: &C,
    address: SocketAddr,
    number: usize,
    mut begin: impl FnMut(&C::Connection),
) -> Result<Vec<C::Connection>> {
    let (made, mut ready) = mpsc::unbounded_channel();
    for first in 0..CONNECTING {
        let (own, made) = (client.clone(), made.clone());
        client.spawn(async move {
            for _ in (first..number).step_by(CONNECTING) {
                if made.send(own.connect(address).await).is_err() {
                    return;
                }
            }
        });
    }
    drop(made);
    let mut connections = Vec::with_capacity(number);
    while let Some(connection) = ready.recv().await {
        let connection = connection?;
        begin(&connection);
        connections.push(connection);
    }
    Ok(connections)
}

async fn handshakes<C: Client>(
    client: C,
    address: SocketAddr,
    shape: Shape,
    check: bool,
    count: &Count,
) -> Result<()> {
    let message = message(&shape);
    for _ in 0..shape.repeat {
        let connection = client.connect(address).await?;
        let mut opener = connection.opener();
        for _ in 0..shape.each {
            request(&mut opener, &message, shape, check, count).await?;
        }
        count.add_units(1);
        connection.close();
    }
    Ok(())
}

async fn requests(
    mut opener: impl Opener,
    shape: Shape,
    mut pace: Pace,
    check: bool,
    count: &Count,
) -> Result<()> {
    let message = message(&shape);
    for _ in 0..shape.repeat {
        if let Some(due) = pace.next_due() {
            tokio::time::sleep_until(due.into()).await;
        }
        let timed = (shape.begin != Begin::AfterAnswer).then(Instant::now);
        request(&mut opener, &message, shape, check, count).await?;
        count.add_units(1);
        if let Some(begun) = timed {
            count.add_latency(begun.elapsed());
        }
    }
    Ok(())
}

async fn request(
    opener: &mut impl Opener,
    message: &Bytes,
    shape: Shape,
    check: bool,
    count: &Count,
) -> Result<()> {
    let (tx, mut rx) = opener.open().await?;
    tx.write_last(message.clone()).await?;
    let mut verifier = Verifier::new(check, shape.answer);
    let mut sink = |bytes: &[u8]| {
        verifier.take(bytes);
        count.add_bytes(bytes.len());
    };
    while rx.read(&mut sink).await? {}
    verifier.end().map_err(Failure::new)
}

async fn receive_datagrams(
    mut datagrams: impl Datagrams,
    shape: Shape,
    check: bool,
    count: &Count,
) -> Result<()> {
    for _ in 0..shape.repeat {
        let datagram = datagrams.receive().await?;
        let mut verifier = Verifier::new(check, shape.answer);
        verifier.take(&datagram);
        verifier.end().map_err(Failure::new)?;
        count.add_bytes(datagram.len());
        count.add_units(1);
    }
    Ok(())
}
