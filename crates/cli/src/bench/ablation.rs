//! The ways to combine header protection with the AEAD, compared.
//!
//! All ways of a cell alternate in the same rounds, so that drift of the machine does not show up
//! as a cost above the AEAD alone.

use std::fmt::Write as _;

use serde::Serialize;
use squall_protect::ablation::{self, Way};
use squall_yard::error::Result;
use squall_yard::stats::{lower_quartile, overhead};

use super::args::Protect;
use super::measure::{Cell, Course, Side, measure};
use super::progress::Progress;
use super::table::ROUNDS;
use super::{Group, ModeReport, SIZES, Setup, Subject, groups, reference};
use crate::output::{print_json, say};

/// Packets in a call: the most that one of the ways handles together.
const BATCHES: [usize; 1] = [32];

/// A row of the table.
#[derive(Clone, Copy)]
struct Entry {
    side: Side,
    /// Name in JSON.
    name: &'static str,
    /// Name in the table.
    title: &'static str,
}

/// The rows, in order; the others are compared with the first one.
const ENTRIES: [Entry; 7] = [
    Entry {
        side: Side::Pieces(Way::AeadAlone),
        name: "aead_alone",
        title: "AEAD alone",
    },
    Entry {
        side: Side::Pieces(Way::OneByOne),
        name: "one_by_one",
        title: "one packet at a time",
    },
    Entry {
        side: Side::Pieces(Way::Batched(8)),
        name: "batched_8",
        title: "batched over 8",
    },
    Entry {
        side: Side::Pieces(Way::Batched(32)),
        name: "batched_32",
        title: "batched over 32",
    },
    Entry {
        side: Side::Pieces(Way::Fused),
        name: "fused",
        title: "fused",
    },
    Entry {
        side: Side::Pieces(Way::FusedAndBatched),
        name: "fused_and_batched",
        title: "fused and batched",
    },
    Entry {
        side: Side::Shipped,
        name: "shipped",
        title: "as shipped",
    },
];

impl Entry {
    /// Why a cell lacks this row, if it does.
    fn missing(&self, course: &Course, cell: Cell) -> Option<String> {
        match self.side {
            Side::Pieces(Way::Batched(most)) if most > cell.batch => {
                Some(format!("a call has only {} packets", cell.batch))
            }
            Side::Pieces(way) if !ablation::has(way, course.keys()) => {
                Some(format!("not available in kernel {}", cell.kernel.name()))
            }
            _ => None,
        }
    }
}

/// One figure of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    subject: Subject,
    way: &'static str,
    /// Time per packet.
    ns: f64,
    /// What this way adds to the AEAD alone, and the 95 % confidence interval of that.
    overhead_ns: f64,
    overhead_percent: f64,
    overhead_low_percent: f64,
    overhead_high_percent: f64,
    rounds_used: usize,
    rounds_dropped: usize,
    quiet: bool,
}

/// A row missing from a cell.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
struct LeftOut {
    suite: &'static str,
    kernel: &'static str,
    direction: &'static str,
    batch: usize,
    way: &'static str,
    reason: String,
}

/// Everything printed with `--json`.
#[derive(Serialize)]
struct AblationReport {
    #[serde(flatten)]
    report: ModeReport<Row>,
    left_out: Vec<LeftOut>,
}

/// Runs the mode.
pub(super) fn main(args: &Protect) -> Result<()> {
    let groups = groups(args, &BATCHES, &SIZES)?;
    let wanted = args.rounds.unwrap_or(ROUNDS);
    let mut rows = Vec::new();
    let mut left_out = Vec::new();
    let setup = Setup::new(wanted).with_clock();
    let mut reference = reference();
    let progress = Progress::start(groups.iter().map(|group| group.cells.len()).sum());
    if !args.json {
        progress.say(&setup.machine());
    }
    for group in &groups {
        let mut own_rows = Vec::new();
        let mut own_left_out = Vec::new();
        for &cell in &group.cells {
            progress.show(format!("{}, {} bytes", group.title, cell.size));
            let mut course = Course::new(cell)?;
            let entries = present(&course, cell, &mut own_left_out);
            let sides: Vec<Side> = entries.iter().map(|entry| entry.side).collect();
            let samples = measure(&mut course, &sides, wanted, &mut reference, &progress)?;
            own_rows.extend(entries.iter().zip(&samples.sides).map(|(entry, own)| {
                let alone = samples.sides.first().unwrap_or(own);
                let overhead = overhead(alone, own);
                Row {
                    subject: cell.into(),
                    way: entry.name,
                    ns: lower_quartile(own),
                    overhead_ns: lower_quartile(own) - lower_quartile(alone),
                    overhead_percent: overhead.percent,
                    overhead_low_percent: overhead.low_percent,
                    overhead_high_percent: overhead.high_percent,
                    rounds_used: samples.used,
                    rounds_dropped: samples.dropped,
                    quiet: samples.quiet,
                }
            }));
            progress.step();
        }
        if !args.json {
            progress.say(&tables(group, &own_rows, &own_left_out));
        }
        rows.extend(own_rows);
        left_out.extend(own_left_out);
    }
    drop(progress);
    if args.json {
        print_json(&AblationReport {
            report: ModeReport {
                mode: "ablation",
                setup,
                rows,
            },
            left_out,
        })
    } else {
        say(LEGEND);
        Ok(())
    }
}

/// The entries of a cell; missing ones are noted, once for all sizes.
fn present(course: &Course, cell: Cell, left_out: &mut Vec<LeftOut>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for entry in ENTRIES {
        let Some(reason) = entry.missing(course, cell) else {
            entries.push(entry);
            continue;
        };
        let Subject {
            suite,
            kernel,
            direction,
            batch,
            ..
        } = cell.into();
        let note = LeftOut {
            suite,
            kernel,
            direction,
            batch,
            way: entry.name,
            reason,
        };
        if !left_out.contains(&note) {
            left_out.push(note);
        }
    }
    entries
}

/// The legend below the tables.
const LEGEND: &str = "
Lower quartiles; all variants of one size alternated within the same rounds. Columns: bytes of payload.
\"as shipped\" is what PacketKey::seal, or HeaderKey::unprotect with PacketKey::open, does.";

/// Two tables, one below the other: ns per packet, and percent above the AEAD alone.
fn tables(group: &Group, rows: &[Row], left_out: &[LeftOut]) -> String {
    let mut text = format!("\n{}", group.title);
    for (unit, first) in [("ns per packet", true), ("% above AEAD alone", false)] {
        let _ = write!(text, "\n{unit:<22}");
        for cell in &group.cells {
            let _ = write!(text, "{:>8}", cell.size);
        }
        for entry in ENTRIES.iter().skip(usize::from(!first)) {
            let own: Vec<&Row> = rows.iter().filter(|row| row.way == entry.name).collect();
            if own.is_empty() {
                continue;
            }
            let _ = write!(text, "\n{:<22}", entry.title);
            for row in own {
                let figure = if first { row.ns } else { row.overhead_percent };
                let _ = write!(text, "{figure:>8.1}");
            }
        }
    }
    for note in left_out {
        let title = ENTRIES.iter().find(|entry| entry.name == note.way);
        let title = title.map_or(note.way, |entry| entry.title);
        let _ = write!(text, "\nleft out: {title} ({})", note.reason);
    }
    let (used, dropped) = rows.iter().fold((usize::MAX, 0), |(used, dropped), row| {
        (used.min(row.rounds_used), dropped.max(row.rounds_dropped))
    });
    let _ = write!(
        text,
        "\nrounds per size: at least {used} used, at most {dropped} dropped"
    );
    if rows.iter().any(|row| !row.quiet) {
        text += "; the machine was too busy to keep the requested rounds";
    }
    text
}
