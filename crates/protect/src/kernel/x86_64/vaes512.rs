//! 512-bit registers: four lanes. Chosen only on CPU families where a gain was measured: see
//! `choice`.

use std::arch::x86_64::*;

use super::tokens::Vaes512;
use super::{REVERSAL, Vaes128, pinned};
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::{Block, Crypto, Registers};
use crate::kernel::stitch::{Rounds, Stitch, aes_rounds};

impl Vaes512 {
    #[inline(always)]
    pub(super) fn reversal(self) -> __m512i {
        self.splat(REVERSAL.0, REVERSAL.1)
    }
}

/// A mask of the 64-bit elements in the first blocks of a register.
fn elements(blocks: usize) -> __mmask8 {
    ((1_u16 << (2 * blocks)) - 1) as __mmask8
}

impl Registers for Vaes512 {
    type V = __m512i;
    type Bytes = [u8; 64];
    type Lane = __m128i;

    const BLOCKS: usize = 4;
    const ZEROS: [u8; 64] = [0; 64];

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
    fn load_after_first(self, bytes: &[u8]) -> __m512i {
        let n = self.narrow();
        let low = n.load_after_first(bytes);
        let high = bytes.last_chunk().map_or(n.zero(), |high| n.load(high));
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
    }

    #[inline(always)]
    fn store_after_first(self, bytes: &mut [u8], v: __m512i) {
        // SAFETY: the token proves AVX-512F.
        let (low, high) = unsafe { (_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v)) };
        self.narrow().store_after_first(bytes, low);
        if let Some(bytes) = bytes.last_chunk_mut() {
            self.narrow().store(bytes, high);
        }
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
        unsafe { _mm512_zextsi256_si512(self.narrow().pair(first, second)) }
    }

    #[inline(always)]
    fn lanes(self, [a, b, c, d]: [__m128i; 4]) -> __m512i {
        let (low, high) = (self.narrow().pair(a, b), self.narrow().pair(c, d));
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
    }

    #[inline(always)]
    fn lane(self, v: __m512i, at: usize) -> __m128i {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            match at {
                0 => _mm512_castsi512_si128(v),
                1 => _mm512_extracti32x4_epi32::<1>(v),
                2 => _mm512_extracti32x4_epi32::<2>(v),
                _ => _mm512_extracti32x4_epi32::<3>(v),
            }
        }
    }

    #[inline(always)]
    fn low(self, v: __m512i) -> u64 {
        self.single().low(self.lane(v, 0))
    }

    #[inline(always)]
    fn fold(self, v: __m512i) -> __m128i {
        // SAFETY: the token proves AVX-512F.
        let (low, high) = unsafe { (_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v)) };
        self.narrow().fold(self.narrow().xor(low, high))
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
}

impl Crypto for Vaes512 {
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

impl Lanes for Vaes512 {
    type Single = Vaes128;

    #[inline(always)]
    fn single(self) -> Vaes128 {
        self.narrow().single()
    }

    #[inline(always)]
    fn call<T, W: Work<Self, T>>(self, work: W) -> T {
        #[inline(never)]
        #[target_feature(enable = "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq")]
        fn called<T, W: Work<Vaes512, T>>(l: Vaes512, work: W) -> T {
            work.run(l)
        }
        // SAFETY: the token proves the features.
        unsafe { called(self, work) }
    }

    #[inline(always)]
    fn aes_rounds<const R: usize, const N: usize>(
        self,
        states: &mut [Self::V; N],
        rounds: &Rounds,
    ) {
        // Miri runs no assembly.
        if cfg!(miri) {
            return aes_rounds::<_, R, N>(self, states, rounds);
        }
        // SAFETY: the token proves VAES and AVX-512F.
        unsafe { pinned::rounds_512::<R, N>(self, states, rounds) }
    }

    #[inline(always)]
    fn stitch<const R: usize, const N: usize, const M: usize>(
        self,
        work: &mut Stitch<'_, Self, N, M>,
    ) -> [__m512i; N] {
        if cfg!(miri) {
            return work.run::<R>(self);
        }
        // SAFETY: the token proves VAES, VPCLMULQDQ and AVX-512 F, BW and VL.
        unsafe { pinned::stitch_512::<R, N, M>(work, self) }
    }
}
