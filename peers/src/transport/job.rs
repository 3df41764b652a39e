//! What a process of a measurement is told, and what it answers: one line of JSON each.
//!
//! ```text
//!   parent  ── Job ──────►  server | client      the first line on its standard input
//!           ◄─ Ready ────                         the server listens | the client is connected
//!           ── "sample" ─►                        begin and end of the measured phase
//!           ◄─ Sample ───                         CPU time, bytes and requests up to now
//!           ◄─ Done ─────                         a client whose work has an end
//!           ── (end) ────►  exit
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// draft-banks-quic-performance §2.1: the application protocol's name.
pub(super) const ALPN: &[u8] = b"perf";
/// The name in the certificate.
pub(super) const NAME: &str = "localhost";
/// Largest UDP payload in bytes, for every QUIC stack.
pub(super) const MAX_UDP_PAYLOAD: u16 = 1472;
/// Credit for one stream, and bytes that it may hold for sending, wherever a stack lets it be set.
pub(super) const STREAM_WINDOW: u32 = 8 << 20;
/// The same for a connection.
pub(super) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Streams that a client may have open; W3 needs 100 and those whose end is on its way.
pub(super) const MAX_STREAMS: u32 = 256;
/// Socket buffers in bytes; the kernel gives all of them what its limits allow.
pub(super) const SOCKET_BUFFER: usize = 4 << 20;
/// Bytes handed to a stream in one call.
pub(super) const PIECE: usize = 256 * 1024;
/// draft-banks-quic-performance §2.3.1: an answer without end.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Contender {
    /// The application's tasks run on squall's worker.
    Squall,
    /// The application's tasks run on a multi-thread runtime, the connections on squall's worker.
    SquallAcross,
    /// squall and the application on one current-thread runtime.
    SquallCurrent,
    /// squall and the application on one multi-thread runtime.
    SquallMulti,
    /// quinn and the application on one current-thread runtime.
    Quinn,
    /// quinn and the application on one multi-thread runtime.
    QuinnMulti,
    S2nQuic,
    Quiche,
    TlsTcp,
    Tcp,
}

impl Contender {
    /// Each library as it does best.
    pub(super) const ALL: [Self; 6] = [
        Self::Squall,
        Self::Quinn,
        Self::S2nQuic,
        Self::Quiche,
        Self::TlsTcp,
        Self::Tcp,
    ];

    /// The two libraries that run on tokio, by where their work and the application's is done.
    pub(super) const RUNTIMES: [Self; 6] = [
        Self::Squall,
        Self::SquallAcross,
        Self::SquallCurrent,
        Self::SquallMulti,
        Self::Quinn,
        Self::QuinnMulti,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Squall => "squall",
            Self::SquallAcross => "squall-across",
            Self::SquallCurrent => "squall-current",
            Self::SquallMulti => "squall-multi",
            Self::Quinn => "quinn",
            Self::QuinnMulti => "quinn-multi",
            Self::S2nQuic => "s2n-quic",
            Self::Quiche => "quiche",
            Self::TlsTcp => "tls-tcp",
            Self::Tcp => "tcp",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(super) enum Workload {
    /// One connection, one stream, server to client.
    #[value(name = "W1")]
    W1,
    /// Ten connections with ten streams each, server to client.
    #[value(name = "W2")]
    W2,
    /// Requests of 100 bytes, answers of 1 KiB, 100 in flight on one connection.
    #[value(name = "W3")]
    W3,
    /// Full handshakes, four at a time; one empty request on each connection.
    #[value(name = "W4")]
    W4,
    /// The same with a ticket of an earlier connection.
    #[value(name = "W4-resumed")]
    #[serde(rename = "W4-resumed")]
    W4Resumed,
    /// Not measured: what is sent up comes back.
    #[value(skip)]
    Echo,
}

impl Workload {
    pub(super) const MEASURED: [Self; 5] =
        [Self::W1, Self::W2, Self::W3, Self::W4, Self::W4Resumed];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::W1 => "W1",
            Self::W2 => "W2",
            Self::W3 => "W3",
            Self::W4 => "W4",
            Self::W4Resumed => "W4-resumed",
            Self::Echo => "echo",
        }
    }

    /// Whether a contender can take part: there is no handshake in plain TCP to speak of.
    pub(super) fn suits(self, contender: Contender) -> bool {
        contender != Contender::Tcp || !self.is_handshakes()
    }

    /// Whether connections, not bytes, are the work.
    pub(super) const fn is_handshakes(self) -> bool {
        matches!(self, Self::W4 | Self::W4Resumed)
    }

    /// Whether CPU time is told by request or handshake, and not by byte.
    pub(super) const fn is_by_unit(self) -> bool {
        !matches!(self, Self::W1 | Self::W2)
    }

    /// What a client has to do: without end, or, to be checked, a small part of it.
    pub(super) const fn shape(self, check: bool) -> Shape {
        let (connections, streams) = match self {
            Self::W1 | Self::Echo => (1, 1),
            Self::W2 => (10, 10),
            Self::W3 => (1, 100),
            Self::W4 | Self::W4Resumed => (4, 1),
        };
        let (upload, answer, repeat) = match (self, check) {
            (Self::W1 | Self::W2, false) => (0, UNLIMITED, 1),
            (Self::W1, true) => (0, 20_000_000, 1),
            (Self::W2, true) => (0, 1_000_000, 1),
            (Self::W3, false) => (100, 1024, u64::MAX),
            (Self::W3, true) => (100, 1024, 30),
            (Self::W4 | Self::W4Resumed, false) => (0, 0, u64::MAX),
            (Self::W4 | Self::W4Resumed, true) => (0, 0, 10),
            (Self::Echo, _) => (10_000_000, 10_000_000, 1),
        };
        Shape {
            connections,
            streams,
            upload,
            answer,
            repeat,
        }
    }
}

/// A workload in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Connections at a time.
    pub(super) connections: usize,
    /// Streams at a time on each.
    pub(super) streams: usize,
    /// Bytes that a request carries behind the length that it asks for.
    pub(super) upload: usize,
    /// Bytes of an answer.
    pub(super) answer: u64,
    /// Requests, one after the other, in the place of each stream; or connections, where they are
    /// the work.
    pub(super) repeat: u64,
}

impl Shape {
    /// What a check has to see in the end: requests and bytes.
    pub(super) const fn total(&self) -> (u64, u64) {
        let units = (self.connections * self.streams) as u64 * self.repeat;
        (units, units * self.answer)
    }
}

/// Which end a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    Server,
    /// With the server's address.
    Client(SocketAddr),
}

/// All that a process has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) contender: Contender,
    pub(super) workload: Workload,
    pub(super) role: Role,
    /// A small part of the workload, every byte of it compared.
    pub(super) check: bool,
    /// The core to run on.
    pub(super) core: Option<usize>,
    /// PEM files of the certificate and its key.
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// The crypto library of TLS over TCP.
    pub(super) provider: String,
}

/// What a process says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// A server listens at this address.
    Listening(SocketAddr),
    Sample(Sample),
    /// A client has done all that it had to.
    Done(Sample),
    Failed(String),
}

/// One end's counters at a moment.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    /// On the process's own clock, in seconds.
    pub(super) at: f64,
    /// User and system time of the process, in seconds.
    pub(super) cpu: f64,
    /// Bytes of answers that have arrived; clients only.
    pub(super) bytes: u64,
    /// Requests answered, or handshakes done; clients only.
    pub(super) units: u64,
    /// Certificates that were verified: one a full handshake, none a resumed one; clients only.
    pub(super) full: u64,
}
