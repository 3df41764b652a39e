//! How much a worker's connections send to each address together.
//!
//! A pacer spaces the packets of a connection. Where a thousand connections lead to one address,
//! the path carries their sum. Pairs of packets from five hundred connections are no smoother than
//! ten packets each from a hundred, but take five times as many visits. So each pacer is given the
//! rate of all of them together (`squall_core::Connection::set_rate_together`, decision 47).
//!
//! ```text
//! sends     a1 b1 a2 c1 a1 a3 … │ a2 a1 d1 a3 …     a: an address; 1, 2, 3: connections to it
//! periods   ── bytes to a ──────┴─▶ their rate in the next one
//! ```

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use squall_core::Time;

/// A rate is measured over a whole period.
const PERIOD: Duration = Duration::from_millis(8);
/// Number of addresses that can be distinguished.
const SLOTS: usize = 64;

/// What was sent to an address.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// `None`: nothing yet.
    remote: Option<SocketAddr>,
    /// The number of the current period, and what was sent in it.
    period: u64,
    bytes: u64,
    /// A connection that has sent in it, and whether another one has as well.
    connection: Option<usize>,
    several: bool,
    /// Bytes per second in the period before; 0 if there were not several connections.
    rate: u64,
}

impl Slot {
    /// Advances to the period of `now`.
    fn go_on(&mut self, now: Time) {
        let period = period(now);
        if self.period == period {
            return;
        }
        let counts = self.several && self.period + 1 == period;
        let bytes = if counts { self.bytes } else { 0 };
        self.rate = bytes * 1000 / PERIOD.as_millis() as u64;
        self.period = period;
        (self.bytes, self.connection, self.several) = (0, None, false);
    }

    /// Whether several connections send to the address of this slot.
    fn is_in_use(&self) -> bool {
        self.several || self.rate > 0
    }
}

/// What was sent lately to the addresses that several connections share, by a hash of the address.
/// If two addresses collide in a slot, one of them is not counted.
pub(super) struct Together {
    slots: Box<[Slot; SLOTS]>,
}

impl Default for Together {
    fn default() -> Self {
        Self {
            slots: Box::new([Slot::default(); SLOTS]),
        }
    }
}

impl Together {
    /// Bytes per second that several connections sent to `remote`; 0 if it was one, or none.
    pub(super) fn rate(&mut self, now: Time, remote: SocketAddr) -> u64 {
        let slot = &mut self.slots[place(remote)];
        slot.go_on(now);
        if slot.remote == Some(remote) {
            slot.rate
        } else {
            0
        }
    }

    /// Adds what a connection has sent to `remote`.
    pub(super) fn add(&mut self, now: Time, remote: SocketAddr, connection: usize, bytes: usize) {
        let slot = &mut self.slots[place(remote)];
        slot.go_on(now);
        if slot.remote != Some(remote) {
            if slot.is_in_use() {
                return;
            }
            *slot = Slot {
                remote: Some(remote),
                period: slot.period,
                ..Slot::default()
            };
        }
        slot.bytes += bytes as u64;
        slot.several |= *slot.connection.get_or_insert(connection) != connection;
    }
}

fn period(now: Time) -> u64 {
    now.as_nanos() / PERIOD.as_nanos() as u64
}

fn place(remote: SocketAddr) -> usize {
    let ip = match remote.ip() {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => ip.to_bits() as u32,
    };
    (ip ^ ip >> 16 ^ u32::from(remote.port())) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn the_rate_is_that_of_several_connections_in_the_previous_period() {
        let mut together = Together::default();
        let remote: SocketAddr = "192.0.2.1:4433".parse().expect("an address");
        for connection in [1, 2, 1] {
            together.add(at(80), remote, connection, 1000);
        }
        assert_eq!(
            together.rate(at(87), remote),
            0,
            "the period is not over yet"
        );
        assert_eq!(together.rate(at(88), remote), 375_000);
        together.add(at(89), remote, 3, 1000);
        together.add(at(90), remote, 3, 1000);
        assert_eq!(together.rate(at(95), remote), 375_000);
        assert_eq!(
            together.rate(at(96), remote),
            0,
            "a single connection has no combined rate"
        );
        for connection in [1, 2] {
            together.add(at(97), remote, connection, 1000);
        }
        assert_eq!(
            together.rate(at(112), remote),
            0,
            "nothing was sent in the previous period"
        );
    }

    #[test]
    fn an_address_in_use_keeps_its_slot() {
        let mut together = Together::default();
        let [shared, other] = ["192.0.2.1:64", "192.0.2.1:128"]
            .map(|text| text.parse::<SocketAddr>().expect("an address"));
        assert_eq!(place(shared), place(other));
        together.add(at(0), other, 9, 1000);
        for connection in [1, 2] {
            together.add(at(1), shared, connection, 1000);
        }
        together.add(at(2), other, 9, 1000);
        assert_eq!(together.rate(at(8), shared), 250_000);
        assert_eq!(together.rate(at(8), other), 0);
        // The slot goes to the other address once no two connections share the first.
        for connection in [8, 9] {
            together.add(at(16), other, connection, 1000);
        }
        assert_eq!(together.rate(at(24), other), 250_000);
    }
}
