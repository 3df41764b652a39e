//! The receive side: header protection off, then the AEAD, each for a whole group.
//!
//! ```text
//!   unprotect   samples of up to 16 packets ─▶ one cipher pass ─▶ masks over first byte and number
//!   open        packets of one slot, cut out of the buffer ─▶ kernel, 16 a call ─▶ Open or Forged
//! ```

use crate::kernel::{Fusion, Header, Job, Kernel, Received, Slots, Splitter};
use crate::span::{Outcome, PacketSpan};

/// Removes header protection from the pending spans, those in a row together.
pub(crate) fn unprotect(header: &Header, buf: &mut [u8], mut spans: &mut [PacketSpan]) {
    let mut splitter = Splitter::new(buf);
    while !spans.is_empty() {
        header.unprotect(Received::take(&mut splitter, &mut spans));
        if let Some(refused) = spans.split_off_first_mut()
            && refused.outcome == Outcome::Pending
        {
            refused.outcome = Outcome::Skip;
        }
    }
}

/// Jobs of the first spans, up to one that is not wanted or cannot be a job. A function of its own,
/// so that its loop has the registers for itself.
#[inline(never)]
fn jobs_in_a_row<'r, 'a>(
    slots: &'r mut Slots<Job<'a>>,
    splitter: &mut Splitter<'a>,
    spans: &[PacketSpan],
    is_wanted: impl Fn(&PacketSpan) -> bool,
    job: impl Fn(&mut Splitter<'a>, &PacketSpan) -> Option<Job<'a>>,
) -> &'r mut [Job<'a>] {
    let mut at = std::mem::take(splitter);
    let wanted = spans.iter().take_while(|span| is_wanted(span));
    let jobs = slots.fill(wanted.map_while(|span| job(&mut at, span)));
    *splitter = at;
    jobs
}

/// Makes jobs of the wanted spans and does some work on them, those in a row together; a wanted
/// span that cannot be a job is skipped.
#[inline(always)]
fn by_rows<'a>(
    buf: &'a mut [u8],
    mut spans: &mut [PacketSpan],
    is_wanted: impl Fn(&PacketSpan) -> bool + Copy,
    job: impl Fn(&mut Splitter<'a>, &PacketSpan) -> Option<Job<'a>> + Copy,
    mut work: impl FnMut(&mut [PacketSpan], &mut [Job<'a>]),
) {
    let mut splitter = Splitter::new(buf);
    while !spans.is_empty() {
        let mut slots = Slots::new();
        let jobs = jobs_in_a_row(&mut slots, &mut splitter, spans, is_wanted, job);
        if let Some(row @ [_, ..]) = spans.split_off_mut(..jobs.len()) {
            work(row, jobs);
        } else if let Some(refused) = spans.split_off_first_mut()
            && is_wanted(refused)
        {
            refused.outcome = Outcome::Skip;
        }
    }
}

/// Removes header protection and opens, with the numbers as they are in the packets, in one call of
/// the kernel. Whether the kernel can do that: if not, nothing is done.
pub(crate) fn open_fused(
    kernel: &Kernel,
    header: &Header,
    fusion: Fusion,
    buf: &mut [u8],
    spans: &mut [PacketSpan],
) -> bool {
    let mut can = true;
    let is_pending = |span: &PacketSpan| span.outcome == Outcome::Pending;
    by_rows(
        buf,
        spans,
        is_pending,
        Job::to_unprotect_and_open,
        |spans, jobs| {
            let Some(authentic) = kernel.open_fused(jobs, header, fusion) else {
                can = false;
                return;
            };
            for (span, job) in spans.iter_mut().zip(&*jobs) {
                let (header_len, number) = job.header_len_and_number();
                (span.header_len, span.packet_number) = (header_len as u16, number);
            }
            settle(spans, jobs, authentic);
        },
    );
    can
}

/// Opens the pending spans of a slot, in place.
pub(crate) fn open(kernel: &Kernel, buf: &mut [u8], spans: &mut [PacketSpan], slot: u8) {
    let is_wanted = |span: &PacketSpan| (span.outcome == Outcome::Pending) & (span.slot == slot);
    by_rows(buf, spans, is_wanted, Job::to_open, |spans, jobs| {
        let authentic = kernel.open(jobs);
        settle(spans, jobs, authentic);
    });
}

/// Tells the spans which of their packets are authentic, and wipes the others.
#[inline(always)]
fn settle(spans: &mut [PacketSpan], jobs: &mut [Job<'_>], mut authentic: u32) {
    for (span, job) in spans.iter_mut().zip(jobs) {
        if authentic & 1 == 1 {
            span.outcome = Outcome::Open;
        } else {
            span.outcome = Outcome::Forged;
            // Nobody may see what an attacker's bytes decrypt to.
            job.wipe_behind(usize::from(span.pn_offset) + 1);
        }
        authentic >>= 1;
    }
}
