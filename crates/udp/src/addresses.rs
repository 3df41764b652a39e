//! Notification that this machine's addresses have changed (rtnetlink).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Bytes read of one message: only its existence matters.
const MESSAGE: usize = 64;
/// Messages read in one call; the kernel's buffer holds more only while the addresses keep
/// changing.
const MESSAGES: usize = 256;

/// Becomes readable when an address of this machine comes or goes. Takes one descriptor.
#[derive(Debug)]
pub struct AddressWatch(OwnedFd);

impl AddressWatch {
    /// Starts watching.
    ///
    /// # Errors
    /// The system has no descriptor left, or forbids this kind of socket.
    pub fn new() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes integers and returns a new descriptor or -1.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero bytes are a valid sockaddr_nl.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = (libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        // SAFETY: the pointer is to a live sockaddr_nl and the length is its size.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_nl>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(fd))
    }

    /// Reads pending notifications; returns whether the addresses may have changed.
    pub fn take(&self) -> bool {
        let mut message = [0_u8; MESSAGE];
        for taken in 0..MESSAGES {
            // SAFETY: the pointer is to a live buffer of that length, and the kernel writes no
            // further.
            let got = unsafe {
                libc::recv(
                    self.0.as_raw_fd(),
                    message.as_mut_ptr().cast(),
                    message.len(),
                    libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                )
            };
            if got <= 0 {
                // ENOBUFS: there were too many to keep, so there were some.
                let overrun = io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
                return taken > 0 || (got < 0 && overrun);
            }
        }
        true
    }
}

impl AsFd for AddressWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for AddressWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
