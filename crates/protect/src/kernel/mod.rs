//! The cipher work, and the only `unsafe` of the crate.
//!
//! ```text
//!   Job         one packet: a checked, exclusive slice with a header, a payload and room for a tag
//!   Kernel      an expanded AEAD key; which variant it is decides which code runs: one branch a batch
//!   Header      an expanded header-protection key, likewise
//! ```
//!
//! A kernel is chosen once, when a key is expanded: the best of this CPU, or what `SQUALL_CPU` asks for if that is
//! available. A variant of a vector kernel holds a token that only detection makes, so an expanded key is the
//! proof that its instructions exist.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod chacha;
#[cfg(target_arch = "x86_64")]
mod gcm;
#[cfg(target_arch = "x86_64")]
mod ghash;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod portable;
#[cfg(target_arch = "x86_64")]
mod stitch;
#[cfg(test)]
mod wycheproof;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::{SAMPLE_LEN, TAG_LEN};

/// Jobs in one call of a kernel: enough to fill eight registers with the blocks that each packet has one of.
pub(crate) const MAX_JOBS: usize = 16;

/// One packet for a kernel.
///
/// Invariant: `header_len + TAG_LEN <= packet.len()`, and `source` is no longer than the payload between them.
pub(crate) struct Job<'a> {
    packet: &'a mut [u8],
    source: &'a [u8],
    header_len: usize,
    number: u64,
}

impl<'a> Job<'a> {
    /// `packet` is header, payload and room for the tag; the last `source.len()` bytes of the payload are still to
    /// come from there. `None` where the lengths do not fit.
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
            header_len,
            number,
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn packet(&mut self) -> &mut [u8] {
        self.packet
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
    fn take_source(&mut self) {
        let source = std::mem::take(&mut self.source);
        let (_, payload, _) = self.parts();
        let head_len = payload.len() - source.len();
        payload[head_len..].copy_from_slice(source);
    }
}

/// What the vector kernels want to see of a job.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl<'a> Job<'a> {
    fn packet_and_header_len(&self) -> (&[u8], usize) {
        (self.packet, self.header_len)
    }

    fn payload_len(&self) -> usize {
        self.packet.len() - self.header_len - TAG_LEN
    }

    fn header_and_payload(&self) -> (&[u8], &[u8]) {
        let (header, body) = self.packet.split_at(self.header_len);
        (header, &body[..body.len() - TAG_LEN])
    }

    /// Payload and room for the tag in one piece, and the source.
    fn body_and_source(&mut self) -> (&mut [u8], &'a [u8]) {
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
    pub(crate) fn push(&mut self, job: Job<'a>) {
        if let Some(slot) = self.slots.get_mut(self.count) {
            slot.write(job);
            self.count += 1;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Job<'a>] {
        // SAFETY: the first `count` slots were written by `push`, and `MaybeUninit<T>` is laid out as `T`.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_mut_ptr().cast(), self.count) }
    }
}

/// The implementations of the cipher work.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
#[non_exhaustive]
pub enum KernelKind {
    /// RustCrypto, one packet at a time: runs everywhere, and is what the others are compared with.
    Portable,
    /// ChaCha20-Poly1305, and nothing else, in 128-bit registers (AArch64).
    Neon,
    /// ChaCha20-Poly1305, and nothing else, in 256-bit registers (x86-64 since Haswell and Zen).
    Avx2,
    /// AES-GCM, and nothing else, by VAES and VPCLMULQDQ in 256-bit registers (x86-64 since Zen 3 and Ice Lake).
    Vaes256,
    /// As `Avx2` in 512-bit registers (x86-64 with AVX-512). Chosen by itself only on CPU families where a gain was
    /// measured.
    Avx512,
    /// As `Vaes256` in 512-bit registers (x86-64 with AVX-512). Chosen by itself only on CPU families where a gain was
    /// measured.
    Vaes512,
}

impl KernelKind {
    /// The name that `SQUALL_CPU` knows the kernel by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Vaes256 => "vaes256",
            Self::Avx512 => "avx512",
            Self::Vaes512 => "vaes512",
        }
    }
}

/// All kernels, the slowest first.
const ALL: [KernelKind; 6] = [
    KernelKind::Portable,
    KernelKind::Neon,
    KernelKind::Avx2,
    KernelKind::Vaes256,
    KernelKind::Avx512,
    KernelKind::Vaes512,
];

/// The kernels that this CPU can run, the slowest first.
#[must_use]
pub fn kernels_available() -> Vec<KernelKind> {
    ALL.into_iter().filter(|kind| is_available(*kind)).collect()
}

#[cfg(target_arch = "x86_64")]
fn is_available(kind: KernelKind) -> bool {
    match kind {
        KernelKind::Portable => true,
        KernelKind::Neon => false,
        KernelKind::Avx2 => x86_64::avx2::Avx2::detect().is_some(),
        KernelKind::Vaes256 => x86_64::Vaes256::detect().is_some(),
        KernelKind::Avx512 => x86_64::avx512::Avx512::detect().is_some(),
        KernelKind::Vaes512 => x86_64::vaes512::Vaes512::detect().is_some(),
    }
}

#[cfg(target_arch = "aarch64")]
fn is_available(kind: KernelKind) -> bool {
    match kind {
        KernelKind::Portable => true,
        KernelKind::Neon => aarch64::Neon::detect().is_some(),
        _ => false,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_available(kind: KernelKind) -> bool {
    kind == KernelKind::Portable
}

/// Whether a kernel that the CPU can run is also one that it should run.
fn is_worthwhile(kind: KernelKind) -> bool {
    #[cfg(target_arch = "x86_64")]
    match kind {
        KernelKind::Avx512 => {
            return x86_64::avx512::Avx512::detect().is_some_and(x86_64::avx512::Avx512::pays_here);
        }
        KernelKind::Vaes512 => {
            return x86_64::vaes512::Vaes512::detect()
                .is_some_and(x86_64::vaes512::Vaes512::pays_here);
        }
        _ => {}
    }
    is_available(kind)
}

/// The kernel that new keys are expanded for: `SQUALL_CPU` where it names an available one, otherwise the best one.
/// Read once in the life of a process.
#[must_use]
pub fn chosen_kernel() -> KernelKind {
    static CHOSEN: OnceLock<KernelKind> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let wish = std::env::var("SQUALL_CPU").unwrap_or_default();
        choose(&kernels_available(), is_worthwhile, &wish)
    })
}

fn choose(available: &[KernelKind], worthwhile: fn(KernelKind) -> bool, wish: &str) -> KernelKind {
    let best = || {
        available
            .iter()
            .copied()
            .rev()
            .find(|kind| worthwhile(*kind))
    };
    let wished = available.iter().copied().find(|kind| kind.name() == wish);
    wished.or_else(best).unwrap_or(KernelKind::Portable)
}

/// The chosen kernel and all below it, the best first.
pub(crate) fn kernels_allowed() -> impl Iterator<Item = KernelKind> {
    let chosen = chosen_kernel();
    ALL.into_iter().rev().filter(move |kind| *kind <= chosen)
}

/// An expanded AEAD key.
pub(crate) enum Kernel {
    Portable(portable::Aead),
    #[cfg(target_arch = "aarch64")]
    Neon(aarch64::Aead),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86_64::avx2::Aead),
    #[cfg(target_arch = "x86_64")]
    Vaes256(x86_64::entry::vaes256::Aead),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86_64::avx512::Aead),
    #[cfg(target_arch = "x86_64")]
    Vaes512(x86_64::entry::vaes512::Aead),
}

impl Kernel {
    /// `None` where the CPU lacks the kernel, or the kernel lacks the suite.
    pub(crate) fn expand(material: &KeyMaterial, kind: KernelKind) -> Option<Self> {
        match kind {
            KernelKind::Portable => Some(Self::Portable(portable::Aead::new(material))),
            #[cfg(target_arch = "aarch64")]
            KernelKind::Neon => {
                aarch64::Aead::new(aarch64::Neon::detect()?, material).map(Self::Neon)
            }
            #[cfg(not(target_arch = "aarch64"))]
            KernelKind::Neon => None,
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx2 => {
                let token = x86_64::avx2::Avx2::detect()?;
                x86_64::avx2::Aead::new(token, material).map(Self::Avx2)
            }
            #[cfg(target_arch = "x86_64")]
            KernelKind::Vaes256 => {
                let token = x86_64::Vaes256::detect()?;
                x86_64::entry::vaes256::Aead::new(token, material).map(Self::Vaes256)
            }
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx512 => {
                let token = x86_64::avx512::Avx512::detect()?;
                x86_64::avx512::Aead::new(token, material).map(Self::Avx512)
            }
            #[cfg(target_arch = "x86_64")]
            KernelKind::Vaes512 => {
                let token = x86_64::vaes512::Vaes512::detect()?;
                x86_64::entry::vaes512::Aead::new(token, material).map(Self::Vaes512)
            }
            #[cfg(not(target_arch = "x86_64"))]
            KernelKind::Avx2 | KernelKind::Vaes256 | KernelKind::Avx512 | KernelKind::Vaes512 => {
                None
            }
        }
    }

    /// Builds the long class of powers, where the kernel has one and does not have it yet: `busy` says whether the
    /// call at hand is worth it.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(unused_variables, reason = "only AES-GCM on x86-64 has classes")
    )]
    pub(crate) fn grow_if(&mut self, busy: impl FnOnce() -> bool) {
        match self {
            Self::Portable(_) => {}
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => {}
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) | Self::Avx512(_) => {}
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(aead) => aead.grow_if(busy),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(aead) => aead.grow_if(busy),
        }
    }

    /// Drops the long class of powers, where there is one.
    pub(crate) fn shrink(&mut self) {
        match self {
            Self::Portable(_) => {}
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => {}
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) | Self::Avx512(_) => {}
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(aead) => aead.shrink(),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(aead) => aead.shrink(),
        }
    }

    /// Encrypts the payloads and writes the tags.
    pub(crate) fn seal(&self, jobs: &mut [Job<'_>]) {
        debug_assert!(jobs.len() <= MAX_JOBS);
        match self {
            Self::Portable(aead) => jobs.iter_mut().for_each(|job| aead.seal(job)),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(aead) => aead.seal(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(aead) => aead.seal(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(aead) => aead.seal(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(aead) => aead.seal(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(aead) => aead.seal(jobs),
        }
    }

    /// Decrypts in place; bit `i` of the answer says that job `i` is authentic. What is left in the payload of one
    /// that is not is of no use and may be plaintext: the caller wipes it.
    pub(crate) fn open(&self, jobs: &mut [Job<'_>]) -> u32 {
        debug_assert!(jobs.len() <= MAX_JOBS);
        match self {
            Self::Portable(aead) => (jobs.iter_mut().enumerate())
                .fold(0, |good, (i, job)| good | u32::from(aead.open(job)) << i),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(aead) => aead.open(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(aead) => aead.open(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(aead) => aead.open(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(aead) => aead.open(jobs),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(aead) => aead.open(jobs),
        }
    }
}

/// An expanded header-protection key.
pub(crate) enum Header {
    Portable(portable::Header),
    #[cfg(target_arch = "aarch64")]
    Neon(aarch64::Header),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86_64::avx2::Header),
    #[cfg(target_arch = "x86_64")]
    Vaes256(x86_64::entry::vaes256::Header),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86_64::avx512::Header),
    #[cfg(target_arch = "x86_64")]
    Vaes512(x86_64::entry::vaes512::Header),
}

impl Header {
    /// `None` where the CPU lacks the kernel, or the kernel lacks the suite.
    pub(crate) fn expand(material: &HeaderKeyMaterial, kind: KernelKind) -> Option<Self> {
        match kind {
            KernelKind::Portable => Some(Self::Portable(portable::Header::new(material))),
            #[cfg(target_arch = "aarch64")]
            KernelKind::Neon => {
                aarch64::Header::new(aarch64::Neon::detect()?, material).map(Self::Neon)
            }
            #[cfg(not(target_arch = "aarch64"))]
            KernelKind::Neon => None,
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx2 => {
                let token = x86_64::avx2::Avx2::detect()?;
                x86_64::avx2::Header::new(token, material).map(Self::Avx2)
            }
            #[cfg(target_arch = "x86_64")]
            KernelKind::Vaes256 => {
                let token = x86_64::Vaes256::detect()?;
                x86_64::entry::vaes256::Header::new(token, material).map(Self::Vaes256)
            }
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx512 => {
                let token = x86_64::avx512::Avx512::detect()?;
                x86_64::avx512::Header::new(token, material).map(Self::Avx512)
            }
            #[cfg(target_arch = "x86_64")]
            KernelKind::Vaes512 => {
                let token = x86_64::vaes512::Vaes512::detect()?;
                x86_64::entry::vaes512::Header::new(token, material).map(Self::Vaes512)
            }
            #[cfg(not(target_arch = "x86_64"))]
            KernelKind::Avx2 | KernelKind::Vaes256 | KernelKind::Avx512 | KernelKind::Vaes512 => {
                None
            }
        }
    }

    /// Turns samples into masks, in place. The first five bytes of a mask are used.
    pub(crate) fn masks(&self, samples: &mut [[u8; SAMPLE_LEN]]) {
        match self {
            Self::Portable(header) => header.masks(samples),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(header) => header.masks(samples),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(header) => header.masks(samples),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(header) => header.masks(samples),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(header) => header.masks(samples),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(header) => header.masks(samples),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wish_is_followed_where_it_can_be() {
        use KernelKind::{Avx2, Avx512, Portable, Vaes256, Vaes512};
        let all = &[Portable, Avx2, Vaes256, Avx512, Vaes512];
        assert_eq!(choose(all, |_| true, ""), Vaes512);
        assert_eq!(
            choose(all, |kind| kind < Avx512, ""),
            Vaes256,
            "a family without a measured gain"
        );
        assert_eq!(
            choose(all, |kind| kind != Vaes512, "vaes512"),
            Vaes512,
            "asked for by name"
        );
        assert_eq!(choose(all, |_| true, "portable"), Portable);
        assert_eq!(choose(all, |_| true, "no such kernel"), Vaes512);
        assert_eq!(
            choose(&[Portable, Avx2], |_| true, "vaes256"),
            Avx2,
            "not available"
        );
    }

    #[test]
    fn names_are_told_apart() {
        for (i, kind) in ALL.into_iter().enumerate() {
            assert!(
                ALL[..i]
                    .iter()
                    .all(|other| other.name() != kind.name() && *other < kind)
            );
        }
    }
}
