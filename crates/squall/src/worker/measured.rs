//! The state of a measured connection, and how many there are; see `calls`.

use std::sync::atomic::{AtomicUsize, Ordering};

use squall_core::Stages;

/// The table of a connection that is or was measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) on: bool,
    pub(super) table: Stages,
}

/// How many of a worker's connections are measured.
#[derive(Debug, Default)]
pub(super) struct MeasuredCount(AtomicUsize);

impl MeasuredCount {
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
