//! A worker: one thread, one socket, one endpoint, one timer wheel, and the connections that live
//! on it.
//!
//! ```text
//! a turn    receive    recvmmsg, bounded ─ route ─> connection: one lock a run, wake-ups collected
//!           time out   what the wheel says is due
//!           (wake the applications' tasks; those of this thread run now, so that what they write
//!            leaves with the acknowledgements of what they read)
//!           commands   from applications; few handshakes begin in one turn
//!           transmit   each queued connection: one lock, some bundles, one timer update
//!           flush      sendmmsg
//!           sleep      until the socket is readable, the wheel's next deadline, or the doorbell;
//!                      under bulk data a nap comes first (see `coalescing`)
//! ```
//! The clock is read once a turn. Applications' handles and other workers call in only through
//! `shared`. State common to all workers of an endpoint is in `common`.

mod backoff;
mod calls;
mod coalescing;
mod common;
mod counters;
mod drive;
mod ended;
mod group;
mod held;
mod incoming;
mod let_tasks_run;
mod limits;
mod lock;
mod measured;
mod moving;
mod offer;
mod receive;
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

use common::SocketUse;
pub(crate) use common::{AcceptPlace, Common};
pub use counters::EndpointStats;
pub(crate) use drive::{mark_task, spawn, spawn_for};
pub(crate) use ended::endpoint_closed;
pub use ended::{WorkerEnd, WorkerEndReason};
pub(crate) use group::SocketGroup;
pub(crate) use held::SendEnd;
pub(crate) use lock::lock;
pub(crate) use offer::{HeldRun, Offer};
pub(crate) use shared::{Command, ConnectionShared, Handle, Place, Shared};
pub(crate) use start::Start;
pub(crate) use state::{Line, State};
pub(crate) use waiters::Ticket;

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use squall_core::{CloseReason, Closing, ConnectionHandle, EndpointCounts, Stage, Stages, Time};
use squall_udp::SendBatch;
use squall_wire::Path;

use backoff::ReceiveBackoff;
use calls::Calls;
use coalescing::Coalescing;
use incoming::Held;
use limits::OwnMemory;
use moving::Moving;
use report::Reports;
use shared::Inbox;
use timer_wheel::TimerWheel;
use to_wake::ToWake;
use together::Together;

use crate::socket::{Readable, Socket};
use crate::takeover::Runs;

/// Bytes of one message: the largest GRO bundle.
const MESSAGE_BYTES: usize = 65_536;
/// Messages of one flush: most of them are small, for a full flush holds `SEND_BYTES`.
const SEND_MESSAGES: usize = 32;
/// Bytes sealed before they are flushed, so that the kernel copies them out of the level-2 cache.
const SEND_BYTES: usize = 4 * MESSAGE_BYTES;
const _: () = assert!(SEND_BYTES >= MESSAGE_BYTES);

/// Most handshakes that a worker begins in one turn. Each takes it some 80 µs, and each brings
/// packets that later turns have to receive (decision 49). While answers wait in the socket, a
/// client begins one.
const STARTS: usize = 8;

/// Other connections alone delay a timer by less than this.
const LATE: Duration = Duration::from_millis(10);

/// A worker's own state. Only `shared` and the connections' states are seen by other threads.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// All workers of the endpoint, by index.
    workers: Arc<[Arc<Shared>]>,
    socket: Arc<Socket>,
    /// The same socket, registered with the runtime, if it is new: the loop takes it.
    rebound: Option<Readable>,
    /// Counts the sockets that were replaced.
    replaced: u32,
    endpoint: squall_core::Endpoint,
    /// By handle: small and dense. `None` where only the ids of an ended connection are left.
    connections: Vec<Option<Arc<ConnectionShared>>>,
    /// By handle: what is left of connections that this end has closed.
    closed: HashMap<usize, Closing>,
    count: usize,
    wheel: TimerWheel,
    send: SendBatch,
    /// How much several connections send to one address.
    together: Together,
    /// Connections with something to send, in turn; `queued` is set in each.
    ready: VecDeque<Arc<ConnectionShared>>,
    inbox: Inbox,
    /// Commands that begin handshakes, and those that must not overtake them.
    starts: VecDeque<Command>,
    forwarded: Vec<HeldRun>,
    /// Runs for the processes that had the port before, until the end of the call that routes them.
    for_predecessors: Runs,
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
    /// When to try again while receiving fails.
    backoff: ReceiveBackoff,
    /// Naps between receive calls.
    coalescing: Coalescing,
    memory: OwnMemory,
    /// The endpoint's counts when last published.
    published: EndpointCounts,
    /// Unknown send errors that a warning has covered.
    warned_of: u64,
    /// Client connections that an application has moved to an address of its choice.
    pinned: HashSet<usize>,
    /// Client connections on which nothing has arrived yet. Those that have received something are
    /// removed once there are `first_flights_kept`.
    first_flights: HashSet<usize>,
    first_flights_kept: usize,
    /// Why the worker ends, for its connections. Empty: it panicked, or its runtime has shut down.
    end: String,
    /// Whether another process reads the socket.
    stopped_reading: bool,
    /// The receive call did not empty the socket.
    more_to_receive: bool,
    /// Connections whose timers wait until the socket is empty, and until when at most.
    put_off: VecDeque<(Time, usize)>,
    /// Connections that are still to move to the socket.
    moving: Moving,
    /// Whether new connections are refused.
    closing: bool,
    detached: bool,
    // The last field, and so dropped after the socket.
    _socket_use: SocketUse,
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
        let socket_use = SocketUse::new(&shared.common);
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
            replaced: 0,
            endpoint,
            connections: Vec::new(),
            count: 0,
            wheel: TimerWheel::new(now),
            send: SendBatch::packed(SEND_MESSAGES, MESSAGE_BYTES, SEND_BYTES),
            together: Together::default(),
            ready: VecDeque::new(),
            inbox: Inbox::with_room(),
            starts: VecDeque::new(),
            forwarded: Vec::new(),
            for_predecessors: Runs::default(),
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
            first_flights: HashSet::new(),
            first_flights_kept: 0,
            closed: HashMap::new(),
            end: String::new(),
            stopped_reading: false,
            more_to_receive: false,
            put_off: VecDeque::new(),
            moving: Moving::default(),
            closing: false,
            detached: false,
            _socket_use: socket_use,
        }
    }

    // ---- time out ------------------------------------------------------------------------------

    /// Whether a timer is so late that something, such as a blocking task, kept the worker from its
    /// turn. The runtime may not have polled the socket since.
    fn is_late(&self) -> bool {
        (self.wheel.next()).is_some_and(|due| self.now - due > LATE)
    }

    /// Runs the timers of every connection whose deadline has passed.
    fn time_out(&mut self, stages: &mut Stages) {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.expire(self.now, &mut due);
        // Once the socket is empty, those that still wait are due. One that has been put off for
        // the longest allowed time is in the wheel.
        while let Some((until, index)) = self.put_off.front().copied()
            && (until <= self.now || !self.more_to_receive)
        {
            self.put_off.pop_front();
            if until > self.now && matches!(self.connections.get(index), Some(Some(_))) {
                due.push(index);
            }
        }
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
                if self.more_to_receive {
                    let until = state.core.on_timeout_while_unread(self.now);
                    self.put_off.extend(until.map(|until| (until, index)));
                } else {
                    state.core.on_timeout(self.now);
                }
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

    /// Takes the commands that applications put into the inbox. Handshakes not begun in this turn
    /// keep their order.
    fn take_inbox(&mut self, stages: &mut Stages) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.shared.take_inbox(&mut inbox);
        self.ready.extend(inbox.ready.drain(..));
        if !inbox.commands.is_empty() || !self.starts.is_empty() {
            stages.mark(Stage::Runtime);
            for command in inbox.commands.drain(..) {
                match command {
                    Command::Connect { .. } | Command::Accept { .. } | Command::Detach => {
                        self.starts.push_back(command);
                    }
                    command => self.execute(command, stages),
                }
            }
            for _ in 0..STARTS {
                let Some(command) = self.starts.pop_front() else {
                    break;
                };
                let begins = matches!(command, Command::Connect { .. });
                self.execute(command, stages);
                if begins && self.more_to_receive {
                    break;
                }
            }
            if self.starts.is_empty() {
                self.shared.commands_done();
            }
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
                if reply.is_closed() {
                    // The caller no longer waits for the connection.
                    return;
                }
                let path = Path {
                    remote,
                    local: None,
                };
                let result = if self.closing {
                    Err(endpoint_closed())
                } else {
                    match self.endpoint.connect(self.now, config, path, &server_name) {
                        Ok((handle, core)) => {
                            self.note_first_flight(handle);
                            Ok(Handle(self.insert(handle, core)))
                        }
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
            #[cfg(target_os = "linux")]
            Command::StopReading(stopped) => {
                self.stopped_reading = true;
                self.more_to_receive = false;
                // Datagrams that this worker does not recognise may belong to another process.
                self.endpoint.set_predecessor(true);
                // If the caller no longer waits, its next command is `ReadAgain`.
                let _ = stopped.send(());
            }
            #[cfg(target_os = "linux")]
            Command::ReadAgain => {
                self.stopped_reading = false;
                let links = self.shared.common.links(self.shared.index);
                self.endpoint.set_predecessor(!links.is_empty());
            }
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
        state.moved_to = self.replaced;
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

    /// Continues with another socket. Data not sent through the old one is lost, as if in transit.
    fn rebind(&mut self, readable: Readable) {
        self.socket = Arc::clone(readable.get_ref());
        self.shared.set_socket(Arc::clone(&self.socket));
        self.rebound = Some(readable);
        self.blocked = false;
        self.trust_room();
        self.backoff.on_success();
        self.warned_of = 0;
        self.replaced += 1;
        self.moving.begin(self.now, self.connections.len());
    }

    /// Refuses attempts that were not taken, and all new ones.
    fn let_nobody_in(&mut self) {
        self.closing = true;
        for offer in self.shared.common.close_accept(self.shared.index) {
            self.refuse(offer);
        }
    }

    /// Wakes the tasks collected during the turn; returns whether some of them run on the worker's
    /// runtime.
    fn wake_tasks(&mut self) -> bool {
        let (direct, all) = self.to_wake.wake();
        self.shared.counters.wakeups.add(all as u64);
        direct > 0
    }

    /// Whether the worker has nothing left to do and may end.
    fn is_done(&self) -> bool {
        self.detached
            && self.starts.is_empty()
            && self.count == 0
            && self.ready.is_empty()
            && self.send.is_empty()
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
            // A connection whose code has panicked may do so again.
            let core = AssertUnwindSafe(|| state.core.cut_off(self.now, reason.clone()));
            let _ = catch_unwind(core);
            state.on_closed(reason.clone(), &mut self.to_wake.direct);
            // Those that were closed before may still wait to be sent.
            state.wake(Line::Delivery, &mut self.to_wake.direct);
        }
        if let Some(all) = &self.shared.common.memory {
            self.memory.withdraw(all);
        }
        self.shared.die();
        self.to_wake.wake();
        self.report();
        if cut_off {
            // The task that reports other ends runs there too, and is gone.
            self.shared.on_end(WorkerEnd {
                worker: self.shared.index,
                reason: WorkerEndReason::RuntimeShutDown,
                connections: self.count as u64,
            });
        }
    }
}

#[cfg(test)]
impl Worker {
    /// A worker whose clock the test sets.
    fn for_tests() -> Self {
        let shared = Arc::new(Shared::for_tests());
        let socket = lock(&shared.common.sockets)
            .sockets()
            .next()
            .cloned()
            .unwrap();
        let config = squall_core::EndpointConfig::new([0; 32]);
        let endpoint = squall_core::Endpoint::new(config, None, [0; 32]);
        shared.common.on_worker_start();
        let (to_wake, workers) = (ToWake::default(), Arc::from([Arc::clone(&shared)]));
        Self::new(shared, workers, socket, endpoint, to_wake)
    }
}

#[cfg(test)]
mod tests {
    use squall_core::{EndpointConfig, Route};
    use squall_wire::{DatagramBatch, Ecn};

    use super::*;

    #[test]
    fn a_worker_that_ends_in_mid_turn_also_wakes_tasks_of_other_runtimes() {
        struct Task;

        impl std::task::Wake for Task {
            fn wake(self: Arc<Self>) {}
        }

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let relay = Arc::new(relay::Relay::new(runtime.handle().id()));
        let (mut worker, task) = (Worker::for_tests(), Arc::new(Task));
        worker.to_wake.direct.push(Arc::clone(&task).into());
        worker.to_wake.sort(0, &relay);
        drop(worker);
        // The relay has it now.
        assert_eq!(Arc::strong_count(&task), 2);
    }

    #[cfg(feature = "self-signed")]
    #[test]
    fn a_draining_connection_keeps_its_ids() {
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

        let (mut worker, mut stages) = (Worker::for_tests(), Stages::off());
        let config = squall_core::ClientConfig::new(client);
        let connected = (worker.endpoint).connect(worker.now, config, path, "localhost");
        let (handle, core) = connected.unwrap();
        let connection = Arc::downgrade(&worker.insert(handle, core));
        worker.transmit(&mut stages).unwrap();
        let mut datagram = [0; 2048];
        let (len, remote) = socket.recv_from(&mut datagram).unwrap();
        let run = peer.route(worker.now, Path { remote, local }, &datagram[..len], 2048);
        let Route::Respond(refusal) = run.to else {
            panic!("the peer accepts no connections: {:?}", run.to);
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
    fn a_client_starts_fewer_connections_while_answers_are_unread() {
        let identity = crate::tls::Identity::self_signed(["localhost"]).unwrap();
        let client = crate::tls::client(identity.roots().unwrap(), &[]).unwrap();
        let (mut worker, mut stages) = (Worker::for_tests(), Stages::off());
        let mut replies = Vec::new();
        for _ in 0..4 * STARTS {
            let (reply, answer) = tokio::sync::oneshot::channel();
            worker.starts.push_back(Command::Connect {
                config: squall_core::ClientConfig::new(client.clone()),
                remote: ([127, 0, 0, 1], 9).into(),
                server_name: "localhost".to_owned(),
                reply,
            });
            replies.push(answer);
        }
        for (more_to_receive, begun) in [(false, STARTS), (true, 1), (true, 1), (false, STARTS)] {
            worker.more_to_receive = more_to_receive;
            let before = worker.count;
            worker.take_inbox(&mut stages);
            assert_eq!(worker.count - before, begun);
        }
    }

    /// Acknowledgements wait for three more receive calls, a handshake and data for one.
    #[cfg(feature = "self-signed")]
    #[test]
    fn only_acknowledgements_wait_for_long() {
        let identity = crate::tls::Identity::self_signed(["localhost"]).unwrap();
        let client = crate::tls::client(identity.roots().unwrap(), &[]).unwrap();
        let (mut worker, path) = (
            Worker::for_tests(),
            Path {
                remote: ([127, 0, 0, 1], 9).into(),
                local: None,
            },
        );
        let waits = |worker: &Worker| (0..).take_while(|n| worker.waits_to_send(*n)).count();
        assert_eq!(waits(&worker), 0, "the socket is empty");
        worker.more_to_receive = true;
        assert_eq!(waits(&worker), 3);
        let config = squall_core::ClientConfig::new(client);
        let connected = (worker.endpoint).connect(worker.now, config, path, "localhost");
        let (handle, core) = connected.unwrap();
        let connection = worker.insert(handle, core);
        assert_eq!((worker.ready.len(), waits(&worker)), (1, 1), "a handshake");
        let now = worker.now;
        connection.lock().core.close(now, 0, b"");
        assert_eq!(
            waits(&worker),
            1,
            "something to send that is no acknowledgement"
        );
        for _ in 0..40 {
            worker.ready.push_back(Arc::clone(&connection));
        }
        assert_eq!(waits(&worker), 0, "many connections");
    }

    #[test]
    fn a_full_socket_is_retried_in_every_turn() {
        let (mut worker, mut stages) = (Worker::for_tests(), Stages::off());
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
