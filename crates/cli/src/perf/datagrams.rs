//! Datagrams (RFC 9221): the server sends as many as its connections take, and the client counts
//! those that arrive.
//!
//! ```text
//!   client   connect all ─► start ─► read until the time is up, then until nothing comes any more
//!   server   accept ─────► (start) ─► wait for room in the queue, send, ... until the time is up
//! ```
//! The perf protocol has no datagrams, so both ends are in this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use squall::Connection;
use squall_yard::error::{Failure, Result, context};
use squall_yard::interrupt;
use squall_yard::live::Counter;
use squall_yard::options::Options;
use squall_yard::outcome::Done;
use squall_yard::source::Source;
use squall_yard::work::Datagrams;
use tokio::sync::watch;

use super::endpoint::run_all;

/// After this long without a datagram, those that have not arrived are lost.
const QUIET: Duration = Duration::from_millis(100);
/// How often, and how many times, a server checks whether the path carries the size yet.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: usize = 100;

/// The most bytes around a datagram in its packet: a short header with a connection ID of 20 bytes,
/// the frame's type and length, and the tag (RFC 9000 §17.3, RFC 9221 §4).
const AROUND: usize = 1 + 20 + 4 + 3 + 16;

/// The most datagrams sent or read with one call.
const AT_ONCE: usize = 64;

/// Whether a datagram fits into a packet.
///
/// # Errors
/// It does not; the error says what to do.
pub(crate) fn check(work: &Datagrams, options: &Options) -> Result<()> {
    let most = usize::from(options.payload) - AROUND;
    if work.size <= most {
        return Ok(());
    }
    Err(Failure::new(format!(
        "a datagram is not split: at most {most} bytes fit into a packet of --payload {}; pass a smaller --datagrams",
        options.payload
    )))
}

/// Bytes of datagrams that wait at each end of a connection: 16 MB in total, so that those waiting
/// at the end are read quickly, but with room for some bundles.
pub(crate) fn buffer(connections: usize) -> usize {
    ((16 << 20) / connections).clamp(256 << 10, 1 << 20)
}

/// State shared by a server's connections.
#[derive(Debug)]
pub(crate) struct Supply {
    datagram: Bytes,
    /// When to stop; `None`: not started.
    until: watch::Sender<Option<Instant>>,
    sent: AtomicU64,
}

impl Supply {
    /// A supply of datagrams of that many bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            datagram: Source::new(None).next(size),
            until: watch::Sender::new(None),
            sent: AtomicU64::new(0),
        }
    }

    /// Sends on a server's connection from the start until the time is up.
    pub(crate) async fn send(&self, connection: &Connection) {
        let mut until = self.until.subscribe();
        let Ok(deadline) = until.wait_for(Option::is_some).await.map(|until| *until) else {
            return;
        };
        // Packets are small until the path is known to carry larger ones (RFC 9000 §14.3).
        for _ in 0..LOOKS {
            if connection.max_datagram_size() >= Some(self.datagram.len()) {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        let (mut made, mut list) = (0, VecDeque::with_capacity(AT_ONCE));
        let sending = async {
            loop {
                list.resize(AT_ONCE, self.datagram.clone());
                made += AT_ONCE;
                if connection.send_datagrams_wait(&mut list).await.is_err() {
                    break;
                }
            }
        };
        // The client sees the connection's end.
        let _ = interrupt::unless_due(deadline, sending).await;
        let sent = made - list.len();
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }
}

/// What arrived on a connection, and when its last datagram did.
struct Arrived {
    count: u64,
    last: Instant,
}

/// A client's work, which also starts the server's.
///
/// # Errors
/// A connection ended, or a datagram had the wrong length.
pub(crate) fn run(
    work: &Datagrams,
    supply: &Supply,
    connections: &[Connection],
    live: &Arc<Counter>,
) -> Result<Done> {
    let begin = Instant::now();
    let deadline = begin + work.time;
    supply.until.send_replace(Some(deadline));
    let arrived = run_all(connections.iter().map(|own| {
        let (connection, live, size) = (own.clone(), Arc::clone(live), work.size);
        (own, async move {
            receive(&connection, size, deadline, &live).await
        })
    }))?;
    let received = arrived.iter().map(|one| one.count).sum();
    if received == 0 && !interrupt::raised() {
        return Err(Failure::new("no datagram arrived"));
    }
    let last = arrived.iter().map(|one| one.last).max().unwrap_or(deadline);
    Ok(Done {
        elapsed: last - begin,
        ended: Some(last),
        received,
        sent: supply.sent.load(Ordering::Relaxed).max(received),
        ..Done::default()
    })
}

async fn receive(
    connection: &Connection,
    size: usize,
    deadline: Instant,
    live: &Counter,
) -> Result<Arrived> {
    let mut count = 0;
    let mut take = |datagram: &Bytes| {
        count += 1;
        live.add(1);
        match datagram.len() {
            len if len == size => Ok(()),
            len => Err(Failure::new(format!(
                "a datagram of {len} bytes arrived, not of {size}"
            ))),
        }
    };
    let ended = context("the datagrams ended early");
    let mut arrived = Vec::with_capacity(AT_ONCE);
    let reading = async {
        loop {
            let read = connection.read_datagrams(&mut arrived, AT_ONCE);
            read.await.map_err(&ended)?;
            arrived.drain(..).try_for_each(|datagram| take(&datagram))?;
        }
    };
    let read: Option<Result<()>> = interrupt::unless_due(Some(deadline), reading).await;
    read.unwrap_or(Ok(()))?;
    let mut last = Instant::now();
    while let Ok(datagram) = tokio::time::timeout(QUIET, connection.read_datagram()).await {
        take(&datagram.map_err(&ended)?)?;
        last = Instant::now();
    }
    Ok(Arrived { count, last })
}
