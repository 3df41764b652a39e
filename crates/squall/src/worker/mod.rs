//! A worker: one thread, one socket, one endpoint, one timer wheel, and the connections that live
//! on it.
//!
//! ```text
//! a turn    receive    recvmmsg, bounded ─ route ─> connection: one lock a run, wake-ups collected
//!           time out   what the wheel says is due
//!           (wake the applications' tasks; those of this thread run now, so that what they write
//!            leaves with the acknowledgements of what they read)
//!           transmit   each queued connection: one lock, some bundles, one timer update
//!           flush      sendmmsg
//!           sleep      until the socket is readable, the wheel's next deadline, or the doorbell;
//!                      under bulk data a nap comes first (see `coalescing`)
//! ```
//! The clock is read once a turn. Applications' handles and other workers call in only through
//! `shared` only. What all workers of an endpoint share is in `common`.

mod backoff;
mod calls;
mod coalescing;
mod common;
mod counters;
mod drive;
mod ended;
mod group;
mod incoming;
mod let_tasks_run;
mod limits;
mod lock;
mod measured;
mod offer;
mod relay;
mod report;
mod shared;
mod start;
mod state;
mod timer_wheel;
mod to_wake;
mod together;
mod totals;
mod transmit;
mod waiters;

pub(crate) use common::{AcceptPlace, Common};
pub use counters::EndpointStats;
pub(crate) use drive::{mark_task, spawn, spawn_for};
pub(crate) use ended::endpoint_closed;
pub use ended::{WorkerEnd, WorkerEndReason};
pub(crate) use group::SocketGroup;
pub(crate) use lock::lock;
pub(crate) use offer::Offer;
pub(crate) use shared::{Command, ConnectionShared, Handle, Place, Shared};
pub(crate) use start::Start;
pub(crate) use state::{Line, SendEnd, State, register};
pub(crate) use waiters::Ticket;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use squall_core::{
    CloseReason, Closing, ConnectionHandle, EndpointCounts, Route, Stage, Stages, Time,
};
use squall_udp::{RecvBatch, SendBatch};
use squall_wire::{DatagramBatch, Ecn, Path, Transmit};

use backoff::ReceiveBackoff;
use calls::Calls;
use coalescing::{Coalescing, Patience};
use incoming::Held;
use limits::{OwnMemory, apply_endpoint_events};
use offer::HeldRun;
use report::Reports;
use shared::Inbox;
use timer_wheel::TimerWheel;
use to_wake::ToWake;
use together::Together;

use crate::socket::{Readable, Socket};

/// Bytes of one message: the largest GRO bundle.
const MESSAGE_BYTES: usize = 65_536;
/// Messages of one receive call, at most.
const RECV_MESSAGES: usize = 16;
/// Bytes of one receive call, about: together with the data made from them they fit the level-2
/// cache.
const RECV_BYTES: usize = 2 * MESSAGE_BYTES;
/// Runs of one receive call, about. If each belongs to another connection, the state of all these
/// stays in the level-2 cache from when they receive until they send (decision 48).
const RECV_RUNS: usize = 64;
/// Connections with something to send that do not wait for another receive call.
const WAITING_CONNECTIONS: usize = RECV_RUNS / 2;
/// Messages of one flush: most of them small ones, for a full flush holds `SEND_BYTES`.
const SEND_MESSAGES: usize = 32;
/// Bytes sealed before they are flushed, so that the kernel copies them out of the level-2 cache.
const SEND_BYTES: usize = 4 * MESSAGE_BYTES;
const _: () = assert!(SEND_BYTES >= MESSAGE_BYTES);

/// A worker's own state. Only `shared` and the connections' states are seen by other threads.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// All workers of the endpoint, by index.
    workers: Arc<[Arc<Shared>]>,
    socket: Arc<Socket>,
    /// The same socket, registered with the runtime, if it is new: the loop takes it.
    rebound: Option<Readable>,
    endpoint: squall_core::Endpoint,
    /// By handle: small and dense. Empty where the endpoint has only the ids of one that has ended.
    connections: Vec<Option<Arc<ConnectionShared>>>,
    /// By handle: what is left of connections that this end has closed.
    closed: HashMap<usize, Closing>,
    count: usize,
    wheel: TimerWheel,
    send: SendBatch,
    /// What several connections send to one address.
    together: Together,
    /// Connections with something to send, in turn; `queued` is set in each.
    ready: VecDeque<Arc<ConnectionShared>>,
    inbox: Inbox,
    forwarded: Vec<HeldRun>,
    held: Held,
    to_wake: ToWake,
    /// Events for subscribers.
    reports: Reports,
    /// Shares of system calls.
    calls: Calls,
    due: Vec<usize>,
    now: Time,
    /// The socket's buffer is full: nothing is sealed until it has room.
    blocked: bool,
    /// Consecutive false reports of room, and when to ask for the next.
    false_room: u32,
    ask_for_room_at: Time,
    /// Receiving fails: when to try again.
    backoff: ReceiveBackoff,
    /// Naps between receive calls.
    coalescing: Coalescing,
    memory: OwnMemory,
    /// What the endpoint had counted when it was last published.
    published: EndpointCounts,
    /// Unknown errors of sends that a warning has covered.
    warned_of: u64,
    /// Clients' connections that an application has moved to an address of its choice.
    pinned: HashSet<usize>,
    /// Why the worker ends, for the connections that end with it; empty: it panicked, or its
    /// runtime has shut down.
    end: String,
    /// The receive call did not empty the socket.
    more_to_receive: bool,
    /// No new connections.
    closing: bool,
    detached: bool,
}

impl Worker {
    fn new(
        shared: Arc<Shared>,
        workers: Arc<[Arc<Shared>]>,
        socket: Arc<Socket>,
        mut endpoint: squall_core::Endpoint,
        to_wake: ToWake,
    ) -> Self {
        let now = shared.clock.now();
        let reports = Reports::new(&shared);
        let held = Held::new(shared.common.held_bytes, shared.common.held_bytes_of_one);
        let longest_nap = match shared.on_shared_runtime() {
            true => Duration::ZERO,
            false => shared.common.receive_coalescing,
        };
        let coalescing = Coalescing::new(longest_nap, socket.limits().receive_buffer);
        if reports.is_on() {
            endpoint.observe();
        }
        Self {
            shared,
            workers,
            socket,
            rebound: None,
            endpoint,
            connections: Vec::new(),
            count: 0,
            wheel: TimerWheel::new(now),
            send: SendBatch::packed(SEND_MESSAGES, MESSAGE_BYTES, SEND_BYTES),
            together: Together::default(),
            ready: VecDeque::new(),
            inbox: Inbox::with_room(),
            forwarded: Vec::new(),
            held,
            to_wake,
            reports,
            calls: Calls::default(),
            due: Vec::new(),
            now,
            blocked: false,
            false_room: 0,
            ask_for_room_at: Time::ZERO,
            backoff: ReceiveBackoff::default(),
            coalescing,
            memory: OwnMemory::default(),
            published: EndpointCounts::default(),
            warned_of: 0,
            pinned: HashSet::new(),
            closed: HashMap::new(),
            end: String::new(),
            more_to_receive: false,
            closing: false,
            detached: false,
        }
    }

    // ---- receive -------------------------------------------------------------------------------

    /// Receives what one call brings. Returns whether the socket was found empty.
    fn receive(
        &mut self,
        recv: &mut RecvBatch,
        stages: &mut Stages,
    ) -> Result<bool, WorkerEndReason> {
        self.more_to_receive = false;
        self.learn_memory();
        // One call a turn: timers and senders get their share under a flood too.
        let begun = Calls::begin(&self.shared.measured);
        let received = self.socket.recv(recv);
        self.calls.received(begun, || recv.bytes() as u64);
        stages.mark(Stage::UdpReceive);
        if let Err(error) = received {
            if error.kind() == std::io::ErrorKind::WouldBlock {
                self.backoff.on_success();
                return Ok(true);
            }
            return self.on_receive_error(error).map(|()| false);
        }
        self.backoff.on_success();
        let runs = self.dispatch(recv.iter_mut(), stages);
        if let Some(messages) = (RECV_RUNS * recv.messages()).checked_div(runs) {
            recv.limit_next(messages);
        }
        // What other workers forward has no part in this call.
        self.calls.received(None, || 0);
        self.more_to_receive = !recv.drained();
        Ok(!self.more_to_receive)
    }

    /// Receiving failed, and not because there were no datagrams.
    fn on_receive_error(&mut self, error: std::io::Error) -> Result<(), WorkerEndReason> {
        if self.socket.is_fatal(&error) {
            return Err(WorkerEndReason::Socket(error));
        }
        if self.backoff.on_error(self.now) {
            return Err(WorkerEndReason::Receive(error));
        }
        if self.shared.common.receive_warnings.admits(self.now) {
            let (worker, local) = (self.shared.index, self.shared.common.address());
            crate::warnings::cannot_receive(local, worker, &error);
        }
        Ok(())
    }

    /// Cuts bundles into runs and passes each on to where it belongs. Returns the number of those
    /// that belong to connections.
    ///
    /// A run is passed on when the next one has been routed, so that the memory of the next one's
    /// connection is on its way to the cache while this one is processed.
    fn dispatch<'b>(
        &mut self,
        bundles: impl Iterator<Item = DatagramBatch<'b>>,
        stages: &mut Stages,
    ) -> usize {
        let mut runs = 0;
        let mut waiting: Option<(Route, DatagramBatch<'b>)> = None;
        for mut bundle in bundles {
            while !bundle.bytes.is_empty() {
                // What does not go to a connection can change where the next run belongs.
                if let Some((to, run)) =
                    waiting.take_if(|(to, _)| !matches!(to, Route::Connection(_)))
                {
                    self.pass_on(to, run, stages);
                }
                let (to, run) = self.next_run(&mut bundle);
                if let Route::Connection(handle) = to {
                    runs += 1;
                    self.prefetch(handle.0);
                }
                stages.mark(Stage::FrameParsing);
                if let Some((to, run)) = waiting.replace((to, run)) {
                    self.pass_on(to, run, stages);
                }
            }
        }
        if let Some((to, run)) = waiting {
            self.pass_on(to, run, stages);
        }
        runs
    }

    /// Takes the datagrams that belong together off the front of a bundle.
    fn next_run<'b>(&mut self, bundle: &mut DatagramBatch<'b>) -> (Route, DatagramBatch<'b>) {
        let (path, segment_size) = (bundle.path, bundle.segment_size);
        let mut run = (self.endpoint).route(self.now, path, bundle.bytes, segment_size);
        if let Route::Worker(index) = run.to
            && (self.workers.get(usize::from(index))).is_some_and(|worker| worker.is_dead())
        {
            run = (self.endpoint).route_orphan(self.now, path, bundle.bytes, segment_size);
        }
        let bytes = std::mem::take(&mut bundle.bytes);
        // An empty run would be returned again for ever.
        let (bytes, rest) = bytes.split_at_mut(run.len.clamp(1, bytes.len()));
        bundle.bytes = rest;
        let run_bytes = DatagramBatch {
            path,
            ecn: bundle.ecn,
            segment_size,
            bytes,
        };
        (run.to, run_bytes)
    }

    /// Passes a run on.
    fn pass_on(&mut self, to: Route, run: DatagramBatch<'_>, stages: &mut Stages) {
        if !matches!(to, Route::Connection(_)) {
            self.coalescing.on_other();
        }
        match to {
            Route::Connection(handle) => self.deliver(handle, run, stages),
            Route::Incoming(incoming) => self.on_incoming(incoming, &run),
            Route::Worker(index) => self.forward(index, &run),
            Route::Respond(datagram) => self.respond(run.path, &datagram),
            Route::Discard => self.shared.counters.runs_discarded.add(1),
        }
    }

    /// Asks for the memory of a connection that is next in line. Where there are thousands, none is
    /// in the cache any more when its turn comes.
    fn prefetch(&self, index: usize) {
        if let Some(Some(connection)) = self.connections.get(index) {
            connection.prefetch();
        }
    }

    /// Processes the runs that other workers forwarded.
    fn take_forwarded(&mut self, stages: &mut Stages) {
        let mut runs = std::mem::take(&mut self.forwarded);
        self.shared.take_forwarded(&mut runs);
        self.dispatch(runs.iter_mut().map(HeldRun::batch), stages);
        runs.clear();
        self.forwarded = runs;
    }

    /// Forwards a run to the worker that it belongs to.
    fn forward(&self, index: u8, run: &DatagramBatch<'_>) {
        let taken = (self.workers.get(usize::from(index)))
            .is_some_and(|worker| worker.forward(HeldRun::of(run)));
        let counters = &self.shared.counters;
        let fate = if taken {
            &counters.runs_forwarded
        } else {
            &counters.forwards_dropped
        };
        fate.add(1);
    }

    /// Hands a run to its connection: one lock, one call, one look at its events.
    fn deliver(&mut self, handle: ConnectionHandle, run: DatagramBatch<'_>, stages: &mut Stages) {
        let Some(Some(connection)) = self.connections.get(handle.0) else {
            self.shared.counters.runs_discarded.add(1);
            self.answer_for_closed(handle, &run);
            return;
        };
        let mut state = connection.lock();
        let patience = Patience::of(&state.core, run.segment_size);
        (self.coalescing).on_run(run.bytes.len(), run.segment_size, patience);
        self.calls.deliver(&mut state, run.bytes.len());
        state.measure(stages, Stage::Runtime, |state, stages| {
            {
                let mut chunks = lock(&self.shared.chunks);
                if let Some(spare) = state.core.spare_chunks() {
                    chunks.absorb(spare);
                }
                state.core.swap_chunks(&mut chunks);
                state.core.receive(self.now, run, stages);
                state.core.swap_chunks(&mut chunks);
            }
            apply_endpoint_events(&mut self.endpoint, handle, &mut state.core, self.now);
            self.to_wake.collect(state);
        });
        self.reports.collect(&mut state);
        let enqueue = !std::mem::replace(&mut state.queued, true);
        drop(state);
        if enqueue {
            self.ready.push_back(Arc::clone(connection));
        }
        self.shared.counters.locks.add(1);
        self.shared.counters.runs_received.add(1);
        stages.mark(Stage::Runtime);
    }

    /// Whether so many connections have something to send that another receive call would push
    /// their state out of the caches.
    fn has_many_to_send(&self) -> bool {
        self.ready.len() >= WAITING_CONNECTIONS
    }

    /// Says once more, if that is due, that this end has closed the connection.
    fn answer_for_closed(&mut self, handle: ConnectionHandle, run: &DatagramBatch<'_>) {
        let Some(closing) = self.closed.get_mut(&handle.0) else {
            return;
        };
        let (datagrams, bytes) = (run.count() as u64, run.bytes.len());
        let answer = closing.on_received(run.path.remote, datagrams, bytes);
        if let Some(answer) = answer.map(<[u8]>::to_vec) {
            self.respond(run.path, &answer);
        }
    }

    /// Sends one stateless datagram. If there is no room it is lost, as it might be on the way.
    fn respond(&mut self, path: Path, datagram: &[u8]) {
        self.shared.counters.responses.add(1);
        if self.send.is_full() && !self.blocked {
            let _ = self.flush();
        }
        let Some(slot) = self
            .send
            .free_slot()
            .and_then(|slot| slot.get_mut(..datagram.len()))
        else {
            return;
        };
        slot.copy_from_slice(datagram);
        let segment_size = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
        self.send.push(Transmit {
            path,
            ecn: Ecn::NotEct,
            segment_size,
            len: datagram.len(),
        });
    }

    // ---- time out ------------------------------------------------------------------------------

    /// Runs the timers of every connection whose deadline has passed.
    fn time_out(&mut self, stages: &mut Stages) {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.expire(self.now, &mut due);
        for (at, &index) in due.iter().enumerate() {
            if let Some(&next) = due.get(at + 1) {
                self.prefetch(next);
            }
            let Some(Some(connection)) = self.connections.get(index) else {
                // It was removed while it drained.
                self.forget(ConnectionHandle(index));
                continue;
            };
            let mut state = connection.lock();
            state.measure(stages, Stage::Timers, |state, _| {
                state.core.on_timeout(self.now);
                self.to_wake.collect(state);
            });
            self.reports.collect(&mut state);
            let enqueue = !std::mem::replace(&mut state.queued, true);
            drop(state);
            if enqueue {
                self.ready.push_back(Arc::clone(connection));
            }
            self.shared.counters.locks.add(1);
        }
        due.clear();
        self.due = due;
        stages.mark(Stage::Timers);
    }

    // ---- commands ------------------------------------------------------------------------------

    /// Takes what applications put into the inbox.
    fn take_inbox(&mut self, stages: &mut Stages) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.shared.take_inbox(&mut inbox);
        self.ready.extend(inbox.ready.drain(..));
        if !inbox.commands.is_empty() {
            stages.mark(Stage::Runtime);
            for command in inbox.commands.drain(..) {
                self.execute(command, stages);
            }
            self.shared.commands_done();
        }
        self.inbox = inbox;
    }

    fn execute(&mut self, command: Command, stages: &mut Stages) {
        match command {
            Command::Connect {
                config,
                remote,
                server_name,
                reply,
            } => {
                let path = Path {
                    remote,
                    local: None,
                };
                let result = if self.closing {
                    Err(endpoint_closed())
                } else {
                    match self.endpoint.connect(self.now, config, path, &server_name) {
                        Ok((handle, core)) => Ok(Handle(self.insert(handle, core))),
                        Err(error) => Err(CloseReason::NotStarted(error.to_string())),
                    }
                };
                stages.mark(Stage::Handshake);
                // If the caller no longer waits, the handle is dropped and the connection closes.
                let _ = reply.send(result);
            }
            Command::Accept {
                offer,
                config,
                reply,
            } => {
                let result = self.accept(offer, config, stages);
                let _ = reply.send(result);
            }
            Command::Refuse { offer } => self.refuse(offer),
            Command::Retry { offer } => self.retry(offer),
            Command::Ignore(key) => self.held.forget(&key),
            Command::Close { code, reason } => self.close(code, &reason),
            Command::ShutDown { code, reason } => self.shut_down(code, &reason),
            Command::Rebind(readable) => self.rebind(readable),
            Command::SetServer(server) => self.endpoint.set_server(server),
            Command::Detach => {
                self.detached = true;
                self.let_nobody_in();
            }
        }
    }

    /// Adds a core connection to the worker's and queues it.
    fn insert(
        &mut self,
        handle: ConnectionHandle,
        mut core: squall_core::Connection,
    ) -> Arc<ConnectionShared> {
        if let Some(qlog) = &self.shared.common.qlog {
            let (shared, now) = (Arc::clone(&self.shared), self.now);
            qlog.begin(now, &mut core, move |name, error| {
                shared.on_qlog_error(name, error);
            });
        }
        let connection = Arc::new(ConnectionShared::new(
            handle,
            core,
            Arc::clone(&self.shared),
        ));
        if handle.0 >= self.connections.len() {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        if let Some(slot) = self.connections.get_mut(handle.0) {
            *slot = Some(Arc::clone(&connection));
        }
        self.count += 1;
        self.shared.counters.connections.set(self.count as u64);
        let mut state = connection.lock();
        state.queued = true;
        if self.reports.is_on() {
            let number = self.shared.common.next_connection_number();
            self.reports.begin(self.now, &mut state, number);
        }
        drop(state);
        self.ready.push_back(Arc::clone(&connection));
        connection
    }

    /// Closes all connections and admits no new ones.
    fn close(&mut self, code: u64, reason: &[u8]) {
        self.let_nobody_in();
        for connection in self.connections.iter().flatten() {
            let mut state = connection.lock();
            state.close(self.now, code, reason, &mut self.to_wake.direct);
            if !std::mem::replace(&mut state.queued, true) {
                self.ready.push_back(Arc::clone(connection));
            }
        }
    }

    /// Admits no new connections, and closes each one when its finished streams are delivered.
    fn shut_down(&mut self, code: u64, reason: &Bytes) {
        self.let_nobody_in();
        for connection in self.connections.iter().flatten() {
            let (connection, reason) = (Arc::clone(connection), reason.clone());
            tokio::spawn(async move { connection.shut_down(code, &reason).await });
        }
    }

    /// Goes on with another socket. What was not sent through the old one is lost, as it might be
    /// on the way.
    fn rebind(&mut self, readable: Readable) {
        self.socket = Arc::clone(readable.get_ref());
        self.shared.set_socket(Arc::clone(&self.socket));
        self.rebound = Some(readable);
        self.blocked = false;
        self.trust_room();
        self.backoff.on_success();
        self.warned_of = 0;
        for connection in self.connections.iter().flatten() {
            let mut state = connection.lock();
            let path = Path {
                local: None,
                ..state.core.path()
            };
            // A connection that cannot migrate yet, or is a server's, goes on all the same: its
            // peer sees the new address.
            let _ = state
                .core
                .migrate(self.now, path, squall_core::Move::AtOnce);
            state.core.ping();
            if !std::mem::replace(&mut state.queued, true) {
                self.ready.push_back(Arc::clone(connection));
            }
        }
    }

    /// Refuses attempts that were not taken, and all new ones.
    fn let_nobody_in(&mut self) {
        self.closing = true;
        for offer in self.shared.common.close_accept(self.shared.index) {
            self.refuse(offer);
        }
    }

    /// Wakes the tasks collected during the turn; returns whether some of them run where the worker
    /// does.
    fn wake_tasks(&mut self) -> bool {
        let (direct, all) = self.to_wake.wake();
        self.shared.counters.wakeups.add(all as u64);
        direct > 0
    }

    /// Whether the worker has nothing left to do and may end.
    fn is_done(&self) -> bool {
        self.detached && self.count == 0 && self.ready.is_empty() && self.send.is_empty()
    }
}

impl Drop for Worker {
    /// However the worker ends, regularly or by a panic, no task waits for it for ever.
    fn drop(&mut self) {
        let cut_off = self.end.is_empty() && !std::thread::panicking() && !self.is_done();
        let why = match self.end.as_str() {
            "" if cut_off => "its runtime has shut down",
            "" => "it panicked",
            why => why,
        };
        let reason = CloseReason::Transport {
            code: squall_wire::TransportErrorCode::INTERNAL_ERROR,
            reason: format!("the endpoint's worker has ended: {why}"),
            remote: false,
        };
        for connection in self.connections.iter().flatten() {
            let mut state = connection.lock();
            state.removed = true;
            connection.end_measuring(&mut state);
            self.reports.cut_off(self.now, &mut state, &reason);
            state.on_closed(reason.clone(), &mut self.to_wake.direct);
        }
        if let Some(all) = &self.shared.common.memory {
            self.memory.withdraw(all);
        }
        self.shared.die();
        self.to_wake.wake();
        self.report();
        if cut_off {
            // Who reports other ends is a task there too.
            self.shared.on_end(WorkerEnd {
                worker: self.shared.index,
                reason: WorkerEndReason::RuntimeShutDown,
                connections: self.count as u64,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use squall_core::EndpointConfig;

    use super::*;

    /// A worker whose clock the test sets.
    fn worker() -> Worker {
        let shared = Arc::new(Shared::for_tests());
        let socket = lock(&shared.common.sockets)
            .sockets()
            .next()
            .cloned()
            .unwrap();
        let endpoint = squall_core::Endpoint::new(EndpointConfig::new([0; 32]), None, [0; 32]);
        shared.common.on_worker_start();
        let (to_wake, workers) = (ToWake::default(), Arc::from([Arc::clone(&shared)]));
        Worker::new(shared, workers, socket, endpoint, to_wake)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn ten_minutes_without_receiving_end_a_worker() {
        const ENOKEY: i32 = 126;
        let mut worker = worker();
        let (mut recv, mut stages) = (RecvBatch::new(1, 2048), Stages::off());
        worker.socket.inject_recv_error(ENOKEY);
        let start = worker.now;
        let end = loop {
            match worker.receive(&mut recv, &mut stages) {
                Ok(_) => worker.now = worker.backoff.retry_at().unwrap(),
                Err(end) => break end,
            }
        };
        let WorkerEndReason::Receive(error) = end else {
            panic!("{end}");
        };
        assert_eq!(error.raw_os_error(), Some(ENOKEY));
        let minutes = (worker.now - start).as_secs() / 60;
        assert_eq!(minutes, 10);
        // Any call that works begins anew, though nothing was there.
        worker.socket.inject_recv_error(0);
        assert!(worker.receive(&mut recv, &mut stages).unwrap());
        assert_eq!(worker.backoff.retry_at(), None);
        worker.now += Duration::from_secs(6000);
        worker.socket.inject_recv_error(ENOKEY);
        assert!(!worker.receive(&mut recv, &mut stages).unwrap());
        // A socket that is gone is not waited for.
        worker.socket.inject_recv_error(9);
        let end = worker.receive(&mut recv, &mut stages).unwrap_err();
        assert!(matches!(end, WorkerEndReason::Socket(_)), "{end}");
    }

    #[test]
    fn a_worker_that_ends_in_the_middle_of_a_turn_wakes_the_tasks_of_other_runtimes_too() {
        struct Task;

        impl std::task::Wake for Task {
            fn wake(self: Arc<Self>) {}
        }

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let relay = Arc::new(relay::Relay::new(runtime.handle().id()));
        let (mut worker, task) = (worker(), Arc::new(Task));
        worker.to_wake.direct.push(Arc::clone(&task).into());
        worker.to_wake.sort(0, &relay);
        drop(worker);
        // The relay has it now.
        assert_eq!(Arc::strong_count(&task), 2);
    }

    #[cfg(all(feature = "self-signed", target_os = "linux"))]
    #[test]
    fn a_receive_call_brings_no_more_runs_than_the_cache_holds() {
        const SIZE: usize = 40;
        const DATAGRAMS: usize = 40;
        let (mut worker, mut stages) = (worker(), Stages::off());
        let any = ([127, 0, 0, 1], 0).into();
        let socket = squall_udp::Socket::bind(any, &squall_udp::Options::default()).unwrap();
        let to = |remote| Path {
            remote,
            local: None,
        };
        let identity = crate::tls::Identity::self_signed(["localhost"]).unwrap();
        let client = crate::tls::client(identity.roots().unwrap(), &[]).unwrap();
        for _ in 0..2 {
            let config = squall_core::ClientConfig::new(client.clone());
            let path = to(socket.local_addr().unwrap());
            let (handle, core) = (worker.endpoint)
                .connect(worker.now, config, path, "localhost")
                .unwrap();
            worker.insert(handle, core);
        }
        worker.transmit(&mut stages).unwrap();
        // Their ids, from their Initial packets.
        let (mut ids, mut recv) = (HashSet::new(), RecvBatch::new(4, MESSAGE_BYTES));
        while ids.len() < 2 {
            socket.recv(&mut recv).unwrap();
            for bundle in recv.iter_mut() {
                for hello in bundle.bytes.chunks(bundle.segment_size.into()) {
                    let ours = &hello[6 + usize::from(hello[5])..];
                    ids.insert(ours[1..][..usize::from(ours[0])].to_vec());
                }
            }
        }
        let ids: Vec<Vec<u8>> = ids.into_iter().collect();
        let nobody = vec![vec![0x55; 8], vec![0xaa; 8]];
        let local = worker.socket.local_addr().unwrap();
        let send = |messages: usize, datagrams: usize, ids: &[Vec<u8>]| {
            let mut batch = SendBatch::new(messages, SIZE * DATAGRAMS);
            for _ in 0..messages {
                let slot = batch.free_slot().unwrap();
                for (datagram, id) in slot.chunks_exact_mut(SIZE).zip(ids.iter().cycle()) {
                    // A short header.
                    datagram[0] = 0x40;
                    datagram[1..=id.len()].copy_from_slice(id);
                }
                batch.push(Transmit {
                    path: to(local),
                    ecn: Ecn::NotEct,
                    segment_size: SIZE as u16,
                    len: SIZE * datagrams,
                });
            }
            socket.send(&mut batch).unwrap();
        };
        let mut recv = RecvBatch::within(RECV_MESSAGES, MESSAGE_BYTES, RECV_BYTES);
        let mut receive = |worker: &mut Worker| {
            worker.receive(&mut recv, &mut stages).unwrap();
            recv.messages()
        };
        send(8, DATAGRAMS, &nobody);
        assert_eq!(receive(&mut worker), 8);
        send(8, DATAGRAMS, &ids);
        assert_eq!(
            receive(&mut worker),
            8,
            "what belongs to nobody is no limit"
        );
        send(2, DATAGRAMS, &ids);
        assert_eq!(receive(&mut worker), 1);
        assert_eq!(receive(&mut worker), 1);
        // Messages of a datagram each have no more runs than fit.
        send(16, 1, &ids);
        let calls: Vec<usize> = (0..4).map(|_| receive(&mut worker)).collect();
        assert_eq!(calls, [1, 2, 4, 8]);
    }

    #[cfg(feature = "self-signed")]
    #[test]
    fn a_connection_that_drains_leaves_its_ids_alone() {
        let identity = crate::tls::Identity::self_signed(["localhost"]).unwrap();
        let client = crate::tls::client(identity.roots().unwrap(), &[]).unwrap();
        let server = crate::tls::server(identity, &[]).unwrap();
        let server = Arc::new(squall_core::ServerConfig::new(server));
        let mut config = EndpointConfig::new([1; 32]);
        config.max_connections = 0;
        let mut peer = squall_core::Endpoint::new(config, Some(server), [1; 32]);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (remote, local) = (socket.local_addr().unwrap(), None);
        let path = Path { remote, local };

        let (mut worker, mut stages) = (worker(), Stages::off());
        let config = squall_core::ClientConfig::new(client);
        let connected = (worker.endpoint).connect(worker.now, config, path, "localhost");
        let (handle, core) = connected.unwrap();
        let connection = Arc::downgrade(&worker.insert(handle, core));
        worker.transmit(&mut stages).unwrap();
        let mut datagram = [0; 2048];
        let (len, remote) = socket.recv_from(&mut datagram).unwrap();
        let run = peer.route(worker.now, Path { remote, local }, &datagram[..len], 2048);
        let Route::Respond(refusal) = run.to else {
            panic!("the peer takes nobody: {:?}", run.to);
        };
        // CONNECTION_CLOSE, and the same once more, late.
        for discarded in [0, 1] {
            let mut bytes = refusal.clone();
            let datagrams = DatagramBatch {
                path,
                ecn: Ecn::NotEct,
                segment_size: 2048,
                bytes: &mut bytes,
            };
            worker.dispatch(std::iter::once(datagrams), &mut stages);
            worker.transmit(&mut stages).unwrap();
            assert_eq!(worker.shared.counters.runs_discarded.get(), discarded);
            assert!(connection.upgrade().is_none());
            assert_eq!((worker.count, worker.endpoint.connections()), (1, 1));
        }
        worker.now += Duration::from_secs(10);
        worker.time_out(&mut stages);
        assert_eq!((worker.count, worker.endpoint.connections()), (0, 0));
    }

    #[cfg(feature = "self-signed")]
    #[test]
    fn a_connection_that_was_closed_leaves_its_last_datagram() {
        let identity = crate::tls::Identity::self_signed(["localhost"]).unwrap();
        let client = crate::tls::client(identity.roots().unwrap(), &[]).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let (remote, local) = (socket.local_addr().unwrap(), None);
        let path = Path { remote, local };
        let receive = || {
            let mut datagram = [0; 2048];
            let len = socket.recv(&mut datagram).ok()?;
            Some(datagram[..len].to_vec())
        };

        let (mut worker, mut stages) = (worker(), Stages::off());
        let config = squall_core::ClientConfig::new(client);
        let connected = (worker.endpoint).connect(worker.now, config, path, "localhost");
        let (handle, core) = connected.unwrap();
        let connection = worker.insert(handle, core);
        worker.transmit(&mut stages).unwrap();
        let hello = receive().expect("an Initial packet");
        while receive().is_some() {}
        let weak = Arc::downgrade(&connection);
        drop(connection);
        worker.close(7, b"done");
        worker.transmit(&mut stages).unwrap();
        let close = receive().expect("CONNECTION_CLOSE");
        assert!(weak.upgrade().is_none(), "its state is gone");
        assert_eq!((worker.count, worker.closed.len()), (1, 1));

        // A datagram to the id that the client chose, which stands behind the server's.
        let id_at = 6 + usize::from(hello[5]);
        let id = &hello[id_at + 1..][..usize::from(hello[id_at])];
        let late = [&[0x40], id, &[0; 500]].concat();
        for (answers, from) in [
            (1, path),
            (1, path),
            (0, path),
            (
                0,
                Path {
                    remote: ([127, 0, 0, 2], 9).into(),
                    local,
                },
            ),
        ] {
            let mut bytes = late.clone();
            let segment_size = u16::try_from(late.len()).unwrap();
            let datagrams = DatagramBatch {
                path: from,
                ecn: Ecn::NotEct,
                segment_size,
                bytes: &mut bytes,
            };
            worker.dispatch(std::iter::once(datagrams), &mut stages);
            worker.transmit(&mut stages).unwrap();
            for _ in 0..answers {
                assert!(receive() == Some(close.clone()), "the same datagram again");
            }
        }
        assert!(receive().is_none());
        worker.now += Duration::from_secs(10);
        worker.time_out(&mut stages);
        assert_eq!((worker.count, worker.closed.len()), (0, 0));
        assert_eq!(worker.endpoint.connections(), 0);
    }

    #[test]
    fn a_full_socket_is_tried_again_in_every_turn() {
        let (mut worker, mut stages) = (worker(), Stages::off());
        let remote = worker.socket.local_addr().unwrap();
        let path = Path {
            remote,
            local: None,
        };
        worker.respond(path, b"waits");
        worker.blocked = true;
        worker.transmit(&mut stages).unwrap();
        assert!(worker.send.is_empty() && !worker.blocked);
    }
}
