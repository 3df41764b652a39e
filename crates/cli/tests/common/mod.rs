//! The built binary, run as a user runs it: helpers shared by the tests of its modes.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Far longer than any command of a test takes.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs `squall` with these arguments to its end. If it hangs, or serves although it should not,
/// the test fails instead of waiting for ever.
pub(crate) fn squall(args: &[&str]) -> Output {
    let process = Command::new(env!("CARGO_BIN_EXE_squall"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let id = process.id();
    let (ended, end) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let hangs = end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
        if hangs {
            kill(id, "KILL");
        }
        hangs
    });
    let output = process.wait_with_output().expect("the process exits");
    drop(ended);
    assert!(!watch.join().expect("the watchdog runs"), "{args:?} hangs");
    output
}

pub(crate) fn json(args: &[&str]) -> serde_json::Value {
    let output = squall(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    // Only the object on a pipe: no live line, no heading.
    assert!(stderr.is_empty(), "{stderr}");
    let object: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("exactly one JSON object");
    assert_eq!(object["schema"], 1, "{args:?}");
    object
}

/// A number of a report.
pub(crate) fn number(value: &serde_json::Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Checks that percentiles rise.
pub(crate) fn assert_latency(latency: &serde_json::Value) {
    let times = ["p50", "p90", "p99", "p99_9", "max"].map(|key| number(&latency[key]));
    assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
}

/// The contenders of a report's rows, with their workloads.
pub(crate) fn contenders(report: &serde_json::Value) -> Vec<(&str, &str)> {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter()
        .filter_map(|row| Some((row["workload"].as_str()?, row["contender"].as_str()?)))
        .collect()
}

/// A cost table sums to its thread's CPU time, unless the thread was preempted, when the
/// unattributed time is unknown.
pub(crate) fn assert_sum(table: &serde_json::Value) {
    let rows = table["rows"].as_array().expect("rows");
    let percent: f64 = rows.iter().filter_map(|row| row["percent"].as_f64()).sum();
    let preempted = table["preempted"].as_bool().expect("whether");
    let last = rows.last().expect("rows");
    assert_eq!(last["stage"], "unattributed");
    assert_eq!(last["percent"].is_null(), preempted, "{last}");
    let least = if preempted { 0.0 } else { 99.99 };
    assert!((least..100.01).contains(&percent), "{percent}");
}

/// One line on standard error, nothing on standard output, exit code 1; returns the line.
pub(crate) fn failure(args: &[&str]) -> String {
    let output = squall(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

/// A perf server on a port that the system chose; ends with the test.
pub(crate) struct Server {
    pub(crate) process: Child,
    /// What it prints after its first line.
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
    pub(crate) port: u16,
    /// Its first line.
    pub(crate) first: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with more arguments.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::anywhere(&[&["--listen", "127.0.0.1:0"], args].concat())
    }

    /// A server whose arguments say where it listens.
    pub(crate) fn anywhere(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_squall"))
            .args(["perf", "server"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stdout = process.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines();
        let line = lines.next().expect("a line").expect("text");
        // "listening on 127.0.0.1:PORT (UDP), …"
        let port = line
            .split(' ')
            .find_map(|word| word.rsplit_once(':')?.1.parse().ok())
            .unwrap_or_else(|| panic!("no port in {line:?}"));
        Self {
            process,
            lines,
            port,
            first: line,
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Asks it to end, as Ctrl-C does, and returns its exit code and its last lines.
    pub(crate) fn interrupt(mut self) -> (Option<i32>, String) {
        signal(&self.process, "INT");
        let status = self.process.wait().expect("the process exits");
        let lines: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        (status.code(), lines.join("\n"))
    }
}

/// Sends a signal by its name.
pub(crate) fn signal(process: &Child, name: &str) {
    kill(process.id(), name);
}

fn kill(id: u32, name: &str) {
    let killed = Command::new("kill")
        .args([format!("-{name}"), id.to_string()])
        .status();
    assert!(killed.expect("kill(1)").success());
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
