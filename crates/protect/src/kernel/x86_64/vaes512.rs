//! 512-bit registers: four lanes. Chosen only on CPU families where a gain was measured, see [`Vaes512::pays_here`].

use std::arch::x86_64::*;

use super::{REVERSAL, Vaes128, Vaes256, pinned};
use crate::kernel::lanes::{Block, Lanes};
use crate::kernel::stitch::Stitch;

/// Proof that, beside what [`Vaes256`] proves, AVX-512 F, BW and VL were detected; only [`Vaes512::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct Vaes512(Vaes256);

impl Vaes512 {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        Vaes256::detect().filter(|_| all).map(Self)
    }

    /// Whether this CPU is of a family whose whole machine gains by 512-bit registers. Skylake-SP to Cooper Lake lower
    /// the clock of every core for 512-bit multiplications (and have no VAES); what is not in the list gets 256 bits.
    pub(crate) fn pays_here(self) -> bool {
        // AMD family 1Ah, Zen 5: no lower clock, and 1.5 times the speed of 256 bits at 1,450 bytes.
        is_amd_family(0x1a)
    }

    #[inline(always)]
    pub(super) fn reversal(self) -> __m512i {
        self.splat(REVERSAL.0, REVERSAL.1)
    }
}

pub(super) fn is_amd_family(family: u32) -> bool {
    let vendor = __cpuid(0);
    let signature = __cpuid(1).eax;
    let (base, extended) = (signature >> 8 & 0x0f, signature >> 20 & 0xff);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"AuthenticAMD" && base == 0x0f && base + extended == family
}

/// A mask of the 64-bit elements in the first blocks of a register.
fn elements(blocks: usize) -> __mmask8 {
    ((1_u16 << (2 * blocks)) - 1) as __mmask8
}

impl Lanes for Vaes512 {
    type V = __m512i;
    type Bytes = [u8; 64];
    type Single = Vaes128;

    const BLOCKS: usize = 4;
    const ZEROS: [u8; 64] = [0; 64];

    #[inline(always)]
    fn single(self) -> Vaes128 {
        self.0.single()
    }

    #[inline(always)]
    fn vectors(bytes: &[u8]) -> (&[[u8; 64]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn vectors_mut(bytes: &mut [u8]) -> (&mut [[u8; 64]], &mut [u8]) {
        bytes.as_chunks_mut()
    }

    #[inline(always)]
    fn zero(self) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> __m512i {
        // SAFETY: `bytes` is 64 readable bytes, and the load is an unaligned one.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8; 64], v: __m512i) {
        // SAFETY: `bytes` is 64 writable bytes, and the store is an unaligned one.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn load_part(self, bytes: &[u8]) -> __m512i {
        let blocks = (bytes.len() / 16).min(4);
        // SAFETY: the mask selects whole blocks that `bytes` has; nothing else is touched.
        unsafe { _mm512_maskz_loadu_epi64(elements(blocks), bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_part(self, bytes: &mut [u8], v: __m512i) {
        let blocks = (bytes.len() / 16).min(4);
        // SAFETY: the mask selects whole blocks that `bytes` has; nothing else is touched.
        unsafe { _mm512_mask_storeu_epi64(bytes.as_mut_ptr().cast(), elements(blocks), v) }
    }

    #[inline(always)]
    fn broadcast(self, block: &Block) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_broadcast_i32x4(self.single().load(block)) }
    }

    #[inline(always)]
    fn splat(self, low: u64, high: u64) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_broadcast_i32x4(self.single().splat(low, high)) }
    }

    #[inline(always)]
    fn pair(self, first: __m128i, second: __m128i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_zextsi256_si512(self.0.pair(first, second)) }
    }

    #[inline(always)]
    fn fold(self, v: __m512i) -> __m128i {
        // SAFETY: the token proves AVX-512F.
        let (low, high) = unsafe { (_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v)) };
        self.0.fold(self.0.xor(low, high))
    }

    #[inline(always)]
    fn stitch<const R: usize, const N: usize, const M: usize>(
        self,
        work: &mut Stitch<'_, Self, N, M>,
    ) -> [__m512i; N] {
        // SAFETY: the token proves VAES, VPCLMULQDQ and AVX-512 F, BW and VL.
        unsafe { pinned::stitch_512::<R, N, M>(work, self) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn add32(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn reverse(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_shuffle_epi8(v, self.reversal()) }
    }

    #[inline(always)]
    fn swap(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_shuffle_epi32::<0x4e>(v) }
    }

    #[inline(always)]
    fn raise(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_bslli_epi128::<8>(v) }
    }

    #[inline(always)]
    fn lower(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_bsrli_epi128::<8>(v) }
    }

    #[inline(always)]
    fn multiply_low(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_clmulepi64_epi128::<0x00>(a, b) }
    }

    #[inline(always)]
    fn multiply_high(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_clmulepi64_epi128::<0x11>(a, b) }
    }

    #[inline(always)]
    fn aes(self, state: __m512i, key: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_aesenc_epi128(state, key) }
    }

    #[inline(always)]
    fn aes_last(self, state: __m512i, key: __m512i) -> __m512i {
        // SAFETY: the token proves the instruction.
        unsafe { _mm512_aesenclast_epi128(state, key) }
    }
}
