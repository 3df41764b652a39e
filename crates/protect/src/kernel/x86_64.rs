//! x86-64: the proofs of what a CPU has, and its registers as [`Lanes`].
//!
//! ```text
//!   tokens      proofs of what the CPU has
//!   here        AES-GCM in 256-bit registers (Vaes256), and one lane at a time (Lane128)
//!   vaes512     AES-GCM in 512-bit registers
//!   pinned      the inner step of AES-GCM in a fixed order
//!   avx2        ChaCha20 in 256-bit registers
//!   chacha20x8  eight of its blocks in step
//!   avx512      ChaCha20 in 512-bit registers
//!   poly1305x8  Poly1305 of eight packets in parallel
//! ```

pub(super) mod avx2;
pub(super) mod avx512;
mod chacha20x8;
mod pinned;
mod poly1305x8;
pub(super) mod tokens;
pub(super) mod vaes512;

use std::arch::x86_64::*;

use self::tokens::{HasAesni, Vaes256};
use super::family::CpuFamily;
use super::lanes::{Lanes, Work};
use super::registers::{Block, Crypto, Registers, one_lane};
use super::stitch::{Rounds, Stitch, aes_rounds};

/// Source indices of a shuffle that reverses a lane's bytes, the low half first.
const REVERSAL: (u64, u64) = (0x0809_0a0b_0c0d_0e0f, 0x0001_0203_0405_0607);

/// A CPU used one lane at a time, whatever else it can do.
#[derive(Copy, Clone)]
pub(crate) struct Lane128<P>(P);

/// A CPU with AES-NI and PCLMULQDQ.
pub(crate) type Aesni = Lane128<HasAesni>;

/// One lane of a CPU with VAES.
pub(crate) type Vaes128 = Lane128<Vaes256>;

/// Proof of at least AES-NI, PCLMULQDQ, SSSE3 and SSE4.1: all that [`Lane128`] takes for granted.
///
/// # Safety
///
/// A value exists only where these were detected.
// SAFETY: each implementation states where its values come from; see above.
pub(crate) unsafe trait HasLane: Copy + 'static {
    /// See [`Lanes::call`].
    #[inline(always)]
    fn call<T, W: Work<Lane128<Self>, T>>(lane: Lane128<Self>, work: W) -> T {
        #[inline(never)]
        #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
        fn called<T, P: HasLane, W: Work<Lane128<P>, T>>(lane: Lane128<P>, work: W) -> T {
            work.run(lane)
        }
        // SAFETY: the token proves the features.
        unsafe { called(lane, work) }
    }

    /// See [`Lanes::aes_rounds`].
    #[inline(always)]
    fn aes_rounds<const R: usize, const N: usize>(
        lane: Lane128<Self>,
        states: &mut [__m128i; N],
        rounds: &Rounds,
    ) {
        aes_rounds::<_, R, N>(lane, states, rounds);
    }
}

// SAFETY: `HasAesni::detect` is the only place that makes one.
unsafe impl HasLane for HasAesni {}

// SAFETY: `Vaes256::detect` asks for AES, PCLMULQDQ and AVX2, which includes SSSE3 and SSE4.1.
unsafe impl HasLane for Vaes256 {
    #[inline(always)]
    fn call<T, W: Work<Vaes128, T>>(lane: Vaes128, work: W) -> T {
        #[inline(never)]
        #[target_feature(enable = "vaes,vpclmulqdq,avx2,aes,pclmulqdq")]
        fn called<T, W: Work<Vaes128, T>>(lane: Vaes128, work: W) -> T {
            work.run(lane)
        }
        // SAFETY: the token proves the features.
        unsafe { called(lane, work) }
    }

    #[inline(always)]
    fn aes_rounds<const R: usize, const N: usize>(
        lane: Vaes128,
        states: &mut [__m128i; N],
        rounds: &Rounds,
    ) {
        if cfg!(miri) {
            return aes_rounds::<_, R, N>(lane, states, rounds);
        }
        // SAFETY: the token proves AES and AVX2.
        unsafe { pinned::rounds_128::<R, N>(lane, states, rounds) }
    }
}

impl Aesni {
    pub(crate) fn detect() -> Option<Self> {
        HasAesni::detect().map(Lane128)
    }
}

impl Vaes256 {
    #[inline(always)]
    fn reversal(self) -> __m256i {
        self.splat(REVERSAL.0, REVERSAL.1)
    }
}

impl Registers for Vaes256 {
    type V = __m256i;
    type Bytes = [u8; 32];
    type Lane = __m128i;

    const BLOCKS: usize = 2;
    const ZEROS: [u8; 32] = [0; 32];

    #[inline(always)]
    fn vectors(bytes: &[u8]) -> (&[[u8; 32]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn vectors_mut(bytes: &mut [u8]) -> (&mut [[u8; 32]], &mut [u8]) {
        bytes.as_chunks_mut()
    }

    #[inline(always)]
    fn zero(self) -> __m256i {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: `bytes` is 32 readable bytes, and the load is an unaligned one.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8; 32], v: __m256i) {
        // SAFETY: `bytes` is 32 writable bytes, and the store is an unaligned one.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn load_part(self, bytes: &[u8]) -> __m256i {
        if let Some(both) = bytes.first_chunk() {
            self.load(both)
        } else if let Some(one) = bytes.first_chunk() {
            // SAFETY: the token proves AVX.
            unsafe { _mm256_zextsi128_si256(self.single().load(one)) }
        } else {
            self.zero()
        }
    }

    #[inline(always)]
    fn store_part(self, bytes: &mut [u8], v: __m256i) {
        if let Some(both) = bytes.first_chunk_mut() {
            self.store(both, v);
        } else if let Some(one) = bytes.first_chunk_mut() {
            // SAFETY: the token proves AVX.
            self.single()
                .store(one, unsafe { _mm256_castsi256_si128(v) });
        }
    }

    #[inline(always)]
    fn load_after_first(self, bytes: &[u8]) -> __m256i {
        let s = self.single();
        let block = bytes.first_chunk().map_or(s.zero(), |block| s.load(block));
        self.pair(s.zero(), block)
    }

    #[inline(always)]
    fn store_after_first(self, bytes: &mut [u8], v: __m256i) {
        if let Some(block) = bytes.first_chunk_mut() {
            self.single().store(block, self.lane(v, 1));
        }
    }

    #[inline(always)]
    fn broadcast(self, block: &Block) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_broadcastsi128_si256(self.single().load(block)) }
    }

    #[inline(always)]
    fn splat(self, low: u64, high: u64) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_broadcastsi128_si256(self.single().splat(low, high)) }
    }

    #[inline(always)]
    fn pair(self, first: __m128i, second: __m128i) -> __m256i {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_set_m128i(second, first) }
    }

    #[inline(always)]
    fn lanes(self, [a, b, ..]: [__m128i; 4]) -> __m256i {
        self.pair(a, b)
    }

    #[inline(always)]
    fn lane(self, v: __m256i, at: usize) -> __m128i {
        // SAFETY: the token proves AVX2.
        unsafe {
            match at {
                0 => _mm256_castsi256_si128(v),
                _ => _mm256_extracti128_si256::<1>(v),
            }
        }
    }

    #[inline(always)]
    fn low(self, v: __m256i) -> u64 {
        self.single().low(self.lane(v, 0))
    }

    #[inline(always)]
    fn fold(self, v: __m256i) -> __m128i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)) }
    }

    #[inline(always)]
    fn xor(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn and(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn add32(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_add_epi32(a, b) }
    }
}

impl Crypto for Vaes256 {
    #[inline(always)]
    fn reverse(self, v: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_shuffle_epi8(v, self.reversal()) }
    }

    #[inline(always)]
    fn swap(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_shuffle_epi32::<0x4e>(v) }
    }

    #[inline(always)]
    fn raise(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_slli_si256::<8>(v) }
    }

    #[inline(always)]
    fn lower(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_srli_si256::<8>(v) }
    }

    #[inline(always)]
    fn multiply_low(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_clmulepi64_epi128::<0x00>(a, b) }
    }

    #[inline(always)]
    fn multiply_high(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_clmulepi64_epi128::<0x11>(a, b) }
    }

    #[inline(always)]
    fn aes(self, state: Self::V, key: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_aesenc_epi128(state, key) }
    }

    #[inline(always)]
    fn aes_last(self, state: Self::V, key: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm256_aesenclast_epi128(state, key) }
    }
}

impl Lanes for Vaes256 {
    type Single = Vaes128;

    #[inline(always)]
    fn single(self) -> Vaes128 {
        Lane128(self)
    }

    #[inline(always)]
    fn call<T, W: Work<Self, T>>(self, work: W) -> T {
        #[inline(never)]
        #[target_feature(enable = "vaes,vpclmulqdq,avx2,aes,pclmulqdq")]
        fn called<T, W: Work<Vaes256, T>>(l: Vaes256, work: W) -> T {
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
        // SAFETY: the token proves VAES and AVX2.
        unsafe { pinned::rounds_256::<R, N>(self, states, rounds) }
    }

    #[inline(always)]
    fn stitch<const R: usize, const N: usize, const M: usize>(
        self,
        work: &mut Stitch<'_, Self, N, M>,
    ) -> [__m256i; N] {
        if cfg!(miri) {
            return work.run::<R>(self);
        }
        // SAFETY: the token proves VAES, VPCLMULQDQ and AVX2.
        unsafe { pinned::stitch_256::<R, N, M>(work, self) }
    }
}

impl<P: HasLane> Registers for Lane128<P> {
    one_lane!(__m128i);

    #[inline(always)]
    fn zero(self) -> __m128i {
        // SAFETY: every x86-64 has SSE2.
        unsafe { _mm_setzero_si128() }
    }

    #[inline(always)]
    fn load(self, bytes: &Block) -> __m128i {
        // SAFETY: `bytes` is 16 readable bytes, and the load is an unaligned one.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, bytes: &mut Block, v: __m128i) {
        // SAFETY: `bytes` is 16 writable bytes, and the store is an unaligned one.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn splat(self, low: u64, high: u64) -> __m128i {
        // SAFETY: every x86-64 has SSE2.
        unsafe { _mm_set_epi64x(high as i64, low as i64) }
    }

    #[inline(always)]
    fn low(self, v: __m128i) -> u64 {
        // SAFETY: every x86-64 has SSE2.
        unsafe { _mm_cvtsi128_si64(v) as u64 }
    }

    #[inline(always)]
    fn xor(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_xor_si128(a, b) }
    }

    #[inline(always)]
    fn and(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_and_si128(a, b) }
    }

    #[inline(always)]
    fn add32(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_add_epi32(a, b) }
    }
}

impl<P: HasLane> Crypto for Lane128<P> {
    #[inline(always)]
    fn reverse(self, v: __m128i) -> __m128i {
        // SAFETY: the token proves SSSE3.
        unsafe { _mm_shuffle_epi8(v, self.splat(REVERSAL.0, REVERSAL.1)) }
    }

    #[inline(always)]
    fn swap(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_shuffle_epi32::<0x4e>(v) }
    }

    #[inline(always)]
    fn raise(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_slli_si128::<8>(v) }
    }

    #[inline(always)]
    fn lower(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_srli_si128::<8>(v) }
    }

    #[inline(always)]
    fn multiply_low(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_clmulepi64_si128::<0x00>(a, b) }
    }

    #[inline(always)]
    fn multiply_high(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_clmulepi64_si128::<0x11>(a, b) }
    }

    #[inline(always)]
    fn aes(self, state: Self::V, key: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_aesenc_si128(state, key) }
    }

    #[inline(always)]
    fn aes_last(self, state: Self::V, key: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction.
        unsafe { _mm_aesenclast_si128(state, key) }
    }
}

impl<P: HasLane> Lanes for Lane128<P> {
    type Single = Self;

    #[inline(always)]
    fn single(self) -> Self {
        self
    }

    #[inline(always)]
    fn call<T, W: Work<Self, T>>(self, work: W) -> T {
        P::call(self, work)
    }

    #[inline(always)]
    fn aes_rounds<const R: usize, const N: usize>(
        self,
        states: &mut [Self::V; N],
        rounds: &Rounds,
    ) {
        P::aes_rounds::<R, N>(self, states, rounds);
    }
}

/// Vendor, family and model of this CPU, the extended parts added (AMD64 and Intel manuals, CPUID
/// function 1).
pub(super) fn cpu_family() -> Option<CpuFamily> {
    // Miri runs no CPUID.
    if cfg!(miri) {
        return None;
    }
    let (vendor, signature) = (__cpuid(0), __cpuid(1).eax);
    let field = |shift: u32, bits: u32| signature >> shift & ((1 << bits) - 1);
    let family = match field(8, 4) {
        0xf => 0xf + field(20, 8),
        family => family,
    };
    let model = field(4, 4) | field(16, 4) << 4;
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    Some((*name.as_flattened().first_chunk()?, family, model))
}
