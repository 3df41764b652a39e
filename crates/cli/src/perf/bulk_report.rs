//! The results: figures from rounds, as tables for people and as one JSON object.
//!
//! Throughput and CPU are sums over all rounds of a contender. A ratio compares the two contenders
//! within each round, a second apart, because the machine drifts from minute to minute; the
//! reported ratio is the median of the rounds' ratios.

use std::time::Duration;

use serde::Serialize;
use squall_yard::chart::{Bar, Bars, NOT_SPLIT};
use squall_yard::latency::Percentiles;
use squall_yard::layout::{Column, Grid, Group};
use squall_yard::live::Gauges;
use squall_yard::meter::{Sent, Used};
use squall_yard::outcome::Outcome;
use squall_yard::rows::{self, Row};
use squall_yard::stages::{Both, Rates};
use squall_yard::stats::median;

use super::contender::Contender;
use super::report::{Interval, Report};

/// The result of one contender in one round, `ksoftirqd` included.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) contender: Contender,
    pub(crate) index: usize,
    pub(crate) outcome: Outcome,
    /// `ksoftirqd` on the cores of both ends, already part of the outcome's CPU times.
    pub(crate) ksoftirqd: Duration,
}

impl Round {
    /// CPU-seconds per GB delivered, both ends.
    fn cpu_s_per_gb(&self) -> f64 {
        per_gb(
            self.outcome.server_cpu + self.outcome.client_cpu,
            self.outcome.bytes,
        )
    }
}

/// The results for one number of connections.
pub(crate) struct Series {
    pub(crate) connections: usize,
    pub(crate) rounds: Vec<Round>,
    /// QUIC's times, over all rounds.
    pub(crate) gauges: Gauges,
}

impl Series {
    /// A series without rounds.
    pub(crate) fn new(connections: usize) -> Self {
        Self {
            connections,
            rounds: Vec::new(),
            gauges: Gauges::default(),
        }
    }

    /// The report for this number alone.
    pub(crate) fn report(&self, rates: Rates, setup: Setup) -> BulkReport {
        let used = used(&self.rounds, Contender::Quic);
        let stages = used.and_then(|used| used.tables(rates));
        BulkReport::new(self, stages, setup)
    }
}

/// One contender's figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// Of both directions together, if data flows in both.
    pub(crate) gbit_per_s: f64,
    /// With `--bidir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) download_gbit_per_s: Option<f64>,
    /// With `--bidir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upload_gbit_per_s: Option<f64>,
    pub(crate) server_cpu_s_per_gb: f64,
    pub(crate) client_cpu_s_per_gb: f64,
    /// Already part of the two above.
    pub(crate) ksoftirqd_cpu_s_per_gb: f64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// UDP datagrams per message that QUIC's server gave to the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams_per_message: Option<f64>,
    /// Both ends' CPU-seconds per GB, round by round.
    pub(crate) rounds_cpu_s_per_gb: Vec<f64>,
}

/// The setup of the measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    /// Absent with several numbers: rows have their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<usize>,
    pub(crate) streams: usize,
    /// `download`: the server sends; `upload`; `bidir`: both.
    pub(crate) direction: &'static str,
    /// The application's limit.
    pub(crate) bits_per_second_per_stream: Option<u64>,
    pub(crate) bytes_per_stream: Option<u64>,
    pub(crate) seconds: Option<f64>,
    pub(crate) rounds: usize,
    /// Whether Ctrl-C ended it early.
    pub(crate) interrupted: bool,
    pub(crate) payload: u16,
    pub(crate) cipher_suite: String,
    /// QUIC's.
    pub(crate) congestion: &'static str,
    pub(crate) gso: bool,
    pub(crate) gro: bool,
    pub(crate) pacing: bool,
    pub(crate) server_core: Option<usize>,
    pub(crate) client_core: Option<usize>,
    pub(crate) ksoftirqd_threads: usize,
    /// The TLS control's provider, and nanoseconds to seal and open 16 KiB with each.
    pub(crate) tls_provider: Option<&'static str>,
    pub(crate) tls_providers_ns: Vec<(&'static str, f64)>,
    pub(crate) tcp_congestion_control: Option<String>,
}

/// Everything printed by `squall perf`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BulkReport {
    /// `W1`, `W1r`, `W2`, `W5s`, `bidir` or `bulk`.
    pub(crate) workload: &'static str,
    /// As in the rows of the other workloads.
    pub(crate) connections: usize,
    /// Each stream's limit in Gbit/s, if the application has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbit_limit: Option<f64>,
    pub(crate) quic: Option<Figures>,
    pub(crate) tls_tcp: Option<Figures>,
    pub(crate) tcp: Option<Figures>,
    /// QUIC's CPU relative to TLS over TCP, both ends together.
    pub(crate) ratio_to_tls_tcp: Option<f64>,
    /// QUIC's CPU relative to plain TCP, both ends together.
    pub(crate) ratio_to_tcp: Option<f64>,
    /// CPU of TLS over TCP relative to plain TCP, both ends together.
    pub(crate) tls_tcp_ratio_to_tcp: Option<f64>,
    /// QUIC's smoothed round-trip time at the sending end, in microseconds, sampled over time.
    pub(crate) rtt_us: Option<Percentiles>,
    /// QUIC's time from a stream's creation to the first byte of its download, in microseconds.
    pub(crate) first_byte_us: Option<Percentiles>,
    pub(crate) stages: Option<Both>,
    /// With `--interval`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) intervals: Vec<Interval>,
    pub(crate) setup: Setup,
}

impl BulkReport {
    /// Computes the figures from the rounds.
    pub(crate) fn new(series: &Series, stages: Option<Both>, setup: Setup) -> Self {
        use Contender::{Quic, Tcp, TlsTcp};
        let (rounds, gauges) = (&series.rounds, &series.gauges);
        let endless = setup.direction == "download" && setup.bytes_per_stream.is_none();
        let workload = rows::bulk(
            series.connections,
            setup.streams,
            setup.direction == "bidir",
            endless,
            setup.bits_per_second_per_stream.is_some(),
        );
        Self {
            workload,
            connections: series.connections,
            gbit_limit: setup.bits_per_second_per_stream.map(rows::gbit),
            quic: figures(rounds, Quic),
            tls_tcp: figures(rounds, TlsTcp),
            tcp: figures(rounds, Tcp),
            ratio_to_tls_tcp: ratio(rounds, Quic, TlsTcp),
            ratio_to_tcp: ratio(rounds, Quic, Tcp),
            tls_tcp_ratio_to_tcp: ratio(rounds, TlsTcp, Tcp),
            rtt_us: gauges.rtt.read().percentiles(),
            first_byte_us: gauges.first_byte.read().percentiles(),
            stages,
            intervals: Vec::new(),
            setup,
        }
    }

    /// The contenders that ran.
    pub(super) fn contenders(&self) -> impl Iterator<Item = (Contender, &Figures)> {
        let all = [
            (Contender::Quic, &self.quic),
            (Contender::TlsTcp, &self.tls_tcp),
            (Contender::Tcp, &self.tcp),
        ];
        all.into_iter()
            .filter_map(|(contender, figures)| Some((contender, figures.as_ref()?)))
    }

    /// A contender's CPU relative to plain TCP.
    pub(super) fn to_tcp(&self, contender: Contender) -> Option<f64> {
        match contender {
            Contender::Quic => self.ratio_to_tcp,
            Contender::TlsTcp => self.tls_tcp_ratio_to_tcp,
            Contender::Tcp => None,
        }
    }

    /// The conclusions from the figures, in lines that begin with this.
    pub(super) fn remarks(&self, begin: &str) -> String {
        let mut text = String::new();
        for (control, ratio) in [
            ("TLS over TCP", self.ratio_to_tls_tcp),
            ("plain TCP", self.ratio_to_tcp),
        ] {
            if let Some(ratio) = ratio {
                text += &format!("{begin}QUIC costs {ratio:.2} times the CPU of {control}.\n");
            }
        }
        for (name, times) in [
            ("Smoothed round-trip time of the sender", &self.rtt_us),
            ("Time to the first byte", &self.first_byte_us),
        ] {
            if let Some(times) = times {
                text += &format!("{begin}{name}: {times}.\n");
            }
        }
        text
    }

    /// QUIC's cost by stage, preceded by an empty line.
    pub(super) fn stage_table(&self, title: &str, width: usize) -> String {
        let ends = match self.setup.direction {
            "upload" => ("server (receives)", "client (sends)"),
            "bidir" => ("server", "client"),
            _ => ("server (sends)", "client (receives)"),
        };
        let stages = self.stages.as_ref();
        stages.map_or_else(String::new, |stages| {
            format!("\n{}", stages.table(title, ends.0, ends.1, width))
        })
    }

    pub(super) fn row(&self, contender: Contender, figures: &Figures) -> Row {
        Row {
            workload: self.workload,
            contender: match contender {
                Contender::Quic => rows::SQUALL,
                control => control.name(),
            },
            gbit_per_s: Some(figures.gbit_per_s),
            per_s: None,
            server_cpu: Some(figures.server_cpu_s_per_gb),
            client_cpu: Some(figures.client_cpu_s_per_gb),
            cpu_unit: rows::PER_GB,
            latency_us: None,
            connections: Some(self.connections),
            mode: None,
            size: None,
            datagrams_per_message: figures.datagrams_per_message,
            gbit_limit: self.gbit_limit,
        }
    }

    /// Two bars per contender, QUIC's split by stage.
    pub(super) fn bars(&self, name: impl Fn(Contender) -> String) -> Vec<Bar> {
        let mut bars = Vec::new();
        for (contender, figures) in self.contenders() {
            let tables = self
                .stages
                .as_ref()
                .filter(|_| contender == Contender::Quic);
            for (end, cpu, table) in [
                (
                    "server",
                    figures.server_cpu_s_per_gb,
                    tables.map(|tables| &tables.server),
                ),
                (
                    "client",
                    figures.client_cpu_s_per_gb,
                    tables.map(|tables| &tables.client),
                ),
            ] {
                let parts = match table {
                    Some(table) => {
                        let shares = table.shares().into_iter();
                        shares
                            .map(|(stage, percent)| (stage, cpu * percent / 100.0))
                            .collect()
                    }
                    None => vec![(NOT_SPLIT, cpu)],
                };
                bars.push(Bar {
                    label: format!("{}, {end}", name(contender)),
                    parts,
                });
            }
        }
        bars
    }
}

impl Report for BulkReport {
    fn text(&self, width: usize) -> String {
        let rows = self.contenders().map(|(contender, figures)| {
            let name = contender.name().to_owned();
            (name, figures, self.to_tcp(contender))
        });
        let mut text = summary(&rows.collect::<Vec<_>>(), width);
        text += &self.remarks("");
        if self.setup.interrupted {
            text += INTERRUPTED;
        }
        text + &self.stage_table("QUIC by stage", width)
    }

    /// A row for each contender.
    fn rows(&self) -> Vec<Row> {
        let contenders = self.contenders();
        let rows = contenders.map(|(contender, figures)| self.row(contender, figures));
        rows.collect()
    }

    fn chart(&self) -> Bars {
        chart(
            self.bars(|contender| contender.name().to_owned()),
            &self.connections.to_string(),
            &self.setup,
        )
    }
}

/// The line below the tables of a measurement that Ctrl-C ended early.
pub(super) const INTERRUPTED: &str = "Interrupted: the figures cover the time until then.\n";

/// The chart of these bars.
pub(super) fn chart(bars: Vec<Bar>, connections: &str, setup: &Setup) -> Bars {
    Bars {
        title: "squall perf: CPU by stage".to_owned(),
        subtitle: format!(
            "{}, {connections} connection(s) of {} stream(s), {}, datagrams of {} bytes, loopback",
            setup.direction, setup.streams, setup.cipher_suite, setup.payload
        ),
        unit: "CPU-seconds per GB delivered",
        bars,
    }
}

fn per_gb(cpu: Duration, bytes: u64) -> f64 {
    if bytes == 0 {
        return 0.0;
    }
    cpu.as_secs_f64() / (bytes as f64 / 1e9)
}

/// The sum over a contender's rounds; `None` if it was not counted.
fn used(rounds: &[Round], contender: Contender) -> Option<Used> {
    let own = (rounds.iter()).filter(|round| round.contender == contender);
    let counted = own.filter_map(|round| round.outcome.used.as_ref());
    let mut sum = None;
    for used in counted {
        sum.get_or_insert_with(Used::default).add(used);
    }
    sum
}

fn figures(rounds: &[Round], contender: Contender) -> Option<Figures> {
    let own = of(rounds, contender);
    let bytes: u64 = own.iter().map(|round| round.outcome.bytes).sum();
    let elapsed: Duration = own.iter().map(|round| round.outcome.elapsed).sum();
    if bytes == 0 || elapsed.is_zero() {
        return None;
    }
    let sum = |part: fn(&Round) -> Duration| own.iter().map(|round| part(round)).sum();
    let up: u64 = own.iter().map(|round| round.outcome.bytes_up).sum();
    let rate = |bytes: u64| bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9;
    let is_both = up > 0 && up < bytes;
    let sent = used(rounds, contender).map(|used| used.server_sent);
    Some(Figures {
        gbit_per_s: rate(bytes),
        download_gbit_per_s: is_both.then(|| rate(bytes - up)),
        upload_gbit_per_s: is_both.then(|| rate(up)),
        server_cpu_s_per_gb: per_gb(sum(|round| round.outcome.server_cpu), bytes),
        client_cpu_s_per_gb: per_gb(sum(|round| round.outcome.client_cpu), bytes),
        ksoftirqd_cpu_s_per_gb: per_gb(sum(|round| round.ksoftirqd), bytes),
        bytes,
        seconds: elapsed.as_secs_f64(),
        datagrams_per_message: sent.and_then(Sent::datagrams_per_message),
        rounds_cpu_s_per_gb: own.iter().map(|round| round.cpu_s_per_gb()).collect(),
    })
}

/// The median over the rounds of `contender`'s CPU per GB relative to `control`'s in that round.
fn ratio(rounds: &[Round], contender: Contender, control: Contender) -> Option<f64> {
    median_ratio(of(rounds, contender), &of(rounds, control))
}

/// The median over the rounds of a contender's CPU per GB relative to its own on the fewest
/// connections in the same round.
pub(super) fn growth(rounds: &[Round], fewest: &[Round], contender: Contender) -> Option<f64> {
    median_ratio(of(rounds, contender), &of(fewest, contender))
}

fn of(rounds: &[Round], contender: Contender) -> Vec<&Round> {
    let own = rounds.iter().filter(|round| round.contender == contender);
    own.collect()
}

fn median_ratio(own: Vec<&Round>, others: &[&Round]) -> Option<f64> {
    let ratios = own.into_iter().filter_map(|own| {
        let other = others.iter().find(|other| other.index == own.index)?;
        let ratio = own.cpu_s_per_gb() / other.cpu_s_per_gb();
        ratio.is_finite().then_some(ratio)
    });
    median(ratios.collect())
}

/// The table of throughput and CPU: for each row the label, the figures, and the ratio to TCP.
pub(super) fn summary(rows: &[(String, &Figures, Option<f64>)], width: usize) -> String {
    let column = |heading, cell: &dyn Fn(&Figures) -> String| {
        Column::new(heading, rows.iter().map(|(_, figures, _)| cell(figures)))
    };
    let sum = |one: &Figures| one.server_cpu_s_per_gb + one.client_cpu_s_per_gb;
    let ratios = rows.iter().map(|(_, _, ratio)| {
        let ratio = ratio.map(|ratio| format!("{ratio:.2}"));
        ratio.unwrap_or_default()
    });
    let mut columns = vec![column("Gbit/s", &|one| format!("{:.2}", one.gbit_per_s))];
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    if rows
        .iter()
        .any(|(_, one, _)| one.upload_gbit_per_s.is_some())
    {
        columns.push(column("down", &|one| rate(one.download_gbit_per_s)));
        columns.push(column("up", &|one| rate(one.upload_gbit_per_s)));
    }
    columns.extend([
        column("server", &|one| format!("{:.3}", one.server_cpu_s_per_gb)),
        column("client", &|one| format!("{:.3}", one.client_cpu_s_per_gb)),
        column("sum", &|one| format!("{:.3}", sum(one))),
        Column::new("vs. tcp", ratios),
    ]);
    let group = Group {
        title: String::new(),
        columns,
    };
    let grid = Grid {
        title: String::new(),
        labels: rows.iter().map(|(name, ..)| name.clone()).collect(),
        groups: vec![group],
    };
    grid.text(width) + "(server, client, sum: CPU-seconds per GB delivered, ksoftirqd included)\n"
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use squall_yard::layout;
    use squall_yard::stages::{Clocks, Sample, Table};

    pub(crate) fn round(contender: Contender, index: usize, cpu_ms: u64) -> Round {
        Round {
            contender,
            index,
            outcome: Outcome {
                bytes: 1_000_000_000,
                bytes_up: 0,
                elapsed: Duration::from_secs(1),
                ended: None,
                server_cpu: Duration::from_millis(cpu_ms),
                client_cpu: Duration::from_millis(cpu_ms),
                sent: Vec::new(),
                received: Vec::new(),
                used: None,
            },
            ksoftirqd: Duration::ZERO,
        }
    }

    pub(crate) fn setup() -> Setup {
        Setup {
            connections: Some(1),
            streams: 1,
            direction: "download",
            bits_per_second_per_stream: None,
            bytes_per_stream: None,
            seconds: Some(10.0),
            rounds: 3,
            interrupted: false,
            payload: 1472,
            cipher_suite: "TLS_AES_128_GCM_SHA256".to_owned(),
            congestion: "cubic",
            gso: true,
            gro: true,
            pacing: true,
            server_core: Some(0),
            client_core: Some(1),
            ksoftirqd_threads: 2,
            tls_provider: Some("ring"),
            tls_providers_ns: vec![("ring", 4000.0)],
            tcp_congestion_control: None,
        }
    }

    /// The results of one connection.
    fn report(rounds: &[Round], stages: Option<Both>) -> BulkReport {
        let mut series = Series::new(1);
        series.rounds = rounds.to_vec();
        BulkReport::new(&series, stages, setup())
    }

    fn stages() -> Both {
        let sample = Sample {
            stages: vec![("AEAD", 600)],
            waits: squall::Waits::default(),
            stamps: 1,
            cpu: Duration::from_nanos(1_000),
            preemptions: 0,
            packets: 10,
            bytes: 14_000,
            operations: 0,
        };
        let clocks = Clocks {
            ns_per_stamp: 10.0,
            ns_per_cpu_reading: 300.0,
        };
        let rates = Rates {
            ns_per_tick: 1.0,
            clocks,
            core_ghz: None,
        };
        let table = Table::new(&sample, rates).expect("work was done");
        Both {
            process_cpu_s: 2e-6,
            attributed_percent: Some(60.0),
            overhead_percent: 1.0,
            server: table.clone(),
            client: table,
            core_ghz: None,
            clocks,
        }
    }

    #[test]
    fn a_ratio_is_the_median_of_ratios_within_rounds() {
        // Ratios 2, 4 and 1. The medians of the CPU times would also give 400 / 200 = 2, but only
        // by chance, so the second round is slow for both.
        let rounds = [
            round(Contender::Quic, 0, 200),
            round(Contender::Tcp, 0, 100),
            round(Contender::Quic, 1, 4_000),
            round(Contender::Tcp, 1, 1_000),
            round(Contender::Tcp, 2, 300),
            round(Contender::Quic, 2, 900),
        ];
        assert_eq!(ratio(&rounds, Contender::Quic, Contender::Tcp), Some(3.0));
        assert_eq!(ratio(&rounds, Contender::Quic, Contender::TlsTcp), None);
    }

    #[test]
    fn figures_are_sums_over_the_rounds() {
        let rounds = [round(Contender::Tcp, 0, 100), round(Contender::Tcp, 1, 300)];
        let figures = figures(&rounds, Contender::Tcp).expect("two rounds");
        assert!((figures.gbit_per_s - 8.0).abs() < 1e-9);
        assert!((figures.server_cpu_s_per_gb - 0.2).abs() < 1e-9);
        assert_eq!(figures.rounds_cpu_s_per_gb, [0.2, 0.6]);
    }

    #[test]
    fn the_json_object_has_the_documented_keys() {
        let rounds = [
            round(Contender::Quic, 0, 200),
            round(Contender::TlsTcp, 0, 150),
            round(Contender::Tcp, 0, 100),
        ];
        let report = report(&rounds, Some(stages()));
        let json = serde_json::to_value(&report).expect("plain data");
        for contender in ["quic", "tls_tcp", "tcp"] {
            for key in ["gbit_per_s", "server_cpu_s_per_gb", "client_cpu_s_per_gb"] {
                assert!(json[contender][key].is_f64(), "{contender} {key}");
            }
        }
        assert_eq!(json["ratio_to_tcp"], 2.0);
        assert!((json["ratio_to_tls_tcp"].as_f64().expect("number") - 4.0 / 3.0).abs() < 1e-9);
        let row = &json["stages"]["server"]["rows"][0];
        assert_eq!(row["stage"], "AEAD");
        assert_eq!(row["ns_per_packet"], 60.0);
        assert_eq!(row["percent"], 60.0);
    }

    #[test]
    fn the_chart_has_two_bars_per_contender_and_splits_quics() {
        let rounds = [
            round(Contender::Quic, 0, 200),
            round(Contender::Tcp, 0, 100),
        ];
        let report = report(&rounds, Some(stages()));
        let bars = report.chart().bars;
        let parts: Vec<usize> = bars.iter().map(|bar| bar.parts.len()).collect();
        assert_eq!(parts, [3, 3, 1, 1]);
        assert_eq!(report.rows().len(), 2);
        assert_eq!(report.rows()[0].workload, "W1");
    }

    #[test]
    fn contenders_that_did_not_run_are_null_and_absent_from_the_table() {
        let rounds = [round(Contender::Tcp, 0, 100)];
        let report = report(&rounds, None);
        let json = serde_json::to_value(&report).expect("plain data");
        assert!(json["quic"].is_null() && json["stages"].is_null());
        let text = report.text(80);
        assert!(text.contains("tcp") && !text.contains("tls_tcp"));
    }

    #[test]
    fn tables_never_exceed_the_requested_width() {
        for cpu_ms in [200, 200_000_000_000] {
            let rounds = [
                round(Contender::Quic, 0, cpu_ms),
                round(Contender::Tcp, 0, cpu_ms),
            ];
            let mut stages = stages();
            let scale = cpu_ms as f64 / 200.0;
            for row in &mut stages.client.rows {
                row.ns_per_packet = row.ns_per_packet.map(|ns| ns * scale);
            }
            let report = report(&rounds, Some(stages));
            for width in [60, 80, 120] {
                let text = report.text(width);
                assert!(text.contains("unattributed") && text.contains("of which stamps"));
                let labels = ["quic ", "tcp ", "AEAD", "unattributed", "total"];
                let rows = text
                    .lines()
                    .filter(|line| labels.iter().any(|label| line.starts_with(label)));
                for line in rows.chain(layout::wrap(&text, width).lines()) {
                    assert!(line.chars().count() <= width, "{line}");
                }
            }
        }
    }
}
