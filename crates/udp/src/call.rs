//! What a backend says of its calls, the same for every system.

use std::io;

/// What one send call did.
pub(crate) struct Sent {
    /// Messages in front that the kernel took.
    pub(crate) messages: usize,
    /// `Err` when it took none.
    pub(crate) result: io::Result<()>,
}

/// What one receive call brought beside the entries.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Entries filled.
    pub(crate) messages: usize,
    /// The kernel had no more.
    pub(crate) drained: bool,
    /// Datagrams in the entries, empty ones included.
    pub(crate) datagrams: usize,
    /// Messages that did not fit their slot; their entries are empty.
    pub(crate) truncated: usize,
    /// Errors of earlier sends that were met behind the first message.
    pub(crate) errors: usize,
    /// The socket's drop counter as the last message told it (it counts from the bind and wraps at
    /// 2^32).
    pub(crate) drops: Option<u32>,
}

/// What a failed call means.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The socket's buffer is full, or its queue empty: wait.
    WouldBlock,
    /// A signal came: call again.
    Interrupted,
    /// A device of the route cannot do GSO (its checksum offload is off, say).
    Gso,
    /// The message as such was refused: too large for the route, or too many segments.
    Size,
    /// ICMP-like: this message is lost, as it might have been on the network; the socket is sound.
    Lost,
    /// Any other reason: a tunnel without a peer, a hook of a cgroup or a security module. To a
    /// sender the same as `Lost`; a receiver cannot know whether it passes.
    Unknown,
    /// There is no socket any more, or the call's own memory is not there.
    Fatal,
}
