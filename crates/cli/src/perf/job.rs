//! Countable work: requests, segments, handshakes, connections or datagrams, and their names in
//! results.

use squall_yard::error::{Failure, Result};
use squall_yard::live::Unit;
use squall_yard::pace::Begin;
use squall_yard::rows::{PER_CONNECTION, PER_DATAGRAM, PER_GB, PER_HANDSHAKE, PER_REQUEST};
use squall_yard::suites::Suites;
use squall_yard::work::{Churn, Datagrams, Handshakes, Kind, Requests};

use super::contender::Contender;
use super::work::{CHURN_IN_FLIGHT, CHURN_RESPONSE, REQUEST, RESPONSE, Rate, Task};

/// A measurement that counts.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// As fast as they are answered, or at a rate.
    Requests(Requests, Option<Rate>),
    /// At this many bytes a second.
    Segments(Requests, f64),
    Handshakes(Handshakes),
    Churn(Churn),
    Datagrams(Datagrams),
}

/// Bytes of a segment in W5 and W5t.
const W5_SIZE: u64 = 256 * 1024;
const W5T_SIZE: u64 = 16 * 1024;
/// Requests on each connection of W8.
const W8_REQUESTS: usize = 3;
/// The sizes of datagrams in W7.
const W7_SIZES: [usize; 2] = [1_100, 200];

impl Job {
    /// The jobs of a task, in order; none for bulk transfers.
    pub(crate) fn all(task: Task) -> Vec<Self> {
        match task {
            Task::Bulk(..) => Vec::new(),
            Task::Requests(one, Some(Rate::Share(share))) => vec![
                Self::Requests(one.clone(), None),
                Self::Requests(one, Some(Rate::Share(share))),
            ],
            Task::Requests(one, rate) => vec![Self::Requests(one, rate)],
            Task::Segments(one, rate) => vec![Self::Segments(one, rate)],
            Task::Churn(one) => vec![Self::Churn(one)],
            Task::Handshakes(kinds) => kinds.into_iter().map(Self::Handshakes).collect(),
        }
    }

    /// Whether another job takes its rate from this one.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Requests(_, None))
    }

    /// The same job with a rate in requests per second; `closed` is the rate reached without a
    /// limit.
    pub(crate) fn settle(&self, closed: Option<f64>, connections: usize) -> Self {
        let mut settled = self.clone();
        if let Self::Segments(one, rate) = &mut settled {
            one.begin = Begin::evenly(*rate / one.down as f64, connections);
        }
        if let Self::Requests(one, Some(rate)) = &mut settled {
            let per_second = match *rate {
                Rate::PerSecond(rate) => rate,
                // Without a rate there is no such job; see `all`.
                Rate::Share(share) => share * closed.unwrap_or(1.0),
            };
            one.begin = Begin::at_random(per_second.max(1.0), connections * one.in_flight);
            *rate = Rate::PerSecond(per_second);
        }
        settled
    }

    /// How many are to begin per second, once a rate is settled.
    pub(crate) fn target_per_s(&self) -> Option<f64> {
        match self {
            Self::Requests(_, Some(Rate::PerSecond(rate))) => Some(*rate),
            Self::Segments(one, rate) => Some(rate / one.down as f64),
            _ => None,
        }
    }

    /// What starts a request: the response to the previous one, or the clock.
    pub(crate) fn mode(&self) -> Option<&'static str> {
        match self {
            Self::Requests(_, None) => Some("closed"),
            Self::Requests(_, Some(_)) => Some("open"),
            _ => None,
        }
    }

    /// The workload's name in rows.
    pub(crate) fn workload(&self) -> &'static str {
        match self {
            Self::Requests(one, rate) => {
                let usual = (one.up as u64, one.down) == (REQUEST, RESPONSE);
                match rate {
                    None | Some(Rate::HALF) if usual && one.in_flight == 1 => "W6",
                    None => "W3",
                    Some(_) => "requests",
                }
            }
            Self::Segments(one, Rate::VIEWERS) if one.down == W5_SIZE => "W5",
            Self::Segments(one, Rate::VIEWERS) if one.down == W5T_SIZE => "W5t",
            Self::Segments(..) => "segments",
            Self::Handshakes(handshakes) => handshakes.kind.workload(),
            Self::Churn(one) => match (one.requests, one.down, one.in_flight) {
                (W8_REQUESTS, CHURN_RESPONSE, CHURN_IN_FLIGHT) => "W8",
                _ => "churn",
            },
            Self::Datagrams(one) if W7_SIZES.contains(&one.size) => "W7",
            Self::Datagrams(_) => "datagrams",
        }
    }

    /// The name for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Requests(_, None) => "requests",
            Self::Requests(_, Some(_)) => "open loop",
            Self::Segments(..) => "segments",
            Self::Handshakes(handshakes) => handshakes.kind.name(),
            Self::Churn(_) => "churn",
            Self::Datagrams(_) => "datagrams",
        }
    }

    /// The unit that its counter counts.
    pub(crate) fn unit(&self) -> Unit {
        match self {
            Self::Requests(..) => Unit::Requests,
            Self::Segments(..) => Unit::Segments,
            Self::Handshakes(_) => Unit::Handshakes,
            Self::Churn(_) => Unit::Connections,
            Self::Datagrams(_) => Unit::Datagrams,
        }
    }

    /// The unit that CPU time is divided by.
    pub(crate) fn cpu_unit(&self) -> &'static str {
        match self {
            Self::Requests(..) => PER_REQUEST,
            Self::Segments(..) => PER_GB,
            Self::Handshakes(_) => PER_HANDSHAKE,
            Self::Churn(_) => PER_CONNECTION,
            Self::Datagrams(_) => PER_DATAGRAM,
        }
    }

    /// Bytes of a response or a datagram.
    pub(crate) fn size(&self) -> Option<u64> {
        match self {
            Self::Requests(one, _) | Self::Segments(one, _) => Some(one.down),
            Self::Handshakes(_) => None,
            Self::Churn(one) => Some(one.down),
            Self::Datagrams(one) => Some(one.size as u64),
        }
    }

    /// A description for the heading.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Requests(one, None) => format!(
                "requests of {} bytes, responses of {} bytes, {} at a time per connection",
                one.up, one.down, one.in_flight
            ),
            Self::Requests(_, Some(rate)) => {
                let rate = match rate {
                    Rate::PerSecond(rate) => format!("{rate} a second"),
                    Rate::Share(share) => format!("{} % of that rate", share * 100.0),
                };
                format!(
                    "open loop: requests begin at random moments, {rate}; times from when they are due"
                )
            }
            Self::Segments(one, rate) => format!(
                "segments of {} bytes by the clock, {} MB/s in all; times from when they are due",
                one.down,
                rate / 1e6
            ),
            Self::Handshakes(one) => format!("{}, {} at a time", one.kind.name(), one.in_flight),
            Self::Churn(one) => format!(
                "connections with a full handshake and {} request(s), responses of {} bytes, {} at a time",
                one.requests, one.down, one.in_flight
            ),
            Self::Datagrams(one) => format!(
                "datagrams of {} bytes from the server, as many as each connection takes",
                one.size
            ),
        }
    }

    /// Whether this can be measured with a contender.
    pub(crate) fn suits(&self, contender: Contender) -> bool {
        match (self, contender) {
            (Self::Requests(..) | Self::Segments(..), _)
            | (_, Contender::Quic)
            | (Self::Churn(_), Contender::TlsTcp) => true,
            (Self::Handshakes(one), Contender::TlsTcp) => one.kind != Kind::Early,
            (Self::Handshakes(_) | Self::Churn(_), Contender::Tcp) | (Self::Datagrams(_), _) => {
                false
            }
        }
    }

    /// Why a contender is unsuitable.
    pub(crate) fn unsuited(&self) -> &'static str {
        match self {
            Self::Datagrams(_) => "TCP has no datagrams: omit --only, or pass --only quic",
            Self::Churn(_) => {
                "--churn is about handshakes, which plain TCP does not have: omit --only, or pass quic or tls-tcp"
            }
            _ => {
                "--only leaves nothing to measure: handshakes are not measured over plain TCP, nor 0rtt over TLS over TCP"
            }
        }
    }

    /// Connections at a time, if that many carry requests; with a mix, each has its own suite.
    ///
    /// # Errors
    /// There is a mix, but handshakes need another connection's ticket.
    pub(crate) fn at_a_time(&self, connections: usize, suites: Option<&Suites>) -> Result<usize> {
        match self {
            Self::Requests(..) | Self::Segments(..) | Self::Datagrams(_) => Ok(connections),
            // RFC 8446 §4.2.11: a ticket is for one hash, and its early data for one suite.
            Self::Handshakes(one)
                if one.kind != Kind::Full && suites.is_some_and(Suites::is_mix) =>
            {
                Err(Failure::new(
                    "shares in --suite are for full handshakes, since a ticket belongs to a suite: add --handshakes=full",
                ))
            }
            Self::Handshakes(one) => Ok(one.in_flight),
            Self::Churn(one) => Ok(one.in_flight),
        }
    }

    /// Connections at a time that carry requests or datagrams, if that many were requested.
    pub(crate) fn connections(&self, wanted: usize) -> Option<usize> {
        match self {
            Self::Handshakes(_) => None,
            Self::Churn(one) => Some(one.in_flight),
            _ => Some(wanted),
        }
    }

    /// The same job for a fraction of its time.
    pub(crate) fn part(&self, parts: usize) -> Self {
        let mut part = self.clone();
        let time = match &mut part {
            Self::Requests(one, _) | Self::Segments(one, _) => &mut one.time,
            Self::Handshakes(one) => &mut one.time,
            Self::Churn(one) => &mut one.time,
            Self::Datagrams(one) => &mut one.time,
        };
        *time /= u32::try_from(parts).unwrap_or(u32::MAX);
        part
    }
}
