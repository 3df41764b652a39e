//! A connection, as an application holds it.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use squall_core::{CloseReason, DatagramError, Exporter, MigrateError, Move, Stats};
use squall_wire::{Direction, Path, Side};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::ConnectError;
use crate::stream::{RecvStream, SendStream};
use crate::worker::{self, ConnectionShared, Handle, Line, Place, State};

/// A handle of a connection: cheap to clone, usable from any task.
///
/// When the last handle and the last stream are dropped, the connection closes with code 0.
#[derive(Clone)]
pub struct Connection(Arc<Handle>);

impl Connection {
    fn send(&self, id: squall_wire::StreamId) -> SendStream {
        SendStream::new(Arc::clone(&self.0), id)
    }

    fn recv(&self, id: squall_wire::StreamId) -> RecvStream {
        RecvStream::new(Arc::clone(&self.0), id)
    }

    /// Opens a bidirectional stream; waits while the peer allows no more. The peer learns of it with the first write.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn open_bi(&self) -> Result<(SendStream, RecvStream), CloseReason> {
        let id = self.0.0.open(Direction::Bidirectional).await?;
        Ok((self.send(id), self.recv(id)))
    }

    /// Opens a stream for sending only; waits while the peer allows no more.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn open_uni(&self) -> Result<SendStream, CloseReason> {
        Ok(self.send(self.0.0.open(Direction::Unidirectional).await?))
    }

    /// Waits for the next bidirectional stream of the peer.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn accept_bi(&self) -> Result<(SendStream, RecvStream), CloseReason> {
        let id = self.0.0.accept(Direction::Bidirectional).await?;
        Ok((self.send(id), self.recv(id)))
    }

    /// Waits for the next stream on which only the peer sends.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn accept_uni(&self) -> Result<RecvStream, CloseReason> {
        Ok(self.recv(self.0.0.accept(Direction::Unidirectional).await?))
    }

    /// The largest datagram that can be sent now, in bytes; it changes with the path. `None`: the peer takes none
    /// (RFC 9221 §3).
    #[must_use]
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.0.0.lock().core.max_datagram_size()
    }

    /// Sends a datagram, which arrives or not; in a full queue the oldest make room for it.
    ///
    /// # Errors
    /// It is too large, the peer takes none, or the connection ended.
    pub fn send_datagram(&self, data: Bytes) -> Result<(), DatagramError> {
        self.0.0.call(|state| state.core.send_newest_datagram(data))
    }

    /// Sends a datagram, which arrives or not, when there is room for it in the queue.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram).
    pub async fn send_datagram_wait(&self, data: Bytes) -> Result<(), DatagramError> {
        let send = |state: &mut State| match state.core.send_datagram(data.clone()) {
            Err(DatagramError::Blocked) => Poll::Pending,
            result => Poll::Ready(result),
        };
        self.0.0.wait(Line::DatagramWrite, send).await
    }

    /// Waits for the next datagram of the peer.
    ///
    /// # Errors
    /// The connection ended, and all that had arrived is read.
    pub async fn read_datagram(&self) -> Result<Bytes, CloseReason> {
        let read = |state: &mut State| match (state.core.read_datagram(), &state.closed) {
            (Some(data), _) => Poll::Ready(Ok(data)),
            (None, Some(reason)) => Poll::Ready(Err(reason.clone())),
            (None, None) => Poll::Pending,
        };
        self.0.0.wait(Line::DatagramRead, read).await
    }

    /// Ends the connection at once: the peer is told `code` and `reason`, what is not delivered yet is lost. Wait for
    /// [`SendStream::stopped`] before, where that matters.
    pub fn close(&self, code: u64, reason: &[u8]) {
        self.0.0.close(code, reason);
    }

    /// Waits until every stream that was finished is delivered, then ends the connection with `code` and `reason`. Streams
    /// that were not finished are lost, as with [`close`](Self::close).
    pub async fn shutdown(&self, code: u64, reason: &[u8]) {
        self.0.0.shut_down(code, reason).await;
    }

    /// Moves a client's connection to another of this machine's addresses, once the way from there is validated; until then
    /// it goes on where it is (RFC 9000 §9.2). The socket must be bound to all addresses. For an address that is gone already
    /// there is [`Endpoint::rebind`](crate::Endpoint::rebind).
    ///
    /// # Errors
    /// The connection cannot move, or there is no way to the server from there.
    pub async fn migrate(&self, local: IpAddr) -> Result<(), MigrateError> {
        let now = self.0.0.worker.clock.now();
        self.0.0.act(|state| {
            let path = Path {
                local: Some(local),
                ..state.core.path()
            };
            state.moved = None;
            state.core.migrate(now, path, Move::WhenValidated)
        })?;
        let outcome = |state: &mut State| {
            // Another move, to the server's preferred address say, is not the one that is waited for.
            let moved = state.moved.filter(|(path, _)| path.local == Some(local));
            match (moved, &state.closed) {
                (Some((_, true)), _) => Poll::Ready(Ok(())),
                (Some((_, false)), None) => Poll::Ready(Err(MigrateError::NotValidated)),
                (_, Some(_)) => Poll::Ready(Err(MigrateError::Closed)),
                (None, None) => Poll::Pending,
            }
        };
        self.0.0.wait(Line::Move, outcome).await
    }

    /// Waits for the connection's end and tells why it came.
    pub async fn closed(&self) -> CloseReason {
        let end = |state: &mut State| match &state.closed {
            Some(reason) => Poll::Ready(reason.clone()),
            None => Poll::Pending,
        };
        self.0.0.wait(Line::Lifetime, end).await
    }

    /// Why the connection ended, if it did.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.0.0.lock().closed.clone()
    }

    /// Counters of the connection: packets, bytes, losses, round-trip time, congestion window.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.0.lock().core.stats()
    }

    /// Where the peer is now.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.0.0.lock().core.path().remote
    }

    /// The smoothed round-trip time (RFC 9002 §5.3).
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.stats().rtt
    }

    /// The address of this machine that the peer's datagrams come to; `None` where the system does not tell, or before the
    /// first has come.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.0.0.lock().core.path().local
    }

    /// Key material bound to the connection (RFC 8446 §7.5): one that [`exporters`](crate::TransportConfig::exporters) asks
    /// for; `None` for others, and before the handshake's end.
    #[must_use]
    pub fn exported(&self, exporter: &Exporter) -> Option<Vec<u8>> {
        (self.0.0.lock().core.exported(exporter)).map(|material| material.to_vec())
    }

    /// Runs a task on the thread of the connection's own worker, where it reaches the connection without waking another
    /// thread. It shares that thread with the transport: it must not block. It ends, unfinished, with the worker.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        worker::spawn(&self.0.0.worker, task)
    }

    /// Which of the endpoint's workers the connection lives on, for life.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.0.0.worker.index
    }

    /// Which side of the connection this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.0.0.lock().core.side()
    }

    /// The application protocol that the handshake chose (RFC 7301).
    #[must_use]
    pub fn alpn(&self) -> Option<Vec<u8>> {
        self.0.0.lock().core.alpn().map(<[u8]>::to_vec)
    }

    /// The server name that the client asked for (RFC 6066 §3); `None` on the client's side.
    #[must_use]
    pub fn server_name(&self) -> Option<String> {
        self.0.0.lock().core.server_name().map(str::to_owned)
    }

    /// The key exchange group that the handshake agreed on: X25519MLKEM768 where the peer has it.
    #[must_use]
    pub fn key_exchange_group(&self) -> Option<rustls::NamedGroup> {
        self.0.0.lock().core.key_exchange_group()
    }

    /// Whether the handshake was a full one or resumed an earlier session; `None` before its end.
    #[must_use]
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        self.0.0.lock().core.handshake_kind()
    }

    /// The peer's certificate chain, its own first; `None` unless the transport's `keep_peer_certificates` was set.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<Vec<rustls::pki_types::CertificateDer<'static>>> {
        self.0.0.lock().core.peer_certificates().map(<[_]>::to_vec)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("handle", &self.0.0.handle.0)
            .finish_non_exhaustive()
    }
}

/// A connection whose handshake is under way: await it. Dropped before, it is given up.
#[must_use = "a connection that nobody waits for is given up"]
pub struct Connecting(Progress);

enum Progress {
    /// The worker has not answered yet.
    Asked(oneshot::Receiver<Result<Handle, ConnectError>>),
    Handshaking(Handshake),
    Failed(ConnectError),
    Done,
}

/// A connection before the end of its handshake, and the place of the future that waits for that.
struct Handshake {
    place: Place<Arc<ConnectionShared>>,
    handle: Arc<Handle>,
}

impl Handshake {
    fn new(handle: Arc<Handle>) -> Self {
        let place = Place::new(Arc::clone(&handle.0), Line::Lifetime);
        Self { place, handle }
    }

    /// Waits until `poll` is ready.
    fn poll<R>(&mut self, cx: &Context<'_>, poll: impl FnOnce(&State) -> Poll<R>) -> Poll<R> {
        let mut state = self.handle.0.lock();
        let result = poll(&state);
        self.place.settle(&mut state, result, cx.waker())
    }
}

impl Connecting {
    pub(crate) fn new(answer: oneshot::Receiver<Result<Handle, ConnectError>>) -> Self {
        Self(Progress::Asked(answer))
    }
}

impl Connecting {
    /// The connection before its handshake is done, for early data (0-RTT, RFC 9001 §4.6): what a client sends travels with
    /// its first packets, under the keys of an earlier connection to the same server. **An attacker can repeat it**: send
    /// nothing that must not happen twice. The server may not take it; then it is sent again behind the handshake, and
    /// nothing is lost.
    ///
    /// It is off unless both ends ask for it: `enable_early_data` in the client's rustls configuration, and
    /// `max_early_data_size` in the server's. A server gets its connection at once and can read early data; until the
    /// second part of what this returns is ready, it cannot know that the client is there.
    ///
    /// # Errors
    /// There is no ticket for early data, or the connection could not be started: await what is given back.
    pub async fn into_0rtt(mut self) -> Result<(Connection, EarlyDataAccepted), Self> {
        poll_fn(|cx| self.poll_begun(cx)).await;
        let Progress::Handshaking(Handshake { handle, .. }) = &self.0 else {
            return Err(self);
        };
        let early = {
            let state = handle.0.lock();
            state.closed.is_none()
                && (state.connected
                    || state.core.side() == Side::Server
                    || state.core.has_early_data())
        };
        if !early {
            return Err(self);
        }
        let connection = Connection(Arc::clone(handle));
        let accepted = EarlyDataAccepted(Handshake::new(Arc::clone(handle)));
        self.0 = Progress::Done;
        Ok((connection, accepted))
    }

    /// Waits for the worker's answer.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Progress::Asked(answer) = &mut self.0 {
            // No answer: the worker is gone.
            let handle =
                ready!(Pin::new(answer).poll(cx)).unwrap_or(Err(ConnectError::EndpointClosed));
            self.0 = match handle {
                Ok(handle) => Progress::Handshaking(Handshake::new(Arc::new(handle))),
                Err(error) => Progress::Failed(error),
            };
        }
        Poll::Ready(())
    }
}

impl Future for Connecting {
    type Output = Result<Connection, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_begun(cx));
        let mut handshake = match std::mem::replace(&mut self.0, Progress::Done) {
            Progress::Handshaking(handshake) => handshake,
            Progress::Failed(error) => return Poll::Ready(Err(error)),
            // Polled after its end, against the contract of futures.
            Progress::Asked(_) | Progress::Done => return Poll::Pending,
        };
        let end = handshake.poll(cx, |state| match (&state.closed, state.connected) {
            (Some(reason), _) => Poll::Ready(Err(ConnectError::Closed(reason.clone()))),
            (None, true) => Poll::Ready(Ok(())),
            (None, false) => Poll::Pending,
        });
        match end {
            Poll::Ready(result) => Poll::Ready(result.map(|()| Connection(handshake.handle))),
            Poll::Pending => {
                self.0 = Progress::Handshaking(handshake);
                Poll::Pending
            }
        }
    }
}

/// Becomes ready with the handshake: whether the server accepted the client's early data, at both ends. `false` if the
/// client sent none, and when the connection has ended before.
#[must_use = "only the handshake's end tells whether early data was taken"]
pub struct EarlyDataAccepted(Handshake);

impl Future for EarlyDataAccepted {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        self.0.poll(cx, |state| {
            if !state.connected && state.closed.is_none() {
                return Poll::Pending;
            }
            Poll::Ready(state.early_data == Some(true) && state.closed.is_none())
        })
    }
}

impl std::fmt::Debug for EarlyDataAccepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlyDataAccepted").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Connecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}
