//! The arguments of `squall perf`, in the words of iperf3 and quinn-perf.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use squall_yard::options::Options;
use squall_yard::parse::{core, cores, count, listen, local, port, remote_port, svg};

use super::contender::Contender;
use super::work::Work;

/// Measure throughput and CPU-seconds per GB (10^9 bytes) of QUIC, TLS over TCP and plain TCP
///
/// Server and client run in this process over loopback, each pinned to its own core if there are
/// two; the server sends, the client receives. The contenders alternate in rounds, and each ratio
/// is the median of the rounds' ratios. K, M and G mean 10^3, 10^6 and 10^9.
///
/// CPU is the user and system time of each end's own threads, plus that of ksoftirqd on its core.
/// The kernel's work to deliver a packet over loopback happens in soft interrupts and is charged to
/// the sending thread, for UDP and TCP alike.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Perf {
    #[command(subcommand)]
    pub(crate) remote: Option<Remote>,

    #[command(flatten)]
    pub(crate) local: Local,
}

impl Perf {
    /// Whether the output is for a program.
    pub(crate) fn is_json(&self) -> bool {
        match &self.remote {
            Some(Remote::Server(args)) => args.json,
            Some(Remote::Client(args)) => args.output.json,
            None => self.local.output.json,
        }
    }
}

/// A measurement with another process or machine.
#[derive(Subcommand, Debug)]
pub(crate) enum Remote {
    Server(Box<Server>),
    Client(Box<Client>),
}

/// Which address families are used.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Family {
    /// Use IPv4 only
    #[arg(short = '4', long, visible_alias = "version4", conflicts_with = "ipv6")]
    ipv4: bool,

    /// Use IPv6 only
    #[arg(short = '6', long, visible_alias = "version6")]
    ipv6: bool,
}

impl Family {
    /// Whether an address is of the requested family.
    pub(crate) fn suits(self, address: SocketAddr) -> bool {
        match address.ip().to_canonical() {
            IpAddr::V4(_) => !self.ipv6,
            IpAddr::V6(_) => !self.ipv4,
        }
    }

    /// The address for a measurement within this machine: 127.0.0.1 unless IPv6 is requested.
    pub(crate) fn loopback(self) -> IpAddr {
        if self.ipv6 {
            Ipv6Addr::LOCALHOST.into()
        } else {
            Ipv4Addr::LOCALHOST.into()
        }
    }

    /// The family requested.
    pub(crate) fn name(self) -> &'static str {
        match (self.ipv4, self.ipv6) {
            (true, _) => "IPv4",
            (_, true) => "IPv6",
            _ => "IP",
        }
    }
}

/// Run a perf server (QUIC, draft-banks-quic-performance)
#[derive(Args, Debug)]
pub(crate) struct Server {
    /// Address and UDP port to listen on
    #[arg(short, long, value_name = "ADDR:PORT", default_value = "[::]:4433", value_parser = listen,
          conflicts_with_all = ["ipv4", "ipv6", "bind"])]
    pub(crate) listen: SocketAddr,

    #[command(flatten)]
    pub(crate) family: Family,

    /// Listen on this local address only, like --listen with the port of -p
    #[arg(short = 'B', long, value_name = "ADDRESS", value_parser = local)]
    pub(crate) bind: Option<SocketAddr>,

    /// UDP port to listen on, with the address of --listen or -B
    #[arg(short, long, value_name = "PORT", value_parser = port)]
    pub(crate) port: Option<u16>,

    /// Certificate chain (PEM); by default a self-signed certificate is generated in memory
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// Start every connection with a Retry, by which the client proves its address before any state
    /// is kept (RFC 9000 §8.1.2)
    #[arg(long)]
    pub(crate) retry: bool,

    /// Pin the workers to these cores, in turn
    #[arg(
        long,
        value_name = "N,...",
        visible_alias = "affinity",
        value_delimiter = ',',
        value_parser = core
    )]
    pub(crate) cpu: Vec<usize>,

    /// Print a line when a connection that moved data ends
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print statistics of each connection when it ends
    #[arg(long)]
    pub(crate) conn_stats: bool,

    /// Print the summary as one JSON object; `schema` is its version, and after a failure it has
    /// the key `error`
    #[arg(short = 'J', long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) options: Options,
}

/// Measure against a perf server (QUIC, draft-banks-quic-performance)
#[derive(Args, Debug)]
pub(crate) struct Client {
    /// Server host name or address; the default port is 4433
    #[arg(value_name = "HOST[:PORT]")]
    pub(crate) server: String,

    /// The server's UDP port, the same as :PORT after the host
    #[arg(short, long, value_name = "PORT", value_parser = remote_port)]
    pub(crate) port: Option<u16>,

    #[command(flatten)]
    pub(crate) family: Family,

    /// Send from this local address
    #[arg(short = 'B', long, value_name = "ADDRESS", value_parser = local)]
    pub(crate) bind: Option<SocketAddr>,

    /// Trust the certificates in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,

    /// Accept any certificate: skip verification
    #[arg(short = 'k', long)]
    pub(crate) insecure: bool,

    /// Pin the workers to these cores, in turn
    #[arg(
        long,
        value_name = "N,...",
        visible_alias = "affinity",
        value_delimiter = ',',
        value_parser = core
    )]
    pub(crate) cpu: Vec<usize>,

    /// Print statistics of each connection when it ends
    #[arg(long, conflicts_with_all = ["handshakes", "churn"])]
    pub(crate) conn_stats: bool,

    #[command(flatten)]
    pub(crate) work: Work,

    #[command(flatten)]
    pub(crate) options: Options,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// HTTP over loopback.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Http {
    /// Measure `squall serve` over HTTP/3, HTTP/2 and HTTP/1.1 instead: requests of 1,024, 100,000
    /// and 1,000,000 bytes, always 100 in flight (HTTP/3 and HTTP/2: 10 connections with 10 each,
    /// HTTP/1.1: 100 connections), and viewers of a film in segments. The server runs in a separate
    /// process
    #[arg(long, conflicts_with_all = ["requests", "handshakes", "segments", "churn", "rate", "bytes", "connections", "streams", "in_flight",
          "upload", "download", "bidir", "upload_size", "download_size", "interval", "only", "verify"])]
    pub(crate) http: bool,

    /// With --http, number of viewers, each with its own connection
    #[arg(long, value_name = "N", default_value = "100", value_parser = count, requires = "http")]
    pub(crate) viewers: usize,

    /// With --http, play the film this many times as fast as real time
    #[arg(long, value_name = "N", default_value = "10", value_parser = speed, requires = "http")]
    pub(crate) speed: f64,
}

/// The size of a datagram in bytes.
fn datagram(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=65_507) => Ok(size),
        _ => Err("give a number of bytes, such as 1100 or 200".to_owned()),
    }
}

/// Seconds of the film per second.
fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.1..=1_000.0).contains(&speed) => Ok(speed),
        _ => Err("give a number from 0.1 to 1000".to_owned()),
    }
}

/// A measurement over loopback.
#[derive(Args, Debug)]
pub(crate) struct Local {
    #[command(flatten)]
    pub(crate) work: Work,

    /// Number of rounds; the order of the contenders rotates between them
    #[arg(long, value_name = "N", default_value = "5", value_parser = count)]
    pub(crate) rounds: usize,

    /// Run only this contender; repeat the option for more
    #[arg(long, value_name = "CONTENDER", value_enum)]
    pub(crate) only: Vec<Contender>,

    #[command(flatten)]
    pub(crate) family: Family,

    /// Pin the server to core A and the client to core B (default: the first two; not pinned with
    /// several workers)
    #[arg(long, value_name = "A,B", visible_alias = "affinity", value_parser = cores)]
    pub(crate) cpu: Option<(usize, usize)>,

    #[command(flatten)]
    pub(crate) http: Http,

    /// Instead of measuring, transfer a seeded pattern (-n bytes per stream, default 1G) and
    /// compare the SHA-256 digests of both ends
    #[arg(long, conflicts_with_all = ["time", "rounds", "requests", "handshakes", "segments", "churn", "interval", "csv",
          "plot"])]
    pub(crate) verify: bool,

    /// Measure datagrams (RFC 9221) of this many bytes, 1100 by default: the server sends as many
    /// as each connection takes. QUIC only, since TCP has no datagrams
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = datagram,
          default_missing_value = "1100",
          conflicts_with_all = ["requests", "handshakes", "segments", "churn", "rate", "http", "verify", "ablation", "bytes", "bitrate", "streams",
          "in_flight", "upload", "download", "bidir", "upload_size", "download_size"])]
    pub(crate) datagrams: Option<usize>,

    /// Instead of comparing with TCP, run the bulk transfer over QUIC without each technique in
    /// turn and print what each is worth: GSO, GRO, pacing, ACK frequency, runs of packets, sealing
    /// from the application's buffer, header protection in the AEAD's pass, and separate worker
    /// threads. -t is the time for each
    #[arg(long, conflicts_with_all = ["requests", "handshakes", "segments", "churn", "http", "verify", "only", "interval", "csv", "plot",
          "no_gso", "no_gro", "no_pacing"])]
    pub(crate) ablation: bool,

    #[command(flatten)]
    pub(crate) options: Options,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// The form in which results are printed.
#[derive(Args, Debug)]
pub(crate) struct Output {
    /// Print one JSON object; `schema` is its version, and after a failure it has the key `error`
    #[arg(short = 'J', long)]
    pub(crate) json: bool,

    /// Print comma-separated rows
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    pub(crate) csv: bool,

    /// Plot the cost by stage in this SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub(crate) plot: Option<PathBuf>,
}

impl Output {
    /// Whether the output is for people rather than a program.
    pub(crate) fn is_text(&self) -> bool {
        !self.json && !self.csv
    }
}

impl Local {
    /// The contenders to run, in the order of the report.
    pub(crate) fn contenders(&self) -> Vec<Contender> {
        Contender::ALL
            .into_iter()
            .filter(|contender| self.only.is_empty() || self.only.contains(contender))
            .collect()
    }
}
