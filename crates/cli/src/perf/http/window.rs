//! The time of a measurement: a warm-up, then a difference of clocks and counters.

use std::time::{Duration, Instant};

use squall_yard::cpu::Ksoftirqd;
use squall_yard::error::{Failure, Result};
use squall_yard::stages::Sample;
use squall_yard::{interrupt, sys};
use tokio::task::JoinSet;

use super::client::Tally;
use super::server::Server;

/// How long clients run before anything counts, and how long it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) warm_up: Duration,
    pub(super) time: Duration,
}

/// Readings at one moment, or their differences.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    /// Content that the clients received.
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    /// CPU time of the server, `ksoftirqd` on its core included.
    pub(super) server: Duration,
    /// Likewise for the client.
    pub(super) client: Duration,
    /// The server's time by stage, if it measures that.
    pub(super) stages: Option<Sample>,
}

/// The sources of readings. The client is the thread that reads.
pub(super) struct Clocks<'a> {
    pub(super) server: &'a Server,
    pub(super) ksoftirqd: &'a Ksoftirqd,
    pub(super) tally: &'a Tally,
}

impl Clocks<'_> {
    /// All readings, with the time since `begin`.
    fn read(&self, begin: Instant) -> Result<Taken> {
        let soft = self.ksoftirqd.now();
        Ok(Taken {
            bytes: self.tally.bytes.get(),
            elapsed: begin.elapsed(),
            server: self.server.cpu()? + soft.server,
            client: sys::thread_cpu() + soft.client,
            stages: self.server.stages()?,
        })
    }

    /// Lets clients run for a window, and returns what was done in its second part. Ctrl-C ends it
    /// early.
    ///
    /// # Errors
    /// A client failed, or the server is gone.
    pub(super) async fn observe(
        &self,
        clients: &mut JoinSet<Result<()>>,
        window: Window,
    ) -> Result<Taken> {
        let begin = Instant::now();
        run(clients, window.warm_up).await?;
        let before = self.read(begin)?;
        run(clients, window.time).await?;
        let after = self.read(begin)?;
        Ok(Taken {
            bytes: after.bytes - before.bytes,
            elapsed: after.elapsed - before.elapsed,
            server: after.server.saturating_sub(before.server),
            client: after.client.saturating_sub(before.client),
            stages: (after.stages.zip(before.stages)).map(|(after, before)| after.since(&before)),
        })
    }
}

/// Lets clients run for a while. None of them ends by itself unless it fails.
async fn run(clients: &mut JoinSet<Result<()>>, time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    match interrupt::unless_due(Some(until), clients.join_next()).await {
        None => Ok(()),
        Some(Some(Ok(Err(failure)))) => Err(failure),
        Some(_) => Err(Failure::new("a client of the measurement ended")),
    }
}
