//! What belongs to an extended CONNECT request but travels outside of its stream: HTTP datagrams
//! (RFC 9297), and WebTransport streams.
//!
//! ```text
//!   driver ── a stream or a datagram of request N ──> Tunnels ──> Tunnel ── queues ──> its handles
//!                                                        ├ early: request N is not known yet
//!                                                        └ ended: request N is over
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use squall::{RecvStream, SendStream};
use tokio::sync::Notify;

use crate::error::Code;
use crate::half::{HalfId, Held};
use crate::lock::lock;

/// Datagrams that wait for one request; datagrams, and streams, that wait for requests not known
/// yet. Both can overtake the request on the way. Streams that wait for a request that is known
/// need no limit but the transport's: they are open until they are taken or rejected.
const MAX_WAITING: usize = 64;

/// Requests that are remembered after their end: what is still on the way to one of them is
/// rejected, rather than kept for a request to come.
const MAX_ENDED: usize = 64;

/// Whether this can be the id of a WebTransport session: that of a client's bidirectional stream
/// (draft-ietf-webtrans-http3 §4).
pub(crate) const fn is_session_id(id: u64) -> bool {
    id & 3 == 0
}

/// A stream or a datagram of a request.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A bidirectional stream, and the part of it already read.
    Bi(SendStream, RecvStream, Bytes),
    /// A unidirectional stream, and the part of it already read.
    Uni(RecvStream, Bytes),
    Datagram(Bytes),
}

impl Arrival {
    /// Gives the stream up with this code. Takes the connection's lock.
    fn reject(self, code: Code) {
        // An error means that the stream has ended anyway.
        let stop = |mut recv: RecvStream| drop(recv.stop(code.0));
        match self {
            Self::Bi(mut send, recv, _) => {
                let _ = send.reset(code.0);
                stop(recv);
            }
            Self::Uni(recv, _) => stop(recv),
            Self::Datagram(_) => {}
        }
    }
}

/// The requests of a connection that have datagrams or streams of their own.
#[derive(Debug, Default)]
pub(crate) struct Tunnels(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<u64, Arc<Tunnel>>,
    /// Of requests not known yet, oldest first.
    early_streams: VecDeque<(u64, Arrival)>,
    early_datagrams: VecDeque<(u64, Arrival)>,
    /// The requests that ended last, in the order of their ends.
    ended: VecDeque<u64>,
    has_ended: bool,
}

/// Arrivals that wait for one request, and its streams.
#[derive(Debug, Default)]
pub(crate) struct Tunnel {
    queues: Mutex<Queues>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Queues {
    bi: VecDeque<(SendStream, RecvStream, Bytes)>,
    uni: VecDeque<(RecvStream, Bytes)>,
    datagrams: VecDeque<Bytes>,
    waiting: Vec<Waker>,
    is_closed: bool,
    /// Streams that the application has and that are in use. A map that shrinks with them.
    held: BTreeMap<HalfId, Held>,
    /// Handles of the tunnel.
    handles: usize,
}

/// Why a tunnel is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The request is over, and its streams with it.
    Request,
    /// The connection has ended: streams report why, and their data can still be read.
    Connection,
}

impl Tunnels {
    /// Passes an arrival on to its request. Beyond the limit, the oldest datagrams are dropped, and
    /// the oldest streams are rejected.
    pub(crate) fn route(&self, id: u64, arrival: Arrival) {
        let mut inner = lock(&self.0);
        if let Some(tunnel) = inner.open.get(&id).map(Arc::clone) {
            drop(inner);
            tunnel.take(arrival);
            return;
        }
        if inner.has_ended || inner.ended.contains(&id) {
            drop(inner);
            arrival.reject(Code::WT_SESSION_GONE);
            return;
        }
        let early = match arrival {
            Arrival::Bi(..) | Arrival::Uni(..) => &mut inner.early_streams,
            Arrival::Datagram(_) => &mut inner.early_datagrams,
        };
        early.push_back((id, arrival));
        let oldest = (early.len() > MAX_WAITING).then(|| early.pop_front());
        drop(inner);
        if let Some((_, oldest)) = oldest.flatten() {
            oldest.reject(Code::WT_BUFFERED_STREAM_REJECTED);
        }
    }

    /// Opens the tunnel of the request with this stream id, with anything that has arrived for it.
    pub(crate) fn open(&self, id: u64) -> Arc<Tunnel> {
        let mut inner = lock(&self.0);
        if inner.has_ended || inner.ended.contains(&id) {
            let tunnel = Arc::<Tunnel>::default();
            tunnel.close(End::Request);
            return tunnel;
        }
        let tunnel = Arc::clone(inner.open.entry(id).or_default());
        lock(&tunnel.queues).handles += 1;
        let early = inner.take_early(id);
        drop(inner);
        early.for_each(|arrival| tunnel.take(arrival));
        tunnel
    }

    /// The request, which may have a tunnel, is over: nothing more arrives for it.
    pub(crate) fn end(&self, id: u64) {
        let mut inner = lock(&self.0);
        let tunnel = inner.open.remove(&id);
        if !inner.ended.contains(&id) {
            inner.ended.push_back(id);
            if inner.ended.len() > MAX_ENDED {
                inner.ended.pop_front();
            }
        }
        let early = inner.take_early(id);
        drop(inner);
        early.for_each(|arrival| arrival.reject(Code::WT_SESSION_GONE));
        if let Some(tunnel) = tunnel {
            tunnel.close(End::Request);
        }
    }

    /// Nothing more arrives for any request: the driver has ended, and perhaps the connection.
    pub(crate) fn end_all(&self, is_connected: bool) {
        let mut inner = lock(&self.0);
        inner.has_ended = true;
        let open = std::mem::take(&mut inner.open);
        let early = std::mem::take(&mut inner.early_streams);
        inner.early_datagrams.clear();
        drop(inner);
        let end = if is_connected {
            End::Request
        } else {
            End::Connection
        };
        open.into_values().for_each(|tunnel| tunnel.close(end));
        (early.into_iter()).for_each(|(_, arrival)| arrival.reject(Code::WT_SESSION_GONE));
    }

    /// A handle of this request's tunnel is dropped. The last one closes the tunnel; if the request
    /// continues, it can be opened again.
    pub(crate) fn release(&self, id: u64, tunnel: &Arc<Tunnel>) {
        let mut inner = lock(&self.0);
        let mut queues = lock(&tunnel.queues);
        queues.handles = queues.handles.saturating_sub(1);
        if queues.handles > 0 {
            return;
        }
        drop(queues);
        if inner
            .open
            .get(&id)
            .is_some_and(|open| Arc::ptr_eq(open, tunnel))
        {
            inner.open.remove(&id);
        }
        drop(inner);
        tunnel.close(End::Request);
    }
}

impl Inner {
    /// What has arrived for this request before it was known.
    fn take_early(&mut self, id: u64) -> impl Iterator<Item = Arrival> + use<> {
        let mut mine = Vec::new();
        for early in [&mut self.early_streams, &mut self.early_datagrams] {
            if early.iter().any(|(of, _)| *of == id) {
                let (taken, others) = std::mem::take(early)
                    .into_iter()
                    .partition::<VecDeque<_>, _>(|(of, _)| *of == id);
                *early = others;
                mine.extend(taken.into_iter().map(|(_, arrival)| arrival));
            }
        }
        mine.into_iter()
    }
}

impl Tunnel {
    fn take(&self, arrival: Arrival) {
        let mut queues = lock(&self.queues);
        if queues.is_closed {
            drop(queues);
            arrival.reject(Code::WT_SESSION_GONE);
            return;
        }
        match arrival {
            Arrival::Bi(send, recv, first) => queues.bi.push_back((send, recv, first)),
            Arrival::Uni(recv, first) => queues.uni.push_back((recv, first)),
            Arrival::Datagram(data) => {
                if queues.datagrams.len() >= MAX_WAITING {
                    queues.datagrams.pop_front();
                }
                queues.datagrams.push_back(data);
            }
        }
        let waiting = std::mem::take(&mut queues.waiting);
        drop(queues);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Nothing more arrives.
    fn close(&self, end: End) {
        let mut queues = lock(&self.queues);
        queues.is_closed = true;
        let bi = std::mem::take(&mut queues.bi);
        let uni = std::mem::take(&mut queues.uni);
        let held = std::mem::take(&mut queues.held);
        let waiting = std::mem::take(&mut queues.waiting);
        drop(queues);
        let bi = (bi.into_iter()).map(|(send, recv, first)| Arrival::Bi(send, recv, first));
        let uni = (uni.into_iter()).map(|(recv, first)| Arrival::Uni(recv, first));
        bi.chain(uni)
            .for_each(|arrival| arrival.reject(Code::WT_SESSION_GONE));
        if end == End::Request {
            held.values().for_each(Held::end);
        }
        drop(held);
        waiting.into_iter().for_each(Waker::wake);
        self.closed.notify_waiters();
    }

    /// Makes a half of a stream end with the tunnel. If the tunnel is closed, it ends at once.
    ///
    /// Returns whether the tunnel is open.
    pub(crate) fn hold(&self, id: HalfId, half: Held) -> bool {
        let mut queues = lock(&self.queues);
        if !queues.is_closed {
            queues.held.insert(id, half);
            return true;
        }
        drop(queues);
        half.end();
        false
    }

    /// A half of a stream has ended before the tunnel, or is dropped.
    pub(crate) fn let_go(&self, id: HalfId) {
        let held = lock(&self.queues).held.remove(&id);
        drop(held);
    }

    /// How many halves of streams end with the tunnel.
    pub(crate) fn held(&self) -> usize {
        lock(&self.queues).held.len()
    }

    fn poll<R>(
        &self,
        cx: &Context<'_>,
        take: impl FnOnce(&mut Queues) -> Option<R>,
    ) -> Poll<Option<R>> {
        let mut queues = lock(&self.queues);
        if let Some(taken) = take(&mut queues) {
            return Poll::Ready(Some(taken));
        }
        if queues.is_closed {
            return Poll::Ready(None);
        }
        if !queues
            .waiting
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            queues.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The next bidirectional stream; `None` when the tunnel is closed.
    pub(crate) fn poll_bi(
        &self,
        cx: &Context<'_>,
    ) -> Poll<Option<(SendStream, RecvStream, Bytes)>> {
        self.poll(cx, |queues| queues.bi.pop_front())
    }

    /// The next unidirectional stream; `None` when the tunnel is closed.
    pub(crate) fn poll_uni(&self, cx: &Context<'_>) -> Poll<Option<(RecvStream, Bytes)>> {
        self.poll(cx, |queues| queues.uni.pop_front())
    }

    /// The next datagram; `None` when the tunnel is closed and all are taken.
    pub(crate) fn poll_datagram(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        self.poll(cx, |queues| queues.datagrams.pop_front())
    }

    /// Ready when the tunnel is closed. For one task at a time.
    pub(crate) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll::<()>(cx, |_| None).map(drop)
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.queues).is_closed
    }

    /// Waits until the tunnel is closed. For any number of tasks.
    pub(crate) async fn closed(&self) {
        let notified = self.closed.notified();
        // A notification since then counts, though nothing was waiting.
        if !self.is_closed() {
            notified.await;
        }
    }
}
