//! A connection's state under its lock: the core's connection, and the tasks that wait for
//! something on it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use bytes::Bytes;
use squall_core::{Accepted, ChunkPool, CloseReason, Event, Time};
use squall_wire::{Direction, Path, StreamId};

use super::held::{HeldStreams, SendEnd, StreamWaiters, release};
use super::measured::Measured;
use super::relay::Relay;
use super::waiters::{Ticket, Waiters, replace};

/// What tasks wait for on the connection as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line {
    /// The handshake, the answer to early data, or the end.
    Lifetime,
    /// The delivery of all that was finished, and then of the CONNECTION_CLOSE to the system.
    Delivery,
    /// The outcome of a move to another path.
    Move,
    /// Streams that the peer allows to be opened.
    OpenBidi,
    OpenUni,
    /// Streams that the peer has opened.
    AcceptBidi,
    AcceptUni,
    /// A datagram to read.
    DatagramRead,
    /// Room to send a datagram.
    DatagramWrite,
}

impl Line {
    const COUNT: usize = Self::DatagramWrite as usize + 1;

    const fn opening(direction: Direction) -> Self {
        match direction {
            Direction::Bidirectional => Self::OpenBidi,
            Direction::Unidirectional => Self::OpenUni,
        }
    }

    const fn accepting(direction: Direction) -> Self {
        match direction {
            Direction::Bidirectional => Self::AcceptBidi,
            Direction::Unidirectional => Self::AcceptUni,
        }
    }
}

/// How many halves this end has of its own streams, and of the peer's that it has accepted.
const fn halves(direction: Direction) -> u32 {
    match direction {
        Direction::Bidirectional => 2,
        Direction::Unidirectional => 1,
    }
}

/// The state under the lock. What each turn needs comes first.
#[repr(C)]
pub(crate) struct State {
    /// Queued for transmission, by the application or the worker.
    pub(crate) queued: bool,
    /// The last round of transmission ended with something left to send: the congestion window or
    /// the pacer holds it back, and nothing that an application does can change that. Only an
    /// acknowledgement or a timer can.
    pub(crate) stalled: bool,
    /// The worker has let go of the connection.
    pub(crate) removed: bool,
    pub(crate) connected: bool,
    /// Whether a stream that a dropped handle reset has been logged.
    pub(crate) has_warned_of_drop: bool,
    /// What the handshake negotiates is known.
    pub(crate) handshake_data: bool,
    /// Whether a task waits for that.
    pub(crate) handshake_data_awaited: bool,
    /// Whether the server accepted a client's early data; `None`: not known yet.
    pub(crate) early_data: Option<bool>,
    /// The worker's socket that it has moved to, as the number of sockets replaced before.
    pub(super) moved_to: u32,
    /// The time that the connection takes, if it is or was measured.
    pub(super) measured: Option<Box<Measured>>,
    /// The relay that wakes waiting tasks, if the last to wait is on a multi-thread runtime.
    pub(super) relay: Option<Arc<Relay>>,
    /// Wakers that are no longer needed, see [`Locked`].
    discarded: Vec<Waker>,
    streams: HeldStreams,
    pub(crate) core: squall_core::Connection,
    pub(crate) closed: Option<CloseReason>,
    /// The tasks that wait for something on the whole connection, by [`Line`].
    lines: [Waiters; Line::COUNT],
    /// The outcome of the last move to another path.
    pub(crate) moved: Option<(Path, bool)>,
    /// Bytes of memory that the worker has counted for the connection.
    pub(crate) memory: usize,
    /// The connection's number in the endpoint, for events; 0 if there are no subscribers.
    pub(super) number: u64,
    /// When it began, for events.
    pub(super) begun: Time,
}

/// Access to a connection's state. When it ends, the lock is released, and only then are the wakers
/// dropped that are no longer needed: the drop of a waker runs code of the application's, which may
/// hold the last handle to this very connection and so take the lock again.
pub(crate) struct Locked<'a> {
    // Fields are dropped in this order.
    state: MutexGuard<'a, State>,
    /// Seldom any: a list by value would be dropped by a call, each time.
    discarded: Option<Box<[Waker]>>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(state: MutexGuard<'a, State>) -> Self {
        let discarded = None;
        Self { state, discarded }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.state.discarded.is_empty() {
            self.discarded = Some(std::mem::take(&mut self.state.discarded).into_boxed_slice());
        }
    }
}

impl State {
    pub(super) fn new(core: squall_core::Connection) -> Self {
        Self {
            core,
            queued: false,
            stalled: false,
            moved_to: 0,
            memory: 0,
            number: 0,
            begun: Time::ZERO,
            removed: false,
            connected: false,
            has_warned_of_drop: false,
            handshake_data: false,
            handshake_data_awaited: false,
            early_data: None,
            closed: None,
            lines: Default::default(),
            moved: None,
            streams: HeldStreams::default(),
            discarded: Vec::new(),
            measured: None,
            relay: None,
        }
    }

    /// Roughly the bytes of memory that the core's connection and the lists of waiting tasks take.
    pub(super) fn memory_in_use(&self) -> usize {
        self.core.memory() + self.streams.memory()
    }

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

    /// Takes the core's events and collects the tasks to wake: once per stream, however much a run
    /// brought for it.
    pub(crate) fn take_events(&mut self, wakers: &mut Vec<Waker>) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::Connected => {
                    self.connected = true;
                    self.wake(Line::Lifetime, wakers);
                }
                Event::HandshakeData => {
                    self.handshake_data = true;
                    if self.handshake_data_awaited {
                        self.wake(Line::Lifetime, wakers);
                    }
                }
                Event::StreamOpened(direction) => {
                    self.wake(Line::accepting(direction), wakers);
                }
                Event::StreamsAvailable(direction) => {
                    self.wake(Line::opening(direction), wakers);
                }
                Event::Readable(id) => {
                    wakers.extend(self.streams.get_mut(id).and_then(|s| s.reader.take()));
                }
                Event::Writable(id) => {
                    wakers.extend(self.streams.get_mut(id).and_then(|s| s.writer.take()));
                }
                Event::Finished(id) => self.on_send_end(id, SendEnd::Delivered, wakers),
                Event::Stopped(id, code) => self.on_send_end(id, SendEnd::Stopped(code), wakers),
                Event::Migrated(path) => self.on_moved(path, true, wakers),
                Event::MigrationFailed(path) => self.on_moved(path, false, wakers),
                Event::EarlyDataAccepted => self.on_early_data(true, wakers),
                Event::EarlyDataRejected => self.on_early_data(false, wakers),
                Event::DatagramsReadable => self.wake(Line::DatagramRead, wakers),
                Event::DatagramsWritable => self.wake(Line::DatagramWrite, wakers),
                Event::Closed(reason) => self.on_closed(reason, wakers),
                // This version of the core has no other.
                _ => {}
            }
        }
        // Polled rather than driven by an event: a reset also ends delivery, and emits none.
        if !self.core.is_delivering() {
            self.wake(Line::Delivery, wakers);
        }
    }

    fn on_moved(&mut self, path: Path, there: bool, wakers: &mut Vec<Waker>) {
        self.moved = Some((path, there));
        self.wake(Line::Move, wakers);
    }

    fn on_early_data(&mut self, accepted: bool, wakers: &mut Vec<Waker>) {
        self.early_data = Some(accepted);
        self.wake(Line::Lifetime, wakers);
    }

    /// Ready when nothing that was finished still waits for an acknowledgement, or the connection
    /// has ended.
    pub(super) fn poll_delivered(&mut self) -> Poll<()> {
        if self.closed.is_some() || !self.core.is_delivering() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Ready when the worker has let go of the connection: there is nothing more to send.
    pub(super) fn poll_removed(&mut self) -> Poll<()> {
        if self.removed {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn line(&mut self, line: Line) -> &mut Waiters {
        &mut self.lines[line as usize]
    }

    /// Keeps `ticket` in line while `result` is pending, and takes it out when it is ready.
    pub(crate) fn settle<R>(
        &mut self,
        line: Line,
        ticket: &mut Ticket,
        result: Poll<R>,
        waker: &Waker,
    ) -> Poll<R> {
        if result.is_pending() {
            self.note_relay();
            let replaced = self.line(line).register(ticket, waker);
            self.discarded.extend(replaced);
        } else if ticket.is_taken() {
            self.leave(line, ticket);
        }
        result
    }

    /// The holder of `ticket` no longer waits in line.
    pub(crate) fn leave(&mut self, line: Line, ticket: &mut Ticket) {
        let removed = self.line(line).remove(ticket);
        self.discarded.extend(removed);
    }

    /// Moves the wakers of a line into `wakers`.
    pub(crate) fn wake(&mut self, line: Line, wakers: &mut Vec<Waker>) {
        self.line(line).move_into(wakers);
    }

    fn on_send_end(&mut self, id: StreamId, end: SendEnd, wakers: &mut Vec<Waker>) {
        if let Some(stream) = self.streams.get_mut(id) {
            // The first counts: the bytes that a reset leaves reliable may still be delivered.
            stream.send_end.get_or_insert(end);
            wakers.extend(stream.writer.take());
            if let Some(mut line) = stream.ended.take() {
                line.move_into(wakers);
            }
        }
    }

    /// Records the end, once, and wakes all waiting tasks.
    pub(crate) fn on_closed(&mut self, reason: CloseReason, wakers: &mut Vec<Waker>) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(reason);
        for line in &mut self.lines {
            line.move_into(wakers);
        }
        for stream in self.streams.values_mut() {
            stream.move_into(wakers);
        }
    }

    /// Opens a stream of ours when the peer's limit allows.
    pub(crate) fn poll_open(
        &mut self,
        direction: Direction,
    ) -> Poll<Result<StreamId, CloseReason>> {
        if let Some(reason) = &self.closed {
            return Poll::Ready(Err(reason.clone()));
        }
        match self.core.open(direction) {
            Some(id) => {
                // The application holds the stream from now on.
                let waiters = StreamWaiters::new(halves(direction));
                self.streams.insert(id, waiters);
                Poll::Ready(Ok(id))
            }
            None => Poll::Pending,
        }
    }

    /// Takes the next stream that the peer opened. The application then holds both halves, or only
    /// the sending one if the other is read to its end.
    pub(crate) fn poll_accept(
        &mut self,
        direction: Direction,
        pool: &Mutex<ChunkPool>,
    ) -> Poll<Result<Accepted, CloseReason>> {
        // Streams that arrived before the end are still handed out.
        let Some(accepted) = self.read(pool, |core| core.accept_and_read(direction)) else {
            return match &self.closed {
                Some(reason) => Poll::Ready(Err(reason.clone())),
                None => Poll::Pending,
            };
        };
        let mut waiters = StreamWaiters::new(halves(direction));
        waiters.holders -= u32::from(accepted.message.is_some());
        // A peer may stop a stream before we have accepted it: no task was waiting for that event.
        waiters.send_end = accepted.stopped.map(SendEnd::Stopped);
        self.streams.insert(accepted.id, waiters);
        Poll::Ready(Ok(accepted))
    }

    /// One more future waits for the end of a stream that the application holds.
    pub(crate) fn hold_stream(&mut self, id: StreamId) {
        self.waiters(id).holders += 1;
    }

    /// Waits for the end of a stream's sending part, until `end` is ready.
    pub(crate) fn poll_send_end<R>(
        &mut self,
        id: StreamId,
        ticket: &mut Ticket,
        waker: &Waker,
        end: impl FnOnce(Option<SendEnd>, Option<&CloseReason>) -> Poll<R>,
    ) -> Poll<R> {
        let stream = self.streams.get_mut(id);
        let poll = end(
            stream.and_then(|stream| stream.send_end),
            self.closed.as_ref(),
        );
        if poll.is_pending() {
            self.note_relay();
            let line = self.waiters(id).ended.get_or_insert_default();
            let replaced = line.register(ticket, waker);
            self.discarded.extend(replaced);
        }
        poll
    }

    /// Has `waker` woken when the stream has something to read.
    pub(crate) fn await_readable(&mut self, id: StreamId, waker: &Waker) {
        self.note_relay();
        let replaced = replace(&mut self.waiters(id).reader, waker);
        self.discarded.extend(replaced);
    }

    /// Has `waker` woken when the stream has room to write.
    pub(crate) fn await_writable(&mut self, id: StreamId, waker: &Waker) {
        self.note_relay();
        let replaced = replace(&mut self.waiters(id).writer, waker);
        self.discarded.extend(replaced);
    }

    /// A future no longer waits for the end of a stream's sending part.
    pub(crate) fn leave_send_end(&mut self, id: StreamId, ticket: &mut Ticket) {
        let stream = self.streams.get_mut(id);
        if let Some(line) = stream.and_then(|stream| stream.ended.as_mut()) {
            let removed = line.remove(ticket);
            self.discarded.extend(removed);
        }
        self.release_stream(id);
    }

    /// This end has reset the stream. Returns the tasks that wait for its end.
    pub(crate) fn on_reset(&mut self, id: StreamId, wakers: &mut Vec<Waker>) {
        // No event reports it.
        if self.waiters(id).send_end.is_none() {
            self.on_send_end(id, SendEnd::Reset, wakers);
        }
    }

    /// The application lets go of one half of the stream, or no longer waits for its end.
    pub(crate) fn release_stream(&mut self, id: StreamId) {
        release(&mut self.streams, id, &mut self.discarded);
    }

    /// Takes received bytes, and returns finished chunks to the worker's pool. Few of them, or all
    /// if the worker is using the pool right now, are taken back when it next sends or receives.
    pub(crate) fn read<T>(
        &mut self,
        pool: &Mutex<ChunkPool>,
        read: impl FnOnce(&mut squall_core::Connection) -> T,
    ) -> T {
        let result = read(&mut self.core);
        if let Some(spare) = self.core.spare_chunks()
            && !spare.is_small()
            && let Ok(mut chunks) = pool.try_lock()
        {
            chunks.absorb(spare);
        }
        result
    }

    /// Notes the relay of the task that begins to wait.
    pub(crate) fn note_relay(&mut self) {
        Relay::store(&mut self.relay);
    }

    /// The tasks that wait on a stream that the application holds.
    pub(crate) fn waiters(&mut self, id: StreamId) -> &mut StreamWaiters {
        self.streams.get_or_default(id)
    }
}
