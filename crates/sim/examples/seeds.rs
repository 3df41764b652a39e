//! Runs seeds on all cores and prints how often each fault occurred; `cargo xtask sim` runs it in
//! the right profile.
//!
//! ```text
//! cargo xtask sim                    the 10,000 seeds of every commit
//! cargo xtask sim --seeds 0..1000    others
//! cargo xtask sim --seed 17          one, in full detail
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use squall_sim::{Failure, Fault, Handshake, Report, Trial, run_seed, run_trial};

/// The seeds of every commit.
const USUAL: Range<u64> = 0..10_000;
/// Seeds that failed and are printed, at most.
const SHOWN: usize = 400;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(sweep(USUAL)),
        ["--seed", seed] => seed.parse().ok().map(one),
        ["--seeds", range] => parse(range).map(sweep),
        _ => None,
    };
    done.unwrap_or_else(|| {
        eprintln!("usage: cargo xtask sim [--seed N | --seeds FIRST..END]");
        ExitCode::from(2)
    })
}

fn parse(range: &str) -> Option<Range<u64>> {
    let (first, end) = range.split_once("..")?;
    let (first, end) = (first.parse().ok()?, end.parse().ok()?);
    (first < end).then_some(first..end)
}

fn one(seed: u64) -> ExitCode {
    let mut trial = Trial::of_seed(seed);
    println!("{}", trial.describe());
    let folder = std::env::temp_dir();
    println!("qlogs: {}/{seed}-{{client,server}}.sqlog", folder.display());
    trial.setup.qlog = Some(folder);
    match run_trial(trial) {
        Ok(report) => {
            println!("{report:#?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// The results of many seeds.
#[derive(Default)]
struct Summary {
    faults: BTreeMap<Fault, u64>,
    handshakes: [u64; 3],
    failures: Vec<Failure>,
    steps: u64,
    packets: u64,
    slowest: Option<(std::time::Duration, u64)>,
}

impl Summary {
    fn add(&mut self, result: Result<Report, Failure>) {
        let report = match result {
            Ok(report) => report,
            Err(failure) => {
                println!("{failure}");
                self.failures.push(failure);
                return;
            }
        };
        for fault in &report.faults {
            *self.faults.entry(*fault).or_default() += 1;
        }
        self.handshakes[report.handshake_kind as usize] += 1;
        self.steps += report.steps;
        self.packets += report.stats.iter().map(|s| s.packets_sent).sum::<u64>();
        self.slowest = self.slowest.max(Some((report.transfer, report.seed)));
    }
}

fn sweep(seeds: Range<u64>) -> ExitCode {
    // A panic is a failure of its seed, and is reported there.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let result = run_seed(seed);
                    let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                    summary.add(result);
                    if summary.failures.len() >= SHOWN {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = seeds.end - seeds.start;
    println!(
        "{count} seeds in {:.0} s, {} packets, {} points in time",
        began.elapsed().as_secs_f64(),
        summary.packets,
        summary.steps
    );
    for fault in Fault::ALL {
        let times = summary.faults.get(&fault).copied().unwrap_or(0);
        println!("  {times:>8}  {}", fault.name());
    }
    for (kind, name) in [
        (Handshake::Full, "full handshakes"),
        (Handshake::Resumed, "resumed"),
        (Handshake::Early, "resumed with early data"),
    ] {
        println!("  {:>8}  {name}", summary.handshakes[kind as usize]);
    }
    if let Some((time, seed)) = summary.slowest {
        println!("  the slowest transfer took {time:?} of virtual time: seed {seed}");
    }
    if summary.failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!(
        "{} seeds failed; `cargo xtask sim --seed {}` runs the first again",
        summary.failures.len(),
        summary.failures[0].seed
    );
    ExitCode::FAILURE
}
