//! `squall bench protect` and `squall doctor`, run as a user runs them.

use std::process::{Command, Output};

use serde_json::Value;

fn squall(wish: Option<&str>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    // The tests choose the kernel, not the environment.
    command.env_remove("SQUALL_CPU").args(args);
    if let Some(wish) = wish {
        command.env("SQUALL_CPU", wish);
    }
    command.output().expect("the binary runs")
}

fn json(wish: Option<&str>, args: &[&str]) -> Value {
    let output = squall(wish, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    // Only the object on a pipe: no progress line.
    assert!(stderr.is_empty(), "{stderr}");
    let value: Value = serde_json::from_slice(&output.stdout).expect("exactly one JSON object");
    assert_eq!(value["schema"], 1, "{args:?}");
    assert_no_null(&value);
    value
}

/// One line on standard error, nothing on standard output, exit code 1; returns the line.
fn failure(args: &[&str]) -> String {
    let output = squall(None, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    // People get only the line; programs get an object that says the same.
    assert_eq!(output.stdout.is_empty(), !args.contains(&"--json"));
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

fn assert_no_null(value: &Value) {
    match value {
        Value::Null => panic!("null"),
        Value::Array(values) => values.iter().for_each(assert_no_null),
        Value::Object(fields) => fields.values().for_each(assert_no_null),
        _ => {}
    }
}

fn rows(report: &Value) -> &Vec<Value> {
    report["rows"].as_array().expect("rows")
}

fn number(row: &Value, key: &str) -> f64 {
    row[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} in {row}"))
}

fn texts<'a>(rows: &'a [Value], key: &str) -> Vec<&'a str> {
    rows.iter().filter_map(|row| row[key].as_str()).collect()
}

#[test]
fn the_table_has_a_row_for_every_suite_direction_batch_and_size() {
    let report = json(
        None,
        &[
            "bench",
            "protect",
            "--suite",
            "AES-256-gcm,chacha20",
            "--batch",
            "8,1",
            "--sizes",
            "64,4,1000",
            "--rounds",
            "20",
            "--json",
        ],
    );
    assert_eq!(report["mode"], "table");
    assert_eq!(report["setup"]["rounds"], 20);
    let rows = rows(&report);
    assert_eq!(rows.len(), 2 * 2 * 2 * 3);
    for row in rows {
        for key in ["ns", "ns_with_hp", "mbit_per_s", "mbit_per_s_with_hp"] {
            assert!(number(row, key) > 0.0, "{key} in {row}");
        }
        let size = number(row, "size");
        assert!((number(row, "mbit_per_s") - size * 8e3 / number(row, "ns")).abs() < 1.0);
        let overhead = number(row, "overhead_percent");
        let by_figures = (number(row, "ns_with_hp") / number(row, "ns") - 1.0) * 100.0;
        assert!((overhead - by_figures).abs() < 1e-6, "{row}");
        assert!(number(row, "overhead_low_percent") <= overhead);
        assert!(overhead <= number(row, "overhead_high_percent"));
        assert!(number(row, "pairs_used") >= 1.0 && row["pairs_dropped"].is_u64());
        assert!(row["quiet"].is_boolean() && row["sure"].is_boolean());
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            let clock = number(row, "core_ghz");
            let cycles = number(row, "ns_with_hp") * clock / size;
            assert!((number(row, "cycles_per_byte_with_hp") - cycles).abs() < 1e-6);
        }
        // There are limits for calls of eight packets, and of one.
        let limit = match (row["batch"].as_u64(), row["size"].as_u64()) {
            (Some(8), Some(64)) => Some(10.0),
            (Some(8), Some(1000)) => Some(2.0),
            (Some(1), Some(1000)) => Some(4.0),
            _ => None,
        };
        assert_eq!(row["limit_percent"].as_f64(), limit, "{row}");
        let verdict = match limit {
            None => "no limit",
            Some(limit) if overhead <= limit => "within",
            Some(_) => "above",
        };
        assert_eq!(row["verdict"], verdict);
    }
    let suites = texts(rows, "suite");
    assert!(suites[..12].iter().all(|suite| *suite == "AES-256-GCM"));
    assert!(
        suites[12..]
            .iter()
            .all(|suite| *suite == "ChaCha20-Poly1305")
    );
    assert_eq!(
        texts(&rows[..12], "direction")[..7],
        ["seal", "seal", "seal", "seal", "seal", "seal", "open"]
    );
    assert_eq!(rows[0]["batch"], 1);
    assert_eq!(rows[0]["size"], 4);
}

#[test]
fn the_tables_are_printed_as_text() {
    let output = squall(
        Some("portable"),
        &[
            "bench",
            "protect",
            "--direction",
            "open",
            "--sizes",
            "16,256",
            "--rounds",
            "3",
        ],
    );
    let text = String::from_utf8(output.stdout).expect("text");
    for part in [
        "AES-128-GCM, open, kernel portable, 1 packet per call",
        "AES-128-GCM, open, kernel portable, 8 packets per call",
        "AES-128-GCM, open, kernel portable, 32 packets per call",
        "ns per packet",
        "cycles per byte",
        " 5 %",
        "bytes: payload.",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("seal"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 115, "{line}");
    }
}

#[test]
fn the_plot_is_an_svg_with_two_lines_for_every_batch_and_direction() {
    let file = std::env::temp_dir().join(format!("squall-bench-{}.svg", std::process::id()));
    let name = file.to_str().expect("text");
    json(
        None,
        &[
            "bench",
            "protect",
            "--batch",
            "1,8",
            "--sizes",
            "4,64,1200",
            "--rounds",
            "3",
            "--plot",
            name,
            "--json",
        ],
    );
    let text = std::fs::read_to_string(&file).expect("written");
    std::fs::remove_file(&file).expect("removed");
    let svg = roxmltree::Document::parse(&text).expect("XML");
    assert!(
        svg.root_element()
            .has_tag_name(("http://www.w3.org/2000/svg", "svg"))
    );
    let count = |name: &str| {
        svg.descendants()
            .filter(|node| node.tag_name().name() == name)
            .count()
    };
    assert_eq!(count("polyline"), 2 * 2 * 2);
    // A dot for each figure, and one for each batch in the legend.
    assert_eq!(count("circle"), 2 * 2 * 3 + 2);
    let words: Vec<&str> = svg.descendants().filter_map(|node| node.text()).collect();
    for word in [
        "bytes of payload",
        "1200",
        "8 per call",
        "with header protection",
    ] {
        assert!(words.contains(&word), "{word}: {words:?}");
    }
}

#[test]
fn the_ablation_compares_each_variant_with_the_aead_alone() {
    let args = [
        "bench",
        "protect",
        "--ablation",
        "--sizes",
        "64",
        "--rounds",
        "10",
        "--json",
    ];
    let report = json(Some("portable"), &args);
    assert_eq!(report["mode"], "ablation");
    for direction in ["seal", "open"] {
        let own: Vec<&Value> = rows(&report)
            .iter()
            .filter(|row| row["direction"] == direction)
            .collect();
        for way in [
            "aead_alone",
            "one_by_one",
            "batched_8",
            "batched_32",
            "shipped",
        ] {
            let row = own
                .iter()
                .find(|row| row["way"] == way)
                .unwrap_or_else(|| panic!("{way}"));
            assert_eq!(row["batch"], 32);
            assert!(number(row, "ns") > 0.0 && number(row, "rounds_used") >= 1.0);
            let alone = number(row, "ns") - number(row, "overhead_ns");
            assert!((alone - number(own[0], "ns")).abs() < 1e-6);
        }
        assert_eq!(number(own[0], "overhead_percent"), 0.0);
    }
}

#[test]
fn vector_aes_kernels_have_the_fused_variants() {
    let doctor = json(None, &["doctor", "--json"]);
    let kernels = doctor["kernels"].as_array().expect("kernels");
    for kernel in kernels {
        let name = kernel["name"].as_str().expect("a name");
        if kernel["available"] != true || !name.starts_with("vaes") {
            continue;
        }
        let args = [
            "bench",
            "protect",
            "--ablation",
            "--kernel",
            name,
            "--sizes",
            "16",
            "--rounds",
            "3",
        ];
        let report = json(None, &[&args[..], &["--json"]].concat());
        for way in ["fused", "fused_and_batched"] {
            let own = rows(&report).iter().filter(|row| row["way"] == way);
            assert_eq!(own.count(), 2, "{way}, seal and open, {name}");
        }
        assert_eq!(report["left_out"], serde_json::json!([]));
    }
}

#[test]
fn a_variant_that_a_row_lacks_is_named() {
    let args = [
        "bench",
        "protect",
        "--ablation",
        "--batch",
        "8",
        "--sizes",
        "4",
        "--rounds",
        "3",
    ];
    let report = json(
        Some("portable"),
        &[&args[..], &["--direction", "seal", "--json"]].concat(),
    );
    let left_out = report["left_out"].as_array().expect("a list");
    assert!(
        texts(left_out, "way").contains(&"batched_32"),
        "{left_out:?}"
    );
    assert!(!texts(rows(&report), "way").contains(&"batched_32"));
    let text = String::from_utf8(squall(Some("portable"), &args).stdout).expect("text");
    assert!(text.contains("left out: batched over 32"), "{text}");
}

#[test]
fn each_thread_is_reported_as_a_share_of_a_single_thread() {
    let report = json(
        None,
        &[
            "bench",
            "protect",
            "--threads",
            "3",
            "--direction",
            "seal",
            "--rounds",
            "2",
            "--json",
        ],
    );
    assert_eq!(report["mode"], "threads");
    let rows = rows(&report);
    let threads: Vec<_> = rows
        .iter()
        .filter_map(|row| row["threads"].as_u64())
        .collect();
    assert_eq!(threads, [1, 3]);
    assert_eq!(number(&rows[0], "share_percent"), 100.0);
    for row in rows {
        let total = number(row, "mbit_per_s_per_thread") * number(row, "threads");
        assert!((total / number(row, "mbit_per_s_total") - 1.0).abs() < 1e-9);
        assert!(number(row, "share_low_percent") <= number(row, "share_high_percent"));
        assert!(row["pinned"].is_boolean());
    }
}

#[test]
fn a_mixed_load_is_measured_for_every_kernel_that_supports_the_suite() {
    let doctor = json(None, &["doctor", "--json"]);
    let able: Vec<&str> = doctor["kernels"]
        .as_array()
        .expect("kernels")
        .iter()
        .filter(|kernel| {
            kernel["suites"]
                .as_array()
                .is_some_and(|suites| suites.contains(&"AES-128-GCM".into()))
        })
        .filter_map(|kernel| kernel["name"].as_str())
        .collect();
    let report = json(
        None,
        &[
            "bench",
            "protect",
            "--mixed",
            "0.2",
            "--direction",
            "seal",
            "--rounds",
            "1",
            "--json",
        ],
    );
    assert_eq!(report["mode"], "mixed");
    assert!(number(&report, "text_mb_per_s") > 0.0 && number(&report, "cores") >= 1.0);
    assert_eq!(texts(rows(&report), "kernel"), able);
    for row in rows(&report) {
        assert!((number(row, "share") - 0.2).abs() < 0.05, "{row}");
        assert!(number(row, "ns") > 0.0 && number(row, "text_mb_per_s") > 0.0);
        assert!(row["slowdown_percent"].is_f64());
    }
}

#[test]
fn an_unsuitable_kernel_is_reported_in_one_line() {
    let line = failure(&["bench", "protect", "--kernel", "turbo"]);
    assert!(
        line.contains("turbo") && line.contains("portable"),
        "{line}"
    );
    // ChaCha20-Poly1305 only, or not on this CPU at all.
    let line = failure(&["bench", "protect", "--kernel", "avx2", "--suite", "aes128"]);
    assert!(
        line.contains("available for AES-128-GCM: portable"),
        "{line}"
    );
}

#[test]
fn conflicting_options_are_rejected() {
    let line = failure(&["bench", "protect", "--mixed", "0.1", "--sizes", "64,1450"]);
    assert!(line.contains("--sizes"), "{line}");
    let line = failure(&[
        "bench",
        "protect",
        "--plot",
        "/nonexistent/folder/a.svg",
        "--json",
    ]);
    assert!(line.contains("/nonexistent/folder/a.svg"), "{line}");
    for args in [
        &["--ablation", "--threads", "2"][..],
        &["--ablation", "--plot", "a.svg"],
        &["--threads", "2", "--mixed", "0.1"],
        &["--mixed", "1"],
        &["--threads", "0"],
        &["--batch", "65"],
        &["--sizes", "0"],
        &["--suite", "aes512"],
    ] {
        let args = [&["bench", "protect"], args].concat();
        assert_eq!(squall(None, &args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn squall_cpu_chooses_the_kernel_and_a_wrong_value_is_reported() {
    let quick = [
        "bench",
        "protect",
        "--direction",
        "seal",
        "--sizes",
        "16",
        "--batch",
        "1",
        "--rounds",
        "2",
        "--json",
    ];
    let report = json(Some("portable"), &quick);
    assert_eq!(rows(&report)[0]["kernel"], "portable");
    let output = squall(Some("turbo"), &quick);
    assert!(output.status.success());
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.contains("SQUALL_CPU is ignored") && stderr.contains("turbo"),
        "{stderr}"
    );
}

#[test]
fn the_doctor_reports_the_network_and_the_cost_of_each_problem() {
    let report = json(None, &["doctor", "--json"]);
    assert!(
        report["cores"]["usable"]
            .as_u64()
            .is_some_and(|cores| cores > 0)
    );
    let network = &report["network"];
    for section in ["offload", "buffers", "qdisc", "drops"] {
        let worth = network[section]["worth"].as_str();
        assert!(worth.is_some_and(|worth| !worth.is_empty()), "{section}");
    }
    let segments = network["offload"]["gso_segments"]
        .as_u64()
        .expect("a number");
    assert_eq!(
        network["offload"]["mend"].is_string(),
        segments <= 1 || network["offload"]["gro"] == false
    );
    let buffer = |key: &str| network["buffers"][key].as_u64().expect("bytes");
    let small = [
        ("receive_granted", "receive_wanted"),
        ("send_granted", "send_wanted"),
    ];
    let small = small
        .iter()
        .filter(|(granted, wanted)| buffer(granted) < buffer(wanted));
    let mends = network["buffers"]["mend"].as_array().expect("a list");
    assert_eq!(mends.len(), small.count());
    let output = squall(None, &["doctor"]);
    let text = String::from_utf8(output.stdout).expect("text");
    for part in [
        "UDP in bundles",
        "GSO",
        "GRO",
        "Socket buffers",
        "Queueing discipline",
        "UDP drops",
        "Cores",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_doctor_reports_available_and_chosen_kernels() {
    let report = json(None, &["doctor", "--json"]);
    assert!(report["cpu"]["architecture"].is_string() && report["cpu"]["cores"].is_u64());
    let choices = report["choices"].as_array().expect("choices");
    assert_eq!(
        texts(choices, "suite"),
        ["AES-128-GCM", "AES-256-GCM", "ChaCha20-Poly1305"]
    );
    assert!(
        texts(choices, "reason")
            .iter()
            .all(|reason| !reason.is_empty())
    );
    assert_eq!(report["squall_cpu"]["followed"], false);

    let report = json(Some("portable"), &["doctor", "--json"]);
    assert_eq!(report["squall_cpu"]["followed"], true);
    let choices = report["choices"].as_array().expect("choices");
    assert_eq!(texts(choices, "kernel"), ["portable"; 3]);

    // Reported in the report itself, not next to it.
    let output = squall(Some("turbo"), &["doctor"]);
    assert!(output.status.success() && output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("there is no kernel \"turbo\""), "{text}");
    for section in [
        "CPU",
        "Kernels of packet protection",
        "Chosen",
        "SQUALL_CPU=turbo",
    ] {
        assert!(text.contains(section), "{section}: {text}");
    }
}

#[test]
fn full_packets_are_compared_with_blocks_of_16_kib() {
    let report = json(
        None,
        &[
            "bench",
            "protect",
            "--suite",
            "aes128,chacha20",
            "--direction",
            "open",
            "--batch",
            "8",
            "--sizes",
            "1000,1450",
            "--rounds",
            "20",
            "--json",
        ],
    );
    let shares: Vec<_> = (rows(&report).iter())
        .map(|row| row["share_of_16_kib_blocks"].as_f64())
        .collect();
    let [None, Some(share), None, None] = shares[..] else {
        panic!("only AES-GCM at 1,450 bytes has one: {shares:?}");
    };
    assert!(share > 0.0, "{share}");
}
