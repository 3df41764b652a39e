//! UDP sockets that send and receive *bundles* of datagrams.
//!
//! ```text
//!            SendBatch ── Socket::send ──> sendmmsg, one GSO bundle a message ──> kernel
//!   up to N messages in one buffer           (EIO: GSO off for the destination, single datagrams)
//!
//!            RecvBatch <── Socket::recv ── recvmmsg, one GRO bundle a message <── kernel
//!   one DatagramBatch a message: one buffer, one stride, one path, one ECN mark
//! ```
//!
//! Floors, lowest first: `errors` and `counters`, `gso` (where bundles do not pass), `cmsg`
//! (control messages as bytes), `batch` (the buffers and their contents), `call` (the outcome of a
//! system call), `option` (socket options with integer values), `linux` or `portable` (the calls
//! themselves: ours on Linux, quinn-udp's on other systems), `addresses` (notification that the
//! machine's addresses have changed), `steer` (which socket of a port gets a datagram), `socket`
//! (what to do when a call fails).
//!
//! Nothing is allocated after construction. The crate moves datagrams, their ECN marks and their
//! addresses; about QUIC it knows only where RFC 8999 puts a connection id (`steer`). Systems other
//! than Linux are handled by `portable`: mostly one datagram per message, with its ECN mark and its
//! local address.

#[cfg(target_os = "linux")]
mod addresses;
mod batch;
mod call;
#[cfg(target_os = "linux")]
mod cmsg;
mod counters;
mod errors;
mod gso;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod option;
#[cfg(any(not(target_os = "linux"), test))]
mod portable;
mod socket;
#[cfg(target_os = "linux")]
mod steer;

#[cfg(target_os = "linux")]
use linux as sys;
#[cfg(not(target_os = "linux"))]
use portable as sys;

#[cfg(target_os = "linux")]
pub use addresses::AddressWatch;
pub use batch::{MAX_BUNDLE_BYTES, RecvBatch, SendBatch};
pub use counters::Stats;
pub use errors::{ErrorCount, ErrorCounts};
pub use socket::{Limits, Options, Socket, is_fatal};
