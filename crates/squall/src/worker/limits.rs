//! A worker's part of the counts shared by all workers, and what its endpoint learns of the rest.

use squall_core::{ConnectionHandle, EndpointCounts, Time};

use super::Worker;
use super::lock::lock;
use super::shared::ConnectionShared;
use super::state::State;
use super::totals::SharedMemory;

/// A worker's part of [`SharedMemory`].
#[derive(Debug, Default)]
pub(super) struct OwnMemory {
    /// Memory that its connections take.
    bytes: i64,
    /// The part that has been published.
    published: i64,
}

impl OwnMemory {
    /// Updates a connection's estimate.
    pub(super) fn measure(&mut self, state: &mut State) {
        let now = match state.removed {
            true => 0,
            false => ConnectionShared::OWN_BYTES + state.memory_in_use(),
        };
        let before = std::mem::replace(&mut state.memory, now);
        self.bytes += now as i64 - before as i64;
    }

    /// Memory that its connections take.
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(0)
    }

    /// Publishes the change; returns the sum over all workers.
    pub(super) fn publish(&mut self, all: &SharedMemory) -> usize {
        let gained = self.bytes - std::mem::replace(&mut self.published, self.bytes);
        all.add(gained)
    }

    /// Subtracts the worker's connections, which are gone.
    pub(super) fn withdraw(&mut self, all: &SharedMemory) {
        self.bytes = 0;
        self.publish(all);
    }
}

impl Worker {
    /// Publishes what the endpoint has counted since the last turn, and learns how much memory all
    /// connections take.
    pub(super) fn publish_counts(&mut self) {
        if let Some(all) = &self.shared.common.memory {
            self.shared.counters.memory.set(self.memory.bytes());
            self.endpoint.set_memory(self.memory.publish(all));
        }
        let counts = *self.endpoint.counts();
        let mut since = EndpointCounts::default();
        if counts != self.published {
            let before = std::mem::replace(&mut self.published, counts);
            since = counts.since(&before);
            *lock(&self.shared.unrouted) += since;
        }
        if self.reports.is_on() {
            self.collect_unrouted(since);
        }
    }

    /// Learns how much memory all connections take: those of other workers may have grown while
    /// this one slept.
    pub(super) fn learn_memory(&mut self) {
        if let Some(all) = &self.shared.common.memory {
            self.endpoint.set_memory(all.add(0));
        }
    }
}

/// Passes a connection's events to the endpoint, and refuses the connection if the endpoint says
/// so.
pub(super) fn apply_endpoint_events(
    endpoint: &mut squall_core::Endpoint,
    handle: ConnectionHandle,
    core: &mut squall_core::Connection,
    now: Time,
) {
    while let Some(event) = core.poll_endpoint_event() {
        if !endpoint.apply(handle, event) {
            core.refuse(now);
        }
    }
}
