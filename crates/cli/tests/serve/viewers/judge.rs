//! What must hold for a show.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::plan::Plan;
use super::show::{End, Outcome};
use super::viewer::Seen;

/// Memory that a process may gain between the halves of a quiet time: the allocator's pages come
/// and go.
const GROWTH: u64 = 1 << 20;
/// The same as a share of what it has.
const GROWTH_SHARE: f64 = 0.05;
/// Beyond its grace period, a process takes this long to end: a second for the clients' last
/// acknowledgements, a second for the runtime's threads.
const FAREWELL: Duration = Duration::from_secs(2);
/// In addition, for each connection, since its client has to be informed.
const FAREWELL_EACH: Duration = Duration::from_micros(200);

/// The result, as text and as JSON.
pub(super) struct Report {
    lines: Vec<String>,
    object: Value,
    pub(super) complaints: Vec<String>,
}

impl Report {
    pub(super) fn new(plan: &Plan, outcome: &Outcome) -> Self {
        let all = outcome
            .seen
            .iter()
            .cloned()
            .fold(Seen::default(), |mut all, seen| {
                all.add(seen);
                all
            });
        let logged = Logged::new(outcome);
        let mut report = Self {
            lines: Vec::new(),
            object: json!({ "schema": 1 }),
            complaints: Vec::new(),
        };
        report.requests(plan, &all, &logged);
        report.playback(&all, outcome);
        report.connections(plan, outcome);
        report.ends(plan, outcome);
        report.processes(outcome);
        report.complaints.extend(all.faults);
        report.object["complaints"] = json!(report.complaints);
        report
    }

    pub(super) fn json(&self) -> String {
        format!("{:#}\n", self.object)
    }

    fn line(&mut self, name: &str, object: Value, text: &str) {
        self.object[name.replace(' ', "_")] = object;
        self.lines.push(format!("{name:<15} {text}"));
    }

    fn require(&mut self, holds: bool, complaint: impl FnOnce() -> String) {
        if !holds {
            self.complaints.push(complaint());
        }
    }

    fn requests(&mut self, plan: &Plan, all: &Seen, logged: &Logged) {
        let object = json!({
            "viewers": plan.viewers, "begun": all.begun, "finished": all.finished,
            "sent_again_rejected": all.rejected, "sent_again_unconnected": all.unconnected,
            "lost": all.lost, "truncated": all.truncated, "wrong": all.wrong, "bytes": all.bytes,
            "slowest_ms": all.slowest.as_millis() as u64, "answered": logged.answered,
        });
        let text = format!(
            "{} begun by {} viewers, {} finished, {:.1} GB compared; sent again: {} rejected, {} without a connection; \
             lost {}, truncated {}, wrong {}; slowest {:.2} s",
            all.begun,
            plan.viewers,
            all.finished,
            all.bytes as f64 / 1e9,
            all.rejected,
            all.unconnected,
            all.lost,
            all.truncated,
            all.wrong,
            all.slowest.as_secs_f64()
        );
        self.line("requests", object, &text);
        self.require(all.begun > 0 && all.finished == all.begun, || {
            format!("{} of {} requests were finished", all.finished, all.begun)
        });
        for (count, what) in [
            (all.lost, "lost"),
            (all.truncated, "truncated"),
            (all.wrong, "wrong"),
        ] {
            self.require(count == 0, || format!("{count} requests: {what}"));
        }
        // By the servers' own logs: every response arrived, and none was requested twice.
        let answered: u64 = logged.answered.iter().sum();
        self.require(answered == all.finished, || {
            format!(
                "the servers answered {answered} requests, the viewers got {} answers",
                all.finished
            )
        });
        self.require(logged.other.is_empty(), || {
            format!("logged: {:?}", logged.other)
        });
        self.require(logged.answered.iter().all(|count| *count > 0), || {
            "one process served no viewer".to_owned()
        });
    }

    fn playback(&mut self, all: &Seen, outcome: &Outcome) {
        let least = all.least_buffer.unwrap_or_default();
        let object = json!({
            "stalls": all.stalls, "stalled_s": all.stalled.as_secs_f64(), "least_buffer_s": least.as_secs_f64(),
            "machine_busy": outcome.busy, "receive_buffer_overflows": outcome.overflows,
        });
        let busy = outcome.busy.map_or_else(String::new, |busy| {
            format!("; the machine was {:.0} % busy", busy * 100.0)
        });
        let lost = outcome.overflows.map_or_else(String::new, |lost| {
            format!(", {lost} datagrams found no room in receive buffers")
        });
        let text = format!(
            "{} stalls; {:.2} s of the film were left at the least{busy}{lost}",
            all.stalls,
            least.as_secs_f64()
        );
        self.line("playback", object, &text);
        self.require(all.stalls == 0, || {
            format!("{} stalls, {:.1} s in all (if the machine was busy throughout, choose a lower --rate)",
                all.stalls, all.stalled.as_secs_f64())
        });
    }

    fn connections(&mut self, plan: &Plan, outcome: &Outcome) {
        let restart = outcome.restart.at;
        let mut back: Vec<Duration> = outcome
            .handshakes
            .iter()
            .filter_map(|at| at.checked_duration_since(restart))
            .collect();
        back.sort_unstable();
        let before = outcome.handshakes.len() - back.len();
        let at = |part: f64| {
            let index = (back.len().saturating_sub(1)) as f64 * part;
            back.get(index as usize)
                .copied()
                .unwrap_or_default()
                .as_secs_f64()
        };
        let mut ends = BTreeMap::<&str, u64>::new();
        for end in &outcome.ends {
            *ends.entry(end).or_default() += 1;
        }
        let object = json!({
            "before_restart": before, "after_restart": back.len(), "back_median_s": at(0.5), "back_last_s": at(1.0),
            "ends": ends, "new_certificate_shown": outcome.renewal.is_shown,
        });
        let text = format!(
            "{before} before the restart, {} after it: {:.2} s after the signal in the median, {:.2} s the last; ends: {ends:?}",
            back.len(),
            at(0.5),
            at(1.0)
        );
        self.line("connections", object, &text);
        self.require(outcome.renewal.is_shown, || {
            "after SIGHUP, a new connection saw the old certificate".to_owned()
        });
        let renewed = outcome.renewal.handshakes;
        for (count, when) in [
            (renewed, "at SIGHUP"),
            (before, "before the restart"),
            (back.len(), "after it"),
        ] {
            self.require(count == plan.viewers, || {
                format!("{count} handshakes of {} viewers {when}", plan.viewers)
            });
        }
    }

    fn ends(&mut self, plan: &Plan, outcome: &Outcome) {
        let limit = Duration::from_secs_f64(if plan.stuck > 0 { plan.grace } else { 0.0 })
            + FAREWELL
            + FAREWELL_EACH * (plan.viewers + plan.idle) as u32;
        let gap = outcome.restart.gap.as_secs_f64();
        let witness = &outcome.restart.witness;
        self.require(witness.is_told, || {
            "no GOAWAY arrived while a response was in flight".to_owned()
        });
        self.require(witness.got_everything(), || {
            format!("a response in flight ended after {} bytes", witness.bytes)
        });
        for (name, end) in [
            ("first end", &outcome.restart.end),
            ("second end", &outcome.end),
        ] {
            let End {
                status,
                took,
                stderr,
            } = end;
            let status_text = status.map_or("none".to_owned(), |status| status.to_string());
            let text = format!(
                "status {status_text} {:.2} s after SIGTERM {stderr:?}",
                took.as_secs_f64()
            );
            let object =
                json!({ "status": status, "took_s": took.as_secs_f64(), "stderr": stderr });
            self.line(name, object, &text);
            self.require(*status == Some(0), || {
                format!("{name}: status {status_text}")
            });
            self.require(*took < limit, || {
                format!("{name}: only {:.1} s after SIGTERM", took.as_secs_f64())
            });
        }
        self.line(
            "gap",
            json!(gap),
            &format!("{gap:.2} s from SIGTERM until the other process listened"),
        );
    }

    fn processes(&mut self, outcome: &Outcome) {
        if let Some(idle) = &outcome.idle {
            let object = json!({ "server_bytes": idle.server, "client_bytes": idle.clients });
            let text = format!(
                "{:.1} kB a connection at the server, {:.1} kB at the client",
                idle.server / 1e3,
                idle.clients / 1e3
            );
            self.line("idle", object, &text);
        }
        for process in &outcome.processes {
            let resident = |sample: &super::watch::Sample| sample.resident;
            let mut text = format!(
                "{:.1} MB at most, {} descriptors, {:.2} cores",
                process.most(resident) as f64 / 1e6,
                process.most(|sample| sample.descriptors),
                process.cores()
            );
            let mut windows = Vec::new();
            for (window, name) in outcome.steady.iter().zip(["before", "after"]) {
                let Some([first, second]) = process.halves(window, resident) else {
                    continue;
                };
                text += &format!(
                    "; {name} the restart {:.1} then {:.1} MB",
                    first as f64 / 1e6,
                    second as f64 / 1e6
                );
                let allowed = GROWTH.max((first as f64 * GROWTH_SHARE) as u64);
                self.require(second <= first + allowed, || {
                    format!(
                        "{}: memory grew from {first} to {second} bytes {name} the restart",
                        process.name
                    )
                });
                let descriptors = process.halves(window, |sample| sample.descriptors);
                if let Some([few, more]) = descriptors {
                    self.require(more <= few, || {
                        format!(
                            "{}: descriptors grew from {few} to {more} {name} the restart",
                            process.name
                        )
                    });
                }
                windows.push(json!({ "when": name, "resident": [first, second], "descriptors": descriptors }));
            }
            let object = json!({
                "resident_most": process.most(resident), "descriptors_most": process.most(|sample| sample.descriptors),
                "cores": process.cores(), "steady": windows,
            });
            self.line(process.name, object, &text);
        }
        self.object["took_s"] = json!(outcome.took.as_secs_f64());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        for complaint in &self.complaints {
            writeln!(f, "NOT SO: {complaint}")?;
        }
        Ok(())
    }
}

/// What the access logs say about the film.
struct Logged {
    /// Whole responses, by process.
    answered: [u64; 2],
    /// Lines of other responses: the first ones.
    other: Vec<String>,
}

impl Logged {
    fn new(outcome: &Outcome) -> Self {
        let mut logged = Self {
            answered: [0; 2],
            other: Vec::new(),
        };
        for (log, answered) in outcome.logs.iter().zip(&mut logged.answered) {
            for line in log.lines() {
                let object: Value = serde_json::from_str(line).expect("an object");
                // Other requests are not from viewers.
                let Some(len) = object["uri"]
                    .as_str()
                    .and_then(|path| outcome.film.len_of(path))
                else {
                    continue;
                };
                if (&object["status"], &object["bytes"]) == (&json!(200), &json!(len)) {
                    *answered += 1;
                } else if logged.other.len() < 3 {
                    logged.other.push(line.to_owned());
                }
            }
        }
        logged
    }
}
