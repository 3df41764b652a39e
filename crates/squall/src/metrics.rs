//! Metrics of an endpoint for the facade `metrics`, named as Prometheus recommends.
//!
//! [`Metrics`] subscribes to events and counts them, and [`publish`](Metrics::publish) copies the
//! endpoint's counters whenever the application calls it, for example every few seconds:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! # async fn example(server: squall::ServerConfig) -> std::io::Result<()> {
//! let metrics = Arc::new(squall::metrics::Metrics::new("public"));
//! let endpoint = squall::Builder::new(([0; 16], 4433).into())
//!     .server(server)
//!     .events(metrics.clone())
//!     .bind()?;
//! loop {
//!     metrics.publish(&endpoint);
//!     tokio::time::sleep(Duration::from_secs(5)).await;
//! }
//! # }
//! ```
//!
//! The example `prometheus` serves them over HTTP, with metrics-exporter-prometheus. Every metric
//! has the label `endpoint`, which is the name that was passed to [`Metrics::new`].
//!
//! | counted as it happens | labels |
//! |---|---|
//! | `squall_connections_started_total` | `side` |
//! | `squall_handshakes_completed_total` | `side`, `version`, `resumed` |
//! | `squall_handshake_duration_seconds` (histogram) | `side` |
//! | `squall_early_data_total` | `side`, `accepted` |
//! | `squall_retries_received_total` | |
//! | `squall_path_changes_total` | `side`, `validated` |
//! | `squall_key_updates_total` | `side`, `by` |
//! | `squall_congestion_events_total` | `side`, `cause` |
//! | `squall_connections_closed_total` | `side`, `reason`, `by` |
//! | `squall_connection_duration_seconds` (histogram) | `side` |
//! | `squall_attempts_refused_total` | `reason` |
//! | `squall_worker_ends_total` | |
//!
//! | published | |
//! |---|---|
//! | `squall_connections` (gauge) | connections that exist |
//! | `squall_memory_bytes` (gauge) | their memory, if [`Builder::max_memory`] is set |
//! | `squall_udp_sent_bytes_total`, `squall_udp_received_bytes_total` | UDP payload |
//! | `squall_udp_sent_datagrams_total`, `squall_udp_received_datagrams_total` | |
//! | `squall_udp_send_blocked_total` | sends that found the socket's buffer full |
//! | `squall_runs_discarded_total` | runs of datagrams that belong to no connection |
//! | `squall_runs_forwarded_total` | to another worker, or an earlier process |
//! | `squall_forwards_dropped_total` | because too many of them were waiting there |
//! | `squall_incoming_dropped_total` | attempts dropped because too many were in progress |
//! | `squall_stateless_resets_total` | sent |
//! | `squall_retries_total` | sent |
//! | `squall_version_negotiations_total` | sent |
//! | `squall_event_panics_total` | see [`Events`] |
//!
//! `side` is `client` or `server`, `by` is `self` or `peer`, `version` is `1` or `2`. A refusal's
//! `reason` is [`RefusalReason::name`](crate::RefusalReason::name); that of a close is
//! `application`, `transport`, `idle_timeout`, `handshake_timeout`, `reset`, `version_mismatch` or
//! `not_started`.
//!
//! [`Builder::max_memory`]: crate::Builder::max_memory

use metrics::{Label, SharedString, Unit};
use squall_core::{
    CloseReason, Congestion, CongestionCause, EarlyDataAnswered, HandshakeCompleted, KeysUpdated,
    PathChanged, Refusal,
};
use squall_wire::{Side, VERSION_2};

use crate::endpoint::Endpoint;
use crate::events::{ConnectionClosed, ConnectionInfo, Events, WorkerEnded};

/// Counts the events of one endpoint with the recorder of the facade `metrics`. Pass it to
/// [`Builder::events`](crate::Builder::events).
#[derive(Debug)]
pub struct Metrics {
    endpoint: SharedString,
}

impl Metrics {
    /// Metrics with the label `endpoint` of this name. Install a recorder first, so that it
    /// receives the metrics' descriptions.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        for (name, unit, text) in COUNTERS {
            metrics::describe_counter!(*name, *unit, *text);
        }
        for (name, unit, text) in GAUGES {
            metrics::describe_gauge!(*name, *unit, *text);
        }
        for (name, text) in DURATIONS {
            metrics::describe_histogram!(*name, Unit::Seconds, *text);
        }
        Self {
            endpoint: SharedString::from(endpoint.into()),
        }
    }

    /// Publishes the current values of the endpoint's counters. Costs about a microsecond for each.
    pub fn publish(&self, endpoint: &Endpoint) {
        let stats = endpoint.stats();
        let gauges = [
            ("squall_connections", stats.connections),
            ("squall_memory_bytes", stats.memory),
        ];
        for (name, value) in gauges {
            metrics::gauge!(name, self.labels([])).set(value as f64);
        }
        let (udp, unrouted) = (&stats.udp, &stats.unrouted);
        let counters = [
            ("squall_udp_sent_bytes_total", udp.bytes_sent),
            ("squall_udp_received_bytes_total", udp.bytes_received),
            ("squall_udp_sent_datagrams_total", udp.datagrams_sent),
            (
                "squall_udp_received_datagrams_total",
                udp.datagrams_received,
            ),
            ("squall_udp_send_blocked_total", udp.send_blocked),
            ("squall_runs_discarded_total", stats.runs_discarded),
            ("squall_runs_forwarded_total", stats.runs_forwarded),
            ("squall_forwards_dropped_total", stats.forwards_dropped),
            (
                "squall_incoming_dropped_total",
                stats.incoming_dropped + unrouted.attempts_dropped,
            ),
            ("squall_stateless_resets_total", unrouted.stateless_resets),
            ("squall_retries_total", unrouted.retries),
            (
                "squall_version_negotiations_total",
                unrouted.version_negotiations,
            ),
            ("squall_event_panics_total", stats.event_panics),
        ];
        for (name, value) in counters {
            metrics::counter!(name, self.labels([])).absolute(value);
        }
    }

    fn labels<const N: usize>(&self, labels: [(&'static str, &'static str); N]) -> Vec<Label> {
        let mut all = vec![Label::new("endpoint", self.endpoint.clone())];
        all.extend(labels.map(|(key, value)| Label::from_static_parts(key, value)));
        all
    }

    fn count<const N: usize>(&self, name: &'static str, labels: [(&'static str, &'static str); N]) {
        metrics::counter!(name, self.labels(labels)).increment(1);
    }
}

impl Events for Metrics {
    fn connection_started(&self, connection: &ConnectionInfo) {
        let side = side(connection);
        self.count("squall_connections_started_total", [("side", side)]);
    }

    fn retry_received(&self, _: &ConnectionInfo) {
        self.count("squall_retries_received_total", []);
    }

    fn early_data_answered(&self, connection: &ConnectionInfo, event: &EarlyDataAnswered) {
        let labels = [
            ("side", side(connection)),
            ("accepted", yes(event.accepted)),
        ];
        self.count("squall_early_data_total", labels);
    }

    fn handshake_completed(&self, connection: &ConnectionInfo, event: &HandshakeCompleted) {
        let side = ("side", side(connection));
        let version = if event.version == VERSION_2 { "2" } else { "1" };
        let labels = [side, ("version", version), ("resumed", yes(event.resumed))];
        self.count("squall_handshakes_completed_total", labels);
        metrics::histogram!("squall_handshake_duration_seconds", self.labels([side]))
            .record(event.duration);
    }

    fn path_changed(&self, connection: &ConnectionInfo, event: &PathChanged) {
        let validated = yes(event.failed.is_none());
        let labels = [("side", side(connection)), ("validated", validated)];
        self.count("squall_path_changes_total", labels);
    }

    fn keys_updated(&self, connection: &ConnectionInfo, event: &KeysUpdated) {
        let labels = [("side", side(connection)), ("by", by(event.by_peer))];
        self.count("squall_key_updates_total", labels);
    }

    fn congestion(&self, connection: &ConnectionInfo, event: &Congestion) {
        let cause = match event.cause {
            CongestionCause::PersistentCongestion => "persistent_congestion",
            CongestionCause::Ecn => "ecn",
            _ => "loss",
        };
        let labels = [("side", side(connection)), ("cause", cause)];
        self.count("squall_congestion_events_total", labels);
    }

    fn connection_closed(&self, connection: &ConnectionInfo, event: &ConnectionClosed) {
        let side = ("side", side(connection));
        let (reason, remote) = match &event.reason {
            CloseReason::Application { remote, .. } => ("application", *remote),
            CloseReason::Transport { remote, .. } => ("transport", *remote),
            CloseReason::IdleTimeout => ("idle_timeout", false),
            CloseReason::HandshakeTimeout => ("handshake_timeout", false),
            CloseReason::Unreachable(_) => ("unreachable", false),
            CloseReason::Reset => ("reset", true),
            CloseReason::VersionMismatch => ("version_mismatch", true),
            _ => ("not_started", false),
        };
        let labels = [side, ("reason", reason), ("by", by(remote))];
        self.count("squall_connections_closed_total", labels);
        metrics::histogram!("squall_connection_duration_seconds", self.labels([side]))
            .record(event.duration);
    }

    fn attempt_refused(&self, _: usize, event: &Refusal) {
        let reason = event.reason.name();
        self.count("squall_attempts_refused_total", [("reason", reason)]);
    }

    fn worker_ended(&self, _: &WorkerEnded) {
        self.count("squall_worker_ends_total", []);
    }
}

fn side(connection: &ConnectionInfo) -> &'static str {
    match connection.side {
        Side::Client => "client",
        Side::Server => "server",
    }
}

fn by(peer: bool) -> &'static str {
    if peer { "peer" } else { "self" }
}

fn yes(yes: bool) -> &'static str {
    if yes { "true" } else { "false" }
}

const COUNTERS: &[(&str, Unit, &str)] = &[
    (
        "squall_connections_started_total",
        Unit::Count,
        "Connections that began",
    ),
    (
        "squall_handshakes_completed_total",
        Unit::Count,
        "Handshakes that completed",
    ),
    (
        "squall_early_data_total",
        Unit::Count,
        "Answers to early data",
    ),
    (
        "squall_retries_received_total",
        Unit::Count,
        "Retries that clients followed",
    ),
    (
        "squall_path_changes_total",
        Unit::Count,
        "Moves to other paths, and failed ones",
    ),
    ("squall_key_updates_total", Unit::Count, "Key updates"),
    (
        "squall_congestion_events_total",
        Unit::Count,
        "Reductions of congestion windows",
    ),
    (
        "squall_connections_closed_total",
        Unit::Count,
        "Connections that ended",
    ),
    (
        "squall_attempts_refused_total",
        Unit::Count,
        "Connection attempts that were refused",
    ),
    (
        "squall_worker_ends_total",
        Unit::Count,
        "Workers that ended early",
    ),
    (
        "squall_udp_sent_bytes_total",
        Unit::Bytes,
        "UDP payload sent",
    ),
    (
        "squall_udp_received_bytes_total",
        Unit::Bytes,
        "UDP payload received",
    ),
    (
        "squall_udp_sent_datagrams_total",
        Unit::Count,
        "Datagrams sent",
    ),
    (
        "squall_udp_received_datagrams_total",
        Unit::Count,
        "Datagrams received",
    ),
    (
        "squall_udp_send_blocked_total",
        Unit::Count,
        "Sends that found the buffer full",
    ),
    (
        "squall_runs_discarded_total",
        Unit::Count,
        "Runs of datagrams that belong to no connection",
    ),
    (
        "squall_runs_forwarded_total",
        Unit::Count,
        "Runs forwarded to another worker, or an earlier process",
    ),
    (
        "squall_forwards_dropped_total",
        Unit::Count,
        "Runs dropped instead of forwarded: too many were waiting there",
    ),
    (
        "squall_incoming_dropped_total",
        Unit::Count,
        "Attempts dropped: too many in progress",
    ),
    (
        "squall_stateless_resets_total",
        Unit::Count,
        "Stateless resets sent",
    ),
    ("squall_retries_total", Unit::Count, "Retries sent"),
    (
        "squall_version_negotiations_total",
        Unit::Count,
        "Version Negotiation packets sent",
    ),
    (
        "squall_event_panics_total",
        Unit::Count,
        "Panics of event subscribers",
    ),
];

const GAUGES: &[(&str, Unit, &str)] = &[
    ("squall_connections", Unit::Count, "Connections that exist"),
    ("squall_memory_bytes", Unit::Bytes, "Memory of connections"),
];

const DURATIONS: &[(&str, &str)] = &[
    (
        "squall_handshake_duration_seconds",
        "Time from the start to the end of handshakes",
    ),
    (
        "squall_connection_duration_seconds",
        "Time from the start to the end of connections",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_is_described_and_documented() {
        let described = (COUNTERS.iter().chain(GAUGES).map(|(name, ..)| *name))
            .chain(DURATIONS.iter().map(|(name, _)| *name))
            .collect::<BTreeSet<_>>();
        let source = include_str!("metrics.rs");
        let rows = source.lines().filter(|line| line.starts_with("//! | `"));
        // The last cell of a row lists labels, or says in words what is meant.
        let in_table: BTreeSet<&str> = rows
            .flat_map(|row| row.split('`').filter(|word| word.starts_with("squall_")))
            .collect();
        assert_eq!(in_table, described);
        let code = source.split("mod tests").next().unwrap_or_default();
        for name in &described {
            let uses = code.matches(&format!("\"{name}\"")).count();
            assert_eq!(uses, 2, "{name} is described and used");
        }
    }
}
