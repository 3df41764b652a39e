//! What all workers of an endpoint share: the clock, the line of those who want to connect, and whose a stateless reset
//! is.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use squall_core::{ResetTokenDirectory, Time};
use squall_wire::{DatagramBatch, Ecn, Path};
use tokio::sync::Notify;

use super::incoming::AttemptKey;
use crate::qlog::QlogFolder;

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

impl HeldRun {
    /// A copy of a run.
    pub(crate) fn of(run: &DatagramBatch<'_>) -> Self {
        Self {
            path: run.path,
            ecn: run.ecn,
            segment_size: run.segment_size,
            bytes: run.bytes.to_vec(),
        }
    }

    /// The run, as it came.
    pub(crate) fn batch(&mut self) -> DatagramBatch<'_> {
        DatagramBatch {
            path: self.path,
            ecn: self.ecn,
            segment_size: self.segment_size,
            bytes: &mut self.bytes,
        }
    }
}

/// A connection attempt that waits for the application's word, with the datagrams that made it.
pub(crate) struct Offer {
    /// The worker that it came to, and that the connection will live on.
    pub(crate) worker: usize,
    pub(crate) incoming: squall_core::Incoming,
    pub(crate) run: HeldRun,
}

impl Offer {
    /// Which attempt it is about.
    pub(crate) fn key(&self) -> AttemptKey {
        (self.run.path.remote, self.incoming.destination_id())
    }
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

/// Attempts that wait for `Endpoint::accept`.
#[derive(Default)]
struct AcceptQueue {
    offers: VecDeque<Box<Offer>>,
    waiters: Waiters,
    closed: bool,
}

/// What all workers of an endpoint share.
pub(crate) struct Common {
    pub(crate) clock: Clock,
    /// Told whenever a worker's last connection goes.
    pub(crate) idle: Notify,
    /// Where connections are logged.
    pub(crate) qlog: Option<QlogFolder>,
    accept: Mutex<AcceptQueue>,
    max_incoming: usize,
}

impl Common {
    pub(crate) fn new(max_incoming: usize, qlog: Option<QlogFolder>) -> Self {
        Self {
            qlog,
            clock: Clock::start(),
            idle: Notify::new(),
            accept: Mutex::default(),
            max_incoming: max_incoming.max(1),
        }
    }

    // ---- from the application -----------------------------------------------------------------------------------

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

    /// Whether the endpoint was closed.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.accept).closed
    }

    // ---- from the workers ---------------------------------------------------------------------------------------

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

    /// Lets no more attempts in and wakes who waits for one. Returns those of this worker that nobody took.
    pub(crate) fn close_accept(&self, worker: usize) -> VecDeque<Box<Offer>> {
        let mut accept = lock(&self.accept);
        accept.closed = true;
        let (own, others) = std::mem::take(&mut accept.offers)
            .into_iter()
            .partition(|offer| offer.worker == worker);
        accept.offers = others;
        let waiters = accept.waiters.take();
        drop(accept);
        waiters.into_iter().for_each(Waker::wake);
        own
    }
}

/// Whose a stateless reset is, of all connections of an endpoint with several workers. Asked and changed rarely: by what
/// belongs to nobody, and when ids come and go.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetTokens(Arc<Mutex<HashMap<[u8; 16], u8>>>);

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
