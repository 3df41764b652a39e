//! ChaCha20-Poly1305 (RFC 8439) for packets, several side by side.
//!
//! ```text
//!   lanes      one key-stream block each, of any packet: block 0 of every packet, for Poly1305,
//!              then the payloads' blocks, a team of packets at a time, some blocks of each in turn
//!   pass       lanes that fill the registers, and between their rounds Poly1305 of the team:
//!   seal         of what earlier passes encrypted
//!   open         of what this pass will decrypt
//!   team       two packets whose Poly1305 runs in step in 64-bit limbs (`pair`), or eight in
//!              vector registers (`parallel`)
//! ```
//! A packet that comes alone, or that is long enough to fill the registers, is processed by itself
//! (`alone`).
//!
//! The cipher occupies the vector units and a pair the multiplier, and neither fills the machine
//! alone. A packet is many lanes, and a pass takes lanes of any packet, so short packets fill the
//! registers as well as full ones. The caller wipes what a forged packet decrypts to.

pub(super) mod alone;
pub(super) mod block;
pub(super) mod entry;
pub(super) mod forms;
#[cfg(target_arch = "x86_64")]
pub(super) mod halves;
pub(super) mod meanwhile;
pub(super) mod pair;
pub(super) mod parallel;
pub(super) mod poly1305;
#[cfg(target_arch = "x86_64")]
pub(super) mod twins;

use std::ops::Range;
use std::slice;

use zeroize::Zeroize;

use self::block::{BLOCK_LEN, Block, Lane, Row, Rows, first_row, first_rows};
use self::forms::Forms;
use self::meanwhile::Nothing;
use self::pair::Pair;
use self::parallel::{Message, Messages, PARALLEL, Parallel};
use self::poly1305::{POLY_BLOCK_LEN, Poly};
use super::job::{Headers, Toggle};
use super::registers::wipe;
use super::{Job, MAX_JOBS};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::{MAX_NUMBER_LEN, SAMPLE_LEN, TAG_LEN};

pub(super) struct Key {
    key: [u32; 8],
    iv: [u8; 12],
}

/// The header-protection key.
pub(super) struct HeaderKey([u32; 8]);

// RFC 8439 §2.3: there is no key expansion.
const _: () = assert!(size_of::<Key>() + size_of::<HeaderKey>() <= 1024);

impl Drop for Key {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
    }
}

impl Drop for HeaderKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

fn key_words(key: &[u8; 32]) -> [u32; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

impl Key {
    pub(super) fn new(material: &KeyMaterial) -> Box<Self> {
        Box::new(Self {
            key: key_words(material.padded_key()),
            iv: *material.iv(),
        })
    }

    /// The last row of the state of a packet's block 0: the counter and the nonce (RFC 9001 §5.3,
    /// draft-ietf-quic-multipath §2.4).
    #[inline(always)]
    fn nonce(&self, (path_id, number): (u32, u64)) -> Row {
        let [i0, i1, i2, i3, rest @ ..] = self.iv;
        let rest = u64::from_le_bytes(rest) ^ number.swap_bytes();
        [
            0,
            u32::from_le_bytes([i0, i1, i2, i3]) ^ path_id.swap_bytes(),
            rest as u32,
            (rest >> 32) as u32,
        ]
    }
}

impl HeaderKey {
    pub(super) fn new(material: &HeaderKeyMaterial) -> Box<Self> {
        Box::new(Self(key_words(material.padded_key())))
    }
}

/// Some lanes side by side: the job whose key stream they make, and their first block.
#[derive(Copy, Clone)]
struct Run {
    job: u8,
    lanes: u8,
    block: u32,
}

impl Run {
    const EMPTY: Self = Self {
        job: 0,
        lanes: 0,
        block: 0,
    };
}

/// The lanes that are still to be made, in order.
struct Supply {
    /// The next job whose block 0 is wanted.
    first: usize,
    /// The team of jobs whose payloads are in progress, and the next block of each.
    team: Range<usize>,
    next: [u32; PARALLEL],
    /// Which of them is next, and how many lanes it still gets before the next one's turn.
    turn: usize,
    credit: usize,
}

/// The jobs whose payloads are processed together, from `start` on: as many as Poly1305 takes side
/// by side.
#[inline(always)]
fn team_after<W: Rows>(start: usize, jobs: usize) -> Range<usize> {
    let size = if W::HAS_PARALLEL && jobs - start >= LEAST_PARALLEL {
        PARALLEL
    } else {
        2
    };
    start..(start + size).min(jobs)
}

/// Hashing in parallel takes the same time for any number of messages; fewer than this are paired.
const LEAST_PARALLEL: usize = 4;

/// The smallest payload, in bytes, at which a packet is faster by itself than together with others:
/// it fills the registers anyway, and its single blocks and its mask cost nothing during a pass.
pub(super) struct LeastAlone {
    /// In a call of at most [`FEW`] packets.
    pub(super) of_few: usize,
    /// In a call of more.
    pub(super) of_many: usize,
}

/// More bytes than any packet has.
pub(super) const NEVER: usize = 1 << 30;

/// This many short packets do not fill the registers.
const FEW: usize = 4;

/// How the jobs of a call are processed; the parts follow one another.
pub(super) struct Division {
    /// Two by two.
    pub(super) twins: Range<usize>,
    /// Each by itself.
    pub(super) alone: Range<usize>,
    /// Sharing registers.
    pub(super) together: Range<usize>,
}

impl Division {
    #[inline(always)]
    pub(super) fn of<W: Forms>(jobs: &[Job<'_>]) -> Self {
        let twins = W::twins(jobs);
        let least = if jobs.len() <= FEW {
            W::LEAST_ALONE.of_few
        } else {
            W::LEAST_ALONE.of_many
        };
        let is_long = |job: &&Job<'_>| job.public_lens().1.cast_signed() >= least.cast_signed();
        let rest = &jobs[twins..];
        let mut alone = rest.iter().take_while(is_long).count();
        // A single one that is left has none to share with.
        if rest.len() - alone == 1 {
            alone = rest.len();
        }
        Self {
            twins: 0..twins,
            alone: twins..twins + alone,
            together: twins + alone..jobs.len(),
        }
    }

    /// All but those that are processed by themselves, which get their masks on the way. No CPU
    /// has twins and other packets on both sides of those.
    #[inline(always)]
    pub(super) fn not_alone(&self) -> Range<usize> {
        if self.alone.is_empty() {
            return self.twins.start..self.together.end;
        }
        debug_assert!(self.twins.is_empty() || self.together.is_empty());
        if self.twins.is_empty() {
            self.together.clone()
        } else {
            self.twins.clone()
        }
    }
}

/// What is known about a job while its lanes are made.
#[derive(Copy, Clone)]
struct Progress {
    nonce: Row,
    /// Payload bytes that Poly1305 may take.
    ready: usize,
    /// Payload bytes that it has taken.
    hashed: usize,
}

impl Progress {
    const NEW: Self = Self {
        nonce: [0; 4],
        ready: 0,
        hashed: 0,
    };
}

/// The jobs, and how far Poly1305 is with them.
struct Queue<'w, 'a> {
    jobs: &'w mut [Job<'a>],
    progress: [Progress; MAX_JOBS],
    polys: [Poly; MAX_JOBS],
    /// Jobs whose Poly1305 has its key.
    keyed: usize,
    /// Blocks that are ready, of all jobs, and not hashed yet.
    owing: usize,
    /// Jobs whose Poly1305 has ended, one bit each, and the first job for which it has not.
    ended: u32,
    first: usize,
    /// Jobs whose tag is right, one bit each.
    authentic: u32,
}

/// One call.
struct Work<'w, 'a, const LANES: usize> {
    queue: Queue<'w, 'a>,
    blocks: [Block; LANES],
    /// What the lanes work on. In runs: keeping it for each lane cost 12 % more at 1,450 bytes in
    /// 512-bit registers.
    runs: [Run; LANES],
    run_count: usize,
    lanes: [Lane; LANES],
}

/// Payload blocks that are whole and ready, and not hashed yet.
#[inline(always)]
fn waiting<'j>(job: &'j Job<'_>, progress: &Progress) -> &'j [[u8; POLY_BLOCK_LEN]] {
    let (_, payload) = job.header_and_payload();
    payload[progress.hashed..progress.ready].as_chunks().0
}

/// A block's worth of a packet from an offset within header and payload; the room for the tag
/// follows them.
#[inline(always)]
fn block_at(packet: &[u8], at: usize) -> &[u8; POLY_BLOCK_LEN] {
    packet[at..]
        .first_chunk()
        .expect("a packet ends with room for a tag")
}

/// The longest that the payload can be: its length if the packet number has one byte. It is visible
/// on the wire, so it may decide how many passes to make. The real length may not, since header
/// protection hides the number's length (RFC 9001 §9.5).
#[inline(always)]
fn longest_payload(job: &Job<'_>) -> usize {
    let len = job.payload_len();
    let longest = job.public_lens().1.wrapping_add(MAX_NUMBER_LEN - 1);
    longest.clamp(len, len + MAX_NUMBER_LEN)
}

/// Protects the header of a sealed packet. `mask` is what its sample encrypts to, or `None` if the
/// sample reached into the tag, which is written only now.
#[inline(always)]
fn protect_header(header: &HeaderKey, job: &mut Job<'_>, mask: Option<Row>) {
    let mut jobs = slice::from_mut(job);
    let mask = mask.unwrap_or_else(|| first_row(&header.0, &sample_row(jobs.sample(0))));
    let mask = u64::from(mask[1]) << 32 | u64::from(mask[0]);
    jobs.toggle(0, mask, Toggle::Protect);
}

/// Poly1305 with the key from a block 0, and with the header hashed.
#[inline(always)]
fn keyed<W: Rows>(w: W, block: &Block, job: &Job<'_>) -> Poly {
    let ([r, pad, ..], _) = block.0.as_chunks() else {
        unreachable!("a block is longer than a key");
    };
    let mut poly = Poly::new(u128::from_le_bytes(*r), u128::from_le_bytes(*pad));
    let (packet, header_len) = job.packet_and_header_len();
    let (header, rest) = packet[..header_len].as_chunks();
    for block in header {
        w.absorb(&mut poly.h, &poly.r, block);
    }
    poly.part(block_at(packet, header_len - rest.len()), rest.len());
    poly
}

impl Queue<'_, '_> {
    /// The first two jobs that have blocks waiting for Poly1305, with these; the job that has more
    /// comes first.
    #[inline(always)]
    fn pair<W: Rows>(&self, w: W) -> ([usize; 2], Pair<'_, W>) {
        let mut found = [(usize::MAX, &Poly::EMPTY, &[][..]); 2];
        let mut count = 0;
        for index in self.first..self.keyed {
            let blocks = waiting(&self.jobs[index], &self.progress[index]);
            if !blocks.is_empty() {
                found[count] = (index, &self.polys[index], blocks);
                count += 1;
                if count == 2 {
                    break;
                }
            }
        }
        let [(i, a, blocks_a), (k, b, blocks_b)] = found;
        if blocks_a.len() >= blocks_b.len() {
            ([i, k], Pair::new(w, (a, blocks_a), (b, blocks_b)))
        } else {
            ([k, i], Pair::new(w, (b, blocks_b), (a, blocks_a)))
        }
    }

    /// The messages of the team that Poly1305 works on, if enough of them have blocks waiting:
    /// which they are, the least number of blocks of any, and the messages themselves.
    #[inline(always)]
    fn parallel_messages(&self) -> Option<(u8, usize, Messages<'_>)> {
        let first = self.first & !(PARALLEL - 1);
        let mut messages = [Message::EMPTY; PARALLEL];
        let (mut active, mut count, mut any) = (0, usize::MAX, Message::EMPTY);
        for (i, index) in (first..self.keyed.min(first + PARALLEL)).enumerate() {
            let data = waiting(&self.jobs[index], &self.progress[index]);
            let poly = &self.polys[index];
            if !data.is_empty() {
                any = Message {
                    r: [poly.r[0], poly.r[1]],
                    h: poly.h,
                    data,
                };
                messages[i] = any;
                active |= 1 << i;
                count = count.min(data.len());
            }
        }
        if u8::count_ones(active) < LEAST_PARALLEL as u32 {
            return None;
        }
        // Lanes without a message read the data of another one.
        for message in messages
            .iter_mut()
            .filter(|message| message.data.is_empty())
        {
            message.data = any.data;
        }
        Some((active, count, messages))
    }

    /// Records what was hashed in parallel.
    #[inline(always)]
    fn note_parallel(&mut self, active: u8, count: usize, hashed: [[u64; 3]; PARALLEL]) {
        let first = self.first & !(PARALLEL - 1);
        for (i, h) in hashed.into_iter().enumerate() {
            if active >> i & 1 == 1 {
                self.polys[first + i].h = h;
                self.progress[first + i].hashed += count * POLY_BLOCK_LEN;
                self.owing -= count;
            }
        }
    }

    /// Records what a pair hashed.
    #[inline(always)]
    fn note(&mut self, jobs: [usize; 2], hashed: [[u64; 3]; 2]) {
        for (job, h) in jobs.into_iter().zip(hashed) {
            if job < self.keyed {
                let progress = &mut self.progress[job];
                let count = (progress.ready - progress.hashed) / POLY_BLOCK_LEN;
                progress.hashed += count * POLY_BLOCK_LEN;
                self.owing -= count;
                self.polys[job].h = h;
            }
        }
    }

    /// Ends Poly1305 of the jobs that are hashed up to the last bytes.
    #[inline(always)]
    fn settle<const SEAL: bool>(&mut self) {
        for index in self.first..self.keyed {
            let job = &mut self.jobs[index];
            let progress = &self.progress[index];
            let (len, rest) = (job.payload_len(), job.payload_len() - progress.hashed);
            if progress.ready < len && progress.ready == 0 {
                // Nothing of the later ones is ready either.
                break;
            }
            let ended = self.ended >> index & 1 == 1;
            if ended || progress.ready < len || rest >= POLY_BLOCK_LEN {
                continue;
            }
            let poly = &mut self.polys[index];
            let (packet, header_len) = job.packet_and_header_len();
            let last = block_at(packet, header_len + progress.hashed);
            let tag = poly.end(last, rest, header_len, len);
            let (_, _, place) = job.parts();
            if SEAL {
                *place = tag;
            } else {
                // Constant time: all bytes are compared at once.
                let difference = u128::from_le_bytes(tag) ^ u128::from_le_bytes(*place);
                self.authentic |= u32::from(difference == 0) << index;
            }
            self.ended |= 1 << index;
        }
        self.first = self.ended.trailing_ones() as usize;
    }

    /// Hashes everything that is ready.
    #[inline(always)]
    fn drain<W: Rows, const SEAL: bool>(&mut self, w: W) {
        // Whatever is ready has its key by now, so each turn finds some.
        while self.owing > 0 {
            if W::HAS_PARALLEL
                && let Some((active, count, messages)) = self.parallel_messages()
            {
                let hashed = W::Parallel::new(w, messages, count).finish();
                self.note_parallel(active, count, hashed);
                continue;
            }
            let (jobs, mut pair) = self.pair(w);
            pair.finish();
            let hashed = [pair.a.h, pair.b.h];
            self.note(jobs, hashed);
        }
        self.settle::<SEAL>();
    }
}

impl<'w, 'a, const LANES: usize> Work<'w, 'a, LANES> {
    #[inline(always)]
    fn new(key: &Key, jobs: &'w mut [Job<'a>]) -> Self {
        let mut progress = [Progress::NEW; MAX_JOBS];
        for (progress, job) in progress.iter_mut().zip(&*jobs) {
            progress.nonce = key.nonce(job.path_and_number());
        }
        Self {
            queue: Queue {
                jobs,
                progress,
                polys: [Poly::EMPTY; MAX_JOBS],
                keyed: 0,
                owing: 0,
                ended: 0,
                first: 0,
                authentic: 0,
            },
            blocks: [Block::ZERO; LANES],
            runs: [Run::EMPTY; LANES],
            run_count: 0,
            lanes: [Lane::EMPTY; LANES],
        }
    }

    /// Takes the lanes of the next pass and returns their number.
    #[inline(always)]
    fn fill<W: Rows>(&mut self, supply: &mut Supply) -> usize {
        let mut count = 0;
        self.run_count = 0;
        while count < LANES && supply.first < self.queue.jobs.len() {
            self.place(count, supply.first, 0, 1);
            supply.first += 1;
            count += 1;
        }
        while count < LANES && supply.team.start < self.queue.jobs.len() {
            let size = supply.team.len();
            let job = supply.team.start + supply.turn;
            let blocks = self.queue.jobs[job].payload_len().div_ceil(BLOCK_LEN);
            let next = supply.next[supply.turn] as usize;
            let taken = (blocks - next).min(supply.credit).min(LANES - count);
            if taken > 0 {
                // Block 0 was the Poly1305 key.
                self.place(count, job, next as u32 + 1, taken);
                count += taken;
            }
            supply.next[supply.turn] += taken as u32;
            supply.credit -= taken;
            if supply.credit > 0 && next + taken < blocks {
                break;
            }
            supply.turn += 1;
            if supply.turn == size {
                supply.turn = 0;
                let team = &self.queue.jobs[supply.team.clone()];
                let done = team
                    .iter()
                    .zip(supply.next)
                    .all(|(job, next)| next as usize == job.payload_len().div_ceil(BLOCK_LEN));
                if done {
                    supply.team = team_after::<W>(supply.team.end, self.queue.jobs.len());
                    supply.next = [0; PARALLEL];
                }
            }
            supply.credit = (LANES / supply.team.len().max(1)).max(1);
        }
        count
    }

    #[inline(always)]
    fn place(&mut self, at: usize, job: usize, block: u32, lanes: usize) {
        self.runs[self.run_count] = Run {
            job: job as u8,
            lanes: lanes as u8,
            block,
        };
        self.run_count += 1;
        let nonce = self.queue.progress[job].nonce;
        for (lane, counter) in self.lanes[at..at + lanes].iter_mut().zip(block..) {
            *lane = Lane { nonce, counter };
        }
    }

    /// Makes the payload bytes of the pass's lanes ready for Poly1305.
    #[inline(always)]
    fn advance(&mut self) {
        for run in &self.runs[..self.run_count] {
            if run.block > 0 {
                let job = usize::from(run.job);
                let progress = &mut self.queue.progress[job];
                let before = progress.ready / POLY_BLOCK_LEN;
                let blocks = run.block as usize - 1 + usize::from(run.lanes);
                progress.ready = (blocks * BLOCK_LEN).min(self.queue.jobs[job].payload_len());
                self.queue.owing += progress.ready / POLY_BLOCK_LEN - before;
            }
        }
    }

    /// A pass of `count` lanes, as narrow as possible; a full one hashes what is ready between its
    /// rounds.
    #[inline(always)]
    fn pass<W: Rows, const G: usize, const MIDDLE: usize>(
        &mut self,
        w: W,
        key: &[u32; 8],
        count: usize,
    ) {
        let (lanes, blocks) = (&self.lanes, &mut self.blocks);
        if count <= W::WIDTH {
            return w.pass::<1>(key, lanes, blocks, &mut Nothing);
        }
        if count <= MIDDLE * W::WIDTH {
            return w.pass::<MIDDLE>(key, lanes, blocks, &mut Nothing);
        }
        if self.queue.owing == 0 || self.queue.first >= self.queue.keyed {
            return w.pass::<G>(key, lanes, blocks, &mut Nothing);
        }
        if W::HAS_PARALLEL
            && let Some((active, count, messages)) = self.queue.parallel_messages()
        {
            let mut hash = W::Parallel::new(w, messages, count);
            w.pass::<G>(key, lanes, blocks, &mut hash);
            let hashed = hash.finish();
            self.queue.note_parallel(active, count, hashed);
            return;
        }
        let (jobs, mut pair) = self.queue.pair(w);
        w.pass::<G>(key, lanes, blocks, &mut pair);
        let hashed = [pair.a.h, pair.b.h];
        self.queue.note(jobs, hashed);
    }

    /// Starts Poly1305 of the jobs whose block 0 was made, with its key and the header.
    #[inline(always)]
    fn take_keys<W: Rows>(&mut self, w: W) {
        for (run, block) in self.runs[..self.run_count].iter().zip(&self.blocks) {
            if run.block > 0 {
                break;
            }
            let job = usize::from(run.job);
            self.queue.polys[job] = keyed(w, block, &self.queue.jobs[job]);
            self.queue.keyed = job + 1;
        }
    }

    /// Adds the key stream to the payloads.
    #[inline(always)]
    fn apply<W: Rows>(&mut self, w: W) {
        let mut blocks = self.blocks.as_slice();
        for run in &self.runs[..self.run_count] {
            let (here, rest) = blocks.split_at(usize::from(run.lanes));
            blocks = rest;
            if run.block > 0 {
                let at = (run.block as usize - 1) * BLOCK_LEN;
                apply(w, &mut self.queue.jobs[usize::from(run.job)], at, here);
            }
        }
    }
}

impl<const LANES: usize> Drop for Work<'_, '_, LANES> {
    fn drop(&mut self) {
        // Poly1305 keys were in the key stream.
        wipe(&mut self.blocks, Block::ZERO);
        let used = self.queue.jobs.len();
        self.queue.polys[..used]
            .iter_mut()
            .for_each(Zeroize::zeroize);
    }
}

/// Adds blocks of key stream to the payload from an offset on.
#[inline(always)]
fn apply<W: Rows>(w: W, job: &mut Job<'_>, at: usize, pads: &[Block]) {
    let (body, source) = job.body_and_source();
    let payload_len = body.len() - TAG_LEN;
    let head = payload_len - source.len();
    let whole = body[at..payload_len].as_chunks_mut::<BLOCK_LEN>().0;
    let count = whole.len().min(pads.len());
    if at >= head && !source.is_empty() {
        let inputs = source[at - head..].as_chunks::<BLOCK_LEN>().0;
        for ((output, input), pad) in whole.iter_mut().zip(inputs).zip(pads) {
            w.apply(Some(input), pad, output);
        }
    } else {
        for ((i, output), pad) in whole.iter_mut().enumerate().zip(pads) {
            let at = at + i * BLOCK_LEN;
            let mut input = None;
            if at >= head && !source.is_empty() {
                input = source[at - head..].first_chunk();
            } else if at + BLOCK_LEN > head {
                // Source and payload join in this block.
                let len = at + BLOCK_LEN - head;
                output[BLOCK_LEN - len..].copy_from_slice(&source[..len]);
            }
            w.apply(input, pad, output);
        }
    }
    if let Some(pad) = pads.get(count) {
        apply_last(body, source, at + count * BLOCK_LEN, pad);
    }
}

/// Adds key stream to the last bytes of the payload, which are less than a block.
#[inline(always)]
fn apply_last(body: &mut [u8], source: &[u8], at: usize, pad: &Block) {
    let payload_len = body.len() - TAG_LEN;
    let head = payload_len - source.len();
    let here = &mut body[at..];
    let from = head.max(at);
    here[from - at..payload_len - at].copy_from_slice(&source[from - head..]);
    let pads = pad.0.as_chunks::<POLY_BLOCK_LEN>().0;
    let mut left = payload_len - at;
    for (bytes, pad) in here
        .as_chunks_mut::<POLY_BLOCK_LEN>()
        .0
        .iter_mut()
        .zip(pads)
    {
        // The tag follows the payload and is left as it is.
        let mask = if left < POLY_BLOCK_LEN {
            (1 << (8 * left)) - 1
        } else {
            u128::MAX
        };
        *bytes = (u128::from_le_bytes(*bytes) ^ (u128::from_le_bytes(*pad) & mask)).to_le_bytes();
        if left <= POLY_BLOCK_LEN {
            break;
        }
        left -= POLY_BLOCK_LEN;
    }
}

/// What both directions do: passes until there are no lanes left.
#[inline(always)]
fn run<W: Rows, const G: usize, const MIDDLE: usize, const LANES: usize, const SEAL: bool>(
    w: W,
    key: &Key,
    jobs: &mut [Job<'_>],
) -> u32 {
    const { assert!(LANES == G * W::WIDTH) };
    let mut work = Work::<LANES>::new(key, jobs);
    let team = team_after::<W>(0, work.queue.jobs.len());
    let mut supply = Supply {
        first: 0,
        next: [0; PARALLEL],
        turn: 0,
        credit: LANES / team.len().max(1),
        team,
    };
    loop {
        let count = work.fill::<W>(&mut supply);
        if count == 0 {
            break;
        }
        if !SEAL {
            work.advance();
        }
        work.queue.settle::<SEAL>();
        work.pass::<W, G, MIDDLE>(w, &key.key, count);
        work.take_keys(w);
        if !SEAL {
            work.queue.drain::<W, SEAL>(w);
        }
        work.apply(w);
        if SEAL {
            work.advance();
        }
    }
    work.queue.drain::<W, SEAL>(w);
    work.queue.authentic
}

/// Encrypts the payloads and writes the tags.
#[inline(always)]
pub(super) fn seal<W: Rows, const G: usize, const MIDDLE: usize, const LANES: usize>(
    w: W,
    key: &Key,
    jobs: &mut [Job<'_>],
) {
    run::<W, G, MIDDLE, LANES, true>(w, key, jobs);
}

/// Decrypts the payloads; bit `i` of the result says that job `i` has the right tag.
#[inline(always)]
pub(super) fn open<W: Rows, const G: usize, const MIDDLE: usize, const LANES: usize>(
    w: W,
    key: &Key,
    jobs: &mut [Job<'_>],
) -> u32 {
    run::<W, G, MIDDLE, LANES, false>(w, key, jobs)
}

/// A sample as the last row of a state: a counter and a nonce (RFC 9001 §5.4.4).
#[inline(always)]
fn sample_row(sample: &[u8; SAMPLE_LEN]) -> Row {
    let ([a, b, c, d], _) = sample.as_chunks() else {
        unreachable!("a sample is four words");
    };
    [*a, *b, *c, *d].map(u32::from_le_bytes)
}

/// RFC 9001 §5.4.4, for the samples of some packets at a time.
#[inline(always)]
pub(super) fn masks<W: Rows, const G: usize, const MIDDLE: usize, const LANES: usize>(
    w: W,
    key: &HeaderKey,
    samples: &mut [[u8; SAMPLE_LEN]],
) {
    for samples in samples.chunks_mut(LANES) {
        let bytes = |row: Row| {
            let mut bytes = [0; SAMPLE_LEN];
            bytes
                .as_chunks_mut()
                .0
                .iter_mut()
                .zip(row)
                .for_each(|(bytes, word)| *bytes = word.to_le_bytes());
            bytes
        };
        if let [sample] = samples {
            *sample = bytes(first_row(&key.0, &sample_row(sample)));
            continue;
        }
        let mut lanes = [Lane::EMPTY; LANES];
        for (lane, sample) in lanes.iter_mut().zip(&*samples) {
            lane.nonce = sample_row(sample);
        }
        let mut rows = [[0; 4]; LANES];
        if samples.len() <= W::WIDTH {
            first_rows::<W, 1>(w, &key.0, &lanes, &mut rows, &mut Nothing);
        } else if samples.len() <= MIDDLE * W::WIDTH {
            first_rows::<W, MIDDLE>(w, &key.0, &lanes, &mut rows, &mut Nothing);
        } else {
            first_rows::<W, G>(w, &key.0, &lanes, &mut rows, &mut Nothing);
        }
        for (sample, row) in samples.iter_mut().zip(rows) {
            *sample = bytes(row);
        }
    }
}
