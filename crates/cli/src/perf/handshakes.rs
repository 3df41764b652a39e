//! Handshakes (draft-banks-quic-performance §3.3): connections that are closed as soon as they stand.
//!
//! ```text
//!   so many at a time:  connect ... all stand  ->  their tickets are here  ->  close all, again
//! ```
//! Both kinds wait for the server's session tickets before they close: then both have had the whole
//! exchange, HANDSHAKE_DONE included, and the next resumption has a ticket of its own. How many a
//! server sends, a first handshake finds out.
//! A server need not take a ticket, nor early data: what came of each handshake is looked at.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind, NamedGroup};
use squall::{Connecting, Connection, Endpoint};
use tokio::sync::Notify;

use super::latency::Histogram;
use super::live::Counter;
use super::quic::{explain, wait};
use super::requests::{self, Done};
use crate::error::{Failure, Result, context};
use crate::interrupt;

/// What a handshake begins with.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Without a session ticket: certificate and signature
    Full,
    /// With a session ticket (RFC 8446 §2.2)
    Resumed,
    /// With a session ticket, and a request of 100 bytes as early data (RFC 9001 §4.6); ends with
    /// the response of 1024 bytes
    #[value(name = "0rtt")]
    Early,
}

impl Kind {
    /// The name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Early => "0rtt",
        }
    }

    /// The workload's name in rows.
    pub(crate) fn workload(self) -> &'static str {
        match self {
            Self::Full => "W4",
            Self::Resumed => "W4-resumed",
            Self::Early => "W4-0rtt",
        }
    }
}

/// The work of a client.
#[derive(Clone, Debug)]
pub(crate) struct Handshakes {
    pub(crate) kind: Kind,
    /// At a time.
    pub(crate) in_flight: usize,
    pub(crate) time: Duration,
}

/// How long the first handshake's tickets are waited for, where a server may send none.
const PATIENCE: Duration = Duration::from_millis(300);

impl Handshakes {
    /// Finds out what the server sends, and gathers as many tickets as are used at a time; not to be
    /// measured.
    ///
    /// # Errors
    /// A handshake failed, or the server sends no tickets and they are needed.
    pub(crate) fn prepare(&self, target: Target) -> Result<Ready> {
        let target = Arc::new(target);
        let (own, work) = (Arc::clone(&target), self.clone());
        let tickets = wait(&target.client, async move { own.prepare(&work).await })??;
        Ok(Ready { target, tickets })
    }

    /// Does the work.
    ///
    /// # Errors
    /// A handshake failed, or the server resumes nothing and should.
    pub(crate) fn run(&self, ready: &Ready, live: &Arc<Counter>) -> Result<Done> {
        let (target, tickets, work) = (Arc::clone(&ready.target), ready.tickets, self.clone());
        let live = Arc::clone(live);
        wait(&ready.target.client, async move {
            target.run(&work, tickets, &live).await
        })?
    }
}

/// Where a client connects to, and how.
pub(crate) struct Target {
    pub(crate) client: Endpoint,
    pub(crate) address: SocketAddr,
    pub(crate) name: String,
    /// What [`Watch::over`] put into the client's TLS.
    pub(crate) watch: Arc<Watch>,
}

/// A target that was prepared.
pub(crate) struct Ready {
    target: Arc<Target>,
    /// Tickets that a handshake brings.
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

    /// Returns how many tickets a handshake brings.
    async fn prepare(self: &Arc<Self>, work: &Handshakes) -> Result<u64> {
        self.watch.forget();
        let before = self.watch.arrived.load(Ordering::Relaxed);
        let connection = self.connect().await?;
        tokio::time::sleep(PATIENCE).await;
        let tickets = self.watch.arrived.load(Ordering::Relaxed) - before;
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

    /// So many handshakes at a time, to their tickets and their end. Returns how many were not of
    /// the kind wanted.
    async fn batch(
        self: &Arc<Self>,
        work: &Handshakes,
        tickets: u64,
        latency: &mut Histogram,
    ) -> Result<u64> {
        let count = work.in_flight;
        let all_arrived = self.watch.arrived.load(Ordering::Relaxed) + tickets * count as u64;
        let tasks = std::iter::repeat_with(|| {
            let (target, kind) = (Arc::clone(self), work.kind);
            self.client.spawn(async move {
                let begin = Instant::now();
                let connected = target.begin(kind).await;
                connected.map(|(connection, as_wanted)| (connection, as_wanted, begin.elapsed()))
            })
        });
        let tasks: Vec<_> = tasks.take(count).collect();
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
            // A server may once send fewer; its handshakes count all the same.
            let _ = tokio::time::timeout(PATIENCE, arrived).await;
        }
        for connection in connections {
            connection.close(0, b"");
        }
        Ok(missed)
    }

    /// One handshake, and whether it was of the kind wanted.
    async fn begin(&self, kind: Kind) -> Result<(Connection, bool)> {
        if kind != Kind::Early {
            let connection = self.connect().await?;
            let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
            return Ok((connection, resumed == (kind == Kind::Resumed)));
        }
        match self.connecting()?.into_0rtt().await {
            Ok((connection, accepted)) => {
                let request = requests::request(EARLY_REQUEST, EARLY_RESPONSE);
                let answered = requests::ask(&connection, request, EARLY_RESPONSE).await;
                // Why there is no connection says more than that there was no answer.
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

    fn connecting(&self) -> Result<Connecting> {
        let connecting = self.client.connect(self.address, &self.name);
        connecting.map_err(context("cannot connect"))
    }

    async fn connect(&self) -> Result<Connection> {
        let connected = self.connecting()?.await;
        connected.map_err(|error| explain(&error, self.address))
    }
}

/// Bytes of the early request and of its response.
const EARLY_REQUEST: usize = 100;
const EARLY_RESPONSE: u64 = 1024;

/// The tickets that a client's handshakes bring.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    tickets: Mutex<Tickets>,
    arrived: AtomicU64,
    news: Notify,
}

#[derive(Debug, Default)]
struct Tickets {
    /// Hand them out.
    give: bool,
    kept: VecDeque<Tls13ClientSessionValue>,
}

/// Tickets that are kept at most, and so handshakes at a time; the oldest tickets go first.
pub(crate) const MAX_TICKETS: usize = 1_000;

impl Watch {
    /// Watches over a client's handshakes.
    pub(crate) fn over(tls: &mut ClientConfig) -> Arc<Self> {
        let watch = Arc::new(Self::default());
        tls.resumption = Resumption::store(Arc::clone(&watch) as Arc<dyn ClientSessionStore>);
        // Sent only by those who ask for it before the handshake's end.
        tls.enable_early_data = true;
        watch
    }

    /// Forgets all tickets: they may be another server's.
    pub(crate) fn forget(&self) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        *tickets = Tickets::default();
    }

    /// Hands tickets out from now on, or none.
    pub(crate) fn give(&self, give: bool) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.give = give;
    }

    fn kept(&self) -> usize {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.kept.len()
    }

    /// Waits until so many tickets have come since the beginning.
    async fn arrived(&self, count: u64) {
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if self.arrived.load(Ordering::Relaxed) >= count {
                return;
            }
            news.await;
        }
    }
}

impl ClientSessionStore for Watch {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, _group: NamedGroup) {}

    /// None: every handshake offers the same key shares.
    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(
        &self,
        _server_name: ServerName<'static>,
        _value: Tls12ClientSessionValue,
    ) {
    }

    fn tls12_session(&self, _server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server_name: &ServerName<'static>) {}

    fn insert_tls13_ticket(
        &self,
        _server_name: ServerName<'static>,
        value: Tls13ClientSessionValue,
    ) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        if tickets.kept.len() == MAX_TICKETS {
            tickets.kept.pop_front();
        }
        tickets.kept.push_back(value);
        drop(tickets);
        self.arrived.fetch_add(1, Ordering::Relaxed);
        self.news.notify_waiters();
    }

    fn take_tls13_ticket(
        &self,
        _server_name: &ServerName<'static>,
    ) -> Option<Tls13ClientSessionValue> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest: a server remembers a few hundred, the oldest are forgotten first.
        if tickets.give {
            tickets.kept.pop_back()
        } else {
            None
        }
    }
}
