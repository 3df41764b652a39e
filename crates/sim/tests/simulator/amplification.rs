//! The amplification limit (RFC 9000 §8.1): before a client's address is validated a server sends
//! at most three times what it received. The pair's guard checks that on every datagram of every
//! simulation; here, the limit matters.

use squall_sim::{Faults, Plan, SERVER_NAME, Simulation, tls_with};
use squall_wire::Side;

use crate::common::{lossy, secs, setup, sweep};

/// A certificate of about 9,000 bytes: the server's first flight is more than three times the
/// client's.
fn large_certificate() -> squall_sim::Configs {
    let mut names = vec![SERVER_NAME.to_owned()];
    names.extend((0..300).map(|n| format!("host-{n:03}.example.org.invalid")));
    tls_with(&names).expect("rustls takes a large certificate")
}

#[test]
fn a_large_certificate_waits_for_the_clients_address() {
    let mut setup = setup(1, Faults::default());
    setup.tls = large_certificate();
    let mut sim = Simulation::new(setup, Plan::one_stream(10_000));
    sim.run_until(secs(10), "the transfer", Simulation::is_complete)
        .unwrap();
    // Without loss no timer is needed: the client's acknowledgements grant credit too.
    let handshake = sim.connected().map(|(start, end)| end - start).unwrap();
    assert!(handshake < secs(1), "{handshake:?}");
    assert!(sim.pair.stats(Side::Server).bytes_sent > 9_000);
}

#[test]
fn the_amplification_limit_never_deadlocks_both_ends() {
    let seeds: Vec<u64> = (0..50).collect();
    let tls = large_certificate();
    sweep(&seeds, |seed| {
        let mut setup = setup(seed, lossy(0.2));
        setup.tls = tls.clone();
        for transport in &mut setup.transport {
            transport.handshake_timeout = secs(120);
            transport.max_idle_timeout = secs(120);
        }
        let mut sim = Simulation::new(setup, Plan::one_stream(10_000));
        sim.run_until(secs(120), "the transfer", Simulation::is_complete)
    });
}
