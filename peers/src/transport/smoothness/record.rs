//! What the router saw of a sender's packets, and the figures derived from it.
//!
//! A **burst** is a packet and those that follow it, each within half of the time that a full-sized
//! packet takes at the link's rate: at twice the rate or more. A **gap** is the time from a burst's
//! last packet to the next one's first. A sender that spaced its packets perfectly would have
//! bursts of one packet, and gaps of a packet's time.

use std::time::Duration;

use squall_yard::stats;

use super::link::Link;

/// Bytes of a full-sized packet, IP header included.
const FULL_SIZE: u64 = 1500;

/// A packet from the sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// On the router's clock.
    pub(super) at: Duration,
    /// IP header included.
    pub(super) bytes: u32,
    /// How long it waited for the link; `None`: it was dropped.
    pub(super) wait: Option<Duration>,
}

/// The figures of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) packets: f64,
    /// Share of the packets that were dropped.
    pub(super) loss: f64,
    /// Share of the link's rate that was used.
    pub(super) used: f64,
    /// Packets of a burst: mean, median, 99th percentile, largest.
    pub(super) burst: [f64; 4],
    /// Milliseconds between bursts: median, 99th percentile.
    pub(super) gap_ms: [f64; 2],
    /// Milliseconds that packets waited: mean, median, 99th percentile, longest.
    pub(super) wait_ms: [f64; 4],
    /// Mean and 99th percentile of the wait, as shares of a full buffer's.
    pub(super) of_buffer: [f64; 2],
}

impl Figures {
    /// The figures for what arrived within `time`.
    pub(super) fn of(arrivals: &[Arrival], link: &Link, time: Duration) -> Self {
        let packets = arrivals.len() as f64;
        let passed = arrivals.iter().filter(|one| one.wait.is_some());
        let bytes: u64 = passed.clone().map(|one| u64::from(one.bytes)).sum();
        let mut waits: Vec<f64> = passed.filter_map(|one| one.wait).map(millis).collect();
        let mean_wait = mean(&waits);
        let (mut bursts, mut gaps) = bursts(arrivals, link.time_of(FULL_SIZE) / 2);
        let mean_burst = mean(&bursts);
        let full = millis(link.longest_wait());
        let p99 = stats::quantile(&mut waits, 0.99);
        Self {
            packets,
            loss: (packets - waits.len() as f64) / packets.max(1.0),
            used: bytes as f64 / time.as_secs_f64() / link.bytes_per_s(),
            burst: [
                mean_burst,
                stats::quantile(&mut bursts, 0.5),
                stats::quantile(&mut bursts, 0.99),
                stats::quantile(&mut bursts, 1.0),
            ],
            gap_ms: [
                stats::quantile(&mut gaps, 0.5),
                stats::quantile(&mut gaps, 0.99),
            ],
            wait_ms: [
                mean_wait,
                stats::quantile(&mut waits, 0.5),
                p99,
                stats::quantile(&mut waits, 1.0),
            ],
            of_buffer: [mean_wait / full, p99 / full],
        }
    }

    /// Each figure's median.
    pub(super) fn median(rounds: &[Self]) -> Self {
        fn of<const N: usize>(rounds: &[Figures], field: fn(&Figures) -> [f64; N]) -> [f64; N] {
            std::array::from_fn(|at| {
                let values = rounds.iter().map(|one| field(one)[at]).collect();
                stats::median(values).unwrap_or(f64::NAN)
            })
        }
        let [packets, loss, used] = of(rounds, |one| [one.packets, one.loss, one.used]);
        Self {
            packets,
            loss,
            used,
            burst: of(rounds, |one| one.burst),
            gap_ms: of(rounds, |one| one.gap_ms),
            wait_ms: of(rounds, |one| one.wait_ms),
            of_buffer: of(rounds, |one| one.of_buffer),
        }
    }
}

/// Packets of each burst, and the milliseconds between bursts.
fn bursts(arrivals: &[Arrival], close: Duration) -> (Vec<f64>, Vec<f64>) {
    let (mut bursts, mut gaps) = (Vec::new(), Vec::new());
    let mut packets = 0;
    let mut last: Option<Duration> = None;
    for arrival in arrivals {
        if let Some(last) = last {
            let gap = arrival.at.saturating_sub(last);
            if gap > close {
                bursts.push(f64::from(packets));
                gaps.push(millis(gap));
                packets = 0;
            }
        }
        packets += 1;
        last = Some(arrival.at);
    }
    if packets > 0 {
        bursts.push(f64::from(packets));
    }
    (bursts, gaps)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,500 bytes take 1.2 ms; a full buffer 4 ms.
    fn link() -> Link {
        Link::new(10.0, Duration::from_millis(40), 0.1)
    }

    fn arrival(at_micros: u64, wait_micros: Option<u64>) -> Arrival {
        Arrival {
            at: Duration::from_micros(at_micros),
            bytes: 1500,
            wait: wait_micros.map(Duration::from_micros),
        }
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn even_spacing_has_no_bursts() {
        let arrivals: Vec<_> = (0..100).map(|at| arrival(at * 1200, Some(0))).collect();
        let figures = Figures::of(&arrivals, &link(), Duration::from_millis(120));
        assert_eq!(figures.burst, [1.0; 4]);
        assert!(figures.gap_ms.iter().all(|gap| close(*gap, 1.2)));
        assert_eq!((figures.loss, figures.wait_ms), (0.0, [0.0; 4]));
        assert!(close(figures.used, 1.0), "{figures:?}");
    }

    #[test]
    fn bursts_end_at_half_of_a_packets_time() {
        // Three packets at most 600 µs apart, one 601 µs later, two together much later.
        let times = [0, 10, 610, 1211, 9000, 9001];
        let arrivals = times.map(|at| arrival(at, Some(0)));
        let figures = Figures::of(&arrivals, &link(), Duration::from_millis(12));
        let [mean, median, _, largest] = figures.burst;
        assert!(close(mean, 2.0));
        assert_eq!((median, largest), (2.0, 3.0));
        let (_, gaps) = bursts(&arrivals, Duration::from_micros(600));
        assert!(close(gaps[0], 0.601) && close(gaps[1], 7.789), "{gaps:?}");
    }

    #[test]
    fn drops_count_as_loss_and_not_as_wait() {
        let waits = [Some(1000), None, Some(3000), None];
        let arrivals = waits.map(|wait| arrival(0, wait));
        let figures = Figures::of(&arrivals, &link(), Duration::from_millis(12));
        assert_eq!((figures.packets, figures.loss), (4.0, 0.5));
        assert!(close(figures.wait_ms[0], 2.0) && close(figures.wait_ms[3], 3.0));
        assert!(close(figures.of_buffer[0], 0.5), "{figures:?}");
        assert!(close(figures.used, 0.2), "{figures:?}");
    }

    #[test]
    fn figures_without_arrivals_are_zero() {
        let figures = Figures::of(&[], &link(), Duration::from_secs(1));
        assert_eq!(figures, Figures::default());
    }

    #[test]
    fn medians_are_taken_of_each_figure() {
        let round = |loss, longest| Figures {
            loss,
            wait_ms: [0.0, 0.0, 0.0, longest],
            ..Figures::default()
        };
        let rounds = [round(0.1, 9.0), round(0.3, 7.0), round(0.2, 8.0)];
        let median = Figures::median(&rounds);
        assert_eq!((median.loss, median.wait_ms[3]), (0.2, 8.0));
    }
}
