//! Addresses that change: this end does not follow (disable_active_migration says so), and nothing breaks.

mod common;

use std::net::SocketAddr;

use common::{lossy, ms, secs, seeds, setup, sweep};
use squall_sim::{Plan, Simulation};
use squall_wire::Side;

// test: RFC 9000 §9
#[test]
fn datagrams_from_another_address_are_dropped() {
    for moving in [Side::Client, Side::Server] {
        sweep(&seeds(10), |seed| {
            let mut sim = Simulation::new(setup(seed, lossy(0.05)), Plan::one_stream(300_000));
            sim.run_until(secs(60), "some bytes", |sim| {
                sim.parties.iter().all(|p| p.read > 50_000)
            })?;
            let old = sim.pair.network().address(moving);
            let other = SocketAddr::from(([10, 1, 2, 3], 999));
            sim.pair.network().rebind(moving, other);
            // What is under way from the old address still counts.
            sim.run_for(ms(100))?;
            let read = sim.party(moving.peer()).read;
            let dropped = sim.pair.stats(moving.peer()).packets_dropped;
            sim.run_for(ms(1500))?;
            if sim.party(moving.peer()).read != read {
                return Err(sim.pair.failure("bytes came from another address"));
            }
            if sim.pair.stats(moving.peer()).packets_dropped == dropped {
                return Err(sim.pair.failure("nothing was dropped"));
            }
            sim.pair.network().rebind(moving, old);
            sim.run_until(secs(60), "all bytes", Simulation::is_complete)
        });
    }
}
