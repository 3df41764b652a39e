//! The receive side: header protection off, then the AEAD, each for a whole group.
//!
//! ```text
//!   unprotect   samples of up to 16 packets ─▶ one cipher pass ─▶ masks over first byte and number
//!   open        packets of one slot, cut out of the buffer ─▶ kernel, 16 at a time ─▶ Open or Forged
//! ```

use crate::kernel::{Header, Job, Jobs, Kernel, MAX_JOBS};
use crate::span::{Cutter, MAX_NUMBER_LEN, MAX_PACKET_NUMBER, Outcome, PacketSpan, SAMPLE_LEN};

/// Samples in one cipher pass: eight 256-bit registers of two.
const MAX_SAMPLES: usize = 16;

/// Removes header protection from the pending spans.
pub(crate) fn unprotect(header: &Header, buf: &mut [u8], spans: &mut [PacketSpan]) {
    let mut cutter = Cutter::new(buf);
    for group in spans.chunks_mut(MAX_SAMPLES) {
        let mut samples = [[0; SAMPLE_LEN]; MAX_SAMPLES];
        let mut packets: [&mut [u8]; MAX_SAMPLES] = Default::default();
        for ((span, sample), packet) in group.iter_mut().zip(&mut samples).zip(&mut packets) {
            if span.outcome != Outcome::Pending {
                continue;
            }
            match cutter.cut(span).and_then(|packet| sampled(packet, span)) {
                Some((cut, bytes)) => {
                    *packet = cut;
                    *sample = bytes;
                }
                None => span.outcome = Outcome::Skip,
            }
        }
        if let Some(samples) = samples.get_mut(..group.len()) {
            header.masks(samples);
        }
        for ((span, mask), packet) in group.iter_mut().zip(&samples).zip(packets) {
            if span.outcome == Outcome::Pending && !packet.is_empty() {
                unmask(packet, span, mask);
            }
        }
    }
}

/// The packet together with its sample, if it is long enough to have one.
fn sampled<'a>(
    packet: &'a mut [u8],
    span: &PacketSpan,
) -> Option<(&'a mut [u8], [u8; SAMPLE_LEN])> {
    // RFC 9001 §5.4.2: the sample starts four bytes after the start of the packet number, however long that is.
    let at = usize::from(span.pn_offset) + MAX_NUMBER_LEN;
    let sample = *packet.get(at..)?.first_chunk()?;
    // A packet number in the first byte's place is not a packet.
    (span.pn_offset > 0).then_some((packet, sample))
}

/// RFC 9001 §5.4.1: unmasks the first byte, learns from it how long the number is, and unmasks the number.
fn unmask(packet: &mut [u8], span: &mut PacketSpan, mask: &[u8; SAMPLE_LEN]) {
    let [first_mask, m0, m1, m2, m3, ..] = *mask;
    let pn_offset = usize::from(span.pn_offset);
    let Some((first, rest)) = packet.split_first_mut() else {
        return;
    };
    *first ^= first_mask & protected_bits(*first);
    let number_len = usize::from(*first & 0x03) + 1;
    let Some(field) = rest
        .get_mut(pn_offset - 1..)
        .and_then(<[u8]>::first_chunk_mut)
    else {
        return;
    };
    let unused_bits = 8 * (MAX_NUMBER_LEN - number_len) as u32;
    let mask = u32::from_be_bytes([m0, m1, m2, m3]) & (u32::MAX << unused_bits);
    let bytes = u32::from_be_bytes(*field) ^ mask;
    *field = bytes.to_be_bytes();
    span.packet_number = u64::from(bytes >> unused_bits);
    span.header_len = span.pn_offset + number_len as u16;
}

/// The bits of the first byte that header protection covers: four in a long header, five in a short one.
pub(crate) fn protected_bits(first: u8) -> u8 {
    if first & 0x80 != 0 { 0x0f } else { 0x1f }
}

/// Opens the pending spans of a slot, in place.
pub(crate) fn open(kernel: &Kernel, buf: &mut [u8], spans: &mut [PacketSpan], slot: u8) {
    let mut cutter = Cutter::new(buf);
    for spans in spans.chunks_mut(MAX_JOBS) {
        let mut jobs = Jobs::new();
        // The spans that have a job, one bit each.
        let mut worked_on = 0_u32;
        for (i, span) in spans.iter_mut().enumerate() {
            if span.outcome != Outcome::Pending || span.slot != slot {
                continue;
            }
            match open_job(&mut cutter, span) {
                Some(job) => {
                    jobs.push(job);
                    worked_on |= 1 << i;
                }
                None => span.outcome = Outcome::Skip,
            }
        }
        let jobs = jobs.as_mut_slice();
        if jobs.is_empty() {
            continue;
        }
        let mut authentic = kernel.open(jobs);
        let mut jobs = jobs.iter_mut();
        for (i, span) in spans.iter_mut().enumerate() {
            if worked_on >> i & 1 == 0 {
                continue;
            }
            let job = jobs.next();
            if authentic & 1 == 1 {
                span.outcome = Outcome::Open;
            } else {
                span.outcome = Outcome::Forged;
                // Nobody may see what an attacker's bytes decrypt to.
                if let Some(job) = job {
                    job.parts().1.fill(0);
                }
            }
            authentic >>= 1;
        }
    }
}

/// A span with possible lengths and a possible number, as a job.
fn open_job<'a>(cutter: &mut Cutter<'a>, span: &PacketSpan) -> Option<Job<'a>> {
    let number_len = span.header_len.checked_sub(span.pn_offset)?;
    let sound = (1..=MAX_NUMBER_LEN).contains(&usize::from(number_len))
        && span.packet_number <= MAX_PACKET_NUMBER;
    if !sound {
        return None;
    }
    Job::new(
        cutter.cut(span)?,
        usize::from(span.header_len),
        span.packet_number,
        &[],
    )
}
