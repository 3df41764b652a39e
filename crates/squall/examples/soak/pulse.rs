//! How a process checks and reports its health: which operations are in progress and when each last
//! moved, by a clock that only runs while no fault is in effect; errors by kind; counts. Everything
//! goes to standard output, one line each.

use std::collections::BTreeMap;
use std::collections::hash_map::HashMap;
use std::fmt::Display;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use squall::Endpoint;

/// Calm time within which every operation in progress has to move.
const STALL_MS: u64 = 10_000;
const TICK: Duration = Duration::from_millis(100);

/// What is wrong with an operation.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It failed, as operations may while there are faults.
    Failed(String),
    /// Something that must never happen.
    Wrong(String),
}

impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

#[derive(Default)]
pub(crate) struct Pulse {
    /// Milliseconds without a fault since the start, counted in ticks, so that time in which the
    /// process is stopped or gets no CPU does not count.
    calm_ms: AtomicU64,
    is_calm: AtomicBool,
    /// Counts the faults.
    epoch: AtomicU64,
    next: AtomicU64,
    operations: Mutex<HashMap<u64, Operation>>,
    errors: Mutex<BTreeMap<String, u64>>,
    pub(crate) bytes: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) datagrams: AtomicU64,
    pub(crate) connections_made: AtomicU64,
    /// Workers that ended, of endpoints that are gone.
    pub(crate) worker_ends: AtomicU64,
}

struct Operation {
    name: &'static str,
    moved: Arc<AtomicU64>,
    reported: bool,
}

/// An operation in progress.
pub(crate) struct Moving {
    pulse: Arc<Pulse>,
    id: u64,
    moved: Arc<AtomicU64>,
}

impl Moving {
    /// Records that it has moved.
    pub(crate) fn on(&self) {
        let now = self.pulse.calm_ms.load(Ordering::Relaxed);
        self.moved.store(now, Ordering::Relaxed);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        lock(&self.pulse.operations).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports to the conductor that something is wrong.
pub(crate) fn fail(what: &str) {
    println!("fail {what}");
}

impl Pulse {
    /// Begins an operation: from now on it has to move.
    pub(crate) fn begin(self: &Arc<Self>, name: &'static str) -> Moving {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let moved = Arc::new(AtomicU64::new(self.calm_ms.load(Ordering::Relaxed)));
        let operation = Operation {
            name,
            moved: Arc::clone(&moved),
            reported: false,
        };
        lock(&self.operations).insert(id, operation);
        Moving {
            pulse: Arc::clone(self),
            id,
            moved,
        }
    }

    /// The number of the current calm, if there is one. An operation that begins and fails in the
    /// same calm has no fault to blame.
    pub(crate) fn calm(&self) -> Option<u64> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.is_calm.load(Ordering::Relaxed).then_some(epoch)
    }

    /// Counts an error; without a fault, it fails the run. `since` is the calm in which its
    /// connection began.
    pub(crate) fn error(&self, operation: &str, since: Option<u64>, trouble: Trouble) {
        match trouble {
            Trouble::Wrong(what) => fail(&format!("{operation}: {what}")),
            Trouble::Failed(what) if since.is_some() && since == self.calm() => {
                fail(&format!("{operation} failed without a fault: {what}"));
            }
            Trouble::Failed(what) => self.count(&format!("{operation}: {what}")),
        }
    }

    pub(crate) fn count(&self, what: &(impl Display + ?Sized)) {
        // Numbers within a text would make each one a kind of its own.
        *lock(&self.errors).entry(what.to_string()).or_default() += 1;
    }

    /// A tick of the clock.
    fn tick(&self) {
        if !self.is_calm.load(Ordering::Relaxed) {
            return;
        }
        let step = TICK.as_millis() as u64;
        let now = self.calm_ms.fetch_add(step, Ordering::Relaxed) + step;
        for operation in lock(&self.operations).values_mut() {
            let still = now.saturating_sub(operation.moved.load(Ordering::Relaxed));
            if still > STALL_MS && !operation.reported {
                operation.reported = true;
                let name = operation.name;
                fail(&format!("{name} stands still, {still} ms without a fault"));
            }
        }
    }

    fn sample(&self, endpoint: &Endpoint) {
        let stats = endpoint.stats();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        println!(
            "sample connections={} operations={} made={} bytes={} requests={} datagrams={} worker_ends={} send_errors={} \
             blocked={}",
            stats.connections,
            lock(&self.operations).len(),
            read(&self.connections_made),
            read(&self.bytes),
            read(&self.requests),
            read(&self.datagrams),
            stats.worker_ends + read(&self.worker_ends),
            stats.udp.send_errors,
            stats.udp.send_blocked,
        );
    }

    /// All errors by kind.
    fn report(&self) {
        for (kind, count) in &*lock(&self.errors) {
            println!("error {count} {kind}");
        }
    }

    /// Listens to the conductor until it says `stop` or is gone; takes samples meanwhile.
    pub(crate) async fn beat(self: &Arc<Self>, endpoint: &Endpoint) {
        let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        let mut ticks = tokio::time::interval(TICK);
        // A process that was stopped must not catch up on calm time.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut count = 0_u64;
        loop {
            tokio::select! {
                line = said.recv() => match line.as_deref() {
                    Some("calm") => self.is_calm.store(true, Ordering::Relaxed),
                    Some("fault") => {
                        self.is_calm.store(false, Ordering::Relaxed);
                        self.epoch.fetch_add(1, Ordering::Relaxed);
                    }
                    Some("rebind") => {
                        let address = ([0, 0, 0, 0], 0).into();
                        if let Err(error) = endpoint.rebind(address) {
                            self.count(&format!("rebind: {error}"));
                        }
                    }
                    Some("stop") | None => break,
                    Some(other) => fail(&format!("{other:?} is not a command")),
                },
                _ = ticks.tick() => {
                    self.tick();
                    count += 1;
                    if count.is_multiple_of(10) {
                        self.sample(endpoint);
                    }
                }
            }
        }
        self.is_calm.store(false, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.report();
    }
}
