//! The send side. Sources are read while they are encrypted, and hashing lags by one chunk, across
//! packets.

use super::place::Plaintext;
use super::row::{self, Stash};
use super::short::{self, Run};
use super::single;
use super::{
    CHUNK, COUNTERS, Cipher, CounterSource, Key, Masking, Shape, Stream, chunks_of, mask, tag_pads,
};
use crate::kernel::Job;
use crate::kernel::acc::Acc;
use crate::kernel::ghash::{self, Pass, PowersFor};
use crate::kernel::job::Toggle;
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::{Block, Registers as _};
use crate::kernel::stitch::Rounds;
use crate::span::TAG_LEN;

/// Encrypts the payloads, writes the tags, and masks the headers if asked to.
pub(super) fn seal<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
    masking: Masking<'_>,
) {
    let (header, in_a_batch) = masking.round_keys_and_batch();
    if let [job] = jobs
        && single::fits::<L>(job)
    {
        return l.call(single::Seal { key, job, header });
    }
    for jobs in jobs.chunks_mut(in_a_batch) {
        seal_batch(l, key, jobs, header);
    }
}

fn seal_batch<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    mut jobs: &mut [Job<'_>],
    header: Option<&Rounds>,
) {
    while !jobs.is_empty() {
        let (run, rest) = short::split::<L>(jobs);
        jobs = rest;
        match run {
            Run::Short(run) => short::seal(l, key, run, header),
            Run::Long(jobs) => seal_long(l, key, jobs, header),
        }
    }
}

/// Long packets, row by row.
fn seal_long<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    mut jobs: &mut [Job<'_>],
    header: Option<&Rounds>,
) {
    while let Some(first) = jobs.first() {
        let lens = first.lens();
        let count = (jobs.iter().take_while(|job| job.lens() == lens)).count();
        let (row, rest) = jobs.split_at_mut(count);
        jobs = rest;
        if let [job] = &mut *row
            && single::fits::<L>(job)
        {
            l.call(single::Seal { key, job, header });
        } else if let Some(shape) = row::shape::<L, R, S>(key, row[0].payload_len()) {
            macro_rules! run {
                ($n:literal) => {
                    l.call(SealRow::<R, S, $n> {
                        key,
                        jobs: row,
                        shape,
                        header,
                    })
                };
            }
            by_count!(shape.registers, run);
        } else {
            l.call(SealEach {
                key,
                jobs: row,
                header,
            });
        }
    }
}

/// A row whose packets have tails of `N` registers.
struct SealRow<'k, 'r, 'a, const R: usize, const S: usize, const N: usize> {
    key: &'k Key<R, S>,
    jobs: &'r mut [Job<'a>],
    shape: Shape,
    header: Option<&'k Rounds>,
}

impl<L: Lanes, const R: usize, const S: usize, const N: usize> Work<L, ()>
    for SealRow<'_, '_, '_, R, S, N>
{
    #[inline(always)]
    fn run(self, l: L) {
        let Self {
            key,
            jobs,
            shape,
            header,
        } = self;
        seal_row::<L, R, S, N>(l, key, jobs, shape);
        if let Some(rounds) = header {
            mask::passes::<L, R>(l, rounds, jobs, Toggle::Protect);
        }
    }
}

/// Where a packet is encrypted: whole chunks, then a tail with room for the tag.
struct Target<'a, L: Lanes> {
    plaintext: Plaintext<'a>,
    chunks: &'a mut [[L::Bytes; CHUNK]],
    tail: &'a mut [u8],
}

impl<'a, L: Lanes> Target<'a, L> {
    #[inline(always)]
    fn of(job: &'a mut Job<'_>, payload_len: usize, tail_at: usize) -> Self {
        let (body, source) = job.body_and_source();
        let plaintext = Plaintext::new::<L>(&mut body[..payload_len], source);
        let (chunks, tail) = body[..payload_len + TAG_LEN].split_at_mut(tail_at);
        Self {
            plaintext,
            chunks: L::vectors_mut(chunks).0.as_chunks_mut().0,
            tail,
        }
    }
}

/// A packet that is encrypted, but whose tail, which lies in the stash, is not yet hashed.
struct Unfinished<'a, 'k, L: Lanes> {
    acc: Acc<L>,
    pad: &'k Block,
    tag: &'a mut [u8; TAG_LEN],
}

impl<L: Lanes> Unfinished<'_, '_, L> {
    #[inline(always)]
    fn finish(self, l: L) {
        *self.tag = ghash::tag(l, self.acc, l.single().load(self.pad));
    }

    /// Hashes what is in the stash, and writes the tag.
    #[inline(always)]
    fn finish_alone<const M: usize>(
        mut self,
        l: L,
        stash: &[L::Bytes],
        (h, halves): PowersFor<'_, L::Bytes, M>,
    ) {
        for (data, (h, halves)) in stash.iter().zip(h.iter().zip(halves)) {
            self.acc.add(l, data, h, halves);
        }
        self.finish(l);
    }
}

/// The first key stream of a packet, while the previous one is finished.
#[inline(always)]
fn begin<L: Lanes, const R: usize, const N: usize, const M: usize>(
    l: L,
    (cipher, counters): (&Cipher<'_, L>, &[L::Bytes]),
    previous: Option<Unfinished<'_, '_, L>>,
    stash: &[L::Bytes],
    powers: PowersFor<'_, L::Bytes, M>,
) -> [L::V; N] {
    let Some(mut previous) = previous else {
        return cipher.start::<R, N>(l, counters);
    };
    let key_stream = cipher.step::<R, N, M>(l, counters, &mut previous.acc, stash, powers);
    previous.finish(l);
    key_stream
}

/// Encrypts the payloads and writes the tags. The tail of a packet is hashed alongside the cipher
/// of the next one.
#[inline(always)]
fn seal_row<L: Lanes, const R: usize, const S: usize, const N: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
    shape: Shape,
) {
    let Some(job) = jobs.first() else {
        return;
    };
    let payload_len = job.payload_len();
    let pass = Pass::new(l, key.table(), job).expect("a row's packets take one pass");
    let (h, halves) = pass.chunks::<CHUNK>();
    let tail_powers = pass.last::<N>();
    let (counters, tail_counters) = chunks_of::<L>(&COUNTERS).split_at(shape.chunks);
    let tail_counters = &tail_counters[0];
    let tail_at = shape.chunks * CHUNK * L::WIDTH;
    let pads = tag_pads(l, key, jobs);
    let mut stash = Stash([L::ZEROS; CHUNK]);
    let Stash(stash) = &mut stash;
    let mut previous: Option<Unfinished<'_, '_, L>> = None;
    for (job, pad) in jobs.iter_mut().zip(&pads.0) {
        let cipher = Cipher::new(l, key, job);
        let mut acc = pass.start(l, job);
        let Target {
            plaintext,
            chunks,
            tail,
        } = Target::<L>::of(job, payload_len, tail_at);
        let key_stream = if let Some((mut last, others)) = chunks.split_first_mut() {
            let from = (&cipher, counters[0].as_slice());
            let key_stream = begin::<L, R, CHUNK, N>(l, from, previous.take(), stash, tail_powers);
            plaintext.encrypt_chunk(l, last, 0, key_stream);
            let mut at = CHUNK * L::WIDTH;
            let powers = h.iter().zip(halves);
            for ((chunk, counters), powers) in others.iter_mut().zip(&counters[1..]).zip(powers) {
                let key_stream =
                    cipher.step::<R, CHUNK, CHUNK>(l, counters, &mut acc, last, powers);
                plaintext.encrypt_chunk(l, chunk, at, key_stream);
                at += CHUNK * L::WIDTH;
                last = chunk;
            }
            let powers = (&h[shape.chunks - 1], &halves[shape.chunks - 1]);
            cipher.step::<R, N, CHUNK>(l, tail_counters, &mut acc, last, powers)
        } else {
            let from = (&cipher, tail_counters.as_slice());
            begin::<L, R, N, N>(l, from, previous.take(), stash, tail_powers)
        };
        plaintext.encrypt_tail(l, (&mut *tail, shape.last_len), tail_at, key_stream, stash);
        let tag = tail.last_chunk_mut().expect("a job has room for a tag");
        previous = Some(Unfinished { acc, pad, tag });
    }
    if let Some(last) = previous {
        last.finish_alone(l, stash, tail_powers);
    }
}

/// Packets in no row: their hash takes several passes, or they have no payload.
struct SealEach<'k, 'r, 'a, const R: usize, const S: usize> {
    key: &'k Key<R, S>,
    jobs: &'r mut [Job<'a>],
    header: Option<&'k Rounds>,
}

impl<L: Lanes, const R: usize, const S: usize> Work<L, ()> for SealEach<'_, '_, '_, R, S> {
    #[inline(always)]
    fn run(self, l: L) {
        let Self { key, jobs, header } = self;
        let pads = tag_pads(l, key, jobs);
        let mut counters = CounterSource::<L>::new();
        for (job, pad) in jobs.iter_mut().zip(&pads.0) {
            let stream = Stream::new(l, key, job);
            *job.tag_mut() = seal_one::<L, R>(l, stream, job, pad, &mut counters);
        }
        if let Some(rounds) = header {
            mask::passes::<L, R>(l, rounds, jobs, Toggle::Protect);
        }
    }
}

/// Encrypts the payload of one packet; returns its tag.
#[inline(always)]
fn seal_one<L: Lanes, const R: usize>(
    l: L,
    mut stream: Stream<'_, L>,
    job: &mut Job<'_>,
    pad: &Block,
    counters: &mut CounterSource<L>,
) -> Block {
    let payload_len = job.payload_len();
    let shape = Shape::of::<L>(payload_len);
    let tail_at = shape.chunks * CHUNK * L::WIDTH;
    let Target {
        plaintext,
        chunks,
        tail,
    } = Target::<L>::of(job, payload_len, tail_at);
    let mut stash = Stash([L::ZEROS; CHUNK]);
    let Stash(stash) = &mut stash;
    macro_rules! seal_tail {
        ($n:literal, $key_stream:expr) => {{
            let tail = (&mut *tail, shape.last_len);
            plaintext.encrypt_tail::<L, $n>(l, tail, tail_at, $key_stream, stash);
            stream.hash.add_registers::<$n>(l, stash);
        }};
    }
    if let Some((mut last, others)) = chunks.split_first_mut() {
        let key_stream = stream.cipher.start::<R, CHUNK>(l, counters.chunk(l, 0));
        plaintext.encrypt_chunk(l, last, 0, key_stream);
        for (index, chunk) in (1..).zip(others) {
            let key_stream = stream.step::<R, CHUNK, CHUNK>(l, counters.chunk(l, index), last);
            plaintext.encrypt_chunk(l, chunk, index * CHUNK * L::WIDTH, key_stream);
            last = chunk;
        }
        let counters = counters.chunk(l, shape.chunks);
        macro_rules! run {
            ($n:literal) => {
                seal_tail!($n, stream.step::<R, $n, CHUNK>(l, counters, last))
            };
        }
        by_count!(shape.registers, run);
    } else if shape.registers > 0 {
        let counters = counters.chunk(l, 0);
        macro_rules! run {
            ($n:literal) => {
                seal_tail!($n, stream.cipher.start::<R, $n>(l, counters))
            };
        }
        by_count!(shape.registers, run);
    }
    stream.hash.finish(l, pad)
}
