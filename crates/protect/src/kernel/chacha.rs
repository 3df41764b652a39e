//! ChaCha20-Poly1305 (RFC 8439) for packets, several side by side.
//!
//! ```text
//!   lanes      one key-stream block each, of any packet     8 at a time in 256-bit registers
//!   seal       Poly1305 keys of all ─▶ encrypt all          ─▶ Poly1305 of all, two packets at a time
//!   open       Poly1305 keys of all ─▶ Poly1305 of all      ─▶ decrypt those that are authentic
//! ```
//! A packet is many lanes and lanes do not ask whose they are, so short packets fill the registers as well as full ones.
//! Poly1305 is a chain of multiplications, each waiting for the last one; two chains at a time hide the wait.
//! A forged packet is never decrypted.

use zeroize::Zeroize;

use super::{Job, MAX_JOBS};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::{SAMPLE_LEN, TAG_LEN};

/// Bytes of a key-stream block.
const BLOCK_LEN: usize = 64;

/// A key-stream block, in little-endian numbers.
pub(super) type Block = [u64; BLOCK_LEN / 8];

/// Groups of registers in one pass. A group is the four rows of two lanes' states, and groups hide each other's latency.
/// Three leave room in the sixteen registers for what is on its way, four do not; yet on Zen 5, where these operations
/// take two cycles, four took 10 % less time for full packets and 30 % less for short ones. (One word of eight
/// blocks in each register, with twice as much of the state in memory, was no better.)
const GROUPS: usize = 4;

/// Key-stream blocks in one pass.
pub(super) const LANES: usize = 2 * GROUPS;

/// The last row of each lane's state: the counter and the nonce (RFC 8439 §2.3).
type Inputs = [[u32; 4]; LANES];

/// RFC 8439 §2.3: "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// What the kernel needs from a CPU: registers of a row, four 32-bit words, of two lanes each. A value is the proof that
/// the CPU has them.
pub(super) trait Rows: Copy {
    type V: Copy;

    /// The same row in both lanes.
    fn splat(self, row: &[u32; 4]) -> Self::V;
    fn load(self, rows: &[[u32; 4]; 2]) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    /// Rotates each word left; `RIGHT` is 32 less `LEFT`.
    fn rotate_left<const LEFT: i32, const RIGHT: i32>(self, v: Self::V) -> Self::V;
    /// What `rotate_bytes` wants to rotate each word left by 16 and by 8 bits.
    fn byte_rotations(self) -> [Self::V; 2];
    fn rotate_bytes(self, v: Self::V, rotation: Self::V) -> Self::V;
    /// Rotates each lane's words by one, two or three places.
    fn turn_1(self, v: Self::V) -> Self::V;
    fn turn_2(self, v: Self::V) -> Self::V;
    fn turn_3(self, v: Self::V) -> Self::V;
    /// Writes the rows of two lanes as their blocks.
    fn store(self, rows: [Self::V; 4], blocks: &mut [Block; 2]);
}

pub(super) struct Key {
    key: [u32; 8],
    iv: [u8; 12],
}

impl Drop for Key {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
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

    /// The last row of a state: a block counter and the nonce of RFC 9001 §5.3.
    #[inline(always)]
    fn input(&self, number: u64, counter: u32) -> [u32; 4] {
        let [i0, i1, i2, i3, rest @ ..] = self.iv;
        let rest = u64::from_le_bytes(rest) ^ number.swap_bytes();
        [
            counter,
            u32::from_le_bytes([i0, i1, i2, i3]),
            rest as u32,
            (rest >> 32) as u32,
        ]
    }
}

/// The key stream of all lanes.
struct Pad([Block; LANES]);

impl Drop for Pad {
    fn drop(&mut self) {
        // Poly1305 keys were in it. In numbers, because bytes are wiped one by one.
        self.0.zeroize();
    }
}

/// RFC 8439 §2.3: the block function, for all lanes.
#[inline(always)]
fn key_stream<W: Rows>(w: W, key: &[u32; 8], inputs: &Inputs, pad: &mut Pad) {
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let (row_0, row_1, row_2) = (
        w.splat(&CONSTANTS),
        w.splat(&[k0, k1, k2, k3]),
        w.splat(&[k4, k5, k6, k7]),
    );
    let (mut a, mut b, mut c) = ([row_0; GROUPS], [row_1; GROUPS], [row_2; GROUPS]);
    let mut d = a;
    let pairs = inputs.as_chunks::<2>().0;
    for g in 0..GROUPS {
        d[g] = w.load(&pairs[g]);
    }
    let [by_16, by_8] = w.byte_rotations();
    macro_rules! quarter_rounds {
        () => {
            for g in 0..GROUPS {
                a[g] = w.add(a[g], b[g]);
                d[g] = w.rotate_bytes(w.xor(d[g], a[g]), by_16);
            }
            for g in 0..GROUPS {
                c[g] = w.add(c[g], d[g]);
                b[g] = w.rotate_left::<12, 20>(w.xor(b[g], c[g]));
            }
            for g in 0..GROUPS {
                a[g] = w.add(a[g], b[g]);
                d[g] = w.rotate_bytes(w.xor(d[g], a[g]), by_8);
            }
            for g in 0..GROUPS {
                c[g] = w.add(c[g], d[g]);
                b[g] = w.rotate_left::<7, 25>(w.xor(b[g], c[g]));
            }
        };
    }
    for _ in 0..10 {
        quarter_rounds!();
        // Columns become diagonals, and back.
        for g in 0..GROUPS {
            (b[g], c[g], d[g]) = (w.turn_1(b[g]), w.turn_2(c[g]), w.turn_3(d[g]));
        }
        quarter_rounds!();
        for g in 0..GROUPS {
            (b[g], c[g], d[g]) = (w.turn_3(b[g]), w.turn_2(c[g]), w.turn_1(d[g]));
        }
    }
    let blocks = pad.0.as_chunks_mut::<2>().0;
    for g in 0..GROUPS {
        let rows = [
            w.add(a[g], row_0),
            w.add(b[g], row_1),
            w.add(c[g], row_2),
            w.add(d[g], w.load(&pairs[g])),
        ];
        w.store(rows, &mut blocks[g]);
    }
}

/// Poly1305 of each job, keyed with its block 0 (RFC 8439 §2.6).
#[inline(always)]
fn authenticators<W: Rows>(w: W, key: &Key, jobs: &[Job<'_>]) -> [Poly; MAX_JOBS] {
    let mut polys = [const { Poly::EMPTY }; MAX_JOBS];
    for (jobs, polys) in jobs.chunks(LANES).zip(polys.chunks_mut(LANES)) {
        let mut inputs: Inputs = [[0; 4]; LANES];
        for (input, job) in inputs.iter_mut().zip(jobs) {
            *input = key.input(job.number(), 0);
        }
        let mut pad = Pad([[0; BLOCK_LEN / 8]; LANES]);
        key_stream(w, &key.key, &inputs, &mut pad);
        for (poly, block) in polys.iter_mut().zip(&pad.0).take(jobs.len()) {
            *poly = Poly::new(block);
        }
    }
    polys
}

/// Adds the key stream to the payloads of the jobs whose bit is set, reading from their sources what is there.
#[inline(always)]
fn crypt<W: Rows>(w: W, key: &Key, jobs: &mut [Job<'_>], chosen: u32) {
    let mut inputs: Inputs = [[0; 4]; LANES];
    // Which job and which block of it a lane works on.
    let mut work = [(0, 0); LANES];
    let mut lanes = 0;
    let mut pad = Pad([[0; BLOCK_LEN / 8]; LANES]);
    macro_rules! run {
        () => {
            key_stream(w, &key.key, &inputs, &mut pad);
            for (&(job, block), pad) in work[..lanes].iter().zip(&pad.0) {
                apply(&mut jobs[job], block * BLOCK_LEN, pad);
            }
        };
    }
    for index in 0..jobs.len() {
        if chosen >> index & 1 == 0 {
            continue;
        }
        let number = jobs[index].number();
        let blocks = jobs[index].payload_len().div_ceil(BLOCK_LEN);
        for block in 0..blocks {
            // Block 0 was the Poly1305 key.
            inputs[lanes] = key.input(number, block as u32 + 1);
            work[lanes] = (index, block);
            lanes += 1;
            if lanes == LANES {
                run!();
                lanes = 0;
            }
        }
    }
    if lanes > 0 {
        run!();
    }
}

/// Adds a block of key stream to the payload at an offset.
#[inline(always)]
fn apply(job: &mut Job<'_>, at: usize, pad: &Block) {
    let (body, source) = job.body_and_source();
    let payload_len = body.len() - TAG_LEN;
    let head = payload_len - source.len();
    let payload = &mut body[at..payload_len];
    if at < head && at + BLOCK_LEN > head {
        // The two join in this block.
        let room = &mut payload[head - at..];
        let len = room.len().min(at + BLOCK_LEN - head);
        room[..len].copy_from_slice(&source[..len]);
    }
    if let Some(payload) = payload.first_chunk_mut::<BLOCK_LEN>() {
        let from = at
            .checked_sub(head)
            .and_then(|from| source[from..].first_chunk());
        let input = *from.unwrap_or(payload);
        let words = input
            .as_chunks()
            .0
            .iter()
            .zip(payload.as_chunks_mut().0)
            .zip(pad);
        for ((input, output), pad) in words {
            *output = (u64::from_le_bytes(*input) ^ pad).to_le_bytes();
        }
    } else {
        if at >= head {
            payload.copy_from_slice(&source[at - head..]);
        }
        for (bytes, pad) in payload.chunks_mut(8).zip(pad) {
            for (byte, pad) in bytes.iter_mut().zip(pad.to_le_bytes()) {
                *byte ^= pad;
            }
        }
    }
}

/// Encrypts the payloads and writes the tags.
#[inline(always)]
pub(super) fn seal<W: Rows>(w: W, key: &Key, jobs: &mut [Job<'_>]) {
    let mut polys = authenticators(w, key, jobs);
    crypt(w, key, jobs, u32::MAX);
    for (pair, polys) in jobs.chunks_mut(2).zip(polys.chunks_mut(2)) {
        authenticate(pair, polys);
        for (job, poly) in pair.iter_mut().zip(polys) {
            *job.parts().2 = poly.tag();
        }
    }
}

/// Decrypts the payloads of the jobs whose tags are right, and says which by bits.
#[inline(always)]
pub(super) fn open<W: Rows>(w: W, key: &Key, jobs: &mut [Job<'_>]) -> u32 {
    let mut polys = authenticators(w, key, jobs);
    let mut good = 0;
    for (i, (pair, polys)) in jobs.chunks_mut(2).zip(polys.chunks_mut(2)).enumerate() {
        authenticate(pair, polys);
        for (k, (job, poly)) in pair.iter_mut().zip(polys).enumerate() {
            // No byte decides alone when the comparison ends: all are compared at once.
            let difference = u128::from_le_bytes(poly.tag()) ^ u128::from_le_bytes(*job.parts().2);
            good |= u32::from(difference == 0) << (2 * i + k);
        }
    }
    crypt(w, key, jobs, good);
    good
}

/// RFC 9001 §5.4.4, for the samples of some packets at a time: a sample is a counter and a nonce.
#[inline(always)]
pub(super) fn masks<W: Rows>(w: W, key: &HeaderKey, samples: &mut [[u8; SAMPLE_LEN]]) {
    for samples in samples.chunks_mut(LANES) {
        let mut inputs: Inputs = [[0; 4]; LANES];
        for (input, sample) in inputs.iter_mut().zip(samples.iter()) {
            for (input, word) in input.iter_mut().zip(sample.as_chunks().0) {
                *input = u32::from_le_bytes(*word);
            }
        }
        let mut pad = Pad([[0; BLOCK_LEN / 8]; LANES]);
        key_stream(w, &key.0, &inputs, &mut pad);
        for (sample, block) in samples.iter_mut().zip(&pad.0) {
            let [low, high, ..] = *block;
            *sample = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        }
    }
}

/// The header-protection key.
pub(super) struct HeaderKey([u32; 8]);

impl HeaderKey {
    pub(super) fn new(material: &HeaderKeyMaterial) -> Box<Self> {
        Box::new(Self(key_words(material.padded_key())))
    }
}

impl Drop for HeaderKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Poly1305 (RFC 8439 §2.5) on its way: numbers modulo 2^130 - 5 in limbs of 64 bits.
struct Poly {
    r: [u64; 2],
    /// `r[1]` * 5/4: r's clamp makes it divisible by four, and 2^130 is 5.
    s: u64,
    h: [u64; 3],
    /// What is added at the end.
    pad: u128,
}

impl Drop for Poly {
    fn drop(&mut self) {
        self.r.zeroize();
        self.s.zeroize();
        self.pad.zeroize();
    }
}

#[inline(always)]
fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

impl Poly {
    const EMPTY: Self = Self {
        r: [0; 2],
        s: 0,
        h: [0; 3],
        pad: 0,
    };

    #[inline(always)]
    fn new(block: &Block) -> Self {
        let [r0, r1, pad_low, pad_high, ..] = *block;
        // RFC 8439 §2.5: the clamp.
        let r = [r0 & 0x0fff_fffc_0fff_ffff, r1 & 0x0fff_fffc_0fff_fffc];
        let pad = u128::from(pad_high) << 64 | u128::from(pad_low);
        Self {
            r,
            s: r[1] + (r[1] >> 2),
            h: [0; 3],
            pad,
        }
    }

    /// Adds a block of 16 bytes and multiplies by r.
    #[inline(always)]
    fn block(&mut self, block: u128) {
        let [r0, r1] = self.r;
        let [h0, h1, h2] = self.h;
        let (h0, carry) = h0.overflowing_add(block as u64);
        let sum = u128::from(h1) + (block >> 64) + u128::from(carry);
        let (h1, h2) = (sum as u64, h2 + (sum >> 64) as u64 + 1);

        // h2 stays below 8, so its products fit 64 bits.
        let d0 = wide(h0, r0) + wide(h1, self.s);
        let d1 = wide(h0, r1) + wide(h1, r0) + u128::from(h2 * self.s) + (d0 >> 64);
        let d2 = h2 * r0 + (d1 >> 64) as u64;

        // What lies above 2^130 comes back times five.
        let five = (d2 >> 2) + (d2 & !3);
        let (h0, carry) = (d0 as u64).overflowing_add(five);
        let (h1, carry) = (d1 as u64).overflowing_add(u64::from(carry));
        self.h = [h0, h1, (d2 & 3) + u64::from(carry)];
    }

    /// RFC 8439 §2.8: bytes, filled up with zeros to a block.
    #[inline(always)]
    fn padded(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks();
        for block in blocks {
            self.block(u128::from_le_bytes(*block));
        }
        if !rest.is_empty() {
            let mut block = [0; 16];
            block[..rest.len()].copy_from_slice(rest);
            self.block(u128::from_le_bytes(block));
        }
    }

    #[inline(always)]
    fn tag(&self) -> [u8; TAG_LEN] {
        let [h0, h1, h2] = self.h;
        let low = u128::from(h1) << 64 | u128::from(h0);
        // h - p = h + 5 - 2^130, if that is not negative, without a branch.
        let (reduced, carry) = low.overflowing_add(5);
        let above = h2 + u64::from(carry);
        let mask = 0_u128.wrapping_sub(u128::from(above >> 2));
        let h = (reduced & mask) | (low & !mask);
        h.wrapping_add(self.pad).to_le_bytes()
    }
}

/// Poly1305 over header, ciphertext and lengths (RFC 8439 §2.8), for two jobs in step.
#[inline(always)]
fn authenticate(jobs: &[Job<'_>], polys: &mut [Poly]) {
    if let ([job_a, job_b], [poly_a, poly_b]) = (jobs, &mut *polys) {
        let (header_a, payload_a) = job_a.header_and_payload();
        let (header_b, payload_b) = job_b.header_and_payload();
        poly_a.padded(header_a);
        poly_b.padded(header_b);
        let (blocks_a, blocks_b) = (payload_a.as_chunks().0, payload_b.as_chunks().0);
        for (a, b) in blocks_a.iter().zip(blocks_b) {
            poly_a.block(u128::from_le_bytes(*a));
            poly_b.block(u128::from_le_bytes(*b));
        }
        let in_step = 16 * blocks_a.len().min(blocks_b.len());
        poly_a.padded(&payload_a[in_step..]);
        poly_b.padded(&payload_b[in_step..]);
    } else {
        for (job, poly) in jobs.iter().zip(&mut *polys) {
            let (header, payload) = job.header_and_payload();
            poly.padded(header);
            poly.padded(payload);
        }
    }
    for (job, poly) in jobs.iter().zip(polys) {
        let (header, payload) = job.header_and_payload();
        poly.block((payload.len() as u128) << 64 | header.len() as u128);
    }
}
