//! The log of a connection: every record is JSON, and the events are those of
//! draft-ietf-quic-qlog-quic-events.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use squall_sim::{Plan, Setup, Simulation};
use squall_wire::Side;

/// The output of a log.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .expect("nobody panics here")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn records(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().expect("nobody panics").clone());
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
fn a_connections_life_is_told() {
    let mut setup = Setup::new(1);
    for faults in &mut setup.faults {
        faults.loss = 0.03;
        faults.duplication = 0.03;
        faults.corruption = 0.02;
    }
    let mut sim = Simulation::new(setup, Plan::one_stream(300_000));
    let sink = Sink::default();
    let now = sim.pair.now();
    let client = sim.pair.connection(Side::Client).expect("it connects");
    client.set_qlog(now, Box::new(sink.clone()));
    sim.run_until(
        std::time::Duration::from_secs(60),
        "all bytes",
        Simulation::is_complete,
    )
    .expect("it arrives");
    sim.close(Side::Client, 7, b"done").expect("it closes");

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
        assert!(time >= last, "time goes on");
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
