//! Delivery rate samples (draft-ietf-ccwg-bbr §4.1): how fast the network took the data sent.
//!
//! The draft keeps a snapshot with every packet. Here one is kept for every bundle (recommended by
//! §4.1.3.1): all packets of a bundle leave at the same time, and that time leads from an
//! acknowledged packet to its snapshot, once per run.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;

/// Snapshots kept: no path worth measuring this finely has more bundles in flight.
const MAX_FLIGHTS: usize = 4096;

/// The state when a bundle left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    sent: Time,
    first_send_time: Time,
    delivered_time: Time,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    /// Bytes in flight, including the bundle.
    pub(super) tx_in_flight: u64,
    pub(super) is_app_limited: bool,
}

/// The sample from one run of acknowledgements.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSample {
    /// Bytes per second; 0 if nothing reliable is known.
    pub(super) delivery_rate: u64,
    /// Bytes delivered over the sampling interval.
    pub(super) delivered: u64,
    /// `delivered` of the connection when the newest acknowledged packet left.
    pub(super) prior_delivered: u64,
    /// Bytes lost since it left.
    pub(super) lost: u64,
    pub(super) tx_in_flight: u64,
    pub(super) is_app_limited: bool,
    /// Bytes newly acknowledged.
    pub(super) newly_acked: u64,
}

/// The counters of a path.
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    flights: VecDeque<Flight>,
    /// Bytes delivered and lost since the beginning.
    pub(super) delivered: u64,
    pub(super) lost: u64,
    delivered_time: Time,
    first_send_time: Time,
    /// Samples up to this value of `delivered` are limited by the application; 0 means none are.
    app_limited: u64,
}

impl Sampler {
    pub(super) fn new() -> Self {
        Self {
            flights: VecDeque::new(),
            delivered: 0,
            lost: 0,
            delivered_time: Time::ZERO,
            first_send_time: Time::ZERO,
            app_limited: 0,
        }
    }

    /// A bundle of `bytes` is sent; `in_flight` includes it.
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        if in_flight <= bytes {
            (self.first_send_time, self.delivered_time) = (now, now);
            self.flights.clear();
        }
        if let Some(last) = self.flights.back_mut()
            && last.sent == now
        {
            last.tx_in_flight = in_flight;
            return;
        }
        if self.flights.len() == MAX_FLIGHTS {
            self.flights.pop_front();
        }
        self.flights.push_back(Flight {
            sent: now,
            first_send_time: self.first_send_time,
            delivered_time: self.delivered_time,
            delivered: self.delivered,
            lost: self.lost,
            tx_in_flight: in_flight,
            is_app_limited: self.app_limited > 0,
        });
    }

    /// The bundle that left at `sent`, or the last one before that.
    pub(super) fn flight(&self, sent: Time) -> Option<&Flight> {
        let after = self.flights.partition_point(|f| f.sent <= sent);
        self.flights.get(after.checked_sub(1)?)
    }

    /// Packets of `bytes` in all are acknowledged, the newest of them sent at `newest_sent`.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        bytes: u64,
        newest_sent: Time,
        min_rtt: Duration,
    ) -> RateSample {
        self.delivered += bytes;
        self.delivered_time = now;
        if self.app_limited > 0 && self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let Some(flight) = self.flight(newest_sent).copied() else {
            return RateSample {
                newly_acked: bytes,
                ..RateSample::default()
            };
        };
        self.first_send_time = flight.sent;
        let send_elapsed = flight.sent - flight.first_send_time;
        let ack_elapsed = now - flight.delivered_time;
        let interval = send_elapsed.max(ack_elapsed);
        let delivered = self.delivered - flight.delivered;
        // Shorter than any round trip: spurious retransmissions would make the rate seem too high.
        let reliable = interval >= min_rtt && !interval.is_zero();
        RateSample {
            delivery_rate: if reliable {
                rate(delivered, interval)
            } else {
                0
            },
            delivered,
            prior_delivered: flight.delivered,
            lost: self.lost.saturating_sub(flight.lost),
            tx_in_flight: flight.tx_in_flight,
            is_app_limited: flight.is_app_limited,
            newly_acked: bytes,
        }
    }

    /// Packets of `bytes` that counted as lost have arrived.
    pub(super) fn on_spurious_loss(&mut self, bytes: u64) {
        self.lost = self.lost.saturating_sub(bytes);
        self.delivered += bytes;
    }

    /// The window has room, but there is nothing to send.
    pub(super) fn mark_app_limited(&mut self, in_flight: u64) {
        self.app_limited = (self.delivered + in_flight).max(1);
    }

    pub(super) const fn is_app_limited(&self) -> bool {
        self.app_limited > 0
    }
}

/// Bytes per second.
fn rate(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The bytes sent at a rate in a time.
pub(super) fn volume(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    // test: draft-ietf-ccwg-bbr §4.1
    #[test]
    fn a_steady_flow_is_measured_at_its_rate() {
        let mut sampler = Sampler::new();
        // 10 kB every 10 ms, acknowledged 50 ms later: 1 MB/s.
        let mut in_flight = 0;
        let mut last = RateSample::default();
        for tick in 0..100 {
            if tick >= 5 {
                in_flight -= 10_000;
                let sent = at(1000 + 10 * (tick - 5));
                last = sampler.on_ack(
                    at(1000 + 10 * tick),
                    10_000,
                    sent,
                    Duration::from_millis(50),
                );
            }
            in_flight += 10_000;
            sampler.on_sent(at(1000 + 10 * tick), 10_000, in_flight);
        }
        assert!(
            (950_000..=1_050_000).contains(&last.delivery_rate),
            "{last:?}"
        );
        assert!(!last.is_app_limited);
        sampler.mark_app_limited(in_flight);
        sampler.on_sent(at(3000), 1000, in_flight + 1000);
        let limited = sampler.on_ack(at(3050), 1000, at(3000), Duration::from_millis(50));
        assert!(limited.is_app_limited);
    }
}
