//! The log of a connection: every record is JSON, and the events are those of
//! draft-ietf-quic-qlog-quic-events.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use squall_sim::{Plan, Setup, Simulation};
use squall_wire::{Side, VERSION_1, VERSION_2};

/// The output of a log.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .expect("no thread panics while it holds the lock")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn records(&self) -> Vec<Value> {
        let text = String::from_utf8(
            self.0
                .lock()
                .expect("no thread panics while it holds the lock")
                .clone(),
        );
        let text = text.expect("JSON is UTF-8");
        // RFC 7464: a separator before each record, a line end after it.
        assert!(text.starts_with('\u{1e}') && text.ends_with('\n'));
        text.split('\u{1e}')
            .skip(1)
            .map(|record| serde_json::from_str(record).expect("a record is JSON"))
            .collect()
    }
}

#[test]
fn the_log_covers_a_connections_life() {
    let mut setup = Setup::new(1);
    for faults in &mut setup.faults {
        faults.loss = 0.03;
        faults.duplication = 0.03;
        faults.corruption = 0.02;
    }
    let mut sim = Simulation::new(setup, Plan::one_stream(300_000));
    let sink = Sink::default();
    let now = sim.pair.now();
    let client = sim
        .pair
        .connection(Side::Client)
        .expect("the client has a connection");
    client.set_qlog(now, Box::new(sink.clone()));
    sim.run_until(
        std::time::Duration::from_secs(60),
        "all bytes",
        Simulation::is_complete,
    )
    .expect("the transfer completes");
    sim.close(Side::Client, 7, b"done")
        .expect("the connection closes");

    let mut records = sink.records().into_iter();
    let header = records.next().expect("a header");
    assert_eq!(
        header["file_schema"],
        "urn:ietf:params:qlog:file:sequential"
    );
    assert_eq!(header["trace"]["vantage_point"]["type"], "client");
    let mut counts = BTreeMap::<String, u64>::new();
    let mut last = 0.0;
    for event in records {
        let time = event["time"].as_f64().expect("a time");
        assert!(time >= last, "times do not decrease");
        last = time;
        let name = event["name"].as_str().expect("a name").to_owned();
        if let Some(frames) = event["data"]["frames"].as_array() {
            assert!(!frames.is_empty(), "{event}");
            for frame in frames {
                let kind = frame["frame_type"].as_str().expect("a type").to_owned();
                *counts.entry(kind).or_default() += 1;
            }
        }
        *counts.entry(name).or_default() += 1;
    }
    let stats = sim.pair.stats(Side::Client);
    let count = |name: &str| counts.get(name).copied().unwrap_or(0);
    assert_eq!(count("quic:packet_sent"), stats.packets_sent);
    assert_eq!(count("quic:packet_received"), stats.packets_received);
    assert_eq!(count("quic:packet_lost"), stats.packets_lost);
    assert_eq!(
        count("quic:packet_dropped"),
        stats.packets_duplicate + stats.packets_forged
    );
    for once in [
        "quic:connection_started",
        "quic:version_information",
        "quic:alpn_information",
        "quic:parameters_set",
        "quic:connection_closed",
    ] {
        assert_eq!(count(once), 1, "{once}");
    }
    for some in ["quic:recovery_metrics_updated", "stream", "ack", "crypto"] {
        assert!(count(some) > 0, "{some}");
    }
}

/// The version events and the packets before a handshake, by the names of
/// draft-ietf-quic-qlog-quic-events §5.1.
fn versions_of(client: Vec<u32>, server: Vec<u32>, side: Side) -> Vec<Value> {
    let mut setup = Setup::new(1);
    setup.transport[Side::Client as usize].versions = client;
    setup.transport[Side::Server as usize].versions = server;
    setup.tune = |_, config| config.retry_from = 0;
    let mut sim = Simulation::new(setup, Plan::one_stream(1000));
    let sink = Sink::default();
    let second = std::time::Duration::from_secs(1);
    sim.run_until(second, "the connection is there", |sim| {
        sim.pair.has_connection(side)
    })
    .expect("a server has one after the Retry");
    let now = sim.pair.now();
    let connection = sim
        .pair
        .connection(side)
        .expect("the side has a connection");
    connection.set_qlog(now, Box::new(sink.clone()));
    sim.run_until(60 * second, "all bytes", Simulation::is_complete)
        .expect("the transfer completes");
    let records = sink.records().into_iter().skip(1);
    let events = records.filter(|event| {
        let has_frames = event["data"]["frames"].is_array();
        event["name"] == "quic:version_information"
            || event["name"] == "quic:packet_received" && !has_frames
    });
    events.map(|mut event| event["data"].take()).collect()
}

#[test]
fn versions_and_retries_are_logged() {
    let name = |version: u32| format!("{version:08x}");
    let (one, two) = (name(VERSION_1), name(VERSION_2));

    let rather_one = vec![VERSION_1, VERSION_2];
    let client = versions_of(rather_one, vec![VERSION_2], Side::Client);
    let [begun, packet, negotiated, retry] = &client[..] else {
        panic!("four events");
    };
    assert_eq!(begun["client_versions"][0], one, "{begun}");
    assert_eq!(begun["chosen_version"], one);
    assert_eq!(packet["header"]["packet_type"], "version_negotiation");
    assert_eq!(negotiated["client_versions"], begun["client_versions"]);
    // A reserved version, which no peer supports, is listed as well (RFC 9000 §6.3).
    let offered = negotiated["server_versions"].as_array().expect("a list");
    assert!(offered.contains(&two.clone().into()), "{negotiated}");
    assert_eq!(negotiated["chosen_version"], two);
    assert_eq!(retry["header"]["packet_type"], "retry");
    assert_eq!(retry["header"]["token"]["type"], "retry");

    // If both prefer version 2, the server changes to it (RFC 9368 §2.3).
    let rather_two = || vec![VERSION_2, VERSION_1];
    let client = versions_of(rather_two(), rather_two(), Side::Client);
    let chosen: Vec<&Value> = (client.iter())
        .filter_map(|event| event.get("chosen_version"))
        .collect();
    assert_eq!(chosen, [&one, &two]);
    let server = versions_of(rather_two(), rather_two(), Side::Server);
    assert_eq!(server[0]["server_versions"], serde_json::json!([two, one]));
    assert_eq!(server.last().expect("one")["chosen_version"], two);
}

// A late copy of a handshake packet, whose keys are gone, is not passed over in silence.
#[test]
fn dropped_handshake_packets_are_logged() {
    let mut setup = Setup::new(1);
    for faults in &mut setup.faults {
        (faults.duplication, faults.reordering) = (1.0, 1.0);
        faults.jitter = std::time::Duration::from_millis(300);
    }
    let mut sim = Simulation::new(setup, Plan::one_stream(1_000));
    let sink = Sink::default();
    let now = sim.pair.now();
    let client = sim
        .pair
        .connection(Side::Client)
        .expect("the client has a connection");
    client.set_qlog(now, Box::new(sink.clone()));
    sim.run_for(std::time::Duration::from_secs(5)).unwrap();
    sim.close(Side::Client, 0, b"").unwrap();
    let records = sink.records();
    let dropped = records
        .iter()
        .filter(|r| r["name"] == "quic:packet_dropped" && r["data"]["trigger"] == "key_unavailable")
        .count();
    assert!(dropped > 0, "{} records", records.len());
}
