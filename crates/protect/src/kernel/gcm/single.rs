//! One packet by itself, for calls with few packets: nothing is prepared for others.
//!
//! ```text
//!               lane 0    lane 1   lane 2   lane 3
//!   register 0  J0, A     1        2        3          counters, and blocks of the payload
//!   register 1  4         5        6        7
//!               ...       n                            the last register is cut
//! ```
//! The first lane encrypts the tag and hashes the associated data, so that neither takes a pass of
//! its own. The last blocks are hashed from registers.

use super::place::{Destination, Plaintext, is_right};
use super::row::Stash;
use super::{CHUNK, COUNTERS_WITH_TAG, Cipher, Key, LONG, Shape, chunks_of, mask};
use crate::kernel::Job;
use crate::kernel::ghash::{self, Hash};
use crate::kernel::job::{Headers, Toggle};
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::Registers;
use crate::kernel::stitch::Rounds;
use crate::span::TAG_LEN;

/// Bytes in the payload of the longest packet that this code takes, if its number has four bytes:
/// with a shorter number the payload has up to three more. The counters last for it.
const MAX_LEN: usize = 16 * (LONG - 1) - 3;

/// Whether this code takes a packet: its payload reaches past the first register. With one lane
/// nothing is gained. Goes by [`Job::public_lens`], like all choices between forms.
#[inline(always)]
pub(super) fn fits<L: Lanes>(job: &Job<'_>) -> bool {
    let (_, payload_len) = job.public_lens();
    L::BLOCKS > 1 && (L::WIDTH - 15..=MAX_LEN).contains(&payload_len)
}

/// Encrypts a packet's payload, writes its tag, and masks its header if there are round keys for
/// that.
pub(super) struct Seal<'k, 'j, 'a, const R: usize, const S: usize> {
    pub(super) key: &'k Key<R, S>,
    pub(super) job: &'j mut Job<'a>,
    pub(super) header: Option<&'k Rounds>,
}

impl<L: Lanes, const R: usize, const S: usize> Work<L, ()> for Seal<'_, '_, '_, R, S> {
    #[inline(always)]
    fn run(self, l: L) {
        seal(l, self.key, self.job, self.header);
    }
}

/// Decrypts a packet's payload; returns whether its tag is right.
pub(super) struct Open<'k, 'j, 'a, const R: usize, const S: usize> {
    pub(super) key: &'k Key<R, S>,
    pub(super) job: &'j mut Job<'a>,
}

impl<L: Lanes, const R: usize, const S: usize> Work<L, bool> for Open<'_, '_, '_, R, S> {
    #[inline(always)]
    fn run(self, l: L) -> bool {
        open(l, self.key, self.job)
    }
}

/// A packet in progress.
struct Packet<'k, L: Lanes> {
    cipher: Cipher<'k, L>,
    counters: &'static [[L::Bytes; CHUNK]],
    hash: Hash<'k, L>,
}

impl<'k, L: Lanes> Packet<'k, L> {
    /// Also returns the associated data as a block.
    #[inline(always)]
    fn new<const R: usize, const S: usize>(
        l: L,
        key: &'k Key<R, S>,
        job: &Job<'_>,
    ) -> (Self, L::Lane) {
        let (hash, associated) = Hash::with_associated_data(l, key.table(), job);
        let packet = Self {
            cipher: Cipher::new(l, key, job),
            counters: chunks_of::<L>(&COUNTERS_WITH_TAG),
            hash,
        };
        (packet, associated)
    }

    /// The key stream of the first registers of a chunk.
    #[inline(always)]
    fn start<const R: usize, const N: usize>(&self, l: L, chunk: usize) -> [L::V; N] {
        self.cipher.start::<R, N>(l, &self.counters[chunk])
    }

    /// The same, while some registers of data go into the hash.
    #[inline(always)]
    fn step<const R: usize, const N: usize, const M: usize>(
        &mut self,
        l: L,
        chunk: usize,
        data: &[L::Bytes],
    ) -> [L::V; N] {
        let powers = self.hash.step::<M>(l);
        let counters = &self.counters[chunk];
        (self.cipher).step::<R, N, M>(l, counters, &mut self.hash.acc, data, powers)
    }
}

/// A block in the first lane, zeros in the others.
#[inline(always)]
fn in_first_lane<L: Lanes>(l: L, block: L::Lane) -> L::V {
    let zero = l.single().zero();
    l.lanes([block, zero, zero, zero])
}

/// Takes the tag's pad, the first lane of a packet's first key stream, and leaves zeros there.
#[inline(always)]
fn take_pad<L: Lanes>(l: L, key_stream: &mut L::V) -> L::Lane {
    let pad = l.lane(*key_stream, 0);
    *key_stream = l.xor(*key_stream, in_first_lane(l, pad));
    pad
}

#[inline(always)]
fn seal<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    job: &mut Job<'_>,
    header: Option<&Rounds>,
) {
    let payload_len = job.payload_len();
    let shape = Shape::of::<L>(payload_len + 16);
    let (mut packet, associated) = Packet::<L>::new(l, key, job);
    let (body, source) = job.body_and_source();
    let plaintext = Plaintext::new::<L>(&mut body[..payload_len], source);
    let (mut end, rest) = Tail::<L>::new(body, associated, &shape);
    let mask_of = |job: &mut Job<'_>| {
        let jobs = std::slice::from_mut(job);
        header.map(|rounds| mask::of_sample::<L::Single, R>(l.single(), rounds, jobs.sample(0)))
    };
    let (pad, mask);
    if shape.chunks == 0 {
        end.tail = rest;
        macro_rules! run {
            ($n:literal) => {{
                let mut key_stream = packet.start::<R, $n>(l, 0);
                pad = take_pad(l, &mut key_stream[0]);
                let sealed = end.seal::<$n, true>(l, &plaintext, key_stream);
                mask = mask_of(job);
                packet.hash.add_values(l, &sealed);
            }};
        }
        by_count!(shape.registers, run);
    } else {
        // The first chunk in one piece, for the hash.
        let mut stash = Stash([L::ZEROS; CHUNK]);
        let mut key_stream = packet.start::<R, CHUNK>(l, 0);
        pad = take_pad(l, &mut key_stream[0]);
        l.store(&mut stash.0[0], end.seal_start(l, key_stream[0]));
        let seven = L::vectors_mut(rest).0.iter_mut().take(CHUNK - 1);
        for (i, register) in (1..).zip(seven) {
            let from = plaintext.register::<L>(i * L::WIDTH - 16);
            let sealed = l.xor(key_stream[i], l.load(from.unwrap_or(register)));
            l.store(register, sealed);
            l.store(&mut stash.0[i], sealed);
        }
        // At this point it waits for no result, and no result waits for it.
        mask = mask_of(job);
        let (body, _) = job.body_and_source();
        let (mut end, rest) = Tail::<L>::new(body, associated, &shape);
        let (chunks, tail) = rest.split_at_mut(shape.chunks * CHUNK * L::WIDTH - L::WIDTH);
        let chunks = &mut L::vectors_mut(chunks).0[CHUNK - 1..];
        let mut last = &stash.0;
        for (index, chunk) in (1..).zip(chunks.as_chunks_mut::<CHUNK>().0) {
            let key_stream = packet.step::<R, CHUNK, CHUNK>(l, index, last);
            plaintext.encrypt_chunk(l, chunk, index * CHUNK * L::WIDTH - 16, key_stream);
            last = chunk;
        }
        end.tail = tail;
        macro_rules! run {
            ($n:literal) => {{
                let key_stream = packet.step::<R, $n, CHUNK>(l, shape.chunks, last);
                let sealed = end.seal::<$n, false>(l, &plaintext, key_stream);
                packet.hash.add_values(l, &sealed);
            }};
        }
        by_count!(shape.registers, run);
    }
    *job.tag_mut() = packet.hash.finish_with(l, pad);
    if let Some(mask) = mask {
        (std::slice::from_mut(job)).toggle(0, mask, Toggle::Protect);
    }
}

/// The registers after whole chunks: one to eight, including the first one in a packet of less than
/// a chunk.
struct Tail<'t, L: Lanes> {
    /// Associated data, in the first lane of a packet.
    associated: L::Lane,
    /// The payload in the other lanes of its first register.
    start: &'t mut [u8],
    /// From the first whole register on, with room for the tag.
    tail: &'t mut [u8],
    last_len: usize,
    /// Offset of the first register in the payload, if it is not the packet's first.
    at: usize,
}

impl<'t, L: Lanes> Tail<'t, L> {
    /// Cuts off the packet's first register; the caller finds the tail in the rest.
    #[inline(always)]
    fn new(body: &'t mut [u8], associated: L::Lane, shape: &Shape) -> (Self, &'t mut [u8]) {
        let (start, rest) = body.split_at_mut(L::WIDTH - 16);
        let tail = Self {
            associated,
            start,
            tail: &mut [],
            last_len: shape.last_len,
            at: (shape.chunks * CHUNK * L::WIDTH).saturating_sub(16),
        };
        (tail, rest)
    }

    /// Seals the packet's first register.
    #[inline(always)]
    fn seal_start(&mut self, l: L, key_stream: L::V) -> L::V {
        let sealed = l.xor(key_stream, l.load_after_first(self.start));
        l.store_after_first(self.start, sealed);
        l.xor(sealed, in_first_lane(l, self.associated))
    }

    /// What the hash takes of the packet's first register.
    #[inline(always)]
    fn start(&self, l: L) -> L::V {
        l.xor(
            l.load_after_first(self.start),
            in_first_lane(l, self.associated),
        )
    }

    /// Offset in the payload of the tail's register `i`.
    #[inline(always)]
    fn offset<const FIRST: bool>(&self, i: usize) -> usize {
        if FIRST {
            i * L::WIDTH - 16
        } else {
            self.at + i * L::WIDTH
        }
    }

    /// Encrypts the tail; returns the ciphertext as the hash takes it, with zeros after its end.
    /// The rest of the payload's last register is overwritten with zeros.
    #[inline(always)]
    fn seal<const N: usize, const FIRST: bool>(
        &mut self,
        l: L,
        plaintext: &Plaintext<'_>,
        key_stream: [L::V; N],
    ) -> [L::V; N] {
        let mut sealed = key_stream;
        let start = usize::from(FIRST);
        if FIRST {
            sealed[0] = self.seal_start(l, key_stream[0]);
        }
        let at: [usize; N] = std::array::from_fn(|i| {
            if FIRST && i == 0 {
                0
            } else {
                self.offset::<FIRST>(i)
            }
        });
        let (full, last) = self.tail.split_at_mut((N - 1 - start) * L::WIDTH);
        let full = L::vectors_mut(full).0.iter_mut();
        for (i, register) in (start..).zip(full) {
            let from = plaintext.register::<L>(at[i]).unwrap_or(register);
            sealed[i] = l.xor(key_stream[i], l.load(from));
            l.store(register, sealed[i]);
        }
        sealed[N - 1] = l.and(
            l.xor(key_stream[N - 1], l.load_part(last)),
            ghash::mask(l, self.last_len),
        );
        l.store_part(last, sealed[N - 1]);
        sealed
    }

    /// Decrypts and hashes the tail; returns the first register's key stream.
    #[inline(always)]
    fn open<const R: usize, const N: usize, const FIRST: bool>(
        &mut self,
        l: L,
        (packet, chunk): (&mut Packet<'_, L>, usize),
        destination: &mut Destination<'_>,
    ) -> L::Lane {
        let key_stream = packet.start::<R, N>(l, chunk);
        let start = usize::from(FIRST);
        let mask = ghash::mask(l, self.last_len);
        let mut data = key_stream;
        if FIRST {
            data[0] = self.start(l);
            l.store_after_first(self.start, l.xor(key_stream[0], data[0]));
        }
        let at: [usize; N] = std::array::from_fn(|i| {
            if FIRST && i == 0 {
                0
            } else {
                self.offset::<FIRST>(i)
            }
        });
        let (full, last) = self.tail.split_at_mut((N - 1 - start) * L::WIDTH);
        let full = L::vectors_mut(full).0.iter_mut();
        for (i, register) in (start..).zip(full) {
            data[i] = l.load(register);
            destination.store(l, register, at[i], l.xor(key_stream[i], data[i]));
        }
        let received = l.load_part(last);
        data[N - 1] = l.and(received, mask);
        // The tag follows the payload, and is left as it is.
        l.store_part(last, l.xor(received, l.and(key_stream[N - 1], mask)));
        packet.hash.add_values(l, &data);
        l.lane(key_stream[0], 0)
    }
}

#[inline(always)]
pub(super) fn open<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    job: &mut Job<'_>,
) -> bool {
    let payload_len = job.payload_len();
    let shape = Shape::of::<L>(payload_len + 16);
    let (mut packet, associated) = Packet::<L>::new(l, key, job);
    let (body, target) = job.body_and_target();
    let mut destination = Destination::new(payload_len, target);
    let (mut end, rest) = Tail::<L>::new(body, associated, &shape);
    let pad;
    if shape.chunks == 0 {
        end.tail = rest;
        macro_rules! run {
            ($n:literal) => {
                end.open::<R, $n, true>(l, (&mut packet, 0), &mut destination)
            };
        }
        pad = by_count!(shape.registers, run);
    } else {
        let (chunks, tail) = rest.split_at_mut(shape.chunks * CHUNK * L::WIDTH - L::WIDTH);
        let (seven, chunks) = L::vectors_mut(chunks).0.split_at_mut(CHUNK - 1);
        let seven: &mut [L::Bytes; CHUNK - 1] = seven.first_chunk_mut().expect("a chunk");
        let data = end.start(l);
        packet.hash.add_values(l, &[data]);
        let key_stream = packet.step::<R, CHUNK, { CHUNK - 1 }>(l, 0, seven);
        pad = l.lane(key_stream[0], 0);
        l.store_after_first(end.start, l.xor(key_stream[0], data));
        let [_, others @ ..] = key_stream;
        destination.decrypt(l, seven, L::WIDTH - 16, others);
        for (index, chunk) in (1..).zip(chunks.as_chunks_mut::<CHUNK>().0) {
            let key_stream = packet.step::<R, CHUNK, CHUNK>(l, index, chunk);
            destination.decrypt(l, chunk, index * CHUNK * L::WIDTH - 16, key_stream);
        }
        end.tail = tail;
        macro_rules! run {
            ($n:literal) => {
                end.open::<R, $n, false>(l, (&mut packet, shape.chunks), &mut destination)
            };
        }
        by_count!(shape.registers, run);
    }
    let expected = packet.hash.finish_with(l, pad);
    let (payload, tag) = body.split_at(body.len() - TAG_LEN);
    let is_right = is_right(tag, &expected);
    destination.complete::<L>(payload, 16, shape.last_len);
    is_right
}
