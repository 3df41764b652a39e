//! AVX2, for ChaCha20-Poly1305.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::kernel::Job;
use crate::kernel::chacha::block::{BLOCK_LEN, Block, Lane, Row, Rows};
use crate::kernel::chacha::choir::NoChoir;
use crate::kernel::chacha::entry::define_chacha;
use crate::kernel::chacha::{self, HeaderKey, Key};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::SAMPLE_LEN;
use crate::suite::Suite;

/// Groups of registers in a pass. Three leave room in the sixteen registers for what is on its way, four do not; yet on
/// Zen 5, where these operations take two cycles, four took 10 % less time for full packets and 30 % less for short
/// ones. (One word of eight blocks in each register, with twice as much of the state in memory, was no better.)
const GROUPS: usize = 4;
/// Proof that AVX2 and BMI2 were detected; only [`Avx2::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")).then_some(Self(()))
    }
}

/// The same value, which the compiler does not know: where it knows a shuffle it finds two others for it.
#[inline]
#[target_feature(enable = "avx")]
fn opaque(v: __m256i) -> __m256i {
    let same;
    // SAFETY: there is no instruction.
    unsafe {
        asm!("/* {0} */", inlateout(ymm_reg) v => same, options(pure, nomem, nostack, preserves_flags));
    }
    same
}

impl Rows for Avx2 {
    type V = __m256i;
    /// The shuffles that rotate each word left by 16 and by 8 bits.
    type Rotations = [__m256i; 2];

    type Choir<'a> = NoChoir<Self>;

    const CHOIR: bool = false;
    const WIDTH: usize = 2;

    #[inline(always)]
    fn splat(self, row: &Row) -> __m256i {
        // SAFETY: `row` is 16 readable bytes, and the load is an unaligned one; the token proves AVX2.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(row.as_ptr().cast())) }
    }

    #[inline(always)]
    fn inputs(self, lanes: &[Lane]) -> __m256i {
        // SAFETY: `nonce` is 16 readable bytes, and the loads are unaligned ones; the token proves AVX2.
        unsafe {
            let input = |lane: &Lane| {
                let nonce = _mm_loadu_si128(lane.nonce.as_ptr().cast());
                _mm_add_epi32(nonce, _mm_cvtsi32_si128(lane.counter as i32))
            };
            _mm256_set_m128i(input(&lanes[1]), input(&lanes[0]))
        }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn rotations(self) -> [__m256i; 2] {
        // SAFETY: the token proves AVX2.
        unsafe {
            let by_16 = _mm_set_epi64x(0x0d0c_0f0e_0908_0b0a, 0x0504_0706_0100_0302);
            let by_8 = _mm_set_epi64x(0x0e0d_0c0f_0a09_080b, 0x0605_0407_0201_0003);
            [
                opaque(_mm256_broadcastsi128_si256(by_16)),
                opaque(_mm256_broadcastsi128_si256(by_8)),
            ]
        }
    }

    #[inline(always)]
    fn rotate_16(self, v: __m256i, rotations: [__m256i; 2]) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_shuffle_epi8(v, rotations[0]) }
    }

    #[inline(always)]
    fn rotate_12(self, v: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_or_si256(_mm256_slli_epi32::<12>(v), _mm256_srli_epi32::<20>(v)) }
    }

    #[inline(always)]
    fn rotate_8(self, v: __m256i, rotations: [__m256i; 2]) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_shuffle_epi8(v, rotations[1]) }
    }

    #[inline(always)]
    fn rotate_7(self, v: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_or_si256(_mm256_slli_epi32::<7>(v), _mm256_srli_epi32::<25>(v)) }
    }

    #[inline(always)]
    fn turn_1(self, v: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_shuffle_epi32::<0x39>(v) }
    }

    #[inline(always)]
    fn turn_2(self, v: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_shuffle_epi32::<0x4e>(v) }
    }

    #[inline(always)]
    fn turn_3(self, v: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_shuffle_epi32::<0x93>(v) }
    }

    #[inline(always)]
    fn store_row(self, v: __m256i, rows: &mut [Row]) {
        let rows = &mut rows[..Self::WIDTH];
        // SAFETY: `rows` is 32 writable bytes, and the store is an unaligned one; the token proves AVX2.
        unsafe { _mm256_storeu_si256(rows.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn store(self, rows: [__m256i; 4], blocks: &mut [Block]) {
        let [a, b, c, d] = rows;
        let to: *mut __m256i = blocks[..Self::WIDTH].as_mut_ptr().cast();
        // SAFETY: `to` is 128 writable bytes, four registers' worth, and the stores are unaligned ones; the token
        // proves AVX2.
        unsafe {
            _mm256_storeu_si256(to, _mm256_permute2x128_si256::<0x20>(a, b));
            _mm256_storeu_si256(to.add(1), _mm256_permute2x128_si256::<0x20>(c, d));
            _mm256_storeu_si256(to.add(2), _mm256_permute2x128_si256::<0x31>(a, b));
            _mm256_storeu_si256(to.add(3), _mm256_permute2x128_si256::<0x31>(c, d));
        }
    }

    #[inline(always)]
    fn apply(self, input: Option<&[u8; BLOCK_LEN]>, pad: &Block, output: &mut [u8; BLOCK_LEN]) {
        let to: *mut __m256i = output.as_mut_ptr().cast();
        let from: *const __m256i = input.map_or(to.cast_const(), |input| input.as_ptr().cast());
        let pad: *const __m256i = pad.0.as_ptr().cast();
        // SAFETY: all three are 64 bytes, two registers' worth, of which `output`'s are writable; loads and stores are
        // unaligned ones; the token proves AVX2.
        unsafe {
            let low = _mm256_xor_si256(_mm256_loadu_si256(from), _mm256_loadu_si256(pad));
            let high = _mm256_xor_si256(
                _mm256_loadu_si256(from.add(1)),
                _mm256_loadu_si256(pad.add(1)),
            );
            _mm256_storeu_si256(to, low);
            _mm256_storeu_si256(to.add(1), high);
        }
    }
}

define_chacha!(Avx2, GROUPS, 2, "avx2,bmi2");
