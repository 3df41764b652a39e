//! The live line on a terminal: which round runs and how fast. Silent on a pipe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::latency::Shared;

/// What was done so far: bytes received, requests answered, or handshakes made.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Called once per read, not per packet.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a counter counts, which decides how its speed is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes received.
    Bytes,
    /// Requests answered.
    Requests,
    /// Handshakes made.
    Handshakes,
}

impl Unit {
    fn speed(self, per_s: f64) -> String {
        match self {
            Self::Bytes => format!("{:.2} Gbit/s", per_s * 8.0 / 1e9),
            Self::Requests => format!("{per_s:.0} requests/s"),
            Self::Handshakes => format!("{per_s:.0} handshakes/s"),
        }
    }
}

/// What transfers report while they run.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// What was done so far.
    pub live: Arc<Counter>,
    /// Smoothed round-trip times of the sending end, one each 256 KiB.
    pub rtt: Shared,
    /// From a stream's creation to the first byte of its download.
    pub first_byte: Shared,
}

/// A live line on standard error; gone when dropped.
pub struct Live {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    ticker: Option<JoinHandle<()>>,
}

impl Live {
    const TICK: Duration = Duration::from_millis(200);

    /// Starts the line. Without a terminal there is no thread and no output.
    pub fn start(title: String, unit: Unit, counter: &Arc<Counter>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let stop = Arc::new(AtomicBool::new(false));
        let ticker = if bar.is_hidden() {
            None
        } else {
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            let (bar, stop, counter) = (bar.clone(), Arc::clone(&stop), Arc::clone(counter));
            thread::Builder::new()
                .name("live line".to_owned())
                .spawn(move || tick(&bar, &stop, &counter, unit, &title))
                .ok()
        };
        Self { bar, stop, ticker }
    }
}

fn tick(bar: &ProgressBar, stop: &AtomicBool, counter: &Counter, unit: Unit, title: &str) {
    let mut done = counter.get();
    let mut at = Instant::now();
    bar.set_message(title.to_owned());
    while !stop.load(Ordering::Relaxed) {
        thread::park_timeout(Live::TICK);
        let (done_now, now) = (counter.get(), Instant::now());
        let per_s = (done_now - done) as f64 / (now - at).as_secs_f64();
        bar.set_message(format!("{title}: {}", unit.speed(per_s)));
        bar.tick();
        (done, at) = (done_now, now);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(ticker) = self.ticker.take() {
            ticker.thread().unpark();
            // A ticker that panicked has nothing left to show.
            let _ = ticker.join();
        }
        self.bar.finish_and_clear();
    }
}
