//! The latency spin bit (RFC 9000 §17.4): an observer counts the round trips.

use squall_sim::{Faults, Plan, Simulation};
use squall_wire::Side;

use crate::common::{ms, secs, seeds, setup, sweep};

const DELAY: u64 = 20;

/// Edges in either direction and round trips of a transfer.
fn observe(seed: u64, spin_bit: [bool; 2]) -> Result<([u64; 2], u64), squall_sim::Failure> {
    let faults = Faults {
        delay: ms(DELAY),
        rate: Some(2_000_000),
        ..Faults::default()
    };
    let mut setup = setup(seed, faults);
    for (transport, spin_bit) in setup.transport.iter_mut().zip(spin_bit) {
        transport.spin_bit = spin_bit;
        // Without queues the delay is the round trip.
        transport.stream_send_window = 30_000;
    }
    let mut sim = Simulation::new(setup, Plan::one_stream(1_500_000));
    sim.run_until(secs(10), "both are connected", |sim| {
        sim.connected().is_some()
    })?;
    let before = sim.pair.now();
    sim.run_until(secs(60), "all bytes", Simulation::is_complete)?;
    let trips = (sim.pair.now() - before).as_millis() as u64 / (2 * DELAY);
    let edges = [Side::Client, Side::Server].map(|s| sim.pair.network().counters(s).spin_edges);
    Ok((edges, trips))
}

// test: RFC 9000 §17.4
#[test]
fn the_spin_bit_flips_once_per_round_trip_on_most_connections() {
    let runs = sweep(&seeds(48), |seed| observe(seed, [true; 2]));
    let mut spinning = 0;
    for (edges, trips) in &runs {
        // Constant at one end: no wave, and one edge at most.
        if edges.iter().any(|e| *e <= 1) {
            continue;
        }
        spinning += 1;
        for edges in edges {
            // Packets wait for acknowledgements, so that some round trips exceed the path's.
            assert!(
                (trips * 6 / 10..=trips + 2).contains(edges),
                "{edges} in {trips}"
            );
        }
    }
    // Each end disables it on one path in sixteen: the wave is missing on one in eight.
    let few = runs.len() * 7 / 10;
    assert!(
        runs.len() == 1 || (few..runs.len()).contains(&spinning),
        "{spinning}"
    );
}

#[test]
fn either_end_can_disable_the_spin_bit() {
    for off in [Side::Client, Side::Server] {
        let mut spin_bit = [true; 2];
        spin_bit[off as usize] = false;
        for (edges, _) in sweep(&seeds(16), |seed| observe(seed, spin_bit)) {
            assert!(edges.iter().all(|e| *e <= 2), "{off:?}: {edges:?}");
        }
    }
}
