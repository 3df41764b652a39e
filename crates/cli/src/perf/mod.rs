//! `squall perf`: what a GB costs over QUIC, over TLS on TCP and over plain TCP; what a request and a
//! handshake cost.
//!
//! ```text
//!   args       ->  bulk ------ round by round, the order rotating ------>  report
//!   options         |   quic      squall, both ends in this process          |
//!   work            |   tls       rustls over TCP   } control: threads       |-> text, JSON, CSV, plot
//!                   |   tcp       plain TCP         }                        |
//!                  rates -- requests, handshakes: kinds, and squall and the controls, in turns -> rows
//!                            |   control_rates: tcp_requests, tcp_handshakes
//!   cpu: threads' clocks and ksoftirqd     meter, stages: the cost by stage     latency: percentiles
//!   server, client: the same with another process or machine
//! ```
//! `source` holds the bytes.

pub(crate) mod args;
mod bulk;
pub(crate) mod certificate;
mod channel;
mod client;
mod control;
mod control_rates;
mod cpu;
mod handshakes;
mod latency;
mod live;
mod meter;
mod options;
pub(crate) mod parse;
mod protocol;
mod quic;
mod rates;
mod report;
mod requests;
mod rows;
mod server;
mod source;
mod stages;
mod tcp;
mod tcp_handshakes;
mod tcp_requests;
mod tls;
mod work;

use std::time::Duration;

use args::{Perf, Remote};
use cpu::Cores;
use live::Gauges;
use meter::Used;
use source::Digest;
use work::Task;

use crate::error::{Failure, Result};
use crate::{interrupt, sys};

/// How much a round moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// This many bytes a stream.
    Bytes(u64),
    /// As much as goes in this time.
    Time(Duration),
}

/// Which end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The server.
    Down,
    /// The client.
    Up,
}

impl Flow {
    /// The direction by the client's name for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "download",
            Self::Up => "upload",
        }
    }
}

/// What a contender is to do in one round.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// A connection.
    pub(crate) streams: usize,
    pub(crate) flow: Flow,
    pub(crate) amount: Amount,
    pub(crate) cores: Cores,
    /// Set: send the pattern of this seed, and digest it at both ends.
    pub(crate) seed: Option<u64>,
    pub(crate) gauges: Gauges,
}

/// What a contender did in one round.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Delivered to the receiver.
    pub(crate) bytes: u64,
    /// From the first stream's begin to the last one's end.
    pub(crate) elapsed: Duration,
    pub(crate) server_cpu: Duration,
    pub(crate) client_cpu: Duration,
    /// A digest for every stream, of what was sent.
    pub(crate) sent: Vec<Digest>,
    /// The same of what was received.
    pub(crate) received: Vec<Digest>,
    /// QUIC only: what both ends counted by stage.
    pub(crate) used: Option<Used>,
}

/// The command.
pub(crate) fn main(perf: Perf) -> Result<()> {
    interrupt::listen()?;
    match &perf.remote {
        Some(Remote::Server(args)) => return server::serve(args),
        Some(Remote::Client(args)) => return client::measure(args),
        None => {}
    }
    match perf.local.work.task()? {
        Task::Bulk(flow, amount) => {
            let plan = bulk::Plan::new(perf.local, flow, amount)?;
            plan.run()
        }
        Task::Requests(requests) => rates::measure(&perf.local, &[rates::Job::Requests(requests)]),
        Task::Handshakes(kinds) => {
            let jobs: Vec<_> = kinds.into_iter().map(rates::Job::Handshakes).collect();
            rates::measure(&perf.local, &jobs)
        }
    }
}

/// The two cores that were asked for, if they can be had, or the first two.
fn cores(wanted: Option<(usize, usize)>, workers: usize, allowed: &[usize]) -> Result<Cores> {
    let Some((server, client)) = wanted else {
        // Several workers of an end on one core would only be in each other's way.
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

/// The cores that were asked for, if they can be had.
fn these_cores(wanted: &[usize]) -> Result<Vec<usize>> {
    let allowed = sys::allowed_cores();
    match wanted.iter().find(|core| !allowed.contains(core)) {
        Some(core) => Err(Failure::new(format!(
            "cannot pin to core {core}: choose from {allowed:?} with --cpu N"
        ))),
        None => Ok(wanted.to_vec()),
    }
}

/// What a connection went through, in a line (`--conn-stats`).
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

/// The contenders of a round: each round another one goes first.
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
    fn cores_that_cannot_be_had_are_told() {
        let two = cores(Some((1, 0)), 1, &[0, 1]).expect("both are there");
        assert_eq!((two.server, two.client), (Some(1), Some(0)));
        let message = cores(Some((0, 9)), 1, &[0, 1]).expect_err("no core 9");
        assert!(message.to_string().contains("--cpu"));
    }

    #[test]
    fn each_round_starts_with_another_contender() {
        use args::Contender::{self, Quic, Tcp, TlsTcp};
        let all = Contender::ALL;
        assert_eq!(rotated(&all, 0), [Quic, TlsTcp, Tcp]);
        assert_eq!(rotated(&all, 1), [TlsTcp, Tcp, Quic]);
        assert_eq!(rotated(&all, 2), [Tcp, Quic, TlsTcp]);
        assert_eq!(rotated(&all, 3), rotated(&all, 0));
        assert_eq!(rotated(&[Tcp], 4), [Tcp]);
    }
}
