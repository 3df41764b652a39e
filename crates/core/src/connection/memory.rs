//! What a connection costs in memory.

use super::Connection;
use crate::path::PathState;

/// What a connection has on the heap in any case and nothing below counts: keys, path validation, connection ids here and
/// at the endpoint, ACK ranges. As measured for one that is idle (`crates/core/tests/memory.rs`).
const FIXED: usize = 5 * 1024;

impl Connection {
    /// Estimated memory of the connection, in bytes: its state, data to be sent or waiting to be
    /// read, and records of packets in flight. About twenty additions: call it once per run, not
    /// once per packet. Application data counts while the connection holds it.
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
