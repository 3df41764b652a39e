//! The cost table by stage: like the table of the WinQuic measurement, with finer rows.
//!
//! A worker reads the time-stamp counter when it passes from one stage to the next, once a batch.
//! The counter's rate converts ticks to nanoseconds. Ticks of waiting are mostly not CPU time: the
//! cost of a wait (the system calls that put the thread to sleep and wake it) is measured by
//! reading the thread's CPU clock before and after, for one wait in seven. The rest of the thread's
//! CPU time is *unattributed*, so each table sums to its thread's CPU time.
//!
//! If the kernel takes the CPU away inside a stage, that stage's ticks include other threads' time:
//! the stages claim too much, and the unattributed time is unknown rather than small. If they claim
//! more than the thread's CPU time, they are all scaled down to it.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use squall::{Stage, Waits};

use crate::chart::NOT_SPLIT;
use crate::layout::{self, Column, Grid, Group};

/// What one worker thread counted.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Names of the stages and ticks spent in each.
    pub stages: Vec<(&'static str, u64)>,
    /// What waiting cost.
    pub waits: Waits,
    /// How often the time-stamp counter was read.
    pub stamps: u64,
    /// The thread's CPU time.
    pub cpu: Duration,
    /// How often the kernel took the CPU away from the thread; 0 if the system does not say.
    pub preemptions: u64,
    /// Datagrams sent or received, whichever is the direction of the payload.
    pub packets: u64,
    /// Stream bytes delivered.
    pub bytes: u64,
    /// Requests or handshakes; none in a bulk transfer.
    pub operations: u64,
}

impl Sample {
    /// Adds another round of the same thread's work.
    pub fn add(&mut self, other: &Self) {
        if self.stages.is_empty() {
            self.stages.clone_from(&other.stages);
        } else {
            for (sum, more) in self.stages.iter_mut().zip(&other.stages) {
                sum.1 += more.1;
            }
        }
        self.waits += other.waits;
        self.stamps += other.stamps;
        self.cpu += other.cpu;
        self.preemptions += other.preemptions;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.operations += other.operations;
    }

    /// What was counted since an earlier sample of the same thread.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut stages = self.stages.clone();
        for (sum, less) in stages.iter_mut().zip(&before.stages) {
            sum.1 = sum.1.saturating_sub(less.1);
        }
        Self {
            stages,
            waits: self.waits.since(&before.waits),
            stamps: self.stamps - before.stamps,
            cpu: self.cpu.saturating_sub(before.cpu),
            preemptions: self.preemptions.saturating_sub(before.preemptions),
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            operations: self.operations - before.operations,
        }
    }

    /// Seconds of CPU time by stage, with waiting in a row of its own.
    pub fn seconds(&self, rates: Rates) -> Vec<(&'static str, f64)> {
        let seconds = |ticks: u64| ticks as f64 * rates.ns_per_tick / 1e9;
        let stages = self.stages.iter();
        let mut rows: Vec<_> = stages
            .map(|&(name, ticks)| (name, seconds(ticks)))
            .collect();
        rows.push((WAITING, rates.waiting(&self.waits) / 1e9));
        rows
    }
}

/// What reading the clocks costs, measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Clocks {
    /// One stamp.
    pub ns_per_stamp: f64,
    /// One reading of the thread's CPU clock.
    pub ns_per_cpu_reading: f64,
}

/// What turns ticks into time and cycles.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Nanoseconds per tick of the time-stamp counter.
    pub ns_per_tick: f64,
    /// What reading the clocks costs.
    pub clocks: Clocks,
    /// The core's clock, if it can be measured.
    pub core_ghz: Option<f64>,
}

impl Rates {
    /// Nanoseconds spent on reading the thread's CPU clock.
    fn readings(&self, waits: &Waits) -> f64 {
        (READINGS * waits.measured) as f64 * self.clocks.ns_per_cpu_reading
    }

    /// Nanoseconds of CPU time that waiting took, reading the clock included. A measured wait
    /// includes about half of each of its two readings: an unmeasured one is that much shorter.
    fn waiting(&self, waits: &Waits) -> f64 {
        if waits.measured == 0 {
            return 0.0;
        }
        let measured = waits.cpu.as_secs_f64() * 1e9 / waits.measured as f64;
        let each = (measured - self.clocks.ns_per_cpu_reading).max(0.0);
        each * waits.count as f64 + self.readings(waits)
    }
}

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The name of the stage.
    pub stage: &'static str,
    /// Nanoseconds of CPU time per packet; absent if unknown.
    pub ns_per_packet: Option<f64>,
    /// Microseconds of CPU time per request or handshake; absent for bulk transfers or if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_operation: Option<f64>,
    /// Core cycles per byte; absent if unknown, for example if the core's clock cannot be measured.
    pub cycles_per_byte: Option<f64>,
    /// Share of the thread's CPU time; absent if unknown.
    pub percent: Option<f64>,
}

impl Row {
    /// A row without any known figure.
    fn unknown(stage: &'static str) -> Self {
        Self {
            stage,
            ns_per_packet: None,
            us_per_operation: None,
            cycles_per_byte: None,
            percent: None,
        }
    }
}

/// One thread's table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// A row per stage, then waiting, then what no stage claims.
    pub rows: Vec<Row>,
    /// The whole thread: the sum of the rows.
    pub total: Row,
    /// Reading the counter: included in the rows above, not added to them.
    pub overhead: Row,
    /// Packets that the costs are divided by.
    pub packets: u64,
    /// Stream bytes that the costs are divided by.
    pub bytes: u64,
    /// The thread's CPU time in seconds.
    pub cpu_s: f64,
    /// Share of the thread's CPU time that stages (by the stamps' clock) and waits claim before the
    /// stages are scaled. Above 100, the thread was preempted inside stages, and the rows are
    /// blurred.
    pub claimed_percent: f64,
    /// Whether the thread was preempted so often or so long that the stages contain other threads'
    /// time. The unattributed time is then unknown.
    pub preempted: bool,
    /// How often the kernel took the CPU away from the thread; 0 if the system does not say.
    pub preemptions: u64,
    /// How often the time-stamp counter was read.
    pub stamps: u64,
    /// How often the CPU clock was read.
    pub cpu_readings: u64,
}

impl Table {
    /// Scales what a thread counted; `None` if it moved nothing.
    pub fn new(sample: &Sample, rates: Rates) -> Option<Self> {
        let cpu_ns = sample.cpu.as_secs_f64() * 1e9;
        if sample.packets == 0 || sample.bytes + sample.operations == 0 || cpu_ns <= 0.0 {
            return None;
        }
        let row = |stage, ns: f64| Row {
            stage,
            ns_per_packet: Some(ns / sample.packets as f64),
            us_per_operation: (sample.operations > 0).then(|| ns / 1e3 / sample.operations as f64),
            cycles_per_byte: (rates.core_ghz.filter(|_| sample.bytes > 0))
                .map(|ghz| ns * ghz / sample.bytes as f64),
            percent: Some(ns / cpu_ns * 100.0),
        };
        let claimed: f64 = sample
            .stages
            .iter()
            .map(|stage| stage.1 as f64)
            .sum::<f64>()
            * rates.ns_per_tick;
        let waiting = rates.waiting(&sample.waits);
        let claimed_percent = (claimed + waiting) / cpu_ns * 100.0;
        let waiting = waiting.min(cpu_ns);
        let scale = ((cpu_ns - waiting) / claimed.max(1.0)).min(1.0);
        let mut rows: Vec<Row> = sample
            .stages
            .iter()
            // Leave out protocols above the transport if there are none.
            .filter(|&&(stage, ticks)| ticks > 0 || !ABOVE.iter().any(|one| one.name() == stage))
            .map(|&(stage, ticks)| row(stage, ticks as f64 * rates.ns_per_tick * scale))
            .collect();
        // A sample by seconds already has it.
        if !rows.iter().any(|row| row.stage == WAITING) {
            rows.push(row(WAITING, waiting));
        }
        let preempted = claimed_percent > BLURRED
            || sample.preemptions as f64 > MAX_PREEMPTIONS_PER_S * sample.cpu.as_secs_f64();
        rows.push(if preempted {
            Row::unknown(UNATTRIBUTED)
        } else {
            row(UNATTRIBUTED, (cpu_ns - claimed * scale - waiting).max(0.0))
        });
        Some(Self {
            rows,
            total: row("total", cpu_ns),
            overhead: row(
                "of which stamps",
                sample.stamps as f64 * rates.clocks.ns_per_stamp + rates.readings(&sample.waits),
            ),
            packets: sample.packets,
            bytes: sample.bytes,
            cpu_s: sample.cpu.as_secs_f64(),
            claimed_percent,
            preempted,
            preemptions: sample.preemptions,
            stamps: sample.stamps,
            cpu_readings: READINGS * sample.waits.measured,
        })
    }

    /// The rows, then their sum and the part of it spent on reading the clocks.
    fn all_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().chain([&self.total, &self.overhead])
    }

    /// The part of the thread's time that a stage claims.
    pub fn attributed_percent(&self) -> f64 {
        let claimed = self.rows.iter().filter(|row| row.stage != UNATTRIBUTED);
        claimed.filter_map(|row| row.percent).sum()
    }

    /// The part of the thread's time spent on reading the clocks.
    pub fn overhead_percent(&self) -> f64 {
        self.overhead.percent.unwrap_or_default()
    }

    /// The shares of the thread's CPU time by stage, in percent, for a chart: they sum to 100.
    /// Unknown shares are not split.
    pub fn shares(&self) -> Vec<(&'static str, f64)> {
        let known = self.rows.iter();
        let known = known.filter_map(|row| Some((row.stage, row.percent?)));
        let mut shares: Vec<_> = known.collect();
        let rest = 100.0 - shares.iter().map(|share| share.1).sum::<f64>();
        if self.preempted && rest > 0.0 {
            shares.push((NOT_SPLIT, rest));
        }
        shares
    }
}

/// The cost of QUIC by stage.
#[derive(Clone, Debug, Serialize)]
pub struct Both {
    /// CPU of all threads of this process while it was measured.
    pub process_cpu_s: f64,
    /// How much of that the two tables' stages claim; absent if unknown because a thread was
    /// preempted.
    pub attributed_percent: Option<f64>,
    /// Stamps times the measured cost of one, as a share of both threads' CPU time.
    pub overhead_percent: f64,
    /// The server's table.
    pub server: Table,
    /// The client's table.
    pub client: Table,
    /// The core's clock that turns nanoseconds into cycles.
    pub core_ghz: Option<f64>,
    /// What reading the clocks costs.
    #[serde(flatten)]
    pub clocks: Clocks,
}

impl Both {
    /// The table for people, in lines of at most `width` columns.
    pub fn table(&self, title: &str, server: &str, client: &str, width: usize) -> String {
        let ends = [(server, &self.server), (client, &self.client)];
        let mut notes = remarks(
            self.core_ghz,
            self.clocks,
            &[&self.server, &self.client],
            self.overhead_percent,
        );
        if let Some(percent) = self.attributed_percent {
            let _ = writeln!(
                notes,
                "({percent:.1} % of this process's {:.3} CPU-seconds are in a stage's row above)",
                self.process_cpu_s
            );
        }
        text(title, &ends, width) + &layout::wrap(&notes, width)
    }
}

/// Tables of one thread each, side by side if `width` columns are enough: for bulk transfer with
/// the cost of a packet and of a byte, for operations with the cost of one.
pub fn text(title: &str, named: &[(&str, &Table)], width: usize) -> String {
    let Some((_, first)) = named.first() else {
        return String::new();
    };
    let groups = named.iter().map(|(name, table)| {
        let rows: Vec<&Row> = table.all_rows().collect();
        let column = |heading, cell: &dyn Fn(&Row) -> String| {
            Column::new(heading, rows.iter().map(|row| cell(row)))
        };
        let figure = |row: &Row, figure: Option<f64>, digits: usize| match figure {
            Some(figure) => format!("{figure:.digits$}"),
            None if row.percent.is_none() => "unknown".to_owned(),
            None => "-".to_owned(),
        };
        let ns = column("ns/packet", &|row| figure(row, row.ns_per_packet, 1));
        let percent = column("%", &|row| figure(row, row.percent, 1));
        let columns = if table.total.us_per_operation.is_some() {
            let us = column("us/each", &|row| figure(row, row.us_per_operation, 3));
            vec![us, ns, percent]
        } else {
            let cycles = column("cycles/B", &|row| figure(row, row.cycles_per_byte, 3));
            vec![ns, cycles, percent]
        };
        Group {
            title: (*name).to_owned(),
            columns,
        }
    });
    let grid = Grid {
        title: title.to_owned(),
        labels: first.all_rows().map(|row| row.stage.to_owned()).collect(),
        groups: groups.collect(),
    };
    let mut notes = String::new();
    for (name, table) in named {
        if table.claimed_percent > BLURRED {
            let _ = writeln!(
                notes,
                "({name}: preempted; by the clock, the rows took {:.0} % of the CPU time, so stages are scaled)",
                table.claimed_percent
            );
        } else if table.preempted {
            let _ = writeln!(
                notes,
                "({name}: preempted {} times in {:.3} CPU-seconds: stages contain time of other threads)",
                table.preemptions, table.cpu_s
            );
        }
    }
    grid.text(width) + &layout::wrap(&notes, width)
}

/// How the tables were made.
pub fn remarks(
    core_ghz: Option<f64>,
    clocks: Clocks,
    tables: &[&Table],
    overhead_percent: f64,
) -> String {
    let clock = core_ghz.map_or_else(
        || "the core clock cannot be measured on this machine".to_owned(),
        |ghz| format!("core clock {ghz:.2} GHz (a chain of additions)"),
    );
    let stamps: u64 = tables.iter().map(|table| table.stamps).sum();
    let readings: u64 = tables.iter().map(|table| table.cpu_readings).sum();
    format!(
        "({clock})\n({stamps} stamps of {:.1} ns, {readings} readings of the CPU clock of {:.0} ns: \
         {overhead_percent:.2} % of the time)\n",
        clocks.ns_per_stamp, clocks.ns_per_cpu_reading
    )
}

/// If a thread's rows claim more than this percentage of its CPU time, it was preempted inside
/// stages. Below, the two clocks and the unmeasured waits explain the difference.
const BLURRED: f64 = 102.0;

/// Involuntary context switches per second of CPU time above which a thread counts as preempted.
/// One costs about a millisecond where threads compete for cores (23 hid 25 ms of 0.64 CPU-seconds,
/// 127 hid 0.47 s of 0.87, busy Zen 5), so fewer hide less than 1 %.
const MAX_PREEMPTIONS_PER_S: f64 = 10.0;

/// Readings of the thread's CPU clock for a measured wait.
const READINGS: u64 = 2;

/// The stages of protocols above the transport.
const ABOVE: [Stage; 2] = [Stage::Http, Stage::Qpack];

/// The row for putting the thread to sleep and waking it.
pub const WAITING: &str = "waiting and waking";

/// The row for what no stage claims.
const UNATTRIBUTED: &str = "unattributed";

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            stages: vec![("AEAD", 400), ("UDP send", 200)],
            waits: Waits {
                count: 30,
                measured: 10,
                cpu: Duration::from_nanos(110),
            },
            stamps: 10,
            cpu: Duration::from_nanos(1_000),
            preemptions: 0,
            packets: 5,
            bytes: 500,
            operations: 0,
        }
    }

    fn rates(ns_per_tick: f64) -> Rates {
        Rates {
            ns_per_tick,
            clocks: Clocks {
                ns_per_stamp: 8.0,
                ns_per_cpu_reading: 3.0,
            },
            core_ghz: Some(3.0),
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    fn known(figure: Option<f64>, expected: f64) -> bool {
        figure.is_some_and(|figure| close(figure, expected))
    }

    #[test]
    fn time_claimed_by_no_stage_is_unattributed() {
        let table = Table::new(&sample(), rates(1.0)).expect("work was done");
        assert!(known(table.rows[0].ns_per_packet, 80.0));
        assert!(known(table.rows[0].percent, 40.0));
        assert!(close(table.rows[0].cycles_per_byte.expect("clock"), 2.4));
        // 30 waits of 11 ns, less 3 for reading the clock, and 20 such readings.
        assert!(known(table.rows[2].percent, 30.0));
        assert_eq!(table.rows[3].stage, "unattributed");
        assert!(close(table.attributed_percent(), 90.0));
        assert!(close(table.claimed_percent, 90.0));
        assert!(!text("t", &[("server", &table)], 80).contains("preempted"));
        assert!(known(table.rows[3].percent, 10.0));
        assert!(known(table.overhead.ns_per_packet, 28.0));
        assert_eq!(table.cpu_readings, 20);
    }

    #[test]
    fn stages_that_claim_too_much_are_scaled_to_the_cpu_clock() {
        let table = Table::new(&sample(), rates(2.0)).expect("work was done");
        assert!(known(table.rows[2].percent, 30.0));
        assert_eq!(table.rows[3].percent, None);
        assert!(close(table.claimed_percent, 150.0));
        assert!(text("t", &[("server", &table)], 80).contains("(server: preempted"));
        assert!(known(table.rows[0].ns_per_packet, 700.0 * 2.0 / 3.0 / 5.0));
    }

    #[test]
    fn unattributed_time_is_unknown_if_the_thread_was_preempted() {
        let preempted = |preemptions, cpu_s: u64| {
            let sample = Sample {
                preemptions,
                cpu: Duration::from_secs(cpu_s),
                ..sample()
            };
            Table::new(&sample, rates(1.0)).expect("work was done")
        };
        let table = preempted(21, 2);
        assert!(table.preempted);
        let row = table.rows.last().expect("rows");
        assert_eq!((row.stage, row.percent), ("unattributed", None));
        let text = text("t", &[("server", &table)], 80);
        let line = text.lines().find(|line| line.starts_with("unattributed"));
        let words: Vec<&str> = line.expect("the row").split_whitespace().collect();
        assert_eq!(words, ["unattributed", "unknown", "unknown", "unknown"]);
        assert!(text.contains("preempted 21 times in 2.000"), "{text}");
        // The bar is still as long as the CPU time.
        let rest = table.shares().pop().expect("parts");
        assert!(rest.0 == NOT_SPLIT && rest.1 > 99.0);
        // Occasional preemption does not count.
        let table = preempted(20, 2);
        assert!(!table.preempted && table.rows.last().is_some_and(|row| row.percent.is_some()));
    }

    #[test]
    fn waits_that_were_not_measured_are_unattributed() {
        let waits = Waits {
            count: 30,
            ..Waits::default()
        };
        let sample = Sample { waits, ..sample() };
        let table = Table::new(&sample, rates(1.0)).expect("work was done");
        assert!(known(table.rows[2].percent, 0.0));
        assert!(known(table.rows[3].percent, 40.0));
    }

    #[test]
    fn the_rows_sum_to_the_thread() {
        for ns_per_tick in [0.3, 1.0, 7.0] {
            let table = Table::new(&sample(), rates(ns_per_tick)).expect("work was done");
            let sum: f64 = table.shares().iter().map(|share| share.1).sum();
            assert!(close(sum, 100.0));
        }
    }

    #[test]
    fn operations_are_measured_in_microseconds_each() {
        let sample = Sample {
            bytes: 0,
            operations: 4,
            ..sample()
        };
        let table = Table::new(&sample, rates(1.0)).expect("work was done");
        assert!(close(
            table.rows[0].us_per_operation.expect("operations"),
            0.1
        ));
        assert_eq!(table.rows[0].cycles_per_byte, None);
    }

    #[test]
    fn rounds_add_up() {
        let mut sum = Sample::default();
        sum.add(&sample());
        sum.add(&sample());
        assert_eq!(sum.stages, [("AEAD", 800), ("UDP send", 400)]);
        assert_eq!((sum.stamps, sum.packets, sum.bytes), (20, 10, 1_000));
        assert_eq!((sum.waits.count, sum.waits.measured), (60, 20));
        assert_eq!(sum.cpu, Duration::from_nanos(2_000));
    }

    #[test]
    fn a_thread_that_transferred_nothing_has_no_table() {
        assert!(Table::new(&Sample::default(), rates(1.0)).is_none());
    }
}
