//! A UDP socket with the same buffers for all stacks.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use super::job::SOCKET_BUFFER;

/// Binds a socket and enlarges its buffers as far as the kernel allows.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let bytes = i32::try_from(SOCKET_BUFFER).map_err(io::Error::other)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
    Ok(socket)
}

/// Sets a socket option that is an integer.
pub(super) fn set(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is readable for `len` bytes, its own size; the descriptor is open, due to the
    // borrow of its owner.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            len,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
