//! Bulk transfer: QUIC, TLS over TCP and plain TCP, the contenders taking turns.

use std::sync::Arc;

use squall_yard::certificate::Certificate;
use squall_yard::chart::File;
use squall_yard::controls::{bulk as control, tcp, tls};
use squall_yard::cpu::{Cores, Ksoftirqd};
use squall_yard::error::{Failure, Result};
use squall_yard::live::{self, Gauges, Live, Unit};
use squall_yard::meter::Ticker;
use squall_yard::outcome::Outcome;
use squall_yard::suites::{Suite, Suites};
use squall_yard::work::{Amount, Flow, Load};
use squall_yard::{interrupt, layout, source, sys};

use super::args::Local;
use super::bulk_report::{Round, Series, Setup};
use super::bulk_series::SeriesReport;
use super::contender::{Contender, check_threads};
use super::quic::Quic;
use super::report::{self, Interval};
use super::{cores, rotated};
use crate::output::{print_json, say};

/// Everything that is fixed before the first round.
pub(super) struct Plan {
    args: Local,
    flow: Flow,
    amount: Amount,
    suites: Suites,
    contenders: Vec<Contender>,
    cores: Cores,
    quic: Quic,
    tls: Option<(Arc<tls::Tls>, &'static str)>,
    providers: Vec<(&'static str, f64)>,
    congestion_control: Option<String>,
}

impl Plan {
    /// Prepares both ends of every contender.
    ///
    /// # Errors
    /// A core is not available, or a file cannot be written.
    pub(super) fn new(mut args: Local, flow: Flow, amount: Amount) -> Result<Self> {
        let cores = cores(args.cpu, args.options.workers, &sys::allowed_cores())?;
        let contenders = args.contenders();
        let certificate = Certificate::generate()?;
        let suites = args
            .options
            .suite
            .get_or_insert(Suite::Aes128.into())
            .clone();
        // With several numbers, each uses a part of the connections of the largest.
        let connections = args.work.most_connections();
        let tcp = connections * args.work.streams * flow.directions().len();
        check_threads(tcp, &contenders)?;
        if args.verify {
            args.work.one_number()?;
        }
        if args.verify && flow != Flow::Down {
            let option = if flow == Flow::Up {
                "--upload"
            } else {
                "--bidir"
            };
            return Err(Failure::new(format!(
                "--verify compares what the server sends: omit {option}"
            )));
        }
        let quic = Quic::new(
            &certificate,
            &args.options,
            connections,
            args.family.loopback(),
        )?;
        let mut plan = Self {
            args,
            flow,
            amount,
            suites,
            contenders,
            cores,
            quic,
            tls: None,
            providers: Vec::new(),
            congestion_control: None,
        };
        if plan.contenders.iter().any(|&one| one != Contender::Quic) {
            plan.congestion_control = control::congestion_control();
        }
        if plan.contenders.contains(&Contender::TlsTcp) {
            let choice = tls::choose_mixed(&certificate, &plan.suites, tcp)?;
            plan.tls = Some((Arc::new(choice.tls), choice.name));
            plan.providers = choice.measured;
        }
        Ok(plan)
    }

    /// Measures or verifies, according to the arguments.
    ///
    /// # Errors
    /// A contender failed.
    pub(super) fn run(&self) -> Result<()> {
        if self.args.verify {
            self.verify()
        } else {
            self.measure()
        }
    }

    fn load(&self, connections: usize, amount: Amount, seed: Option<u64>, gauges: Gauges) -> Load {
        Load {
            connections,
            streams: self.args.work.streams,
            flow: self.flow,
            amount,
            cores: self.cores,
            loopback: self.args.family.loopback(),
            seed,
            bitrate: self.args.work.bitrate,
            gauges,
        }
    }

    /// Runs one contender once, with a live line. Interval lines begin with the name.
    fn run_one(
        &self,
        contender: Contender,
        load: &Load,
        title: String,
        name: &str,
    ) -> Result<(Outcome, Vec<live::Interval>)> {
        let (args, lanes) = (&self.args, load.flow.lanes(&load.gauges));
        let telling = report::telling(&args.work, &args.output, name);
        let live = Live::with_intervals(title, Unit::Bytes, &lanes, telling);
        let outcome = match (contender, &self.tls) {
            (Contender::Quic, _) => self.quic.bulk(load),
            (Contender::TlsTcp, Some((tls, _))) => control::run(tls, load),
            (Contender::TlsTcp, None) => Err(Failure::new("TLS over TCP was not prepared")),
            (Contender::Tcp, _) => control::run(&Arc::new(tcp::Plain), load),
        }?;
        let intervals = live.finish(outcome.ended);
        Ok((outcome, intervals))
    }

    /// All rounds, then the report. Ctrl-C ends them early.
    fn measure(&self) -> Result<()> {
        let plot = self
            .args
            .output
            .plot
            .as_deref()
            .map(File::create)
            .transpose()?;
        if self.args.output.is_text() {
            say(&layout::wrap(&self.heading(), layout::width()));
        }
        let ksoftirqd = Ksoftirqd::find(self.cores);
        let ticker = Ticker::start();
        let numbers = self.args.work.connections.iter();
        let mut series: Vec<Series> = numbers.map(|&number| Series::new(number)).collect();
        let contenders = |at| self.contenders.iter().map(move |&one| (at, one));
        let turns: Vec<_> = (0..series.len()).flat_map(contenders).collect();
        let mut intervals = Vec::new();
        'rounds: for index in 0..self.args.rounds {
            for (at, contender) in rotated(&turns, index) {
                intervals.extend(self.turn(&mut series[at], contender, index, &ksoftirqd)?);
                if interrupt::raised() {
                    break 'rounds;
                }
            }
        }
        let (rates, setup) = (ticker.rates(), self.setup(ksoftirqd.count()));
        series.retain(|one| !one.rounds.is_empty());
        match series.as_slice() {
            [only] if !self.args.work.has_several_numbers() => {
                let mut results = only.report(rates, setup);
                results.intervals = intervals;
                report::tell(&results, &self.args.output, plot)
            }
            all => {
                let results = SeriesReport::new(all, rates, intervals, setup);
                report::tell(&results, &self.args.output, plot)
            }
        }
    }

    /// One contender's part of a round, with one number of connections.
    fn turn(
        &self,
        series: &mut Series,
        contender: Contender,
        index: usize,
        ksoftirqd: &Ksoftirqd,
    ) -> Result<Vec<Interval>> {
        let count = self.args.rounds;
        let amount = match self.amount {
            Amount::Bytes(bytes) => Amount::Bytes(bytes),
            Amount::Time(time) => Amount::Time(time / u32::try_from(count).unwrap_or(u32::MAX)),
        };
        let gauges = match contender {
            Contender::Quic => Gauges {
                down: Arc::default(),
                up: Arc::default(),
                ..series.gauges.clone()
            },
            _ => Gauges::default(),
        };
        let load = self.load(series.connections, amount, None, gauges);
        let before = ksoftirqd.now();
        let has_several = self.args.work.has_several_numbers();
        let mut name = contender.name().to_owned();
        if has_several {
            // As wide as all others, since interval lines begin with it.
            name = format!("{name:<7} -c {:<5}", series.connections);
        }
        let title = format!("round {} of {count}, {}", index + 1, name.trim_end());
        let (mut outcome, parts) = self.run_one(contender, &load, title, &name)?;
        let soft = ksoftirqd.now() - before;
        outcome.server_cpu += soft.server;
        outcome.client_cpu += soft.client;
        series.rounds.push(Round {
            contender,
            index,
            outcome,
            ksoftirqd: soft.server + soft.client,
        });
        let intervals = parts.into_iter().map(|figures| Interval {
            round: Some(index),
            contender: Some(contender.name()),
            workload: None,
            connections: has_several.then_some(series.connections),
            mode: None,
            figures,
        });
        Ok(intervals.collect())
    }

    /// One transfer of a seeded pattern per contender, with digests at both ends.
    fn verify(&self) -> Result<()> {
        const DEFAULT: u64 = 1_000_000_000;
        let bytes = match self.amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Time(_) => DEFAULT,
        };
        let mut results = serde_json::Map::new();
        let mut different = Vec::new();
        for &contender in &self.contenders {
            if interrupt::raised() {
                return Err(Failure::new("interrupted before anything was compared"));
            }
            let connections = self.args.work.connections();
            let amount = Amount::Bytes(bytes);
            let load = self.load(connections, amount, Some(1), Gauges::default());
            let title = format!("verify {}", contender.name());
            let (outcome, _) = self.run_one(contender, &load, title, contender.name())?;
            let server = source::combine(outcome.sent);
            let client = source::combine(outcome.received);
            let equal = server == client;
            if !equal {
                different.push(contender.name());
            }
            if !self.args.output.json {
                say(&format!(
                    "{:<8} {} bytes   server sha256 {server}\n{:<8} {:>width$}         client sha256 {client}   {}",
                    contender.name(),
                    outcome.bytes,
                    "",
                    "",
                    if equal { "equal" } else { "DIFFERENT" },
                    width = outcome.bytes.to_string().len(),
                ));
            }
            results.insert(
                contender.name().to_owned(),
                serde_json::json!({
                    "bytes": outcome.bytes,
                    "server_sha256": server,
                    "client_sha256": client,
                    "equal": equal,
                }),
            );
        }
        if self.args.output.json {
            print_json(&results)?;
        }
        if different.is_empty() {
            Ok(())
        } else {
            Err(Failure::new(format!(
                "the data received over {} differs from the data sent: please report this",
                different.join(" and ")
            )))
        }
    }

    fn setup(&self, ksoftirqd_threads: usize) -> Setup {
        let work = &self.args.work;
        let (bytes, seconds) = match self.amount {
            Amount::Bytes(bytes) => (Some(bytes), None),
            Amount::Time(time) => (None, Some(time.as_secs_f64())),
        };
        Setup {
            connections: (!work.has_several_numbers()).then_some(work.connections()),
            streams: work.streams,
            direction: self.flow.name(),
            bits_per_second_per_stream: work.bitrate,
            bytes_per_stream: bytes,
            seconds,
            rounds: self.args.rounds,
            interrupted: interrupt::raised(),
            payload: self.args.options.payload,
            cipher_suite: self.suites.to_string(),
            congestion: self.args.options.congestion.name(),
            gso: !self.args.options.no_gso,
            gro: !self.args.options.no_gro,
            pacing: !self.args.options.no_pacing,
            server_core: self.cores.server,
            client_core: self.cores.client,
            ksoftirqd_threads,
            tls_provider: self.tls.as_ref().map(|tls| tls.1),
            tls_providers_ns: self.providers.clone(),
            tcp_congestion_control: self.congestion_control.clone(),
        }
    }

    /// Describes the measurement in a few lines before the first round.
    fn heading(&self) -> String {
        let (args, work) = (&self.args, &self.args.work);
        let amount = match self.amount {
            Amount::Bytes(bytes) => {
                format!("{bytes} bytes per stream in each of {} rounds", args.rounds)
            }
            Amount::Time(time) => format!(
                "{} s per contender in {} rounds",
                time.as_secs_f64(),
                args.rounds
            ),
        };
        let direction = match self.flow {
            Flow::Down => "server to client",
            Flow::Up => "client to server",
            Flow::Both => "both directions at the same time",
        };
        let limit = work.bitrate.map_or_else(String::new, |bits| {
            format!(" at {} Mbit/s each", bits as f64 / 1e6)
        });
        let mut text = format!(
            "loopback ({}), {}, {direction}, {} connection(s) of {} stream(s){limit},\n{amount},\n{}\n",
            args.family.loopback(),
            self.cores,
            work.numbers(),
            work.streams,
            args.options
        );
        if let Some((_, name)) = &self.tls {
            let measured: Vec<String> = self
                .providers
                .iter()
                .map(|(name, ns)| format!("{name} {ns:.0} ns"))
                .collect();
            text += &format!(
                "tls_tcp uses {name}, the faster one here ({} to seal and open 16 KiB)\n",
                measured.join(", ")
            );
        }
        if let Some(name) = &self.congestion_control {
            text += &format!("TCP's congestion control: {name}\n");
        }
        text
    }
}
