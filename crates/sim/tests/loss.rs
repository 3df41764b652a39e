//! Transfers on bad networks: every byte arrives, in time, and nothing is left over. The invariants of every datagram
//! (sizes, the amplification limit) are checked in all of them.

mod common;

use common::{seeds, sweep};
use squall_sim::run_seed;

#[test]
fn a_megabyte_each_way_survives_loss_and_reordering() {
    let seeds = seeds(20);
    let reports = sweep(&seeds, run_seed);
    let slowest = reports.iter().max_by_key(|r| r.transfer);
    let quietest = reports.iter().max_by_key(|r| r.longest_silence);
    if let (Some(slowest), Some(quietest)) = (slowest, quietest) {
        println!(
            "{} seeds; slowest {}: {:?}; longest silence {}: {:?}",
            reports.len(),
            slowest.seed,
            slowest.transfer,
            quietest.seed,
            quietest.longest_silence
        );
    }
    for report in &reports {
        // RFC 9002 §6.1: what was declared lost is about what the network lost, or jitter made late.
        for (stats, counters) in report.stats.iter().zip(&report.counters) {
            assert!(counters.lost > 0, "seed {}", report.seed);
            assert!(stats.packets_lost < stats.packets_sent / 2, "{report:?}");
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
