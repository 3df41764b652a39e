//! What loss, reordering and duplication cost a transfer, in virtual time.

use std::time::Duration;

use squall_core::{CongestionAlgorithm, Stats};
use squall_sim::{Faults, Outgoing, Pair, Plan, Simulation};
use squall_wire::Side;

use crate::common::{ms, secs, seeds, setup, sweep};

/// Bytes of a stream; a plan allows no larger ones.
const STREAM: usize = 2_000_000;

/// The results of transfers from client to server, one per seed.
struct Outcome {
    took: Duration,
    stats: Stats,
    /// The client's datagrams that the network lost or damaged.
    lost: u64,
}

/// Transfers `streams` times 2 MB through `faults` each way.
fn transfers(faults: &Faults, algorithm: CongestionAlgorithm, streams: usize) -> Vec<Outcome> {
    let outcomes = sweep(&seeds(8), |seed| {
        let mut setup = setup(seed, faults.clone());
        for transport in &mut setup.transport {
            transport.congestion = algorithm;
        }
        let mut opened = vec![Outgoing::one_way(STREAM); streams];
        opened.push(Outgoing::both_ways(1, 1));
        let plan = Plan {
            streams: [opened, Vec::new()],
            ..Plan::default()
        };
        let mut sim = Simulation::new(setup, plan);
        sim.run_until(secs(300), "all is there", Simulation::is_complete)?;
        let counters = sim.pair.network().counters(Side::Client);
        Ok(Outcome {
            took: sim.pair.now() - Pair::start(),
            stats: sim.pair.stats(Side::Client),
            lost: counters.lost + counters.corrupted + counters.queue_dropped,
        })
    });
    for Outcome { took, stats, lost } in &outcomes {
        println!(
            "{algorithm:?}: {took:.2?}; {} declared lost, {} spuriously, {lost} were; {} reductions, {} undone; {} probe timeouts",
            stats.packets_lost,
            stats.spurious_losses,
            stats.congestion_events,
            stats.reductions_undone,
            stats.probe_timeouts
        );
    }
    outcomes
}

fn mean(outcomes: &[Outcome]) -> Duration {
    let sum: Duration = outcomes.iter().map(|outcome| outcome.took).sum();
    sum / outcomes.len() as u32
}

/// 10 MB through 2 % loss, 2 % duplication, 5 % reordering by up to 3 ms and 1 % corruption, 5 ms
/// each way.
#[test]
fn a_bad_network_is_recovered_from_quickly() {
    let faults = Faults {
        delay: ms(5),
        jitter: ms(3),
        reordering: 0.05,
        loss: 0.02,
        duplication: 0.02,
        corruption: 0.01,
        ..Faults::default()
    };
    for algorithm in [CongestionAlgorithm::Cubic, CongestionAlgorithm::Bbr] {
        let outcomes = transfers(&faults, algorithm, 5);
        for outcome in &outcomes {
            // Nearly half of all losses were spurious.
            assert!(outcome.stats.packets_lost * 10 < outcome.lost * 12);
        }
        // 16.8 s without adaptive thresholds and undone reductions.
        assert!(mean(&outcomes) < secs(6), "{:?}", mean(&outcomes));
    }
}

/// 10 MB through 5 % loss each way and no delay: most losses are at the end of a small window.
#[test]
fn loss_without_delay_recovers_quickly() {
    let faults = Faults {
        delay: Duration::from_micros(50),
        loss: 0.05,
        ..Faults::default()
    };
    let outcomes = transfers(&faults, CongestionAlgorithm::Cubic, 5);
    // 2.05 s if each probe timeout includes the acknowledgement delay.
    assert!(mean(&outcomes) < ms(500), "{:?}", mean(&outcomes));
}

/// 20 MB over 100 Mbit/s and 40 ms, where 5 % of the packets are overtaken and none is lost except
/// to a full queue.
#[test]
fn reordering_is_not_mistaken_for_loss() {
    let faults = Faults {
        delay: ms(20),
        jitter: ms(4),
        reordering: 0.05,
        rate: Some(12_500_000),
        queue: 500_000,
        ..Faults::default()
    };
    for algorithm in [
        CongestionAlgorithm::Cubic,
        CongestionAlgorithm::NewReno,
        CongestionAlgorithm::Bbr,
    ] {
        let outcomes = transfers(&faults, algorithm, 10);
        // 50 s (CUBIC), 60 s (NewReno) and 10 s (BBR) with fixed thresholds.
        assert!(mean(&outcomes) < ms(2500), "{:?}", mean(&outcomes));
    }
}

/// 40 MB over 50 Mbit/s and 50 ms with 1 % random loss, which is below BBR's threshold.
#[test]
fn bbr_keeps_its_rate_at_one_percent_loss() {
    let faults = Faults {
        delay: ms(25),
        loss: 0.01,
        rate: Some(6_250_000),
        queue: 312_500,
        ..Faults::default()
    };
    let streams = 20;
    let outcomes = transfers(&faults, CongestionAlgorithm::Bbr, streams);
    let megabits = (8 * streams * STREAM) as f64 / 1e6 / mean(&outcomes).as_secs_f64();
    // 36.6 if any loss in a round lowers the bounds, 45.4 without loss, including the handshake.
    assert!(megabits >= 40.0, "{megabits:.1} Mbit/s");
}
