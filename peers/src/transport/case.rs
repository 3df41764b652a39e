//! What is measured: workloads, each in several sizes.

use std::fmt;
use std::time::Instant;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use squall_yard::pace::{Begin, Pace};

use super::job::Contender;

/// draft-banks-quic-performance §2.3.1: an endless answer.
pub(super) const UNLIMITED: u64 = u64::MAX;
/// W5 and W5t: bytes a second, over all connections.
const VIEWERS_RATE: f64 = 200e6;
/// W8: requests on a connection, one after the other.
const CHURN_REQUESTS: u64 = 3;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(super) enum Workload {
    /// One connection, one stream, server to client.
    #[value(name = "W1")]
    W1,
    /// W1 on links of 1, 5 and 10 Gbit/s, in a network namespace.
    #[value(name = "W1r")]
    W1r,
    /// W1 over a link whose sender has no UDP segmentation (TCP: no TSO).
    #[value(name = "W1s")]
    W1s,
    /// Ten connections with ten streams each, server to client.
    #[value(name = "W2")]
    W2,
    /// Requests of 100 bytes, answers of 1 KiB, 100 in flight on one connection.
    #[value(name = "W3")]
    W3,
    /// Full handshakes, four at a time; one empty request on each connection.
    #[value(name = "W4")]
    W4,
    /// The same with a ticket from an earlier connection.
    #[value(name = "W4-resumed")]
    #[serde(rename = "W4-resumed")]
    W4Resumed,
    /// Viewers: 200 MB/s in all, a segment of 256 KiB to each connection whenever its share is due.
    #[value(name = "W5")]
    W5,
    /// The same in segments of 16 KiB.
    #[value(name = "W5t")]
    W5t,
    /// One endless stream on each connection.
    #[value(name = "W5s")]
    W5s,
    /// W3's requests, one in flight on each connection: as fast as they are answered (`closed`),
    /// then at random moments, half as many a second (`open`).
    #[value(name = "W6")]
    W6,
    /// Datagrams (RFC 9221), server to client, as many as the stack accepts.
    #[value(name = "W7")]
    W7,
    /// Full handshakes, four at a time; three requests of 10 kB, one after the other, on each
    /// connection.
    #[value(name = "W8")]
    W8,
    /// Not measured: what is sent up is echoed.
    #[value(skip)]
    Echo,
}

impl Workload {
    /// The workloads of a run without a choice.
    pub(super) const MEASURED: [Self; 5] =
        [Self::W1, Self::W2, Self::W3, Self::W4, Self::W4Resumed];

    /// All except those that need their own network.
    pub(super) const ON_LOOPBACK: [Self; 11] = [
        Self::W1,
        Self::W2,
        Self::W3,
        Self::W4,
        Self::W4Resumed,
        Self::W5,
        Self::W5t,
        Self::W5s,
        Self::W6,
        Self::W7,
        Self::W8,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::W1 => "W1",
            Self::W1r => "W1r",
            Self::W1s => "W1s",
            Self::W2 => "W2",
            Self::W3 => "W3",
            Self::W4 => "W4",
            Self::W4Resumed => "W4-resumed",
            Self::W5 => "W5",
            Self::W5t => "W5t",
            Self::W5s => "W5s",
            Self::W6 => "W6",
            Self::W7 => "W7",
            Self::W8 => "W8",
            Self::Echo => "echo",
        }
    }

    /// Whether a contender can take part: plain TCP has no handshake to speak of, and TCP no
    /// datagrams.
    pub(super) fn suits(self, contender: Contender) -> bool {
        match contender {
            Contender::Tcp => !self.is_handshakes() && self != Self::W7,
            Contender::TlsTcp => self != Self::W7,
            _ => true,
        }
    }

    /// Whether connections, not bytes, are the work.
    pub(super) const fn is_handshakes(self) -> bool {
        matches!(self, Self::W4 | Self::W4Resumed | Self::W8)
    }

    /// Whether CPU time is reported per request, datagram or connection rather than per byte.
    pub(super) const fn is_by_unit(self) -> bool {
        matches!(
            self,
            Self::W3 | Self::W4 | Self::W4Resumed | Self::W6 | Self::W7 | Self::W8
        )
    }

    /// The unit by which CPU time is reported.
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::W4 | Self::W4Resumed => "handshake",
            Self::W7 => "datagram",
            Self::W8 => "connection",
            _ => "request",
        }
    }

    /// Numbers of connections to measure if none are chosen.
    const fn scales(self) -> &'static [usize] {
        match self {
            Self::W1 | Self::W1r | Self::W1s | Self::W3 | Self::Echo => &[1],
            Self::W2 => &[10],
            Self::W4 | Self::W4Resumed | Self::W8 => &[4],
            Self::W5 | Self::W5t | Self::W5s => &[1, 10, 100, 1000],
            Self::W6 => &[1000],
            Self::W7 => &[1, 100],
        }
    }

    /// Whether a number of connections can be chosen.
    pub(super) const fn is_scaled(self) -> bool {
        matches!(self, Self::W5 | Self::W5t | Self::W5s | Self::W6 | Self::W7)
    }
}

/// What makes requests begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    /// The answer to the previous one.
    Closed,
    /// The clock, at random moments.
    Open,
}

/// One measurement: a workload, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) workload: Workload,
    /// Connections at a time.
    pub(super) connections: usize,
    /// Bytes of a datagram or an answer; `UNLIMITED` if it has no end.
    pub(super) size: u64,
    pub(super) mode: Mode,
    /// The link's rate in 10^9 bits a second, W1r only.
    pub(super) gbit_limit: Option<f64>,
    /// Whether the receiver's network device merges packets (GRO), W1s only.
    pub(super) device_gro: Option<bool>,
    /// Whether each connection of a QUIC client has a socket of its own.
    pub(super) own_sockets: bool,
}

impl Case {
    /// The cases of a workload, in the order of measurement. `connections` replaces a scaled
    /// workload's own numbers.
    pub(super) fn of(workload: Workload, connections: &[usize]) -> Vec<Self> {
        let scales = match connections {
            [_, ..] if workload.is_scaled() => connections,
            _ => workload.scales(),
        };
        let sizes: &[u64] = match workload {
            Workload::W1 | Workload::W1r | Workload::W1s | Workload::W2 | Workload::W5s => {
                &[UNLIMITED]
            }
            Workload::W3 | Workload::W6 => &[1024],
            Workload::W4 | Workload::W4Resumed => &[0],
            Workload::W5 => &[256 * 1024],
            Workload::W5t => &[16 * 1024],
            Workload::W7 => &[1100, 200],
            Workload::W8 => &[10_000],
            Workload::Echo => &[10_000_000],
        };
        // Open mode takes its rate from the preceding closed one.
        let modes: &[Mode] = match workload {
            Workload::W6 => &[Mode::Closed, Mode::Open],
            _ => &[Mode::Closed],
        };
        let limits: &[Option<f64>] = match workload {
            Workload::W1r => &[Some(1.0), Some(5.0), Some(10.0), None],
            _ => &[None],
        };
        let device_gro: &[Option<bool>] = match workload {
            Workload::W1s => &[Some(false), Some(true)],
            _ => &[None],
        };
        let mut cases = Vec::new();
        for &size in sizes {
            for &connections in scales {
                for &mode in modes {
                    for &gbit_limit in limits {
                        for &device_gro in device_gro {
                            cases.push(Self {
                                workload,
                                connections,
                                size,
                                mode,
                                gbit_limit,
                                device_gro,
                                own_sockets: false,
                            });
                        }
                    }
                }
            }
        }
        cases
    }

    /// The same with a socket for each connection of the client, as if each were a machine.
    pub(super) fn with_own_sockets(self, own_sockets: bool) -> Self {
        let own_sockets = own_sockets && self.workload.is_scaled();
        Self {
            own_sockets,
            ..self
        }
    }

    /// Sockets of a QUIC client.
    pub(super) const fn sockets(&self) -> usize {
        if self.own_sockets {
            self.connections
        } else {
            1
        }
    }

    /// The smallest one, for a check.
    pub(super) fn to_check(workload: Workload) -> Self {
        let connections: &[usize] = match workload {
            Workload::W5 | Workload::W5t | Workload::W5s | Workload::W6 => &[20],
            _ => &[],
        };
        Self::of(workload, connections)[0]
    }

    /// A client's work: endless, or, for a check, a small part of it.
    pub(super) fn shape(&self, check: bool, rate: Option<f64>) -> Shape {
        let streams = match self.workload {
            Workload::W2 => 10,
            Workload::W3 => 100,
            _ => 1,
        };
        let upload = match self.workload {
            Workload::W3 | Workload::W6 => 100,
            Workload::Echo => 10_000_000,
            _ => 0,
        };
        let answer = match (self.size, check) {
            (UNLIMITED, true) if self.workload == Workload::W1 => 20_000_000,
            (UNLIMITED, true) => 1_000_000,
            (size, _) => size,
        };
        let repeat = match (self.size, check) {
            (UNLIMITED, _) => 1,
            (_, true) => match self.workload {
                Workload::Echo => 1,
                Workload::W3 => 30,
                Workload::W7 => 1000,
                _ => 10,
            },
            (_, false) => u64::MAX,
        };
        let each = match self.workload {
            Workload::W8 => CHURN_REQUESTS,
            _ => 1,
        };
        let begin = match (self.workload, rate) {
            (Workload::W5 | Workload::W5t, _) => {
                Begin::evenly(VIEWERS_RATE / self.size as f64, self.connections)
            }
            (_, Some(rate)) => Begin::at_random(rate, self.connections),
            _ => Begin::AfterAnswer,
        };
        Shape {
            connections: self.connections,
            streams,
            upload,
            answer,
            repeat,
            each,
            begin,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.workload.name())?;
        if self.workload.is_scaled() {
            write!(f, ", connections: {}", self.connections)?;
        }
        if self.own_sockets {
            f.write_str(", a socket each")?;
        }
        if self.workload == Workload::W7 {
            write!(f, ", {} bytes", self.size)?;
        }
        match self.mode {
            Mode::Open => f.write_str(", open loop")?,
            Mode::Closed => {}
        }
        match self.device_gro {
            Some(false) => f.write_str(", receiver without GRO")?,
            Some(true) => f.write_str(", receiver with GRO")?,
            None => {}
        }
        match (self.workload, self.gbit_limit) {
            (_, Some(limit)) => write!(f, ", {limit} Gbit/s"),
            (Workload::W1r, None) => f.write_str(", no limit"),
            _ => Ok(()),
        }
    }
}

/// A case in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Connections at a time.
    pub(super) connections: usize,
    /// Streams at a time on each.
    pub(super) streams: usize,
    /// Bytes that a request carries after the length that it asks for.
    pub(super) upload: usize,
    /// Bytes of an answer, or of a datagram.
    pub(super) answer: u64,
    /// Requests, one after another, for each stream; datagrams on each connection; or connections,
    /// if those are the work.
    pub(super) repeat: u64,
    /// Requests on a connection, if connections are the work.
    pub(super) each: u64,
    pub(super) begin: Begin,
}

impl Shape {
    /// The schedule of a place's requests.
    pub(super) fn pace(&self, place: usize, start: Instant) -> Pace {
        Pace::new(self.begin, self.connections * self.streams, place, start)
    }

    /// What a check must have seen in the end: units and bytes.
    pub(super) const fn total(&self) -> (u64, u64) {
        let units = (self.connections * self.streams) as u64 * self.repeat;
        (units, units * self.each * self.answer)
    }
}
