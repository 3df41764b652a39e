//! Header protection with AES (RFC 9001 §5.4.3): the masks of several packets in one pass, a lane
//! for each.

use crate::kernel::job::{Headers, Toggle};
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::{Block, Registers};
use crate::kernel::stitch::Rounds;

/// Masks or unmasks some headers.
pub(super) fn headers<L: Lanes, const R: usize>(
    l: L,
    rounds: &Rounds,
    headers: impl Headers,
    toggle: Toggle,
) {
    match toggle {
        Toggle::Protect => l.call(Passes::<R, false, _> { rounds, headers }),
        Toggle::Unprotect => l.call(Passes::<R, true, _> { rounds, headers }),
    }
}

/// A function for each direction, to avoid testing the direction for every packet.
struct Passes<'a, const R: usize, const UNPROTECT: bool, H> {
    rounds: &'a Rounds,
    headers: H,
}

impl<L: Lanes, const R: usize, const UNPROTECT: bool, H: Headers> Work<L, ()>
    for Passes<'_, R, UNPROTECT, H>
{
    #[inline(always)]
    fn run(self, l: L) {
        let toggle = if UNPROTECT {
            Toggle::Unprotect
        } else {
            Toggle::Protect
        };
        passes::<L, R>(l, self.rounds, self.headers, toggle);
    }
}

/// All masks, as many as possible at a time.
#[inline(always)]
pub(super) fn passes<L: Lanes, const R: usize>(
    l: L,
    rounds: &Rounds,
    mut headers: impl Headers,
    toggle: Toggle,
) {
    macro_rules! passes {
        ($p:literal, $one:literal) => {{
            while let Some(headers) = headers.take_first($p) {
                pass::<L, R, { $p / $one }>(l, rounds, headers, toggle);
            }
            while let Some(headers) = headers.take_first($one) {
                pass::<L, R, 1>(l, rounds, headers, toggle);
            }
            while let Some(headers) = headers.take_first(1) {
                pass::<L::Single, R, 1>(l.single(), rounds, headers, toggle);
            }
        }};
    }
    match L::BLOCKS {
        1 => passes!(4, 1),
        2 => passes!(8, 2),
        _ => passes!(8, 4),
    }
}

/// The mask of a sample, for a caller that applies it later.
#[inline(always)]
pub(super) fn of_sample<S: Lanes<Bytes = Block>, const R: usize>(
    s: S,
    rounds: &Rounds,
    sample: &Block,
) -> u64 {
    let mut states = [s.xor(s.load(&rounds.0[0]), s.load(sample))];
    s.aes_rounds::<R, 1>(&mut states, rounds);
    s.low(states[0])
}

/// As many headers as there are lanes in `G` registers.
#[inline(always)]
pub(super) fn pass<L: Lanes, const R: usize, const G: usize>(
    l: L,
    rounds: &Rounds,
    mut headers: impl Headers,
    toggle: Toggle,
) {
    let s = l.single();
    let first_key = l.broadcast(&rounds.0[0]);
    let mut states = [l.zero(); G];
    for (g, state) in states.iter_mut().enumerate() {
        let mut lanes = [s.zero(); 4];
        for (k, lane) in lanes.iter_mut().take(L::BLOCKS).enumerate() {
            *lane = s.load(headers.sample(g * L::BLOCKS + k));
        }
        *state = l.xor(first_key, l.lanes(lanes));
    }
    l.aes_rounds::<R, G>(&mut states, rounds);
    for (g, state) in states.into_iter().enumerate() {
        for k in 0..L::BLOCKS {
            headers.toggle(g * L::BLOCKS + k, s.low(l.lane(state, k)), toggle);
        }
    }
}
