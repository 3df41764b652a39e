//! Requests and responses (draft-banks-quic-performance §3.2): each on a stream of its own, so many
//! at a time on each connection, for some time.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use squall::Connection;

use super::latency::{Histogram, Shared};
use super::live::Counter;
use super::protocol::PIECE;
use super::quic;
use super::source::Source;
use crate::error::{Failure, Result, context};
use crate::interrupt;

/// The work of a client.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// Bytes of a request, the length of the response included.
    pub(crate) up: usize,
    /// Bytes of a response.
    pub(crate) down: u64,
    /// At a time, on each connection.
    pub(crate) in_flight: usize,
    pub(crate) time: Duration,
}

/// What was done: requests answered or handshakes made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) elapsed: Duration,
    pub(crate) latency: Histogram,
}

impl Done {
    /// Adds another round.
    pub(crate) fn add(&mut self, other: &Self) {
        self.elapsed += other.elapsed;
        self.latency.add(&other.latency);
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        self.latency.count()
    }
}

impl Requests {
    /// Sizes of a request: its length field, up to what a stream takes in one call.
    pub(crate) const UP: RangeInclusive<usize> = 8..=PIECE;

    /// Does the work. Requests that are under way when the time is up are waited for.
    ///
    /// # Errors
    /// A connection ended, or a response was not as long as asked for.
    pub(crate) fn run(&self, connections: &[Connection], live: &Arc<Counter>) -> Result<Done> {
        let request = request(self.up, self.down);
        let begin = Instant::now();
        let deadline = begin + self.time;
        let latencies: Vec<Shared> = connections.iter().map(|_| Shared::default()).collect();
        let tasks = connections.iter().zip(&latencies);
        let tasks = tasks.flat_map(|(connection, latency)| {
            std::iter::repeat_n((connection, latency), self.in_flight)
        });
        quic::run_all(tasks.map(|(own, latency)| {
            let (request, down, live) = (request.clone(), self.down, Arc::clone(live));
            let (connection, latency) = (own.clone(), latency.clone());
            let task = async move {
                while !interrupt::due(Some(deadline)) {
                    let begin = Instant::now();
                    ask(&connection, request.clone(), down).await?;
                    latency.record(begin.elapsed());
                    live.add(1);
                }
                Ok(())
            };
            (own, task)
        }))?;
        let mut done = Done {
            elapsed: begin.elapsed(),
            ..Done::default()
        };
        for latency in latencies {
            done.latency.add(&latency.read());
        }
        Ok(done)
    }
}

/// A request of `up` bytes for a response of `down`.
pub(crate) fn request(up: usize, down: u64) -> Bytes {
    let mut request = down.to_be_bytes().to_vec();
    let filler = Source::new(None).next(up.saturating_sub(request.len()));
    request.extend_from_slice(&filler);
    request.into()
}

/// One request, to the last byte of its response.
pub(crate) async fn ask(connection: &Connection, request: Bytes, down: u64) -> Result<()> {
    let (mut send, mut recv) = connection.open_bi().await.map_err(context("no stream"))?;
    send.write_chunk(request)
        .await
        .and_then(|()| send.finish())
        .map_err(context("a request could not be sent"))?;
    let mut bytes = 0;
    while let Some(chunk) = recv
        .read_chunk(PIECE)
        .await
        .map_err(context("a response was cut short"))?
    {
        bytes += chunk.len() as u64;
    }
    if bytes == down {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the server sent {bytes} of {down} bytes: is it a perf server?"
    )))
}
