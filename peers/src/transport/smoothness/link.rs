//! The bottleneck: a drop-tail queue that drains at one rate.
//!
//! It is computed rather than waited for: a packet leaves when those before it have left and its
//! own transmission time is over. So the figures depend on when packets arrive, not on how
//! punctually the router wakes up to forward them.

use std::time::Duration;

/// The rate of a link, and how much may wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Bits per second.
    rate: u64,
    /// Bytes that may have arrived but not left, including the packet that is leaving.
    buffer: u64,
}

impl Link {
    /// A link of `mbit_per_s` with a buffer of `bdp` bandwidth-delay products.
    pub(super) fn new(mbit_per_s: f64, rtt: Duration, bdp: f64) -> Self {
        let rate = mbit_per_s * 1e6;
        Self {
            rate: rate as u64,
            buffer: (rate / 8.0 * rtt.as_secs_f64() * bdp) as u64,
        }
    }

    /// How long the link takes to send `bytes`.
    pub(super) fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How long a packet waits behind a full buffer.
    pub(super) fn longest_wait(&self) -> Duration {
        self.time_of(self.buffer)
    }

    /// Bytes in a second.
    pub(super) fn bytes_per_s(&self) -> f64 {
        self.rate as f64 / 8.0
    }
}

/// A link's queue.
#[derive(Debug)]
pub(super) struct Queue {
    link: Link,
    /// When everything queued will have left.
    empty_at: Duration,
}

/// The passage of a packet that is not dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Passage {
    /// Until the link begins to send it.
    pub(super) wait: Duration,
    /// When its last bit has left.
    pub(super) left_at: Duration,
}

impl Queue {
    pub(super) fn new(link: Link) -> Self {
        Self {
            link,
            empty_at: Duration::ZERO,
        }
    }

    /// A packet of `bytes` arrives; `None`: it is dropped. Times never go back.
    pub(super) fn offer(&mut self, now: Duration, bytes: u64) -> Option<Passage> {
        let wait = self.empty_at.saturating_sub(now);
        let own = self.link.time_of(bytes);
        if wait + own > self.link.longest_wait() {
            return None;
        }
        self.empty_at = now + wait + own;
        Some(Passage {
            wait,
            left_at: self.empty_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,500 bytes take 1.2 ms; 5,000 bytes may be in the queue.
    fn link() -> Link {
        Link::new(10.0, Duration::from_millis(40), 0.1)
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn the_buffer_is_a_share_of_the_bandwidth_delay_product() {
        assert_eq!(link().longest_wait(), micros(4_000));
        assert_eq!(link().time_of(1_500), micros(1_200));
        assert_eq!(link().bytes_per_s(), 1_250_000.0);
    }

    #[test]
    fn packets_queue_in_order_and_are_dropped_if_the_buffer_is_full() {
        let mut queue = Queue::new(link());
        let mut waits = |at: u64, packets: usize| -> Vec<Option<u128>> {
            (0..packets)
                .map(|_| queue.offer(micros(at), 1_500))
                .map(|passage| passage.map(|one| one.wait.as_micros()))
                .collect()
        };
        // Three packets fit, of which one is being sent.
        let first = [Some(0), Some(1_200), Some(2_400), None, None];
        assert_eq!(waits(0, 5), first);
        // Half a packet has left, which makes no room for a whole one; then a whole one has left.
        assert_eq!(waits(600, 1), [None]);
        assert_eq!(waits(1_200, 2), [Some(2_400), None]);
        // A link at rest sends at once.
        assert_eq!(waits(10_000, 1), [Some(0)]);
    }

    #[test]
    fn the_link_keeps_its_rate() {
        let mut queue = Queue::new(link());
        // Twice the rate for a second: half of the packets pass.
        let left: Vec<Duration> = (0..1_667)
            .filter_map(|index| queue.offer(micros(index * 600), 1_500))
            .map(|passage| passage.left_at)
            .collect();
        assert!((833..=836).contains(&left.len()), "{}", left.len());
        for pair in left.windows(2) {
            assert_eq!(pair[1] - pair[0], micros(1_200));
        }
    }

    #[test]
    fn small_packets_fill_the_room_that_large_ones_leave() {
        let mut queue = Queue::new(link());
        for _ in 0..3 {
            assert!(queue.offer(Duration::ZERO, 1_500).is_some());
        }
        assert!(queue.offer(Duration::ZERO, 1_500).is_none());
        assert!(queue.offer(Duration::ZERO, 40).is_some());
    }
}
