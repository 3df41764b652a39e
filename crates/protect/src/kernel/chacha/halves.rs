//! One packet by itself, on a CPU that processes [`twins`](super::twins): the two halves of a pass
//! are eight blocks of the same packet.
//!
//! ```text
//!   seal   pass ─▶ pass ║ Poly1305 of the blocks before ─▶ … ─▶ mask ║ the rest of it ─▶ tag
//!   open   pass ─▶ pass ║ Poly1305 ─▶ … ─▶ the rest of it
//! ```
//! A packet of few blocks takes one narrow pass.

use std::ops::Range;
use std::slice;

use super::block::{BLOCK_LEN, Block, Lane, first_rows};
use super::meanwhile::Nothing;
use super::pair::Pair;
use super::poly1305::{POLY_BLOCK_LEN, Poly};
use super::twins::{Hashes, Inputs, TWIN_BLOCKS, TWIN_LEN, Twins, apply_stream};
use super::{HeaderKey, Key, apply, block_at, keyed, longest_payload, protect_header, sample_row};
use crate::kernel::Job;
use crate::kernel::registers::wipe;
use crate::span::TAG_LEN;

/// Blocks of a pass.
const LANES: usize = 2 * TWIN_BLOCKS;

/// Bytes of a pass.
const PASS_LEN: usize = LANES * BLOCK_LEN;

/// A packet in progress.
struct Halves<'k, 'j, 'a, W> {
    w: W,
    key: &'k Key,
    job: &'j mut Job<'a>,
    /// Of the first pass, and when opening of the last one.
    blocks: [Block; LANES],
    poly: Poly,
    /// Payload bytes that Poly1305 has taken, in whole blocks.
    hashed: usize,
}

impl<W> Drop for Halves<'_, '_, '_, W> {
    fn drop(&mut self) {
        // The Poly1305 key was in the key stream.
        wipe(&mut self.blocks, Block::ZERO);
        wipe(slice::from_mut(&mut self.poly), Poly::EMPTY);
    }
}

impl<'k, 'j, 'a, W: Twins> Halves<'k, 'j, 'a, W> {
    /// Makes the first blocks, and starts Poly1305.
    #[inline(always)]
    fn new(w: W, key: &'k Key, job: &'j mut Job<'a>, blocks_made: usize) -> Self {
        let nonce = key.nonce(job.path_and_number());
        let mut lanes = [Lane { nonce, counter: 0 }; LANES];
        for (lane, counter) in lanes.iter_mut().zip(0..) {
            lane.counter = counter;
        }
        let mut blocks = [Block::ZERO; LANES];
        match blocks_made {
            0..=2 => w.pass::<1>(&key.key, &lanes, &mut blocks, &mut Nothing),
            3..=4 => w.pass::<2>(&key.key, &lanes, &mut blocks, &mut Nothing),
            5..=6 => w.pass::<3>(&key.key, &lanes, &mut blocks, &mut Nothing),
            _ => w.pass::<4>(&key.key, &lanes, &mut blocks, &mut Nothing),
        }
        let poly = keyed(w, &blocks[0], job);
        Self {
            w,
            key,
            job,
            blocks,
            poly,
            hashed: 0,
        }
    }

    /// The blocks from a payload offset on, alongside Poly1305 of the payload: at least up to one
    /// offset, at most up to another.
    #[inline(always)]
    fn pass(&mut self, at: usize, least: usize, most: usize) -> [W::Stream; 2] {
        let inputs = Inputs::halves(self.key.nonce(self.job.path_and_number()));
        let (_, payload) = self.job.header_and_payload();
        let waiting = payload[self.hashed..most].as_chunks().0;
        let mut hashes = Hashes {
            r: [&self.poly.r, &self.poly.r],
            h: [self.poly.h, Poly::EMPTY.h],
            data: [waiting, &[]],
        };
        let counter = (at / BLOCK_LEN) as u32 + 1;
        let streams = (self.w).twin_pass(&self.key.key, &inputs, counter, &mut hashes);
        let ([mut h, _], [left, _]) = (hashes.h, hashes.data);
        let mut hashed = self.hashed + (waiting.len() - left.len()) * POLY_BLOCK_LEN;
        if hashed < least {
            let rest = payload[hashed..least].as_chunks().0;
            self.w.absorb_all(&mut h, &self.poly.r, rest);
            hashed += rest.len() * POLY_BLOCK_LEN;
        }
        (self.poly.h, self.hashed) = (h, hashed);
        streams
    }

    /// The blocks of the payload that are not hashed yet.
    #[inline(always)]
    fn waiting(&self) -> &[[u8; POLY_BLOCK_LEN]] {
        let (_, payload) = self.job.header_and_payload();
        payload[self.hashed..].as_chunks().0
    }

    /// Hashes the rest of the payload, and the lengths (RFC 8439 §2.8).
    #[inline(always)]
    fn tag(&mut self) -> [u8; TAG_LEN] {
        let rest = self.waiting();
        let mut h = self.poly.h;
        self.w.absorb_all(&mut h, &self.poly.r, rest);
        self.hashed += rest.len() * POLY_BLOCK_LEN;
        self.poly.h = h;
        let len = self.job.payload_len();
        let (packet, header_len) = self.job.packet_and_header_len();
        let last = block_at(packet, header_len + self.hashed);
        self.poly.end(last, len - self.hashed, header_len, len)
    }

    /// Adds some of the blocks at hand to the payload from an offset on.
    #[inline(always)]
    fn apply(&mut self, from: usize, blocks: Range<usize>) {
        let from = from.min(self.job.payload_len());
        apply(self.w, self.job, from, &self.blocks[blocks]);
    }
}

/// Encrypts the payload, writes the tag, and applies header protection if there is a key for it.
#[inline(always)]
pub(in crate::kernel) fn seal<W: Twins>(
    w: W,
    key: &Key,
    header: Option<&HeaderKey>,
    job: &mut Job<'_>,
) {
    let len = job.payload_len();
    let blocks = 1 + len.div_ceil(BLOCK_LEN);
    let mut this = Halves::new(w, key, job, blocks);
    this.apply(0, 1..LANES);
    let mut ready = len.min(PASS_LEN - BLOCK_LEN);
    while ready < len {
        let [a, b] = this.pass(ready, ready, ready);
        apply_stream(w, this.job, ready, a);
        apply_stream(w, this.job, ready + TWIN_LEN, b);
        ready = (ready + PASS_LEN).min(len);
    }
    let waiting = this.waiting();
    let (_, payload) = this.job.header_and_payload();
    let sample = (this.job.sample_in_payload()).and_then(|at| payload[at..].first_chunk());
    let mut mask = None;
    let mut hash = Pair::new(w, (&this.poly, waiting), (&Poly::EMPTY, &[]));
    if let (Some(header), Some(sample)) = (header, sample) {
        let mut lanes = [Lane::EMPTY; LANES];
        lanes[0].nonce = sample_row(sample);
        let mut rows = [[0; 4]; LANES];
        first_rows::<W, 1>(w, &header.0, &lanes, &mut rows, &mut hash);
        mask = Some(rows[0]);
    }
    hash.finish();
    let (h, taken) = (hash.a.h, waiting.len() * POLY_BLOCK_LEN);
    this.poly.h = h;
    this.hashed += taken;
    let tag = this.tag();
    let (_, _, place) = this.job.parts();
    *place = tag;
    if let Some(header) = header {
        protect_header(header, this.job, mask);
    }
}

/// How many of a packet's blocks to make before Poly1305 can begin: as few as possible, a full
/// pass, or all of them, whichever takes the least time on a Zen 3. In cycles, a pass of two
/// blocks and what goes with it takes 400 there and one of eight 490. A block of Poly1305 takes
/// 15, or nothing for 30 of them beside a pass.
#[inline(always)]
fn blocks_before_hashing(blocks: usize) -> usize {
    if blocks <= LANES {
        return blocks;
    }
    let cost = |first: usize, cycles: usize| {
        let passes = (blocks - first).div_ceil(LANES);
        let alone = (4 * (blocks - 1)).saturating_sub(30 * passes);
        cycles + 490 * passes + 15 * alone
    };
    if cost(2, 400) < cost(LANES, 490) {
        2
    } else {
        LANES
    }
}

/// Decrypts the payload, and returns whether the tag is right.
#[inline(always)]
pub(in crate::kernel) fn open<W: Twins>(w: W, key: &Key, job: &mut Job<'_>) -> bool {
    let len = job.payload_len();
    let longest = longest_payload(job);
    let blocks = 1 + longest.div_ceil(BLOCK_LEN);
    let first = blocks_before_hashing(blocks);
    let mut this = Halves::new(w, key, job, first);
    // Bytes are hashed before they are decrypted in place: each pass hashes at least what the one
    // before made key stream for.
    let (mut opened, mut made) = (0, (first - 1) * BLOCK_LEN);
    let (mut fresh, mut tag) = (1..first, None);
    while made < longest {
        let streams = this.pass(made, made.min(len), len);
        if made >= len {
            tag = Some(this.tag());
        }
        this.apply(opened, fresh);
        for (stream, blocks) in streams.into_iter().zip(this.blocks.as_chunks_mut().0) {
            w.store_stream(stream, blocks);
        }
        (opened, made, fresh) = (made, made + PASS_LEN, 0..LANES);
    }
    let tag = tag.unwrap_or_else(|| this.tag());
    this.apply(opened, fresh);
    let (_, _, place) = this.job.parts();
    // Constant time: all bytes are compared at once.
    u128::from_le_bytes(tag) == u128::from_le_bytes(*place)
}
