//! Two packets in step. Most packets of a bundle are long, so they need no lanes that any packet
//! can take, as in [`run`](super::run): a pass makes four blocks of each of two packets, and adds
//! them to the payloads straight from the registers.
//!
//! ```text
//!   keys   block 0 of every packet, for Poly1305
//!   seal   pass ║ Poly1305 of the blocks before; in a first pass, of the end of the pair before
//!   open   pass ║ Poly1305 of the blocks that it will decrypt
//! ```

use super::block::{BLOCK_LEN, Block, Lane, Row, Rows};
use super::meanwhile::Nothing;
use super::poly1305::{POLY_BLOCK_LEN, Poly};
use super::{Key, apply, block_at, keyed, longest_payload};
use crate::kernel::registers::wipe;
use crate::kernel::{Job, MAX_JOBS};
use crate::span::TAG_LEN;

/// Blocks of each packet in a pass.
pub(in crate::kernel) const TWIN_BLOCKS: usize = 4;

/// Their bytes.
pub(in crate::kernel) const TWIN_LEN: usize = TWIN_BLOCKS * BLOCK_LEN;

/// The last rows of two packets' states, one word of all lanes after another. The first four lanes
/// are the first packet's; each packet's lanes count from 0.
#[repr(C, align(32))]
pub(in crate::kernel) struct Inputs(pub(in crate::kernel) [[u32; 2 * TWIN_BLOCKS]; 4]);

impl Inputs {
    #[inline(always)]
    fn new([a, b]: [Row; 2]) -> Self {
        let mut inputs = [[0; 2 * TWIN_BLOCKS]; 4];
        for (words, (a, b)) in inputs.iter_mut().zip(a.into_iter().zip(b)) {
            let (first, second) = words.split_at_mut(TWIN_BLOCKS);
            first.fill(a);
            second.fill(b);
        }
        inputs[0] = [0, 1, 2, 3, 0, 1, 2, 3];
        Self(inputs)
    }

    /// Eight blocks of one packet.
    #[inline(always)]
    pub(super) fn halves(row: Row) -> Self {
        let mut inputs = Self::new([row; 2]);
        inputs.0[0] = [0, 1, 2, 3, 4, 5, 6, 7];
        inputs
    }
}

/// Poly1305 of two messages in step.
pub(in crate::kernel) struct Hashes<'a> {
    pub(in crate::kernel) r: [&'a [u64; 3]; 2],
    pub(in crate::kernel) h: [[u64; 3]; 2],
    pub(in crate::kernel) data: [&'a [[u8; POLY_BLOCK_LEN]]; 2],
}

impl Hashes<'_> {
    /// Hashes what a pass left over.
    #[inline(always)]
    pub(in crate::kernel) fn finish<W: Rows>(self, w: W) -> [[u64; 3]; 2] {
        let [mut a, mut b] = self.h;
        let [blocks_a, blocks_b] = self.data;
        for (block_a, block_b) in blocks_a.iter().zip(blocks_b) {
            w.absorb(&mut a, self.r[0], block_a);
            w.absorb(&mut b, self.r[1], block_b);
        }
        let both = blocks_a.len().min(blocks_b.len());
        w.absorb_all(&mut a, self.r[0], &blocks_a[both..]);
        w.absorb_all(&mut b, self.r[1], &blocks_b[both..]);
        [a, b]
    }
}

/// What this needs from a CPU.
pub(in crate::kernel) trait Twins: Rows {
    /// The key stream of four blocks of a packet.
    type Stream;

    /// The smallest payload, in bytes, of packets that are processed in step.
    const LEAST: usize;

    /// Four blocks of each of two packets, with `counter` added to the inputs' counters. Between
    /// the rounds it hashes blocks of both messages in step, and takes them off the data.
    fn twin_pass(
        self,
        key: &[u32; 8],
        inputs: &Inputs,
        counter: u32,
        hashes: &mut Hashes<'_>,
    ) -> [Self::Stream; 2];

    /// Adds key stream to the input, if there is one, or else to the output in place.
    fn add_stream(
        self,
        stream: Self::Stream,
        input: Option<&[u8; TWIN_LEN]>,
        output: &mut [u8; TWIN_LEN],
    );

    /// Writes the key stream.
    fn store_stream(self, stream: Self::Stream, blocks: &mut [Block; TWIN_BLOCKS]);
}

/// How many of the first jobs are processed in step: an even number.
#[inline(always)]
pub(in crate::kernel) fn count<W: Twins>(jobs: &[Job<'_>]) -> usize {
    let is_long = |job: &&Job<'_>| job.public_lens().1.cast_signed() >= W::LEAST.cast_signed();
    jobs.iter().take_while(is_long).count() & !1
}

/// The packets of a call, and how far Poly1305 is with them.
struct Work<'k, 'j, 'a, W> {
    w: W,
    key: &'k Key,
    jobs: &'j mut [Job<'a>],
    polys: [Poly; MAX_JOBS],
    /// Payload bytes that Poly1305 has taken, in whole blocks.
    hashed: [usize; MAX_JOBS],
}

impl<W> Drop for Work<'_, '_, '_, W> {
    fn drop(&mut self) {
        let used = self.jobs.len();
        wipe(&mut self.polys[..used], Poly::EMPTY);
    }
}

impl<'k, 'j, 'a, W: Twins> Work<'k, 'j, 'a, W> {
    /// Starts Poly1305 of every packet.
    #[inline(always)]
    fn new(w: W, key: &'k Key, jobs: &'j mut [Job<'a>]) -> Self {
        const LANES: usize = 2 * TWIN_BLOCKS;
        let mut polys = [Poly::EMPTY; MAX_JOBS];
        for (jobs, polys) in jobs.chunks(LANES).zip(polys.chunks_mut(LANES)) {
            let mut lanes = [Lane::EMPTY; LANES];
            for (lane, job) in lanes.iter_mut().zip(jobs) {
                lane.nonce = key.nonce(job.path_and_number());
            }
            let mut blocks = [Block::ZERO; LANES];
            match jobs.len() {
                0..=2 => w.pass::<1>(&key.key, &lanes, &mut blocks, &mut Nothing),
                3..=4 => w.pass::<2>(&key.key, &lanes, &mut blocks, &mut Nothing),
                _ => w.pass::<4>(&key.key, &lanes, &mut blocks, &mut Nothing),
            }
            for ((poly, block), job) in polys.iter_mut().zip(&blocks).zip(jobs) {
                *poly = keyed(w, block, job);
            }
            wipe(&mut blocks, Block::ZERO);
        }
        Self {
            w,
            key,
            jobs,
            polys,
            hashed: [0; MAX_JOBS],
        }
    }

    #[inline(always)]
    fn inputs(&self, pair: usize) -> Inputs {
        let nonce = |job: usize| self.key.nonce(self.jobs[job].path_and_number());
        Inputs::new([nonce(pair), nonce(pair + 1)])
    }

    /// The four payload blocks of each packet of a pair from `at` on, alongside Poly1305 of a pair
    /// up to `until`.
    #[inline(always)]
    fn pass(&mut self, inputs: &Inputs, at: usize, hashed: usize, until: usize) -> [W::Stream; 2] {
        let waiting = |job: usize| {
            let (_, payload) = self.jobs[job].header_and_payload();
            let until = until.min(payload.len());
            payload[self.hashed[job].min(until)..until].as_chunks().0
        };
        let mut hashes = Hashes {
            r: [&self.polys[hashed].r, &self.polys[hashed + 1].r],
            h: [self.polys[hashed].h, self.polys[hashed + 1].h],
            data: [waiting(hashed), waiting(hashed + 1)],
        };
        let taken = [hashes.data[0].len(), hashes.data[1].len()];
        // Block 0 was the Poly1305 key.
        let counter = (at / BLOCK_LEN) as u32 + 1;
        let stream = (self.w).twin_pass(&self.key.key, inputs, counter, &mut hashes);
        let h = hashes.finish(self.w);
        for i in 0..2 {
            self.polys[hashed + i].h = h[i];
            self.hashed[hashed + i] += taken[i] * POLY_BLOCK_LEN;
        }
        stream
    }

    /// Hashes the rest of a payload, and the lengths (RFC 8439 §2.8).
    #[inline(always)]
    fn tag(&mut self, job: usize) -> [u8; TAG_LEN] {
        let (_, payload) = self.jobs[job].header_and_payload();
        let poly = &mut self.polys[job];
        let rest = payload[self.hashed[job]..].as_chunks().0;
        self.w.absorb_all(&mut poly.h, &poly.r, rest);
        let (len, hashed) = (
            payload.len(),
            self.hashed[job] + rest.len() * POLY_BLOCK_LEN,
        );
        let (packet, header_len) = self.jobs[job].packet_and_header_len();
        let last = block_at(packet, header_len + hashed);
        poly.end(last, len - hashed, header_len, len)
    }

    #[inline(always)]
    fn write_tags(&mut self, pair: usize) {
        for job in pair..pair + 2 {
            let tag = self.tag(job);
            let (_, _, place) = self.jobs[job].parts();
            *place = tag;
        }
    }
}

/// Adds key stream to the payload from `at` on.
#[inline(always)]
pub(super) fn apply_stream<W: Twins>(w: W, job: &mut Job<'_>, at: usize, stream: W::Stream) {
    let len = job.payload_len();
    let end = at + TWIN_LEN;
    if end > len {
        if at < len {
            let mut blocks = [Block::ZERO; TWIN_BLOCKS];
            w.store_stream(stream, &mut blocks);
            apply(w, job, at, &blocks);
            wipe(&mut blocks, Block::ZERO);
        }
        return;
    }
    let (body, source) = job.body_and_source();
    let head = len - source.len();
    let mut input = None;
    if at >= head && !source.is_empty() {
        input = source[at - head..].first_chunk();
    } else if end > head {
        // Source and payload join here.
        body[head..end].copy_from_slice(&source[..end - head]);
    }
    if let Some(output) = body[at..].first_chunk_mut() {
        w.add_stream(stream, input, output);
    }
}

/// Encrypts the payloads of an even number of packets, and writes their tags.
#[inline(always)]
pub(in crate::kernel) fn seal<W: Twins>(w: W, key: &Key, jobs: &mut [Job<'_>]) {
    let mut work = Work::new(w, key, jobs);
    let count = work.jobs.len();
    for pair in (0..count).step_by(2) {
        let inputs = work.inputs(pair);
        let longest = (work.jobs[pair].payload_len()).max(work.jobs[pair + 1].payload_len());
        for at in (0..longest).step_by(TWIN_LEN) {
            let is_next = at == 0 && pair > 0;
            let (hashed, until) = if is_next {
                (pair - 2, usize::MAX)
            } else {
                (pair, at)
            };
            let [a, b] = work.pass(&inputs, at, hashed, until);
            if is_next {
                work.write_tags(hashed);
            }
            apply_stream(w, &mut work.jobs[pair], at, a);
            apply_stream(w, &mut work.jobs[pair + 1], at, b);
        }
    }
    if count > 0 {
        work.write_tags(count - 2);
    }
}

/// Decrypts the payloads of an even number of packets; bit `i` of the result says that job `i` has
/// the right tag.
#[inline(always)]
pub(in crate::kernel) fn open<W: Twins>(w: W, key: &Key, jobs: &mut [Job<'_>]) -> u32 {
    let mut work = Work::new(w, key, jobs);
    let mut authentic = 0;
    for pair in (0..work.jobs.len()).step_by(2) {
        let inputs = work.inputs(pair);
        // Only what is public decides on passes.
        let longest = longest_payload(&work.jobs[pair]).max(longest_payload(&work.jobs[pair + 1]));
        let mut has_tag = [false; 2];
        for at in (0..longest).step_by(TWIN_LEN) {
            let until = at + TWIN_LEN;
            let streams = work.pass(&inputs, at, pair, until);
            for (i, stream) in streams.into_iter().enumerate() {
                let job = pair + i;
                // The last bytes are hashed before they are decrypted in place.
                if !has_tag[i] && until >= work.jobs[job].payload_len() {
                    has_tag[i] = true;
                    let tag = work.tag(job);
                    let (_, _, place) = work.jobs[job].parts();
                    // Constant time: all bytes are compared at once.
                    let difference = u128::from_le_bytes(tag) ^ u128::from_le_bytes(*place);
                    authentic |= u32::from(difference == 0) << job;
                }
                apply_stream(w, &mut work.jobs[job], at, stream);
            }
        }
    }
    authentic
}
