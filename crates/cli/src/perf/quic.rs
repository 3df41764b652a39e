//! squall over loopback: two endpoints in this process, each with its one worker thread.
//!
//! ```text
//!   bind both  ->  connect  ->  clocks and stages read  ->  the work, as `protocol` says  ->  read again
//! ```
//! The application's tasks run on the workers' threads ([`Connection::spawn`]), so that each end is
//! its workers' threads, and their clocks. The server hands over slices of one buffer and nothing is copied;
//! the client takes the chunks that the receiver holds.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustls::server::ServerSessionMemoryCache;
use rustls::{ClientConfig, ServerConfig};
use squall::{CloseReason, ConnectError, Connection, Endpoint};

use super::certificate::{Certificate, NAME};
use super::cpu::Cores;
use super::handshakes::{Handshakes, Kind, MAX_TICKETS, Target, Watch};
use super::live::Counter;
use super::meter::{Reading, Used, Volume};
use super::options::{Options, Suite};
use super::protocol::{self, ALPN, Service, Transfer};
use super::requests::{Done, Requests};
use super::{Flow, Load, Outcome};
use crate::error::{Failure, Result, context};
use crate::interrupt;
use crate::sys;

/// Sessions that a server remembers for resumption: all tickets that a client of ours keeps, and not
/// many more, since rustls looks through all of them for one that is used.
const SESSIONS: usize = MAX_TICKETS + 24;

/// What both ends are made of, one cipher suite only.
pub(crate) struct Quic {
    options: Options,
    server: ServerConfig,
    client: Arc<ClientConfig>,
    watch: Arc<Watch>,
}

/// A server's TLS: the perf protocol, session tickets, key log.
///
/// # Errors
/// The certificate and its key do not go together, or secrets cannot be logged as asked for.
pub(crate) fn server_tls(certificate: &Certificate, options: &Options) -> Result<ServerConfig> {
    let mut tls = certificate.server(options.provider())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.key_log = options.key_log()?;
    tls.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    // One for each connection that may follow.
    tls.send_tls13_tickets = 1;
    Ok(tls)
}

/// Finishes a client's TLS: the perf protocol, key log, and a watch over its handshakes.
///
/// # Errors
/// Secrets cannot be logged as asked for.
pub(crate) fn client_tls(
    mut tls: ClientConfig,
    options: &Options,
) -> Result<(ClientConfig, Arc<Watch>)> {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.key_log = options.key_log()?;
    let watch = Watch::over(&mut tls);
    Ok((tls, watch))
}

/// What a server gives its clients for another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tickets {
    None,
    /// For resumption.
    Plain,
    /// For resumption with early data.
    Early,
}

/// RFC 9001 §4.6.1: early data is allowed; QUIC's own limits count.
pub(crate) const EARLY_DATA: u32 = u32::MAX;

/// Both endpoints and the clocks between them.
pub(crate) struct Pair {
    pub(crate) server: Endpoint,
    pub(crate) client: Endpoint,
    pub(crate) address: SocketAddr,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Both before the first wait: each end is told by the other.
        for end in [&self.client, &self.server] {
            end.close(0, b"");
        }
        for end in [&self.client, &self.server] {
            // Whoever has ended has nothing left to tell.
            let _ = wait_idle(end);
        }
    }
}

impl Quic {
    /// Both ends' TLS around a certificate.
    ///
    /// # Errors
    /// As [`server_tls`] and [`client_tls`].
    pub(crate) fn new(certificate: &Certificate, options: &Options) -> Result<Self> {
        let mut options = options.clone();
        options.suite.get_or_insert(Suite::Aes128);
        let server = server_tls(certificate, &options)?;
        let (client, watch) = client_tls(certificate.client(options.provider())?, &options)?;
        Ok(Self {
            options,
            server,
            client: Arc::new(client),
            watch,
        })
    }

    /// A server that serves on loopback, and a client.
    ///
    /// # Errors
    /// The system's: no port, no such core.
    pub(crate) fn bind(
        &self,
        cores: Cores,
        streams: usize,
        tickets: Tickets,
        service: &Arc<Service>,
    ) -> Result<Pair> {
        let transport = self.options.transport(streams);
        let mut tls = self.server.clone();
        if tickets == Tickets::None {
            // Only bytes that the other contenders do not send.
            tls.send_tls13_tickets = 0;
        }
        if tickets == Tickets::Early {
            tls.max_early_data_size = EARLY_DATA;
        }
        let here = || self.options.builder((Ipv4Addr::LOCALHOST, 0).into());
        let mut builder = here().server(squall::ServerConfig {
            tls: Arc::new(tls),
            transport: Arc::clone(&transport),
        });
        builder.cpus.extend(cores.server);
        let server = builder
            .bind()
            .map_err(context("cannot start the QUIC server on loopback"))?;
        let mut builder = here().client(squall::ClientConfig {
            tls: Arc::clone(&self.client),
            transport,
        });
        builder.cpus.extend(cores.client);
        let client = builder
            .bind()
            .map_err(context("cannot start the QUIC client on loopback"))?;
        let address = server.local_addr().map_err(context("local address"))?;
        server.spawn(protocol::serve(
            server.clone(),
            Arc::clone(service),
            |_, _| (),
        ));
        Ok(Pair {
            server,
            client,
            address,
        })
    }

    /// The measuring of a pair's work: what its threads and this process used for it.
    fn measure<T>(
        pair: &Pair,
        work: impl FnOnce() -> Result<T>,
        volumes: impl FnOnce(&T) -> [Volume; 2],
    ) -> Result<(T, Used)> {
        let process = sys::process_cpu();
        let before = [&pair.server, &pair.client].map(Reading::of);
        let result = work()?;
        let [server, client] = volumes(&result);
        let used = Used {
            ends: [
                before[0].until_now(&pair.server, server),
                before[1].until_now(&pair.client, client),
            ],
            process: sys::process_cpu().saturating_sub(process),
        };
        Ok((result, used))
    }

    /// Runs one round of bulk transfer: `connections` connections of `streams` streams.
    ///
    /// # Errors
    /// A connection or stream broke.
    pub(crate) fn bulk(&self, load: &Load) -> Result<Outcome> {
        let service = Arc::new(Service::new(load.seed, &load.gauges.rtt));
        let pair = self.bind(load.cores, load.streams, Tickets::None, &service)?;
        let connections = connect(&pair.client, pair.address, NAME, load.connections)?;
        let sum = |transfers: &Vec<Transfer>| transfers.iter().map(|one| one.bytes).sum();
        let (transfers, used) = Self::measure(
            &pair,
            || bulk(&connections, load),
            |transfers| {
                let bytes = sum(transfers);
                [
                    Volume::of_server(load.flow, bytes),
                    Volume::of_client(load.flow, bytes),
                ]
            },
        )?;
        Ok(Outcome {
            bytes: sum(&transfers),
            elapsed: span(&transfers),
            server_cpu: used.ends[0].cpu,
            client_cpu: used.ends[1].cpu,
            sent: service.digests(),
            received: transfers.iter().filter_map(|one| one.digest).collect(),
            used: Some(used),
        })
    }

    /// Runs one round of requests.
    ///
    /// # Errors
    /// A connection or stream broke.
    pub(crate) fn requests(
        &self,
        requests: &Requests,
        connections: usize,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<(Done, Used)> {
        let pair = self.bind(cores, requests.in_flight, Tickets::None, &Arc::default())?;
        let connections = connect(&pair.client, pair.address, NAME, connections)?;
        Self::measure(
            &pair,
            || requests.run(&connections, live),
            |done| [Volume::Operations(done.count()); 2],
        )
    }

    /// Runs one round of handshakes.
    ///
    /// # Errors
    /// A handshake failed.
    pub(crate) fn handshakes(
        &self,
        handshakes: &Handshakes,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<(Done, Used)> {
        let tickets = match handshakes.kind {
            Kind::Early => Tickets::Early,
            Kind::Full | Kind::Resumed => Tickets::Plain,
        };
        let pair = self.bind(cores, 1, tickets, &Arc::default())?;
        let target = Target {
            client: pair.client.clone(),
            address: pair.address,
            name: NAME.to_owned(),
            watch: Arc::clone(&self.watch),
        };
        let ready = handshakes.prepare(target)?;
        Self::measure(
            &pair,
            || handshakes.run(&ready, live),
            |done| [Volume::Operations(done.count()); 2],
        )
    }
}

/// Starts the transfers of a load on connections and waits for them.
///
/// # Errors
/// A connection or stream broke.
pub(crate) fn bulk(connections: &[Connection], load: &Load) -> Result<Vec<Transfer>> {
    let (amount, digest, gauges) = (load.amount, load.seed.is_some(), &load.gauges);
    let streams = connections
        .iter()
        .flat_map(|connection| std::iter::repeat_n(connection, load.streams));
    match load.flow {
        Flow::Down => run_all(streams.map(|one| {
            let task = protocol::download(one.clone(), amount, digest, gauges.clone());
            (one, task)
        })),
        Flow::Up => run_all(streams.map(|one| {
            let task = protocol::upload(one.clone(), amount, gauges.clone());
            (one, task)
        })),
    }
}

/// From the first stream's begin to the last one's end.
pub(crate) fn span(transfers: &[Transfer]) -> Duration {
    let begin = transfers.iter().map(|one| one.begin).min();
    let end = transfers.iter().map(|one| one.end).max();
    begin
        .zip(end)
        .map_or(Duration::ZERO, |(a, b): (Instant, Instant)| b - a)
}

/// Connects so many times, from the client's worker. Ctrl-C gives up.
///
/// # Errors
/// There is no connection; what to do about it.
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
        let connected = wait(client, interrupt::unless_due(None, connecting))?;
        let connected = connected
            .ok_or_else(|| Failure::new(format!("interrupted before {address} answered")))?;
        connections.push(connected.map_err(|error| explain(&error, address))?);
    }
    Ok(connections)
}

/// Starts tasks, each on its connection's worker, and waits for all.
///
/// # Errors
/// The first failure.
pub(crate) fn run_all<'a, F, T>(tasks: impl Iterator<Item = (&'a Connection, F)>) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let (results, done) = mpsc::channel();
    let mut count = 0;
    for (connection, task) in tasks {
        let results = results.clone();
        count += 1;
        connection.spawn(async move {
            // Nobody listens any more once another one has failed.
            let _ = results.send(task.await);
        });
    }
    drop(results);
    let outcomes: Vec<T> = done.iter().collect::<Result<_>>()?;
    if outcomes.len() < count {
        return Err(Failure::new("the client's worker ended prematurely"));
    }
    Ok(outcomes)
}

/// Runs a future on an endpoint's worker and waits for it on this thread.
///
/// # Errors
/// The worker ended.
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
        .map_err(|_| Failure::new("the endpoint's worker ended prematurely"))
}

/// Closes an endpoint and waits until its peers were told, for a second at most: one that is gone is
/// not waited for.
///
/// # Errors
/// The worker ended.
pub(crate) fn close(endpoint: &Endpoint, reason: &'static [u8]) -> Result<()> {
    endpoint.close(0, reason);
    wait_idle(endpoint)
}

/// Waits for a second at most until no connection is left: then peers are told and qlogs are whole.
fn wait_idle(endpoint: &Endpoint) -> Result<()> {
    let idle = endpoint.clone();
    wait(endpoint, async move {
        let _ = tokio::time::timeout(Duration::from_secs(1), idle.wait_idle()).await;
    })
}

/// Why there is no connection, and what to do about it.
pub(crate) fn explain(error: &ConnectError, address: SocketAddr) -> Failure {
    /// RFC 9001 §4.8: the crypto error of TLS alert no_application_protocol.
    const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;
    /// The same of handshake_failure: no suite or group in common.
    const HANDSHAKE_FAILURE: u64 = 0x100 + 40;
    Failure::new(match error {
        ConnectError::Closed(CloseReason::HandshakeTimeout | CloseReason::IdleTimeout) => format!(
            "no answer from {address}: check that a server is listening there (squall perf server) and that UDP is not blocked"
        ),
        ConnectError::Closed(CloseReason::Transport { code, .. })
            if code.0 == NO_APPLICATION_PROTOCOL =>
        {
            format!(
                "{address} is a QUIC server but does not support the perf protocol: start squall perf server there"
            )
        }
        ConnectError::Closed(CloseReason::Transport { code, .. })
            if code.0 == HANDSHAKE_FAILURE =>
        {
            format!(
                "{address} and this end have no cipher suite in common: omit --suite at one end"
            )
        }
        // What `openssl req -x509` makes by itself, and webpki does not take from a server (RFC 5280 §4.2.1.9).
        ConnectError::Closed(CloseReason::Transport {
            reason,
            remote: false,
            ..
        }) if reason.contains("CaUsedAsEndEntity") => format!(
            "{address} presents a CA certificate as its own: create one with basicConstraints=critical,CA:FALSE (openssl \
             req -addext), or pass -k to skip verification"
        ),
        ConnectError::Closed(CloseReason::Transport {
            code,
            reason,
            remote: false,
        }) if (0x100..0x200).contains(&code.0) => format!(
            "{address} is not trusted ({reason}): pass its certificate with --cacert FILE, or -k to skip verification"
        ),
        error => format!("cannot connect to {address}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_and_a_wrong_certificate_are_told_apart() {
        let address = ([127, 0, 0, 1], 4433).into();
        let silent = explain(
            &ConnectError::Closed(CloseReason::HandshakeTimeout),
            address,
        );
        assert!(silent.to_string().contains("no answer"));
        let untrusted = ConnectError::Closed(CloseReason::Transport {
            code: squall::TransportErrorCode::crypto(48),
            reason: "unknown issuer".to_owned(),
            remote: false,
        });
        assert!(
            explain(&untrusted, address)
                .to_string()
                .contains("--cacert")
        );
    }
}
