//! What was measured as results: rows, ratios, tables.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use squall_yard::chart::{Bar, Bars, NOT_SPLIT};
use squall_yard::layout::{Column, Grid, Group};
use squall_yard::rows::{PER_GB, PER_REQUEST, Row};
use squall_yard::stats::median;

use super::files::{SEGMENT_S, SIZES};
use super::protocol::Protocol;
use super::session::Audience;
use super::window::Taken;
use crate::perf::report::Report;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Request a file of that many bytes over and over.
    Requests(u64),
    /// Watch the film.
    Session,
}

impl Work {
    /// The workload's name in comma-separated rows.
    fn workload(self) -> &'static str {
        match self {
            Self::Requests(1_024) => "http-1024",
            Self::Requests(100_000) => "http-100000",
            Self::Requests(_) => "http-1000000",
            Self::Session => "http-session",
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests(size) => write!(f, "{size} bytes"),
            Self::Session => f.write_str("session"),
        }
    }
}

/// What one protocol did in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) taken: Taken,
    pub(super) most_in_flight: usize,
    pub(super) stalls: u64,
}

impl Round {
    /// CPU time of the server in seconds for a GB of content.
    fn server_s_per_gb(&self) -> f64 {
        self.taken.server.as_secs_f64() / (self.taken.bytes as f64 / 1e9)
    }

    fn server_share(&self) -> f64 {
        self.taken.server.as_secs_f64() / self.taken.elapsed.as_secs_f64()
    }

    fn client_share(&self) -> f64 {
        self.taken.client.as_secs_f64() / self.taken.elapsed.as_secs_f64()
    }

    fn bytes_per_s(&self) -> f64 {
        self.taken.bytes as f64 / self.taken.elapsed.as_secs_f64()
    }
}

/// A work's rounds, by protocol.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) work: Work,
    rounds: BTreeMap<(&'static str, usize), Round>,
}

impl Entry {
    pub(super) fn new(work: Work) -> Self {
        Self {
            work,
            rounds: BTreeMap::new(),
        }
    }

    /// Adds what a protocol did in a round.
    pub(super) fn add(&mut self, protocol: Protocol, index: usize, round: Round) {
        self.rounds.insert((protocol.name(), index), round);
    }

    fn of(&self, protocol: Protocol) -> impl Iterator<Item = (usize, &Round)> {
        let rounds = self.rounds.iter();
        let own = rounds.filter(move |((name, _), _)| *name == protocol.name());
        own.map(|((_, index), round)| (*index, round))
    }

    /// The median of a figure over the rounds.
    fn median(&self, protocol: Protocol, figure: impl Fn(&Round) -> f64) -> Option<f64> {
        median(self.of(protocol).map(|(_, round)| figure(round)).collect())
    }

    /// HTTP/3's CPU of the server against another protocol's, for the same bytes: the median of
    /// the rounds' ratios.
    fn ratio(&self, other: Protocol) -> Option<f64> {
        let ratios = self.of(Protocol::H3).filter_map(|(index, own)| {
            let other = self.rounds.get(&(other.name(), index))?;
            Some(own.server_s_per_gb() / other.server_s_per_gb()).filter(|one| one.is_finite())
        });
        median(ratios.collect())
    }
}

/// A file requested over and over.
#[derive(Clone, Debug, Serialize)]
struct RequestRow {
    protocol: Protocol,
    size: u64,
    server_us_per_request: f64,
    server_cpu_s_per_gb: f64,
    requests_per_s: f64,
}

/// The film.
#[derive(Clone, Debug, Serialize)]
struct SessionRow {
    protocol: Protocol,
    viewers: usize,
    server_cpu_s_per_gb: f64,
    stalls: u64,
}

/// HTTP/3's CPU of the server against the others'.
#[derive(Clone, Debug, Serialize)]
struct Ratio {
    /// Absent for the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    h3_to_h2: Option<f64>,
    h3_to_h1: Option<f64>,
}

/// What a measurement's load was, and how busy the two ends were with it.
#[derive(Clone, Debug, Serialize)]
struct Load {
    protocol: Protocol,
    /// Absent for the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    connections: usize,
    /// The most requests that were in flight at a time, counted as they began and ended.
    in_flight: usize,
    /// CPU time against elapsed time.
    server_busy: f64,
    client_busy: f64,
}

/// What was measured, and on what.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setup {
    pub(super) what: Vec<String>,
    pub(super) where_to: String,
    pub(super) options: String,
    pub(super) seconds: f64,
    pub(super) rounds: usize,
    pub(super) interrupted: bool,
}

impl Setup {
    /// The lines before the results.
    pub(super) fn heading(&self) -> String {
        format!(
            "{}\n{}\n{}, {} s each in {} rounds\n",
            self.where_to,
            self.what.join("\n"),
            self.options,
            self.seconds,
            self.rounds
        )
    }
}

/// What is measured, in lines.
pub(super) fn describe(audience: Audience) -> Vec<String> {
    vec![
        "server: squall serve, a process of its own; clients: squall-h3 and hyper".to_owned(),
        "requests: 100 in flight; h3 and h2 on 10 connections with 10 each, h1 on 100 connections"
            .to_owned(),
        format!(
            "session: {} viewers with a connection each, {SEGMENT_S} s segments of audio (128 kbit/s) and video (1 to 8 \
             Mbit/s) at {} times real time",
            audience.viewers, audience.speed
        ),
    ]
}

/// Everything that is printed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HttpReport {
    rows: Vec<RequestRow>,
    sessions: Vec<SessionRow>,
    ratios: Vec<Ratio>,
    load: Vec<Load>,
    #[serde(flatten)]
    setup: Setup,
}

impl HttpReport {
    /// The figures of all rounds.
    pub(super) fn new(entries: &[Entry], audience: Audience, setup: Setup) -> Self {
        let mut report = Self {
            rows: Vec::new(),
            sessions: Vec::new(),
            ratios: Vec::new(),
            load: Vec::new(),
            setup,
        };
        for entry in entries {
            report.add(entry, audience);
        }
        report
    }

    fn add(&mut self, entry: &Entry, audience: Audience) {
        let size = match entry.work {
            Work::Requests(size) => Some(size),
            Work::Session => None,
        };
        for protocol in Protocol::ALL {
            let figure = |figure: fn(&Round) -> f64| entry.median(protocol, figure);
            let Some(per_gb) = figure(Round::server_s_per_gb) else {
                continue;
            };
            let connections = match size {
                Some(size) => {
                    let per_s = figure(Round::bytes_per_s).unwrap_or_default();
                    self.rows.push(RequestRow {
                        protocol,
                        size,
                        // s/GB are ns/B.
                        server_us_per_request: per_gb * size as f64 / 1e3,
                        server_cpu_s_per_gb: per_gb,
                        requests_per_s: per_s / size as f64,
                    });
                    protocol.shape().connections
                }
                None => {
                    self.sessions.push(SessionRow {
                        protocol,
                        viewers: audience.viewers,
                        server_cpu_s_per_gb: per_gb,
                        stalls: entry.of(protocol).map(|(_, round)| round.stalls).sum(),
                    });
                    audience.viewers
                }
            };
            let in_flight = entry.of(protocol).map(|(_, round)| round.most_in_flight);
            self.load.push(Load {
                protocol,
                size,
                connections,
                in_flight: in_flight.max().unwrap_or_default(),
                server_busy: figure(Round::server_share).unwrap_or_default(),
                client_busy: figure(Round::client_share).unwrap_or_default(),
            });
        }
        let (h3_to_h2, h3_to_h1) = (entry.ratio(Protocol::H2), entry.ratio(Protocol::H1));
        if h3_to_h2.or(h3_to_h1).is_some() {
            self.ratios.push(Ratio {
                size,
                h3_to_h2,
                h3_to_h1,
            });
        }
    }

    /// Whether there is nothing to print.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A column for each protocol, with a cell for each label.
    fn columns(labels: &[Label], cell: impl Fn(&Label, Protocol) -> Option<String>) -> Vec<Column> {
        let cell =
            |label: &Label, protocol| cell(label, protocol).unwrap_or_else(|| "-".to_owned());
        Protocol::ALL
            .map(|protocol| {
                let cells = labels.iter().map(|label| cell(label, protocol));
                Column::new(protocol.name(), cells)
            })
            .into()
    }

    fn row(&self, label: &Label, protocol: Protocol) -> Option<&RequestRow> {
        let mut rows = self.rows.iter();
        rows.find(|row| (Some(row.size), row.protocol) == (label.0, protocol))
    }

    fn session(&self, label: &Label, protocol: Protocol) -> Option<&SessionRow> {
        let mut rows = self.sessions.iter();
        rows.find(|row| label.0.is_none() && row.protocol == protocol)
    }

    /// Each work's figures, with the protocols side by side.
    fn table(&self) -> Grid {
        let labels: Vec<Label> = self.ratios.iter().map(|ratio| Label(ratio.size)).collect();
        let ratio = |heading, of: fn(&Ratio) -> Option<f64>| {
            let cells = self.ratios.iter().map(of);
            let text =
                |cell: Option<f64>| cell.map_or_else(|| "-".to_owned(), |one| format!("{one:.2}"));
            Column::new(heading, cells.map(text))
        };
        let busy = |label: &Label, protocol, of: fn(&Load) -> f64| {
            let mut loads = self.load.iter();
            let load = loads.find(|one| (one.size, one.protocol) == (label.0, protocol))?;
            Some(format!("{:.0}", of(load) * 100.0))
        };
        let group = |title: &str, columns| Group {
            title: title.to_owned(),
            columns,
        };
        let per_gb = |label: &Label, protocol| {
            let of_row = self.row(label, protocol).map(|row| row.server_cpu_s_per_gb);
            let of_session = self.session(label, protocol);
            let figure = of_row.or(of_session.map(|row| row.server_cpu_s_per_gb))?;
            Some(format!("{figure:.3}"))
        };
        let per_request = |label: &Label, protocol| {
            let row = self.row(label, protocol)?;
            Some(format!("{:.2}", row.server_us_per_request))
        };
        let per_s = |label: &Label, protocol| {
            let row = self.row(label, protocol)?;
            Some(format!("{:.0}", row.requests_per_s))
        };
        let groups = vec![
            group("server: µs/request", Self::columns(&labels, per_request)),
            group("server: s/GB", Self::columns(&labels, per_gb)),
            group(
                "ratio",
                vec![
                    ratio("h3/h2", |ratio| ratio.h3_to_h2),
                    ratio("h3/h1", |ratio| ratio.h3_to_h1),
                ],
            ),
            group("requests/s", Self::columns(&labels, per_s)),
            group(
                "server busy, %",
                Self::columns(&labels, |label, one| {
                    busy(label, one, |load| load.server_busy)
                }),
            ),
            group(
                "client busy, %",
                Self::columns(&labels, |label, one| {
                    busy(label, one, |load| load.client_busy)
                }),
            ),
        ];
        Grid {
            title: String::new(),
            labels: labels.iter().map(Label::text).collect(),
            groups,
        }
    }
}

/// A row of the table: requests of that size, or the session.
struct Label(Option<u64>);

impl Label {
    fn text(&self) -> String {
        self.0.map_or(Work::Session, Work::Requests).to_string()
    }
}

impl Report for HttpReport {
    fn text(&self, width: usize) -> String {
        let mut text = self.table().text(width);
        text += "(CPU time of the server's process; ratio: of that CPU, the median of the rounds' ratios; busy: CPU time \
                 against elapsed time)\n";
        for row in &self.sessions {
            let (protocol, stalls, viewers) = (row.protocol, row.stalls, row.viewers);
            text += &format!("session over {protocol}: {stalls} stalls of {viewers} viewers\n");
        }
        if self.setup.interrupted {
            text += "Interrupted: the figures cover the rounds before.\n";
        }
        text
    }

    fn rows(&self) -> Vec<Row> {
        let row = |work: Work, protocol: Protocol| Row {
            workload: work.workload(),
            contender: protocol.name(),
            gbit_per_s: None,
            per_s: None,
            server_cpu: None,
            client_cpu: None,
            cpu_unit: PER_REQUEST,
            latency_us: None,
        };
        let requests = self.rows.iter().map(|one| Row {
            per_s: Some(one.requests_per_s),
            gbit_per_s: Some(one.requests_per_s * one.size as f64 * 8.0 / 1e9),
            server_cpu: Some(one.server_us_per_request),
            ..row(Work::Requests(one.size), one.protocol)
        });
        let sessions = self.sessions.iter().map(|one| Row {
            server_cpu: Some(one.server_cpu_s_per_gb),
            cpu_unit: PER_GB,
            ..row(Work::Session, one.protocol)
        });
        requests.chain(sessions).collect()
    }

    fn chart(&self) -> Bars {
        let requests = self.rows.iter().map(|row| {
            let work = Work::Requests(row.size);
            (work, row.protocol, row.server_cpu_s_per_gb)
        });
        // Short responses cost many times as much for a byte: no bar would be left of the others.
        let requests = requests.filter(|(work, ..)| *work != Work::Requests(SIZES[0]));
        let sessions = self.sessions.iter();
        let sessions = sessions.map(|row| (Work::Session, row.protocol, row.server_cpu_s_per_gb));
        let bars = requests.chain(sessions).map(|(work, protocol, cpu)| Bar {
            label: format!("{work}, {protocol}"),
            parts: vec![(NOT_SPLIT, cpu)],
        });
        Bars {
            title: "squall perf --http: the server's CPU".to_owned(),
            subtitle: format!("{}; {}", self.setup.where_to, self.setup.options),
            unit: "CPU-seconds per GB",
            bars: bars.collect(),
        }
    }
}
