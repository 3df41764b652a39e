//! The harness of the twin tests: processing many packets together must equal processing them one
//! by one.

use std::fmt::Debug;
use std::ops::Range;

/// How a history is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Packets are written, received or acknowledged in runs.
    Together,
    /// One by one.
    Alone,
}

/// Plays the history of each seed both ways and compares the results after each step. Returns the
/// steps of all histories, as played together.
pub(super) fn assert_equal<S: Debug + PartialEq>(
    seeds: Range<u64>,
    play: impl Fn(u64, Way) -> Vec<S>,
) -> Vec<Vec<S>> {
    let compared = seeds.map(|seed| {
        let (together, alone) = (play(seed, Way::Together), play(seed, Way::Alone));
        for (step, (run, single)) in together.iter().zip(&alone).enumerate() {
            assert!(
                run == single,
                "seed {seed}, step {step}:\n{run:x?}\n{single:x?}"
            );
        }
        assert_eq!(together.len(), alone.len(), "seed {seed}: steps");
        together
    });
    compared.collect()
}
