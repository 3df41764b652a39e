//! Path MTU discovery by packets (RFC 8899, RFC 9000 §14.3).
//!
//! The largest size is tried first, for most paths carry it; if it is lost three times the search halves the gap.

use crate::config::MIN_UDP_PAYLOAD;

/// RFC 8899 §5.1.2: losses of a probe before its size counts as too large.
const MAX_PROBES: u8 = 3;
/// The search ends when less than this is to be gained, in bytes.
const RESOLUTION: u16 = 16;

/// No packet has this number (RFC 9000 §12.3).
const NONE: u64 = u64::MAX;

/// What UDP payload the path carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mtu {
    current: u16,
    /// Sizes above are known or taken not to pass.
    ceiling: u16,
    probe: u16,
    losses: u8,
    /// The number of the packet that probes, or `NONE`: compared with that of every packet acknowledged.
    in_flight: u64,
    /// What neither this end nor the peer allows to exceed.
    limit: u16,
}

impl Mtu {
    /// Starts at the size that every QUIC path carries, or at a smaller `ceiling`, and looks up to `ceiling`.
    #[must_use]
    pub(crate) fn new(ceiling: u16) -> Self {
        Self {
            current: MIN_UDP_PAYLOAD.min(ceiling),
            ceiling,
            probe: ceiling,
            losses: 0,
            in_flight: NONE,
            limit: ceiling,
        }
    }

    /// A search from the start, for a path that nothing is known of.
    #[must_use]
    pub(crate) fn anew(&self) -> Self {
        Self::new(self.limit)
    }

    /// Lowers the ceiling to what the peer accepts (max_udp_payload_size, RFC 9000 §18.2).
    pub(crate) fn limit(&mut self, ceiling: u64) {
        // RFC 9000 §18.2: values below 1200 are invalid and refused before.
        let ceiling = u16::try_from(ceiling).unwrap_or(u16::MAX);
        self.limit = self.limit.min(ceiling.max(MIN_UDP_PAYLOAD));
        self.ceiling = self.ceiling.min(self.limit);
        self.probe = self.probe.min(self.ceiling);
        self.current = self.current.min(self.ceiling);
    }

    /// The size that is known to pass, in bytes.
    #[must_use]
    pub(crate) const fn current(&self) -> u16 {
        self.current
    }

    /// The size to probe now, if any.
    #[must_use]
    pub(crate) const fn wants_probe(&self) -> Option<u16> {
        if self.in_flight != NONE || self.ceiling == self.current || self.probe <= self.current {
            None
        } else {
            Some(self.probe)
        }
    }

    /// A probe left as packet `number`.
    pub(crate) fn on_probe_sent(&mut self, number: u64) {
        self.in_flight = number;
    }

    /// Whether packet `number` is the probe in flight.
    #[inline]
    #[must_use]
    pub(crate) fn is_probe(&self, number: u64) -> bool {
        self.in_flight == number
    }

    /// A probe of `size` arrived: `true` if the path's size rose.
    pub(crate) fn on_probe_acked(&mut self, size: u16) -> bool {
        self.in_flight = NONE;
        self.losses = 0;
        let rose = size > self.current;
        self.current = self.current.max(size);
        self.next();
        rose
    }

    /// A probe was lost; that is no sign of congestion (RFC 9000 §14.4).
    pub(crate) fn on_probe_lost(&mut self) {
        self.in_flight = NONE;
        self.losses += 1;
        if self.losses >= MAX_PROBES {
            self.losses = 0;
            self.ceiling = self.probe - 1;
            self.next();
        }
    }

    fn next(&mut self) {
        let gap = self.ceiling.saturating_sub(self.current);
        self.probe = if gap < RESOLUTION {
            self.current
        } else {
            self.current + gap.div_ceil(2)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 8899 §5.3
    #[test]
    fn finds_the_size_that_passes() {
        for passes in [1200, 1280, 1400, 1452, 1472, 9000] {
            let mut mtu = Mtu::new(1472);
            let mut probes = 0;
            while let Some(size) = mtu.wants_probe() {
                probes += 1;
                mtu.on_probe_sent(7);
                assert!(mtu.is_probe(7) && !mtu.is_probe(8));
                assert_eq!(mtu.wants_probe(), None);
                if size <= passes {
                    mtu.on_probe_acked(size);
                } else {
                    mtu.on_probe_lost();
                }
            }
            assert!(
                mtu.current() <= passes && mtu.current() + RESOLUTION >= passes.min(1472),
                "{passes}: {}",
                mtu.current()
            );
            assert!(probes <= 20);
        }
    }
}
