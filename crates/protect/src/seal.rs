//! The send side: the AEAD and header protection for a group of packets.
//!
//! ```text
//!   packet     | header .. number | frame bytes in place | ........ room ........ | room for tag |
//!   source                                               | application's own bytes |
//! ```
//! Sixteen packets at a time go through the kernel; their ciphertext is still in the first-level
//! cache when the samples are taken from it.

use std::slice;

use crate::kernel::{Fusion, Header, Job, Kernel, MAX_JOBS, Slots, Splitter, prefetch};
use crate::span::{Outcome, PacketSpan};

/// Seals the pending spans, which leave on one path, and applies header protection if there is a
/// key for it.
pub(crate) fn seal(
    kernel: &Kernel,
    path_id: u32,
    header: Option<(&Header, Fusion)>,
    buf: &mut [u8],
    spans: &mut [PacketSpan],
    sources: &[&[u8]],
) {
    let mut splitter = Splitter::new(buf);
    let mut sources = Sources::new(sources);
    if let [span] = &mut *spans {
        // The only span needs no slots.
        if let Some(mut job) = job_to_seal(&mut splitter, path_id, span, sources.next()) {
            seal_jobs(kernel, header, slice::from_mut(&mut job));
        }
        return;
    }
    for spans in spans.chunks_mut(MAX_JOBS) {
        let mut slots = Slots::new();
        let jobs = jobs_to_seal(&mut slots, &mut splitter, path_id, spans, &mut sources);
        seal_jobs(kernel, header, jobs);
    }
}

#[inline(always)]
fn seal_jobs(kernel: &Kernel, header: Option<(&Header, Fusion)>, jobs: &mut [Job<'_>]) {
    match header {
        Some((header, fusion)) => kernel.seal(jobs, header, fusion),
        None => kernel.seal_alone(jobs),
    }
}

/// Applies header protection to packets that are already sealed.
pub(crate) fn protect(header: &Header, buf: &mut [u8], spans: &[PacketSpan]) {
    let mut splitter = Splitter::new(buf);
    for spans in spans.chunks(MAX_JOBS) {
        let sealed = spans.iter().filter(|span| span.outcome == Outcome::Open);
        let jobs = sealed.filter_map(|span| Job::to_seal(&mut splitter, span, &[]));
        header.protect(Slots::new().fill(jobs));
    }
}

/// Jobs of the pending spans. A separate function, so that its loop has all registers.
#[inline(never)]
fn jobs_to_seal<'r, 'a>(
    slots: &'r mut Slots<Job<'a>>,
    splitter: &mut Splitter<'a>,
    path_id: u32,
    spans: &mut [PacketSpan],
    sources: &mut Sources<'_, 'a>,
) -> &'r mut [Job<'a>] {
    let mut at = std::mem::take(splitter);
    let pending =
        (spans.iter_mut()).filter_map(|span| job_to_seal(&mut at, path_id, span, sources.next()));
    let jobs = slots.fill(pending);
    *splitter = at;
    jobs
}

/// The job of a span, if it is pending; sets its outcome.
#[inline(always)]
fn job_to_seal<'a>(
    splitter: &mut Splitter<'a>,
    path_id: u32,
    span: &mut PacketSpan,
    source: Option<&'a [u8]>,
) -> Option<Job<'a>> {
    if span.outcome != Outcome::Pending {
        return None;
    }
    let job = source.and_then(|source| {
        prefetch::ends(source);
        Some(Job::to_seal(splitter, span, source)?.on_path(path_id))
    });
    span.outcome = match job {
        Some(_) => Outcome::Open,
        None => Outcome::Skip,
    };
    job
}

/// The sources of the spans, one after the other: all empty if none are given.
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

    /// `None` for a span whose source is missing: it is refused, not sent half empty.
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.in_place {
            return Some(&[]);
        }
        self.rest.next().copied()
    }
}
