//! Requests, handshakes, options of the transport, forms of output, and Ctrl-C.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{
    Server, assert_latency, assert_sum, contenders, failure, json, number, signal, squall,
};

/// The last columns of each `--csv` line, including the heading.
fn last_values(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().map(|line| line.split(',').skip(12).collect());
    lines.collect()
}

#[test]
fn requests_are_reported_with_rate_cpu_latency_and_stages() {
    let report = json(&[
        "perf",
        "--requests",
        "-t",
        "0.5",
        "--rounds",
        "2",
        "--in-flight",
        "20",
        "-c",
        "2",
        "--json",
    ]);
    let row = &report["rows"][0];
    assert_eq!(
        (&row["workload"], &row["contender"]),
        (&"W3".into(), &"squall".into())
    );
    for key in ["per_s", "server_cpu", "client_cpu"] {
        assert!(number(&row[key]) > 0.0, "{key}");
    }
    // At most this many at a time: Little's law, with room for rounding.
    let (count, seconds) = (number(&row["count"]), number(&row["seconds"]));
    assert!((number(&row["per_s"]) - count / seconds).abs() < 1.0);
    assert!(number(&row["per_s"]) * number(&row["latency_us"]["p50"]) / 1e6 < 80.0);
    assert_latency(&row["latency_us"]);
    let stages = &row["stages"];
    for end in ["server", "client"] {
        let rows = stages[end]["rows"].as_array().expect("rows");
        assert_sum(&stages[end]);
        let us: f64 = rows
            .iter()
            .filter_map(|row| row["us_per_operation"].as_f64())
            .sum();
        let share = us / number(&row[format!("{end}_cpu")]);
        let least = if stages[end]["preempted"] == true {
            0.0
        } else {
            0.8
        };
        assert!((least..1.2).contains(&share), "{end}: {us}");
    }
    assert!(number(&stages["overhead_percent"]) > 0.0);
    let attributed = &stages["attributed_percent"];
    assert!(attributed.is_null() || number(attributed) > 30.0);
    // The controls did the same in the same run.
    for (at, control) in [(1, "tls_tcp"), (2, "tcp")] {
        let other = &report["rows"][at];
        assert_eq!(
            (&other["workload"], &other["contender"]),
            (&"W3".into(), &control.into())
        );
        let sum = |row: &serde_json::Value| number(&row["server_cpu"]) + number(&row["client_cpu"]);
        assert!(number(&other["server_cpu"]) > 0.0 && number(&other["client_cpu"]) > 0.0);
        assert!(number(&other["per_s"]) * number(&other["latency_us"]["p50"]) / 1e6 < 80.0);
        assert_latency(&other["latency_us"]);
        // A median of two rounds' ratios, and the ratio of their sums: not equal, but close.
        let ratio = number(&row[format!("ratio_to_{control}")]);
        let of_sums = sum(row) / sum(other);
        assert!(
            (0.2..5.0).contains(&(ratio / of_sums)),
            "{control}: {ratio} {of_sums}"
        );
    }
}

#[test]
fn large_requests_and_responses_do_not_deadlock_the_controls() {
    // 20 at a time would be 4 MB up and 40 MB down: more than sockets hold.
    let report = json(&[
        "perf",
        "--requests",
        "--upload-size",
        "200K",
        "--download-size",
        "2M",
        "--in-flight",
        "20",
        "-t",
        "0.3",
        "--rounds",
        "1",
        "--only",
        "tls-tcp",
        "--only",
        "tcp",
        "--no-gso",
        "--json",
    ]);
    assert_eq!(contenders(&report), [("W3", "tls_tcp"), ("W3", "tcp")]);
    assert!(number(&report["rows"][0]["count"]) > 0.0);
    let controls = report["controls"].to_string();
    for part in ["1 at a time", "for QUIC only: --no-gso"] {
        assert!(controls.contains(part), "{part}: {controls}");
    }
}

#[test]
fn a_single_contender_gets_rows_without_ratios() {
    let brief = ["-t", "0.2", "--rounds", "1"];
    let args = [
        &["perf", "--handshakes", "--only", "tls-tcp", "--json"],
        &brief[..],
    ]
    .concat();
    let report = json(&args);
    // Early data is squall's only.
    assert_eq!(
        contenders(&report),
        [("W4", "tls_tcp"), ("W4-resumed", "tls_tcp")]
    );
    let output = squall(&[&["perf", "--requests", "--csv"], &brief[..]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(',').nth(1))
        .collect();
    assert_eq!(names, ["contender", "squall", "tls_tcp", "tcp"], "{text}");
    let rows = last_values(&text);
    assert_eq!(
        rows[0],
        [
            "connections",
            "mode",
            "size",
            "datagrams_per_message",
            "gbit_limit"
        ]
    );
    for row in &rows[1..] {
        assert_eq!(row[..3], ["1", "closed", "1024"], "{text}");
    }
    assert!(rows[1][3].parse::<f64>().is_ok_and(|filled| filled >= 1.0));
    for row in &rows[2..] {
        assert_eq!(row[3..], ["", ""], "{text}");
    }
    let line = failure(&["perf", "--handshakes", "--only", "tcp"]);
    assert!(line.contains("--only"), "{line}");
}

#[test]
fn handshakes_are_of_the_kind_that_the_row_names() {
    let report = json(&[
        "perf",
        "--handshakes",
        "-t",
        "0.3",
        "--rounds",
        "1",
        "--in-flight",
        "3",
        "--group",
        "x25519",
        "--json",
    ]);
    let options = report["options"].as_str().expect("text");
    assert!(
        options.contains("X25519") && !options.contains("MLKEM"),
        "{options}"
    );
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(
        contenders(&report),
        [
            ("W4", "squall"),
            ("W4", "tls_tcp"),
            ("W4-resumed", "squall"),
            ("W4-resumed", "tls_tcp"),
            ("W4-0rtt", "squall")
        ]
    );
    for row in rows {
        // A handshake of the wrong kind would have ended the run with an error. squall makes only
        // whole batches.
        let count = row["count"].as_u64().expect("count");
        assert!(count > 0 && (row["contender"] == "tls_tcp" || count % 3 == 0));
        assert!(number(&row["server_cpu"]) > 0.0 && number(&row["client_cpu"]) > 0.0);
        assert_latency(&row["latency_us"]);
    }
    assert!(number(&rows[0]["ratio_to_tls_tcp"]) > 0.0);
    assert!(number(&rows[2]["ratio_to_tls_tcp"]) > 0.0);
    assert!(number(&report["resumed_to_full"]) > 0.0);
}

#[test]
fn a_client_measures_requests_and_handshakes_against_a_server() {
    let server = Server::start();
    let address = server.address();
    let client = |args: &[&str]| {
        let all = [
            &["perf", "client", &address, "-k", "-t", "0.3", "--json"],
            args,
        ]
        .concat();
        json(&all)
    };
    let report = client(&["--requests", "--upload-size", "50", "--download-size", "5K"]);
    assert_eq!(report["rows"][0]["workload"], "W3");
    assert!(report["rows"][0]["server_cpu"].is_null());
    for kind in ["full", "resumed", "0rtt"] {
        let report = client(&[&format!("--handshakes={kind}"), "--in-flight", "2"]);
        assert!(number(&report["rows"][0]["count"]) > 0.0, "{kind}");
    }
}

#[test]
fn connection_statistics_are_printed_on_request() {
    let mut process = Command::new(env!("CARGO_BIN_EXE_squall"));
    let server = Server::start();
    let output = process
        .args([
            "perf",
            "client",
            &server.address(),
            "-k",
            "-n",
            "1K",
            "-c",
            "2",
            "--conn-stats",
        ])
        .output()
        .expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    for part in ["connection 1: rtt ", "connection 2: rtt ", "packets sent "] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[test]
fn every_contender_can_upload() {
    let report = json(&[
        "perf", "--upload", "-n", "1M", "-s", "2", "--rounds", "1", "--json",
    ]);
    for contender in ["quic", "tls_tcp", "tcp"] {
        assert_eq!(report[contender]["bytes"], 2_000_000, "{contender}");
    }
    assert_eq!(report["setup"]["direction"], "upload");
    assert_latency(&report["rtt_us"]);
}

#[test]
fn every_suite_and_congestion_control_transfers_data() {
    for (suite, congestion) in [("aes256", "newreno"), ("chacha20", "bbr")] {
        let report = json(&[
            "perf",
            "-n",
            "300K",
            "--rounds",
            "1",
            "--suite",
            suite,
            "--congestion",
            congestion,
            "--no-gso",
            "--no-gro",
            "--no-pacing",
            "--workers",
            "2",
            "--json",
        ]);
        let setup = &report["setup"];
        let name = setup["cipher_suite"]
            .as_str()
            .expect("a name")
            .to_lowercase();
        assert!(name.replace('_', "").contains(suite), "{name}");
        assert_eq!(
            (&setup["congestion"], &setup["gso"]),
            (&congestion.into(), &false.into())
        );
        for contender in ["quic", "tls_tcp", "tcp"] {
            assert_eq!(report[contender]["bytes"], 300_000, "{contender} {suite}");
        }
    }
}

#[test]
fn no_gso_sends_every_datagram_separately() {
    // Other load on the machine adds to either time: if so, try again.
    for _ in 0..10 {
        let alone = us_of_sending(Server::with(&["--no-gso"]));
        let together = us_of_sending(Server::start());
        if alone > 2.0 * together {
            return;
        }
        println!("{alone} us, {together} us in bundles");
    }
    panic!("single datagrams never took twice as long");
}

/// How long a server sends for a download, by its own table.
fn us_of_sending(server: Server) -> f64 {
    let address = server.address();
    json(&["perf", "client", &address, "-k", "-n", "3M", "--json"]);
    let (code, text) = server.interrupt();
    assert_eq!(code, Some(0));
    let line = text
        .lines()
        .find(|line| line.starts_with("UDP send"))
        .expect("the table");
    line.split_whitespace()
        .nth(2)
        .and_then(|us| us.parse().ok())
        .expect("us")
}

#[test]
fn csv_has_a_heading_and_a_plot_is_an_svg() {
    let file = std::env::temp_dir().join(format!("squall-perf-{}.svg", std::process::id()));
    let name = file.to_str().expect("text");
    let output = squall(&[
        "perf", "-n", "300K", "--rounds", "1", "--csv", "--plot", name,
    ]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("workload,contender,gbit_per_s"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("W1,squall,") && lines[3].starts_with("W1,tcp,"),
        "{text}"
    );
    let rows = last_values(&text);
    // Bulk data has no size; the kernel gets bundles from squall alone.
    assert_eq!(rows[1][..3], ["1", "", ""], "{text}");
    assert!(rows[1][3].parse::<f64>().is_ok_and(|filled| filled >= 1.0));
    assert_eq!(rows[3], ["1", "", "", "", ""], "{text}");
    let svg = std::fs::read_to_string(&file).expect("the picture");
    std::fs::remove_file(&file).expect("the file exists");
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let parts = document.descendants().filter(|node| {
        node.has_tag_name("title") && node.text().is_some_and(|text| text.starts_with("AEAD"))
    });
    // One in the server's bar, one in the client's.
    assert_eq!(parts.count(), 2);
}

#[test]
fn ctrl_c_ends_a_server_with_a_summary_and_closes_its_connections() {
    let server = Server::start();
    let mut client = Command::new(env!("CARGO_BIN_EXE_squall"))
        .args(["perf", "client", &server.address(), "-k"])
        .args(["-t", "30", "-i", "0.1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // It is in progress.
    let mut lines = BufReader::new(client.stdout.take().expect("piped")).lines();
    lines.next().expect("a line").expect("text");
    let begin = std::time::Instant::now();
    let (code, text) = server.interrupt();
    assert_eq!(code, Some(0));
    for part in ["served 1 connection(s)", "UDP send"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Noticed at once, not by a timeout.
    while lines.next().is_some() {}
    let output = client.wait_with_output().expect("the process exits");
    assert!(begin.elapsed() < Duration::from_secs(8));
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("the server is shutting down") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn ctrl_c_ends_a_measurement_and_prints_the_results_so_far() {
    let server = Server::start();
    let address = server.address();
    for (args, key) in [
        (&["perf", "-t", "60", "--json"][..], "/setup/interrupted"),
        (
            &["perf", "--requests", "-t", "60", "--json"],
            "/interrupted",
        ),
        (
            &["perf", "client", &address, "-k", "-n", "900G", "--json"],
            "/interrupted",
        ),
    ] {
        let interrupted_after = |seconds: u64| {
            let child = Command::new(env!("CARGO_BIN_EXE_squall"))
                .args(args)
                .stdout(Stdio::piped())
                .spawn()
                .expect("the binary runs");
            std::thread::sleep(Duration::from_secs(seconds));
            signal(&child, "TERM");
            child.wait_with_output().expect("the process exits")
        };
        // On a slow machine there is nothing yet after a second.
        let mut outputs = [1, 5, 20].into_iter().map(interrupted_after);
        let output = outputs.find(|output| output.status.code() == Some(0));
        let output = output.unwrap_or_else(|| panic!("{args:?}"));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
        assert_eq!(report.pointer(key), Some(&true.into()), "{args:?}");
    }
}

#[test]
fn errors_are_one_line_that_says_what_to_do() {
    let server = Server::with(&["--suite", "aes256"]);
    let address = server.address();
    for (args, word) in [
        (
            &[
                "perf",
                "server",
                "--cert",
                "/nowhere/c.pem",
                "--key",
                "/nowhere/k.pem",
            ][..],
            "/nowhere/c.pem",
        ),
        (&["perf", "--plot", "/nowhere/p.svg", "-n", "1K"], "--plot"),
        (
            &["perf", "client", &address, "--cacert", "/nowhere/ca.pem"],
            "/nowhere/ca.pem",
        ),
        (
            &[
                "perf", "client", &address, "-k", "--suite", "chacha20", "-n", "1K",
            ],
            "--suite",
        ),
        (&["perf", "client", &address, "-k", "-p", "1"], "-p"),
        (
            &["perf", "client", "127.0.0.1", "--cpu", "4000", "-k"],
            "--cpu",
        ),
        (
            &["perf", "--upload-size", "1K", "--download-size", "1K"],
            "--requests",
        ),
        (&["perf", "--in-flight", "3"], "--requests"),
    ] {
        let line = failure(args);
        assert!(line.contains(word), "{args:?}: {line}");
    }
    // Whatever the test's environment says: no file, and an impossible one.
    for file in ["", "/nowhere/keys"] {
        let output = Command::new(env!("CARGO_BIN_EXE_squall"))
            .args(["perf", "--keylog", "-n", "1K"])
            .env("SSLKEYLOGFILE", file)
            .output()
            .expect("the binary runs");
        assert_eq!(output.status.code(), Some(1));
        let line = String::from_utf8_lossy(&output.stderr);
        assert!(
            line.contains("SSLKEYLOGFILE") && line.contains(file),
            "{line}"
        );
    }
}

#[test]
fn another_application_protocol_is_reported_in_one_line() {
    // A squall server that speaks another protocol.
    let mut other = Command::new(env!("CARGO_BIN_EXE_squall"))
        .args(["bench", "idle", "--serve", "--connections", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut address = String::new();
    BufReader::new(other.stdout.take().expect("piped"))
        .read_line(&mut address)
        .expect("an address");
    let line = failure(&["perf", "client", address.trim(), "-k", "-n", "1K"]);
    assert!(
        line.contains("does not support the perf protocol") && line.contains("squall perf server"),
        "{line}"
    );
    drop(other.stdin.take());
    assert!(other.wait().expect("the process exits").success());
}

#[test]
fn a_file_that_is_not_a_certificate_is_reported_in_one_line() {
    let file = std::env::temp_dir().join(format!("squall-perf-{}.pem", std::process::id()));
    std::fs::write(&file, "not a certificate").expect("a file");
    let name = file.to_str().expect("text");
    let line = failure(&["perf", "server", "--cert", name, "--key", name]);
    assert!(line.contains(name) && line.contains("PEM"), "{line}");
    let line = failure(&["perf", "client", "127.0.0.1:1", "--cacert", name]);
    assert!(line.contains(name) && line.contains("PEM"), "{line}");
    std::fs::remove_file(&file).expect("the file exists");
}

#[test]
fn qlogs_are_complete_when_the_program_ends() {
    let folder = std::env::temp_dir().join(format!("squall-perf-qlog-{}", std::process::id()));
    for (mode, both_ends) in [
        (&["--handshakes=full", "-t", "0.05"][..], 4),
        (&["--requests", "-t", "0.05"], 2),
        (&["-n", "100k", "-c", "3"], 6),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_squall"))
            .args(["perf", "--only", "quic", "--rounds", "1"])
            .args(mode)
            .env("QLOGDIR", &folder)
            .output()
            .expect("the binary runs");
        assert!(output.status.success(), "{mode:?}");
        let files: Vec<_> = std::fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| entry.expect("a file").path())
            .collect();
        assert!(files.len() >= both_ends, "{mode:?}: {files:?}");
        for path in files {
            let log = std::fs::read_to_string(&path).expect("text");
            assert!(log.starts_with('\u{1e}') && log.ends_with('\n'), "{path:?}");
            assert!(log.contains("quic:connection_closed"), "{path:?}");
        }
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}

#[test]
fn with_json_a_failure_is_an_object_too() {
    for args in [
        &["perf", "--in-flight", "3", "--json"][..],
        &["perf", "client", "127.0.0.1:0:0", "--json"],
        &["perf", "server", "--listen", "192.0.2.77:0", "--json"],
        &["bench", "protect", "--kernel", "abacus", "--json"],
    ] {
        let output = squall(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
        assert_eq!(report["schema"], 1, "{args:?}");
        // The same line as for people.
        let line = String::from_utf8(output.stderr).expect("text");
        let error = report["error"].as_str().expect("text");
        assert_eq!(line.trim_end(), format!("squall: {error}"), "{args:?}");
    }
}

#[test]
fn a_server_prints_connections_only_on_request() {
    for (args, lines) in [(&[][..], 0), (&["-v"], 2), (&["--verbose"], 2)] {
        let server = Server::with(args);
        for _ in 0..2 {
            let address = server.address();
            json(&["perf", "client", &address, "-k", "-n", "1K", "--json"]);
        }
        let (code, text) = server.interrupt();
        assert_eq!(code, Some(0));
        let reports = text.lines().filter(|line| line.contains("sent 1000 bytes"));
        // The summary adds both up.
        assert_eq!(reports.count(), lines, "{args:?}: {text}");
        assert!(text.contains("served 2 connection(s)"), "{text}");
    }
}

#[test]
fn the_help_lists_the_differences_from_iperf3() {
    for args in [&["perf", "--help"][..], &["perf", "client", "--help"]] {
        let output = squall(args);
        let text = String::from_utf8(output.stdout).expect("text");
        let text: Vec<&str> = text.split_whitespace().collect();
        let text = text.join(" ");
        assert!(
            text.contains("iperf3 has it the other way round: its -R is this"),
            "{text}"
        );
    }
}

/// Intervals follow each other without gaps and sum to `total`.
fn assert_intervals(intervals: &[&serde_json::Value], key: &str, total: u64) {
    assert!(intervals.len() >= 2, "{intervals:?}");
    let mut end = 0.0;
    for one in intervals {
        assert!(
            (number(&one["start_s"]) - end).abs() < 1e-9,
            "{intervals:?}"
        );
        end = number(&one["end_s"]);
        assert!(end > number(&one["start_s"]), "{one}");
    }
    let sum: u64 = intervals.iter().filter_map(|one| one[key].as_u64()).sum();
    assert_eq!(sum, total, "{intervals:?}");
}

#[test]
fn intervals_sum_to_the_total_in_json() {
    let server = Server::start();
    let address = server.address();
    let client = ["perf", "client", &address, "-k", "-i", "0.1", "--json"];
    for direction in ["--download", "--upload"] {
        let report = json(&[&client[..], &["-t", "0.7", direction]].concat());
        let intervals = report["intervals"].as_array().expect("a list");
        let intervals: Vec<_> = intervals.iter().collect();
        let bytes = report["bytes"].as_u64().expect("bytes");
        assert_intervals(&intervals, "bytes", bytes);
        assert_eq!(intervals[0]["direction"], direction[2..]);
        let rates = intervals.iter().map(|one| number(&one["gbit_per_s"]));
        assert!(rates.sum::<f64>() > 0.0, "{intervals:?}");
    }
    let report = json(&[&client[..], &["-t", "0.7", "--requests"]].concat());
    let intervals = report["intervals"].as_array().expect("a list");
    let intervals: Vec<_> = intervals.iter().collect();
    let count = report["rows"][0]["count"].as_u64().expect("a count");
    assert_intervals(&intervals, "count", count);
    assert_eq!(intervals[0]["workload"], "W3");
    // Over loopback each contender has its own intervals, in each round.
    let report = json(&[
        "perf",
        "-t",
        "1",
        "--rounds",
        "2",
        "--interval",
        "0.1",
        "--json",
    ]);
    let intervals = report["intervals"].as_array().expect("a list");
    for contender in ["quic", "tls_tcp", "tcp"] {
        let mut bytes = 0;
        for round in [0, 1] {
            let own = intervals
                .iter()
                .filter(|one| one["contender"] == contender && one["round"] == round);
            let own: Vec<_> = own.collect();
            let sum = own.iter().filter_map(|one| one["bytes"].as_u64()).sum();
            assert_intervals(&own, "bytes", sum);
            bytes += sum;
        }
        assert_eq!(report[contender]["bytes"], bytes, "{contender}");
    }
    // By default there are none.
    let report = json(&[
        "perf", "client", &address, "-k", "-n", "1K", "-i", "0", "--json",
    ]);
    assert!(report["intervals"].is_null());
}

#[test]
fn intervals_are_printed_as_lines_of_text() {
    let server = Server::start();
    let address = server.address();
    let args = ["perf", "client", &address, "-k", "-t", "0.7", "-i", "0.1"];
    let output = squall(&args);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    // Before the results, as intervals end.
    let first = text.lines().next().expect("a line");
    assert!(
        first.trim_start().starts_with("0.00-0.") && first.ends_with("Gbit/s  download"),
        "{text}"
    );
    assert_eq!(
        squall(&[&args[..], &["--csv"]].concat()).status.code(),
        Some(2)
    );
}

#[test]
fn loopback_is_of_the_requested_family() {
    for (family, address) in [("-4", "(127.0.0.1)"), ("-6", "(::1)")] {
        let output = squall(&["perf", family, "-n", "100K", "--rounds", "1"]);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.starts_with(&format!("loopback {address}")), "{text}");
        let brief = ["perf", family, "-t", "0.1", "--rounds", "1", "--json"];
        for work in ["--requests", "--handshakes=full"] {
            let report = json(&[&brief[..], &[work]].concat());
            let place = report["where_to"].as_str().expect("text");
            assert!(place.contains(address), "{place}");
        }
    }
}

#[test]
fn both_directions_run_at_the_same_time() {
    let server = Server::start();
    let address = server.address();
    let client = ["perf", "client", &address, "-k", "--bidir", "-s", "2"];
    let report = json(&[&client[..], &["-n", "300K", "--json"]].concat());
    for (key, bytes) in [
        ("bytes", 1_200_000),
        ("bytes_received", 600_000),
        ("bytes_sent", 600_000),
    ] {
        assert_eq!(report[key], bytes, "{key}");
    }
    assert_eq!(report["direction"], "bidir");
    // Intervals of both, one by one.
    let report = json(&[&client[..], &["-t", "0.7", "-i", "0.1", "--json"]].concat());
    let intervals = report["intervals"].as_array().expect("a list");
    for (direction, key) in [("download", "bytes_received"), ("upload", "bytes_sent")] {
        let own = intervals.iter().filter(|one| one["direction"] == direction);
        let bytes = report[key].as_u64().expect("bytes");
        assert!(bytes > 0);
        assert_intervals(&own.collect::<Vec<_>>(), "bytes", bytes);
    }
    let output = squall(&[&client[..], &["-n", "1K"]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.starts_with("received 2000 bytes") && text.contains("sent 2000 bytes"),
        "{text}"
    );
    // Over loopback, with the controls.
    let local = ["perf", "--bidir", "-n", "200K", "-s", "3", "--rounds", "1"];
    let report = json(&[&local[..], &["--json"]].concat());
    for contender in ["quic", "tls_tcp", "tcp"] {
        let figures = &report[contender];
        assert_eq!(figures["bytes"], 1_200_000, "{contender}");
        let [down, up, all] = ["download_gbit_per_s", "upload_gbit_per_s", "gbit_per_s"]
            .map(|key| number(&figures[key]));
        assert!((down / up - 1.0).abs() < 1e-9 && (down + up - all).abs() < 1e-9);
        assert!(number(&figures["client_cpu_s_per_gb"]) > 0.0);
    }
    for end in ["server", "client"] {
        assert_sum(&report["stages"][end]);
    }
    let line = failure(&["perf", "--bidir", "--verify"]);
    assert!(line.contains("--bidir"), "{line}");
}
