//! The arguments of `squall perf`, in the words of iperf3 and quinn-perf.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

/// Measure throughput and CPU-seconds per GB (10^9 bytes) of QUIC, TLS over TCP and plain TCP
///
/// Server and client run in this process over loopback, each pinned to a core of its own where
/// there are two; the server sends, the client receives. The contenders take turns in rounds, and
/// a ratio is the median of the rounds' ratios. K, M and G are 10^3, 10^6 and 10^9.
///
/// CPU is the user and system time of each end's own threads, plus that of ksoftirqd on its core.
/// What the kernel does in soft interrupts to deliver a packet over loopback is charged to the
/// thread that sent it, for UDP and TCP alike.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Perf {
    #[command(subcommand)]
    pub(crate) remote: Option<Remote>,

    #[command(flatten)]
    pub(crate) local: Local,
}

/// A measurement with another process or machine.
#[derive(Subcommand, Debug)]
pub(crate) enum Remote {
    Server(Server),
    Client(Client),
}

/// Run a perf server (QUIC, draft-banks-quic-performance)
#[derive(Args, Debug)]
pub(crate) struct Server {
    /// Address and UDP port to listen on
    #[arg(short, long, value_name = "ADDR:PORT", default_value = "[::]:4433")]
    pub(crate) listen: SocketAddr,

    /// Certificate chain (PEM); without one, a certificate is made in memory
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// UDP payload of a full datagram in bytes
    #[arg(long, value_name = "N", default_value = "1472", value_parser = clap::value_parser!(u16).range(1200..=65_507))]
    pub(crate) payload: u16,
}

/// Measure against a perf server (QUIC, draft-banks-quic-performance)
#[derive(Args, Debug)]
pub(crate) struct Client {
    /// The server; port 4433 unless given
    #[arg(value_name = "HOST[:PORT]")]
    pub(crate) server: String,

    /// Trust the certificates in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,

    /// Take any certificate: skip verification
    #[arg(short = 'k', long)]
    pub(crate) insecure: bool,

    /// Send to the server
    #[arg(long, conflicts_with = "download")]
    pub(crate) upload: bool,

    /// Receive from the server (default)
    #[arg(long)]
    pub(crate) download: bool,

    /// Number of connections
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = count)]
    pub(crate) connections: usize,

    /// Number of parallel streams a connection
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = count)]
    pub(crate) streams: usize,

    /// Number of bytes to transmit a stream (instead of -t)
    #[arg(short = 'n', long, value_name = "N[KMG]", value_parser = size, conflicts_with = "time")]
    pub(crate) bytes: Option<u64>,

    /// Time in seconds to transmit for
    #[arg(short, long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub(crate) time: Duration,

    /// UDP payload of a full datagram in bytes
    #[arg(long, value_name = "N", default_value = "1472", value_parser = clap::value_parser!(u16).range(1200..=65_507))]
    pub(crate) payload: u16,

    /// Print one JSON object
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

/// A measurement over loopback.
#[derive(Args, Debug)]
pub(crate) struct Local {
    /// Number of connections
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = count)]
    pub(crate) connections: usize,

    /// Number of parallel streams a connection (for TCP: connections)
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = count)]
    pub(crate) streams: usize,

    /// Number of bytes to transmit a stream, in every round (instead of -t)
    #[arg(short = 'n', long, value_name = "N[KMG]", value_parser = size, conflicts_with = "time")]
    pub(crate) bytes: Option<u64>,

    /// Time in seconds to transmit for, a contender: the sum of its rounds
    #[arg(short, long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub(crate) time: Duration,

    /// Number of rounds; the order of the contenders rotates
    #[arg(long, value_name = "N", default_value = "5", value_parser = count)]
    pub(crate) rounds: usize,

    /// Run only this contender; give it again for another one
    #[arg(long, value_name = "CONTENDER", value_enum)]
    pub(crate) only: Vec<Contender>,

    /// UDP payload of a full datagram in bytes
    #[arg(long, value_name = "N", default_value = "1472", value_parser = clap::value_parser!(u16).range(1200..=65_507))]
    pub(crate) payload: u16,

    /// Pin the server to core A and the client to core B (default: the first two)
    #[arg(long, value_name = "A,B", visible_alias = "affinity", value_parser = cores)]
    pub(crate) cpu: Option<(usize, usize)>,

    /// Print one JSON object
    #[arg(short = 'J', long)]
    pub(crate) json: bool,

    /// Measure nothing: move a seeded pattern (-n a stream, default 1G) and compare SHA-256
    /// digests at both ends
    #[arg(long, conflicts_with_all = ["time", "rounds"])]
    pub(crate) verify: bool,
}

/// What can be measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// squall
    Quic,
    /// TLS 1.3 over TCP, rustls
    TlsTcp,
    /// Plain TCP
    Tcp,
}

impl Contender {
    /// All of them, in the order of the report.
    pub(crate) const ALL: [Self; 3] = [Self::Quic, Self::TlsTcp, Self::Tcp];

    /// The name in the report and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::TlsTcp => "tls_tcp",
            Self::Tcp => "tcp",
        }
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

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=10_000) => Ok(count),
        _ => Err("give a whole number from 1 to 10000".to_owned()),
    }
}

/// A number of bytes: digits, then nothing, K, M or G (10^3, 10^6, 10^9).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number: Option<u64> = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten();
    match number.and_then(|number| number.checked_mul(unit)) {
        Some(0) | None => {
            Err("give a number of bytes above zero, such as 1200, 64K, 10M or 1G".to_owned())
        }
        Some(bytes) => Ok(bytes),
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give seconds from 0.01 to 86400, such as 10 or 0.5".to_owned())
}

fn cores(text: &str) -> Result<(usize, usize), String> {
    text.split_once(',')
        .and_then(|(server, client)| {
            Some((server.trim().parse().ok()?, client.trim().parse().ok()?))
        })
        .ok_or_else(|| "give two core numbers, such as 0,1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_ten() {
        assert_eq!(size("1472"), Ok(1_472));
        assert_eq!(size("64K"), Ok(64_000));
        assert_eq!(size("64k"), Ok(64_000));
        assert_eq!(size("10M"), Ok(10_000_000));
        assert_eq!(size("2G"), Ok(2_000_000_000));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "",
            "K",
            "0",
            "0G",
            "-1",
            "+1",
            "1.5G",
            "1T",
            "1KB",
            "1é",
            "99999999999G",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_may_be_fractions_but_not_nothing() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "inf", "ten"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cores_come_in_pairs() {
        assert_eq!(cores("0,1"), Ok((0, 1)));
        assert_eq!(cores("3, 2"), Ok((3, 2)));
        for text in ["0", "0,", "a,b", "0,1,2"] {
            assert!(cores(text).is_err(), "{text}");
        }
    }
}
