//! The socket: what to do when a call fails, so that the floors above never see a passing fault.
//!
//! ```text
//! a send fails with   a bundle in front                        a single datagram in front
//!   EAGAIN            WouldBlock; the rest stays, in order     the same
//!   EIO               resent singly; GSO off for the           dropped, counted
//!                     destination, for a minute
//!   EINVAL, EMSGSIZE  this bundle resent singly; as EIO when   dropped, counted (the route's MTU)
//!                     it persists though the singles pass
//!   EBADF, ENOTSOCK,  returned                                 the same
//!   EFAULT
//!   anything else     dropped, counted                         the same
//! ```
//! The names are Linux's; each backend's `classify` sorts its system's errors into these rows. The
//! list of errors that end a socket is closed, and the list of losses is open: a server answers any
//! source address, so whoever can make one route fail in a new way could otherwise end every
//! connection of a worker with one spoofed datagram.
//!
//! GSO fails in the field after a good probe: a device without checksum offload, a tunnel, a VPN
//! that comes up later. Where it does, and for how long, is kept in `gso`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::batch::{RecvBatch, SendBatch};
use crate::call::{Failure, Received, Sent};
use crate::counters::{Counters, Stats};
use crate::gso::Gso;
// The backend is the parent's choice: the tests of `portable` stand this file on theirs.
use super::sys;

/// ICMP-like errors passed over in one receive call. Each should be reported once; one that stays
/// is returned in the end.
const RECV_ERRORS: usize = 16;

/// Whether a socket that failed like this is beyond use: its descriptor is gone, or the call's
/// memory is. Everything else may pass.
#[must_use]
pub fn is_fatal(error: &io::Error) -> bool {
    sys::classify(error) == Failure::Fatal
}

/// Whether a send may have failed because the address that it was to leave from is gone
/// (EADDRNOTAVAIL, EINVAL), or has no route any more (ENETUNREACH).
fn may_be_of_source(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NetworkUnreachable
    )
}

/// What a socket is to be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wanted receive buffer in bytes; the kernel may grant less, see [`Limits`].
    pub receive_buffer: usize,
    /// Wanted send buffer in bytes; the kernel may grant less, see [`Limits`].
    pub send_buffer: usize,
    /// Send bundles (generic segmentation offload) where the kernel can.
    pub gso: bool,
    /// How long no bundles are sent to a destination after one was refused on the way there.
    pub gso_retry: Duration,
    /// Receive bundles (generic receive offload) where the kernel can; never on Windows.
    pub gro: bool,
    /// Let several sockets of this user bind the same address (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// An IPv6 socket refuses IPv4-mapped traffic. Off: `[::]` serves both families.
    pub only_v6: bool,
}

impl Default for Options {
    /// 4 MiB to receive into (a burst of 64 bundles), 2 MiB to send from; all offloads, tried again
    /// after a minute; dual stack.
    fn default() -> Self {
        Self {
            receive_buffer: 4 << 20,
            send_buffer: 2 << 20,
            gso: true,
            gso_retry: Duration::from_secs(60),
            gro: true,
            reuse_port: false,
            only_v6: false,
        }
    }
}

/// What the kernel granted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Datagrams that one message may carry; 1: no GSO, or GSO off for a while since bundles are
    /// refused everywhere.
    pub gso_segments: usize,
    /// Whether received messages may be bundles.
    pub gro: bool,
    /// Receive buffer in bytes as granted, in the terms of the request.
    pub receive_buffer: usize,
    /// Send buffer in bytes as granted, in the terms of the request.
    pub send_buffer: usize,
}

/// A bound, non-blocking UDP socket.
///
/// IPv4-mapped addresses never show: on a dual-stack socket a peer 192.0.2.1 is 192.0.2.1.
#[derive(Debug)]
pub struct Socket {
    inner: sys::Inner,
    v6: bool,
    gro: bool,
    receive_buffer: usize,
    send_buffer: usize,
    gso: Gso,
    /// The kernel's drop counter as last read.
    drops: AtomicU32,
    /// The error that the next send call is to meet instead of the kernel; 0: none.
    injected: AtomicI32,
    /// The error that all receive calls meet instead of the kernel; 0: none.
    injected_recv: AtomicI32,
    counters: Counters,
}

impl Socket {
    /// Binds to `address` (port 0: any free port).
    ///
    /// # Errors
    /// Those of `socket(2)` and `bind(2)`: address in use, not permitted, family not there.
    /// `Unsupported` for a shared port on Windows.
    pub fn bind(address: SocketAddr, options: &Options) -> io::Result<Self> {
        let v6 = address.is_ipv6();
        let domain = socket2::Domain::for_address(address);
        let socket =
            socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if v6 {
            socket.set_only_v6(options.only_v6)?;
        }
        #[cfg(unix)]
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        #[cfg(not(unix))]
        if options.reuse_port {
            return Err(shared_port());
        }
        let (inner, gro) = sys::configure(socket, v6, options.gro)?;
        let receive_buffer = sys::buffer(&inner, true, options.receive_buffer);
        let send_buffer = sys::buffer(&inner, false, options.send_buffer);
        socket2::SockRef::from(&inner).bind(&address.into())?;
        let gso_segments = if options.gso {
            sys::probe_gso(&inner)
        } else {
            1
        };
        Ok(Self {
            inner,
            v6,
            gro,
            receive_buffer,
            send_buffer,
            gso: Gso::new(gso_segments, options.gso_retry),
            drops: AtomicU32::new(0),
            injected: AtomicI32::new(0),
            injected_recv: AtomicI32::new(0),
            counters: Counters::default(),
        })
    }

    /// Lets sockets of this user that are bound from now on share the port, as
    /// [`Options::reuse_port`] does from the bind on: whoever is first has seen that the port was
    /// free.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`; `Unsupported` on Windows.
    pub fn share_port(&self) -> io::Result<()> {
        #[cfg(unix)]
        return socket2::SockRef::from(&self.inner).set_reuse_port(true);
        #[cfg(not(unix))]
        Err(shared_port())
    }

    /// The address that the socket is bound to, with the port that the system chose.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Has the kernel hand each datagram to one of the sockets that share this one's port: to the
    /// one that was bound as number `targets[byte % targets.len()]`, where `byte` is the first of
    /// the destination connection id. To be called on one of them, when all are bound; the last
    /// call counts. At most 255 targets.
    ///
    /// # Errors
    /// The system cannot do that, and its own choice stands: by the addresses, if at all.
    pub fn steer(&self, targets: &[u8]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return crate::steer::attach(&self.inner, targets);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = targets;
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// What the socket can do now.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            gso_segments: self.gso.segments(),
            gro: self.gro,
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
        }
    }

    /// The counters since the bind.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// Receives what is there, up to one message a slot of `batch`, and returns the number of
    /// messages. Errors of earlier sends are counted and passed over.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there. Where [`is_fatal`] is true of the error the socket is
    /// beyond use. Any other error may pass: try again, but not at once.
    pub fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        let mut passed_over = 0;
        loop {
            self.counters.recv_calls.add(1);
            let received = match self.injected_recv.load(Ordering::Relaxed) {
                0 => sys::receive(&self.inner, batch),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
            let error = match received {
                Ok(received) => {
                    self.count_received(batch, &received);
                    return Ok(received.messages);
                }
                Err(error) => error,
            };
            let failure = sys::classify(&error);
            match failure {
                Failure::Interrupted => continue,
                Failure::WouldBlock | Failure::Fatal => return Err(error),
                Failure::Lost | Failure::Gso | Failure::Size | Failure::Unknown => {}
            }
            self.counters.recv_errors.add(1);
            self.counters.errors.receive(&error);
            // An ICMP message for something that was sent. Whoever sent it finds out by its own
            // timers. But an error that does not go by being reported is no such message.
            passed_over += 1;
            if failure == Failure::Unknown || passed_over == RECV_ERRORS {
                return Err(error);
            }
        }
    }

    fn count_received(&self, batch: &mut RecvBatch, received: &Received) {
        let dropped = received.drops.map_or(0, |drops| {
            drops.wrapping_sub(self.drops.swap(drops, Ordering::Relaxed))
        });
        batch.received(received.messages, received.drained, u64::from(dropped));
        self.counters
            .messages_received
            .add(received.messages as u64);
        self.counters
            .datagrams_received
            .add(received.datagrams as u64);
        self.counters.bytes_received.add(batch.bytes() as u64);
        if received.truncated > 0 {
            self.counters.recv_truncated.add(received.truncated as u64);
        }
        if received.errors > 0 {
            self.counters.recv_errors.add(received.errors as u64);
        }
        if dropped > 0 {
            self.counters.recv_dropped.add(u64::from(dropped));
        }
    }

    /// Sends the batch and empties it; returns the number of messages that the kernel took.
    ///
    /// Faults of the network or of GSO are healed or counted here, see the head of this file: what
    /// was lost is lost as on the way, and the transport above retransmits it.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer is full: the batch keeps what is left, in order. Anything
    /// else is [fatal](is_fatal): the socket is beyond use.
    pub fn send(&self, batch: &mut SendBatch) -> io::Result<usize> {
        let mut messages = 0;
        while !batch.is_empty() {
            if !self.gso.is_unrestricted() {
                let split = |test: &dyn Fn(IpAddr) -> bool| batch.split_where(test);
                self.gso.restrict(Instant::now(), split);
            }
            self.counters.send_calls.add(1);
            let sent = match self.injected.swap(0, Ordering::Relaxed) {
                0 => sys::send(&self.inner, self.v6, batch.pending()),
                errno => Sent {
                    messages: 0,
                    result: Err(io::Error::from_raw_os_error(errno)),
                },
            };
            match sent.result {
                // Never seen, but a loop that cannot end is worse than a wait.
                Ok(()) if sent.messages == 0 => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(()) => {
                    messages += sent.messages;
                    self.count_sent(batch, sent.messages);
                }
                Err(error) => self.heal(batch, error)?,
            }
        }
        Ok(messages)
    }

    /// Counts the first `messages` of what is pending as sent and moves the batch's cursor over
    /// them.
    fn count_sent(&self, batch: &mut SendBatch, messages: usize) {
        let (mut datagrams, mut bytes, mut bundles) = (0, 0, 0);
        for _ in 0..messages {
            let Some(message) = batch.pending().next() else {
                break;
            };
            datagrams += message.datagrams();
            bundles += usize::from(message.segment_size.is_some());
            let len = message.bytes.len();
            bytes += len;
            batch.advance(len);
        }
        if bundles > 0 {
            self.gso.on_passed();
        }
        self.counters.messages_sent.add(messages as u64);
        self.counters.datagrams_sent.add(datagrams as u64);
        self.counters.bytes_sent.add(bytes as u64);
    }

    /// Deals with the refusal of the first pending message: the batch changes, so that the next
    /// call can pass.
    fn heal(&self, batch: &mut SendBatch, error: io::Error) -> io::Result<()> {
        let Some(message) = batch.pending().next() else {
            return Err(error);
        };
        let remote = message.path.remote.ip();
        let (bundle, len) = (message.segment_size.is_some(), message.bytes.len());
        let failure = sys::classify(&error);
        if !bundle && may_be_of_source(&error) {
            batch.note_refused_source();
        }
        match failure {
            Failure::Interrupted => {}
            Failure::WouldBlock => {
                self.counters.send_blocked.add(1);
                return Err(error);
            }
            Failure::Fatal => return Err(error),
            Failure::Gso if bundle => {
                self.counters.gso_fallbacks.add(1);
                self.counters.gso_disabled.add(1);
                self.gso.on_refused(remote, Instant::now());
                batch.split_front();
            }
            Failure::Size if bundle => {
                self.counters.gso_fallbacks.add(1);
                batch.split_front();
                if self.gso.on_size_refused(remote, Instant::now()) {
                    self.counters.gso_disabled.add(1);
                }
            }
            Failure::Size => {
                self.gso.forget_sizes();
                self.counters.send_too_large.add(1);
                self.counters.errors.send(&error);
                batch.advance(len);
            }
            Failure::Lost | Failure::Gso | Failure::Unknown => {
                self.counters.send_errors.add(1);
                self.counters.errors.send(&error);
                if failure == Failure::Unknown {
                    self.counters.send_errors_unknown.add(1);
                }
                batch.advance(len);
            }
        }
        Ok(())
    }

    /// Drops the first waiting message, for which the system keeps answering `error`, and counts it
    /// as lost: where the socket has room, `WouldBlock` is about the message.
    pub fn give_up_front(&self, batch: &mut SendBatch, error: &io::Error) {
        let len = batch.pending().next().map(|message| message.bytes.len());
        if let Some(len) = len {
            self.counters.send_errors.add(1);
            self.counters.send_errors_unknown.add(1);
            self.counters.errors.send(error);
            batch.advance(len);
        }
    }

    /// How many of `stats().send_errors` nobody expects; cheaper to ask for than all counters.
    #[must_use]
    pub fn send_errors_unknown(&self) -> u64 {
        self.counters.send_errors_unknown.get()
    }

    /// Makes every receive call fail with `errno` until it is told 0, before it reaches the kernel:
    /// for tests of what happens then.
    #[doc(hidden)]
    pub fn inject_recv_error(&self, errno: i32) {
        self.injected_recv.store(errno, Ordering::Relaxed);
    }

    /// Makes the next send call fail with `errno` once, before it reaches the kernel: for tests of
    /// the healing.
    #[doc(hidden)]
    pub fn inject_send_error(&self, errno: i32) {
        self.injected.store(errno, Ordering::Relaxed);
    }
}

#[cfg(not(unix))]
fn shared_port() -> io::Error {
    let why = "on this system sockets cannot share a port";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

#[cfg(unix)]
impl std::os::fd::AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for Socket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.inner.as_raw_fd()
    }
}

#[cfg(windows)]
impl std::os::windows::io::AsSocket for Socket {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.inner.as_socket()
    }
}
