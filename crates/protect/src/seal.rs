//! The send side: the AEAD and header protection for a group of packets.
//!
//! ```text
//!   packet     | header .. number | frame bytes written in place | ........ room ........ | room for tag |
//!   source                                                       | application's own bytes |
//! ```
//! Sixteen packets at a time go through the kernel; their ciphertext is still in the first-level cache when the
//! samples are taken from it.

use crate::kernel::{Cutter, Fusion, Header, Job, Kernel, MAX_JOBS, Slots};
use crate::span::{MAX_NUMBER_LEN, MAX_PACKET_NUMBER, Outcome, PacketSpan, TAG_LEN};

/// Seals the pending spans and applies header protection, where there is a key for it.
pub(crate) fn seal(
    kernel: &Kernel,
    header: Option<(&Header, Fusion)>,
    buf: &mut [u8],
    spans: &mut [PacketSpan],
    sources: &[&[u8]],
) {
    let mut cutter = Cutter::new(buf);
    let mut sources = Sources::new(sources);
    for spans in spans.chunks_mut(MAX_JOBS) {
        let mut slots = Slots::new();
        let jobs = jobs_to_seal(&mut slots, &mut cutter, spans, &mut sources);
        match header {
            Some((header, fusion)) => kernel.seal(jobs, header, fusion),
            None => kernel.seal_alone(jobs),
        }
    }
}

/// Applies header protection to packets that are sealed already.
pub(crate) fn protect(header: &Header, buf: &mut [u8], spans: &[PacketSpan]) {
    let mut cutter = Cutter::new(buf);
    for spans in spans.chunks(MAX_JOBS) {
        let sealed = spans.iter().filter(|span| span.outcome == Outcome::Open);
        let jobs = sealed.filter_map(|span| seal_job(&mut cutter, span, &[]));
        header.protect(Slots::new().fill(jobs));
    }
}

/// Jobs of the pending spans. A function of its own, so that its loop has the registers for itself.
#[inline(never)]
fn jobs_to_seal<'r, 'a>(
    slots: &'r mut Slots<Job<'a>>,
    cutter: &mut Cutter<'a>,
    spans: &mut [PacketSpan],
    sources: &mut Sources<'_, 'a>,
) -> &'r mut [Job<'a>] {
    let mut at = std::mem::take(cutter);
    let jobs = slots.fill(spans.iter_mut().filter_map(|span| {
        let source = sources.next();
        if span.outcome != Outcome::Pending {
            return None;
        }
        let job = source.and_then(|source| seal_job(&mut at, span, source));
        span.outcome = match job {
            Some(_) => Outcome::Open,
            None => Outcome::Skip,
        };
        job
    }));
    *cutter = at;
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

/// A span with sound lengths and a sound number, as a job.
#[inline(always)]
fn seal_job<'a>(cutter: &mut Cutter<'a>, span: &PacketSpan, source: &'a [u8]) -> Option<Job<'a>> {
    let number_len = span.header_len.wrapping_sub(span.pn_offset);
    let least_len = u32::from(
        span.header_len
            .max(span.pn_offset.saturating_add(MAX_NUMBER_LEN as u16)),
    ) + TAG_LEN as u32;
    // RFC 9001 §5.4.2: number and payload together are at least four bytes, so that a sample exists. All at once: one
    // branch for what is always so.
    let is_sound = (span.len >= least_len) & (span.packet_number <= MAX_PACKET_NUMBER);
    if !is_sound {
        return None;
    }
    let packet = cutter.cut(span)?;
    // The first byte says how long the number is: a receiver will believe it, not us.
    let declared_len = u16::from(packet.first()? & 0x03) + 1;
    let header_len = usize::from(span.header_len);
    (number_len == declared_len)
        .then(|| Job::new(packet, header_len, span.packet_number, source))??
        .with_number_at(span.pn_offset)
}
