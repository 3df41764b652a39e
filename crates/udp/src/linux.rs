//! One system call each way, and the set-up of a socket. The floor above decides what to do when a
//! call fails.
//!
//! ```text
//! [Outgoing] -> mmsghdr + iovec + name + control on the stack -> sendmmsg
//! recvmmsg -> the same, read back -> [Entry]
//! ```
//! The headers are built for each call: under 6 kB on the stack, far cheaper than the call itself,
//! and no pointer outlives the call that it was made for.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use libc::c_int;
use squall_wire::{Ecn, Path};

use crate::batch::{Entry, MAX_BUNDLE_BYTES, Outgoing, RecvBatch};
use crate::call::{Failure, Received, Sent};
use crate::cmsg::{self, Control};
use crate::option::set;

/// Messages per system call. 16 full bundles are 1 MB: more would not fit the level-2 cache anyway.
const MESSAGES: usize = 16;

/// The type that holds the socket.
pub(crate) type Inner = std::net::UdpSocket;

/// A socket address in the kernel's form: `sa_family` says which.
#[repr(C)]
#[derive(Copy, Clone)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Everything that a `*mmsg` call points at.
struct Headers {
    messages: [libc::mmsghdr; MESSAGES],
    slices: [libc::iovec; MESSAGES],
    names: [Name; MESSAGES],
    controls: [Control; MESSAGES],
}

impl Headers {
    fn new() -> Self {
        // SAFETY: every field is made of integers and pointers, for which all-zero bytes are valid.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

/// Turns on what a socket needs before it is bound: ECN marks, local addresses and drops on
/// receive, no fragments on send. Returns whether GRO is on. Only missing support for local
/// addresses is an error; the rest is a convenience of newer kernels.
pub(crate) fn configure(socket: socket2::Socket, v6: bool, gro: bool) -> io::Result<(Inner, bool)> {
    let socket = Inner::from(socket);
    // IPv4 options matter on a dual-stack socket too: for its IPv4-mapped traffic.
    let _ = set(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
    // "Don't fragment", and no path MTU discovery by the kernel either: RFC 9000 §14 and RFC 8899
    // probe for it.
    let _ = set(
        &socket,
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_PROBE,
    );
    if v6 {
        let _ = set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
        let _ = set(
            &socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        );
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
    } else {
        set(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    }
    let _ = set(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    let gro = gro && set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
    Ok((socket, gro))
}

/// Requests a receive (else send) buffer of `bytes`, beyond the system's limit if permitted;
/// returns the size granted.
pub(crate) fn buffer(socket: &Inner, receive: bool, bytes: usize) -> usize {
    let wanted = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    let force = if receive {
        libc::SO_RCVBUFFORCE
    } else {
        libc::SO_SNDBUFFORCE
    };
    // Forcing needs CAP_NET_ADMIN; without it the kernel grants up to net.core.{r,w}mem_max.
    if set(socket, libc::SOL_SOCKET, force, wanted).is_err() {
        let option = if receive {
            libc::SO_RCVBUF
        } else {
            libc::SO_SNDBUF
        };
        let _ = set(socket, libc::SOL_SOCKET, option, wanted);
    }
    let socket = socket2::SockRef::from(socket);
    let granted = if receive {
        socket.recv_buffer_size()
    } else {
        socket.send_buffer_size()
    };
    // The kernel doubles the requested size for its own bookkeeping, and reports the double
    // (socket(7)).
    granted.unwrap_or(0) / 2
}

/// The most segments that this kernel sends as one bundle; 1: no GSO. Determined once per process,
/// by actually sending. If the loopback device is down, as in a fresh network namespace, the socket
/// option is queried instead; a device that cannot segment is discovered when it refuses.
pub(crate) fn probe_gso(_: &Inner) -> usize {
    static SEGMENTS: OnceLock<usize> = OnceLock::new();
    // 128 since Linux 6.9, 64 before (UDP_MAX_SEGMENTS).
    *SEGMENTS.get_or_init(|| {
        for segments in [128, 64] {
            match bundle_arrives(segments) {
                Ok(true) => return segments,
                Ok(false) => {}
                Err(_) => return if knows_gso() { 64 } else { 1 },
            }
        }
        1
    })
}

/// Whether a bundle of `segments` datagrams, sent over loopback, arrives as that many datagrams.
///
/// # Errors
/// There is no loopback to send it over.
fn bundle_arrives(segments: usize) -> io::Result<bool> {
    const SEGMENT: usize = 16;
    let v4 = || std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let bind = || v4().or_else(|_| std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)));
    let (from, to) = (bind()?, bind()?);
    to.set_read_timeout(Some(std::time::Duration::from_millis(50)))?;
    let mut buffer = [0; SEGMENT + 1];
    // One byte first: if it does not arrive, a bundle says nothing about GSO.
    from.send_to(&[0], to.local_addr()?)?;
    to.recv(&mut buffer)?;
    let bytes = vec![0x5a; segments * SEGMENT];
    let path = Path {
        remote: to.local_addr()?,
        local: None,
    };
    let bundle = Outgoing {
        path,
        ecn: Ecn::NotEct,
        segment_size: Some(SEGMENT as u16),
        bytes: &bytes,
    };
    let sent = send(&from, path.remote.is_ipv6(), std::iter::once(bundle));
    if sent.result.is_err() || sent.messages != 1 {
        return Ok(false);
    }
    Ok(to.recv(&mut buffer).is_ok_and(|len| len == SEGMENT))
}

/// Whether this kernel has the socket option of GSO.
fn knows_gso() -> bool {
    let any = || std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    any()
        .or_else(|_| std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))
        .and_then(|socket| set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1200))
        .is_ok()
}

/// Sends as many messages as one call takes, at most 16. `v6` is the socket's family.
pub(crate) fn send<'a>(
    socket: &impl AsRawFd,
    v6: bool,
    messages: impl Iterator<Item = Outgoing<'a>>,
) -> Sent {
    let mut headers = Headers::new();
    let Headers {
        messages: heads,
        slices,
        names,
        controls,
    } = &mut headers;
    let mut count = 0;
    let room = heads
        .iter_mut()
        .zip(slices)
        .zip(names.iter_mut().zip(controls));
    for (((head, slice), (name, control)), message) in room.zip(messages) {
        let name_len = encode_name(name, message.path.remote, v6);
        let mut notes = cmsg::Writer::new(control);
        encode_notes(&mut notes, &message);
        let control_len = notes.len();
        slice.iov_base = message.bytes.as_ptr().cast_mut().cast();
        slice.iov_len = message.bytes.len();
        head.msg_hdr.msg_name = (&raw mut *name).cast();
        head.msg_hdr.msg_namelen = name_len;
        head.msg_hdr.msg_iov = slice;
        head.msg_hdr.msg_iovlen = 1;
        if control_len > 0 {
            head.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            head.msg_hdr.msg_controllen = control_len as _;
        }
        count += 1;
    }
    // SAFETY: the first `count` headers point at names, slices and controls in `headers`, which
    // lives and does not move until the call is over, and at message bytes borrowed for 'a;
    // sendmmsg only reads through iov_base.
    let rc = unsafe { libc::sendmmsg(socket.as_raw_fd(), heads.as_mut_ptr(), count, 0) };
    match usize::try_from(rc) {
        Ok(messages) => Sent {
            messages,
            result: Ok(()),
        },
        Err(_) => Sent {
            messages: 0,
            result: Err(io::Error::last_os_error()),
        },
    }
}

fn encode_notes(notes: &mut cmsg::Writer<'_>, message: &Outgoing<'_>) {
    if let Some(size) = message.segment_size {
        notes.push(libc::SOL_UDP, libc::UDP_SEGMENT, size);
    }
    let v4 = message.path.remote.is_ipv4();
    if message.ecn != Ecn::NotEct {
        let bits = c_int::from(message.ecn.bits());
        if v4 {
            notes.push(libc::IPPROTO_IP, libc::IP_TOS, bits);
        } else {
            notes.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, bits);
        }
    }
    match message.path.local {
        Some(IpAddr::V4(source)) if v4 => {
            let ipi_spec_dst = libc::in_addr {
                s_addr: u32::from_ne_bytes(source.octets()),
            };
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst,
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            notes.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(IpAddr::V6(source)) if !v4 => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: source.octets(),
                },
                ipi6_ifindex: 0,
            };
            notes.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        // A source of the other family cannot be intended: the kernel chooses.
        _ => {}
    }
}

/// Writes `address` for a socket of the family `v6`, IPv4-mapped if necessary; returns its length.
fn encode_name(name: &mut Name, address: SocketAddr, v6: bool) -> libc::socklen_t {
    match address {
        SocketAddr::V4(address) if !v6 => {
            name.v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(address.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        address => {
            let (ip, scope) = match address {
                SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
            };
            name.v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                sin6_scope_id: scope,
            };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

/// Receives as many messages as have arrived and fit into one call: at most the batch's slots, and
/// at most 16.
pub(crate) fn receive(socket: &impl AsRawFd, batch: &mut RecvBatch) -> io::Result<Received> {
    let mut headers = Headers::new();
    let Headers {
        messages: heads,
        slices,
        names,
        controls,
    } = &mut headers;
    let (buffers, entries) = batch.parts();
    let mut asked = 0;
    let room = heads
        .iter_mut()
        .zip(slices)
        .zip(names.iter_mut().zip(controls.iter_mut()));
    for (((head, slice), (name, control)), buffer) in room.zip(buffers) {
        slice.iov_base = buffer.as_mut_ptr().cast();
        slice.iov_len = buffer.len();
        head.msg_hdr.msg_name = (&raw mut *name).cast();
        head.msg_hdr.msg_namelen = size_of::<Name>() as libc::socklen_t;
        head.msg_hdr.msg_iov = slice;
        head.msg_hdr.msg_iovlen = 1;
        head.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        head.msg_hdr.msg_controllen = cmsg::CAPACITY as _;
        asked += 1;
    }
    // SAFETY: the first `asked` headers point at names, slices and controls in `headers` and at the
    // batch's slots, all of which live and do not move until the call is over, each with its true
    // length; a null timeout is allowed.
    let rc = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            heads.as_mut_ptr(),
            asked,
            0,
            std::ptr::null_mut(),
        )
    };
    let Ok(messages) = usize::try_from(rc) else {
        return Err(io::Error::last_os_error());
    };
    let drained = rc.unsigned_abs() < asked;
    let mut received = Received {
        messages,
        drained,
        ..Received::default()
    };
    for (((head, name), control), entry) in heads
        .iter()
        .zip(names)
        .zip(controls)
        .zip(entries)
        .take(messages)
    {
        decode(head, name, control, entry, &mut received);
    }
    Ok(received)
}

/// Reads one received message's header back into its entry.
fn decode(
    head: &libc::mmsghdr,
    name: &Name,
    control: &Control,
    entry: &mut Entry,
    received: &mut Received,
) {
    let len = head.msg_len as usize;
    let mut segment_size = len;
    let mut ecn = 0;
    let mut local = None;
    #[allow(
        clippy::unnecessary_cast,
        reason = "msg_controllen is u32 with musl, usize with glibc"
    )]
    let control_len = (head.msg_hdr.msg_controllen as usize).min(cmsg::CAPACITY);
    for note in cmsg::read(control.0.get(..control_len).unwrap_or_default()) {
        match (note.level, note.ty) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = note
                    .value::<c_int>()
                    .and_then(|size| usize::try_from(size).ok());
                segment_size = size.filter(|&size| size > 0).unwrap_or(len);
            }
            // One byte here, but an integer in IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => ecn = note.value::<u8>().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                ecn = note.value::<c_int>().unwrap_or(0) as u8;
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let info = note.value::<libc::in_pktinfo>();
                // The address to answer from; `ipi_addr`, the destination in the header, may be a
                // broadcast address.
                local = info
                    .map(|info| IpAddr::V4(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes())));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let info = note.value::<libc::in6_pktinfo>();
                local = info.map(|info| Ipv6Addr::from(info.ipi6_addr.s6_addr).to_canonical());
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                received.drops = note.value::<u32>().or(received.drops);
            }
            _ => {}
        }
    }
    let remote = decode_name(name);
    let whole = head.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
    let (Some(remote), true) = (remote, whole) else {
        // Half a datagram is useless.
        received.truncated += usize::from(!whole);
        entry.len = 0;
        return;
    };
    received.datagrams += if len == 0 {
        1
    } else {
        len.div_ceil(segment_size)
    };
    let segment_size = u16::try_from(segment_size).unwrap_or(u16::MAX);
    *entry = Entry {
        path: Path { remote, local },
        ecn: Ecn::from_bits(ecn & 3),
        segment_size,
        len,
    };
}

fn decode_name(name: &Name) -> Option<SocketAddr> {
    // SAFETY: both members begin with the 2-byte family, and every byte of `name` is initialised
    // (zeroed at first).
    let family = unsafe { name.v4.sin_family };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that the kernel wrote a sockaddr_in; it holds integers only.
            let v4 = unsafe { name.v4 };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(
                ip,
                u16::from_be(v4.sin_port),
            )))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that the kernel wrote a sockaddr_in6; it holds integers only.
            let v6 = unsafe { name.v6 };
            let (ip, port) = (
                Ipv6Addr::from(v6.sin6_addr.s6_addr),
                u16::from_be(v6.sin6_port),
            );
            // One peer, one address: 192.0.2.1 is not also ::ffff:192.0.2.1.
            Some(match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
                None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id)),
            })
        }
        _ => None,
    }
}

/// Sorts an error of `sendmmsg` or `recvmmsg`.
pub(crate) fn classify(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Failure::WouldBlock,
        Some(libc::EINTR) => Failure::Interrupted,
        Some(libc::EIO) => Failure::Gso,
        Some(libc::EINVAL | libc::EMSGSIZE) => Failure::Size,
        Some(
            libc::ECONNREFUSED | libc::ECONNRESET | libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ENETUNREACH
            | libc::ENETDOWN | libc::ENETRESET | libc::ENONET | libc::EPROTO | libc::EOPNOTSUPP | libc::ETIMEDOUT
            // A firewall refused it.
            | libc::EPERM | libc::EACCES
            // The device's queue or the kernel's memory is full: as good as lost in transit.
            | libc::ENOBUFS | libc::ENOMEM
            // Our address went away, or an address of the other family was requested.
            | libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::ENODEV | libc::ENXIO,
        ) => Failure::Lost,
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => Failure::Fatal,
        _ => Failure::Unknown,
    }
}

// A bundle's length has to fit the 16-bit length field of UDP, header included.
const _: () = assert!(MAX_BUNDLE_BYTES + 8 + 20 == u16::MAX as usize);
