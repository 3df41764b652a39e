//! How a run fails.

use std::fmt;
use std::time::Duration;

use squall_core::Time;

/// What went wrong in a run, and how to reproduce it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// When it happened, in virtual time.
    pub at: Time,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: after {:?}: {} (SQUALL_SIM_SEED={} replays it)",
            self.seed,
            Duration::from_nanos(self.at.as_nanos()),
            self.what,
            self.seed
        )
    }
}

impl std::error::Error for Failure {}
