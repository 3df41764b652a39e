//! Proofs of what this CPU has: a value exists only where the instructions were detected.

use std::sync::LazyLock;

use super::cpu_family;
use crate::kernel::family::narrow_below;

/// Proof that VAES, VPCLMULQDQ, AVX2, and what they build on were detected; only
/// [`Vaes256::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct Vaes256(());

/// Proof that AES-NI, PCLMULQDQ, SSSE3 and SSE4.1 were detected; only [`HasAesni::detect`] makes
/// one.
#[derive(Copy, Clone)]
pub(crate) struct HasAesni(());

impl HasAesni {
    pub(super) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1");
        all.then_some(Self(()))
    }
}

impl Vaes256 {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq");
        all.then_some(Self(()))
    }
}

/// Proof that AVX-512 F, BW and VL were detected besides what [`Vaes256`] proves; only
/// [`Vaes512::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct Vaes512(Vaes256);

impl Vaes512 {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        Vaes256::detect().filter(|_| all).map(Self)
    }

    /// What the same CPU does in 256-bit registers.
    #[inline(always)]
    pub(super) fn narrow(self) -> Vaes256 {
        self.0
    }
}

/// Proof that AVX2 and BMI2 were detected; only [`Avx2::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")).then_some(Self(()))
    }
}

/// Proof that AVX-512 F, BW, VL and IFMA were detected besides what [`Avx2`] proves; only
/// [`Avx512::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct Avx512 {
    narrow: Avx2,
    /// Payload bytes below which a packet by itself takes less time in 256-bit registers.
    pub(super) narrow_below: usize,
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        // In a virtual machine, each CPUID instruction leaves the guest.
        static NARROW_BELOW: LazyLock<usize> = LazyLock::new(|| narrow_below(cpu_family()));
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512ifma");
        Avx2::detect().filter(|_| all).map(|narrow| Self {
            narrow,
            narrow_below: *NARROW_BELOW,
        })
    }

    /// What the same CPU does in 256-bit registers.
    #[inline(always)]
    pub(super) fn narrow(self) -> Avx2 {
        self.narrow
    }
}
