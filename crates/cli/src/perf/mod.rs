//! `squall perf`: the cost of a GB over QUIC, over TLS on TCP and over plain TCP, and of a request
//! and a handshake.
//!
//! ```text
//!   args, work ─► bulk     round by round, the order rotating      ─► bulk_report ─┐
//!                  │         quic: squall, both ends in this process               │
//!                  │         yard::controls: rustls over TCP, plain TCP            ├─► report:
//!                  │         with several numbers of connections ─► bulk_series ───┤
//!                 ablation the same without each technique in turn
//!                 rates    what a Job counts, alternately          ─► operations ──┤   text, JSON,
//!                 http     requests and a film from squall serve, over HTTP ───────┤   CSV, chart
//!                 client   the same with another process or machine ───────────────┘
//!                 server   answers clients until Ctrl-C
//!   job                                          requests, handshakes, datagrams: their names
//!   endpoint, protocol, requests, handshakes, churn, datagrams       what both ends do over QUIC
//!   host, liveness                               where the client's server is, and whether still
//! ```
//! Clocks, tables, controls and charts are in `squall_yard`.

mod ablation;
pub(crate) mod args;
mod bulk;
mod bulk_report;
mod bulk_series;
mod churn;
mod client;
mod contender;
mod datagrams;
mod endpoint;
mod handshakes;
mod host;
mod http;
mod job;
mod liveness;
mod operations;
mod protocol;
mod quic;
mod rates;
mod report;
mod requests;
mod server;
mod work;

use squall_yard::cpu::Cores;
use squall_yard::error::{Failure, Result};
use squall_yard::work::Datagrams;
use squall_yard::{interrupt, sys};

use args::{Perf, Remote};
use job::Job;
use work::Task;

/// The command.
pub(crate) fn main(perf: Perf) -> Result<()> {
    interrupt::listen()?;
    sys::raise_descriptor_limit();
    match &perf.remote {
        Some(Remote::Server(args)) => return server::serve(args),
        Some(Remote::Client(args)) => return client::measure(args),
        None => {}
    }
    if perf.local.http.http {
        return http::measure(&perf.local);
    }
    if let Some(size) = perf.local.datagrams {
        let time = perf.local.work.time;
        return rates::measure(&perf.local, &[Job::Datagrams(Datagrams { size, time })]);
    }
    match perf.local.work.task()? {
        Task::Bulk(flow, amount) if perf.local.ablation => {
            perf.local.work.one_number()?;
            ablation::measure(&perf.local, flow, amount)
        }
        Task::Bulk(flow, amount) => {
            let plan = bulk::Plan::new(perf.local, flow, amount)?;
            plan.run()
        }
        task => rates::measure(&perf.local, &Job::all(task)),
    }
}

/// The two requested cores, if they are available, or the first two.
fn cores(wanted: Option<(usize, usize)>, workers: usize, allowed: &[usize]) -> Result<Cores> {
    let Some((server, client)) = wanted else {
        // Several workers of an end on one core would only get in each other's way.
        return Ok(if workers == 1 {
            Cores::pick(allowed)
        } else {
            Cores::NONE
        });
    };
    if allowed.contains(&server) && allowed.contains(&client) {
        return Ok(Cores {
            server: Some(server),
            client: Some(client),
        });
    }
    Err(Failure::new(format!(
        "cannot pin to cores {server} and {client}: choose two of {allowed:?} with --cpu A,B"
    )))
}

/// The requested cores, if they are available.
fn these_cores(wanted: &[usize]) -> Result<Vec<usize>> {
    let allowed = sys::allowed_cores();
    match wanted.iter().find(|core| !allowed.contains(core)) {
        Some(core) => Err(Failure::new(format!(
            "cannot pin to core {core}: choose from {allowed:?} with --cpu N"
        ))),
        None => Ok(wanted.to_vec()),
    }
}

/// The statistics of a connection in one line (`--conn-stats`).
fn connection_stats(connection: &squall::Connection) -> String {
    let stats = connection.stats();
    format!(
        "rtt {:.3} ms, window {} bytes, payload {} bytes, packets sent {} received {} lost {}, \
         datagrams sent {} received {}, acks sent {} received {}, congestion events {}, probe timeouts {}",
        stats.rtt.as_secs_f64() * 1e3,
        stats.congestion_window,
        stats.max_udp_payload,
        stats.packets_sent,
        stats.packets_received,
        stats.packets_lost,
        stats.datagrams_sent,
        stats.datagrams_received,
        stats.acks_sent,
        stats.acks_received,
        stats.congestion_events,
        stats.probe_timeouts,
    )
}

/// The contenders of a round: each round starts with a different one.
fn rotated<T: Clone>(contenders: &[T], round: usize) -> Vec<T> {
    let mut order = contenders.to_vec();
    let first = round % order.len().max(1);
    order.rotate_left(first);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_cores_are_reported() {
        let two = cores(Some((1, 0)), 1, &[0, 1]).expect("both cores are available");
        assert_eq!((two.server, two.client), (Some(1), Some(0)));
        let message = cores(Some((0, 9)), 1, &[0, 1]).expect_err("no core 9");
        assert!(message.to_string().contains("--cpu"));
    }

    #[test]
    fn each_round_starts_with_a_different_contender() {
        use contender::Contender::{self, Quic, Tcp, TlsTcp};
        let all = Contender::ALL;
        assert_eq!(rotated(&all, 0), [Quic, TlsTcp, Tcp]);
        assert_eq!(rotated(&all, 1), [TlsTcp, Tcp, Quic]);
        assert_eq!(rotated(&all, 2), [Tcp, Quic, TlsTcp]);
        assert_eq!(rotated(&all, 3), rotated(&all, 0));
        assert_eq!(rotated(&[Tcp], 4), [Tcp]);
    }
}
