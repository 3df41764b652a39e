//! `squall perf client`: measures against a perf server in another process or on another machine,
//! which may be another implementation.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use squall::{Connection, Endpoint};
use squall_yard::chart::{Bar, Bars, File};
use squall_yard::cpu::Cores;
use squall_yard::ends::client_tls;
use squall_yard::error::{Failure, Result, context};
use squall_yard::latency::Percentiles;
use squall_yard::live::{self, Counter, Gauges, Lane, Live, Printer, Unit};
use squall_yard::meter::{Reading, Ticker, Volume};
use squall_yard::outcome::Done;
use squall_yard::rows::{self, Row};
use squall_yard::stages::{Rates, Sample, Table};
use squall_yard::tickets::Watch;
use squall_yard::work::{Amount, Direction, Flow, Load};
use squall_yard::{interrupt, stages};

use super::args::Client;
use super::endpoint::{self, Unable};
use super::handshakes::{self, Target};
use super::host::{first, resolve};
use super::job::Job;
use super::liveness::{self, Guard, Phase};
use super::operations::{Figures, OperationsReport, Setup, Tables};
use super::protocol::Transfer;
use super::report::{self, Interval, Report};
use super::work::Task;
use super::{churn, quic, requests};
use crate::{output, trust};

/// Measures against a server.
///
/// # Errors
/// There is no connection, or it failed.
pub(crate) fn measure(args: &Client) -> Result<()> {
    args.work.one_number()?;
    let (mut connections, suites) = (args.work.connections(), args.options.suite.as_ref());
    let (bulk, jobs) = match args.work.task()? {
        Task::Bulk(flow, amount) => (Some((flow, amount)), Vec::new()),
        task => (None, Job::all(task)),
    };
    for job in &jobs {
        connections = job.at_a_time(args.work.connections(), suites)?;
    }
    let plot = args.output.plot.as_deref().map(File::create).transpose()?;
    let session = Session::open(args, connections)?;
    let result = match bulk {
        Some((flow, amount)) => session.bulk(flow, amount, plot),
        None => session.rates(&jobs, plot),
    };
    // The connection is closed before the process ends, even after a failure.
    endpoint::close(&session.endpoint, b"")?;
    result
}

/// A client and its server.
struct Session<'a> {
    args: &'a Client,
    endpoint: Endpoint,
    address: SocketAddr,
    host: String,
    watch: Arc<Watch>,
    /// A configuration for each connection, if they differ.
    mix: Vec<squall::ClientConfig>,
    ticker: Ticker,
}

impl<'a> Session<'a> {
    /// A session with the first of the host's addresses where a server answers.
    fn open(args: &'a Client, connections: usize) -> Result<Self> {
        let (host, addresses) = resolve(args)?;
        let is_only_one = addresses.len() == 1;
        first(&addresses, |address| {
            let session = Self::start(args, &host, address, connections)?;
            if !is_only_one && let Err(unable) = session.try_out() {
                endpoint::close(&session.endpoint, b"").map_err(Unable::reached)?;
                return Err(unable);
            }
            Ok(session)
        })
    }

    fn start(
        args: &'a Client,
        host: &str,
        address: SocketAddr,
        connections: usize,
    ) -> std::result::Result<Self, Unable> {
        let local = args.bind;
        let of_route = |error: io::Error| {
            let from = local.map_or(String::new(), |local| format!(" from {}", local.ip()));
            Unable {
                failure: Failure::new(format!("cannot send to {address}{from}: {error}")),
                is_unreachable: true,
            }
        };
        liveness::probe_socket(address, local).map_err(of_route)?;
        let (endpoint, watch, mix) = bind(args, address, connections).map_err(Unable::reached)?;
        Ok(Self {
            args,
            endpoint,
            address,
            host: host.to_owned(),
            watch,
            mix,
            ticker: Ticker::start(),
        })
    }

    /// Checks that a server answers there, with a connection that is closed at once.
    fn try_out(&self) -> std::result::Result<(), Unable> {
        let guard = self.guard(Phase::Connecting, None);
        let connected = endpoint::connect(&self.endpoint, self.address, &self.host, &[], 1);
        match (guard.finish(), connected) {
            (_, Ok(connections)) => {
                for connection in connections {
                    connection.close(0, b"");
                }
                Ok(())
            }
            (Some(failure), Err(_)) => Err(Unable {
                failure,
                is_unreachable: true,
            }),
            (None, Err(unable)) => Err(unable),
        }
    }

    /// Detects that the server is gone; prints lines above the live line, if there is one.
    fn guard(&self, phase: Phase, printer: Option<Printer>) -> Guard {
        let print = move |line: &str| match &printer {
            Some(printer) => printer.print(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        };
        let Self {
            endpoint, address, ..
        } = self;
        Guard::start(endpoint, *address, self.args.bind, phase, print)
    }

    /// Waits for the server, unless it is gone.
    fn guarded<T>(
        &self,
        phase: Phase,
        printer: Option<Printer>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let guard = self.guard(phase, printer);
        let result = work();
        // The reason for the end is more informative than the error.
        match guard.finish() {
            Some(gone) if result.is_err() => Err(gone),
            _ => result,
        }
    }

    fn connect(&self) -> Result<Vec<Connection>> {
        let count = self.args.work.connections();
        self.guarded(Phase::Connecting, None, || {
            let (endpoint, mix) = (&self.endpoint, &self.mix);
            let connected = endpoint::connect(endpoint, self.address, &self.host, mix, count);
            connected.map_err(Failure::from)
        })
    }

    /// Prints statistics of connections, if requested.
    fn tell_connections(&self, connections: &[Connection]) {
        if self.args.conn_stats {
            for (at, connection) in connections.iter().enumerate() {
                // To standard error, since standard output is only for the JSON object or the rows.
                eprintln!(
                    "connection {}: {}",
                    at + 1,
                    super::connection_stats(connection)
                );
            }
        }
    }

    /// The live line, and interval lines that begin with a name.
    fn line(&self, title: String, unit: Unit, lanes: &[Lane], name: &str) -> Live {
        let telling = report::telling(&self.args.work, &self.args.output, name);
        Live::with_intervals(title, unit, lanes, telling)
    }

    fn bulk(&self, flow: Flow, amount: Amount, plot: Option<File>) -> Result<()> {
        let work = &self.args.work;
        if work.bitrate.is_some() && flow != Flow::Up {
            return Err(Failure::new(
                "--bitrate limits what this end sends, and the server sends at its own rate: add --upload",
            ));
        }
        let connections = self.connect()?;
        let load = Load {
            connections: work.connections(),
            streams: work.streams,
            flow,
            amount,
            cores: Cores::NONE,
            loopback: self.address.ip(),
            seed: None,
            bitrate: work.bitrate,
            gauges: Gauges::default(),
        };
        let lanes = flow.lanes(&load.gauges);
        let line = self.line(self.args.server.clone(), Unit::Bytes, &lanes, "");
        let before = Reading::of(&self.endpoint);
        let transfers = self.guarded(Phase::Working, Some(line.printer()), || {
            quic::bulk(&connections, &load)
        });
        let ended = transfers.as_ref().ok();
        let ended = ended.and_then(|all| all.iter().map(|one| one.end).max());
        let intervals = line.finish(ended);
        let transfers = transfers.inspect_err(|_| keep(&intervals))?;
        let bytes = transfers.iter().map(|one| one.bytes).sum();
        let sample = before.until_now(&self.endpoint, Volume::of_client(flow, bytes));
        self.tell_connections(&connections);
        let mut results =
            ClientReport::new(self.args, &load, &transfers, &sample, self.ticker.rates());
        results.intervals = intervals;
        report::tell(&results, &self.args.output, plot)
    }

    fn target(&self) -> Target {
        Target {
            client: self.endpoint.clone(),
            address: self.address,
            name: self.host.clone(),
            mix: self.mix.clone(),
            watch: Arc::clone(&self.watch),
        }
    }

    /// Prepares everything that a job needs before it is measured, including its connections;
    /// returns the work itself.
    fn prepare<'b>(
        &self,
        job: &'b Job,
        live: &'b Arc<Counter>,
        connections: &mut Vec<Connection>,
    ) -> Result<Box<dyn FnOnce() -> Result<Done> + 'b>> {
        Ok(match job {
            Job::Requests(requests, _) | Job::Segments(requests, _) => {
                *connections = self.connect()?;
                let own = connections.clone();
                Box::new(move || requests::run(requests, &own, live))
            }
            Job::Churn(churn) => {
                let target = self.target();
                Box::new(move || churn::run(churn, target, live))
            }
            Job::Handshakes(handshakes) => {
                let target = self.target();
                let ready = self.guarded(Phase::Connecting, None, || {
                    handshakes::prepare(handshakes, target)
                })?;
                Box::new(move || handshakes::run(handshakes, &ready, live))
            }
            Job::Datagrams(_) => {
                return Err(Failure::new(
                    "the perf protocol has no datagrams: measure them without `client`",
                ));
            }
        })
    }

    fn rates(&self, jobs: &[Job], plot: Option<File>) -> Result<()> {
        let (mut rows, mut intervals) = (Vec::new(), Vec::new());
        let mut closed = None;
        for unsettled in jobs {
            let job = &unsettled.settle(closed, self.args.work.connections());
            let live = Arc::default();
            let lanes = [Lane {
                direction: None,
                counter: Arc::clone(&live),
            }];
            let title = format!("{}, {}", self.args.server, job.name());
            let mut connections = Vec::new();
            let work = self.prepare(job, &live, &mut connections)?;
            let line = self.line(title, job.unit(), &lanes, job.name());
            let before = Reading::of(&self.endpoint);
            let done = self.guarded(Phase::Working, Some(line.printer()), work);
            let ended = done.as_ref().ok().and_then(|done| done.ended);
            let parts = line.finish(ended).into_iter();
            intervals.extend(parts.map(|figures| Interval {
                round: None,
                contender: None,
                workload: Some(unsettled.workload()),
                connections: None,
                mode: job.mode(),
                figures,
            }));
            let done = done.inspect_err(|_| keep(&intervals))?;
            let volume = Volume::Operations(done.count());
            let sample = before.until_now(&self.endpoint, volume);
            self.tell_connections(&connections);
            if done.count() == 0 {
                break;
            }
            let cpu_us = sample.cpu.as_secs_f64() * 1e6;
            let tables = Tables::client(&sample, self.ticker.rates());
            let mut figures = Figures::new(unsettled, rows::SQUALL, &done, None, cpu_us, tables);
            figures.row.connections = unsettled.connections(self.args.work.connections());
            figures.target_per_s = job.target_per_s();
            closed = closed.or(figures.row.per_s);
            rows.push(figures);
        }
        if rows.is_empty() {
            return Err(Failure::new("interrupted before anything was measured"));
        }
        let setup = Setup {
            what: jobs.iter().map(Job::describe).collect(),
            where_to: format!("{} ({})", self.args.server, self.address),
            options: self.args.options.to_string(),
            controls: Vec::new(),
            interrupted: interrupt::raised(),
        };
        let report = OperationsReport::new(rows, intervals, setup);
        report::tell(&report, &self.args.output, plot)
    }
}

/// Keeps the intervals before a failure.
fn keep<T: serde::Serialize>(intervals: &[T]) {
    if !intervals.is_empty() {
        output::keep("intervals", &intervals);
    }
}

/// The result of a bulk transfer, as seen by one end.
#[derive(serde::Serialize)]
struct ClientReport<'a> {
    direction: &'static str,
    /// In all directions together.
    bytes: u64,
    bytes_received: u64,
    bytes_sent: u64,
    seconds: f64,
    gbit_per_s: f64,
    client_cpu_s_per_gb: f64,
    /// Smoothed round-trip time of an upload, sampled over time.
    rtt_us: Option<Percentiles>,
    first_byte_us: Option<Percentiles>,
    interrupted: bool,
    stages: Option<Table>,
    /// With `--interval`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    intervals: Vec<live::Interval>,
    #[serde(skip)]
    remarks: String,
    #[serde(skip)]
    args: &'a Client,
}

impl<'a> ClientReport<'a> {
    fn new(
        args: &'a Client,
        load: &Load,
        transfers: &[Transfer],
        sample: &Sample,
        rates: Rates,
    ) -> Self {
        let bytes: u64 = transfers.iter().map(|one| one.bytes).sum();
        let seconds = quic::span(transfers).as_secs_f64();
        let stages = Table::new(sample, rates);
        let remarks = stages.as_ref().map_or_else(String::new, |table| {
            stages::remarks(
                rates.core_ghz,
                rates.clocks,
                &[table],
                table.overhead_percent(),
            )
        });
        Self {
            direction: load.flow.name(),
            bytes,
            bytes_received: quic::bytes(transfers, Direction::Down),
            bytes_sent: quic::bytes(transfers, Direction::Up),
            seconds,
            gbit_per_s: bytes as f64 * 8.0 / seconds / 1e9,
            client_cpu_s_per_gb: sample.cpu.as_secs_f64() / (bytes as f64 / 1e9),
            rtt_us: load.gauges.rtt.read().percentiles(),
            first_byte_us: load.gauges.first_byte.read().percentiles(),
            interrupted: interrupt::raised(),
            stages,
            intervals: Vec::new(),
            remarks: format!("({})\n{remarks}", args.options),
            args,
        }
    }
}

impl Report for ClientReport<'_> {
    fn text(&self, width: usize) -> String {
        let mut moved = Vec::new();
        for (what, bytes, other) in [
            ("received", self.bytes_received, Flow::Up),
            ("sent", self.bytes_sent, Flow::Down),
        ] {
            if self.direction != other.name() {
                let (seconds, rate) = (self.seconds, bytes as f64 * 8.0 / self.seconds / 1e9);
                moved.push(format!(
                    "{what} {bytes} bytes in {seconds:.3} s: {rate:.3} Gbit/s"
                ));
            }
        }
        let mut text = format!(
            "{}, {:.3} CPU-seconds per GB at this end\n",
            moved.join(", "),
            self.client_cpu_s_per_gb
        );
        for (name, times) in [
            ("smoothed round-trip time", &self.rtt_us),
            ("time to the first byte", &self.first_byte_us),
        ] {
            if let Some(times) = times {
                text += &format!("{name}: {times}\n");
            }
        }
        if self.interrupted {
            text += "interrupted: the figures cover the time until then\n";
        }
        if let Some(table) = &self.stages {
            text.push('\n');
            text += &stages::text("by stage", &[("client", table)], width);
            text += &self.remarks;
        }
        text
    }

    fn rows(&self) -> Vec<Row> {
        let work = &self.args.work;
        let endless =
            self.direction == Flow::Down.name() && work.bytes.or(work.download_size).is_none();
        vec![Row {
            workload: rows::bulk(
                work.connections(),
                work.streams,
                work.bidir,
                endless,
                work.bitrate.is_some(),
            ),
            contender: rows::SQUALL,
            gbit_per_s: Some(self.gbit_per_s),
            per_s: None,
            server_cpu: None,
            client_cpu: Some(self.client_cpu_s_per_gb),
            cpu_unit: rows::PER_GB,
            latency_us: None,
            connections: Some(work.connections()),
            mode: None,
            size: None,
            datagrams_per_message: None,
            gbit_limit: work.bitrate.map(rows::gbit),
        }]
    }

    fn chart(&self) -> Bars {
        let shares = self.stages.iter().flat_map(Table::shares);
        let parts =
            shares.map(|(stage, percent)| (stage, self.client_cpu_s_per_gb * percent / 100.0));
        Bars {
            title: "squall perf client: CPU by stage".to_owned(),
            subtitle: format!(
                "{} of {}, {}",
                self.direction, self.args.server, self.args.options
            ),
            unit: "CPU-seconds per GB delivered",
            bars: vec![Bar {
                label: "client".to_owned(),
                parts: parts.collect(),
            }],
        }
    }
}

/// A socket for one address family, the watch over its handshakes, and the configurations of that
/// many connections if they differ.
fn bind(
    args: &Client,
    address: SocketAddr,
    connections: usize,
) -> Result<(Endpoint, Arc<Watch>, Vec<squall::ClientConfig>)> {
    let any: SocketAddr = if address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let make = |provider| trust::client_config(args.insecure, args.cacert.as_deref(), provider);
    let (clients, watch) = client_tls(&args.options, connections, make)?;
    let transport = args.options.transport(args.work.open_streams());
    let mix = endpoint::mix(&clients, &transport);
    let tls = Arc::clone(&clients[0]);
    let mut builder = (args.options)
        .builder(args.bind.unwrap_or(any))
        .client(squall::ClientConfig::new(tls).transport(transport));
    builder.cpus = super::these_cores(&args.cpu)?;
    let endpoint = builder
        .bind()
        .map_err(context("cannot open a UDP socket"))?;
    Ok((endpoint, watch, mix))
}
