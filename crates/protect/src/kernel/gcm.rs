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
//! AES and GHASH use different parts of a core and neither waits for the other, so they run interleaved: one step of
//! GHASH after each round of AES. `seal` hashes one chunk behind, since it hashes what it encrypts; its pipeline runs
//! on across packets.
//!
//! The blocks that encrypt the tags, one for each packet, are made for eight packets in one pass.

use super::ghash::{Acc, Hash, Powers, Table, mask};
use super::lanes::{Block, Lanes};
use super::stitch::{Rounds, Stitch};
use super::{Job, MAX_JOBS};
use crate::span::TAG_LEN;
use zeroize::Zeroize;

/// Registers in a chunk. Eight AES states fill two pipelines of four cycles' latency.
const CHUNK: usize = 8;

/// Powers of H in the class that every key has: one reduction for each 256 bytes.
pub(crate) const SHORT: usize = 16;

/// Powers of H in the class for busy keys: one reduction for each 1,536 bytes, so one for a full packet.
pub(super) const LONG: usize = 96;

/// Readers of a table's last register may read so many blocks on; they multiply them by zeros.
pub(super) const ROOM: usize = 2;

/// An expanded AEAD key for AES with `R` rounds, with a short class of `S` powers, room included.
#[repr(C)]
pub(super) struct Key<const R: usize, const S: usize> {
    short: Powers<S>,
    rounds: Rounds,
    /// The IV in its first twelve bytes.
    iv: Iv,
    long: Option<Box<Powers<{ LONG + ROOM }>>>,
}

const _: () = assert!(
    size_of::<Key<14, { SHORT + ROOM }>>() <= 1024,
    "an idle key's budget"
);
const _: () = assert!(
    size_of::<Key<14, { SHORT + ROOM }>>() + size_of::<Powers<{ LONG + ROOM }>>() <= 4096,
    "a busy key's budget"
);

struct Iv(u128);

impl Drop for Iv {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<const R: usize, const S: usize> Key<R, S> {
    /// Fills the tables in the box, so that no copy of them stays on the stack.
    #[inline(always)]
    pub(super) fn new<L: Lanes>(
        l: L,
        iv: &[u8; 12],
        expand: impl FnOnce(&mut Rounds),
    ) -> Box<Self> {
        let [i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11] = *iv;
        let iv = [i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, 0, 0, 0, 0];
        let mut key = Box::new(Self {
            short: Powers::EMPTY,
            rounds: Rounds::EMPTY,
            iv: Iv(u128::from_le_bytes(iv)),
            long: None,
        });
        expand(&mut key.rounds);
        let mut h = [[0; 16]];
        encrypt_blocks::<L, R>(l, &key.rounds, &mut h);
        key.short
            .fill(l.single(), u128::from_be_bytes(h[0]), S - ROOM);
        h[0].zeroize();
        key
    }

    pub(super) fn is_grown(&self) -> bool {
        self.long.is_some()
    }

    /// Builds the long class of powers.
    #[inline(always)]
    pub(super) fn grow<L: Lanes>(&mut self, l: L) {
        let mut long = Box::new(Powers::EMPTY);
        long.extend(l.single(), &self.short.table(S - ROOM), LONG);
        self.long = Some(long);
    }

    pub(super) fn shrink(&mut self) {
        self.long = None;
    }

    #[inline(always)]
    fn table(&self) -> Table<'_> {
        match &self.long {
            Some(long) => long.table(LONG),
            None => self.short.table(S - ROOM),
        }
    }

    /// RFC 9001 §5.3: the nonce of a packet number as the first twelve bytes of a counter block; the counter is 0.
    #[inline(always)]
    fn nonce(&self, number: u64) -> (u64, u64) {
        let nonce = self.iv.0 ^ u128::from(number.swap_bytes()) << 32;
        (nonce as u64, (nonce >> 64) as u64)
    }
}

/// The counters of a packet's first 96 blocks, from 2 on, each in the last four bytes of a block in network order
/// (SP 800-38D §7.1: counter 1 is the tag's).
#[repr(align(64))]
struct Counters([Block; LONG]);

static COUNTERS: Counters = {
    let mut blocks = [[0; 16]; LONG];
    let mut i = 0;
    while i < LONG {
        blocks[i][15] = i as u8 + 2;
        i += 1;
    }
    Counters(blocks)
};

/// See [`Stitch`].
#[inline(always)]
fn stitch<L: Lanes, const R: usize, const N: usize, const M: usize>(
    l: L,
    rounds: &Rounds,
    base: L::V,
    counters: &[L::Bytes; N],
    acc: &mut Acc<L>,
    data: &[L::Bytes; M],
    powers: (&[L::Bytes; M], &[L::Bytes; M]),
) -> [L::V; N] {
    l.stitch::<R, N, M>(&mut Stitch {
        rounds,
        base,
        counters,
        acc,
        data,
        powers,
    })
}

/// Encrypts blocks where they are.
#[inline(always)]
pub(super) fn encrypt_blocks<L: Lanes, const R: usize>(
    l: L,
    rounds: &Rounds,
    blocks: &mut [Block],
) {
    #[inline(always)]
    fn some<L: Lanes, const R: usize, const N: usize>(
        l: L,
        rounds: &Rounds,
        vectors: &mut [L::Bytes; N],
    ) {
        let first = l.broadcast(&rounds.0[0]);
        let (mut acc, none) = (Acc::zero(l), (&[], &[]));
        let out = stitch::<L, R, N, 0>(l, rounds, first, vectors, &mut acc, &[], none);
        for (vector, out) in vectors.iter_mut().zip(out) {
            l.store(vector, out);
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

/// What encrypts the tag of each packet: the cipher of its nonce with counter 1.
#[inline(always)]
fn tag_pads<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &[Job<'_>],
) -> [Block; MAX_JOBS] {
    let mut pads = [[0; 16]; MAX_JOBS];
    for (pad, job) in pads.iter_mut().zip(jobs) {
        let (low, high) = key.nonce(job.number());
        let block = l.single().splat(low, high | 1 << 56);
        l.single().store(pad, block);
    }
    let pads_in_use = pads
        .get_mut(..jobs.len().next_multiple_of(2))
        .unwrap_or(&mut []);
    encrypt_blocks::<L, R>(l, &key.rounds, pads_in_use);
    pads
}

/// A packet while it is worked on.
struct Stream<'k, L: Lanes> {
    /// The nonce and the first round key, in each lane.
    base: L::V,
    hash: Hash<'k, L>,
}

impl<'k, L: Lanes> Stream<'k, L> {
    #[inline(always)]
    fn new<const R: usize, const S: usize>(l: L, key: &'k Key<R, S>, job: &Job<'_>) -> Self {
        let (low, high) = key.nonce(job.number());
        Self {
            base: l.xor(l.splat(low, high), l.broadcast(&key.rounds.0[0])),
            hash: Hash::new(l, key.table(), job),
        }
    }
}

/// Counters from the static table while it lasts, then made here.
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
        let vectors = L::vectors(COUNTERS.0.as_flattened())
            .0
            .as_chunks::<CHUNK>()
            .0;
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

/// Where a packet's plaintext lies: up to `head` in the packet, from there on in `source`.
struct Plaintext<'a> {
    head: usize,
    source: &'a [u8],
}

impl<'a> Plaintext<'a> {
    /// Registers are read either from the packet or from the source. Those that hold a bit of both, where the two
    /// join and at the end, are completed in the packet; so is everything where the source is short.
    #[inline(always)]
    fn new<L: Lanes>(payload: &mut [u8], source: &'a [u8]) -> Self {
        let in_place = Self {
            head: usize::MAX,
            source: &[],
        };
        if source.is_empty() {
            return in_place;
        }
        let head = payload.len() - source.len();
        let Some(room) = payload.get_mut(head..) else {
            return in_place;
        };
        let joins = (
            L::vectors(source).0.first(),
            source
                .len()
                .checked_sub(L::WIDTH)
                .and_then(|at| room.get_mut(at..)),
        );
        let (Some(first), Some(end)) = joins else {
            room.copy_from_slice(source);
            return in_place;
        };
        end.copy_from_slice(&source[source.len() - L::WIDTH..]);
        if let Some(start) = L::vectors_mut(room).0.first_mut() {
            *start = *first;
        }
        Self { head, source }
    }

    /// The register at an offset of the payload, where it is to be read from the source.
    #[inline(always)]
    fn register<L: Lanes>(&self, at: usize) -> Option<&'a L::Bytes> {
        L::vectors(self.source.get(at.checked_sub(self.head)?..)?)
            .0
            .first()
    }

    #[inline(always)]
    fn chunk<L: Lanes>(&self, at: usize) -> Option<&'a [L::Bytes; CHUNK]> {
        L::vectors(self.source.get(at.checked_sub(self.head)?..)?)
            .0
            .first_chunk()
    }

    /// Encrypts the chunk at an offset of the payload.
    #[inline(always)]
    fn encrypt_chunk<L: Lanes>(
        &self,
        l: L,
        chunk: &mut [L::Bytes; CHUNK],
        at: usize,
        pad: [L::V; CHUNK],
    ) {
        if let Some(source) = self.chunk::<L>(at) {
            for i in 0..CHUNK {
                l.store(&mut chunk[i], l.xor(pad[i], l.load(&source[i])));
            }
        } else if at + CHUNK * L::WIDTH <= self.head {
            for i in 0..CHUNK {
                let sealed = l.xor(pad[i], l.load(&chunk[i]));
                l.store(&mut chunk[i], sealed);
            }
        } else {
            for i in 0..CHUNK {
                let from = self.register::<L>(at + i * L::WIDTH).unwrap_or(&chunk[i]);
                let sealed = l.xor(pad[i], l.load(from));
                l.store(&mut chunk[i], sealed);
            }
        }
    }

    /// Encrypts the tail at an offset of the payload: `N` registers, the last one of `last_len` bytes. `tail` has
    /// room for the tag, which gets zeros where the last register reaches into it. `stash` gets the ciphertext,
    /// and zeros after its end.
    #[inline(always)]
    fn encrypt_tail<L: Lanes, const N: usize>(
        &self,
        l: L,
        (tail, last_len): (&mut [u8], usize),
        at: usize,
        pad: [L::V; N],
        stash: &mut [L::Bytes; CHUNK],
    ) {
        let (full, last) = tail.split_at_mut((N - 1) * L::WIDTH);
        for (i, register) in L::vectors_mut(full).0.iter_mut().enumerate() {
            let from = self.register::<L>(at + i * L::WIDTH).unwrap_or(register);
            let sealed = l.xor(pad[i], l.load(from));
            l.store(register, sealed);
            l.store(&mut stash[i], sealed);
        }
        let sealed = l.and(l.xor(pad[N - 1], l.load_part(last)), mask(l, last_len));
        l.store_part(last, sealed);
        l.store(&mut stash[N - 1], sealed);
    }
}

/// A packet that is encrypted and whose tail is not yet hashed: it lies in the stash.
struct Behind<'a, 'k, L: Lanes> {
    hash: Hash<'k, L>,
    registers: usize,
    pad: Block,
    tag: &'a mut [u8; TAG_LEN],
}

impl<L: Lanes> Behind<'_, '_, L> {
    #[inline(always)]
    fn finish(self, l: L) {
        *self.tag = self.hash.finish(l, &self.pad);
    }
}

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

/// Chunks before the tail, registers in the tail, and bytes in its last register.
#[inline(always)]
fn shape<L: Lanes>(payload_len: usize) -> (usize, usize, usize) {
    let chunks = payload_len.saturating_sub(1) / (CHUNK * L::WIDTH);
    let tail_len = payload_len - chunks * CHUNK * L::WIDTH;
    let registers = tail_len.div_ceil(L::WIDTH);
    (
        chunks,
        registers,
        tail_len - registers.saturating_sub(1) * L::WIDTH,
    )
}

/// Encrypts the payloads and writes the tags.
#[inline(always)]
pub(super) fn seal<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) {
    let pads = tag_pads(l, key, jobs);
    let rounds = &key.rounds;
    let mut counter_source = CounterSource::<L>::new();
    let mut stash = [L::ZEROS; CHUNK];
    let mut behind: Option<Behind<'_, '_, L>> = None;
    for (job, pad) in jobs.iter_mut().zip(pads) {
        let mut stream = Stream::new(l, key, job);
        let (body, source) = job.body_and_source();
        let payload_len = body.len() - TAG_LEN;
        let (chunk_count, registers, last_len) = shape::<L>(payload_len);
        let plaintext = Plaintext::new::<L>(&mut body[..payload_len], source);
        let (chunks, tail) = body.split_at_mut(chunk_count * CHUNK * L::WIDTH);
        let mut chunks = L::vectors_mut(chunks)
            .0
            .as_chunks_mut::<CHUNK>()
            .0
            .iter_mut();
        let mut at = 0;

        if let Some(first) = chunks.next() {
            let counters = counter_source.chunk(l, 0);
            let pad = match behind.take() {
                Some(mut previous) => {
                    let hash = &mut previous.hash;
                    macro_rules! run {
                        ($m:literal) => {{
                            let powers = hash.step::<$m>(l);
                            let data = stash.first_chunk().expect("it holds a chunk");
                            stitch::<L, R, 8, $m>(
                                l,
                                rounds,
                                stream.base,
                                counters,
                                &mut hash.acc,
                                data,
                                powers,
                            )
                        }};
                    }
                    let pad = by_count!(previous.registers, run);
                    previous.finish(l);
                    pad
                }
                None => stitch::<L, R, 8, 0>(
                    l,
                    rounds,
                    stream.base,
                    counters,
                    &mut stream.hash.acc,
                    &[],
                    (&[], &[]),
                ),
            };
            plaintext.encrypt_chunk(l, first, 0, pad);
            at += CHUNK * L::WIDTH;
            let mut last = first;
            let mut index = 1;
            for chunk in chunks {
                let powers = stream.hash.step::<8>(l);
                let counters = counter_source.chunk(l, index);
                let acc = &mut stream.hash.acc;
                let pad = stitch::<L, R, 8, 8>(l, rounds, stream.base, counters, acc, last, powers);
                plaintext.encrypt_chunk(l, chunk, at, pad);
                at += CHUNK * L::WIDTH;
                index += 1;
                last = chunk;
            }
            let powers = stream.hash.step::<8>(l);
            let counters = counter_source.chunk(l, index);
            macro_rules! run {
                ($n:literal) => {{
                    let counters = counters.first_chunk().expect("it holds a chunk");
                    let acc = &mut stream.hash.acc;
                    let pad =
                        stitch::<L, R, $n, 8>(l, rounds, stream.base, counters, acc, last, powers);
                    plaintext.encrypt_tail(l, (&mut *tail, last_len), at, pad, &mut stash);
                }};
            }
            by_count!(registers, run);
        } else {
            if let Some(mut previous) = behind.take() {
                hash_stash(l, &mut previous.hash, &stash, previous.registers);
                previous.finish(l);
            }
            let counters = counter_source.chunk(l, 0);
            macro_rules! run {
                ($n:literal) => {{
                    let counters = counters.first_chunk().expect("it holds a chunk");
                    let acc = &mut stream.hash.acc;
                    let pad = stitch::<L, R, $n, 0>(
                        l,
                        rounds,
                        stream.base,
                        counters,
                        acc,
                        &[],
                        (&[], &[]),
                    );
                    plaintext.encrypt_tail(l, (&mut *tail, last_len), at, pad, &mut stash);
                }};
            }
            if registers > 0 {
                by_count!(registers, run);
            }
        }
        behind = Some(Behind {
            hash: stream.hash,
            registers,
            pad,
            tag: tail.last_chunk_mut().expect("a job has room for a tag"),
        });
    }
    if let Some(mut previous) = behind {
        hash_stash(l, &mut previous.hash, &stash, previous.registers);
        previous.finish(l);
    }
}

#[inline(always)]
fn hash_stash<L: Lanes>(l: L, hash: &mut Hash<'_, L>, stash: &[L::Bytes; CHUNK], registers: usize) {
    macro_rules! run {
        ($m:literal) => {{
            let powers = hash.step::<$m>(l);
            for i in 0..$m {
                hash.acc.add(l, &stash[i], &powers.0[i], &powers.1[i]);
            }
        }};
    }
    if registers > 0 {
        by_count!(registers, run);
    }
}

/// Decrypts the payloads; bit `i` of the answer says that the tag of job `i` is right.
#[inline(always)]
pub(super) fn open<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) -> u32 {
    let pads = tag_pads(l, key, jobs);
    let rounds = &key.rounds;
    let mut counter_source = CounterSource::<L>::new();
    let mut good = 0;
    for (i, (job, pad)) in jobs.iter_mut().zip(pads).enumerate() {
        let mut stream = Stream::new(l, key, job);
        let (body, _) = job.body_and_source();
        let payload_len = body.len() - TAG_LEN;
        let (chunk_count, registers, last_len) = shape::<L>(payload_len);
        let (chunks, tail) = body.split_at_mut(chunk_count * CHUNK * L::WIDTH);
        let chunks = L::vectors_mut(chunks).0.as_chunks_mut::<CHUNK>().0;
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let powers = stream.hash.step::<8>(l);
            let counters = counter_source.chunk(l, index);
            let acc = &mut stream.hash.acc;
            let pad = stitch::<L, R, 8, 8>(l, rounds, stream.base, counters, acc, chunk, powers);
            for (register, pad) in chunk.iter_mut().zip(pad) {
                l.store(register, l.xor(pad, l.load(register)));
            }
        }
        let counters = counter_source.chunk(l, chunk_count);
        macro_rules! run {
            ($n:literal) => {{
                let counters = counters.first_chunk().expect("it holds a chunk");
                open_tail::<L, R, $n>(l, rounds, &mut stream, counters, tail, last_len);
            }};
        }
        if registers > 0 {
            by_count!(registers, run);
        }
        let expected = stream.hash.finish(l, &pad);
        let tag = tail.last_chunk().expect("a job has room for a tag");
        // No byte decides alone when the comparison ends: all are compared at once.
        let difference = u128::from_le_bytes(expected) ^ u128::from_le_bytes(*tag);
        good |= u32::from(difference == 0) << i;
    }
    good
}

/// Decrypts the last `N` registers of a packet, the last one of `last_len` bytes; `tail` ends with the tag.
#[inline(always)]
fn open_tail<L: Lanes, const R: usize, const N: usize>(
    l: L,
    rounds: &Rounds,
    stream: &mut Stream<'_, L>,
    counters: &[L::Bytes; N],
    tail: &mut [u8],
    last_len: usize,
) {
    let (full, last) = tail.split_at_mut((N - 1) * L::WIDTH);
    let full = L::vectors_mut(full).0;
    let mut data = [L::ZEROS; N];
    for (data, register) in data.iter_mut().zip(full.iter()) {
        *data = *register;
    }
    let mask = mask(l, last_len);
    let sealed = l.load_part(last);
    l.store(&mut data[N - 1], l.and(sealed, mask));
    let powers = stream.hash.step::<N>(l);
    let acc = &mut stream.hash.acc;
    let pad = stitch::<L, R, N, N>(l, rounds, stream.base, counters, acc, &data, powers);
    for (register, pad) in full.iter_mut().zip(pad) {
        l.store(register, l.xor(pad, l.load(register)));
    }
    // What lies behind the payload is the tag, and it stays as it is.
    l.store_part(last, l.xor(sealed, l.and(pad[N - 1], mask)));
}
