//! The counters of HTTP/3's transport, as metrics: datagrams, and with `--stage-times` where the
//! workers' time goes.

use squall::Endpoint;
use squall_yard::meter::{Reading, Ticker, Volume};
use squall_yard::stages::{Clocks, Rates};

use super::exposition::put_family;

/// Workers' CPU time by stage; the label is a row of the cost table.
pub(crate) const STAGE_SECONDS: &str = "squall_worker_stage_seconds_total";
/// How often the clock was read to measure it.
pub(crate) const STAGE_MARKS: &str = "squall_worker_stage_marks_total";
/// CPU time of the workers' threads.
pub(crate) const CPU_SECONDS: &str = "squall_worker_cpu_seconds_total";
/// How often the kernel took the CPU away from them.
pub(crate) const PREEMPTIONS: &str = "squall_worker_preemptions_total";
/// UDP datagrams, by direction.
pub(crate) const SENT_DATAGRAMS: &str = "squall_udp_sent_datagrams_total";
pub(crate) const RECEIVED_DATAGRAMS: &str = "squall_udp_received_datagrams_total";

/// The endpoint of HTTP/3.
pub(crate) struct Transport {
    endpoint: Endpoint,
    /// The readings when nothing had been counted.
    begin: Reading,
    /// With `--stage-times`.
    times: Option<Times>,
}

/// Converts ticks to time.
struct Times {
    ticker: Ticker,
    clocks: Clocks,
}

impl Transport {
    pub(crate) fn new(endpoint: Endpoint, stage_times: bool) -> Self {
        let times = || {
            let ticker = Ticker::start();
            let clocks = ticker.rates().clocks;
            Times { ticker, clocks }
        };
        Self {
            begin: Reading::of(&endpoint),
            endpoint,
            times: stage_times.then(times),
        }
    }

    /// Writes all values, in the text format of Prometheus.
    pub(super) fn put(&self, text: &mut String) {
        let stats = self.endpoint.stats();
        let (udp, unrouted) = (stats.udp, stats.unrouted);
        for (name, help, value) in [
            (SENT_DATAGRAMS, "UDP datagrams sent.", udp.datagrams_sent),
            (
                RECEIVED_DATAGRAMS,
                "UDP datagrams received.",
                udp.datagrams_received,
            ),
            (
                "squall_udp_sent_bytes_total",
                "Bytes of UDP payload sent.",
                udp.bytes_sent,
            ),
            (
                "squall_udp_received_bytes_total",
                "Bytes of UDP payload received.",
                udp.bytes_received,
            ),
            (
                "squall_udp_send_blocked_total",
                "Sends that found the socket's buffer full.",
                udp.send_blocked,
            ),
            (
                "squall_runs_discarded_total",
                "Runs of datagrams that belong to no connection.",
                stats.runs_discarded,
            ),
            (
                "squall_runs_forwarded_total",
                "Runs forwarded to another worker, or an earlier process.",
                stats.runs_forwarded,
            ),
            (
                "squall_forwards_dropped_total",
                "Runs dropped instead of forwarded, because too many were waiting there.",
                stats.forwards_dropped,
            ),
            (
                "squall_stateless_resets_total",
                "Stateless resets sent.",
                unrouted.stateless_resets,
            ),
            (
                "squall_retries_total",
                "Retry packets sent.",
                unrouted.retries,
            ),
        ] {
            put_family(text, name, "counter", help, &[(String::new(), value)]);
        }
        let used = self.begin.until_now(&self.endpoint, Volume::Operations(0));
        let help = "Times that the kernel preempted a worker that had work.";
        let rows = [(String::new(), used.preemptions)];
        put_family(text, PREEMPTIONS, "counter", help, &rows);
        let help = "CPU time of the HTTP/3 workers.";
        let rows = [(String::new(), used.cpu.as_secs_f64())];
        put_family(text, CPU_SECONDS, "counter", help, &rows);
        if let Some(times) = &self.times {
            let rates = Rates {
                ns_per_tick: times.ticker.ns_per_tick(),
                clocks: times.clocks,
                core_ghz: None,
            };
            let label = |(stage, seconds)| (format!("{{stage=\"{stage}\"}}"), seconds);
            let rows: Vec<_> = used.seconds(rates).into_iter().map(label).collect();
            let help = "CPU time of the HTTP/3 workers by stage.";
            put_family(text, STAGE_SECONDS, "counter", help, &rows);
            let help = "Clock readings made to divide that CPU time by stage.";
            let rows = [(String::new(), used.stamps)];
            put_family(text, STAGE_MARKS, "counter", help, &rows);
        }
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}
