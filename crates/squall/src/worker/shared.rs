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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use bytes::Bytes;
use squall_core::{ClientConfig, ServerConfig, Stages};
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
    /// The worker has ended; nobody will look.
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
        /// What an endpoint counted since it was built.
        #[derive(Clone, Copy, Debug, Default)]
        #[non_exhaustive]
        pub struct EndpointStats {
            $($(#[$doc])* pub $name: u64,)*
            /// The socket's own counters: calls, bundles, datagrams, drops.
            pub udp: squall_udp::Stats,
        }

        /// The worker's counters; only the worker writes.
        #[derive(Default)]
        pub(crate) struct WorkerCounters { $(pub(crate) $name: Counter,)* }

        impl WorkerCounters {
            pub(crate) fn read(&self, udp: squall_udp::Stats) -> EndpointStats {
                EndpointStats { $($name: self.$name.get(),)* udp }
            }
        }

        impl std::ops::AddAssign for EndpointStats {
            /// The sum over several workers.
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                self.udp += other.udp;
            }
        }
    };
}

worker_counters! {
    /// Connections that exist now, closing ones included.
    connections,
    /// Rounds of receive, time out, transmit.
    turns,
    /// Runs handed to connections.
    runs_received,
    /// Runs that belonged to nobody: too short, unknown connection id.
    runs_discarded,
    /// Runs that belonged to another worker of the endpoint and were handed over: where the kernel cannot steer, and
    /// of bundles that hold datagrams of several connections.
    runs_forwarded,
    /// Runs that belonged to another worker, which has too many of them waiting.
    forwards_dropped,
    /// Stateless answers: version negotiation, stateless reset, refusals.
    responses,
    /// Connection attempts dropped because the accept queue was full.
    incoming_dropped,
    /// Times the worker took a connection's lock: once a run received and once a round of transmission.
    locks,
    /// Deadlines that had to be filed anew in the timer wheel.
    timer_updates,
    /// Tasks woken.
    wakeups,
}

/// A counter with one writer: a load and a store, no locked instruction.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.set(self.get() + n);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A worker's sockets, for who counts.
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
    /// Time by stage. The worker holds the lock through its turns, never while it sleeps.
    pub(crate) stages: Mutex<Stages>,
    /// Whether stages are timed.
    pub(crate) accounting: bool,
    /// The worker's thread, set as it starts.
    runtime: OnceLock<tokio::runtime::Handle>,
    udp: Mutex<Udp>,
    inbox: Mutex<Inbox>,
    /// Whether there may be something in `inbox.forwarded`: asked once a turn, without the lock.
    has_forwarded: AtomicBool,
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
            accounting: stages.is_on(),
            stages: Mutex::new(stages),
            runtime: OnceLock::new(),
            udp: Mutex::new(Udp {
                socket: Some(socket),
                before: squall_udp::Stats::default(),
            }),
            inbox: Mutex::new(Inbox::with_room()),
            has_forwarded: AtomicBool::new(false),
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
        let mut inbox = lock(&self.inbox);
        if inbox.dead {
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

    /// Where the worker and its tasks run.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        let runtime = self.runtime.get();
        runtime.expect("set before anybody has an endpoint")
    }

    /// What the worker's sockets counted.
    pub(crate) fn udp_stats(&self) -> squall_udp::Stats {
        lock(&self.udp).stats()
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

    /// Says where the worker and its tasks run; once, as it starts.
    pub(crate) fn set_runtime(&self, runtime: tokio::runtime::Handle) {
        // Nobody else sets it.
        let _ = self.runtime.set(runtime);
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
        inbox.dead = true;
        let left = std::mem::take(&mut *inbox);
        inbox.dead = true;
        drop(inbox);
        drop(left);
        // Connections' handles may hold `self` for long, and must not hold the port with it.
        lock(&self.udp).replace(None);
        drop(self.common.close_accept(self.index));
        self.counters.connections.set(0);
        self.common.idle.notify_waiters();
    }
}
