//! Packets as a kernel sees them: checked once, then reached without checks.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::span::{MAX_NUMBER_LEN, MAX_PACKET_NUMBER, Outcome, PacketSpan, SAMPLE_LEN, TAG_LEN};

/// Jobs in a kernel call: enough to fill eight registers with the blocks of which each packet has
/// one.
pub(crate) const MAX_JOBS: usize = 16;

/// What to do with a mask.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Toggle {
    /// The header is about to be sent.
    Protect,
    /// The header was received; it encodes the length of the number, and so its own length.
    Unprotect,
}

/// Packets whose headers get or lose their masks.
pub(crate) trait Headers: Sized {
    fn count(&self) -> usize;

    /// Takes the first `n` away, if there are that many.
    fn take_first(&mut self, n: usize) -> Option<Self>;

    /// RFC 9001 §5.4.2: what the mask of a packet is made of. It starts four bytes after the start
    /// of the packet number, however long that is.
    fn sample(&self, i: usize) -> &[u8; SAMPLE_LEN];

    /// RFC 9001 §5.4.1: applies or removes a mask, of which five bytes are used: the first is its
    /// lowest.
    fn toggle(&mut self, i: usize, mask: u64, toggle: Toggle);
}

/// One packet for a kernel.
///
/// Invariant: `header_len + TAG_LEN <= packet.len()`, and `source` and `target` are no longer than
/// the payload between them. If `pn_offset` is not 0, the packet holds a sample four bytes after
/// it.
pub(crate) struct Job<'a> {
    packet: &'a mut [u8],
    /// To be sealed: the last bytes of the plaintext.
    source: &'a [u8],
    /// To be opened: where the last bytes of the plaintext go.
    target: &'a mut [u8],
    number: u64,
    header_len: u32,
    path_id: u32,
    /// Where the number begins if the header is still to be masked or unmasked; else 0.
    pn_offset: u16,
    /// Where the number begins; not a secret.
    number_at: u16,
}

impl<'a> Job<'a> {
    /// `packet` is header, payload and room for the tag; the last `source.len()` bytes of the
    /// payload are still to come from `source`. `None` if the lengths do not fit.
    #[inline(always)]
    pub(crate) fn new(
        packet: &'a mut [u8],
        header_len: usize,
        number: u64,
        source: &'a [u8],
    ) -> Option<Self> {
        let payload_len = packet.len().checked_sub(TAG_LEN)?.checked_sub(header_len)?;
        let number_at = header_len.saturating_sub(MAX_NUMBER_LEN);
        let header_len = u32::try_from(header_len).ok()?;
        (source.len() <= payload_len).then_some(Self {
            packet,
            source,
            target: &mut [],
            number,
            header_len,
            path_id: 0,
            pn_offset: 0,
            number_at: u16::try_from(number_at).unwrap_or(u16::MAX),
        })
    }

    /// A span to be sealed. `None` if it is not sound, or its source is too long for it.
    #[inline(always)]
    pub(crate) fn to_seal(
        splitter: &mut Splitter<'a>,
        span: &PacketSpan,
        source: &'a [u8],
    ) -> Option<Self> {
        // RFC 9001 §5.4.2: number and payload together are at least four bytes, so that a sample
        // exists. Then the lengths fit whatever the number's length. All in one branch, since all
        // of it almost always holds.
        let is_sound = has_number_and_sample(span) & (span.packet_number <= MAX_PACKET_NUMBER);
        if !is_sound {
            return None;
        }
        let packet = splitter.cut(span)?;
        // The first byte states the number's length, and a receiver goes by that, not by us.
        let declared_len = u16::from(packet.first()? & 0x03) + 1;
        let payload_len = packet
            .len()
            .wrapping_sub(usize::from(span.header_len) + TAG_LEN);
        let is_sound = (span.header_len.wrapping_sub(span.pn_offset) == declared_len)
            & (source.len() <= payload_len);
        is_sound.then_some(Self {
            packet,
            source,
            target: &mut [],
            number: span.packet_number,
            header_len: u32::from(span.header_len),
            path_id: 0,
            pn_offset: span.pn_offset,
            number_at: span.pn_offset,
        })
    }

    /// A received span whose header is bare, to be opened in place. `None` if it is not sound.
    #[inline(always)]
    pub(crate) fn to_open(splitter: &mut Splitter<'a>, span: &PacketSpan) -> Option<Self> {
        let nowhere: &mut &mut [u8] = &mut Default::default();
        Self::to_open_into(splitter, span, nowhere)
    }

    /// A received span whose header is bare; the last bytes of its plaintext go to the target,
    /// which is taken. `None` if the span is not sound or the target is longer than the payload.
    #[inline(always)]
    pub(crate) fn to_open_into(
        splitter: &mut Splitter<'a>,
        span: &PacketSpan,
        target: &mut &'a mut [u8],
    ) -> Option<Self> {
        let number_len = usize::from(span.header_len.wrapping_sub(span.pn_offset));
        let least_len = u32::from(span.header_len) + TAG_LEN as u32;
        let is_sound = (number_len.wrapping_sub(1) < MAX_NUMBER_LEN)
            & (span.packet_number <= MAX_PACKET_NUMBER)
            & (span.len >= least_len)
            & (target.len() as u64 + u64::from(least_len) <= u64::from(span.len));
        if !is_sound {
            return None;
        }
        Some(Self {
            packet: splitter.cut(span)?,
            source: &[],
            target: std::mem::take(target),
            number: span.packet_number,
            header_len: u32::from(span.header_len),
            path_id: 0,
            pn_offset: 0,
            number_at: span.pn_offset,
        })
    }

    /// A received span whose header is still protected. `None` if it is not sound.
    #[inline(always)]
    pub(crate) fn to_unprotect_and_open(
        splitter: &mut Splitter<'a>,
        span: &PacketSpan,
    ) -> Option<Self> {
        if !has_number_and_sample(span) {
            return None;
        }
        Some(Self {
            packet: splitter.cut(span)?,
            source: &[],
            target: &mut [],
            number: 0,
            header_len: u32::from(span.pn_offset),
            path_id: 0,
            pn_offset: span.pn_offset,
            number_at: span.pn_offset,
        })
    }

    /// The bytes of `T` at an offset of the packet.
    ///
    /// # Safety
    ///
    /// They lie in the packet, and `T` is an array of bytes.
    #[inline(always)]
    unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.packet.len());
        // SAFETY: as the caller says; arrays of bytes have no alignment.
        unsafe { &*self.packet.as_ptr().add(offset).cast() }
    }

    /// As [`at`](Self::at), for writing.
    ///
    /// # Safety
    ///
    /// They lie in the packet, and `T` is an array of bytes.
    #[inline(always)]
    unsafe fn at_mut<T>(&mut self, offset: usize) -> &mut T {
        debug_assert!(offset + size_of::<T>() <= self.packet.len());
        // SAFETY: as the caller says; arrays of bytes have no alignment.
        unsafe { &mut *self.packet.as_mut_ptr().add(offset).cast() }
    }

    /// The same packet on a path, whose id is part of the nonce (draft-ietf-quic-multipath §2.4).
    #[inline(always)]
    pub(crate) fn on_path(self, path_id: u32) -> Self {
        Self { path_id, ..self }
    }

    /// What turns the IV into the nonce.
    #[inline(always)]
    pub(crate) fn path_and_number(&self) -> (u32, u64) {
        (self.path_id, self.number)
    }

    /// Where the sample begins in the payload, if all of it lies there: that of a very short packet
    /// reaches into the tag.
    #[inline(always)]
    pub(super) fn sample_in_payload(&self) -> Option<usize> {
        let at =
            (usize::from(self.pn_offset) + MAX_NUMBER_LEN).checked_sub(self.header_len as usize)?;
        (self.pn_offset > 0 && at + SAMPLE_LEN <= self.payload_len()).then_some(at)
    }

    /// Bytes up to the payload, and the number: after [`Toggle::Unprotect`] as they were in the
    /// packet.
    #[inline(always)]
    pub(crate) fn header_len_and_number(&self) -> (u32, u64) {
        (self.header_len, self.number)
    }

    /// Header, payload and tag.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut [u8], &mut [u8; TAG_LEN]) {
        let (rest, tag) = self
            .packet
            .split_last_chunk_mut()
            .expect("a job has room for a tag");
        let (header, payload) = rest.split_at_mut(self.header_len as usize);
        (header, payload, tag)
    }

    /// Writes zeros from an offset in the header to the tag, and over the target. From the number's
    /// second byte on, the extent of the writes does not reveal the length of a forged packet's
    /// number (RFC 9001 §9.5).
    pub(crate) fn wipe_behind(&mut self, offset: usize) {
        let end = self.packet.len() - TAG_LEN;
        let from = offset.min(self.header_len as usize);
        self.packet[from..end].fill(0);
        self.target.fill(0);
    }

    /// Copies plaintext from the packet to the target, for kernels that open in place only.
    pub(super) fn fill_target(&mut self) {
        let end = self.packet.len() - TAG_LEN;
        let from = end - self.target.len();
        self.target.copy_from_slice(&self.packet[from..end]);
    }

    /// Copies the source into the packet.
    pub(super) fn take_source(&mut self) {
        let source = std::mem::take(&mut self.source);
        let (_, payload, _) = self.parts();
        let head_len = payload.len() - source.len();
        payload[head_len..].copy_from_slice(source);
    }
}

impl Headers for &mut [Job<'_>] {
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn take_first(&mut self, n: usize) -> Option<Self> {
        self.split_off_mut(..n)
    }

    #[inline(always)]
    fn sample(&self, i: usize) -> &[u8; SAMPLE_LEN] {
        let job = &self[i];
        if job.pn_offset == 0 {
            return &[0; SAMPLE_LEN];
        }
        // SAFETY: the invariant.
        unsafe { job.at(usize::from(job.pn_offset) + MAX_NUMBER_LEN) }
    }

    #[inline(always)]
    fn toggle(&mut self, i: usize, mask: u64, toggle: Toggle) {
        let job = &mut self[i];
        if job.pn_offset == 0 {
            return;
        }
        // SAFETY: the invariant: a sample follows the number.
        let number = unsafe {
            toggle_header(
                job.packet.as_mut_ptr(),
                usize::from(job.pn_offset),
                mask,
                toggle,
            )
        };
        if toggle == Toggle::Unprotect {
            job.number = number.value;
            job.header_len = u32::from(job.pn_offset) + u32::from(number.len);
        }
    }
}

/// Received packets whose headers are still protected: consecutive spans, each checked once.
///
/// Invariant: the packets lie in the buffer, no two share a byte, and in each a sample lies four
/// bytes after `pn_offset`, which is not 0.
pub(crate) struct Received<'s, 'b> {
    buf: *mut u8,
    spans: &'s mut [PacketSpan],
    life: PhantomData<&'b mut [u8]>,
}

impl<'s, 'b> Received<'s, 'b> {
    /// Takes the spans up to the first that is not pending or not sound.
    #[inline(always)]
    pub(crate) fn take(splitter: &mut Splitter<'b>, spans: &mut &'s mut [PacketSpan]) -> Self {
        let mut at = std::mem::take(splitter);
        let count = (spans.iter())
            .take_while(|span| at.cut_received(span))
            .count();
        let buf = at.buf;
        *splitter = at;
        Self {
            buf,
            spans: spans.split_off_mut(..count).unwrap_or_default(),
            life: PhantomData,
        }
    }
}

impl Headers for Received<'_, '_> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.spans.len()
    }

    #[inline(always)]
    fn take_first(&mut self, n: usize) -> Option<Self> {
        let spans = self.spans.split_off_mut(..n)?;
        Some(Self { spans, ..*self })
    }

    #[inline(always)]
    fn sample(&self, i: usize) -> &[u8; SAMPLE_LEN] {
        let span = &self.spans[i];
        let at = span.start as usize + usize::from(span.pn_offset) + MAX_NUMBER_LEN;
        // SAFETY: the invariant; arrays of bytes have no alignment.
        unsafe { &*self.buf.add(at).cast() }
    }

    #[inline(always)]
    fn toggle(&mut self, i: usize, mask: u64, toggle: Toggle) {
        let span = &mut self.spans[i];
        // SAFETY: the invariant: the packet lies in the buffer, and a sample follows the number.
        let number = unsafe {
            let packet = self.buf.add(span.start as usize);
            toggle_header(packet, usize::from(span.pn_offset), mask, toggle)
        };
        span.packet_number = number.value;
        span.header_len = span.pn_offset + number.len;
    }
}

/// A packet number as it is in a packet.
struct Number {
    value: u64,
    /// In bytes.
    len: u16,
}

/// RFC 9001 §5.4.1 for one header; returns the number as it is afterwards.
///
/// # Safety
///
/// The packet is the caller's alone, `pn_offset` is not 0, and four bytes of the packet follow it.
#[inline(always)]
unsafe fn toggle_header(packet: *mut u8, pn_offset: usize, mask: u64, toggle: Toggle) -> Number {
    // SAFETY: as the caller says; the two do not overlap, and arrays of bytes have no alignment.
    let (first, field) = unsafe {
        (
            &mut *packet,
            &mut *packet.add(pn_offset).cast::<[u8; MAX_NUMBER_LEN]>(),
        )
    };
    let masked = *first ^ mask as u8 & protected_bits(*first);
    // The number's length can be read while the first byte is bare.
    let bare = if toggle == Toggle::Protect {
        *first
    } else {
        masked
    };
    *first = masked;
    let len = u16::from(bare & 0x03) + 1;
    // Bytes after a shorter number are payload and are left as they are.
    let unused_bits = 8 * (MAX_NUMBER_LEN as u32 - u32::from(len));
    let mask = (mask >> 8) as u32 & u32::MAX >> unused_bits;
    *field = (u32::from_le_bytes(*field) ^ mask).to_le_bytes();
    Number {
        value: u64::from(u32::from_be_bytes(*field) >> unused_bits),
        len,
    }
}

/// What the vector kernels need to know of a job.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl<'a> Job<'a> {
    #[inline(always)]
    pub(super) fn packet_and_header_len(&self) -> (&[u8], usize) {
        (self.packet, self.header_len as usize)
    }

    #[inline(always)]
    pub(super) fn payload_len(&self) -> usize {
        // By the invariant, nothing wraps.
        self.packet
            .len()
            .wrapping_sub(self.header_len as usize + TAG_LEN)
    }

    /// The lengths of header and payload if the number has four bytes; the payload's wraps if it
    /// would be negative. These are visible on the wire. The other lengths of a received packet
    /// depend on the number's, which header protection hides (RFC 9001 §9.5).
    #[inline(always)]
    pub(super) fn public_lens(&self) -> (usize, usize) {
        let header_len = usize::from(self.number_at) + MAX_NUMBER_LEN;
        let payload_len = self.packet.len().wrapping_sub(header_len + TAG_LEN);
        (header_len, payload_len)
    }

    /// Whether the header ends with a number of one to four bytes, as in every QUIC packet.
    #[inline(always)]
    pub(super) fn has_number(&self) -> bool {
        let len = self.header_len.wrapping_sub(u32::from(self.number_at));
        len.wrapping_sub(1) < MAX_NUMBER_LEN as u32
    }

    /// Bytes up to the payload, and of the whole packet.
    #[inline(always)]
    pub(super) fn lens(&self) -> (u32, usize) {
        (self.header_len, self.packet.len())
    }

    pub(super) fn header_and_payload(&self) -> (&[u8], &[u8]) {
        let (header, body) = self.packet.split_at(self.header_len as usize);
        (header, &body[..body.len() - TAG_LEN])
    }

    /// The first block of the packet, where its header begins.
    #[inline(always)]
    pub(super) fn first_block(&self) -> &[u8; TAG_LEN] {
        // SAFETY: the invariant: a packet has room for a tag.
        unsafe { self.at(0) }
    }

    /// A block of the payload; the last one may reach into the tag.
    ///
    /// # Safety
    ///
    /// The payload has a byte in the block.
    #[inline(always)]
    pub(super) unsafe fn block_mut(&mut self, block: usize) -> &mut [u8; 16] {
        debug_assert!(16 * block < self.payload_len());
        // SAFETY: the invariant: sixteen bytes of tag follow the payload's last byte.
        unsafe { self.at_mut(self.header_len as usize + 16 * block) }
    }

    #[inline(always)]
    pub(super) fn tag_mut(&mut self) -> &mut [u8; TAG_LEN] {
        // SAFETY: the invariant: a packet has room for a tag.
        unsafe { self.at_mut(self.packet.len().wrapping_sub(TAG_LEN)) }
    }

    /// Copies a source of some blocks into the packet: whole blocks, of which the last two may
    /// overlap.
    #[inline(always)]
    pub(super) fn take_short_source(&mut self) {
        let source = std::mem::take(&mut self.source);
        if source.is_empty() {
            return;
        }
        let payload_len = self.payload_len();
        let (body, _) = self.body_and_source();
        let room = &mut body[payload_len - source.len()..payload_len];
        match (room.last_chunk_mut::<16>(), source.last_chunk::<16>()) {
            (Some(end), Some(last)) => {
                *end = *last;
                for (block, from) in room
                    .as_chunks_mut::<16>()
                    .0
                    .iter_mut()
                    .zip(source.as_chunks::<16>().0)
                {
                    *block = *from;
                }
            }
            _ => room.copy_from_slice(source),
        }
    }

    /// Copies plaintext of some blocks from the packet to the target.
    #[inline(always)]
    pub(super) fn fill_short_target(&mut self) {
        if !self.target.is_empty() {
            self.fill_target();
        }
    }

    /// Payload and room for the tag in one piece, and the target.
    #[inline(always)]
    pub(super) fn body_and_target(&mut self) -> (&mut [u8], &mut [u8]) {
        let (_, body) = self.packet.split_at_mut(self.header_len as usize);
        (body, self.target)
    }

    /// Payload and room for the tag in one piece, and the source.
    #[inline(always)]
    pub(super) fn body_and_source(&mut self) -> (&mut [u8], &'a [u8]) {
        let (_, body) = self.packet.split_at_mut(self.header_len as usize);
        (body, self.source)
    }
}

/// Cuts ascending packets out of one buffer.
pub(crate) struct Splitter<'a> {
    buf: *mut u8,
    len: u64,
    /// Where the last packet ended.
    at: u64,
    life: PhantomData<&'a mut [u8]>,
}

/// For an empty buffer: a placeholder for the caller while a loop has the splitter in registers.
impl Default for Splitter<'_> {
    fn default() -> Self {
        Self::new(&mut [])
    }
}

impl<'a> Splitter<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self {
            buf: buf.as_mut_ptr(),
            len: buf.len() as u64,
            at: 0,
            life: PhantomData,
        }
    }

    /// The packet's bytes, or `None` if the span leaves the buffer or overlaps what was cut before.
    #[inline(always)]
    pub(crate) fn cut(&mut self, span: &PacketSpan) -> Option<&'a mut [u8]> {
        let start = u64::from(span.start);
        let end = start + u64::from(span.len);
        if start < self.at || end > self.len {
            return None;
        }
        self.at = end;
        // SAFETY: start to end lies in the buffer, which is borrowed for 'a, and after everything
        // that was cut before: no two packets share a byte.
        unsafe {
            let packet = self.buf.add(start as usize);
            Some(std::slice::from_raw_parts_mut(packet, span.len as usize))
        }
    }

    /// Whether a received packet can be unprotected; if so, it counts as cut.
    #[inline(always)]
    fn cut_received(&mut self, span: &PacketSpan) -> bool {
        (span.outcome == Outcome::Pending) & has_number_and_sample(span) && self.cut(span).is_some()
    }
}

/// Whether a packet has a header before its number, and a sample after it (RFC 9001 §5.4.2).
#[inline(always)]
fn has_number_and_sample(span: &PacketSpan) -> bool {
    let least_len = u32::from(span.pn_offset) + (MAX_NUMBER_LEN + SAMPLE_LEN) as u32;
    (span.pn_offset > 0) & (span.len >= least_len)
}

/// Room for [`MAX_JOBS`] jobs. Nothing is written before there is a job to write, since a call with
/// one packet would pay for all of them.
pub(crate) struct Slots<J>([MaybeUninit<J>; MAX_JOBS]);

impl<J> Slots<J> {
    pub(crate) fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_JOBS])
    }

    /// As many jobs as there is room for. The count stays in a local: stored next to the slots,
    /// whose address escapes to the kernel, it would be spilled for every packet.
    #[inline(always)]
    pub(crate) fn fill(&mut self, jobs: impl Iterator<Item = J>) -> &mut [J] {
        let mut count = 0;
        for (slot, job) in self.0.iter_mut().zip(jobs) {
            slot.write(job);
            count += 1;
        }
        // SAFETY: the first `count` slots were written, and `MaybeUninit<T>` is laid out as `T`.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

/// The bits of the first byte that header protection covers: four in a long header, five in a short
/// one (RFC 9001 §5.4.1).
#[inline(always)]
fn protected_bits(first: u8) -> u8 {
    0x1f ^ (first >> 7) << 4
}

/// Header protection by a cipher that takes the samples of some packets and replaces them by their
/// masks.
pub(super) fn toggle_by(
    mut headers: impl Headers,
    toggle: Toggle,
    cipher: impl Fn(&mut [[u8; SAMPLE_LEN]]),
) {
    while let count @ 1.. = headers.count().min(MAX_JOBS)
        && let Some(mut headers) = headers.take_first(count)
    {
        let mut samples = [[0; SAMPLE_LEN]; MAX_JOBS];
        for (i, sample) in samples.iter_mut().take(count).enumerate() {
            *sample = *headers.sample(i);
        }
        if let Some(samples) = samples.get_mut(..count) {
            cipher(samples);
        }
        for (i, mask) in samples.into_iter().take(count).enumerate() {
            headers.toggle(i, u128::from_le_bytes(mask) as u64, toggle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_splitter_yields_only_disjoint_ascending_packets() {
        let mut buf: Vec<u8> = (0..100).collect();
        let mut splitter = Splitter::new(&mut buf);
        assert_eq!(
            splitter.cut(&PacketSpan::new(10, 5, 0)).unwrap(),
            &[10, 11, 12, 13, 14]
        );
        assert!(
            splitter.cut(&PacketSpan::new(14, 3, 0)).is_none(),
            "reaches back"
        );
        assert!(splitter.cut(&PacketSpan::new(0, 3, 0)).is_none(), "before");
        assert!(
            splitter.cut(&PacketSpan::new(99, 2, 0)).is_none(),
            "past the end"
        );
        assert!(
            splitter
                .cut(&PacketSpan::new(u32::MAX, u32::MAX, 0))
                .is_none()
        );
        assert_eq!(splitter.cut(&PacketSpan::new(15, 0, 0)).unwrap().len(), 0);
        assert_eq!(splitter.cut(&PacketSpan::new(15, 85, 0)).unwrap().len(), 85);
        assert_eq!(splitter.cut(&PacketSpan::new(100, 0, 0)).unwrap().len(), 0);
        assert!(splitter.cut(&PacketSpan::new(100, 1, 0)).is_none());
    }
}
