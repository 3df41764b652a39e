//! The receive side: header protection off, then the AEAD, each for a whole group.
//!
//! ```text
//!   unprotect   samples of up to 16 packets ─▶ one cipher pass ─▶ masks over first byte and number
//!   open        packets of one slot, cut out of the buffer ─▶ kernel, 16 a call ─▶ Open or Forged
//! ```
//! A packet that is opened into a target keeps the head of its plaintext in place:
//! ```text
//!   packet     | header .. number | frame bytes in place | ....... ciphertext ....... | tag |
//!   target                                               | where the application reads |
//! ```

use std::slice;

use crate::kernel::{Fusion, Header, Job, Kernel, Received, Slots, Splitter};
use crate::span::{Outcome, PacketSpan};

/// Removes header protection from the pending spans, consecutive ones together.
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

/// Jobs of the first spans, up to one that is not wanted or cannot be a job. A separate function,
/// so that its loop has all registers.
#[inline(never)]
fn jobs_in_a_row<'r, 'a>(
    slots: &'r mut Slots<Job<'a>>,
    splitter: &mut Splitter<'a>,
    spans: &[PacketSpan],
    is_wanted: impl Fn(&PacketSpan) -> bool,
    mut job: impl FnMut(&mut Splitter<'a>, &PacketSpan, usize) -> Option<Job<'a>>,
) -> &'r mut [Job<'a>] {
    let mut at = std::mem::take(splitter);
    let wanted = spans.iter().enumerate();
    let wanted = wanted.take_while(|(_, span)| is_wanted(span));
    let jobs = slots.fill(wanted.map_while(|(i, span)| job(&mut at, span, i)));
    *splitter = at;
    jobs
}

/// Makes jobs of the wanted spans, each with its index, and calls `work` with consecutive ones
/// together; a wanted span that cannot be a job is skipped.
#[inline(always)]
fn by_rows<'a>(
    buf: &'a mut [u8],
    mut spans: &mut [PacketSpan],
    is_wanted: impl Fn(&PacketSpan) -> bool + Copy,
    mut job: impl FnMut(&mut Splitter<'a>, &PacketSpan, usize) -> Option<Job<'a>>,
    mut work: impl FnMut(&mut [PacketSpan], &mut [Job<'a>]),
) {
    let mut splitter = Splitter::new(buf);
    let count = spans.len();
    while !spans.is_empty() {
        let first = count - spans.len();
        let mut slots = Slots::new();
        let jobs = jobs_in_a_row(
            &mut slots,
            &mut splitter,
            spans,
            is_wanted,
            |at, span, i| job(at, span, first + i),
        );
        if let Some(row @ [_, ..]) = spans.split_off_mut(..jobs.len()) {
            work(row, jobs);
        } else if let Some(refused) = spans.split_off_first_mut()
            && is_wanted(refused)
        {
            refused.outcome = Outcome::Skip;
        }
    }
}

/// Removes header protection and opens, with the numbers as they are in the packets, in one kernel
/// call. Returns whether the kernel can do that; if not, nothing is done.
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
        |at, span, _| Job::to_unprotect_and_open(at, span),
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

/// Opens the pending spans of a slot, which came on one path, in place.
pub(crate) fn open<'a>(
    kernel: &Kernel,
    path_id: u32,
    buf: &'a mut [u8],
    spans: &mut [PacketSpan],
    slot: u8,
) {
    let is_wanted = |span: &PacketSpan| (span.outcome == Outcome::Pending) & (span.slot == slot);
    if let [span] = spans {
        if is_wanted(span) {
            open_alone(kernel, path_id, buf, span, &mut Default::default());
        }
        return;
    }
    let job = |at: &mut Splitter<'a>, span: &PacketSpan, _| {
        Some(Job::to_open(at, span)?.on_path(path_id))
    };
    by_rows(buf, spans, is_wanted, job, |spans, jobs| {
        let authentic = kernel.open(jobs);
        settle(spans, jobs, authentic);
    });
}

/// Opens the pending spans of a slot, with the last bytes of each payload decrypted to its target.
/// A span without a target is skipped.
pub(crate) fn open_into<'a>(
    kernel: &Kernel,
    buf: &'a mut [u8],
    spans: &mut [PacketSpan],
    slot: u8,
    targets: &mut [&'a mut [u8]],
) {
    let is_wanted = |span: &PacketSpan| (span.outcome == Outcome::Pending) & (span.slot == slot);
    if let ([span], [target, ..]) = (&mut *spans, &mut *targets) {
        if is_wanted(span) {
            open_alone(kernel, 0, buf, span, target);
        }
        return;
    }
    let job = |at: &mut Splitter<'a>, span: &PacketSpan, i: usize| {
        Job::to_open_into(at, span, targets.get_mut(i)?)
    };
    by_rows(buf, spans, is_wanted, job, |spans, jobs| {
        let authentic = kernel.open(jobs);
        settle(spans, jobs, authentic);
    });
}

/// Opens the only span of a call, without looking for a row.
#[inline(always)]
fn open_alone<'a>(
    kernel: &Kernel,
    path_id: u32,
    buf: &'a mut [u8],
    span: &mut PacketSpan,
    target: &mut &'a mut [u8],
) {
    let Some(job) = Job::to_open_into(&mut Splitter::new(buf), span, target) else {
        span.outcome = Outcome::Skip;
        return;
    };
    let mut job = job.on_path(path_id);
    let jobs = slice::from_mut(&mut job);
    let authentic = kernel.open(jobs);
    settle(slice::from_mut(span), jobs, authentic);
}

/// Marks each span as open or forged, and wipes the forged packets.
#[inline(always)]
fn settle(spans: &mut [PacketSpan], jobs: &mut [Job<'_>], mut authentic: u32) {
    for (span, job) in spans.iter_mut().zip(jobs) {
        if authentic & 1 == 1 {
            span.outcome = Outcome::Open;
        } else {
            span.outcome = Outcome::Forged;
            // What an attacker's bytes decrypt to must never be seen.
            job.wipe_behind(usize::from(span.pn_offset) + 1);
        }
        authentic >>= 1;
    }
}
