//! squall over loopback: two endpoints in this process, each with its one worker thread.
//!
//! ```text
//!   connect all    ->  clocks and stages read  ->  streams, as `protocol` says  ->  read again
//! ```
//! The application's tasks run on the workers' threads ([`Endpoint::spawn`]), so that each end is
//! one thread with one clock. The server hands over slices of one buffer and nothing is copied;
//! the client takes the chunks that the receiver holds.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, ClientConfig, ServerConfig};
use squall::{Builder, Connection, Endpoint, Stage, Stages, TransportConfig};

use super::certificate::{Certificate, NAME};
use super::protocol::{self, ALPN, Service, Transfer};
use super::stages::Sample;
use super::{Load, Outcome};
use crate::error::{Failure, Result, context};
use crate::sys;

/// The two configurations, TLS_AES_128_GCM_SHA256 only.
pub(crate) struct Quic {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// squall's provider with the one cipher suite that all contenders use.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = CryptoProvider::clone(&squall::provider());
    provider
        .cipher_suites
        .retain(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Settings of the transport for bulk transfer.
pub(crate) fn transport(payload: u16, streams: usize) -> Arc<TransportConfig> {
    let mut config = TransportConfig {
        max_udp_payload: payload,
        ..TransportConfig::default()
    };
    config.max_concurrent_bidi_streams = config.max_concurrent_bidi_streams.max(streams as u64);
    Arc::new(config)
}

impl Quic {
    /// Both ends' TLS around a certificate.
    pub(crate) fn new(certificate: &Certificate) -> Result<Self> {
        let provider = provider();
        let mut server = certificate.server(Arc::clone(&provider))?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        // Tickets would only be bytes that the other contenders do not send.
        server.send_tls13_tickets = 0;
        let mut client = certificate.client(provider)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }

    /// Runs one round: `connections` connections of `streams` streams, server to client.
    pub(crate) fn run(&self, load: &Load) -> Result<Outcome> {
        let transport = transport(load.payload, load.streams);
        let server = self.bind_server(load, &transport)?;
        let client = self.bind_client(load, &transport)?;
        let service = Arc::new(Service::new(load.seed));
        server.spawn(protocol::serve(
            server.clone(),
            Arc::clone(&service),
            |_, _| (),
        ));
        let address = server.local_addr().map_err(context("local address"))?;
        let outcome = transfer(&server, &client, address, load);
        client.close(0, b"");
        server.close(0, b"");
        let mut outcome = outcome?;
        outcome.sent = service.digests();
        Ok(outcome)
    }

    fn bind_server(&self, load: &Load, transport: &Arc<TransportConfig>) -> Result<Endpoint> {
        let mut builder = Builder::new((Ipv4Addr::LOCALHOST, 0).into())
            .server(squall::ServerConfig {
                tls: Arc::clone(&self.server),
                transport: Arc::clone(transport),
            })
            .accounting(true);
        builder.cpus.extend(load.cores.server);
        builder
            .bind()
            .map_err(context("cannot start the QUIC server on loopback"))
    }

    fn bind_client(&self, load: &Load, transport: &Arc<TransportConfig>) -> Result<Endpoint> {
        let mut builder = Builder::new((Ipv4Addr::LOCALHOST, 0).into())
            .client(squall::ClientConfig {
                tls: Arc::clone(&self.client),
                transport: Arc::clone(transport),
            })
            .accounting(true);
        builder.cpus.extend(load.cores.client);
        builder
            .bind()
            .map_err(context("cannot start the QUIC client on loopback"))
    }
}

/// Connects, moves the load and reads both ends' clocks around it.
fn transfer(
    server: &Endpoint,
    client: &Endpoint,
    address: SocketAddr,
    load: &Load,
) -> Result<Outcome> {
    let connections = connect(client, address, NAME, load.connections)?;
    let before = [Reading::of(server), Reading::of(client)];
    let (live, amount, digest) = (&load.live, load.amount, load.seed.is_some());
    let transfers = run_all(client, &connections, load.streams, |connection| {
        protocol::download(connection, amount, digest, Arc::clone(live))
    })?;
    let after = [Reading::of(server), Reading::of(client)];
    let bytes = transfers.iter().map(|one| one.bytes).sum();
    let [server_stages, client_stages] = [0, 1].map(|end| after[end].since(&before[end], bytes));
    let mut stages = [server_stages, client_stages];
    // The payload's direction: sent by the one, received by the other.
    stages[0].packets = after[0].datagrams_sent - before[0].datagrams_sent;
    stages[1].packets = after[1].datagrams_received - before[1].datagrams_received;
    Ok(Outcome {
        bytes,
        elapsed: span(&transfers),
        server_cpu: stages[0].cpu,
        client_cpu: stages[1].cpu,
        sent: Vec::new(),
        received: transfers.iter().filter_map(|one| one.digest).collect(),
        stages: Some(stages),
    })
}

/// From the first stream's begin to the last one's end.
pub(crate) fn span(transfers: &[Transfer]) -> Duration {
    let begin = transfers.iter().map(|one| one.begin).min();
    let end = transfers.iter().map(|one| one.end).max();
    begin
        .zip(end)
        .map_or(Duration::ZERO, |(a, b): (Instant, Instant)| b - a)
}

/// Connects so many times, from the client's worker.
pub(crate) fn connect(
    client: &Endpoint,
    address: SocketAddr,
    name: &str,
    count: usize,
) -> Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let connecting = client
            .connect(address, name)
            .map_err(context("cannot connect"))?;
        let connection =
            wait(client, connecting)?.map_err(|error| super::remote::explain(&error, address))?;
        connections.push(connection);
    }
    Ok(connections)
}

/// Starts `streams` transfers on each connection, on the client's worker, and waits for all.
pub(crate) fn run_all<F, T>(
    client: &Endpoint,
    connections: &[Connection],
    streams: usize,
    transfer: F,
) -> Result<Vec<Transfer>>
where
    F: Fn(Connection) -> T,
    T: Future<Output = Result<Transfer>> + Send + 'static,
{
    let (results, done) = mpsc::channel();
    for connection in connections {
        for _ in 0..streams {
            let (transfer, results) = (transfer(connection.clone()), results.clone());
            client.spawn(async move {
                // Nobody listens any more once another stream has failed.
                let _ = results.send(transfer.await);
            });
        }
    }
    drop(results);
    let transfers: Vec<Transfer> = done.iter().collect::<Result<_>>()?;
    if transfers.len() < connections.len() * streams {
        return Err(Failure::new("the client's worker ended too early"));
    }
    Ok(transfers)
}

/// Runs a future on an endpoint's worker and waits for it on this thread.
pub(crate) fn wait<F>(endpoint: &Endpoint, future: F) -> Result<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (result, done) = mpsc::sync_channel(1);
    endpoint.spawn(async move {
        // The receiver is waiting below.
        let _ = result.send(future.await);
    });
    done.recv()
        .map_err(|_| Failure::new("the endpoint's worker ended too early"))
}

/// The CPU time that an endpoint's workers have taken.
pub(crate) fn cpu_of(endpoint: &Endpoint) -> Duration {
    let threads = endpoint.worker_thread_ids();
    threads.into_iter().filter_map(sys::thread_cpu_of).sum()
}

/// One end's counters at a moment.
struct Reading {
    stages: Stages,
    cpu: Duration,
    datagrams_sent: u64,
    datagrams_received: u64,
}

impl Reading {
    fn of(endpoint: &Endpoint) -> Self {
        let udp = endpoint.stats().udp;
        Self {
            stages: endpoint.stages(),
            cpu: cpu_of(endpoint),
            datagrams_sent: udp.datagrams_sent,
            datagrams_received: udp.datagrams_received,
        }
    }

    /// What was counted since then; the packets are the caller's to choose.
    fn since(&self, earlier: &Self, bytes: u64) -> Sample {
        let stages = Stage::ALL
            .into_iter()
            // Waiting is no CPU time; what is left over becomes its own row.
            .filter(|stage| !matches!(stage, Stage::Idle | Stage::Other))
            .map(|stage| {
                let now = self.stages.ticks()[stage as usize];
                let then = earlier.stages.ticks()[stage as usize];
                (stage.name(), now - then)
            })
            .collect();
        Sample {
            stages,
            stamps: self.stages.stamps() - earlier.stages.stamps(),
            cpu: self.cpu.saturating_sub(earlier.cpu),
            packets: 0,
            bytes,
        }
    }
}

/// The measured cost of one stamp in nanoseconds.
pub(crate) fn ns_per_stamp() -> f64 {
    const STAMPS: u32 = 100_000;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let mut stages = Stages::on(squall::ticks);
        let start = Instant::now();
        for _ in 0..STAMPS {
            stages.mark(std::hint::black_box(Stage::Other));
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(STAMPS));
    }
    best
}
