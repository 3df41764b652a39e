//! Datagrams, viewers, requests by the clock, and connections that come and go.

mod common;

use common::{failure, json};

fn number(value: &serde_json::Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// One round of a workload, as short as it can be.
fn report(args: &[&str]) -> serde_json::Value {
    json(&[&["perf", "--rounds", "1", "-t", "0.2", "--json"], args].concat())
}

/// The contenders of a report's rows, with their workloads; all of them used CPU time.
fn contenders(report: &serde_json::Value) -> Vec<(&str, &str)> {
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        assert!(number(&row["per_s"]) > 0.0, "{row}");
        assert!(number(&row["server_cpu"]) > 0.0 && number(&row["client_cpu"]) > 0.0);
    }
    rows.iter()
        .filter_map(|row| Some((row["workload"].as_str()?, row["contender"].as_str()?)))
        .collect()
}

#[test]
fn datagrams_have_their_cpu_and_the_share_that_was_lost() {
    for (args, workload, connections, size) in [
        (&["--datagrams"][..], "W7", 1, 1_100),
        (&["--datagrams=200", "-c", "5"], "W7", 5, 200),
        (&["--datagrams=300"], "datagrams", 1, 300),
    ] {
        let report = report(args);
        assert_eq!(contenders(&report), [(workload, "squall")]);
        let row = &report["rows"][0];
        assert_eq!(
            (&row["connections"], &row["size"]),
            (&connections.into(), &size.into())
        );
        assert_eq!(row["cpu_unit"], "us/datagram");
        assert!(
            (0.0..100.0).contains(&number(&row["lost_percent"])),
            "{row}"
        );
        assert!(number(&row["datagrams_per_message"]) >= 1.0, "{row}");
    }
    let line = failure(&["perf", "--datagrams", "--only", "quic", "--only", "tcp"]);
    assert!(line.contains("TCP has no datagrams"), "{line}");
    let line = failure(&["perf", "--datagrams=1450"]);
    assert!(line.contains("--payload"), "{line}");
}
