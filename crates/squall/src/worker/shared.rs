//! What a worker shares with the handles of applications and with other workers: an inbox and a doorbell.
//!
//! ```text
//! application call ── changed a connection ──> inbox.ready ─┐
//! connect, accept, close ───────────────────> inbox.commands┤── doorbell, only if the worker sleeps ──> worker's turn
//! another worker ── has datagrams of ours ──> inbox.forwarded┘
//! ```
//! A worker that is awake looks into the inbox before it sleeps, so a doorbell then would be a wasted system call.
//! Why none gets lost: the caller puts in, then looks whether the worker sleeps; the worker says that it sleeps, then
//! looks into the inbox. Both go through the inbox's lock, so one of them sees the other.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use bytes::Bytes;
use squall_core::{ChunkPool, ClientConfig, EndpointCounts, ServerConfig, Stages};
use squall_udp::Socket;
use tokio::sync::oneshot;

use super::common::{Clock, Common, HeldRun, Offer, lock};
use super::incoming::AttemptKey;
use super::state::{ConnectionShared, Handle};
use crate::error::ConnectError;
use crate::sys::{self, Readable};

/// Bytes of forwarded datagrams that wait for their worker's turn.
const MAX_FORWARDED: usize = 4 * 1024 * 1024;

/// Where the answer to `connect` and `accept` goes.
pub(crate) type Reply = oneshot::Sender<Result<Handle, ConnectError>>;

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
        reply: Reply,
    },
    Refuse {
        offer: Box<Offer>,
    },
    Retry {
        offer: Box<Offer>,
    },
    /// The application let the attempt drop.
    Ignore(AttemptKey),
    /// Close all connections, and let no new ones in.
    Close {
        code: u64,
        reason: Bytes,
    },
    /// Close all connections, each when what was finished on it is delivered, and let no new ones in.
    ShutDown {
        code: u64,
        reason: Bytes,
    },
    /// Go on with this socket; clients' connections move.
    Rebind(Readable),
    /// Connections to come get this configuration; `None`: there are none to come.
    SetServer(Option<Arc<ServerConfig>>),
    /// The last handle of the endpoint is gone: end with the last connection.
    Detach,
}

/// What came in since the worker's last turn.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Connections with something to send. Each at most once: its `queued` flag is set.
    pub(crate) ready: Vec<Arc<ConnectionShared>>,
    pub(crate) commands: Vec<Command>,
    /// Datagrams of this worker's connections that came to another one.
    pub(crate) forwarded: Vec<HeldRun>,
    /// Their bytes.
    forwarded_bytes: usize,
    /// The worker is following commands that it took out.
    executing: bool,
    /// The worker does not run: nobody will look.
    dead: bool,
}

impl Inbox {
    /// With room for the usual line: an inbox and the one that it is swapped with take turns, and which of them would grow
    /// first is chance.
    pub(crate) fn with_room() -> Self {
        Self {
            ready: Vec::with_capacity(64),
            ..Self::default()
        }
    }
}

/// Sleeping and waking of the worker.
#[derive(Default)]
struct Doorbell {
    asleep: AtomicBool,
    worker: Mutex<Option<Waker>>,
}

macro_rules! worker_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an endpoint since it was built.
        #[derive(Clone, Copy, Debug, Default)]
        #[non_exhaustive]
        pub struct EndpointStats {
            $($(#[$doc])* pub $name: u64,)*
            /// How datagrams that belong to no connection were handled.
            pub unrouted: EndpointCounts,
            /// The socket's own counters: calls, bundles, datagrams, drops.
            pub udp: squall_udp::Stats,
        }

        /// The worker's counters; only the worker writes.
        #[derive(Default)]
        pub(crate) struct WorkerCounters { $(pub(crate) $name: Counter,)* }

        impl WorkerCounters {
            pub(crate) fn read(
                &self,
                unrouted: EndpointCounts,
                udp: squall_udp::Stats,
            ) -> EndpointStats {
                EndpointStats { $($name: self.$name.get(),)* unrouted, udp }
            }
        }

        impl std::ops::AddAssign for EndpointStats {
            /// The sum over several workers.
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                self.unrouted += other.unrouted;
                self.udp += other.udp;
            }
        }
    };
}

worker_counters! {
    /// Connections that currently exist, including closing ones.
    connections,
    /// Iterations of the worker's loop: receive, time out, transmit.
    turns,
    /// Runs of datagrams handed to connections.
    runs_received,
    /// Runs dropped because they belong to no connection: too short, or an unknown connection id.
    runs_discarded,
    /// Runs that belonged to another worker of the endpoint and were forwarded to it: where the
    /// kernel cannot steer, or because a bundle holds datagrams of several connections.
    runs_forwarded,
    /// Runs dropped because the worker that they belong to had too many of them waiting.
    forwards_dropped,
    /// Stateless responses sent, of any kind; `unrouted` counts each kind.
    responses,
    /// Connection attempts dropped because the accept queue was full.
    incoming_dropped,
    /// Times the worker took a connection's lock: once per received run and once per round of
    /// transmission.
    locks,
    /// Deadlines that had to be filed again in the timer wheel.
    timer_updates,
    /// Tasks woken.
    wakeups,
    /// Times the worker ended prematurely, see
    /// [`Endpoint::worker_ended`](crate::Endpoint::worker_ended).
    worker_ends,
    /// Connections that ended with a worker, including closing ones.
    connections_lost,
    /// Estimated memory of the connections, in bytes: state, data written and not yet acknowledged,
    /// data received and not yet read, and records of packets in flight, as of each connection's
    /// last turn. 0 unless [`Builder::max_memory`](crate::Builder::max_memory) is set.
    memory,
    /// Qlogs that could not be opened, or not be written completely.
    qlogs_failed,
}

/// A counter with one writer: a load and a store, no locked instruction.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.set(self.get() + n);
    }

    /// Adds one, where other threads count too.
    pub(crate) fn add_from_anywhere(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The worker's sockets, kept for their counters.
struct Udp {
    /// The one in use; `None` once the worker has ended.
    socket: Option<Arc<Socket>>,
    /// What those before it counted.
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

/// The face of a worker towards other threads.
pub(crate) struct Shared {
    /// Which of the endpoint's workers.
    pub(crate) index: usize,
    pub(crate) common: Arc<Common>,
    pub(crate) clock: Clock,
    pub(crate) counters: WorkerCounters,
    /// What the worker's endpoints counted. Locked at most once a turn.
    pub(crate) unrouted: Mutex<EndpointCounts>,
    /// Time by stage. The worker holds the lock through its turns, never while it sleeps.
    pub(crate) stages: Mutex<Stages>,
    /// Memory for received stream data, lent to the connection that receives.
    pub(crate) chunks: Mutex<ChunkPool>,
    /// Whether stages are timed.
    pub(crate) accounting: bool,
    /// The worker's thread, set as it starts.
    runtime: Mutex<Option<tokio::runtime::Handle>>,
    udp: Mutex<Udp>,
    inbox: Mutex<Inbox>,
    /// Whether there may be something in `inbox.forwarded`: asked once a turn, without the lock.
    has_forwarded: AtomicBool,
    /// `inbox.dead`, for who has no time for the lock.
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
            common,
            counters: WorkerCounters::default(),
            unrouted: Mutex::default(),
            chunks: Mutex::default(),
            accounting: stages.is_on(),
            stages: Mutex::new(stages),
            runtime: Mutex::new(None),
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

    // ---- from the application -----------------------------------------------------------------------------------

    /// Puts a connection in line for transmission. Its `queued` flag was clear and is set.
    pub(crate) fn enqueue(&self, connection: Arc<ConnectionShared>) {
        let mut inbox = lock(&self.inbox);
        if inbox.dead {
            return;
        }
        inbox.ready.push(connection);
        drop(inbox);
        self.ring();
    }

    /// Sends a command; `false` when the worker has ended and nobody will follow it.
    pub(crate) fn command(&self, command: Command) -> bool {
        self.command_to(self.life(), command)
    }

    /// Sends a command about something that came up in this life of the worker; `false` when that is over.
    pub(crate) fn command_to(&self, life: u32, command: Command) -> bool {
        let mut inbox = lock(&self.inbox);
        if inbox.dead || self.life() != life {
            return false;
        }
        inbox.commands.push(command);
        drop(inbox);
        self.ring();
        true
    }

    /// Has the worker's runtime watch a socket that the worker is to go on with.
    ///
    /// # Errors
    /// The system refused, or the worker has ended.
    pub(crate) fn watch(&self, socket: Arc<Socket>) -> std::io::Result<Readable> {
        let _entered = self.runtime().enter();
        sys::readable(socket)
    }

    /// Where the worker and its tasks run, or ran: a task that comes too late is cancelled.
    pub(crate) fn runtime(&self) -> tokio::runtime::Handle {
        let runtime = lock(&self.runtime).clone();
        runtime.expect("set before anybody has an endpoint")
    }

    /// How often the worker has started.
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::Acquire)
    }

    /// Whether the worker does not run.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// What the worker has counted.
    pub(crate) fn stats(&self) -> EndpointStats {
        self.counters.read(*lock(&self.unrouted), self.udp_stats())
    }

    /// What the worker's sockets counted.
    fn udp_stats(&self) -> squall_udp::Stats {
        lock(&self.udp).stats()
    }

    /// Makes the worker's receive calls fail with `errno` until it is told 0.
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

    fn ring(&self) {
        if self.doorbell.asleep.swap(false, Ordering::SeqCst)
            && let Some(waker) = &*lock(&self.doorbell.worker)
        {
            waker.wake_by_ref();
        }
    }

    /// Whether no connection is left, and no word of the application waits that could change that.
    pub(crate) fn is_idle(&self) -> bool {
        let inbox = lock(&self.inbox);
        let settled = inbox.commands.is_empty() && !inbox.executing;
        inbox.dead || (settled && self.counters.connections.get() == 0)
    }

    // ---- from other workers -------------------------------------------------------------------------------------

    /// Takes over datagrams of this worker's connections; `false` when too many of them wait already.
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
        self.ring();
        true
    }

    // ---- from the worker ----------------------------------------------------------------------------------------

    /// The worker starts: says where it and its tasks run, and what it sends and receives with.
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

    /// A connection goes on without its qlog. Whoever drops a connection last may find that out, not only the worker.
    pub(crate) fn on_qlog_error(&self, path: &Path, error: &std::io::Error) {
        self.counters.qlogs_failed.add_from_anywhere();
        if self.common.qlog_warnings.admits(self.clock.now()) {
            tracing::warn!(path = %path.display(), %error, "cannot write the qlog; the connection continues without one");
        }
    }

    /// Says that the worker goes on with another socket.
    pub(crate) fn set_socket(&self, socket: Arc<Socket>) {
        lock(&self.udp).replace(Some(socket));
    }

    /// Takes what came in. The vectors of `into` are empty and lend their memory.
    pub(crate) fn take_inbox(&self, into: &mut Inbox) {
        let mut inbox = lock(&self.inbox);
        std::mem::swap(&mut inbox.ready, &mut into.ready);
        std::mem::swap(&mut inbox.commands, &mut into.commands);
        inbox.executing = !into.commands.is_empty();
    }

    /// Takes the datagrams that other workers handed over. `into` is empty and lends its memory.
    pub(crate) fn take_forwarded(&self, into: &mut Vec<HeldRun>) {
        if self.has_forwarded.swap(false, Ordering::Acquire) {
            let mut inbox = lock(&self.inbox);
            std::mem::swap(&mut inbox.forwarded, into);
            inbox.forwarded_bytes = 0;
        }
    }

    /// What `take_inbox` gave was followed.
    pub(crate) fn commands_done(&self) {
        lock(&self.inbox).executing = false;
        if self.counters.connections.get() == 0 {
            self.common.idle.notify_waiters();
        }
    }

    /// Says that the worker sleeps from now on, to be woken through `waker`; `false`: it must not, something came in.
    pub(crate) fn fall_asleep(&self, waker: &Waker) -> bool {
        let mut worker = lock(&self.doorbell.worker);
        if !worker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *worker = Some(waker.clone());
        }
        drop(worker);
        self.doorbell.asleep.store(true, Ordering::SeqCst);
        let inbox = lock(&self.inbox);
        if inbox.ready.is_empty() && inbox.commands.is_empty() && inbox.forwarded.is_empty() {
            return true;
        }
        drop(inbox);
        self.wake_up();
        false
    }

    /// Says that the worker is awake.
    pub(crate) fn wake_up(&self) {
        self.doorbell.asleep.store(false, Ordering::SeqCst);
    }

    /// The worker ends: nothing more is taken, and what is in the inbox is let go (replies are dropped unanswered).
    pub(crate) fn die(&self) {
        let mut inbox = lock(&self.inbox);
        let left = std::mem::replace(&mut *inbox, Inbox::with_room());
        inbox.dead = true;
        self.dead.store(true, Ordering::Release);
        drop(inbox);
        drop(left);
        self.wake_up();
        // Connections' handles may hold `self` for long, and must not hold the port with it.
        lock(&self.udp).replace(None);
        self.common.on_worker_stop(self.index);
        let lost = self.counters.connections.get();
        self.counters.connections_lost.add(lost);
        self.counters.memory.set(0);
        self.counters.connections.set(0);
        self.common.idle.notify_waiters();
    }
}
