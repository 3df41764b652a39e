//! One side falls silent for ever.

use std::time::Duration;

use squall_core::{CloseReason, TransportConfig};
use squall_sim::{Failure, Faults, Plan, Simulation};
use squall_wire::Side;

use crate::common::{lossy, ms, secs, setup, sweep};

fn plan() -> Plan {
    Plan::one_stream(1_000_000)
}

/// Time from now until one side's connection has ended, and how.
fn until_end(
    sim: &mut Simulation,
    side: Side,
    within: Duration,
) -> Result<(Duration, CloseReason), Failure> {
    let now = sim.pair.now();
    sim.run_until(within, "the end", |sim| sim.party(side).closed.is_some())?;
    sim.run_until(secs(5), "the endpoint forgets it", |sim| {
        sim.pair.live(side) == 0
    })?;
    let reason = sim.party(side).closed.clone();
    let reason = reason.ok_or_else(|| sim.pair.failure("no reason"))?;
    Ok((sim.pair.now() - now, reason))
}

// test: RFC 9000 §10.1
#[test]
fn the_other_side_times_out() {
    for silent in [Side::Client, Side::Server] {
        for seed in 0..10 {
            let mut sim = Simulation::new(setup(seed, lossy(0.05)), plan());
            sim.run_until(secs(60), "some bytes", |sim| {
                sim.parties.iter().all(|p| p.read > 100_000)
            })
            .unwrap();
            sim.pair.vanish(silent);
            let probes = sim.pair.stats(silent.peer()).datagrams_sent;
            let (time, reason) = until_end(&mut sim, silent.peer(), secs(100)).unwrap();
            assert_eq!(reason, CloseReason::IdleTimeout);
            // Packets in flight are still received, and the first packet sent after that restarts
            // the timer.
            assert!((ms(29_500)..secs(31)).contains(&time), "{time:?}");
            let probes = sim.pair.stats(silent.peer()).datagrams_sent - probes;
            // RFC 9002 §6.2.1: two datagrams for each doubling of the probe timeout, after the rest
            // of the window.
            assert!(
                (2..100).contains(&probes),
                "{probes} datagrams into the void"
            );
        }
    }
}

#[test]
fn an_idle_connection_times_out_at_both_sides() {
    let mut sim = Simulation::new(setup(1, Faults::default()), Plan::one_stream(1000));
    sim.run_until(secs(1), "all bytes", Simulation::is_complete)
        .unwrap();
    let before = sim.pair.now();
    sim.run_until(secs(60), "both ends", |sim| {
        sim.parties.iter().all(|p| p.closed.is_some())
    })
    .unwrap();
    for party in &sim.parties {
        assert_eq!(party.closed, Some(CloseReason::IdleTimeout));
    }
    let time = sim.pair.now() - before;
    assert!((secs(29)..secs(31)).contains(&time), "{time:?}");
}

// test: RFC 9000 §10.1.2
#[test]
fn keep_alive_keeps_an_idle_connection() {
    let mut setup = setup(1, lossy(0.1));
    setup.transport[0].keep_alive = Some(secs(8));
    let mut sim = Simulation::new(setup, Plan::one_stream(1000));
    sim.run_for(secs(600)).unwrap();
    assert!(sim.is_complete() && sim.parties.iter().all(|p| p.closed.is_none()));
    let sent = sim.pair.stats(Side::Client).datagrams_sent;
    assert!((75..250).contains(&sent), "{sent} datagrams in ten minutes");
}

// test: RFC 9000 §10.1 — what was processed before is no sign of life.
#[test]
fn replays_do_not_keep_a_connection_alive() {
    for silent in [Side::Client, Side::Server] {
        let mut sim = Simulation::new(setup(1, Faults::default()), Plan::one_stream(1000));
        sim.run_for(secs(1)).unwrap();
        sim.pair.vanish(silent);
        let alive = silent.peer();
        let duplicates = sim.pair.stats(alive).packets_duplicate;
        for _ in 0..28 {
            sim.run_for(secs(1)).unwrap();
            sim.pair.replay(alive).unwrap();
        }
        assert!(sim.pair.stats(alive).packets_duplicate >= duplicates + 28);
        let (time, reason) = until_end(&mut sim, alive, secs(60)).unwrap();
        assert_eq!(reason, CloseReason::IdleTimeout);
        assert!(time < secs(3), "{time:?} after 28 s of replays");
    }
}

#[test]
fn a_silent_server_causes_a_handshake_timeout() {
    let mut sim = Simulation::new(setup(1, Faults::default()), plan());
    sim.pair.vanish(Side::Server);
    let (time, reason) = until_end(&mut sim, Side::Client, secs(60)).unwrap();
    assert_eq!(reason, CloseReason::HandshakeTimeout);
    assert_eq!(time, secs(10));
    // RFC 9002 §6.2.1: the hello, and its probes after 1, 3 and 7 seconds.
    let sent = sim.pair.stats(Side::Client).datagrams_sent;
    assert!((4..=10).contains(&sent), "{sent} datagrams");
}

// test: RFC 9000 §8.1 — the guard of the pair checks each datagram.
#[test]
fn a_silent_client_causes_a_handshake_timeout_and_no_flood() {
    let seeds: Vec<u64> = (0..20).collect();
    sweep(&seeds, |seed| {
        let mut sim = Simulation::new(setup(seed, lossy(0.1)), plan());
        sim.run_until(secs(60), "the server has a connection", |sim| {
            sim.pair.live(Side::Server) == 1
        })?;
        sim.pair.vanish(Side::Client);
        let (time, reason) = until_end(&mut sim, Side::Server, secs(60))?;
        assert_eq!(reason, CloseReason::HandshakeTimeout);
        assert!((ms(9_999)..=secs(10)).contains(&time), "{time:?}");
        let stats = sim.pair.stats(Side::Server);
        assert!(stats.bytes_sent > 0 && stats.bytes_sent <= 3 * stats.bytes_received);
        Ok(())
    });
}

#[test]
fn settings_control_the_timeouts() {
    let mut setup = setup(1, Faults::default());
    setup.transport = [secs(5), secs(70)].map(|max_idle_timeout| {
        TransportConfig::default()
            .max_idle_timeout(max_idle_timeout)
            .handshake_timeout(secs(3))
    });
    let mut sim = Simulation::new(setup.clone(), plan());
    sim.pair.vanish(Side::Server);
    let (time, reason) = until_end(&mut sim, Side::Client, secs(60)).unwrap();
    assert_eq!((time, reason), (secs(3), CloseReason::HandshakeTimeout));
    // RFC 9000 §10.1: the smaller of both, at both ends.
    for silent in [Side::Client, Side::Server] {
        let mut sim = Simulation::new(setup.clone(), plan());
        sim.run_until(secs(5), "both ends are connected", |sim| {
            sim.connected().is_some()
        })
        .unwrap();
        sim.pair.vanish(silent);
        let (time, reason) = until_end(&mut sim, silent.peer(), secs(100)).unwrap();
        assert_eq!(reason, CloseReason::IdleTimeout);
        assert!((secs(5)..secs(6)).contains(&time), "{time:?}");
    }
}

/// With a short round trip, all doublings of the probe timeout are over within seconds. The timer
/// of a server that may send nothing more must then stop rather than be due for ever.
#[test]
fn a_client_that_vanishes_after_its_hello_costs_the_server_nothing() {
    let seeds: Vec<u64> = (0..90).collect();
    sweep(&seeds, |seed| {
        let faults = Faults {
            delay: ms(1),
            ..Faults::default()
        };
        let mut setup = setup(seed, faults);
        // Certificates of all sizes: some leave a few bytes of credit that no packet fits into.
        let mut names = vec![squall_sim::SERVER_NAME.to_owned()];
        names.extend((0..200 + seed).map(|n| format!("host-{n:03}.example")));
        setup.tls = squall_sim::tls_with(&names).unwrap();
        setup.transport[Side::Server as usize].initial_rtt = ms(1);
        let mut sim = Simulation::new(setup, plan());
        sim.run_until(secs(1), "the server has a connection", |sim| {
            sim.pair.live(Side::Server) == 1
        })?;
        sim.pair.vanish(Side::Client);
        let before = sim.pair.steps();
        let (_, reason) = until_end(&mut sim, Side::Server, secs(60))?;
        assert_eq!(reason, CloseReason::HandshakeTimeout);
        let steps = sim.pair.steps() - before;
        assert!(steps < 50, "{steps} wake-ups for a peer that is gone");
        Ok(())
    });
}

/// A waiting end sends PINGs ever more rarely. Once the interval no longer doubles, the timer must
/// still advance: it was due at once, for ever, after 1,024 times the first interval.
#[test]
fn a_server_that_stays_silent_is_probed_rarely() {
    let mut setup = setup(1, Faults::default());
    for transport in &mut setup.transport {
        transport.max_idle_timeout = secs(6000);
    }
    let mut sim = Simulation::new(setup, Plan::one_stream(1_000_000));
    sim.run_until(secs(5), "data is under way", |sim| {
        sim.parties.iter().all(|p| p.read > 100_000)
    })
    .unwrap();
    sim.pair.vanish(Side::Server);
    sim.run_for(secs(20)).unwrap();
    let before = sim.pair.steps();
    let (_, reason) = until_end(&mut sim, Side::Client, secs(7000)).unwrap();
    assert_eq!(reason, CloseReason::IdleTimeout);
    let steps = sim.pair.steps() - before;
    assert!(steps < 1000, "{steps} wake-ups for a peer that is gone");
}
