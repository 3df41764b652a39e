//! Mixed cipher suites, servers that answer with Retry, and connections with many streams.

mod common;

use common::{Server, failure, json, squall};

#[test]
fn a_server_with_retry_answers_every_attempt_with_a_retry() {
    for (args, retries) in [(&[][..], 0), (&["--retry"], 3)] {
        let server = Server::with(args);
        let address = server.address();
        let report = json(&[
            "perf", "client", &address, "-k", "-c", "3", "-n", "1K", "--json",
        ]);
        assert_eq!(report["bytes"], 3_000);
        let (code, summary) = server.interrupt();
        assert_eq!(code, Some(0));
        // A ClientHello of two datagrams gets two.
        let summary: Vec<&str> = summary.split_whitespace().collect();
        let said = summary
            .windows(3)
            .find(|three| three[1..] == ["Retry", "packet(s)"]);
        let said = said.map_or(0, |three| three[0].parse().expect("a number"));
        assert!(retries <= said && said <= 3 * retries, "{summary:?}");
    }
}

#[test]
fn suites_are_mixed_by_connection_and_the_report_names_the_mix() {
    const MIX: &str = "aes128=90,chacha20=10";
    const NAMES: &str = "TLS_AES_128_GCM_SHA256=90,TLS_CHACHA20_POLY1305_SHA256=10";
    let report = json(&[
        "perf",
        "--requests",
        "-c",
        "4",
        "--in-flight",
        "4",
        "-t",
        "0.2",
        "--rounds",
        "1",
        "--suite",
        MIX,
        "--json",
    ]);
    let options = report["options"].as_str().expect("options");
    assert!(options.contains(NAMES), "{options}");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(3));
    let report = json(&[
        "perf", "-n", "100K", "-c", "3", "--rounds", "1", "--suite", MIX, "--json",
    ]);
    assert_eq!(report["setup"]["cipher_suite"], NAMES);
    let report = json(&[
        "perf",
        "--handshakes=full",
        "-t",
        "0.2",
        "--rounds",
        "1",
        "--suite",
        MIX,
        "--json",
    ]);
    assert!(
        report["options"]
            .as_str()
            .is_some_and(|text| text.contains(NAMES))
    );
}

#[test]
fn the_server_sees_every_suite_of_a_mix() {
    // A server of one suite refuses the connections that offer another one.
    let server = Server::with(&["--suite", "chacha20"]);
    let address = server.address();
    let mixed = [
        "aes128=1,aes256=1",
        "aes128=3,chacha20=1",
        "chacha20=3,aes256=1",
    ];
    for mix in mixed {
        let line = failure(&[
            "perf", "client", &address, "-k", "-c", "4", "-n", "1K", "--suite", mix,
        ]);
        assert!(line.contains("--suite"), "{mix}: {line}");
    }
    let all = Server::start();
    let address = all.address();
    for mix in mixed {
        let report = json(&[
            "perf", "client", &address, "-k", "-c", "4", "-n", "1K", "--suite", mix, "--json",
        ]);
        assert_eq!(report["bytes"], 4_000, "{mix}");
    }
}

#[test]
fn an_invalid_mix_is_rejected_in_one_line() {
    const MIX: &str = "aes128=1,chacha20=1";
    for (args, word) in [
        (&["perf", "--suite", MIX][..], "1 connection"),
        (&["perf", "--http", "--suite", MIX], "one cipher suite"),
        (
            &["perf", "--handshakes", "--suite", MIX],
            "--handshakes=full",
        ),
        (
            &[
                "perf",
                "client",
                "127.0.0.1",
                "--handshakes",
                "--suite",
                MIX,
            ],
            "--handshakes=full",
        ),
        (&["perf", "server", "--suite", MIX], "client"),
    ] {
        let line = failure(args);
        assert!(line.contains(word), "{args:?}: {line}");
    }
    let output = squall(&["perf", "-c", "4", "--suite", "aes128=90,aes512=10"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"aes512\" is no cipher suite"));
}

#[test]
fn a_connection_carries_a_hundred_thousand_streams_over_quic() {
    let args = ["perf", "-s", "100000", "-n", "100", "--rounds", "1"];
    let report = json(&[&args[..], &["--only", "quic", "--json"]].concat());
    assert_eq!(report["quic"]["bytes"], 10_000_000);
    // A thread at each end for every TCP connection is too much.
    let line = failure(&args);
    assert!(line.contains("--only quic"), "{line}");
}

#[test]
fn an_ablation_reports_the_gain_of_each_technique() {
    let report = json(&["perf", "--ablation", "-n", "20M", "--rounds", "1", "--json"]);
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows
        .iter()
        .filter_map(|row| row["without"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "nothing",
            "gso",
            "gro",
            "pacing",
            "ack_frequency",
            "runs",
            "sealing_in_place",
            "fused_header_protection",
            "workers"
        ]
    );
    assert_eq!(rows[0]["ratio"], 1.0);
    for row in rows {
        let positive = |key: &str| row[key].as_f64().is_some_and(|figure| figure > 0.0);
        assert!(positive("cpu_s_per_gb") && positive("ratio"), "{row}");
    }
    // Single datagrams cost several times as much; a busy machine does not hide that.
    assert!(
        rows[1]["ratio"].as_f64().is_some_and(|ratio| ratio > 1.2),
        "{}",
        rows[1]
    );
}

#[test]
fn a_bitrate_limits_each_stream_in_every_contender() {
    // Two streams of 40 Mbit/s for a second.
    let report = json(&[
        "perf", "-s", "2", "-b", "40M", "-t", "1", "--rounds", "1", "--json",
    ]);
    assert_eq!(report["setup"]["bits_per_second_per_stream"], 40_000_000);
    for contender in ["quic", "tls_tcp", "tcp"] {
        let rate = report[contender]["gbit_per_s"].as_f64();
        let rate = rate.unwrap_or_else(|| panic!("{contender}: {report}"));
        // Room for one more piece of 16 KiB in the second, and for a busy machine.
        assert!((0.02..0.09).contains(&rate), "{contender}: {rate} Gbit/s");
    }
    let output = squall(&["perf", "-b", "40M", "-t", "0.3", "--rounds", "1", "--csv"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let names: Vec<_> = (text.lines().skip(1))
        .map(|line| line.split(',').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(names, ["W1r squall", "W1r tls_tcp", "W1r tcp"]);
    assert!(
        text.lines().skip(1).all(|line| line.ends_with(",0.0400")),
        "{text}"
    );
    let server = Server::with(&[]);
    let address = server.address();
    let up = json(&[
        "perf", "client", &address, "-k", "-b", "40M", "-n", "2M", "--upload", "--json",
    ]);
    assert_eq!(up["bytes"], 2_000_000);
    // 0.4 s, of which the last piece needs no wait.
    let seconds = up["seconds"].as_f64().expect("a time");
    assert!(seconds > 0.3, "{seconds} s");
    let said = failure(&["perf", "client", &address, "-k", "-b", "40M", "-n", "2M"]);
    assert!(said.contains("add --upload"), "{said}");
}
