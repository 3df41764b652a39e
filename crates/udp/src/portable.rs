//! Systems other than Linux, through `quinn-udp`: the features of each, with the same interface as
//! `linux`.
//!
//! ```text
//!                 a message sent     a message received             ECN   local address
//!   Windows       a bundle (USO)     a datagram (why: `configure`)  yes   yes
//!   macOS, iOS    a datagram         a datagram                     yes   yes
//!   FreeBSD       a datagram         a datagram, recvmmsg           yes   yes
//!   Android       a bundle (GSO)     a bundle (GRO), recvmmsg       yes   yes
//! ```
//! IPv4 through a dual-stack socket has no marks if the system does not report them (macOS). A
//! system missing from the table gets what quinn-udp supports there, down to plain datagrams.
//!
//! Also compiled for tests on Linux, where `tests` runs it and the socket above it over loopback,
//! so that it does not rot.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, UdpSockRef, UdpSocketState};
use squall_wire::{Ecn, Path};

use crate::batch::{Entry, Outgoing, RecvBatch};
use crate::call::{Failure, Received, Sent};

/// Messages requested by one receive call, as on Linux.
const MESSAGES: usize = 16;

/// The socket, and what quinn-udp found out about it.
#[derive(Debug)]
pub(crate) struct Inner {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Inner {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

#[cfg(unix)]
impl std::os::fd::AsFd for Inner {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for Inner {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(windows)]
impl std::os::windows::io::AsSocket for Inner {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.socket.as_socket()
    }
}

/// Turns on what a socket needs before it is bound: ECN marks and local addresses on receive, no
/// fragments on send. Returns whether received messages may be bundles.
///
/// Windows could make them (URO), but some machines deliver coalesced datagrams without their size,
/// and all of them would be lost (quinn issue 2041): it stays off.
pub(crate) fn configure(
    socket: socket2::Socket,
    _v6: bool,
    gro: bool,
) -> io::Result<(Inner, bool)> {
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    trim(&socket, gro);
    let socket = UdpSocket::from(socket);
    // Windows has a number here whether or not it is on.
    let gro = gro && cfg!(not(windows)) && state.gro_segments() > 1;
    Ok((Inner { socket, state }, gro))
}

/// Reverts settings that quinn-udp turned on unasked: unwanted bundles, and times of arrival, which
/// are never read and take the space of a bundle's ECN mark (quinn-udp 0.6.3: 96 bytes for all
/// control messages).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn trim(socket: &socket2::Socket, gro: bool) {
    use crate::option::set;
    // A kernel that does not know them does not do them either.
    let _ = set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0);
    if !gro {
        let _ = set(socket, libc::SOL_UDP, libc::UDP_GRO, 0);
    }
}

/// Requests a receive (else send) buffer of `bytes`, or successive halves of it, and returns the
/// size granted.
pub(crate) fn buffer(inner: &Inner, receive: bool, bytes: usize) -> usize {
    let Inner { socket, state } = inner;
    // Through quinn-udp, which tracks the send buffer on Apple's systems.
    let granted = || {
        let size = if receive {
            state.recv_buffer_size(socket.into())
        } else {
            state.send_buffer_size(socket.into())
        };
        size.unwrap_or(0)
    };
    let had = granted();
    let mut wanted = bytes;
    loop {
        let set = if receive {
            state.set_recv_buffer_size(socket.into(), wanted)
        } else {
            state.set_send_buffer_size(socket.into(), wanted)
        };
        // If a size is above the limit, Linux grants the limit, but the BSDs refuse.
        if set.is_ok() || wanted / 2 <= had {
            return granted();
        }
        wanted /= 2;
    }
}

/// The most segments that the system sends as one bundle; 1: no GSO.
pub(crate) fn probe_gso(inner: &Inner) -> usize {
    inner.state.max_gso_segments()
}

/// Sends the first message. quinn-udp knows no system with a call for several.
pub(crate) fn send<'a>(
    inner: &Inner,
    v6: bool,
    mut messages: impl Iterator<Item = Outgoing<'a>>,
) -> Sent {
    let result = messages.next().map(|message| {
        let transmit = quinn_udp::Transmit {
            destination: destination(message.path.remote, v6),
            ecn: EcnCodepoint::from_bits(message.ecn.bits()),
            contents: message.bytes,
            segment_size: message.segment_size.map(usize::from),
            src_ip: source(message.path, v6),
        };
        inner.state.try_send((&inner.socket).into(), &transmit)
    });
    Sent {
        messages: usize::from(matches!(result, Some(Ok(())))),
        result: result.unwrap_or(Ok(())),
    }
}

/// The address of a peer for a socket of the family `v6`, IPv4-mapped if necessary.
fn destination(remote: SocketAddr, v6: bool) -> SocketAddr {
    match remote {
        SocketAddr::V4(v4) if v6 => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        remote => remote,
    }
}

/// The address to send from, in the system's form; `None`: the system chooses, since there is none,
/// or one of the other family, which cannot be intended.
fn source(path: Path, v6: bool) -> Option<IpAddr> {
    match (path.local?, path.remote) {
        // Windows wants IPv4's own control message here, the others IPv6's with a mapped address.
        (IpAddr::V4(source), SocketAddr::V4(_)) if v6 && cfg!(not(windows)) => {
            Some(source.to_ipv6_mapped().into())
        }
        (source, remote) => (source.is_ipv4() == remote.is_ipv4()).then_some(source),
    }
}

/// Receives one message per slot while there are any and slots are left: at most 16. Most systems
/// silently drop a datagram that does not fit its slot; FreeBSD and Android truncate it, and its
/// tag then does not match.
pub(crate) fn receive(inner: &Inner, batch: &mut RecvBatch) -> io::Result<Received> {
    fill(batch, BATCH_SIZE, |slices, metas| {
        inner.state.recv((&inner.socket).into(), slices, metas)
    })
}

/// Fills the batch by a call that receives up to `at_once` messages and returns how many.
fn fill(
    batch: &mut RecvBatch,
    at_once: usize,
    mut call: impl FnMut(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<usize>,
) -> io::Result<Received> {
    let (mut buffers, entries) = batch.parts();
    let mut slices: [IoSliceMut<'_>; MESSAGES] =
        std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
    let mut metas = [RecvMeta::default(); MESSAGES];
    let slots = entries.len().min(MESSAGES);
    let mut received = Received::default();
    while received.messages < slots && !received.drained {
        let room = received.messages..slots.min(received.messages + at_once);
        let (slices, metas) = (&mut slices[room.clone()], &mut metas[room.clone()]);
        match call(slices, metas) {
            Ok(count) => {
                received.drained = count < room.len();
                received.messages += count;
                for (entry, meta) in entries[room].iter_mut().zip(metas).take(count) {
                    *entry = describe(meta, &mut received);
                }
            }
            // This is how Windows reports that the datagram did not fit; the rest of it is gone.
            Err(error) if quinn_udp::is_msg_size_err(&error) => {
                entries[room.start].len = 0;
                received.messages += 1;
                received.truncated += 1;
            }
            Err(error) if received.messages == 0 => return Err(error),
            Err(error) => {
                received.drained = classify(&error) == Failure::WouldBlock;
                received.errors = usize::from(!received.drained);
                break;
            }
        }
    }
    Ok(received)
}

/// The entry of a received message.
fn describe(meta: &RecvMeta, received: &mut Received) -> Entry {
    let RecvMeta { len, stride, .. } = *meta;
    let segment_size = if stride == 0 { len } else { stride };
    received.datagrams += if len == 0 {
        1
    } else {
        len.div_ceil(segment_size)
    };
    Entry {
        path: Path {
            remote: peer(meta.addr),
            local: meta.dst_ip.map(|ip| ip.to_canonical()),
        },
        ecn: meta
            .ecn
            .map_or(Ecn::NotEct, |mark| Ecn::from_bits(mark as u8)),
        segment_size: u16::try_from(segment_size).unwrap_or(u16::MAX),
        len,
    }
}

/// One peer, one address: 192.0.2.1 is not also ::ffff:192.0.2.1.
fn peer(address: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(v6) = address else {
        return address;
    };
    match v6.ip().to_ipv4_mapped() {
        Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, v6.port())),
        None => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id())),
    }
}

/// Sorts an error of a call.
pub(crate) fn classify(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::WouldBlock => Failure::WouldBlock,
        io::ErrorKind::Interrupted => Failure::Interrupted,
        io::ErrorKind::InvalidInput => Failure::Size,
        _ if quinn_udp::is_msg_size_err(error) => Failure::Size,
        // What is left of a socket that the system took back (iOS, from an application in the
        // background). Its owner may bind another one; until then it is no reason to give up
        // connections.
        io::ErrorKind::NotConnected | io::ErrorKind::BrokenPipe => Failure::Unknown,
        _ => error.raw_os_error().map_or(Failure::Unknown, by_code),
    }
}

/// Classifies errors for which std has no name, or none that is specific enough.
#[cfg(unix)]
fn by_code(errno: i32) -> Failure {
    match errno {
        libc::EBADF | libc::ENOTSOCK | libc::EFAULT => Failure::Fatal,
        libc::EIO => Failure::Gso,
        _ => Failure::Lost,
    }
}

/// Classifies errors for which std has no name, or none that is specific enough. Windows has no
/// code that means USO: an error caused neither by the socket nor by the network is attributed to
/// USO if a bundle was sent, and otherwise to the network.
#[cfg(not(unix))]
fn by_code(code: i32) -> Failure {
    /// WSAEBADF, WSAEFAULT, WSAENOTSOCK, WSANOTINITIALISED: no socket, no memory, or no Winsock.
    const BROKEN: [i32; 4] = [10_009, 10_014, 10_038, 10_093];
    /// WSAEACCES, WSAEAFNOSUPPORT, WSAEADDRNOTAVAIL, WSAENETDOWN, WSAENETUNREACH, WSAENETRESET,
    /// WSAECONNABORTED, WSAECONNRESET, WSAENOBUFS, WSAETIMEDOUT, WSAECONNREFUSED, WSAEHOSTDOWN,
    /// WSAEHOSTUNREACH: the network.
    const LOST: [i32; 13] = [
        10_013, 10_047, 10_049, 10_050, 10_051, 10_052, 10_053, 10_054, 10_055, 10_060, 10_061,
        10_064, 10_065,
    ];
    if BROKEN.contains(&code) {
        Failure::Fatal
    } else if LOST.contains(&code) {
        Failure::Lost
    } else {
        Failure::Gso
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
