//! The futures of [`Connection`](crate::Connection), as named types, so that a hand-written
//! `poll_…` function can keep one between its calls.
//!
//! Each owns what it needs and borrows nothing. All but [`Closed`] own a handle to the connection,
//! which passes to the stream when it is ready.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use squall_core::{ChunkPool, CloseReason, DatagramError};
use squall_wire::Direction;

use crate::stream::{RecvStream, SendStream};
use crate::worker::{ConnectionShared, Handle, Line, Place, State, Ticket};

/// A handle that waits in one of its connection's lines. Dropping it leaves the line.
struct Waiting {
    /// `None` once the wait is over.
    handle: Option<Arc<Handle>>,
    line: Line,
    ticket: Ticket,
}

impl Waiting {
    fn new(handle: &Arc<Handle>, line: Line) -> Self {
        Self {
            handle: Some(Arc::clone(handle)),
            line,
            ticket: Ticket::default(),
        }
    }

    /// Waits until `poll` is ready; returns the handle as well. Pending for ever after that.
    fn poll<R>(
        &mut self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut State) -> Poll<R>,
    ) -> Poll<(Arc<Handle>, R)> {
        self.poll_with(cx, |state, _| poll(state))
    }

    /// As [`poll`](Self::poll), with the pool of the connection's worker.
    fn poll_with<R>(
        &mut self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut State, &Mutex<ChunkPool>) -> Poll<R>,
    ) -> Poll<(Arc<Handle>, R)> {
        let Some(handle) = self.handle.take() else {
            return Poll::Pending;
        };
        let result = handle.0.call(|state| {
            let result = poll(state, &handle.0.worker.chunks);
            state.settle(self.line, &mut self.ticket, result, cx.waker())
        });
        match result {
            Poll::Ready(result) => Poll::Ready((handle, result)),
            Poll::Pending => {
                self.handle = Some(handle);
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle
            && self.ticket.is_taken()
        {
            let mut state = handle.0.lock();
            state.leave(self.line, &mut self.ticket);
        }
    }
}

/// Generates a future that waits in a line, its `Debug`, and its constructor.
macro_rules! waits {
    ($(#[$doc:meta])* $name:ident, $line:expr) => {
        $(#[$doc])*
        ///
        /// It borrows nothing, and keeps the connection open as long as it waits, like a
        /// [`Connection`](crate::Connection). Dropping it loses nothing. Once it has returned
        /// its result it must not be polled again; it would wait for ever.
        #[must_use = "futures do nothing unless they are awaited"]
        pub struct $name(Waiting);

        impl $name {
            pub(crate) fn new(handle: &Arc<Handle>) -> Self {
                Self(Waiting::new(handle, $line))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

waits! {
    /// Opens a bidirectional stream, see
    /// [`Connection::open_bi`](crate::Connection::open_bi).
    OpenBi, Line::OpenBidi
}
waits! {
    /// Opens a unidirectional stream, see
    /// [`Connection::open_uni`](crate::Connection::open_uni).
    OpenUni, Line::OpenUni
}
waits! {
    /// Waits for a bidirectional stream of the peer, see
    /// [`Connection::accept_bi`](crate::Connection::accept_bi).
    AcceptBi, Line::AcceptBidi
}
waits! {
    /// Waits for a unidirectional stream of the peer, see
    /// [`Connection::accept_uni`](crate::Connection::accept_uni).
    AcceptUni, Line::AcceptUni
}
waits! {
    /// Waits for a datagram, see
    /// [`Connection::read_datagram`](crate::Connection::read_datagram).
    ReadDatagram, Line::DatagramRead
}

impl Future for OpenBi {
    type Output = Result<(SendStream, RecvStream), CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let open = |state: &mut State| state.poll_open(Direction::Bidirectional);
        let (handle, id) = ready!(self.0.poll(cx, open));
        Poll::Ready(id.map(|id| {
            let send = SendStream::new(Arc::clone(&handle), id);
            (send, RecvStream::new(handle, id))
        }))
    }
}

impl Future for OpenUni {
    type Output = Result<SendStream, CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let open = |state: &mut State| state.poll_open(Direction::Unidirectional);
        let (handle, id) = ready!(self.0.poll(cx, open));
        Poll::Ready(id.map(|id| SendStream::new(handle, id)))
    }
}

impl Future for AcceptBi {
    type Output = Result<(SendStream, RecvStream), CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let accept = |state: &mut State, pool: &Mutex<ChunkPool>| {
            state.poll_accept(Direction::Bidirectional, pool)
        };
        let (handle, accepted) = ready!(self.0.poll_with(cx, accept));
        Poll::Ready(accepted.map(|accepted| {
            let send = SendStream::new(Arc::clone(&handle), accepted.id);
            (send, RecvStream::accepted(handle, accepted))
        }))
    }
}

impl Future for AcceptUni {
    type Output = Result<RecvStream, CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let accept = |state: &mut State, pool: &Mutex<ChunkPool>| {
            state.poll_accept(Direction::Unidirectional, pool)
        };
        let (handle, accepted) = ready!(self.0.poll_with(cx, accept));
        Poll::Ready(accepted.map(|accepted| RecvStream::accepted(handle, accepted)))
    }
}

impl Future for ReadDatagram {
    type Output = Result<Bytes, CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let read = |state: &mut State, pool: &Mutex<ChunkPool>| {
            let data = state.read(pool, squall_core::Connection::read_datagram);
            match (data, &state.closed) {
                (Some(data), _) => Poll::Ready(Ok(data)),
                (None, Some(reason)) => Poll::Ready(Err(reason.clone())),
                (None, None) => Poll::Pending,
            }
        };
        let (_, result) = ready!(self.0.poll_with(cx, read));
        Poll::Ready(result)
    }
}

/// Sends a datagram, see
/// [`Connection::send_datagram_wait`](crate::Connection::send_datagram_wait).
///
/// It borrows nothing, and keeps the connection open as long as it waits, like a
/// [`Connection`](crate::Connection). Dropped while it waits, it sends nothing. Once it has
/// returned its result it must not be polled again; it would wait for ever.
#[must_use = "futures do nothing unless they are awaited"]
pub struct SendDatagram {
    waiting: Waiting,
    data: Bytes,
}

impl SendDatagram {
    pub(crate) fn new(handle: &Arc<Handle>, data: Bytes) -> Self {
        let waiting = Waiting::new(handle, Line::DatagramWrite);
        Self { waiting, data }
    }
}

impl Future for SendDatagram {
    type Output = Result<(), DatagramError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { waiting, data } = &mut *self;
        let send = |state: &mut State| match state.core.send_datagram(data.clone()) {
            Err(DatagramError::Blocked) => Poll::Pending,
            result => Poll::Ready(result),
        };
        let (_, result) = ready!(waiting.poll(cx, send));
        Poll::Ready(result)
    }
}

impl std::fmt::Debug for SendDatagram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendDatagram")
            .field("bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

/// Waits for the end of a connection, see [`Connection::closed`](crate::Connection::closed).
///
/// Unlike the other futures of a connection, it does not keep the connection open: it can watch
/// from another task, and is also ready once the last handle is dropped. Dropping it stops waiting
/// and changes nothing. Polled again, it returns the reason again.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Closed(Place<Arc<ConnectionShared>>);

impl Closed {
    pub(crate) fn new(connection: &Arc<ConnectionShared>) -> Self {
        Self(Place::new(Arc::clone(connection), Line::Lifetime))
    }
}

impl Future for Closed {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        self.0.poll(cx, |state| match &state.closed {
            Some(reason) => Poll::Ready(reason.clone()),
            None => Poll::Pending,
        })
    }
}

impl std::fmt::Debug for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closed").finish_non_exhaustive()
    }
}
