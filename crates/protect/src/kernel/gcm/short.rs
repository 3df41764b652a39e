//! Short packets of one length in blocks, up to 160 bytes: a lane for each packet, so that no lane
//! is idle and nothing is folded.
//!
//! ```text
//!               lane 0     lane 1
//!   AES         J0 of a    J0 of b     what encrypts the tags
//!               c1 of a    c1 of b     the key stream, N registers
//!   GHASH       A of a     A of b      times H^(N+2)
//!               C1 of a    C1 of b     times H^(N+1), ...
//!               L of a     L of b      times H
//! ```
//! All packets of a pass take the same powers of H, each of them broadcast, and one reduction
//! serves a register's worth of packets. `G` such registers are processed side by side, because the
//! states of one do not fill the pipelines.

use super::{COUNTERS, Key, mask};
use crate::kernel::Job;
use crate::kernel::ghash::{self, Sum};
use crate::kernel::job::Toggle;
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::{Crypto, Registers};
use crate::kernel::stitch::Rounds;

/// Bytes in the payload of the longest packet that this code takes, if its number has four bytes:
/// with a shorter number the payload has up to three more, and may reach into another block. For
/// longer packets the other forms take about as long.
const MAX_LEN: usize = 160;

/// The same for packets that this code takes even if they do not fill a register of four lanes.
const MAX_LEN_ALONE: usize = 64;

/// Bytes in the longest header.
const MAX_HEADER_LEN: usize = 16;

/// Jobs for one form of the algorithm. The long one takes half as long again for 64 bytes, so the
/// choice must not depend on how long a received number is: it goes by [`Job::public_lens`].
pub(super) enum Run<'r, 'a> {
    /// All of one length in blocks, 1 to 11, with headers of at most one.
    Short(&'r mut [Job<'a>]),
    /// With a longer payload or header, or possibly an empty payload, or too few to fill a
    /// register.
    Long(&'r mut [Job<'a>]),
}

/// The first run of some jobs, and the rest.
#[inline(always)]
pub(super) fn split<'r, 'a, L: Lanes>(jobs: &'r mut [Job<'a>]) -> (Run<'r, 'a>, &'r mut [Job<'a>]) {
    let (mut count, fit) = first_run::<L>(jobs);
    if fit > 0 {
        let (run, rest) = jobs.split_at_mut(fit);
        return (Run::Short(run), rest);
    }
    while count < jobs.len() {
        match first_run::<L>(&jobs[count..]) {
            (more, 0) => count += more,
            _ => break,
        }
    }
    let (run, rest) = jobs.split_at_mut(count);
    (Run::Long(run), rest)
}

/// How many jobs at the start are of one kind (long, or short and of the same number of blocks),
/// and how many of these this code takes.
#[inline(always)]
fn first_run<L: Lanes>(jobs: &[Job<'_>]) -> (usize, usize) {
    let blocks = jobs.first().map_or(0, blocks_of);
    if blocks == 0 {
        return (jobs.iter().take_while(|job| !is_short(job)).count(), 0);
    }
    let least_len = 16 * blocks - 15;
    let is_same = |job: &&Job<'_>| (job.payload_len().wrapping_sub(least_len) < 16) & is_short(job);
    let count = jobs.iter().take_while(is_same).count();
    // The rest would not fill a register of four lanes, and is faster one by one.
    let fills_registers = (L::BLOCKS == 4) & (jobs[0].public_lens().1 > MAX_LEN_ALONE);
    let left = if fills_registers {
        count % L::BLOCKS
    } else {
        0
    };
    (count, count - left)
}

#[inline(always)]
fn is_short(job: &Job<'_>) -> bool {
    let (header_len, payload_len) = job.public_lens();
    (header_len <= MAX_HEADER_LEN) & (payload_len.wrapping_sub(1) < MAX_LEN)
}

/// The blocks of a short packet's payload; 0 if it is not short.
#[inline(always)]
fn blocks_of(job: &Job<'_>) -> usize {
    if is_short(job) {
        job.payload_len().div_ceil(16)
    } else {
        0
    }
}

/// Cuts a run into passes and calls a macro for each, by the lanes of a register and the blocks of
/// a payload: `N` blocks, `G` registers of packets, `P` packets, `T` AES states. The rest fills one
/// register at a time; packets that do not fill one go one by one.
macro_rules! passes {
    ($l:ident, $jobs:ident, $pass:ident) => {
        match (L::BLOCKS, $jobs.first().map_or(0, |job| job.payload_len().div_ceil(16))) {
            (1, 1) => passes!($l, $jobs, $pass, [1 4 4 8], [1 1 1 2], [1 1 1 2]),
            (1, 2) => passes!($l, $jobs, $pass, [2 4 4 12], [2 1 1 3], [2 1 1 3]),
            (1, 3) => passes!($l, $jobs, $pass, [3 2 2 8], [3 1 1 4], [3 1 1 4]),
            (1, 4) => passes!($l, $jobs, $pass, [4 2 2 10], [4 1 1 5], [4 1 1 5]),
            (1, 5) => passes!($l, $jobs, $pass, [5 2 2 12], [5 1 1 6], [5 1 1 6]),
            (1, 6) => passes!($l, $jobs, $pass, [6 1 1 7]),
            (1, 7) => passes!($l, $jobs, $pass, [7 1 1 8]),
            (1, 8) => passes!($l, $jobs, $pass, [8 1 1 9]),
            (1, 9) => passes!($l, $jobs, $pass, [9 1 1 10]),
            (1, 10) => passes!($l, $jobs, $pass, [10 1 1 11]),
            (1, _) => passes!($l, $jobs, $pass, [11 1 1 12]),
            (2, 1) => passes!($l, $jobs, $pass, [1 4 8 8], [1 1 2 2], [1 1 1 2]),
            (2, 2) => passes!($l, $jobs, $pass, [2 4 8 12], [2 1 2 3], [2 1 1 3]),
            (2, 3) => passes!($l, $jobs, $pass, [3 2 4 8], [3 1 2 4], [3 1 1 4]),
            (2, 4) => passes!($l, $jobs, $pass, [4 2 4 10], [4 1 2 5], [4 1 1 5]),
            (2, 5) => passes!($l, $jobs, $pass, [5 2 4 12], [5 1 2 6], [5 1 1 6]),
            (2, 6) => passes!($l, $jobs, $pass, [6 1 2 7], [6 1 1 7]),
            (2, 7) => passes!($l, $jobs, $pass, [7 1 2 8], [7 1 1 8]),
            (2, 8) => passes!($l, $jobs, $pass, [8 1 2 9], [8 1 1 9]),
            (2, 9) => passes!($l, $jobs, $pass, [9 1 2 10], [9 1 1 10]),
            (2, 10) => passes!($l, $jobs, $pass, [10 1 2 11], [10 1 1 11]),
            (2, _) => passes!($l, $jobs, $pass, [11 1 2 12], [11 1 1 12]),
            (_, 1) => passes!($l, $jobs, $pass, [1 2 8 4], [1 1 4 2], [1 1 1 2]),
            (_, 2) => passes!($l, $jobs, $pass, [2 2 8 6], [2 1 4 3], [2 1 1 3]),
            (_, 3) => passes!($l, $jobs, $pass, [3 2 8 8], [3 1 4 4], [3 1 1 4]),
            (_, 4) => passes!($l, $jobs, $pass, [4 2 8 10], [4 1 4 5], [4 1 1 5]),
            (_, 5) => passes!($l, $jobs, $pass, [5 2 8 12], [5 1 4 6], [5 1 1 6]),
            (_, 6) => passes!($l, $jobs, $pass, [6 1 4 7]),
            (_, 7) => passes!($l, $jobs, $pass, [7 1 4 8]),
            (_, 8) => passes!($l, $jobs, $pass, [8 1 4 9]),
            (_, 9) => passes!($l, $jobs, $pass, [9 1 4 10]),
            (_, 10) => passes!($l, $jobs, $pass, [10 1 4 11]),
            (_, _) => passes!($l, $jobs, $pass, [11 1 4 12]),
        }
    };
    ($l:ident, $jobs:ident, $pass:ident, $full:tt, $register:tt, $single:tt) => {{
        let done = passes!($l, $jobs, $pass, $full from 0);
        let done = passes!($l, $jobs, $pass, $register from done);
        let l = $l.single();
        passes!(l, $jobs, $pass, $single from done);
    }};
    ($l:ident, $jobs:ident, $pass:ident, $register:tt, $single:tt) => {{
        let done = passes!($l, $jobs, $pass, $register from 0);
        let l = $l.single();
        passes!(l, $jobs, $pass, $single from done);
    }};
    ($l:ident, $jobs:ident, $pass:ident, $register:tt) => {{
        let done = passes!($l, $jobs, $pass, $register from 0);
        debug_assert!(done == $jobs.len(), "the run fills registers");
    }};
    // One form, from a job on; returns where it ends.
    ($l:ident, $jobs:ident, $pass:ident,
     [$n:literal $g:literal $p:literal $t:literal] from $from:expr) => {{
        let passes = $jobs[$from..].as_chunks_mut::<$p>().0;
        let end = $from + passes.len() * $p;
        if !passes.is_empty() {
            $pass!($l, $n, $g, $p, $t, passes, $from);
        }
        end
    }};
}

/// Encrypts the payloads and writes the tags of a short run, and masks the headers if there are
/// round keys for that.
pub(super) fn seal<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
    header: Option<&Rounds>,
) {
    macro_rules! pass {
        ($l:ident, $n:literal, $g:literal, $p:literal, $t:literal, $passes:ident, $first:expr) => {
            $l.call(Seal::<R, S, $n, $g, $p, $t> {
                key,
                passes: &mut *$passes,
                header,
            })
        };
    }
    passes!(l, jobs, pass);
}

/// Decrypts the payloads of a short run; bit `i` of the result says that the tag of job `i` is
/// right.
pub(super) fn open<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) -> u32 {
    let mut good = 0;
    macro_rules! pass {
        ($l:ident, $n:literal, $g:literal, $p:literal, $t:literal, $passes:ident, $first:expr) => {
            good |= $l.call(Open::<R, S, $n, $g, $p, $t> {
                key,
                passes: &mut *$passes,
            }) << $first
        };
    }
    passes!(l, jobs, pass);
    good
}

/// Passes of one form over a part of a run.
struct Seal<
    'k,
    'r,
    'a,
    const R: usize,
    const S: usize,
    const N: usize,
    const G: usize,
    const P: usize,
    const T: usize,
> {
    key: &'k Key<R, S>,
    passes: &'r mut [[Job<'a>; P]],
    header: Option<&'k Rounds>,
}

impl<
    L: Lanes,
    const R: usize,
    const S: usize,
    const N: usize,
    const G: usize,
    const P: usize,
    const T: usize,
> Work<L, ()> for Seal<'_, '_, '_, R, S, N, G, P, T>
{
    #[inline(always)]
    fn run(self, l: L) {
        // One pass behind: a sample that reaches into the tag spans two stores, and cannot be read
        // until both have left the core.
        let mut sealed: Option<&mut [Job<'_>; P]> = None;
        for jobs in self.passes {
            seal_pass::<L, R, S, N, G, P, T>(l, self.key, jobs);
            if let (Some(rounds), Some(jobs)) = (self.header, sealed.replace(jobs)) {
                mask::pass::<L, R, G>(l, rounds, &mut jobs[..], Toggle::Protect);
            }
        }
        if let (Some(rounds), Some(jobs)) = (self.header, sealed) {
            mask::pass::<L, R, G>(l, rounds, &mut jobs[..], Toggle::Protect);
        }
    }
}

/// Passes of one form over a part of a run.
struct Open<
    'k,
    'r,
    'a,
    const R: usize,
    const S: usize,
    const N: usize,
    const G: usize,
    const P: usize,
    const T: usize,
> {
    key: &'k Key<R, S>,
    passes: &'r mut [[Job<'a>; P]],
}

impl<
    L: Lanes,
    const R: usize,
    const S: usize,
    const N: usize,
    const G: usize,
    const P: usize,
    const T: usize,
> Work<L, u32> for Open<'_, '_, '_, R, S, N, G, P, T>
{
    #[inline(always)]
    fn run(self, l: L) -> u32 {
        let mut good = 0;
        for (i, jobs) in self.passes.iter_mut().enumerate() {
            good |= open_pass::<L, R, S, N, G, P, T>(l, self.key, jobs) << (i * P);
        }
        good
    }
}

/// What is computed before a pass touches a payload.
struct Pass<'k, L: Lanes, const N: usize, const G: usize, const T: usize> {
    /// The key stream: for each register of packets a pad for the tags, then `N` for the payloads.
    states: [L::V; T],
    /// What cuts the last block of each payload.
    masks: [L::V; G],
    sum: Sum<'k, L, N, G>,
}

impl<'k, L: Lanes, const N: usize, const G: usize, const T: usize> Pass<'k, L, N, G, T> {
    #[inline(always)]
    fn new<const R: usize, const S: usize, const P: usize>(
        l: L,
        key: &'k Key<R, S>,
        jobs: &[Job<'_>; P],
    ) -> Self {
        let s = l.single();
        let first_key = s.load(&key.rounds.0[0]);
        // One small loop for each kind of block, since the compiler unrolls those.
        let zeros = [s.zero(); P];
        let (mut bases, mut cuts, mut firsts, mut lasts) = (zeros, zeros, zeros, zeros);
        for (base, job) in bases.iter_mut().zip(jobs) {
            let (low, high) = key.nonce(job.path_and_number());
            *base = s.xor(first_key, s.splat(low, high));
        }
        for ((cut, last), job) in cuts.iter_mut().zip(&mut lasts).zip(jobs) {
            *cut = ghash::block_mask(s, job.payload_len() - 16 * (N - 1));
            *last = ghash::lengths(s, job);
        }
        for (first, job) in firsts.iter_mut().zip(jobs) {
            let header = s.load(job.first_block());
            *first = s.reverse(s.and(header, ghash::block_mask(s, job.packet_and_header_len().1)));
        }
        let mut states = [l.zero(); T];
        let mut masks = [l.zero(); G];
        let (mut associated, mut lengths) = ([l.zero(); G], [l.zero(); G]);
        for g in 0..G {
            let base = l.lanes(lanes::<L, P>(l, &bases, g));
            masks[g] = l.lanes(lanes::<L, P>(l, &cuts, g));
            associated[g] = l.lanes(lanes::<L, P>(l, &firsts, g));
            lengths[g] = l.lanes(lanes::<L, P>(l, &lasts, g));
            // SP 800-38D §7.1: counter 1 is the tag's.
            states[g * (N + 1)] = l.xor(base, l.splat(0, 1 << 56));
            for j in 0..N {
                states[g * (N + 1) + j + 1] = l.xor(base, l.broadcast(&COUNTERS.0[j]));
            }
        }
        l.aes_rounds::<R, T>(&mut states, &key.rounds);
        Self {
            states,
            masks,
            sum: Sum::new(l, key.table(), &associated, &lengths),
        }
    }

    /// Encrypts the payloads, and returns the tags.
    #[inline(always)]
    fn seal<const P: usize>(mut self, l: L, jobs: &mut [Job<'_>; P]) -> [L::V; G] {
        for j in 0..N {
            let mut data = [l.zero(); G];
            for (g, data) in data.iter_mut().enumerate() {
                *data = l.xor(self.pad(g, j), read::<L, P>(l, jobs, g, j));
                if j == N - 1 {
                    *data = l.and(*data, self.masks[g]);
                }
                write::<L, P>(l, jobs, g, j, *data);
            }
            self.sum.add(l, j, &data);
        }
        self.tags(l)
    }

    /// Decrypts the payloads, and returns the tags that they should have.
    #[inline(always)]
    fn open<const P: usize>(mut self, l: L, jobs: &mut [Job<'_>; P]) -> [L::V; G] {
        for j in 0..N {
            let mut data = [l.zero(); G];
            for (g, data) in data.iter_mut().enumerate() {
                let read = read::<L, P>(l, jobs, g, j);
                let mut pad = self.pad(g, j);
                *data = read;
                if j == N - 1 {
                    // The tag follows the payload, and is left as it is.
                    (*data, pad) = (l.and(read, self.masks[g]), l.and(pad, self.masks[g]));
                }
                write::<L, P>(l, jobs, g, j, l.xor(read, pad));
            }
            self.sum.add(l, j, &data);
        }
        self.tags(l)
    }

    #[inline(always)]
    fn pad(&self, g: usize, j: usize) -> L::V {
        self.states[g * (N + 1) + j + 1]
    }

    #[inline(always)]
    fn tags(&self, l: L) -> [L::V; G] {
        let mut tags = self.sum.finish(l);
        for (g, tag) in tags.iter_mut().enumerate() {
            *tag = l.xor(*tag, self.states[g * (N + 1)]);
        }
        tags
    }
}

/// The blocks for the lanes of register `g`.
#[inline(always)]
fn lanes<L: Lanes, const P: usize>(l: L, blocks: &[L::Lane; P], g: usize) -> [L::Lane; 4] {
    let mut lanes = [l.single().zero(); 4];
    lanes[..L::BLOCKS].copy_from_slice(&blocks[g * L::BLOCKS..][..L::BLOCKS]);
    lanes
}

/// Block `j` of the payloads of register `g`.
#[inline(always)]
fn read<L: Lanes, const P: usize>(l: L, jobs: &mut [Job<'_>; P], g: usize, j: usize) -> L::V {
    let s = l.single();
    let mut lanes = [s.zero(); 4];
    for (lane, job) in lanes
        .iter_mut()
        .zip(&mut jobs[g * L::BLOCKS..][..L::BLOCKS])
    {
        // SAFETY: the payloads of a pass have all its blocks: that is what makes a short run.
        *lane = s.load(unsafe { job.block_mut(j) });
    }
    l.lanes(lanes)
}

#[inline(always)]
fn write<L: Lanes, const P: usize>(l: L, jobs: &mut [Job<'_>; P], g: usize, j: usize, v: L::V) {
    for (k, job) in jobs[g * L::BLOCKS..][..L::BLOCKS].iter_mut().enumerate() {
        // SAFETY: the payloads of a pass have all its blocks: that is what makes a short run.
        l.single().store(unsafe { job.block_mut(j) }, l.lane(v, k));
    }
}

#[inline(always)]
fn seal_pass<
    L: Lanes,
    const R: usize,
    const S: usize,
    const N: usize,
    const G: usize,
    const P: usize,
    const T: usize,
>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>; P],
) {
    for job in &mut *jobs {
        job.take_short_source();
    }
    let pass = Pass::<L, N, G, T>::new(l, key, jobs);
    let tags = pass.seal(l, jobs);
    for g in 0..G {
        for k in 0..L::BLOCKS {
            l.single()
                .store(jobs[g * L::BLOCKS + k].tag_mut(), l.lane(tags[g], k));
        }
    }
}

#[inline(always)]
fn open_pass<
    L: Lanes,
    const R: usize,
    const S: usize,
    const N: usize,
    const G: usize,
    const P: usize,
    const T: usize,
>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>; P],
) -> u32 {
    let pass = Pass::<L, N, G, T>::new(l, key, jobs);
    let tags = pass.open(l, jobs);
    let mut good = 0;
    for (g, tag) in tags.into_iter().enumerate() {
        for k in 0..L::BLOCKS {
            let i = g * L::BLOCKS + k;
            let mut expected = [0; 16];
            l.single().store(&mut expected, l.lane(tag, k));
            // Constant time: all bytes are compared at once.
            let received = *jobs[i].tag_mut();
            let difference = u128::from_le_bytes(expected) ^ u128::from_le_bytes(received);
            good |= u32::from(difference == 0) << i;
        }
    }
    for job in jobs {
        job.fill_short_target();
    }
    good
}
