//! `squall bench protect`: the cost of protecting a packet, and what header protection adds.
//! `squall bench core`: the cost of the rest of the transport (core.rs). `squall bench idle`: idle
//! connections (idle.rs).
//!
//! ```text
//!   args -> Plan: cells (suite, kernel, direction, batch, size)
//!             |
//!             +-- table      AEAD alone and as shipped, alternating    -> chart (SVG)
//!             +-- ablation   every way to combine the two, alternating
//!             |      \__ measure: rounds of sides over the same packets, a fixed loop around each
//!             |      \__ yard::stats: lower quartiles, the interval of the overhead
//!             +-- threads    the same work on more and more cores
//!             +-- mixed      text compression on all cores, a kernel in between  (text: the text)
//! ```
//! Overhead of header protection: the lower quartile of the rounds with it divided by the lower
//! quartile of those without, minus one; the interval is a bootstrap of whole pairs.

mod ablation;
pub(crate) mod args;
mod core;
mod idle;
mod measure;
mod mixed;
mod progress;
mod table;
mod text;
mod threads;

use serde::Serialize;
use squall_protect::chosen_kernel;
use squall_yard::error::{Failure, Result};

use crate::doctor::Cpu;
use crate::kernels::{able, named, suite_name};
use crate::output::print_json;
use args::{Bench, Part, Protect};
use measure::{Cell, HEADER_LEN, PACKETS, Reference};

/// Runs the command.
pub(crate) fn main(bench: Bench) -> Result<()> {
    let args = match bench.part {
        Part::Protect(args) => args,
        Part::Core(args) => return core::main(&args),
        Part::Idle(args) => return idle::main(&args),
    };
    match (&args.threads, args.mixed) {
        (Some(threads), _) => threads::main(&args, &threads.0),
        (_, Some(share)) => mixed::main(&args, share),
        _ if args.ablation => ablation::main(&args),
        _ => table::main(&args),
    }
}

/// The sizes of the WinQuic measurement, in bytes of payload, and 1,280: the least MTU of IPv6.
const SIZES: [usize; 9] = [4, 16, 64, 256, 600, 1000, 1200, 1280, 1450];

/// Cells that differ only in size: they become one table.
struct Group {
    cells: Vec<Cell>,
    title: String,
}

/// The cells that the arguments name, in the order of the report.
///
/// # Errors
/// A kernel does not support a suite.
fn groups(args: &Protect, batches: &[usize], sizes: &[usize]) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for suite in args.suites() {
        let kernel = match &args.kernel {
            Some(name) => named(name, suite)?,
            None => chosen_kernel(suite),
        };
        for direction in args.directions() {
            for batch in args.batches(batches) {
                let sizes = args.sizes(sizes).into_iter();
                groups.push(Group {
                    cells: sizes
                        .map(|size| Cell {
                            suite,
                            kernel,
                            direction,
                            batch,
                            size,
                        })
                        .collect(),
                    title: format!(
                        "{}, {}, kernel {}, {batch} packet{} per call",
                        suite_name(suite),
                        direction.name(),
                        kernel.name(),
                        if batch == 1 { "" } else { "s" }
                    ),
                });
            }
        }
    }
    Ok(groups)
}

/// The kernels that the arguments name for a suite: one, or all that have it.
///
/// # Errors
/// The kernel does not support the suite.
fn kernels_of(
    args: &Protect,
    suite: squall_protect::Suite,
) -> Result<Vec<squall_protect::KernelKind>> {
    match &args.kernel {
        Some(name) => named(name, suite).map(|kind| vec![kind]),
        None => Ok(able(suite)),
    }
}

/// The subject of a row, in JSON.
#[derive(Clone, Debug, Serialize)]
struct Subject {
    suite: &'static str,
    kernel: &'static str,
    direction: &'static str,
    batch: usize,
    size: usize,
}

impl From<Cell> for Subject {
    fn from(cell: Cell) -> Self {
        Self {
            suite: suite_name(cell.suite),
            kernel: cell.kernel.name(),
            direction: cell.direction.name(),
            batch: cell.batch,
            size: cell.size,
        }
    }
}

/// The setup of the measurement, in JSON.
#[derive(Clone, Debug, Serialize)]
struct Setup {
    cpu: String,
    /// The core's clock, measured by a chain of additions; absent on an architecture without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    core_ghz: Option<f64>,
    rounds: usize,
    header_bytes: usize,
    distinct_packets: usize,
}

impl Setup {
    /// Call it before this thread is pinned, while it sees all cores.
    fn new(rounds: usize) -> Self {
        Self {
            cpu: Cpu::read().title(),
            core_ghz: None,
            rounds,
            header_bytes: HEADER_LEN,
            distinct_packets: PACKETS,
        }
    }

    /// Measures the core's clock on a thread of its own, so that no other thread inherits its
    /// pinning.
    fn with_clock(mut self) -> Self {
        let clock = std::thread::spawn(|| reference().core_ghz());
        self.core_ghz = clock.join().unwrap_or_default();
        self
    }

    /// The machine in one line.
    fn machine(&self) -> String {
        match self.core_ghz {
            Some(ghz) => format!(
                "{}, core clock {ghz:.2} GHz (a chain of additions)",
                self.cpu
            ),
            None => self.cpu.clone(),
        }
    }
}

/// Everything that a mode prints with `--json`.
#[derive(Debug, Serialize)]
struct ModeReport<R> {
    /// `table`, `ablation`, `threads`, `mixed` or `core`.
    mode: &'static str,
    setup: Setup,
    rows: Vec<R>,
}

impl<R: Serialize> ModeReport<R> {
    fn print(&self) -> Result<()> {
        print_json(self)
    }
}

/// The only value of a list, for a mode that takes one.
///
/// # Errors
/// There are several values.
fn single(values: &[usize], option: &str, mode: &str) -> Result<usize> {
    match values {
        [value] => Ok(*value),
        _ => Err(Failure::new(format!("{mode} takes one value of {option}"))),
    }
}

/// The fixed loop, measured on the core where the work will be.
fn reference() -> Reference {
    if let Some(&core) = squall_yard::sys::allowed_cores().last() {
        // If pinning is refused the rounds are only noisier, and are reported as such.
        let _ = squall_yard::sys::pin(core);
    }
    Reference::calibrate()
}
