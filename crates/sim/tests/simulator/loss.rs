//! Transfers on bad networks: every byte arrives, in time, and nothing is left over. The invariants
//! of every datagram (sizes, the amplification limit) are checked in all of them.

use squall_core::TransportConfig;
use squall_sim::{Fault, Faults, Plan, Simulation, run_seed};

use crate::common::{ms, secs, seeds, setup, sweep};

#[test]
fn trials_end_as_required() {
    let seeds = seeds(200);
    let reports = sweep(&seeds, run_seed);
    for fault in Fault::ALL {
        let times = reports.iter().filter(|r| r.faults.contains(&fault)).count();
        println!("{times} of {}: {}", reports.len(), fault.name());
        assert!(times > 0 || seeds.len() < 200, "{fault:?}");
    }
    for report in &reports {
        let dark = [Fault::Blackhole, Fault::Silence, Fault::MtuChange];
        if dark.iter().any(|fault| report.faults.contains(fault)) {
            continue;
        }
        // RFC 9002 §6.1: the packets declared lost are roughly those that the network lost, or that
        // jitter delayed.
        for stats in &report.stats {
            assert!(stats.packets_lost <= stats.packets_sent / 2, "{report:?}");
        }
    }
}

/// Trials that have failed, and that no other test repeats: a client whose certificate filled its
/// window did not answer challenges.
#[test]
fn trials_that_once_failed_succeed() {
    sweep(&[111_175], run_seed);
}

#[test]
fn running_a_seed_twice_gives_the_same_result() {
    for seed in [3, 4] {
        let (first, second) = (run_seed(seed).unwrap(), run_seed(seed).unwrap());
        assert_eq!(first.steps, second.steps);
        assert_eq!(first.counters, second.counters);
        assert_eq!(
            (first.handshake, first.transfer),
            (second.handshake, second.transfer)
        );
    }
    assert_ne!(run_seed(3).unwrap().counters, run_seed(4).unwrap().counters);
}

/// An acknowledgement that was lost is repeated with later data. If the time until then counted as
/// a sample of the RTT, the probe timeout would grow, and the next repetition would come later.
#[test]
fn lost_acknowledgements_do_not_inflate_the_rtt() {
    let mut times = sweep(&seeds(100), |seed| {
        let faults = Faults {
            delay: ms(30),
            loss: 0.4,
            ..Faults::default()
        };
        let mut setup = setup(seed, faults);
        setup.transport = [(); 2].map(|()| {
            TransportConfig::default()
                .handshake_timeout(secs(4000))
                .max_idle_timeout(secs(4000))
        });
        let mut sim = Simulation::new(setup, Plan::one_stream(100_000));
        sim.run_until(secs(4000), "both ends are connected", |sim| {
            sim.connected().is_some()
        })?;
        let began = sim.pair.now();
        sim.run_until(secs(4000), "100 kB each way", Simulation::is_complete)?;
        Ok(sim.pair.now() - began)
    });
    times.sort();
    let [median, ninth_decile] = [50, 90].map(|percent| times[times.len() * percent / 100]);
    println!("{median:?}, {ninth_decile:?}");
    assert!(median < secs(9) && ninth_decile < secs(18), "{times:?}");
}
