//! A connection as the worker and the application's handles share it: one mutex, taken once a run received, once a
//! round of transmission and once an application call.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use bytes::Bytes;
use squall_core::{CloseReason, ConnectionHandle, Event, Time};
use squall_wire::{Direction, Path, StreamId};

use super::common::{Waiters, lock};
use super::shared::Shared;

/// How the sending part of a stream came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendEnd {
    /// The peer has acknowledged everything.
    Delivered,
    /// The peer stopped it with this code.
    Stopped(u64),
}

/// Who waits for what on one stream that the application holds.
#[derive(Debug, Default)]
pub(crate) struct StreamWaiters {
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    pub(crate) ended: Option<Waker>,
    pub(crate) send_end: Option<SendEnd>,
    /// Halves that the application holds.
    halves: u8,
}

/// The state under the lock.
pub(crate) struct State {
    pub(crate) core: squall_core::Connection,
    /// In the line for transmission, the application's or the worker's.
    pub(crate) queued: bool,
    /// The last round of transmission ended with something left to send: the congestion window or the pacer holds it
    /// back, and nothing that an application does can change that. An acknowledgement or a timer will.
    pub(crate) stalled: bool,
    /// The worker has let go of the connection.
    pub(crate) removed: bool,
    pub(crate) connected: bool,
    /// Whether the server took a client's early data; `None`: not known yet.
    pub(crate) early_data: Option<bool>,
    pub(crate) closed: Option<CloseReason>,
    /// Who waits for the handshake, the word on early data, or the end.
    pub(crate) lifetime: Waiters,
    /// Who waits until what was finished is delivered.
    pub(crate) delivery: Waiters,
    /// Who waits for the outcome of a move to another path, and how the last one went.
    pub(crate) movers: Waiters,
    pub(crate) moved: Option<(Path, bool)>,
    opening: [Waiters; 2],
    accepting: [Waiters; 2],
    /// Who waits for a datagram, and for room to send one.
    pub(crate) datagram_readers: Waiters,
    pub(crate) datagram_writers: Waiters,
    streams: HashMap<StreamId, StreamWaiters>,
}

/// A connection, shared.
pub(crate) struct ConnectionShared {
    pub(crate) handle: ConnectionHandle,
    pub(crate) worker: Arc<Shared>,
    state: Mutex<State>,
}

/// Replaces the waker in a slot, if it is another.
pub(crate) fn register(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

impl ConnectionShared {
    pub(crate) fn new(
        handle: ConnectionHandle,
        core: squall_core::Connection,
        worker: Arc<Shared>,
    ) -> Self {
        let state = State {
            core,
            queued: false,
            stalled: false,
            removed: false,
            connected: false,
            early_data: None,
            closed: None,
            lifetime: Waiters::default(),
            delivery: Waiters::default(),
            movers: Waiters::default(),
            moved: None,
            opening: Default::default(),
            accepting: Default::default(),
            datagram_readers: Waiters::default(),
            datagram_writers: Waiters::default(),
            streams: HashMap::new(),
        };
        Self {
            handle,
            worker,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs an application's call, and puts the connection in line if the call left something to send. Transmission
    /// is the worker's next turn, so that several calls fill a bundle together.
    pub(crate) fn call<R>(self: &Arc<Self>, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = f(&mut state);
        let enqueue =
            !state.queued && !state.removed && !state.stalled && state.core.wants_transmit();
        state.queued |= enqueue;
        drop(state);
        if enqueue {
            self.worker.enqueue(Arc::clone(self));
        }
        result
    }

    /// Closes the connection as soon as all that was finished is delivered; see [`close`](Self::close).
    pub(crate) async fn shut_down(self: &Arc<Self>, code: u64, reason: &[u8]) {
        poll_fn(|cx| self.lock().poll_delivered(cx.waker())).await;
        self.close(code, reason);
    }

    /// Closes the connection, tells all who wait, and has the worker send the news.
    pub(crate) fn close(self: &Arc<Self>, code: u64, reason: &[u8]) {
        let now = self.worker.clock.now();
        let mut wakers = Vec::new();
        self.act(|state| state.close(now, code, reason, &mut wakers));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// As [`call`](Self::call), for what the worker has to look at in any case: it changed timers, say.
    pub(crate) fn act<R>(self: &Arc<Self>, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = f(&mut state);
        let enqueue = !state.queued && !state.removed;
        state.queued |= enqueue;
        drop(state);
        if enqueue {
            self.worker.enqueue(Arc::clone(self));
        }
        result
    }
}

impl State {
    /// Ends the connection from this side.
    pub(crate) fn close(&mut self, now: Time, code: u64, reason: &[u8], wakers: &mut Vec<Waker>) {
        if self.closed.is_some() {
            return;
        }
        self.core.close(now, code, reason);
        self.take_events(wakers);
        if self.closed.is_none() {
            let reason = Bytes::copy_from_slice(reason);
            self.on_closed(
                CloseReason::Application {
                    code,
                    reason,
                    remote: false,
                },
                wakers,
            );
        }
    }

    /// Takes the core's events and collects who is to be woken: once a stream, whatever a run brought for it.
    pub(crate) fn take_events(&mut self, wakers: &mut Vec<Waker>) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::Connected => {
                    self.connected = true;
                    self.lifetime.move_into(wakers);
                }
                Event::StreamOpened(direction) => {
                    self.accepting[index(direction)].move_into(wakers);
                }
                Event::StreamsAvailable(direction) => {
                    self.opening[index(direction)].move_into(wakers);
                }
                Event::Readable(id) => {
                    wakers.extend(self.streams.get_mut(&id).and_then(|s| s.reader.take()));
                }
                Event::Writable(id) => {
                    wakers.extend(self.streams.get_mut(&id).and_then(|s| s.writer.take()));
                }
                Event::Finished(id) => self.on_send_end(id, SendEnd::Delivered, wakers),
                Event::Stopped(id, code) => self.on_send_end(id, SendEnd::Stopped(code), wakers),
                Event::Migrated(path) => self.on_moved(path, true, wakers),
                Event::MigrationFailed(path) => self.on_moved(path, false, wakers),
                Event::EarlyDataAccepted => self.on_early_data(true, wakers),
                Event::EarlyDataRejected => self.on_early_data(false, wakers),
                Event::DatagramsReadable => self.datagram_readers.move_into(wakers),
                Event::DatagramsWritable => self.datagram_writers.move_into(wakers),
                Event::Closed(reason) => self.on_closed(reason, wakers),
            }
        }
        // Not by an event: a stream may also come to be of no concern by turning into one that is reset.
        if !self.core.is_delivering() {
            self.delivery.move_into(wakers);
        }
    }

    fn on_moved(&mut self, path: Path, there: bool, wakers: &mut Vec<Waker>) {
        self.moved = Some((path, there));
        self.movers.move_into(wakers);
    }

    fn on_early_data(&mut self, accepted: bool, wakers: &mut Vec<Waker>) {
        self.early_data = Some(accepted);
        self.lifetime.move_into(wakers);
    }

    /// Ready when nothing that was finished waits for an acknowledgement, or the connection has ended.
    pub(crate) fn poll_delivered(&mut self, waker: &Waker) -> Poll<()> {
        if self.closed.is_some() || !self.core.is_delivering() {
            return Poll::Ready(());
        }
        self.delivery.register(waker);
        Poll::Pending
    }

    fn on_send_end(&mut self, id: StreamId, end: SendEnd, wakers: &mut Vec<Waker>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.send_end = Some(end);
            wakers.extend(stream.writer.take());
            wakers.extend(stream.ended.take());
        }
    }

    /// Notes the end, once, and wakes everybody.
    pub(crate) fn on_closed(&mut self, reason: CloseReason, wakers: &mut Vec<Waker>) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(reason);
        self.lifetime.move_into(wakers);
        self.delivery.move_into(wakers);
        self.movers.move_into(wakers);
        for waiters in self.opening.iter_mut().chain(&mut self.accepting) {
            waiters.move_into(wakers);
        }
        self.datagram_readers.move_into(wakers);
        self.datagram_writers.move_into(wakers);
        for stream in self.streams.values_mut() {
            wakers.extend(stream.reader.take());
            wakers.extend(stream.writer.take());
            wakers.extend(stream.ended.take());
        }
    }

    /// Opens a stream of ours when the peer's limit allows.
    pub(crate) fn poll_open(
        &mut self,
        direction: Direction,
        waker: &Waker,
    ) -> Poll<Result<StreamId, CloseReason>> {
        if let Some(reason) = &self.closed {
            return Poll::Ready(Err(reason.clone()));
        }
        match self.core.open(direction) {
            Some(id) => Poll::Ready(Ok(self.hold(id, direction))),
            None => {
                self.opening[index(direction)].register(waker);
                Poll::Pending
            }
        }
    }

    /// Takes the next stream that the peer opened.
    pub(crate) fn poll_accept(
        &mut self,
        direction: Direction,
        waker: &Waker,
    ) -> Poll<Result<StreamId, CloseReason>> {
        // What arrived before the end is still handed out.
        if let Some(id) = self.core.accept(direction) {
            self.hold(id, direction);
            // A peer may stop a stream before we have accepted it; its event found nobody to tell. A write of nothing
            // shows it.
            if direction == Direction::Bidirectional
                && let Err(squall_core::WriteError::Stopped(code)) =
                    self.core.write(id, &mut Bytes::new())
            {
                self.waiters(id).send_end = Some(SendEnd::Stopped(code));
            }
            return Poll::Ready(Ok(id));
        }
        if let Some(reason) = &self.closed {
            return Poll::Ready(Err(reason.clone()));
        }
        self.accepting[index(direction)].register(waker);
        Poll::Pending
    }

    /// The application holds the stream from now on.
    fn hold(&mut self, id: StreamId, direction: Direction) -> StreamId {
        let halves = match direction {
            Direction::Bidirectional => 2,
            Direction::Unidirectional => 1,
        };
        self.streams.insert(
            id,
            StreamWaiters {
                halves,
                ..StreamWaiters::default()
            },
        );
        id
    }

    /// The application lets go of one half of the stream.
    pub(crate) fn release_half(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.halves = stream.halves.saturating_sub(1);
            if stream.halves == 0 {
                self.streams.remove(&id);
            }
        }
    }

    /// Who waits on a stream that the application holds.
    pub(crate) fn waiters(&mut self, id: StreamId) -> &mut StreamWaiters {
        self.streams.entry(id).or_default()
    }
}

fn index(direction: Direction) -> usize {
    match direction {
        Direction::Bidirectional => 0,
        Direction::Unidirectional => 1,
    }
}

/// A user's share in a connection. When the last one goes, the connection closes with code 0.
pub(crate) struct Handle(pub(crate) Arc<ConnectionShared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close(0, b"");
    }
}
