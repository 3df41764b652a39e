//! The figures of a run, as tables or as rows of JSON.

use std::fmt;

use serde::Serialize;
use squall_yard::error::{Result, context};
use squall_yard::stats;

use super::record::Figures;
use crate::transport::job::Contender;

/// Which part of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Phase {
    /// From the first packet: the handshake, slow start, and the effects of its losses.
    Start,
    /// The rest.
    Steady,
}

impl Phase {
    pub(super) const ALL: [Self; 2] = [Self::Start, Self::Steady];
}

/// A contender's phase of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) figures: Figures,
    /// Payload that the client's application received, as a share of the link's rate.
    pub(super) goodput: f64,
    /// CPU-seconds of each end per 10^9 bytes.
    pub(super) cpu: [f64; 2],
    /// Packets lost in a device or at a socket rather than in the queue.
    pub(super) lost_elsewhere: u64,
}

/// What a row describes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) mbit_per_s: f64,
    pub(super) phase: Phase,
    pub(super) contender: Contender,
}

/// All rounds.
pub(super) struct Report {
    setup: String,
    rounds: Vec<(Key, Vec<Measured>)>,
    /// How late the router forwarded packets in each round, in microseconds: the median and the
    /// 99th percentile.
    late: Vec<[f64; 2]>,
}

/// A row of `--json`.
#[derive(Serialize)]
struct Row {
    mbit_per_s: f64,
    phase: Phase,
    contender: &'static str,
    packets: f64,
    loss: f64,
    goodput: f64,
    used: f64,
    burst: Burst,
    gap_ms: Gap,
    queue_ms: Wait,
    queue_of_buffer: OfBuffer,
    server_cpu: f64,
    client_cpu: f64,
    lost_elsewhere: u64,
    rounds: usize,
}

#[derive(Serialize)]
struct Burst {
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

#[derive(Serialize)]
struct Gap {
    p50: f64,
    p99: f64,
}

#[derive(Serialize)]
struct Wait {
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

#[derive(Serialize)]
struct OfBuffer {
    mean: f64,
    p99: f64,
}

impl Report {
    pub(super) fn new(setup: String) -> Self {
        Self {
            setup,
            rounds: Vec::new(),
            late: Vec::new(),
        }
    }

    /// Adds one more round's phase.
    pub(super) fn add(&mut self, key: Key, measured: Measured) {
        match self.rounds.iter_mut().find(|row| row.0 == key) {
            Some(row) => row.1.push(measured),
            None => self.rounds.push((key, vec![measured])),
        }
    }

    /// Adds the router's lateness in a round.
    pub(super) fn add_late(&mut self, late: [f64; 2]) {
        self.late.push(late);
    }

    /// The median round's lateness.
    fn late(&self) -> [f64; 2] {
        std::array::from_fn(|at| {
            stats::median(self.late.iter().map(|one| one[at]).collect()).unwrap_or(f64::NAN)
        })
    }

    fn rows(&self) -> Vec<Row> {
        let mut sorted: Vec<_> = self.rounds.iter().collect();
        sorted.sort_by_key(|(key, _)| {
            let place = Contender::ALL.iter().position(|one| *one == key.contender);
            (key.mbit_per_s as u64, key.phase as u8, place)
        });
        sorted
            .into_iter()
            .map(|(key, rounds)| row(key, rounds))
            .collect()
    }

    /// `{"setup", "late_us", "rows"}`.
    pub(super) fn json(&self) -> Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            setup: &'a str,
            late_us: Gap,
            rows: Vec<Row>,
        }
        let [p50, p99] = self.late();
        let whole = Whole {
            setup: &self.setup,
            late_us: Gap { p50, p99 },
            rows: self.rows(),
        };
        serde_json::to_string_pretty(&whole).map_err(context("JSON"))
    }
}

fn row(key: &Key, rounds: &[Measured]) -> Row {
    let median = |field: fn(&Measured) -> f64| {
        stats::median(rounds.iter().map(field).collect()).unwrap_or(f64::NAN)
    };
    let figures: Vec<Figures> = rounds.iter().map(|one| one.figures).collect();
    let figures = Figures::median(&figures);
    let [mean, p50, p99, max] = figures.burst;
    let burst = Burst {
        mean,
        p50,
        p99,
        max,
    };
    let [mean, p50, p99, max] = figures.wait_ms;
    Row {
        mbit_per_s: key.mbit_per_s,
        phase: key.phase,
        contender: key.contender.name(),
        packets: figures.packets,
        loss: figures.loss,
        goodput: median(|one| one.goodput),
        used: figures.used,
        burst,
        gap_ms: Gap {
            p50: figures.gap_ms[0],
            p99: figures.gap_ms[1],
        },
        queue_ms: Wait {
            mean,
            p50,
            p99,
            max,
        },
        queue_of_buffer: OfBuffer {
            mean: figures.of_buffer[0],
            p99: figures.of_buffer[1],
        },
        server_cpu: median(|one| one.cpu[0]),
        client_cpu: median(|one| one.cpu[1]),
        lost_elsewhere: rounds.iter().map(|one| one.lost_elsewhere).sum(),
        rounds: rounds.len(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.setup)?;
        let [median, p99] = self.late();
        writeln!(
            f,
            "the router sent packets on late by {median:.0} µs (median), {p99:.0} µs (p99)"
        )?;
        let mut last = None;
        for row in self.rows() {
            if last.replace((row.mbit_per_s, row.phase)) != Some((row.mbit_per_s, row.phase)) {
                let phase = match row.phase {
                    Phase::Start => "the start",
                    Phase::Steady => "after it",
                };
                writeln!(
                    f,
                    "\n{} Mbit/s, {phase}; medians of {} rounds",
                    row.mbit_per_s, row.rounds
                )?;
                writeln!(
                    f,
                    "{:<10}{:>9}{:>9}{:>24}{:>18}{:>32}{:>16}{:>10}",
                    "",
                    "loss, %",
                    "goodput",
                    "burst: p50, p99, max",
                    "gap ms: p50, p99",
                    "queue ms: mean, p50, p99, max",
                    "of buffer, p99",
                    "CPU s/GB"
                )?;
            }
            let (burst, gap, queue) = (&row.burst, &row.gap_ms, &row.queue_ms);
            let bursts = format!("{:.0} {:.0} {:.0}", burst.p50, burst.p99, burst.max);
            let gaps = format!("{:.2} {:.2}", gap.p50, gap.p99);
            let waits = format!(
                "{:.2} {:.2} {:.2} {:.2}",
                queue.mean, queue.p50, queue.p99, queue.max
            );
            let of_buffer = &row.queue_of_buffer;
            let shares = format!("{:.2} {:.2}", of_buffer.mean, of_buffer.p99);
            write!(
                f,
                "{:<10}{:>9.3}{:>9.3}{bursts:>24}{gaps:>18}{waits:>32}{shares:>16}{:>10.2}",
                row.contender,
                row.loss * 100.0,
                row.goodput,
                row.server_cpu + row.client_cpu,
            )?;
            match row.lost_elsewhere {
                0 => writeln!(f)?,
                lost => writeln!(f, "  {lost} packets lost elsewhere")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_medians_in_order() {
        let mut report = Report::new(String::new());
        let key = |mbit_per_s, phase, contender| Key {
            mbit_per_s,
            phase,
            contender,
        };
        let mut add = |key, goodput| {
            let measured = Measured {
                figures: Figures::default(),
                goodput,
                cpu: [0.0; 2],
                lost_elsewhere: 1,
            };
            report.add(key, measured);
        };
        add(key(500.0, Phase::Start, Contender::Squall), 0.5);
        add(key(10.0, Phase::Steady, Contender::Tcp), 0.5);
        for goodput in [0.9, 0.7, 0.8] {
            add(key(10.0, Phase::Steady, Contender::Squall), goodput);
        }
        let rows = report.rows();
        let order: Vec<_> = rows
            .iter()
            .map(|row| (row.mbit_per_s, row.contender))
            .collect();
        assert_eq!(order, [(10.0, "squall"), (10.0, "tcp"), (500.0, "squall")]);
        assert_eq!((rows[0].goodput, rows[0].lost_elsewhere), (0.8, 3));
    }
}
