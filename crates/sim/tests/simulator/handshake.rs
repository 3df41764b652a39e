//! Handshakes in which many datagrams are lost.

use squall_core::TransportConfig;
use squall_sim::{Faults, Outgoing, Plan, Simulation};

use crate::common::{lossy, ms, secs, setup, sweep};

#[test]
fn all_fifty_handshakes_succeed_at_thirty_percent_loss() {
    let seeds: Vec<u64> = (0..50).collect();
    let times = sweep(&seeds, |seed| {
        let mut setup = setup(seed, lossy(0.3));
        // Probe timeouts double: a few unlucky flights take a minute.
        setup.transport = [(); 2].map(|()| {
            TransportConfig::default()
                .handshake_timeout(secs(300))
                .max_idle_timeout(secs(300))
        });
        let mut sim = Simulation::new(setup, Plan::one_stream(1000));
        sim.run_until(secs(300), "both ends are connected", |sim| {
            sim.connected().is_some()
        })?;
        let time = sim.pair.now() - squall_sim::Pair::start();
        sim.run_until(secs(60), "1,000 bytes each way", Simulation::is_complete)?;
        Ok(time)
    });
    let quick = times.iter().filter(|time| **time < secs(10)).count();
    assert!(quick >= 45, "only {quick} of 50 within 10 s: {times:?}");
}

#[test]
fn the_handshake_takes_one_and_a_half_round_trips() {
    let mut sim = Simulation::new(setup(1, Faults::default()), Plan::one_stream(1));
    sim.run_until(secs(1), "both ends are connected", |sim| {
        sim.connected().is_some()
    })
    .unwrap();
    // 10 ms each way: hello, answer, Finished.
    let time = sim.pair.now() - squall_sim::Pair::start();
    assert!((ms(30)..ms(31)).contains(&time), "{time:?}");
    let client = sim.parties[0].connected.unwrap() - squall_sim::Pair::start();
    assert!((ms(20)..ms(21)).contains(&client), "{client:?}");
}

/// A client's first data may fill the window before the server has its Finished. If that is lost,
/// it must not wait for room that only the acknowledgement of the data after it would make.
#[test]
fn a_window_full_of_data_does_not_block_the_handshake() {
    let seeds: Vec<u64> = (0..200).collect();
    sweep(&seeds, |seed| {
        let mut setup = setup(seed, lossy(0.2));
        for transport in &mut setup.transport {
            transport.handshake_timeout = secs(120);
            transport.max_idle_timeout = secs(120);
        }
        let plan = Plan {
            streams: [vec![Outgoing::one_way(100_000)], Vec::new()],
            ..Plan::default()
        };
        let mut sim = Simulation::new(setup, plan);
        sim.run_until(secs(60), "both ends are connected", |sim| {
            sim.connected().is_some()
        })
    });
}
