//! What is counted: requests, handshakes or datagrams, and what they are called in results.

use squall_yard::error::{Failure, Result};
use squall_yard::live::Unit;
use squall_yard::rows::{PER_DATAGRAM, PER_HANDSHAKE, PER_REQUEST};
use squall_yard::suites::Suites;
use squall_yard::work::{Datagrams, Handshakes, Kind, Requests};

use super::contender::Contender;

/// A measurement that counts.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    Requests(Requests),
    Handshakes(Handshakes),
    Datagrams(Datagrams),
}

/// The sizes of datagrams that W7 has.
const W7_SIZES: [usize; 2] = [1_100, 200];

impl Job {
    /// The workload's name in rows.
    pub(crate) fn workload(&self) -> &'static str {
        match self {
            Self::Requests(_) => "W3",
            Self::Handshakes(handshakes) => handshakes.kind.workload(),
            Self::Datagrams(one) if W7_SIZES.contains(&one.size) => "W7",
            Self::Datagrams(_) => "datagrams",
        }
    }

    /// The name for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Requests(_) => "requests",
            Self::Handshakes(handshakes) => handshakes.kind.name(),
            Self::Datagrams(_) => "datagrams",
        }
    }

    /// What its counter counts.
    pub(crate) fn unit(&self) -> Unit {
        match self {
            Self::Requests(_) => Unit::Requests,
            Self::Handshakes(_) => Unit::Handshakes,
            Self::Datagrams(_) => Unit::Datagrams,
        }
    }

    /// What CPU time is related to.
    pub(crate) fn cpu_unit(&self) -> &'static str {
        match self {
            Self::Requests(_) => PER_REQUEST,
            Self::Handshakes(_) => PER_HANDSHAKE,
            Self::Datagrams(_) => PER_DATAGRAM,
        }
    }

    /// Bytes of a response or a datagram.
    pub(crate) fn size(&self) -> Option<u64> {
        match self {
            Self::Requests(one) => Some(one.down),
            Self::Handshakes(_) => None,
            Self::Datagrams(one) => Some(one.size as u64),
        }
    }

    /// What it is, for the heading.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Requests(one) => format!(
                "requests of {} bytes, responses of {} bytes, {} at a time per connection",
                one.up, one.down, one.in_flight
            ),
            Self::Handshakes(one) => format!("{}, {} at a time", one.kind.name(), one.in_flight),
            Self::Datagrams(one) => format!(
                "datagrams of {} bytes from the server, as many as each connection takes",
                one.size
            ),
        }
    }

    /// Whether a contender has such a thing to be measured.
    pub(crate) fn suits(&self, contender: Contender) -> bool {
        match (self, contender) {
            (Self::Requests(_), _) | (_, Contender::Quic) => true,
            (Self::Handshakes(one), Contender::TlsTcp) => one.kind != Kind::Early,
            (Self::Handshakes(_), Contender::Tcp) | (Self::Datagrams(_), _) => false,
        }
    }

    /// Why a contender does not suit.
    pub(crate) fn unsuited(&self) -> &'static str {
        match self {
            Self::Datagrams(_) => "TCP has no datagrams: omit --only, or pass --only quic",
            _ => {
                "--only leaves nothing to measure: handshakes are not measured over plain TCP, nor 0rtt over TLS over TCP"
            }
        }
    }

    /// Connections that exist at a time, of that many that carry requests; each has a suite of its
    /// own where there is a mix.
    ///
    /// # Errors
    /// A mix, and handshakes that need another connection's ticket.
    pub(crate) fn at_a_time(&self, connections: usize, suites: Option<&Suites>) -> Result<usize> {
        match self {
            Self::Requests(_) | Self::Datagrams(_) => Ok(connections),
            // RFC 8446 §4.2.11: a ticket is for one hash, and its early data for one suite.
            Self::Handshakes(one)
                if one.kind != Kind::Full && suites.is_some_and(Suites::is_mix) =>
            {
                Err(Failure::new(
                    "shares in --suite are for full handshakes, since a ticket belongs to a suite: add --handshakes=full",
                ))
            }
            Self::Handshakes(one) => Ok(one.in_flight),
        }
    }

    /// Connections that are there before the work begins, where as many were asked for.
    pub(crate) fn connections(&self, wanted: usize) -> Option<usize> {
        (!matches!(self, Self::Handshakes(_))).then_some(wanted)
    }

    /// The same for a part of its time.
    pub(crate) fn part(&self, parts: usize) -> Self {
        let mut part = self.clone();
        let time = match &mut part {
            Self::Requests(one) => &mut one.time,
            Self::Handshakes(one) => &mut one.time,
            Self::Datagrams(one) => &mut one.time,
        };
        *time /= u32::try_from(parts).unwrap_or(u32::MAX);
        part
    }
}
