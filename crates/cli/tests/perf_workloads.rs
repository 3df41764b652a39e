//! Datagrams, viewers, requests by the clock, and connections that come and go.

mod common;

use common::{Server, assert_latency, contenders, failure, json, number, squall};

/// One round of a workload, as short as possible.
fn report(args: &[&str]) -> serde_json::Value {
    json(&[&["perf", "--rounds", "1", "-t", "0.4", "--json"], args].concat())
}

/// The contenders of a report's rows, with their workloads; all of them used CPU time.
fn busy_contenders(report: &serde_json::Value) -> Vec<(&str, &str)> {
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        assert!(number(&row["per_s"]) > 0.0, "{row}");
        assert!(number(&row["server_cpu"]) > 0.0 && number(&row["client_cpu"]) > 0.0);
    }
    contenders(report)
}

#[test]
fn datagrams_are_reported_with_cpu_and_loss() {
    for (args, workload, connections, size) in [
        (&["--datagrams"][..], "W7", 1, 1_100),
        (&["--datagrams=200", "-c", "5"], "W7", 5, 200),
        (&["--datagrams=300"], "datagrams", 1, 300),
    ] {
        let report = report(args);
        assert_eq!(busy_contenders(&report), [(workload, "squall")]);
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

#[test]
fn viewers_receive_segments_at_the_requested_rate() {
    for (args, workload, size) in [
        (&["--segments", "-c", "10"][..], "W5", 262_144),
        (&["--segments=16Ki", "-c", "3"], "W5t", 16_384),
        (
            &["--segments=100K", "--rate", "20M", "-c", "2"],
            "segments",
            100_000,
        ),
    ] {
        let report = report(args);
        let all = ["squall", "tls_tcp", "tcp"].map(|one| (workload, one));
        assert_eq!(busy_contenders(&report), all);
        for row in report["rows"].as_array().expect("rows") {
            assert_eq!(
                (&row["size"], &row["cpu_unit"]),
                (&size.into(), &"s/GB".into())
            );
            assert_latency(&row["latency_us"]);
            // At the rate, unless the machine is busy, and never much faster: the first requests of
            // all connections are spread over one interval.
            let (reached, target) = (number(&row["per_s"]), number(&row["target_per_s"]));
            assert!(reached < target * 1.1 + 20.0, "{row}");
            let gbit_per_s = reached * f64::from(size) * 8.0 / 1e9;
            assert!(
                (number(&row["gbit_per_s"]) - gbit_per_s).abs() < 1e-6,
                "{row}"
            );
        }
    }
    let line = failure(&["perf", "--segments", "--rate", "50%"]);
    assert!(line.contains("--rate 200M"), "{line}");
    let line = failure(&["perf", "--rate", "1M"]);
    assert!(line.contains("--segments"), "{line}");
}

#[test]
fn requests_run_in_a_closed_and_then_in_an_open_loop() {
    let report = report(&["--requests", "--open-loop", "-c", "20", "--in-flight", "1"]);
    let expected = ["squall", "tls_tcp", "tcp"].map(|one| ("W6", one));
    assert_eq!(busy_contenders(&report), [expected, expected].concat());
    let rows = report["rows"].as_array().expect("rows");
    for (closed, open) in rows[..3].iter().zip(&rows[3..]) {
        assert_eq!(
            (&closed["mode"], &open["mode"]),
            (&"closed".into(), &"open".into())
        );
        assert_eq!(closed["connections"], 20);
        // Half of what this contender itself reached.
        let ratio = number(&open["target_per_s"]) / number(&closed["per_s"]);
        assert!((ratio - 0.5).abs() < 1e-6, "{ratio}");
        assert_latency(&open["latency_us"]);
    }
    let controls = report["controls"].to_string();
    assert!(
        controls.contains("one event loop at each end"),
        "{controls}"
    );
    // A given rate needs no prior measurement.
    let report = self::report(&["--requests", "--rate", "300", "-c", "2", "--only", "quic"]);
    assert_eq!(busy_contenders(&report), [("requests", "squall")]);
    let row = &report["rows"][0];
    assert_eq!(row["target_per_s"], 300.0);
    assert!(number(&row["per_s"]) < 600.0, "{row}");
}

#[test]
fn a_client_sends_requests_to_a_server_in_an_open_loop() {
    let server = Server::start();
    let address = server.address();
    let client = ["perf", "client", &address, "-k", "-t", "0.3", "--json"];
    let report = json(&[&client[..], &["--requests", "--rate", "50%", "-c", "2"]].concat());
    let rows = report["rows"].as_array().expect("rows");
    let modes: Vec<_> = rows.iter().filter_map(|row| row["mode"].as_str()).collect();
    assert_eq!(modes, ["closed", "open"]);
    let ratio = number(&rows[1]["target_per_s"]) / number(&rows[0]["per_s"]);
    assert!((ratio - 0.5).abs() < 1e-6, "{ratio}");
    let report = json(&[&client[..], &["--segments", "-c", "4"]].concat());
    let row = &report["rows"][0];
    assert_eq!(
        (&row["workload"], &row["connections"]),
        (&"W5".into(), &4.into())
    );
    assert!(row["server_cpu"].is_null() && number(&row["client_cpu"]) > 0.0);
    assert_latency(&row["latency_us"]);
}

#[test]
fn short_lived_connections_are_measured() {
    let report = report(&["--churn"]);
    assert_eq!(
        busy_contenders(&report),
        [("W8", "squall"), ("W8", "tls_tcp")]
    );
    for row in report["rows"].as_array().expect("rows") {
        let figures = (&row["connections"], &row["size"], &row["cpu_unit"]);
        assert_eq!(
            figures,
            (&4.into(), &10_000.into(), &"us/connection".into())
        );
        assert_latency(&row["latency_us"]);
    }
    assert!(number(&report["rows"][0]["ratio_to_tls_tcp"]) > 0.0);
    let server = Server::start();
    let address = server.address();
    let client = ["perf", "client", &address, "-k", "-t", "0.3", "--json"];
    let report = json(&[&client[..], &["--churn=2", "--download-size", "1K"]].concat());
    assert_eq!(report["rows"][0]["workload"], "churn");
    // Each connection made the requested number of requests.
    let connections = report["rows"][0]["count"].as_u64().expect("a count");
    let (code, text) = server.interrupt();
    assert_eq!(code, Some(0));
    assert!(
        connections > 0 && text.contains(&format!(" {} stream(s)", 2 * connections)),
        "{text}"
    );
    let line = failure(&["perf", "--churn", "--only", "tcp"]);
    assert!(line.contains("plain TCP"), "{line}");
}

#[test]
fn bulk_data_is_named_by_its_shape_and_reports_the_bitrate_limit() {
    for (args, workload, connections, limit) in [
        (&["-c", "3"][..], "W5s", 3, None),
        (&["-c", "3", "-b", "1M"], "W5s", 3, Some(0.001)),
        (&["-b", "50M"], "W1r", 1, Some(0.05)),
        (&["-b", "50M", "--upload"], "W1", 1, Some(0.05)),
        (&[], "W1", 1, None),
    ] {
        let report = report(&[args, &["--only", "quic"]].concat());
        assert_eq!(report["workload"], workload, "{args:?}");
        assert_eq!(report["connections"], connections, "{args:?}");
        assert_eq!(report["gbit_limit"].as_f64(), limit, "{args:?}");
        let filled = number(&report["quic"]["datagrams_per_message"]);
        assert!(filled >= 1.0, "{args:?}: {filled}");
    }
}

#[test]
fn several_numbers_of_connections_are_interleaved() {
    let report = report(&[
        "--segments=16Ki",
        "-c",
        "1,8",
        "--only",
        "quic",
        "--only",
        "tcp",
    ]);
    let all = ["squall", "tcp", "squall", "tcp"].map(|one| ("W5t", one));
    assert_eq!(busy_contenders(&report), all);
    let rows = report["rows"].as_array().expect("rows");
    for (row, connections) in rows.iter().zip([1, 1, 8, 8]) {
        assert_eq!(row["connections"], connections);
        assert_eq!(row["ratio_to_fewest"].is_null(), connections == 1);
    }
    let sum = |row: &serde_json::Value| number(&row["server_cpu"]) + number(&row["client_cpu"]);
    let growth = sum(&rows[2]) / sum(&rows[0]);
    assert!(
        (number(&rows[2]["ratio_to_fewest"]) / growth - 1.0).abs() < 0.01,
        "{growth}"
    );
}

#[test]
fn bulk_data_on_several_numbers_of_connections_has_a_row_for_each() {
    let args = ["perf", "-c", "4,1", "-t", "0.6", "--rounds", "2"];
    let report = json(&[&args[..], &["-i", "0.1", "--json"]].concat());
    let rows = report["rows"].as_array().expect("rows");
    let contenders = ["squall", "tls_tcp", "tcp"];
    let expected: Vec<_> = [("W5s", 4), ("W1", 1)]
        .into_iter()
        .flat_map(|(workload, connections)| contenders.map(|one| (workload, one, connections)))
        .collect();
    assert_eq!(rows.len(), expected.len());
    for (row, (workload, contender, connections)) in rows.iter().zip(expected) {
        assert_eq!(row["workload"], workload);
        assert_eq!(row["contender"], contender);
        assert_eq!(row["connections"], connections);
        assert!(number(&row["gbit_per_s"]) > 0.0 && number(&row["server_cpu"]) > 0.0);
        assert_eq!(row["rounds_cpu_s_per_gb"].as_array().map(Vec::len), Some(2));
        assert_eq!(row["stages"].is_object(), contender == "squall");
        assert_eq!(row["ratio_to_fewest"].is_f64(), connections == 4, "{row}");
        // Each turn has its own intervals, which sum to it.
        let intervals = report["intervals"].as_array().expect("a list");
        let own = intervals.iter().filter(|one| {
            let name = one["contender"]
                .as_str()
                .map(|name| name.replace("quic", "squall"));
            name.as_deref() == Some(contender) && one["connections"] == connections
        });
        let bytes: u64 = own.filter_map(|one| one["bytes"].as_u64()).sum();
        assert_eq!(row["bytes"], bytes, "{row}");
    }
    let output = squall(&["perf", "-c", "1,3", "-n", "1M", "--rounds", "1"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let words: Vec<_> = text.split_whitespace().collect();
    let words = words.join(" ");
    for part in [
        ", 1 and 3 connection(s)",
        "quic -c 3: ",
        "tcp -c 3: ",
        "QUIC by stage, -c 3",
    ] {
        assert!(words.contains(part), "{part}: {text}");
    }
}

#[test]
fn results_for_a_single_number_of_connections_reject_several() {
    for args in [
        &["perf", "-c", "1,8", "--verify"][..],
        &["perf", "-c", "1,8", "--ablation"],
        &["perf", "client", "127.0.0.1:1", "-c", "1,8"],
    ] {
        let line = failure(args);
        assert!(line.contains("pass one with -c"), "{args:?}: {line}");
    }
}
