//! The two buffers of a worker: one that bundles are received into, one that they are sent from.
//!
//! ```text
//! RecvBatch   | slot 0: 64 KiB | slot 1: 64 KiB | …    one message a slot, reused next time;
//!                       ^─single─────┘                 single datagrams join what came before
//!
//! SendBatch   |bundle|ack|bundle+bundle|ack|  free …   packed, each message on a fresh cache line:
//!              ^cursor: first message not sent yet     small messages share few, hot cache lines
//! ```
//! A bundle that follows another one to the same peer, with datagrams of the same size, joins its
//! message: the two are adjacent, so that the kernel sees a single bundle, although they may belong
//! to different connections.
//!
//! The send cursor moves by messages, or by datagrams inside a message while its bundle is sent
//! singly. So data left behind by a full socket buffer is sent later, in order and exactly once.

mod recv;
mod send;

pub use recv::RecvBatch;
pub use send::SendBatch;

pub(crate) use recv::Entry;
pub(crate) use send::Outgoing;

/// The largest bundle that the kernel accepts in one message: an IPv4 packet of 65,535 bytes minus
/// the IPv4 and UDP headers. (IPv6 allows 20 bytes more; one limit for both keeps callers simple.)
pub const MAX_BUNDLE_BYTES: usize = 65_507;
