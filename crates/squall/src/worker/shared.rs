//! What a worker shares with the handles of applications: an inbox, a doorbell, the queue of incoming connections.
//!
//! ```text
//! application call ── changed a connection ──> inbox.ready ─┐
//! connect, accept, close ───────────────────> inbox.commands┤── doorbell, only if the worker sleeps ──> worker's turn
//! ```
//! A worker that is awake looks into the inbox before it sleeps, so a doorbell then would be a wasted system call.
//! Why none gets lost: the caller puts in, then looks whether the worker sleeps; the worker says that it sleeps, then
//! looks into the inbox. Both go through the inbox's lock, so one of them sees the other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use squall_core::{ClientConfig, Stages, Time};
use squall_wire::{Ecn, Path};
use tokio::sync::{Notify, oneshot};

use super::state::{ConnectionShared, Handle};
use crate::error::ConnectError;

/// Takes a lock; a panic elsewhere while it was held does not make the data unusable, only perhaps stale.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The core's clock: nanoseconds since the endpoint was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        Time::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Unix time at `Time::ZERO`; zero if the system's clock is before 1970.
    pub(crate) fn unix_time_at_zero(self) -> Duration {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        unix.unwrap_or_default().saturating_sub(self.0.elapsed())
    }

    /// The runtime's name for a point in time.
    pub(crate) fn instant(self, time: Time) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.0 + (time - Time::ZERO))
    }
}

/// A run of datagrams kept aside: the receive buffer is reused at once.
#[derive(Debug)]
pub(crate) struct HeldRun {
    pub(crate) path: Path,
    pub(crate) ecn: Ecn,
    pub(crate) segment_size: u16,
    pub(crate) bytes: Vec<u8>,
}

/// A connection attempt that waits for the application's word, with the datagrams that made it.
pub(crate) struct Offer {
    pub(crate) incoming: squall_core::Incoming,
    pub(crate) run: HeldRun,
}

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
    Ignore {
        remote: SocketAddr,
    },
    /// Close all connections, and let no new ones in.
    Close {
        code: u64,
        reason: Bytes,
    },
    /// The last handle of the endpoint is gone: end with the last connection.
    Detach,
}

/// What came in since the worker's last turn.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Connections with something to send. Each at most once: its `queued` flag is set.
    pub(crate) ready: Vec<Arc<ConnectionShared>>,
    pub(crate) commands: Vec<Command>,
    /// The worker is following commands that it took out.
    executing: bool,
    /// The worker has ended; nobody will look.
    dead: bool,
}

/// Attempts that wait for `Endpoint::accept`.
#[derive(Default)]
struct AcceptQueue {
    offers: VecDeque<Box<Offer>>,
    waiters: Waiters,
    closed: bool,
}

/// Tasks that wait for the same thing. All are woken, each looks for itself.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Waker>);

impl Waiters {
    pub(crate) fn register(&mut self, waker: &Waker) {
        if !self.0.iter().any(|other| other.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.0)
    }

    /// Moves all into `wakers`.
    pub(crate) fn move_into(&mut self, wakers: &mut Vec<Waker>) {
        wakers.append(&mut self.0);
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

/// The face of a worker towards other threads.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) counters: WorkerCounters,
    /// Time by stage. The worker holds the lock through its turns, never while it sleeps.
    pub(crate) stages: Mutex<Stages>,
    /// Told whenever the last connection goes.
    pub(crate) idle: Notify,
    inbox: Mutex<Inbox>,
    doorbell: Doorbell,
    accept: Mutex<AcceptQueue>,
    max_incoming: usize,
}

impl Shared {
    pub(crate) fn new(max_incoming: usize, stages: Stages) -> Self {
        Self {
            clock: Clock::start(),
            counters: WorkerCounters::default(),
            stages: Mutex::new(stages),
            idle: Notify::new(),
            inbox: Mutex::default(),
            doorbell: Doorbell::default(),
            accept: Mutex::default(),
            max_incoming: max_incoming.max(1),
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

    fn ring(&self) {
        if self.doorbell.asleep.swap(false, Ordering::SeqCst)
            && let Some(waker) = &*lock(&self.doorbell.worker)
        {
            waker.wake_by_ref();
        }
    }

    /// The next attempt to connect to us; `None` when the endpoint is closed.
    pub(crate) fn poll_accept(&self, cx: &Context<'_>) -> Poll<Option<Box<Offer>>> {
        let mut accept = lock(&self.accept);
        if let Some(offer) = accept.offers.pop_front() {
            return Poll::Ready(Some(offer));
        }
        if accept.closed {
            return Poll::Ready(None);
        }
        accept.waiters.register(cx.waker());
        Poll::Pending
    }

    /// Lets no more attempts in and wakes who waits for one. Returns those that nobody took.
    pub(crate) fn close_accept(&self) -> VecDeque<Box<Offer>> {
        let mut accept = lock(&self.accept);
        accept.closed = true;
        let offers = std::mem::take(&mut accept.offers);
        let waiters = accept.waiters.take();
        drop(accept);
        waiters.into_iter().for_each(Waker::wake);
        offers
    }

    /// Whether no connection is left, and no word of the application waits that could change that.
    pub(crate) fn is_idle(&self) -> bool {
        let inbox = lock(&self.inbox);
        let settled = inbox.commands.is_empty() && !inbox.executing;
        inbox.dead || (settled && self.counters.connections.get() == 0)
    }

    /// Whether the endpoint was closed.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.accept).closed
    }

    // ---- from the worker ----------------------------------------------------------------------------------------

    /// Puts an attempt in line; gives it back when the line is full or closed.
    pub(crate) fn offer(
        &self,
        offer: Box<Offer>,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Box<Offer>> {
        let mut accept = lock(&self.accept);
        if accept.closed || accept.offers.len() >= self.max_incoming {
            return Err(offer);
        }
        accept.offers.push_back(offer);
        accept.waiters.move_into(wakers);
        Ok(())
    }

    /// Takes what came in. The vectors of `into` are empty and lend their memory.
    pub(crate) fn take_inbox(&self, into: &mut Inbox) {
        let mut inbox = lock(&self.inbox);
        std::mem::swap(&mut inbox.ready, &mut into.ready);
        std::mem::swap(&mut inbox.commands, &mut into.commands);
        inbox.executing = !into.commands.is_empty();
    }

    /// What `take_inbox` gave was followed.
    pub(crate) fn commands_done(&self) {
        lock(&self.inbox).executing = false;
        if self.counters.connections.get() == 0 {
            self.idle.notify_waiters();
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
        if inbox.ready.is_empty() && inbox.commands.is_empty() {
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
        drop(self.close_accept());
        self.counters.connections.set(0);
        self.idle.notify_waiters();
    }
}
