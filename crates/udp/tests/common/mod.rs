//! Helpers for tests with sockets over loopback. The socket is the parent module's: the crate's own
//! in `loopback`, and the one over the other systems' backend in `src/portable/tests.rs`.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use squall_wire::{Ecn, Path, Transmit};

use super::{Options, RecvBatch, SendBatch, Socket};

pub(crate) fn bind(address: &str) -> Socket {
    Socket::bind(address.parse().unwrap(), &Options::default()).unwrap()
}

/// The socket's address; loopback's of its family if it is bound to all.
pub(crate) fn reachable(socket: &Socket) -> SocketAddr {
    let mut address = socket.local_addr().unwrap();
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

pub(crate) fn to(remote: SocketAddr) -> Path {
    Path {
        remote,
        local: None,
    }
}

/// Bytes that identify their position: no two datagrams of a test are alike.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i / 7) ^ (i * 31) ^ (seed * 131)) as u8)
        .collect()
}

/// Adds a message of datagrams of `segment_size` bytes; 0 for one datagram.
pub(crate) fn push(batch: &mut SendBatch, path: Path, ecn: Ecn, segment_size: usize, bytes: &[u8]) {
    batch.free_slot().expect("room")[..bytes.len()].copy_from_slice(bytes);
    batch.push(Transmit {
        path,
        ecn,
        segment_size: segment_size as u16,
        len: bytes.len(),
    });
}

/// Adds a message of unmarked datagrams to this socket.
pub(crate) fn push_to(batch: &mut SendBatch, socket: &Socket, segment_size: usize, bytes: &[u8]) {
    push(
        batch,
        to(reachable(socket)),
        Ecn::NotEct,
        segment_size,
        bytes,
    );
}

/// A message from a receive call.
pub(crate) struct Message {
    pub(crate) path: Path,
    pub(crate) ecn: Ecn,
    segment_size: usize,
    pub(crate) bytes: Vec<u8>,
}

/// An IPv6-only and an IPv4 socket on one port, so that no other test's socket gets it for either
/// family.
pub(crate) fn one_port_of_each_family() -> (Socket, std::net::UdpSocket) {
    let options = Options {
        only_v6: true,
        ..Options::default()
    };
    let bind = || {
        let six = Socket::bind("[::]:0".parse().unwrap(), &options).unwrap();
        let port = six.local_addr().unwrap().port();
        let four = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, port));
        Some((six, four.ok()?))
    };
    (0..100)
        .find_map(|_| bind())
        .expect("a port that is free for both")
}

/// What Linux reports about all sockets with this port: addresses, queues, and datagrams dropped.
fn with_port(port: u16) -> String {
    let tables = ["/proc/net/udp", "/proc/net/udp6"];
    let tables = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines());
    let found = lines.filter(|line| line.contains(&format!(":{port:04X} ")));
    found.collect::<Vec<_>>().join("\n")
}

/// Receives until `bytes` bytes have arrived; panics after twenty seconds.
pub(crate) fn collect(socket: &Socket, bytes: usize) -> Vec<Message> {
    let mut batch = RecvBatch::new(4, 65_536);
    let mut messages: Vec<Message> = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut got = 0;
    while got < bytes {
        assert!(
            Instant::now() < deadline,
            "{} messages with {got} of {bytes} bytes; sockets with this port: {}",
            messages.len(),
            with_port(socket.local_addr().unwrap().port())
        );
        match socket.recv(&mut batch) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        for bundle in batch.iter_mut() {
            got += bundle.bytes.len();
            messages.push(Message {
                path: bundle.path,
                ecn: bundle.ecn,
                segment_size: usize::from(bundle.segment_size),
                bytes: bundle.bytes.to_vec(),
            });
        }
    }
    messages
}

/// The datagrams of the messages, in order.
pub(crate) fn datagrams(messages: &[Message]) -> Vec<&[u8]> {
    let each = messages.iter().map(|m| m.bytes.chunks(m.segment_size));
    each.flatten().collect()
}
