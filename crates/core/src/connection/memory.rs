//! What a connection costs in memory.

use super::Connection;
use crate::path::PathState;

/// What a connection has on the heap in any case and nothing below counts: keys, path validation, connection ids here and
/// at the endpoint, ACK ranges. As measured for one that is idle (`crates/core/tests/memory.rs`).
const FIXED: usize = 5 * 1024;

impl Connection {
    /// Bytes of memory that the connection takes, about: its state, data to be sent or waiting to be read, and what is
    /// remembered of packets in flight. Some twenty additions, nothing is walked but what buffers of the handshake hold; to be
    /// asked once a run, not once a packet. Application data is counted while the connection holds it.
    #[must_use]
    pub fn memory(&self) -> usize {
        let spaces: usize = (self.spaces.iter())
            .map(|space| space.sent.memory() + space.crypto_send.cost() as usize)
            .sum();
        let paths = self.paths.as_ref().map_or(0, |paths| {
            size_of_val(&**paths) + paths.others.capacity() * size_of::<PathState>()
        });
        size_of::<Self>()
            + FIXED
            + spaces
            + paths
            + self.tls.memory()
            + self.early.memory()
            + self.streams.memory()
            + self.datagrams.memory()
    }
}
