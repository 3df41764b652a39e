//! Addresses that change under a connection (RFC 9000 §8.2, §9): the server follows only its
//! client, sends at most three bytes for one until the new address is validated, and goes back if
//! it is not. The pair's guard checks the limit on every datagram.

use std::net::SocketAddr;

use squall_sim::{Elsewhere, Failure, Faults, Plan, Rng, Simulation};
use squall_wire::Side;

use crate::common::{lossy, ms, secs, seeds, setup, sweep};

fn elsewhere(n: u16) -> SocketAddr {
    SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], 1000 + n))
}

/// Both ends have read some bytes.
fn begun(seed: u64, faults: Faults, bytes: usize) -> Result<Simulation, Failure> {
    let mut sim = Simulation::new(setup(seed, faults), Plan::one_stream(bytes));
    sim.run_until(secs(60), "some bytes", |sim| {
        sim.parties.iter().all(|p| p.read > 50_000)
    })?;
    Ok(sim)
}

fn wrong<T>(sim: &Simulation, what: &str) -> Result<T, Failure> {
    let parties = sim.parties.each_ref().map(squall_sim::Party::describe);
    let stats = [Side::Client, Side::Server].map(|s| sim.pair.stats(s));
    Err(sim
        .pair
        .failure(format!("{what}: {}; {stats:?}", parties.join("; "))))
}

// test: RFC 9000 §9.3
#[test]
fn a_server_follows_a_client_after_a_nat_rebinding() {
    for other in [
        // Another port alone, and another host.
        SocketAddr::from(([10, 0, 0, 1], 50_001)),
        elsewhere(1),
    ] {
        sweep(&seeds(20), |seed| {
            let mut sim = begun(seed, lossy(0.05), 600_000)?;
            sim.pair.network().rebind(Side::Client, other);
            sim.run_until(secs(60), "all bytes", Simulation::is_complete)?;
            sim.run_for(secs(4))?;
            let stats = sim.pair.stats(Side::Server);
            let moved = sim
                .party(Side::Server)
                .moves
                .iter()
                .any(|(_, p)| p.remote == other);
            if !moved || stats.migrations == 0 || stats.paths_validated == 0 {
                return wrong(&sim, "the server did not move");
            }
            let path = sim.pair.connection(Side::Server).map(|c| c.path());
            if path.is_none_or(|p| p.remote != other) {
                return wrong(&sim, "the server is elsewhere");
            }
            Ok(())
        });
    }
}

// test: RFC 9000 §8.2.4: an attempt lasts long enough for a response, however long the path is and
// whatever RTT the settings expect
#[test]
fn a_more_distant_address_is_validated() {
    for (expected, delay) in [(ms(1), ms(45)), (ms(200), ms(1500))] {
        sweep(&seeds(20), |seed| {
            let near = Faults {
                delay: ms(5),
                elsewhere: Some(Elsewhere {
                    delay,
                    max_payload: 1472,
                }),
                ..lossy(0.05)
            };
            let mut setup = setup(seed, near);
            for transport in &mut setup.transport {
                transport.initial_rtt = expected;
                transport.max_idle_timeout = secs(300);
            }
            let mut sim = Simulation::new(setup, Plan::one_stream(600_000));
            sim.run_until(secs(60), "some bytes", |sim| {
                sim.parties.iter().all(|p| p.read > 50_000)
            })?;
            sim.pair.network().rebind(Side::Client, elsewhere(1));
            sim.run_until(secs(300), "all bytes", Simulation::is_complete)?;
            let stats = sim.pair.stats(Side::Server);
            if stats.migrations > 5 {
                return wrong(&sim, "the server goes to and fro");
            }
            Ok(())
        });
    }
}

// test: RFC 9000 §9.6 — a client drops what comes from an address that it did not choose.
#[test]
fn a_client_does_not_follow_its_server() {
    sweep(&seeds(10), |seed| {
        let mut sim = begun(seed, lossy(0.05), 300_000)?;
        let old = sim.pair.network().address(Side::Server);
        sim.pair.network().rebind(Side::Server, elsewhere(1));
        // Datagrams in flight from the old address still count.
        sim.run_for(ms(100))?;
        let read = sim.party(Side::Client).read;
        let dropped = sim.pair.stats(Side::Client).packets_dropped;
        sim.run_for(ms(1500))?;
        if sim.party(Side::Client).read != read {
            return wrong(&sim, "bytes came from another address");
        }
        if sim.pair.stats(Side::Client).packets_dropped == dropped {
            return wrong(&sim, "nothing was dropped");
        }
        sim.pair.network().rebind(Side::Server, old);
        sim.run_until(secs(60), "all bytes", Simulation::is_complete)
    });
}

// test: RFC 9000 §9 — disable_active_migration
#[test]
fn a_server_that_disables_migration_drops_packets_from_other_addresses() {
    sweep(&seeds(10), |seed| {
        let mut setup = setup(seed, lossy(0.05));
        setup.transport[Side::Server as usize].allow_migration = false;
        let mut sim = Simulation::new(setup, Plan::one_stream(300_000));
        sim.run_until(secs(60), "some bytes", |sim| {
            sim.parties.iter().all(|p| p.read > 50_000)
        })?;
        let old = sim.pair.network().address(Side::Client);
        sim.pair.network().rebind(Side::Client, elsewhere(1));
        sim.run_for(ms(100))?;
        let read = sim.party(Side::Server).read;
        sim.run_for(ms(1500))?;
        if sim.party(Side::Server).read != read || sim.pair.stats(Side::Server).migrations > 0 {
            return wrong(&sim, "bytes came from another address");
        }
        sim.pair.network().rebind(Side::Client, old);
        sim.run_until(secs(60), "all bytes", Simulation::is_complete)
    });
}

// test: RFC 9000 §9, §21.5 — SECURITY.md row 35
#[test]
fn migration_requires_a_confirmed_handshake() {
    sweep(&seeds(20), |seed| {
        let mut sim = Simulation::new(setup(seed, Faults::default()), Plan::one_stream(10_000));
        sim.run_until(secs(5), "the server has a connection", |sim| {
            sim.pair.live(Side::Server) == 1
        })?;
        let old = sim.pair.network().address(Side::Client);
        // The client still receives the server's packets, so it would be followed once it answers
        // them.
        sim.pair.network().spoof(Side::Client, Some(elsewhere(1)));
        let mut rng = Rng::new(seed);
        sim.run_for(secs(1) + rng.duration(secs(1)))?;
        let path = sim.pair.connection(Side::Server).map(|c| c.path());
        if path.is_none_or(|p| p.remote != old) {
            return wrong(&sim, "the server moved in the handshake");
        }
        let paths = sim.pair.connection(Side::Server).map_or(0, |c| c.paths());
        if paths != 1 || sim.connected().is_some() {
            return wrong(&sim, "the server listened to another address");
        }
        sim.pair.network().spoof(Side::Client, None);
        sim.run_until(secs(30), "all bytes", Simulation::is_complete)
    });
}

/// A connection whose client is seen at another address every 50 ms.
fn restless(
    sim: &mut Simulation,
    rounds: u16,
    address: impl Fn(u16) -> SocketAddr,
) -> Result<(), Failure> {
    for n in 0..rounds {
        sim.pair.network().rebind(Side::Client, address(n));
        sim.run_for(ms(50))?;
    }
    Ok(())
}

// test: RFC 9000 §9.3 — SECURITY.md row 34
#[test]
fn an_address_that_changes_every_50_ms_accumulates_no_state() {
    for same_host in [false, true] {
        sweep(&seeds(10), |seed| {
            let mut setup = setup(seed, lossy(0.02));
            // A client that only waits cannot be found when its address changes: it has to send
            // something.
            setup.transport[Side::Client as usize].keep_alive = Some(ms(500));
            let mut sim = Simulation::new(setup, Plan::one_stream(1_000_000));
            sim.run_until(secs(60), "some bytes", |sim| {
                sim.parties.iter().all(|p| p.read > 50_000)
            })?;
            let address = |n: u16| match same_host {
                true => SocketAddr::from(([10, 0, 0, 1], 1000 + n)),
                false => elsewhere(n),
            };
            restless(&mut sim, 200, address)?;
            let paths = sim.pair.connection(Side::Server).map_or(0, |c| c.paths());
            if !(1..=4).contains(&paths) {
                return wrong(&sim, &format!("{paths} paths"));
            }
            sim.run_until(secs(100), "all bytes", Simulation::is_complete)?;
            // Everything that was begun ends.
            sim.run_for(secs(20))?;
            let paths = sim.pair.connection(Side::Server).map_or(0, |c| c.paths());
            if paths != 1 {
                return wrong(&sim, &format!("{paths} paths at the end"));
            }
            if sim.pair.stats(Side::Server).migrations < 10 {
                return wrong(&sim, "the server did not follow");
            }
            Ok(())
        });
    }
}

// test: RFC 9000 §9.3.2 — SECURITY.md row 34
#[test]
fn a_server_returns_from_a_spoofed_address() {
    sweep(&seeds(20), |seed| {
        let mut sim = begun(seed, Faults::default(), 3_000_000)?;
        let old = sim.pair.network().address(Side::Client);
        // Genuine datagrams come from an address that reaches no host: the client stays where it
        // was.
        let victim = elsewhere(7);
        sim.pair.network().spoof(Side::Client, Some(victim));
        sim.run_for(ms(60))?;
        let moved = sim.pair.connection(Side::Server).map(|c| c.path().remote);
        if moved != Some(victim) {
            return wrong(&sim, "the server was not led astray");
        }
        // Nothing comes from the old address, so it is not the client that calls the server back.
        sim.run_until(secs(10), "the move has failed", |sim| {
            !sim.party(Side::Server).failed_moves.is_empty()
        })?;
        sim.pair.network().spoof(Side::Client, None);
        sim.run_until(secs(60), "all bytes", Simulation::is_complete)?;
        sim.run_for(secs(10))?;
        let back = sim.pair.connection(Side::Server).map(|c| c.path().remote);
        if back != Some(old) {
            return wrong(&sim, "the server did not come back");
        }
        Ok(())
    });
}

// test: RFC 9000 §9.3.2, §8.2.4 — the client is silent: only the validation's failure brings the
// server back.
#[test]
fn a_server_returns_from_an_unresponsive_address() {
    sweep(&seeds(20), |seed| {
        let mut sim = begun(seed, Faults::default(), 100_000)?;
        sim.run_until(secs(10), "all bytes", Simulation::is_complete)?;
        sim.run_for(secs(5))?;
        let old = sim.pair.network().address(Side::Client);
        let victim = elsewhere(7);
        sim.pair.network().spoof(Side::Client, Some(victim));
        // One PING of the client, from the wrong address; answers to it are lost while the client
        // is there.
        sim.pair.ping(Side::Client)?;
        sim.run_for(ms(15))?;
        sim.pair.network().spoof(Side::Client, None);
        sim.pair.vanish(Side::Client);
        let moved = sim.pair.connection(Side::Server).map(|c| c.path().remote);
        if moved != Some(victim) {
            return wrong(&sim, "the server was not led astray");
        }
        let began = sim.pair.now();
        sim.run_until(secs(29), "the server is back", |sim| {
            !sim.party(Side::Server).failed_moves.is_empty()
        })?;
        let took = sim.pair.now() - began;
        // RFC 9000 §8.2.4: three probe timeouts of an unknown path.
        if !(ms(1800)..ms(2400)).contains(&took) {
            return wrong(&sim, &format!("it took {took:?}"));
        }
        let back = sim.pair.connection(Side::Server).map(|c| c.path().remote);
        if back != Some(old) {
            return wrong(&sim, "the server did not come back");
        }
        Ok(())
    });
}
