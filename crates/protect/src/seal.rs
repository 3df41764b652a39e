//! The send side: the AEAD for a group of packets, then their header protection.
//!
//! ```text
//!   packet     | header .. number | frame bytes written in place | ........ room ........ | room for tag |
//!   source                                                       | application's own bytes |
//! ```
//! Sixteen packets at a time go through the kernel; their ciphertext is still in the first-level cache when the
//! samples are gathered from it.

use crate::kernel::{Header, Job, Jobs, Kernel, MAX_JOBS};
use crate::open::protected_bits;
use crate::span::{
    Cutter, MAX_NUMBER_LEN, MAX_PACKET_NUMBER, Outcome, PacketSpan, SAMPLE_LEN, TAG_LEN,
};

/// Seals the pending spans and applies header protection, where there is a key for it.
pub(crate) fn seal(
    kernel: &Kernel,
    header: Option<&Header>,
    buf: &mut [u8],
    spans: &mut [PacketSpan],
    sources: &[&[u8]],
) {
    let mut cutter = Cutter::new(buf);
    for (group, spans) in spans.chunks_mut(MAX_JOBS).enumerate() {
        let mut jobs = Jobs::new();
        let mut pn_offsets = [0; MAX_JOBS];
        for (i, span) in spans.iter_mut().enumerate() {
            if span.outcome != Outcome::Pending {
                continue;
            }
            // With sources there is one for every span; a span that was forgotten is refused, not sent half empty.
            let source = match sources.get(group * MAX_JOBS + i) {
                Some(source) => Some(*source),
                None => sources.is_empty().then_some(&[][..]),
            };
            span.outcome = Outcome::Skip;
            if let Some(source) = source
                && let Some(job) = seal_job(&mut cutter, span, source)
            {
                span.outcome = Outcome::Open;
                pn_offsets[jobs.len()] = usize::from(span.pn_offset);
                jobs.push(job);
            }
        }
        let jobs = jobs.as_mut_slice();
        if !jobs.is_empty() {
            kernel.seal(jobs);
            if let Some(header) = header {
                protect_headers(header, jobs, &pn_offsets);
            }
        }
    }
}

/// A span with sound lengths and a sound number, as a job.
fn seal_job<'a>(cutter: &mut Cutter<'a>, span: &PacketSpan, source: &'a [u8]) -> Option<Job<'a>> {
    let packet = cutter.cut(span)?;
    let number_len = span.header_len.checked_sub(span.pn_offset)?;
    let payload_len = (span.len as usize).checked_sub(TAG_LEN + usize::from(span.header_len))?;
    // The first byte says how long the number is: a receiver will believe it, not us.
    let declared_len = u16::from(packet.first()? & 0x03) + 1;
    let sound = number_len == declared_len
        && span.pn_offset > 0
        && span.packet_number <= MAX_PACKET_NUMBER
        // RFC 9001 §5.4.2: number and payload together are at least four bytes, so that a sample exists.
        && usize::from(number_len) + payload_len >= MAX_NUMBER_LEN;
    if !sound {
        return None;
    }
    Job::new(
        packet,
        usize::from(span.header_len),
        span.packet_number,
        source,
    )
}

/// Applies header protection to packets that are sealed already: `ablation` does this apart.
pub(crate) fn protect(header: &Header, buf: &mut [u8], spans: &[PacketSpan]) {
    let mut cutter = Cutter::new(buf);
    for spans in spans.chunks(MAX_JOBS) {
        let mut jobs = Jobs::new();
        let mut pn_offsets = [0; MAX_JOBS];
        for span in spans.iter().filter(|span| span.outcome == Outcome::Open) {
            if let Some(job) = seal_job(&mut cutter, span, &[]) {
                pn_offsets[jobs.len()] = usize::from(span.pn_offset);
                jobs.push(job);
            }
        }
        protect_headers(header, jobs.as_mut_slice(), &pn_offsets);
    }
}

/// RFC 9001 §5.4.1 for all jobs, their masks made in one pass.
fn protect_headers(header: &Header, jobs: &mut [Job<'_>], pn_offsets: &[usize; MAX_JOBS]) {
    let mut samples = [[0; SAMPLE_LEN]; MAX_JOBS];
    for ((job, sample), pn_offset) in jobs.iter_mut().zip(&mut samples).zip(pn_offsets) {
        let ciphertext = job.packet().get(pn_offset + MAX_NUMBER_LEN..);
        if let Some(bytes) = ciphertext.and_then(<[u8]>::first_chunk) {
            *sample = *bytes;
        }
    }
    if let Some(samples) = samples.get_mut(..jobs.len()) {
        header.masks(samples);
    }
    for ((job, mask), pn_offset) in jobs.iter_mut().zip(&samples).zip(pn_offsets) {
        mask_header(job.packet(), *pn_offset, mask);
    }
}

fn mask_header(packet: &mut [u8], pn_offset: usize, mask: &[u8; SAMPLE_LEN]) {
    let [first_mask, m0, m1, m2, m3, ..] = *mask;
    let Some((first, rest)) = packet.split_first_mut() else {
        return;
    };
    let number_len = usize::from(*first & 0x03) + 1;
    *first ^= first_mask & protected_bits(*first);
    let Some(field) = rest
        .get_mut(pn_offset - 1..)
        .and_then(<[u8]>::first_chunk_mut)
    else {
        return;
    };
    // The field is four bytes wide; those behind a shorter number are payload and stay.
    let unused_bits = 8 * (MAX_NUMBER_LEN - number_len) as u32;
    let mask = u32::from_be_bytes([m0, m1, m2, m3]) & (u32::MAX << unused_bits);
    *field = (u32::from_be_bytes(*field) ^ mask).to_be_bytes();
}
