//! What a worker shares with the handles of applications and with other workers: an inbox and a
//! doorbell, and each connection under a lock of its own. The two refer to each other: a connection
//! knows its worker, and the inbox holds connections.
//!
//! ```text
//! application call ── changed a connection ──> inbox.ready ─┐
//! connect, accept, close ───────────────────> inbox.commands┤── doorbell if asleep ─> its turn
//! another worker ── has datagrams of ours ──> inbox.forwarded┘
//! ```
//! A worker that is awake looks into the inbox before it sleeps, so ringing then would be a wasted
//! system call. No ring gets lost: the caller fills the inbox, then checks whether the worker
//! sleeps; the worker marks itself asleep, then checks the inbox. Both go through the inbox's lock,
//! so one of them sees the other.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;
use std::time::Duration;

use bytes::Bytes;
use squall_core::{
    ChunkPool, ClientConfig, CloseReason, ConnectionHandle, EndpointCounts, ServerConfig, Stages,
    prefetch_memory,
};
use tokio::sync::oneshot;

use super::common::{Clock, Common};
use super::counters::{EndpointStats, WorkerCounters};
use super::ended::WorkerEnd;
#[cfg(test)]
use super::group::SocketGroup;
use super::lock::lock;
use super::measured::MeasuredCount;
use super::offer::{AttemptKey, HeldRun, Offer};
use super::relay::{Bell, Relay};
use super::state::{Line, Locked, State};
use super::waiters::{Ticket, replace};
use crate::events::{Report, WorkerEnded};
use crate::socket::{self, Readable, Socket};

/// Bytes of forwarded datagrams that wait for their worker's turn.
const MAX_FORWARDED: usize = 4 * 1024 * 1024;

/// The channel for the answer to `connect` and `accept`.
pub(crate) type Reply = oneshot::Sender<Result<Handle, CloseReason>>;

/// What only the worker can do.
pub(crate) enum Command {
    Connect {
        config: ClientConfig,
        remote: SocketAddr,
        server_name: String,
        reply: Reply,
    },
    Accept {
        offer: Box<Offer>,
        /// `None`: the endpoint's.
        config: Option<Arc<ServerConfig>>,
        reply: Reply,
    },
    Refuse {
        offer: Box<Offer>,
    },
    Retry {
        offer: Box<Offer>,
    },
    /// The application dropped the attempt.
    Ignore(AttemptKey),
    /// Close all connections, and admit no new ones.
    Close {
        code: u64,
        reason: Bytes,
    },
    /// Close each connection when its finished streams are delivered, and admit no new ones.
    ShutDown {
        code: u64,
        reason: Bytes,
    },
    /// Continue with this socket; clients' connections migrate.
    Rebind(Readable),
    /// The configuration for new connections; `None`: no new connections.
    SetServer(Option<Arc<ServerConfig>>),
    /// Leave the socket to another process, and say when that is done.
    #[cfg(target_os = "linux")]
    StopReading(oneshot::Sender<()>),
    /// Read the socket again.
    #[cfg(target_os = "linux")]
    ReadAgain,
    /// The last handle of the endpoint is gone: end with the last connection.
    Detach,
}

/// Work that arrived since the worker's last turn.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Connections with something to send. Each at most once: its `queued` flag is set.
    pub(crate) ready: Vec<Arc<ConnectionShared>>,
    pub(crate) commands: Vec<Command>,
    /// Datagrams of this worker's connections that arrived at another one.
    pub(crate) forwarded: Vec<HeldRun>,
    /// The bytes of `forwarded`.
    forwarded_bytes: usize,
    /// The worker is executing commands that it took from the inbox.
    executing: bool,
    /// The worker does not run: commands would never be read.
    dead: bool,
}

impl Inbox {
    /// With room for the usual load: an inbox and the one that it is swapped with alternate, and it
    /// is chance which of them would grow first.
    pub(crate) fn with_room() -> Self {
        Self {
            ready: Vec::with_capacity(64),
            ..Self::default()
        }
    }
}

/// The worker looks into the inbox before it sleeps.
const AWAKE: u8 = 0;
/// The worker sleeps until its doorbell rings.
const ASLEEP: u8 = 1;
/// The worker sleeps, and a relay is going to ring.
const RELAYED: u8 = 2;
/// The worker sleeps, and its thread naps, outside of the runtime.
const NAPPING: u8 = 3;

/// Sleeping and waking of the worker.
#[derive(Default)]
struct Doorbell {
    /// One of the four states above.
    state: AtomicU8,
    worker: Mutex<Option<Waker>>,
    /// The worker's own thread; `None` if it is a task of the application's runtime.
    thread: Mutex<Option<Thread>>,
    /// How long the thread naps, in nanoseconds, when it has nothing to do.
    nap_ns: AtomicU64,
}

impl Doorbell {
    /// Changes from one state to another; `false` if it was in a different state.
    fn change(&self, from: u8, to: u8) -> bool {
        (self.state)
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// The worker's sockets, kept for their counters.
struct Udp {
    /// The socket in use; `None` once the worker has ended.
    socket: Option<Arc<Socket>>,
    /// The counts of earlier sockets.
    before: squall_udp::Stats,
}

impl Udp {
    fn stats(&self) -> squall_udp::Stats {
        let mut sum = self.before;
        if let Some(socket) = &self.socket {
            sum += socket.stats();
        }
        sum
    }

    fn replace(&mut self, socket: Option<Arc<Socket>>) {
        self.before = self.stats();
        self.socket = socket;
    }
}

/// A worker as other threads see it.
pub(crate) struct Shared {
    /// The worker's index in the endpoint.
    pub(crate) index: usize,
    pub(crate) common: Arc<Common>,
    pub(crate) clock: Clock,
    pub(crate) counters: WorkerCounters,
    /// The counts of the worker's endpoints. Locked at most once a turn.
    pub(crate) unrouted: Mutex<EndpointCounts>,
    /// Time by stage. The worker holds the lock through its turns, never while it sleeps.
    pub(crate) stages: Mutex<Stages>,
    /// How many connections are measured.
    pub(super) measured: MeasuredCount,
    /// Memory for received stream data, lent to the connection that receives.
    pub(crate) chunks: Mutex<ChunkPool>,
    /// Whether stages are timed.
    pub(crate) accounting: bool,
    /// Whether the worker is a task of the application's runtime, without a thread of its own.
    on_runtime: bool,
    /// The runtime of the worker's thread, set at the start.
    runtime: Mutex<Option<tokio::runtime::Handle>>,
    udp: Mutex<Udp>,
    inbox: Mutex<Inbox>,
    /// Whether `inbox.forwarded` may be non-empty: read once a turn, without the lock.
    has_forwarded: AtomicBool,
    /// `inbox.dead`, readable without the lock.
    dead: AtomicBool,
    /// How often the worker has started.
    life: AtomicU32,
    doorbell: Doorbell,
}

impl Shared {
    pub(crate) fn new(
        index: usize,
        common: Arc<Common>,
        socket: Arc<Socket>,
        stages: Stages,
    ) -> Self {
        Self {
            index,
            clock: common.clock,
            counters: WorkerCounters::default(),
            unrouted: Mutex::default(),
            measured: MeasuredCount::default(),
            chunks: Mutex::default(),
            accounting: stages.is_on(),
            on_runtime: common.on_runtime,
            stages: Mutex::new(stages),
            runtime: Mutex::new(None),
            common,
            udp: Mutex::new(Udp {
                socket: Some(socket),
                before: squall_udp::Stats::default(),
            }),
            inbox: Mutex::new(Inbox::with_room()),
            has_forwarded: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            life: AtomicU32::new(0),
            doorbell: Doorbell::default(),
        }
    }

    /// The only worker of an endpoint, with a socket and nothing else.
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let group = SocketGroup::bind(any, &squall_udp::Options::default(), 1).unwrap();
        let socket = Arc::clone(group.sockets().next().unwrap());
        let common = Common::new(&crate::Builder::new(any), None, group, Vec::new());
        Self::new(0, Arc::new(common), socket, Stages::off())
    }

    // ---- from the application ------------------------------------------------------------------

    /// Queues a connection for transmission. Its `queued` flag was clear and is set.
    pub(crate) fn enqueue(self: &Arc<Self>, connection: Arc<ConnectionShared>) {
        let mut inbox = lock(&self.inbox);
        if inbox.dead {
            return;
        }
        inbox.ready.push(connection);
        drop(inbox);
        self.ring_soon();
    }

    /// Sends a command; `false` if the worker has ended and will not execute it.
    pub(crate) fn command(&self, command: Command) -> bool {
        self.command_to(self.life(), command)
    }

    /// Sends a command about something from this life of the worker; `false` if that life is over.
    pub(crate) fn command_to(&self, life: u32, command: Command) -> bool {
        let mut inbox = lock(&self.inbox);
        if inbox.dead || self.life() != life {
            return false;
        }
        inbox.commands.push(command);
        drop(inbox);
        self.ring_now();
        true
    }

    /// Registers a socket with the worker's runtime, for the worker to continue with.
    ///
    /// # Errors
    /// The system refused, or the worker has ended.
    pub(crate) fn watch(&self, socket: Arc<Socket>) -> std::io::Result<Readable> {
        let _entered = self.runtime().enter();
        socket::readable(socket)
    }

    /// Where the worker and its tasks run, or ran: a task spawned too late is cancelled.
    pub(crate) fn runtime(&self) -> tokio::runtime::Handle {
        let runtime = lock(&self.runtime).clone();
        runtime.expect("set before the endpoint is returned")
    }

    /// Has the worker leave its socket to another process. The receiver is notified when that is
    /// done, and fails if the worker has ended.
    #[cfg(target_os = "linux")]
    pub(crate) fn stop_reading(&self) -> oneshot::Receiver<()> {
        let (stopped, receiver) = oneshot::channel();
        self.command(Command::StopReading(stopped));
        receiver
    }

    /// Has the worker read its socket again.
    #[cfg(target_os = "linux")]
    pub(crate) fn read_again(&self) {
        self.command(Command::ReadAgain);
    }

    /// How often the worker has started.
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::Acquire)
    }

    /// Whether the worker does not run.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// The worker's counters.
    pub(crate) fn stats(&self) -> EndpointStats {
        self.counters.read(*lock(&self.unrouted), self.udp_stats())
    }

    /// The counters of the worker's sockets.
    fn udp_stats(&self) -> squall_udp::Stats {
        lock(&self.udp).stats()
    }

    /// Makes the worker's receive calls fail with `errno` until this is called with 0.
    pub(crate) fn inject_recv_error(&self, errno: i32) {
        if let Some(socket) = &lock(&self.udp).socket {
            socket.inject_recv_error(errno);
        }
    }

    /// Makes the worker's next send call fail once with `errno`.
    pub(crate) fn inject_send_error(&self, errno: i32) {
        if let Some(socket) = &lock(&self.udp).socket {
            socket.inject_send_error(errno);
        }
    }

    /// Wakes the worker once the caller's runtime has run the tasks that are ready there.
    fn ring_soon(self: &Arc<Self>) {
        let state = &self.doorbell.state;
        match state.load(Ordering::SeqCst) {
            AWAKE | RELAYED => {}
            // A relay would not know how much longer the nap takes.
            NAPPING => self.ring_now(),
            // The worker is a task, on a runtime that has its own way to wake it.
            _ if self.on_runtime => self.ring_now(),
            _ => {
                let asleep =
                    state.compare_exchange(ASLEEP, RELAYED, Ordering::SeqCst, Ordering::SeqCst);
                let relayed = asleep.is_ok() && Relay::ring(Arc::clone(self) as Arc<dyn Bell>);
                // A nap may have begun meanwhile.
                if !relayed && asleep != Err(RELAYED) {
                    self.ring_now();
                }
            }
        }
    }

    /// Whether the worker is a task on the application's runtime.
    pub(super) fn on_shared_runtime(&self) -> bool {
        self.on_runtime
    }

    /// Whether no connection is left, and no pending command could change that.
    pub(crate) fn is_idle(&self) -> bool {
        let inbox = lock(&self.inbox);
        let settled = inbox.commands.is_empty() && !inbox.executing;
        inbox.dead || (settled && self.counters.connections.get() == 0)
    }

    // ---- from other workers, and the process that has taken over the port ----------------------

    /// Takes over datagrams of this worker's connections; `false` if too many are already waiting.
    pub(crate) fn forward(&self, run: HeldRun) -> bool {
        let mut inbox = lock(&self.inbox);
        let bytes = inbox.forwarded_bytes + run.bytes.len();
        if inbox.dead || bytes > MAX_FORWARDED {
            return false;
        }
        inbox.forwarded_bytes = bytes;
        inbox.forwarded.push(run);
        self.has_forwarded.store(true, Ordering::Release);
        drop(inbox);
        self.ring_now();
        true
    }

    // ---- from the worker -----------------------------------------------------------------------

    /// The worker starts: sets its runtime and its socket.
    pub(crate) fn begin(&self, runtime: tokio::runtime::Handle, socket: &Arc<Socket>) {
        *lock(&self.runtime) = Some(runtime);
        let mut udp = lock(&self.udp);
        if udp.socket.is_none() {
            udp.replace(Some(Arc::clone(socket)));
        }
        drop(udp);
        let mut inbox = lock(&self.inbox);
        inbox.dead = false;
        self.life.fetch_add(1, Ordering::Release);
        self.dead.store(false, Ordering::Release);
        drop(inbox);
        self.common.on_worker_start();
    }

    /// A connection continues without its qlog. This may happen wherever a connection is dropped
    /// last, not only on the worker.
    pub(crate) fn on_qlog_error(&self, name: &str, error: &std::io::Error) {
        self.counters.qlogs_failed.add_from_anywhere(1);
        if self.common.qlog_warnings.admits(self.clock.now()) {
            crate::warnings::no_qlog(name, error);
        }
    }

    /// Calls the subscribers. If one panics, that is counted and logged.
    pub(super) fn report(&self, report: &Report) {
        for message in self.common.events.call(&|events| report.tell(events)) {
            self.counters.event_panics.add_from_anywhere(1);
            if self.common.event_warnings.admits(self.clock.now()) {
                crate::warnings::event_panicked(&message);
            }
        }
    }

    /// The worker ended early: informs subscribers and the application.
    pub(super) fn on_end(&self, end: WorkerEnd) {
        self.counters.worker_ends.add(1);
        self.report(&Report::WorkerEnded(WorkerEnded {
            worker: end.worker,
            reason: end.reason.to_string(),
            connections: end.connections,
        }));
        self.common.on_worker_end(end);
    }

    /// Records that the worker continues with another socket.
    pub(crate) fn set_socket(&self, socket: Arc<Socket>) {
        lock(&self.udp).replace(Some(socket));
    }

    /// Takes the contents. The vectors of `into` are empty and lend their memory. Commands count as
    /// being executed until [`commands_done`](Self::commands_done).
    pub(crate) fn take_inbox(&self, into: &mut Inbox) {
        let mut inbox = lock(&self.inbox);
        std::mem::swap(&mut inbox.ready, &mut into.ready);
        std::mem::swap(&mut inbox.commands, &mut into.commands);
        inbox.executing |= !into.commands.is_empty();
    }

    /// Takes the datagrams that other workers handed over. `into` is empty and lends its memory.
    pub(crate) fn take_forwarded(&self, into: &mut Vec<HeldRun>) {
        if self.has_forwarded.swap(false, Ordering::Acquire) {
            let mut inbox = lock(&self.inbox);
            std::mem::swap(&mut inbox.forwarded, into);
            inbox.forwarded_bytes = 0;
        }
    }

    /// All commands returned by `take_inbox` have been executed.
    pub(crate) fn commands_done(&self) {
        lock(&self.inbox).executing = false;
        if self.counters.connections.get() == 0 {
            self.common.idle.notify_waiters();
        }
    }

    /// Records that the worker sleeps from now on, to be woken through `waker`; `false` if it must
    /// not sleep because something has arrived.
    pub(crate) fn fall_asleep(&self, waker: &Waker) -> bool {
        let replaced = replace(&mut lock(&self.doorbell.worker), waker);
        drop(replaced);
        self.doorbell.state.store(ASLEEP, Ordering::SeqCst);
        let inbox = lock(&self.inbox);
        if inbox.ready.is_empty() && inbox.commands.is_empty() && inbox.forwarded.is_empty() {
            return true;
        }
        drop(inbox);
        self.wake_up();
        false
    }

    /// Records that the worker is awake.
    pub(crate) fn wake_up(&self) {
        self.doorbell.state.store(AWAKE, Ordering::SeqCst);
    }

    /// The worker has this thread to itself.
    pub(super) fn set_thread(&self, thread: Thread) {
        *lock(&self.doorbell.thread) = Some(thread);
    }

    /// The worker is about to sleep: its thread is to nap for this long before it looks for
    /// something to do. Zero: not at all.
    pub(super) fn nap_next(&self, nap: Duration) {
        let nap_ns = u64::try_from(nap.as_nanos()).unwrap_or(u64::MAX);
        self.doorbell.nap_ns.store(nap_ns, Ordering::Relaxed);
    }

    /// Naps, on the worker's own thread, unless the inbox holds something. Ends when the bell
    /// rings.
    pub(super) fn nap(&self) {
        let nap_ns = self.doorbell.nap_ns.swap(0, Ordering::Relaxed);
        if nap_ns == 0 || !self.doorbell.change(ASLEEP, NAPPING) {
            return;
        }
        self.counters.naps.add(1);
        std::thread::park_timeout(Duration::from_nanos(nap_ns));
        // Awake by now if the bell rang.
        self.doorbell.change(NAPPING, ASLEEP);
    }

    /// The worker ends: nothing more is taken, and the contents of the inbox are dropped (replies
    /// unanswered).
    pub(crate) fn die(&self) {
        let mut inbox = lock(&self.inbox);
        let left = std::mem::replace(&mut *inbox, Inbox::with_room());
        inbox.dead = true;
        self.dead.store(true, Ordering::Release);
        drop(inbox);
        drop(left);
        self.wake_up();
        // Connections' handles may hold `self` for long, which must not keep the port open.
        lock(&self.udp).replace(None);
        self.common.on_worker_stop(self.index);
        let lost = self.counters.connections.get();
        self.counters.connections_lost.add(lost);
        self.counters.memory.set(0);
        self.counters.connections.set(0);
        self.common.idle.notify_waiters();
    }
}

impl Bell for Shared {
    fn ring_now(&self) {
        let state = self.doorbell.state.swap(AWAKE, Ordering::SeqCst);
        if state == AWAKE {
            return;
        }
        if let Some(waker) = &*lock(&self.doorbell.worker) {
            waker.wake_by_ref();
        }
        if state == NAPPING
            && let Some(thread) = &*lock(&self.doorbell.thread)
        {
            thread.unpark();
        }
    }
}

/// Halves of a connection's memory.
#[derive(Clone, Copy)]
pub(super) enum Half {
    First,
    Second,
}

/// A connection as shared by the worker and the application's handles. Its lock is taken once per
/// received run, per round of transmission and per application call.
#[repr(C)]
pub(crate) struct ConnectionShared {
    pub(crate) handle: ConnectionHandle,
    pub(crate) worker: Arc<Shared>,
    state: Mutex<State>,
}

impl ConnectionShared {
    /// Bytes that a connection takes in addition to its state in the core.
    pub(super) const OWN_BYTES: usize = size_of::<Self>() - size_of::<squall_core::Connection>();

    pub(crate) fn new(
        handle: ConnectionHandle,
        core: squall_core::Connection,
        worker: Arc<Shared>,
    ) -> Self {
        Self {
            handle,
            worker,
            state: Mutex::new(State::new(core)),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(lock(&self.state))
    }

    /// Prefetches half of the state, which is about to be needed.
    #[inline]
    pub(super) fn prefetch(&self, half: Half) {
        const MIDDLE: usize = size_of::<Mutex<State>>() / 2;
        let start = std::ptr::from_ref(&self.state).cast::<u8>();
        match half {
            Half::First => prefetch_memory(start, MIDDLE),
            Half::Second => prefetch_memory(start.wrapping_add(MIDDLE), MIDDLE),
        }
    }

    /// Runs an application's call, and queues the connection if the call left something to send.
    /// The worker's next turn transmits, so that several calls fill a bundle together.
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

    /// Waits in the queue until `poll` is ready. Dropping the future leaves the queue.
    pub(crate) async fn wait<R>(
        self: &Arc<Self>,
        line: Line,
        mut poll: impl FnMut(&mut State) -> Poll<R>,
    ) -> R {
        let mut place = Place::new(&**self, line);
        poll_fn(|cx| {
            self.call(|state| {
                let result = poll(state);
                place.settle(state, result, cx.waker())
            })
        })
        .await
    }

    /// Closes the connection as soon as all streams that are finished now are delivered; see
    /// [`close`](Self::close). Waits until the CONNECTION_CLOSE is sent: a program that ends then
    /// has told its peer.
    pub(crate) async fn shut_down(self: &Arc<Self>, code: u64, reason: &[u8]) {
        // Not those that are finished meanwhile: on a busy connection, some always are.
        self.call(|state| state.core.prepare_to_close());
        self.wait(Line::Delivery, State::poll_delivered).await;
        self.close(code, reason);
        self.wait(Line::Delivery, State::poll_removed).await;
    }

    /// Closes the connection, wakes all waiting tasks, and has the worker send the
    /// CONNECTION_CLOSE.
    pub(crate) fn close(self: &Arc<Self>, code: u64, reason: &[u8]) {
        let now = self.worker.clock.now();
        let mut wakers = Vec::new();
        self.act(|state| state.close(now, code, reason, &mut wakers));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// As [`call`](Self::call), for calls that the worker has to see in any case, for example
    /// because they change timers.
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

/// A future's place in one of a connection's queues; dropping it leaves the queue.
pub(crate) struct Place<C: Deref<Target = ConnectionShared>> {
    connection: C,
    line: Line,
    ticket: Ticket,
}

impl<C: Deref<Target = ConnectionShared>> Place<C> {
    /// Not queued yet: that takes a call of [`settle`](Self::settle) with a pending result.
    pub(crate) fn new(connection: C, line: Line) -> Self {
        Self {
            connection,
            line,
            ticket: Ticket::default(),
        }
    }

    /// Stays in the queue while `result` is pending and leaves it when it is ready.
    fn settle<R>(&mut self, state: &mut State, result: Poll<R>, waker: &Waker) -> Poll<R> {
        state.settle(self.line, &mut self.ticket, result, waker)
    }

    /// Waits until `poll`, which changes nothing, is ready.
    pub(crate) fn poll<R>(
        &mut self,
        cx: &Context<'_>,
        poll: impl FnOnce(&State) -> Poll<R>,
    ) -> Poll<R> {
        let mut state = self.connection.lock();
        let result = poll(&state);
        state.settle(self.line, &mut self.ticket, result, cx.waker())
    }
}

impl<C: Deref<Target = ConnectionShared>> Drop for Place<C> {
    fn drop(&mut self) {
        if self.ticket.is_taken() {
            let mut state = self.connection.lock();
            state.leave(self.line, &mut self.ticket);
        }
    }
}

/// An application's handle to a connection. When the last one is dropped, the connection closes
/// with code 0.
pub(crate) struct Handle(pub(crate) Arc<ConnectionShared>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&self.0.handle.0).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close(0, b"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test is allowed to take.
    const LONG: Duration = Duration::from_secs(600);

    /// A worker that is about to sleep on a thread, and then naps.
    fn napping(shared: &Arc<Shared>) -> std::thread::JoinHandle<u8> {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            shared.set_thread(std::thread::current());
            assert!(shared.fall_asleep(Waker::noop()));
            shared.nap_next(LONG);
            shared.nap();
            shared.doorbell.state.load(Ordering::SeqCst)
        })
    }

    fn is_napping(shared: &Shared) -> bool {
        shared.doorbell.state.load(Ordering::SeqCst) == NAPPING
    }

    #[test]
    fn the_bell_ends_a_nap() {
        for ring in [Shared::ring_now as fn(&Shared), |shared| {
            assert!(shared.command(Command::Detach));
        }] {
            let shared = Arc::new(Shared::for_tests());
            let worker = napping(&shared);
            while !is_napping(&shared) {
                std::thread::yield_now();
            }
            ring(&shared);
            assert_eq!(worker.join().unwrap(), AWAKE);
            assert_eq!(shared.counters.naps.get(), 1);
        }
    }

    #[test]
    fn a_write_of_the_application_ends_a_nap() {
        let shared = Arc::new(Shared::for_tests());
        let worker = napping(&shared);
        while !is_napping(&shared) {
            std::thread::yield_now();
        }
        shared.ring_soon();
        assert_eq!(worker.join().unwrap(), AWAKE);
    }

    #[test]
    fn a_worker_with_something_to_do_takes_no_nap() {
        let shared = Shared::for_tests();
        shared.nap_next(LONG);
        // Awake: something came in between.
        shared.nap();
        // The intended nap is over.
        assert!(shared.fall_asleep(Waker::noop()));
        shared.nap();
        assert_eq!(shared.counters.naps.get(), 0);
        assert_eq!(shared.doorbell.state.load(Ordering::SeqCst), ASLEEP);
    }
}
