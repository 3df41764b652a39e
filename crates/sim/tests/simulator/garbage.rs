//! Datagrams that are damaged, cut, fabricated or old: none of them changes a byte of the transfer.

use squall_core::TransportConfig;
use squall_sim::{Failure, Faults, Intrusion, Plan, Rng, Setup, Simulation};
use squall_wire::Side;

use crate::common::{lossy, ms, secs, seeds, setup, sweep};

fn run(mut setup: Setup, bytes: usize) -> Result<Simulation, Failure> {
    setup.transport = [(); 2].map(|()| {
        TransportConfig::default()
            .handshake_timeout(secs(60))
            .key_update_after(200)
    });
    let mut sim = Simulation::new(setup, Plan::one_stream(bytes));
    sim.run_until(secs(120), "all bytes", |sim| {
        sim.is_complete() || sim.parties.iter().any(|p| p.closed.is_some())
    })?;
    if !sim.is_complete() {
        let parties = sim.parties.each_ref().map(squall_sim::Party::describe);
        return Err(sim.pair.failure(parties.join("; ")));
    }
    Ok(sim)
}

#[test]
fn corrupted_and_truncated_datagrams_change_nothing() {
    sweep(&seeds(10), |seed| {
        let faults = Faults {
            corruption: 0.1,
            truncation: 0.1,
            ..lossy(0.0)
        };
        let sim = run(setup(seed, faults), 300_000)?;
        let forged: u64 = [Side::Client, Side::Server]
            .map(|side| sim.pair.stats(side).packets_forged)
            .iter()
            .sum();
        if forged == 0 {
            return Err(sim.pair.failure("no packet was damaged"));
        }
        Ok(())
    });
}

// test: RFC 9000 §12.3
#[test]
fn duplicating_every_datagram_changes_nothing() {
    sweep(&seeds(10), |seed| {
        let faults = Faults {
            duplication: 1.0,
            reordering: 0.5,
            jitter: ms(30),
            ..lossy(0.05)
        };
        let sim = run(setup(seed, faults), 300_000)?;
        for side in [Side::Client, Side::Server] {
            let stats = sim.pair.stats(side);
            if stats.packets_duplicate < stats.packets_received / 2 {
                return Err(sim.pair.failure(format!("{side:?}: {stats:?}")));
            }
        }
        Ok(())
    });
}

#[test]
fn forged_replayed_and_relocated_datagrams_change_nothing() {
    sweep(&seeds(20), |seed| {
        let mut setup = setup(seed, lossy(0.02));
        setup.intrusion = Intrusion {
            replay: 0.5,
            damage: 0.5,
            noise: 0.5,
            elsewhere: 0.5,
        };
        let sim = run(setup, 300_000)?;
        if sim.pair.intrusions() < 100 {
            return Err(sim.pair.failure("the intruder slept"));
        }
        Ok(())
    });
}

/// Before, during and after the handshake, at both ends: random bytes of every length up to 1,600.
#[test]
fn noise_at_any_time_changes_nothing() {
    sweep(&seeds(10), |seed| {
        let mut sim = Simulation::new(setup(seed, lossy(0.02)), Plan::one_stream(100_000));
        let mut rng = Rng::new(!seed);
        while !sim.is_complete() {
            for to in [Side::Client, Side::Server] {
                let mut bytes = vec![0; 1 + rng.below(1600) as usize];
                rng.fill(&mut bytes);
                if rng.chance(0.5) {
                    // A version 1 long header, so that the parser gets further.
                    let front = [0xc0 | bytes[0], 0, 0, 0, 1, 8];
                    let front = &front[..front.len().min(bytes.len())];
                    bytes[..front.len()].copy_from_slice(front);
                }
                let source = sim.pair.network().address(to.peer());
                sim.pair.inject(to, source, bytes)?;
            }
            sim.run_for(ms(3))?;
            if sim.pair.now() - squall_sim::Pair::start() > secs(60) {
                return Err(sim.pair.failure("not done in a minute"));
            }
        }
        Ok(())
    });
}
