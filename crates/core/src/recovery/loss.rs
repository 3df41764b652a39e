//! Loss detection (RFC 9002 §6): which packets of a space are lost, by number and by time.

use std::time::Duration;

use super::reordering::Reordering;
use super::rtt::RttEstimator;
use crate::space::Space;
use crate::time::Time;

/// RFC 9002 §7.6.1: probe timeouts that make a persistent congestion.
const PERSISTENT_CONGESTION: u32 = 3;

/// What one pass of loss detection found.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Numbers, ascending. The buffer is reused from pass to pass.
    pub(crate) numbers: Vec<u64>,
    /// When the newest of them was sent.
    pub(crate) newest_sent: Time,
    /// Whether they span a persistent congestion (RFC 9002 §7.6).
    pub(crate) persistent: bool,
}

/// Finds the packets below the largest acknowledged number that are lost at `now`, and when the
/// next one will be.
///
/// `rtt` and `reordering` are those of the path whose packets have the tag `flow`; `pto` is the
/// probe timeout without backoff, `max_ack_delay` included, for the persistent-congestion rule.
pub(crate) fn detect(
    space: &mut Space,
    now: Time,
    (rtt, reordering): (&RttEstimator, &Reordering),
    flow: u8,
    pto: Duration,
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
    space.sent.pass_settled();
    for (number, packet) in space.sent.outstanding() {
        if number > largest {
            break;
        }
        if number.saturating_add(threshold) <= largest || packet.time_sent + delay <= now {
            lost.numbers.push(number);
            lost.newest_sent = packet.time_sent;
            // RFC 9002 §7.6.2: nothing sent in between was acknowledged, and both ends ask for
            // acknowledgement.
            if number != run_next {
                run_start = None;
            }
            run_next = number + 1;
            if packet.ack_eliciting && packet.flow == flow && rtt.has_sample() {
                let start = *run_start.get_or_insert(packet.time_sent);
                lost.persistent |= packet.time_sent - start > pto * PERSISTENT_CONGESTION;
            }
        } else {
            space.loss_time = Some(packet.time_sent + delay);
            // Later packets were sent later: those that are lost come first, and the next pass
            // begins here.
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn by_number_and_by_time() {
        let mut rtt = RttEstimator::new(Duration::from_millis(333));
        rtt.update(Duration::from_millis(80), Duration::ZERO);
        let mut space = space(&[0, 10, 20, 30]);
        space.sent.acknowledge(3);
        space.largest_acked = Some(3);
        let mut lost = Lost::default();
        let pto = Duration::from_millis(200);
        let path = (&rtt, &Reordering::default());
        detect(&mut space, ms(80), path, 0, pto, &mut lost);
        assert_eq!(lost.numbers, [0]);
        assert_eq!(space.loss_time, Some(ms(10 + 90)));
        space.sent.declare_lost(0);
        detect(&mut space, ms(100), path, 0, pto, &mut lost);
        assert_eq!(lost.numbers, [1]);
        assert!(!lost.persistent);
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
            (&rtt, &Reordering::default()),
            0,
            Duration::from_millis(200),
            &mut lost,
        );
        assert_eq!(lost.numbers, [0, 1, 2]);
        assert!(lost.persistent);
    }
}
