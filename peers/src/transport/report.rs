//! What was measured, as tables or as rows of JSON.

use std::fmt;

use serde::Serialize;
use squall_yard::error::{Failure, Result, context};
use squall_yard::stats;

use super::job::{Contender, Sample, Workload};

/// One round of one contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Payload, in 10^9 bits a second.
    gbit_per_s: f64,
    /// Requests or handshakes a second.
    per_second: f64,
    /// CPU of each end: seconds for each 10^9 bytes, or microseconds for each request or
    /// handshake.
    server_cpu: f64,
    client_cpu: f64,
}

impl Measured {
    /// From both ends' counters (server, client) at begin and end.
    pub(super) fn new(
        workload: Workload,
        contender: Contender,
        before: [Sample; 2],
        after: [Sample; 2],
    ) -> Result<Self> {
        let what = || format!("{} of {}", workload.name(), contender.name());
        let [server_cpu, client_cpu] = [0, 1].map(|end| after[end].cpu - before[end].cpu);
        let seconds = after[1].at - before[1].at;
        let bytes = (after[1].bytes - before[1].bytes) as f64;
        let units = (after[1].units - before[1].units) as f64;
        let full = (after[1].full - before[1].full) as f64;
        // Whoever cannot resume must not be shown as one who does.
        if workload == Workload::W4Resumed && full > units / 50.0 {
            return Err(Failure::new(format!(
                "{}: {full} of {units} handshakes were not resumed",
                what()
            )));
        }
        let (work, scale) = match workload.is_by_unit() {
            true => (units, 1e6),
            false => (bytes, 1e9),
        };
        if work == 0.0 {
            return Err(Failure::new(format!("{}: nothing was done", what())));
        }
        Ok(Self {
            gbit_per_s: bytes * 8.0 / seconds / 1e9,
            per_second: units / seconds,
            server_cpu: server_cpu / work * scale,
            client_cpu: client_cpu / work * scale,
        })
    }

    fn sum(&self) -> f64 {
        self.server_cpu + self.client_cpu
    }
}

/// All rounds of all contenders.
pub(super) struct Report {
    setup: String,
    rounds: Vec<(Workload, Contender, Vec<Measured>)>,
}

/// A row of `--json`.
#[derive(Serialize)]
struct Row {
    workload: &'static str,
    contender: &'static str,
    gbit_per_s: Option<f64>,
    server_cpu: f64,
    client_cpu: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_tcp: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    squall_of_it: Option<f64>,
    rounds: usize,
}

impl Report {
    pub(super) fn new(setup: String) -> Self {
        Self {
            setup,
            rounds: Vec::new(),
        }
    }

    /// One more round.
    pub(super) fn add(&mut self, workload: Workload, contender: Contender, measured: Measured) {
        let known = (self.rounds.iter_mut()).find(|row| (row.0, row.1) == (workload, contender));
        match known {
            Some(row) => row.2.push(measured),
            None => self.rounds.push((workload, contender, vec![measured])),
        }
    }

    fn of(&self, workload: Workload, contender: Contender) -> Option<&[Measured]> {
        self.rounds
            .iter()
            .find(|row| (row.0, row.1) == (workload, contender))
            .map(|row| row.2.as_slice())
    }

    /// The median over the rounds of one contender's sum against another one's in the same round.
    fn ratio(&self, workload: Workload, of: Contender, to: Contender) -> Option<f64> {
        let (of, to) = (self.of(workload, of)?, self.of(workload, to)?);
        Some(median(
            of.iter().zip(to).map(|(of, to)| of.sum() / to.sum()),
        ))
    }

    fn rows(&self) -> Vec<Row> {
        let mut sorted: Vec<_> = self.rounds.iter().collect();
        sorted.sort_by_key(|row| {
            let place = |one: &Contender| Contender::ALL.iter().position(|other| other == one);
            let workload = Workload::MEASURED.iter().position(|other| *other == row.0);
            (workload, place(&row.1))
        });
        sorted
            .into_iter()
            .map(|(workload, contender, rounds)| {
                let median = |field: fn(&Measured) -> f64| median(rounds.iter().map(field));
                Row {
                    workload: workload.name(),
                    contender: contender.name(),
                    gbit_per_s: (!workload.is_handshakes()).then(|| median(|one| one.gbit_per_s)),
                    server_cpu: median(|one| one.server_cpu),
                    client_cpu: median(|one| one.client_cpu),
                    per_second: workload.is_by_unit().then(|| median(|one| one.per_second)),
                    ratio_to_tcp: self.ratio(*workload, *contender, Contender::Tcp),
                    squall_of_it: self.ratio(*workload, Contender::Squall, *contender),
                    rounds: rounds.len(),
                }
            })
            .collect()
    }

    /// `{"setup", "rows"}`.
    pub(super) fn json(&self) -> Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            setup: &'a str,
            rows: Vec<Row>,
        }
        let whole = Whole {
            setup: &self.setup,
            rows: self.rows(),
        };
        serde_json::to_string_pretty(&whole).map_err(context("JSON"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.setup)?;
        let mut last = "";
        for row in self.rows() {
            let by_unit = row.per_second.is_some();
            if row.workload != last {
                last = row.workload;
                let (rate, cpu) = match (by_unit, row.gbit_per_s) {
                    (false, _) => ("Gbit/s", "CPU-seconds for 10^9 bytes"),
                    (true, Some(_)) => ("per s", "CPU, µs a request"),
                    (true, None) => ("per s", "CPU, µs a handshake"),
                };
                writeln!(f, "\n{last}: {cpu}; medians of {} rounds", row.rounds)?;
                writeln!(
                    f,
                    "{:<16}{rate:>10}{:>10}{:>10}{:>10}{:>10}{:>12}",
                    "", "server", "client", "sum", "of tcp", "squall/it"
                )?;
            }
            let rate = row.per_second.or(row.gbit_per_s).unwrap_or_default();
            let (places, rate_places) = if by_unit { (2, 0) } else { (3, 2) };
            let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |it| format!("{it:.2}"));
            writeln!(
                f,
                "{:<16}{rate:>10.rate_places$}{:>10.places$}{:>10.places$}{:>10.places$}{:>10}{:>12}",
                row.contender,
                row.server_cpu,
                row.client_cpu,
                row.server_cpu + row.client_cpu,
                ratio(row.ratio_to_tcp),
                ratio(row.squall_of_it),
            )?;
        }
        Ok(())
    }
}

/// The median, or NaN of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    stats::median(values.collect()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, cpu: f64, bytes: u64, units: u64) -> Sample {
        Sample {
            at,
            cpu,
            bytes,
            units,
            full: 0,
        }
    }

    #[test]
    fn cpu_is_told_by_byte_or_by_request_and_the_warm_up_is_not_in_it() {
        let before = [sample(9.0, 1.0, 0, 0), sample(1.0, 2.0, 500, 10)];
        let after = [
            sample(11.0, 2.0, 0, 0),
            sample(3.0, 2.5, 2_000_000_500, 1_010),
        ];
        let bulk = Measured::new(Workload::W1, Contender::Squall, before, after).expect("work");
        assert_eq!((bulk.server_cpu, bulk.client_cpu), (0.5, 0.25));
        assert_eq!(bulk.gbit_per_s, 8.0);
        let requests = Measured::new(Workload::W3, Contender::Squall, before, after).expect("work");
        assert_eq!((requests.server_cpu, requests.client_cpu), (1000.0, 500.0));
        assert_eq!(requests.per_second, 500.0);
    }

    #[test]
    fn an_idle_round_and_full_handshakes_called_resumed_are_errors() {
        let before = [sample(0.0, 0.0, 0, 0); 2];
        assert!(Measured::new(Workload::W1, Contender::Tcp, before, before).is_err());
        let mut after = [sample(1.0, 1.0, 0, 100); 2];
        let of = |after| Measured::new(Workload::W4Resumed, Contender::Quinn, before, after);
        assert!(of(after).is_ok());
        after[1].full = 50;
        assert!(of(after).is_err());
    }
}
