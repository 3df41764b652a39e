//! UDP sockets that send and receive *bundles* of datagrams.
//!
//! ```text
//!            SendBatch ── Socket::send ──> sendmmsg, one GSO bundle a message ──> kernel
//!   up to N messages in one buffer                    (EIO: GSO off, the rest as single datagrams)
//!
//!            RecvBatch <── Socket::recv ── recvmmsg, one GRO bundle a message <── kernel
//!   one DatagramBatch a message: one buffer, one stride, one path, one ECN mark
//! ```
//!
//! Floors, lowest first: `counters`, `cmsg` (control messages as bytes), `batch` (the buffers and what lies in
//! them), `linux` or `fallback` (one system call each way), `steer` (which
//! socket of a port gets a datagram), `socket` (what to do when a call fails).
//!
//! Nothing is allocated after construction. The crate moves datagrams, their ECN marks and their
//! addresses; of QUIC it knows where RFC 8999 puts a connection id (`steer`), and no more. On systems other than Linux every message is one datagram and ECN marks are not carried.

mod batch;
#[cfg(target_os = "linux")]
mod cmsg;
mod counters;
#[cfg(any(not(target_os = "linux"), test))]
mod fallback;
#[cfg(target_os = "linux")]
mod linux;
mod socket;
#[cfg(target_os = "linux")]
mod steer;

pub use batch::{MAX_BUNDLE_BYTES, RecvBatch, SendBatch};
pub use counters::Stats;
pub use socket::{Limits, Options, Socket};
