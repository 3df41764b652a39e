//! `squall perf --http`: the same load over three protocols.

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{failure, number, signal, squall};

/// An empty temporary folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Leftovers of an earlier run that failed.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn http_versions_are_compared_under_an_equal_load() {
    let folder = folder("perf-http");
    let output = Command::new(env!("CARGO_BIN_EXE_squall"))
        .args(["perf", "--http", "-t", "0.2", "--rounds", "1"])
        .args(["--viewers", "30", "--speed", "1000", "--json"])
        .env("TMPDIR", &folder)
        .output()
        .expect("the binary runs");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
    let protocols = ["h3", "h2", "h1"];
    let sizes = [1_024_u64, 100_000, 1_000_000];
    let expected = sizes.map(|size| protocols.map(|name| (name, size)));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 9);
    for (row, (protocol, size)) in rows.iter().zip(expected.into_iter().flatten()) {
        assert_eq!(
            (&row["protocol"], &row["size"]),
            (&protocol.into(), &size.into())
        );
        let keys = [
            "server_us_per_request",
            "server_cpu_s_per_gb",
            "requests_per_s",
        ];
        let [us, s_per_gb, per_s] = keys.map(|key| number(&row[key]));
        assert!(us > 0.0 && per_s > 0.0, "{row}");
        assert!(
            (us * 1e3 / size as f64 / s_per_gb - 1.0).abs() < 1e-6,
            "{row}"
        );
        // The server has only one core.
        assert!(us * per_s < 1.2e6, "{row}");
        assert_eq!(row.as_object().expect("a row").len(), 5, "{row}");
    }
    // The same counted load for all.
    for (load, connections) in report["load"].as_array().expect("loads").iter().zip(
        std::iter::repeat_n([10, 10, 100], 3)
            .chain([[10; 3], [30; 3]])
            .flatten(),
    ) {
        assert_eq!(load["connections"], connections, "{load}");
        let in_flight = match load["work"].as_str() {
            Some("requests") => 100,
            // Some of the ten connect or close.
            Some("handshake") => number(&load["in_flight"]).clamp(1.0, 10.0) as u64,
            _ => 30,
        };
        assert_eq!(load["in_flight"], in_flight, "{load}");
    }
    let handshakes = report["handshakes"].as_array().expect("handshakes");
    assert_eq!(handshakes.len(), 3);
    for (row, protocol) in handshakes.iter().zip(protocols) {
        assert_eq!(row["protocol"], protocol);
        let keys = ["server_us_per_connection", "connections_per_s"];
        let [us, per_s] = keys.map(|key| number(&row[key]));
        // A full handshake costs as much as many requests.
        assert!(us > 50.0 && per_s > 0.0 && us * per_s < 1.2e6, "{row}");
    }
    // Where HTTP/3's time goes: the parts are the whole.
    let staged = report["stages"].as_array().expect("stages");
    let works = ["requests", "requests", "requests", "handshake", "session"];
    let found: Vec<_> = staged.iter().map(|table| &table["work"]).collect();
    assert_eq!(found, works);
    for table in staged {
        let rows = table["rows"].as_array().expect("rows");
        // A stage without time has no row, such as handshakes once all connections exist.
        let of = |name: &str| {
            let row = rows.iter().find(|row| row["stage"] == name);
            row.map_or(0.0, |row| number(&row["percent"]))
        };
        // On a slow machine, a long request may not even begin in so short a time.
        let is_long = table["size"] == 1_000_000 || table["work"] == "session";
        let qpack = (!is_long).then_some("QPACK");
        for stage in (["UDP send", "AEAD", "HTTP/3", "application"].into_iter()).chain(qpack) {
            assert!(of(stage) > 0.0, "{stage}: {table}");
        }
        let has_handshakes = table["work"] == "handshake";
        // Time in which others had the core is scaled out of the stages, which distorts them.
        if table["preempted"] == true {
            assert!(!has_handshakes || of("handshake") > 0.0, "{table}");
        } else {
            assert_eq!(of("handshake") > 20.0, has_handshakes, "{table}");
        }
        let sum: f64 = rows.iter().filter_map(|row| row["percent"].as_f64()).sum();
        assert!(sum < 100.1, "{sum}: {table}");
    }
    // With one round, the median equals the rows' ratio.
    let ratio = number(&report["ratios"][1]["h3_to_h1"]);
    let [h3, h1] = [3, 5].map(|at| number(&rows[at]["server_us_per_request"]));
    assert!((ratio / (h3 / h1) - 1.0).abs() < 1e-6, "{ratio} {h3} {h1}");
    let sessions = report["sessions"].as_array().expect("sessions");
    assert_eq!(sessions.len(), 3);
    for (row, protocol) in sessions.iter().zip(protocols) {
        assert_eq!(
            (&row["protocol"], &row["viewers"]),
            (&protocol.into(), &30.into())
        );
        assert!(number(&row["server_cpu_s_per_gb"]) > 0.0, "{row}");
        // A segment of every viewer each 2 ms is more than a core can do.
        assert!(number(&row["stalls"]) > 0.0, "{row}");
    }
    // The server's folder is gone, as is the server.
    let left: Vec<_> = std::fs::read_dir(&folder).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn http_rejects_options_that_its_server_lacks() {
    let line = failure(&["perf", "--http", "--no-gso", "--congestion", "bbr"]);
    assert!(
        line.contains("--no-gso") && line.contains("--congestion bbr"),
        "{line}"
    );
    for args in [
        &["--http", "--requests"][..],
        &["--http", "-c", "2"],
        &["--http", "--only", "quic"],
        &["--http", "--speed", "0"],
        &["--viewers", "2"],
    ] {
        let output = squall(&[&["perf"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let output = squall(&[
        "perf",
        "--http",
        "-t",
        "0.1",
        "--rounds",
        "1",
        "--viewers",
        "2",
        "--csv",
    ]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let names: Vec<_> = (text.lines().skip(1))
        .map(|line| line.split(',').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(names.len(), 15, "{text}");
    assert_eq!(names[..2], ["http-1024 h3", "http-1024 h2"]);
    assert_eq!(names[11], "http-handshake h1");
    assert_eq!(names[14], "http-session h1");
}

#[test]
fn ctrl_c_ends_an_http_measurement_and_its_server() {
    let folder = folder("perf-http-ctrl-c");
    let mut process = Command::new(env!("CARGO_BIN_EXE_squall"))
        .args([
            "perf",
            "--http",
            "-t",
            "30",
            "--rounds",
            "1",
            "--viewers",
            "2",
        ])
        .env("TMPDIR", &folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
    // The server is running once the heading appears.
    let first = lines.next().expect("a line").expect("text");
    assert!(first.starts_with("loopback"), "{first}");
    signal(&process, "INT");
    let output = process.wait_with_output().expect("the process exits");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(stderr, "squall: interrupted before anything was measured\n");
    let left: Vec<_> = std::fs::read_dir(&folder).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}
