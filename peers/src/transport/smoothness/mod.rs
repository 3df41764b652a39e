//! How smoothly a sender sends, as seen by the network: bursts and gaps, and what they cost on a
//! link with a short queue.
//!
//! ```text
//!   namespace "server"               this process                    namespace "client"
//!   the server  ──►  TUN  ──►  router ─► queue of the link ─► delay  ──►  TUN  ──►  the client
//!                                │
//!                              record ──► report     bursts, gaps, wait, loss; medians of rounds
//!
//!   tun  the system's part    router  reads, stamps, delays, writes    link  the queue, computed
//! ```
//! Contenders take turns, each time in new namespaces: otherwise the kernel's TCP would remember
//! the path.

mod link;
mod record;
mod report;
mod router;
mod tun;

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use squall_yard::error::{Failure, Result, context};
use squall_yard::{interrupt, stats};

use self::link::Link;
use self::record::{Arrival, Figures};
use self::report::{Key, Measured, Phase, Report};
use self::router::{Router, Seen};
use super::case::{Case, Workload};
use super::job::{Contender, Sample};
use super::network::Network;
use super::process::End;
use super::{Bench, parse_seconds, sample};

/// Bursts, gaps, queue delay and loss of whole transports on a link with a short queue, as seen by
/// a router; needs root and `ip`.
#[derive(clap::Args)]
pub(crate) struct Smoothness {
    /// Rates of the link, in Mbit/s.
    #[arg(long, value_name = "MBITS", value_delimiter = ',', default_value = "10,50,500", value_parser = parse_positive)]
    rate: Vec<f64>,
    /// Round-trip time of the path, in milliseconds.
    #[arg(long, value_name = "MILLIS", default_value = "40", value_parser = parse_positive)]
    rtt: f64,
    /// The link's buffer, in products of rate and round-trip time.
    #[arg(long, value_name = "SHARE", default_value = "0.1", value_parser = parse_positive)]
    buffer: f64,
    /// Only this contender; may be given several times. By default squall and tcp.
    #[arg(long, value_enum)]
    only: Vec<Contender>,
    /// Rounds of every rate.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of the start, which has its own figures.
    #[arg(long, value_name = "SECS", default_value = "3", value_parser = parse_seconds)]
    start: Duration,
    /// Seconds of a round after the start.
    #[arg(short = 't', long = "time", value_name = "SECS", default_value = "20", value_parser = parse_seconds)]
    time: Duration,
    /// Rows as one JSON object.
    #[arg(long)]
    json: bool,
    /// Every packet of every round as a line of a CSV file in this folder.
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
}

fn parse_positive(text: &str) -> std::result::Result<f64, &'static str> {
    text.parse()
        .ok()
        .filter(|number| (0.001..=100_000.0).contains(number))
        .ok_or("a number between 0.001 and 100,000")
}

/// The name of both devices.
const DEVICE: &str = "path0";
/// Packets that a device holds until the router reads them: more than any sender has in flight.
const DEVICE_QUEUE: &str = "20000";
/// The initial congestion control of sockets, until the control sets CUBIC: if the system's default
/// is BBR, its pacing would stay with the socket. A namespace may always choose Reno.
const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control=reno";

/// Measures and prints.
pub(crate) fn run(args: &Smoothness) -> Result<()> {
    interrupt::listen()?;
    // A compiler on the same core would cause bursts: a sender that it delays sends late, and then
    // everything at once.
    tun::hurry(1).map_err(context("only the superuser can build a network"))?;
    if let Some(folder) = &args.trace {
        std::fs::create_dir_all(folder).map_err(context("no folder for traces"))?;
    }
    let bench = Bench::new()?;
    let contenders = match args.only.as_slice() {
        [] => vec![Contender::Squall, Contender::Tcp],
        chosen => chosen.to_vec(),
    };
    let mut report = Report::new(format!(
        "RTT {} ms, buffer {} of rate × RTT, start {} s, then {} s; {}",
        args.rtt,
        args.buffer,
        args.start.as_secs_f64(),
        args.time.as_secs_f64(),
        bench.setup()
    ));
    for round in 0..args.rounds as usize {
        for &rate in &args.rate {
            for index in 0..contenders.len() {
                // Each round begins with a different one.
                let contender = contenders[(index + round) % contenders.len()];
                let path = RoundPath::new(args, rate);
                let (phases, seen) = path.measure(&bench, contender)?;
                report.add_late(late(&seen));
                for (phase, measured) in Phase::ALL.into_iter().zip(phases) {
                    let key = Key {
                        mbit_per_s: rate,
                        phase,
                        contender,
                    };
                    report.add(key, measured);
                }
                if let Some(folder) = &args.trace {
                    let name = format!("{}-{rate}-{round}.csv", contender.name());
                    write_trace(&folder.join(name), &seen.arrivals).map_err(context("trace"))?;
                }
            }
        }
    }
    if args.json {
        println!("{}", report.json()?);
    } else {
        print!("{report}");
    }
    Ok(())
}

/// What one measurement uses.
struct RoundPath {
    link: Link,
    rtt: Duration,
    start: Duration,
    time: Duration,
}

impl RoundPath {
    fn new(args: &Smoothness, mbit_per_s: f64) -> Self {
        let rtt = Duration::from_secs_f64(args.rtt / 1e3);
        Self {
            link: Link::new(mbit_per_s, rtt, args.buffer),
            rtt,
            start: args.start,
            time: args.time,
        }
    }

    /// One round of one contender: its phases, and everything that the router saw.
    fn measure(&self, bench: &Bench, contender: Contender) -> Result<([Measured; 2], Seen)> {
        let network = Network::apart()?;
        // On the client's core, which has less to do; the sender has its core to itself.
        let core = bench.cores.map(|[_, client]| client);
        let router = Router::start(devices(&network)?, self.link, self.rtt, core)?;
        let case = Case::of(Workload::W1, &[])[0];
        let mut ends = bench.start(&case, [contender; 2], None, &network, false)?;
        let mut at = [Duration::ZERO; 3];
        let mut samples = [[Sample::default(); 2]; 3];
        let mut elsewhere = [0; 3];
        for (index, time) in [Duration::ZERO, self.start, self.time]
            .into_iter()
            .enumerate()
        {
            sleep(time)?;
            samples[index] = sample(&mut ends)?;
            at[index] = router.now();
            elsewhere[index] = lost_elsewhere(&ends);
        }
        drop(ends);
        let seen = router.finish()?;
        // The first phase begins with the first packet.
        let first = seen.arrivals.first().map_or(at[0], |first| first.at);
        let measured = |phase: usize| {
            let from = if phase == 0 { first } else { at[phase] };
            let (samples, until) = (&samples[phase..phase + 2], at[phase + 1]);
            let within = |end| seen.arrivals.partition_point(|one| one.at < end);
            let arrivals = &seen.arrivals[within(from)..within(until)];
            let bytes = (samples[1][1].bytes - samples[0][1].bytes) as f64;
            let seconds = (until - at[phase]).as_secs_f64();
            Measured {
                figures: Figures::of(arrivals, &self.link, until - from),
                goodput: bytes / seconds / self.link.bytes_per_s(),
                cpu: [0, 1].map(|end| (samples[1][end].cpu - samples[0][end].cpu) / bytes * 1e9),
                lost_elsewhere: elsewhere[phase + 1] - elsewhere[phase],
            }
        };
        Ok(([measured(0), measured(1)], seen))
    }
}

/// A TUN device in each namespace.
fn devices(network: &Network) -> Result<[File; 2]> {
    let one = |end: usize| {
        let namespace = network.ends()[end].ok_or_else(|| Failure::new("two namespaces"))?;
        let device = tun::open(namespace.name(), DEVICE)?;
        let address = format!("{}/24", network.local[end]);
        namespace.ip(&["address", "add", &address, "dev", DEVICE])?;
        namespace.ip(&["link", "set", DEVICE, "txqueuelen", DEVICE_QUEUE, "up"])?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        namespace.run("sysctl", &["-q", "-w", CONGESTION_CONTROL])?;
        Ok::<File, Failure>(device)
    };
    Ok([one(0)?, one(1)?])
}

/// Sleeps, unless the user interrupts.
fn sleep(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    while !interrupt::due(Some(until)) {
        let left = until.saturating_duration_since(Instant::now());
        thread::sleep(left.min(Duration::from_millis(50)));
    }
    match interrupt::raised() {
        true => Err(Failure::new("interrupted")),
        false => Ok(()),
    }
}

/// Packets that the sender's device has dropped, and datagrams that found a full socket at the
/// client: they would be mistaken for the link's.
fn lost_elsewhere([server, client]: &[End; 2]) -> u64 {
    let read = |pid: u32, file: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default()
    };
    let dropped = dropped_by(&read(server.pid(), "dev"), DEVICE);
    let full = full_sockets(&read(client.pid(), "snmp"));
    dropped.unwrap_or(0) + full.unwrap_or(0)
}

/// A device's transmit drops in `/proc/net/dev`: the twelfth number.
fn dropped_by(text: &str, device: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == device).then_some(numbers)
    })?;
    line.split_whitespace().nth(11)?.parse().ok()
}

/// UDP's `RcvbufErrors` in `/proc/net/snmp`: a line of names, and one of numbers.
fn full_sockets(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names
        .split_whitespace()
        .position(|name| name == "RcvbufErrors")?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

/// Median and 99th percentile in microseconds.
fn late(seen: &Seen) -> [f64; 2] {
    let mut late: Vec<f64> = (seen.late.iter())
        .map(|late| late.as_secs_f64() * 1e6)
        .collect();
    [0.5, 0.99].map(|share| stats::quantile(&mut late, share))
}

fn write_trace(path: &Path, arrivals: &[Arrival]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "at_us,bytes,wait_us")?;
    for one in arrivals {
        let wait = one.wait.map(|wait| wait.as_micros().to_string());
        writeln!(
            file,
            "{},{},{}",
            one.at.as_micros(),
            one.bytes,
            wait.unwrap_or_default()
        )?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let dev = "Inter-|   Receive\n face |bytes packets\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13\n \
                   path0: 1 2 3 4 5 6 7 8 9 10 11 42 13\n";
        assert_eq!(dropped_by(dev, "path0"), Some(42));
        assert_eq!(dropped_by(dev, "path1"), None);
        let snmp = "Tcp: RcvbufErrors\nTcp: 1\nUdp: InDatagrams RcvbufErrors\nUdp: 5 7\n";
        assert_eq!(full_sockets(snmp), Some(7));
        assert_eq!(full_sockets("Udp: InDatagrams\nUdp: 5\n"), None);
        assert_eq!(full_sockets(""), None);
    }

    #[test]
    fn rates_are_positive_numbers() {
        assert_eq!(parse_positive("0.1"), Ok(0.1));
        for wrong in ["0", "-1", "NaN", "inf", "x"] {
            assert!(parse_positive(wrong).is_err(), "{wrong}");
        }
    }
}
