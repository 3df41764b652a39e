//! A carrier of datagrams other than a UDP socket, for tests and overlay networks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use squall_wire::Ecn;

/// Carries datagrams in place of a UDP socket, for example a channel in a test, or a tunnel. Set it
/// with [`Builder::datagram_socket`](crate::Builder::datagram_socket) or, for an existing endpoint,
/// [`Endpoint::rebind_datagram_socket`](crate::Endpoint::rebind_datagram_socket).
///
/// Datagrams may be lost, repeated and reordered. At least 1,200 bytes must pass (RFC 9000 §14).
/// Addresses are what the implementation says they are: QUIC uses them to tell peers and paths
/// apart, and never interprets them. All are of the family of [`local_addr`](Self::local_addr).
///
/// This path is slower than a UDP socket, whose bundles go to the kernel as they are: it takes a
/// call for each message, and a wake-up for each batch.
///
/// Both `poll_…` methods are called by the endpoint's one worker, and never at the same time. They
/// must not block. A method that panics ends the worker. `Pending` promises that the task of
/// `cx` is woken when the call is worth another try.
pub trait DatagramSocket: Send + Sync + 'static {
    /// The address of this end.
    ///
    /// # Errors
    /// The address is not known; [`Builder::bind`](crate::Builder::bind) then fails.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Receives a datagram into `buffer`, or several of one size from one peer, back to back. Drop
    /// a datagram that is longer than `buffer`.
    ///
    /// # Errors
    /// `BrokenPipe` and `NotConnected`: nothing will ever be received or sent again, and the worker
    /// ends. After any other error the worker tries again a little later, for ten minutes.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<ReceivedDatagrams>>;

    /// Sends all of these datagrams, or none.
    ///
    /// # Errors
    /// `BrokenPipe` and `NotConnected` as in [`poll_recv`](Self::poll_recv). With any other error
    /// these datagrams count as lost.
    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        datagrams: &OutgoingDatagrams<'_>,
    ) -> Poll<io::Result<()>>;

    /// How many datagrams [`poll_send`](Self::poll_send) takes at once, from 1 to 64. By default 1.
    fn max_segments(&self) -> usize {
        1
    }
}

/// What [`DatagramSocket::poll_recv`] has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedDatagrams {
    /// The peer's address.
    pub remote: SocketAddr,
    /// The address of this end that the peer sent to, if it is known.
    pub local: Option<IpAddr>,
    /// The ECN mark, if the carrier has one.
    pub ecn: Ecn,
    /// Bytes of all datagrams together.
    pub len: usize,
    /// Bytes of each datagram but the last, which may be shorter.
    pub segment_size: usize,
}

impl ReceivedDatagrams {
    /// One datagram of `len` bytes.
    #[must_use]
    pub const fn one(remote: SocketAddr, len: usize) -> Self {
        Self {
            remote,
            local: None,
            ecn: Ecn::NotEct,
            len,
            segment_size: len,
        }
    }

    /// The same bytes as datagrams of `segment_size` bytes, the last of which may be shorter.
    #[must_use]
    pub const fn segments_of(mut self, segment_size: usize) -> Self {
        self.segment_size = segment_size;
        self
    }
}

/// What [`DatagramSocket::poll_send`] has to send.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OutgoingDatagrams<'a> {
    /// The peer's address.
    pub remote: SocketAddr,
    /// The address of this end to send from, if it matters.
    pub local: Option<IpAddr>,
    /// The ECN mark, for carriers that have one.
    pub ecn: Ecn,
    /// Bytes of each datagram but the last, which may be shorter.
    pub segment_size: usize,
    /// All datagrams, back to back; at most [`max_segments`](DatagramSocket::max_segments).
    pub bytes: &'a [u8],
}

impl<'a> OutgoingDatagrams<'a> {
    /// The datagrams one by one.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment_size.max(1))
    }
}

/// A carrier that settings hold.
#[derive(Clone)]
pub(crate) struct SharedDatagramSocket(pub(crate) Arc<dyn DatagramSocket>);

impl std::fmt::Debug for SharedDatagramSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DatagramSocket")
    }
}
