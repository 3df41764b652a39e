//! The perf protocol, draft-banks-quic-performance-00, both roles: what the built-in measurement
//! and `perf server` and `perf client` speak, and secnetperf, quinn-perf and others.
//!
//! ```text
//!   client                                  server                     ALPN "perf"
//!   stream: u64 big-endian, upload, FIN -->  reads all of it
//!                                       <--  as many bytes as the u64 says, FIN
//!   2^64 - 1: no limit; STOP_SENDING ends it
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use squall::{Connection, Endpoint, RecvStream, SendStream, WriteError};

use super::Amount;
use super::live::Counter;
use super::source::{Digest, Sink, Source};
use crate::error::{Failure, Result, context};

/// draft §2.1: the application protocol's name.
pub(crate) const ALPN: &[u8] = b"perf";
/// Bytes handed to a stream, and at most taken from one, in one call.
const PIECE: usize = 256 * 1024;
/// draft §2.3.1: a response without limit.
const UNLIMITED: u64 = u64::MAX;

/// What all streams of a server share.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Set: answer with patterns, one seed after the other, and keep digests.
    pub(crate) seed: Option<u64>,
    answers: AtomicU64,
    digests: Mutex<Vec<Digest>>,
}

impl Service {
    /// A server that answers with the fixed buffer, or with patterns from this seed on.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// The digests of the patterns sent so far.
    pub(crate) fn digests(&self) -> Vec<Digest> {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests.clone()
    }

    fn source(&self) -> Source {
        let index = self.answers.fetch_add(1, Ordering::Relaxed);
        Source::new(self.seed.map(|seed| seed.wrapping_add(index)))
    }

    fn keep(&self, digest: Option<Digest>) {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests.extend(digest);
    }
}

/// What one connection moved, seen from the server.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// Serves connections until the endpoint closes. To be run on the endpoint's worker, as its
/// connections and streams are. `report` is told of each connection's end.
pub(crate) async fn serve<R>(endpoint: Endpoint, service: Arc<Service>, report: R)
where
    R: Fn(&Connection, &Tally) + Clone + Send + 'static,
{
    while let Some(incoming) = endpoint.accept().await {
        let (worker, service, report) = (endpoint.clone(), Arc::clone(&service), report.clone());
        endpoint.spawn(async move {
            // A handshake that fails is the client's affair; it is told.
            if let Ok(connection) = incoming.await {
                let tally = Arc::new(Tally::default());
                serve_connection(&worker, &connection, &service, &tally).await;
                report(&connection, &tally);
            }
        });
    }
}

/// Answers every stream of a connection, until it ends.
async fn serve_connection(
    worker: &Endpoint,
    connection: &Connection,
    service: &Arc<Service>,
    tally: &Arc<Tally>,
) {
    let (other, own_service, own_tally) = (connection.clone(), service.clone(), tally.clone());
    let own_worker = worker.clone();
    worker.spawn(async move {
        while let Ok(recv) = other.accept_uni().await {
            let (connection, service, tally) =
                (other.clone(), own_service.clone(), own_tally.clone());
            own_worker.spawn(async move {
                answer(&connection, None, recv, &service, &tally).await;
            });
        }
    });
    while let Ok((send, recv)) = connection.accept_bi().await {
        let (connection, service, tally) = (connection.clone(), service.clone(), tally.clone());
        worker.spawn(async move {
            answer(&connection, Some(send), recv, &service, &tally).await;
        });
    }
}

/// Answers one stream. Whatever ends it early ends only this stream: dropped halves are finished
/// and stopped.
async fn answer(
    connection: &Connection,
    send: Option<SendStream>,
    mut recv: RecvStream,
    service: &Service,
    tally: &Tally,
) {
    let mut wanted = [0; 8];
    // draft §2.3.1: a stream that ends before its eight bytes is ignored.
    if recv.read_exact(&mut wanted).await.is_err() {
        return;
    }
    let wanted = u64::from_be_bytes(wanted);
    loop {
        match recv.read_chunk(PIECE).await {
            Ok(Some(chunk)) => tally
                .received
                .fetch_add(chunk.len() as u64, Ordering::Relaxed),
            Ok(None) => break,
            Err(_) => return,
        };
    }
    let mut send = match send {
        Some(send) => send,
        // draft §2.3.2: a unidirectional request is answered on a new stream, or not at all.
        None if wanted == 0 => return,
        None => match connection.open_uni().await {
            Ok(send) => send,
            Err(_) => return,
        },
    };
    let mut source = service.source();
    let sent = write(&mut send, wanted, &mut source, &tally.sent).await;
    if sent.is_ok() {
        service.keep(source.digest());
        // An error would say that the peer has stopped it meanwhile.
        let _ = send.finish();
    } else {
        let _ = send.reset(0);
    }
}

async fn write(
    send: &mut SendStream,
    bytes: u64,
    source: &mut Source,
    sent: &AtomicU64,
) -> std::result::Result<(), WriteError> {
    let mut left = bytes;
    while left > 0 {
        let piece = source.next(usize::try_from(left).map_or(PIECE, |left| left.min(PIECE)));
        let len = piece.len() as u64;
        send.write_chunk(piece).await?;
        sent.fetch_add(len, Ordering::Relaxed);
        left -= len;
    }
    Ok(())
}

/// What a client's stream moved.
#[derive(Debug)]
pub(crate) struct Transfer {
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
/// The connection ended, or the answer was not as long as asked for.
pub(crate) async fn download(
    connection: Connection,
    amount: Amount,
    digest: bool,
    live: Arc<Counter>,
) -> Result<Transfer> {
    let begin = Instant::now();
    let (mut send, mut recv) = connection.open_bi().await.map_err(context("no stream"))?;
    let (wanted, deadline) = match amount {
        Amount::Bytes(bytes) => (bytes, None),
        Amount::Time(time) => (UNLIMITED, Some(begin + time)),
    };
    let request = Bytes::copy_from_slice(&wanted.to_be_bytes());
    send.write_chunk(request)
        .await
        .and_then(|()| send.finish())
        .map_err(context("the request could not be sent"))?;
    let mut sink = Sink::new(digest);
    let mut bytes = 0;
    let read = async {
        while deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let Some(chunk) = recv.read_chunk(PIECE).await? else {
                break;
            };
            sink.take(&chunk);
            bytes += chunk.len() as u64;
            live.add(chunk.len() as u64);
        }
        Ok::<(), squall::ReadError>(())
    };
    let read = match deadline {
        // Ends a download that stands still; one that flows looks at the clock itself.
        Some(deadline) => tokio::time::timeout_at(deadline.into(), read)
            .await
            .unwrap_or(Ok(())),
        None => read.await,
    };
    let end = Instant::now();
    read.map_err(context("the download broke off"))?;
    match deadline {
        // draft §2.3.1: a client cancels an unlimited response with STOP_SENDING. An error
        // would say that the stream is at its end already.
        Some(_) => drop(recv.stop(0)),
        None if bytes != wanted => {
            return Err(Failure::new(format!(
                "the server sent {bytes} of {wanted} bytes: is it a perf server?"
            )));
        }
        None => {}
    }
    Ok(Transfer {
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
    live: Arc<Counter>,
) -> Result<Transfer> {
    let begin = Instant::now();
    let (mut send, mut recv) = connection.open_bi().await.map_err(context("no stream"))?;
    let (wanted, deadline) = match amount {
        Amount::Bytes(bytes) => (bytes, None),
        Amount::Time(time) => (UNLIMITED, Some(begin + time)),
    };
    let mut source = Source::new(None);
    let mut bytes = 0;
    let error = context("the upload broke off");
    // Nothing is wanted back.
    send.write_chunk(Bytes::from_static(&[0; 8]))
        .await
        .map_err(&error)?;
    while bytes < wanted && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let left = usize::try_from(wanted - bytes).map_or(PIECE, |left| left.min(PIECE));
        let piece = source.next(left);
        let len = piece.len() as u64;
        send.write_chunk(piece).await.map_err(&error)?;
        bytes += len;
        live.add(len);
    }
    send.finish().map_err(&error)?;
    // The server's FIN says that everything has arrived.
    while recv
        .read_chunk(PIECE)
        .await
        .map_err(context("the server's answer broke off"))?
        .is_some()
    {}
    Ok(Transfer {
        bytes,
        begin,
        end: Instant::now(),
        digest: None,
    })
}
