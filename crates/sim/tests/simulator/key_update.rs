//! Key updates (RFC 9001 §6) while packets are lost and overtake each other.

use squall_core::{Stats, TransportConfig};
use squall_sim::{Failure, Plan, Simulation};
use squall_wire::Side;

use crate::common::{lossy, secs, seeds, setup, sweep};

/// 1 MB each way, with a key update by each side after this many packets.
fn run(seed: u64, after: [u64; 2], loss: f64) -> Result<[Stats; 2], Failure> {
    let mut setup = setup(seed, lossy(loss));
    setup.transport =
        after.map(|key_update_after| TransportConfig::default().key_update_after(key_update_after));
    let mut sim = Simulation::new(setup, Plan::one_stream(1_000_000));
    sim.run_until(secs(90), "1 MB each way", |sim| {
        sim.is_complete() || sim.parties.iter().any(|p| p.closed.is_some())
    })?;
    if !sim.is_complete() {
        let parties = sim.parties.each_ref().map(squall_sim::Party::describe);
        return Err(sim.pair.failure(parties.join("; ")));
    }
    Ok([Side::Client, Side::Server].map(|side| sim.pair.stats(side)))
}

// test: RFC 9001 §6.1, §6.2
#[test]
fn both_sides_update_many_times_under_loss() {
    for stats in sweep(&seeds(20), |seed| run(seed, [100, 100], 0.1)) {
        for stats in &stats {
            assert!(stats.key_updates > 3, "{stats:?}");
            assert_eq!(
                stats.packets_forged, 0,
                "a packet was opened with a wrong key"
            );
        }
        assert!(stats[0].key_updates.abs_diff(stats[1].key_updates) <= 1);
    }
}

// test: RFC 9001 §6.2 — the peer follows an update that it did not begin.
#[test]
fn one_side_initiates_and_the_other_follows() {
    for after in [[100, 7 << 20], [7 << 20, 100]] {
        for stats in sweep(&seeds(10), |seed| run(seed, after, 0.1)) {
            assert!(stats.iter().all(|s| s.key_updates > 3), "{stats:?}");
            assert!(stats.iter().all(|s| s.packets_forged == 0), "{stats:?}");
        }
    }
}

// test: RFC 9001 §6.5 — updates as often as the rules allow.
#[test]
fn updates_as_often_as_allowed_succeed() {
    for stats in sweep(&seeds(10), |seed| run(seed, [1, 1], 0.05)) {
        assert!(stats.iter().all(|s| s.key_updates > 5), "{stats:?}");
        assert!(stats.iter().all(|s| s.packets_forged == 0), "{stats:?}");
    }
}
