//! Accounting of time by stage: the core marks where a stage ends, the caller supplies the clock.
//!
//! A mark costs one branch while accounting is off. When it is on, the ticks since the previous
//! mark are added to the stage just finished, once per batch, so that the sum of all stages is the
//! whole time between first and last mark.

use std::time::Duration;

/// The stages; the rows of the cost table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[non_exhaustive]
pub enum Stage {
    /// System calls that send.
    UdpSend,
    /// System calls that receive.
    UdpReceive,
    /// AEAD seal and open. On the send path header protection is part of the same pass.
    Aead,
    /// Header protection removed on receipt.
    HeaderProtection,
    /// Headers and frames written.
    PacketBuilding,
    /// Datagrams split and frames parsed.
    FrameParsing,
    /// Acknowledgements, loss detection, congestion control.
    AckLoss,
    /// Handshakes: TLS, keys derived and expanded, connections made.
    Handshake,
    /// Stream data copied into and out of stream buffers, flow control.
    Streams,
    /// Timers.
    Timers,
    /// HTTP/3: streams read and written, frames, messages, replies (RFC 9114).
    Http,
    /// Field sections encoded and decoded (RFC 9204).
    Qpack,
    /// The application's own code, run on the worker.
    Application,
    /// Delivering events, waking and choosing tasks: the cost of the asynchronous runtime.
    Runtime,
    /// Waiting for events: no CPU time.
    Idle,
    /// Everything not covered by another row.
    Other,
}

impl Stage {
    /// Number of stages.
    pub const COUNT: usize = 16;

    /// All stages, in the order of the table.
    pub const ALL: [Self; Self::COUNT] = [
        Self::UdpSend,
        Self::UdpReceive,
        Self::Aead,
        Self::HeaderProtection,
        Self::PacketBuilding,
        Self::FrameParsing,
        Self::AckLoss,
        Self::Handshake,
        Self::Streams,
        Self::Timers,
        Self::Http,
        Self::Qpack,
        Self::Application,
        Self::Runtime,
        Self::Idle,
        Self::Other,
    ];

    /// The row's name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UdpSend => "UDP send",
            Self::UdpReceive => "UDP receive",
            Self::Aead => "AEAD",
            Self::HeaderProtection => "header protection",
            Self::PacketBuilding => "packet building",
            Self::FrameParsing => "frame parsing",
            Self::AckLoss => "ACK and loss",
            Self::Handshake => "handshake",
            Self::Streams => "streams and copies",
            Self::Timers => "timers",
            Self::Http => "HTTP/3",
            Self::Qpack => "QPACK",
            Self::Application => "application",
            Self::Runtime => "tasks and wake-ups",
            Self::Idle => "idle",
            Self::Other => "unattributed",
        }
    }
}

/// Ticks by stage on one thread.
#[derive(Clone, Debug)]
pub struct Stages {
    clock: Option<fn() -> u64>,
    last: u64,
    ticks: [u64; Stage::COUNT],
    stamps: u64,
    cpu_clock: Option<fn() -> Option<Duration>>,
    /// The CPU clock at the start of a measured wait.
    wait_from: Option<Duration>,
    waits: Waits,
}

/// One wait in this many is measured: reading a thread's CPU clock twice takes two system calls,
/// 450 ns each on a virtual Zen 5. For every wait, that would raise the accounting of a bulk
/// transfer from 0.8 to 1.3 % of the time.
const WAITS_FOR_ONE: u64 = 7;

/// The cost of waiting for events: a thread that goes to sleep and is woken spends CPU time on it,
/// about which [`Stage::Idle`]'s ticks, mostly spent asleep, say nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// How often the thread waited.
    pub count: u64,
    /// The number of measured waits.
    pub measured: u64,
    /// The thread's CPU time in the measured waits.
    pub cpu: Duration,
}

impl Waits {
    const fn none() -> Self {
        Self {
            count: 0,
            measured: 0,
            cpu: Duration::ZERO,
        }
    }

    /// The difference from an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            count: self.count - before.count,
            measured: self.measured - before.measured,
            cpu: self.cpu.saturating_sub(before.cpu),
        }
    }
}

impl std::ops::AddAssign for Waits {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.measured += other.measured;
        self.cpu += other.cpu;
    }
}

impl Stages {
    /// Accounting off: marks do nothing.
    #[must_use]
    pub const fn off() -> Self {
        Self {
            clock: None,
            last: 0,
            ticks: [0; Stage::COUNT],
            stamps: 0,
            cpu_clock: None,
            wait_from: None,
            waits: Waits::none(),
        }
    }

    /// Accounting on, with `clock` as the source of ticks (any monotonic counter).
    #[must_use]
    pub fn on(clock: fn() -> u64) -> Self {
        Self {
            clock: Some(clock),
            last: clock(),
            ticks: [0; Stage::COUNT],
            stamps: 0,
            cpu_clock: None,
            wait_from: None,
            waits: Waits::none(),
        }
    }

    /// Whether marks are counted.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.clock.is_some()
    }

    /// Attributes the ticks since the previous mark to `stage`.
    #[inline]
    pub fn mark(&mut self, stage: Stage) {
        if let Some(clock) = self.clock {
            let now = clock();
            // A task of a multi-thread runtime may have moved to a core whose counter is slightly
            // behind.
            self.ticks[stage as usize] += now.saturating_sub(self.last);
            self.last = now;
            self.stamps += 1;
        }
    }

    /// Starts over: the ticks since the previous mark go to no stage.
    pub fn resume(&mut self) {
        if let Some(clock) = self.clock {
            self.last = clock();
        }
    }

    /// Adds ticks that were measured elsewhere to `stage`.
    pub fn attribute(&mut self, stage: Stage, ticks: u64) {
        self.ticks[stage as usize] += ticks;
    }

    /// Adds what `other` has counted since its ticks were `before`.
    pub fn add_since(&mut self, other: &Self, before: &[u64; Stage::COUNT]) {
        for (sum, (ticks, before)) in self.ticks.iter_mut().zip(other.ticks.iter().zip(before)) {
            *sum += ticks.wrapping_sub(*before);
        }
    }

    /// Also measures the cost of waiting, with the calling thread's CPU clock; if it fails, nothing
    /// is measured.
    #[must_use]
    pub fn with_cpu_clock(mut self, clock: fn() -> Option<Duration>) -> Self {
        self.cpu_clock = Some(clock);
        self
    }

    /// The thread goes to sleep now; its time since the previous mark belongs to `stage`.
    pub fn wait_begins(&mut self, stage: Stage) {
        self.mark(stage);
        if self.waits.count.is_multiple_of(WAITS_FOR_ONE) {
            self.wait_from = self.cpu_clock.and_then(|clock| clock());
        }
        self.waits.count += u64::from(self.is_on());
    }

    /// The thread is awake again.
    pub fn wait_ends(&mut self) {
        if let Some(from) = self.wait_from.take()
            && let Some(to) = self.cpu_clock.and_then(|clock| clock())
        {
            self.waits.measured += 1;
            self.waits.cpu += to.saturating_sub(from);
        }
        self.mark(Stage::Idle);
    }

    /// Adds the stages of another thread.
    pub fn add(&mut self, other: &Self) {
        for (sum, ticks) in self.ticks.iter_mut().zip(other.ticks) {
            *sum += ticks;
        }
        self.stamps += other.stamps;
        self.waits += other.waits;
    }

    /// Ticks of each stage, indexed by `Stage as usize`.
    #[must_use]
    pub const fn ticks(&self) -> &[u64; Stage::COUNT] {
        &self.ticks
    }

    /// The cost of waiting.
    #[must_use]
    pub const fn waits(&self) -> Waits {
        self.waits
    }

    /// Clock reads so far; multiplied by the cost of one, this is the overhead of accounting.
    #[must_use]
    pub const fn stamps(&self) -> u64 {
        self.stamps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static TICKS: AtomicU64 = AtomicU64::new(0);

    fn clock() -> u64 {
        TICKS.fetch_add(10, Ordering::Relaxed)
    }

    #[test]
    fn a_clock_that_runs_backwards_adds_no_time() {
        static BEHIND: AtomicU64 = AtomicU64::new(100);
        let mut stages = Stages::on(|| BEHIND.fetch_sub(10, Ordering::Relaxed));
        stages.attribute(Stage::Aead, 5);
        stages.mark(Stage::Aead);
        assert_eq!(stages.ticks()[Stage::Aead as usize], 5);
    }

    #[test]
    fn every_tick_between_marks_is_attributed_to_one_stage() {
        let mut stages = Stages::on(clock);
        for stage in Stage::ALL {
            stages.mark(stage);
        }
        assert_eq!(stages.ticks(), &[10; Stage::COUNT]);
        assert_eq!(stages.stamps(), Stage::COUNT as u64);
        // A part of another's time, and a pause that belongs to none.
        let before = *stages.ticks();
        stages.mark(Stage::Aead);
        let mut part = Stages::on(clock);
        part.add_since(&stages, &before);
        part.attribute(Stage::UdpSend, 3);
        assert_eq!(part.ticks().iter().sum::<u64>(), 13);
        clock();
        part.resume();
        part.mark(Stage::Timers);
        assert_eq!(part.ticks()[Stage::Timers as usize], 10);
        let mut off = Stages::off();
        off.mark(Stage::Aead);
        off.wait_begins(Stage::Aead);
        off.wait_ends();
        assert_eq!(off.ticks(), &[0; Stage::COUNT]);
        assert_eq!(off.waits().count, 0);
    }

    #[test]
    fn waits_are_sampled() {
        static CPU: AtomicU64 = AtomicU64::new(0);
        let cpu = || Some(Duration::from_nanos(CPU.fetch_add(7, Ordering::Relaxed)));
        let mut stages = Stages::on(clock).with_cpu_clock(cpu);
        let before = stages.waits();
        for _ in 0..2 * WAITS_FOR_ONE {
            stages.wait_begins(Stage::Runtime);
            stages.wait_ends();
        }
        let waits = stages.waits().since(&before);
        assert_eq!((waits.count, waits.measured), (2 * WAITS_FOR_ONE, 2));
        assert_eq!(waits.cpu, Duration::from_nanos(14));
        for stage in [Stage::Runtime, Stage::Idle] {
            assert!(stages.ticks()[stage as usize] >= 20 * WAITS_FOR_ONE);
        }
        // Without such a clock, waits are still counted, but not measured.
        let mut blind = Stages::on(clock).with_cpu_clock(|| None);
        blind.wait_begins(Stage::Runtime);
        blind.wait_ends();
        assert_eq!((blind.waits().count, blind.waits().measured), (1, 0));
        assert_eq!(blind.waits().cpu, Duration::ZERO);
        blind.add(&stages);
        assert_eq!(
            blind.waits().since(&stages.waits()).count,
            1,
            "threads add up"
        );
    }
}
