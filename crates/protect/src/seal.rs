//! The send side: the AEAD and header protection for a group of packets.
//!
//! ```text
//!   packet     | header .. number | frame bytes in place | ........ room ........ | room for tag |
//!   source                                               | application's own bytes |
//! ```
//! Sixteen packets at a time go through the kernel; their ciphertext is still in the first-level
//! cache when the samples are taken from it.

use crate::kernel::{Fusion, Header, Job, Kernel, MAX_JOBS, Slots, Splitter, prefetch};
use crate::span::{Outcome, PacketSpan};

/// Seals the pending spans and applies header protection, where there is a key for it.
pub(crate) fn seal(
    kernel: &Kernel,
    header: Option<(&Header, Fusion)>,
    buf: &mut [u8],
    spans: &mut [PacketSpan],
    sources: &[&[u8]],
) {
    let mut splitter = Splitter::new(buf);
    let mut sources = Sources::new(sources);
    for spans in spans.chunks_mut(MAX_JOBS) {
        let mut slots = Slots::new();
        let jobs = jobs_to_seal(&mut slots, &mut splitter, spans, &mut sources);
        match header {
            Some((header, fusion)) => kernel.seal(jobs, header, fusion),
            None => kernel.seal_alone(jobs),
        }
    }
}

/// Applies header protection to packets that are sealed already.
pub(crate) fn protect(header: &Header, buf: &mut [u8], spans: &[PacketSpan]) {
    let mut splitter = Splitter::new(buf);
    for spans in spans.chunks(MAX_JOBS) {
        let sealed = spans.iter().filter(|span| span.outcome == Outcome::Open);
        let jobs = sealed.filter_map(|span| Job::to_seal(&mut splitter, span, &[]));
        header.protect(Slots::new().fill(jobs));
    }
}

/// Jobs of the pending spans. A function of its own, so that its loop has the registers for itself.
#[inline(never)]
fn jobs_to_seal<'r, 'a>(
    slots: &'r mut Slots<Job<'a>>,
    splitter: &mut Splitter<'a>,
    spans: &mut [PacketSpan],
    sources: &mut Sources<'_, 'a>,
) -> &'r mut [Job<'a>] {
    let mut at = std::mem::take(splitter);
    let jobs = slots.fill(spans.iter_mut().filter_map(|span| {
        let source = sources.next();
        if span.outcome != Outcome::Pending {
            return None;
        }
        let job = source.and_then(|source| {
            prefetch::ends(source);
            Job::to_seal(&mut at, span, source)
        });
        span.outcome = match job {
            Some(_) => Outcome::Open,
            None => Outcome::Skip,
        };
        job
    }));
    *splitter = at;
    jobs
}

/// The sources of spans one after the other: all empty where none are given.
struct Sources<'s, 'a> {
    rest: std::slice::Iter<'s, &'a [u8]>,
    in_place: bool,
}

impl<'s, 'a> Sources<'s, 'a> {
    fn new(sources: &'s [&'a [u8]]) -> Self {
        Self {
            rest: sources.iter(),
            in_place: sources.is_empty(),
        }
    }

    /// `None` for a span whose source was forgotten: it is refused, not sent half empty.
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.in_place {
            return Some(&[]);
        }
        self.rest.next().copied()
    }
}
