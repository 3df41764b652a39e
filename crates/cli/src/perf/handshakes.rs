//! Handshakes (draft-banks-quic-performance §3.3): connections that are closed once established.
//!
//! ```text
//!   N at a time:  connect ... all are established -> their tickets are here -> close all, again
//! ```
//! Both kinds wait for the server's session tickets before they close: then both have had the whole
//! exchange, HANDSHAKE_DONE included, and the next resumption has a ticket of its own. A first
//! handshake finds out how many tickets a server sends. A server need not accept a ticket, nor
//! early data, so the outcome of each handshake is checked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::HandshakeKind;
use squall::{ClientConfig, Connecting, Connection, Endpoint};
use squall_yard::error::{Failure, Result, context};
use squall_yard::interrupt;
use squall_yard::latency::Histogram;
use squall_yard::live::Counter;
use squall_yard::outcome::Done;
use squall_yard::tickets::Watch;
use squall_yard::work::{Handshakes, Kind, request};

use super::endpoint::{dial, explain, wait};
use super::requests::ask;

/// How long to wait for the first handshake's tickets, as a server may send none.
const PATIENCE: Duration = Duration::from_millis(300);

/// Finds out what the server sends, and collects as many tickets as are used at a time; not
/// measured.
///
/// # Errors
/// A handshake failed, or tickets are needed and the server sends none.
pub(crate) fn prepare(work: &Handshakes, target: Target) -> Result<Ready> {
    let target = Arc::new(target);
    let (own, work) = (Arc::clone(&target), work.clone());
    let tickets = wait(&target.client, async move { own.prepare(&work).await })??;
    Ok(Ready { target, tickets })
}

/// Does the work.
///
/// # Errors
/// A handshake failed, or the server resumes nothing although it should.
pub(crate) fn run(work: &Handshakes, ready: &Ready, live: &Arc<Counter>) -> Result<Done> {
    let (target, tickets, work) = (Arc::clone(&ready.target), ready.tickets, work.clone());
    let live = Arc::clone(live);
    wait(&ready.target.client, async move {
        target.run(&work, tickets, &live).await
    })?
}

/// Where a client connects to, and how.
pub(crate) struct Target {
    pub(crate) client: Endpoint,
    pub(crate) address: SocketAddr,
    pub(crate) name: String,
    /// A configuration for each concurrent handshake, if they differ.
    pub(crate) mix: Vec<ClientConfig>,
    /// The watch that [`Watch::over`] put into the client's TLS configuration.
    pub(crate) watch: Arc<Watch>,
}

/// A prepared target.
pub(crate) struct Ready {
    target: Arc<Target>,
    /// Tickets per handshake.
    tickets: u64,
}

impl Target {
    async fn run(
        self: &Arc<Self>,
        work: &Handshakes,
        tickets: u64,
        live: &Counter,
    ) -> Result<Done> {
        let mut done = Done::default();
        let mut missed = 0;
        let begin = Instant::now();
        let deadline = Some(begin + work.time);
        while !interrupt::due(deadline) {
            missed += self.batch(work, tickets, &mut done.latency).await?;
            live.add(work.in_flight as u64);
        }
        done.elapsed = begin.elapsed();
        done.ended = Some(Instant::now());
        if missed * 100 > done.count() {
            return Err(Failure::new(format!(
                "{} of {} handshakes were not of kind {}: {} does not accept all of its tickets; measure --handshakes=full",
                missed,
                done.count(),
                work.kind.name(),
                self.address
            )));
        }
        Ok(done)
    }

    /// Returns the number of tickets per handshake.
    async fn prepare(self: &Arc<Self>, work: &Handshakes) -> Result<u64> {
        self.watch.forget();
        let before = self.watch.count();
        let connection = self.connect(0).await?;
        tokio::time::sleep(PATIENCE).await;
        let tickets = self.watch.count() - before;
        connection.close(0, b"");
        if work.kind != Kind::Full {
            if tickets == 0 {
                return Err(Failure::new(format!(
                    "{} sends no session tickets; measure --handshakes=full",
                    self.address
                )));
            }
            let full = Handshakes {
                kind: Kind::Full,
                ..work.clone()
            };
            let mut unmeasured = Histogram::default();
            while self.watch.kept() < work.in_flight && !interrupt::raised() {
                self.batch(&full, tickets, &mut unmeasured).await?;
            }
            self.watch.give(true);
        }
        Ok(tickets)
    }

    /// Makes concurrent handshakes, waits for their tickets and closes them. Returns how many were
    /// not of the wanted kind.
    async fn batch(
        self: &Arc<Self>,
        work: &Handshakes,
        tickets: u64,
        latency: &mut Histogram,
    ) -> Result<u64> {
        let count = work.in_flight;
        let all_arrived = self.watch.count() + tickets * count as u64;
        let tasks = (0..count).map(|index| {
            let (target, kind) = (Arc::clone(self), work.kind);
            self.client.spawn(async move {
                let begin = Instant::now();
                let connected = target.begin(kind, index).await;
                connected.map(|(connection, as_wanted)| (connection, as_wanted, begin.elapsed()))
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut connections = Vec::with_capacity(count);
        let mut missed = 0;
        for task in tasks {
            let (connection, as_wanted, time) = task.await.map_err(context("a handshake"))??;
            connections.push(connection);
            missed += u64::from(!as_wanted);
            latency.record(time);
        }
        // Even without tickets to wait for, the client's Finished has to leave before the close.
        tokio::task::yield_now().await;
        if tickets > 0 {
            let arrived = self.watch.arrived(all_arrived);
            // A server may send fewer this time; its handshakes count all the same.
            let _ = tokio::time::timeout(PATIENCE, arrived).await;
        }
        for connection in connections {
            connection.close(0, b"");
        }
        Ok(missed)
    }

    /// One handshake, and whether it was of the wanted kind.
    async fn begin(&self, kind: Kind, index: usize) -> Result<(Connection, bool)> {
        if kind != Kind::Early {
            let connection = self.connect(index).await?;
            let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
            return Ok((connection, resumed == (kind == Kind::Resumed)));
        }
        match self.connecting(index)?.into_0rtt().await {
            Ok((connection, accepted)) => {
                let request = request(EARLY_REQUEST, EARLY_RESPONSE);
                let answered = ask(&connection, request, EARLY_RESPONSE).await;
                // The reason for the lost connection is more informative than a missing answer.
                let accepted = accepted.await;
                answered?;
                Ok((connection, accepted))
            }
            Err(connecting) => {
                let connected = connecting.await;
                let connection = connected.map_err(|error| explain(&error, self.address))?;
                Ok((connection, false))
            }
        }
    }

    fn connecting(&self, index: usize) -> Result<Connecting> {
        dial(&self.client, self.address, &self.name, &self.mix, index)
    }

    /// A connection, with the configuration at that index if they differ.
    pub(crate) async fn connect(&self, index: usize) -> Result<Connection> {
        let connected = self.connecting(index)?.await;
        connected.map_err(|error| explain(&error, self.address))
    }
}

/// Bytes of the early request and of its response.
const EARLY_REQUEST: usize = 100;
const EARLY_RESPONSE: u64 = 1024;
