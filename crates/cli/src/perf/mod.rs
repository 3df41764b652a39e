//! `squall perf`: what a GB costs over QUIC, over TLS on TCP and over plain TCP.
//!
//! ```text
//!   args      ->  Plan ------ round by round, the order rotating ------>  report
//!                   |   quic      squall, both ends in this process          |
//!                   |   tls       rustls over TCP   } control: threads       |-> tables, JSON
//!                   |   tcp       plain TCP         }                        |
//!                   +-- cpu: threads' clocks and ksoftirqd     stages: QUIC's cost by stage
//! ```
//! Whatever the contender, the server sends and the client receives; `source` holds the bytes.

pub(crate) mod args;
pub(crate) mod certificate;
mod control;
mod cpu;
mod live;
mod protocol;
mod quic;
mod remote;
mod report;
mod source;
mod stages;
mod tcp;
mod tls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use args::{Contender, Local, Perf, Remote};
use certificate::Certificate;
use cpu::{Cores, Ksoftirqd};
use quic::Quic;
use report::{Report, Round, Setup, Stages};
use source::Digest;
use stages::{Rates, Sample, Table};

use crate::error::{Failure, Result};
use crate::output::{print_json, say};
use crate::sys;

/// How much a round moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// This many bytes a stream.
    Bytes(u64),
    /// As much as goes in this time.
    Time(Duration),
}

/// What a contender is to do in one round.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// A connection.
    pub(crate) streams: usize,
    pub(crate) amount: Amount,
    /// UDP payload of a full datagram.
    pub(crate) payload: u16,
    pub(crate) cores: Cores,
    /// Set: send the pattern of this seed, and digest it at both ends.
    pub(crate) seed: Option<u64>,
    pub(crate) live: Arc<live::Counter>,
}

/// What a contender did in one round.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Delivered to the client.
    pub(crate) bytes: u64,
    /// From the first stream's begin to the last one's end.
    pub(crate) elapsed: Duration,
    pub(crate) server_cpu: Duration,
    pub(crate) client_cpu: Duration,
    /// A digest for every stream, of what was sent.
    pub(crate) sent: Vec<Digest>,
    /// The same of what was received.
    pub(crate) received: Vec<Digest>,
    /// QUIC only: what the server's and the client's worker counted by stage.
    pub(crate) stages: Option<[Sample; 2]>,
}

/// The command.
pub(crate) fn main(perf: Perf) -> Result<()> {
    match &perf.remote {
        Some(Remote::Server(args)) => return remote::serve(args),
        Some(Remote::Client(args)) => return remote::measure(args),
        None => {}
    }
    let plan = Plan::new(perf.local)?;
    if plan.args.verify {
        plan.verify()
    } else {
        plan.measure()
    }
}

/// The cores that were asked for, if they can be had, or the first two.
fn cores(wanted: Option<(usize, usize)>, allowed: &[usize]) -> Result<Cores> {
    let Some((server, client)) = wanted else {
        return Ok(Cores::pick(allowed));
    };
    if allowed.contains(&server) && allowed.contains(&client) {
        return Ok(Cores {
            server: Some(server),
            client: Some(client),
        });
    }
    Err(Failure::new(format!(
        "cannot pin to cores {server} and {client}: choose two of {allowed:?} with --cpu A,B"
    )))
}

/// Everything that is settled before the first round.
struct Plan {
    args: Local,
    contenders: Vec<Contender>,
    cores: Cores,
    quic: Quic,
    tls: Option<(Arc<tls::Tls>, &'static str)>,
    providers: Vec<(&'static str, f64)>,
    congestion_control: Option<String>,
}

impl Plan {
    fn new(args: Local) -> Result<Self> {
        let cores = cores(args.cpu, &sys::allowed_cores())?;
        let contenders = args.contenders();
        let certificate = Certificate::generate()?;
        let mut plan = Self {
            args,
            contenders,
            cores,
            quic: Quic::new(&certificate)?,
            tls: None,
            providers: Vec::new(),
            congestion_control: None,
        };
        if plan.contenders.iter().any(|&one| one != Contender::Quic) {
            plan.congestion_control = control::congestion_control();
        }
        if plan.contenders.contains(&Contender::TlsTcp) {
            let choice = tls::choose(&certificate)?;
            plan.tls = Some((Arc::new(choice.tls), choice.name));
            plan.providers = choice.measured;
        }
        Ok(plan)
    }

    fn load(&self, amount: Amount, seed: Option<u64>) -> Load {
        Load {
            connections: self.args.connections,
            streams: self.args.streams,
            amount,
            payload: self.args.payload,
            cores: self.cores,
            seed,
            live: Arc::default(),
        }
    }

    /// Runs one contender once, a live line beside it.
    fn run(&self, contender: Contender, load: &Load, title: String) -> Result<Outcome> {
        let _live = live::Live::start(title, &load.live);
        match (contender, &self.tls) {
            (Contender::Quic, _) => self.quic.run(load),
            (Contender::TlsTcp, Some((tls, _))) => control::run(tls, load),
            (Contender::TlsTcp, None) => Err(Failure::new("TLS over TCP was not prepared")),
            (Contender::Tcp, _) => control::run(&Arc::new(tcp::Plain), load),
        }
    }

    /// All rounds, then the report.
    fn measure(&self) -> Result<()> {
        let count = self.args.rounds;
        let amount = match self.args.bytes {
            Some(bytes) => Amount::Bytes(bytes),
            None => Amount::Time(self.args.time / u32::try_from(count).unwrap_or(u32::MAX)),
        };
        if !self.args.json {
            say(&self.heading());
        }
        let ksoftirqd = Ksoftirqd::find(self.cores);
        let ticker = Ticker::start();
        let mut stages: Option<[Sample; 2]> = None;
        let mut rounds = Vec::new();
        for index in 0..count {
            for contender in rotated(&self.contenders, index) {
                let load = self.load(amount, None);
                let before = ksoftirqd.now();
                let title = format!("round {} of {count}, {}", index + 1, contender.name());
                let mut outcome = self.run(contender, &load, title)?;
                let soft = ksoftirqd.now() - before;
                if let Some(more) = outcome.stages.take() {
                    let sums = stages.get_or_insert_default();
                    sums.iter_mut()
                        .zip(&more)
                        .for_each(|(sum, more)| sum.add(more));
                }
                outcome.server_cpu += soft.server;
                outcome.client_cpu += soft.client;
                rounds.push(Round {
                    contender,
                    index,
                    outcome,
                    ksoftirqd: soft.server + soft.client,
                });
            }
        }
        let stages = stages.and_then(|sums| tables(&sums, &ticker));
        let report = Report::new(&rounds, stages, self.setup(ksoftirqd.count()));
        if self.args.json {
            print_json(&report)
        } else {
            say(&report.to_string());
            Ok(())
        }
    }

    /// One transfer of a seeded pattern a contender, digests at both ends.
    fn verify(&self) -> Result<()> {
        const DEFAULT: u64 = 1_000_000_000;
        let bytes = self.args.bytes.unwrap_or(DEFAULT);
        let mut results = serde_json::Map::new();
        let mut different = Vec::new();
        for &contender in &self.contenders {
            let load = self.load(Amount::Bytes(bytes), Some(1));
            let outcome = self.run(contender, &load, format!("verify {}", contender.name()))?;
            let server = source::combine(outcome.sent);
            let client = source::combine(outcome.received);
            let equal = server == client;
            if !equal {
                different.push(contender.name());
            }
            if !self.args.json {
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
        if self.args.json {
            print_json(&results)?;
        }
        if different.is_empty() {
            Ok(())
        } else {
            Err(Failure::new(format!(
                "what arrived is not what was sent over {}: please report this",
                different.join(" and ")
            )))
        }
    }

    fn setup(&self, ksoftirqd_threads: usize) -> Setup {
        Setup {
            connections: self.args.connections,
            streams: self.args.streams,
            bytes_per_stream: self.args.bytes,
            seconds: self
                .args
                .bytes
                .is_none()
                .then_some(self.args.time.as_secs_f64()),
            rounds: self.args.rounds,
            payload: self.args.payload,
            cipher_suite: "TLS_AES_128_GCM_SHA256",
            server_core: self.cores.server,
            client_core: self.cores.client,
            ksoftirqd_threads,
            tls_provider: self.tls.as_ref().map(|tls| tls.1),
            tls_providers_ns: self.providers.clone(),
            tcp_congestion_control: self.congestion_control.clone(),
        }
    }

    /// What is measured, in a few lines before the first round.
    fn heading(&self) -> String {
        let args = &self.args;
        let cores = match (self.cores.server, self.cores.client) {
            (Some(server), Some(client)) => {
                format!("server on core {server}, client on core {client}")
            }
            _ => "not pinned".to_owned(),
        };
        let amount = match args.bytes {
            Some(bytes) => format!("{bytes} bytes a stream in each of {} rounds", args.rounds),
            None => format!(
                "{} s a contender in {} rounds",
                args.time.as_secs_f64(),
                args.rounds
            ),
        };
        let mut text = format!(
            "loopback, {cores}, server to client, {} connection(s) of {} stream(s),\n\
             {amount}, TLS_AES_128_GCM_SHA256, datagrams of {} bytes\n",
            args.connections, args.streams, args.payload
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

/// The rate of the time-stamp counter, over the time since it was started.
struct Ticker {
    ticks: u64,
    at: Instant,
}

impl Ticker {
    fn start() -> Self {
        Self {
            ticks: squall::ticks(),
            at: Instant::now(),
        }
    }

    fn ns_per_tick(&self) -> f64 {
        let ticks = squall::ticks().wrapping_sub(self.ticks).max(1);
        self.at.elapsed().as_secs_f64() * 1e9 / ticks as f64
    }
}

/// QUIC's cost by stage, both ends, over all rounds.
fn tables(sums: &[Sample; 2], ticker: &Ticker) -> Option<Stages> {
    let rates = Rates {
        ns_per_tick: ticker.ns_per_tick(),
        ns_per_stamp: quic::ns_per_stamp(),
        core_ghz: cpu::core_ghz(),
    };
    let [server, client] = sums;
    Some(Stages {
        server: Table::new(server, rates)?,
        client: Table::new(client, rates)?,
        core_ghz: rates.core_ghz,
        ns_per_stamp: rates.ns_per_stamp,
    })
}

/// The contenders of a round: each round another one goes first.
fn rotated(contenders: &[Contender], round: usize) -> Vec<Contender> {
    let mut order = contenders.to_vec();
    let first = round % order.len().max(1);
    order.rotate_left(first);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_cannot_be_had_are_told() {
        let two = cores(Some((1, 0)), &[0, 1]).expect("both are there");
        assert_eq!((two.server, two.client), (Some(1), Some(0)));
        let message = cores(Some((0, 9)), &[0, 1]).expect_err("no core 9");
        assert!(message.to_string().contains("--cpu"));
    }

    #[test]
    fn each_round_starts_with_another_contender() {
        use Contender::{Quic, Tcp, TlsTcp};
        let all = Contender::ALL;
        assert_eq!(rotated(&all, 0), [Quic, TlsTcp, Tcp]);
        assert_eq!(rotated(&all, 1), [TlsTcp, Tcp, Quic]);
        assert_eq!(rotated(&all, 2), [Tcp, Quic, TlsTcp]);
        assert_eq!(rotated(&all, 3), rotated(&all, 0));
        assert_eq!(rotated(&[Tcp], 4), [Tcp]);
    }
}
