//! Connections that come and go: a full handshake, a few requests one after the other, close. Each
//! one is replaced as soon as it is closed.

use std::sync::Arc;
use std::time::Instant;

use squall_yard::error::{Failure, Result, context};
use squall_yard::interrupt;
use squall_yard::latency::Shared;
use squall_yard::live::Counter;
use squall_yard::outcome::Done;
use squall_yard::work::{Churn, Requests, request};

use super::endpoint::wait;
use super::handshakes::Target;
use super::requests::ask;

/// Does the work. Connections that exist when the time is up are completed.
///
/// # Errors
/// A handshake failed, or a response had the wrong length.
pub(crate) fn run(work: &Churn, target: Target, live: &Arc<Counter>) -> Result<Done> {
    let (target, work, live) = (Arc::new(target), work.clone(), Arc::clone(live));
    let client = target.client.clone();
    let latency = Shared::default();
    let begin = Instant::now();
    let own = latency.clone();
    wait(&client, async move {
        let places: Vec<_> = (0..work.in_flight)
            .map(|place| {
                let (target, work, live) = (Arc::clone(&target), work.clone(), Arc::clone(&live));
                let (latency, spawner) = (own.clone(), target.client.clone());
                let deadline = begin + work.time;
                spawner.spawn(async move {
                    while !interrupt::due(Some(deadline)) {
                        let begin = Instant::now();
                        come_and_go(&target, &work, place).await?;
                        latency.record(begin.elapsed());
                        live.add(1);
                    }
                    Ok::<(), Failure>(())
                })
            })
            .collect();
        for place in places {
            place.await.map_err(context("a connection"))??;
        }
        Ok::<(), Failure>(())
    })??;
    Ok(Done {
        elapsed: begin.elapsed(),
        ended: Some(Instant::now()),
        latency: latency.read(),
        ..Done::default()
    })
}

async fn come_and_go(target: &Target, work: &Churn, place: usize) -> Result<()> {
    let connection = target.connect(place).await?;
    let request = request(*Requests::UP.start(), work.down);
    for _ in 0..work.requests {
        ask(&connection, request.clone(), work.down).await?;
    }
    connection.close(0, b"");
    Ok(())
}
