//! The socket: what to do when a call fails, so that the floors above never see a passing fault.
//!
//! ```text
//! a send fails with     a bundle in front                        a single datagram in front
//!   EAGAIN              WouldBlock; the rest stays, in order     the same
//!   EIO                 GSO off for the socket, resent singly    dropped, counted
//!   EINVAL, EMSGSIZE    this bundle resent singly; GSO off when  dropped, counted (the route's MTU)
//!                       it persists though the singles pass
//!   ICMP-like           dropped, counted                         the same
//!   anything else       returned                                 returned
//! ```
//! The names are Linux's; each backend's `classify` sorts its system's errors into these rows.
//!
//! GSO fails in the field after a good probe: a device without checksum offload, a tunnel, a VPN that comes up later.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use crate::batch::{RecvBatch, SendBatch};
use crate::call::{Failure, Received, Sent};
use crate::counters::{Counters, Stats};
// The backend is the parent's choice: the tests of `portable` stand this file on theirs.
use super::sys;

/// Bundles refused with EINVAL or EMSGSIZE one after the other, though their datagrams then went out singly, after
/// which GSO is switched off: the route's MTU is not the matter.
const GSO_STRIKES: u32 = 3;

/// ICMP-like errors passed over in one receive call. Each is reported once, so this only bounds the call.
const RECV_ERRORS: usize = 16;

/// What a socket is to be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wanted receive buffer in bytes; the kernel may grant less, see [`Limits`].
    pub receive_buffer: usize,
    /// Wanted send buffer in bytes; the kernel may grant less, see [`Limits`].
    pub send_buffer: usize,
    /// Send bundles (generic segmentation offload) where the kernel can.
    pub gso: bool,
    /// Receive bundles (generic receive offload) where the kernel can; never on Windows.
    pub gro: bool,
    /// Let several sockets of this user bind the same address (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// An IPv6 socket refuses IPv4-mapped traffic. Off: `[::]` serves both families.
    pub only_v6: bool,
}

impl Default for Options {
    /// 4 MiB to receive into (a burst of 64 bundles), 2 MiB to send from; all offloads; dual stack.
    fn default() -> Self {
        Self {
            receive_buffer: 4 << 20,
            send_buffer: 2 << 20,
            gso: true,
            gro: true,
            reuse_port: false,
            only_v6: false,
        }
    }
}

/// What the kernel granted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Datagrams that one message may carry; 1: no GSO, or GSO switched off after it failed.
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
    gso_segments: AtomicUsize,
    /// Refused bundles in a row, see [`GSO_STRIKES`].
    strikes: AtomicU32,
    /// The kernel's drop counter as last read.
    drops: AtomicU32,
    /// The error that the next send call is to meet instead of the kernel; 0: none.
    injected: AtomicI32,
    counters: Counters,
}

impl Socket {
    /// Binds to `address` (port 0: any free port).
    ///
    /// # Errors
    /// Those of `socket(2)` and `bind(2)`: address in use, not permitted, family not there. `Unsupported` for a shared
    /// port on Windows.
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
            gso_segments: AtomicUsize::new(gso_segments),
            strikes: AtomicU32::new(0),
            drops: AtomicU32::new(0),
            injected: AtomicI32::new(0),
            counters: Counters::default(),
        })
    }

    /// Lets sockets of this user that are bound from now on share the port, as [`Options::reuse_port`] does from the bind on:
    /// whoever is first has seen that the port was free.
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

    /// Has the kernel hand each datagram to one of the sockets that share this one's port, `sockets` of them: to the one
    /// bound as number `byte % sockets`, where `byte` is the first of the destination connection id. To be called on one
    /// of them, when all are bound.
    ///
    /// # Errors
    /// The system cannot do that, and its own choice stands: by the addresses, if at all.
    pub fn steer(&self, sockets: u8) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return crate::steer::attach(&self.inner, sockets);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = sockets;
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// What the socket can do now.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            gso_segments: self.gso_segments.load(Ordering::Relaxed),
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

    /// Receives what is there, up to one message a slot of `batch`, and returns the number of messages. 0 means that
    /// only errors of earlier sends came (counted): call again.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; otherwise the socket is broken.
    pub fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        for _ in 0..RECV_ERRORS {
            self.counters.recv_calls.add(1);
            let error = match sys::receive(&self.inner, batch) {
                Ok(received) => {
                    self.count_received(batch, &received);
                    return Ok(received.messages);
                }
                Err(error) => error,
            };
            match sys::classify(&error) {
                Failure::Interrupted => {}
                Failure::WouldBlock | Failure::Fatal => return Err(error),
                // An ICMP message for something that was sent. Whoever sent it finds out by its own timers.
                Failure::Lost | Failure::Gso | Failure::Size => self.counters.recv_errors.add(1),
            }
        }
        Ok(0)
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
    /// Faults of the network or of GSO are healed or counted here, see the head of this file: what was lost is lost
    /// as on the way, and the transport above retransmits it.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer is full: the batch keeps what is left, in order. Anything else means that
    /// the socket is broken.
    pub fn send(&self, batch: &mut SendBatch) -> io::Result<usize> {
        let mut messages = 0;
        while !batch.is_empty() {
            let gso = self.gso_segments.load(Ordering::Relaxed) > 1;
            self.counters.send_calls.add(1);
            let sent = match self.injected.swap(0, Ordering::Relaxed) {
                0 => sys::send(&self.inner, self.v6, batch.pending(gso)),
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
                    self.count_sent(batch, gso, sent.messages);
                }
                Err(error) => self.heal(batch, gso, error)?,
            }
        }
        Ok(messages)
    }

    /// Counts the first `messages` of what is pending as sent and moves the batch's cursor over them.
    fn count_sent(&self, batch: &mut SendBatch, gso: bool, messages: usize) {
        let (mut datagrams, mut bytes, mut bundles) = (0, 0, 0);
        for _ in 0..messages {
            let Some(message) = batch.pending(gso).next() else {
                break;
            };
            datagrams += message.datagrams();
            bundles += usize::from(message.segment_size.is_some());
            let len = message.bytes.len();
            bytes += len;
            batch.advance(len);
        }
        if bundles > 0 {
            self.strikes.store(0, Ordering::Relaxed);
        }
        self.counters.messages_sent.add(messages as u64);
        self.counters.datagrams_sent.add(datagrams as u64);
        self.counters.bytes_sent.add(bytes as u64);
    }

    /// Deals with the refusal of the first pending message: the batch changes, so that the next call can pass.
    fn heal(&self, batch: &mut SendBatch, gso: bool, error: io::Error) -> io::Result<()> {
        let (bundle, len) = match batch.pending(gso).next() {
            Some(message) => (message.segment_size.is_some(), message.bytes.len()),
            None => (false, 0),
        };
        match sys::classify(&error) {
            Failure::Interrupted => {}
            Failure::WouldBlock | Failure::Fatal => return Err(error),
            Failure::Gso if bundle => {
                self.counters.gso_fallbacks.add(1);
                self.gso_off();
            }
            Failure::Size if bundle => {
                self.counters.gso_fallbacks.add(1);
                batch.split_front();
                if self.strikes.fetch_add(1, Ordering::Relaxed) + 1 >= GSO_STRIKES {
                    self.gso_off();
                }
            }
            Failure::Size => {
                // The route's MTU is the matter and not GSO.
                self.strikes.store(0, Ordering::Relaxed);
                self.counters.send_too_large.add(1);
                batch.advance(len);
            }
            Failure::Lost | Failure::Gso => {
                self.counters.send_errors.add(1);
                batch.advance(len);
            }
        }
        Ok(())
    }

    fn gso_off(&self) {
        self.gso_segments.store(1, Ordering::Relaxed);
        self.counters.gso_disabled.set(1);
    }

    /// Makes the next send call fail with `errno` once, before it reaches the kernel: for tests of the healing.
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
