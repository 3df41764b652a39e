//! One process takes over a port from another, without a lost connection: what both sides need.
//!
//! ```text
//!  predecessor (Endpoint::hand_over)             successor (Takeover, Builder::take_over)
//!      │ <───────────── connects ─────────────────── │  Unix socket at an agreed path
//!      │ ── Greeting: keys, number of workers ─────> │
//!      │ ── each worker: UDP socket, links ────────> │  SCM_RIGHTS
//!      │ ── the application's descriptors ─────────> │
//!      │ <───────────── Ready ────────────────────── │  the successor can start
//!      │    its workers stop reading                 │
//!      │ ── Stopped ───────────────────────────────> │
//!      │                                             │  its workers start
//!      │ <───────────── Done ─────────────────────── │
//!      │ ── Done ──────────────────────────────────> │
//!      │    accepts nothing more                     │  accepts new connections
//!      │ <══ link: datagrams of old connections ════ │  until the predecessor ends
//! ```
//! Both have the same UDP sockets, so no datagram is lost in between: those that wait in a socket
//! are read by the successor. It forwards datagrams that belong to none of its connections over the
//! worker's link, and the predecessor still sends through the sockets. If one side ends, the other
//! sees its links close: a successor then answers unknown datagrams itself, and a predecessor reads
//! its sockets again.
//!
//! A predecessor may have predecessors of its own. It hands over its links to them, too, so that
//! any of them may end first. The successor forwards to all of them, and none answers datagrams
//! that it does not recognise.
//!
//! Meta calls this socket takeover (Naseer et al., "Zero Downtime Release", SIGCOMM 2020).

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod message;
#[cfg(target_os = "linux")]
mod request;
mod runs;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{Claim, Link};
#[cfg(target_os = "linux")]
pub(crate) use channel::{Listener, MAX_DESCRIPTORS, WatchedChannel};
#[cfg(target_os = "linux")]
pub(crate) use link::Link;
#[cfg(target_os = "linux")]
pub(crate) use message::{Greeting, Word};
#[cfg(target_os = "linux")]
pub(crate) use request::Claim;
#[cfg(target_os = "linux")]
pub use request::Takeover;
pub(crate) use runs::Runs;

/// The outcome of sending datagrams through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "there are no links")
)]
pub(crate) enum Sent {
    /// The other process has ended.
    Gone,
    /// The other process does not keep up: the datagrams are lost, as if in transit.
    Full,
    /// They wait for the other process.
    Yes,
}
