//! Runs one seed, or a range of them, and prints what came of it.
//!
//! ```text
//! cargo run --profile sim -p squall-sim --example replay -- --seed 17
//! cargo run --profile sim -p squall-sim --example replay -- --seeds 0..1000
//! ```

use std::process::ExitCode;

use squall_sim::run_seed;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seeds = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--seed", seed] => seed.parse().map(|seed| seed..seed + 1).ok(),
        ["--seeds", range] => range.split_once("..").and_then(|(first, end)| {
            let (first, end) = (first.parse().ok()?, end.parse().ok()?);
            Some(first..end)
        }),
        _ => None,
    };
    let Some(seeds) = seeds else {
        eprintln!("usage: replay (--seed N | --seeds FIRST..END)");
        return ExitCode::from(2);
    };
    let single = seeds.end - seeds.start == 1;
    let mut code = ExitCode::SUCCESS;
    for seed in seeds {
        match run_seed(seed) {
            Ok(report) if single => println!("{report:#?}"),
            Ok(report) => println!(
                "seed {seed}: handshake {:?}, transfer {:?}, silence {:?}, probe timeouts {:?}",
                report.handshake,
                report.transfer,
                report.longest_silence,
                report.stats.map(|s| s.probe_timeouts),
            ),
            Err(failure) => {
                println!("{failure}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
