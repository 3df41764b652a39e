//! Early data on a network that loses, repeats, damages and reorders.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::server::ServerSessionMemoryCache;
use squall_core::TransportConfig;
use squall_sim::{Faults, Outgoing, Plan, Setup, Simulation, tls};
use squall_wire::Side;

use crate::common::{lossy, secs, seeds, setup, sweep};

#[test]
fn early_data_arrives_once_whether_it_is_accepted_or_not() {
    let accepted = sweep(&seeds(300), |seed| {
        let (client, server) = tls();
        let (mut client, mut server) = ((*client).clone(), (*server).clone());
        client.enable_early_data = true;
        client.resumption = Resumption::in_memory_sessions(8);
        server.max_early_data_size = u32::MAX;
        server.session_storage = ServerSessionMemoryCache::new(8);
        let client = Arc::new(client);
        // For a ticket.
        let mut first = Setup::new(seed);
        first.tls = (Arc::clone(&client), Arc::new(server.clone()));
        let mut sim = Simulation::new(first, Plan::one_stream(10));
        sim.run_until(secs(5), "a ticket", Simulation::is_complete)?;

        let faults = Faults {
            duplication: 0.1,
            corruption: 0.05,
            ..lossy(0.15)
        };
        let mut again = setup(seed, faults);
        again.transport = [(); 2].map(|()| {
            TransportConfig::default()
                .handshake_timeout(secs(120))
                .max_idle_timeout(secs(120))
        });
        match seed % 4 {
            // The server has lost its tickets.
            1 => server.session_storage = ServerSessionMemoryCache::new(8),
            // It allows less than before.
            2 => {
                let transport = &mut again.transport[Side::Server as usize];
                transport.max_concurrent_uni_streams = 1;
                transport.initial_window = 3_000;
                transport.initial_stream_window = 2_000;
            }
            3 => again.tune = |_, config| config.retry_from = 0,
            _ => {}
        }
        again.tls = (client, Arc::new(server));
        let uploads = vec![Outgoing::one_way(7_000); 3];
        let plan = Plan {
            streams: [
                [uploads, vec![Outgoing::both_ways(5_000, 20_000)]].concat(),
                Vec::new(),
            ],
            ..Plan::default()
        };
        let mut sim = Simulation::new(again, plan);
        sim.run_until(secs(120), "all bytes", Simulation::is_complete)?;
        let early = sim.parties[0].early_data_accepted;
        match (seed % 4, early) {
            (1 | 2, Some(false)) | (0 | 3, Some(_)) => Ok(early == Some(true)),
            other => Err(sim.pair.failure(format!("early data: {other:?}"))),
        }
    });
    let accepted = accepted.iter().filter(|accepted| **accepted).count();
    assert!(accepted >= 140, "{accepted} of 150 that it could be");
}
