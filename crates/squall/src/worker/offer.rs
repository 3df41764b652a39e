//! A connection attempt on its way to the application, and the datagrams kept with it.

use std::net::SocketAddr;

use squall_wire::{ConnectionId, DatagramBatch, Ecn, Path};

/// Identifies an attempt: where it comes from, and the destination id of its packets.
pub(crate) type AttemptKey = (SocketAddr, ConnectionId);

/// A copied run of datagrams: the receive buffer is reused at once.
#[derive(Debug)]
pub(crate) struct HeldRun {
    pub(crate) path: Path,
    pub(crate) ecn: Ecn,
    pub(crate) segment_size: u16,
    pub(crate) bytes: Vec<u8>,
}

impl HeldRun {
    /// A copy of a run.
    pub(crate) fn of(run: &DatagramBatch<'_>) -> Self {
        Self::beginning_of(run, run.bytes.len())
    }

    /// A copy of its first `len` bytes, or of all if it is shorter.
    pub(crate) fn beginning_of(run: &DatagramBatch<'_>, len: usize) -> Self {
        Self {
            path: run.path,
            ecn: run.ecn,
            segment_size: run.segment_size,
            bytes: run.bytes[..len.min(run.bytes.len())].to_vec(),
        }
    }

    /// The run, as it arrived.
    pub(crate) fn batch(&mut self) -> DatagramBatch<'_> {
        DatagramBatch {
            path: self.path,
            ecn: self.ecn,
            segment_size: self.segment_size,
            bytes: &mut self.bytes,
        }
    }
}

/// A connection attempt that waits for the application's decision, with its datagrams.
pub(crate) struct Offer {
    /// The worker at which it arrived, and on which the connection will live.
    pub(crate) worker: usize,
    /// Which life of the worker: after a restart, earlier attempts no longer exist.
    pub(crate) life: u32,
    pub(crate) incoming: squall_core::Incoming,
    pub(crate) run: HeldRun,
}

impl Offer {
    /// The attempt's key.
    pub(crate) fn key(&self) -> AttemptKey {
        (self.run.path.remote, self.incoming.destination_id())
    }
}
