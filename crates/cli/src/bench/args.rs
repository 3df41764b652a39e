//! The arguments of `squall bench`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use squall_protect::MAX_GROUP;

use crate::kernels::SUITES;

/// Measure one part of squall in isolation
#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) part: Part,
}

impl Bench {
    /// Whether it is `squall bench core`.
    pub(crate) const fn is_core(&self) -> bool {
        matches!(self.part, Part::Core(_))
    }

    /// Whether the output is for a program.
    pub(crate) const fn is_json(&self) -> bool {
        match &self.part {
            Part::Protect(args) => args.json,
            Part::Core(args) => args.json,
            Part::Idle(args) => args.json,
        }
    }
}

/// The parts that can be measured in isolation.
#[derive(Subcommand, Debug)]
pub(crate) enum Part {
    Protect(Protect),
    Core(Core),
    Idle(Idle),
}

/// Measure the transport without sockets: CPU ns per packet of the sender and of the receiver
///
/// One endpoint's bundles of full packets (1450 bytes of stream data each) go directly into the
/// other's receive path, four bundles per turn as a worker takes them, and acknowledgements go
/// back. Figures are CPU time: medians of rounds, which alternate with rounds that copy a packet's
/// bytes from uncached memory.
#[derive(Args, Debug)]
pub(crate) struct Core {
    /// Number of streams that send at the same time; separate several values with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,100", value_parser = core_streams)]
    pub(crate) streams: Vec<usize>,

    /// Packets per round
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pub(crate) packets: u64,

    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = core_rounds)]
    pub(crate) rounds: usize,

    /// Print one JSON object; `schema` is its version
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

/// Measure the memory and CPU that idle connections cost a server
///
/// The server is a separate process on loopback; its resident memory and CPU time are read from the
/// system (Linux only). Keep-alive is off.
#[derive(Args, Debug)]
pub(crate) struct Idle {
    /// Number of connections
    #[arg(short, long, value_name = "N", default_value_t = 10_000, value_parser = idle_connections)]
    pub(crate) connections: usize,

    /// Time in seconds over which CPU time is counted
    #[arg(short, long, value_name = "SECS", default_value = "10", value_parser = squall_yard::parse::seconds)]
    pub(crate) time: Duration,

    /// Bytes that every connection transfers each way before it goes idle (K, M and G are powers of
    /// ten)
    #[arg(long, value_name = "BYTES", value_parser = squall_yard::parse::size)]
    pub(crate) moved: Option<u64>,

    /// Print one JSON object; `schema` is its version
    #[arg(short = 'J', long)]
    pub(crate) json: bool,

    /// Internal: run as the server that the measurement starts
    #[arg(long, hide = true)]
    pub(crate) serve: bool,
}

fn idle_connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(connections @ 1..=1_000_000) => Ok(connections),
        _ => Err("from 1 to 1000000 connections".to_owned()),
    }
}

fn core_streams(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(streams @ 1..=100) => Ok(streams),
        _ => Err("from 1 to 100 streams".to_owned()),
    }
}

fn core_rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds @ 1..=1000) => Ok(rounds),
        _ => Err("from 1 to 1000 rounds".to_owned()),
    }
}

/// Measure packet protection: ns per packet without and with header protection, by size and batch
///
/// Packets have a 13-byte header (8-byte connection id, 4-byte packet number). 64 distinct packets
/// are processed in turn in cache-sized buffers, with keys expanded beforehand. Runs without and
/// with header protection alternate; a pair is dropped if one of the fixed loops of additions
/// around it was more than 3 % slower than its best. Figures are lower quartiles; the interval
/// contains the overhead with 95 % confidence. Sizes are bytes of payload.
///
/// Without --ablation, --threads and --mixed, the table has the layout of the WinQuic measurement.
#[derive(Args, Debug)]
pub(crate) struct Protect {
    /// Cipher suite: aes128, aes256, chacha20 or all, or a full name; separate several with commas
    #[arg(
        long,
        value_name = "SUITE",
        value_enum,
        value_delimiter = ',',
        ignore_case = true,
        hide_possible_values = true,
        default_value = "aes128"
    )]
    pub(crate) suite: Vec<SuiteName>,

    /// seal (send) or open (receive); both by default
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        ignore_case = true,
        hide_possible_values = true
    )]
    pub(crate) direction: Vec<Direction>,

    /// Kernel to measure, such as vaes256 (default: the one squall chose; `squall doctor` lists
    /// them)
    #[arg(long, value_name = "NAME")]
    pub(crate) kernel: Option<String>,

    /// Packets per call, 1 to 64 [default: 1,8,32; with --ablation 32; otherwise 8]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = batch)]
    pub(crate) batch: Vec<usize>,

    /// Bytes of payload, 1 to 65507 [default: 4,16,64,256,600,1000,1200,1280,1450; with --threads
    /// and --mixed 1450]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = size)]
    pub(crate) sizes: Vec<usize>,

    /// Pairs (with --ablation: rounds; with --threads and --mixed: repetitions) per figure
    /// [default: 400; with --threads and --mixed 15]
    #[arg(long, value_name = "N", value_parser = rounds)]
    pub(crate) rounds: Option<usize>,

    /// Compare the ways of combining header protection with the AEAD
    #[arg(long, conflicts_with_all = ["threads", "mixed", "plot"])]
    pub(crate) ablation: bool,

    /// Measure throughput per thread as threads are added: 4 means one and four, 1..4 one to four
    #[arg(long, value_name = "N", value_parser = threads, conflicts_with_all = ["mixed", "plot"])]
    pub(crate) threads: Option<Threads>,

    /// Measure how much text compression on all cores slows down when this share of its time, such
    /// as 0.1, goes to packet protection; covers every available kernel unless --kernel is given
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "plot")]
    pub(crate) mixed: Option<f64>,

    /// Plot ns against size in this SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = squall_yard::parse::svg)]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object; `schema` is its version
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

/// A suite, or all.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuiteName {
    #[value(name = "aes128", aliases = ["aes-128-gcm", "TLS_AES_128_GCM_SHA256"])]
    Aes128,
    #[value(name = "aes256", aliases = ["aes-256-gcm", "TLS_AES_256_GCM_SHA384"])]
    Aes256,
    #[value(name = "chacha20", aliases = ["chacha20-poly1305", "TLS_CHACHA20_POLY1305_SHA256"])]
    Chacha20,
    All,
}

/// The direction of a packet.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Seal,
    Open,
}

impl Direction {
    /// The name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::Open => "open",
        }
    }
}

/// Numbers of threads, in ascending order, starting with 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Threads(pub(crate) Vec<usize>);

impl Protect {
    /// The suites to measure, each once, in their usual order.
    pub(crate) fn suites(&self) -> Vec<squall_protect::Suite> {
        let named = [SuiteName::Aes128, SuiteName::Aes256, SuiteName::Chacha20];
        let wanted = |name| self.suite.contains(&name) || self.suite.contains(&SuiteName::All);
        let pairs = SUITES.into_iter().zip(named);
        pairs
            .filter(|&(_, name)| wanted(name))
            .map(|(suite, _)| suite)
            .collect()
    }

    /// The directions to measure, each once.
    pub(crate) fn directions(&self) -> Vec<Direction> {
        let wanted =
            |direction: &Direction| self.direction.is_empty() || self.direction.contains(direction);
        [Direction::Seal, Direction::Open]
            .into_iter()
            .filter(wanted)
            .collect()
    }

    /// The batches to measure, or the mode's default.
    pub(crate) fn batches(&self, default: &[usize]) -> Vec<usize> {
        given_or(&self.batch, default)
    }

    /// The sizes to measure, or the mode's default.
    pub(crate) fn sizes(&self, default: &[usize]) -> Vec<usize> {
        given_or(&self.sizes, default)
    }
}

/// The given values without duplicates, in ascending order; the default if there are none.
fn given_or(given: &[usize], default: &[usize]) -> Vec<usize> {
    let mut values = if given.is_empty() { default } else { given }.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

fn number(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| range.contains(number));
    number.ok_or_else(|| {
        format!(
            "give whole numbers from {} to {}",
            range.start(),
            range.end()
        )
    })
}

fn batch(text: &str) -> Result<usize, String> {
    number(text, 1..=MAX_GROUP)
}

/// 65507 bytes is the largest UDP payload over IPv4, more than a packet's own payload can be.
fn size(text: &str) -> Result<usize, String> {
    number(text, 1..=65_507)
}

fn rounds(text: &str) -> Result<usize, String> {
    number(text, 1..=1_000_000)
}

fn threads(text: &str) -> Result<Threads, String> {
    const MOST: usize = 1024;
    let wrong = || format!("give a number of threads such as 4, or 1..4; at most {MOST}");
    let one = |text: &str| number(text, 1..=MOST).map_err(|_| wrong());
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (one(first)?, one(last.trim_start_matches('='))?),
        None => (one(text)?, one(text)?),
    };
    if first > last {
        return Err(wrong());
    }
    // The shares of the others are relative to a single thread.
    let alone = (first > 1).then_some(1);
    Ok(Threads(alone.into_iter().chain(first..=last).collect()))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.001..=0.999).contains(share));
    share.ok_or_else(|| "give a share between 0 and 1, such as 0.1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_accept_a_number_or_a_range_and_always_include_one() {
        assert_eq!(threads("1..4"), Ok(Threads(vec![1, 2, 3, 4])));
        assert_eq!(threads("4"), Ok(Threads(vec![1, 4])));
        assert_eq!(threads("3..4"), Ok(Threads(vec![1, 3, 4])));
        assert_eq!(threads("1"), Ok(Threads(vec![1])));
        for text in ["0", "4..1", "", "..", "1..", "two", "1..2000"] {
            assert!(threads(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_lies_strictly_between_zero_and_one() {
        assert_eq!(share("0.1"), Ok(0.1));
        for text in ["0", "1", "-0.5", "NaN", "10%", ""] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_are_sorted_and_deduplicated() {
        assert_eq!(given_or(&[8, 1, 8], &[3]), [1, 8]);
        assert_eq!(given_or(&[], &[3, 4]), [3, 4]);
        assert!(batch("65").is_err() && batch("0").is_err() && size("65508").is_err());
    }
}
