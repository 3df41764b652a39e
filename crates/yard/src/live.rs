//! What a measurement prints while it runs: a live line on a terminal (which round, how fast), and
//! figures per interval if requested. Without either, there is no thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::latency::Shared;

/// Counts what has been done: bytes received, requests answered, or handshakes made.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Called once per read, not per packet.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
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
    /// Datagrams received.
    Datagrams,
    /// Segments received.
    Segments,
    /// Connections closed.
    Connections,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Requests => "requests",
            Self::Handshakes => "handshakes",
            Self::Datagrams => "datagrams",
            Self::Segments => "segments",
            Self::Connections => "connections",
        }
    }

    fn speed(self, per_s: f64) -> String {
        match self {
            Self::Bytes => format!("{:.2} Gbit/s", per_s * 8.0 / 1e9),
            _ => format!("{per_s:.0} {}/s", self.name()),
        }
    }
}

/// A counter by its direction, as seen from the client; only a bulk transfer has one.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Which end sends.
    pub direction: Option<&'static str>,
    /// What has been done so far.
    pub counter: Arc<Counter>,
}

/// What transfers report while they run.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Bytes that the client has received.
    pub down: Arc<Counter>,
    /// Bytes that the client has sent, or that the server has received: whichever is visible.
    pub up: Arc<Counter>,
    /// Smoothed round-trip times of the sending end, one per 256 KiB.
    pub rtt: Shared,
    /// From a stream's creation to the first byte of its download.
    pub first_byte: Shared,
}

/// What was done in one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Since the measurement began.
    pub start_s: f64,
    /// Since the measurement began.
    pub end_s: f64,
    /// Which end sends, in a bulk transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<&'static str>,
    /// What was transferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The rate of the transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_per_s: Option<f64>,
    /// Requests answered, or handshakes made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Their rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
}

impl Interval {
    fn new(
        unit: Unit,
        direction: Option<&'static str>,
        start: Duration,
        end: Duration,
        amount: u64,
    ) -> Self {
        let seconds = (end.saturating_sub(start)).as_secs_f64().max(1e-9);
        let is_bytes = unit == Unit::Bytes;
        let per_s = amount as f64 / seconds;
        Self {
            start_s: start.as_secs_f64(),
            end_s: end.as_secs_f64(),
            direction,
            bytes: is_bytes.then_some(amount),
            gbit_per_s: is_bytes.then_some(per_s * 8.0 / 1e9),
            count: (!is_bytes).then_some(amount),
            per_s: (!is_bytes).then_some(per_s),
        }
    }
}

/// In iperf3's format: when, how much, how fast.
impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:7.2}-{:<7.2} s", self.start_s, self.end_s)?;
        if let (Some(bytes), Some(rate)) = (self.bytes, self.gbit_per_s) {
            write!(f, "{:10.2} MB{rate:9.3} Gbit/s", bytes as f64 / 1e6)?;
        }
        if let (Some(count), Some(rate)) = (self.count, self.per_s) {
            write!(f, "{count:10}{rate:11.0} per second")?;
        }
        match self.direction {
            Some(direction) => write!(f, "  {direction}"),
            None => Ok(()),
        }
    }
}

/// Cuts the time into intervals, each of the requested length or slightly longer.
struct Cutter {
    unit: Unit,
    lanes: Vec<Lane>,
    every: Duration,
    /// When the current interval began, and what had been done by then.
    from: Duration,
    done: Vec<u64>,
    intervals: Vec<Interval>,
}

impl Cutter {
    fn new(unit: Unit, lanes: &[Lane], every: Duration) -> Self {
        Self {
            unit,
            lanes: lanes.to_vec(),
            every,
            from: Duration::ZERO,
            done: vec![0; lanes.len()],
            intervals: Vec::new(),
        }
    }

    /// The earliest end of the current interval: intervals begin on multiples of their length, as
    /// far as threads wake in time.
    fn due(&self) -> Duration {
        let every = self.every.as_nanos().max(1);
        let next = (self.from.as_nanos() / every + 1) * every;
        // A thread may wake slightly early, which would produce an interval of length zero.
        u64::try_from(next).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// Ends the current interval, one for each lane.
    fn cut(&mut self, now: Duration) -> &[Interval] {
        let first = self.intervals.len();
        for (lane, done) in self.lanes.iter().zip(&mut self.done) {
            let (done_now, direction) = (lane.counter.get(), lane.direction);
            let amount = done_now - *done;
            let interval = Interval::new(self.unit, direction, self.from, now, amount);
            self.intervals.push(interval);
            *done = done_now;
        }
        self.from = now;
        &self.intervals[first..]
    }

    /// The time after the last cut becomes an interval of its own if it is long enough to have a
    /// rate; otherwise it is added to the last one. Returns the intervals not yet reported.
    fn end(&mut self, now: Duration) -> &[Interval] {
        // The work may have ended before the connections were closed; nothing has happened since.
        let lanes = self.lanes.len();
        while self.intervals.len() > lanes
            && (self.intervals.last()).is_some_and(|last| last.start_s >= now.as_secs_f64())
        {
            self.intervals.truncate(self.intervals.len() - lanes);
        }
        let rest = now.saturating_sub(self.from);
        if self.intervals.is_empty() || rest * 10 >= self.every {
            return self.cut(now);
        }
        let first = self.intervals.len() - lanes;
        for ((lane, done), last) in
            (self.lanes.iter().zip(&self.done)).zip(&mut self.intervals[first..])
        {
            let amount = last.bytes.or(last.count).unwrap_or(0) + lane.counter.get() - done;
            let start = Duration::from_secs_f64(last.start_s);
            *last = Interval::new(self.unit, last.direction, start, now, amount);
        }
        &[]
    }
}

/// Called with each interval as it ends.
pub type Tell = Box<dyn Fn(&Interval) + Send>;

/// Prints lines above the live line.
#[derive(Clone)]
pub struct Printer(ProgressBar);

impl Printer {
    /// Runs `print` while the live line is out of the way.
    pub fn print(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }
}

/// A live line on standard error; removed when dropped.
pub struct Live {
    bar: ProgressBar,
    stop: Arc<OnceLock<Instant>>,
    ticker: Option<JoinHandle<Vec<Interval>>>,
}

impl Live {
    const TICK: Duration = Duration::from_millis(200);

    /// Starts the line.
    pub fn start(title: String, unit: Unit, lanes: &[Lane]) -> Self {
        Self::with_intervals(title, unit, lanes, None)
    }

    /// Starts the line, and reports each interval if requested. Time starts now.
    pub fn with_intervals(
        title: String,
        unit: Unit,
        lanes: &[Lane],
        intervals: Option<(Duration, Tell)>,
    ) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let stop = Arc::new(OnceLock::new());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        let mut ticker = Ticker {
            bar: bar.clone(),
            stop: Arc::clone(&stop),
            line: Line::new(title, unit, lanes),
            intervals: intervals.map(|(every, tell)| (Cutter::new(unit, lanes, every), tell)),
            begin: Instant::now(),
        };
        let thread = (!bar.is_hidden() || ticker.intervals.is_some()).then(|| {
            let builder = thread::Builder::new().name("live line".to_owned());
            builder.spawn(move || ticker.run()).ok()
        });
        Self {
            bar,
            stop,
            ticker: thread.flatten(),
        }
    }

    /// A printer whose lines do not collide with the live line.
    pub fn printer(&self) -> Printer {
        Printer(self.bar.clone())
    }

    /// Ends the line and returns all intervals; the last one ends when the work was done, or now.
    pub fn finish(mut self, done: Option<Instant>) -> Vec<Interval> {
        self.end(done)
    }

    fn end(&mut self, done: Option<Instant>) -> Vec<Interval> {
        // After the first call there is no thread to read it.
        let _ = self.stop.set(done.unwrap_or_else(Instant::now));
        let intervals = self.ticker.take().map(|ticker| {
            ticker.thread().unpark();
            // A ticker that panicked has nothing to return.
            ticker.join().unwrap_or_default()
        });
        self.bar.finish_and_clear();
        intervals.unwrap_or_default()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// The thread of a [`Live`].
struct Ticker {
    bar: ProgressBar,
    stop: Arc<OnceLock<Instant>>,
    line: Line,
    intervals: Option<(Cutter, Tell)>,
    begin: Instant,
}

impl Ticker {
    fn run(&mut self) -> Vec<Interval> {
        let end = loop {
            if let Some(end) = self.stop.get() {
                break end.saturating_duration_since(self.begin);
            }
            let now = self.begin.elapsed();
            let due = self.intervals.as_ref().map(|(cutter, _)| cutter.due());
            let sleep = due.map_or(Live::TICK, |due| due.saturating_sub(now).min(Live::TICK));
            thread::park_timeout(sleep);
            let now = self.begin.elapsed();
            if let Some((cutter, tell)) = &mut self.intervals
                && now >= cutter.due()
            {
                let intervals = cutter.cut(now);
                self.bar.suspend(|| intervals.iter().for_each(tell));
            }
            if !self.bar.is_hidden() {
                self.bar.set_message(self.line.text(now));
                self.bar.tick();
            }
        };
        let Some((cutter, tell)) = &mut self.intervals else {
            return Vec::new();
        };
        let intervals = cutter.end(end);
        self.bar.suspend(|| intervals.iter().for_each(tell));
        std::mem::take(&mut cutter.intervals)
    }
}

/// What the live line shows: the current rate and the total.
struct Line {
    title: String,
    unit: Unit,
    lanes: Vec<Lane>,
    /// When progress was last seen, and how much had been done.
    at: Duration,
    done: u64,
    now_per_s: f64,
}

impl Line {
    /// The rate is taken over at least this time: over less, it jumps.
    const OVER: Duration = Duration::from_millis(500);
    /// If nothing progresses for this long, the line says so instead of showing a rate.
    const SILENCE: Duration = Duration::from_secs(1);

    fn new(title: String, unit: Unit, lanes: &[Lane]) -> Self {
        Self {
            title,
            unit,
            lanes: lanes.to_vec(),
            at: Duration::ZERO,
            done: 0,
            now_per_s: 0.0,
        }
    }

    fn text(&mut self, now: Duration) -> String {
        let done: u64 = self.lanes.iter().map(|lane| lane.counter.get()).sum();
        let since = now.saturating_sub(self.at);
        let title = &self.title;
        if done == self.done && since >= Self::SILENCE {
            let what = match self.unit {
                Unit::Bytes => "data",
                unit => unit.name(),
            };
            return format!("{title}: no {what} for {} s", since.as_secs());
        }
        if done > self.done && since >= Self::OVER {
            self.now_per_s = (done - self.done) as f64 / since.as_secs_f64();
            (self.done, self.at) = (done, now);
        }
        if self.done == 0 {
            return title.clone();
        }
        let mean = done as f64 / now.as_secs_f64();
        let (rate, mean) = (self.unit.speed(self.now_per_s), self.unit.speed(mean));
        format!(
            "{title}: {rate}, {mean} on average over {:.0} s",
            now.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(directions: &[Option<&'static str>]) -> Vec<Lane> {
        let lane = |direction: &Option<&'static str>| Lane {
            direction: *direction,
            counter: Arc::default(),
        };
        directions.iter().map(lane).collect()
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_line_shows_current_and_average_rate_or_a_stall() {
        let lanes = lanes(&[None]);
        let mut line = Line::new("round 1".to_owned(), Unit::Bytes, &lanes);
        assert_eq!(line.text(ms(200)), "round 1");
        lanes[0].counter.add(125_000_000);
        assert_eq!(
            line.text(ms(500)),
            "round 1: 2.00 Gbit/s, 2.00 Gbit/s on average over 0 s"
        );
        lanes[0].counter.add(125_000_000);
        assert_eq!(
            line.text(ms(1_500)),
            "round 1: 1.00 Gbit/s, 1.33 Gbit/s on average over 2 s"
        );
        assert_eq!(line.text(ms(4_600)), "round 1: no data for 3 s");
        let mut line = Line::new("client".to_owned(), Unit::Requests, &lanes);
        line.done = 250_000_000;
        assert_eq!(line.text(ms(2_000)), "client: no requests for 2 s");
    }

    #[test]
    fn intervals_cover_the_time_without_gaps_and_lose_nothing() {
        let lanes = lanes(&[Some("download"), Some("upload")]);
        let mut cutter = Cutter::new(Unit::Bytes, &lanes, ms(1_000));
        assert_eq!(cutter.due(), ms(1_000));
        lanes[0].counter.add(1_000_000);
        lanes[1].counter.add(10);
        assert_eq!(cutter.cut(ms(1_002)).len(), 2);
        // A late cut does not move later ones.
        assert_eq!(cutter.due(), ms(2_000));
        lanes[0].counter.add(2_000_000);
        cutter.cut(ms(2_000));
        assert_eq!(cutter.due(), ms(3_000));
        // Too short for a rate of its own.
        lanes[0].counter.add(5);
        assert!(cutter.end(ms(2_020)).is_empty());
        let all = cutter.intervals;
        let times: Vec<_> = all.iter().map(|one| (one.start_s, one.end_s)).collect();
        assert_eq!(
            times,
            [(0.0, 1.002), (0.0, 1.002), (1.002, 2.02), (1.002, 2.02)]
        );
        let bytes: Vec<_> = all.iter().filter_map(|one| one.bytes).collect();
        assert_eq!(bytes, [1_000_000, 10, 2_000_005, 0]);
        assert_eq!(
            all[0].to_string(),
            "   0.00-1.00    s      1.00 MB    0.008 Gbit/s  download"
        );
    }

    #[test]
    fn a_long_enough_remainder_is_an_interval() {
        let lanes = lanes(&[None]);
        let mut cutter = Cutter::new(Unit::Requests, &lanes, ms(1_000));
        lanes[0].counter.add(10);
        cutter.cut(ms(1_000));
        lanes[0].counter.add(20);
        let last = cutter.end(ms(1_500)).first().expect("one");
        assert_eq!((last.count, last.per_s), (Some(20), Some(40.0)));
        // Connections were closed after the work had ended.
        let mut late = Cutter::new(Unit::Requests, &lanes, ms(100));
        for at in [100, 200, 300, 400] {
            late.cut(ms(at));
        }
        assert!(late.end(ms(190)).is_empty());
        let last = late.intervals.last().expect("two");
        assert_eq!((late.intervals.len(), last.end_s), (2, 0.19));
        // A measurement shorter than an interval still has one.
        let mut short = Cutter::new(Unit::Requests, &lanes, ms(1_000));
        assert_eq!(short.end(ms(1)).len(), 1);
    }
}
