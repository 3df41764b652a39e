//! The receive side: hashing and decrypting read the same ciphertext at the same time. Targets are
//! written while decrypting.

use super::place::{Destination, is_right};
use super::row::{self, Stash};
use super::short::{self, Run};
use super::single;
use super::{
    CHUNK, COUNTERS, Cipher, CounterSource, Key, Masking, Shape, Stream, chunks_of, mask, tag_pads,
};
use crate::kernel::Job;
use crate::kernel::ghash::{self, Pass};
use crate::kernel::job::Toggle;
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::{Block, Registers as _};
use crate::kernel::stitch::Rounds;

/// Unmasks the headers if asked to, and decrypts the payloads; bit `i` of the result says that the
/// tag of job `i` is right.
pub(super) fn open<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
    masking: Masking<'_>,
) -> u32 {
    let (header, in_a_batch) = masking.round_keys_and_batch();
    if let ([job], None) = (&mut *jobs, header)
        && single::fits::<L>(job)
    {
        return u32::from(l.call(single::Open { key, job }));
    }
    let mut good = 0;
    for (i, jobs) in jobs.chunks_mut(in_a_batch).enumerate() {
        good |= open_batch(l, key, jobs, header) << (i * in_a_batch);
    }
    good
}

fn open_batch<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    mut jobs: &mut [Job<'_>],
    header: Option<&Rounds>,
) -> u32 {
    if let Some(rounds) = header {
        mask::headers::<L, R>(l, rounds, &mut *jobs, Toggle::Unprotect);
    }
    let (mut good, mut at) = (0, 0);
    while !jobs.is_empty() {
        let (run, rest) = short::split::<L>(jobs);
        jobs = rest;
        let (run_good, run_len) = match run {
            Run::Short(run) => (short::open(l, key, run), run.len()),
            Run::Long(jobs) => (open_long(l, key, jobs), jobs.len()),
        };
        good |= run_good << at;
        at += run_len;
    }
    good
}

/// Long packets, row by row.
#[inline(always)]
fn open_long<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    mut jobs: &mut [Job<'_>],
) -> u32 {
    let (mut good, mut at) = (0, 0);
    while let Some(first) = jobs.first()
        && let lens = first.public_lens()
        && let Some(shape) = row::shape_of_received::<L, R, S>(key, lens.1)
    {
        let is_same = |job: &&Job<'_>| (job.public_lens() == lens) & job.has_number();
        let count = jobs.iter().take_while(is_same).count();
        if count == 0 {
            break;
        }
        let (row, rest) = jobs.split_at_mut(count);
        macro_rules! run {
            ($n:literal) => {
                l.call(OpenRow::<R, S, $n> {
                    key,
                    jobs: row,
                    shape,
                })
            };
        }
        good |= by_count!(shape.registers, run) << at;
        at += count;
        jobs = rest;
    }
    if jobs.is_empty() {
        return good;
    }
    // Packets after one that is in no row seldom form a row.
    good | l.call(OpenEach { key, jobs }) << at
}

/// A row whose packets have tails of `N` registers.
struct OpenRow<'k, 'r, 'a, const R: usize, const S: usize, const N: usize> {
    key: &'k Key<R, S>,
    jobs: &'r mut [Job<'a>],
    shape: Shape,
}

impl<L: Lanes, const R: usize, const S: usize, const N: usize> Work<L, u32>
    for OpenRow<'_, '_, '_, R, S, N>
{
    #[inline(always)]
    fn run(self, l: L) -> u32 {
        open_row::<L, R, S, N>(l, self.key, self.jobs, self.shape)
    }
}

/// Decrypts the payloads; bit `i` of the result says that the tag of job `i` is right.
#[inline(always)]
fn open_row<L: Lanes, const R: usize, const S: usize, const N: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
    Shape { chunks, .. }: Shape,
) -> u32 {
    let table = key.table();
    let (counters, tail_counters) = chunks_of::<L>(&COUNTERS).split_at(chunks);
    let tail_counters = &tail_counters[0];
    let tail_at = chunks * CHUNK * L::WIDTH;
    let pads = tag_pads(l, key, jobs);
    let mut stash = Stash([L::ZEROS; CHUNK]);
    let Stash(stash) = &mut stash;
    let mut good = 0;
    for (i, (job, pad)) in jobs.iter_mut().zip(&pads.0).enumerate() {
        let cipher = Cipher::new(l, key, job);
        // The length of the number shifts the powers.
        let pass = Pass::new(l, table, job).expect("a row's packets take one pass");
        let mut acc = pass.start(l, job);
        let payload_len = job.payload_len();
        let last_len = payload_len - tail_at - (N - 1) * L::WIDTH;
        let (body, target) = job.body_and_target();
        let mut destination = Destination::new(payload_len, target);
        let (whole, tail) = body.split_at_mut(tail_at);
        let whole = L::vectors_mut(whole).0.as_chunks_mut::<CHUNK>().0;
        let (h, halves) = pass.chunks::<CHUNK>();
        let powers = h.iter().zip(halves);
        let mut at = 0;
        for ((chunk, counters), powers) in whole.iter_mut().zip(counters).zip(powers) {
            let key_stream = cipher.step::<R, CHUNK, CHUNK>(l, counters, &mut acc, chunk, powers);
            destination.decrypt(l, chunk, at, key_stream);
            at += CHUNK * L::WIDTH;
        }
        gather::<L, N>(l, tail, last_len, stash);
        let powers = pass.last::<N>();
        let key_stream = cipher.step::<R, N, N>(l, tail_counters, &mut acc, stash, powers);
        decrypt_tail(
            l,
            (&mut *tail, last_len),
            &mut destination,
            tail_at,
            key_stream,
        );
        let expected = ghash::tag(l, acc, l.single().load(pad));
        good |= u32::from(is_right(tail, &expected)) << i;
        destination.complete::<L>(&body[..payload_len], 0, last_len);
    }
    good
}

/// Packets that are in no row.
struct OpenEach<'k, 'r, 'a, const R: usize, const S: usize> {
    key: &'k Key<R, S>,
    jobs: &'r mut [Job<'a>],
}

impl<L: Lanes, const R: usize, const S: usize> Work<L, u32> for OpenEach<'_, '_, '_, R, S> {
    #[inline(always)]
    fn run(self, l: L) -> u32 {
        let jobs = self.jobs;
        // With two lanes the order for lone packets gains nothing here: 0.98 to 1.06 times as long.
        if L::BLOCKS == 2 || !jobs.iter().all(single::fits::<L>) {
            return open_each(l, self.key, jobs);
        }
        let mut good = 0;
        for (i, job) in jobs.iter_mut().enumerate() {
            good |= u32::from(single::open(l, self.key, job)) << i;
        }
        good
    }
}

/// Decrypts the payloads; bit `i` of the result says that the tag of job `i` is right.
#[inline(always)]
fn open_each<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
) -> u32 {
    let pads = tag_pads(l, key, jobs);
    let mut counters = CounterSource::<L>::new();
    let mut good = 0;
    for (i, (job, pad)) in jobs.iter_mut().zip(&pads.0).enumerate() {
        let stream = Stream::new(l, key, job);
        good |= u32::from(open_one::<L, R>(l, stream, job, pad, &mut counters)) << i;
    }
    good
}

/// Decrypts a packet; returns whether its tag is right.
#[inline(always)]
fn open_one<L: Lanes, const R: usize>(
    l: L,
    mut stream: Stream<'_, L>,
    job: &mut Job<'_>,
    pad: &Block,
    counters: &mut CounterSource<L>,
) -> bool {
    let shape = Shape::of::<L>(job.payload_len());
    let payload_len = job.payload_len();
    let (body, target) = job.body_and_target();
    let mut destination = Destination::new(payload_len, target);
    let (chunks, tail) = body.split_at_mut(shape.chunks * CHUNK * L::WIDTH);
    let chunks = L::vectors_mut(chunks).0.as_chunks_mut::<CHUNK>().0;
    for (index, chunk) in chunks.iter_mut().enumerate() {
        let pad = stream.step::<R, 8, 8>(l, counters.chunk(l, index), chunk);
        destination.decrypt(l, chunk, index * CHUNK * L::WIDTH, pad);
    }
    let at = shape.chunks * CHUNK * L::WIDTH;
    let counters = counters.chunk(l, shape.chunks);
    let mut data = [L::ZEROS; CHUNK];
    macro_rules! run {
        ($n:literal) => {{
            gather::<L, $n>(l, tail, shape.last_len, &mut data);
            let pad = stream.step::<R, $n, $n>(l, counters, &data);
            decrypt_tail(l, (tail, shape.last_len), &mut destination, at, pad);
        }};
    }
    if shape.registers > 0 {
        by_count!(shape.registers, run);
    }
    let is_right = is_right(tail, &stream.hash.finish(l, pad));
    destination.complete::<L>(&body[..payload_len], 0, shape.last_len);
    is_right
}

/// The `N` registers of a tail as GHASH takes them: zeros after the `last_len` bytes of the last
/// one. `tail` ends with the packet's tag.
#[inline(always)]
fn gather<L: Lanes, const N: usize>(
    l: L,
    tail: &[u8],
    last_len: usize,
    data: &mut [L::Bytes; CHUNK],
) {
    let (full, last) = tail.split_at((N - 1) * L::WIDTH);
    for (data, register) in data.iter_mut().zip(L::vectors(full).0) {
        *data = *register;
    }
    l.store(
        &mut data[N - 1],
        l.and(l.load_part(last), ghash::mask(l, last_len)),
    );
}

/// Decrypts the `N` registers of a tail at an offset of the payload.
#[inline(always)]
fn decrypt_tail<L: Lanes, const N: usize>(
    l: L,
    (tail, last_len): (&mut [u8], usize),
    destination: &mut Destination<'_>,
    at: usize,
    pad: [L::V; N],
) {
    let (full, last) = tail.split_at_mut((N - 1) * L::WIDTH);
    let full = L::vectors_mut(full).0;
    if at + N * L::WIDTH <= destination.head {
        for (register, pad) in full.iter_mut().zip(pad) {
            l.store(register, l.xor(pad, l.load(register)));
        }
    } else {
        for (i, (register, pad)) in full.iter_mut().zip(pad).enumerate() {
            let opened = l.xor(pad, l.load(register));
            destination.store(l, register, at + i * L::WIDTH, opened);
        }
    }
    // The tag follows the payload, and is left as it is.
    let opened = l.xor(
        l.load_part(last),
        l.and(pad[N - 1], ghash::mask(l, last_len)),
    );
    l.store_part(last, opened);
}
