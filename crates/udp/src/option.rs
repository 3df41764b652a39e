//! Socket options that socket2 does not support, for Linux and Linux-based systems.

use std::io;
use std::os::fd::AsRawFd;

use libc::c_int;

/// A socket option of integer type.
pub(crate) fn set(
    socket: &impl AsRawFd,
    level: c_int,
    option: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the pointer is to a live c_int and the length is its size.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
