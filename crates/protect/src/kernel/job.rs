//! Packets as a kernel sees them: checked and exclusive slices.

use std::mem::MaybeUninit;

use crate::span::{MAX_NUMBER_LEN, SAMPLE_LEN, TAG_LEN};

/// Jobs in one call of a kernel: enough to fill eight registers with the blocks that each packet has one of.
pub(crate) const MAX_JOBS: usize = 16;

/// What is done with a mask.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Toggle {
    /// The header is about to be sent.
    Protect,
    /// The header was received; it tells how long the number is, and so how long it is itself.
    Unprotect,
}

/// One packet for a kernel.
///
/// Invariant: `header_len + TAG_LEN <= packet.len()`, and `source` is no longer than the payload between them. Where
/// `pn_offset` is not 0, a sample lies in the packet four bytes behind it.
pub(crate) struct Job<'a> {
    packet: &'a mut [u8],
    source: &'a [u8],
    number: u64,
    header_len: usize,
    pn_offset: usize,
}

impl<'a> Job<'a> {
    /// `packet` is header, payload and room for the tag; the last `source.len()` bytes of the payload are still to
    /// come from there. `None` where the lengths do not fit.
    #[inline(always)]
    pub(crate) fn new(
        packet: &'a mut [u8],
        header_len: usize,
        number: u64,
        source: &'a [u8],
    ) -> Option<Self> {
        let payload_len = packet.len().checked_sub(TAG_LEN)?.checked_sub(header_len)?;
        (source.len() <= payload_len).then_some(Self {
            packet,
            source,
            number,
            header_len,
            pn_offset: 0,
        })
    }

    /// Says where the packet number is, which header protection needs to know. `None` where there is no sample behind it,
    /// or no header before it.
    #[inline(always)]
    pub(crate) fn with_number_at(mut self, pn_offset: u16) -> Option<Self> {
        self.pn_offset = usize::from(pn_offset);
        let has_sample = self.packet.len() >= self.pn_offset + MAX_NUMBER_LEN + SAMPLE_LEN;
        (pn_offset > 0 && has_sample).then_some(self)
    }

    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// RFC 9001 §5.4.2: what the mask is made of. It starts four bytes after the start of the packet number, however long
    /// that is.
    #[inline(always)]
    pub(crate) fn sample(&self) -> &[u8; SAMPLE_LEN] {
        let behind = self.packet.get(self.pn_offset + MAX_NUMBER_LEN..);
        behind
            .and_then(<[u8]>::first_chunk)
            .expect("a job has a sample")
    }

    /// RFC 9001 §5.4.1: applies or removes a mask, of which five bytes are used: the first is its lowest.
    #[inline(always)]
    pub(crate) fn toggle(&mut self, mask: u64, toggle: Toggle) {
        let pn_offset = self.pn_offset;
        let Some((first, rest)) = self.packet.split_first_mut() else {
            return;
        };
        let masked = *first ^ mask as u8 & protected_bits(*first);
        // The number's length can be read while the first byte is bare.
        let bare = if toggle == Toggle::Protect {
            *first
        } else {
            masked
        };
        *first = masked;
        let Some(field) = rest
            .get_mut(pn_offset.wrapping_sub(1)..)
            .and_then(<[u8]>::first_chunk_mut)
        else {
            return;
        };
        let number_len = usize::from(bare & 0x03) + 1;
        let number = mask_number(field, (mask >> 8) as u32, number_len);
        if toggle == Toggle::Unprotect {
            self.number = number;
            self.header_len = pn_offset + number_len;
        }
    }

    /// Bytes up to the payload, and the number: after [`Toggle::Unprotect`] as they were in the packet.
    #[inline(always)]
    pub(crate) fn header_len_and_number(&self) -> (usize, u64) {
        (self.header_len, self.number)
    }

    /// Header, payload and tag.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut [u8], &mut [u8; TAG_LEN]) {
        let (rest, tag) = self
            .packet
            .split_last_chunk_mut()
            .expect("a job has room for a tag");
        let (header, payload) = rest.split_at_mut(self.header_len);
        (header, payload, tag)
    }

    /// Copies the source to its place.
    pub(super) fn take_source(&mut self) {
        let source = std::mem::take(&mut self.source);
        let (_, payload, _) = self.parts();
        let head_len = payload.len() - source.len();
        payload[head_len..].copy_from_slice(source);
    }
}

/// What the vector kernels want to see of a job.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl<'a> Job<'a> {
    #[inline(always)]
    pub(super) fn packet_and_header_len(&self) -> (&[u8], usize) {
        (self.packet, self.header_len)
    }

    #[inline(always)]
    pub(super) fn payload_len(&self) -> usize {
        self.packet.len() - self.header_len - TAG_LEN
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn header_and_payload(&self) -> (&[u8], &[u8]) {
        let (header, body) = self.packet.split_at(self.header_len);
        (header, &body[..body.len() - TAG_LEN])
    }

    /// Copies a source of some blocks to its place: whole blocks, of which the last two may overlap.
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

    /// Payload and room for the tag in one piece, and the source.
    #[inline(always)]
    pub(super) fn body_and_source(&mut self) -> (&mut [u8], &'a [u8]) {
        let (_, body) = self.packet.split_at_mut(self.header_len);
        (body, self.source)
    }
}

/// Up to [`MAX_JOBS`] jobs. Nothing is written before there is a job to write: a call with one packet would pay for it.
pub(crate) struct Jobs<'a> {
    slots: [MaybeUninit<Job<'a>>; MAX_JOBS],
    count: usize,
}

impl<'a> Jobs<'a> {
    pub(crate) fn new() -> Self {
        Self {
            slots: [const { MaybeUninit::uninit() }; MAX_JOBS],
            count: 0,
        }
    }

    /// Adds a job; there is room for it up to [`MAX_JOBS`].
    #[inline(always)]
    pub(crate) fn push(&mut self, job: Job<'a>) {
        if let Some(slot) = self.slots.get_mut(self.count) {
            slot.write(job);
            self.count += 1;
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Job<'a>] {
        // SAFETY: the first `count` slots were written by `push`, and `MaybeUninit<T>` is laid out as `T`.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_mut_ptr().cast(), self.count) }
    }
}

/// The bits of the first byte that header protection covers: four in a long header, five in a short one (RFC 9001 §5.4.1).
#[inline(always)]
fn protected_bits(first: u8) -> u8 {
    0x1f ^ (first >> 7) << 4
}

/// Masks a number of some bytes in its field of four, of which the others are payload and stay as they are. Gives the number
/// that is then in the field.
#[inline(always)]
fn mask_number(field: &mut [u8; MAX_NUMBER_LEN], mask: u32, number_len: usize) -> u64 {
    let unused_bits = 8 * (MAX_NUMBER_LEN - number_len) as u32;
    let number = u32::from_be_bytes(*field) ^ mask.swap_bytes() & u32::MAX << unused_bits;
    *field = number.to_be_bytes();
    u64::from(number >> unused_bits)
}

/// Header protection by a cipher that takes the samples of some packets, and leaves the masks in their place.
pub(super) fn toggle_by(
    jobs: &mut [Job<'_>],
    toggle: Toggle,
    cipher: impl FnOnce(&mut [[u8; SAMPLE_LEN]]),
) {
    let mut samples = [[0; SAMPLE_LEN]; MAX_JOBS];
    for (sample, job) in samples.iter_mut().zip(&*jobs) {
        *sample = *job.sample();
    }
    if let Some(samples) = samples.get_mut(..jobs.len()) {
        cipher(samples);
    }
    for (job, mask) in jobs.iter_mut().zip(samples) {
        job.toggle(u128::from_le_bytes(mask) as u64, toggle);
    }
}
