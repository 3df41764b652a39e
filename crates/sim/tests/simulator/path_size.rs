//! Path MTU discovery (RFC 8899): the path MTU is found in a few round trips, even if nothing else
//! is sent, and found again when it changes. Routers are ignored (RFC 9000 §14.2.1): the network
//! silently drops what is too large.

use std::time::Duration;

use squall_sim::{Failure, Faults, Outgoing, Plan, Setup, Simulation};
use squall_wire::Side;

use crate::common::{lossy, ms, secs, seeds, setup, sweep};

const SIDES: [Side; 2] = [Side::Client, Side::Server];
/// Round trip of the networks here.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Sizes below the best that are good enough.
const NEAR: usize = 16;

/// Both ends search for sizes up to `limit` on a path that carries `max_payload`.
fn with(seed: u64, limit: u16, max_payload: usize, faults: &Faults) -> Setup {
    let mut setup = setup(
        seed,
        Faults {
            max_payload,
            ..faults.clone()
        },
    );
    for transport in &mut setup.transport {
        transport.max_udp_payload = limit;
        transport.max_ack_delay = ms(5);
        transport.max_idle_timeout = secs(3000);
    }
    setup
}

/// A configured size is used from the first packet after the handshake, and given up if the path
/// does not carry it.
#[test]
fn a_configured_size_needs_no_search() {
    for (max_payload, discovery) in [(1472, false), (1300, true), (1300, false)] {
        let mut setup = with(1, 1472, max_payload, &Faults::default());
        for transport in &mut setup.transport {
            transport.initial_udp_payload = 1472;
            transport.mtu_discovery = discovery;
        }
        let mut sim = Simulation::new(setup, Plan::one_stream(1_000_000));
        sim.run_until(secs(5), "both are connected", |sim| {
            sim.connected().is_some()
        })
        .unwrap();
        for side in SIDES {
            assert_eq!(sim.pair.stats(side).max_udp_payload, 1472);
        }
        sim.run_until(secs(30), "all is there", Simulation::is_complete)
            .unwrap();
        let sizes = SIDES.map(|side| sim.pair.stats(side).max_udp_payload);
        match (max_payload, discovery) {
            (1472, _) => assert_eq!(sizes, [1472; 2]),
            (_, true) => assert!(has_found(&sim, 1300), "{sizes:?}"),
            // Only the end that sends large packets finds out.
            (_, false) => assert!(sizes.contains(&1200), "{sizes:?}"),
        }
    }
}

fn change(sim: &mut Simulation, max_payload: usize, faults: &Faults) {
    for side in SIDES {
        let faults = Faults {
            max_payload,
            ..faults.clone()
        };
        sim.pair.network().set_faults(side, faults);
    }
}

fn has_found(sim: &Simulation, best: usize) -> bool {
    SIDES.iter().all(|side| {
        let found = usize::from(sim.pair.stats(*side).max_udp_payload);
        (best - NEAR..=best).contains(&found)
    })
}

// test: RFC 8899 §5.3 — idle paths, jumbo frames and loopback, once the applications ask how large
// a datagram may be.
#[test]
fn an_idle_path_is_probed_within_a_few_round_trips() {
    for (limit, max_payload, trips) in [
        (1472, 1472, 3),
        (1472, 1400, 14),
        (9000, 1472, 14),
        (9000, 8972, 5),
        (9000, 9000, 5),
        (65_000, 1472, 20),
        (65_000, 65_000, 8),
    ] {
        let setup = with(1, limit, max_payload, &Faults::default());
        let mut sim = Simulation::new(setup, Plan::one_stream(100));
        sim.run_until(secs(5), "both are connected", |sim| {
            sim.connected().is_some()
        })
        .unwrap();
        for side in SIDES {
            let _ = sim.pair.connection(side).unwrap().max_datagram_size();
            sim.pair.pump(side).unwrap();
        }
        let began = sim.pair.now();
        let best = max_payload.min(limit.into());
        sim.run_until(secs(20), "the size is found", |sim| has_found(sim, best))
            .unwrap();
        let took = sim.pair.now() - began;
        assert!(
            took <= trips * ROUND_TRIP,
            "{max_payload} of {limit}: {took:?}"
        );
    }
}

/// Most connections send little and gain nothing from larger packets. Others soon do.
#[test]
fn a_path_is_probed_once_there_is_enough_to_send() {
    for (bytes, searched) in [(8_000, false), (50_000, true)] {
        let setup = with(1, 1472, 1472, &Faults::default());
        let mut sim = Simulation::new(setup, Plan::one_stream(bytes));
        sim.run_until(secs(20), "all bytes", Simulation::is_complete)
            .unwrap();
        sim.run_for(secs(1000)).unwrap();
        for side in SIDES {
            let size = sim.pair.stats(side).max_udp_payload;
            assert_eq!(
                size,
                if searched { 1472 } else { 1200 },
                "{side:?}, {bytes}"
            );
        }
    }
}

fn transfer(setup: Setup) -> Result<Simulation, Failure> {
    let plan = Plan {
        streams: [
            vec![Outgoing::both_ways(2_000_000, 2_000_000); 3],
            Vec::new(),
        ],
        ..Plan::default()
    };
    let mut sim = Simulation::new(setup, plan);
    sim.run_until(secs(100), "some bytes", |sim| {
        sim.parties.iter().all(|p| p.read > 400_000)
    })?;
    Ok(sim)
}

// test: RFC 8899 §4.3 — SECURITY.md row 36
#[test]
fn a_path_mtu_that_shrinks_under_load_is_detected() {
    for loss in [0.0, 0.02] {
        sweep(&seeds(20), |seed| {
            let faults = Faults {
                rate: Some(1_250_000),
                queue: 100_000,
                ..lossy(loss)
            };
            let mut sim = transfer(with(seed, 1472, 1472, &faults))?;
            let before = sim.parties.each_ref().map(|p| p.read);
            let began = sim.pair.now();
            change(&mut sim, 1300, &faults);
            sim.run_until(secs(20), "bytes come again", |sim| {
                let parties = sim.parties.iter().zip(before);
                parties
                    .into_iter()
                    .all(|(p, before)| p.read > before + 500_000)
            })?;
            let took = sim.pair.now() - began;
            if took > secs(10) {
                return Err(sim.pair.failure(format!("it took {took:?}")));
            }
            sim.run_until(secs(100), "all bytes", Simulation::is_complete)?;
            for side in SIDES {
                let stats = sim.pair.stats(side);
                if stats.black_holes == 0 || stats.max_udp_payload > 1300 {
                    return Err(sim.pair.failure(format!("{side:?}: {stats:?}")));
                }
            }
            Ok(())
        });
    }
}

// test: RFC 8899 §5.1.1
#[test]
fn a_path_mtu_that_grows_is_detected_after_ten_minutes() {
    sweep(&seeds(20), |seed| {
        // In order, and without loss: the first search finds the size to the byte, or nearly.
        let faults = Faults::default();
        let mut setup = with(seed, 1472, 1300, &faults);
        setup.transport[Side::Client as usize].keep_alive = Some(secs(20));
        setup.transport[Side::Server as usize].keep_alive = Some(secs(20));
        let mut sim = Simulation::new(setup, Plan::one_stream(100_000));
        sim.run_until(secs(20), "all bytes", Simulation::is_complete)?;
        sim.run_for(secs(20))?;
        if !has_found(&sim, 1300) {
            return Err(sim.pair.failure("the size was not found"));
        }
        change(&mut sim, 1472, &faults);
        sim.run_for(secs(500))?;
        if has_found(&sim, 1472) {
            return Err(sim.pair.failure("that was too soon"));
        }
        // The next packet after ten minutes begins a search.
        sim.run_until(secs(240), "the size is found", |sim| has_found(sim, 1472))
    });
}

/// Heavy loss is not mistaken for a black hole for long: the size is found again.
#[test]
fn a_lossy_path_keeps_its_size() {
    sweep(&seeds(20), |seed| {
        let mut sim = transfer(with(seed, 1472, 1472, &lossy(0.2)))?;
        sim.run_until(secs(300), "all bytes", Simulation::is_complete)?;
        sim.run_for(secs(5))?;
        if !has_found(&sim, 1472) {
            let stats = SIDES.map(|s| sim.pair.stats(s));
            return Err(sim.pair.failure(format!("{stats:?}")));
        }
        Ok(())
    });
}

// test: RFC 8899 §4.3 — with windows of a few packets, chance alone loses several large ones in a
// row.
#[test]
fn random_loss_is_not_mistaken_for_a_black_hole() {
    sweep(&seeds(20), |seed| {
        let faults = Faults {
            delay: Duration::from_micros(50),
            ..lossy(0.05)
        };
        let mut sim = transfer(with(seed, 1472, 1472, &faults))?;
        sim.run_until(secs(300), "all bytes", Simulation::is_complete)?;
        for side in SIDES {
            let stats = sim.pair.stats(side);
            if stats.black_holes > 0 {
                return Err(sim.pair.failure(format!("{side:?}: {stats:?}")));
            }
        }
        Ok(())
    });
}
