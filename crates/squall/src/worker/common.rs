//! What all workers of an endpoint share: the clock, the queue of connection attempts, and the
//! owners of stateless reset tokens.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use squall_core::{ConnectionCount, ResetTokenDirectory, Time};
use tokio::sync::Notify;
#[cfg(target_os = "linux")]
use tokio::task::JoinHandle;

use super::ended::{WorkerEnd, WorkerEndReason};
use super::group::SocketGroup;
use super::lock::lock;
use super::offer::Offer;
use super::totals::{SharedMemory, SharedPrefixCounts, SharedTokenFilter};
use super::waiters::{Ticket, Waiters};
use crate::config::Builder;
use crate::events::Subscribers;
use crate::qlog::Qlogs;
use crate::takeover::{Link, Runs, Sent};

/// Worker ends that wait to be reported. A worker must be restarted before it can end again, so
/// more of them means that the application does not ask for them.
const MAX_ENDS: usize = 64;

/// The time between two warnings of one kind.
const WARN_EVERY: Duration = Duration::from_secs(60);

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

    /// The runtime's representation of a point in time.
    pub(crate) fn instant(self, time: Time) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.0 + (time - Time::ZERO))
    }
}

/// Lets a warning pass once a minute over all workers.
#[derive(Debug, Default)]
pub(crate) struct WarningLimit(AtomicU64);

impl WarningLimit {
    /// Whether to warn now.
    pub(crate) fn admits(&self, now: Time) -> bool {
        let (now, last) = (now.as_nanos().max(1), self.0.load(Ordering::Relaxed));
        let due = last == 0 || now.saturating_sub(last) >= WARN_EVERY.as_nanos() as u64;
        // Only one of several workers warns.
        due && (self.0)
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// What workers report to the application.
#[derive(Default)]
struct AcceptQueue {
    /// Attempts that wait for `Endpoint::accept`.
    offers: VecDeque<Box<Offer>>,
    waiters: Waiters,
    /// By worker: tasks that wait only for its attempts, and take precedence.
    own_waiters: Vec<Waiters>,
    closed: bool,
    /// Whether it is closed only because another process has the port.
    is_handed_over: bool,
    /// Workers that run.
    running: usize,
    /// Ends of workers that wait for `Endpoint::worker_ended`.
    ends: VecDeque<WorkerEnd>,
    end_waiters: Waiters,
}

impl AcceptQueue {
    /// Closes the queue. Returns the tasks to wake.
    fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        let mut wakers = Vec::new();
        self.all_waiters_into(&mut wakers);
        self.end_waiters.move_into(&mut wakers);
        wakers
    }

    /// The tasks that wait for an attempt.
    fn all_waiters_into(&mut self, wakers: &mut Vec<Waker>) {
        self.waiters.move_into(wakers);
        for line in &mut self.own_waiters {
            line.move_into(wakers);
        }
    }

    /// The first attempt for the tasks in this line.
    fn take_offer(&mut self, line: Line) -> Option<Box<Offer>> {
        match line {
            Line::OffersOf(worker) => {
                let at = (self.offers.iter()).position(|offer| offer.worker == worker)?;
                self.offers.remove(at)
            }
            Line::Offers | Line::Ends => self.offers.pop_front(),
        }
    }

    fn line(&mut self, line: Line) -> &mut Waiters {
        match line {
            Line::Offers => &mut self.waiters,
            Line::OffersOf(worker) => {
                if self.own_waiters.len() <= worker {
                    self.own_waiters.resize_with(worker + 1, Waiters::default);
                }
                &mut self.own_waiters[worker]
            }
            Line::Ends => &mut self.end_waiters,
        }
    }
}

/// What a task waits for.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// Any worker's attempts.
    Offers,
    /// One worker's.
    OffersOf(usize),
    /// Ends of workers.
    Ends,
}

/// What all workers of an endpoint share.
pub(crate) struct Common {
    pub(crate) clock: Clock,
    /// Notified whenever a worker's last connection ends.
    pub(crate) idle: Notify,
    /// Where connections are logged.
    pub(crate) qlog: Option<Qlogs>,
    /// The workers' sockets. Locked while all workers are moved, so that two concurrent moves end
    /// in one place.
    pub(crate) sockets: Mutex<SocketGroup>,
    /// The owners of reset tokens; `None` if there is only one worker.
    pub(crate) reset_tokens: Option<ResetTokens>,
    pub(crate) spent_tokens: SharedTokenFilter,
    pub(crate) connections: ConnectionCount,
    /// `None`: prefixes are not limited.
    pub(crate) prefixes: Option<SharedPrefixCounts>,
    /// `None`: memory is not limited, and not counted.
    pub(crate) memory: Option<SharedMemory>,
    pub(crate) send_warnings: WarningLimit,
    pub(crate) receive_warnings: WarningLimit,
    pub(crate) qlog_warnings: WarningLimit,
    pub(super) event_warnings: WarningLimit,
    /// The event subscribers.
    pub(super) events: Subscribers,
    /// Number of connections begun, if anyone subscribes to events.
    begun: AtomicU64,
    accept: Mutex<AcceptQueue>,
    max_incoming: usize,
    /// Bytes that each worker may hold for undecided attempts, and for one of them.
    pub(super) held_bytes: usize,
    pub(super) held_bytes_of_one: usize,
    /// How long bulk data may wait in a socket.
    pub(super) receive_coalescing: Duration,
    /// Whether the workers are tasks of the application's runtime.
    pub(crate) on_runtime: bool,
    /// Notified when the endpoint is closed.
    closed: Notify,
    /// Who may still use the sockets: the endpoint's handles, which count as one, and each worker.
    /// Connections' handles do not count.
    socket_users: AtomicUsize,
    are_sockets_closed: AtomicBool,
    /// Notified when they are.
    sockets_closed: Notify,
    /// Locked while the application waits for a successor. Holds the tasks that receive what the
    /// last successor forwards; they end with it.
    #[cfg(target_os = "linux")]
    pub(crate) handover: tokio::sync::Mutex<Vec<JoinHandle<()>>>,
    /// By worker: links to the processes that had the port before and still have connections.
    links: Vec<Vec<Link>>,
    /// Whether the port is this endpoint's. Otherwise its predecessor may keep it, and read its
    /// sockets again, so this endpoint does not answer datagrams that it does not recognise.
    owns_port: AtomicBool,
}

impl Common {
    pub(crate) fn new(
        settings: &Builder,
        qlog: Option<Qlogs>,
        sockets: SocketGroup,
        links: Vec<Vec<Link>>,
    ) -> Self {
        Self {
            qlog,
            sockets: Mutex::new(sockets),
            reset_tokens: (settings.workers > 1).then(ResetTokens::default),
            spent_tokens: SharedTokenFilter::new(settings.new_token_lifetime),
            connections: ConnectionCount::default(),
            prefixes: (settings.max_connections_per_prefix).map(|_| SharedPrefixCounts::default()),
            memory: settings.max_memory.map(|_| SharedMemory::default()),
            send_warnings: WarningLimit::default(),
            receive_warnings: WarningLimit::default(),
            qlog_warnings: WarningLimit::default(),
            event_warnings: WarningLimit::default(),
            events: settings.events.clone(),
            begun: AtomicU64::new(0),
            clock: Clock::start(),
            idle: Notify::new(),
            accept: Mutex::default(),
            max_incoming: settings.max_incoming.max(1),
            held_bytes: (settings.incoming_buffer_size_total).div_ceil(settings.workers.max(1)),
            held_bytes_of_one: settings.incoming_buffer_size,
            receive_coalescing: settings.receive_coalescing,
            on_runtime: settings.runtime.is_some(),
            closed: Notify::new(),
            socket_users: AtomicUsize::new(1),
            are_sockets_closed: AtomicBool::new(false),
            sockets_closed: Notify::new(),
            #[cfg(target_os = "linux")]
            handover: tokio::sync::Mutex::default(),
            owns_port: AtomicBool::new(links.is_empty()),
            links,
        }
    }

    // ---- from the application ------------------------------------------------------------------

    /// Waits for the next end of a worker; `None` when the endpoint is closed.
    pub(crate) async fn worker_ended(self: &Arc<Self>) -> Option<WorkerEnd> {
        let mut place = AcceptPlace::new(self, Line::Ends);
        poll_fn(|cx| {
            place.poll(cx, |queue| match queue.ends.pop_front() {
                None if !queue.closed => Poll::Pending,
                end => Poll::Ready(end),
            })
        })
        .await
    }

    /// Closes the endpoint if no worker is left to do so.
    pub(crate) fn close(&self) {
        let mut accept = lock(&self.accept);
        accept.is_handed_over = false;
        let wakers = accept.close();
        drop(accept);
        wakers.into_iter().for_each(Waker::wake);
        self.closed.notify_waiters();
    }

    /// Another process has the port: accepts nothing more.
    #[cfg(target_os = "linux")]
    pub(crate) fn on_handed_over(&self) {
        let mut accept = lock(&self.accept);
        accept.is_handed_over = accept.is_handed_over || !accept.closed;
        let wakers = accept.close();
        drop(accept);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until the application closes the endpoint. Cancel-safe.
    #[cfg(target_os = "linux")]
    pub(crate) async fn closed(&self) {
        let closed = self.closed.notified();
        let mut closed = std::pin::pin!(closed);
        // Registered before the check, so that no notification is missed.
        closed.as_mut().enable();
        let is_closed = || {
            let accept = lock(&self.accept);
            accept.closed && !accept.is_handed_over
        };
        if !is_closed() {
            closed.await;
        }
    }

    /// The last handle of the endpoint is gone: no worker is started any more.
    pub(crate) fn on_detach(&self) {
        self.release_sockets();
    }

    /// Waits until the sockets are closed. Cancel-safe.
    pub(crate) async fn sockets_closed(&self) {
        let closed = self.sockets_closed.notified();
        let mut closed = std::pin::pin!(closed);
        // Registered before the check, so that no notification is missed.
        closed.as_mut().enable();
        if !self.are_sockets_closed.load(Ordering::Acquire) {
            closed.await;
        }
    }

    /// The address of all workers' sockets.
    pub(crate) fn address(&self) -> SocketAddr {
        lock(&self.sockets).address()
    }

    /// Whether the endpoint was closed.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.accept).closed
    }

    // ---- from the workers ----------------------------------------------------------------------

    /// Queues an attempt; returns it if the queue is full or closed.
    pub(crate) fn offer(
        &self,
        offer: Box<Offer>,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), Box<Offer>> {
        let mut accept = lock(&self.accept);
        if accept.closed || accept.offers.len() >= self.max_incoming {
            return Err(offer);
        }
        let worker = offer.worker;
        accept.offers.push_back(offer);
        let own = accept.own_waiters.get_mut(worker);
        match own.filter(|line| !line.is_empty()) {
            Some(own) => own.move_into(wakers),
            None => accept.waiters.move_into(wakers),
        }
        Ok(())
    }

    /// Admits no more attempts and wakes the tasks that wait for one. Returns this worker's
    /// attempts that were not taken.
    pub(crate) fn close_accept(&self, worker: usize) -> VecDeque<Box<Offer>> {
        let mut accept = lock(&self.accept);
        accept.is_handed_over = false;
        let wakers = accept.close();
        let own = take_own(&mut accept.offers, worker);
        drop(accept);
        wakers.into_iter().for_each(Waker::wake);
        self.closed.notify_waiters();
        own
    }

    /// A worker's links to the processes that had the port before.
    pub(crate) fn links(&self, worker: usize) -> &[Link] {
        self.links.get(worker).map_or(&[], Vec::as_slice)
    }

    /// The predecessor has given up the port.
    pub(crate) fn on_taken_over(&self) {
        self.owns_port.store(true, Ordering::Release);
    }

    /// Whether the port is this endpoint's.
    pub(super) fn owns_port(&self) -> bool {
        self.owns_port.load(Ordering::Acquire)
    }

    /// Passes runs on to the processes that had the port before.
    pub(super) fn send_to_predecessors(&self, worker: usize, runs: &Runs) -> Sent {
        let links = self.links(worker).iter();
        links.fold(Sent::Gone, |sum, link| sum.max(link.send(runs)))
    }

    /// The number of a new connection.
    pub(super) fn next_connection_number(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// One of the sockets' users is gone. The last one closes them.
    fn release_sockets(&self) {
        if self.socket_users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let sockets = lock(&self.sockets).close();
        // Not under the lock: a carrier's drop is the application's code.
        drop(sockets);
        self.are_sockets_closed.store(true, Ordering::Release);
        self.sockets_closed.notify_waiters();
    }

    /// A worker has started.
    pub(crate) fn on_worker_start(&self) {
        lock(&self.accept).running += 1;
    }

    /// A worker has stopped, and its undecided attempts are dropped. The others continue.
    pub(crate) fn on_worker_stop(&self, worker: usize) {
        let mut accept = lock(&self.accept);
        accept.running -= 1;
        let own = take_own(&mut accept.offers, worker);
        let mut wakers = Vec::new();
        if accept.running == 0 {
            accept.all_waiters_into(&mut wakers);
        }
        drop(accept);
        drop(own);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A worker ended early: its datagrams go to the others, and the application is informed.
    pub(crate) fn on_worker_end(&self, end: WorkerEnd) {
        lock(&self.sockets).on_end(end.worker);
        if let Some(tokens) = &self.reset_tokens {
            tokens.forget_worker(end.worker);
        }
        let (local, worker, connections) = (self.address(), end.worker, end.connections);
        // When a runtime shuts down, the end of an idle worker is not worth a warning.
        if connections > 0 || !matches!(end.reason, WorkerEndReason::RuntimeShutDown) {
            crate::warnings::worker_ended(local, worker, connections, &end.reason);
        }
        let mut accept = lock(&self.accept);
        if accept.ends.len() == MAX_ENDS {
            accept.ends.pop_front();
        }
        accept.ends.push_back(end);
        let wakers = accept.end_waiters.take();
        drop(accept);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A worker's use of the sockets.
pub(super) struct SocketUse(Arc<Common>);

impl SocketUse {
    pub(super) fn new(common: &Arc<Common>) -> Self {
        common.socket_users.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(common))
    }
}

impl Drop for SocketUse {
    fn drop(&mut self) {
        self.0.release_sockets();
    }
}

fn take_own(offers: &mut VecDeque<Box<Offer>>, worker: usize) -> VecDeque<Box<Offer>> {
    let (own, others) = std::mem::take(offers)
        .into_iter()
        .partition(|offer| offer.worker == worker);
    *offers = others;
    own
}

/// A future's place in one of the queues of waiting tasks; dropping it leaves the queue.
pub(crate) struct AcceptPlace {
    common: Arc<Common>,
    line: Line,
    ticket: Ticket,
}

impl AcceptPlace {
    fn new(common: &Arc<Common>, line: Line) -> Self {
        Self {
            common: Arc::clone(common),
            line,
            ticket: Ticket::default(),
        }
    }

    /// A place among the tasks that wait for an attempt.
    pub(crate) fn for_offers(common: &Arc<Common>) -> Self {
        Self::new(common, Line::Offers)
    }

    /// A place among the tasks that wait for an attempt that arrives at one worker.
    pub(crate) fn for_offers_of(common: &Arc<Common>, worker: usize) -> Self {
        Self::new(common, Line::OffersOf(worker))
    }

    /// Waits for the next incoming connection attempt; `None` when the endpoint is closed or no
    /// worker runs.
    pub(crate) fn poll_offer(&mut self, cx: &Context<'_>) -> Poll<Option<Box<Offer>>> {
        let line = self.line;
        self.poll(cx, |queue| match queue.take_offer(line) {
            None if !queue.closed && queue.running > 0 => Poll::Pending,
            offer => Poll::Ready(offer),
        })
    }

    /// Waits in the queue until `poll` is ready.
    fn poll<R>(
        &mut self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut AcceptQueue) -> Poll<R>,
    ) -> Poll<R> {
        let mut queue = lock(&self.common.accept);
        let result = poll(&mut queue);
        let line = queue.line(self.line);
        let discarded = if result.is_pending() {
            line.register(&mut self.ticket, cx.waker())
        } else {
            line.remove(&mut self.ticket)
        };
        // Not a waker under the lock: that may run code of the application's.
        drop(queue);
        drop(discarded);
        result
    }
}

impl Drop for AcceptPlace {
    fn drop(&mut self) {
        if !self.ticket.is_taken() {
            return;
        }
        let mut queue = lock(&self.common.accept);
        let discarded = queue.line(self.line).remove(&mut self.ticket);
        // It may have been woken for an attempt, which the others then take.
        let mut wakers = Vec::new();
        if matches!(self.line, Line::OffersOf(_)) && !queue.offers.is_empty() {
            queue.waiters.move_into(&mut wakers);
        }
        drop(queue);
        drop(discarded);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The owners of the reset tokens of all connections of an endpoint with several workers. Rarely
/// read or changed: for packets of no connection, and when ids are issued or retired.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetTokens(Arc<Mutex<HashMap<[u8; 16], u8>>>);

impl ResetTokens {
    /// Removes the tokens of a worker that has ended.
    fn forget_worker(&self, worker: usize) {
        lock(&self.0).retain(|_, owner| usize::from(*owner) != worker);
    }
}

impl ResetTokenDirectory for ResetTokens {
    fn insert(&mut self, token: [u8; 16], worker: u8) {
        lock(&self.0).insert(token, worker);
    }

    fn remove(&mut self, token: &[u8; 16]) {
        lock(&self.0).remove(token);
    }

    fn worker(&self, token: &[u8; 16]) -> Option<u8> {
        lock(&self.0).get(token).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_a_minute_apart() {
        let limit = WarningLimit::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let admitted: Vec<u64> = (0..=200).filter(|s| limit.admits(at(*s))).collect();
        // At 0 the clock has just started: time 0 is stored as 1 ns.
        assert_eq!(admitted, [0, 61, 121, 181]);
    }
}
