//! The perf protocol, draft-banks-quic-performance-00, in both roles: spoken by the built-in
//! measurement, by `perf server` and `perf client`, and by secnetperf, quinn-perf and others.
//!
//! ```text
//!   client                                  server                     ALPN "perf"
//!   stream: u64 big-endian, upload, FIN -->  reads all of it
//!                                       <--  as many bytes as the u64 says, FIN
//!   2^64 - 1: no limit; STOP_SENDING ends it
//! ```

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use squall::{Connection, Endpoint, RecvStream, SendStream, WriteError};
use squall_yard::error::{Failure, Result, context};
use squall_yard::interrupt;
use squall_yard::latency::Shared;
use squall_yard::live::Gauges;
use squall_yard::source::{Digest, Sink, Source};
use squall_yard::work::{Amount, Direction, PIECE};

use super::datagrams::Supply;

/// draft §2.3.1: a response without limit.
const UNLIMITED: u64 = u64::MAX;

/// State shared by all streams of a server.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// If set: answer with patterns, one seed after the other, and keep digests.
    pub(crate) seed: Option<u64>,
    answers: AtomicU64,
    digests: Mutex<Vec<Digest>>,
    /// Round-trip times while sending, see [`Gauges`].
    rtt: Shared,
    /// The limit of each answer, in bits per second.
    bitrate: Option<u64>,
    /// If set: every connection gets these datagrams.
    datagrams: Option<Arc<Supply>>,
}

impl Service {
    /// A server that answers from the fixed buffer, or with patterns starting at this seed.
    pub(crate) fn new(seed: Option<u64>, rtt: &Shared) -> Self {
        Self {
            seed,
            rtt: rtt.clone(),
            ..Self::default()
        }
    }

    /// The digests of the patterns sent so far.
    pub(crate) fn digests(&self) -> Vec<Digest> {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests.clone()
    }

    fn source(&self) -> Source {
        let next = |seed: u64| seed.wrapping_add(self.answers.fetch_add(1, Ordering::Relaxed));
        Source::new(self.seed.map(next)).paced(self.bitrate)
    }

    /// Limits each answer to this rate, in bits per second.
    pub(crate) fn at(self, bitrate: Option<u64>) -> Self {
        Self { bitrate, ..self }
    }

    /// A server that sends datagrams.
    pub(crate) fn of_datagrams(supply: &Arc<Supply>) -> Self {
        Self {
            datagrams: Some(Arc::clone(supply)),
            ..Self::default()
        }
    }

    fn keep(&self, digest: Option<Digest>) {
        if let Some(digest) = digest {
            let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
            digests.push(digest);
        }
    }
}

/// What one connection transferred, as seen by the server.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// Streams answered to their end.
    pub(crate) answered: AtomicU64,
}

/// Adds to a counter of a connection, whose tasks all run on its worker: nothing else adds at the
/// same time.
fn add(counter: &AtomicU64, n: u64) {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(n), Ordering::Relaxed);
}

/// Serves connections from welcome addresses until the endpoint closes, each on its own worker, and
/// refuses others. `report` is called at the end of each connection.
pub(crate) async fn serve<W, R>(endpoint: Endpoint, service: Arc<Service>, welcome: W, report: R)
where
    W: Fn(SocketAddr) -> bool + Send + 'static,
    R: Fn(&Connection, &Tally) + Clone + Send + 'static,
{
    while let Some(incoming) = endpoint.accept().await {
        if !welcome(incoming.remote_address()) {
            incoming.refuse();
            continue;
        }
        // Before the end of the handshake, so that early data is answered at once: requests of this
        // protocol may be repeated.
        let Ok((connection, _)) = incoming.accept().into_0rtt().await else {
            continue;
        };
        let (service, report) = (Arc::clone(&service), report.clone());
        connection.clone().spawn(async move {
            let tally = Arc::new(Tally::default());
            serve_connection(&connection, &service, &tally).await;
            // A failed handshake is reported to the client, not here.
            if connection.handshake_kind().is_some() {
                report(&connection, &tally);
            }
        });
    }
}

/// Answers every stream of a connection until it ends.
async fn serve_connection(connection: &Connection, service: &Arc<Service>, tally: &Arc<Tally>) {
    let shared = Arc::new(Stream {
        connection: connection.clone(),
        service: Arc::clone(service),
        tally: Arc::clone(tally),
    });
    let own = Arc::clone(&shared);
    connection.spawn(async move {
        while let Ok(recv) = own.connection.accept_uni().await {
            let answer = Box::pin(answer(Arc::clone(&own), None, recv));
            run(&own.connection, answer).await;
        }
    });
    if let Some(supply) = service.datagrams.clone() {
        let own = connection.clone();
        connection.spawn(async move { supply.send(&own).await });
    }
    while let Ok((send, recv)) = connection.accept_bi().await {
        let answer = Box::pin(answer(Arc::clone(&shared), Some(send), recv));
        run(connection, answer).await;
    }
}

/// Starts on a stream at once, and makes it a task only if it has to wait: a request that has
/// already arrived costs no task. The caller boxes the future, so that its own does not hold it.
async fn run<F>(connection: &Connection, mut answer: Pin<Box<F>>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let first = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut answer).poll(cx))).await;
    if first.is_pending() {
        connection.spawn(answer);
    }
}

/// The state for answering a stream.
struct Stream {
    connection: Connection,
    service: Arc<Service>,
    tally: Arc<Tally>,
}

/// Answers one stream. An early end affects only this stream: dropped halves are reset and stopped.
async fn answer(shared: Arc<Stream>, send: Option<SendStream>, mut recv: RecvStream) {
    let Stream {
        connection,
        service,
        tally,
    } = &*shared;
    let Some(wanted) = read(&mut recv, &tally.received).await else {
        return;
    };
    let send = match send {
        Some(send) => send,
        // draft §2.3.2: a unidirectional request is answered on a new stream, or not at all.
        None if wanted == 0 => return,
        None => match connection.open_uni().await {
            Ok(send) => send,
            Err(_) => return,
        },
    };
    let written = |len| {
        add(&tally.sent, len);
        // A small answer reveals little about it and should not pay for it.
        if wanted > PIECE as u64 {
            service.rtt.record(connection.stats().rtt);
        }
    };
    if write(send, wanted, service, written).await.is_ok() {
        add(&tally.answered, 1);
    }
}

/// Reads a stream to its end and returns how much is requested. `None`: it broke off, or ended
/// before its eight bytes, and is ignored (draft §2.3.1).
async fn read(recv: &mut RecvStream, received: &AtomicU64) -> Option<u64> {
    let mut wanted = [0; 8];
    let mut known = 0;
    while let Some(chunk) = recv.read_chunk(PIECE).await.ok()? {
        let head = chunk.len().min(wanted.len() - known);
        wanted[known..known + head].copy_from_slice(&chunk[..head]);
        known += head;
        add(received, (chunk.len() - head) as u64);
    }
    (known == wanted.len()).then(|| u64::from_be_bytes(wanted))
}

/// Waits until the source has its next piece.
async fn wait_for(source: &mut Source) {
    if let Some(due) = source.due() {
        tokio::time::sleep_until(due.into()).await;
    }
}

/// Writes this many bytes, reports each piece, and finishes the stream, or resets it if that is
/// impossible.
async fn write(
    mut send: SendStream,
    bytes: u64,
    service: &Service,
    mut written: impl FnMut(u64),
) -> std::result::Result<(), WriteError> {
    let (mut source, mut left) = (service.source(), bytes);
    let last = loop {
        wait_for(&mut source).await;
        let piece = match left {
            0 => Bytes::new(),
            left => source.next(usize::try_from(left).map_or(PIECE, |left| left.min(PIECE))),
        };
        let len = piece.len() as u64;
        left -= len;
        if left == 0 {
            break piece;
        }
        if let Err(error) = send.write_chunk(piece).await {
            let _ = send.reset(0);
            return Err(error);
        }
        written(len);
    };
    // Before the client can ask for it.
    service.keep(source.digest());
    let len = last.len() as u64;
    send.finish_with(last).await?;
    written(len);
    Ok(())
}

/// What a client's stream transferred.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) bytes: u64,
    /// draft §3.1: from the stream's creation …
    pub(crate) begin: Instant,
    /// … to the server's FIN, or to the deadline.
    pub(crate) end: Instant,
    pub(crate) digest: Option<Digest>,
}

/// Downloads on a new stream.
///
/// # Errors
/// The connection ended, or the answer had the wrong length.
pub(crate) async fn download(
    connection: Connection,
    amount: Amount,
    digest: bool,
    gauges: Gauges,
) -> Result<Transfer> {
    let begin = Instant::now();
    let (send, mut recv) = connection.open_bi().await.map_err(context("no stream"))?;
    let (wanted, deadline) = match amount {
        Amount::Bytes(bytes) => (bytes, None),
        Amount::Time(time) => (UNLIMITED, Some(begin + time)),
    };
    let request = Bytes::copy_from_slice(&wanted.to_be_bytes());
    send.finish_with(request)
        .await
        .map_err(context("the request could not be sent"))?;
    let mut sink = Sink::new(digest);
    let mut bytes = 0;
    let read = async {
        while !interrupt::due(deadline) {
            let Some(chunk) = recv.read_chunk(PIECE).await? else {
                break;
            };
            if bytes == 0 {
                gauges.first_byte.record(begin.elapsed());
            }
            sink.take(&chunk);
            bytes += chunk.len() as u64;
            gauges.down.add(chunk.len() as u64);
        }
        Ok::<(), squall::ReadError>(())
    };
    // Ends a download that has stalled; one that progresses checks the clock itself.
    let read = interrupt::unless_due(deadline, read).await;
    let end = Instant::now();
    read.unwrap_or(Ok(()))
        .map_err(context("the download was cut short"))?;
    if interrupt::due(deadline) {
        // draft §2.3.1: a client cancels an unlimited response with STOP_SENDING. An error means
        // that the stream has already ended.
        drop(recv.stop(0));
    } else if deadline.is_none() && bytes != wanted {
        return Err(Failure::new(format!(
            "the server sent {bytes} of {wanted} bytes: is it a perf server?"
        )));
    }
    Ok(Transfer {
        direction: Direction::Down,
        bytes,
        begin,
        end,
        digest: sink.digest(),
    })
}

/// Uploads on a new stream.
///
/// # Errors
/// The connection ended, or the server stopped the stream.
pub(crate) async fn upload(
    connection: Connection,
    amount: Amount,
    bitrate: Option<u64>,
    gauges: Gauges,
) -> Result<Transfer> {
    let begin = Instant::now();
    let (mut send, mut recv) = connection.open_bi().await.map_err(context("no stream"))?;
    let (wanted, deadline) = match amount {
        Amount::Bytes(bytes) => (bytes, None),
        Amount::Time(time) => (UNLIMITED, Some(begin + time)),
    };
    let mut source = Source::new(None).paced(bitrate);
    let mut bytes = 0;
    let error = context("the upload was cut short");
    // Nothing is requested back.
    send.write_chunk(Bytes::from_static(&[0; 8]))
        .await
        .map_err(&error)?;
    let write = async {
        while bytes < wanted && !interrupt::due(deadline) {
            wait_for(&mut source).await;
            let left = usize::try_from(wanted - bytes).map_or(PIECE, |left| left.min(PIECE));
            let piece = source.next(left);
            let len = piece.len() as u64;
            send.write_chunk(piece).await?;
            bytes += len;
            gauges.up.add(len);
            gauges.rtt.record(connection.stats().rtt);
        }
        Ok::<(), WriteError>(())
    };
    let written = interrupt::unless_due(deadline, write).await;
    written.unwrap_or(Ok(())).map_err(&error)?;
    send.finish().map_err(&error)?;
    // The server's FIN confirms that everything has arrived. Ctrl-C ends the wait for it.
    let confirmed = interrupt::unless_due(None, async {
        while recv.read_chunk(PIECE).await?.is_some() {}
        Ok::<(), squall::ReadError>(())
    });
    confirmed
        .await
        .unwrap_or(Ok(()))
        .map_err(context("the server's response was cut short"))?;
    Ok(Transfer {
        direction: Direction::Up,
        bytes,
        begin,
        end: Instant::now(),
        digest: None,
    })
}
