//! An ordinary workload on all cores, with a share of the time spent on packet protection: what
//! wide instructions cost code that does not use them.
//!
//! ```text
//!   each core    compress 32 KiB of text | seal or open packets | compress | seal or open | ...
//! ```
//! The time for the packets is known and subtracted. What remains is how much longer the same text
//! takes to compress: because 512-bit multiplies lower the core's clock, caches are swept, and
//! buffers and predictors are trained on other code. Every kernel sweeps the same caches, so the
//! difference between kernels is due to their instructions.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use flate2::{Compress, Compression, FlushCompress};
use serde::Serialize;
use squall_yard::error::{Failure, Result, context};
use squall_yard::stats::Spread;
use squall_yard::sys;

use super::args::Protect;
use super::measure::{Cell, Course, Side};
use super::progress::Progress;
use super::threads::clock_cost;
use super::{ModeReport, Setup, Subject, kernels_of, single, text};
use crate::output::{print_json, say};

/// Repetitions, unless `--rounds` says otherwise.
const REPETITIONS: usize = 15;
/// How long the cores work in a repetition, for each kernel and for text alone: far longer than a
/// core takes to change its clock.
const RUN: Duration = Duration::from_millis(200);
/// Text that is compressed in one go: about a millisecond.
const TEXT_LEN: usize = 32 * 1024;

/// A kernel mixed with the text.
#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    subject: Subject,
    /// The packets' share of the time for text and packets.
    share: f64,
    /// Core time per packet, mixed with the text.
    ns: f64,
    /// Text per core, over the time left for it.
    text_mb_per_s: f64,
    /// How much longer the text took than alone in the same repetition: median and quartiles.
    slowdown_percent: f64,
    slowdown_low_percent: f64,
    slowdown_high_percent: f64,
}

/// Everything printed with `--json`.
#[derive(Serialize)]
struct MixedReport {
    #[serde(flatten)]
    report: ModeReport<Row>,
    cores: usize,
    share_wanted: f64,
    /// Text alone, per core.
    text_mb_per_s: f64,
}

/// The work of all cores in one repetition.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    texts: u64,
    text_time: Duration,
    packets: u64,
    packet_time: Duration,
}

impl Tally {
    fn text_s(self) -> f64 {
        self.text_time.as_secs_f64() / self.texts.max(1) as f64
    }

    fn share(self) -> f64 {
        let packets = self.packet_time.as_secs_f64();
        packets / (packets + self.text_time.as_secs_f64()).max(f64::MIN_POSITIVE)
    }

    fn packet_ns(self) -> f64 {
        self.packet_time.as_secs_f64() * 1e9 / self.packets.max(1) as f64
    }
}

/// Runs the mode.
pub(super) fn main(args: &Protect, share: f64) -> Result<()> {
    let batch = single(&args.batches(&[8]), "--batch", "--mixed")?;
    let size = single(&args.sizes(&[1450]), "--sizes", "--mixed")?;
    let mut cells = Vec::new();
    for suite in args.suites() {
        for direction in args.directions() {
            for kernel in kernels_of(args, suite)? {
                cells.push(Cell {
                    suite,
                    kernel,
                    direction,
                    batch,
                    size,
                });
            }
        }
    }
    let repetitions = args.rounds.unwrap_or(REPETITIONS);
    let cores = sys::allowed_cores();
    let setup = Setup::new(repetitions).with_clock();
    let tallies = measure(&cells, share, repetitions, &cores)?;
    let report = MixedReport {
        report: ModeReport {
            mode: "mixed",
            setup,
            rows: rows(&cells, &tallies),
        },
        cores: cores.len().max(1),
        share_wanted: share,
        text_mb_per_s: tallies.first().map_or(0.0, |alone| text_mb_per_s(alone)),
    };
    if args.json {
        print_json(&report)
    } else {
        say(&table(&report));
        Ok(())
    }
}

/// Runs text alone and every cell in turn; the tallies of text alone come first.
fn measure(
    cells: &[Cell],
    share: f64,
    repetitions: usize,
    cores: &[usize],
) -> Result<Vec<Vec<Tally>>> {
    let contenders: Vec<Option<Cell>> = std::iter::once(None)
        .chain(cells.iter().copied().map(Some))
        .collect();
    let mut tallies = vec![Vec::with_capacity(repetitions); contenders.len()];
    let progress = Progress::start(repetitions * contenders.len());
    for repetition in 0..repetitions {
        for step in 0..contenders.len() {
            let at = (step + repetition) % contenders.len();
            if let Some((&cell, tallies)) = contenders.get(at).zip(tallies.get_mut(at)) {
                progress.show(match cell {
                    Some(cell) => format!("text and {}", cell.kernel.name()),
                    None => "text alone".to_owned(),
                });
                tallies.push(run(cell, share, cores)?);
                progress.step();
            }
        }
    }
    Ok(tallies)
}

fn text_mb_per_s(tallies: &[Tally]) -> f64 {
    let rates = tallies
        .iter()
        .map(|tally| TEXT_LEN as f64 / tally.text_s() / 1e6);
    Spread::of(rates.collect()).median
}

fn rows(cells: &[Cell], tallies: &[Vec<Tally>]) -> Vec<Row> {
    let Some((alone, mixed)) = tallies.split_first() else {
        return Vec::new();
    };
    let row = |(&cell, own): (&Cell, &Vec<Tally>)| {
        let slowdowns = own.iter().zip(alone).map(|(own, alone)| {
            let slowdown = own.text_s() / alone.text_s().max(f64::MIN_POSITIVE);
            (slowdown - 1.0) * 100.0
        });
        let slowdown = Spread::of(slowdowns.collect());
        let median =
            |of: fn(Tally) -> f64| Spread::of(own.iter().copied().map(of).collect()).median;
        Row {
            subject: cell.into(),
            share: median(Tally::share),
            ns: median(Tally::packet_ns),
            text_mb_per_s: text_mb_per_s(own),
            slowdown_percent: slowdown.median,
            slowdown_low_percent: slowdown.low,
            slowdown_high_percent: slowdown.high,
        }
    };
    cells.iter().zip(mixed).map(row).collect()
}

fn table(report: &MixedReport) -> String {
    let mut text = format!(
        "{}\ntext compression (deflate) on {} core{}; {:.1} % of the time for {}\ntext alone: {:.1} MB/s per core\n\n{:<20}{:<6}{:<10}{:>12}{:>9}{:>8}{:>13} {}",
        report.report.setup.machine(),
        report.cores,
        if report.cores == 1 { "" } else { "s" },
        report.share_wanted * 100.0,
        "packets",
        report.text_mb_per_s,
        "suite",
        "",
        "kernel",
        "ns/packet",
        "share %",
        "MB/s",
        "slower by %",
        "[quartiles]"
    );
    for row in &report.report.rows {
        let quartiles = format!(
            "[{:.1}, {:.1}]",
            row.slowdown_low_percent, row.slowdown_high_percent
        );
        text += &format!(
            "\n{:<20}{:<6}{:<10}{:>12.1}{:>9.1}{:>8.1}{:>13.1} {quartiles}",
            row.subject.suite,
            row.subject.direction,
            row.subject.kernel,
            row.ns,
            row.share * 100.0,
            row.text_mb_per_s,
            row.slowdown_percent,
        );
    }
    if let Some(row) = report.report.rows.first() {
        text += &format!(
            "\n\nPackets of {} bytes, {} per call. Slower: slowdown beyond the time spent on the packets; median\nof {} repetitions, each compared with text alone in the same repetition.",
            row.subject.size, row.subject.batch, report.report.setup.rounds
        );
    }
    text
}

/// One repetition on all cores.
fn run(cell: Option<Cell>, share: f64, cores: &[usize]) -> Result<Tally> {
    let count = cores.len().max(1);
    let barrier = Barrier::new(count);
    let tallies: Vec<Result<Tally>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|at| {
                let (core, barrier) = (cores.get(at).copied(), &barrier);
                thread::Builder::new()
                    .name(format!("mixed {at}"))
                    .spawn_scoped(scope, move || work(cell, share, at as u64, core, barrier))
            })
            .collect();
        let join = |worker: std::io::Result<thread::ScopedJoinHandle<'_, Result<Tally>>>| {
            let worker = worker.map_err(context("cannot start a thread"))?;
            worker
                .join()
                .map_err(|_| Failure::new("a thread of the measurement panicked"))?
        };
        workers.into_iter().map(join).collect()
    });
    let mut sum = Tally::default();
    for tally in tallies {
        let tally = tally?;
        sum.texts += tally.texts;
        sum.text_time += tally.text_time;
        sum.packets += tally.packets;
        sum.packet_time += tally.packet_time;
    }
    Ok(sum)
}

/// One core. All times are the thread's own CPU time: other processes do not count.
fn work(
    cell: Option<Cell>,
    share: f64,
    seed: u64,
    core: Option<usize>,
    barrier: &Barrier,
) -> Result<Tally> {
    let pinned = core.map_or(Ok(()), |core| {
        sys::pin(core).map_err(context("cannot pin a thread"))
    });
    let course = cell.map(Course::new).transpose();
    let mut compressor = Compressor::new(seed);
    let warm = compressor.run();
    // The other threads wait here, so an error is reported only afterwards.
    barrier.wait();
    pinned?;
    warm?;
    let mut course = course?;
    let (cost, mut tally, start) = (clock_cost(), Tally::default(), Instant::now());
    while start.elapsed() < RUN {
        let before = sys::thread_cpu();
        compressor.run()?;
        tally.text_time += sys::thread_cpu()
            .saturating_sub(before)
            .saturating_sub(cost);
        tally.texts += 1;
        let due = tally.text_time.mul_f64(share / (1.0 - share));
        while let Some(course) = course.as_mut().filter(|_| tally.packet_time < due) {
            course.restore(Side::Shipped);
            let before = sys::thread_cpu();
            course.work(Side::Shipped);
            tally.packet_time += sys::thread_cpu()
                .saturating_sub(before)
                .saturating_sub(cost);
            tally.packets += course.count() as u64;
        }
    }
    course.map_or(Ok(()), |course| course.check())?;
    Ok(tally)
}

/// The ordinary work: the same text over and over, into the same buffer.
struct Compressor {
    text: Vec<u8>,
    room: Vec<u8>,
    deflate: Compress,
}

impl Compressor {
    fn new(seed: u64) -> Self {
        Self {
            text: text::generate(TEXT_LEN, seed + 1),
            room: vec![0; TEXT_LEN],
            deflate: Compress::new(Compression::default(), false),
        }
    }

    fn run(&mut self) -> Result<()> {
        self.deflate.reset();
        let finish = FlushCompress::Finish;
        let status = self.deflate.compress(&self.text, &mut self.room, finish);
        match status.map_err(context("compressing text"))? {
            flate2::Status::StreamEnd => Ok(()),
            _ => Err(Failure::new("the text did not compress")),
        }
    }
}

#[cfg(test)]
mod tests {
    use squall_protect::{KernelKind, Suite};

    use super::super::args::Direction;
    use super::*;

    #[test]
    fn packets_get_their_share_of_the_time() {
        let cell = Cell {
            suite: Suite::Aes128Gcm,
            kernel: KernelKind::Portable,
            direction: Direction::Seal,
            batch: 8,
            size: 1450,
        };
        let cores = sys::allowed_cores();
        for share in [0.1, 0.5] {
            let tally = run(Some(cell), share, &cores).expect("measured");
            let off = (tally.share() - share).abs();
            assert!(off < 0.05, "{share} {tally:?}");
        }
        let alone = run(None, 0.1, &cores).expect("measured");
        assert!(alone.texts > 0 && alone.packets == 0 && alone.share() == 0.0);
    }

    #[test]
    fn a_slowdown_is_relative_to_text_alone_in_the_same_repetition() {
        let cell = Cell {
            suite: Suite::Aes256Gcm,
            kernel: KernelKind::Portable,
            direction: Direction::Open,
            batch: 8,
            size: 1450,
        };
        let tally = |text_ms| Tally {
            texts: 10,
            text_time: Duration::from_millis(text_ms),
            packets: 1_000,
            packet_time: Duration::from_millis(1),
        };
        // The machine halves its speed in the second repetition, for both.
        let alone = vec![tally(100), tally(200), tally(100)];
        let mixed = vec![tally(110), tally(220), tally(110)];
        let row = rows(&[cell], &[alone, mixed]).pop().expect("a row");
        assert!((row.slowdown_percent - 10.0).abs() < 1e-9, "{row:?}");
        assert!((row.ns - 1_000.0).abs() < 1e-9);
    }
}
