//! Readiness of a socket on Windows, where tokio cannot watch foreign descriptors. Offers as much
//! of tokio's `AsyncFd` as the worker uses.
//!
//! ```text
//! squall_udp::Socket ── sends and receives
//!        └─ a second handle of it ── tokio::net::UdpSocket: gets readiness, moves no datagram
//! ```
//! Compiled and tested on every system.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use squall_udp::Socket;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A socket registered with tokio for readability.
pub(crate) struct Readable {
    socket: Arc<Socket>,
    notice: UdpSocket,
}

/// A sign that there is something to receive.
pub(crate) struct Guard<'a>(&'a UdpSocket);

/// A socket registered with tokio for writability.
pub(crate) struct Writable(UdpSocket);

/// Readiness of the socket to receive.
///
/// Must be called on a runtime's thread.
pub(crate) fn readable(socket: Arc<Socket>) -> io::Result<Readable> {
    let notice = UdpSocket::from_std(second(&socket)?)?;
    Ok(Readable { socket, notice })
}

/// Readiness of the socket to send, for as long as it is needed: a new registration, which also
/// reports room that is already there.
pub(crate) fn writable(readable: &Readable) -> io::Result<Writable> {
    UdpSocket::from_std(second(&readable.socket)?).map(Writable)
}

/// A second handle of the same socket.
#[cfg(unix)]
fn second(socket: &Socket) -> io::Result<std::net::UdpSocket> {
    use std::os::fd::AsFd;
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

/// A second handle of the same socket.
#[cfg(windows)]
fn second(socket: &Socket) -> io::Result<std::net::UdpSocket> {
    use std::os::windows::io::AsSocket;
    Ok(socket.as_socket().try_clone_to_owned()?.into())
}

impl Readable {
    pub(crate) fn get_ref(&self) -> &Arc<Socket> {
        &self.socket
    }

    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Guard<'_>>> {
        ready!(self.notice.poll_recv_ready(cx))?;
        Poll::Ready(Ok(Guard(&self.notice)))
    }
}

impl Guard<'_> {
    /// Forgets the sign: the queue is empty. Whatever arrives from now on gives a new one, and so
    /// does anything that arrived since the sign was seen, because tokio looks at the system only
    /// after the worker's turn.
    pub(crate) fn clear_ready(&mut self) {
        // To tokio this is an attempt to receive that found nothing, so it asks the system for the
        // next sign.
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.0.try_io(Interest::READABLE, nothing);
    }
}

impl Writable {
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_send_ready(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::SocketAddr;
    use std::time::Duration;

    use squall_udp::{Options, RecvBatch};

    use super::*;

    /// Whether the socket is reported readable within a tenth of a second.
    async fn becomes_readable(socket: &Readable) -> bool {
        let sign = poll_fn(|cx| socket.poll_read_ready(cx).map_ok(drop));
        let sign = tokio::time::timeout(Duration::from_millis(100), sign).await;
        matches!(sign, Ok(Ok(())))
    }

    /// A socket under watch, its address, and one to send from.
    fn sockets() -> (Readable, SocketAddr, std::net::UdpSocket) {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = Arc::new(Socket::bind(address, &Options::default()).unwrap());
        let to = socket.local_addr().unwrap();
        let from = std::net::UdpSocket::bind(address).unwrap();
        (readable(socket).unwrap(), to, from)
    }

    #[tokio::test]
    async fn readiness_is_reported_until_the_queue_is_empty() {
        let (socket, to, from) = sockets();
        assert!(!becomes_readable(&socket).await, "nothing has arrived");
        let mut batch = RecvBatch::new(1, 2048);
        for _ in 0..3 {
            from.send_to(b"a", to).unwrap();
            from.send_to(b"b", to).unwrap();
            assert!(becomes_readable(&socket).await);
            assert_eq!(socket.get_ref().recv(&mut batch).unwrap(), 1);
            // Not cleared: there is more.
            assert!(becomes_readable(&socket).await);
            assert_eq!(socket.get_ref().recv(&mut batch).unwrap(), 1);
            let mut guard = poll_fn(|cx| socket.poll_read_ready(cx)).await.unwrap();
            guard.clear_ready();
            assert!(!becomes_readable(&socket).await, "everything was received");
        }
        // Conversely: there is room, and that is reported at once.
        let room = writable(&socket).unwrap();
        poll_fn(|cx| room.poll_write_ready(cx)).await.unwrap();
    }

    #[tokio::test]
    async fn arrivals_while_the_queue_is_emptied_are_reported() {
        let (socket, to, from) = sockets();
        from.send_to(b"a", to).unwrap();
        let mut guard = poll_fn(|cx| socket.poll_read_ready(cx)).await.unwrap();
        let mut batch = RecvBatch::new(1, 2048);
        assert_eq!(socket.get_ref().recv(&mut batch).unwrap(), 1);
        from.send_to(b"b", to).unwrap();
        guard.clear_ready();
        assert!(becomes_readable(&socket).await);
    }
}
