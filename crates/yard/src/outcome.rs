//! What a contender did in one round.

use std::time::{Duration, Instant};

use crate::latency::Histogram;
use crate::meter::Used;
use crate::source::Digest;

/// A bulk transfer that has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Bytes delivered to the receivers.
    pub bytes: u64,
    /// Those that the client sent.
    pub bytes_up: u64,
    /// From the beginning of the first stream to the end of the last.
    pub elapsed: Duration,
    /// When the last stream ended, if connections were closed after that.
    pub ended: Option<Instant>,
    /// CPU time of the server's threads.
    pub server_cpu: Duration,
    /// CPU time of the client's threads.
    pub client_cpu: Duration,
    /// For every stream, a digest of what was sent; empty if nothing was digested.
    pub sent: Vec<Digest>,
    /// For every stream, a digest of what was received.
    pub received: Vec<Digest>,
    /// QUIC only: what both ends counted by stage.
    pub used: Option<Used>,
}

/// Requests answered, handshakes made, or datagrams that arrived.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// How long that took.
    pub elapsed: Duration,
    /// When it ended, if connections were closed after that.
    pub ended: Option<Instant>,
    /// How long each one took; unknown for datagrams.
    pub latency: Histogram,
    /// Datagrams that arrived.
    pub received: u64,
    /// Datagrams that were sent.
    pub sent: u64,
}

impl Done {
    /// Adds another round.
    pub fn add(&mut self, other: &Self) {
        self.elapsed += other.elapsed;
        self.latency.add(&other.latency);
        self.received += other.received;
        self.sent += other.sent;
    }

    /// Number of operations.
    pub fn count(&self) -> u64 {
        self.latency.count() + self.received
    }
}
