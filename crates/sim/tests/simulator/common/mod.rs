//! What the tests share: seeds on all cores, and shorthand for settings.
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use squall_sim::{Failure, Faults, Setup, catch};

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The seeds of a test: `usual` of them, unless the environment names one (`SQUALL_SIM_SEED`) or
/// another number (`SQUALL_SIM_SEEDS`).
pub(crate) fn seeds(usual: u64) -> Vec<u64> {
    let number = |name| {
        let value: String = std::env::var(name).ok()?;
        let number = value.parse().ok();
        Some(number.unwrap_or_else(|| panic!("{name} is a number, not '{value}'")))
    };
    match number("SQUALL_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SQUALL_SIM_SEEDS").unwrap_or(usual)).collect(),
    }
}

/// Runs every seed, on all cores; returns the results in seed order.
///
/// # Panics
/// If any seed failed, after all have run; names those that did.
pub(crate) fn sweep<T: Send>(
    seeds: &[u64],
    run: impl Fn(u64) -> Result<T, Failure> + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(seeds.len()) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = catch(*seed, || run(*seed));
                    results
                        .lock()
                        .expect("no thread panics while it holds the lock")
                        .push((*seed, result));
                }
            });
        }
    });
    let mut results = results
        .into_inner()
        .expect("no thread has panicked while it held the lock");
    results.sort_by_key(|(seed, _)| *seed);
    let failures: Vec<String> = results
        .iter()
        .filter_map(|(_, result)| result.as_ref().err().map(ToString::to_string))
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} seeds failed:\n{}",
        failures.len(),
        seeds.len(),
        failures.join("\n")
    );
    results
        .into_iter()
        .filter_map(|(_, result)| result.ok())
        .collect()
}

/// A setup with the same faults both ways.
pub(crate) fn setup(seed: u64, faults: Faults) -> Setup {
    Setup {
        faults: [faults.clone(), faults],
        ..Setup::new(seed)
    }
}

/// Loss and reordering.
pub(crate) fn lossy(loss: f64) -> Faults {
    Faults {
        delay: ms(15),
        jitter: ms(5),
        reordering: 0.2,
        loss,
        ..Faults::default()
    }
}
