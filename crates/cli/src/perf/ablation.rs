//! `squall perf --ablation`: the bulk transfer with each technique turned off in turn.
//!
//! ```text
//!   round:  all on, without GSO, without GRO, …     the order rotates from round to round
//!           each row against "all on" of the same round ─► the median of the rounds' ratios
//! ```
//! CPU is that of the whole process and of `ksoftirqd`: workers that are tasks of a runtime have no
//! thread of their own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use squall_yard::certificate::Certificate;
use squall_yard::cpu::{Cores, Ksoftirqd};
use squall_yard::error::{Failure, Result, context};
use squall_yard::layout::{self, Column, Grid, Group};
use squall_yard::live::{Gauges, Live, Unit};
use squall_yard::options::Options;
use squall_yard::stats::median;
use squall_yard::suites::Suite;
use squall_yard::work::{Amount, Flow, Load};
use squall_yard::{interrupt, sys};

use super::args::Local;
use super::quic::Quic;
use super::{cores, rotated};
use crate::output::{print_json, say};

/// A technique, named by turning it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    Gso,
    Gro,
    Pacing,
    AckFrequency,
    Runs,
    SealingInPlace,
    FusedHeaderProtection,
    Workers,
}

impl Without {
    const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Gso,
        Self::Gro,
        Self::Pacing,
        Self::AckFrequency,
        Self::Runs,
        Self::SealingInPlace,
        Self::FusedHeaderProtection,
        Self::Workers,
    ];

    /// The name in JSON.
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Gso => "gso",
            Self::Gro => "gro",
            Self::Pacing => "pacing",
            Self::AckFrequency => "ack_frequency",
            Self::Runs => "runs",
            Self::SealingInPlace => "sealing_in_place",
            Self::FusedHeaderProtection => "fused_header_protection",
            Self::Workers => "workers",
        }
    }

    /// The name for people.
    fn title(self) -> &'static str {
        match self {
            Self::Nothing => "all techniques on",
            Self::Gso => "without GSO",
            Self::Gro => "without GRO",
            Self::Pacing => "without pacing",
            Self::AckFrequency => "without ACK frequency",
            Self::Runs => "without runs of packets",
            Self::SealingInPlace => "copied before sealing",
            Self::FusedHeaderProtection => "header protection apart",
            Self::Workers => "on a tokio runtime",
        }
    }

    /// The options of both ends.
    fn options(self, options: &Options) -> Options {
        let mut options = options.clone();
        match self {
            Self::Nothing | Self::Workers => {}
            Self::Gso => options.no_gso = true,
            Self::Gro => options.no_gro = true,
            Self::Pacing => options.no_pacing = true,
            Self::AckFrequency => options.no_ack_frequency = true,
            Self::Runs => options.ablation.no_runs = true,
            Self::SealingInPlace => options.ablation.copies_before_sealing = true,
            Self::FusedHeaderProtection => options.ablation.header_protection_apart = true,
        }
        options
    }
}

/// The result of one row in one round.
#[derive(Clone, Copy, Debug)]
struct Part {
    row: usize,
    round: usize,
    bytes: u64,
    elapsed: Duration,
    cpu: Duration,
}

impl Part {
    fn cpu_s_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9)
    }
}

/// A row of the results.
#[derive(Debug, Serialize)]
struct Row {
    without: &'static str,
    gbit_per_s: f64,
    /// Both ends.
    cpu_s_per_gb: f64,
    /// CPU relative to all techniques on: the median of the rounds' ratios.
    ratio: Option<f64>,
    rounds_cpu_s_per_gb: Vec<f64>,
    #[serde(skip)]
    title: &'static str,
}

/// The results.
#[derive(Debug, Serialize)]
struct Report {
    setup: String,
    rounds: usize,
    interrupted: bool,
    rows: Vec<Row>,
}

/// Measures round by round.
///
/// # Errors
/// A connection broke, or the machine refused something.
pub(super) fn measure(args: &Local, flow: Flow, amount: Amount) -> Result<()> {
    let cores = cores(args.cpu, args.options.workers, &sys::allowed_cores())?;
    let certificate = Certificate::generate()?;
    let (loopback, work) = (args.family.loopback(), &args.work);
    let mut options = args.options.clone();
    options.suite.get_or_insert(Suite::Aes128.into());
    let mut contenders = Vec::new();
    for without in Without::ALL {
        let options = without.options(&options);
        let quic = Quic::new(&certificate, &options, work.connections(), loopback)?;
        contenders.push(match without {
            Without::Workers => quic.on_runtime(runtime(cores)?),
            _ => quic,
        });
    }
    let amount = match amount {
        Amount::Bytes(bytes) => Amount::Bytes(bytes),
        Amount::Time(time) => Amount::Time(time / u32::try_from(args.rounds).unwrap_or(u32::MAX)),
    };
    let setup = format!(
        "loopback ({loopback}), {cores}, {}, {} connection(s) of {} stream(s), {} rounds, {}",
        flow.name(),
        work.connections(),
        work.streams,
        args.rounds,
        options
    );
    if args.output.is_text() {
        say(&layout::wrap(&setup, layout::width()));
    }
    let ksoftirqd = Ksoftirqd::find(cores);
    let mut parts = Vec::new();
    let rows_in_order: Vec<usize> = (0..contenders.len()).collect();
    'rounds: for round in 0..args.rounds {
        for row in rotated(&rows_in_order, round) {
            let load = Load {
                connections: work.connections(),
                streams: work.streams,
                flow,
                amount,
                cores,
                loopback,
                seed: None,
                bitrate: work.bitrate,
                gauges: Gauges::default(),
            };
            let (of, title) = (args.rounds, Without::ALL[row].title());
            let title = format!("round {} of {of}, {title}", round + 1);
            let live = Live::with_intervals(title, Unit::Bytes, &flow.lanes(&load.gauges), None);
            let before = ksoftirqd.now();
            let outcome = contenders[row].bulk(&load)?;
            live.finish(outcome.ended);
            let soft = ksoftirqd.now() - before;
            let process = outcome.used.map_or(Duration::ZERO, |used| used.process);
            parts.push(Part {
                row,
                round,
                bytes: outcome.bytes,
                elapsed: outcome.elapsed,
                cpu: process + soft.server + soft.client,
            });
            if interrupt::raised() {
                break 'rounds;
            }
        }
    }
    let report = Report {
        setup,
        rounds: args.rounds,
        interrupted: interrupt::raised(),
        rows: rows(&parts),
    };
    if report.rows.is_empty() {
        return Err(Failure::new("interrupted before anything was measured"));
    }
    if args.output.json {
        return print_json(&report);
    }
    say(layout::wrap(&report.text(layout::width()), layout::width()).trim_end());
    Ok(())
}

/// A runtime like an application's: two threads, on the workers' cores.
fn runtime(cores: Cores) -> Result<tokio::runtime::Runtime> {
    let started = AtomicUsize::new(0);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(move || {
            let first = started.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
            let core = if first { cores.server } else { cores.client };
            // A core that is gone is no reason to stop: the workers were pinned to it earlier.
            core.map(sys::pin);
        })
        .build()
        .map_err(context("cannot start a tokio runtime"))
}

/// The rows that have moved something.
fn rows(parts: &[Part]) -> Vec<Row> {
    let parts = || parts.iter().filter(|part| part.bytes > 0);
    let each = Without::ALL.into_iter().enumerate();
    each.filter_map(|(row, without)| {
        let own: Vec<&Part> = parts().filter(|part| part.row == row).collect();
        let bytes: u64 = own.iter().map(|part| part.bytes).sum();
        let gb = bytes as f64 / 1e9;
        let sum = |of: fn(&Part) -> Duration| own.iter().map(|part| of(part)).sum::<Duration>();
        let ratios = own.iter().filter_map(|part| {
            let all_on = parts().find(|other| other.row == 0 && other.round == part.round)?;
            Some(part.cpu_s_per_gb() / all_on.cpu_s_per_gb()).filter(|ratio| ratio.is_finite())
        });
        (bytes > 0).then(|| Row {
            without: without.name(),
            gbit_per_s: gb * 8.0 / sum(|part| part.elapsed).as_secs_f64(),
            cpu_s_per_gb: sum(|part| part.cpu).as_secs_f64() / gb,
            ratio: median(ratios.collect()),
            rounds_cpu_s_per_gb: own.iter().map(|part| part.cpu_s_per_gb()).collect(),
            title: without.title(),
        })
    })
    .collect()
}

impl Report {
    fn text(&self, width: usize) -> String {
        let column = |heading, cell: &dyn Fn(&Row) -> String| {
            Column::new(heading, self.rows.iter().map(cell))
        };
        let columns = vec![
            column("Gbit/s", &|row| format!("{:.2}", row.gbit_per_s)),
            column("CPU-s/GB", &|row| format!("{:.3}", row.cpu_s_per_gb)),
            column("ratio", &|row| {
                row.ratio
                    .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
            }),
        ];
        let grid = Grid {
            title: String::new(),
            labels: self.rows.iter().map(|row| row.title.to_owned()).collect(),
            groups: vec![Group {
                title: String::new(),
                columns,
            }],
        };
        let mut text = grid.text(width);
        text += "(CPU-s/GB: of both ends and ksoftirqd; ratio: against all techniques on, the median of the rounds' ratios)\n";
        if self.interrupted {
            text += "Interrupted: the figures cover the time until then.\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_technique_is_turned_off_alone() {
        let options: Options = squall_yard::parse::group(&[]).expect("no arguments");
        let all: Vec<String> = (Without::ALL.iter())
            .map(|without| {
                let options = without.options(&options);
                format!("{options:?} {:?}", options.transport(1))
            })
            .collect();
        for (at, without) in Without::ALL.iter().enumerate().skip(1) {
            // Where workers run is not an option.
            let is_like_all_on = all[at] == all[0];
            assert_eq!(is_like_all_on, *without == Without::Workers, "{without:?}");
            assert!(
                all[..at].iter().skip(1).all(|other| *other != all[at]),
                "{without:?}"
            );
        }
        let transport = Without::Runs.options(&options).transport(1);
        assert!(transport.ablation.no_runs && !transport.ablation.copies_before_sealing);
        let transport = Without::SealingInPlace.options(&options).transport(1);
        assert!(transport.ablation.copies_before_sealing && !transport.ablation.no_runs);
    }

    #[test]
    fn a_ratio_is_the_median_of_ratios_within_rounds() {
        let part = |row, round, cpu_ms| Part {
            row,
            round,
            bytes: 1_000_000_000,
            elapsed: Duration::from_secs(1),
            cpu: Duration::from_millis(cpu_ms),
        };
        let parts = [
            part(0, 0, 100),
            part(1, 0, 200),
            part(1, 1, 4_000),
            part(0, 1, 1_000),
            part(0, 2, 300),
            part(1, 2, 900),
        ];
        let rows = rows(&parts);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[1].without, rows[1].ratio), ("gso", Some(3.0)));
        assert_eq!(rows[0].ratio, Some(1.0));
        assert!((rows[0].gbit_per_s - 8.0).abs() < 1e-9);
        assert!((rows[1].cpu_s_per_gb - 1.7).abs() < 1e-9);
    }
}
