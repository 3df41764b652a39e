//! Header protection with AES (RFC 9001 §5.4.3): the masks of several packets in one pass, a lane for each.

use crate::kernel::job::{Masked, Toggle};
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::stitch::Rounds;

/// Masks or unmasks the headers of some jobs.
pub(super) fn headers<L: Lanes, const R: usize, J: Masked>(
    l: L,
    rounds: &Rounds,
    jobs: &mut [J],
    toggle: Toggle,
) {
    match toggle {
        Toggle::Protect => l.call(Protect::<R, J> { rounds, jobs }),
        Toggle::Unprotect => l.call(Unprotect::<R, J> { rounds, jobs }),
    }
}

struct Protect<'a, const R: usize, J> {
    rounds: &'a Rounds,
    jobs: &'a mut [J],
}

impl<L: Lanes, const R: usize, J: Masked> Work<L, ()> for Protect<'_, R, J> {
    #[inline(always)]
    fn run(self, l: L) {
        passes::<L, R, J>(l, self.rounds, self.jobs, Toggle::Protect);
    }
}

struct Unprotect<'a, const R: usize, J> {
    rounds: &'a Rounds,
    jobs: &'a mut [J],
}

impl<L: Lanes, const R: usize, J: Masked> Work<L, ()> for Unprotect<'_, R, J> {
    #[inline(always)]
    fn run(self, l: L) {
        passes::<L, R, J>(l, self.rounds, self.jobs, Toggle::Unprotect);
    }
}

/// All masks, as many at a time as there are.
#[inline(always)]
pub(super) fn passes<L: Lanes, const R: usize, J: Masked>(
    l: L,
    rounds: &Rounds,
    jobs: &mut [J],
    toggle: Toggle,
) {
    macro_rules! passes {
        ($p:literal, $one:literal) => {{
            let (passes, rest) = jobs.as_chunks_mut::<$p>();
            for jobs in passes {
                pass::<L, R, { $p / $one }, $p, J>(l, rounds, jobs, toggle);
            }
            let (passes, rest) = rest.as_chunks_mut::<$one>();
            for jobs in passes {
                pass::<L, R, 1, $one, J>(l, rounds, jobs, toggle);
            }
            for job in rest.as_chunks_mut::<1>().0 {
                pass::<L::Single, R, 1, 1, J>(l.single(), rounds, job, toggle);
            }
        }};
    }
    match L::BLOCKS {
        1 => passes!(4, 1),
        2 => passes!(8, 2),
        _ => passes!(8, 4),
    }
}

/// The headers of `P` packets, in `G` registers.
#[inline(always)]
pub(super) fn pass<L: Lanes, const R: usize, const G: usize, const P: usize, J: Masked>(
    l: L,
    rounds: &Rounds,
    jobs: &mut [J; P],
    toggle: Toggle,
) {
    let s = l.single();
    let first_key = l.broadcast(&rounds.0[0]);
    let mut states = [l.zero(); G];
    for (state, jobs) in states.iter_mut().zip(jobs.chunks_exact(L::BLOCKS)) {
        let mut lanes = [s.zero(); 4];
        for (lane, job) in lanes.iter_mut().zip(jobs) {
            *lane = s.load(job.sample());
        }
        *state = l.xor(first_key, l.lanes(lanes));
    }
    l.aes_rounds::<R, G>(&mut states, rounds);
    for g in 0..G {
        for k in 0..L::BLOCKS {
            jobs[g * L::BLOCKS + k].toggle(s.low(l.lane(states[g], k)), toggle);
        }
    }
}
