//! What belongs to an extended CONNECT request but travels outside of its stream: HTTP datagrams
//! (RFC 9297), and WebTransport streams.
//!
//! ```text
//!   driver ── a stream or a datagram of request N ──> Tunnels ──> Tunnel ── queues ──> its handles
//!                                                        └ early: request N is not known yet
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use squall::{RecvStream, SendStream};

use crate::lock::lock;

/// Streams, and datagrams, that wait for one request, or for requests not known yet. Both can
/// overtake the request on the way.
const MAX_WAITING: usize = 64;

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

/// The requests of a connection that have datagrams or streams of their own.
#[derive(Debug, Default)]
pub(crate) struct Tunnels(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<u64, Arc<Tunnel>>,
    early: VecDeque<(u64, Arrival)>,
    has_ended: bool,
}

/// Arrivals that wait for one request.
#[derive(Debug, Default)]
pub(crate) struct Tunnel(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    bi: VecDeque<(SendStream, RecvStream, Bytes)>,
    uni: VecDeque<(RecvStream, Bytes)>,
    datagrams: VecDeque<Bytes>,
    waiting: Vec<Waker>,
    is_closed: bool,
}

impl Tunnels {
    /// Passes an arrival on to its request. Beyond the limit, the oldest datagrams are dropped, and
    /// streams are dropped with the code that they were given.
    pub(crate) fn route(&self, id: u64, arrival: Arrival) {
        let mut inner = lock(&self.0);
        if let Some(tunnel) = inner.open.get(&id).map(Arc::clone) {
            drop(inner);
            tunnel.take(arrival);
            return;
        }
        let oldest = if inner.early.len() >= MAX_WAITING {
            inner.early.pop_front()
        } else {
            None
        };
        inner.early.push_back((id, arrival));
        drop(inner);
        // Outside of the lock: dropping a stream takes the connection's.
        drop(oldest);
    }
}

impl Tunnels {
    /// Opens the tunnel of the request with this stream id, with anything that has arrived for it.
    pub(crate) fn open(&self, id: u64) -> Arc<Tunnel> {
        let mut inner = lock(&self.0);
        if inner.has_ended {
            let tunnel = Arc::<Tunnel>::default();
            tunnel.close();
            return tunnel;
        }
        let tunnel = Arc::clone(inner.open.entry(id).or_default());
        let (mine, others) = std::mem::take(&mut inner.early)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(of, _)| *of == id);
        inner.early = others;
        drop(inner);
        for (_, arrival) in mine {
            tunnel.take(arrival);
        }
        tunnel
    }

    /// Nothing more arrives for this request, which was cancelled or has failed.
    pub(crate) fn end(&self, id: u64) {
        let tunnel = lock(&self.0).open.remove(&id);
        if let Some(tunnel) = tunnel {
            tunnel.close();
        }
    }

    /// Nothing more arrives for any request: the connection or its driver has ended.
    pub(crate) fn end_all(&self) {
        let mut inner = lock(&self.0);
        inner.has_ended = true;
        let open = std::mem::take(&mut inner.open);
        let early = std::mem::take(&mut inner.early);
        drop(inner);
        open.into_values().for_each(|tunnel| tunnel.close());
        drop(early);
    }

    /// Forgets the tunnel of this request.
    pub(crate) fn forget(&self, id: u64) {
        lock(&self.0).open.remove(&id);
    }
}

impl Tunnel {
    fn take(&self, arrival: Arrival) {
        let mut queues = lock(&self.0);
        let full = |len: usize| len >= MAX_WAITING;
        let rejected = match arrival {
            arrival if queues.is_closed => Some(arrival),
            Arrival::Bi(send, recv, first) if !full(queues.bi.len()) => {
                queues.bi.push_back((send, recv, first));
                None
            }
            Arrival::Uni(recv, first) if !full(queues.uni.len()) => {
                queues.uni.push_back((recv, first));
                None
            }
            Arrival::Datagram(data) => {
                if full(queues.datagrams.len()) {
                    queues.datagrams.pop_front();
                }
                queues.datagrams.push_back(data);
                None
            }
            arrival => Some(arrival),
        };
        let waiting = std::mem::take(&mut queues.waiting);
        drop(queues);
        drop(rejected);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Nothing more arrives.
    pub(crate) fn close(&self) {
        let mut queues = lock(&self.0);
        queues.is_closed = true;
        let streams = (
            std::mem::take(&mut queues.bi),
            std::mem::take(&mut queues.uni),
        );
        let waiting = std::mem::take(&mut queues.waiting);
        drop(queues);
        drop(streams);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn poll<R>(
        &self,
        cx: &Context<'_>,
        take: impl FnOnce(&mut Queues) -> Option<R>,
    ) -> Poll<Option<R>> {
        let mut queues = lock(&self.0);
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

    /// Ready when the tunnel is closed.
    pub(crate) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll::<()>(cx, |_| None).map(drop)
    }
}
