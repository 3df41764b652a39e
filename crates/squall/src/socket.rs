//! What a worker sends and receives through: a UDP socket, or a stand-in for one.
//!
//! ```text
//! Socket::Udp       squall_udp::Socket: bundles, recvmmsg and sendmmsg; readiness by the runtime
//! Socket::Carrier   dyn DatagramSocket: a call for each message; readiness by its own wake-ups
//! ```
//! The choice costs a branch per system call; a UDP socket is used without dynamic dispatch.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use squall_udp::{Limits, Options, RecvBatch, SendBatch, Stats};
use squall_wire::{Path, Transmit};

use crate::datagram_socket::{DatagramSocket, OutgoingDatagrams};
use crate::sys;

/// What a worker sends and receives through.
pub(crate) enum Socket {
    Udp(Arc<squall_udp::Socket>),
    Carrier(Box<Carrier>),
}

/// The application's datagram socket, with what the worker needs to know about it.
pub(crate) struct Carrier {
    socket: Arc<dyn DatagramSocket>,
    readable: Arc<Notice>,
    writable: Arc<Notice>,
    stats: Mutex<Stats>,
}

/// Whether the carrier has woken us since the last attempt, and which task to wake when it does.
struct Notice {
    is_set: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Notice {
    /// Set, since nothing has been tried yet.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            is_set: AtomicBool::new(true),
            task: Mutex::new(None),
        })
    }

    /// Ready if the carrier has woken us.
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let known = task.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
        let replaced = (!known).then(|| task.replace(cx.waker().clone()));
        drop(task);
        drop(replaced);
        // Checked after the task is stored, so that no wake-up in between is lost.
        match self.is_set.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// An attempt begins: a wake-up from now on counts.
    fn attempt(self: &Arc<Self>) -> Waker {
        self.is_set.store(false, Ordering::SeqCst);
        Waker::from(Arc::clone(self))
    }

    /// Another attempt is worthwhile.
    fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
    }
}

impl Wake for Notice {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
        let task = (self.task.lock().unwrap_or_else(PoisonError::into_inner)).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Carrier {
    fn new(socket: Arc<dyn DatagramSocket>) -> Self {
        Self {
            socket,
            readable: Notice::new(),
            writable: Notice::new(),
            stats: Mutex::default(),
        }
    }

    fn count(&self, count: impl FnOnce(&mut Stats)) {
        count(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn segments(&self) -> usize {
        self.socket.max_segments().clamp(1, 64)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        let waker = self.readable.attempt();
        let mut cx = Context::from_waker(&waker);
        let result = batch.fill(|buffer| {
            let found = match self.socket.poll_recv(&mut cx, buffer) {
                Poll::Ready(found) => found?,
                Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
            };
            Ok(Transmit {
                path: Path {
                    remote: found.remote,
                    local: found.local,
                },
                ecn: found.ecn,
                segment_size: u16::try_from(found.segment_size.max(1)).unwrap_or(u16::MAX),
                len: found.len,
            })
        });
        // After a full batch or an error, another attempt is worthwhile.
        let is_empty = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if !batch.drained() && !result.as_ref().is_err_and(is_empty) {
            self.readable.set();
        }
        self.count(|stats| {
            stats.recv_calls += 1;
            let received = *result.as_ref().unwrap_or(&0);
            stats.messages_received += received as u64;
            let datagrams: usize = batch.iter_mut().map(|bundle| bundle.count()).sum();
            stats.datagrams_received += datagrams as u64;
            stats.bytes_received += batch.bytes() as u64;
            stats.recv_errors += u64::from(result.as_ref().is_err_and(|error| !is_empty(error)));
        });
        result
    }

    fn send(&self, batch: &mut SendBatch) -> io::Result<usize> {
        let waker = self.writable.attempt();
        let mut cx = Context::from_waker(&waker);
        let result = batch.send_with(|message, bytes| {
            let datagrams = OutgoingDatagrams {
                remote: message.path.remote,
                local: message.path.local,
                ecn: message.ecn,
                segment_size: usize::from(message.segment_size),
                bytes,
            };
            let sent = match self.socket.poll_send(&mut cx, &datagrams) {
                Poll::Ready(sent) => sent,
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            };
            self.count(|stats| {
                stats.send_calls += 1;
                match &sent {
                    Ok(()) => {
                        stats.messages_sent += 1;
                        stats.datagrams_sent += datagrams.iter().count() as u64;
                        stats.bytes_sent += datagrams.bytes.len() as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        stats.send_blocked += 1;
                    }
                    Err(_) => stats.send_errors += 1,
                }
            });
            match sent {
                // Counts as lost in transit.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && !is_gone(&error) => {
                    Ok(())
                }
                other => other,
            }
        });
        if result.is_ok() {
            self.writable.set();
        }
        result
    }
}

/// Whether a carrier reports that it will never carry anything again.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected
    )
}

impl Socket {
    /// See [`squall_udp::Socket::bind`].
    pub(crate) fn bind(address: SocketAddr, options: &Options) -> io::Result<Self> {
        let socket = squall_udp::Socket::bind(address, options)?;
        Ok(Self::Udp(Arc::new(socket)))
    }

    /// See [`squall_udp::Socket::adopt`].
    pub(crate) fn adopt(socket: UdpSocket, options: &Options) -> io::Result<Self> {
        let socket = squall_udp::Socket::adopt(socket, options)?;
        Ok(Self::Udp(Arc::new(socket)))
    }

    /// A carrier of datagrams other than a UDP socket.
    pub(crate) fn carried_by(socket: Arc<dyn DatagramSocket>) -> Self {
        Self::Carrier(Box::new(Carrier::new(socket)))
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Udp(socket) => socket.local_addr(),
            Self::Carrier(carrier) => carrier.socket.local_addr(),
        }
    }

    /// Lets other sockets share the port.
    pub(crate) fn share_port(&self) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.share_port(),
            Self::Carrier(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Has the kernel choose the worker by the connection id.
    pub(crate) fn steer(&self, targets: &[u8]) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.steer(targets),
            Self::Carrier(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    #[inline]
    pub(crate) fn limits(&self) -> Limits {
        match self {
            Self::Udp(socket) => socket.limits(),
            Self::Carrier(carrier) => Limits {
                gso_segments: carrier.segments(),
                ..Limits::default()
            },
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        match self {
            Self::Udp(socket) => socket.stats(),
            Self::Carrier(carrier) => {
                *(carrier.stats.lock()).unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    #[inline]
    pub(crate) fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.recv(batch),
            Self::Carrier(carrier) => carrier.recv(batch),
        }
    }

    #[inline]
    pub(crate) fn send(&self, batch: &mut SendBatch) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.send(batch),
            Self::Carrier(carrier) => carrier.send(batch),
        }
    }

    /// Whether this error, of receiving or sending, means that the socket is gone.
    pub(crate) fn is_fatal(&self, error: &io::Error) -> bool {
        match self {
            Self::Udp(_) => squall_udp::is_fatal(error),
            Self::Carrier(_) => is_gone(error),
        }
    }

    /// Drops the first waiting message.
    pub(crate) fn give_up_front(&self, batch: &mut SendBatch, error: &io::Error) {
        match self {
            Self::Udp(socket) => socket.give_up_front(batch, error),
            // A carrier decides itself what is lost: `Pending` is about all messages.
            Self::Carrier(_) => {}
        }
    }

    #[inline]
    pub(crate) fn send_errors_unknown(&self) -> u64 {
        match self {
            Self::Udp(socket) => socket.send_errors_unknown(),
            Self::Carrier(_) => 0,
        }
    }

    /// For tests.
    pub(crate) fn inject_recv_error(&self, errno: i32) {
        if let Self::Udp(socket) = self {
            socket.inject_recv_error(errno);
        }
    }

    /// For tests.
    pub(crate) fn inject_send_error(&self, errno: i32) {
        if let Self::Udp(socket) = self {
            socket.inject_send_error(errno);
        }
    }

    /// A duplicate of the UDP socket's descriptor.
    #[cfg(target_os = "linux")]
    pub(crate) fn duplicate(&self) -> io::Result<std::os::fd::OwnedFd> {
        use std::os::fd::AsFd as _;
        match self {
            Self::Udp(socket) => socket.as_fd().try_clone_to_owned(),
            Self::Carrier(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The same carrier for a worker that replaces another.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::Udp(_) => None,
            Self::Carrier(carrier) => Some(Self::carried_by(Arc::clone(&carrier.socket))),
        }
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Udp(socket) => socket.fmt(f),
            Self::Carrier(_) => f.write_str("DatagramSocket"),
        }
    }
}

/// A socket whose readiness to receive is known.
pub(crate) struct Readable {
    socket: Arc<Socket>,
    /// `None` for a carrier, which wakes by itself.
    fd: Option<sys::Readable>,
}

/// A sign that there may be something to receive.
pub(crate) struct Guard<'a>(Option<sys::Guard<'a>>);

/// Readiness of a socket to send.
pub(crate) enum Writable {
    Fd(sys::Writable),
    Carrier(Arc<Socket>),
}

/// Readiness of the socket to receive. To be called on a runtime's thread.
pub(crate) fn readable(socket: Arc<Socket>) -> io::Result<Readable> {
    let fd = match &*socket {
        Socket::Udp(udp) => Some(sys::readable(Arc::clone(udp))?),
        Socket::Carrier(_) => None,
    };
    Ok(Readable { socket, fd })
}

/// Readiness of the socket to send, for as long as it is needed.
pub(crate) fn writable(readable: &Readable) -> io::Result<Writable> {
    Ok(match &readable.fd {
        Some(fd) => Writable::Fd(sys::writable(fd)?),
        None => Writable::Carrier(Arc::clone(&readable.socket)),
    })
}

impl Readable {
    /// Watches the socket, or stops doing so: another process that reads it is then not in this
    /// one's way.
    ///
    /// # Errors
    /// The system refused to watch it again.
    #[inline]
    pub(crate) fn watch(&mut self, watch: bool) -> io::Result<()> {
        self.fd.as_mut().map_or(Ok(()), |fd| fd.watch(watch))
    }

    pub(crate) fn get_ref(&self) -> &Arc<Socket> {
        &self.socket
    }

    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Guard<'_>>> {
        match (&self.fd, &*self.socket) {
            (Some(fd), _) => {
                let guard = ready!(fd.poll_read_ready(cx))?;
                Poll::Ready(Ok(Guard(Some(guard))))
            }
            (None, Socket::Carrier(carrier)) => {
                ready!(carrier.readable.poll(cx));
                Poll::Ready(Ok(Guard(None)))
            }
            (None, Socket::Udp(_)) => Poll::Pending,
        }
    }
}

impl Guard<'_> {
    /// Forgets the sign. A carrier's is forgotten when an attempt to receive begins.
    pub(crate) fn clear_ready(&mut self) {
        if let Some(guard) = &mut self.0 {
            guard.clear_ready();
        }
    }
}

impl Writable {
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Fd(fd) => fd.poll_write_ready(cx).map_ok(drop),
            Self::Carrier(socket) => match &**socket {
                Socket::Carrier(carrier) => carrier.writable.poll(cx).map(Ok),
                Socket::Udp(_) => Poll::Pending,
            },
        }
    }
}
