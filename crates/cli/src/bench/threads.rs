//! Throughput of each thread as threads are added: how much the cores of a machine slow each other
//! down.
//!
//! Every thread has its own keys and packets; only the machine is shared. If each thread has its
//! own core, its throughput is packets over its own CPU time: other programs that run here do not
//! count, but what the cores take from one another (clock, caches, memory) does. With more threads
//! than cores it is packets over wall-clock time, since waiting for a core is then the point. The
//! time to restore the packets is subtracted from both.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use squall_yard::error::{Failure, Result, context};
use squall_yard::stats::Spread;
use squall_yard::sys;

use super::args::Protect;
use super::measure::{Cell, Course, Side};
use super::progress::Progress;
use super::{ModeReport, Setup, Subject, groups};
use crate::output::say;

/// Packets in a call, unless `--batch` says otherwise.
const BATCHES: [usize; 1] = [8];
/// Bytes of payload, unless `--sizes` says otherwise.
const SIZES: [usize; 1] = [1450];
/// Repetitions, unless `--rounds` says otherwise.
const REPETITIONS: usize = 15;
/// How long the threads work in one repetition.
const RUN: Duration = Duration::from_millis(100);

/// A number of threads, for one cell.
#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    subject: Subject,
    threads: usize,
    /// Whether each thread had its own core.
    pinned: bool,
    /// Payload, for the mean thread of the median repetition.
    mbit_per_s_per_thread: f64,
    mbit_per_s_total: f64,
    /// The share of one thread's throughput alone in the same repetition: median and quartiles.
    share_percent: f64,
    share_low_percent: f64,
    share_high_percent: f64,
}

/// Runs the mode.
pub(super) fn main(args: &Protect, counts: &[usize]) -> Result<()> {
    let groups = groups(args, &BATCHES, &SIZES)?;
    let repetitions = args.rounds.unwrap_or(REPETITIONS);
    let cores = sys::allowed_cores();
    let setup = Setup::new(repetitions).with_clock();
    let cells: Vec<Cell> = groups
        .iter()
        .flat_map(|group| group.cells.iter().copied())
        .collect();
    let progress = Progress::start(cells.len() * repetitions);
    if !args.json {
        progress.say(&setup.machine());
    }
    let mut rows = Vec::new();
    for group in &groups {
        for &cell in &group.cells {
            progress.show(format!("{}, {} bytes", group.title, cell.size));
            let own = rows_of(cell, counts, repetitions, &cores, &progress)?;
            if !args.json {
                progress.say(&table(
                    &format!("{}, {} bytes", group.title, cell.size),
                    &own,
                ));
            }
            rows.extend(own);
        }
    }
    drop(progress);
    if args.json {
        return ModeReport {
            mode: "threads",
            setup,
            rows,
        }
        .print();
    }
    say(
        "\nMbit/s of payload; share: relative to one thread alone in the same repetition, median [quartiles].",
    );
    Ok(())
}

fn table(title: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "\n{title}\n{:>8}{:>18}{:>12}{:>10} {}",
        "threads", "Mbit/s per thread", "total", "share %", "[quartiles]"
    );
    for row in rows {
        let line = format!(
            "\n{:>8}{:>18.0}{:>12.0}{:>10.1} {:<16}{}",
            row.threads,
            row.mbit_per_s_per_thread,
            row.mbit_per_s_total,
            row.share_percent,
            format!(
                "[{:.1}, {:.1}]",
                row.share_low_percent, row.share_high_percent
            ),
            if row.pinned {
                ""
            } else {
                "not pinned: more threads than cores"
            }
        );
        text += line.trim_end();
    }
    text
}

fn rows_of(
    cell: Cell,
    counts: &[usize],
    repetitions: usize,
    cores: &[usize],
    progress: &Progress,
) -> Result<Vec<Row>> {
    // Packets per second of the mean thread, by count and repetition.
    let mut rates = vec![Vec::with_capacity(repetitions); counts.len()];
    for repetition in 0..repetitions {
        for step in 0..counts.len() {
            // No count always runs after the same one.
            let at = (step + repetition) % counts.len();
            if let Some((&count, rates)) = counts.get(at).zip(rates.get_mut(at)) {
                rates.push(run(cell, count, cores)?);
            }
        }
        progress.step();
    }
    let alone = rates.first().cloned().unwrap_or_default();
    let rows = counts.iter().zip(rates).map(|(&threads, rates)| {
        let shares = rates
            .iter()
            .zip(&alone)
            .map(|(rate, alone)| rate / alone * 100.0)
            .collect();
        let share = Spread::of(shares);
        let mbit = Spread::of(rates).median * cell.size as f64 * 8.0 / 1e6;
        Row {
            subject: cell.into(),
            threads,
            pinned: threads <= cores.len(),
            mbit_per_s_per_thread: mbit,
            mbit_per_s_total: mbit * threads as f64,
            share_percent: share.median,
            share_low_percent: share.low,
            share_high_percent: share.high,
        }
    });
    Ok(rows.collect())
}

/// Packets per second, the mean over this many threads.
fn run(cell: Cell, threads: usize, cores: &[usize]) -> Result<f64> {
    let barrier = Barrier::new(threads);
    let rates: Vec<Result<f64>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|at| {
                let core = cores.get(at).copied().filter(|_| threads <= cores.len());
                let barrier = &barrier;
                thread::Builder::new()
                    .name(format!("protect {at}"))
                    .spawn_scoped(scope, move || work(cell, core, barrier))
            })
            .collect();
        let join = |worker: std::io::Result<thread::ScopedJoinHandle<'_, Result<f64>>>| {
            let worker = worker.map_err(context("cannot start a thread"))?;
            worker
                .join()
                .map_err(|_| Failure::new("a thread of the measurement panicked"))?
        };
        workers.into_iter().map(join).collect()
    });
    let rates: Vec<f64> = rates.into_iter().collect::<Result<_>>()?;
    Ok(rates.iter().sum::<f64>() / threads as f64)
}

/// One thread: packets per second.
fn work(cell: Cell, core: Option<usize>, barrier: &Barrier) -> Result<f64> {
    let pinned = core.map_or(Ok(()), |core| {
        sys::pin(core).map_err(context("cannot pin a thread"))
    });
    let course = Course::new(cell);
    // The other threads wait here, so an error is reported only afterwards.
    barrier.wait();
    pinned?;
    let mut course = course?;
    let cost = clock_cost();
    let mut worked = Duration::ZERO;
    let mut passes = 0_u32;
    let (start, cpu_start) = (Instant::now(), sys::thread_cpu());
    while start.elapsed() < RUN {
        course.restore(Side::Shipped);
        let before = sys::thread_cpu();
        course.work(Side::Shipped);
        worked += sys::thread_cpu()
            .saturating_sub(before)
            .saturating_sub(cost);
        passes += 1;
    }
    let wall = start.elapsed().as_secs_f64();
    let cpu = (sys::thread_cpu() - cpu_start).as_secs_f64();
    course.check()?;
    let packets = f64::from(passes) * course.count() as f64;
    let worked = worked.as_secs_f64();
    let time = match core {
        Some(_) => worked,
        None => wall * worked / cpu.max(f64::MIN_POSITIVE),
    };
    Ok(packets / time.max(f64::MIN_POSITIVE))
}

/// The cost of reading the thread's CPU clock: it is a system call.
pub(super) fn clock_cost() -> Duration {
    let look = || {
        let before = sys::thread_cpu();
        sys::thread_cpu().saturating_sub(before)
    };
    (0..100).map(|_| look()).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use squall_protect::{KernelKind, Suite};

    use super::super::args::Direction;
    use super::*;

    #[test]
    fn more_threads_than_cores_share_them() {
        let cell = Cell {
            suite: Suite::Aes128Gcm,
            kernel: KernelKind::Portable,
            direction: Direction::Open,
            batch: 8,
            size: 64,
        };
        let one_core = sys::allowed_cores().into_iter().take(1).collect::<Vec<_>>();
        let rate = run(cell, 1, &one_core).expect("a thread");
        assert!(rate > 0.0);
        let cores = sys::allowed_cores().len().max(1);
        let crowded = run(cell, cores * 4, &one_core).expect("threads");
        assert!(crowded < rate * 0.7, "{crowded} {rate}");
    }
}
