//! Loss detection (RFC 9002 §6): which packets of a space are lost, by number and by time.

use std::time::Duration;

use super::reordering::Reordering;
use super::rtt::RttEstimator;
use crate::space::Space;
use crate::time::Time;

/// The result of one pass of loss detection.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Numbers, ascending. The buffer is reused between passes.
    pub(crate) numbers: Vec<u64>,
    /// When the newest of them was sent.
    pub(crate) newest_sent: Time,
    /// Whether they span a persistent congestion (RFC 9002 §7.6).
    pub(crate) persistent: bool,
}

/// Finds the packets below the largest acknowledged number that are lost at `now`, and when the
/// next one will be.
///
/// `rtt` and `reordering` are those of the path whose packets have the tag `flow`; `persistent` is
/// the time over which everything must be lost for a persistent congestion (RFC 9002 §7.6.1).
pub(crate) fn detect(
    space: &mut Space,
    now: Time,
    (rtt, reordering): (&RttEstimator, &Reordering),
    flow: u8,
    persistent: Duration,
    lost: &mut Lost,
) {
    lost.numbers.clear();
    lost.persistent = false;
    space.loss_time = None;
    let Some(largest) = space.largest_acked else {
        return;
    };
    let (delay, threshold) = (reordering.loss_delay(rtt), reordering.packet_threshold());
    let (mut run_start, mut run_next) = (None::<Time>, 0);
    for (number, packet) in space.sent.outstanding() {
        if number > largest {
            break;
        }
        if number.saturating_add(threshold) <= largest || packet.time_sent + delay <= now {
            lost.numbers.push(number);
            lost.newest_sent = packet.time_sent;
            // RFC 9002 §7.6.2: nothing sent in between was acknowledged, and both ends are
            // ack-eliciting.
            if number != run_next {
                run_start = None;
            }
            run_next = number + 1;
            if packet.ack_eliciting && packet.flow == flow && rtt.has_sample() {
                let start = *run_start.get_or_insert(packet.time_sent);
                lost.persistent |= packet.time_sent - start > persistent;
            }
        } else {
            space.loss_time = Some(packet.time_sent + delay);
            // Later packets were sent later: lost ones come first, and the next pass begins here.
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TransportConfig;

    fn ms(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000)
    }

    fn space(times: &[u64]) -> Space {
        let mut space = Space::default();
        for t in times {
            let mark = space.sent.frame_mark();
            space.sent.push(ms(*t), 1000, true, 0, false, mark);
        }
        space
    }

    // test: RFC 9002 §6.1.1, §6.1.2
    #[test]
    fn loss_is_declared_by_packet_number_and_by_time() {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_millis(80), Duration::ZERO);
        let mut space = space(&[0, 10, 20, 30]);
        space.sent.acknowledge(3);
        space.largest_acked = Some(3);
        let mut lost = Lost::default();
        let persistent = Duration::from_millis(600);
        let path = (&rtt, &Reordering::new(&TransportConfig::default()));
        detect(&mut space, ms(80), path, 0, persistent, &mut lost);
        assert_eq!(lost.numbers, [0]);
        assert_eq!(space.loss_time, Some(ms(10 + 90)));
        space.sent.declare_lost(0);
        detect(&mut space, ms(100), path, 0, persistent, &mut lost);
        assert_eq!(lost.numbers, [1]);
        assert!(!lost.persistent);
    }

    #[test]
    fn thresholds_follow_the_configuration() {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_millis(80), Duration::ZERO);
        let config = TransportConfig::default()
            .packet_threshold(6)
            .time_threshold(2.0);
        let reordering = Reordering::new(&config);
        let mut lost = Lost::default();
        let mut found = |packets: u64, now| {
            let times: Vec<u64> = (0..packets).collect();
            let mut space = space(&times);
            space.sent.acknowledge(packets - 1);
            space.largest_acked = Some(packets - 1);
            let persistent = Duration::from_secs(1);
            detect(
                &mut space,
                ms(now),
                (&rtt, &reordering),
                0,
                persistent,
                &mut lost,
            );
            lost.numbers.clone()
        };
        assert_eq!(found(6, 80), [0; 0]);
        assert_eq!(found(7, 80), [0]);
        assert_eq!(found(3, 159), [0; 0]);
        assert_eq!(found(3, 160), [0]);
    }

    // test: RFC 9002 §7.6
    #[test]
    fn a_long_run_of_losses_is_persistent_congestion() {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_millis(80), Duration::ZERO);
        let mut space = space(&[0, 300, 601, 5000]);
        space.sent.acknowledge(3);
        space.largest_acked = Some(3);
        let mut lost = Lost::default();
        detect(
            &mut space,
            ms(5100),
            (&rtt, &Reordering::new(&TransportConfig::default())),
            0,
            Duration::from_millis(600),
            &mut lost,
        );
        assert_eq!(lost.numbers, [0, 1, 2]);
        assert!(lost.persistent);
    }
}
