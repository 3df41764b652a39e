//! The time of a server's workers by stage, read from its metrics.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use squall::{Stage, Waits};
use squall_yard::error::{Failure, Result, context};
use squall_yard::stages::{Sample, WAITING};

use crate::serve::transport::{
    CPU_SECONDS, PREEMPTIONS, RECEIVED_DATAGRAMS, SENT_DATAGRAMS, STAGE_MARKS, STAGE_SECONDS,
};

/// Seconds become ticks of one nanosecond.
pub(super) const NS_PER_TICK: f64 = 1.0;

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// All values since the server started.
///
/// # Errors
/// The server does not answer.
pub(super) fn fetch(address: SocketAddr) -> Result<Sample> {
    let failed = || context("the server's metrics cannot be read");
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed())?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed())?;
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).map_err(failed())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed())?;
    parse(&text).ok_or_else(|| Failure::new("the server's metrics lack its stages"))
}

/// Finds the samples among the lines.
fn parse(text: &str) -> Option<Sample> {
    let value = |name: &str| -> Option<f64> {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    let stage = |name: &str| value(&format!("{STAGE_SECONDS}{{stage=\"{name}\"}}"));
    let time = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
    let names = Stage::ALL.map(Stage::name).into_iter().chain([WAITING]);
    let stages = names.filter_map(|name| Some((name, time(stage(name)?).as_nanos() as u64)));
    Some(Sample {
        stages: stages.collect(),
        waits: Waits::default(),
        stamps: value(STAGE_MARKS)? as u64,
        cpu: time(value(CPU_SECONDS)?),
        preemptions: value(PREEMPTIONS)? as u64,
        packets: (value(SENT_DATAGRAMS)? + value(RECEIVED_DATAGRAMS)?) as u64,
        bytes: 0,
        operations: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_among_other_lines() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# HELP squall_worker_stage_seconds_total Text.\n\
                    squall_worker_stage_seconds_total{stage=\"AEAD\"} 0.25\n\
                    squall_worker_stage_seconds_total{stage=\"HTTP/3\"} 1.5e-9\n\
                    squall_worker_stage_seconds_total{stage=\"waiting and waking\"} 0.125\n\
                    squall_worker_stage_marks_total 7\n\
                    squall_worker_cpu_seconds_total 0.5\n\
                    squall_worker_preemptions_total 2\n\
                    squall_udp_sent_datagrams_total 30\n\
                    squall_udp_received_datagrams_total 4\n";
        let sample = parse(text).expect("all are there");
        let stages = [("AEAD", 250_000_000), ("HTTP/3", 1), (WAITING, 125_000_000)];
        assert_eq!(sample.stages, stages);
        assert_eq!(
            (sample.stamps, sample.preemptions, sample.packets),
            (7, 2, 34)
        );
        assert_eq!(sample.cpu, Duration::from_millis(500));
        assert!(parse("squall_worker_cpu_seconds_total 0.5\n").is_none());
    }
}
