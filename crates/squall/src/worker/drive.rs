//! The worker's loop: when it works, lets tasks run, and sleeps.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use squall_core::{Stage, Stages, Time};
use squall_udp::RecvBatch;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use super::ended::WorkerEndReason;
use super::let_tasks_run::let_tasks_run;
use super::lock::lock;
use super::receive::{RECV_BYTES, RECV_MESSAGES};
use super::shared::{ConnectionShared, Shared};
use super::{MESSAGE_BYTES, Worker};
use crate::socket::{self, Readable};
use crate::sys::{AddressWatch, PreciseTimer};

/// The wait between attempts to send while the socket is full, in case the system does not report
/// when there is room.
const BLOCKED_RETRY: Duration = Duration::from_millis(5);

/// A sleep until a deadline nearer than this, such as the pacer's, is exact to the microsecond: a
/// late deadline makes a larger burst. The deadlines themselves are whole milliseconds; see
/// `timer_wheel`.
const NEAR: Duration = Duration::from_millis(5);

/// Roughly the longest time that a busy worker keeps its thread's runtime from looking at timers,
/// sockets and tasks that other threads have woken.
const RUNTIME_WAITS: Duration = Duration::from_millis(1);

/// Runs a worker until its endpoint is dropped and its last connection is gone.
///
/// # Errors
/// The reason why it ended early.
pub(crate) async fn run(
    mut worker: Worker,
    fd: Readable,
    addresses: Option<AddressWatch>,
) -> Result<(), WorkerEndReason> {
    let result = turns(&mut worker, fd, addresses).await;
    if let Err(reason) = &result {
        worker.end = reason.to_string();
    }
    result
}

async fn turns(
    worker: &mut Worker,
    mut fd: Readable,
    addresses: Option<AddressWatch>,
) -> Result<(), WorkerEndReason> {
    let shared = Arc::clone(&worker.shared);
    let mut alarm = Alarm::new(&shared);
    let mut recv = RecvBatch::within(RECV_MESSAGES, MESSAGE_BYTES, RECV_BYTES);
    // Nothing is known about the socket before the first check.
    let mut busy = true;
    // For how many more receive calls sending has waited.
    let mut waited = 0;
    // Since when the runtime has waited for the worker.
    let mut busy_since: Option<Time> = None;
    loop {
        // Read before receiving: readiness that arrives in between must not be cleared with it.
        let (readable, addresses_changed) = poll_fn(|cx| {
            let readable = match fd.poll_read_ready(cx) {
                Poll::Ready(Ok(guard)) => Some(guard),
                _ => None,
            };
            let watch = addresses.as_ref();
            let changed = watch.is_some_and(|watch| watch.poll_changed(cx).is_ready());
            Poll::Ready((readable, changed))
        })
        .await;
        {
            let mut stages = lock(&shared.stages);
            stages.mark(Stage::Runtime);
            worker.now = shared.clock.now();
            shared.counters.turns.add(1);
            let receive = match worker.backoff.retry_at() {
                _ if worker.stopped_reading => false,
                None => readable.is_some() || busy || worker.is_late(),
                Some(retry_at) => worker.now >= retry_at,
            };
            if receive {
                let drained = worker.receive(&mut recv, &mut stages)?;
                if let Some(mut guard) = readable.filter(|_| drained) {
                    guard.clear_ready();
                }
            }
            if addresses_changed {
                worker.on_addresses_changed();
            }
            worker.take_forwarded(&mut stages);
            worker.time_out(&mut stages);
        }
        if worker.to_wake.yields_first() {
            // One wake-up of another thread instead of one per task: see `to_wake`.
            let_tasks_run().await;
        }
        let woken = worker.wake_tasks();
        worker.report();
        if woken {
            // What these tasks do belongs to this turn.
            let_tasks_run().await;
        }
        {
            let mut stages = lock(&shared.stages);
            if woken {
                stages.mark(Stage::Runtime);
                worker.now = shared.clock.now();
            }
            worker.take_inbox(&mut stages);
            worker.move_some();
            // One acknowledgement for all that has arrived, and one message for all answers to it.
            if worker.waits_to_send(waited) {
                waited += 1;
            } else {
                waited = 0;
                worker
                    .transmit(&mut stages)
                    .map_err(WorkerEndReason::Socket)?;
            }
            worker.wake_tasks();
            worker.publish_counts();
            stages.mark(Stage::Runtime);
        }
        worker.report();
        if worker.is_done() {
            return Ok(());
        }
        if let Some(readable) = worker.rebound.take() {
            fd = readable;
        }
        fd.watch(!worker.stopped_reading)
            .map_err(WorkerEndReason::Socket)?;
        busy = worker.more_to_receive
            || !worker.starts.is_empty()
            || (!worker.blocked && !worker.ready.is_empty());
        if busy {
            let since = *busy_since.get_or_insert(worker.now);
            if worker.now - since < RUNTIME_WAITS {
                let_tasks_run().await;
            } else {
                tokio::task::yield_now().await;
                busy_since = None;
            }
        } else {
            busy_since = None;
            let until = Until {
                deadline: (worker.wheel.next().into_iter())
                    .chain(worker.moving.due())
                    .min(),
                now: worker.now,
                room_from: worker.blocked.then_some(worker.ask_for_room_at),
                retry_receive: worker.backoff.retry_at(),
            };
            shared.nap_next(worker.coalescing.nap(worker.now));
            let wake = sleep(&fd, addresses.as_ref(), &shared, until, &mut alarm)
                .await
                .map_err(WorkerEndReason::Socket)?;
            if wake == Wake::Doorbell && shared.on_shared_runtime() {
                // A multi-thread runtime runs the most recently woken task before all others, even
                // before those that are about to write.
                let_tasks_run().await;
            }
            if wake == Wake::Room {
                worker.blocked = false;
                let mut stages = lock(&shared.stages);
                worker
                    .flush_into_room(&mut stages)
                    .map_err(WorkerEndReason::Socket)?;
            }
        }
    }
}

/// The runtime's timer, reset only if it would fire too late: deadlines mostly move later, and an
/// occasional empty turn costs less than resetting the timer every turn.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// For near deadlines.
    precise: Option<PreciseTimer>,
    /// Whether `precise` was set last.
    is_near: bool,
    armed: Option<Time>,
    shared: Arc<Shared>,
}

impl Alarm {
    fn new(shared: &Arc<Shared>) -> Self {
        let sleep = Box::pin(tokio::time::sleep_until(shared.clock.instant(Time::ZERO)));
        Self {
            sleep,
            precise: PreciseTimer::new(),
            is_near: false,
            armed: None,
            shared: Arc::clone(shared),
        }
    }

    /// Fires no later than `deadline`, after a turn that began at `now`. Returns false, and sets no
    /// timer, if the deadline has passed since: where the runtime runs many other tasks, a turn can
    /// take milliseconds. Setting a kernel timer costs far more than another turn.
    fn set(&mut self, deadline: Option<Time>, now: Time) -> bool {
        if self.armed.is_some_and(|armed| armed <= now) {
            // What was due is done. The timer has fired, perhaps together with the socket; unless
            // it is set again, it would end the next sleep at once.
            self.armed = None;
        }
        if let Some(deadline) = deadline
            && self.armed.is_none_or(|armed| deadline < armed)
        {
            let left = deadline - self.shared.clock.now();
            if left == Duration::ZERO {
                return false;
            }
            let precise = self.precise.as_ref().filter(|_| left < NEAR);
            self.is_near = precise.is_some();
            match precise {
                Some(precise) => precise.set(left),
                None => (self.sleep.as_mut()).reset(self.shared.clock.instant(deadline)),
            }
            self.armed = Some(deadline);
        }
        true
    }

    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<()> {
        if self.armed.is_none() {
            return Poll::Pending;
        }
        let poll = match &self.precise {
            Some(precise) if self.is_near => precise.poll_fired(cx),
            _ => self.sleep.as_mut().poll(cx),
        };
        if poll.is_ready() {
            self.armed = None;
        }
        poll
    }
}

/// What ends a worker's sleep, besides its doorbell.
#[derive(Clone, Copy)]
struct Until {
    /// A connection's timer, or its turn to move to a new socket.
    deadline: Option<Time>,
    now: Time,
    /// The socket is full: from this time on, wake up when it has room.
    room_from: Option<Time>,
    /// Receiving fails: wake up at this time, whatever the system reports about the socket.
    retry_receive: Option<Time>,
}

/// What ended a worker's sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// The socket, a timer, or an address of the machine.
    Event,
    /// A socket that was full has room.
    Room,
    /// The application, or another worker.
    Doorbell,
}

/// Sleeps until there is something to do.
async fn sleep(
    fd: &Readable,
    addresses: Option<&AddressWatch>,
    shared: &Shared,
    until: Until,
    alarm: &mut Alarm,
) -> std::io::Result<Wake> {
    let mut wake = Wake::Event;
    // A new registration reports room that is already there. Without one a timer has to do.
    let now = until.now;
    let ask = until.room_from.is_some_and(|from| from <= now);
    let writable = ask.then(|| socket::writable(fd).ok()).flatten();
    let retry_send = (until.room_from)
        .filter(|_| writable.is_none())
        .map(|from| from.max(if ask { now + BLOCKED_RETRY } else { now }));
    let deadlines = [until.deadline, retry_send, until.retry_receive];
    if !alarm.set(deadlines.into_iter().flatten().min(), now) {
        let_tasks_run().await;
        return Ok(Wake::Event);
    }
    // A worker's own thread counts the time in which it is parked; here the thread may have other
    // work.
    let is_task = shared.accounting && shared.on_shared_runtime();
    if is_task {
        lock(&shared.stages).wait_begins(Stage::Runtime);
    }
    let result = poll_fn(|cx| {
        if let Some(writable) = &writable
            && let Poll::Ready(ready) = writable.poll_write_ready(cx)
        {
            wake = Wake::Room;
            return Poll::Ready(ready.map(drop));
        }
        // While receiving fails, there may always be something to receive.
        if until.retry_receive.is_none()
            && let Poll::Ready(ready) = fd.poll_read_ready(cx)
        {
            return Poll::Ready(ready.map(drop));
        }
        if addresses.is_some_and(|watch| watch.poll_ready(cx).is_ready()) {
            return Poll::Ready(Ok(()));
        }
        if alarm.poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !shared.fall_asleep(cx.waker()) {
            wake = Wake::Doorbell;
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    })
    .await;
    shared.wake_up();
    shared.nap_next(Duration::ZERO);
    if is_task {
        lock(&shared.stages).wait_ends();
    }
    result.map(|()| wake)
}

/// Runs a task on the worker's thread.
pub(crate) fn spawn<F>(shared: &Arc<Shared>, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_on(shared, None, task)
}

/// As [`spawn`], for a task that belongs to a connection.
pub(crate) fn spawn_for<F>(connection: &Arc<ConnectionShared>, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_on(&connection.worker, Some(connection), task)
}

fn spawn_on<F>(
    shared: &Arc<Shared>,
    connection: Option<&Arc<ConnectionShared>>,
    task: F,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let account = shared.accounting.then(|| Account {
        worker: Arc::clone(shared),
        connection: connection.cloned(),
    });
    shared.runtime().spawn(Accounted { task, account })
}

pin_project_lite::pin_project! {
    /// A task of the application on the worker's thread. It has the same type with and without
    /// accounting, since tokio's code for tasks is compiled once for each type.
    struct Accounted<F> {
        #[pin]
        task: F,
        account: Option<Account>,
    }
}

impl<F: Future> Future for Accounted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let running = this.account.as_ref().map(Account::begin);
        let poll = this.task.poll(cx);
        if let Some(running) = running {
            running.end();
        }
        poll
    }
}

/// Whose time a task takes: it is counted separately from the worker's own.
struct Account {
    worker: Arc<Shared>,
    /// The connection that the task was spawned for.
    connection: Option<Arc<ConnectionShared>>,
}

impl Account {
    fn begin(&self) -> Running<'_> {
        let before = mark(&self.worker, Stage::Runtime);
        Running {
            account: self,
            before,
            within: Accounting::begin(&self.worker),
        }
    }
}

/// An accounted task while it is polled.
struct Running<'a> {
    account: &'a Account,
    /// The ticks by stage when it began.
    before: [u64; Stage::COUNT],
    within: Accounting,
}

impl Running<'_> {
    fn end(self) {
        drop(self.within);
        let after = mark(&self.account.worker, Stage::Application);
        if let Some(connection) = &self.account.connection {
            connection.attribute_task(&self.before, &after);
        }
    }
}

thread_local! {
    /// The worker whose accounted task runs on this thread; null if there is none.
    static ACCOUNTED: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// An accounted task runs until this is dropped, also if it panics.
struct Accounting {
    outer: *const Shared,
}

impl Accounting {
    fn begin(shared: &Arc<Shared>) -> Self {
        Self {
            outer: ACCOUNTED.replace(Arc::as_ptr(shared)),
        }
    }
}

impl Drop for Accounting {
    fn drop(&mut self) {
        ACCOUNTED.set(self.outer);
    }
}

/// Attributes the running task's time since the previous mark to `stage`. Only for a task of this
/// worker, on its thread: others would be marked in the middle of their work.
pub(crate) fn mark_task(shared: &Shared, stage: Stage) {
    if std::ptr::eq(ACCOUNTED.get(), shared) {
        mark(shared, stage);
    }
}

/// Marks a stage outside of a worker's turn. Returns the ticks by stage.
fn mark(shared: &Shared, stage: Stage) -> [u64; Stage::COUNT] {
    let mut stages: std::sync::MutexGuard<'_, Stages> = lock(&shared.stages);
    stages.mark(stage);
    *stages.ticks()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_past_deadline_sets_no_timer() {
        let shared = Arc::new(Shared::for_tests());
        let mut alarm = Alarm::new(&shared);
        let now = shared.clock.now();
        assert!(!alarm.set(Some(now), now) && alarm.armed.is_none());
        let later = now + Duration::from_secs(1);
        assert!(alarm.set(Some(later), now) && alarm.armed == Some(later));
        // The timer already set fires too late for this one.
        assert!(!alarm.set(Some(now), now));
    }
}
