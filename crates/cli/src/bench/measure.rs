//! Rounds of alternating sides over the same packets, each round next to a fixed loop.
//!
//! ```text
//!   a round     additions | side 1 | side 2 | ... | additions
//!               the order of the sides turns with each round; one with slow additions is dropped
//!   a side      restore | work, timed | restore | work, timed | ...  at least 40 µs of work
//! ```
//! Packets lie back to back: 64 distinct ones, and copies of them up to the size of the first-level
//! cache. Restoring resets the bytes, which also brings them into the cache.
//!
//! The additions are of two kinds: a chain in which each waits for the one before, and eight such
//! chains side by side, which fill every unit that adds. Both always take the same number of core
//! cycles: any time beyond their best was lost to other work on the machine, or to a lower clock. A
//! sibling thread on the same core slows only the second kind, and packet protection with it. The
//! best is that of the cell: if a core's clock differs a minute later, that does not count as noise
//! between two alternating sides. The best of the chain also converts nanoseconds into core cycles;
//! the time-stamp counter runs at a rate of its own.

use std::hint::black_box;
use std::time::{Duration, Instant};

use squall_protect::ablation::{self, Way};
use squall_protect::{KernelKind, Keys, Outcome, PacketSpan, Suite, TAG_LEN};
use squall_yard::error::{Failure, Result};
use squall_yard::sys;

use super::args::Direction;
use super::progress::Progress;
use crate::kernels::{keys, suite_name};

/// Distinct packets.
pub(crate) const PACKETS: usize = 64;
/// First byte and a connection id of eight bytes.
const PN_OFFSET: usize = 9;
/// With a packet number of four bytes.
pub(crate) const HEADER_LEN: usize = PN_OFFSET + 4;
/// Short header (RFC 9000 §17.3.1): the fixed bit, and a number of four bytes.
const FIRST_BYTE: u8 = 0x43;
/// Bytes that copies of the 64 packets may take: as much as a first-level cache holds.
const COPIES_LEN: usize = 32 * 1024;
/// The shortest time that a side works in a round.
const LEAST_WORK: Duration = Duration::from_micros(40);
/// Rounds that may be tried for each wanted one, in one attempt.
const TRIES: usize = 4;
/// Attempts at a cell while the machine is too busy.
const ATTEMPTS: usize = 3;

/// The subject of one row of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) suite: Suite,
    pub(crate) kernel: KernelKind,
    pub(crate) direction: Direction,
    /// Packets in a call.
    pub(crate) batch: usize,
    /// Bytes of payload.
    pub(crate) size: usize,
}

/// What a side does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    /// The transport's calls: `PacketKey::seal`, or `HeaderKey::unprotect` and `PacketKey::open`.
    Shipped,
    /// The pieces, combined in this way.
    Pieces(Way),
}

/// The packets in one state.
#[derive(Clone)]
struct Packets {
    /// Header, payload, and the tag or room for it, one packet directly after the other.
    buf: Vec<u8>,
    spans: Vec<PacketSpan>,
}

impl Packets {
    /// Unsealed packets, a whole number of batches.
    fn plain(size: usize, batch: usize) -> Self {
        let len = HEADER_LEN + size + TAG_LEN;
        let copies = (COPIES_LEN / (PACKETS * len)).max(1);
        let count = (PACKETS * copies).next_multiple_of(batch);
        let mut buf = vec![0; count * len];
        let mut spans = Vec::with_capacity(count);
        for (at, packet) in buf.chunks_exact_mut(len).enumerate() {
            let index = at % PACKETS;
            for (offset, byte) in packet.iter_mut().enumerate() {
                *byte = (offset * 31 + index * 7) as u8;
            }
            let number = 0x00c0_ffee + index as u32;
            packet[0] = FIRST_BYTE;
            packet[PN_OFFSET..HEADER_LEN].copy_from_slice(&number.to_be_bytes());
            spans.push(PacketSpan {
                header_len: HEADER_LEN as u16,
                packet_number: number.into(),
                ..PacketSpan::new((at * len) as u32, len as u32, PN_OFFSET as u16)
            });
        }
        Self { buf, spans }
    }

    fn restore(&mut self, pristine: &Self) {
        self.buf.copy_from_slice(&pristine.buf);
        self.spans.copy_from_slice(&pristine.spans);
    }
}

/// The memory that the sides of a cell work on.
pub(crate) struct Course {
    cell: Cell,
    keys: Keys,
    /// The state before the work of a side without header protection, and of one with it.
    without: Packets,
    with: Packets,
    packets: Packets,
}

impl Course {
    /// # Errors
    /// The kernel does not support the suite.
    pub(crate) fn new(cell: Cell) -> Result<Self> {
        let keys = keys(cell.suite, cell.kernel).ok_or_else(|| {
            let (kernel, suite) = (cell.kernel.name(), suite_name(cell.suite));
            Failure::new(format!("the kernel {kernel} does not support {suite}"))
        })?;
        let plain = Packets::plain(cell.size, cell.batch);
        let mut course = Self {
            cell,
            keys,
            without: plain.clone(),
            with: plain.clone(),
            packets: plain.clone(),
        };
        if cell.direction == Direction::Open {
            let (buf, spans) = (&mut course.without.buf, &mut course.without.spans);
            ablation::seal(Way::AeadAlone, &course.keys, buf, spans, &[]);
            let (buf, spans) = (&mut course.with.buf, &mut course.with.spans);
            let Keys { packet, header } = &mut course.keys;
            packet.seal(header, buf, spans, &[]);
            course.without.spans.copy_from_slice(&plain.spans);
            for (span, plain) in course.with.spans.iter_mut().zip(&plain.spans) {
                // What a receiver knows before it removes header protection.
                *span = PacketSpan::new(plain.start, plain.len, plain.pn_offset);
            }
        }
        // Like new keys: nothing kept from the sealing above.
        course.keys.packet.shrink();
        Ok(course)
    }

    /// The keys, to query what their kernel can do.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Packets that one pass works on.
    pub(crate) fn count(&self) -> usize {
        self.packets.spans.len()
    }

    /// Resets the packets to the state in which the side begins.
    pub(crate) fn restore(&mut self, side: Side) {
        let pristine = match side {
            Side::Pieces(Way::AeadAlone) => &self.without,
            _ => &self.with,
        };
        self.packets.restore(pristine);
    }

    /// Works on all packets once, a batch per call.
    pub(crate) fn work(&mut self, side: Side) {
        let Keys { packet, header } = &mut self.keys;
        let Packets { buf, spans } = black_box(&mut self.packets);
        let batches = spans.chunks_mut(self.cell.batch);
        match (self.cell.direction, side) {
            (Direction::Seal, Side::Shipped) => {
                batches.for_each(|batch| packet.seal(header, buf, batch, &[]));
            }
            (Direction::Open, Side::Shipped) => batches.for_each(|batch| {
                header.unprotect(buf, batch);
                packet.open(buf, batch, 0);
            }),
            (Direction::Seal, Side::Pieces(way)) => {
                batches.for_each(|batch| ablation::seal(way, &self.keys, buf, batch, &[]));
            }
            (Direction::Open, Side::Pieces(way)) => {
                batches.for_each(|batch| ablation::open(way, &self.keys, buf, batch));
            }
        }
    }

    /// Whether the last work left every packet sealed or opened.
    ///
    /// # Errors
    /// It did not: the figure would be that of a refusal.
    pub(crate) fn check(&self) -> Result<()> {
        if self
            .packets
            .spans
            .iter()
            .all(|span| span.outcome == Outcome::Open)
        {
            return Ok(());
        }
        Err(Failure::new(format!(
            "the kernel {} refused a packet ({} {} of {} bytes): please report this",
            self.cell.kernel.name(),
            suite_name(self.cell.suite),
            self.cell.direction.name(),
            self.cell.size
        )))
    }

    /// One pass: restored, then timed.
    fn pass(&mut self, side: Side, clock_cost: Duration) -> Duration {
        self.restore(side);
        let start = Instant::now();
        self.work(side);
        start.elapsed().saturating_sub(clock_cost)
    }
}

/// How long each of the fixed loops took.
#[derive(Clone, Copy, Debug)]
struct Additions {
    chain: Duration,
    side_by_side: Duration,
}

impl Additions {
    fn each(self, other: Self, pick: impl Fn(Duration, Duration) -> Duration) -> Self {
        Self {
            chain: pick(self.chain, other.chain),
            side_by_side: pick(self.side_by_side, other.side_by_side),
        }
    }
}

/// The fixed loops.
#[derive(Debug)]
pub(crate) struct Reference {
    /// The shortest times of this cell; `None` on an architecture without the loops.
    best: Option<Additions>,
    /// The cost of reading the clock twice.
    clock_cost: Duration,
}

impl Reference {
    /// Additions in the chain; about 15 µs.
    const ADDITIONS: u64 = 64 * 1_000;
    /// Additions side by side; about 10 µs.
    const SIDE_BY_SIDE: u64 = 64 * 2_500;
    /// A round is dropped if a loop takes more than this multiple of its best.
    pub(crate) const MOST: f64 = 1.03;

    /// Finds the best over some milliseconds, which also raises the core's clock.
    pub(crate) fn calibrate() -> Self {
        let looks = (0..1_000).map(|_| Instant::now().elapsed());
        let mut reference = Self {
            best: None,
            clock_cost: looks.min().unwrap_or_default(),
        };
        for _ in 0..1_000 {
            reference.time();
        }
        reference
    }

    /// Runs the loops once.
    fn time(&mut self) -> Additions {
        let time = |work: fn(u64) -> bool, additions: u64| {
            let start = Instant::now();
            let known = work(additions / 64);
            (start.elapsed().saturating_sub(self.clock_cost), known)
        };
        let (chain, known) = time(sys::addition_chain, Self::ADDITIONS);
        let (side_by_side, _) = time(sys::additions_side_by_side, Self::SIDE_BY_SIDE);
        let took = Additions {
            chain,
            side_by_side,
        };
        if known {
            self.best = Some(
                self.best
                    .map_or(took, |best| best.each(took, Duration::min)),
            );
        }
        took
    }

    /// Whether a run of the loops that took this long had the core to itself.
    fn is_steady(&self, took: Additions) -> bool {
        let within =
            |took: Duration, best: Duration| took.as_secs_f64() <= best.as_secs_f64() * Self::MOST;
        self.best.is_none_or(|best| {
            within(took.chain, best.chain) && within(took.side_by_side, best.side_by_side)
        })
    }

    /// The core's clock, if the chain exists for this architecture.
    pub(crate) fn core_ghz(&self) -> Option<f64> {
        let best = self.best.filter(|best| !best.chain.is_zero())?;
        Some(Self::ADDITIONS as f64 / (best.chain.as_secs_f64() * 1e9))
    }
}

/// One measured round.
struct Round {
    /// ns per packet, one value for each side.
    ns: Vec<f64>,
    /// The slower of the two runs of additions around it, for each kind.
    additions: Additions,
}

/// Figures of the valid rounds.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    /// For each side, ns per packet; values at the same index are from the same round.
    pub(crate) sides: Vec<Vec<f64>>,
    pub(crate) used: usize,
    pub(crate) dropped: usize,
    /// Whether as many rounds as wanted were steady.
    pub(crate) quiet: bool,
}

/// Measures sides over the packets of a course until enough rounds were steady.
///
/// # Errors
/// A packet was refused.
pub(crate) fn measure(
    course: &mut Course,
    sides: &[Side],
    wanted: usize,
    reference: &mut Reference,
    progress: &Progress,
) -> Result<Samples> {
    let mut dropped = 0;
    for attempt in 1.. {
        let mut samples = attempt_to(course, sides, wanted, reference, progress)?;
        samples.dropped += dropped;
        if samples.quiet || attempt == ATTEMPTS {
            return Ok(samples);
        }
        // Perhaps the clock was high for a moment, and everything else is slow in comparison.
        dropped = samples.dropped + samples.used;
    }
    Err(Failure::new("no attempt was made"))
}

fn attempt_to(
    course: &mut Course,
    sides: &[Side],
    wanted: usize,
    reference: &mut Reference,
    progress: &Progress,
) -> Result<Samples> {
    reference.best = None;
    let passes = passes(course, sides, reference)?;
    let mut rounds: Vec<Round> = Vec::with_capacity(wanted);
    loop {
        let steady = rounds
            .iter()
            .filter(|round| reference.is_steady(round.additions));
        let missing = wanted.saturating_sub(steady.count());
        let left = (wanted * TRIES).saturating_sub(rounds.len());
        if missing == 0 || left == 0 {
            break;
        }
        for _ in 0..missing.min(left) {
            let turn = rounds.len();
            rounds.push(round(course, sides, passes, turn, reference)?);
            if turn.is_multiple_of(64) {
                progress.tick();
            }
        }
    }
    Ok(sift(&rounds, sides.len(), wanted, reference))
}

/// How many passes the fastest side makes in the shortest working time.
fn passes(course: &mut Course, sides: &[Side], reference: &Reference) -> Result<u32> {
    let mut shortest = LEAST_WORK;
    for &side in sides {
        // Some passes to warm caches, branch predictors and what a busy key builds.
        for _ in 0..4 {
            shortest = shortest.min(course.pass(side, reference.clock_cost));
        }
        course.check()?;
    }
    let passes = LEAST_WORK.as_nanos().div_ceil(shortest.as_nanos().max(100));
    Ok(u32::try_from(passes).unwrap_or(1))
}

fn round(
    course: &mut Course,
    sides: &[Side],
    passes: u32,
    turn: usize,
    reference: &mut Reference,
) -> Result<Round> {
    let mut ns = vec![0.0; sides.len()];
    let packets = f64::from(passes) * course.count() as f64;
    let before = reference.time();
    for step in 0..sides.len() {
        let at = (step + turn) % sides.len();
        let Some((&side, ns)) = sides.get(at).zip(ns.get_mut(at)) else {
            continue;
        };
        let took: Duration = (0..passes)
            .map(|_| course.pass(side, reference.clock_cost))
            .sum();
        *ns = took.as_secs_f64() * 1e9 / packets;
        course.check()?;
    }
    let additions = before.each(reference.time(), Duration::max);
    Ok(Round { ns, additions })
}

/// Keeps the steady rounds. If there are hardly any, all are kept and the figures called noisy: a
/// figure from a handful of rounds would look better than it is.
fn sift(rounds: &[Round], sides: usize, wanted: usize, reference: &Reference) -> Samples {
    let steady: Vec<&Round> = rounds
        .iter()
        .filter(|round| reference.is_steady(round.additions))
        .collect();
    let enough = steady.len() * 4 >= wanted;
    let kept = if enough {
        steady
    } else {
        rounds.iter().collect()
    };
    Samples {
        sides: (0..sides)
            .map(|side| {
                kept.iter()
                    .filter_map(|round| round.ns.get(side))
                    .copied()
                    .collect()
            })
            .collect(),
        used: kept.len(),
        dropped: rounds.len() - kept.len(),
        quiet: enough && kept.len() >= wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{SUITES, able};

    fn cell(direction: Direction) -> Cell {
        Cell {
            suite: Suite::Aes128Gcm,
            kernel: KernelKind::Portable,
            direction,
            batch: 8,
            size: 64,
        }
    }

    #[test]
    fn every_contender_processes_every_packet_in_both_directions() {
        let sides = [
            Side::Shipped,
            Side::Pieces(Way::AeadAlone),
            Side::Pieces(Way::OneByOne),
            Side::Pieces(Way::Batched(8)),
            Side::Pieces(Way::Fused),
            Side::Pieces(Way::FusedAndBatched),
        ];
        for suite in SUITES {
            for kernel in able(suite) {
                for direction in [Direction::Seal, Direction::Open] {
                    for batch in [1, 10, 32] {
                        let cell = Cell {
                            suite,
                            kernel,
                            batch,
                            ..cell(direction)
                        };
                        let mut course = Course::new(cell).expect("able");
                        assert!(course.count() >= PACKETS && course.count().is_multiple_of(batch));
                        let has = |side: &Side| match side {
                            Side::Pieces(way) => ablation::has(*way, course.keys()),
                            Side::Shipped => true,
                        };
                        let sides: Vec<Side> = sides.into_iter().filter(has).collect();
                        for side in sides.repeat(2) {
                            course.restore(side);
                            assert!(course.check().is_err(), "restored packets are unprocessed");
                            course.work(side);
                            course.check().expect("worked on");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_requested_number_of_rounds_is_measured_for_every_contender() {
        let mut reference = Reference::calibrate();
        let mut course = Course::new(cell(Direction::Open)).expect("portable");
        let sides = [Side::Pieces(Way::AeadAlone), Side::Shipped];
        let samples =
            measure(&mut course, &sides, 5, &mut reference, &Progress::start(1)).expect("measured");
        assert!(samples.used >= 2 && samples.used + samples.dropped <= 5 * TRIES * ATTEMPTS);
        assert!(samples.sides.iter().all(|side| side.len() == samples.used));
        assert!(samples.sides.iter().flatten().all(|&ns| ns > 0.0));
        if let Some(ghz) = reference.core_ghz() {
            assert!((0.2..8.0).contains(&ghz), "{ghz}");
        }
    }

    #[test]
    fn rounds_next_to_slow_reference_additions_are_dropped() {
        let additions = |chain, side_by_side| Additions {
            chain: Duration::from_nanos(chain),
            side_by_side: Duration::from_nanos(side_by_side),
        };
        let reference = Reference {
            best: Some(additions(10_000, 20_000)),
            clock_cost: Duration::ZERO,
        };
        let round = |ns, chain, side_by_side| Round {
            ns: vec![ns],
            additions: additions(chain, side_by_side),
        };
        // A sibling thread slows the additions side by side, but not the chain.
        for slow in [(10_301, 20_000), (10_000, 20_601)] {
            let rounds = [
                round(1.0, 10_299, 20_599),
                round(2.0, slow.0, slow.1),
                round(3.0, 10_000, 20_000),
            ];
            dropped_is_the_second(&rounds, &reference);
        }
    }

    fn dropped_is_the_second(rounds: &[Round], reference: &Reference) {
        let samples = sift(rounds, 1, 2, reference);
        assert_eq!(samples.sides, [[1.0, 3.0]]);
        assert_eq!((samples.used, samples.dropped, samples.quiet), (2, 1, true));
        let fewer = sift(rounds, 1, 4, reference);
        assert_eq!((fewer.used, fewer.dropped, fewer.quiet), (2, 1, false));
        let hardly_any = sift(rounds, 1, 100, reference);
        assert_eq!(
            (hardly_any.used, hardly_any.dropped, hardly_any.quiet),
            (3, 0, false)
        );
    }
}
