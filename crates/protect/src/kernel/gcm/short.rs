//! Short packets of one length in blocks: a lane for each packet, so that no lane is idle and nothing is folded.
//!
//! ```text
//!               lane 0     lane 1
//!   AES         J0 of a    J0 of b     what encrypts the tags
//!               c1 of a    c1 of b     the key stream, N registers
//!   GHASH       A of a     A of b      times H^(N+2)
//!               C1 of a    C1 of b     times H^(N+1), ...
//!               L of a     L of b      times H
//! ```
//! All packets of a pass take the same powers of H, each of them broadcast, and one reduction serves a register's worth of
//! packets. `G` such registers go side by side, because the states of one do not fill the pipelines.

use super::seal::Plaintext;
use super::{COUNTERS, Key};
use crate::kernel::ghash::{Sum, mask};
use crate::kernel::lanes::{Block, Lanes};
use crate::kernel::stitch::middle_rounds;
use crate::kernel::{Job, MAX_JOBS};
use crate::span::TAG_LEN;

/// Blocks in the payload of the longest packet that is worked on here.
pub(super) const MAX_BLOCKS: usize = 4;

/// Jobs for one form of the algorithm.
pub(super) enum Run<'r, 'a> {
    /// All of one length in blocks.
    Short(&'r mut [Job<'a>]),
    /// With more blocks than [`MAX_BLOCKS`], or with none.
    Long(&'r mut [Job<'a>]),
}

/// The first run of some jobs, and what is behind it.
#[inline(always)]
pub(super) fn split<'r, 'a>(jobs: &'r mut [Job<'a>]) -> (Run<'r, 'a>, &'r mut [Job<'a>]) {
    let blocks = |job: &Job<'_>| job.payload_len().div_ceil(16);
    let is_short = |blocks| (1..=MAX_BLOCKS).contains(&blocks);
    let first = jobs.first().map_or(0, blocks);
    let same = |job: &&Job<'_>| {
        let blocks = blocks(job);
        blocks == first || !is_short(blocks) && !is_short(first)
    };
    let (run, rest) = jobs.split_at_mut(jobs.iter().take_while(same).count());
    if is_short(first) {
        (Run::Short(run), rest)
    } else {
        (Run::Long(run), rest)
    }
}

/// Calls a macro with the blocks of a packet and the registers of packets that go side by side.
macro_rules! by_blocks {
    ($jobs:ident, $call:ident) => {
        match $jobs
            .first()
            .map_or(0, |job| job.payload_len().div_ceil(16))
        {
            1 => $call!(1, 4),
            2 => $call!(2, 2),
            3 => $call!(3, 2),
            _ => $call!(4, 2),
        }
    };
}

/// Encrypts the payloads and writes the tags, of a short run.
#[inline(always)]
pub(super) fn seal<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) {
    macro_rules! run {
        ($n:literal, $g:literal) => {{
            let mut passes = jobs.chunks_exact_mut($g * L::BLOCKS);
            for jobs in &mut passes {
                seal_pass::<L, R, S, $n, $g>(l, key, jobs);
            }
            let mut passes = passes.into_remainder().chunks_exact_mut(L::BLOCKS);
            for jobs in &mut passes {
                seal_pass::<L, R, S, $n, 1>(l, key, jobs);
            }
            for job in passes.into_remainder().chunks_exact_mut(1) {
                seal_pass::<L::Single, R, S, $n, 1>(l.single(), key, job);
            }
        }};
    }
    by_blocks!(jobs, run);
}

/// Decrypts the payloads of a short run; bit `i` of the answer says that the tag of job `i` is right.
#[inline(always)]
pub(super) fn open<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) -> u32 {
    let mut good = 0;
    let mut at = 0;
    macro_rules! run {
        ($n:literal, $g:literal) => {{
            let mut passes = jobs.chunks_exact_mut($g * L::BLOCKS);
            for jobs in &mut passes {
                good |= open_pass::<L, R, S, $n, $g>(l, key, jobs) << at;
                at += $g * L::BLOCKS;
            }
            let mut passes = passes.into_remainder().chunks_exact_mut(L::BLOCKS);
            for jobs in &mut passes {
                good |= open_pass::<L, R, S, $n, 1>(l, key, jobs) << at;
                at += L::BLOCKS;
            }
            for job in passes.into_remainder().chunks_exact_mut(1) {
                good |= open_pass::<L::Single, R, S, $n, 1>(l.single(), key, job) << at;
                at += 1;
            }
        }};
    }
    by_blocks!(jobs, run);
    good
}

/// The key stream of a pass.
struct KeyStream<L: Lanes, const N: usize, const G: usize> {
    /// For the tags.
    tags: [L::V; G],
    /// For the payloads, by block.
    blocks: [[L::V; G]; N],
}

#[inline(always)]
fn key_stream<L: Lanes, const R: usize, const S: usize, const N: usize, const G: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &[Job<'_>],
) -> KeyStream<L, N, G> {
    let s = l.single();
    let first_key = s.load(&key.rounds.0[0]);
    let mut tags = [l.zero(); G];
    let mut blocks = [[l.zero(); G]; N];
    for (g, jobs) in jobs.chunks_exact(L::BLOCKS).take(G).enumerate() {
        let mut lanes = [s.zero(); 4];
        for (lane, job) in lanes.iter_mut().zip(jobs) {
            let (low, high) = key.nonce(job.number());
            *lane = s.xor(first_key, s.splat(low, high));
        }
        let base = l.lanes(lanes);
        // SP 800-38D §7.1: counter 1 is the tag's.
        tags[g] = l.xor(base, l.splat(0, 1 << 56));
        for (block, counter) in blocks.iter_mut().zip(&COUNTERS.0) {
            block[g] = l.xor(base, l.broadcast(counter));
        }
    }
    macro_rules! round {
        ($r:literal) => {
            let key = l.broadcast(&key.rounds.0[$r]);
            for state in &mut tags {
                *state = l.aes(*state, key);
            }
            for state in blocks.as_flattened_mut() {
                *state = l.aes(*state, key);
            }
        };
    }
    middle_rounds!(R, round, 1 2 3 4 5 6 7 8 9 10 11 12 13);
    let key = l.broadcast(&key.rounds.0[R]);
    for state in &mut tags {
        *state = l.aes_last(*state, key);
    }
    for state in blocks.as_flattened_mut() {
        *state = l.aes_last(*state, key);
    }
    KeyStream { tags, blocks }
}

/// What the last block of each packet's payload is cut with.
#[inline(always)]
fn last_masks<L: Lanes, const N: usize, const G: usize>(l: L, jobs: &[Job<'_>]) -> [L::V; G] {
    let s = l.single();
    let mut masks = [l.zero(); G];
    for (masks, jobs) in masks.iter_mut().zip(jobs.chunks_exact(L::BLOCKS)) {
        let mut lanes = [s.zero(); 4];
        for (lane, job) in lanes.iter_mut().zip(jobs) {
            *lane = mask(s, job.payload_len() - 16 * (N - 1));
        }
        *masks = l.lanes(lanes);
    }
    masks
}

#[inline(always)]
fn seal_pass<L: Lanes, const R: usize, const S: usize, const N: usize, const G: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) {
    let s = l.single();
    let key_stream = key_stream::<L, R, S, N, G>(l, key, jobs);
    let masks = last_masks::<L, N, G>(l, jobs);
    let mut sum = Sum::<L, N, G>::new(l, key.table(), jobs);
    let mut plaintexts = [const { Plaintext::IN_PLACE }; MAX_JOBS];
    for (plaintext, job) in plaintexts.iter_mut().zip(&mut *jobs) {
        let (body, source) = job.body_and_source();
        let payload_len = body.len() - TAG_LEN;
        *plaintext = Plaintext::new::<L::Single>(&mut body[..payload_len], source);
    }
    for j in 0..N {
        let mut data = [l.zero(); G];
        for g in 0..G {
            let mut lanes = [s.zero(); 4];
            let jobs = &mut jobs[g * L::BLOCKS..][..L::BLOCKS];
            let plaintexts = &plaintexts[g * L::BLOCKS..][..L::BLOCKS];
            for ((lane, job), plaintext) in lanes.iter_mut().zip(&mut *jobs).zip(plaintexts) {
                let in_place = block_mut(job.body_and_source().0, j);
                *lane = s.load(plaintext.register::<L::Single>(16 * j).unwrap_or(in_place));
            }
            data[g] = l.xor(key_stream.blocks[j][g], l.lanes(lanes));
            if j == N - 1 {
                data[g] = l.and(data[g], masks[g]);
            }
            for (k, job) in jobs.iter_mut().enumerate() {
                s.store(block_mut(job.body_and_source().0, j), l.lane(data[g], k));
            }
        }
        sum.add(l, j, &data);
    }
    let tags = sum.finish(l, &key_stream.tags);
    for (tag, jobs) in tags.into_iter().zip(jobs.chunks_exact_mut(L::BLOCKS)) {
        for (k, job) in jobs.iter_mut().enumerate() {
            s.store(job.parts().2, l.lane(tag, k));
        }
    }
}

/// A block of a packet's payload; the last one may reach into the tag.
#[inline(always)]
fn block_mut(body: &mut [u8], j: usize) -> &mut Block {
    body.as_chunks_mut()
        .0
        .get_mut(j)
        .expect("a tag lies behind every payload")
}

#[inline(always)]
fn open_pass<L: Lanes, const R: usize, const S: usize, const N: usize, const G: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) -> u32 {
    let s = l.single();
    let key_stream = key_stream::<L, R, S, N, G>(l, key, jobs);
    let masks = last_masks::<L, N, G>(l, jobs);
    let mut sum = Sum::<L, N, G>::new(l, key.table(), jobs);
    for j in 0..N {
        let mut data = [l.zero(); G];
        for g in 0..G {
            let mut lanes = [s.zero(); 4];
            let jobs = &mut jobs[g * L::BLOCKS..][..L::BLOCKS];
            for (lane, job) in lanes.iter_mut().zip(&mut *jobs) {
                *lane = s.load(block_mut(job.body_and_source().0, j));
            }
            let read = l.lanes(lanes);
            let mut pad = key_stream.blocks[j][g];
            data[g] = read;
            if j == N - 1 {
                // What lies behind the payload is the tag, and it stays as it is.
                (data[g], pad) = (l.and(read, masks[g]), l.and(pad, masks[g]));
            }
            let opened = l.xor(read, pad);
            for (k, job) in jobs.iter_mut().enumerate() {
                s.store(block_mut(job.body_and_source().0, j), l.lane(opened, k));
            }
        }
        sum.add(l, j, &data);
    }
    let tags = sum.finish(l, &key_stream.tags);
    let mut good = 0;
    for (g, (tag, jobs)) in tags
        .into_iter()
        .zip(jobs.chunks_exact_mut(L::BLOCKS))
        .enumerate()
    {
        for (k, job) in jobs.iter_mut().enumerate() {
            let mut expected = [0; 16];
            s.store(&mut expected, l.lane(tag, k));
            // No byte decides alone when the comparison ends: all are compared at once.
            let difference = u128::from_le_bytes(expected) ^ u128::from_le_bytes(*job.parts().2);
            good |= u32::from(difference == 0) << (g * L::BLOCKS + k);
        }
    }
    good
}
