//! The measurements, as tables or as rows of JSON.

use std::fmt;

use serde::Serialize;
use squall_yard::error::{Failure, Result, context};
use squall_yard::stats;

use super::case::{Case, Mode, UNLIMITED, Workload};
use super::job::{Contender, Sample};

/// One round of one contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Payload, in 10^9 bits per second.
    gbit_per_s: f64,
    /// Requests or handshakes a second.
    per_second: f64,
    /// CPU of each end: seconds for each 10^9 bytes, or microseconds for each request or
    /// handshake.
    server_cpu: f64,
    client_cpu: f64,
    /// For requests, in microseconds, if the clock starts them.
    latency: Option<[f64; 5]>,
    datagrams_per_message: Option<f64>,
    /// Both cores' busy time, in the same unit as CPU.
    busy: Option<f64>,
}

impl Measured {
    /// From both ends' counters (server, client) at begin and end, and how many of their cores were
    /// busy meanwhile.
    pub(super) fn new(
        case: &Case,
        contender: Contender,
        before: [Sample; 2],
        after: [Sample; 2],
        busy_cores: Option<f64>,
    ) -> Result<Self> {
        let workload = case.workload;
        let what = || format!("{case} of {}", contender.name());
        let [server_cpu, client_cpu] = [0, 1].map(|end| after[end].cpu - before[end].cpu);
        let seconds = after[1].at - before[1].at;
        let bytes = (after[1].bytes - before[1].bytes) as f64;
        let units = (after[1].units - before[1].units) as f64;
        let full = (after[1].full - before[1].full) as f64;
        // A contender that does not resume must not be shown as one that does.
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
        let sent = before[0].sent.zip(after[0].sent).and_then(|(from, to)| {
            let messages = to.messages - from.messages;
            (messages > 0).then(|| (to.datagrams - from.datagrams) as f64 / messages as f64)
        });
        Ok(Self {
            latency: after[1].latency,
            datagrams_per_message: sent,
            gbit_per_s: bytes * 8.0 / seconds / 1e9,
            per_second: units / seconds,
            server_cpu: server_cpu / work * scale,
            client_cpu: client_cpu / work * scale,
            busy: busy_cores.map(|cores| cores * seconds / work * scale),
        })
    }

    fn sum(&self) -> f64 {
        self.server_cpu + self.client_cpu
    }
}

/// All rounds of all contenders.
pub(super) struct Report {
    setup: String,
    rounds: Vec<(Case, Contender, Vec<Measured>)>,
}

/// A row of `--json`.
#[derive(Serialize)]
struct Row {
    #[serde(skip)]
    case: Case,
    workload: &'static str,
    connections: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gbit_limit: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_gro: Option<bool>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    own_sockets: bool,
    contender: &'static str,
    gbit_per_s: Option<f64>,
    server_cpu: f64,
    client_cpu: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    busy_cpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_tcp: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    squall_of_it: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_fewest: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    squall_of_it_busy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datagrams_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<Latency>,
    rounds: usize,
}

/// Percentiles of a request's time.
#[derive(Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

impl Report {
    pub(super) fn new(setup: String) -> Self {
        Self {
            setup,
            rounds: Vec::new(),
        }
    }

    /// One more round.
    pub(super) fn add(&mut self, case: &Case, contender: Contender, measured: Measured) {
        let known = (self.rounds.iter_mut()).find(|row| (row.0, row.1) == (*case, contender));
        match known {
            Some(row) => row.2.push(measured),
            None => self.rounds.push((*case, contender, vec![measured])),
        }
    }

    /// Half of a contender's rate in an open case's closed counterpart.
    pub(super) fn half_of_closed(&self, case: &Case, contender: Contender) -> Option<f64> {
        let closed = Case {
            mode: Mode::Closed,
            ..*case
        };
        let rounds = self.of(&closed, contender)?;
        Some(median(rounds.iter().map(|one| one.per_second)) / 2.0)
    }

    fn of(&self, case: &Case, contender: Contender) -> Option<&[Measured]> {
        self.rounds
            .iter()
            .find(|row| (row.0, row.1) == (*case, contender))
            .map(|row| row.2.as_slice())
    }

    /// The median over the rounds of the ratio of two sums in the same round.
    fn ratio(&self, of: (&Case, Contender), to: (&Case, Contender)) -> Option<f64> {
        self.ratio_by(of, to, |one| Some(one.sum()))
    }

    /// The same for another figure.
    fn ratio_by(
        &self,
        of: (&Case, Contender),
        to: (&Case, Contender),
        figure: fn(&Measured) -> Option<f64>,
    ) -> Option<f64> {
        let rounds = self.of(of.0, of.1)?.iter().zip(self.of(to.0, to.1)?);
        stats::median(
            rounds
                .filter_map(|(of, to)| Some(figure(of)? / figure(to)?))
                .collect(),
        )
    }

    /// The same workload on the fewest connections, if it was measured with several numbers.
    fn fewest(&self, case: &Case, contender: Contender) -> Option<Case> {
        let same = |other: &&Case| {
            let connections = case.connections;
            Case {
                connections,
                ..**other
            } == *case
        };
        let cases = self.rounds.iter().filter(|row| row.1 == contender);
        cases
            .map(|row| &row.0)
            .filter(same)
            .min_by_key(|other| other.connections)
            .filter(|fewest| fewest.connections < case.connections)
            .copied()
    }

    fn rows(&self) -> Vec<Row> {
        // Cases stay in the order in which they were measured.
        let mut cases: Vec<Case> = Vec::new();
        for (case, ..) in &self.rounds {
            if !cases.contains(case) {
                cases.push(*case);
            }
        }
        let mut sorted: Vec<_> = self.rounds.iter().collect();
        sorted.sort_by_key(|row| {
            let place = |one: &Contender| Contender::ALL.iter().position(|other| other == one);
            let case = cases.iter().position(|other| *other == row.0);
            (case, place(&row.1))
        });
        let rows = sorted.into_iter();
        rows.map(|(case, contender, rounds)| self.row(case, *contender, rounds))
            .collect()
    }

    fn row(&self, case: &Case, contender: Contender, rounds: &[Measured]) -> Row {
        let workload = case.workload;
        let median = |field: fn(&Measured) -> f64| median(rounds.iter().map(field));
        let own = (case, contender);
        let latency: Vec<[f64; 5]> = rounds.iter().filter_map(|one| one.latency).collect();
        let percentile = |at: usize| self::median(latency.iter().map(|one| one[at]));
        let fewest = self.fewest(case, contender);
        Row {
            case: *case,
            workload: workload.name(),
            connections: case.connections,
            size: (workload.is_scaled() && case.size != UNLIMITED).then_some(case.size),
            mode: (workload == Workload::W6).then_some(case.mode),
            gbit_limit: case.gbit_limit,
            device_gro: case.device_gro,
            own_sockets: case.own_sockets,
            contender: contender.name(),
            gbit_per_s: (!workload.is_handshakes()).then(|| median(|one| one.gbit_per_s)),
            server_cpu: median(|one| one.server_cpu),
            client_cpu: median(|one| one.client_cpu),
            busy_cpu: stats::median(rounds.iter().filter_map(|one| one.busy).collect()),
            per_second: workload.is_by_unit().then(|| median(|one| one.per_second)),
            ratio_to_tcp: self.ratio(own, (case, Contender::Tcp)),
            squall_of_it: self.ratio((case, Contender::Squall), own),
            squall_of_it_busy: self.ratio_by((case, Contender::Squall), own, |one| one.busy),
            ratio_to_fewest: fewest.and_then(|fewest| self.ratio(own, (&fewest, contender))),
            datagrams_per_message: stats::median(
                rounds
                    .iter()
                    .filter_map(|one| one.datagrams_per_message)
                    .collect(),
            ),
            latency_us: (!latency.is_empty()).then(|| Latency {
                p50: percentile(0),
                p90: percentile(1),
                p99: percentile(2),
                p99_9: percentile(3),
                max: percentile(4),
            }),
            rounds: rounds.len(),
        }
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
        let mut last = None;
        for row in self.rows() {
            let by_unit = row.per_second.is_some();
            if last.replace(row.case) != Some(row.case) {
                let (rate, cpu) = match by_unit {
                    false => ("Gbit/s", "CPU-seconds for 10^9 bytes".to_owned()),
                    true => ("per s", format!("CPU, µs a {}", row.case.workload.unit())),
                };
                writeln!(f, "\n{}: {cpu}; medians of {} rounds", row.case, row.rounds)?;
                writeln!(
                    f,
                    "{:<16}{rate:>10}{:>10}{:>10}{:>10}{:>10}{:>11}{:>11}{:>10}{:>11}",
                    "",
                    "server",
                    "client",
                    "sum",
                    "of tcp",
                    "squall/it",
                    "of fewest",
                    "busy",
                    "squall/it"
                )?;
            }
            let rate = row.per_second.or(row.gbit_per_s).unwrap_or_default();
            let (places, rate_places) = if by_unit { (2, 0) } else { (3, 2) };
            let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |it| format!("{it:.2}"));
            write!(
                f,
                "{:<16}{rate:>10.rate_places$}{:>10.places$}{:>10.places$}{:>10.places$}{:>10}{:>11}{:>11}{:>10}{:>11}",
                row.contender,
                row.server_cpu,
                row.client_cpu,
                row.server_cpu + row.client_cpu,
                ratio(row.ratio_to_tcp),
                ratio(row.squall_of_it),
                ratio(row.ratio_to_fewest),
                row.busy_cpu
                    .map_or("-".to_owned(), |busy| format!("{busy:.places$}")),
                ratio(row.squall_of_it_busy),
            )?;
            if let Some(number) = row.datagrams_per_message {
                write!(f, "  {number:.1} datagrams a message")?;
            }
            if let Some(Latency {
                p50, p99, p99_9, ..
            }) = row.latency_us
            {
                write!(f, "  p50 {p50:.0}, p99 {p99:.0}, p99.9 {p99_9:.0} µs")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The median, or NaN if there are no values.
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
            ..Sample::default()
        }
    }

    fn of(workload: Workload, before: [Sample; 2], after: [Sample; 2]) -> Result<Measured> {
        let case = Case::of(workload, &[])[0];
        Measured::new(&case, Contender::Squall, before, after, Some(0.4))
    }

    #[test]
    fn cpu_is_reported_per_byte_or_request_and_excludes_the_warm_up() {
        let before = [sample(9.0, 1.0, 0, 0), sample(1.0, 2.0, 500, 10)];
        let after = [
            sample(11.0, 2.0, 0, 0),
            sample(3.0, 2.5, 2_000_000_500, 1_010),
        ];
        let bulk = of(Workload::W1, before, after).expect("work");
        assert_eq!((bulk.server_cpu, bulk.client_cpu), (0.5, 0.25));
        assert_eq!((bulk.gbit_per_s, bulk.busy), (8.0, Some(0.4)));
        let requests = of(Workload::W3, before, after).expect("work");
        assert_eq!((requests.server_cpu, requests.client_cpu), (1000.0, 500.0));
        assert_eq!(requests.per_second, 500.0);
    }

    #[test]
    fn an_idle_round_and_full_handshakes_counted_as_resumed_are_errors() {
        let before = [sample(0.0, 0.0, 0, 0); 2];
        assert!(of(Workload::W1, before, before).is_err());
        let mut after = [sample(1.0, 1.0, 0, 100); 2];
        let of = |after| of(Workload::W4Resumed, before, after);
        assert!(of(after).is_ok());
        after[1].full = 50;
        assert!(of(after).is_err());
    }
}
