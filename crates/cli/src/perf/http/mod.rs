//! `squall perf --http`: what a request and a GB cost `squall serve` over HTTP/3, HTTP/2 and
//! HTTP/1.1.
//!
//! ```text
//!   files       a folder of files of fixed sizes, and of a film's segments
//!   server      squall serve, a process of its own on the server's core: its CPU is what counts;
//!      │        a second one measures its stages, too    (metrics)
//!      ▲
//!   client      connections of one protocol, on one thread on the client's core   (thread)
//!      ▲ drive them
//!   requests    one file over and over, 100 requests in flight with each protocol  (protocol)
//!   connections     a connection for each request
//!   session     viewers of the film, each on a connection of its own
//!      │
//!   window      warm-up, then the clocks before and after
//!      ▼
//!   report      medians of the rounds, and medians of the rounds' ratios
//! ```
//! After the rounds, a second server that measures its stages shows where HTTP/3's time goes. The
//! first one does not measure its stages, so it costs what it would cost a user.

mod client;
mod connections;
mod files;
mod metrics;
mod protocol;
mod report;
mod requests;
mod server;
mod session;
mod thread;
mod window;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use squall_yard::chart::File as Chart;
use squall_yard::cpu::{Cores, Ksoftirqd};
use squall_yard::error::{Failure, Result, context};
use squall_yard::live::{Lane, Live, Unit};
use squall_yard::meter::Ticker;
use squall_yard::options::Options;
use squall_yard::stages::{Rates, Table};
use squall_yard::suites::Suite;
use squall_yard::{interrupt, layout, sys};

use self::client::{Client, Tally};
use self::files::{File, Folder, SIZES};
use self::protocol::Protocol;
use self::report::{Entry, HttpReport, Round, Setup, Work};
use self::server::Server;
use self::session::{Audience, Seen};
use self::thread::on_core;
use self::window::{Clocks, Taken, Window};
use super::args::Local;
use super::{cores, report as output, rotated};
use crate::output::say;

/// The longest warm-up of a measurement of requests.
const WARM_UP: Duration = Duration::from_millis(500);

/// State shared by all rounds.
struct Bench {
    options: Options,
    loopback: IpAddr,
    cores: Cores,
    ksoftirqd: Ksoftirqd,
    audience: Audience,
    /// Time per measurement and round.
    time: Duration,
    server: Server,
    /// The server that measures its stages.
    staged: Server,
    /// Removed after the servers.
    _folder: Folder,
}

impl Bench {
    fn new(args: &Local) -> Result<Self> {
        let mut options = args.options.clone();
        let mut others = options.of_quic_alone();
        // The client can ask for it.
        others.retain(|name| !name.starts_with("--payload"));
        if !others.is_empty() {
            return Err(Failure::new(format!(
                "--http measures squall serve as it is: omit {}",
                others.join(", ")
            )));
        }
        let suites = options.suite.get_or_insert(Suite::Aes128.into());
        if suites.is_mix() {
            return Err(Failure::new(
                "--http takes one cipher suite: name one with --suite, without a share",
            ));
        }
        let audience = Audience {
            viewers: args.http.viewers,
            speed: args.http.speed,
        };
        let loopback = args.family.loopback();
        let cores = cores(args.cpu, 1, &sys::allowed_cores())?;
        let folder = Folder::create()?;
        let start = |stage_times| {
            let viewers = audience.viewers;
            Server::start(folder.path(), loopback, cores.server, viewers, stage_times)
        };
        let (server, staged) = (start(false)?, start(true)?);
        let rounds = u32::try_from(args.rounds).unwrap_or(u32::MAX);
        Ok(Self {
            options,
            loopback,
            cores,
            ksoftirqd: Ksoftirqd::find(cores),
            audience,
            time: args.work.time / rounds,
            server,
            staged,
            _folder: folder,
        })
    }

    /// One measurement, on the client's core.
    fn run_one(
        &self,
        server: &Server,
        work: Work,
        protocol: Protocol,
        title: String,
    ) -> Result<Round> {
        on_core(self.cores.client, || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(context("cannot start the client"))?;
            runtime.block_on(async {
                let resumption = work != Work::Handshakes;
                let client = Client::new(protocol, server.address, &self.options, resumption)?;
                let client = Arc::new(client);
                let round = self.run_with(&client, server, work, protocol, title).await;
                client.close().await;
                round
            })
        })
    }

    async fn run_with(
        &self,
        client: &Arc<Client>,
        server: &Server,
        work: Work,
        protocol: Protocol,
        title: String,
    ) -> Result<Round> {
        let mut window = Window {
            warm_up: (self.time / 4).min(WARM_UP),
            time: self.time,
        };
        let (tally, seen) = (Arc::<Tally>::default(), Arc::<Seen>::default());
        let (mut tasks, tally) = match work {
            Work::Requests(size) => {
                let file = File::of_size(size);
                let tasks = requests::start(client, protocol.shape(), &file, &tally).await?;
                (tasks, &*tally)
            }
            Work::Handshakes => {
                let tasks = connections::start(client, &File::of_size(SIZES[0]), &tally);
                (tasks, &*tally)
            }
            Work::Session => {
                window = Window {
                    warm_up: self.audience.warm_up(),
                    time: self.time.max(self.audience.least()),
                };
                let tasks = session::start(client, self.audience, &seen).await?;
                (tasks, &seen.tally)
            }
        };
        let taken = self
            .observe(server, &mut tasks, tally, window, title)
            .await?;
        Ok(Round {
            taken,
            most_in_flight: tally.most_in_flight(),
            stalls: seen.stalls(),
        })
    }

    /// Measures where HTTP/3's time goes.
    fn stages(&self, work: Work, rates: Rates) -> Result<Option<Table>> {
        let title = format!("stages, {work}");
        let round = self.run_one(&self.staged, work, Protocol::H3, title)?;
        let taken = round.taken;
        let Some(mut sample) = taken.stages else {
            return Ok(None);
        };
        match work.response() {
            Some(size) => sample.operations = taken.bytes / size,
            None => sample.bytes = taken.bytes,
        }
        Ok(Table::new(&sample, rates))
    }

    async fn observe(
        &self,
        server: &Server,
        tasks: &mut tokio::task::JoinSet<Result<()>>,
        tally: &Tally,
        window: Window,
        title: String,
    ) -> Result<Taken> {
        let lanes = [Lane {
            direction: None,
            counter: Arc::clone(&tally.bytes),
        }];
        let clocks = Clocks {
            server,
            ksoftirqd: &self.ksoftirqd,
            tally,
        };
        let _line = Live::start(title, Unit::Bytes, &lanes);
        let taken = clocks.observe(tasks, window).await?;
        tasks.shutdown().await;
        Ok(taken)
    }

    fn setup(&self, args: &Local) -> Setup {
        Setup {
            what: report::describe(self.audience),
            where_to: format!("loopback ({}), {}", self.loopback, self.cores),
            options: self.options.to_string(),
            seconds: args.work.time.as_secs_f64(),
            rounds: args.rounds,
            interrupted: false,
        }
    }
}

/// Measures all protocols in rounds, and prints the results.
///
/// # Errors
/// The server or a client failed, or the system refused something.
pub(crate) fn measure(args: &Local) -> Result<()> {
    let plot = args.output.plot.as_deref().map(Chart::create).transpose()?;
    let bench = Bench::new(args)?;
    let mut setup = bench.setup(args);
    if args.output.is_text() {
        say(&layout::wrap(&setup.heading(), layout::width()));
    }
    let works = SIZES.map(Work::Requests).into_iter();
    let works: Vec<Work> = works.chain([Work::Handshakes, Work::Session]).collect();
    let mut entries: Vec<Entry> = works.iter().map(|work| Entry::new(*work)).collect();
    'rounds: for index in 0..args.rounds {
        for entry in &mut entries {
            for protocol in rotated(&Protocol::ALL, index) {
                let (round, rounds, work) = (index + 1, args.rounds, entry.work);
                let title = format!("round {round} of {rounds}, {work}, {protocol}");
                let done = bench.run_one(&bench.server, work, protocol, title)?;
                if interrupt::raised() {
                    break 'rounds;
                }
                if done.taken.bytes == 0 {
                    return Err(Failure::new(format!(
                        "nothing arrived over {protocol} in {} s: pass a longer -t",
                        bench.time.as_secs_f64()
                    )));
                }
                entry.add(protocol, index, done);
            }
        }
    }
    let rates = Rates {
        ns_per_tick: metrics::NS_PER_TICK,
        ..Ticker::start().rates()
    };
    for entry in entries.iter_mut().filter(|entry| !entry.is_empty()) {
        let stages = bench.stages(entry.work, rates)?;
        if interrupt::raised() {
            break;
        }
        entry.stages = stages;
    }
    setup.interrupted = interrupt::raised();
    let report = HttpReport::new(&entries, bench.audience, setup);
    if report.is_empty() {
        return Err(Failure::new("interrupted before anything was measured"));
    }
    output::tell(&report, &args.output, plot)
}
