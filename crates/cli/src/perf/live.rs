//! The live line on a terminal: which round runs and how fast. Silent on a pipe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bytes that the receivers have counted so far.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Called once per read, not per packet.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A live line on standard error; gone when dropped.
pub(crate) struct Live {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    ticker: Option<JoinHandle<()>>,
}

impl Live {
    const TICK: Duration = Duration::from_millis(200);

    /// Starts the line. Without a terminal there is no thread and no output.
    pub(crate) fn start(title: String, counter: &Arc<Counter>) -> Self {
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
                .spawn(move || tick(&bar, &stop, &counter, &title))
                .ok()
        };
        Self { bar, stop, ticker }
    }
}

fn tick(bar: &ProgressBar, stop: &AtomicBool, counter: &Counter, title: &str) {
    let mut bytes = counter.get();
    let mut at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        bar.set_message(title.to_owned());
        thread::park_timeout(Live::TICK);
        let (bytes_now, now) = (counter.get(), Instant::now());
        let gbit = (bytes_now - bytes) as f64 * 8.0 / (now - at).as_secs_f64() / 1e9;
        bar.set_message(format!("{title}: {gbit:.2} Gbit/s"));
        bar.tick();
        (bytes, at) = (bytes_now, now);
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
