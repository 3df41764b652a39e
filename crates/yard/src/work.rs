//! What a client does with a server in one round: a bulk transfer, requests, handshakes,
//! connections that come and go, or datagrams.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;

use crate::cpu::Cores;
use crate::live::{Counter, Gauges, Lane};
use crate::pace::Begin;
use crate::source::Source;

/// Bytes handed to a stream, or at most taken from one, in one call.
pub const PIECE: usize = 256 * 1024;

/// How much a round moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This many bytes per stream.
    Bytes(u64),
    /// As much as can be delivered in this time.
    Time(Duration),
}

/// Which end of a stream sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server.
    Down,
    /// The client.
    Up,
}

impl Direction {
    /// The direction, named from the client's side.
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "download",
            Self::Up => "upload",
        }
    }

    /// The counter for this direction.
    pub fn counter(self, gauges: &Gauges) -> &Arc<Counter> {
        match self {
            Self::Down => &gauges.down,
            Self::Up => &gauges.up,
        }
    }
}

/// Which end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The server.
    Down,
    /// The client.
    Up,
    /// Both at the same time, each on streams of its own.
    Both,
}

impl Flow {
    /// The direction, named from the client's side.
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => Direction::Down.name(),
            Self::Up => Direction::Up.name(),
            Self::Both => "bidir",
        }
    }

    /// The directions in which data flows at the same time.
    pub fn directions(self) -> &'static [Direction] {
        match self {
            Self::Down => &[Direction::Down],
            Self::Up => &[Direction::Up],
            Self::Both => &[Direction::Down, Direction::Up],
        }
    }

    /// The counters of all directions.
    pub fn lanes(self, gauges: &Gauges) -> Vec<Lane> {
        let lane = |one: &Direction| Lane {
            direction: Some(one.name()),
            counter: Arc::clone(one.counter(gauges)),
        };
        self.directions().iter().map(lane).collect()
    }
}

/// A bulk transfer: what a contender does in one round.
#[derive(Clone)]
pub struct Load {
    /// Number of connections.
    pub connections: usize,
    /// Streams per connection and direction.
    pub streams: usize,
    /// Which end sends.
    pub flow: Flow,
    /// How much is moved.
    pub amount: Amount,
    /// Where both ends run.
    pub cores: Cores,
    /// The address of this machine that both ends of a control use.
    pub loopback: IpAddr,
    /// If set, the pattern of this seed is sent, and both ends digest it.
    pub seed: Option<u64>,
    /// If set, the application produces data for each stream at only this rate, in bits per second.
    pub bitrate: Option<u64>,
    /// What is updated while the transfer runs.
    pub gauges: Gauges,
}

/// Requests, each on its own stream, for a given time.
#[derive(Clone, Debug)]
pub struct Requests {
    /// Bytes of a request, including the length field of the response.
    pub up: usize,
    /// Bytes of a response.
    pub down: u64,
    /// Concurrent requests per connection.
    pub in_flight: usize,
    /// When they begin.
    pub begin: Begin,
    /// How long new requests are started.
    pub time: Duration,
}

impl Requests {
    /// Possible sizes of a request: from its length field alone to what a stream takes in one call.
    pub const UP: RangeInclusive<usize> = 8..=PIECE;
}

/// Connections that come and go, for a given time: a full handshake, requests one after the other,
/// close.
#[derive(Clone, Debug)]
pub struct Churn {
    /// How many requests each one makes.
    pub requests: usize,
    /// Bytes of a response.
    pub down: u64,
    /// Connections at a time.
    pub in_flight: usize,
    /// How long new ones are started.
    pub time: Duration,
}

/// Datagrams from the server, as many as its connections accept, for a given time.
#[derive(Clone, Debug)]
pub struct Datagrams {
    /// Bytes of a datagram.
    pub size: usize,
    /// How long they are sent.
    pub time: Duration,
}

/// A request of `up` bytes for a response of `down` bytes (draft-banks-quic-performance §2.3.1).
pub fn request(up: usize, down: u64) -> Bytes {
    let mut request = down.to_be_bytes().to_vec();
    let filler = Source::new(None).next(up.saturating_sub(request.len()));
    request.extend_from_slice(&filler);
    request.into()
}

/// What a handshake starts from.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Without a session ticket: certificate and signature
    Full,
    /// With a session ticket (RFC 8446 §2.2)
    Resumed,
    /// With a session ticket, and a request of 100 bytes as early data (RFC 9001 §4.6); ends with
    /// the response of 1024 bytes
    #[value(name = "0rtt")]
    Early,
}

impl Kind {
    /// All kinds, as a list on a command line.
    pub const LIST: &str = "full,resumed,0rtt";

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Early => "0rtt",
        }
    }

    /// The workload's name in rows.
    pub fn workload(self) -> &'static str {
        match self {
            Self::Full => "W4",
            Self::Resumed => "W4-resumed",
            Self::Early => "W4-0rtt",
        }
    }
}

/// Handshakes, for a given time.
#[derive(Clone, Debug)]
pub struct Handshakes {
    /// What they start from.
    pub kind: Kind,
    /// Concurrent handshakes.
    pub in_flight: usize,
    /// How long new handshakes are started.
    pub time: Duration,
}
