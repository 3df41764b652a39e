//! Results as rows, one per workload and contender: the same for a spreadsheet and for the
//! comparison with other stacks.

use std::fmt::Write as _;

use serde::Serialize;

use crate::latency::Percentiles;

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `W1` (1 × 1), `W1r` (the same, endless and limited by the application), `W2` (10 × 10),
    /// `W5s` (N × 1, endless), `bulk` (other shapes), `bidir` (both ways at once), `W3` (requests),
    /// `W4`, `W4-resumed` (handshakes), `W5`, `W5t` (segments of 256 and 16 KiB, 200 MB/s),
    /// `segments` (others), `W6` (one request at a time), `requests` (others by the clock), `W7`
    /// (datagrams of 1,100 or 200 bytes), `datagrams` (others), `W8` (connections with three
    /// requests of 10,000 bytes), `churn` (others).
    pub workload: &'static str,
    /// Which stack did the work.
    pub contender: &'static str,
    /// Throughput of a bulk transfer.
    pub gbit_per_s: Option<f64>,
    /// Requests or handshakes.
    pub per_s: Option<f64>,
    /// In `cpu_unit`; absent if the other end is another process.
    pub server_cpu: Option<f64>,
    /// The client's CPU time, in `cpu_unit`.
    pub client_cpu: Option<f64>,
    /// The unit of both CPU times.
    pub cpu_unit: &'static str,
    /// How long requests or handshakes took.
    pub latency_us: Option<Percentiles>,
    /// Connections at a time, if a number was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// For requests: `closed` if they follow responses, `open` if they begin by the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// Bytes of a response, a segment or a datagram.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// squall's server: UDP datagrams per message passed to the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagrams_per_message: Option<f64>,
    /// Each stream's limit in 10^9 bits per second, if the application has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_limit: Option<f64>,
}

/// squall's name in rows, where other stacks may appear too.
pub const SQUALL: &str = "squall";
/// CPU of bulk transfer.
pub const PER_GB: &str = "s/GB";
/// CPU of requests.
pub const PER_REQUEST: &str = "us/request";
/// CPU of datagrams.
pub const PER_DATAGRAM: &str = "us/datagram";
/// CPU of connections that come and go.
pub const PER_CONNECTION: &str = "us/connection";
/// CPU of handshakes.
pub const PER_HANDSHAKE: &str = "us/handshake";

/// Converts a rate in bits per second to the unit of rows, 10^9 bits per second.
pub fn gbit(bits_per_second: u64) -> f64 {
    bits_per_second as f64 / 1e9
}

/// The workload name of a bulk transfer, in both directions at once or in one. `endless`: a
/// download that ends only when time is up. `limited`: by the application's rate.
pub fn bulk(
    connections: usize,
    streams: usize,
    is_both: bool,
    endless: bool,
    limited: bool,
) -> &'static str {
    match (connections, streams) {
        _ if is_both => "bidir",
        (2.., 1) if endless => "W5s",
        (1, 1) if endless && limited => "W1r",
        (1, 1) => "W1",
        (10, 10) => "W2",
        _ => "bulk",
    }
}

/// The rows as comma-separated values with a heading. No value holds a comma.
pub fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "workload,contender,gbit_per_s,per_s,server_cpu,client_cpu,cpu_unit,p50_us,p90_us,p99_us,p99_9_us,max_us,\
         connections,mode,size,datagrams_per_message,gbit_limit",
    );
    for row in rows {
        let number =
            |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
        let _ = write!(
            text,
            "\n{},{},{},{},{},{},{}",
            row.workload,
            row.contender,
            number(row.gbit_per_s),
            number(row.per_s),
            number(row.server_cpu),
            number(row.client_cpu),
            row.cpu_unit
        );
        let times = row.latency_us.map(|latency| latency.all());
        for at in 0..5 {
            let _ = write!(text, ",{}", number(times.map(|times| times[at])));
        }
        let connections = row.connections.map(|connections| connections.to_string());
        let size = row.size.map(|size| size.to_string());
        let _ = write!(
            text,
            ",{},{},{},{},{}",
            connections.unwrap_or_default(),
            row.mode.unwrap_or_default(),
            size.unwrap_or_default(),
            number(row.datagrams_per_message),
            number(row.gbit_limit)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_one_value_per_heading() {
        let row = Row {
            workload: bulk(1, 1, false, true, false),
            contender: "tcp",
            gbit_per_s: Some(1.5),
            per_s: None,
            server_cpu: Some(0.25),
            client_cpu: None,
            cpu_unit: PER_GB,
            latency_us: None,
            connections: None,
            mode: None,
            size: None,
            datagrams_per_message: None,
            gbit_limit: None,
        };
        let times = Row {
            latency_us: Some(Percentiles {
                p50: 1.0,
                p90: 2.0,
                p99: 3.0,
                p99_9: 4.0,
                max: 5.0,
            }),
            connections: Some(10),
            mode: Some("open"),
            size: Some(1_024),
            datagrams_per_message: Some(2.5),
            gbit_limit: Some(0.04),
            ..row.clone()
        };
        let text = csv(&[row, times]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        assert_eq!(&lines[1][..4], ["W1", "tcp", "1.5000", ""]);
        assert_eq!(
            lines[0][14..],
            ["size", "datagrams_per_message", "gbit_limit"]
        );
        assert_eq!(lines[1][12..], ["", "", "", "", ""]);
        assert_eq!(
            lines[2][11..],
            ["5.0000", "10", "open", "1024", "2.5000", "0.0400"]
        );
    }

    #[test]
    fn only_an_endless_download_on_one_connection_is_named_for_its_limit() {
        let name = |connections, streams, endless, limited| {
            bulk(connections, streams, false, endless, limited)
        };
        assert_eq!(name(1, 1, true, true), "W1r");
        assert_eq!(name(1, 1, true, false), "W1");
        // A fixed number of bytes, or an upload.
        assert_eq!(name(1, 1, false, true), "W1");
        for limited in [false, true] {
            assert_eq!(name(1_000, 1, true, limited), "W5s");
            assert_eq!(name(10, 10, true, limited), "W2");
            assert_eq!(name(1, 2, true, limited), "bulk");
            assert_eq!(bulk(1, 1, true, true, limited), "bidir");
        }
    }
}
