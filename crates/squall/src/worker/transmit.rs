//! The second half of a turn: every connection with something to send gets its share, and sealed
//! datagrams go to the system.
//!
//! ```text
//! ready ─> a share of each: bundles into the send buffer ─> its timer, or its end
//!                             └ full: flush ─> sendmmsg ─┬ no room: blocked until there is
//!                                                        └ refused: an address is gone, a warning
//! ```

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use squall_core::{ChunkPool, Closing, ConnectionHandle, Stage, Stages, Time};
use squall_wire::Side;

use super::calls::Calls;
use super::limits::apply_endpoint_events;
use super::lock::lock;
use super::shared::ConnectionShared;
use super::state::Line;
use super::{MESSAGE_BYTES, SEND_MESSAGES, Worker};
use crate::socket::Socket;

/// Bytes that one connection may send before the next one in the queue does: a full bundle.
const SHARE_BYTES: usize = MESSAGE_BYTES;
/// The most messages that it may send: without GSO they are single datagrams.
const SHARE_MESSAGES: usize = SEND_MESSAGES;
/// The least that a visit counts for, in bytes: its lock and its timer take time too.
const LEAST_COST: usize = 1024;
/// Bytes that all connections together send in one turn: receiving must get its share under load
/// too.
const TURN_BYTES: usize = 8 * MESSAGE_BYTES;

/// After this many false reports of room in a row (the socket has room, but refuses the next
/// message for lack of it), the message is given up: then it is not the socket that is full.
const FALSE_ROOM: u32 = 3;
/// The wait between a false report of room and the next request for one.
const ROOM_RECHECK: Duration = Duration::from_millis(1);
/// At least this many client connections begin before those that have received something are
/// removed from the first flights.
const FIRST_FLIGHTS: usize = 64;

/// What a connection has sent in this turn.
#[derive(Default)]
struct Share {
    bytes: usize,
    messages: usize,
}

impl Share {
    fn take(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.messages += 1;
    }

    fn is_used(&self) -> bool {
        self.bytes >= SHARE_BYTES || self.messages >= SHARE_MESSAGES
    }
}

/// How a round of transmission ended.
enum Round {
    /// The connection has nothing more to send now, or ever, if it was removed. `deadline` is when
    /// its timer is due, or when its ids may be forgotten.
    Done {
        removed: bool,
        deadline: Option<Time>,
        closing: Option<Closing>,
    },
    /// The send buffer has to be flushed first.
    Full,
    /// The share is used up.
    ShareUsed,
    /// The connection was already removed.
    Gone,
}

impl Worker {
    /// Lets every queued connection send its share. Afterwards `ready` holds those that have more.
    pub(super) fn transmit(&mut self, stages: &mut Stages) -> std::io::Result<()> {
        if self.blocked {
            // A worker learns of room only while it sleeps, and one that always has something to
            // receive never sleeps.
            self.flush_marked(stages)?;
            if self.blocked {
                return Ok(());
            }
        }
        let shared = Arc::clone(&self.shared);
        let mut chunks = lock(&shared.chunks);
        // Those with more to send go to the end of the queue.
        let mut left = TURN_BYTES;
        while left > 0
            && let Some(connection) = self.ready.pop_front()
        {
            let sent = self.transmit_one(&connection, &mut chunks, stages)?;
            left = left.saturating_sub(sent.max(LEAST_COST));
            if self.blocked {
                break;
            }
        }
        self.flush_marked(stages)
    }

    /// One connection's share: bundles into the send buffer until it has no more to send, then its
    /// timer.
    fn transmit_one(
        &mut self,
        connection: &Arc<ConnectionShared>,
        chunks: &mut ChunkPool,
        stages: &mut Stages,
    ) -> std::io::Result<usize> {
        let mut share = Share::default();
        loop {
            let round = self.fill(connection, &mut share, chunks, stages);
            stages.mark(Stage::Runtime);
            match round {
                Round::Gone => return Ok(share.bytes),
                Round::Done {
                    removed,
                    deadline,
                    closing,
                } => {
                    let handle = connection.handle;
                    self.closed
                        .extend(closing.map(|closing| (handle.0, closing)));
                    self.settle(handle, removed, deadline, stages);
                    return Ok(share.bytes);
                }
                // The buffer is full: never flush with a connection's lock held.
                Round::Full => self.flush_marked(stages)?,
                Round::ShareUsed => {}
            }
            if matches!(round, Round::ShareUsed) || self.blocked {
                // Still `queued`: the rest comes with the next turn.
                self.ready.push_back(Arc::clone(connection));
                return Ok(share.bytes);
            }
        }
    }

    /// One lock: the core writes bundles until it has no more, the buffer is full or the share is
    /// used up.
    fn fill(
        &mut self,
        connection: &Arc<ConnectionShared>,
        share: &mut Share,
        chunks: &mut ChunkPool,
        stages: &mut Stages,
    ) -> Round {
        let segments = self.socket.limits().gso_segments;
        let mut state = connection.lock();
        self.shared.counters.locks.add(1);
        if state.removed {
            return Round::Gone;
        }
        self.move_to_socket(&mut state);
        if let Some(spare) = state.core.spare_chunks() {
            chunks.absorb(spare);
        }
        let before = share.bytes;
        // `None` for a connection that is alone.
        let remote = (self.count > 1).then(|| state.core.path().remote);
        let together = remote.map_or(0, |remote| self.together.rate(self.now, remote));
        state.core.set_rate_together(together);
        let end = state.measure(stages, Stage::Runtime, |state, stages| {
            let end = loop {
                if share.is_used() {
                    break Some(Round::ShareUsed);
                }
                let Some(slot) = self.send.free_slot() else {
                    break Some(Round::Full);
                };
                let Some(transmit) = state.core.transmit(self.now, slot, segments, stages) else {
                    break None;
                };
                share.take(transmit.len);
                if transmit.path.local.is_some() && state.core.side() == Side::Client {
                    self.pinned.insert(connection.handle.0);
                }
                match state.core.lane(&transmit) {
                    Some(lane) => self.send.join(transmit, segments, lane),
                    None => self.send.push(transmit),
                }
            };
            apply_endpoint_events(
                &mut self.endpoint,
                connection.handle,
                &mut state.core,
                self.now,
            );
            self.to_wake.collect(state);
            end
        });
        let sent = share.bytes - before;
        if let Some(remote) = remote.filter(|_| sent > 0) {
            let handle = connection.handle.0;
            self.together.add(self.now, remote, handle, sent);
        }
        self.calls.fill(connection, &mut state, sent);
        self.reports.collect(&mut state);
        let round = end.unwrap_or_else(|| {
            state.queued = false;
            state.stalled = state.core.wants_transmit();
            // A draining connection ignores whatever arrives, and its ids are enough for that; one
            // that this end has closed also needs its last datagram. New connections get the memory
            // while it is still in the cache.
            let closing = state.core.take_closing();
            state.removed = state.core.is_drained() || state.core.is_draining();
            if state.removed {
                connection.end_measuring(&mut state);
                // They are woken after the flush.
                self.to_wake.collect_line(&mut state, Line::Delivery);
            }
            Round::Done {
                removed: state.removed,
                deadline: state.core.next_timeout(),
                closing,
            }
        });
        if self.shared.common.memory.is_some() {
            self.memory.measure(&mut state);
        }
        round
    }

    /// After a round of transmission: the connection's one timer update, or its end.
    fn settle(
        &mut self,
        handle: ConnectionHandle,
        removed: bool,
        deadline: Option<Time>,
        stages: &mut Stages,
    ) {
        if self.wheel.set(handle.0, deadline) {
            self.shared.counters.timer_updates.add(1);
        }
        stages.mark(Stage::Timers);
        if removed
            && self
                .connections
                .get_mut(handle.0)
                .and_then(Option::take)
                .is_some()
        {
            self.pinned.remove(&handle.0);
            self.first_flights.remove(&handle.0);
            if deadline.is_none() {
                self.forget(handle);
            }
        }
    }

    /// Forgets the ids of a removed connection: its handle may be another connection's from now on.
    pub(super) fn forget(&mut self, handle: ConnectionHandle) {
        self.endpoint.remove(handle);
        self.closed.remove(&handle.0);
        self.count -= 1;
        self.shared.counters.connections.set(self.count as u64);
        if self.count == 0 {
            self.shared.common.idle.notify_waiters();
        }
    }

    fn flush_marked(&mut self, stages: &mut Stages) -> std::io::Result<()> {
        if self.send.is_empty() {
            return Ok(());
        }
        let begun = Calls::begin(&self.shared.measured);
        let result = self.flush();
        self.sent(begun);
        stages.mark(Stage::UdpSend);
        result
    }

    /// Sends the contents of the send buffer, since the system reports room.
    pub(super) fn flush_into_room(&mut self, stages: &mut Stages) -> std::io::Result<()> {
        // The attempt shows whether the report is true.
        self.false_room += 1;
        self.ask_for_room_at = self.now + ROOM_RECHECK;
        self.flush_marked(stages)
    }

    /// The last report of room was true, or about another message or socket.
    pub(super) fn trust_room(&mut self) {
        self.false_room = 0;
        self.ask_for_room_at = Time::ZERO;
    }

    /// Sends the contents of the send buffer.
    pub(super) fn flush(&mut self) -> std::io::Result<()> {
        let before = self.send.position();
        match self.socket.send(&mut self.send) {
            Ok(_) => {
                self.blocked = false;
                self.trust_room();
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                self.blocked = true;
                if self.send.position() != before {
                    self.trust_room();
                } else if self.false_room >= FALSE_ROOM {
                    self.socket.give_up_front(&mut self.send, &error);
                    self.trust_room();
                    self.blocked = !self.send.is_empty();
                }
            }
            Err(error) => return Err(error),
        }
        for (path, why) in self.send.take_refused() {
            match path.local {
                Some(source) => self.on_source_refused(source),
                None => self.on_unreachable(path.remote, why),
            }
        }
        self.warn_of_losses();
        Ok(())
    }

    /// The system no longer sends from this address: client connections that an application moved
    /// there let the system choose again.
    fn on_source_refused(&mut self, source: IpAddr) {
        for index in &self.pinned {
            if let Some(Some(connection)) = self.connections.get(*index) {
                let mut state = connection.lock();
                if state.core.on_source_lost(self.now, source)
                    && !std::mem::replace(&mut state.queued, true)
                {
                    self.ready.push_back(Arc::clone(connection));
                }
            }
        }
    }

    /// The system has no route to this address: client connections that have just begun end.
    fn on_unreachable(&mut self, remote: SocketAddr, why: std::io::ErrorKind) {
        self.first_flights.retain(|index| {
            let Some(Some(connection)) = self.connections.get(*index) else {
                return false;
            };
            let mut state = connection.lock();
            if state.core.on_unreachable(self.now, remote, why)
                && !std::mem::replace(&mut state.queued, true)
            {
                self.ready.push_back(Arc::clone(connection));
            }
            state.core.is_first_flight()
        });
    }

    /// A client's connection has begun.
    pub(super) fn note_first_flight(&mut self, handle: ConnectionHandle) {
        if self.first_flights.len() >= self.first_flights_kept {
            self.first_flights.retain(|index| {
                let connection = self.connections.get(*index).and_then(Option::as_ref);
                connection.is_some_and(|c| c.lock().core.is_first_flight())
            });
            self.first_flights_kept = 2 * self.first_flights.len() + FIRST_FLIGHTS;
        }
        self.first_flights.insert(handle.0);
    }

    /// Addresses of this machine have changed: client connections show their servers where they are
    /// now.
    pub(super) fn on_addresses_changed(&mut self) {
        if matches!(*self.socket, Socket::Carrier(_)) {
            // A carrier's addresses are not the machine's.
            return;
        }
        for connection in self.connections.iter().flatten() {
            let mut state = connection.lock();
            state.core.on_addresses_changed();
            if state.core.side() == Side::Client && !std::mem::replace(&mut state.queued, true) {
                self.ready.push_back(Arc::clone(connection));
            }
        }
    }

    /// Warns that the system refuses datagrams for reasons that networks do not have.
    fn warn_of_losses(&mut self) {
        let unknown = self.socket.send_errors_unknown();
        if unknown == self.warned_of || !self.shared.common.send_warnings.admits(self.now) {
            return;
        }
        let lost = unknown.saturating_sub(std::mem::replace(&mut self.warned_of, unknown));
        let (worker, local) = (self.shared.index, self.shared.common.address());
        let errors = self.socket.stats().errors;
        let mut errnos = String::new();
        for count in errors.iter().filter(|count| count.sends > 0) {
            let error = std::io::Error::from_raw_os_error(count.errno);
            let _ = write!(errnos, "{error}: {}; ", count.sends);
        }
        crate::warnings::cannot_send(local, worker, lost, &errnos);
    }
}
