//! The workers' sockets: one port, one socket per worker, and where datagrams go while a worker is
//! down.
//!
//! ```text
//! all run        byte % n ──> socket of worker byte % n
//! worker 1 down  byte % n == 1 ──> the next worker that runs; the socket of worker 1 stays open
//!                and gets nothing
//! restarted      a new socket is bound, last of the group; the old one closes, and the kernel
//!                moves the last into the gap
//! ```
//! So each socket is always at its worker's place in the group. Where the kernel does not steer by
//! connection id, the socket of a worker that is down closes at once, and the kernel spreads the
//! incoming datagrams over the others.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use squall_udp::Options;

use crate::datagram_socket::DatagramSocket;
use crate::socket::Socket;

/// The sockets of all workers.
#[derive(Debug)]
pub(crate) struct SocketGroup {
    address: SocketAddr,
    members: Vec<Member>,
    /// Another process may have the same sockets, so they keep their places in the group whatever
    /// this one does. A worker that is restarted gets its socket back.
    is_inherited: bool,
}

#[derive(Debug)]
struct Member {
    /// In use, about to be, or only holding its place. `None`: closed.
    socket: Option<Arc<Socket>>,
    runs: bool,
}

impl SocketGroup {
    /// Binds a socket for each worker, all on one port, with datagrams steered to the right one.
    ///
    /// # Errors
    /// As [`Socket::bind`].
    pub(crate) fn bind(addr: SocketAddr, options: &Options, workers: usize) -> io::Result<Self> {
        let sharing = sharing(options);
        let alone = workers == 1;
        // The first socket binds exclusively if requested, so that a port in use is reported, and
        // so that no other endpoint's socket comes among ours, which the kernel distinguishes by
        // number. Only Linux is known to allow SO_REUSEPORT after bind.
        let first = if alone || cfg!(target_os = "linux") {
            let first = Socket::bind(addr, options)?;
            if !alone {
                first.share_port()?;
            }
            first
        } else {
            Socket::bind(addr, &sharing)?
        };
        let address = first.local_addr()?;
        let mut sockets = vec![first];
        for _ in 1..workers {
            sockets.push(Socket::bind(address, &sharing)?);
        }
        Ok(Self::new(address, sockets))
    }

    /// Takes over bound sockets, one for each worker.
    ///
    /// # Errors
    /// There is none, they are bound to different addresses, or as [`Socket::adopt`].
    pub(crate) fn adopt(
        sockets: impl IntoIterator<Item = UdpSocket>,
        options: &Options,
    ) -> io::Result<Self> {
        let sockets = sockets.into_iter();
        let sockets = sockets.map(|socket| Socket::adopt(socket, options));
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        let addresses = sockets.iter().map(Socket::local_addr);
        let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
        let Some((&first, others)) = addresses.split_first() else {
            return Err(invalid("there is no socket".to_owned()));
        };
        if let Some(other) = others.iter().find(|other| **other != first) {
            let why =
                format!("all sockets must be bound to one address, not to {first} and {other}");
            return Err(invalid(why));
        }
        Ok(Self::new(first, sockets))
    }

    /// Takes over another process's sockets, as [`adopt`](Self::adopt).
    pub(crate) fn inherit(
        sockets: impl IntoIterator<Item = UdpSocket>,
        options: &Options,
    ) -> io::Result<Self> {
        let group = Self::adopt(sockets, options)?;
        Ok(Self {
            is_inherited: true,
            ..group
        })
    }

    /// Duplicates of the sockets' descriptors, by worker.
    ///
    /// # Errors
    /// A worker is down, it has something other than a UDP socket, or the system refused.
    #[cfg(target_os = "linux")]
    pub(crate) fn duplicates(&self) -> io::Result<Vec<std::os::fd::OwnedFd>> {
        if let Some(worker) = self.first_down() {
            let why = format!("worker {worker} has ended; restart it first");
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        self.sockets().map(|socket| socket.duplicate()).collect()
    }

    /// A carrier of datagrams other than a UDP socket, for one worker.
    ///
    /// # Errors
    /// The carrier does not know its address.
    pub(crate) fn carried_by(socket: Arc<dyn DatagramSocket>) -> io::Result<Self> {
        let address = socket.local_addr()?;
        Ok(Self::new(address, vec![Socket::carried_by(socket)]))
    }

    fn new(address: SocketAddr, sockets: Vec<Socket>) -> Self {
        let member = |socket| Member {
            socket: Some(Arc::new(socket)),
            runs: true,
        };
        let members = sockets.into_iter().map(member).collect();
        let group = Self {
            address,
            members,
            is_inherited: false,
        };
        // Where the kernel cannot steer, workers forward datagrams to each other.
        group.steer();
        group
    }

    /// Takes the sockets out, to be closed.
    pub(crate) fn close(&mut self) -> Vec<Arc<Socket>> {
        let members = self.members.iter_mut();
        members.filter_map(|member| member.socket.take()).collect()
    }

    /// The address of all sockets.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The open sockets, by worker.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Arc<Socket>> {
        self.members
            .iter()
            .filter_map(|member| member.socket.as_ref())
    }

    /// The first worker that is down.
    pub(crate) fn first_down(&self) -> Option<usize> {
        self.members.iter().position(|member| !member.runs)
    }

    /// Whether the worker of this index exists and is down.
    pub(crate) fn is_down(&self, worker: usize) -> bool {
        self.members.get(worker).is_some_and(|member| !member.runs)
    }

    /// The worker has ended: its datagrams go to others.
    pub(crate) fn on_end(&mut self, worker: usize) {
        if let Some(member) = self.members.get_mut(worker) {
            member.runs = false;
        }
        // A worker that is alone keeps its port for its successor.
        let alone = self.members.len() == 1;
        let carried = (self.sockets()).any(|socket| matches!(&**socket, Socket::Carrier(_)));
        let keeps_place = self.steer() || carried || alone && cfg!(target_os = "linux");
        if let Some(member) = self.members.get_mut(worker).filter(|_| !keeps_place) {
            member.socket = None;
        }
    }

    /// A new socket, in the place of a worker that is down.
    ///
    /// # Errors
    /// As [`Socket::bind`]; the worker's place is then unchanged.
    pub(crate) fn replace(&mut self, worker: usize, options: &Options) -> io::Result<Arc<Socket>> {
        let alone = self.members.len() == 1;
        let address = self.address;
        let Some(member) = self.members.get_mut(worker) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if let Some(again) = member.socket.as_ref().and_then(|old| old.again()) {
            let socket = Arc::new(again);
            member.socket = Some(Arc::clone(&socket));
            return Ok(socket);
        }
        if let Some(old) = &member.socket {
            if self.is_inherited {
                return Ok(Arc::clone(old));
            }
            old.share_port()?;
        }
        let options = if alone && member.socket.is_none() {
            options.clone()
        } else {
            sharing(options)
        };
        let socket = Arc::new(Socket::bind(address, &options)?);
        // The old one closes here, after the bind.
        member.socket = Some(Arc::clone(&socket));
        Ok(socket)
    }

    /// The worker runs again, with the socket at its place.
    pub(crate) fn on_start(&mut self, worker: usize) {
        if let Some(member) = self.members.get_mut(worker) {
            member.runs = true;
        }
        self.steer();
    }

    /// Makes the kernel steer around the workers that are down; returns whether it can.
    fn steer(&self) -> bool {
        let count = self.members.len();
        let stand_in = |worker: usize| {
            let running = (worker..count).chain(0..worker);
            running
                .into_iter()
                .find(|other| self.members[*other].runs)
                .unwrap_or(worker)
        };
        let targets: Result<Vec<u8>, _> = (0..count)
            .map(|worker| u8::try_from(stand_in(worker)))
            .collect();
        let (Ok(targets), true) = (targets, count > 1) else {
            return false;
        };
        // Any socket of the group works; that of a worker that has ended may be gone.
        let mut members = self.members.iter().filter(|member| member.runs);
        members.any(|member| (member.socket.as_ref()).is_some_and(|s| s.steer(&targets).is_ok()))
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn sharing(options: &Options) -> Options {
    Options {
        reuse_port: true,
        ..options.clone()
    }
}
