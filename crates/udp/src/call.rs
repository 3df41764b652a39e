//! The result of a backend's calls, the same for every system.

use std::io;

/// The result of one send call.
pub(crate) struct Sent {
    /// Messages in front that the kernel accepted.
    pub(crate) messages: usize,
    /// `Err` if it accepted none.
    pub(crate) result: io::Result<()>,
}

/// The result of one receive call besides the entries.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Entries filled.
    pub(crate) messages: usize,
    /// Whether the kernel had no more.
    pub(crate) drained: bool,
    /// Datagrams in the entries, empty ones included.
    pub(crate) datagrams: usize,
    /// Messages that did not fit their slot; their entries are empty.
    pub(crate) truncated: usize,
    /// Errors of earlier sends that were reported after the first message.
    pub(crate) errors: usize,
    /// The socket's drop counter as reported with the last message (it counts from the bind and
    /// wraps at 2^32).
    pub(crate) drops: Option<u32>,
}

/// The meaning of a failed call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The socket's buffer is full, or its queue empty: wait.
    WouldBlock,
    /// A signal interrupted it: call again.
    Interrupted,
    /// A device on the route does not support GSO (for example, its checksum offload is off).
    Gso,
    /// The message itself was refused: too large for the route, or too many segments.
    Size,
    /// ICMP-like: this message is lost, as it might have been on the network; the socket is fine.
    Lost,
    /// Any other reason: a tunnel without a peer, a hook of a cgroup or a security module. For a
    /// sender the same as `Lost`; a receiver cannot know whether it is temporary.
    Unknown,
    /// The socket no longer exists, or the call's own memory is invalid.
    Fatal,
}
