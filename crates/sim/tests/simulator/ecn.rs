//! Explicit congestion notification (RFC 9000 §13.4): marks if the path carries them, none if it
//! does not, and less in flight if routers ask for it.

use squall_core::Stats;
use squall_sim::{EcnFault, Failure, Faults, Plan, Setup, Simulation};
use squall_wire::Side;

use crate::common::{lossy, ms, secs, seeds, setup, sweep};

fn run(setup: Setup) -> Result<[Stats; 2], Failure> {
    let mut sim = Simulation::new(setup, Plan::one_stream(1_000_000));
    sim.run_until(secs(60), "all bytes", Simulation::is_complete)?;
    Ok([Side::Client, Side::Server].map(|side| sim.pair.stats(side)))
}

// test: RFC 9000 §13.4.2
#[test]
fn both_ends_use_ecn_on_a_capable_path() {
    sweep(&seeds(20), |seed| {
        let mut sim = Simulation::new(setup(seed, lossy(0.05)), Plan::one_stream(1_000_000));
        sim.run_until(secs(60), "all bytes", Simulation::is_complete)?;
        for side in [Side::Client, Side::Server] {
            let stats = sim.pair.stats(side);
            if !stats.ecn_capable || stats.ecn_ce > 0 {
                return Err(sim.pair.failure(format!("{side:?}: {stats:?}")));
            }
        }
        Ok(())
    });
}

// test: RFC 9002 §7.1
#[test]
fn ce_marks_keep_the_queue_short_without_loss() {
    sweep(&seeds(20), |seed| {
        let faults = Faults {
            rate: Some(2_000_000),
            queue: 200_000,
            mark_above: 20_000,
            ..Faults::default()
        };
        let [marked, unmarked] = [true, false].map(|ecn| {
            let mut setup = setup(seed, faults.clone());
            for transport in &mut setup.transport {
                transport.ecn = ecn;
            }
            run(setup)
        });
        for (marked, unmarked) in marked?.iter().zip(&unmarked?) {
            assert!(
                marked.ecn_ce > 0 && marked.congestion_events > 0,
                "{marked:?}"
            );
            // Once per round trip: the marked packets are in the window that was already reduced.
            assert!(
                marked.congestion_events < marked.ecn_ce.max(2),
                "{marked:?}"
            );
            assert_eq!(marked.packets_lost, 0, "{marked:?}");
            assert_eq!((unmarked.ecn_ce, unmarked.ecn_capable), (0, false));
            assert!(
                marked.rtt < unmarked.rtt,
                "{:?} {:?}",
                marked.rtt,
                unmarked.rtt
            );
            assert!(marked.rtt < ms(60), "{:?}", marked.rtt);
        }
        Ok(())
    });
}

// test: RFC 9000 §13.4.2.1, §13.4.2.2 — SECURITY.md row 39
#[test]
fn a_path_that_mangles_ecn_gets_no_marks() {
    for ecn in [EcnFault::Erased, EcnFault::Changed, EcnFault::Dropped] {
        sweep(&seeds(20), |seed| {
            let faults = Faults { ecn, ..lossy(0.02) };
            for stats in run(setup(seed, faults))? {
                assert!(!stats.ecn_capable, "{ecn:?}: {stats:?}");
                assert_eq!(stats.ecn_ce, 0, "{ecn:?}");
            }
            Ok(())
        });
    }
}

/// RFC 9000 §13.4.2 cannot tell this from a congested path; the transfer is slow, but completes.
#[test]
fn a_path_that_marks_everything_still_works_slowly() {
    sweep(&seeds(20), |seed| {
        let faults = Faults {
            ecn: EcnFault::AllCongested,
            ..lossy(0.02)
        };
        for stats in run(setup(seed, faults))? {
            assert!(stats.ecn_ce > 0, "{stats:?}");
        }
        Ok(())
    });
}

// test: RFC 9000 §9.4, §13.4.2 — another path is another question.
#[test]
fn ecn_is_tested_again_on_a_new_path() {
    sweep(&seeds(20), |seed| {
        let mut sim = Simulation::new(setup(seed, lossy(0.02)), Plan::one_stream(2_000_000));
        sim.run_until(secs(60), "some bytes", |sim| {
            sim.parties.iter().all(|p| p.read > 300_000)
        })?;
        if !sim.pair.stats(Side::Server).ecn_capable {
            return Err(sim.pair.failure("not capable before"));
        }
        for side in [Side::Client, Side::Server] {
            let faults = Faults {
                ecn: EcnFault::Erased,
                ..lossy(0.02)
            };
            sim.pair.network().set_faults(side, faults);
        }
        let other = std::net::SocketAddr::from(([10, 7, 7, 7], 7));
        sim.pair.network().rebind(Side::Client, other);
        sim.run_until(secs(60), "all bytes", Simulation::is_complete)?;
        let stats = sim.pair.stats(Side::Server);
        if stats.ecn_capable || stats.migrations == 0 {
            return Err(sim.pair.failure(format!("{stats:?}")));
        }
        Ok(())
    });
}
