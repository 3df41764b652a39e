//! A connection between two processes that keeps the boundaries of messages and carries
//! descriptors: a Unix socket of type SOCK_SEQPACKET.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{
    Timeout, set_socket_send_buffer_size, set_socket_send_buffer_size_force, set_socket_timeout,
    socket_peercred,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, socketpair,
};
use rustix::process::{Uid, geteuid};

use super::message::Word;
use crate::sys::{self, Watched};

/// Maximum number of descriptors in one message (unix(7), SCM_RIGHTS).
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl Channel {
    /// Two ends that do not block, with a send buffer of this many bytes if the system grants it.
    pub(super) fn pair(send_buffer: usize) -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for end in [&one, &other] {
            // Without the privilege, the limit for ordinary processes applies.
            if set_socket_send_buffer_size_force(end, send_buffer).is_err() {
                let _ = set_socket_send_buffer_size(end, send_buffer);
            }
        }
        Ok((Self(one), Self(other)))
    }

    /// An end received from another process.
    pub(super) const fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Connects to the process that listens at `path`; `None` if there is none. Calls on the
    /// channel block, for at most `patience`.
    pub(super) fn connect(path: &Path, patience: Duration) -> io::Result<Option<Self>> {
        let fd = new_socket(SocketFlags::CLOEXEC)?;
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&fd, timeout, Some(patience))?;
        }
        match connect(&fd, &SocketAddrUnix::new(path)?).map_err(io::Error::from) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                check_place(path)?;
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(unanswered()),
            Err(error) => return Err(error),
        }
        if let Some(user) = stranger(&fd)? {
            return Err(other_user("the running process", user, geteuid()));
        }
        Ok(Some(Self(fd)))
    }

    /// Sends a message of at most two parts.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, and whatever the system reports.
    pub(super) fn send(&self, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.0, parts, fds)
    }

    /// Receives a message, and the descriptors that come with it. Returns its length: zero if the
    /// other end is closed.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, `InvalidData` if it does not fit, and whatever the system
    /// reports.
    pub(super) fn receive(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        receive(&self.0, into, fds)
    }

    /// Prepares to receive without blocking. Must be called on a runtime's thread.
    pub(super) fn watch(self) -> io::Result<WatchedChannel> {
        sys::watch(self.0).map(WatchedChannel)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One end of a connection, for a task.
#[derive(Debug)]
pub(crate) struct WatchedChannel(Watched);

impl WatchedChannel {
    /// As [`Channel::send`].
    pub(crate) fn send(&self, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.get_ref(), parts, fds)
    }

    /// As [`Channel::receive`], but waits for a message. Cancel-safe.
    pub(crate) async fn receive(
        &self,
        into: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(received) = ready.try_io(|fd| receive(fd.get_ref(), into, fds)) {
                return received;
            }
        }
    }
}

fn send(to: &OwnedFd, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let parts: [IoSlice<'_>; 2] = std::array::from_fn(|at| {
        let part: &[u8] = parts.get(at).copied().unwrap_or_default();
        IoSlice::new(part)
    });
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(from: &OwnedFd, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let received = recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
    if received.flags.intersects(cut) {
        let why = "a message is too long, or the process has no descriptors left";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(received.bytes)
}

/// The user of the process at the other end, unless it is root or this process's own.
fn stranger(fd: &OwnedFd) -> io::Result<Option<Uid>> {
    let peer = socket_peercred(fd)?.uid;
    let is_welcome = peer.is_root() || peer == geteuid();
    Ok((!is_welcome).then_some(peer))
}

fn other_user(who: &str, theirs: Uid, this: Uid) -> io::Error {
    let (theirs, this) = (theirs.as_raw(), this.as_raw());
    let why = format!("{who} belongs to user {theirs}, and this process to user {this}");
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Listens at a path for other processes. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: Watched,
    path: PathBuf,
    /// The socket's file. Its inode number is not reused while the socket is open.
    file: File,
}

/// Device and inode number of a file.
type File = (u64, u64);

impl Listener {
    /// Listens at `path`. Replaces a socket that an earlier process left there, but not one at
    /// which a process still listens. Must be called on a runtime's thread.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let address = SocketAddrUnix::new(path)?;
        let fd = new_socket(flags)?;
        match bind(&fd, &address).map_err(io::Error::from) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                std::fs::remove_file(path)?;
                bind(&fd, &address)?;
            }
            bound => bound?,
        }
        let file = file_at(path)?;
        listen(&fd, 1)?;
        let (fd, path) = (sys::watch(fd)?, path.to_owned());
        Ok(Self { fd, path, file })
    }

    /// Whether other processes can still find the socket. systemd removes a unit's directory in
    /// `/run` when the unit stops, even if another unit uses it, and clean-up programs remove
    /// sockets.
    pub(crate) fn is_in_place(&self) -> bool {
        match file_at(&self.path) {
            Ok(file) => file == self.file,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Waits for the next process that connects.
    ///
    /// # Errors
    /// It belongs to another user (`PermissionDenied`), or whatever the system reports.
    pub(crate) async fn accept(&self) -> io::Result<WatchedChannel> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let mut ready = self.fd.readable().await?;
            let accepted = ready.try_io(|fd| Ok(accept_with(fd.get_ref(), flags)?));
            if let Ok(accepted) = accepted {
                let channel = accepted?;
                if let Some(user) = stranger(&channel)? {
                    let (word, reason) = (Word::Refused.bytes(), other_user("it", geteuid(), user));
                    let _ = send(&channel, &[&word, reason.to_string().as_bytes()], &[]);
                    return Err(other_user("a process that asked", user, geteuid()));
                }
                return sys::watch(channel).map(WatchedChannel);
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The other process is busy or stopped.
pub(super) fn unanswered() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the running process does not answer",
    )
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socket_with(family, kind, flags, None).map_err(io::Error::from)
}

/// Checks that this process will be able to listen at `path`, where no process listens yet.
fn check_place(path: &Path) -> io::Result<()> {
    if is_socket(path) == Some(false) {
        let why = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    // A plain file: the path of a socket has a limited length, which this longer one might exceed.
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    match std::fs::File::create_new(&beside) {
        // Left behind by a process that was killed and had the same process id.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => drop(created?),
    }
    std::fs::remove_file(&beside)
}

/// Whether there is a socket at `path` at which no process listens.
fn is_abandoned(path: &Path) -> bool {
    let refuses = || {
        let fd = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        connect(&fd, &SocketAddrUnix::new(path)?).map_err(io::Error::from)
    };
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket(path) == Some(true) && refuses().is_err_and(is_refused)
}

fn file_at(path: &Path) -> io::Result<File> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Whether the file at `path` is a socket; `None` if there is no file.
fn is_socket(path: &Path) -> Option<bool> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(found.file_type().is_socket())
}
