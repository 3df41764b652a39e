//! Counters, and how a Prometheus server reads them.
//!
//! Each thread counts in one of a few shards, so that cores do not contend for a cache line; a
//! reader adds them up.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use http::StatusCode;

use super::exposition::put_family;
use super::transport::Transport;

/// Threads beyond this number share shards.
const SHARDS: usize = 16;

/// A version of HTTP on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    Http3,
}

impl Protocol {
    const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::Http3];

    /// The ALPN name without its version 1 detail, as a label.
    fn label(self) -> &'static str {
        match self {
            Self::Http1 => "h1",
            Self::Http2 => "h2",
            Self::Http3 => "h3",
        }
    }

    /// As in request lines.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2.0",
            Self::Http3 => "HTTP/3.0",
        }
    }
}

/// Labels of a request's outcome: the class of its status, or `none` if it was cancelled before.
const OUTCOMES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];
const CANCELLED: usize = 5;

/// A body that stalled for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOut {
    Request,
    Response,
}

impl TimedOut {
    const ALL: [Self; 2] = [Self::Request, Self::Response];

    fn label(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response => "response",
        }
    }
}

/// The counters of one protocol.
#[derive(Debug, Default)]
struct Counters {
    started: AtomicU64,
    outcomes: [AtomicU64; 6],
    sent: AtomicU64,
    received: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    timed_out: [AtomicU64; 2],
}

/// Two cache lines, since processors fetch pairs of them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([Counters; 3]);

/// All counters of the server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    shards: [Shard; SHARDS],
    /// Lines of the access log that were dropped.
    pub(crate) log_lines_dropped: AtomicU64,
    /// Set once it exists: HTTP/3 can be off.
    pub(crate) transport: OnceLock<Transport>,
}

impl Metrics {
    fn here(&self, protocol: Protocol) -> &Counters {
        thread_local! {
            static SHARD: Cell<usize> = {
                static THREADS: AtomicUsize = AtomicUsize::new(0);
                Cell::new(THREADS.fetch_add(1, Relaxed) % SHARDS)
            };
        }
        &self.shards[SHARD.get()].0[protocol as usize]
    }

    /// A connection was accepted.
    pub(crate) fn opened(&self, protocol: Protocol) {
        self.here(protocol).opened.fetch_add(1, Relaxed);
    }

    /// It ended.
    pub(crate) fn closed(&self, protocol: Protocol) {
        self.here(protocol).closed.fetch_add(1, Relaxed);
    }

    /// A request has arrived.
    pub(crate) fn started(&self, protocol: Protocol) {
        self.here(protocol).started.fetch_add(1, Relaxed);
    }

    /// A request is complete, with this many bytes of its response's body sent. Without a status,
    /// it was cancelled before there was one.
    pub(crate) fn finished(&self, protocol: Protocol, status: Option<StatusCode>, sent: u64) {
        let class = status.map_or(CANCELLED, |status| usize::from(status.as_u16() / 100) - 1);
        let counters = self.here(protocol);
        // Statuses above 599 are legal, and errors (RFC 9110 §15).
        counters.outcomes[class.min(CANCELLED)].fetch_add(1, Relaxed);
        counters.sent.fetch_add(sent, Relaxed);
    }

    /// A part of a request's body has arrived.
    pub(crate) fn received(&self, protocol: Protocol, bytes: u64) {
        self.here(protocol).received.fetch_add(bytes, Relaxed);
    }

    /// The client let a body stall for too long.
    pub(crate) fn timed_out(&self, protocol: Protocol, body: TimedOut) {
        self.here(protocol).timed_out[body as usize].fetch_add(1, Relaxed);
    }

    fn sum(&self, protocol: Protocol, of: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let counters = self.shards.iter().map(|shard| &shard.0[protocol as usize]);
        counters.map(|counters| of(counters).load(Relaxed)).sum()
    }

    /// All values, in the text format of Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, rows: &[(String, u64)]| {
            put_family(&mut text, name, kind, help, rows);
        };
        let by_protocol = |of: &dyn Fn(Protocol) -> u64| {
            Protocol::ALL.map(|protocol| {
                (
                    format!("{{protocol=\"{}\"}}", protocol.label()),
                    of(protocol),
                )
            })
        };
        let mut requests = Vec::new();
        for protocol in Protocol::ALL {
            for (at, outcome) in OUTCOMES.iter().enumerate() {
                let labels = format!("{{protocol=\"{}\",status=\"{outcome}\"}}", protocol.label());
                requests.push((
                    labels,
                    self.sum(protocol, |counters| &counters.outcomes[at]),
                ));
            }
        }
        family(
            "squall_http_requests_total",
            "counter",
            "Requests by status class; none: cancelled before there was a status.",
            &requests,
        );
        // Ended ones are read first, so that the difference is never negative.
        let in_flight = |protocol| {
            let done: u64 = (0..OUTCOMES.len())
                .map(|at| self.sum(protocol, |counters| &counters.outcomes[at]))
                .sum();
            self.sum(protocol, |counters| &counters.started)
                .saturating_sub(done)
        };
        family(
            "squall_http_requests_in_flight",
            "gauge",
            "Requests whose response is not complete.",
            &by_protocol(&in_flight),
        );
        family(
            "squall_http_response_body_bytes_total",
            "counter",
            "Bytes of response bodies handed to the transport, counted as responses finish.",
            &by_protocol(&|protocol| self.sum(protocol, |counters| &counters.sent)),
        );
        family(
            "squall_http_request_body_bytes_total",
            "counter",
            "Bytes of request bodies passed on to the application.",
            &by_protocol(&|protocol| self.sum(protocol, |counters| &counters.received)),
        );
        let mut timeouts = Vec::new();
        for protocol in Protocol::ALL {
            for body in TimedOut::ALL {
                let (protocol_label, body_label) = (protocol.label(), body.label());
                let labels = format!("{{protocol=\"{protocol_label}\",body=\"{body_label}\"}}");
                let count = self.sum(protocol, |counters| &counters.timed_out[body as usize]);
                timeouts.push((labels, count));
            }
        }
        family(
            "squall_http_body_timeouts_total",
            "counter",
            "Bodies abandoned because the client sent or read nothing for too long.",
            &timeouts,
        );
        family(
            "squall_http_connections_total",
            "counter",
            "Connections whose TLS handshake succeeded.",
            &by_protocol(&|protocol| self.sum(protocol, |counters| &counters.opened)),
        );
        let open = |protocol| {
            let closed = self.sum(protocol, |counters| &counters.closed);
            self.sum(protocol, |counters| &counters.opened)
                .saturating_sub(closed)
        };
        family(
            "squall_http_connections",
            "gauge",
            "Open connections.",
            &by_protocol(&open),
        );
        family(
            "squall_http_access_log_dropped_total",
            "counter",
            "Access log lines lost because the log file was too slow.",
            &[(String::new(), self.log_lines_dropped.load(Relaxed))],
        );
        if let Some(transport) = self.transport.get() {
            transport.put(&mut text);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_all_threads_are_summed() {
        let metrics = Metrics::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    metrics.opened(Protocol::Http2);
                    metrics.started(Protocol::Http2);
                    metrics.started(Protocol::Http2);
                    metrics.started(Protocol::Http2);
                    metrics.finished(Protocol::Http2, Some(StatusCode::NOT_FOUND), 9);
                    metrics.finished(Protocol::Http2, None, 0);
                });
            }
        });
        metrics.closed(Protocol::Http2);
        metrics.timed_out(Protocol::Http2, TimedOut::Response);
        let odd = StatusCode::from_u16(999).expect("legal");
        metrics.finished(Protocol::Http1, Some(odd), 0);
        let text = metrics.text();
        for line in [
            "squall_http_requests_total{protocol=\"h2\",status=\"4xx\"} 20",
            "squall_http_requests_total{protocol=\"h2\",status=\"none\"} 20",
            "squall_http_requests_total{protocol=\"h3\",status=\"2xx\"} 0",
            "squall_http_requests_in_flight{protocol=\"h2\"} 20",
            "squall_http_response_body_bytes_total{protocol=\"h2\"} 180",
            "squall_http_connections{protocol=\"h2\"} 19",
            "squall_http_body_timeouts_total{protocol=\"h2\",body=\"request\"} 0",
            "squall_http_body_timeouts_total{protocol=\"h2\",body=\"response\"} 1",
            "squall_http_access_log_dropped_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        for line in text.lines() {
            assert!(
                line.starts_with("# ") || line.starts_with("squall_http_"),
                "{line}"
            );
        }
    }
}
