//! The socket: what to do when a call fails, so that the floors above never see a temporary fault.
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
//! The names are Linux's; each backend's `classify` maps its system's errors to these rows. The
//! list of errors that end a socket is closed, and the list of losses is open: a server answers any
//! source address, so an attacker who can make one route fail in a new way could otherwise end all
//! connections of a worker with one spoofed datagram.
//!
//! GSO fails in the field after a successful probe: a device without checksum offload, a tunnel, a
//! VPN that comes up later. `gso` tracks where it does, and for how long.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::batch::{RecvBatch, SendBatch};
use crate::call::{Failure, Received, Sent};
use crate::counters::{Counters, Stats};
use crate::gso::Gso;
// The parent chooses the backend: the tests of `portable` put this file on top of theirs.
use super::sys;

/// ICMP-like errors skipped in one receive call. Each should be reported once; one that persists is
/// eventually returned.
const RECV_ERRORS: usize = 16;

/// Whether this error makes the socket unusable: its descriptor is gone, or the call's memory is
/// invalid. Every other error may be temporary.
#[must_use]
pub fn is_fatal(error: &io::Error) -> bool {
    sys::classify(error) == Failure::Fatal
}

/// Whether a send may have failed because no route leads to its destination (ENETUNREACH,
/// EHOSTUNREACH), or none from its source address, which may be gone (EADDRNOTAVAIL, EINVAL).
fn is_of_path(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
    )
}

/// Options of a socket.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requested receive buffer in bytes; the kernel may grant less, see [`Limits`].
    pub receive_buffer: usize,
    /// Requested send buffer in bytes; the kernel may grant less, see [`Limits`].
    pub send_buffer: usize,
    /// Send bundles (generic segmentation offload) if the kernel supports it.
    pub gso: bool,
    /// How long GSO stays off for a destination after a bundle to it was refused.
    pub gso_retry: Duration,
    /// Receive bundles (generic receive offload) if the kernel supports it; never on Windows.
    pub gro: bool,
    /// Let several sockets of this user bind the same address (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// IPv6 only: an IPv6 socket refuses IPv4-mapped traffic. If off, `[::]` serves both families.
    pub only_v6: bool,
    /// Mark of all outgoing datagrams, for routing rules and filters (`SO_MARK`; Linux, with
    /// CAP_NET_ADMIN).
    pub mark: Option<u32>,
    /// Network interface that all datagrams go through (`SO_BINDTODEVICE`; Linux).
    pub device: Option<String>,
}

impl Default for Options {
    /// 4 MiB for receiving (a burst of 64 bundles), 2 MiB for sending; all offloads, retried after
    /// a minute; dual stack.
    fn default() -> Self {
        Self {
            receive_buffer: 4 << 20,
            send_buffer: 2 << 20,
            gso: true,
            gso_retry: Duration::from_secs(60),
            gro: true,
            reuse_port: false,
            only_v6: false,
            mark: None,
            device: None,
        }
    }
}

/// Sets options that decide the route of a socket's datagrams.
#[cfg(target_os = "linux")]
fn choose_route(socket: &socket2::Socket, options: &Options) -> io::Result<()> {
    let tell = |what: &str, error: io::Error| {
        let help = match error.kind() {
            io::ErrorKind::PermissionDenied => " (it needs CAP_NET_ADMIN)",
            _ => "",
        };
        io::Error::new(error.kind(), format!("cannot set {what}{help}: {error}"))
    };
    if let Some(mark) = options.mark {
        (socket.set_mark(mark)).map_err(|error| tell("the mark", error))?;
    }
    if let Some(device) = &options.device {
        (socket.bind_device(Some(device.as_bytes())))
            .map_err(|error| tell(&format!("the interface {device:?}"), error))?;
    }
    Ok(())
}

/// Sets options that decide the route of a socket's datagrams.
#[cfg(not(target_os = "linux"))]
fn choose_route(_: &socket2::Socket, options: &Options) -> io::Result<()> {
    if options.mark.is_none() && options.device.is_none() {
        return Ok(());
    }
    let why = "a mark or an interface can be set on Linux only";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// What the kernel granted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Datagrams that one message may carry; 1: no GSO, or GSO is off for a while because bundles
    /// are refused everywhere.
    pub gso_segments: usize,
    /// Whether received messages may be bundles.
    pub gro: bool,
    /// Granted receive buffer in bytes, comparable with the request.
    pub receive_buffer: usize,
    /// Granted send buffer in bytes, comparable with the request.
    pub send_buffer: usize,
}

/// A bound, non-blocking UDP socket.
///
/// IPv4-mapped addresses are never exposed: on a dual-stack socket, a peer at 192.0.2.1 is
/// reported as 192.0.2.1.
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
    /// The error that the next send call returns instead of reaching the kernel; 0: none.
    injected: AtomicI32,
    /// The error that all receive calls return instead of reaching the kernel; 0: none.
    injected_recv: AtomicI32,
    counters: Counters,
}

impl Socket {
    /// Binds to `address` (port 0: any free port).
    ///
    /// # Errors
    /// Those of `socket(2)` and `bind(2)`: address in use, permission denied, address family not
    /// supported. `Unsupported` for a shared port on Windows.
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
        choose_route(&socket, options)?;
        Self::configure(socket, v6, options, |socket| socket.bind(&address.into()))
    }

    /// Takes over a bound socket: from a parent process, from a service manager, or with options of
    /// its own. Options that must be set before the bind have no effect: `reuse_port`, `only_v6`,
    /// `mark` and `device`.
    ///
    /// # Errors
    /// `InvalidInput` if the socket is not bound, or is connected: it would then receive from only
    /// one peer. Those of `setsockopt(2)`.
    pub fn adopt(socket: std::net::UdpSocket, options: &Options) -> io::Result<Self> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        let address = socket.local_addr()?;
        if address.port() == 0 {
            return Err(invalid("the socket is not bound to a port"));
        }
        if socket.peer_addr().is_ok() {
            return Err(invalid("the socket is connected to one peer"));
        }
        socket.set_nonblocking(true)?;
        Self::configure(socket.into(), address.is_ipv6(), options, |_| Ok(()))
    }

    fn configure(
        socket: socket2::Socket,
        v6: bool,
        options: &Options,
        bind: impl FnOnce(&socket2::SockRef<'_>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let (inner, gro) = sys::configure(socket, v6, options.gro)?;
        let receive_buffer = sys::buffer(&inner, true, options.receive_buffer);
        let send_buffer = sys::buffer(&inner, false, options.send_buffer);
        bind(&socket2::SockRef::from(&inner))?;
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
    /// [`Options::reuse_port`] does at bind time: binding without it first makes sure that the port
    /// was free.
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

    /// Makes the kernel deliver each datagram to one of the sockets that share this port: to the
    /// one that was bound as number `targets[byte % targets.len()]`, where `byte` is the first byte
    /// of the destination connection id. Call it on any of them once all are bound; the last call
    /// takes effect. At most 255 targets.
    /// # Errors
    /// The system does not support this. Its own distribution remains: by addresses, if at all.
    pub fn steer(&self, targets: &[u8]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return crate::steer::attach(&self.inner, targets);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = targets;
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// What the socket can currently do.
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

    /// Receives what has arrived, up to one message for each slot of `batch`, and returns the
    /// number of messages. Errors of earlier sends are counted and skipped.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing to receive. If [`is_fatal`] is true for the error, the
    /// socket is unusable. Any other error may be temporary: retry after a while.
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
            // An ICMP message about an earlier datagram, whose sender finds out by its own timers.
            // But an error that persists after being reported is not such a message.
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
    /// Failures of the network or of GSO are handled or counted here; see the top of this file. A
    /// dropped message is like a loss in transit, and the transport above retransmits it.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer is full: the batch keeps what is left, in order. Any other
    /// error is [fatal](is_fatal): the socket is unusable.
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
                // Never observed, but an endless loop would be worse than a wait.
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

    /// Counts the first `messages` pending ones as sent and moves the batch's cursor over them.
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

    /// Handles the refusal of the first pending message: changes the batch so that the next call
    /// can succeed.
    fn heal(&self, batch: &mut SendBatch, error: io::Error) -> io::Result<()> {
        let Some(message) = batch.pending().next() else {
            return Err(error);
        };
        let remote = message.path.remote.ip();
        let (bundle, len) = (message.segment_size.is_some(), message.bytes.len());
        let failure = sys::classify(&error);
        // EINVAL may be about a bundle's size: sending its datagrams singly will show.
        let may_be_of_size = bundle && failure == Failure::Size;
        if is_of_path(&error) && !may_be_of_size {
            batch.note_refused(error.kind());
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

    /// Drops the first waiting message, for which the system keeps returning `error`, and counts it
    /// as lost: if the socket has room, `WouldBlock` is about the message.
    pub fn give_up_front(&self, batch: &mut SendBatch, error: &io::Error) {
        let len = batch.pending().next().map(|message| message.bytes.len());
        if let Some(len) = len {
            self.counters.send_errors.add(1);
            self.counters.send_errors_unknown.add(1);
            self.counters.errors.send(error);
            batch.advance(len);
        }
    }

    /// How many of `stats().send_errors` are unexpected; cheaper than reading all counters.
    #[must_use]
    pub fn send_errors_unknown(&self) -> u64 {
        self.counters.send_errors_unknown.get()
    }

    /// Makes every receive call fail with `errno`, before it reaches the kernel, until this is
    /// called with 0. For tests.
    #[doc(hidden)]
    pub fn inject_recv_error(&self, errno: i32) {
        self.injected_recv.store(errno, Ordering::Relaxed);
    }

    /// Makes the next send call fail once with `errno`, before it reaches the kernel. For tests.
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
