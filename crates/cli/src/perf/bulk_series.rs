//! Bulk transfers with several numbers of connections: a row for each number and contender, and how
//! the cost grows with the number.
//!
//! The numbers alternate within each round, as the contenders do. The growth is the median of the
//! rounds' ratios, like every other ratio.

use serde::Serialize;
use squall_yard::chart::Bars;
use squall_yard::latency::Percentiles;
use squall_yard::rows::Row;
use squall_yard::stages::{Both, Rates};

use super::bulk_report::{self, BulkReport, Figures, INTERRUPTED, Series, Setup};
use super::contender::Contender;
use super::report::{Interval, Report};

/// A contender's CPU relative to that on the fewest connections.
fn to_fewest(series: &Series, all: &[Series], contender: Contender) -> Option<f64> {
    let fewest = all.iter().min_by_key(|one| one.connections)?;
    (fewest.connections < series.connections)
        .then(|| bulk_report::growth(&series.rounds, &fewest.rounds, contender))?
}

/// The name of a contender with its number of connections, for people.
fn name(contender: Contender, connections: usize) -> String {
    format!("{} -c {connections}", contender.name())
}

/// One contender with one number of connections. Ratios compare the sum of both ends' CPU.
#[derive(Clone, Debug, Serialize)]
struct SeriesRow {
    #[serde(flatten)]
    row: Row,
    bytes: u64,
    seconds: f64,
    /// With `--bidir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    download_gbit_per_s: Option<f64>,
    /// With `--bidir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_gbit_per_s: Option<f64>,
    /// CPU relative to a control with as many connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_tls_tcp: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_tcp: Option<f64>,
    /// CPU relative to the same contender on the fewest connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_fewest: Option<f64>,
    /// QUIC's, as in the report of one number.
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_us: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte_us: Option<Percentiles>,
    /// Both ends' CPU-seconds per GB, round by round.
    rounds_cpu_s_per_gb: Vec<f64>,
    stages: Option<Both>,
    #[serde(skip)]
    name: String,
}

impl SeriesRow {
    fn new(
        report: &BulkReport,
        contender: Contender,
        figures: &Figures,
        ratio_to_fewest: Option<f64>,
    ) -> Self {
        let quic = (contender == Contender::Quic).then_some(report);
        Self {
            row: report.row(contender, figures),
            bytes: figures.bytes,
            seconds: figures.seconds,
            download_gbit_per_s: figures.download_gbit_per_s,
            upload_gbit_per_s: figures.upload_gbit_per_s,
            ratio_to_tls_tcp: quic.and_then(|quic| quic.ratio_to_tls_tcp),
            ratio_to_tcp: report.to_tcp(contender),
            ratio_to_fewest,
            rtt_us: quic.and_then(|quic| quic.rtt_us),
            first_byte_us: quic.and_then(|quic| quic.first_byte_us),
            rounds_cpu_s_per_gb: figures.rounds_cpu_s_per_gb.clone(),
            stages: quic.and_then(|quic| quic.stages.clone()),
            name: name(contender, report.connections),
        }
    }
}

/// Everything that is printed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SeriesReport {
    rows: Vec<SeriesRow>,
    /// With `--interval`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    intervals: Vec<Interval>,
    setup: Setup,
    /// The report for each number alone.
    #[serde(skip)]
    reports: Vec<BulkReport>,
}

impl SeriesReport {
    /// Computes the figures from the rounds.
    pub(crate) fn new(
        all: &[Series],
        rates: Rates,
        intervals: Vec<Interval>,
        setup: Setup,
    ) -> Self {
        let mut rows = Vec::new();
        let mut reports = Vec::new();
        for series in all {
            let report = series.report(rates, setup.clone());
            rows.extend(report.contenders().map(|(contender, figures)| {
                let growth = to_fewest(series, all, contender);
                SeriesRow::new(&report, contender, figures, growth)
            }));
            reports.push(report);
        }
        Self {
            rows,
            intervals,
            setup,
            reports,
        }
    }
}

impl Report for SeriesReport {
    fn text(&self, width: usize) -> String {
        let figures = self.reports.iter().flat_map(BulkReport::contenders);
        let rows = self.rows.iter().zip(figures);
        let rows = rows.map(|(row, (_, figures))| (row.name.clone(), figures, row.ratio_to_tcp));
        let mut text = bulk_report::summary(&rows.collect::<Vec<_>>(), width);
        for row in &self.rows {
            if let Some(ratio) = row.ratio_to_fewest {
                let name = &row.name;
                text += &format!(
                    "{name}: {ratio:.2} times the CPU that it takes with the fewest connections.\n"
                );
            }
        }
        for report in &self.reports {
            text += &report.remarks(&format!("-c {}: ", report.connections));
        }
        if self.setup.interrupted {
            text += INTERRUPTED;
        }
        for report in &self.reports {
            let title = format!("QUIC by stage, -c {}", report.connections);
            text += &report.stage_table(&title, width);
        }
        text
    }

    fn rows(&self) -> Vec<Row> {
        self.rows.iter().map(|one| one.row.clone()).collect()
    }

    fn chart(&self) -> Bars {
        let reports = self.reports.iter();
        let bars =
            reports.flat_map(|report| report.bars(|contender| name(contender, report.connections)));
        let numbers = self.reports.iter();
        let numbers: Vec<_> = numbers.map(|one| one.connections.to_string()).collect();
        bulk_report::chart(bars.collect(), &numbers.join(" and "), &self.setup)
    }
}

#[cfg(test)]
mod tests {
    use squall_yard::layout;
    use squall_yard::stages::Clocks;

    use super::*;
    use crate::perf::bulk_report::tests::{round, setup};

    /// Numbers of connections with the CPU of each round, of QUIC and TCP alike.
    fn report(numbers: &[(usize, &[u64])]) -> SeriesReport {
        let series = numbers.iter().map(|(connections, cpu_ms)| {
            let rounds = cpu_ms.iter().enumerate().flat_map(|(index, &ms)| {
                [Contender::Quic, Contender::Tcp].map(|one| round(one, index, ms))
            });
            Series {
                rounds: rounds.collect(),
                ..Series::new(*connections)
            }
        });
        let rates = Rates {
            ns_per_tick: 1.0,
            clocks: Clocks {
                ns_per_stamp: 10.0,
                ns_per_cpu_reading: 300.0,
            },
            core_ghz: None,
        };
        let setup = Setup {
            connections: None,
            ..setup()
        };
        SeriesReport::new(&series.collect::<Vec<_>>(), rates, Vec::new(), setup)
    }

    #[test]
    fn growth_is_the_median_ratio_to_the_fewest_connections_within_a_round() {
        // Ratios 2, 5 and 4, whichever number comes first.
        let report = report(&[(1_000, &[200, 500, 1_600]), (1, &[100, 100, 400])]);
        let json = serde_json::to_value(&report).expect("plain data");
        let rows = json["rows"].as_array().expect("rows");
        let names = ["squall", "tcp", "squall", "tcp"];
        for ((row, name), connections) in rows.iter().zip(names).zip([1_000, 1_000, 1, 1]) {
            assert_eq!(row["contender"], name);
            assert_eq!(row["connections"], connections);
            let growth = (connections == 1_000).then_some(4.0);
            assert_eq!(row["ratio_to_fewest"].as_f64(), growth, "{row}");
        }
        assert_eq!(
            (&rows[0]["workload"], &rows[2]["workload"]),
            (&"W5s".into(), &"W1".into())
        );
        assert_eq!(rows[0]["ratio_to_tcp"], 1.0);
        assert!(json["setup"]["connections"].is_null());
        let text = report.text(80);
        for name in ["quic", "tcp"] {
            let line = format!(
                "{name} -c 1000: 4.00 times the CPU that it takes with the fewest connections."
            );
            assert!(text.contains(&line), "{text}");
        }
        let bars = report.chart().bars;
        assert_eq!(bars.len(), 8);
        assert_eq!(bars[0].label, "quic -c 1000, server");
    }

    #[test]
    fn tables_never_exceed_the_requested_width() {
        let report = report(&[(1, &[1]), (10_000, &[200_000_000_000])]);
        for width in [60, 80, 120] {
            let text = report.text(width);
            let rows = text.lines().filter(|line| line.contains(" -c "));
            let rows = rows.filter(|line| !line.contains(": "));
            for line in rows.chain(layout::wrap(&text, width).lines()) {
                assert!(line.chars().count() <= width, "{line}");
            }
        }
    }
}
