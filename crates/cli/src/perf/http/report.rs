//! Turns measurements into results: rows, ratios, tables.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use squall_yard::chart::{Bar, Bars, NOT_SPLIT};
use squall_yard::layout::{Column, Grid, Group};
use squall_yard::rows::{PER_GB, PER_REQUEST, Row};
use squall_yard::stages::{self, Table};
use squall_yard::stats::median;

use super::connections;
use super::files::{SEGMENT_S, SIZES};
use super::protocol::Protocol;
use super::session::Audience;
use super::window::Taken;
use crate::perf::report::Report;

/// The clients' work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Request a file of that many bytes over and over.
    Requests(u64),
    /// Connect, request the smallest file, and close, over and over.
    Handshakes,
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
            Self::Handshakes => "http-handshake",
            Self::Session => "http-session",
        }
    }

    /// The kind of work in results.
    fn kind(self) -> &'static str {
        match self {
            Self::Requests(_) => "requests",
            Self::Handshakes => "handshake",
            Self::Session => "session",
        }
    }

    /// Bytes of each response, if all have the same size.
    pub(super) fn response(self) -> Option<u64> {
        match self {
            Self::Requests(size) => Some(size),
            Self::Handshakes => Some(SIZES[0]),
            Self::Session => None,
        }
    }

    /// The size in results.
    fn size(self) -> Option<u64> {
        match self {
            Self::Requests(size) => Some(size),
            Self::Handshakes | Self::Session => None,
        }
    }

    fn connections(self, protocol: Protocol, audience: Audience) -> usize {
        match self {
            Self::Requests(_) => protocol.shape().connections,
            Self::Handshakes => connections::AT_A_TIME,
            Self::Session => audience.viewers,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests(size) => write!(f, "{size} bytes"),
            Self::Handshakes => write!(f, "handshake and {} bytes", SIZES[0]),
            Self::Session => f.write_str("session"),
        }
    }
}

/// The result of one protocol in one round.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) taken: Taken,
    pub(super) most_in_flight: usize,
    pub(super) stalls: u64,
}

impl Round {
    /// The server's CPU time in seconds per GB of content.
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

/// The rounds of one kind of work, by protocol.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) work: Work,
    rounds: BTreeMap<(&'static str, usize), Round>,
    /// The time of HTTP/3's stages, measured on a separate server.
    pub(super) stages: Option<Table>,
}

impl Entry {
    pub(super) fn new(work: Work) -> Self {
        Self {
            work,
            rounds: BTreeMap::new(),
            stages: None,
        }
    }

    /// Whether no round was measured.
    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    /// Adds a protocol's result in a round.
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

    /// The server's CPU for HTTP/3 relative to another protocol, for the same bytes: the median of
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

/// One connection per request for the smallest file.
#[derive(Clone, Debug, Serialize)]
struct HandshakeRow {
    protocol: Protocol,
    server_us_per_connection: f64,
    connections_per_s: f64,
}

/// The film.
#[derive(Clone, Debug, Serialize)]
struct SessionRow {
    protocol: Protocol,
    viewers: usize,
    server_cpu_s_per_gb: f64,
    stalls: u64,
}

/// The server's CPU for HTTP/3 relative to the others.
#[derive(Clone, Debug, Serialize)]
struct Ratio {
    #[serde(skip)]
    work: Work,
    #[serde(rename = "work")]
    kind: &'static str,
    /// For requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    h3_to_h2: Option<f64>,
    h3_to_h1: Option<f64>,
}

/// A measurement's load, and how busy it kept the two ends.
#[derive(Clone, Debug, Serialize)]
struct Load {
    protocol: Protocol,
    #[serde(skip)]
    work: Work,
    #[serde(rename = "work")]
    kind: &'static str,
    /// For requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    connections: usize,
    /// The most requests in flight at a time, counted as they began and ended.
    in_flight: usize,
    /// CPU time divided by elapsed time.
    server_busy: f64,
    client_busy: f64,
}

/// The setup of the measurement.
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

/// Describes the measurement in lines.
pub(super) fn describe(audience: Audience) -> Vec<String> {
    vec![
        "server: squall serve, a process of its own; clients: squall-h3 and hyper".to_owned(),
        "requests: 100 in flight; h3 and h2 on 10 connections with 10 each, h1 on 100 connections"
            .to_owned(),
        format!(
            "handshake: a full one and a request of {} bytes on each connection, {} at a time",
            SIZES[0],
            connections::AT_A_TIME
        ),
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
    handshakes: Vec<HandshakeRow>,
    sessions: Vec<SessionRow>,
    /// Where HTTP/3's time goes on the server.
    stages: Vec<Staged>,
    ratios: Vec<Ratio>,
    load: Vec<Load>,
    #[serde(flatten)]
    setup: Setup,
}

impl HttpReport {
    /// Computes the figures from all rounds.
    pub(super) fn new(entries: &[Entry], audience: Audience, setup: Setup) -> Self {
        let mut report = Self {
            rows: Vec::new(),
            handshakes: Vec::new(),
            sessions: Vec::new(),
            stages: Vec::new(),
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
        let (work, kind, size) = (entry.work, entry.work.kind(), entry.work.size());
        if let Some(table) = entry.stages.clone() {
            self.stages.push(Staged {
                work,
                kind,
                size,
                table,
            });
        }
        for protocol in Protocol::ALL {
            let figure = |figure: fn(&Round) -> f64| entry.median(protocol, figure);
            let Some(per_gb) = figure(Round::server_s_per_gb) else {
                continue;
            };
            let per_s = figure(Round::bytes_per_s).unwrap_or_default();
            match work {
                Work::Requests(size) => {
                    self.rows.push(RequestRow {
                        protocol,
                        size,
                        // s/GB equals ns/B.
                        server_us_per_request: per_gb * size as f64 / 1e3,
                        server_cpu_s_per_gb: per_gb,
                        requests_per_s: per_s / size as f64,
                    });
                }
                Work::Handshakes => {
                    let size = SIZES[0] as f64;
                    self.handshakes.push(HandshakeRow {
                        protocol,
                        server_us_per_connection: per_gb * size / 1e3,
                        connections_per_s: per_s / size,
                    });
                }
                Work::Session => {
                    self.sessions.push(SessionRow {
                        protocol,
                        viewers: audience.viewers,
                        server_cpu_s_per_gb: per_gb,
                        stalls: entry.of(protocol).map(|(_, round)| round.stalls).sum(),
                    });
                }
            }
            let in_flight = entry.of(protocol).map(|(_, round)| round.most_in_flight);
            self.load.push(Load {
                protocol,
                work,
                kind,
                size,
                connections: work.connections(protocol, audience),
                in_flight: in_flight.max().unwrap_or_default(),
                server_busy: figure(Round::server_share).unwrap_or_default(),
                client_busy: figure(Round::client_share).unwrap_or_default(),
            });
        }
        let (h3_to_h2, h3_to_h1) = (entry.ratio(Protocol::H2), entry.ratio(Protocol::H1));
        if h3_to_h2.or(h3_to_h1).is_some() {
            self.ratios.push(Ratio {
                work,
                kind,
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

    /// A column for each protocol, with a cell for each kind of work.
    fn columns(works: &[Work], cell: impl Fn(Work, Protocol) -> Option<String>) -> Vec<Column> {
        let cell = |work: Work, protocol| cell(work, protocol).unwrap_or_else(|| "-".to_owned());
        Protocol::ALL
            .map(|protocol| {
                let cells = works.iter().map(|work| cell(*work, protocol));
                Column::new(protocol.name(), cells)
            })
            .into()
    }

    fn row(&self, work: Work, protocol: Protocol) -> Option<&RequestRow> {
        let mut rows = self.rows.iter();
        rows.find(|row| (Work::Requests(row.size), row.protocol) == (work, protocol))
    }

    fn handshake(&self, work: Work, protocol: Protocol) -> Option<&HandshakeRow> {
        let mut rows = self.handshakes.iter();
        rows.find(|row| (Work::Handshakes, row.protocol) == (work, protocol))
    }

    fn session(&self, work: Work, protocol: Protocol) -> Option<&SessionRow> {
        let mut rows = self.sessions.iter();
        rows.find(|row| (Work::Session, row.protocol) == (work, protocol))
    }

    /// The figures of each kind of work, with the protocols side by side.
    fn table(&self) -> Grid {
        let works: Vec<Work> = self.ratios.iter().map(|ratio| ratio.work).collect();
        let ratio = |heading, of: fn(&Ratio) -> Option<f64>| {
            let cells = self.ratios.iter().map(of);
            let text =
                |cell: Option<f64>| cell.map_or_else(|| "-".to_owned(), |one| format!("{one:.2}"));
            Column::new(heading, cells.map(text))
        };
        let busy = |work: Work, protocol, of: fn(&Load) -> f64| {
            let mut loads = self.load.iter();
            let load = loads.find(|one| (one.work, one.protocol) == (work, protocol))?;
            Some(format!("{:.0}", of(load) * 100.0))
        };
        let group = |title: &str, columns| Group {
            title: title.to_owned(),
            columns,
        };
        let per_gb = |work: Work, protocol| {
            let of_row = self.row(work, protocol).map(|row| row.server_cpu_s_per_gb);
            let of_session = self.session(work, protocol);
            let figure = of_row.or(of_session.map(|row| row.server_cpu_s_per_gb))?;
            Some(format!("{figure:.3}"))
        };
        let per_request = |work: Work, protocol| {
            let of_row = self.row(work, protocol);
            let of_row = of_row.map(|row| row.server_us_per_request);
            let of_handshake = self.handshake(work, protocol);
            let figure = of_row.or(of_handshake.map(|row| row.server_us_per_connection))?;
            Some(format!("{figure:.2}"))
        };
        let per_s = |work: Work, protocol| {
            let of_row = self.row(work, protocol).map(|row| row.requests_per_s);
            let of_handshake = self.handshake(work, protocol);
            let figure = of_row.or(of_handshake.map(|row| row.connections_per_s))?;
            Some(format!("{figure:.0}"))
        };
        let groups = vec![
            group("server: µs/request", Self::columns(&works, per_request)),
            group("server: s/GB", Self::columns(&works, per_gb)),
            group(
                "ratio",
                vec![
                    ratio("h3/h2", |ratio| ratio.h3_to_h2),
                    ratio("h3/h1", |ratio| ratio.h3_to_h1),
                ],
            ),
            group("requests/s", Self::columns(&works, per_s)),
            group(
                "server busy, %",
                Self::columns(&works, |work, one| busy(work, one, |load| load.server_busy)),
            ),
            group(
                "client busy, %",
                Self::columns(&works, |work, one| busy(work, one, |load| load.client_busy)),
            ),
        ];
        Grid {
            title: String::new(),
            labels: works.iter().map(Work::to_string).collect(),
            groups,
        }
    }
}

/// HTTP/3's cost by stage with one kind of work.
#[derive(Clone, Debug, Serialize)]
struct Staged {
    #[serde(skip)]
    work: Work,
    #[serde(rename = "work")]
    kind: &'static str,
    /// For requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(flatten)]
    table: Table,
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
        for staged in &self.stages {
            let title = format!("HTTP/3 by stage: {}", staged.work);
            text += "\n";
            text += &stages::text(&title, &[("server", &staged.table)], width);
        }
        if self.setup.interrupted {
            text += "Interrupted: the figures cover the rounds until then.\n";
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
            connections: (self.load.iter())
                .find(|one| (one.work, one.protocol) == (work, protocol))
                .map(|one| one.connections),
            mode: None,
            size: work.size(),
            datagrams_per_message: None,
            gbit_limit: None,
        };
        let requests = self.rows.iter().map(|one| Row {
            per_s: Some(one.requests_per_s),
            gbit_per_s: Some(one.requests_per_s * one.size as f64 * 8.0 / 1e9),
            server_cpu: Some(one.server_us_per_request),
            ..row(Work::Requests(one.size), one.protocol)
        });
        let handshakes = self.handshakes.iter().map(|one| Row {
            per_s: Some(one.connections_per_s),
            server_cpu: Some(one.server_us_per_connection),
            ..row(Work::Handshakes, one.protocol)
        });
        let sessions = self.sessions.iter().map(|one| Row {
            server_cpu: Some(one.server_cpu_s_per_gb),
            cpu_unit: PER_GB,
            ..row(Work::Session, one.protocol)
        });
        requests.chain(handshakes).chain(sessions).collect()
    }

    fn chart(&self) -> Bars {
        let requests = self.rows.iter().map(|row| {
            let work = Work::Requests(row.size);
            (work, row.protocol, row.server_cpu_s_per_gb)
        });
        // Short responses cost many times as much per byte: the other bars would vanish.
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
