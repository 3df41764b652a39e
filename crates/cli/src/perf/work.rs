//! The work of a client with a server: bulk transfer, requests, viewers, or handshakes; in the
//! words of iperf3, quinn-perf and wrk2.

use std::time::Duration;

use clap::Args;
use squall_yard::error::{Failure, Result};
use squall_yard::pace::Begin;
use squall_yard::parse::{bitrate, count, interval, seconds, size};
use squall_yard::tickets::MAX_TICKETS;
use squall_yard::work::{Amount, Churn, Flow, Handshakes, Kind, Requests};

/// Default size of a request in bytes, its length field included.
pub(crate) const REQUEST: u64 = 100;
/// Default size of a response in bytes.
pub(crate) const RESPONSE: u64 = 1024;
/// Default number of concurrent requests per connection, and of concurrent handshakes.
const REQUESTS_IN_FLIGHT: usize = 100;
const HANDSHAKES_IN_FLIGHT: usize = 10;
/// The same for connections that come and go, and the size of their responses in bytes.
pub(crate) const CHURN_IN_FLIGHT: usize = 4;
pub(crate) const CHURN_RESPONSE: u64 = 10_000;

/// Options of the work.
#[derive(Args, Clone, Debug)]
pub(crate) struct Work {
    /// Number of connections; several numbers, such as 1,1000, are measured alternately (over
    /// loopback, without --verify or --ablation)
    #[arg(short, long, value_name = "N,...", default_value = "1", value_delimiter = ',', value_parser = count)]
    pub(crate) connections: Vec<usize>,

    /// Number of parallel streams per connection (for TCP: connections), up to 100000 with --only
    /// quic
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = count,
          visible_short_alias = 'P', visible_alias = "parallel")]
    pub(crate) streams: usize,

    /// Number of bytes to transmit per stream and direction (instead of -t)
    #[arg(short = 'n', long, value_name = "N[KMG]", value_parser = size, conflicts_with = "time")]
    pub(crate) bytes: Option<u64>,

    /// Time in seconds to measure for; if contenders alternate, the total of each one's rounds
    #[arg(short, long, value_name = "SECS", default_value = "10", value_parser = seconds,
          visible_short_alias = 'd', visible_alias = "duration")]
    pub(crate) time: Duration,

    /// Limit each stream to this many bits per second, like an application that has no more data
    /// (iperf3's -b). A remote server does not know the limit: with `client`, add --upload
    #[arg(short, long, value_name = "N[KMG]", value_parser = bitrate,
          conflicts_with_all = ["requests", "handshakes", "segments"])]
    pub(crate) bitrate: Option<u64>,

    /// Also print intermediate results every SECS seconds; 0 turns this off
    #[arg(short, long, value_name = "SECS", default_value = "0", value_parser = interval)]
    pub(crate) interval: Duration,

    /// The client sends, as in iperf3 by default
    #[arg(long, conflicts_with = "download")]
    pub(crate) upload: bool,

    /// The server sends (default). iperf3 has it the other way round: its -R is this, and its
    /// default is --upload here
    #[arg(long, visible_short_alias = 'R', visible_alias = "reverse")]
    pub(crate) download: bool,

    /// Both ends send at the same time, each on its own streams
    #[arg(long, conflicts_with_all = ["upload", "download", "requests", "handshakes", "segments", "upload_size",
          "download_size"])]
    pub(crate) bidir: bool,

    /// Measure requests and responses, each pair on its own stream, instead of a bulk transfer
    #[arg(long, conflicts_with_all = ["handshakes", "segments", "bytes", "streams", "upload", "download"])]
    pub(crate) requests: bool,

    /// Measure viewers: every connection (-c) gets a segment of this many bytes (default: 256Ki)
    /// whenever its share of --rate is due
    #[arg(long, value_name = "N[KMG]", value_parser = size, num_args = 0..=1, require_equals = true,
          default_missing_value = "256Ki",
          conflicts_with_all = ["handshakes", "bytes", "streams", "in_flight", "upload", "download", "upload_size",
          "download_size"])]
    pub(crate) segments: Option<u64>,

    /// With --segments, bytes per second of all connections together (default: 200M). With
    /// --requests, start requests at random times (an open loop): this many per second over all
    /// connections, or a share, such as 50%, of the rate that the same run reaches without it.
    /// Latency then counts from the time when a request is due
    #[arg(long, value_name = "N|N%", value_parser = Rate::parse)]
    pub(crate) rate: Option<Rate>,

    /// With --requests, the same as --rate 50%
    #[arg(long, requires = "requests", conflicts_with = "rate")]
    pub(crate) open_loop: bool,

    /// Size of a request in bytes (default: 100); without --requests, upload this many bytes per
    /// stream
    #[arg(long, value_name = "N[KMG]", value_parser = size, conflicts_with_all = ["bytes", "download"])]
    pub(crate) upload_size: Option<u64>,

    /// Size of a response in bytes (default: 1024); without --requests, download this many bytes
    /// per stream
    #[arg(long, value_name = "N[KMG]", value_parser = size, conflicts_with_all = ["bytes", "upload"])]
    pub(crate) download_size: Option<u64>,

    /// Measure handshakes instead of a bulk transfer; without a list: all kinds in turn
    #[arg(long, value_name = "KIND,...", value_enum, num_args = 0..=1, require_equals = true,
          value_delimiter = ',', default_missing_value = Kind::LIST,
          conflicts_with_all = ["bytes", "connections", "streams", "upload", "download", "upload_size", "download_size",
          "rate"])]
    pub(crate) handshakes: Vec<Kind>,

    /// Measure connections that come and go: a full handshake, this many requests one after the
    /// other (default: 3) with responses of --download-size (default: 10K), and a close
    #[arg(long, value_name = "N", value_parser = count, num_args = 0..=1, require_equals = true,
          default_missing_value = "3",
          conflicts_with_all = ["requests", "segments", "handshakes", "bytes", "connections", "streams", "upload",
          "download", "bidir", "upload_size", "bitrate", "rate"])]
    pub(crate) churn: Option<usize>,

    /// Number of concurrent requests per connection (default: 100), of handshakes started at once
    /// (default: 10; full ones up to 100000 with --only quic), or of connections that come and go
    /// (default: 4)
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) in_flight: Option<usize>,
}

/// How often something starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    /// This much or many per second.
    PerSecond(f64),
    /// This share of the rate reached without a limit.
    Share(f64),
}

impl Rate {
    /// The default for viewers, in bytes per second.
    pub(crate) const VIEWERS: f64 = 200e6;
    /// The default share of an open loop.
    pub(crate) const HALF: Self = Self::Share(0.5);

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let wrong =
            || "give a number per second, such as 10000 or 200M, or a share from 1% to 100%";
        let Some(percent) = text.strip_suffix('%') else {
            let number = size(text).map_err(|_| wrong())?;
            return Ok(Self::PerSecond(number as f64));
        };
        let percent = percent.parse::<f64>().map_err(|_| wrong())?;
        let share = (1.0..=100.0).contains(&percent).then_some(percent / 100.0);
        Ok(Self::Share(share.ok_or_else(wrong)?))
    }
}

/// The work, with all defaults filled in.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// Long streams in one direction.
    Bulk(Flow, Amount),
    /// Many short streams, by the clock if there is a rate.
    Requests(Requests, Option<Rate>),
    /// Streams by the clock, at this many bytes a second.
    Segments(Requests, f64),
    /// Connections that are closed as soon as they are established.
    Handshakes(Vec<Handshakes>),
    /// Connections that are closed after a few requests.
    Churn(Churn),
}

impl Work {
    /// The work to do.
    ///
    /// # Errors
    /// The options contradict each other.
    pub(crate) fn task(&self) -> Result<Task> {
        let open = self.rate.or(self.open_loop.then_some(Rate::HALF));
        if self.requests {
            return Ok(Task::Requests(self.requests()?, open));
        }
        if let Some(size) = self.segments {
            return self.segments(size);
        }
        if let Some(requests) = self.churn {
            return Ok(Task::Churn(Churn {
                requests,
                down: self.download_size.unwrap_or(CHURN_RESPONSE),
                in_flight: self.in_flight.unwrap_or(CHURN_IN_FLIGHT),
                time: self.time,
            }));
        }
        if self.rate.is_some() {
            return Err(Failure::new(
                "--rate requires --segments or --requests; for bulk transfers, use --bitrate",
            ));
        }
        if !self.handshakes.is_empty() {
            let in_flight = self.in_flight.unwrap_or(HANDSHAKES_IN_FLIGHT);
            let needs_tickets = self.handshakes.iter().any(|&kind| kind != Kind::Full);
            if in_flight > MAX_TICKETS && needs_tickets {
                return Err(Failure::new(format!(
                    "at most {MAX_TICKETS} handshakes with tickets at a time: pass --handshakes=full or a smaller --in-flight"
                )));
            }
            let mut kinds = self.handshakes.clone();
            kinds.dedup();
            let time = self.time;
            let all = kinds.into_iter().map(|kind| Handshakes {
                kind,
                in_flight,
                time,
            });
            return Ok(Task::Handshakes(all.collect()));
        }
        if self.in_flight.is_some() {
            return Err(Failure::new(
                "--in-flight requires --requests, --handshakes or --churn; for bulk transfers, use --streams",
            ));
        }
        let (flow, size) = match (self.upload_size, self.download_size) {
            (Some(_), Some(_)) => {
                return Err(Failure::new(
                    "--upload-size and --download-size together require --requests: add it, or choose one direction",
                ));
            }
            (Some(size), None) => (Flow::Up, Some(size)),
            (None, Some(size)) => (Flow::Down, Some(size)),
            (None, None) if self.bidir => (Flow::Both, self.bytes),
            (None, None) if self.upload => (Flow::Up, self.bytes),
            (None, None) => (Flow::Down, self.bytes),
        };
        Ok(Task::Bulk(
            flow,
            size.map_or(Amount::Time(self.time), Amount::Bytes),
        ))
    }

    fn requests(&self) -> Result<Requests> {
        let up = self.upload_size.unwrap_or(REQUEST);
        let up = usize::try_from(up)
            .ok()
            .filter(|up| Requests::UP.contains(up))
            .ok_or_else(|| {
                Failure::new(format!(
                    "a request contains its response's length (8 bytes) and is buffered: --upload-size must be from {} to {}",
                    Requests::UP.start(),
                    Requests::UP.end()
                ))
            })?;
        Ok(Requests {
            up,
            down: self.download_size.unwrap_or(RESPONSE),
            in_flight: self.in_flight.unwrap_or(REQUESTS_IN_FLIGHT),
            begin: Begin::AfterAnswer,
            time: self.time,
        })
    }

    fn segments(&self, size: u64) -> Result<Task> {
        let rate = match self.rate {
            None => Rate::VIEWERS,
            Some(Rate::PerSecond(rate)) => rate,
            Some(Rate::Share(_)) => {
                return Err(Failure::new(
                    "--segments has no rate to take a share of: pass bytes per second, such as --rate 200M",
                ));
            }
        };
        let requests = Requests {
            up: *Requests::UP.start(),
            down: size,
            in_flight: 1,
            begin: Begin::evenly(rate / size as f64, self.connections()),
            time: self.time,
        };
        Ok(Task::Segments(requests, rate))
    }

    /// The number of connections: the first one if there are several.
    pub(crate) fn connections(&self) -> usize {
        self.connections.first().copied().unwrap_or(1)
    }

    /// The largest of the numbers of connections.
    pub(crate) fn most_connections(&self) -> usize {
        self.connections.iter().copied().max().unwrap_or(1)
    }

    /// Whether there are several numbers of connections.
    pub(crate) fn has_several_numbers(&self) -> bool {
        self.connections.len() > 1
    }

    /// The numbers of connections for people.
    pub(crate) fn numbers(&self) -> String {
        let numbers: Vec<String> = self.connections.iter().map(ToString::to_string).collect();
        numbers.join(" and ")
    }

    /// Refuses several numbers of connections.
    ///
    /// # Errors
    /// There are several.
    pub(crate) fn one_number(&self) -> Result<()> {
        if self.has_several_numbers() {
            return Err(Failure::new(
                "several numbers of connections are for measurements over loopback, without --verify or --ablation: \
                 pass one with -c",
            ));
        }
        Ok(())
    }

    /// How often intermediate figures are printed.
    pub(crate) fn interval(&self) -> Option<Duration> {
        Some(self.interval).filter(|interval| !interval.is_zero())
    }

    /// Number of streams open at a time on one connection.
    pub(crate) fn open_streams(&self) -> usize {
        match self.task() {
            Ok(Task::Requests(requests, _)) => requests.in_flight,
            Ok(Task::Bulk(flow, _)) => self.streams * flow.directions().len(),
            _ => self.streams,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use squall_yard::parse::group;

    use super::*;

    fn task(args: &[&str]) -> Result<Task> {
        group::<Work>(args).expect("arguments").task()
    }

    #[test]
    fn options_have_the_names_of_known_tools() {
        for args in [
            &["-P", "4", "-d", "2", "-R"][..],
            &["--parallel", "4", "--duration", "2", "--reverse"],
            &["-s", "4", "-t", "2", "--download"],
        ] {
            let work: Work = group(args).expect("arguments");
            assert_eq!(work.streams, 4, "{args:?}");
            assert!(matches!(
                work.task(),
                Ok(Task::Bulk(Flow::Down, Amount::Time(time))) if time.as_secs() == 2
            ));
        }
    }

    #[test]
    fn sizes_choose_a_direction_or_shape_requests() {
        assert!(matches!(
            task(&["--upload-size", "1M"]),
            Ok(Task::Bulk(Flow::Up, Amount::Bytes(1_000_000)))
        ));
        let requests = ["--requests", "--upload-size", "10", "--download-size", "2K"];
        assert!(matches!(
            task(&requests),
            Ok(Task::Requests(
                Requests {
                    up: 10,
                    down: 2_000,
                    in_flight: 100,
                    ..
                },
                None
            ))
        ));
        assert!(task(&["--upload-size", "1K", "--download-size", "1K"]).is_err());
        assert!(task(&["--requests", "--upload-size", "7"]).is_err());
        assert!(task(&["--in-flight", "7"]).is_err());
    }

    #[test]
    fn both_directions_use_twice_the_streams_and_exclude_a_single_direction() {
        let work: Work = group(&["--bidir", "-s", "3"]).expect("arguments");
        assert_eq!(work.open_streams(), 6);
        assert!(matches!(
            work.task(),
            Ok(Task::Bulk(Flow::Both, Amount::Time(_)))
        ));
        for other in ["--upload", "-R", "--requests", "--handshakes"] {
            assert!(group::<Work>(&["--bidir", other]).is_err(), "{other}");
        }
    }

    #[test]
    fn a_rate_counts_requests_or_bytes() {
        let open = |args: &[&str]| match task(args) {
            Ok(Task::Requests(_, rate)) => rate,
            other => panic!("{other:?}"),
        };
        assert_eq!(open(&["--requests"]), None);
        assert_eq!(open(&["--requests", "--open-loop"]), Some(Rate::Share(0.5)));
        assert_eq!(
            open(&["--requests", "--rate", "10K"]),
            Some(Rate::PerSecond(1e4))
        );
        assert_eq!(
            open(&["--requests", "--rate", "80%"]),
            Some(Rate::Share(0.8))
        );
        let Ok(Task::Segments(requests, rate)) = task(&["--segments", "-c", "10"]) else {
            panic!("segments");
        };
        assert_eq!((requests.down, rate), (262_144, 200e6));
        assert_eq!(requests.begin, Begin::evenly(200e6 / 262_144.0, 10));
        for wrong in [&["--rate", "1K"][..], &["--segments", "--rate", "50%"]] {
            assert!(task(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["0", "-1", "101%", "%", "x"] {
            assert!(Rate::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn short_lived_connections_make_three_requests_by_default() {
        let churn = |args: &[&str]| match task(args) {
            Ok(Task::Churn(one)) => (one.requests, one.down, one.in_flight),
            other => panic!("{other:?}"),
        };
        assert_eq!(churn(&["--churn"]), (3, 10_000, 4));
        let others = ["--churn=1", "--download-size", "1K", "--in-flight", "9"];
        assert_eq!(churn(&others), (1, 1_000, 9));
        assert!(group::<Work>(&["--churn", "-c", "3"]).is_err());
    }

    #[test]
    fn all_kinds_of_handshakes_are_measured_by_default() {
        let kinds = |args: &[&str]| match task(args) {
            Ok(Task::Handshakes(all)) => all.iter().map(|one| one.kind).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            kinds(&["--handshakes"]),
            [Kind::Full, Kind::Resumed, Kind::Early]
        );
        assert!(task(&["--handshakes", "--in-flight", "1001"]).is_err());
        assert!(task(&["--handshakes=full", "--in-flight", "100000"]).is_ok());
        assert_eq!(kinds(&["--handshakes=resumed"]), [Kind::Resumed]);
        assert!(Kind::from_str("quarter", true).is_err());
    }
}
