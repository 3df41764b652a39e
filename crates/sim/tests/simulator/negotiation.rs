//! Retry and version negotiation on a network that loses, repeats, damages and reorders.

use squall_core::TransportConfig;
use squall_sim::{Failure, Faults, Intrusion, Plan, Setup, Simulation};
use squall_wire::{Side, VERSION_1, VERSION_2};

use crate::common::{lossy, secs, seeds, setup, sweep};

fn faulty(seed: u64) -> Setup {
    let faults = Faults {
        duplication: 0.1,
        corruption: 0.05,
        ..lossy(0.15)
    };
    let mut setup = setup(seed, faults);
    setup.intrusion = Intrusion {
        replay: 0.1,
        damage: 0.1,
        noise: 0.05,
        elsewhere: 0.0,
    };
    setup.transport = [(); 2].map(|()| {
        TransportConfig::default()
            .handshake_timeout(secs(120))
            .max_idle_timeout(secs(120))
    });
    setup
}

fn transfer(setup: Setup) -> Result<Simulation, Failure> {
    let mut sim = Simulation::new(setup, Plan::one_stream(20_000));
    sim.run_until(secs(120), "20 kB each way", Simulation::is_complete)?;
    Ok(sim)
}

// test: SECURITY.md row 12
#[test]
fn every_client_is_sent_a_retry() {
    sweep(&seeds(200), |seed| {
        let mut setup = faulty(seed);
        setup.tune = |_, config| config.retry_from = 0;
        let sim = transfer(setup)?;
        // Each first packet without a token causes a Retry, even a repeated one, and never a
        // connection.
        match (sim.pair.live(Side::Server), sim.pair.retries(Side::Server)) {
            (1, 1..) => Ok(()),
            (connections, retries) => Err(sim.pair.failure(format!(
                "a server with {connections} connections, after {retries} Retries"
            ))),
        }
    });
}

#[test]
fn a_server_changes_to_a_compatible_version() {
    sweep(&seeds(200), |seed| {
        let mut setup = faulty(seed);
        for transport in &mut setup.transport {
            transport.versions = vec![VERSION_2, VERSION_1];
        }
        if seed % 2 == 1 {
            setup.tune = |_, config| config.retry_from = 0;
        }
        let mut sim = transfer(setup)?;
        for side in [Side::Client, Side::Server] {
            let version = sim.pair.connection(side).map(|c| c.version());
            if version != Some(VERSION_2) {
                return Err(sim.pair.failure(format!("{side:?}: version {version:x?}")));
            }
        }
        Ok(())
    });
}

#[test]
fn a_client_starts_over_in_the_servers_version() {
    sweep(&seeds(200), |seed| {
        let mut setup = faulty(seed);
        // Nothing protects a Version Negotiation packet: a damaged one may end the attempt (RFC
        // 9000 §6.2).
        setup.intrusion.damage = 0.0;
        setup.faults.iter_mut().for_each(|f| f.corruption = 0.0);
        setup.transport[Side::Server as usize].versions = vec![VERSION_2];
        let mut sim = transfer(setup)?;
        match sim.pair.connection(Side::Client).map(|c| c.version()) {
            Some(VERSION_2) => Ok(()),
            other => Err(sim.pair.failure(format!("version {other:x?}"))),
        }
    });
}
