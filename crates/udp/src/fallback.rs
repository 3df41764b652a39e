//! Systems other than Linux: single datagrams with what std offers. The same face as `linux`; no offloads, no ECN
//! marks, no local addresses. Compiled for tests everywhere, so that it cannot rot.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use squall_wire::{Ecn, Path};

use crate::batch::{Entry, Outgoing, RecvBatch};

pub(crate) type Inner = UdpSocket;

/// Nothing to turn on; no GRO.
pub(crate) fn configure(_: &socket2::Socket, _v6: bool, _gro: bool) -> io::Result<bool> {
    Ok(false)
}

/// Asks for a receive (else send) buffer of `bytes` and returns what was granted.
pub(crate) fn buffer(socket: &socket2::Socket, receive: bool, bytes: usize) -> usize {
    let granted = if receive {
        let _ = socket.set_recv_buffer_size(bytes);
        socket.recv_buffer_size()
    } else {
        let _ = socket.set_send_buffer_size(bytes);
        socket.send_buffer_size()
    };
    granted.unwrap_or(0)
}

/// No GSO.
pub(crate) fn probe_gso() -> usize {
    1
}

/// What one send call did.
pub(crate) struct Sent {
    pub(crate) messages: usize,
    pub(crate) result: io::Result<()>,
}

/// Sends the first message.
pub(crate) fn send<'a>(
    socket: &Inner,
    v6: bool,
    mut messages: impl Iterator<Item = Outgoing<'a>>,
) -> Sent {
    let Some(message) = messages.next() else {
        return Sent {
            messages: 0,
            result: Ok(()),
        };
    };
    let remote = match message.path.remote {
        SocketAddr::V4(v4) if v6 => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        remote => remote,
    };
    let result = socket.send_to(message.bytes, remote).map(drop);
    Sent {
        messages: usize::from(result.is_ok()),
        result,
    }
}

/// What the receive calls brought beside the entries.
pub(crate) struct Received {
    pub(crate) messages: usize,
    pub(crate) drained: bool,
    pub(crate) datagrams: usize,
    pub(crate) truncated: usize,
    pub(crate) drops: Option<u32>,
}

/// Receives a datagram a slot while there are any.
pub(crate) fn receive(socket: &Inner, batch: &mut RecvBatch) -> io::Result<Received> {
    let mut received = Received {
        messages: 0,
        drained: false,
        datagrams: 0,
        truncated: 0,
        drops: None,
    };
    let (buffers, entries) = batch.parts();
    for (buffer, entry) in buffers.zip(entries) {
        let (len, remote) = match socket.recv_from(buffer) {
            Ok(got) => got,
            Err(error) if received.messages == 0 => return Err(error),
            Err(error) => {
                received.drained = error.kind() == io::ErrorKind::WouldBlock;
                break;
            }
        };
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let segment_size = u16::try_from(len).unwrap_or(u16::MAX);
        *entry = Entry {
            path: Path {
                remote,
                local: None,
            },
            ecn: Ecn::NotEct,
            segment_size,
            len,
        };
        received.messages += 1;
        received.datagrams += 1;
    }
    Ok(received)
}

/// What a failed call means.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(
    dead_code,
    reason = "the names are the same on every system; this one knows no GSO"
)]
pub(crate) enum Failure {
    WouldBlock,
    Interrupted,
    Gso,
    Size,
    Lost,
    Fatal,
}

/// Sorts an error of a call. What std has no name for is taken as a loss of this one datagram.
pub(crate) fn classify(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::WouldBlock => Failure::WouldBlock,
        io::ErrorKind::Interrupted => Failure::Interrupted,
        io::ErrorKind::NotConnected | io::ErrorKind::BrokenPipe => Failure::Fatal,
        _ => Failure::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::SendBatch;
    use squall_wire::Transmit;

    #[test]
    fn datagrams_cross_one_by_one() {
        let (from, to) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        to.set_nonblocking(true).unwrap();
        let mut batch = SendBatch::new(1, 4096);
        batch.free_slot().unwrap()[..250].copy_from_slice(&[7; 250]);
        let path = Path {
            remote: to.local_addr().unwrap(),
            local: None,
        };
        batch.push(Transmit {
            path,
            ecn: Ecn::Ect0,
            segment_size: 100,
            len: 250,
        });
        while !batch.is_empty() {
            let len = batch.pending(false).next().unwrap().bytes.len();
            let sent = send(&from, false, batch.pending(false));
            assert!(sent.result.is_ok() && sent.messages == 1);
            batch.advance(len);
        }
        let mut recv = RecvBatch::new(8, 2048);
        let got = receive(&to, &mut recv).unwrap();
        assert_eq!((got.messages, got.drained, got.datagrams), (3, true, 3));
        assert_eq!((got.truncated, got.drops), (0, None));
        recv.received(got.messages, got.drained, 0);
        let lens: Vec<usize> = recv.iter_mut().map(|b| b.bytes.len()).collect();
        assert_eq!(lens, [100, 100, 50]);
        assert_eq!(
            classify(&receive(&to, &mut recv).err().unwrap()),
            Failure::WouldBlock
        );
        assert_eq!(
            (
                probe_gso(),
                configure(&socket2::Socket::from(to), false, true).unwrap()
            ),
            (1, false)
        );
    }

    #[test]
    fn buffers_are_read_back() {
        let socket = socket2::Socket::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        assert!(buffer(&socket, true, 64 << 10) > 0);
        assert!(buffer(&socket, false, 64 << 10) > 0);
    }
}
