//! Whole transports side by side: squall, quinn, s2n-quic, quiche, TLS over TCP and plain TCP.
//!
//! ```text
//!   run   for each workload, rounds in rotating order:
//!           measure ──► process ──► server on one core, client on the other; the clock starts and
//!                          │        ends the measured part
//!                          ├──► stack      the workloads, once; squall, quinn, s2n do the steps
//!                          ├──► quiche     our own event loop: poll, GRO in, GSO out
//!                          └──► controls   TCP and TLS over TCP, from squall_yard
//!         report ──► medians and ratios, or rows of JSON
//!   case  what is measured, in which sizes       network   namespaces with certain links
//!   smoothness   the same ends with a router between them, which sees how smoothly they send
//! ```
//! Each end is a process, so that all of a stack's work is counted, on whatever thread. The QUIC
//! stacks speak draft-banks-quic-performance; TCP and TLS carry the same lengths and answers.

mod case;
mod controls;
mod identity;
mod job;
mod network;
mod process;
mod quiche;
mod quinn;
mod report;
mod s2n;
mod smoothness;
mod socket;
mod squall;
mod stack;
mod verify;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use squall_yard::certificate::Certificate;
use squall_yard::controls::tls;
use squall_yard::cpu::Busy;
use squall_yard::error::{Failure, Result, context};
use squall_yard::options::Suite;
use squall_yard::sys;

pub(crate) use self::process::SUBCOMMAND;
pub(crate) use self::smoothness::{Smoothness, run as smoothness};

use self::case::{Case, Mode, Workload};
use self::job::{Contender, Job, Role, Sample};
use self::network::Network;
use self::process::{Count, End};
use self::report::{Measured, Report};

/// CPU of whole transports: squall, quinn, s2n-quic, quiche, TLS over TCP and plain TCP,
/// interleaved in one run.
#[derive(clap::Args)]
pub(crate) struct Transport {
    /// Workloads; by default W1 to W4.
    #[arg(long, value_enum, value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Connections of W5, W6 and W7, instead of those that each is measured with.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: Vec<u32>,
    /// Gives each connection of W5, W6 and W7 its own socket at the client, as if each came from
    /// another machine. TCP always works this way.
    #[arg(long, conflicts_with = "runtimes")]
    own_sockets: bool,
    /// Measures the servers of QUIC stacks with the client of this one, and not each with its own.
    #[arg(long, value_enum, value_name = "CONTENDER", conflicts_with = "check")]
    client: Option<Contender>,
    /// Requests a second of W6's open loop, the same for all, and not half of what each contender
    /// reached.
    #[arg(long, value_name = "N", conflicts_with = "check", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Only this contender; may be given several times.
    #[arg(long, value_enum)]
    only: Vec<Contender>,
    /// squall and quinn by the runtime that they and the application run on, and nothing else.
    #[arg(long, conflicts_with = "only")]
    runtimes: bool,
    /// Rounds of every workload.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of a round, after one to warm up.
    #[arg(short = 't', long = "time", value_name = "SECS", default_value = "3", value_parser = parse_seconds)]
    time: Duration,
    /// Rows as one JSON object.
    #[arg(long)]
    json: bool,
    /// Measure nothing: move a small part of each workload, and compare every byte.
    #[arg(long, conflicts_with_all = ["json", "rounds", "time"])]
    check: bool,
}

fn parse_seconds(text: &str) -> std::result::Result<Duration, &'static str> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| *time >= Duration::from_millis(100))
        .ok_or("a number of seconds, at least 0.1")
}

/// Time for the congestion window and the caches, before the measured phase.
const WARM_UP: Duration = Duration::from_secs(1);

/// Measures, or checks, and prints.
pub(crate) fn run(args: &Transport) -> Result<()> {
    let workloads = match args.workload.as_slice() {
        [] if args.check => Workload::ON_LOOPBACK.to_vec(),
        [] => Workload::MEASURED.to_vec(),
        chosen => chosen.to_vec(),
    };
    let contenders = match args.only.as_slice() {
        [] if args.runtimes => Contender::RUNTIMES.to_vec(),
        [] => Contender::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    if let Some(client) = args.client.filter(|one| !one.is_quic()) {
        let name = client.name();
        let why = format!("--client {name}: a QUIC server needs a QUIC client, such as quiche");
        return Err(Failure::new(why));
    }
    let bench = Bench::new()?;
    if args.check {
        let same = |contender| {
            workloads
                .iter()
                .map(move |workload| (*workload, [contender; 2]))
        };
        let all = contenders.into_iter().flat_map(same);
        let all = all.filter(|(workload, [one, _])| workload.suits(*one));
        return bench.check(all, args.own_sockets);
    }
    let connections: Vec<usize> = args.connections.iter().map(|one| *one as usize).collect();
    let cases: Vec<Case> = (workloads.iter())
        .flat_map(|workload| Case::of(*workload, &connections))
        .map(|case| case.with_own_sockets(args.own_sockets))
        .collect();
    let (report, failures) = measure_all(&bench, &cases, &contenders, args)?;
    if args.json {
        println!("{}", report.json()?);
    } else {
        print!("{report}");
    }
    match failures.as_slice() {
        [] => Ok(()),
        some => Err(Failure::new(some.join("\n"))),
    }
}

/// Measures all cases in rounds. Also returns what failed: a contender that fails drops out of its
/// case, and the others go on.
fn measure_all(
    bench: &Bench,
    cases: &[Case],
    contenders: &[Contender],
    args: &Transport,
) -> Result<(Report, Vec<String>)> {
    // A missing tool or permission shows now, not after a quarter of an hour.
    for case in cases {
        Network::of(case)?;
    }
    let bar = ProgressBar::with_draw_target(
        Some(u64::from(args.rounds) * (cases.len() * contenders.len()) as u64),
        ProgressDrawTarget::stderr(),
    );
    let mut report = Report::new(bench.setup());
    let mut failures = Vec::new();
    for case in cases {
        let network = Network::of(case)?;
        let mut taking_part: Vec<Contender> = contenders
            .iter()
            .copied()
            .filter(|one| case.workload.suits(*one))
            // An open loop takes its rate from the closed one.
            .filter(|one| case.mode == Mode::Closed || report.half_of_closed(case, *one).is_some())
            .collect();
        for round in 0..args.rounds as usize {
            // Each round begins with a different one, so that none always follows the same
            // neighbour.
            let first = round % taking_part.len().max(1);
            let mut turns = taking_part.clone();
            turns.rotate_left(first);
            for contender in turns {
                let rate = match (case.mode, args.rate) {
                    (Mode::Open, Some(rate)) => Some(rate.into()),
                    (Mode::Open, None) => report.half_of_closed(case, contender),
                    (Mode::Closed, _) => None,
                };
                let client = args.client.filter(|_| contender.is_quic());
                let ends = [contender, client.unwrap_or(contender)];
                match bench.measure(case, ends, rate, &network, args.time) {
                    Ok(measured) => report.add(case, contender, measured),
                    Err(error) => {
                        taking_part.retain(|one| *one != contender);
                        failures.push(format!("{case}: {error}"));
                    }
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok((report, failures))
}

/// Runs squall's client against the other stacks' servers and their clients against squall's, and
/// compares every byte: 10 MB up and down again, the workloads' small parts, and resumption.
pub(crate) fn interop() -> Result<()> {
    let workloads = [
        Workload::Echo,
        Workload::W1,
        Workload::W2,
        Workload::W3,
        Workload::W4,
        Workload::W4Resumed,
        Workload::W5s,
        Workload::W6,
        Workload::W7,
        Workload::W8,
    ];
    let pairs = [Contender::Quinn, Contender::S2nQuic, Contender::Quiche]
        .into_iter()
        .flat_map(|peer| [[peer, Contender::Squall], [Contender::Squall, peer]])
        .flat_map(|pair| workloads.map(|workload| (workload, pair)));
    Bench::new()?.check(pairs, false)
}

/// The child's side, see [`SUBCOMMAND`].
pub(crate) fn run_end() -> Result<()> {
    process::run(work)
}

fn work(job: &Job, count: &Arc<Count>) -> Result<()> {
    match job.contender {
        Contender::Squall
        | Contender::SquallAcross
        | Contender::SquallCurrent
        | Contender::SquallMulti => squall::run(job, count),
        Contender::Quinn | Contender::QuinnMulti | Contender::QuinnSquall => quinn::run(job, count),
        Contender::Tcp | Contender::TlsTcp => controls::run(job, count),
        Contender::S2nQuic => s2n::run(job, count),
        Contender::Quiche => quiche::run(job, count),
    }
}

/// What all measurements of a run share.
struct Bench {
    files: identity::Files,
    provider: String,
    /// The server's core and the client's.
    cores: Option<[usize; 2]>,
}

impl Bench {
    fn new() -> Result<Self> {
        let files = identity::Files::new()?;
        let certificate = Certificate::read(&files.certificate, &files.key)?;
        let provider = tls::choose(&certificate, Suite::Aes128)?.name.to_owned();
        let cores = match sys::allowed_cores().as_slice() {
            [server, client, ..] => Some([*server, *client]),
            _ => None,
        };
        Ok(Self {
            files,
            provider,
            cores,
        })
    }

    /// What a reader needs to know about the run.
    fn setup(&self) -> String {
        let cores = self.cores.map_or_else(
            || "not pinned".to_owned(),
            |[server, client]| format!("server on core {server}, client on core {client}"),
        );
        format!("{cores}; TLS over TCP by rustls with {}", self.provider)
    }

    /// Starts the two ends, and waits until the client is at work.
    fn start(
        &self,
        case: &Case,
        [server, client]: [Contender; 2],
        rate: Option<f64>,
        network: &Network,
        check: bool,
    ) -> Result<[End; 2]> {
        let job = |contender, role, end: usize| Job {
            contender,
            case: *case,
            rate,
            role,
            check,
            core: self.cores.map(|cores| cores[end]),
            local: network.local[end],
            certificate: self.files.certificate.clone(),
            key: self.files.key.clone(),
            provider: self.provider.clone(),
        };
        let namespaces = network.ends();
        let server = End::start(&job(server, Role::Server, 0), namespaces[0])?;
        let role = Role::Client(server.listening()?);
        let client = End::start(&job(client, role, 1), namespaces[1])?;
        client.working()?;
        Ok([server, client])
    }

    /// One round of a server and a client.
    fn measure(
        &self,
        case: &Case,
        contenders: [Contender; 2],
        rate: Option<f64>,
        network: &Network,
        time: Duration,
    ) -> Result<Measured> {
        let mut ends = self.start(case, contenders, rate, network, false)?;
        thread::sleep(WARM_UP);
        let cores = self.cores.as_ref().map(<[usize; 2]>::as_slice);
        let busy = || cores.and_then(Busy::now);
        let (before, begun) = (sample(&mut ends)?, busy());
        thread::sleep(time);
        let (after, ended) = (sample(&mut ends)?, busy());
        let busy = ended.zip(begun).map(|(end, begin)| end.cores_since(&begin));
        Measured::new(case, contenders[0], before, after, busy)
    }

    /// Moves a small part of each workload, between each pair of server and client, and prints what
    /// arrived.
    fn check(
        &self,
        pairs: impl Iterator<Item = (Workload, [Contender; 2])>,
        own_sockets: bool,
    ) -> Result<()> {
        let mut failed = 0;
        for (workload, pair) in pairs {
            let case = Case::to_check(workload).with_own_sockets(own_sockets);
            if let Err(error) = self.check_one(&case, pair) {
                println!("FAILED  {error}");
                failed += 1;
            }
        }
        match failed {
            0 => Ok(()),
            one_or_more => Err(Failure::new(format!("{one_or_more} checks failed"))),
        }
    }

    fn check_one(&self, case: &Case, contenders: [Contender; 2]) -> Result<()> {
        let workload = case.workload;
        let [server, client] = contenders.map(Contender::name);
        let what = format!(
            "{client:<8} client, {server:<8} server, {}",
            workload.name()
        );
        let doing = context(&what);
        let network = Network::of(case)?;
        let [_server, end] =
            (self.start(case, contenders, None, &network, true)).map_err(&doing)?;
        let done = end.sample().map_err(&doing)?;
        let shape = case.shape(true, None);
        let (units, bytes) = shape.total();
        if (done.units, done.bytes) != (units, bytes) {
            return Err(Failure::new(format!(
                "{what}: {} of {units} requests, {} of {bytes} bytes",
                done.units, done.bytes
            )));
        }
        let full = match workload {
            Workload::W4 | Workload::W8 => units..=units,
            // s2n-quic's server sends no ticket with a resumed handshake, and rustls uses each
            // ticket once: at least half of the handshakes are full. A client that is done before
            // its ticket arrives makes one more.
            Workload::W4Resumed if contenders[0] == Contender::S2nQuic => 1..=units * 3 / 4,
            // Each of the four places needs a first ticket.
            Workload::W4Resumed => 1..=shape.connections as u64,
            _ => 0..=units,
        };
        if !full.contains(&done.full) {
            return Err(Failure::new(format!(
                "{what}: {} of {units} handshakes were full ones, {full:?} expected",
                done.full
            )));
        }
        let kind = match workload {
            Workload::W4 | Workload::W8 => "full handshakes, ",
            Workload::W4Resumed => &format!("handshakes, {} of them full ones, ", done.full),
            _ => "",
        };
        let up = shape.upload as u64 * units;
        let requests = units * shape.each;
        println!("{what}: {kind}{requests} requests, {up} bytes up, {bytes} down, SHA-256 as sent");
        Ok(())
    }
}

/// Both ends' counters, as close in time as two queries can be.
fn sample(ends: &mut [End; 2]) -> Result<[Sample; 2]> {
    for end in &mut *ends {
        end.ask()?;
    }
    Ok([ends[0].sample()?, ends[1].sample()?])
}
