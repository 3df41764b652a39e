//! Bundles of datagrams, in and out: `recvmmsg` with UDP_GRO, `sendmmsg` with UDP_SEGMENT. IPv4.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::time::Duration;

use crate::transport::job::MAX_UDP_PAYLOAD;
use crate::transport::socket;

/// Maximum size of a bundle: the largest UDP datagram.
const BUNDLE: usize = 65_507;
/// Datagrams in a bundle: as many full ones as fit, below the kernel's limit of 64.
const SEGMENTS: usize = BUNDLE / MAX_UDP_PAYLOAD as usize;
/// Bundles per system call, either way.
const BUNDLES: usize = 8;
/// Room for one control message with an integer.
const CONTROL: usize = 64;

/// Control messages start aligned for a `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

const _: () = assert!(align_of::<libc::cmsghdr>() <= 8 && SEGMENTS <= 64);

/// Lets the kernel hand over bundles, and prepares a socket for polling.
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket::set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Waits until something can be read, or, with `write`, written; at most `limit`.
pub(super) fn wait(socket: &UdpSocket, write: bool, limit: Option<Duration>) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: if write { libc::POLLOUT } else { libc::POLLIN },
        revents: 0,
    };
    let limit = limit.map(timespec);
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: one pollfd, writable; `limit` is null or points to a timespec that lives through the
    // call.
    waited(unsafe { libc::ppoll(&raw mut poll, 1, limit, ptr::null()) }).map(drop)
}

fn timespec(limit: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

/// The result of a waiting call; nothing if a signal ended it.
fn waited(answer: libc::c_int) -> io::Result<usize> {
    match usize::try_from(answer) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

/// Events taken per call.
const EVENTS: usize = 64;

/// Reports which sockets can be read: edge-triggered, so each has to be emptied.
pub(super) struct Readable {
    epoll: OwnedFd,
}

impl Readable {
    pub(super) fn new(sockets: &[UdpSocket]) -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        for (index, socket) in sockets.iter().enumerate() {
            let mut event = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLET) as u32,
                u64: index as u64,
            };
            let (add, fd) = (libc::EPOLL_CTL_ADD, socket.as_raw_fd());
            // SAFETY: `event` lives through the call; both descriptors are open, due to the borrows
            // of their owners.
            let answer = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd, &raw mut event) };
            if answer < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { epoll })
    }

    /// Waits until something can be read, at most `limit`, and adds the numbers of the sockets.
    pub(super) fn wait(&self, limit: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let limit = limit.map(timespec);
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `events` has room for as many; `limit` is null or points to a timespec; both live
        // through the call.
        let count = waited(unsafe {
            libc::epoll_pwait2(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS as libc::c_int,
                limit,
                ptr::null(),
            )
        })?;
        ready.extend(events.iter().take(count).map(|event| event.u64 as usize));
        Ok(())
    }
}

/// A received bundle.
struct Received {
    from: SocketAddr,
    len: usize,
    /// Bytes of each datagram but the last.
    stride: usize,
}

/// What one call receives.
#[derive(Default)]
pub(super) struct Inbox {
    buffers: Vec<u8>,
    received: Vec<Received>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            buffers: vec![0; BUNDLES * BUNDLE],
            received: Vec::with_capacity(BUNDLES),
        }
    }

    /// Takes what has arrived without waiting; returns whether that may have been everything.
    pub(super) fn fill(&mut self, socket: &UdpSocket) -> io::Result<bool> {
        self.received.clear();
        let mut controls = [Control([0; CONTROL]); BUNDLES];
        let mut names = [MaybeUninit::<libc::sockaddr_in>::zeroed(); BUNDLES];
        let mut slices = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; BUNDLES];
        // SAFETY: an mmsghdr is integers and pointers; all zeroes is an empty one.
        let mut headers: [libc::mmsghdr; BUNDLES] = unsafe { zeroed() };
        for (index, buffer) in self.buffers.chunks_exact_mut(BUNDLE).enumerate() {
            slices[index].iov_base = buffer.as_mut_ptr().cast();
            slices[index].iov_len = BUNDLE;
            let header = &mut headers[index].msg_hdr;
            header.msg_name = names[index].as_mut_ptr().cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_iov = &raw mut slices[index];
            header.msg_iovlen = 1;
            header.msg_control = controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL;
        }
        // SAFETY: every header points to a name, a slice of a buffer and a control block, with
        // their true lengths, all of which live and are borrowed by nobody else through the
        // call.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BUNDLES as libc::c_uint,
                0,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(true),
                // A peer's socket that is already closed.
                io::ErrorKind::ConnectionRefused => Ok(false),
                _ => Err(error),
            };
        };
        for (header, name) in headers.iter().zip(&names).take(count) {
            // SAFETY: zeroed, and then overwritten by the kernel.
            let name = unsafe { name.assume_init() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            let len = header.msg_len as usize;
            self.received.push(Received {
                from: SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into(),
                len,
                stride: stride(&header.msg_hdr).unwrap_or(len).max(1),
            });
        }
        Ok(count < BUNDLES)
    }

    /// Every datagram of the last call, with its sender.
    pub(super) fn datagrams(&mut self) -> impl Iterator<Item = (SocketAddr, &mut [u8])> {
        let bundles = self.buffers.chunks_exact_mut(BUNDLE);
        bundles.zip(&self.received).flat_map(|(buffer, one)| {
            buffer[..one.len]
                .chunks_mut(one.stride)
                .map(|datagram| (one.from, datagram))
        })
    }
}

/// The length of the datagrams in a bundle, if the kernel reports one.
fn stride(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has left `msg_control` and `msg_controllen` describing the control
    // messages that it wrote into a block that is still there; the macros walk within them.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(one) = message.as_ref() {
            if (one.cmsg_level, one.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let value = libc::CMSG_DATA(message).cast::<libc::c_int>();
                return usize::try_from(value.read_unaligned()).ok();
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// A bundle to be sent.
#[derive(Clone, Copy)]
struct Bundle {
    /// The socket's number.
    socket: usize,
    to: SocketAddrV4,
    begin: usize,
    end: usize,
    segment: usize,
    /// A shorter datagram ends a bundle.
    closed: bool,
}

/// Outgoing datagrams, bundled as they come.
pub(super) struct Outbox {
    buffer: Vec<u8>,
    used: usize,
    bundles: Vec<Bundle>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; BUNDLES * BUNDLE],
            used: 0,
            bundles: Vec::with_capacity(BUNDLES),
        }
    }

    /// Where the next datagram may be written; `None`: flush first.
    pub(super) fn space(&mut self) -> Option<&mut [u8]> {
        let room = self
            .buffer
            .get_mut(self.used..self.used + usize::from(MAX_UDP_PAYLOAD))?;
        (self.bundles.len() < BUNDLES).then_some(room)
    }

    /// Takes `len` bytes of the space as a datagram from a socket.
    pub(super) fn push(&mut self, len: usize, socket: usize, to: SocketAddr) -> io::Result<()> {
        let SocketAddr::V4(to) = to else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let begin = self.used;
        self.used += len;
        if let Some(last) = self.bundles.last_mut()
            && (last.socket, last.to) == (socket, to)
            && !last.closed
            && len <= last.segment
            && last.end - last.begin < SEGMENTS * last.segment
            && last.end - last.begin + len <= BUNDLE
        {
            last.end += len;
            last.closed = len < last.segment || (last.end - last.begin) / last.segment >= SEGMENTS;
            return Ok(());
        }
        self.bundles.push(Bundle {
            socket,
            to,
            begin,
            end: self.used,
            segment: len,
            closed: false,
        });
        Ok(())
    }

    /// Sends everything, and waits for a socket that is full.
    pub(super) fn flush(&mut self, sockets: &[UdpSocket]) -> io::Result<()> {
        let mut sent = 0;
        while let Some(front) = self.bundles.get(sent) {
            let socket = &sockets[front.socket];
            match self.send(socket, sent) {
                Ok(count) => sent += count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        wait(socket, true, Some(Duration::from_millis(10)))?;
                    }
                    io::ErrorKind::Interrupted => {}
                    // A peer's socket that is already closed.
                    io::ErrorKind::ConnectionRefused => sent += 1,
                    _ => return Err(error),
                },
            }
        }
        self.bundles.clear();
        self.used = 0;
        Ok(())
    }

    /// Makes one call, for the bundles from `from` on that leave by the same socket.
    fn send(&mut self, socket: &UdpSocket, from: usize) -> io::Result<usize> {
        let mut controls = [Control([0; CONTROL]); BUNDLES];
        // SAFETY: a sockaddr_in is integers; all zeroes is a valid one.
        let mut names: [libc::sockaddr_in; BUNDLES] = unsafe { zeroed() };
        let mut slices = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; BUNDLES];
        // SAFETY: an mmsghdr is integers and pointers; all zeroes is an empty one.
        let mut headers: [libc::mmsghdr; BUNDLES] = unsafe { zeroed() };
        let same = |one: &[Bundle]| one[0].socket == one[1].socket;
        let rest = &self.bundles[from..];
        let bundles = &rest[..1 + rest.windows(2).take_while(|pair| same(pair)).count()];
        for (index, bundle) in bundles.iter().enumerate() {
            let name = &mut names[index];
            name.sin_family = libc::AF_INET as libc::sa_family_t;
            name.sin_port = bundle.to.port().to_be();
            name.sin_addr.s_addr = u32::from(*bundle.to.ip()).to_be();
            let bytes = &mut self.buffer[bundle.begin..bundle.end];
            slices[index].iov_base = bytes.as_mut_ptr().cast();
            slices[index].iov_len = bytes.len();
            let header = &mut headers[index].msg_hdr;
            header.msg_name = ptr::from_mut(name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_iov = &raw mut slices[index];
            header.msg_iovlen = 1;
            if bundle.end - bundle.begin > bundle.segment {
                let segment = bundle.segment as u16;
                header.msg_control = controls[index].0.as_mut_ptr().cast();
                // SAFETY: CMSG_SPACE and CMSG_LEN compute; the control block has room for one
                // message of two bytes and is aligned for its header, so that
                // CMSG_FIRSTHDR finds place for it.
                unsafe {
                    header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as usize;
                    let message = libc::CMSG_FIRSTHDR(header);
                    (*message).cmsg_level = libc::SOL_UDP;
                    (*message).cmsg_type = libc::UDP_SEGMENT;
                    (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as usize;
                    libc::CMSG_DATA(message)
                        .cast::<u16>()
                        .write_unaligned(segment);
                }
            }
        }
        // SAFETY: the first `bundles.len()` headers, at most BUNDLES by `space`, point to names,
        // slices of the buffer and control blocks with their true lengths, which all live
        // through the call.
        let count = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                bundles.len() as libc::c_uint,
                0,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_all_lengths_arrive_in_bundles() {
        let far = socket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let near = socket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        prepare(&far).expect("GRO");
        let to = far.local_addr().expect("an address");
        // Two full ones, a short one that ends their bundle, and a longer one that begins another.
        let lens = [1472, 1472, 100, 1200, 1200, 7];
        let mut outbox = Outbox::new();
        for (index, len) in lens.into_iter().enumerate() {
            outbox.space().expect("room")[..len].fill(index as u8);
            outbox.push(len, 0, to).expect("IPv4");
        }
        assert_eq!(outbox.bundles.len(), 2);
        outbox.flush(std::slice::from_ref(&near)).expect("sent");
        let mut inbox = Inbox::new();
        let mut got = Vec::new();
        while got.len() < lens.len() {
            wait(&far, false, Some(Duration::from_secs(5))).expect("poll");
            inbox.fill(&far).expect("received");
            let before = got.len();
            for (from, datagram) in inbox.datagrams() {
                assert_eq!(from, near.local_addr().expect("an address"));
                assert!(datagram.iter().all(|byte| usize::from(*byte) == got.len()));
                got.push(datagram.len());
            }
            assert!(got.len() > before, "no bundle arrived");
        }
        assert_eq!(got, lens);
    }

    #[test]
    fn a_bundle_is_never_larger_than_the_kernel_accepts() {
        let to = (Ipv4Addr::LOCALHOST, 9).into();
        let mut outbox = Outbox::new();
        for _ in 0..SEGMENTS + 1 {
            assert!(outbox.space().is_some());
            outbox.push(MAX_UDP_PAYLOAD.into(), 0, to).expect("IPv4");
        }
        let lens: Vec<usize> = outbox
            .bundles
            .iter()
            .map(|one| one.end - one.begin)
            .collect();
        assert_eq!(lens, [SEGMENTS * 1472, 1472]);
    }
}
