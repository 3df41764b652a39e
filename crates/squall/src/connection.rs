//! A connection, as the application sees it.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use squall_core::{
    CloseReason, DatagramError, ExportError, MigrateError, Move, Priority, Stage, Stages, Stats,
};
use squall_wire::{ConnectionId, Direction, Path, Side, StreamId};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::WriteError;
use crate::waiting::{AcceptBi, AcceptUni, Closed, OpenBi, OpenUni, ReadDatagram, SendDatagram};
use crate::worker::{self, ConnectionShared, Handle, Line, Place, State};

/// A handle to a connection: cheap to clone and usable from any task.
///
/// When the last handle and the last stream are dropped, the connection closes with code 0.
#[derive(Clone)]
pub struct Connection(Arc<Handle>);

impl Connection {
    /// Opens a bidirectional stream; waits while the peer's stream limit is reached. The peer
    /// learns of the stream with the first write. Cancel-safe: a future that is dropped has opened
    /// nothing.
    ///
    /// # Errors
    /// The connection ended.
    pub fn open_bi(&self) -> OpenBi {
        OpenBi::new(&self.0)
    }

    /// Opens a unidirectional stream; waits while the peer's stream limit is reached. Cancel-safe:
    /// a future that is dropped has opened nothing.
    ///
    /// # Errors
    /// The connection ended.
    pub fn open_uni(&self) -> OpenUni {
        OpenUni::new(&self.0)
    }

    /// Waits for the next bidirectional stream opened by the peer. Cancel-safe: a future that is
    /// dropped has taken no stream.
    ///
    /// # Errors
    /// The connection ended.
    pub fn accept_bi(&self) -> AcceptBi {
        AcceptBi::new(&self.0)
    }

    /// Waits for the next unidirectional stream opened by the peer. Cancel-safe: a future that is
    /// dropped has taken no stream.
    ///
    /// # Errors
    /// The connection ended.
    pub fn accept_uni(&self) -> AcceptUni {
        AcceptUni::new(&self.0)
    }

    /// Changes the priority of a stream's sending half, from the next packet on, as
    /// [`SendStream::set_priority`](crate::SendStream::set_priority) does, for a caller that does
    /// not hold the stream.
    ///
    /// # Errors
    /// The stream does not exist, or no longer sends anything.
    pub fn set_stream_priority(&self, id: StreamId, priority: Priority) -> Result<(), WriteError> {
        self.0.0.call(|state| {
            let result = state.core.set_priority(id, priority);
            result.map_err(|error| match (error, &state.closed) {
                (squall_core::WriteError::Stopped(code), _) => WriteError::Stopped(code),
                (_, Some(reason)) => WriteError::ConnectionLost(reason.clone()),
                (_, None) => WriteError::Closed,
            })
        })
    }

    /// Whether a qlog of this connection is written. The answer never changes, so a caller that has
    /// to prepare events needs to ask only once.
    #[cfg(feature = "qlog")]
    #[must_use]
    pub fn has_qlog(&self) -> bool {
        self.0.0.lock().core.has_qlog()
    }

    /// Adds an event of the application's protocol to the connection's qlog, if one is written: its
    /// name with its namespace, such as `http3:frame_parsed`, and its data, a JSON object
    /// (draft-ietf-quic-qlog-main-schema §7). Data that is not JSON is left out.
    #[cfg(feature = "qlog")]
    pub fn log_event(&self, name: &str, data: &str) {
        let now = self.0.0.worker.clock.now();
        self.0.0.lock().core.log_event(now, name, data);
    }

    /// The largest datagram that can currently be sent, in bytes; it changes with the path. `None`:
    /// the peer does not accept datagrams (RFC 9221 §3). Calling this, like sending a datagram,
    /// starts the search for larger packets (RFC 9000 §14.3), which otherwise starts once 38,400
    /// bytes have been sent.
    #[must_use]
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.0.0.call(|state| state.core.max_datagram_size())
    }

    /// Queues an unreliable datagram. If the queue is full, the oldest datagrams in it are dropped
    /// to make room. What applies to the owners of a stream's chunks also applies to those of
    /// `data` (see [`SendStream`](crate::SendStream)).
    ///
    /// # Errors
    /// The datagram is too large, the peer does not accept datagrams, or the connection ended.
    pub fn send_datagram(&self, data: Bytes) -> Result<(), DatagramError> {
        self.0.0.call(|state| state.core.send_newest_datagram(data))
    }

    /// Queues an unreliable datagram; waits until the queue has room for it. Cancel-safe: a future
    /// that is dropped while it waits has sent nothing.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram).
    pub fn send_datagram_wait(&self, data: Bytes) -> SendDatagram {
        SendDatagram::new(&self.0, data)
    }

    /// Waits for the next datagram from the peer. Cancel-safe: a future that is dropped has taken
    /// no datagram.
    ///
    /// # Errors
    /// The connection ended and all datagrams that arrived have been read.
    pub fn read_datagram(&self) -> ReadDatagram {
        ReadDatagram::new(&self.0)
    }

    /// Queues the datagrams of a list, front first, and waits for room as often as necessary; the
    /// list is empty afterwards. This is cheaper than a call of
    /// [`send_datagram_wait`](Self::send_datagram_wait) for each datagram. Cancel-safe: if the
    /// future is dropped, datagrams not yet queued are still in the list.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram). The refused datagram is then the first of the
    /// list.
    pub async fn send_datagrams_wait(
        &self,
        datagrams: &mut VecDeque<Bytes>,
    ) -> Result<(), DatagramError> {
        let send = |state: &mut State| match state.core.send_datagrams(datagrams) {
            Err(DatagramError::Blocked) => Poll::Pending,
            result => Poll::Ready(result),
        };
        self.0.0.wait(Line::DatagramWrite, send).await
    }

    /// Waits until a datagram has arrived from the peer, then appends up to `limit` datagrams that
    /// have arrived to `datagrams`, oldest first. Returns how many: at least 1, unless `limit` is
    /// 0. This is cheaper than a call of [`read_datagram`](Self::read_datagram) for each datagram.
    /// Cancel-safe: a future that is dropped has taken no datagram.
    ///
    /// # Errors
    /// As [`read_datagram`](Self::read_datagram).
    pub async fn read_datagrams(
        &self,
        datagrams: &mut Vec<Bytes>,
        limit: usize,
    ) -> Result<usize, CloseReason> {
        let shared = &self.0.0;
        let read = |state: &mut State| {
            let before = datagrams.len();
            state.read(&shared.worker.chunks, |core| {
                let arrived = std::iter::from_fn(|| core.read_datagram());
                datagrams.extend(arrived.take(limit));
            });
            match (datagrams.len() - before, &state.closed) {
                (0, Some(reason)) if limit > 0 => Poll::Ready(Err(reason.clone())),
                (0, None) if limit > 0 => Poll::Pending,
                (read, _) => Poll::Ready(Ok(read)),
            }
        };
        shared.wait(Line::DatagramRead, read).await
    }

    /// Closes the connection immediately. The peer receives `code` and `reason`; undelivered data
    /// is lost. Where that matters, await [`SendStream::stopped`](crate::SendStream::stopped)
    /// first, or use [`shutdown`](Self::shutdown).
    ///
    /// Returns before the CONNECTION_CLOSE is sent. A program that ends right after this call must
    /// await [`shutdown`](Self::shutdown) or [`Endpoint::wait_idle`](crate::Endpoint::wait_idle),
    /// or the peer only learns of the end by its idle timeout.
    pub fn close(&self, code: u64, reason: &[u8]) {
        self.0.0.close(code, reason);
    }

    /// Waits until every stream that was finished before this call is delivered, then closes the
    /// connection with `code` and `reason`. Other streams are lost, as with
    /// [`close`](Self::close). Returns when the CONNECTION_CLOSE has been handed to the system, so
    /// that the program may end. If that datagram is lost, the peer waits for its idle timeout;
    /// [`Endpoint::wait_idle`](crate::Endpoint::wait_idle) also waits for the time in which it is
    /// repeated.
    ///
    /// Cancel-safe: if the future is dropped while it waits for delivery, the connection is not
    /// closed.
    pub async fn shutdown(&self, code: u64, reason: &[u8]) {
        self.0.0.shut_down(code, reason).await;
    }

    /// Migrates a client's connection to another local address once the path from there is
    /// validated; until then the connection stays on the current path (RFC 9000 §9.2). The socket
    /// must be bound to the wildcard address. If the current address is already gone, use
    /// [`Endpoint::rebind`](crate::Endpoint::rebind).
    ///
    /// If the future is dropped, the migration goes on, and its outcome is not reported.
    ///
    /// # Errors
    /// The connection cannot migrate, or the server is not reachable from that address.
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
            // Ignore any other move, for example to the server's preferred address.
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

    /// Waits until the connection ends and returns the reason. The future does not keep the
    /// connection open.
    pub fn closed(&self) -> Closed {
        Closed::new(&self.0.0)
    }

    /// The reason why the connection ended, if it did.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.0.0.lock().closed.clone()
    }

    /// The connection's counters: packets, bytes, losses, round-trip time, congestion window.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.0.lock().core.stats()
    }

    /// The peer's current address.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.0.0.lock().core.path().remote
    }

    /// The smoothed round-trip time (RFC 9002 §5.3).
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.stats().rtt
    }

    /// The local address at which the peer's datagrams arrive. `None` if the system does not report
    /// it, or before the first datagram.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.0.0.lock().core.path().local
    }

    /// Fills `output` with key material exported from the TLS session (RFC 8446 §7.5), at any time
    /// after the handshake. Both ends get the same bytes for the same label, context and length. An
    /// empty context is the same as none.
    ///
    /// # Errors
    /// [`ExportError`]: the handshake is not complete, the secret was not kept
    /// ([`keep_exporter_secret`](crate::TransportConfig::keep_exporter_secret)), or a length is
    /// not allowed. `output` is then unchanged.
    pub fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportError> {
        let state = self.0.0.lock();
        state.core.export_keying_material(output, label, context)
    }

    /// Runs a task on the thread of the connection's own worker, where it uses the connection
    /// without waking another thread. The task shares that thread with the transport and must not
    /// block. If the worker ends, the task is cancelled.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        worker::spawn_for(&self.0.0, task)
    }

    /// Starts or stops measuring the time that the connection takes on its worker; see
    /// [`stages`](Self::stages). A measured connection takes a few per cent more time; others cost
    /// nothing more.
    pub fn measure_stages(&self, on: bool) {
        self.0.0.set_measured(on);
    }

    /// The time that the connection took on its worker in each stage while it was
    /// [measured](Self::measure_stages), in ticks of [`ticks`](crate::ticks). All zero if it never
    /// was.
    ///
    /// System calls receive and send datagrams of several connections at once; each connection's
    /// part is in proportion to its bytes. The application's part is that of tasks started with
    /// [`spawn`](Self::spawn), and needs [`Builder::accounting`](crate::Builder::accounting). Time
    /// that belongs to no connection, such as waiting, is only in
    /// [`Endpoint::stages`](crate::Endpoint::stages), so the sum over all connections never exceeds
    /// the endpoint's time. Time that an application's threads spend in calls of a handle is not
    /// measured.
    #[must_use]
    pub fn stages(&self) -> Stages {
        self.0.0.stages()
    }

    /// Attributes the time since the previous mark to a stage, in a task of the connection's worker
    /// (see [`spawn`](Self::spawn)) of an endpoint with
    /// [`Builder::accounting`](crate::Builder::accounting). Time that a task does not mark is
    /// [`Stage::Application`]. For protocols above QUIC: squall-h3 separates its own time from that
    /// of the services it calls. Does nothing anywhere else.
    #[inline]
    pub fn mark_stage(&self, stage: Stage) {
        let shared = &self.0.0.worker;
        if shared.accounting {
            worker::mark_task(shared, stage);
        }
    }

    /// The index of the endpoint's worker that the connection stays on for life.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.0.0.worker.index
    }

    /// A number that no other connection of the process has while a handle to this one exists.
    #[must_use]
    pub fn stable_id(&self) -> usize {
        Arc::as_ptr(&self.0.0).addr()
    }

    /// A handle that does not keep the connection open.
    #[must_use]
    pub fn downgrade(&self) -> WeakConnection {
        WeakConnection(Arc::downgrade(&self.0))
    }

    /// The QUIC version in use: [`VERSION_1`](crate::VERSION_1) or [`VERSION_2`](crate::VERSION_2).
    /// It can change during the handshake (RFC 9368).
    #[must_use]
    pub fn version(&self) -> u32 {
        self.0.0.lock().core.version()
    }

    /// The destination connection id of the client's very first packet (RFC 9000 §7.3), which both
    /// ends know. qlogs are named after it.
    #[must_use]
    pub fn original_destination_id(&self) -> ConnectionId {
        self.0.0.lock().core.original_destination_id()
    }

    /// Starts a key update (RFC 9001 §6) now. Returns whether it did: it cannot before the
    /// handshake is confirmed, nor before the peer has acknowledged a packet under the current
    /// keys. Keys are updated in time without this call.
    pub fn force_key_update(&self) -> bool {
        let now = self.0.0.worker.clock.now();
        self.0.0.act(|state| state.core.force_key_update(now))
    }

    /// Changes how many bidirectional streams the peer may have open at the same time. A higher
    /// limit is announced at once; a lower one takes effect as streams end (RFC 9000 §4.6).
    pub fn set_max_concurrent_bidi_streams(&self, limit: u64) {
        self.set_max_concurrent(Direction::Bidirectional, limit);
    }

    /// Changes how many unidirectional streams the peer may have open at the same time. A higher
    /// limit is announced at once; a lower one takes effect as streams end (RFC 9000 §4.6).
    pub fn set_max_concurrent_uni_streams(&self, limit: u64) {
        self.set_max_concurrent(Direction::Unidirectional, limit);
    }

    fn set_max_concurrent(&self, direction: Direction, limit: u64) {
        (self.0.0).call(|state| state.core.set_max_concurrent_streams(direction, limit));
    }

    /// Changes the largest flow-control credit of the connection, in bytes; see
    /// [`TransportConfig::receive_window`](field@crate::TransportConfig::receive_window). Credit
    /// that the peer already has remains valid. Zero: no further credit, until a call with more.
    pub fn set_receive_window(&self, bytes: u64) {
        self.0.0.call(|state| state.core.set_receive_window(bytes));
    }

    /// Changes how much the send buffers of all streams may hold together, in bytes; see
    /// [`TransportConfig::send_window`](field@crate::TransportConfig::send_window). Data already
    /// buffered stays.
    pub fn set_send_window(&self, bytes: u64) {
        // The worker wakes the tasks that wait for room.
        self.0.0.act(|state| state.core.set_send_window(bytes));
    }

    /// The length of the largest datagram that the queue has room for now, in bytes. A longer one
    /// displaces others in [`send_datagram`](Self::send_datagram), and waits in
    /// [`send_datagram_wait`](Self::send_datagram_wait).
    #[must_use]
    pub fn datagram_send_buffer_space(&self) -> usize {
        self.0.0.lock().core.datagram_send_buffer_space()
    }

    /// Which side of the connection this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.0.0.lock().core.side()
    }

    /// The application protocol negotiated in the handshake (RFC 7301).
    #[must_use]
    pub fn alpn(&self) -> Option<Vec<u8>> {
        self.0.0.lock().core.alpn().map(<[u8]>::to_vec)
    }

    /// The server name that the client requested (RFC 6066 §3); `None` on the client.
    #[must_use]
    pub fn server_name(&self) -> Option<String> {
        self.0.0.lock().core.server_name().map(str::to_owned)
    }

    /// The negotiated key exchange group: X25519MLKEM768 if the peer supports it.
    #[must_use]
    pub fn key_exchange_group(&self) -> Option<rustls::NamedGroup> {
        self.0.0.lock().core.key_exchange_group()
    }

    /// Whether the handshake was full or resumed an earlier session; `None` until it completes.
    #[must_use]
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        self.0.0.lock().core.handshake_kind()
    }

    /// The peer's certificate chain, end-entity certificate first; `None` unless the transport's
    /// `keep_peer_certificates` was set.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<Vec<rustls::pki_types::CertificateDer<'static>>> {
        self.0.0.lock().core.peer_certificates().map(<[_]>::to_vec)
    }
}

/// A handle that does not keep its connection open, made by [`Connection::downgrade`].
#[derive(Clone, Debug)]
pub struct WeakConnection(Weak<Handle>);

impl WeakConnection {
    /// The connection; `None` once its last handle and its last stream are dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<Connection> {
        self.0.upgrade().map(Connection)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("handle", &self.0.0.handle.0)
            .finish_non_exhaustive()
    }
}

/// What a handshake negotiates, as far as it is known before its end; see
/// [`Connecting::handshake_data`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeData {
    /// The application protocol (RFC 7301).
    pub alpn: Option<Vec<u8>>,
    /// The server name that the client requested (RFC 6066 §3); `None` on the client.
    pub server_name: Option<String>,
}

/// A connection whose handshake is in progress; await it. Dropping it abandons the connection:
/// where the wait may be cancelled, for example by `select!`, await `&mut connecting`.
#[must_use = "dropping a `Connecting` abandons the connection"]
pub struct Connecting {
    progress: Progress,
    /// The path as it was when the attempt began.
    path: Path,
}

enum Progress {
    /// The worker has not answered yet.
    Asked(oneshot::Receiver<Result<Handle, CloseReason>>),
    Handshaking(Handshake),
    Failed(CloseReason),
    Done,
}

/// A connection whose handshake is in progress, and the waiting future's place in its queue.
struct Handshake {
    place: Place<Arc<ConnectionShared>>,
    handle: Arc<Handle>,
}

impl Handshake {
    fn new(handle: Arc<Handle>) -> Self {
        let place = Place::new(Arc::clone(&handle.0), Line::Lifetime);
        Self { place, handle }
    }
}

impl Connecting {
    pub(crate) fn new(answer: oneshot::Receiver<Result<Handle, CloseReason>>, path: Path) -> Self {
        let progress = Progress::Asked(answer);
        Self { progress, path }
    }

    /// The path, as far as it is known.
    fn path(&self) -> Path {
        match &self.progress {
            Progress::Handshaking(Handshake { handle, .. }) => handle.0.lock().core.path(),
            _ => self.path,
        }
    }

    /// The peer's address.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.path().remote
    }

    /// The local address at which the peer's datagrams arrive. `None` if the system does not report
    /// it, and on a client before the first datagram.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.path().local
    }

    /// Returns the connection before its handshake completes, for early data (0-RTT, RFC 9001
    /// §4.6); after it, with or without a ticket. What a client writes travels with its first
    /// packets, under keys from an earlier connection to the same server. **An attacker can replay
    /// it**: send only what may safely happen twice. If the server rejects early data, all stream
    /// data is sent again after the handshake; datagrams are lost.
    ///
    /// Not cancel-safe: dropping the future abandons the connection.
    ///
    /// Both ends must enable early data: `enable_early_data` in the client's rustls configuration
    /// and `max_early_data_size` in the server's. A server gets its connection at once and can read
    /// early data; until the returned [`EarlyDataAccepted`] is ready, it cannot know that the
    /// client is live.
    ///
    /// # Errors
    /// There is no ticket for early data, or the connection could not be started. The returned
    /// `Connecting` can still be awaited.
    pub async fn into_0rtt(mut self) -> Result<(Connection, EarlyDataAccepted), Self> {
        poll_fn(|cx| self.poll_begun(cx)).await;
        let Progress::Handshaking(Handshake { handle, .. }) = &self.progress else {
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
        self.progress = Progress::Done;
        Ok((connection, accepted))
    }

    /// Waits until the application protocol and, on a server, the server name are known: on a
    /// server from the client's first flight, on a client from the server's. None of it is
    /// authenticated before the handshake completes. Cancel-safe.
    ///
    /// # Errors
    /// The connection could not be started, or ended.
    pub async fn handshake_data(&mut self) -> Result<HandshakeData, CloseReason> {
        poll_fn(|cx| self.poll_handshake_data(cx)).await
    }

    fn poll_handshake_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<HandshakeData, CloseReason>> {
        ready!(self.poll_begun(cx));
        match &mut self.progress {
            Progress::Handshaking(Handshake { place, handle }) => {
                handle.0.lock().handshake_data_awaited = true;
                place.poll(cx, |state| {
                    if state.handshake_data {
                        return Poll::Ready(Ok(HandshakeData {
                            alpn: state.core.alpn().map(<[u8]>::to_vec),
                            server_name: state.core.server_name().map(str::to_owned),
                        }));
                    }
                    let closed = state.closed.clone();
                    closed.map_or(Poll::Pending, |reason| Poll::Ready(Err(reason)))
                })
            }
            Progress::Failed(error) => Poll::Ready(Err(error.clone())),
            // Polled again after completion, against the contract of futures.
            Progress::Asked(_) | Progress::Done => Poll::Pending,
        }
    }

    /// Waits for the worker's answer.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Progress::Asked(answer) = &mut self.progress {
            // No answer: the worker is gone.
            let handle = ready!(Pin::new(answer).poll(cx))
                .unwrap_or_else(|_| Err(worker::endpoint_closed()));
            self.progress = match handle {
                Ok(handle) => Progress::Handshaking(Handshake::new(Arc::new(handle))),
                Err(error) => Progress::Failed(error),
            };
        }
        Poll::Ready(())
    }
}

impl Future for Connecting {
    type Output = Result<Connection, CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_begun(cx));
        let mut handshake = match std::mem::replace(&mut self.progress, Progress::Done) {
            Progress::Handshaking(handshake) => handshake,
            Progress::Failed(error) => return Poll::Ready(Err(error)),
            // Polled again after completion, against the contract of futures.
            Progress::Asked(_) | Progress::Done => return Poll::Pending,
        };
        let end = handshake
            .place
            .poll(cx, |state| match (&state.closed, state.connected) {
                (Some(reason), _) => Poll::Ready(Err(reason.clone())),
                (None, true) => Poll::Ready(Ok(())),
                (None, false) => Poll::Pending,
            });
        match end {
            Poll::Ready(result) => Poll::Ready(result.map(|()| Connection(handshake.handle))),
            Poll::Pending => {
                self.progress = Progress::Handshaking(handshake);
                Poll::Pending
            }
        }
    }
}

/// A future that is ready when the handshake completes and returns whether the server accepted the
/// client's early data; it works on both ends. `false` if the client sent none, or if the
/// connection ended first. Cancel-safe: dropping it changes nothing.
#[must_use = "whether early data was accepted is known only after the handshake"]
pub struct EarlyDataAccepted(Handshake);

impl Future for EarlyDataAccepted {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        self.0.place.poll(cx, |state| {
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
