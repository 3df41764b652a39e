//! A UDP socket for IPv6 and IPv4.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::Quic;
use crate::endpoint::Outcome;

/// The longest wait, and the shortest that the system supports.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_micros(100);

const LARGEST: usize = 65_535;
const MAX_UDP_PAYLOAD: usize = 1350;

pub(super) struct Port {
    socket: UdpSocket,
    pub(super) local: SocketAddr,
}

impl Port {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let local = socket.local_addr()?;
        Ok(Self { socket, local })
    }

    /// Waits for a datagram, at most this long.
    pub(super) fn receive(
        &self,
        limit: Option<Duration>,
    ) -> io::Result<Option<(Vec<u8>, SocketAddr)>> {
        let limit = limit.unwrap_or(LONGEST).clamp(SHORTEST, LONGEST);
        self.socket.set_read_timeout(Some(limit))?;
        let mut datagram = vec![0; LARGEST];
        match self.socket.recv_from(&mut datagram) {
            Ok((len, from)) => {
                datagram.truncate(len);
                Ok(Some((datagram, from)))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(None),
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(error),
            },
        }
    }

    pub(super) fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        match self.socket.send_to(datagram, to) {
            // The peer is already gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            sent => sent.map(|_| ()),
        }
    }

    /// Sends everything that a connection has to send.
    pub(super) fn send_all(&self, quic: &mut Quic) -> Outcome<()> {
        let mut datagram = [0; MAX_UDP_PAYLOAD];
        loop {
            match quic.send(&mut datagram) {
                Ok((len, info)) => self.send(&datagram[..len], info.to)?,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => {
                    // Fails if it is already closing.
                    let _ = quic.close(false, 1, b"");
                    return Err(error.into());
                }
            }
        }
    }
}

/// Maps an address to its form on an IPv6 socket.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
        SocketAddr::V6(_) => address,
    }
}
