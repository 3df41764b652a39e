//! Transfers on bad networks: every byte arrives, in time, and nothing is left over. The invariants
//! of every datagram (sizes, the amplification limit) are checked in all of them.

use squall_sim::{Fault, run_seed};

use crate::common::{seeds, sweep};

#[test]
fn trials_end_as_they_have_to() {
    let seeds = seeds(200);
    let reports = sweep(&seeds, run_seed);
    for fault in Fault::ALL {
        let times = reports.iter().filter(|r| r.faults.contains(&fault)).count();
        println!("{times} of {}: {}", reports.len(), fault.name());
        assert!(times > 0 || seeds.len() < 200, "{fault:?}");
    }
    for report in &reports {
        let dark = [Fault::Blackhole, Fault::Silence, Fault::MtuChange];
        if dark.iter().any(|fault| report.faults.contains(fault)) {
            continue;
        }
        // RFC 9002 §6.1: the packets declared lost are roughly those that the network lost, or that
        // jitter delayed.
        for stats in &report.stats {
            assert!(stats.packets_lost <= stats.packets_sent / 2, "{report:?}");
        }
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 4] {
        let (first, second) = (run_seed(seed).unwrap(), run_seed(seed).unwrap());
        assert_eq!(first.steps, second.steps);
        assert_eq!(first.counters, second.counters);
        assert_eq!(
            (first.handshake, first.transfer),
            (second.handshake, second.transfer)
        );
    }
    assert_ne!(run_seed(3).unwrap().counters, run_seed(4).unwrap().counters);
}
