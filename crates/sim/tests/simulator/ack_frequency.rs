//! Fewer acknowledgements if the sender of data asks for them (draft-ietf-quic-ack-frequency).

use std::time::Duration;

use squall_core::{AckFrequencyConfig, AckFrequencyRequest};
use squall_sim::{Faults, Outgoing, Plan, Simulation};
use squall_wire::Side;

use crate::common::{ms, secs, setup};

/// The result of a transfer of 8 MB from client to server.
struct Outcome {
    /// ACK frames of the server per thousand packets of the client.
    acks_per_mille: u64,
    took: Duration,
    lost: u64,
}

fn transfer(request: AckFrequencyRequest, loss: f64) -> Outcome {
    let mut setup = setup(
        1,
        Faults {
            delay: ms(10),
            // 200 Mbit/s and a queue of one round trip.
            rate: Some(25_000_000),
            queue: 500_000,
            loss,
            ..Faults::default()
        },
    );
    for transport in &mut setup.transport {
        transport.ack_frequency = request;
    }
    let plan = Plan {
        streams: [vec![Outgoing::both_ways(8_000_000, 1)], Vec::new()],
        ..Plan::default()
    };
    let mut sim = Simulation::new(setup, plan);
    sim.run_until(secs(60), "all is there", Simulation::is_complete)
        .expect("the transfer completes");
    let took = sim.pair.now() - squall_core::Time::ZERO;
    let (client, server) = (sim.pair.stats(Side::Client), sim.pair.stats(Side::Server));
    Outcome {
        acks_per_mille: server.acks_sent * 1000 / client.packets_sent,
        took,
        lost: client.packets_lost,
    }
}

#[test]
fn requested_ack_frequency_follows_the_congestion_window() {
    let usual = transfer(AckFrequencyRequest::Nothing, 0.0);
    let adaptive = transfer(AckFrequencyRequest::Adaptive, 0.0);
    println!(
        "acknowledgements for a thousand packets: {} and {}; {:?} and {:?}; {} and {} lost",
        usual.acks_per_mille,
        adaptive.acks_per_mille,
        usual.took,
        adaptive.took,
        usual.lost,
        adaptive.lost
    );
    assert!(
        adaptive.acks_per_mille * 4 < usual.acks_per_mille,
        "{} instead of {}",
        adaptive.acks_per_mille,
        usual.acks_per_mille
    );
    assert!(adaptive.took < usual.took * 11 / 10);
}

#[test]
fn rarer_acknowledgements_do_not_delay_loss_detection() {
    let usual = transfer(AckFrequencyRequest::Nothing, 0.01);
    let adaptive = transfer(AckFrequencyRequest::Adaptive, 0.01);
    assert!(
        adaptive.took < usual.took * 13 / 10,
        "{:?}, {:?}",
        adaptive.took,
        usual.took
    );
}

#[test]
fn a_fixed_ack_frequency_request_is_honoured() {
    let fixed = |threshold| {
        AckFrequencyRequest::Fixed(AckFrequencyConfig {
            ack_eliciting_threshold: threshold,
            max_ack_delay: ms(25),
            reordering_threshold: 3,
        })
    };
    let (often, rarely) = (transfer(fixed(1), 0.0), transfer(fixed(19), 0.0));
    // One for every second packet, and for every twentieth.
    assert!(
        (450..=550).contains(&often.acks_per_mille),
        "{}",
        often.acks_per_mille
    );
    assert!(
        (45..=70).contains(&rarely.acks_per_mille),
        "{}",
        rarely.acks_per_mille
    );
}
