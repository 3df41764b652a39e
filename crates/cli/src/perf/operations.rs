//! Turns counts into results: rates, CPU and times of requests, handshakes and datagrams.

use serde::Serialize;
use squall_yard::chart::{Bar, Bars, NOT_SPLIT};
use squall_yard::layout::{Column, Grid, Group};
use squall_yard::outcome::Done;
use squall_yard::rows::{PER_GB, Row, SQUALL};
use squall_yard::stages::{self, Both, Rates, Sample, Table};

use super::job::Job;
use super::report::{Interval, Report};

/// A rate counts as reached at this share, since the time for the last ones is included.
const REACHED: f64 = 0.95;

/// One job's figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    #[serde(flatten)]
    pub(crate) row: Row,
    /// How many were to begin per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_per_s: Option<f64>,
    pub(crate) count: u64,
    pub(crate) seconds: f64,
    /// Datagrams that were sent but did not arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_percent: Option<f64>,
    /// squall's CPU at both ends relative to a control: the median of the rounds' ratios.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_tls_tcp: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_tcp: Option<f64>,
    /// CPU of both ends relative to that with the fewest connections, if there are several numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_fewest: Option<f64>,
    pub(crate) stages: Option<Tables>,
    #[serde(skip)]
    pub(crate) name: String,
}

/// The cost by stage, as far as it is visible from here.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Tables {
    /// Both ends are in this process.
    Both(Box<Both>),
    /// The server is a different process.
    Client {
        client: Box<Table>,
        #[serde(skip)]
        remarks: String,
    },
}

impl Tables {
    /// The client's alone; `None` if nothing was transferred.
    pub(crate) fn client(sample: &Sample, rates: Rates) -> Option<Self> {
        let client = Table::new(sample, rates)?;
        let overhead = client.overhead_percent();
        Some(Self::Client {
            remarks: stages::remarks(rates.core_ghz, rates.clocks, &[&client], overhead),
            client: Box::new(client),
        })
    }

    /// The tables for people.
    fn text(&self, title: &str, width: usize) -> String {
        match self {
            Self::Both(stages) => stages.table(title, "server", "client", width),
            Self::Client { client, remarks } => {
                stages::text(title, &[("client", client)], width) + remarks
            }
        }
    }

    /// Each end's table, with its name.
    fn ends(&self) -> Vec<(&'static str, &Table)> {
        match self {
            Self::Both(stages) => vec![("server", &stages.server), ("client", &stages.client)],
            Self::Client { client, .. } => vec![("client", client)],
        }
    }
}

impl Figures {
    /// The figures of the work done. CPU is in microseconds, of both ends, in total.
    pub(crate) fn new(
        job: &Job,
        contender: &'static str,
        done: &Done,
        server_cpu_us: Option<f64>,
        client_cpu_us: f64,
        stages: Option<Tables>,
    ) -> Self {
        let (count, seconds) = (done.count(), done.elapsed.as_secs_f64());
        let bytes = (count * job.size().unwrap_or_default()) as f64;
        let is_by_byte = job.cpu_unit() == PER_GB;
        let each = |us: f64| match is_by_byte {
            true => us / 1e6 / (bytes.max(1.0) / 1e9),
            false => us / (count.max(1)) as f64,
        };
        let lost = done.sent.saturating_sub(done.received) as f64;
        Self {
            row: Row {
                workload: job.workload(),
                contender,
                gbit_per_s: is_by_byte.then(|| bytes * 8.0 / seconds / 1e9),
                per_s: Some(count as f64 / seconds),
                server_cpu: server_cpu_us.map(each),
                client_cpu: Some(each(client_cpu_us)),
                cpu_unit: job.cpu_unit(),
                latency_us: done.latency.percentiles(),
                connections: None,
                mode: job.mode(),
                size: job.size(),
                datagrams_per_message: None,
                gbit_limit: None,
            },
            target_per_s: None,
            count,
            seconds,
            lost_percent: (done.sent > 0).then(|| lost / done.sent as f64 * 100.0),
            ratio_to_tls_tcp: None,
            ratio_to_tcp: None,
            stages,
            ratio_to_fewest: None,
            name: job.name().to_owned(),
        }
    }
}

/// Everything that is printed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OperationsReport {
    pub(crate) rows: Vec<Figures>,
    /// The server's CPU for a resumed handshake relative to a full one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumed_to_full: Option<f64>,
    /// With `--interval`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) intervals: Vec<Interval>,
    #[serde(flatten)]
    pub(crate) setup: Setup,
}

/// The setup of the measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    pub(crate) what: Vec<String>,
    pub(crate) where_to: String,
    pub(crate) options: String,
    /// The controls, and how they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) controls: Vec<String>,
    pub(crate) interrupted: bool,
}

impl OperationsReport {
    /// All rows.
    pub(crate) fn new(rows: Vec<Figures>, intervals: Vec<Interval>, setup: Setup) -> Self {
        let server = |workload| {
            let row = (rows.iter())
                .find(|one| (one.row.workload, one.row.contender) == (workload, SQUALL));
            row.and_then(|one| one.row.server_cpu)
        };
        let resumed_to_full = server("W4-resumed").zip(server("W4")).map(|(a, b)| a / b);
        Self {
            rows,
            resumed_to_full,
            intervals,
            setup,
        }
    }
}

impl OperationsReport {
    fn is_by_byte(&self) -> bool {
        (self.rows.iter()).any(|one| one.row.cpu_unit == PER_GB)
    }

    /// Explains the columns and the figures.
    fn remarks(&self) -> String {
        let unit = if self.is_by_byte() {
            "CPU-seconds per GB"
        } else {
            "CPU-microseconds per operation"
        };
        let mut text = format!("(server, client: {unit}");
        if (self.rows.iter()).any(|one| one.row.latency_us.is_some()) {
            text += "; p50 to max: microseconds from start to end";
        }
        text += ")\n";
        for one in &self.rows {
            for (control, ratio) in [
                ("TLS over TCP", one.ratio_to_tls_tcp),
                ("plain TCP", one.ratio_to_tcp),
            ] {
                if let Some(ratio) = ratio {
                    let name = &one.name;
                    text += &format!("{name}: QUIC costs {ratio:.2} times the CPU of {control}.\n");
                }
            }
        }
        for one in &self.rows {
            let (name, contender) = (&one.name, one.row.contender);
            if let Some(ratio) = one.ratio_to_fewest {
                text += &format!(
                    "{name}, {contender}: {ratio:.2} times the CPU that it takes with the fewest connections.\n"
                );
            }
            if let (Some(target), Some(reached)) = (one.target_per_s, one.row.per_s)
                && reached < target * REACHED
            {
                text += &format!(
                    "{name}, {contender}: {reached:.0} a second instead of {target:.0}; those that never began are not counted.\n"
                );
            }
            let filled = one.row.datagrams_per_message.unwrap_or_default();
            if let Some(percent) = one.lost_percent {
                text += &format!(
                    "{percent:.2} % of the datagrams were lost; the kernel was given {filled:.1} UDP datagrams per message.\n"
                );
            }
        }
        text
    }

    /// The table of rates, CPU and times.
    fn summary(&self) -> Grid {
        let rows: Vec<&Row> = self.rows.iter().map(|one| &one.row).collect();
        let column = |heading, cell: &dyn Fn(&Row) -> String| {
            Column::new(heading, rows.iter().map(|row| cell(row)))
        };
        let places = if self.is_by_byte() { 3 } else { 2 };
        let cpu =
            |cpu: Option<f64>| cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.places$}"));
        let mut columns = vec![
            column("per second", &|row| {
                format!("{:.0}", row.per_s.unwrap_or_default())
            }),
            column("server", &|row| cpu(row.server_cpu)),
            column("client", &|row| cpu(row.client_cpu)),
        ];
        let is_timed = rows.iter().any(|row| row.latency_us.is_some());
        for (at, heading) in ["p50", "p90", "p99", "p99.9", "max"]
            .into_iter()
            .enumerate()
            .filter(|_| is_timed)
        {
            columns.push(column(heading, &|row| {
                let times = row.latency_us.map(|latency| latency.all());
                times.map_or_else(|| "-".to_owned(), |times| format!("{:.0}", times[at]))
            }));
        }
        let names = self.rows.iter().map(|one| one.name.len());
        let width = names.max().unwrap_or(0);
        Grid {
            title: String::new(),
            labels: (self.rows.iter())
                .map(|one| format!("{:<width$}  {}", one.name, one.row.contender))
                .collect(),
            groups: vec![Group {
                title: String::new(),
                columns,
            }],
        }
    }
}

impl Report for OperationsReport {
    fn text(&self, width: usize) -> String {
        let mut text = self.summary().text(width);
        text += &self.remarks();
        if let Some(ratio) = self.resumed_to_full {
            text += &format!("A resumed handshake costs the server {ratio:.2} times a full one.\n");
        }
        if self.setup.interrupted {
            text += "Interrupted: the figures cover the time until then.\n";
        }
        for one in &self.rows {
            if let Some(stages) = &one.stages {
                text.push('\n');
                text += &stages.text(&one.name, width);
            }
        }
        text
    }

    fn rows(&self) -> Vec<Row> {
        self.rows.iter().map(|one| one.row.clone()).collect()
    }

    fn chart(&self) -> Bars {
        let mut bars = Vec::new();
        for one in &self.rows {
            let label = |end| format!("{}, {}, {end}", one.name, one.row.contender);
            let Some(tables) = &one.stages else {
                // A control.
                for (end, cpu) in [
                    ("server", one.row.server_cpu),
                    ("client", one.row.client_cpu),
                ] {
                    bars.extend(cpu.map(|cpu| Bar {
                        label: label(end),
                        parts: vec![(NOT_SPLIT, cpu)],
                    }));
                }
                continue;
            };
            for (end, table) in tables.ends() {
                let total = match end {
                    "server" => one.row.server_cpu,
                    _ => one.row.client_cpu,
                };
                let total = total.unwrap_or_default();
                let parts = table.shares().into_iter();
                let parts = parts.map(|(stage, percent)| (stage, total * percent / 100.0));
                bars.push(Bar {
                    label: label(end),
                    parts: parts.collect(),
                });
            }
        }
        Bars {
            title: "squall perf: CPU by stage".to_owned(),
            subtitle: format!("{}; {}", self.setup.what.join("; "), self.setup.options),
            unit: if self.is_by_byte() {
                "CPU-seconds per GB"
            } else {
                "microseconds of CPU per operation"
            },
            bars,
        }
    }
}

#[cfg(test)]
mod tests {
    use squall_yard::latency::Percentiles;
    use squall_yard::layout;
    use squall_yard::rows::PER_HANDSHAKE;

    use super::*;

    #[test]
    fn tables_never_exceed_the_requested_width_and_controls_have_bars() {
        for figure in [1.0, 1e9] {
            let row = Row {
                workload: "W4-resumed",
                contender: "tls_tcp",
                gbit_per_s: None,
                per_s: Some(figure),
                server_cpu: Some(figure),
                client_cpu: Some(figure),
                cpu_unit: PER_HANDSHAKE,
                latency_us: Some(Percentiles {
                    p50: figure,
                    p90: figure,
                    p99: figure,
                    p99_9: figure,
                    max: figure,
                }),
                connections: None,
                mode: None,
                size: None,
                datagrams_per_message: None,
                gbit_limit: None,
            };
            let rows = vec![Figures {
                row,
                target_per_s: None,
                count: 1,
                seconds: 1.0,
                lost_percent: None,
                ratio_to_tls_tcp: Some(figure),
                ratio_to_tcp: None,
                stages: None,
                ratio_to_fewest: None,
                name: "resumed".to_owned(),
            }];
            let setup = Setup {
                what: Vec::new(),
                where_to: String::new(),
                options: String::new(),
                controls: Vec::new(),
                interrupted: true,
            };
            let report = OperationsReport::new(rows, Vec::new(), setup);
            // A control, whose two bars exist but are not split.
            let bars = report.chart().bars;
            let parts: Vec<_> = bars.iter().flat_map(|bar| &bar.parts).collect();
            assert_eq!(parts, [&(NOT_SPLIT, figure), &(NOT_SPLIT, figure)]);
            for width in [60, 80, 120] {
                let text = report.text(width);
                let rows = text.lines().filter(|line| line.starts_with("resumed "));
                for line in rows.chain(layout::wrap(&text, width).lines()) {
                    assert!(line.chars().count() <= width, "{line}");
                }
                assert!(text.contains("p99.9") && text.contains("max"), "{text}");
            }
        }
    }
}
