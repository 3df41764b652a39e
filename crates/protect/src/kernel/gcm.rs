//! AES-GCM (NIST SP 800-38D) for packets, written once over [`Lanes`].
//!
//! ```text
//!            payload of a packet, in chunks of 8 registers
//!            | chunk 0 | chunk 1 | ... | tail: 1 to 8 registers, the last one masked |
//!  seal      AES 0        AES 1            AES tail      AES 0 of the next packet
//!            (previous)   GHASH 0   ...    GHASH ..      GHASH of this tail, then the tag
//!  open      AES 0        AES 1            AES tail
//!            GHASH 0      GHASH 1   ...    GHASH tail, then the tags are compared
//! ```
//! AES and GHASH use different parts of a core and neither waits for the other, so they run
//! interleaved: one step of GHASH after each round of AES. `seal` hashes the previous chunk, since
//! it hashes what it encrypts; its pipeline runs on across packets.
//!
//! This is for packets of one length (`row`), as most packets of a call are: whatever depends only
//! on the length is worked out once. Short packets are handled differently (`short`): a packet in
//! each lane. A lone packet takes a path without set-up (`single`). Header protection (`mask`) is
//! applied in the same call: its cipher needs only sixteen bytes of ciphertext.
//!
//! The blocks that encrypt the tags, one for each packet, are made for sixteen packets in one pass.

/// Calls a macro with a number from 1 to 8 as a literal.
macro_rules! by_count {
    ($n:expr, $call:ident) => {
        match $n {
            1 => $call!(1),
            2 => $call!(2),
            3 => $call!(3),
            4 => $call!(4),
            5 => $call!(5),
            6 => $call!(6),
            7 => $call!(7),
            _ => $call!(8),
        }
    };
}

mod aead;
mod mask;
mod open;
mod place;
mod row;
mod seal;
mod short;
mod single;

use std::sync::OnceLock;

use zeroize::Zeroize;

use super::acc::Acc;
use super::ghash::{Hash, Powers, PowersFor, Table};
use super::lanes::Lanes;
use super::registers::{Block, Registers, wipe};
use super::stitch::{Rounds, Stitch};
use super::{Fusion, Job, MAX_JOBS};
use crate::material::KeyMaterial;

pub(super) use aead::{Aead, Header};
use open::open;
use seal::seal;

/// How header protection is applied along with the AEAD, and with which round keys.
#[derive(Copy, Clone)]
enum Masking<'h> {
    None,
    Each(&'h Rounds),
    Batched(&'h Rounds),
}

impl<'h> Masking<'h> {
    fn of(rounds: &'h Rounds, fusion: Fusion) -> Self {
        match fusion {
            Fusion::Each => Self::Each(rounds),
            Fusion::Batched => Self::Batched(rounds),
        }
    }

    /// The round keys for the headers, and how many packets are worked on at a time.
    #[inline(always)]
    fn round_keys_and_batch(self) -> (Option<&'h Rounds>, usize) {
        match self {
            Self::None => (None, MAX_JOBS),
            Self::Each(rounds) => (Some(rounds), 1),
            Self::Batched(rounds) => (Some(rounds), MAX_JOBS),
        }
    }
}

/// Registers in a chunk. Eight AES states fill two pipelines of four cycles' latency.
const CHUNK: usize = 8;

/// Powers of H in the class that every key has: one reduction every 256 bytes.
const SHORT: usize = 16;

/// Powers of H in the class for busy keys: one reduction every 1,536 bytes, so one for a full
/// packet.
const LONG: usize = 96;

/// Readers of a table's last register may read this many blocks past its end, and multiply them by
/// zeros.
const ROOM: usize = 2;

/// Powers of H in the short class, with room, for registers of up to two lanes.
pub(super) const POWERS: usize = SHORT + ROOM;

/// The same for four lanes: a chunk is twice as long, and the table must hold the powers of one.
pub(super) const POWERS_512: usize = 2 * SHORT + ROOM;

/// An expanded AEAD key for AES with `R` rounds, with a short class of `S` powers, room included.
#[repr(C)]
struct Key<const R: usize, const S: usize> {
    short: Powers<S>,
    rounds: Rounds,
    /// The IV in its first twelve bytes.
    iv: Iv,
    long: OnceLock<Box<Lined>>,
}

const _: () = assert!(size_of::<Key<14, POWERS>>() <= 1024, "an idle key's budget");
const _: () = assert!(
    size_of::<Key<14, POWERS>>() + size_of::<Powers<{ LONG + ROOM }>>() <= 4096,
    "a busy key's budget"
);
// A chunk of 512-bit registers takes twice as many powers, which must be in one table.
const _: () = assert!(
    size_of::<Key<14, POWERS_512>>() <= 1536,
    "an idle key's budget with 512-bit registers"
);
const _: () = assert!(
    size_of::<Key<14, POWERS_512>>() + size_of::<Powers<{ LONG + ROOM }>>() <= 5120,
    "a busy key's budget with 512-bit registers"
);

/// The powers of a busy key, at the beginning of a cache line.
#[repr(C, align(64))]
struct Lined(Powers<{ LONG + ROOM }>);

struct Iv(u128);

impl Drop for Iv {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<const R: usize, const S: usize> Key<R, S> {
    /// Fills the tables in the box, so that no copy of them stays on the stack.
    #[inline(always)]
    fn new<L: Lanes>(l: L, material: &KeyMaterial) -> Box<Self> {
        let [i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11] = *material.iv();
        let iv = [i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, 0, 0, 0, 0];
        let mut key = Box::new(Self {
            short: Powers::EMPTY,
            rounds: Rounds::EMPTY,
            iv: Iv(u128::from_le_bytes(iv)),
            long: OnceLock::new(),
        });
        let s = l.single();
        key.rounds.expand::<L::Single, R>(s, material.padded_key());
        let mut h = [[0; 16]];
        encrypt_blocks::<L::Single, R>(s, &key.rounds, &mut h);
        key.short.fill(l, u128::from_be_bytes(h[0]), S - ROOM);
        h[0].zeroize();
        key
    }

    fn is_grown(&self) -> bool {
        self.long.get().is_some()
    }

    /// Builds the long class of powers. Threads that do so at the same time each build one, and the
    /// first is kept. It is built outside the cell's closure, which would be a separate function,
    /// compiled without the instructions.
    #[inline(always)]
    fn grow<L: Lanes>(&self, l: L) {
        let mut long = Box::new(Lined(Powers::EMPTY));
        long.0.extend(l.single(), &self.short.table(S - ROOM), LONG);
        let _ = self.long.set(long);
    }

    fn shrink(&mut self) {
        self.long = OnceLock::new();
    }

    #[inline(always)]
    fn table(&self) -> Table<'_> {
        match self.long.get() {
            Some(long) => long.0.table(LONG),
            None => self.short.table(S - ROOM),
        }
    }

    /// The nonce of a packet (RFC 9001 §5.3, draft-ietf-quic-multipath §2.4) as the first twelve
    /// bytes of a counter block; the counter is 0.
    #[inline(always)]
    fn nonce(&self, (path_id, number): (u32, u64)) -> (u64, u64) {
        let number = u128::from(number.swap_bytes()) << 32;
        let nonce = self.iv.0 ^ number ^ u128::from(path_id.swap_bytes());
        (nonce as u64, (nonce >> 64) as u64)
    }
}

/// The counters of a packet's first 96 blocks, from 2 on, each in the last four bytes of a block in
/// network order (SP 800-38D §7.1: counter 1 is the tag's).
#[repr(align(64))]
struct Counters([Block; LONG]);

static COUNTERS: Counters = counters_from(2);

/// The same, including the tag's counter.
static COUNTERS_WITH_TAG: Counters = counters_from(1);

const fn counters_from(first: u8) -> Counters {
    let mut blocks = [[0; 16]; LONG];
    let mut i = 0;
    while i < LONG {
        blocks[i][15] = i as u8 + first;
        i += 1;
    }
    Counters(blocks)
}

/// Encrypts blocks in place.
#[inline(always)]
fn encrypt_blocks<L: Lanes, const R: usize>(l: L, rounds: &Rounds, blocks: &mut [Block]) {
    #[inline(always)]
    fn some<L: Lanes, const R: usize, const N: usize>(
        l: L,
        rounds: &Rounds,
        vectors: &mut [L::Bytes; N],
    ) {
        let states = key_stream::<L, R, N>(l, rounds, l.broadcast(&rounds.0[0]), vectors);
        for (vector, state) in vectors.iter_mut().zip(states) {
            l.store(vector, state);
        }
    }
    let (vectors, rest) = L::vectors_mut(blocks.as_flattened_mut());
    let (eights, vectors) = vectors.as_chunks_mut::<8>();
    for eight in eights {
        some::<L, R, 8>(l, rounds, eight);
    }
    let (fours, vectors) = vectors.as_chunks_mut::<4>();
    for four in fours {
        some::<L, R, 4>(l, rounds, four);
    }
    for one in vectors.as_chunks_mut::<1>().0 {
        some::<L, R, 1>(l, rounds, one);
    }
    for one in L::Single::vectors_mut(rest).0.as_chunks_mut::<1>().0 {
        some::<L::Single, R, 1>(l.single(), rounds, one);
    }
}

/// The blocks that encrypt the tags: the cipher of each packet's nonce with counter 1.
struct TagPads([Block; MAX_JOBS]);

/// Anyone who knows the pad of a forged packet knows its right tag.
impl Drop for TagPads {
    #[inline(always)]
    fn drop(&mut self) {
        wipe(&mut self.0, [0; 16]);
    }
}

#[inline(always)]
fn tag_pads<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &[Job<'_>],
) -> TagPads {
    let mut pads = TagPads([[0; 16]; MAX_JOBS]);
    for (pad, job) in pads.0.iter_mut().zip(jobs) {
        let (low, high) = key.nonce(job.path_and_number());
        let block = l.single().splat(low, high | 1 << 56);
        l.single().store(pad, block);
    }
    let pads_in_use = pads
        .0
        .get_mut(..jobs.len().next_multiple_of(2))
        .unwrap_or(&mut []);
    encrypt_blocks::<L, R>(l, &key.rounds, pads_in_use);
    pads
}

/// Where a packet's registers are: whole chunks, then a tail.
#[derive(Copy, Clone)]
struct Shape {
    /// Chunks before the tail.
    chunks: usize,
    /// Registers in the tail: one to eight, or none if the payload is empty.
    registers: usize,
    /// Bytes in the last register.
    last_len: usize,
}

impl Shape {
    #[inline(always)]
    fn of<L: Lanes>(len: usize) -> Self {
        let chunks = len.saturating_sub(1) / (CHUNK * L::WIDTH);
        let tail_len = len - chunks * CHUNK * L::WIDTH;
        let registers = tail_len.div_ceil(L::WIDTH);
        let last_len = tail_len - registers.saturating_sub(1) * L::WIDTH;
        Self {
            chunks,
            registers,
            last_len,
        }
    }
}

/// What a packet's cipher takes: round keys, and the nonce and the first round key in each lane.
struct Cipher<'k, L: Lanes> {
    rounds: &'k Rounds,
    base: L::V,
}

impl<'k, L: Lanes> Cipher<'k, L> {
    #[inline(always)]
    fn new<const R: usize, const S: usize>(l: L, key: &'k Key<R, S>, job: &Job<'_>) -> Self {
        let (low, high) = key.nonce(job.path_and_number());
        Self {
            rounds: &key.rounds,
            base: l.xor(l.splat(low, high), l.broadcast(&key.rounds.0[0])),
        }
    }

    /// The key stream of some registers.
    #[inline(always)]
    fn start<const R: usize, const N: usize>(&self, l: L, counters: &[L::Bytes]) -> [L::V; N] {
        key_stream::<L, R, N>(l, self.rounds, self.base, first(counters))
    }

    /// The same, while some registers of data, each times its power, are added to a sum.
    #[inline(always)]
    fn step<const R: usize, const N: usize, const M: usize>(
        &self,
        l: L,
        counters: &[L::Bytes],
        acc: &mut Acc<L>,
        data: &[L::Bytes],
        powers: PowersFor<'_, L::Bytes, M>,
    ) -> [L::V; N] {
        l.stitch::<R, N, M>(&mut Stitch {
            rounds: self.rounds,
            base: self.base,
            counters: first(counters),
            acc,
            data: first(data),
            powers,
        })
    }
}

/// A packet in progress, whose hash may take several passes.
struct Stream<'k, L: Lanes> {
    cipher: Cipher<'k, L>,
    hash: Hash<'k, L>,
}

impl<'k, L: Lanes> Stream<'k, L> {
    #[inline(always)]
    fn new<const R: usize, const S: usize>(l: L, key: &'k Key<R, S>, job: &Job<'_>) -> Self {
        Self {
            cipher: Cipher::new(l, key, job),
            hash: Hash::new(l, key.table(), job),
        }
    }

    /// The key stream of `N` registers, while `M` registers of data go into the hash.
    #[inline(always)]
    fn step<const R: usize, const N: usize, const M: usize>(
        &mut self,
        l: L,
        counters: &[L::Bytes],
        data: &[L::Bytes],
    ) -> [L::V; N] {
        let powers = self.hash.step::<M>(l);
        (self.cipher).step::<R, N, M>(l, counters, &mut self.hash.acc, data, powers)
    }
}

/// AES of some registers, to which a nonce and the first round key are added.
#[inline(always)]
fn key_stream<L: Lanes, const R: usize, const N: usize>(
    l: L,
    rounds: &Rounds,
    base: L::V,
    counters: &[L::Bytes; N],
) -> [L::V; N] {
    let mut states = [base; N];
    for (state, counter) in states.iter_mut().zip(counters) {
        *state = l.xor(base, l.load(counter));
    }
    l.aes_rounds::<R, N>(&mut states, rounds);
    states
}

/// The first of a chunk's registers.
#[inline(always)]
fn first<T, const N: usize>(registers: &[T]) -> &[T; N] {
    registers
        .first_chunk()
        .expect("at most a chunk is asked for")
}

/// The static counters of each chunk.
#[inline(always)]
fn chunks_of<L: Lanes>(counters: &'static Counters) -> &'static [[L::Bytes; CHUNK]] {
    L::vectors(counters.0.as_flattened()).0.as_chunks().0
}

/// Counters from the static table as far as it reaches, then made here.
struct CounterSource<L: Lanes> {
    made: [L::Bytes; CHUNK],
}

impl<L: Lanes> CounterSource<L> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            made: [L::ZEROS; CHUNK],
        }
    }

    /// The counters of a chunk of the packet.
    #[inline(always)]
    fn chunk(&mut self, l: L, chunk: usize) -> &[L::Bytes; CHUNK] {
        let vectors = chunks_of::<L>(&COUNTERS);
        if let Some(counters) = vectors.get(chunk) {
            return counters;
        }
        let start = (chunk * CHUNK * L::BLOCKS) as u32;
        let offset = l.splat(u64::from(start), 0);
        for (made, first) in self
            .made
            .iter_mut()
            .zip(vectors.first().into_iter().flatten())
        {
            // Into the order of addition, and back: counters in a block are in network order.
            let counters = l.reverse(l.load(first));
            l.store(made, l.reverse(l.add32(counters, offset)));
        }
        &self.made
    }
}
