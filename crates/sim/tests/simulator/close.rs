//! The end of a connection (RFC 9000 §10.2, §10.3): the other side learns of it, and nothing
//! acknowledged is lost.

use std::sync::Arc;

use squall_core::CloseReason;
use squall_sim::{Failure, Faults, Plan, Reading, Simulation, tls_with};
use squall_wire::{Side, TransportErrorCode};

use crate::common::{lossy, ms, secs, setup, sweep};

const SEEDS: std::ops::Range<u64> = 0..40;

fn all_seeds() -> Vec<u64> {
    SEEDS.collect()
}

fn application(remote: bool) -> CloseReason {
    CloseReason::Application {
        code: 0x2a,
        reason: bytes::Bytes::from_static(b"enough"),
        remote,
    }
}

/// Closes from `side` and runs until both endpoints are empty; returns how the other side ended.
fn close(sim: &mut Simulation, side: Side) -> Result<CloseReason, Failure> {
    sim.close(side, 0x2a, b"enough")?;
    sim.run_until(secs(200), "both endpoints are empty", |sim| {
        sim.pair.live(Side::Client) + sim.pair.live(Side::Server) == 0
    })?;
    if sim.party(side).closed != Some(application(false)) {
        let what = format!("the closing side: {:?}", sim.party(side).closed);
        return Err(sim.pair.failure(what));
    }
    match sim.party(side.peer()).closed.clone() {
        Some(reason) => Ok(reason),
        None => Err(sim.pair.failure("the other side never ended")),
    }
}

// test: RFC 9000 §10.2.1 — the close is repeated to a peer that goes on sending.
#[test]
fn an_applications_close_reaches_the_peer_under_loss() {
    for side in [Side::Client, Side::Server] {
        let heard = sweep(&all_seeds(), |seed| {
            let mut sim = Simulation::new(setup(seed, lossy(0.2)), Plan::one_stream(1_000_000));
            sim.run_until(secs(60), "some bytes", |sim| {
                sim.parties.iter().all(|p| p.read > 30_000)
            })?;
            match close(&mut sim, side)? {
                reason if reason == application(true) => Ok(true),
                // Every datagram that could report it was lost; a late end is reset or receives
                // nothing.
                CloseReason::Reset | CloseReason::IdleTimeout => Ok(false),
                other => Err(sim.pair.failure(format!("the other side: {other}"))),
            }
        });
        let heard = heard.iter().filter(|heard| **heard).count();
        assert!(
            heard >= 38,
            "{side:?}: only {heard} of 40 heard of the close"
        );
    }
}

// test: RFC 9001 §4.8, RFC 9000 §10.2.3
#[test]
fn a_transport_error_reaches_the_peer_under_loss() {
    // The certificate is for another name, or the client speaks no common application protocol.
    let stranger = tls_with(&["elsewhere.example".to_owned()]).unwrap();
    let (client, server) = squall_sim::tls();
    let mut babel = (*client).clone();
    babel.alpn_protocols = vec![b"babel".to_vec()];
    let cases = [
        (stranger, Side::Client, 42..=48),
        ((Arc::new(babel), server), Side::Server, 120..=120),
    ];
    for (tls, offended, alerts) in cases {
        let heard = sweep(&all_seeds(), |seed| {
            let mut setup = setup(seed, lossy(0.2));
            setup.tls = tls.clone();
            let mut sim = Simulation::new(setup, Plan::default());
            sim.run_until(secs(60), "both endpoints are empty", |sim| {
                sim.parties[0].closed.is_some()
                    && sim.pair.live(Side::Client) + sim.pair.live(Side::Server) == 0
            })?;
            let is_alert = |reason: &Option<CloseReason>, from_peer: bool| {
                matches!(reason, Some(CloseReason::Transport { code, remote, .. })
                    if *remote == from_peer
                        && alerts.clone().any(|a| *code == TransportErrorCode::crypto(a)))
            };
            let [client, server] = sim.parties.each_ref().map(|p| p.closed.clone());
            let (here, there) = match offended {
                Side::Client => (client, server),
                Side::Server => (server, client),
            };
            if !is_alert(&here, false) {
                return Err(sim.pair.failure(format!("{offended:?}: {here:?}")));
            }
            match &there {
                reason if is_alert(reason, true) => Ok(true),
                // Every datagram that could report it was lost.
                Some(CloseReason::HandshakeTimeout) => Ok(false),
                other => Err(sim.pair.failure(format!("the other side: {other:?}"))),
            }
        });
        let heard = heard.iter().filter(|heard| **heard).count();
        assert!(
            heard >= 34,
            "{offended:?}: only {heard} of 40 heard of the error"
        );
    }
}

#[test]
fn acknowledged_data_can_be_read_after_a_close() {
    for slow in [false, true] {
        sweep(&all_seeds(), |seed| {
            let mut sim = Simulation::new(setup(seed, lossy(0.1)), Plan::one_stream(100_000));
            if slow {
                // The receiver's buffer is far from read when the close arrives.
                sim.party_mut(Side::Server)
                    .set_reading(Reading::Slowly(1_000, ms(100)));
            }
            sim.run_until(secs(60), "the server has acknowledged all", |sim| {
                sim.party(Side::Client).has_sent_all()
            })?;
            sim.close(Side::Client, 0x2a, b"enough")?;
            sim.run_until(secs(60), "the server has read all", |sim| {
                sim.party(Side::Server).has_read_all()
            })?;
            Ok(())
        });
    }
}

#[test]
fn a_close_during_the_handshake_reaches_the_peer() {
    for side in [Side::Client, Side::Server] {
        sweep(&all_seeds(), |seed| {
            let mut sim = Simulation::new(setup(seed, lossy(0.1)), Plan::default());
            sim.run_until(secs(60), "the server has a connection", |sim| {
                sim.pair.live(Side::Server) == 1
            })?;
            let reason = close(&mut sim, side)?;
            // RFC 9000 §10.2.3: before 1-RTT keys an application's code and reason stay private.
            let hidden = matches!(
                reason,
                CloseReason::Transport {
                    code: TransportErrorCode::APPLICATION_ERROR,
                    remote: true,
                    ..
                }
            );
            let known = hidden || reason == application(true);
            // Or every datagram that could report it was lost, or arrived before the peer had its
            // keys.
            if known
                || matches!(
                    reason,
                    CloseReason::HandshakeTimeout | CloseReason::IdleTimeout
                )
            {
                Ok(())
            } else {
                Err(sim.pair.failure(format!("the other side: {reason}")))
            }
        });
    }
}

// test: RFC 9000 §10.3
#[test]
fn a_server_that_lost_its_state_sends_a_stateless_reset() {
    sweep(&all_seeds(), |seed| {
        let mut sim = Simulation::new(setup(seed, lossy(0.1)), Plan::one_stream(1_000_000));
        sim.run_until(secs(60), "some bytes", |sim| {
            sim.parties.iter().all(|p| p.read > 30_000)
        })?;
        sim.pair.forget(Side::Server);
        sim.run_until(secs(10), "the client has ended", |sim| {
            sim.party(Side::Client).closed.is_some()
        })?;
        match &sim.party(Side::Client).closed {
            Some(CloseReason::Reset) => Ok(()),
            other => {
                let what = format!("the client: {other:?}");
                Err(sim.pair.failure(what))
            }
        }
    });
}

#[test]
fn a_close_sends_one_datagram_to_a_silent_peer() {
    let mut sim = Simulation::new(setup(1, Faults::default()), Plan::one_stream(1_000));
    sim.run_until(secs(1), "all bytes", Simulation::is_complete)
        .unwrap();
    sim.run_for(secs(1)).unwrap();
    let before = sim.pair.network().counters(Side::Client).sent;
    let reason = close(&mut sim, Side::Client).unwrap();
    assert_eq!(reason, application(true));
    assert_eq!(sim.pair.network().counters(Side::Client).sent, before + 1);
}
