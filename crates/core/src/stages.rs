//! Accounting of time by stage (`design.md` §7): the core marks where a stage ends, the caller brings the clock.
//!
//! A mark costs one branch while accounting is off. When it is on, the ticks since the previous mark are added to the
//! stage just finished, once per batch, so that the sum of all stages is the whole time between first and last mark.

/// What the time went into; the rows of the cost table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
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
    /// The application's own code, run on the worker.
    Application,
    /// Events handed out, tasks woken and chosen: what the asynchronous runtime takes.
    Runtime,
    /// Waiting for events: no CPU time.
    Idle,
    /// All that no other row names.
    Other,
}

impl Stage {
    /// Number of stages.
    pub const COUNT: usize = 14;

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
            Self::Application => "application",
            Self::Runtime => "tasks and wake-ups",
            Self::Idle => "idle",
            Self::Other => "unattributed",
        }
    }
}

/// Ticks by stage of one thread.
#[derive(Clone, Debug)]
pub struct Stages {
    clock: Option<fn() -> u64>,
    last: u64,
    ticks: [u64; Stage::COUNT],
    stamps: u64,
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
            self.ticks[stage as usize] += now.wrapping_sub(self.last);
            self.last = now;
            self.stamps += 1;
        }
    }

    /// Adds what another thread's stages counted.
    pub fn add(&mut self, other: &Self) {
        for (sum, ticks) in self.ticks.iter_mut().zip(other.ticks) {
            *sum += ticks;
        }
        self.stamps += other.stamps;
    }

    /// Ticks of each stage, indexed by `Stage as usize`.
    #[must_use]
    pub const fn ticks(&self) -> &[u64; Stage::COUNT] {
        &self.ticks
    }

    /// Clock reads so far; times the cost of one it is the overhead of accounting.
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
    fn every_tick_between_marks_lands_in_one_stage() {
        let mut stages = Stages::on(clock);
        for stage in Stage::ALL {
            stages.mark(stage);
        }
        assert_eq!(stages.ticks(), &[10; Stage::COUNT]);
        assert_eq!(stages.stamps(), Stage::COUNT as u64);
        let mut off = Stages::off();
        off.mark(Stage::Aead);
        assert_eq!(off.ticks(), &[0; Stage::COUNT]);
    }
}
