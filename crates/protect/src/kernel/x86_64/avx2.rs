//! AVX2, for ChaCha20-Poly1305.

use std::arch::asm;
use std::arch::x86_64::*;

use super::tokens::Avx2;
use crate::kernel::Job;
use crate::kernel::chacha::block::{BLOCK_LEN, Block, CONSTANTS, Lane, Row, Rows, states};
use crate::kernel::chacha::entry::define_chacha;
use crate::kernel::chacha::meanwhile::Meanwhile;
use crate::kernel::chacha::parallel::NoParallel;
use crate::kernel::chacha::poly1305::POLY_BLOCK_LEN;
use crate::kernel::chacha::{self, HeaderKey, Key, LeastAlone, NEVER};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::SAMPLE_LEN;
use crate::suite::Suite;

/// Groups of two blocks in a full pass. A full pass has one word of its eight blocks in each
/// register. When this was left to the compiler, as four groups or so, a round spilled about twenty
/// registers and took a fifth longer.
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
    // In calls of two at 1,450 bytes 0.87 of the time on Zen 5 and 1.0 on Emerald Rapids; in calls
    // of eight 0.9 to 1.08.
    const LEAST_ALONE: LeastAlone = LeastAlone {
        of_few: 1300,
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
            return unsafe { sliced_pass(key, lanes, blocks, meanwhile) };
        }
        let [a, b, c, d] = states::<Self, G>(self, key, lanes, meanwhile);
        for (g, blocks) in blocks.chunks_exact_mut(Self::WIDTH).take(G).enumerate() {
            self.store([a[g], b[g], c[g], d[g]], blocks);
        }
    }
}

/// What the rounds keep in memory: two shuffles, and one word at a time of the state's third row.
/// With a word of eight blocks in each of fifteen registers, one register is left for work.
#[repr(C, align(32))]
struct Frame {
    rotate_16: [Row; 2],
    rotate_8: [Row; 2],
    c0: [u32; 8],
    c3: [u32; 8],
}

const ROTATE_16: Row = [0x0100_0302, 0x0504_0706, 0x0908_0b0a, 0x0d0c_0f0e];
const ROTATE_8: Row = [0x0201_0003, 0x0605_0407, 0x0a09_080b, 0x0e0d_0c0f];

/// Two quarter rounds; registers are words of the state. What is added to the fourth word of each
/// comes first from where the third word is.
macro_rules! two_quarter_rounds {
    (
        $a:literal $b:literal $c:literal ($from_c:literal) $d:literal,
        $e:literal $f:literal $g:literal ($from_g:literal) $h:literal
    ) => {
        concat!(
            "vpaddd ymm",
            $a,
            ", ymm",
            $a,
            ", ymm",
            $b,
            "\n",
            "vpaddd ymm",
            $e,
            ", ymm",
            $e,
            ", ymm",
            $f,
            "\n",
            "vpxor ymm",
            $d,
            ", ymm",
            $d,
            ", ymm",
            $a,
            "\n",
            "vpxor ymm",
            $h,
            ", ymm",
            $h,
            ", ymm",
            $e,
            "\n",
            "vpshufb ymm",
            $d,
            ", ymm",
            $d,
            ", [{frame}]\n",
            "vpshufb ymm",
            $h,
            ", ymm",
            $h,
            ", [{frame}]\n",
            "vpaddd ymm",
            $c,
            ", ymm",
            $d,
            ", ",
            $from_c,
            "\n",
            "vpaddd ymm",
            $g,
            ", ymm",
            $h,
            ", ",
            $from_g,
            "\n",
            "vpxor ymm",
            $b,
            ", ymm",
            $b,
            ", ymm",
            $c,
            "\n",
            "vpxor ymm",
            $f,
            ", ymm",
            $f,
            ", ymm",
            $g,
            "\n",
            "vpslld ymm11, ymm",
            $b,
            ", 12\n",
            "vpsrld ymm",
            $b,
            ", ymm",
            $b,
            ", 20\n",
            "vpor ymm",
            $b,
            ", ymm",
            $b,
            ", ymm11\n",
            "vpslld ymm11, ymm",
            $f,
            ", 12\n",
            "vpsrld ymm",
            $f,
            ", ymm",
            $f,
            ", 20\n",
            "vpor ymm",
            $f,
            ", ymm",
            $f,
            ", ymm11\n",
            "vpaddd ymm",
            $a,
            ", ymm",
            $a,
            ", ymm",
            $b,
            "\n",
            "vpaddd ymm",
            $e,
            ", ymm",
            $e,
            ", ymm",
            $f,
            "\n",
            "vpxor ymm",
            $d,
            ", ymm",
            $d,
            ", ymm",
            $a,
            "\n",
            "vpxor ymm",
            $h,
            ", ymm",
            $h,
            ", ymm",
            $e,
            "\n",
            "vpshufb ymm",
            $d,
            ", ymm",
            $d,
            ", [{frame} + 32]\n",
            "vpshufb ymm",
            $h,
            ", ymm",
            $h,
            ", [{frame} + 32]\n",
            "vpaddd ymm",
            $c,
            ", ymm",
            $c,
            ", ymm",
            $d,
            "\n",
            "vpaddd ymm",
            $g,
            ", ymm",
            $g,
            ", ymm",
            $h,
            "\n",
            "vpxor ymm",
            $b,
            ", ymm",
            $b,
            ", ymm",
            $c,
            "\n",
            "vpxor ymm",
            $f,
            ", ymm",
            $f,
            ", ymm",
            $g,
            "\n",
            "vpslld ymm11, ymm",
            $b,
            ", 7\n",
            "vpsrld ymm",
            $b,
            ", ymm",
            $b,
            ", 25\n",
            "vpor ymm",
            $b,
            ", ymm",
            $b,
            ", ymm11\n",
            "vpslld ymm11, ymm",
            $f,
            ", 7\n",
            "vpsrld ymm",
            $f,
            ", ymm",
            $f,
            ", 25\n",
            "vpor ymm",
            $f,
            ", ymm",
            $f,
            ", ymm11\n",
        )
    };
}

/// A round of the whole state, in `x` except for the third row's word, which `frame` has.
macro_rules! define_round {
    ($name:ident, $($code:expr),+) => {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(x: &mut [__m256i; 16], frame: &mut Frame) {
            // SAFETY: all reads and writes through the pointer are within `frame`, and aligned.
            unsafe {
                asm!(
                    $($code),+,
                    frame = in(reg) &raw mut *frame,
                    inout("ymm0") x[0], inout("ymm1") x[1], inout("ymm2") x[2], inout("ymm3") x[3],
                    inout("ymm4") x[4], inout("ymm5") x[5], inout("ymm6") x[6], inout("ymm7") x[7],
                    inout("ymm8") x[8], inout("ymm9") x[9], inout("ymm10") x[10], out("ymm11") _,
                    inout("ymm12") x[12], inout("ymm13") x[13], inout("ymm14") x[14], inout("ymm15") x[15],
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

define_round!(
    column_round,
    two_quarter_rounds!(0 4 8 ("ymm8") 12, 1 5 9 ("ymm9") 13),
    "vmovdqa [{frame} + 64], ymm8",
    two_quarter_rounds!(2 6 10 ("ymm10") 14, 3 7 8 ("[{frame} + 96]") 15)
);
define_round!(
    diagonal_round,
    two_quarter_rounds!(1 6 8 ("ymm8") 12, 0 5 10 ("ymm10") 15),
    "vmovdqa [{frame} + 96], ymm8",
    two_quarter_rounds!(3 4 9 ("ymm9") 14, 2 7 8 ("[{frame} + 64]") 13)
);

/// Turns four registers of a word each of eight blocks into registers of four words each of two:
/// blocks 0 and 4, 1 and 5, 2 and 6, 3 and 7. And back.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(x: [__m256i; 4]) -> [__m256i; 4] {
    let t0 = _mm256_unpacklo_epi32(x[0], x[1]);
    let t1 = _mm256_unpackhi_epi32(x[0], x[1]);
    let t2 = _mm256_unpacklo_epi32(x[2], x[3]);
    let t3 = _mm256_unpackhi_epi32(x[2], x[3]);
    [
        _mm256_unpacklo_epi64(t0, t2),
        _mm256_unpackhi_epi64(t0, t2),
        _mm256_unpacklo_epi64(t1, t3),
        _mm256_unpackhi_epi64(t1, t3),
    ]
}

/// A pass of eight blocks, with one word of all of them in a register: this needs no turns.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn sliced_pass(
    key: &[u32; 8],
    lanes: &[Lane],
    blocks: &mut [Block],
    meanwhile: &mut impl Meanwhile,
) {
    // SAFETY: the caller's promise; loads and stores are unaligned ones within `lanes` and
    // `blocks`.
    unsafe {
        let lanes = &lanes[..8];
        let blocks = &mut blocks[..8];
        let input = |lane: &Lane| {
            let nonce = _mm_loadu_si128(lane.nonce.as_ptr().cast());
            _mm_add_epi32(nonce, _mm_cvtsi32_si128(lane.counter as i32))
        };
        let pair = |i: usize| _mm256_set_m128i(input(&lanes[i + 4]), input(&lanes[i]));
        let last = transposed([pair(0), pair(1), pair(2), pair(3)]);
        let word = |word: u32| _mm256_set1_epi32(word as i32);
        let mut x = [_mm256_setzero_si256(); 16];
        for i in 0..4 {
            x[i] = word(CONSTANTS[i]);
            x[4 + i] = word(key[i]);
            x[8 + i] = word(key[4 + i]);
            x[12 + i] = last[i];
        }
        let mut frame = Frame {
            rotate_16: [ROTATE_16; 2],
            rotate_8: [ROTATE_8; 2],
            c0: [0; 8],
            c3: [key[7]; 8],
        };
        for _ in 0..10 {
            column_round(&mut x, &mut frame);
            meanwhile.step();
            diagonal_round(&mut x, &mut frame);
            meanwhile.step();
        }
        x[11] = _mm256_load_si256(frame.c3.as_ptr().cast());
        for i in 0..4 {
            x[i] = _mm256_add_epi32(x[i], word(CONSTANTS[i]));
            x[4 + i] = _mm256_add_epi32(x[4 + i], word(key[i]));
            x[8 + i] = _mm256_add_epi32(x[8 + i], word(key[4 + i]));
            x[12 + i] = _mm256_add_epi32(x[12 + i], last[i]);
        }
        let to: *mut __m256i = blocks.as_mut_ptr().cast();
        for half in 0..2 {
            let u = transposed([
                x[8 * half],
                x[8 * half + 1],
                x[8 * half + 2],
                x[8 * half + 3],
            ]);
            let v = transposed([
                x[8 * half + 4],
                x[8 * half + 5],
                x[8 * half + 6],
                x[8 * half + 7],
            ]);
            for i in 0..4 {
                let low = _mm256_permute2x128_si256::<0x20>(u[i], v[i]);
                let high = _mm256_permute2x128_si256::<0x31>(u[i], v[i]);
                _mm256_storeu_si256(to.add(2 * i + half), low);
                _mm256_storeu_si256(to.add(2 * (i + 4) + half), high);
            }
        }
    }
}

define_chacha!(Avx2, GROUPS, 2, "avx2,bmi2");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::chacha::meanwhile::Nothing;
    use crate::kernel::chacha::poly1305;

    #[test]
    fn a_full_pass_agrees_with_its_groups_alone() {
        let Some(token) = Avx2::detect() else {
            return;
        };
        let key = std::array::from_fn(|i| 0x9e37_79b9_u32.wrapping_mul(i as u32 + 1));
        let lane = |i: u32| Lane {
            nonce: [u32::MAX - 3, i, i << 20, !i],
            counter: i,
        };
        let lanes: [Lane; 8] = std::array::from_fn(|i| lane(i as u32));
        let (mut blocks, mut expected) = ([Block([0; BLOCK_LEN]); 8], [Block([0; BLOCK_LEN]); 8]);
        token.pass::<GROUPS>(&key, &lanes, &mut blocks, &mut Nothing);
        for i in (0..8).step_by(2) {
            token.pass::<1>(&key, &lanes[i..], &mut expected[i..], &mut Nothing);
        }
        assert_eq!(blocks.map(|block| block.0), expected.map(|block| block.0));
    }

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
