//! What a sender of bulk data loses on a path with a short queue, in virtual time.

use std::time::Duration;

use squall_sim::{Faults, Outgoing, Plan, Simulation};
use squall_wire::Side;

use crate::common::{ms, secs, setup};

/// The path's round-trip time without its queue.
const RTT: Duration = Duration::from_millis(40);

/// Bytes of a stream; a plan allows no larger ones.
const STREAM: usize = 2_000_000;

/// The results for the first 3 s and the 20 s after them.
struct Outcome {
    /// Share of the packets that the queue dropped.
    loss: [f64; 2],
    /// Share of the rate that was used.
    used: [f64; 2],
}

/// Sends through a queue of a tenth of rate × RTT.
fn send(mbit_per_s: u64) -> Outcome {
    let rate = mbit_per_s * 125_000;
    let faults = Faults {
        delay: RTT / 2,
        rate: Some(rate),
        queue: rate * RTT.as_millis() as u64 / 10_000,
        ..Faults::default()
    };
    let mut setup = setup(1, faults);
    // Acknowledgements have a separate path.
    setup.faults[Side::Server as usize] = Faults {
        delay: RTT / 2,
        ..Faults::default()
    };
    let streams = (rate * 25) as usize / STREAM + 1;
    let plan = Plan {
        streams: [vec![Outgoing::one_way(STREAM); streams], Vec::new()],
        ..Plan::default()
    };
    let mut sim = Simulation::new(setup, plan);
    let mut seen = [(0, 0); 3];
    for (at, time) in [(1, secs(3)), (2, secs(20))] {
        let end = sim.pair.now() + time;
        sim.run_until(time + ms(100), "time is up", |sim| sim.pair.now() >= end)
            .expect("the simulation runs");
        let counters = sim.pair.network().counters(Side::Client);
        seen[at] = (counters.sent, counters.queue_dropped);
    }
    let of = |phase: usize, seconds: f64| {
        let sent = (seen[phase + 1].0 - seen[phase].0) as f64;
        let dropped = (seen[phase + 1].1 - seen[phase].1) as f64;
        (
            dropped / sent,
            (sent - dropped) * 1472.0 / seconds / rate as f64,
        )
    };
    let (start, steady) = (of(0, 3.0), of(1, 20.0));
    Outcome {
        loss: [start.0, steady.0],
        used: [start.1, steady.1],
    }
}

/// The kernel's CUBIC loses 0.16 % at 10 Mbit/s once it has left slow start, where its window is a
/// few packets larger than what the path holds (`peers -- smoothness`).
#[test]
fn a_short_queue_drops_few_packets() {
    for (mbit_per_s, most) in [(10, [0.0075, 0.0025]), (50, [0.0075, 0.0005])] {
        let Outcome { loss, used } = send(mbit_per_s);
        println!(
            "{mbit_per_s} Mbit/s: {:.3} % and {:.3} % lost, {:.2} and {:.2} of the rate used",
            loss[0] * 100.0,
            loss[1] * 100.0,
            used[0],
            used[1]
        );
        // With quanta of a quarter of the window and credit of four packets for a full window, 10
        // Mbit/s lost 4.4 and 5.5 %.
        assert!(loss[0] < most[0] && loss[1] < most[1], "{loss:?}");
        assert!(used[1] > 0.75, "{used:?}");
    }
}
