//! Requests and responses (draft-banks-quic-performance §3.2): each on its own stream, several at a
//! time on each connection, as fast as they are answered or by the clock, for some time.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use squall::Connection;
use squall_yard::error::{Failure, Result, context};
use squall_yard::interrupt;
use squall_yard::latency::Shared;
use squall_yard::live::Counter;
use squall_yard::outcome::Done;
use squall_yard::pace::Pace;
use squall_yard::work::{PIECE, Requests, request};

use super::endpoint::run_all;

/// Histograms for all connections: one each would take 35 kB, and a cache miss per request.
const HISTOGRAMS: usize = 16;

/// Does the work. Waits for requests still in flight when the time is up.
///
/// # Errors
/// A connection ended, or a response had the wrong length.
pub(crate) fn run(
    work: &Requests,
    connections: &[Connection],
    live: &Arc<Counter>,
) -> Result<Done> {
    let request = request(work.up, work.down);
    let begin = Instant::now();
    let deadline = begin + work.time;
    let latencies: Vec<Shared> = (connections.iter().take(HISTOGRAMS))
        .map(|_| Shared::default())
        .collect();
    let places = connections.len() * work.in_flight;
    let tasks = connections.iter().zip(latencies.iter().cycle());
    let tasks = tasks.flat_map(|(connection, latency)| {
        std::iter::repeat_n((connection, latency), work.in_flight)
    });
    run_all(tasks.enumerate().map(|(place, (own, latency))| {
        let (request, down, live) = (request.clone(), work.down, Arc::clone(live));
        let (connection, latency) = (own.clone(), latency.clone());
        let mut pace = Pace::new(work.begin, places, place, begin);
        let task = async move {
            while let Some(begin) = next(&mut pace, deadline).await {
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
        ended: Some(Instant::now()),
        ..Done::default()
    };
    for latency in latencies {
        done.latency.add(&latency.read());
    }
    Ok(done)
}

/// Waits until the next request in a place is due, and returns the time from which its latency
/// counts: `None` when the time is up.
async fn next(pace: &mut Pace, deadline: Instant) -> Option<Instant> {
    let Some(due) = pace.next_due() else {
        return (!interrupt::due(Some(deadline))).then(Instant::now);
    };
    let now = Instant::now();
    if due >= deadline || now >= deadline || interrupt::raised() {
        return None;
    }
    if due > now {
        interrupt::unless_due(Some(deadline), tokio::time::sleep_until(due.into())).await?;
    }
    Some(due)
}

/// One request, to the last byte of its response.
pub(crate) async fn ask(connection: &Connection, request: Bytes, down: u64) -> Result<()> {
    let (send, mut recv) = connection.open_bi().await.map_err(context("no stream"))?;
    send.finish_with(request)
        .await
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
