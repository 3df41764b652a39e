//! Requests and handshakes over loopback: squall at both ends, kinds of handshakes in turns.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::Serialize;

use super::args::Local;
use super::certificate::Certificate;
use super::cpu::Ksoftirqd;
use super::handshakes::Handshakes;
use super::live::{Counter, Live, Unit};
use super::meter::{Ticker, Used};
use super::options::Suite;
use super::quic::Quic;
use super::report::Stages;
use super::requests::{Done, Requests};
use super::rows::{self, PER_HANDSHAKE, PER_REQUEST, Row};
use super::stages::{self, Rates, Sample, Table};
use super::{cores, rotated};
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
                "requests of {} bytes, responses of {} bytes, {} at a time on a connection",
                one.up, one.down, one.in_flight
            ),
            Self::Handshakes(one) => format!("{}, {} at a time", one.kind.name(), one.in_flight),
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
            remarks: stages::remarks(rates.core_ghz, sample.stamps, rates.ns_per_stamp, overhead),
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
                contender: "squall",
                gbit_per_s: None,
                per_s: Some(count as f64 / seconds),
                server_cpu: server_cpu_us.map(each),
                client_cpu: Some(each(client_cpu_us)),
                cpu_unit: job.cpu_unit(),
                latency_us: done.latency.percentiles(),
            },
            count,
            seconds,
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
    pub(crate) interrupted: bool,
}

impl Report {
    /// All rows.
    pub(crate) fn new(rows: Vec<Figures>, setup: Setup) -> Self {
        let server = |workload| {
            let row = rows.iter().find(|one| one.row.workload == workload);
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
            unit: "microseconds of CPU for each",
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
            "{:<10}{:>10}{:>10}{:>10}{:>9}{:>8}{:>8}{:>8}{:>9}",
            "", "per second", "server", "client", "p50", "p90", "p99", "p99.9", "max"
        )?;
        for Figures { row, name, .. } in &self.rows {
            let mut line = format!("{name:<10}{:>10.0}", row.per_s.unwrap_or_default());
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
            "(server, client: CPU-microseconds for each; p50 to max: microseconds from begin to end)"
        )?;
        if let Some(ratio) = self.resumed_to_full {
            writeln!(
                f,
                "A resumed handshake costs the server {ratio:.2} times a full one."
            )?;
        }
        if self.setup.interrupted {
            writeln!(f, "Interrupted: these are the figures up to then.")?;
        }
        for one in &self.rows {
            if let Some(stages) = &one.stages {
                write!(f, "\n{}", stages.text(one.name))?;
            }
        }
        Ok(())
    }
}

/// Runs the jobs in rounds and prints what they took.
///
/// # Errors
/// A connection failed, or the machine refused something.
pub(crate) fn measure(args: &Local, jobs: &[Job]) -> Result<()> {
    let plot = args.output.plot.as_deref().map(File::create).transpose()?;
    let cores = cores(args.cpu, args.options.workers, &crate::sys::allowed_cores())?;
    let mut options = args.options.clone();
    options.suite.get_or_insert(Suite::Aes128);
    let quic = Quic::new(&Certificate::generate()?, &options)?;
    let mut setup = Setup {
        what: jobs.iter().map(Job::describe).collect(),
        where_to: format!("loopback, {cores}, {} connection(s)", args.work.connections),
        options: options.to_string(),
        interrupted: false,
    };
    if matches!(jobs.first(), Some(Job::Handshakes(_))) {
        setup.where_to = format!("loopback, {cores}");
    }
    if args.output.is_text() {
        say(&format!(
            "{}\n{}\n{}, {} s in {} rounds\n",
            setup.where_to,
            setup.what.join("\n"),
            setup.options,
            args.work.time.as_secs_f64(),
            args.rounds
        ));
    }
    let ksoftirqd = Ksoftirqd::find(cores);
    let ticker = Ticker::start();
    let mut sums: Vec<(Done, Used)> = jobs.iter().map(|_| Default::default()).collect();
    'rounds: for index in 0..args.rounds {
        let order: Vec<usize> = rotated(&(0..jobs.len()).collect::<Vec<_>>(), index);
        for at in order {
            let job = jobs[at].part(args.rounds);
            let live: Arc<Counter> = Arc::default();
            let title = format!("round {} of {}, {}", index + 1, args.rounds, job.name());
            let _line = Live::start(title, job.unit(), &live);
            let before = ksoftirqd.now();
            let (done, mut used) = match &job {
                Job::Requests(one) => quic.requests(one, args.work.connections, cores, &live)?,
                Job::Handshakes(one) => quic.handshakes(one, cores, &live)?,
            };
            let soft = ksoftirqd.now() - before;
            used.soft[0] += soft.server;
            used.soft[1] += soft.client;
            sums[at].0.add(&done);
            sums[at].1.add(&used);
            if interrupt::raised() {
                break 'rounds;
            }
        }
    }
    let rates = ticker.rates();
    let rows = jobs
        .iter()
        .zip(&sums)
        .filter(|(_, (done, _))| done.count() > 0);
    let rows: Vec<Figures> = rows
        .map(|(job, (done, used))| {
            let [server, client] = [0, 1].map(|end| used.cpu(end).as_secs_f64() * 1e6);
            Figures::new(
                job,
                done,
                Some(server),
                client,
                used.tables(rates).map(Box::new).map(Tables::Both),
            )
        })
        .collect();
    if rows.is_empty() {
        return Err(Failure::new("interrupted before anything was measured"));
    }
    setup.interrupted = interrupt::raised();
    Report::new(rows, setup).tell(&args.output, plot)
}
