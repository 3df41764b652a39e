//! The cipher work, and the only `unsafe` of the crate.
//!
//! ```text
//!   Job         one packet: a checked, exclusive slice with a header, a payload and room for a tag
//!   Kernel      an expanded AEAD key; its variant decides which code runs: one branch a batch
//!   Header      an expanded header-protection key, likewise
//! ```
//!
//! A kernel is chosen once, when a key is expanded: see `choice`. A variant of a vector kernel
//! holds a token that only detection makes, so an expanded key is the proof that its instructions
//! exist.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod acc;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod chacha;
mod choice;
mod family;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod gcm;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod ghash;
mod job;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod portable;
pub(crate) mod prefetch;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod registers;
mod samples;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod stitch;
mod trial;
#[cfg(test)]
mod wycheproof;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use choice::{KernelChoice, KernelKind, chosen_kernel, kernel_choices, kernels_available};
pub(crate) use job::{Job, MAX_JOBS, Received, Slots, Splitter};

#[cfg(target_arch = "aarch64")]
use self::aarch64::aes::NeonAes;
#[cfg(target_arch = "aarch64")]
use self::aarch64::{self as neon, Neon};
#[cfg(target_arch = "x86_64")]
use self::x86_64::avx2;
#[cfg(target_arch = "x86_64")]
use self::x86_64::avx512;
#[cfg(target_arch = "x86_64")]
use self::x86_64::{
    Aesni,
    tokens::{Avx2, Avx512, Vaes256, Vaes512},
};
use job::Toggle;
use samples::Samples;

use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::{MASK_LEN, SAMPLE_LEN};
use crate::suite::Suite;

/// When a kernel that makes masks along with the AEAD makes them. Others make them afterwards.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Fusion {
    /// Each packet's by itself, next to the AEAD of its neighbours.
    Each,
    /// Those of several packets at a time.
    Batched,
}

/// An expanded AEAD key.
pub(crate) enum Kernel {
    Portable(portable::Aead),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Aead),
    #[cfg(target_arch = "aarch64")]
    NeonAes(gcm::Aead<NeonAes, { gcm::POWERS }>),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Aead),
    #[cfg(target_arch = "x86_64")]
    Aesni(gcm::Aead<Aesni, { gcm::POWERS }>),
    #[cfg(target_arch = "x86_64")]
    Vaes256(gcm::Aead<Vaes256, { gcm::POWERS }>),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Aead),
    #[cfg(target_arch = "x86_64")]
    Vaes512(gcm::Aead<Vaes512, { gcm::POWERS_512 }>),
}

/// An expanded header-protection key.
pub(crate) enum Header {
    Portable(portable::Header),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Header),
    #[cfg(target_arch = "aarch64")]
    NeonAes(gcm::Header<NeonAes>),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Header),
    #[cfg(target_arch = "x86_64")]
    Aesni(gcm::Header<Aesni>),
    #[cfg(target_arch = "x86_64")]
    Vaes256(gcm::Header<Vaes256>),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Header),
    #[cfg(target_arch = "x86_64")]
    Vaes512(gcm::Header<Vaes512>),
}

/// Expands a key for a kernel.
macro_rules! expand {
    ($kind:ident, $Key:ident, $material:ident) => {
        match $kind {
            KernelKind::Portable => Some(Self::Portable(portable::$Key::new($material))),
            #[cfg(target_arch = "aarch64")]
            KernelKind::Neon => neon::$Key::new(Neon::detect()?, $material).map(Self::Neon),
            #[cfg(target_arch = "aarch64")]
            KernelKind::NeonAes => gcm::$Key::new(NeonAes::detect()?, $material).map(Self::NeonAes),
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx2 => avx2::$Key::new(Avx2::detect()?, $material).map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            KernelKind::Aesni => gcm::$Key::new(Aesni::detect()?, $material).map(Self::Aesni),
            #[cfg(target_arch = "x86_64")]
            KernelKind::Vaes256 => gcm::$Key::new(Vaes256::detect()?, $material).map(Self::Vaes256),
            #[cfg(target_arch = "x86_64")]
            KernelKind::Avx512 => avx512::$Key::new(Avx512::detect()?, $material).map(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            KernelKind::Vaes512 => gcm::$Key::new(Vaes512::detect()?, $material).map(Self::Vaes512),
            // Kernels of other architectures.
            _ => None,
        }
    };
}

/// One expression for whichever kernel a key belongs to.
macro_rules! dispatch {
    ($self:ident, $key:ident => $work:expr) => {
        match $self {
            Self::Portable($key) => $work,
            #[cfg(target_arch = "aarch64")]
            Self::Neon($key) => $work,
            #[cfg(target_arch = "aarch64")]
            Self::NeonAes($key) => $work,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2($key) => $work,
            #[cfg(target_arch = "x86_64")]
            Self::Aesni($key) => $work,
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256($key) => $work,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512($key) => $work,
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512($key) => $work,
        }
    };
}

impl Kernel {
    /// `None` if the CPU cannot run the kernel, or the kernel lacks the suite.
    pub(crate) fn expand(material: &KeyMaterial, kind: KernelKind) -> Option<Self> {
        expand!(kind, Aead, material)
    }

    /// Builds the long class of powers, if the kernel has one and it does not exist yet: `busy`
    /// says whether the call at hand is worth it.
    pub(crate) fn grow_if(&self, busy: impl FnOnce() -> bool) {
        dispatch!(self, aead => aead.grow_if(busy));
    }

    /// Prefetches the key's memory, if it is more than the key itself.
    #[inline]
    pub(crate) fn prefetch(&self) {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::NeonAes(aead) => aead.prefetch(),
            #[cfg(target_arch = "x86_64")]
            Self::Aesni(aead) => aead.prefetch(),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(aead) => aead.prefetch(),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(aead) => aead.prefetch(),
            _ => {}
        }
    }

    /// Whether plaintext is decrypted to the targets, and not copied there afterwards.
    pub(crate) fn decrypts_to_targets(&self) -> bool {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::NeonAes(_) => true,
            #[cfg(target_arch = "x86_64")]
            Self::Aesni(_) | Self::Vaes256(_) | Self::Vaes512(_) => true,
            _ => false,
        }
    }

    /// Drops the long class of powers, if there is one.
    pub(crate) fn shrink(&mut self) {
        dispatch!(self, aead => aead.shrink());
    }

    /// Encrypts the payloads and writes the tags.
    pub(crate) fn seal_alone(&self, jobs: &mut [Job<'_>]) {
        debug_assert!(jobs.len() <= MAX_JOBS);
        dispatch!(self, aead => aead.seal(jobs));
    }

    /// Encrypts the payloads, writes the tags and applies header protection.
    pub(crate) fn seal(&self, jobs: &mut [Job<'_>], header: &Header, fusion: Fusion) {
        debug_assert!(jobs.len() <= MAX_JOBS);
        if !dispatch!(self, aead => aead.seal_fused(jobs, header, fusion)) {
            self.seal_alone(jobs);
            header.protect(jobs);
        }
    }

    /// Decrypts in place, and the last bytes into the target; bit `i` of the result says that job
    /// `i` is authentic. What is left in the payload and target of any other job is of no use and
    /// may be plaintext: the caller wipes it.
    pub(crate) fn open(&self, jobs: &mut [Job<'_>]) -> u32 {
        debug_assert!(jobs.len() <= MAX_JOBS);
        dispatch!(self, aead => aead.open(jobs))
    }

    /// Removes header protection, takes the numbers as they are in the packets, and opens; `None`
    /// if the kernel cannot do both in one call. For `ablation`.
    pub(crate) fn open_fused(
        &self,
        jobs: &mut [Job<'_>],
        header: &Header,
        fusion: Fusion,
    ) -> Option<u32> {
        debug_assert!(jobs.len() <= MAX_JOBS);
        dispatch!(self, aead => aead.open_fused(jobs, header, fusion))
    }
}

impl Header {
    /// `None` if the CPU cannot run the kernel, or the kernel lacks the suite.
    pub(crate) fn expand(material: &HeaderKeyMaterial, kind: KernelKind) -> Option<Self> {
        expand!(kind, Header, material)
    }

    /// The round keys, if the kernel makes AES masks along with the AEAD.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn round_keys(&self, suite: Suite) -> Option<&stitch::Rounds> {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::NeonAes(header) => header.round_keys(suite),
            #[cfg(target_arch = "x86_64")]
            Self::Aesni(header) => header.round_keys(suite),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(header) => header.round_keys(suite),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(header) => header.round_keys(suite),
            _ => None,
        }
    }

    /// The key itself, if the kernel is one of ChaCha20's.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn chacha_key(&self) -> Option<&chacha::HeaderKey> {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::Neon(header) => Some(header.key()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(header) => Some(header.key()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(header) => Some(header.key()),
            _ => None,
        }
    }

    /// Prefetches the key's memory, if it is more than the key itself.
    #[inline]
    pub(crate) fn prefetch(&self) {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::NeonAes(header) => header.prefetch(),
            #[cfg(target_arch = "x86_64")]
            Self::Aesni(header) => header.prefetch(),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes256(header) => header.prefetch(),
            #[cfg(target_arch = "x86_64")]
            Self::Vaes512(header) => header.prefetch(),
            _ => {}
        }
    }

    /// Applies header protection (RFC 9001 §5.4.1) to sealed packets.
    pub(crate) fn protect(&self, jobs: &mut [Job<'_>]) {
        dispatch!(self, header => header.toggle(jobs, Toggle::Protect));
    }

    /// Computes the masks of some samples (RFC 9001 §5.4.3, §5.4.4), as many as both slices have.
    pub(crate) fn masks(&self, samples: &[[u8; SAMPLE_LEN]], masks: &mut [[u8; MASK_LEN]]) {
        let samples = Samples { samples, masks };
        dispatch!(self, header => header.toggle(samples, Toggle::Protect));
    }

    /// Removes header protection, and stores header lengths and packet numbers in the spans.
    pub(crate) fn unprotect(&self, packets: Received<'_, '_>) {
        dispatch!(self, header => header.toggle(packets, Toggle::Unprotect));
    }
}
