//! The relay between a worker and the tasks of a multi-thread runtime: one crossing a turn in each
//! direction, however many tasks are concerned.
//!
//! ```text
//! worker ── tasks to wake, one list a turn ──> relay ──> task 1, task 2, task 3 ...
//! worker <── one ring of the doorbell ──────── relay <── task 1, task 2, task 3 ... changed
//!                                                        something
//! ```
//! Waking another thread costs a system call and a context switch, more than a request does. Done
//! once per task, it also breaks up the bundles: a thread woken by the first of many tasks runs at
//! once and finds little to do. The relay is a task on the application's runtime. The worker wakes
//! it with the whole list. It rings the doorbell on its next turn, after all tasks that are ready
//! there.
//!
//! A task that computes for long before that turn delays the ring. The relay measures how long it
//! waited; after a long wait, the next callers ring themselves.
//!
//! There is a relay only where a runtime's threads run whatever the application does: on a
//! multi-thread runtime, not on a current-thread one, which stands still outside of `block_on`.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{self, Handle, RuntimeFlavor};

use super::let_tasks_run::let_tasks_run;
use super::lock::lock;

/// A relay that waited longer than this was held up by other tasks.
const SLOW: Duration = Duration::from_micros(200);
/// How many callers then ring themselves before the relay is tried again.
const DIRECT_AFTER_SLOW: u32 = 64;

/// What a relay rings: a worker's doorbell.
pub(super) trait Bell: Send + Sync {
    /// Wakes the worker if it sleeps.
    fn ring_now(&self);
}

/// The relays of all runtimes.
static RELAYS: LazyLock<Mutex<HashMap<runtime::Id, Weak<Relay>>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The relay of this thread's runtime, once known.
    static OF_THREAD: RefCell<OfThread> = const { RefCell::new(OfThread::Unknown) };
}

enum OfThread {
    Unknown,
    /// Not a thread of a multi-thread runtime.
    None,
    Relay(Arc<Relay>),
}

impl OfThread {
    fn relay(&mut self) -> Option<&Arc<Relay>> {
        if matches!(self, Self::Unknown) {
            *self = Relay::find().map_or(Self::None, Self::Relay);
        }
        match self {
            Self::Relay(relay) => Some(relay),
            Self::None | Self::Unknown => None,
        }
    }
}

/// A task on a multi-thread runtime that wakes other tasks there, and rings doorbells for them.
pub(super) struct Relay {
    runtime: runtime::Id,
    queue: Mutex<Queue>,
    /// How many callers still have to ring themselves.
    direct: AtomicU32,
}

#[derive(Default)]
struct Queue {
    wakers: VecDeque<Waker>,
    bells: Vec<Arc<dyn Bell>>,
    /// Since when the first of them has waited.
    since: Option<Instant>,
    task: Option<Waker>,
    /// The runtime has shut down.
    gone: bool,
}

impl Relay {
    /// The relay of this runtime, without its task.
    pub(super) fn new(runtime: runtime::Id) -> Self {
        Self {
            runtime,
            queue: Mutex::default(),
            direct: AtomicU32::new(0),
        }
    }

    /// Whether it wakes the tasks of this runtime.
    pub(super) fn is_of(&self, runtime: runtime::Id) -> bool {
        self.runtime == runtime
    }

    /// Has the relay of the calling thread's runtime ring this worker's doorbell soon; `false` if
    /// there is none, or if it is too slow at the moment.
    pub(super) fn ring(worker: Arc<dyn Bell>) -> bool {
        OF_THREAD
            .try_with(|of_thread| {
                let Ok(mut of_thread) = of_thread.try_borrow_mut() else {
                    return false;
                };
                let Some(relay) = of_thread.relay() else {
                    return false;
                };
                relay.push(worker).unwrap_or_else(|Gone| {
                    *of_thread = OfThread::Unknown;
                    false
                })
            })
            .unwrap_or(false)
    }

    /// Stores the calling thread's relay, or `None` if it has none.
    pub(super) fn store(place: &mut Option<Arc<Self>>) {
        // If the thread's storage is gone, the thread is ending and waits for nothing.
        let _ = OF_THREAD.try_with(|of_thread| {
            let Ok(mut of_thread) = of_thread.try_borrow_mut() else {
                return;
            };
            let relay = of_thread.relay();
            if place.as_ref().map(Arc::as_ptr) != relay.map(Arc::as_ptr) {
                *place = relay.cloned();
            }
        });
    }

    /// Whether the runtime has shut down.
    pub(super) fn is_gone(&self) -> bool {
        lock(&self.queue).gone
    }

    /// Has the relay wake all these tasks together.
    pub(super) fn wake_all(&self, wakers: &mut Vec<Waker>) {
        let mut queue = lock(&self.queue);
        if queue.gone {
            drop(queue);
            wakers.drain(..).for_each(Waker::wake);
            return;
        }
        queue.wakers.extend(wakers.drain(..));
        let task = queue.task.take();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// The bells have been rung; the first has waited since then.
    fn on_rung(&self, since: Option<Instant>) {
        if since.is_some_and(|since| since.elapsed() > SLOW) {
            self.direct.store(DIRECT_AFTER_SLOW, Ordering::Relaxed);
        }
    }

    /// The relay of the runtime whose task calls.
    fn find() -> Option<Arc<Self>> {
        // The future that `block_on` drives is not such a task, and runs on a thread of its own.
        tokio::task::try_id()?;
        let handle = Handle::try_current().ok()?;
        if handle.runtime_flavor() != RuntimeFlavor::MultiThread {
            return None;
        }
        let mut relays = lock(&RELAYS);
        if let Some(relay) = relays.get(&handle.id()).and_then(Weak::upgrade) {
            return Some(relay);
        }
        relays.retain(|_, relay| relay.strong_count() > 0);
        let relay = Arc::new(Self::new(handle.id()));
        relays.insert(handle.id(), Arc::downgrade(&relay));
        drop(relays);
        handle.spawn(Task::new(Arc::clone(&relay)).run());
        Some(relay)
    }

    /// Takes over a ring; `false` if the caller has to ring itself.
    fn push(&self, worker: Arc<dyn Bell>) -> Result<bool, Gone> {
        let direct = self.direct.load(Ordering::Relaxed);
        if direct > 0 {
            self.direct.store(direct - 1, Ordering::Relaxed);
            return Ok(false);
        }
        let mut queue = lock(&self.queue);
        if queue.gone {
            return Err(Gone);
        }
        queue.bells.push(worker);
        if queue.since.is_none() {
            queue.since = Some(Instant::now());
        }
        let task = queue.task.take();
        drop(queue);
        if let Some(task) = task {
            task.wake();
        }
        Ok(true)
    }
}

/// The relay's runtime has shut down.
#[derive(Debug)]
struct Gone;

/// The relay as its runtime drives it. However it ends, by a shutdown or by a waker that panics,
/// dropping it wakes and rings the rest.
struct Task {
    relay: Arc<Relay>,
    /// Taken out of the queue.
    wakers: VecDeque<Waker>,
}

impl Task {
    fn new(relay: Arc<Relay>) -> Self {
        let wakers = VecDeque::new();
        Self { relay, wakers }
    }

    async fn run(mut self) {
        let mut bells = Vec::new();
        loop {
            poll_fn(|cx| {
                let mut queue = lock(&self.relay.queue);
                if queue.bells.is_empty() && queue.wakers.is_empty() {
                    queue.task = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                std::mem::swap(&mut queue.wakers, &mut self.wakers);
                Poll::Ready(())
            })
            .await;
            if !self.wakers.is_empty() {
                // Wakes another thread before that finds a single task: see `to_wake`.
                let_tasks_run().await;
            }
            self.wake();
            let_tasks_run().await;
            let mut queue = lock(&self.relay.queue);
            std::mem::swap(&mut queue.bells, &mut bells);
            let since = queue.since.take();
            drop(queue);
            self.relay.on_rung(since);
            bells.drain(..).for_each(|worker| worker.ring_now());
        }
    }

    fn wake(&mut self) {
        while let Some(waker) = self.wakers.pop_front() {
            waker.wake();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut queue = lock(&self.relay.queue);
        queue.gone = true;
        let bells = std::mem::take(&mut queue.bells);
        self.wakers.append(&mut queue.wakers);
        drop(queue);
        bells.into_iter().for_each(|worker| worker.ring_now());
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Bell for Count {
        fn ring_now(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn runtime() -> runtime::Runtime {
        let mut builder = runtime::Builder::new_multi_thread();
        builder.worker_threads(1).build().unwrap()
    }

    fn relay() -> Relay {
        Relay::new(runtime().handle().id())
    }

    #[test]
    fn only_tasks_of_a_multi_thread_runtime_have_a_relay() {
        assert!(Relay::find().is_none());
        let multi = runtime();
        assert!(multi.block_on(async { Relay::find() }).is_none());
        let find = || async { (Relay::find(), Relay::find()) };
        let (one, same) = multi.block_on(multi.spawn(find())).unwrap();
        assert!(Arc::ptr_eq(&one.unwrap(), &same.unwrap()));
        let current = runtime::Builder::new_current_thread().build().unwrap();
        let (none, _) = current.block_on(current.spawn(find())).unwrap();
        assert!(none.is_none());
    }

    #[test]
    fn the_bell_rings_after_the_ready_tasks() {
        let runtime = runtime();
        let bell = Arc::new(Count::default());
        let rung = Arc::clone(&bell);
        let before_the_others = runtime.block_on(runtime.spawn(async move {
            // The relay's own task starts.
            assert!(Relay::find().is_some());
            tokio::task::yield_now().await;
            let others: Vec<_> = (0..10)
                .map(|_| {
                    let bell = Arc::clone(&bell);
                    tokio::spawn(async move {
                        assert!(Relay::ring(Arc::clone(&bell) as Arc<dyn Bell>));
                        bell.0.load(Ordering::SeqCst)
                    })
                })
                .collect();
            let mut rung = 0;
            for other in others {
                rung += other.await.unwrap();
            }
            rung
        }));
        assert_eq!(before_the_others.unwrap(), 0);
        while rung.0.load(Ordering::SeqCst) < 10 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_relay_yields_to_ready_tasks_before_it_wakes_others() {
        /// Records whether a task spawned later ran before this one is woken.
        struct Woken(Arc<AtomicUsize>, AtomicUsize);

        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.1
                    .store(1 + self.0.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }

        let runtime = runtime();
        let ran = Arc::new(AtomicUsize::new(0));
        let woken = Arc::new(Woken(Arc::clone(&ran), AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&woken));
        let task = runtime.spawn(async move {
            let relay = Relay::find().unwrap();
            tokio::task::yield_now().await;
            relay.wake_all(&mut vec![waker]);
            // The runtime runs the most recently spawned task before all others.
            let later = tokio::spawn(async move { ran.store(1, Ordering::SeqCst) });
            tokio::spawn(async {}).await.unwrap();
            later.await.unwrap();
        });
        runtime.block_on(task).unwrap();
        while woken.1.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(woken.1.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_runtime_that_shuts_down_still_wakes_every_task() {
        let relay = Arc::new(relay());
        let mut task = Task::new(Arc::clone(&relay));
        let (bell, woken) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let waker = || Waker::from(Arc::clone(&woken));
        relay.wake_all(&mut vec![waker(), waker()]);
        assert!(relay.push(bell.clone()).is_ok_and(|taken| taken));
        // Taken out, and not woken because another one panicked.
        task.wakers.push_back(waker());
        // What shutting down does to a task.
        drop(task);
        assert!(relay.is_gone());
        assert_eq!(woken.0.load(Ordering::SeqCst), 3);
        assert_eq!(bell.0.load(Ordering::SeqCst), 1);
        // No task is left to do it.
        relay.wake_all(&mut vec![waker()]);
        assert_eq!(woken.0.load(Ordering::SeqCst), 4);
        assert!(relay.push(bell).is_err());
    }

    #[test]
    fn callers_ring_the_bell_themselves_after_a_long_wait() {
        let relay = relay();
        let bell = || Arc::new(Count::default());
        assert!(relay.push(bell()).is_ok_and(|taken| taken));
        relay.on_rung(Some(Instant::now().checked_sub(2 * SLOW).unwrap()));
        for _ in 0..DIRECT_AFTER_SLOW {
            assert!(relay.push(bell()).is_ok_and(|taken| !taken));
        }
        assert!(relay.push(bell()).is_ok_and(|taken| taken));
        relay.on_rung(Some(Instant::now() + SLOW));
        assert!(relay.push(bell()).is_ok_and(|taken| taken));
    }
}
