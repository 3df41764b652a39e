//! Clients that move (RFC 9000 §9.2) and servers that ask them to (§9.6). The pair's guard checks
//! that no connection id is seen on two paths of a client.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use squall_core::{Connection, MigrateError, Move};
use squall_sim::{Failure, Outgoing, Plan, Rng, Setup, Simulation};
use squall_wire::{Direction, Path, Side};

use crate::common::{lossy, ms, secs, seeds, setup, sweep};

const SECOND: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 3, 0, 1)), 6000);
const PREFERRED: std::net::SocketAddrV4 =
    std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(10, 4, 0, 1), 443);

fn begun(setup: Setup, bytes: usize) -> Result<Simulation, Failure> {
    let mut sim = Simulation::new(setup, Plan::one_stream(bytes));
    sim.run_until(secs(60), "some bytes", |sim| {
        sim.parties.iter().all(|p| p.read > 50_000)
    })?;
    Ok(sim)
}

fn path(sim: &mut Simulation, side: Side) -> Option<Path> {
    sim.pair.connection(side).map(|c| c.path())
}

fn wrong<T>(sim: &mut Simulation, what: &str) -> Result<T, Failure> {
    let paths = [Side::Client, Side::Server].map(|s| path(sim, s));
    let reported = [Side::Client, Side::Server].map(|s| {
        let party = sim.party(s);
        (party.moves.clone(), party.failed_moves.clone())
    });
    Err(sim.pair.failure(format!("{what}: {paths:?} {reported:?}")))
}

/// All bytes arrive, and everything begun on paths ends; returns how many of the client's moves
/// were reported and how many failed.
fn finish(sim: &mut Simulation) -> Result<(usize, usize), Failure> {
    sim.run_until(secs(60), "all bytes", Simulation::is_complete)?;
    sim.run_for(secs(15))?;
    for side in [Side::Client, Side::Server] {
        // Caused by a late packet under an id that has since been retired.
        let resets = sim.pair.stateless_resets(side);
        if resets > 0 {
            return wrong(sim, &format!("{side:?} has sent {resets} stateless resets"));
        }
        let paths = sim.pair.connection(side).map_or(0, |c| c.paths());
        if paths != 1 {
            return wrong(sim, &format!("{side:?} still has {paths} paths"));
        }
    }
    let client = sim.party(Side::Client);
    Ok((client.moves.len(), client.failed_moves.len()))
}

fn both_are_at(sim: &mut Simulation, client: SocketAddr) -> bool {
    path(sim, Side::Client).is_some_and(|p| p.local == Some(client.ip()))
        && path(sim, Side::Server).is_some_and(|p| p.remote == client)
}

// test: RFC 9000 §9.1, §9.2
#[test]
fn a_client_migrates_to_a_validated_path() {
    let moved = sweep(&seeds(30), |seed| {
        let mut sim = begun(setup(seed, lossy(0.1)), 500_000)?;
        sim.pair.network().add_address(Side::Client, SECOND);
        sim.pair.migrate(SECOND.ip(), Move::WhenValidated)?;
        let (moved, failed) = finish(&mut sim)?;
        // Three challenges may be lost, about once in a hundred times.
        match (moved, failed) {
            (1, 0) if both_are_at(&mut sim, SECOND) => Ok(true),
            (0, 1) if !both_are_at(&mut sim, SECOND) => Ok(false),
            _ => wrong(&mut sim, "the client reported another outcome"),
        }
    });
    let stayed = moved.iter().filter(|moved| !**moved).count();
    assert!(stayed * 10 <= moved.len(), "nearly all move");
}

// test: RFC 9000 §9.2
#[test]
fn a_client_whose_address_is_gone_migrates_at_once() {
    sweep(&seeds(30), |seed| {
        // Enough for the transfer to outlast the validation, which may lose all challenges; then
        // packets show where the client is.
        let mut sim = begun(setup(seed, lossy(0.05)), 2_000_000)?;
        sim.pair.network().add_address(Side::Client, SECOND);
        sim.pair.network().remove_address(Side::Client);
        sim.pair.migrate(SECOND.ip(), Move::AtOnce)?;
        let (moved, failed) = finish(&mut sim)?;
        if (moved, failed) != (1, 0) || !both_are_at(&mut sim, SECOND) {
            return wrong(&mut sim, "the client did not move");
        }
        Ok(())
    });
}

// test: RFC 9000 §8.2.4, §9.2
#[test]
fn a_client_that_migrated_at_once_keeps_trying_both_addresses() {
    sweep(&seeds(20), |seed| {
        let mut sim = begun(setup(seed, lossy(0.0)), 500_000)?;
        sim.pair.network().add_address(Side::Client, SECOND);
        sim.pair.network().remove_address(Side::Client);
        // More than all challenges of one validation are lost.
        sim.pair.network().set_faults(Side::Client, lossy(1.0));
        sim.pair.migrate(SECOND.ip(), Move::AtOnce)?;
        sim.run_for(secs(8))?;
        sim.pair.network().set_faults(Side::Client, lossy(0.0));
        let (moved, failed) = finish(&mut sim)?;
        if (moved, failed) != (1, 0) || !both_are_at(&mut sim, SECOND) {
            return wrong(&mut sim, "the client did not move");
        }
        Ok(())
    });
}

// test: RFC 9000 §9.2, §9.3
#[test]
fn a_client_follows_the_systems_choice_of_address() {
    let one_way = || vec![Outgoing::one_way(500_000)];
    let plans = [
        ("an upload", [one_way(), Vec::new()]),
        ("a download", [Vec::new(), one_way()]),
        ("both", [one_way(), one_way()]),
    ];
    for (what, streams) in plans {
        sweep(&seeds(20), |seed| {
            let plan = Plan {
                streams: streams.clone(),
                ..Plan::default()
            };
            let mut sim = Simulation::new(setup(seed, lossy(0.02)), plan);
            sim.run_until(secs(60), "some bytes", |sim| {
                sim.parties.iter().any(|p| p.read > 50_000)
            })?;
            sim.pair.network().add_address(Side::Client, SECOND);
            sim.pair.network().remove_address(Side::Client);
            sim.run_until(secs(10), what, Simulation::is_complete)?;
            // The path is validated, and its address is reported to the application.
            sim.run_for(secs(5))?;
            let moves = sim.party(Side::Client).moves.len();
            if !both_are_at(&mut sim, SECOND) || moves != 1 {
                return wrong(&mut sim, "the connection did not follow");
            }
            Ok(())
        });
    }
}

// test: RFC 9000 §8.2, §9.2
#[test]
fn a_client_with_one_path_challenges_again_after_all_challenges_were_lost() {
    sweep(&seeds(20), |seed| {
        let mut sim = begun(setup(seed, lossy(0.0)), 2_000_000)?;
        sim.pair.network().add_address(Side::Client, SECOND);
        sim.pair.network().remove_address(Side::Client);
        while path(&mut sim, Side::Client).is_some_and(|p| p.local != Some(SECOND.ip())) {
            sim.run_for(ms(1))?;
        }
        for loss in [1.0, 0.0] {
            for side in [Side::Client, Side::Server] {
                sim.pair.network().set_faults(side, lossy(loss));
            }
            sim.run_for(secs(5))?;
        }
        if finish(&mut sim)? != (1, 0) || !both_are_at(&mut sim, SECOND) {
            return wrong(&mut sim, "the client's address was not reported to it");
        }
        Ok(())
    });
}

// test: RFC 9000 §9, §9.2
#[test]
fn an_address_changed_before_confirmation_is_validated_after_it() {
    sweep(&seeds(20), |seed| {
        let mut sim = Simulation::new(setup(seed, lossy(0.0)), Plan::one_stream(500_000));
        while (sim.pair.connection(Side::Client)).is_some_and(|c| c.is_handshaking()) {
            sim.run_for(ms(1))?;
        }
        sim.pair.network().add_address(Side::Client, SECOND);
        sim.pair.network().remove_address(Side::Client);
        if finish(&mut sim)? != (1, 0) || !both_are_at(&mut sim, SECOND) {
            return wrong(&mut sim, "the client's address was not reported to it");
        }
        Ok(())
    });
}

// test: RFC 9000 §8.2.4, §9.3.2
#[test]
fn a_path_that_leads_nowhere_is_dropped() {
    for how in [Move::WhenValidated, Move::AtOnce] {
        sweep(&seeds(20), |seed| {
            let mut sim = begun(setup(seed, lossy(0.05)), 500_000)?;
            let home = sim.pair.network().address(Side::Client);
            // The client has no such interface.
            sim.pair.migrate(SECOND.ip(), how)?;
            if finish(&mut sim)? != (0, 1) || !both_are_at(&mut sim, home) {
                return wrong(&mut sim, "the client is not where it was");
            }
            Ok(())
        });
    }
}

// test: RFC 9000 §9.2, §9.5: there and back, again and again
#[test]
fn a_client_may_migrate_often() {
    sweep(&seeds(20), |seed| {
        let mut sim = begun(setup(seed, lossy(0.02)), 3_000_000)?;
        let mut rng = Rng::new(seed);
        let home = sim.pair.network().address(Side::Client);
        sim.pair.network().add_address(Side::Client, SECOND);
        let mut moves = 0;
        for n in 0..12 {
            let how = match rng.chance(0.5) {
                true => Move::WhenValidated,
                false => Move::AtOnce,
            };
            let to = [SECOND, home][n % 2];
            let at = path(&mut sim, Side::Client).and_then(|p| p.local);
            if at != Some(to.ip()) {
                let now = sim.pair.now();
                let remote = sim.pair.network().address(Side::Server);
                let new = Path {
                    remote,
                    local: Some(to.ip()),
                };
                let client = sim.pair.connection(Side::Client);
                match client.map(|c| c.migrate(now, new, how)) {
                    Some(Ok(())) => moves += 1,
                    Some(Err(MigrateError::NoConnectionId)) => {}
                    other => return wrong(&mut sim, &format!("{other:?}")),
                }
                sim.pair.pump(Side::Client)?;
            }
            let wait = ms(10) + rng.duration(ms(400));
            sim.run_for(wait)?;
        }
        finish(&mut sim)?;
        if moves < 6 {
            return wrong(&mut sim, &format!("{moves} moves only"));
        }
        Ok(())
    });
}

// test: RFC 9000 §5.1.2: packets overtake the frames that retire their ids
#[test]
fn late_packets_under_retired_ids_are_not_reset() {
    sweep(&seeds(20), |seed| {
        let mut sim = begun(setup(seed, lossy(0.0)), 3_000_000)?;
        let mut rng = Rng::new(seed);
        let mut rotations = 0;
        while !sim.is_complete() {
            let side = [Side::Client, Side::Server][usize::from(rng.chance(0.5))];
            let connection = sim.pair.connection(side);
            let rotated = connection.is_some_and(Connection::rotate_ids);
            rotations += usize::from(rotated);
            sim.pair.pump(side)?;
            let wait = ms(1) + rng.duration(ms(100));
            sim.run_for(wait)?;
        }
        finish(&mut sim)?;
        if rotations < 3 {
            return wrong(&mut sim, &format!("{rotations} rotations only"));
        }
        Ok(())
    });
}

#[test]
fn invalid_migrations_are_refused() {
    let mut sim = Simulation::new(setup(1, lossy(0.0)), Plan::one_stream(100_000));
    let now = sim.pair.now();
    let remote = sim.pair.network().address(Side::Server);
    let to = |n: u8| Path {
        remote,
        local: Some([10, 3, 0, n].into()),
    };
    let client = sim.pair.connection(Side::Client).unwrap();
    let early = client.migrate(now, to(1), Move::AtOnce);
    assert_eq!(early, Err(MigrateError::NotConfirmed));
    sim.run_until(secs(10), "all bytes", Simulation::is_complete)
        .unwrap();
    let now = sim.pair.now();
    let server = sim.pair.connection(Side::Server).unwrap();
    assert_eq!(
        server.migrate(now, to(1), Move::AtOnce),
        Err(MigrateError::NotAClient)
    );
    let client = sim.pair.connection(Side::Client).unwrap();
    let elsewhere = Path {
        remote: SECOND,
        local: None,
    };
    assert_eq!(
        client.migrate(now, elsewhere, Move::AtOnce),
        Err(MigrateError::OtherServer)
    );
    let home = client.path();
    assert_eq!(
        client.migrate(now, home, Move::WhenValidated),
        Err(MigrateError::SamePath)
    );
    let other_family = Path {
        local: Some(Ipv6Addr::LOCALHOST.into()),
        ..home
    };
    assert_eq!(
        client.migrate(now, other_family, Move::WhenValidated),
        Err(MigrateError::OtherFamily)
    );
    // Three spare ids, for three paths.
    for n in 1..=3 {
        assert_eq!(client.migrate(now, to(n), Move::WhenValidated), Ok(()));
    }
    assert_eq!(client.paths(), 4);
    assert_eq!(
        client.migrate(now, to(4), Move::WhenValidated),
        Err(MigrateError::NoConnectionId)
    );
    client.close(now, 0, b"");
    assert_eq!(
        client.migrate(now, to(1), Move::AtOnce),
        Err(MigrateError::Closed)
    );
}

// test: RFC 9000 §18.2, disable_active_migration
#[test]
fn a_server_may_disable_migration() {
    let mut setup = setup(1, lossy(0.0));
    setup.transport[Side::Server as usize].allow_migration = false;
    let mut sim = begun(setup, 100_000).unwrap();
    sim.run_for(secs(1)).unwrap();
    let now = sim.pair.now();
    let client = sim.pair.connection(Side::Client).unwrap();
    let path = Path {
        local: Some(SECOND.ip()),
        ..client.path()
    };
    let refused = client.migrate(now, path, Move::WhenValidated);
    assert_eq!(refused, Err(MigrateError::Forbidden));
}

/// A server with a preferred address.
fn with_preferred(seed: u64, loss: f64) -> Setup {
    let mut setup = setup(seed, lossy(loss));
    setup.transport[Side::Server as usize].preferred_ipv4 = Some(PREFERRED);
    setup
}

// test: RFC 9000 §9.6
#[test]
fn a_client_migrates_to_the_servers_preferred_address() {
    for allow_migration in [true, false] {
        sweep(&seeds(20), |seed| {
            let mut setup = with_preferred(seed, 0.1);
            // RFC 9000 §18.2: even if the client may not move by itself.
            setup.transport[Side::Server as usize].allow_migration = allow_migration;
            let mut sim = Simulation::new(setup, Plan::one_stream(500_000));
            sim.pair
                .network()
                .add_address(Side::Server, PREFERRED.into());
            let (moved, failed) = finish(&mut sim)?;
            let client = path(&mut sim, Side::Client);
            let server = path(&mut sim, Side::Server);
            let there = client.is_some_and(|p| p.remote == PREFERRED.into())
                && server.is_some_and(|p| p.local == Some(IpAddr::V4(*PREFERRED.ip())));
            match (moved, failed) {
                (1, 0) if there => Ok(()),
                // All challenges were lost.
                (0, 1) if !there => Ok(()),
                _ => wrong(&mut sim, "not at the preferred address"),
            }
        });
    }
}

// test: RFC 9000 §9.6.1
#[test]
fn a_preferred_address_that_does_not_answer_is_abandoned() {
    sweep(&seeds(20), |seed| {
        let mut sim = Simulation::new(with_preferred(seed, 0.05), Plan::one_stream(500_000));
        let home = sim.pair.network().address(Side::Server);
        if finish(&mut sim)? != (0, 1) {
            return wrong(&mut sim, "nothing was tried");
        }
        match path(&mut sim, Side::Client) {
            Some(path) if path.remote == home => Ok(()),
            _ => wrong(&mut sim, "the client is elsewhere"),
        }
    });
}

#[test]
fn a_client_may_ignore_a_preferred_address() {
    let mut setup = with_preferred(1, 0.0);
    setup.transport[Side::Client as usize].follow_preferred_address = false;
    let mut sim = Simulation::new(setup, Plan::one_stream(500_000));
    sim.pair
        .network()
        .add_address(Side::Server, PREFERRED.into());
    assert_eq!(finish(&mut sim).unwrap(), (0, 0));
    let home = sim.pair.network().address(Side::Server);
    assert_eq!(path(&mut sim, Side::Client).unwrap().remote, home);
}

/// How a client's address changes.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// It has another socket: it knows of the move, and the system chooses the address.
    NewSocket,
    /// A NAT gives it another port: it does not notice.
    Rebinding,
    /// Its system sends from another address: it notices when it receives from the server.
    OtherAddress,
    /// The application moves it to another address, and the old one is gone.
    Told,
}

impl Change {
    fn make(self, sim: &mut Simulation) -> Result<(), Failure> {
        let network = sim.pair.network();
        match self {
            Self::OtherAddress | Self::Told => {
                network.add_address(Side::Client, SECOND);
                network.remove_address(Side::Client);
            }
            Self::NewSocket | Self::Rebinding => {
                let mut new = network.address(Side::Client);
                new.set_port(new.port() + 1);
                network.rebind(Side::Client, new);
            }
        }
        if matches!(self, Self::NewSocket) {
            let (remote, local) = (network.address(Side::Server), None);
            let now = sim.pair.now();
            let client = sim.pair.connection(Side::Client);
            client.map(|c| c.migrate(now, Path { remote, local }, Move::AtOnce));
            sim.pair.ping(Side::Client)?;
        }
        match self {
            Self::Told => sim.pair.migrate(SECOND.ip(), Move::AtOnce),
            _ => Ok(()),
        }
    }
}

// test: RFC 9000 §9.2: a long poll
#[test]
fn a_client_that_migrates_while_waiting_gets_its_answer() {
    // Without the parties, which would answer at once.
    let pass = |sim: &mut Simulation, time| {
        let end = sim.pair.now() + time;
        while sim.pair.now() < end {
            sim.pair.step(end)?;
            for side in [Side::Client, Side::Server] {
                while sim.pair.poll_event(side).is_some() {}
            }
        }
        Ok(())
    };
    for (idle_before, question) in [(0, "question"), (10, "question"), (0, "")] {
        sweep(&seeds(20), |seed| {
            let mut sim = Simulation::new(setup(seed, lossy(0.0)), Plan::default());
            sim.run_for(secs(1 + idle_before))?;
            let client = sim.pair.connection(Side::Client).unwrap();
            let id = client.open(Direction::Bidirectional).unwrap();
            if !question.is_empty() {
                client.write_copy(id, question.as_bytes()).unwrap();
            }
            client.finish(id).unwrap();
            sim.pair.pump(Side::Client)?;
            // The question is acknowledged, and then the client is silent.
            pass(&mut sim, secs(2))?;
            Change::Rebinding.make(&mut sim)?;
            let server = sim.pair.connection(Side::Server).unwrap();
            server.write_copy(id, b"answer").unwrap();
            server.finish(id).unwrap();
            sim.pair.pump(Side::Server)?;
            pass(&mut sim, secs(5))?;
            let client = sim.pair.connection(Side::Client).unwrap();
            match client.read(id, 100) {
                Ok(Some(answer)) if &answer[..] == b"answer" => Ok(()),
                other => Err(sim.pair.failure(format!("no answer but {other:?}"))),
            }
        });
    }
}

// test: RFC 9000 §9.2, §9.3, §9.3.2
#[test]
fn a_client_that_migrates_while_the_network_is_down_is_found_afterwards() {
    // Losses of what the client sends, and of what the server sends.
    let losses = [
        (1.0, 1.0),
        (1.0, 0.0),
        (0.0, 1.0),
        (0.9, 0.9),
        (0.5, 0.9),
        (0.9, 0.5),
    ];
    for change in [
        Change::NewSocket,
        Change::Rebinding,
        Change::OtherAddress,
        Change::Told,
    ] {
        for (outage, (up, down)) in [1, 2, 5, 8, 12]
            .iter()
            .flat_map(|outage| losses.map(|loss| (*outage, loss)))
        {
            sweep(&seeds(10), |seed| {
                let mut sim = begun(setup(seed, lossy(0.0)), 500_000)?;
                sim.pair.network().set_faults(Side::Client, lossy(up));
                sim.pair.network().set_faults(Side::Server, lossy(down));
                change.make(&mut sim)?;
                sim.run_for(secs(outage))?;
                sim.pair.network().set_faults(Side::Client, lossy(0.0));
                sim.pair.network().set_faults(Side::Server, lossy(0.0));
                // By then, the probe timeout has backed off.
                let what = format!("{change:?}, {outage} s, {up} and {down} lost: all bytes");
                sim.run_until(secs(15), &what, Simulation::is_complete)
            });
        }
    }
}
