//! Measures, once, a CPU that the table of families does not know: whether 512-bit registers are
//! faster there, and whether the clock falls after their use.
//!
//! ```text
//!   pace ─> 256 and 512 bits, alternating ─> 512 bits for longer than a CPU waits ─> pace
//!                                            before it lowers its clock
//! ```
//! Whatever else the machine is doing makes single slices slower. So each is repeated, and the
//! fastest one counts.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Kernel;
use super::job::{Job, Slots, Splitter};
use crate::span::PacketSpan;

/// Packets of a slice, and bytes of a packet.
const PACKETS: usize = 8;
const PACKET: usize = 1472;
/// Slices of each width.
const SLICES: usize = 16;
/// How long a CPU may take to lower its clock: about 500 µs on those that are known to do so
/// (Skylake-SP), and it stays low for at least as long.
const LOWERED_WITHIN: Duration = Duration::from_millis(1);
/// After this time without wide registers, the clock is as high as before.
const RAISED_WITHIN: Duration = Duration::from_millis(2);
/// A lower clock shows each time; a neighbour that begins to work does not.
const TRIES: usize = 3;
/// Slices of the pace, and dependent additions in each: about 2 µs.
const PACE_SLICES: usize = 12;
const ADDITIONS: u64 = 8_000;
/// Least gain by 512 bits, and most that the rest of the machine may lose by them, in percent.
const LEAST_GAIN: u128 = 3;
const MOST_LOSS: u128 = 3;

/// What was measured: each is the shortest of several times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// Sealing a call's packets in 256 bits and in 512 bits.
    narrow: Duration,
    wide: Duration,
    /// Scalar work before and after 512 bits.
    pace_before: Duration,
    pace_after: Duration,
}

impl Trial {
    /// Measures this CPU, with kernels for 256 bits and for 512 bits.
    pub(super) fn run(narrow: Kernel, wide: Kernel) -> Self {
        let (mut narrow, mut wide) = (Sealing::new(narrow), Sealing::new(wide));
        let mut trial = Self {
            narrow: Duration::MAX,
            wide: Duration::MAX,
            pace_before: pace(),
            pace_after: Duration::ZERO,
        };
        for _ in 0..SLICES {
            trial.narrow = trial.narrow.min(narrow.slice());
            trial.wide = trial.wide.min(wide.slice());
        }
        for left in (0..TRIES).rev() {
            repeat(LOWERED_WITHIN, || wide.slice());
            trial.pace_after = pace();
            if left == 0 || !trial.slows() {
                break;
            }
            repeat(RAISED_WITHIN, pace);
            trial.pace_before = pace();
        }
        trial
    }

    /// The shortest time of a call.
    #[cfg(test)]
    pub(super) fn fastest(&self) -> Duration {
        self.narrow.min(self.wide)
    }

    /// Whether scalar work is slower after 512 bits.
    fn slows(&self) -> bool {
        let (before, after) = (self.pace_before.as_nanos(), self.pace_after.as_nanos());
        after * 100 > before * (100 + MOST_LOSS)
    }

    /// Whether to use 512 bits, and why.
    pub(super) fn verdict(&self) -> (bool, String) {
        let per_packet = |time: Duration| time.as_nanos() / PACKETS as u128;
        let (narrow, wide) = (self.narrow.as_nanos(), self.wide.as_nanos());
        let gains = wide * 100 <= narrow * (100 - LEAST_GAIN);
        let slows = self.slows();
        let seen = format!(
            "this CPU was measured: a packet of {PACKET} bytes takes {} ns in 512 bits, {} ns in 256",
            per_packet(self.wide),
            per_packet(self.narrow)
        );
        let rest = match (gains, slows) {
            (_, true) => ", and other work is slower afterwards",
            (true, false) => ", and other work is not slower afterwards",
            (false, false) => "",
        };
        (gains && !slows, seen + rest)
    }
}

/// A kernel with packets to seal.
struct Sealing {
    kernel: Kernel,
    buf: Vec<u8>,
}

impl Sealing {
    fn new(kernel: Kernel) -> Self {
        kernel.grow_if(|| true);
        let mut first = Self {
            kernel,
            // The first byte of a short header says that the number has two bytes.
            buf: vec![0x41; PACKETS * PACKET],
        };
        // Brings its code and its memory into the caches.
        first.slice();
        first
    }

    /// Seals one call's packets.
    fn slice(&mut self) -> Duration {
        let mut rest = Splitter::new(&mut self.buf);
        let spans = (0..PACKETS).map(|i| PacketSpan {
            header_len: 11,
            packet_number: i as u64,
            ..PacketSpan::new((i * PACKET) as u32, PACKET as u32, 9)
        });
        let jobs = spans.filter_map(|span| Job::to_seal(&mut rest, &span, &[]));
        let mut slots = Slots::new();
        let jobs = slots.fill(jobs);
        let begun = Instant::now();
        self.kernel.seal_alone(jobs);
        let took = begun.elapsed();
        black_box(&self.buf);
        took
    }
}

/// Repeats something for this long.
fn repeat(long: Duration, mut slice: impl FnMut() -> Duration) {
    let begun = Instant::now();
    while begun.elapsed() < long {
        slice();
    }
}

/// The time of a chain of scalar work, which depends on the core's clock.
fn pace() -> Duration {
    let slice = || {
        let begun = Instant::now();
        let mut sum = 0_u64;
        for i in 0..ADDITIONS {
            sum = black_box(sum.wrapping_add(i));
        }
        black_box(sum);
        begun.elapsed()
    };
    (0..PACE_SLICES).map(|_| slice()).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(narrow: u64, wide: u64, before: u64, after: u64) -> Trial {
        let [narrow, wide, pace_before, pace_after] =
            [narrow, wide, before, after].map(Duration::from_nanos);
        Trial {
            narrow,
            wide,
            pace_before,
            pace_after,
        }
    }

    #[test]
    fn wide_registers_must_be_faster_and_slow_nothing_else() {
        let (is_wide, why) = trial(1200, 1100, 10_000, 10_100).verdict();
        assert!(
            is_wide && why.contains("137 ns in 512 bits, 150 ns in 256"),
            "{why}"
        );
        let (is_wide, why) = trial(1200, 1100, 10_000, 10_900).verdict();
        assert!(
            !is_wide && why.ends_with("other work is slower afterwards"),
            "{why}"
        );
        assert!(!trial(1200, 1190, 10_000, 10_000).verdict().0, "no gain");
        assert!(!trial(1200, 1500, 10_000, 10_000).verdict().0);
    }
}
