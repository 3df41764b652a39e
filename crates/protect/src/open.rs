//! The receive side: header protection off, then the AEAD, each for a whole group.
//!
//! ```text
//!   unprotect   samples of up to 16 packets ─▶ one cipher pass ─▶ masks over first byte and number
//!   open        packets of one slot, cut out of the buffer ─▶ kernel, 16 at a time ─▶ Open or Forged
//! ```

use crate::kernel::{Cutter, Fusion, Header, Job, Kernel, MAX_JOBS, Protected, Slots};
use crate::span::{MAX_NUMBER_LEN, MAX_PACKET_NUMBER, Outcome, PacketSpan};

/// Removes header protection from the pending spans.
pub(crate) fn unprotect(header: &Header, buf: &mut [u8], spans: &mut [PacketSpan]) {
    let mut cutter = Cutter::new(buf);
    for spans in spans.chunks_mut(MAX_JOBS) {
        let mut slots = Slots::new();
        header.unprotect(packets_to_unprotect(&mut slots, &mut cutter, spans));
    }
}

/// The pending packets that have a sample. A function of its own, so that its loop has the registers for itself; so are
/// the others that make jobs. Inlined they took a third of the time of `unprotect`.
#[inline(never)]
fn packets_to_unprotect<'r, 'a, 's>(
    slots: &'r mut Slots<Protected<'a, 's>>,
    cutter: &mut Cutter<'a>,
    spans: &'s mut [PacketSpan],
) -> &'r mut [Protected<'a, 's>] {
    let mut at = std::mem::take(cutter);
    let pending = spans
        .iter_mut()
        .filter(|span| span.outcome == Outcome::Pending);
    let packets = slots.fill(pending.filter_map(|span| {
        Protected::new(&mut at, span)
            .map_err(|span| span.outcome = Outcome::Skip)
            .ok()
    }));
    *cutter = at;
    packets
}

/// A packet whose header is still protected, as a job.
fn protected_job<'a>(cutter: &mut Cutter<'a>, span: &PacketSpan) -> Option<Job<'a>> {
    Job::new(cutter.cut(span)?, usize::from(span.pn_offset), 0, &[])?.with_number_at(span.pn_offset)
}

/// The jobs of up to [`MAX_JOBS`] spans, and which spans they are of.
struct Work<'r, 'a> {
    jobs: &'r mut [Job<'a>],
    /// One bit for each span.
    spans: u32,
}

impl<'r, 'a> Work<'r, 'a> {
    /// Makes jobs of the pending spans, or of those of a slot; those that cannot be one are skipped.
    #[inline(never)]
    fn take(
        slots: &'r mut Slots<Job<'a>>,
        cutter: &mut Cutter<'a>,
        spans: &mut [PacketSpan],
        slot: Option<u8>,
        mut job: impl FnMut(&mut Cutter<'a>, &PacketSpan) -> Option<Job<'a>>,
    ) -> Self {
        let mut at = std::mem::take(cutter);
        let mut taken = 0;
        let jobs = slots.fill(spans.iter_mut().enumerate().filter_map(|(i, span)| {
            if span.outcome != Outcome::Pending || slot.is_some_and(|slot| slot != span.slot) {
                return None;
            }
            let job = job(&mut at, span);
            match job {
                Some(_) => taken |= 1 << i,
                None => span.outcome = Outcome::Skip,
            }
            job
        }));
        *cutter = at;
        Self { jobs, spans: taken }
    }

    /// Brings the spans and their jobs together again.
    #[inline(always)]
    fn give_back(
        &mut self,
        spans: &mut [PacketSpan],
        mut each: impl FnMut(&mut PacketSpan, &mut Job<'_>),
    ) {
        let mut jobs = self.jobs.iter_mut();
        for (i, span) in spans.iter_mut().enumerate() {
            if self.spans >> i & 1 == 1
                && let Some(job) = jobs.next()
            {
                each(span, job);
            }
        }
    }
}

/// Removes header protection and opens, with the numbers as they are in the packets, in one call of the kernel. Whether the
/// kernel can do that: if not, nothing is done.
pub(crate) fn open_fused(
    kernel: &Kernel,
    header: &Header,
    fusion: Fusion,
    buf: &mut [u8],
    spans: &mut [PacketSpan],
) -> bool {
    let mut cutter = Cutter::new(buf);
    for spans in spans.chunks_mut(MAX_JOBS) {
        let mut slots = Slots::new();
        let mut work = Work::take(&mut slots, &mut cutter, spans, None, protected_job);
        let Some(authentic) = kernel.open_fused(work.jobs, header, fusion) else {
            return false;
        };
        work.give_back(spans, |span, job| {
            let (header_len, number) = job.header_len_and_number();
            (span.header_len, span.packet_number) = (header_len as u16, number);
        });
        settle(&mut work, spans, authentic);
    }
    true
}

/// Opens the pending spans of a slot, in place.
pub(crate) fn open(kernel: &Kernel, buf: &mut [u8], spans: &mut [PacketSpan], slot: u8) {
    let mut cutter = Cutter::new(buf);
    for spans in spans.chunks_mut(MAX_JOBS) {
        let mut slots = Slots::new();
        let mut work = Work::take(&mut slots, &mut cutter, spans, Some(slot), open_job);
        let authentic = kernel.open(work.jobs);
        settle(&mut work, spans, authentic);
    }
}

/// Tells the spans which of their packets are authentic, and wipes the others.
#[inline(always)]
fn settle(work: &mut Work<'_, '_>, spans: &mut [PacketSpan], mut authentic: u32) {
    work.give_back(spans, |span, job| {
        if authentic & 1 == 1 {
            span.outcome = Outcome::Open;
        } else {
            span.outcome = Outcome::Forged;
            // Nobody may see what an attacker's bytes decrypt to.
            job.wipe_behind(usize::from(span.pn_offset) + 1);
        }
        authentic >>= 1;
    });
}

/// A span with possible lengths and a possible number, as a job.
#[inline(always)]
fn open_job<'a>(cutter: &mut Cutter<'a>, span: &PacketSpan) -> Option<Job<'a>> {
    // Both at once: one branch for what is always so.
    let number_len = usize::from(span.header_len.wrapping_sub(span.pn_offset));
    let is_sound =
        (number_len.wrapping_sub(1) < MAX_NUMBER_LEN) & (span.packet_number <= MAX_PACKET_NUMBER);
    if !is_sound {
        return None;
    }
    let header_len = usize::from(span.header_len);
    Job::new(cutter.cut(span)?, header_len, span.packet_number, &[])
}
