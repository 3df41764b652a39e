//! The table of the WinQuic measurement: without and with header protection, by size.

use serde::Serialize;
use squall_protect::Suite;
use squall_protect::ablation::Way;
use squall_yard::chart::{File, Panels, Point};
use squall_yard::error::Result;
use squall_yard::stats::{lower_quartile, overhead};

use super::args::Protect;
use super::measure::{Cell, Course, Reference, Samples, Side, measure};
use super::progress::Progress;
use super::{Group, ModeReport, SIZES, Setup, Subject, groups, reference};
use crate::output::say;

/// Packets in a call.
const BATCHES: [usize; 3] = [1, 8, 32];
/// Pairs, unless `--rounds` says otherwise.
pub(super) const ROUNDS: usize = 400;
/// The sides that alternate.
const SIDES: [Side; 2] = [Side::Pieces(Way::AeadAlone), Side::Shipped];
/// Bytes of payload in a full packet, for comparing its speed with that of a block.
const FULL_PACKET: usize = 1450;
/// Bytes of payload in a block: the largest record of TLS (RFC 8446 §5.1).
const BLOCK: usize = 16 * 1024;

/// The highest overhead of header protection allowed, in percent, by size.
fn limit_percent(cell: Cell) -> Option<f64> {
    match (cell.batch, cell.size) {
        (8, 64) => Some(10.0),
        (8, 256) => Some(5.0),
        (8, 1000..) => Some(2.0),
        (1, 1000..) => Some(4.0),
        _ => None,
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) subject: Subject,
    /// Time per packet, without header protection.
    pub(super) ns: f64,
    pub(super) ns_with_hp: f64,
    mbit_per_s: f64,
    mbit_per_s_with_hp: f64,
    /// What header protection adds, and the 95 % confidence interval of that.
    overhead_percent: f64,
    overhead_low_percent: f64,
    overhead_high_percent: f64,
    /// The core's clock while this row was measured; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    core_ghz: Option<f64>,
    /// Core cycles per byte of payload; absent if the core's clock is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_per_byte: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_per_byte_with_hp: Option<f64>,
    pairs_used: usize,
    pairs_dropped: usize,
    /// Whether as many pairs as wanted were steady; with a share of blocks, their rounds as well.
    quiet: bool,
    /// Absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_percent: Option<f64>,
    /// The speed of the AEAD alone as a share of that on blocks of 16 KiB, the largest TLS records;
    /// only for full packets with AES-GCM.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_16_kib_blocks: Option<f64>,
    /// `within`, `above` or `no limit`.
    verdict: &'static str,
    /// Whether the limit lies outside the interval, so that the verdict is not due to chance.
    sure: bool,
}

impl Row {
    fn new(cell: Cell, samples: &Samples, core_ghz: Option<f64>) -> Self {
        let side = |at: usize| samples.sides.get(at).map_or(&[][..], Vec::as_slice);
        let (without, with) = (side(0), side(1));
        let overhead = overhead(without, with);
        let (ns, ns_with_hp) = (lower_quartile(without), lower_quartile(with));
        let bytes = cell.size as f64;
        let limit_percent = limit_percent(cell);
        let verdict = match limit_percent {
            None => "no limit",
            Some(limit) if overhead.percent <= limit => "within",
            Some(_) => "above",
        };
        let inside = overhead.low_percent..=overhead.high_percent;
        Self {
            subject: cell.into(),
            ns,
            ns_with_hp,
            mbit_per_s: bytes * 8.0 / ns * 1e3,
            mbit_per_s_with_hp: bytes * 8.0 / ns_with_hp * 1e3,
            overhead_percent: overhead.percent,
            overhead_low_percent: overhead.low_percent,
            overhead_high_percent: overhead.high_percent,
            core_ghz,
            cycles_per_byte: core_ghz.map(|ghz| ns * ghz / bytes),
            cycles_per_byte_with_hp: core_ghz.map(|ghz| ns_with_hp * ghz / bytes),
            pairs_used: samples.used,
            pairs_dropped: samples.dropped,
            quiet: samples.quiet,
            limit_percent,
            share_of_16_kib_blocks: None,
            verdict,
            sure: limit_percent.is_none_or(|limit| !inside.contains(&limit)),
        }
    }

    /// A line, followed by the comparison with blocks, if there is one.
    fn text(&self) -> String {
        let cycles = |cycles: Option<f64>| {
            cycles.map_or_else(|| "-".to_owned(), |cycles| format!("{cycles:.2}"))
        };
        let verdict = match self.limit_percent {
            Some(limit) if self.sure => format!("{} {limit} %", self.verdict),
            Some(limit) => format!("{} {limit} %?", self.verdict),
            None => String::new(),
        };
        let line = format!(
            "{:>6}{:>9.1}{:>9.1}{:>9.0}{:>9.0}{:>8}{:>8}{:>9.1} {:<15}{:>6}{:>9}{}  {verdict}",
            self.subject.size,
            self.ns,
            self.ns_with_hp,
            self.mbit_per_s,
            self.mbit_per_s_with_hp,
            cycles(self.cycles_per_byte),
            cycles(self.cycles_per_byte_with_hp),
            self.overhead_percent,
            format!(
                "[{:.1}, {:.1}]",
                self.overhead_low_percent, self.overhead_high_percent
            ),
            self.pairs_used,
            self.pairs_dropped,
            if self.quiet { ' ' } else { '!' },
        );
        let line = line.trim_end();
        match self.share_of_16_kib_blocks {
            None => line.to_owned(),
            Some(share) => {
                format!(
                    "{line}\n{:>6}AEAD: {share:.2} of the speed of 16 KiB blocks",
                    ""
                )
            }
        }
    }
}

fn heading(group: &Group) -> String {
    format!(
        "\n{}\n{:>6}{:^18}{:^18}{:^16}{:^25}{:>15}\n{:>6}{pair:>18}{pair:>18}{:>8}{:>8}{:>9} {:<15}{:>6}{:>9}   limit",
        group.title,
        "",
        "ns per packet",
        "Mbit/s",
        "cycles per byte",
        "header protection adds",
        "pairs",
        "bytes",
        "AEAD",
        "with HP",
        "percent",
        "[95 %]",
        "used",
        "dropped",
        pair = format!("{:>9}{:>9}", "AEAD", "with HP"),
    )
}

/// The legend below the tables.
const LEGEND: &str = "\
bytes: payload. Limits, in calls of 8 packets: 10 % at 64 bytes, 5 % at 256, 2 % from 1000 on; in
calls of one packet: 4 % from 1000 on. \"?\": the limit is within the interval. \"!\": the machine
was too busy to keep the requested pairs.";

/// Runs the mode.
pub(super) fn main(args: &Protect) -> Result<()> {
    let groups = groups(args, &BATCHES, &SIZES)?;
    let picture = args.plot.as_deref().map(File::create).transpose()?;
    let wanted = args.rounds.unwrap_or(ROUNDS);
    let setup = Setup::new(wanted).with_clock();
    let mut reference = reference();
    let progress = Progress::start(groups.iter().map(|group| group.cells.len()).sum());
    if !args.json {
        progress.say(&setup.machine());
    }
    let mut rows = Vec::new();
    for group in &groups {
        if !args.json {
            progress.say(&heading(group));
        }
        for &cell in &group.cells {
            progress.show(format!("{}, {} bytes", group.title, cell.size));
            let row = row(cell, wanted, &mut reference, &progress)?;
            if !args.json {
                progress.say(&row.text());
            }
            rows.push(row);
            progress.step();
        }
    }
    drop(progress);
    if let Some(picture) = picture {
        picture.write(&chart(&setup.machine(), &rows).svg())?;
    }
    if args.json {
        ModeReport {
            mode: "table",
            setup,
            rows,
        }
        .print()
    } else {
        say(&format!("\n{LEGEND}"));
        Ok(())
    }
}

/// The table as a chart: a panel for each suite and direction.
fn chart(machine: &str, rows: &[Row]) -> Panels {
    let points = rows.iter().map(|row| {
        let subject = &row.subject;
        Point {
            panel: format!(
                "{}, {}, kernel {}",
                subject.suite, subject.direction, subject.kernel
            ),
            batch: subject.batch,
            size: subject.size,
            ns: row.ns,
            ns_with_hp: row.ns_with_hp,
        }
    });
    Panels {
        machine: machine.to_owned(),
        points: points.collect(),
    }
}

fn row(cell: Cell, wanted: usize, reference: &mut Reference, progress: &Progress) -> Result<Row> {
    let mut course = Course::new(cell)?;
    let samples = measure(&mut course, &SIDES, wanted, reference, progress)?;
    let mut row = Row::new(cell, &samples, reference.core_ghz());
    if cell.size == FULL_PACKET && cell.suite != Suite::ChaCha20Poly1305 {
        let size = BLOCK;
        let mut course = Course::new(Cell { size, ..cell })?;
        let samples = measure(&mut course, &SIDES[..1], wanted, reference, progress)?;
        let ns = lower_quartile(samples.sides.first().map_or(&[][..], Vec::as_slice));
        row.share_of_16_kib_blocks = Some((ns / BLOCK as f64) / (row.ns / cell.size as f64));
        row.quiet &= samples.quiet;
    }
    Ok(row)
}
