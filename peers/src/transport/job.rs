//! The messages to a process of a measurement, and its answers: one line of JSON each.
//!
//! ```text
//!   parent  ── Job ──────►  server | client      the first line on its standard input
//!           ◄─ Listening, Working ─               the server listens | the client is connected
//!           ── "sample" ─►                        begin and end of the measured phase
//!           ◄─ Sample ───                         CPU time, bytes and requests up to now
//!           ◄─ Done ─────                         a client whose work has an end
//!           ── (end) ────►  exit
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::case::{Case, Shape};

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
/// Bytes of datagrams waiting to be sent, and waiting to be read.
pub(super) const DATAGRAM_BUFFER: usize = 1 << 20;
/// Streams that a client may have open; W3 needs 100, plus those whose end is in flight.
pub(super) const MAX_STREAMS: u32 = 256;
/// Socket buffers in bytes; the kernel gives all of them what its limits allow.
pub(super) const SOCKET_BUFFER: usize = 4 << 20;
/// Bytes handed to a stream in one call.
pub(super) const PIECE: usize = 256 * 1024;

/// The contenders.
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
    /// quinn with the packet protection of squall, by `squall-rustls`.
    QuinnSquall,
    S2nQuic,
    Quiche,
    TlsTcp,
    Tcp,
}

impl Contender {
    /// Each library in its best setup.
    pub(super) const ALL: [Self; 6] = [
        Self::Squall,
        Self::Quinn,
        Self::S2nQuic,
        Self::Quiche,
        Self::TlsTcp,
        Self::Tcp,
    ];

    /// The two libraries that run on tokio, by where their work and the application's runs.
    pub(super) const RUNTIMES: [Self; 6] = [
        Self::Squall,
        Self::SquallAcross,
        Self::SquallCurrent,
        Self::SquallMulti,
        Self::Quinn,
        Self::QuinnMulti,
    ];

    pub(super) const fn is_quic(self) -> bool {
        !matches!(self, Self::TlsTcp | Self::Tcp)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Squall => "squall",
            Self::SquallAcross => "squall-across",
            Self::SquallCurrent => "squall-current",
            Self::SquallMulti => "squall-multi",
            Self::Quinn => "quinn",
            Self::QuinnMulti => "quinn-multi",
            Self::QuinnSquall => "quinn-squall",
            Self::S2nQuic => "s2n-quic",
            Self::Quiche => "quiche",
            Self::TlsTcp => "tls-tcp",
            Self::Tcp => "tcp",
        }
    }
}

/// Which end a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    Server,
    /// With the server's address.
    Client(SocketAddr),
}

/// Everything that a process has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) contender: Contender,
    pub(super) case: Case,
    /// Requests a second, if the clock starts them.
    pub(super) rate: Option<f64>,
    pub(super) role: Role,
    /// A small part of the workload, every byte of it compared.
    pub(super) check: bool,
    /// The core to run on.
    pub(super) core: Option<usize>,
    /// This end's address.
    pub(super) local: Ipv4Addr,
    /// PEM files of the certificate and its key.
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// The crypto library of TLS over TCP.
    pub(super) provider: String,
}

impl Job {
    /// The client's work in numbers.
    pub(super) fn shape(&self) -> Shape {
        self.case.shape(self.check, self.rate)
    }
}

/// What a process reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// A server listens at this address.
    Listening(SocketAddr),
    /// A client's connections are established, and its work begins.
    Working,
    Sample(Sample),
    /// A client has done all its work.
    Done(Sample),
    Failed(String),
}

/// One end's counters at one moment.
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
    /// Certificates that were verified: one per full handshake, none per resumed one; clients only.
    pub(super) full: u64,
    /// What was sent; squall's servers only.
    pub(super) sent: Option<Sent>,
    /// How long requests took since the last sample, in microseconds: the median, 90, 99 and 99.9
    /// percent, and the longest; clients only.
    pub(super) latency: Option<[f64; 5]>,
}

/// A server's datagrams, and the messages in which it passed them to the kernel.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) datagrams: u64,
    pub(super) messages: u64,
}
