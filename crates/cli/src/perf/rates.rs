//! Requests and handshakes over loopback: squall at both ends, the controls beside it, all in turns.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::args::{Contender, Local};
use super::certificate::Certificate;
use super::control_rates::{self, TlsHandshakes};
use super::cpu::{Cores, Ksoftirqd};
use super::handshakes::{Handshakes, Kind};
use super::live::{Counter, Live, Unit};
use super::meter::{Ticker, Used};
use super::options::{Options, Suite};
use super::quic::Quic;
use super::report::{Stages, median};
use super::requests::{Done, Requests};
use super::rows::{self, PER_HANDSHAKE, PER_REQUEST, Row, SQUALL};
use super::stages::{self, Rates, Sample, Table};
use super::tcp_requests::depth;
use super::{control, cores, rotated, tcp, tls};
use crate::error::{Failure, Result};
use crate::interrupt;
use crate::output::{print_json, say};
use crate::svg::{Bar, Bars, File};

/// What is counted: requests, or handshakes of a kind.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    Requests(Requests),
    Handshakes(Handshakes),
}

impl Job {
    /// The workload's name in rows.
    pub(crate) fn workload(&self) -> &'static str {
        match self {
            Self::Requests(_) => "W3",
            Self::Handshakes(handshakes) => handshakes.kind.workload(),
        }
    }

    /// The name for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Requests(_) => "requests",
            Self::Handshakes(handshakes) => handshakes.kind.name(),
        }
    }

    /// What its counter counts.
    pub(crate) fn unit(&self) -> Unit {
        match self {
            Self::Requests(_) => Unit::Requests,
            Self::Handshakes(_) => Unit::Handshakes,
        }
    }

    fn cpu_unit(&self) -> &'static str {
        match self {
            Self::Requests(_) => PER_REQUEST,
            Self::Handshakes(_) => PER_HANDSHAKE,
        }
    }

    /// What it is, for the heading.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Requests(one) => format!(
                "requests of {} bytes, responses of {} bytes, {} at a time per connection",
                one.up, one.down, one.in_flight
            ),
            Self::Handshakes(one) => format!("{}, {} at a time", one.kind.name(), one.in_flight),
        }
    }

    /// Whether a contender has such a thing to be measured.
    fn suits(&self, contender: Contender) -> bool {
        match (self, contender) {
            (Self::Requests(_), _) | (_, Contender::Quic) => true,
            (Self::Handshakes(one), Contender::TlsTcp) => one.kind != Kind::Early,
            (Self::Handshakes(_), Contender::Tcp) => false,
        }
    }

    /// The same for a part of its time.
    fn part(&self, parts: usize) -> Self {
        let mut part = self.clone();
        let time = match &mut part {
            Self::Requests(one) => &mut one.time,
            Self::Handshakes(one) => &mut one.time,
        };
        *time /= u32::try_from(parts).unwrap_or(u32::MAX);
        part
    }
}

/// One job's figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    #[serde(flatten)]
    pub(crate) row: Row,
    pub(crate) count: u64,
    pub(crate) seconds: f64,
    /// squall's CPU, both ends', against a control's: the median of the rounds' ratios.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_tls_tcp: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_tcp: Option<f64>,
    pub(crate) stages: Option<Tables>,
    #[serde(skip)]
    pub(crate) name: &'static str,
}

/// The cost by stage, as far as it can be seen from here.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Tables {
    /// Both ends are in this process.
    Both(Box<Stages>),
    /// The server is another one.
    Client {
        client: Box<Table>,
        #[serde(skip)]
        remarks: String,
    },
}

impl Tables {
    /// The client's alone; `None` where nothing was moved.
    pub(crate) fn client(sample: &Sample, rates: Rates) -> Option<Self> {
        let client = Table::new(sample, rates)?;
        let overhead = client.overhead.percent;
        Some(Self::Client {
            remarks: stages::remarks(rates.core_ghz, rates.clocks, &[&client], overhead),
            client: Box::new(client),
        })
    }

    /// The tables for people.
    fn text(&self, title: &str) -> String {
        match self {
            Self::Both(stages) => stages.table(title, "server", "client"),
            Self::Client { client, remarks } => {
                stages::text(title, &[("client", client)]) + remarks
            }
        }
    }

    /// Each end's table, with its name.
    fn ends(&self) -> Vec<(&'static str, &Table)> {
        match self {
            Self::Both(stages) => vec![("server", &stages.server), ("client", &stages.client)],
            Self::Client { client, .. } => vec![("client", client)],
        }
    }
}

impl Figures {
    /// The figures of what was done. CPU in microseconds of both ends, all in all.
    pub(crate) fn new(
        job: &Job,
        contender: &'static str,
        done: &Done,
        server_cpu_us: Option<f64>,
        client_cpu_us: f64,
        stages: Option<Tables>,
    ) -> Self {
        let (count, seconds) = (done.count(), done.elapsed.as_secs_f64());
        let each = |us: f64| us / (count.max(1)) as f64;
        Self {
            row: Row {
                workload: job.workload(),
                contender,
                gbit_per_s: None,
                per_s: Some(count as f64 / seconds),
                server_cpu: server_cpu_us.map(each),
                client_cpu: Some(each(client_cpu_us)),
                cpu_unit: job.cpu_unit(),
                latency_us: done.latency.percentiles(),
            },
            count,
            seconds,
            ratio_to_tls_tcp: None,
            ratio_to_tcp: None,
            stages,
            name: job.name(),
        }
    }
}

/// Everything that is printed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Figures>,
    /// CPU of the server for a resumed handshake against a full one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumed_to_full: Option<f64>,
    #[serde(flatten)]
    pub(crate) setup: Setup,
}

/// What was measured, and on what.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    pub(crate) what: Vec<String>,
    pub(crate) where_to: String,
    pub(crate) options: String,
    /// What the controls are, and what they do otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) controls: Vec<String>,
    pub(crate) interrupted: bool,
}

impl Report {
    /// All rows.
    pub(crate) fn new(rows: Vec<Figures>, setup: Setup) -> Self {
        let server = |workload| {
            let row = (rows.iter())
                .find(|one| (one.row.workload, one.row.contender) == (workload, SQUALL));
            row.and_then(|one| one.row.server_cpu)
        };
        let resumed_to_full = server("W4-resumed").zip(server("W4")).map(|(a, b)| a / b);
        Self {
            rows,
            resumed_to_full,
            setup,
        }
    }

    fn chart(&self) -> Bars {
        let bars = self.rows.iter().flat_map(|one| {
            let ends = one.stages.iter().flat_map(Tables::ends);
            ends.map(|(end, table)| {
                let parts = table.rows.iter();
                let parts = parts.map(|row| (row.stage, row.us_per_operation.unwrap_or_default()));
                Bar {
                    label: format!("{}, {end}", one.name),
                    parts: parts.collect(),
                }
            })
        });
        Bars {
            title: "squall perf: CPU by stage".to_owned(),
            subtitle: format!("{}; {}", self.setup.what.join("; "), self.setup.options),
            unit: "microseconds of CPU per operation",
            bars: bars.collect(),
        }
    }

    /// Prints it in the form that was asked for.
    ///
    /// # Errors
    /// The file of the plot cannot be written.
    pub(crate) fn tell(&self, output: &super::args::Output, plot: Option<File>) -> Result<()> {
        if let Some(plot) = plot {
            plot.write(&self.chart().svg())?;
        }
        if output.json {
            return print_json(self);
        }
        if output.csv {
            let rows: Vec<Row> = self.rows.iter().map(|one| one.row.clone()).collect();
            say(&rows::csv(&rows));
        } else {
            say(self.to_string().trim_end());
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10}{:<8}{:>10}{:>10}{:>10}{:>9}{:>8}{:>8}{:>8}{:>9}",
            "", "", "per second", "server", "client", "p50", "p90", "p99", "p99.9", "max"
        )?;
        for Figures { row, name, .. } in &self.rows {
            let per_s = row.per_s.unwrap_or_default();
            let mut line = format!("{name:<10}{:<8}{per_s:>10.0}", row.contender);
            for cpu in [row.server_cpu, row.client_cpu] {
                let cpu = cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.2}"));
                write!(line, "{cpu:>10}")?;
            }
            let times = row.latency_us.map_or([0.0; 5], |latency| latency.all());
            for (time, width) in times.into_iter().zip([9, 8, 8, 8, 9]) {
                write!(line, "{time:>width$.0}")?;
            }
            writeln!(f, "{line}")?;
        }
        writeln!(
            f,
            "(server, client: CPU-microseconds per operation; p50 to max: microseconds from start to end)"
        )?;
        for one in &self.rows {
            for (control, ratio) in [
                ("TLS over TCP", one.ratio_to_tls_tcp),
                ("plain TCP", one.ratio_to_tcp),
            ] {
                if let Some(ratio) = ratio {
                    let name = one.name;
                    writeln!(
                        f,
                        "{name}: QUIC costs {ratio:.2} times the CPU of {control}."
                    )?;
                }
            }
        }
        if let Some(ratio) = self.resumed_to_full {
            writeln!(
                f,
                "A resumed handshake costs the server {ratio:.2} times a full one."
            )?;
        }
        if self.setup.interrupted {
            writeln!(f, "Interrupted: the figures cover the time before.")?;
        }
        for one in &self.rows {
            if let Some(stages) = &one.stages {
                write!(f, "\n{}", stages.text(one.name))?;
            }
        }
        Ok(())
    }
}

/// What a contender did in all rounds.
struct Entry<'a> {
    job: &'a Job,
    contender: Contender,
    done: Done,
    /// The server's and the client's, `ksoftirqd` included.
    cpu: [Duration; 2],
    /// CPU for each, both ends', by round.
    rounds: Vec<(usize, f64)>,
    /// squall's only.
    used: Option<Used>,
}

impl Entry<'_> {
    /// CPU against a control's: the median of the rounds' ratios.
    fn ratio(&self, all: &[Self], control: Contender) -> Option<f64> {
        let control = (all.iter())
            .find(|one| one.contender == control && one.job.workload() == self.job.workload())?;
        let ratios = self.rounds.iter().filter_map(|(index, own)| {
            let (_, other) = control.rounds.iter().find(|(at, _)| at == index)?;
            Some(own / other).filter(|ratio| ratio.is_finite())
        });
        median(ratios.collect())
    }

    fn figures(&self, all: &[Self], rates: Rates) -> Figures {
        let [server, client] = self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6);
        let tables = self.used.as_ref().and_then(|used| used.tables(rates));
        let tables = tables.map(Box::new).map(Tables::Both);
        let name = match self.contender {
            Contender::Quic => SQUALL,
            control => control.name(),
        };
        let mut figures = Figures::new(self.job, name, &self.done, Some(server), client, tables);
        if self.contender == Contender::Quic {
            figures.ratio_to_tls_tcp = self.ratio(all, Contender::TlsTcp);
            figures.ratio_to_tcp = self.ratio(all, Contender::Tcp);
        }
        figures
    }
}

/// What all rounds have in common.
struct Bench {
    connections: usize,
    cores: Cores,
    quic: Quic,
    /// The control of requests, where it takes part, with the crypto library that it uses.
    tls: Option<(Arc<tls::Tls>, &'static str)>,
    tls_handshakes: TlsHandshakes,
}

impl Bench {
    fn new(args: &Local, options: &Options, jobs: &[Job]) -> Result<Self> {
        let certificate = Certificate::generate()?;
        let suite = options.suite.unwrap_or(Suite::Aes128);
        let is_requests = matches!(jobs.first(), Some(Job::Requests(_)));
        let tls = if is_requests && args.contenders().contains(&Contender::TlsTcp) {
            let choice = tls::choose(&certificate, suite)?;
            Some((Arc::new(choice.tls), choice.name))
        } else {
            None
        };
        Ok(Self {
            connections: args.work.connections,
            cores: cores(args.cpu, options.workers, &crate::sys::allowed_cores())?,
            quic: Quic::new(&certificate, options)?,
            tls,
            tls_handshakes: TlsHandshakes::new(&certificate, options)?,
        })
    }

    /// A part of a job; what squall used for it, or what a control's two ends did.
    fn run_one(
        &self,
        job: &Job,
        contender: Contender,
        live: &Arc<Counter>,
    ) -> Result<(Done, [Duration; 2], Option<Used>)> {
        let (connections, cores) = (self.connections, self.cores);
        let of_control = |(done, cpu)| (done, cpu, None);
        let (done, used) = match (job, contender, &self.tls) {
            (Job::Requests(one), Contender::Quic, _) => {
                self.quic.requests(one, connections, cores, live)?
            }
            (Job::Handshakes(one), Contender::Quic, _) => self.quic.handshakes(one, cores, live)?,
            (Job::Requests(one), Contender::TlsTcp, Some((tls, _))) => {
                return control_rates::requests(tls, one, connections, cores, live).map(of_control);
            }
            (Job::Requests(one), Contender::Tcp, _) => {
                let plain = Arc::new(tcp::Plain);
                return control_rates::requests(&plain, one, connections, cores, live)
                    .map(of_control);
            }
            (Job::Handshakes(one), Contender::TlsTcp, _) => {
                return self.tls_handshakes.run(one, cores, live).map(of_control);
            }
            (Job::Requests(_), Contender::TlsTcp, None)
            | (Job::Handshakes(_), Contender::Tcp, _) => {
                return Err(Failure::new(format!(
                    "{} was not prepared",
                    contender.name()
                )));
            }
        };
        Ok((done, [used.ends[0].cpu, used.ends[1].cpu], Some(used)))
    }

    /// What the controls are, in lines.
    fn describe(&self, options: &Options, entries: &[Entry<'_>]) -> Vec<String> {
        let mut lines = Vec::new();
        let has = |contender| entries.iter().any(|one| one.contender == contender);
        if !has(Contender::TlsTcp) && !has(Contender::Tcp) {
            return lines;
        }
        match entries.first().map(|one| one.job) {
            Some(Job::Requests(one)) => {
                let mut line = format!(
                    "controls: {} TCP connection(s) with pipelined requests",
                    self.connections
                );
                let depth = depth(one.up, one.in_flight);
                if depth < one.in_flight {
                    let _ = write!(line, ", {depth} at a time, the most that blocking sockets hold");
                }
                lines.push(line);
                if let Some((_, name)) = &self.tls {
                    lines.push(format!("tls_tcp uses {name}, the faster one here"));
                }
            }
            _ => lines.push(
                "control: TLS over TCP with squall's crypto library and groups, one thread per concurrent handshake; \
                 none for 0rtt"
                    .to_owned(),
            ),
        }
        if let Some(name) = control::congestion_control() {
            lines.push(format!("TCP's congestion control: {name}"));
        }
        let only_quic = options.of_quic_alone();
        if !only_quic.is_empty() {
            lines.push(format!("for QUIC only: {}", only_quic.join(", ")));
        }
        lines
    }
}

/// Runs the jobs in rounds, each with all contenders that have such a thing, and prints what they took.
///
/// # Errors
/// A connection failed, or the machine refused something.
pub(crate) fn measure(args: &Local, jobs: &[Job]) -> Result<()> {
    let plot = args.output.plot.as_deref().map(File::create).transpose()?;
    let mut options = args.options.clone();
    options.suite.get_or_insert(Suite::Aes128);
    let mut entries: Vec<Entry<'_>> = jobs
        .iter()
        .flat_map(|job| args.contenders().into_iter().map(move |one| (job, one)))
        .filter(|(job, contender)| job.suits(*contender))
        .map(|(job, contender)| Entry {
            job,
            contender,
            done: Done::default(),
            cpu: [Duration::ZERO; 2],
            rounds: Vec::new(),
            used: None,
        })
        .collect();
    if entries.is_empty() {
        return Err(Failure::new(
            "--only leaves nothing to measure: handshakes are not measured over plain TCP, nor 0rtt over TLS over TCP",
        ));
    }
    let bench = Bench::new(args, &options, jobs)?;
    let cores = bench.cores;
    let mut setup = Setup {
        what: jobs.iter().map(Job::describe).collect(),
        where_to: format!("loopback, {cores}, {} connection(s)", args.work.connections),
        options: options.to_string(),
        controls: bench.describe(&options, &entries),
        interrupted: false,
    };
    if matches!(jobs.first(), Some(Job::Handshakes(_))) {
        setup.where_to = format!("loopback, {cores}");
    }
    if args.output.is_text() {
        let controls: String = (setup.controls.iter())
            .map(|line| format!("{line}\n"))
            .collect();
        say(&format!(
            "{}\n{}\n{}, {} s each in {} rounds\n{controls}",
            setup.where_to,
            setup.what.join("\n"),
            setup.options,
            args.work.time.as_secs_f64(),
            args.rounds
        ));
    }
    let ksoftirqd = Ksoftirqd::find(cores);
    let ticker = Ticker::start();
    'rounds: for index in 0..args.rounds {
        let order: Vec<usize> = rotated(&(0..entries.len()).collect::<Vec<_>>(), index);
        for at in order {
            let entry = &mut entries[at];
            let job = entry.job.part(args.rounds);
            let live: Arc<Counter> = Arc::default();
            let title = format!(
                "round {} of {}, {}, {}",
                index + 1,
                args.rounds,
                job.name(),
                entry.contender.name()
            );
            let _line = Live::start(title, job.unit(), &live);
            let before = ksoftirqd.now();
            let (done, mut cpu, used) = bench.run_one(&job, entry.contender, &live)?;
            let soft = ksoftirqd.now() - before;
            let soft = [soft.server, soft.client];
            if let Some(used) = used {
                entry.used.get_or_insert_default().add(&used);
            }
            for (end, soft) in soft.into_iter().enumerate() {
                cpu[end] += soft;
                entry.cpu[end] += cpu[end];
            }
            let both = (cpu[0] + cpu[1]).as_secs_f64();
            entry.rounds.push((index, both / done.count() as f64));
            entry.done.add(&done);
            if interrupt::raised() {
                break 'rounds;
            }
        }
    }
    let rates = ticker.rates();
    let rows: Vec<Figures> = (entries.iter())
        .filter(|entry| entry.done.count() > 0)
        .map(|entry| entry.figures(&entries, rates))
        .collect();
    if rows.is_empty() {
        return Err(Failure::new("interrupted before anything was measured"));
    }
    setup.interrupted = interrupt::raised();
    Report::new(rows, setup).tell(&args.output, plot)
}
