//! Counted work over loopback: squall at both ends and the controls, alternating.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use squall_yard::certificate::Certificate;
use squall_yard::chart::File;
use squall_yard::controls::operations as control;
use squall_yard::controls::requests::depth;
use squall_yard::controls::tls_handshakes::TlsHandshakes;
use squall_yard::controls::{bulk, tcp, tls};
use squall_yard::cpu::{Cores, Ksoftirqd};
use squall_yard::error::{Failure, Result};
use squall_yard::live::{Counter, Lane, Live};
use squall_yard::meter::{Ticker, Used};
use squall_yard::options::Options;
use squall_yard::outcome::Done;
use squall_yard::rows::SQUALL;
use squall_yard::stages::Rates;
use squall_yard::stats::median;
use squall_yard::suites::Suite;
use squall_yard::{interrupt, layout, sys};

use super::args::Local;
use super::contender::{Contender, check_threads};
use super::job::Job;
use super::operations::{Figures, OperationsReport, Setup, Tables};
use super::quic::Quic;
use super::report::{self, Interval};
use super::{cores, datagrams, rotated};
use crate::output::say;

/// A contender's results in all rounds.
struct Entry<'a> {
    job: &'a Job,
    connections: usize,
    contender: Contender,
    done: Done,
    /// The server's and the client's, `ksoftirqd` included.
    cpu: [Duration; 2],
    /// CPU per operation, both ends, by round.
    rounds: Vec<(usize, f64)>,
    /// squall's only.
    used: Option<Used>,
    /// The rate of the last round, if there is one.
    target_per_s: Option<f64>,
}

impl Entry<'_> {
    /// Whether another entry is for the same job.
    fn is_like(&self, other: &Self) -> bool {
        std::ptr::eq(self.job, other.job)
    }

    /// CPU relative to a control.
    fn to_control(&self, all: &[Self], control: Contender) -> Option<f64> {
        let same = |one: &&Self| {
            one.is_like(self) && (one.connections, one.contender) == (self.connections, control)
        };
        self.ratio(all.iter().find(same)?)
    }

    /// CPU relative to the fewest connections.
    fn to_fewest(&self, all: &[Self]) -> Option<f64> {
        let same = (all.iter()).filter(|one| one.is_like(self) && one.contender == self.contender);
        let fewest = same.min_by_key(|one| one.connections)?;
        (fewest.connections < self.connections).then(|| self.ratio(fewest))?
    }

    /// CPU relative to another entry: the median of the rounds' ratios.
    fn ratio(&self, control: &Self) -> Option<f64> {
        let ratios = self.rounds.iter().filter_map(|(index, own)| {
            let (_, other) = control.rounds.iter().find(|(at, _)| at == index)?;
            Some(own / other).filter(|ratio| ratio.is_finite())
        });
        median(ratios.collect())
    }

    /// Adds a round.
    fn add(&mut self, index: usize, done: &Done, cpu: [Duration; 2], used: Option<&Used>) {
        if let Some(used) = used {
            self.used.get_or_insert_default().add(used);
        }
        for (sum, more) in self.cpu.iter_mut().zip(cpu) {
            *sum += more;
        }
        let both = (cpu[0] + cpu[1]).as_secs_f64();
        self.rounds.push((index, both / done.count() as f64));
        self.done.add(done);
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
        figures.target_per_s = self.target_per_s;
        figures.row.connections = self.job.connections(self.connections);
        figures.ratio_to_fewest = self.to_fewest(all);
        if all.iter().any(|one| one.connections != self.connections) {
            figures.name = format!("{} -c {}", figures.name, self.connections);
        }
        if let Some(used) = &self.used {
            figures.row.datagrams_per_message = used.server_sent.datagrams_per_message();
        }
        if self.contender == Contender::Quic {
            figures.ratio_to_tls_tcp = self.to_control(all, Contender::TlsTcp);
            figures.ratio_to_tcp = self.to_control(all, Contender::Tcp);
        }
        figures
    }
}

/// State shared by all rounds.
struct Bench {
    loopback: IpAddr,
    cores: Cores,
    quic: Quic,
    /// The control of requests, if it takes part, with the crypto library that it uses.
    tls: Option<(Arc<tls::Tls>, &'static str)>,
    tls_handshakes: TlsHandshakes,
}

impl Bench {
    fn new(args: &Local, options: &Options, jobs: &[Job]) -> Result<Self> {
        let certificate = Certificate::generate()?;
        let suites = options.suite.clone().unwrap_or(Suite::Aes128.into());
        // With several numbers, each uses a part of the connections of the largest.
        let most = args.work.most_connections();
        let mut connections = most;
        for job in jobs {
            connections = job.at_a_time(most, Some(&suites))?;
            if matches!(job, Job::Handshakes(_) | Job::Churn(_)) {
                check_threads(connections, &args.contenders())?;
            }
        }
        let is_requests = matches!(jobs.first(), Some(Job::Requests(..) | Job::Segments(..)));
        let tls = if is_requests && args.contenders().contains(&Contender::TlsTcp) {
            let choice = tls::choose_mixed(&certificate, &suites, connections)?;
            Some((Arc::new(choice.tls), choice.name))
        } else {
            None
        };
        let loopback = args.family.loopback();
        Ok(Self {
            loopback,
            cores: cores(args.cpu, options.workers, &sys::allowed_cores())?,
            quic: Quic::new(&certificate, options, connections, loopback)?,
            tls,
            tls_handshakes: TlsHandshakes::new(&certificate, options, connections)?.over(loopback),
        })
    }

    /// A part of a job; returns what squall used for it, or what a control's two ends did.
    fn run_one(
        &self,
        job: &Job,
        connections: usize,
        contender: Contender,
        live: &Arc<Counter>,
    ) -> Result<(Done, [Duration; 2], Option<Used>)> {
        let (cores, loopback) = (self.cores, self.loopback);
        let of_control = |(done, cpu)| (done, cpu, None);
        let (done, used) = match (job, contender, &self.tls) {
            (Job::Requests(one, _) | Job::Segments(one, _), Contender::Quic, _) => {
                self.quic.requests(one, connections, cores, live)?
            }
            (Job::Handshakes(one), Contender::Quic, _) => self.quic.handshakes(one, cores, live)?,
            (Job::Churn(one), Contender::Quic, _) => self.quic.churn(one, cores, live)?,
            (Job::Churn(one), Contender::TlsTcp, _) => {
                return self.tls_handshakes.churn(one, cores, live).map(of_control);
            }
            (Job::Datagrams(one), Contender::Quic, _) => {
                self.quic.datagrams(one, connections, cores, live)?
            }
            (Job::Requests(one, _) | Job::Segments(one, _), Contender::TlsTcp, Some((tls, _))) => {
                return control::requests(tls, one, connections, cores, loopback, live)
                    .map(of_control);
            }
            (Job::Requests(one, _) | Job::Segments(one, _), Contender::Tcp, _) => {
                let plain = Arc::new(tcp::Plain);
                return control::requests(&plain, one, connections, cores, loopback, live)
                    .map(of_control);
            }
            (Job::Handshakes(one), Contender::TlsTcp, _) => {
                return self.tls_handshakes.run(one, cores, live).map(of_control);
            }
            (Job::Requests(..) | Job::Segments(..), Contender::TlsTcp, None)
            | (Job::Handshakes(_) | Job::Churn(_), Contender::Tcp, _)
            | (Job::Datagrams(_), _, _) => {
                return Err(Failure::new(format!(
                    "{} was not prepared",
                    contender.name()
                )));
            }
        };
        Ok((done, [used.ends[0].cpu, used.ends[1].cpu], Some(used)))
    }

    /// The setup of the measurement.
    fn setup(&self, args: &Local, jobs: &[Job], options: &Options, entries: &[Entry<'_>]) -> Setup {
        let mut where_to = format!("loopback ({}), {}", self.loopback, self.cores);
        if !matches!(jobs.first(), Some(Job::Handshakes(_) | Job::Churn(_))) {
            let _ = write!(where_to, ", {} connection(s)", args.work.numbers());
        }
        Setup {
            what: jobs.iter().map(Job::describe).collect(),
            where_to,
            options: options.to_string(),
            controls: self.describe(options, entries),
            interrupted: false,
        }
    }

    /// The controls, in lines.
    fn describe(&self, options: &Options, entries: &[Entry<'_>]) -> Vec<String> {
        let mut lines = Vec::new();
        let has = |contender| entries.iter().any(|one| one.contender == contender);
        if !has(Contender::TlsTcp) && !has(Contender::Tcp) {
            return lines;
        }
        match entries.last().map(|one| (one.job, one.connections)) {
            Some((Job::Requests(one, _) | Job::Segments(one, _), connections)) => {
                let how = match control::is_scattered(one, connections) {
                    true => "in one event loop at each end",
                    false if one.in_flight == 1 => "a thread at each end",
                    false => "with pipelined requests",
                };
                let mut line = format!("controls: {connections} TCP connection(s), {how}");
                let depth = depth(one.up, one.in_flight);
                if depth < one.in_flight {
                    let _ = write!(line, ", {depth} at a time, the most that blocking sockets hold");
                }
                lines.push(line);
                if let Some((_, name)) = &self.tls {
                    lines.push(format!("tls_tcp uses {name}, the faster one here"));
                }
            }
            Some((Job::Churn(_), _)) => lines.push(
                "control: TLS over TCP with squall's crypto library and groups, a thread at each end per connection"
                    .to_owned(),
            ),
            _ => lines.push(
                "control: TLS over TCP with squall's crypto library and groups, one thread per concurrent handshake; \
                 none for 0rtt"
                    .to_owned(),
            ),
        }
        if let Some(name) = bulk::congestion_control() {
            lines.push(format!("TCP's congestion control: {name}"));
        }
        let only_quic = options.of_quic_alone();
        if !only_quic.is_empty() {
            lines.push(format!("for QUIC only: {}", only_quic.join(", ")));
        }
        lines
    }
}

/// The rate that a contender has reached so far without a limit, in requests per second.
fn closed(entries: &[Entry<'_>], at: usize) -> Option<f64> {
    let open = &entries[at];
    let own = |one: &&Entry<'_>| {
        one.job.is_closed()
            && (one.connections, one.contender) == (open.connections, open.contender)
    };
    let done = &entries.iter().find(own)?.done;
    Some(done.count() as f64 / done.elapsed.as_secs_f64()).filter(|rate| rate.is_finite())
}

/// Each job with each number of connections and each suitable contender.
fn entries<'a>(args: &Local, jobs: &'a [Job]) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    for &connections in &args.work.connections {
        for job in jobs {
            let contenders = args.contenders().into_iter();
            entries.extend(
                contenders
                    .filter(|one| job.suits(*one))
                    .map(|contender| Entry {
                        job,
                        connections,
                        contender,
                        done: Done::default(),
                        cpu: [Duration::ZERO; 2],
                        rounds: Vec::new(),
                        used: None,
                        target_per_s: None,
                    }),
            );
        }
    }
    entries
}

/// One entry's part of a round.
fn turn(
    bench: &Bench,
    args: &Local,
    entries: &mut [Entry<'_>],
    at: usize,
    index: usize,
    ksoftirqd: &Ksoftirqd,
) -> Result<Vec<Interval>> {
    let entry = &entries[at];
    let (contender, connections) = (entry.contender, entry.connections);
    let job = entry.job.part(args.rounds);
    let job = job.settle(closed(entries, at), connections);
    let entry = &mut entries[at];
    let live: Arc<Counter> = Arc::default();
    let title = format!(
        "round {} of {}, {}, {}",
        index + 1,
        args.rounds,
        job.name(),
        contender.name()
    );
    let lanes = [Lane {
        direction: None,
        counter: Arc::clone(&live),
    }];
    let name = format!("{:<8}  {:<7}", job.name(), contender.name());
    let telling = report::telling(&args.work, &args.output, &name);
    let line = Live::with_intervals(title, job.unit(), &lanes, telling);
    let before = ksoftirqd.now();
    let (done, mut cpu, used) = bench.run_one(&job, connections, contender, &live)?;
    let parts = line.finish(done.ended).into_iter();
    let soft = ksoftirqd.now() - before;
    for (end, soft) in [soft.server, soft.client].into_iter().enumerate() {
        cpu[end] += soft;
    }
    entry.target_per_s = job.target_per_s();
    entry.add(index, &done, cpu, used.as_ref());
    let intervals = parts.map(|figures| Interval {
        round: Some(index),
        contender: Some(contender.name()),
        workload: Some(entry.job.workload()),
        connections: args.work.has_several_numbers().then_some(connections),
        mode: job.mode(),
        figures,
    });
    Ok(intervals.collect())
}

/// Describes the measurement before the first round.
fn announce(args: &Local, setup: &Setup) {
    let controls: String = (setup.controls.iter())
        .map(|line| format!("{line}\n"))
        .collect();
    let heading = format!(
        "{}\n{}\n{}, {} s each in {} rounds\n{controls}",
        setup.where_to,
        setup.what.join("\n"),
        setup.options,
        args.work.time.as_secs_f64(),
        args.rounds
    );
    say(&layout::wrap(&heading, layout::width()));
}

/// Runs the jobs in rounds, each with all suitable contenders, and prints the results.
///
/// # Errors
/// A connection failed, or the system refused something.
pub(crate) fn measure(args: &Local, jobs: &[Job]) -> Result<()> {
    let plot = args.output.plot.as_deref().map(File::create).transpose()?;
    let mut options = args.options.clone();
    options.suite.get_or_insert(Suite::Aes128.into());
    if let Some(Job::Datagrams(one)) = jobs.first() {
        datagrams::check(one, &options)?;
        options.datagram_buffer = Some(datagrams::buffer(args.work.most_connections()));
    }
    let mut entries = entries(args, jobs);
    let idle = |one: &Contender| !jobs.iter().any(|job| job.suits(*one));
    if let (Some(job), Some(_)) = (jobs.first(), args.only.iter().find(|one| idle(one))) {
        return Err(Failure::new(job.unsuited()));
    }
    let bench = Bench::new(args, &options, jobs)?;
    let mut setup = bench.setup(args, jobs, &options, &entries);
    if args.output.is_text() {
        announce(args, &setup);
    }
    let ksoftirqd = Ksoftirqd::find(bench.cores);
    let ticker = Ticker::start();
    let mut intervals = Vec::new();
    'rounds: for index in 0..args.rounds {
        let order: Vec<usize> = rotated(&(0..entries.len()).collect::<Vec<_>>(), index);
        for at in order {
            intervals.extend(turn(&bench, args, &mut entries, at, index, &ksoftirqd)?);
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
    let report = OperationsReport::new(rows, intervals, setup);
    report::tell(&report, &args.output, plot)
}
