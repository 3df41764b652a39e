//! The send side. Sources are read while they are encrypted, and hashing lags by one chunk, across
//! packets.

use super::place::Plaintext;
use super::short::{self, Run};
use super::single;
use super::{CHUNK, CounterSource, Key, Masking, Shape, Stream, mask, stitch, tag_pads};
use crate::kernel::Job;
use crate::kernel::ghash::Hash;
use crate::kernel::job::Toggle;
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::Block;
use crate::kernel::stitch::Rounds;
use crate::span::TAG_LEN;

/// A packet that is encrypted and whose tail is not yet hashed: it lies in the stash.
struct Unfinished<'a, 'k, L: Lanes> {
    hash: Hash<'k, L>,
    /// Registers in the stash.
    registers: usize,
    pad: &'k Block,
    tag: &'a mut [u8; TAG_LEN],
}

impl<L: Lanes> Unfinished<'_, '_, L> {
    /// Hashes what is in the stash, and writes the tag.
    #[inline(always)]
    fn finish(self, l: L, stash: &[L::Bytes; CHUNK]) {
        *self.tag = tag(l, self.hash, self.registers, stash, self.pad);
    }

    /// The key stream of `N` registers of the next packet, while `M` registers in the stash are
    /// hashed; writes the tag.
    #[inline(always)]
    fn finish_meanwhile<const R: usize, const N: usize, const M: usize>(
        mut self,
        l: L,
        next: &Stream<'_, L>,
        counters: &[L::Bytes; CHUNK],
        stash: &[L::Bytes; CHUNK],
    ) -> [L::V; N] {
        let (rounds, base) = (next.rounds, next.base);
        let key_stream = stitch::<L, R, N, M>(l, rounds, base, counters, &mut self.hash, stash);
        *self.tag = self.hash.finish(l, self.pad);
        key_stream
    }
}

/// The tag of a packet whose tail is in the stash.
#[inline(always)]
fn tag<L: Lanes>(
    l: L,
    mut hash: Hash<'_, L>,
    registers: usize,
    stash: &[L::Bytes; CHUNK],
    pad: &Block,
) -> Block {
    macro_rules! run {
        ($m:literal) => {
            hash.add_registers::<$m>(l, stash)
        };
    }
    if registers > 0 {
        by_count!(registers, run);
    }
    hash.finish(l, pad)
}

/// Encrypts the payloads, writes the tags, and masks the headers where that is asked for.
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
        let (run, rest) = short::split(jobs);
        jobs = rest;
        match run {
            Run::Short(run) => short::seal(l, key, run, header),
            Run::Long(jobs) => l.call(SealLong { key, jobs, header }),
        }
    }
}

struct SealLong<'k, 'r, 'a, const R: usize, const S: usize> {
    key: &'k Key<R, S>,
    jobs: &'r mut [Job<'a>],
    header: Option<&'k Rounds>,
}

impl<L: Lanes, const R: usize, const S: usize> Work<L, ()> for SealLong<'_, '_, '_, R, S> {
    #[inline(always)]
    fn run(self, l: L) {
        seal_long(l, self.key, self.jobs, self.header);
    }
}

/// Where a packet is encrypted: whole chunks, then a tail with room for the tag.
struct Target<'a, L: Lanes> {
    plaintext: Plaintext<'a>,
    chunks: &'a mut [[L::Bytes; CHUNK]],
    tail: &'a mut [u8],
    shape: Shape,
}

impl<'a, L: Lanes> Target<'a, L> {
    #[inline(always)]
    fn of(job: &'a mut Job<'_>) -> Self {
        let shape = Shape::of::<L>(job.payload_len());
        let (body, source) = job.body_and_source();
        let payload_len = body.len() - TAG_LEN;
        let plaintext = Plaintext::new::<L>(&mut body[..payload_len], source);
        let (chunks, tail) = body.split_at_mut(shape.chunks * CHUNK * L::WIDTH);
        Self {
            plaintext,
            chunks: L::vectors_mut(chunks).0.as_chunks_mut::<CHUNK>().0,
            tail,
            shape,
        }
    }

    #[inline(always)]
    fn encrypt_tail<const N: usize>(
        &mut self,
        l: L,
        key_stream: [L::V; N],
        stash: &mut [L::Bytes; CHUNK],
    ) {
        let at = self.shape.chunks * CHUNK * L::WIDTH;
        let tail = (&mut *self.tail, self.shape.last_len);
        (self.plaintext).encrypt_tail(l, tail, at, key_stream, stash);
    }

    /// Encrypts a packet with at least one chunk. The tail of the packet before is hashed
    /// meanwhile.
    #[inline(always)]
    fn seal_chunks<const R: usize>(
        &mut self,
        l: L,
        stream: &mut Stream<'_, L>,
        counters: &mut CounterSource<L>,
        previous: Option<Unfinished<'_, '_, L>>,
        stash: &mut [L::Bytes; CHUNK],
    ) {
        let Some((mut last, rest)) = std::mem::take(&mut self.chunks).split_first_mut() else {
            return;
        };
        let first_counters = counters.chunk(l, 0);
        let key_stream = match previous {
            Some(previous) if previous.registers > 0 => {
                macro_rules! run {
                    ($m:literal) => {
                        previous.finish_meanwhile::<R, 8, $m>(l, stream, first_counters, stash)
                    };
                }
                by_count!(previous.registers, run)
            }
            previous => {
                if let Some(previous) = previous {
                    *previous.tag = previous.hash.finish(l, previous.pad);
                }
                stream.start::<R, 8>(l, first_counters)
            }
        };
        (self.plaintext).encrypt_chunk(l, last, 0, key_stream);
        for (index, chunk) in (1..).zip(rest) {
            let key_stream = stream.step::<R, 8, 8>(l, counters.chunk(l, index), last);
            (self.plaintext).encrypt_chunk(l, chunk, index * CHUNK * L::WIDTH, key_stream);
            last = chunk;
        }
        let counters = counters.chunk(l, self.shape.chunks);
        macro_rules! run {
            ($n:literal) => {{
                let key_stream = stream.step::<R, $n, 8>(l, counters, last);
                self.encrypt_tail(l, key_stream, stash);
            }};
        }
        by_count!(self.shape.registers, run);
    }

    /// Encrypts a packet of less than a chunk. The packet before is hashed meanwhile if its tail is
    /// of the same length.
    #[inline(always)]
    fn seal_tail<const R: usize>(
        &mut self,
        l: L,
        stream: &Stream<'_, L>,
        counters: &[L::Bytes; CHUNK],
        previous: Option<Unfinished<'_, '_, L>>,
        stash: &mut [L::Bytes; CHUNK],
    ) {
        let registers = self.shape.registers;
        match previous {
            Some(previous) if previous.registers == registers && registers > 0 => {
                macro_rules! run {
                    ($n:literal) => {{
                        let key_stream =
                            previous.finish_meanwhile::<R, $n, $n>(l, stream, counters, stash);
                        self.encrypt_tail(l, key_stream, stash);
                    }};
                }
                by_count!(registers, run);
            }
            previous => {
                if let Some(previous) = previous {
                    previous.finish(l, stash);
                }
                macro_rules! run {
                    ($n:literal) => {{
                        let key_stream = stream.start::<R, $n>(l, counters);
                        self.encrypt_tail(l, key_stream, stash);
                    }};
                }
                if registers > 0 {
                    by_count!(registers, run);
                }
            }
        }
    }
}

/// Encrypts the payloads, writes the tags, and masks the headers if there are round keys for that.
/// Its parts are inlined: as functions of their own they took 5 % longer.
#[inline(always)]
fn seal_long<L: Lanes, const R: usize, const S: usize>(
    l: L,
    key: &Key<R, S>,
    jobs: &mut [Job<'_>],
    header: Option<&Rounds>,
) {
    let pads = tag_pads(l, key, jobs);
    let mut counters = CounterSource::<L>::new();
    let mut stash = [L::ZEROS; CHUNK];
    let mut unfinished: Option<Unfinished<'_, '_, L>> = None;
    for (job, pad) in jobs.iter_mut().zip(&pads.0) {
        let mut stream = Stream::new(l, key, job);
        let mut target = Target::<L>::of(job);
        let (previous, registers) = (unfinished.take(), target.shape.registers);
        if target.shape.chunks > 0 {
            target.seal_chunks::<R>(l, &mut stream, &mut counters, previous, &mut stash);
        } else {
            let counters = counters.chunk(l, 0);
            target.seal_tail::<R>(l, &stream, counters, previous, &mut stash);
        }
        let tag = target.tail.last_chunk_mut();
        unfinished = Some(Unfinished {
            hash: stream.hash,
            registers,
            pad,
            tag: tag.expect("a job has room for a tag"),
        });
    }
    let Some(Unfinished {
        hash,
        registers,
        pad,
        ..
    }) = unfinished
    else {
        return;
    };
    // The samples are there before the last tag is; only those of very short packets reach into it.
    // Neither waits for the other: the hash has to wait for itself most of the time.
    let early = jobs.iter().all(|job| job.sample_in_payload().is_some());
    if let (Some(rounds), true) = (header, early) {
        mask::passes::<L, R>(l, rounds, &mut *jobs, Toggle::Protect);
    }
    let tag = tag(l, hash, registers, &stash, pad);
    if let Some(job) = jobs.last_mut() {
        *job.tag_mut() = tag;
    }
    if let (Some(rounds), false) = (header, early) {
        mask::headers::<L, R>(l, rounds, &mut *jobs, Toggle::Protect);
    }
}
