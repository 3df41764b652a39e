//! squall over loopback: two endpoints in this process, with one worker thread each.
//!
//! ```text
//!   bind both -> connect -> read clocks and stages -> the work, as `protocol` says -> read again
//! ```
//! The application's tasks run on the workers' threads ([`Connection::spawn`]), so each end
//! consists of its workers' threads, which have clocks of their own. The server hands over slices
//! of one buffer without copying; the client takes the chunks that the receiver holds.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ServerConfig};
use squall::{Connection, Endpoint};
use squall_yard::certificate::{Certificate, NAME};
use squall_yard::cpu::Cores;
use squall_yard::ends::{EARLY_DATA, client_tls, server_tls};
use squall_yard::error::{Result, context};
use squall_yard::live::Counter;
use squall_yard::meter::{Reading, Used, Volume};
use squall_yard::options::Options;
use squall_yard::outcome::{Done, Outcome};
use squall_yard::suites::Suite;
use squall_yard::sys;
use squall_yard::tickets::Watch;
use squall_yard::work::{Churn, Datagrams, Direction, Handshakes, Kind, Load, Requests};
use tokio::runtime::Runtime;

use super::churn;
use super::datagrams::{self, Supply};
use super::endpoint::{self, connect, run_all, wait_idle};
use super::handshakes::{self, Target};
use super::protocol::{self, Service, Transfer};
use super::requests;

/// The shortest idle timeout, unless the user chooses one.
const LEAST_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle timeout per connection: up to 3,000 have the shortest one, and more a longer one.
const IDLE_TIMEOUT_OF_EACH: Duration = Duration::from_millis(10);

/// The ingredients of both ends.
pub(crate) struct Quic {
    options: Options,
    server: ServerConfig,
    /// One for all connections, or one for each.
    clients: Vec<Arc<ClientConfig>>,
    watch: Arc<Watch>,
    loopback: IpAddr,
    /// The runtime whose tasks are the workers, instead of threads.
    runtime: Option<Runtime>,
}

/// The tickets that a server gives its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tickets {
    None,
    /// For resumption.
    Plain,
    /// For resumption with early data.
    Early,
}

/// Both endpoints and the clocks between them.
pub(crate) struct Pair {
    pub(crate) server: Endpoint,
    pub(crate) client: Endpoint,
    pub(crate) address: SocketAddr,
    /// As returned by [`endpoint::mix`].
    pub(crate) mix: Vec<squall::ClientConfig>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Both before the first wait: each end learns of it from the other.
        for end in [&self.client, &self.server] {
            end.close(0, b"");
        }
        for end in [&self.client, &self.server] {
            // A worker that has ended has nothing more to report.
            let _ = wait_idle(end);
        }
    }
}

impl Quic {
    /// Both ends' TLS with a certificate, for that many connections, and the address that they use.
    ///
    /// # Errors
    /// As [`server_tls`] and [`client_tls`].
    pub(crate) fn new(
        certificate: &Certificate,
        options: &Options,
        connections: usize,
        loopback: IpAddr,
    ) -> Result<Self> {
        let mut options = options.clone();
        options.suite.get_or_insert(Suite::Aes128.into());
        // The first of many wait until the last has connected, and viewers wait for their share.
        let of_all = IDLE_TIMEOUT_OF_EACH * u32::try_from(connections).unwrap_or(u32::MAX);
        options
            .idle_timeout
            .get_or_insert(of_all.max(LEAST_IDLE_TIMEOUT));
        let server = server_tls(certificate, &options)?;
        let make = |provider| certificate.client(provider);
        let (clients, watch) = client_tls(&options, connections, make)?;
        Ok(Self {
            options,
            server,
            clients,
            watch,
            loopback,
            runtime: None,
        })
    }

    /// Runs the workers as tasks of this runtime.
    pub(crate) fn on_runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// A server that serves on loopback, and a client.
    ///
    /// # Errors
    /// The system's: no port, or no such core.
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
            // Extra bytes that the other contenders do not send.
            tls.send_tls13_tickets = 0;
        }
        if tickets == Tickets::Early {
            tls.max_early_data_size = EARLY_DATA;
        }
        let here = || {
            let builder = self.options.builder((self.loopback, 0).into());
            match &self.runtime {
                Some(runtime) => builder.on_runtime(runtime.handle().clone()),
                None => builder,
            }
        };
        let mut builder =
            here().server(squall::ServerConfig::new(tls).transport(Arc::clone(&transport)));
        // Threads of a runtime are not ours to pin.
        let cores = if self.runtime.is_none() {
            cores
        } else {
            Cores::NONE
        };
        builder.cpus.extend(cores.server);
        let server = builder
            .bind()
            .map_err(context("cannot start the QUIC server on loopback"))?;
        let mix = endpoint::mix(&self.clients, &transport);
        let tls = Arc::clone(&self.clients[0]);
        let mut builder = here().client(squall::ClientConfig::new(tls).transport(transport));
        builder.cpus.extend(cores.client);
        let client = builder
            .bind()
            .map_err(context("cannot start the QUIC client on loopback"))?;
        let address = server.local_addr().map_err(context("local address"))?;
        server.spawn(protocol::serve(
            server.clone(),
            Arc::clone(service),
            |_| true,
            |_, _| (),
        ));
        Ok(Pair {
            server,
            client,
            address,
            mix,
        })
    }

    /// Measures a pair's work: what its threads and this process used for it.
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
            server_sent: before[0].sent_until_now(&pair.server),
        };
        Ok((result, used))
    }

    /// Runs one round of bulk transfer: `connections` connections of `streams` streams.
    ///
    /// # Errors
    /// A connection or stream failed.
    pub(crate) fn bulk(&self, load: &Load) -> Result<Outcome> {
        let service = Service::new(load.seed, &load.gauges.rtt).at(load.bitrate);
        let service = Arc::new(service);
        let streams = load.streams * load.flow.directions().len();
        let pair = self.bind(load.cores, streams, Tickets::None, &service)?;
        let connections = connect(
            &pair.client,
            pair.address,
            NAME,
            &pair.mix,
            load.connections,
        )?;
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
            bytes_up: bytes(&transfers, Direction::Up),
            elapsed: span(&transfers),
            ended: transfers.iter().map(|one| one.end).max(),
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
    /// A connection or stream failed.
    pub(crate) fn requests(
        &self,
        work: &Requests,
        connections: usize,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<(Done, Used)> {
        let pair = self.bind(cores, work.in_flight, Tickets::None, &Arc::default())?;
        let connections = connect(&pair.client, pair.address, NAME, &pair.mix, connections)?;
        Self::measure(
            &pair,
            || requests::run(work, &connections, live),
            |done| [Volume::Operations(done.count()); 2],
        )
    }

    /// Runs one round of datagrams.
    ///
    /// # Errors
    /// A connection failed, or nothing arrived.
    pub(crate) fn datagrams(
        &self,
        work: &Datagrams,
        connections: usize,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<(Done, Used)> {
        let supply = Arc::new(Supply::new(work.size));
        let service = Arc::new(Service::of_datagrams(&supply));
        let pair = self.bind(cores, 1, Tickets::None, &service)?;
        let connections = connect(&pair.client, pair.address, NAME, &pair.mix, connections)?;
        Self::measure(
            &pair,
            || datagrams::run(work, &supply, &connections, live),
            |done| [Volume::Operations(done.count()); 2],
        )
    }

    /// Runs one round of connections that come and go.
    ///
    /// # Errors
    /// A connection failed.
    pub(crate) fn churn(
        &self,
        work: &Churn,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<(Done, Used)> {
        let pair = self.bind(cores, 1, Tickets::None, &Arc::default())?;
        self.watch.forget();
        let target = self.target(&pair);
        Self::measure(
            &pair,
            || churn::run(work, target, live),
            |done| [Volume::Operations(done.count()); 2],
        )
    }

    fn target(&self, pair: &Pair) -> Target {
        Target {
            client: pair.client.clone(),
            address: pair.address,
            name: NAME.to_owned(),
            mix: pair.mix.clone(),
            watch: Arc::clone(&self.watch),
        }
    }

    /// Runs one round of handshakes.
    ///
    /// # Errors
    /// A handshake failed.
    pub(crate) fn handshakes(
        &self,
        work: &Handshakes,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<(Done, Used)> {
        let tickets = match work.kind {
            Kind::Early => Tickets::Early,
            Kind::Full | Kind::Resumed => Tickets::Plain,
        };
        let pair = self.bind(cores, 1, tickets, &Arc::default())?;
        let target = self.target(&pair);
        let ready = handshakes::prepare(work, target)?;
        Self::measure(
            &pair,
            || handshakes::run(work, &ready, live),
            |done| [Volume::Operations(done.count()); 2],
        )
    }
}

/// Starts the transfers of a load on connections and waits for them.
///
/// # Errors
/// A connection or stream failed.
pub(crate) fn bulk(connections: &[Connection], load: &Load) -> Result<Vec<Transfer>> {
    let (amount, digest, gauges) = (load.amount, load.seed.is_some(), &load.gauges);
    let bitrate = load.bitrate;
    let streams = connections.iter().flat_map(|connection| {
        let directions = load.flow.directions().iter();
        directions
            .flat_map(move |direction| std::iter::repeat_n((connection, *direction), load.streams))
    });
    run_all(streams.map(|(connection, direction)| {
        let (own, gauges) = (connection.clone(), gauges.clone());
        let task = async move {
            match direction {
                Direction::Down => protocol::download(own, amount, digest, gauges).await,
                Direction::Up => protocol::upload(own, amount, bitrate, gauges).await,
            }
        };
        (connection, task)
    }))
}

/// Bytes of one direction.
pub(crate) fn bytes(transfers: &[Transfer], direction: Direction) -> u64 {
    let own = transfers.iter().filter(|one| one.direction == direction);
    own.map(|one| one.bytes).sum()
}

/// From the first stream's start to the last one's end.
pub(crate) fn span(transfers: &[Transfer]) -> Duration {
    let begin = transfers.iter().map(|one| one.begin).min();
    let end = transfers.iter().map(|one| one.end).max();
    begin
        .zip(end)
        .map_or(Duration::ZERO, |(a, b): (Instant, Instant)| b - a)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn both_ends_use_the_given_address() {
        let certificate = Certificate::generate().expect("a certificate");
        let options: Options = squall_yard::parse::group(&[]).expect("no arguments");
        let loopback = IpAddr::from(Ipv6Addr::LOCALHOST);
        let quic = Quic::new(&certificate, &options, 1, loopback).expect("both ends");
        let pair = quic.bind(Cores::NONE, 1, Tickets::None, &Arc::default());
        let pair = pair.expect("ports");
        assert_eq!(pair.address.ip(), loopback);
        let client = pair.client.local_addr().expect("bound");
        assert_eq!(client.ip(), loopback);
    }
}
