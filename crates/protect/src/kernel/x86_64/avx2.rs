//! AVX2, for ChaCha20-Poly1305.

use std::arch::asm;
use std::arch::x86_64::*;

use super::chacha20x8;
use super::tokens::Avx2;
use crate::kernel::Job;
use crate::kernel::chacha::block::{BLOCK_LEN, Block, Lane, Row, Rows, states};
use crate::kernel::chacha::entry::define_chacha;
use crate::kernel::chacha::forms::Forms;
use crate::kernel::chacha::meanwhile::Meanwhile;
use crate::kernel::chacha::parallel::NoParallel;
use crate::kernel::chacha::poly1305::POLY_BLOCK_LEN;
use crate::kernel::chacha::twins::{self, Hashes, Inputs, TWIN_BLOCKS, TWIN_LEN, Twins};
use crate::kernel::chacha::{self, HeaderKey, Key, LeastAlone, NEVER, halves};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::SAMPLE_LEN;
use crate::suite::Suite;

/// Groups of two blocks in a full pass, which has its eight blocks in another order.
const GROUPS: usize = 4;

/// Hides a constant from the optimizer, which otherwise replaces this shuffle with two.
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

    type Parallel<'a> = NoParallel<Self>;

    const HAS_PARALLEL: bool = false;
    const WIDTH: usize = 2;
    const LEAST_ALONE: LeastAlone = LeastAlone {
        of_few: NEVER,
        of_many: NEVER,
    };

    #[inline(always)]
    fn splat(self, row: &Row) -> __m256i {
        // SAFETY: `row` is 16 readable bytes, and the load is an unaligned one; the token proves
        // AVX2.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(row.as_ptr().cast())) }
    }

    #[inline(always)]
    fn inputs(self, lanes: &[Lane]) -> __m256i {
        // SAFETY: `nonce` is 16 readable bytes, and the loads are unaligned ones; the token proves
        // AVX2.
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
        // SAFETY: `rows` is 32 writable bytes, and the store is an unaligned one; the token proves
        // AVX2.
        unsafe { _mm256_storeu_si256(rows.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn store(self, rows: [__m256i; 4], blocks: &mut [Block]) {
        let [a, b, c, d] = rows;
        let to: *mut __m256i = blocks[..Self::WIDTH].as_mut_ptr().cast();
        // SAFETY: `to` is 128 writable bytes, four registers' worth, and the stores are unaligned
        // ones; the token proves AVX2.
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
        // SAFETY: all three are 64 bytes, two registers' worth, of which `output`'s are writable;
        // loads and stores are unaligned ones; the token proves AVX2.
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

    #[inline(always)]
    fn absorb(self, h: &mut [u64; 3], r: &[u64; 3], block: &[u8; POLY_BLOCK_LEN]) {
        let [h0, h1, h2] = h;
        // SAFETY: 24 bytes at `r` are read, and 16 at `block`; the token proves BMI2.
        unsafe {
            asm!(
                "add {h0}, [{block}]",
                "adc {h1}, [{block} + 8]",
                "adc {h2}, 1",
                "mov rdx, {h0}",
                "mulx {carry}, {h0}, [{r}]",
                "mulx {d2}, {d1}, [{r} + 8]",
                "mov rdx, {h1}",
                "mulx {h1}, {t}, [{r} + 16]",
                "add {h0}, {t}",
                "adc {carry}, {h1}",
                "mulx {h1}, {t}, [{r}]",
                "add {d1}, {t}",
                "adc {d2}, {h1}",
                "mov {t}, {h2}",
                "imul {t}, [{r} + 16]",
                "imul {h2}, [{r}]",
                // Below 2^64: the limbs of the key are below 1.25 * 2^60, h2 is below 8.
                "add {carry}, {t}",
                "add {d1}, {carry}",
                "adc {d2}, {h2}",
                // The bits above 2^130 come back times five.
                "mov {t}, {d2}",
                "mov {h2:e}, {d2:e}",
                "and {t}, -4",
                "shr {d2}, 2",
                "and {h2:e}, 3",
                "add {t}, {d2}",
                "add {h0}, {t}",
                "adc {d1}, 0",
                "adc {h2}, 0",
                h0 = inout(reg) *h0, h1 = inout(reg) *h1 => _, h2 = inout(reg) *h2,
                block = in(reg) block, r = in(reg) r,
                carry = out(reg) _, d1 = out(reg) *h1, d2 = out(reg) _, t = out(reg) _, out("rdx") _,
                options(pure, readonly, nostack),
            );
        }
    }

    #[inline(always)]
    fn pass<const G: usize>(
        self,
        key: &[u32; 8],
        lanes: &[Lane],
        blocks: &mut [Block],
        meanwhile: &mut impl Meanwhile,
    ) {
        if G == GROUPS {
            // SAFETY: the token proves AVX2.
            return unsafe { chacha20x8::pass(key, lanes, blocks, meanwhile) };
        }
        let [a, b, c, d] = states::<Self, G>(self, key, lanes, meanwhile);
        for (g, blocks) in blocks.chunks_exact_mut(Self::WIDTH).take(G).enumerate() {
            self.store([a[g], b[g], c[g], d[g]], blocks);
        }
    }
}

impl Forms for Avx2 {
    #[inline(always)]
    fn seal_alone<const MIDDLE: usize, const G: usize, const LANES: usize>(
        self,
        key: &Key,
        header: Option<&HeaderKey>,
        job: &mut Job<'_>,
    ) {
        halves::seal(self, key, header, job);
    }

    #[inline(always)]
    fn open_alone<const MIDDLE: usize, const G: usize, const LANES: usize>(
        self,
        key: &Key,
        job: &mut Job<'_>,
    ) -> bool {
        halves::open(self, key, job)
    }

    #[inline(always)]
    fn twins(jobs: &[Job<'_>]) -> usize {
        twins::count::<Self>(jobs)
    }

    #[inline(always)]
    fn seal_twins(self, key: &Key, jobs: &mut [Job<'_>]) {
        twins::seal(self, key, jobs);
    }

    #[inline(always)]
    fn open_twins(self, key: &Key, jobs: &mut [Job<'_>]) -> u32 {
        twins::open(self, key, jobs)
    }
}

impl Twins for Avx2 {
    type Stream = chacha20x8::Stream;

    // In calls of eight on Zen 3: 0.93 to 1.01 of the time of packets that share registers.
    const LEAST: usize = 128;

    #[inline(always)]
    fn twin_pass(
        self,
        key: &[u32; 8],
        inputs: &Inputs,
        counter: u32,
        hashes: &mut Hashes<'_>,
    ) -> [Self::Stream; 2] {
        // SAFETY: the token proves AVX2 and BMI2.
        unsafe { chacha20x8::twin_pass(key, inputs, counter, hashes) }
    }

    #[inline(always)]
    fn add_stream(
        self,
        stream: Self::Stream,
        input: Option<&[u8; TWIN_LEN]>,
        output: &mut [u8; TWIN_LEN],
    ) {
        // SAFETY: the token proves AVX2.
        unsafe { chacha20x8::add_stream(stream, input, output) }
    }

    #[inline(always)]
    fn store_stream(self, stream: Self::Stream, blocks: &mut [Block; TWIN_BLOCKS]) {
        // SAFETY: the token proves AVX2.
        unsafe { chacha20x8::store_stream(stream, blocks) }
    }
}

define_chacha!(Avx2, GROUPS, 2, "avx2,bmi2");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::chacha::poly1305;

    /// Keys, states and blocks at the edges of the limbs.
    #[test]
    fn absorbing_a_block_agrees_with_the_portable_code() {
        let Some(token) = Avx2::detect() else {
            return;
        };
        let limbs = [0, 1, 3, 1 << 63, u64::MAX - 4, u64::MAX];
        for r0 in [0, 1, 0x0fff_fffc_0fff_ffff] {
            for r1 in [0, 4, 0x0fff_fffc_0fff_fffc_u64] {
                let r = [r0, r1, r1 + (r1 >> 2)];
                for (h0, h1, h2) in limbs.iter().flat_map(|a| {
                    limbs
                        .iter()
                        .flat_map(move |b| (0..5).map(move |c| (*a, *b, c)))
                }) {
                    for block in [0, 1, u128::MAX - 1, u128::MAX] {
                        let (mut h, mut expected) = ([h0, h1, h2], [h0, h1, h2]);
                        token.absorb(&mut h, &r, &block.to_le_bytes());
                        poly1305::absorb(&mut expected, &r, block);
                        assert_eq!(h, expected, "{r:x?} {h0:x} {h1:x} {h2} {block:x}");
                    }
                }
            }
        }
    }
}
