//! Congestion control by the application, in virtual time.

use std::sync::Arc;

use squall_core::{
    AckedBundle, CongestionController, CongestionControllerFactory, LostBundle, Time,
    TransportConfig,
};
use squall_sim::{Faults, Outgoing, Pair, Plan, Simulation};
use squall_wire::Side;

use crate::common::{ms, secs, seeds, setup, sweep};

/// Bytes per second.
const RATE: u64 = 1_000_000;
/// Bytes of the transfer.
const SIZE: usize = 2_000_000;

/// Sends at [`RATE`], whatever is lost.
#[derive(Debug)]
struct FixedRate {
    /// Panics when the first loss is reported.
    breaks: bool,
}

impl CongestionControllerFactory for FixedRate {
    fn new_controller(&self, _: u16) -> Box<dyn CongestionController> {
        Box::new(Self { ..*self })
    }
}

impl CongestionController for FixedRate {
    fn window(&self) -> u64 {
        RATE
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(RATE)
    }

    fn on_acked(&mut self, now: Time, acked: &AckedBundle) {
        assert!(acked.bytes > 0 && acked.newest_sent < now);
        assert!(acked.rtt.min >= ms(10) && acked.rtt.smoothed >= acked.rtt.min);
    }

    fn on_lost(&mut self, now: Time, lost: &LostBundle) -> bool {
        assert!(!self.breaks, "requested by the test");
        assert!(lost.bytes > 0 && lost.ranges > 0 && lost.newest_sent < now);
        false
    }
}

/// How long a transfer from client to server takes, in seconds, and how often the client's window
/// was reduced.
fn transfer(config: &TransportConfig) -> Vec<(f64, u64)> {
    let faults = Faults {
        delay: ms(5),
        loss: 0.05,
        ..Faults::default()
    };
    sweep(&seeds(4), |seed| {
        let mut setup = setup(seed, faults.clone());
        for transport in &mut setup.transport {
            transport.clone_from(config);
        }
        let plan = Plan {
            streams: [
                vec![Outgoing::one_way(SIZE), Outgoing::both_ways(1, 1)],
                Vec::new(),
            ],
            ..Plan::default()
        };
        let mut sim = Simulation::new(setup, plan);
        sim.run_until(secs(60), "all is there", Simulation::is_complete)?;
        let reductions = sim.pair.stats(Side::Client).congestion_events;
        let took = sim.pair.now() - Pair::start();
        Ok((took.as_secs_f64(), reductions))
    })
}

#[test]
fn a_supplied_controllers_rate_is_kept_despite_loss() {
    let factory = Arc::new(FixedRate { breaks: false });
    for pacing in [true, false] {
        let config = TransportConfig::default()
            .pacing(pacing)
            .congestion_controller(Some(factory.clone()));
        for (seconds, reductions) in transfer(&config) {
            // 2 MB, 5 % of it twice, and the tail's probe timeouts.
            assert!((2.0..2.6).contains(&seconds), "{seconds} s");
            assert_eq!(reductions, 0);
        }
    }
}

#[test]
fn a_supplied_controller_that_panics_is_replaced() {
    let factory = Arc::new(FixedRate { breaks: true });
    let config = TransportConfig::default().congestion_controller(Some(factory));
    for (_, reductions) in transfer(&config) {
        assert!(reductions > 0, "NewReno has taken over");
    }
}
