//! One packet by itself. Its own blocks rarely fill the vector registers, so latency counts, not
//! throughput: while a pass runs in vector registers, the general registers make single blocks and
//! compute Poly1305.
//!
//! ```text
//!   seal   pass ║ block 1, and the mask from what it encrypts ─▶ Poly1305 ─▶ tag
//!   open   pass ║ block 0, then Poly1305 ─▶ the rest of it ─▶ tag
//! ```
//! A packet that needs several passes computes Poly1305 during the later ones, too.

use std::slice::{self, Iter};

use zeroize::Zeroize;

use super::block::{BLOCK_LEN, Block, Lane, Rows, Scalar};
use super::meanwhile::{Meanwhile, Nothing, PAUSES};
use super::pair::Pair;
use super::poly1305::{POLY_BLOCK_LEN, Poly};
use super::{HeaderKey, Key, apply, block_at, keyed, longest_payload, protect_header, sample_row};
use crate::kernel::Job;
use crate::kernel::registers::wipe;
use crate::span::TAG_LEN;

/// Pauses of a pass in which a single block is made: two rounds in each.
const ROUNDS: usize = PAUSES / 2;

/// The most blocks that Poly1305 takes in a pause, on CPUs where it is faster after the pass.
const MOST_BESIDE: usize = 3;

/// A packet in progress.
struct Alone<'j, 'a, W, const LANES: usize> {
    w: W,
    job: &'j mut Job<'a>,
    lanes: [Lane; LANES],
    blocks: [Block; LANES],
    /// How many of them the first pass made; no later one is wider.
    used: usize,
    /// The next block to be made in a pass, and the end of those that are needed.
    next: usize,
    end: usize,
    poly: Poly,
    /// Payload bytes that Poly1305 has taken, in whole blocks.
    hashed: usize,
}

impl<W, const LANES: usize> Drop for Alone<'_, '_, W, LANES> {
    fn drop(&mut self) {
        // The Poly1305 key was in the key stream.
        wipe(&mut self.blocks[..self.used], Block::ZERO);
        self.poly.zeroize();
    }
}

impl<'j, 'a, W: Rows, const LANES: usize> Alone<'j, 'a, W, LANES> {
    /// Makes key stream for `payload_len` bytes, at least as many as the job has.
    #[inline(always)]
    fn new(w: W, key: &Key, job: &'j mut Job<'a>, payload_len: usize) -> Self {
        let lane = Lane {
            nonce: key.nonce(job.path_and_number()),
            counter: 0,
        };
        Self {
            w,
            job,
            lanes: [lane; LANES],
            blocks: [Block::ZERO; LANES],
            used: LANES,
            next: 1,
            end: 1 + payload_len.div_ceil(BLOCK_LEN),
            poly: Poly::EMPTY,
            hashed: 0,
        }
    }

    /// Blocks of the payload that are still to be made.
    #[inline(always)]
    fn blocks_left(&self) -> usize {
        self.end.saturating_sub(self.next)
    }

    /// A pass after the first, alongside Poly1305 of the payload up to `until`. Returns the number
    /// of blocks made.
    #[inline(always)]
    fn pass<const MIDDLE: usize, const G: usize>(&mut self, key: &Key, until: usize) -> usize {
        let waiting = waiting(self.job, self.hashed, until);
        self.hashed += waiting.len() * POLY_BLOCK_LEN;
        let wanted = self.blocks_left();
        let (lanes, blocks) = (&mut self.lanes, &mut self.blocks);
        let counters = self.next as u32..;
        let made = if W::HAS_PARALLEL {
            let made =
                pass::<W, MIDDLE, G>(self.w, key, lanes, counters, blocks, wanted, &mut Nothing);
            self.w.absorb_all(&mut self.poly.h, &self.poly.r, waiting);
            made
        } else {
            let mut hash = Pair::new(self.w, (&self.poly, waiting), (&Poly::EMPTY, &[]));
            let made =
                pass::<W, MIDDLE, G>(self.w, key, lanes, counters, blocks, wanted, &mut hash);
            hash.finish();
            self.poly.h = hash.a.h;
            made
        };
        self.next += made;
        made
    }

    /// Hashes the rest of the payload up to an offset.
    #[inline(always)]
    fn hash(&mut self, until: usize) {
        let rest = waiting(self.job, self.hashed, until);
        self.hashed += rest.len() * POLY_BLOCK_LEN;
        self.w.absorb_all(&mut self.poly.h, &self.poly.r, rest);
    }

    /// Hashes the rest of the payload, and the lengths (RFC 8439 §2.8).
    #[inline(always)]
    fn tag(&mut self) -> [u8; TAG_LEN] {
        let len = self.job.payload_len();
        self.hash(len);
        let (packet, header_len) = self.job.packet_and_header_len();
        let last = block_at(packet, header_len + self.hashed);
        self.poly.end(last, len - self.hashed, header_len, len)
    }
}

/// Makes at least as many blocks as are wanted, or as many as fill the registers, and returns their
/// number.
#[inline(always)]
fn pass<W: Rows, const MIDDLE: usize, const G: usize>(
    w: W,
    key: &Key,
    lanes: &mut [Lane],
    counters: impl Iterator<Item = u32>,
    blocks: &mut [Block],
    wanted: usize,
    meanwhile: &mut impl Meanwhile,
) -> usize {
    let groups = match wanted.div_ceil(W::WIDTH) {
        groups @ ..=2 => groups,
        groups if groups <= MIDDLE => MIDDLE,
        _ => G,
    };
    let count = groups * W::WIDTH;
    for (lane, counter) in lanes[..count].iter_mut().zip(counters) {
        lane.counter = counter;
    }
    let (lanes, blocks) = (&lanes[..count], &mut blocks[..count]);
    match groups {
        ..=1 => w.pass::<1>(&key.key, lanes, blocks, meanwhile),
        2 => w.pass::<2>(&key.key, lanes, blocks, meanwhile),
        groups if groups == MIDDLE => w.pass::<MIDDLE>(&key.key, lanes, blocks, meanwhile),
        _ => w.pass::<G>(&key.key, lanes, blocks, meanwhile),
    }
    count
}

/// Whole blocks of a payload from one offset on that end before another.
#[inline(always)]
fn waiting<'j>(job: &'j Job<'_>, from: usize, until: usize) -> &'j [[u8; POLY_BLOCK_LEN]] {
    let (_, payload) = job.header_and_payload();
    payload[from..until].as_chunks().0
}

/// Beside the first pass of sealing: block 1, which encrypts the sample, and the mask.
struct Mask<'j, 'a, 'k, W> {
    w: W,
    job: &'j mut Job<'a>,
    /// `None` once there is no mask to make.
    header: Option<&'k HeaderKey>,
    scalar: Scalar,
    pauses: usize,
}

impl<W: Rows> Meanwhile for Mask<'_, '_, '_, W> {
    #[inline(always)]
    fn step(&mut self) {
        self.scalar.double_round();
        self.pauses += 1;
        if self.pauses == ROUNDS {
            apply(self.w, self.job, 0, &[self.scalar.block()]);
            let (_, payload) = self.job.header_and_payload();
            let sample = self.job.sample_in_payload();
            let sample = sample.and_then(|at| payload[at..].first_chunk());
            if let (Some(header), Some(sample)) = (self.header, sample) {
                self.scalar = Scalar::new(&header.0, &sample_row(sample));
            } else {
                self.header = None;
            }
        }
    }
}

/// Encrypts the payload, writes the tag, and applies header protection if there is a key for it.
#[inline(always)]
pub(in crate::kernel) fn seal<W: Rows, const MIDDLE: usize, const G: usize, const LANES: usize>(
    w: W,
    key: &Key,
    header: Option<&HeaderKey>,
    job: &mut Job<'_>,
) {
    let len = job.payload_len();
    let mut this = Alone::<W, LANES>::new(w, key, job, len);
    let [_, a, b, c] = this.lanes[0].nonce;
    let mut beside = Mask {
        w,
        job: &mut *this.job,
        header,
        scalar: Scalar::new(&key.key, &[1, a, b, c]),
        pauses: 0,
    };
    // Block 0, and those after block 1.
    let counters = std::iter::once(0).chain(2..);
    let blocks = len.div_ceil(BLOCK_LEN).max(1);
    let made = pass::<W, MIDDLE, G>(
        w,
        key,
        &mut this.lanes,
        counters,
        &mut this.blocks,
        blocks,
        &mut beside,
    );
    let mask = beside.header.map(|_| beside.scalar.row());
    (this.used, this.next) = (made, made + 1);
    this.poly = keyed(w, &this.blocks[0], this.job);
    let mut ready = len.min(BLOCK_LEN);
    if ready < len {
        apply(w, this.job, ready, &this.blocks[1..made]);
        ready = (made * BLOCK_LEN).min(len);
    }
    while ready < len {
        let made = this.pass::<MIDDLE, G>(key, ready);
        apply(w, this.job, ready, &this.blocks[..made]);
        ready = (ready + made * BLOCK_LEN).min(len);
    }
    let tag = this.tag();
    let (_, _, place) = this.job.parts();
    *place = tag;
    if let Some(header) = header {
        protect_header(header, this.job, mask);
    }
}

/// Beside the first pass of opening: block 0, then Poly1305.
struct Hash<'j, 'a, W> {
    w: W,
    job: &'j Job<'a>,
    scalar: Scalar,
    pauses: usize,
    poly: Poly,
    waiting: Iter<'j, [u8; POLY_BLOCK_LEN]>,
    /// Blocks in each pause.
    stride: usize,
}

impl<W> Drop for Hash<'_, '_, W> {
    fn drop(&mut self) {
        self.poly.zeroize();
    }
}

impl<W: Rows> Meanwhile for Hash<'_, '_, W> {
    #[inline(always)]
    fn step(&mut self) {
        self.pauses += 1;
        if self.pauses <= ROUNDS {
            self.scalar.double_round();
            if self.pauses == ROUNDS {
                let mut block = self.scalar.block();
                self.poly = keyed(self.w, &block, self.job);
                wipe(slice::from_mut(&mut block), Block::ZERO);
            }
        } else {
            for _ in 0..self.stride {
                if let Some(block) = self.waiting.next() {
                    self.w.absorb(&mut self.poly.h, &self.poly.r, block);
                }
            }
        }
    }
}

/// Decrypts the payload, and returns whether the tag is right.
#[inline(always)]
pub(in crate::kernel) fn open<W: Rows, const MIDDLE: usize, const G: usize, const LANES: usize>(
    w: W,
    key: &Key,
    job: &mut Job<'_>,
) -> bool {
    let len = job.payload_len();
    let longest = longest_payload(job);
    let mut this = Alone::<W, LANES>::new(w, key, job, longest);
    let ahead = waiting(this.job, 0, len.min(LANES * BLOCK_LEN));
    let mut stride = ahead.len().div_ceil(PAUSES - ROUNDS);
    if W::HAS_PARALLEL {
        stride = stride.min(MOST_BESIDE);
    }
    let mut beside = Hash {
        w,
        job: this.job,
        scalar: Scalar::new(&key.key, &this.lanes[0].nonce),
        pauses: 0,
        poly: Poly::EMPTY,
        waiting: ahead.iter(),
        stride,
    };
    let blocks = this.blocks_left();
    let mut made = pass::<W, MIDDLE, G>(
        w,
        key,
        &mut this.lanes,
        1..,
        &mut this.blocks,
        blocks,
        &mut beside,
    );
    this.hashed = (ahead.len() - beside.waiting.len()) * POLY_BLOCK_LEN;
    this.poly = beside.poly;
    drop(beside);
    (this.used, this.next) = (made, made + 1);
    let (mut opened, mut tag) = (0, None);
    loop {
        // Bytes that are decrypted in place are hashed first.
        let until = len.min(opened + made * BLOCK_LEN);
        if until < len {
            this.hash(until);
        } else {
            tag = tag.or_else(|| Some(this.tag()));
        }
        apply(w, this.job, opened, &this.blocks[..made]);
        if this.blocks_left() == 0 {
            break;
        }
        opened = until;
        let until = len.min(opened + LANES * BLOCK_LEN);
        made = this.pass::<MIDDLE, G>(key, until);
    }
    let (_, _, place) = this.job.parts();
    // Constant time: all bytes are compared at once.
    tag.is_some_and(|tag| u128::from_le_bytes(tag) == u128::from_le_bytes(*place))
}
