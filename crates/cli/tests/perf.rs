//! The built binary, run as a user runs it.

mod common;

use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Server, assert_sum, failure, json, signal, squall};

fn assert_figures(report: &serde_json::Value, contender: &str) {
    for key in ["gbit_per_s", "server_cpu_s_per_gb", "client_cpu_s_per_gb"] {
        let value = report[contender][key].as_f64();
        assert!(value.is_some_and(|value| value > 0.0), "{contender} {key}");
    }
}

#[test]
fn the_controls_can_be_measured_alone() {
    let report = json(&[
        "perf", "--only", "tcp", "--only", "tls-tcp", "-t", "0.5", "--rounds", "1", "--json",
    ]);
    assert_figures(&report, "tcp");
    assert_figures(&report, "tls_tcp");
    assert!(report["tls_tcp_ratio_to_tcp"].is_f64());
    for key in ["quic", "ratio_to_tcp", "ratio_to_tls_tcp", "stages"] {
        assert!(report[key].is_null(), "{key}");
    }
}

#[test]
fn all_contenders_report_figures_ratios_and_stages_that_sum_to_the_thread() {
    let report = json(&["perf", "-n", "2M", "-s", "2", "--rounds", "2", "--json"]);
    for contender in ["quic", "tls_tcp", "tcp"] {
        assert_figures(&report, contender);
        // Two rounds of two streams of two megabytes.
        assert_eq!(report[contender]["bytes"], 8_000_000, "{contender}");
    }
    assert!(report["ratio_to_tcp"].is_f64() && report["ratio_to_tls_tcp"].is_f64());
    for end in ["server", "client"] {
        let rows = report["stages"][end]["rows"].as_array().expect("rows");
        let names: Vec<&str> = rows
            .iter()
            .filter_map(|row| row["stage"].as_str())
            .collect();
        assert_eq!(
            names,
            [
                "UDP send",
                "UDP receive",
                "AEAD",
                "header protection",
                "packet building",
                "frame parsing",
                "ACK and loss",
                "handshake",
                "streams and copies",
                "timers",
                "application",
                "tasks and wake-ups",
                "waiting and waking",
                "unattributed"
            ]
        );
        assert_sum(&report["stages"][end]);
    }
}

#[test]
fn a_timed_measurement_ends_on_time() {
    let begin = std::time::Instant::now();
    let report = json(&["perf", "-t", "0.4", "--rounds", "2", "--json"]);
    assert!(begin.elapsed().as_secs() < 20);
    for contender in ["quic", "tls_tcp", "tcp"] {
        let seconds = report[contender]["seconds"].as_f64().expect("seconds");
        assert!((0.4..4.0).contains(&seconds), "{contender}: {seconds}");
    }
}

#[test]
fn digests_are_equal_at_both_ends() {
    let report = json(&["perf", "--verify", "-n", "1000003", "-s", "3", "--json"]);
    for contender in ["quic", "tls_tcp", "tcp"] {
        let result = &report[contender];
        assert_eq!(result["equal"], true, "{contender}");
        assert_eq!(result["bytes"], 3_000_009, "{contender}");
        assert_eq!(result["server_sha256"], result["client_sha256"]);
        // All send the same pattern, so all have the same digest.
        assert_eq!(result["server_sha256"], report["tcp"]["server_sha256"]);
    }
}

#[test]
fn the_table_is_printed_as_text() {
    let output = squall(&["perf", "-n", "1M", "--rounds", "1"]);
    let text = String::from_utf8(output.stdout).expect("text");
    for part in [
        "Gbit/s",
        "quic",
        "tls_tcp",
        "tcp",
        "QUIC by stage",
        "of which stamps",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_client_downloads_from_and_uploads_to_a_server() {
    let server = Server::start();
    let address = format!("127.0.0.1:{}", server.port);
    for direction in ["--download", "--upload"] {
        let report = json(&[
            "perf", "client", &address, "-k", "-n", "1M", "-c", "2", "-s", "2", direction, "--json",
        ]);
        assert_eq!(report["bytes"], 4_000_000, "{direction}");
    }
    let report = json(&["perf", "client", &address, "-k", "-t", "0.2", "--json"]);
    assert!(report["bytes"].as_u64().is_some_and(|bytes| bytes > 0));
}

#[test]
fn a_wrong_certificate_is_reported_in_one_line() {
    let server = Server::start();
    // Whatever this system trusts, it does not include a certificate that was just generated.
    let line = failure(&[
        "perf",
        "client",
        &format!("127.0.0.1:{}", server.port),
        "-n",
        "1K",
    ]);
    assert!(line.contains("-k"), "{line}");
}

#[test]
fn a_busy_port_is_reported_in_one_line() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let line = failure(&["perf", "server", "--listen", &address]);
    assert!(
        line.contains(&address) && line.contains("--listen"),
        "{line}"
    );
}

#[test]
fn an_unreachable_server_is_reported_in_one_line() {
    // Bound, but never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    let output = squall(&["perf", "client", &address, "-k", "-n", "1K"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    // Meanwhile it reports what it waits for.
    let text = String::from_utf8(output.stderr).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let (line, waiting) = lines.split_last().expect("lines");
    assert!(
        line.contains("no answer") && line.contains(&address),
        "{line}"
    );
    assert!(
        waiting.contains(&format!("squall: no answer from {address} for 2 s").as_str()),
        "{text}"
    );
}

#[test]
fn a_closed_port_is_reported_in_one_line() {
    // A socket connected to another one: the system refuses all other datagrams, and no other test
    // gets the port.
    let held = UdpSocket::bind("127.0.0.1:0").expect("a port");
    held.connect("127.0.0.1:9")
        .expect("a UDP socket can connect on loopback");
    let address = held.local_addr().expect("bound").to_string();
    for work in ["-n1K", "--requests", "--handshakes=full"] {
        let line = failure(&["perf", "client", &address, "-k", work]);
        assert!(
            line.contains(&format!("nothing listens on {address}")),
            "{line}"
        );
    }
}

/// The system reports that the port is closed, so there is no need to wait for the idle timeout.
#[test]
fn a_killed_server_is_detected_at_once() {
    for work in ["--download", "--upload", "--requests"] {
        let mut server = Server::start();
        let address = server.address();
        let client = Command::new(env!("CARGO_BIN_EXE_squall"))
            .args(["perf", "client", &address, "-k", "-t", "600", "-i", "0.1"])
            .args(["-J", work])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        // Whether or not it has connected by then, it notices that the server is gone.
        std::thread::sleep(Duration::from_millis(700));
        server.process.kill().expect("the server runs");
        server.process.wait().expect("the process exits");
        let output = client.wait_with_output().expect("the process exits");
        assert_eq!(output.status.code(), Some(1));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
        let error = report["error"].as_str().expect("text");
        assert!(error.contains("ICMP port unreachable"), "{work}: {error}");
        // Earlier measurements are not lost.
        let intervals = report["intervals"].as_array();
        assert!(
            error.contains("nothing listens") || intervals.is_some_and(|list| !list.is_empty()),
            "{report}"
        );
    }
}

/// A server that is only slow, or unreachable for a while, is waited for.
#[test]
fn a_silent_server_is_reported_until_the_idle_timeout() {
    let server = Server::start();
    let address = server.address();
    let client = Command::new(env!("CARGO_BIN_EXE_squall"))
        .args(["perf", "client", &address, "-k", "-t", "600"])
        .args(["--idle-timeout", "3"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    std::thread::sleep(Duration::from_millis(700));
    signal(&server.process, "STOP");
    let output = client.wait_with_output().expect("the process exits");
    signal(&server.process, "CONT");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).expect("text");
    let line = format!("from {address} for 2 s");
    assert!(text.contains(&line) && !text.contains("ICMP"), "{text}");
}

#[test]
fn addresses_are_of_the_requested_family() {
    let server = Server::start();
    let address = server.address();
    let brief = |args: &[&str]| {
        let all = [&["perf", "client", "-k", "-n", "1K", "--json"], args].concat();
        json(&all)
    };
    for args in [&["-4", &address][..], &["-B", "127.0.0.2", &address]] {
        assert_eq!(brief(args)["bytes"], 1_000, "{args:?}");
    }
    for (args, what) in [
        (&["-6", &address][..], "has no IPv6 address"),
        (&["-4", "[::1]:1"], "has no IPv4 address"),
        (&["-B", "::1", &address], "has no IPv6 address"),
        (&["-4", "-B", "::1", &address], "is not an IPv4 address"),
        // An address for documentation (RFC 5737): no machine has it.
        (&["-B", "192.0.2.254", &address], "192.0.2.254"),
    ] {
        let line = failure(&[&["perf", "client", "-k"], args].concat());
        assert!(line.contains(what), "{args:?}: {line}");
    }
    for args in [
        &["perf", "client", "-4", "-6", "x"][..],
        &["perf", "client", "-B", "localhost", "x"],
        &["perf", "server", "-4", "--listen", "127.0.0.1:0"],
        &["perf", "server", "-B", "127.0.0.1", "-l", "127.0.0.1:0"],
    ] {
        assert_eq!(squall(args).status.code(), Some(2), "{args:?}");
    }
    let line = failure(&["perf", "server", "-6", "-B", "127.0.0.1"]);
    assert!(line.contains("is not an IPv6 address"), "{line}");
}

#[test]
fn a_server_listens_on_the_given_address() {
    for (args, host) in [
        (&["-4", "-p", "0"][..], "0.0.0.0:"),
        (&["-p", "0", "-B", "127.0.0.2"], "127.0.0.2:"),
        (&["-p", "0", "-B", "::1"], "[::1]:"),
        (&["-p", "0", "-6"], "[::]:"),
    ] {
        let server = Server::anywhere(args);
        assert!(server.first.contains(host), "{args:?}: {}", server.first);
    }
    // An IPv6 socket also receives IPv4, so this one must refuse it.
    let server = Server::anywhere(&["-p", "0", "-6"]);
    let brief = |host: &str| squall(&["perf", "client", host, "-k", "-n", "1K"]);
    let six = brief(&format!("[::1]:{}", server.port));
    assert_eq!(six.status.code(), Some(0));
    let four = brief(&format!("127.0.0.1:{}", server.port));
    assert_eq!(four.status.code(), Some(1));
}

#[test]
fn wrong_arguments_end_with_code_2() {
    for args in [
        &["perf", "-n", "1T"][..],
        &["perf", "-n", "1M", "-t", "1"],
        &["perf", "--payload", "1199"],
        &["perf", "--only", "sctp"],
        &["perf", "client"],
        &["perf", "server", "--cert", "c.pem"],
    ] {
        assert_eq!(squall(args).status.code(), Some(2), "{args:?}");
    }
    // The message names the value and what is allowed.
    for (args, wrong, hint) in [
        (&["perf", "-c", "-1"][..], "-1", "from 1 to 100000"),
        (&["perf", "-n", "-1"], "-1", "10M"),
        (&["perf", "--payload", "9"], "9", "1200 to 65507"),
        (&["bench", "idle", "-t", "-2"], "-2", "seconds"),
        (&["perf", "server", "-p", "x"], "x", "0 to 65535"),
        (&["perf", "server", "--cpu", "-1"], "-1", "core numbers"),
        (&["perf", "server", "-l", "4433"], "4433", "[::]:4433"),
        (&["perf", "client", "-p", "0", "x"], "0", "1 to 65535"),
        (&["perf", "--plot", "cost.png"], "cost.png", ".svg"),
        (&["bench", "protect", "--plot", "cost"], "cost", ".svg"),
    ] {
        let output = squall(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = String::from_utf8(output.stderr).expect("text");
        let line = text.lines().next().expect("a line");
        assert!(line.contains(&format!("'{wrong}'")), "{line}");
        assert!(line.contains(hint), "{line}");
    }
}

/// What `openssl req -x509` makes unless told otherwise.
#[test]
fn a_ca_certificate_used_by_a_server_is_distinguished_from_an_untrusted_one() {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    let file = |end: &str| {
        std::env::temp_dir().join(format!("squall-perf-ca-{}-{end}", std::process::id()))
    };
    let (cert_file, key_file) = (file("cert.pem"), file("key.pem"));
    std::fs::write(&cert_file, certificate.pem()).expect("a file");
    std::fs::write(&key_file, key.serialize_pem()).expect("a file");
    let (cert, key) = (cert_file.to_str(), key_file.to_str());
    let (cert, key) = (cert.expect("text"), key.expect("text"));
    let server = Server::with(&["--cert", cert, "--key", key]);
    let line = failure(&["perf", "client", &server.address(), "--cacert", cert]);
    assert!(line.contains("CA:FALSE"), "{line}");
    for file in [&cert_file, &key_file] {
        std::fs::remove_file(file).expect("the file exists");
    }
}

/// A lost report is not a success.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_squall"))
        .args(["perf", "--only", "tcp", "-n", "1K", "--rounds", "1"])
        .stdout(full.expect("Linux has /dev/full"))
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr);
    assert!(line.contains("standard output"), "{line}");
}
