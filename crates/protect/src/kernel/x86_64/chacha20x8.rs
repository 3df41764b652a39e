//! ChaCha20 for eight blocks, with one word of all of them in each AVX2 register: this needs no
//! turns of rows. The blocks are of any packets ([`pass`]), or four each of two ([`twin_pass`]).
//!
//! When the rounds were left to the compiler, one spilled about twenty registers and took a fifth
//! longer. When it had the loop around the rounds and Poly1305, numbers of Poly1305's chain went
//! through memory, and packets of 1,450 bytes took 7 % longer (Zen 3).

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::offset_of;

use crate::kernel::chacha::block::{Block, CONSTANTS, Lane, Row};
use crate::kernel::chacha::meanwhile::Meanwhile;
use crate::kernel::chacha::twins::{Hashes, Inputs, TWIN_BLOCKS, TWIN_LEN};
use crate::kernel::registers::wipe;

/// What the rounds keep in memory: two shuffles, and one word at a time of the state's third row.
/// With a word of eight blocks in each of fifteen registers, one register is left for work. The
/// rest is for Poly1305: the keys of two messages, and where their next blocks are.
#[repr(C, align(32))]
struct Frame {
    rotate_16: [Row; 2],
    rotate_8: [Row; 2],
    c0: [u32; 8],
    c3: [u32; 8],
    r: [[u64; 3]; 2],
    data: [*const u8; 2],
    /// Double rounds to go.
    count: usize,
}

// Where the assembly looks for them.
const _: () = assert!(
    offset_of!(Frame, rotate_8) == 32
        && offset_of!(Frame, c0) == 64
        && offset_of!(Frame, c3) == 96
        && offset_of!(Frame, r) == 128
        && offset_of!(Frame, data) == 176
        && offset_of!(Frame, count) == 192
);

impl Frame {
    #[inline(always)]
    fn new(key: &[u32; 8]) -> Self {
        Self {
            rotate_16: [ROTATE_16; 2],
            rotate_8: [ROTATE_8; 2],
            c0: [0; 8],
            c3: [key[7]; 8],
            r: [[0; 3]; 2],
            data: [std::ptr::null(); 2],
            count: 0,
        }
    }
}

const ROTATE_16: Row = [0x0100_0302, 0x0504_0706, 0x0908_0b0a, 0x0d0c_0f0e];
const ROTATE_8: Row = [0x0201_0003, 0x0605_0407, 0x0a09_080b, 0x0e0d_0c0f];

/// Two quarter rounds; registers are words of the state. What is added to the fourth word of each
/// comes first from where the third word is.
#[rustfmt::skip]
macro_rules! two_quarter_rounds {
    (
        $a:literal $b:literal $c:literal ($from_c:literal) $d:literal,
        $e:literal $f:literal $g:literal ($from_g:literal) $h:literal
    ) => {
        concat!(
            "vpaddd ymm", $a, ", ymm", $a, ", ymm", $b, "\n",
            "vpaddd ymm", $e, ", ymm", $e, ", ymm", $f, "\n",
            "vpxor ymm", $d, ", ymm", $d, ", ymm", $a, "\n",
            "vpxor ymm", $h, ", ymm", $h, ", ymm", $e, "\n",
            "vpshufb ymm", $d, ", ymm", $d, ", [{frame}]\n",
            "vpshufb ymm", $h, ", ymm", $h, ", [{frame}]\n",
            "vpaddd ymm", $c, ", ymm", $d, ", ", $from_c, "\n",
            "vpaddd ymm", $g, ", ymm", $h, ", ", $from_g, "\n",
            "vpxor ymm", $b, ", ymm", $b, ", ymm", $c, "\n",
            "vpxor ymm", $f, ", ymm", $f, ", ymm", $g, "\n",
            "vpslld ymm11, ymm", $b, ", 12\n",
            "vpsrld ymm", $b, ", ymm", $b, ", 20\n",
            "vpor ymm", $b, ", ymm", $b, ", ymm11\n",
            "vpslld ymm11, ymm", $f, ", 12\n",
            "vpsrld ymm", $f, ", ymm", $f, ", 20\n",
            "vpor ymm", $f, ", ymm", $f, ", ymm11\n",
            "vpaddd ymm", $a, ", ymm", $a, ", ymm", $b, "\n",
            "vpaddd ymm", $e, ", ymm", $e, ", ymm", $f, "\n",
            "vpxor ymm", $d, ", ymm", $d, ", ymm", $a, "\n",
            "vpxor ymm", $h, ", ymm", $h, ", ymm", $e, "\n",
            "vpshufb ymm", $d, ", ymm", $d, ", [{frame} + 32]\n",
            "vpshufb ymm", $h, ", ymm", $h, ", [{frame} + 32]\n",
            "vpaddd ymm", $c, ", ymm", $c, ", ymm", $d, "\n",
            "vpaddd ymm", $g, ", ymm", $g, ", ymm", $h, "\n",
            "vpxor ymm", $b, ", ymm", $b, ", ymm", $c, "\n",
            "vpxor ymm", $f, ", ymm", $f, ", ymm", $g, "\n",
            "vpslld ymm11, ymm", $b, ", 7\n",
            "vpsrld ymm", $b, ", ymm", $b, ", 25\n",
            "vpor ymm", $b, ", ymm", $b, ", ymm11\n",
            "vpslld ymm11, ymm", $f, ", 7\n",
            "vpsrld ymm", $f, ", ymm", $f, ", 25\n",
            "vpor ymm", $f, ", ymm", $f, ", ymm11\n",
        )
    };
}

/// A round on the columns of the state.
macro_rules! column_round {
    () => {
        concat!(
            two_quarter_rounds!(0 4 8 ("ymm8") 12, 1 5 9 ("ymm9") 13),
            "vmovdqa [{frame} + 64], ymm8\n",
            two_quarter_rounds!(2 6 10 ("ymm10") 14, 3 7 8 ("[{frame} + 96]") 15)
        )
    };
}

/// A round on its diagonals.
macro_rules! diagonal_round {
    () => {
        concat!(
            two_quarter_rounds!(1 6 8 ("ymm8") 12, 0 5 10 ("ymm10") 15),
            "vmovdqa [{frame} + 96], ymm8\n",
            two_quarter_rounds!(3 4 9 ("ymm9") 14, 2 7 8 ("[{frame} + 64]") 13)
        )
    };
}

/// Code that works on the whole state, in `x` except for the third row's word, which `frame` has.
macro_rules! rounds {
    ($x:ident, $frame:ident, [$($code:expr),+], $($operands:tt)+) => {
        asm!(
            $($code),+,
            frame = in(reg) &raw mut *$frame,
            inout("ymm0") $x[0], inout("ymm1") $x[1], inout("ymm2") $x[2], inout("ymm3") $x[3],
            inout("ymm4") $x[4], inout("ymm5") $x[5], inout("ymm6") $x[6], inout("ymm7") $x[7],
            inout("ymm8") $x[8], inout("ymm9") $x[9], inout("ymm10") $x[10], out("ymm11") _,
            inout("ymm12") $x[12], inout("ymm13") $x[13], inout("ymm14") $x[14], inout("ymm15") $x[15],
            $($operands)+
        )
    };
}

#[inline]
#[target_feature(enable = "avx2")]
fn column_round(x: &mut [__m256i; 16], frame: &mut Frame) {
    // SAFETY: all reads and writes through the pointer are within `frame`, and aligned.
    unsafe {
        rounds!(
            x,
            frame,
            [column_round!()],
            options(nostack, preserves_flags)
        );
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn diagonal_round(x: &mut [__m256i; 16], frame: &mut Frame) {
    // SAFETY: all reads and writes through the pointer are within `frame`, and aligned.
    unsafe {
        rounds!(
            x,
            frame,
            [diagonal_round!()],
            options(nostack, preserves_flags)
        );
    }
}

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

/// One step of Poly1305 of a message, in general registers. The middle limb of the next h is in
/// `$next`, and `$h1` becomes free.
#[rustfmt::skip]
macro_rules! absorb {
    ($h0:literal $h1:literal $h2:literal $next:literal, $r0:literal $r1:literal $s:literal, $data:literal + $at:literal) => {
        concat!(
            "mov {t}, [{frame} + ", $data, "]\n",
            "add {", $h0, "}, [{t} + ", $at, "]\n",
            "adc {", $h1, "}, [{t} + ", $at, " + 8]\n",
            "adc {", $h2, "}, 1\n",
            "mov rdx, {", $h0, "}\n",
            "mulx {carry}, {", $h0, "}, [{frame} + ", $r0, "]\n",
            "mulx {d2}, {", $next, "}, [{frame} + ", $r1, "]\n",
            "mov rdx, {", $h1, "}\n",
            "mulx {", $h1, "}, {t}, [{frame} + ", $s, "]\n",
            "add {", $h0, "}, {t}\n",
            "adc {carry}, {", $h1, "}\n",
            "mulx {", $h1, "}, {t}, [{frame} + ", $r0, "]\n",
            "add {", $next, "}, {t}\n",
            "adc {d2}, {", $h1, "}\n",
            "mov {t}, {", $h2, "}\n",
            "imul {t}, [{frame} + ", $s, "]\n",
            "imul {", $h2, "}, [{frame} + ", $r0, "]\n",
            // Below 2^64: the limbs of the key are below 1.25 * 2^60, h2 is below 8.
            "add {carry}, {t}\n",
            "add {", $next, "}, {carry}\n",
            "adc {d2}, {", $h2, "}\n",
            // The bits above 2^130 come back times five.
            "mov {t}, {d2}\n",
            "mov {", $h2, ":e}, {d2:e}\n",
            "and {t}, -4\n",
            "shr {d2}, 2\n",
            "and {", $h2, ":e}, 3\n",
            "add {t}, {d2}\n",
            "add {", $h0, "}, {t}\n",
            "adc {", $next, "}, 0\n",
            "adc {", $h2, "}, 0\n",
        )
    };
}

/// The frame's count of double rounds, at least one, each with two blocks of both messages. In one
/// piece, so that no number of Poly1305 has to be kept in memory between them.
///
/// # Safety
///
/// The CPU has AVX2 and BMI2, and there are 32 bytes for each double round at both of the frame's
/// `data`.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn double_rounds_and_two(
    x: &mut [__m256i; 16],
    frame: &mut Frame,
    [a, b]: &mut [[u64; 3]; 2],
) {
    // SAFETY: the caller's promise; all other reads and writes are within `frame`, and aligned.
    unsafe {
        rounds!(
            x,
            frame,
            [
                "2:",
                column_round!(),
                absorb!("a0" "p" "a2" "r", "128" "136" "144", "176" + "0"),
                absorb!("b0" "q" "b2" "p", "152" "160" "168", "184" + "0"),
                diagonal_round!(),
                absorb!("a0" "r" "a2" "q", "128" "136" "144", "176" + "16"),
                absorb!("b0" "p" "b2" "r", "152" "160" "168", "184" + "16"),
                "mov {p}, {q}",
                "mov {q}, {r}",
                "add qword ptr [{frame} + 176], 32",
                "add qword ptr [{frame} + 184], 32",
                "dec qword ptr [{frame} + 192]",
                "jnz 2b"
            ],
            a0 = inout(reg) a[0], p = inout(reg) a[1], a2 = inout(reg) a[2],
            b0 = inout(reg) b[0], q = inout(reg) b[1], b2 = inout(reg) b[2],
            r = out(reg) _, carry = out(reg) _, d2 = out(reg) _, t = out(reg) _, out("rdx") _,
            options(nostack),
        );
    }
}

/// The same with three blocks of the first message alone.
///
/// # Safety
///
/// The CPU has AVX2 and BMI2, and there are 48 bytes for each double round at the first of the
/// frame's `data`.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn double_rounds_and_three(x: &mut [__m256i; 16], frame: &mut Frame, h: &mut [u64; 3]) {
    // SAFETY: the caller's promise; all other reads and writes are within `frame`, and aligned.
    unsafe {
        rounds!(
            x,
            frame,
            [
                "2:",
                column_round!(),
                absorb!("h0" "p" "h2" "r", "128" "136" "144", "176" + "0"),
                diagonal_round!(),
                absorb!("h0" "r" "h2" "p", "128" "136" "144", "176" + "16"),
                absorb!("h0" "p" "h2" "r", "128" "136" "144", "176" + "32"),
                "mov {p}, {r}",
                "add qword ptr [{frame} + 176], 48",
                "dec qword ptr [{frame} + 192]",
                "jnz 2b"
            ],
            h0 = inout(reg) h[0], p = inout(reg) h[1], h2 = inout(reg) h[2],
            r = out(reg) _, carry = out(reg) _, d2 = out(reg) _, t = out(reg) _, out("rdx") _,
            options(nostack),
        );
    }
}

/// The state before the rounds, with the given last row.
#[inline]
#[target_feature(enable = "avx2")]
fn state(key: &[u32; 8], last: &[__m256i; 4]) -> [__m256i; 16] {
    let word = |word: u32| _mm256_set1_epi32(word as i32);
    let mut x = [last[0]; 16];
    for i in 0..4 {
        x[i] = word(CONSTANTS[i]);
        x[4 + i] = word(key[i]);
        x[8 + i] = word(key[4 + i]);
        x[12 + i] = last[i];
    }
    x
}

/// The eight blocks after the rounds, two registers each.
#[inline]
#[target_feature(enable = "avx2")]
fn blocks_of(
    mut x: [__m256i; 16],
    frame: &Frame,
    key: &[u32; 8],
    last: &[__m256i; 4],
) -> [[__m256i; 2]; 8] {
    // SAFETY: the frame is aligned for it.
    x[11] = unsafe { _mm256_load_si256(frame.c3.as_ptr().cast()) };
    for (x, input) in x.iter_mut().zip(state(key, last)) {
        *x = _mm256_add_epi32(*x, input);
    }
    let mut blocks = [[last[0]; 2]; 8];
    for half in 0..2 {
        let [a, b, c, d, e, f, g, h] = *x[8 * half..].first_chunk().expect("half of 16 words");
        let (u, v) = (transposed([a, b, c, d]), transposed([e, f, g, h]));
        for i in 0..4 {
            blocks[i][half] = _mm256_permute2x128_si256::<0x20>(u[i], v[i]);
            blocks[i + 4][half] = _mm256_permute2x128_si256::<0x31>(u[i], v[i]);
        }
    }
    blocks
}

/// Eight blocks of any packets.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn pass(
    key: &[u32; 8],
    lanes: &[Lane],
    blocks: &mut [Block],
    meanwhile: &mut impl Meanwhile,
) {
    // SAFETY: the caller's promise; loads and stores are unaligned ones within `lanes` and
    // `blocks`.
    unsafe {
        let lanes = &lanes[..8];
        let input = |lane: &Lane| {
            let nonce = _mm_loadu_si128(lane.nonce.as_ptr().cast());
            _mm_add_epi32(nonce, _mm_cvtsi32_si128(lane.counter as i32))
        };
        let pair = |i: usize| _mm256_set_m128i(input(&lanes[i + 4]), input(&lanes[i]));
        let last = transposed([pair(0), pair(1), pair(2), pair(3)]);
        let mut x = state(key, &last);
        let mut frame = Frame::new(key);
        for _ in 0..10 {
            column_round(&mut x, &mut frame);
            meanwhile.step();
            diagonal_round(&mut x, &mut frame);
            meanwhile.step();
        }
        let made = blocks_of(x, &frame, key, &last);
        for (block, [low, high]) in blocks[..8].iter_mut().zip(made) {
            let to: *mut __m256i = block.0.as_mut_ptr().cast();
            _mm256_storeu_si256(to, low);
            _mm256_storeu_si256(to.add(1), high);
        }
    }
}

/// The key stream of four blocks.
pub(crate) type Stream = [[__m256i; 2]; TWIN_BLOCKS];

/// Four blocks of each of two packets, alongside Poly1305 of two messages in step, or of the first
/// alone if the second has no blocks. Some blocks are left over.
///
/// # Safety
///
/// The CPU has AVX2 and BMI2.
#[inline(always)]
pub(super) unsafe fn twin_pass(
    key: &[u32; 8],
    inputs: &Inputs,
    counter: u32,
    hashes: &mut Hashes<'_>,
) -> [Stream; 2] {
    // SAFETY: the caller's promise; `inputs` are aligned for the loads. At each of `data` there are
    // as many blocks as `double_rounds` take.
    unsafe {
        let mut last = [_mm256_set1_epi32(counter as i32); 4];
        let words: *const __m256i = inputs.0.as_ptr().cast();
        last[0] = _mm256_add_epi32(last[0], _mm256_load_si256(words));
        for (i, row) in last.iter_mut().enumerate().skip(1) {
            *row = _mm256_load_si256(words.add(i));
        }
        let mut x = state(key, &last);
        let mut frame = Frame::new(key);
        let [a, b] = hashes.data;
        // A single message waits for itself: three blocks take as long as two of each of two.
        let (of_each, limit) = if b.is_empty() {
            (3, a.len())
        } else {
            (2, a.len().min(b.len()))
        };
        let double_rounds = (limit / of_each).min(10);
        frame.r = [*hashes.r[0], *hashes.r[1]];
        frame.data = [a.as_ptr().cast(), b.as_ptr().cast()];
        frame.count = double_rounds;
        if double_rounds > 0 {
            if b.is_empty() {
                double_rounds_and_three(&mut x, &mut frame, &mut hashes.h[0]);
            } else {
                double_rounds_and_two(&mut x, &mut frame, &mut hashes.h);
            }
        }
        for _ in double_rounds..10 {
            column_round(&mut x, &mut frame);
            diagonal_round(&mut x, &mut frame);
        }
        let taken = of_each * double_rounds;
        hashes.data = [&a[taken..], &b[taken.min(b.len())..]];
        wipe(&mut frame.r, [0; 3]);
        let [a, b, c, d, e, f, g, h] = blocks_of(x, &frame, key, &last);
        [[a, b, c, d], [e, f, g, h]]
    }
}

/// Adds key stream to the input, if there is one, or else to the output in place.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn add_stream(
    stream: Stream,
    input: Option<&[u8; TWIN_LEN]>,
    output: &mut [u8; TWIN_LEN],
) {
    let to: *mut __m256i = output.as_mut_ptr().cast();
    let from: *const __m256i = input.map_or(to.cast_const(), |input| input.as_ptr().cast());
    for (i, stream) in stream.as_flattened().iter().enumerate() {
        // SAFETY: the caller's promise; both are as long as the stream, and loads and stores are
        // unaligned ones.
        unsafe {
            let sum = _mm256_xor_si256(_mm256_loadu_si256(from.add(i)), *stream);
            _mm256_storeu_si256(to.add(i), sum);
        }
    }
}

/// Writes the key stream.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn store_stream(stream: Stream, blocks: &mut [Block; TWIN_BLOCKS]) {
    for (block, [low, high]) in blocks.iter_mut().zip(stream) {
        let to: *mut __m256i = block.0.as_mut_ptr().cast();
        // SAFETY: the caller's promise; a block is two registers long, and aligned.
        unsafe {
            _mm256_store_si256(to, low);
            _mm256_store_si256(to.add(1), high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::chacha::block::{BLOCK_LEN, Rows};
    use crate::kernel::chacha::meanwhile::Nothing;
    use crate::kernel::chacha::poly1305::Poly;
    use crate::kernel::chacha::twins::Twins;
    use crate::kernel::x86_64::tokens::Avx2;

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
        token.pass::<4>(&key, &lanes, &mut blocks, &mut Nothing);
        for i in (0..8).step_by(2) {
            token.pass::<1>(&key, &lanes[i..], &mut expected[i..], &mut Nothing);
        }
        assert_eq!(blocks.map(|block| block.0), expected.map(|block| block.0));
    }

    /// All combinations of numbers of blocks: none, one message alone, and more than a pass takes.
    #[test]
    fn twins_agree_with_blocks_and_messages_alone() {
        let Some(token) = Avx2::detect() else {
            return;
        };
        let key = std::array::from_fn(|i| 0x9e37_79b9_u32.wrapping_mul(i as u32 + 1));
        let nonces: [Row; 2] = [[0, 1, u32::MAX, 3], [0, 5, 6, 7 << 29]];
        let mut inputs = Inputs([[0; 8]; 4]);
        for (i, words) in inputs.0.iter_mut().enumerate() {
            *words = std::array::from_fn(|lane| nonces[lane / 4][i]);
        }
        inputs.0[0] = [0, 1, 2, 3, 0, 1, 2, 3];
        let data: Vec<[u8; 16]> = (0..100_u8)
            .map(|i| std::array::from_fn(|k| if i % 5 == 0 { 0xff } else { i ^ k as u8 }))
            .collect();
        let polys = [u128::MAX, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210].map(|r| Poly::new(r, 0));
        let counts = [0, 1, 2, 3, 15, 16, 20, 21, 30, 31, 45];
        for (count_a, count_b) in counts.iter().flat_map(|a| counts.map(|b| (*a, b))) {
            let counter = 17 + count_a as u32;
            let data = [&data[..count_a], &data[50..50 + count_b]];
            let mut hashes = Hashes {
                r: [&polys[0].r, &polys[1].r],
                h: [polys[0].h, polys[1].h],
                data,
            };
            let streams = token.twin_pass(&key, &inputs, counter, &mut hashes);
            let hashed = hashes.finish(token);
            for (i, (stream, h)) in streams.into_iter().zip(hashed).enumerate() {
                let mut blocks = [Block([0; BLOCK_LEN]); 4];
                token.store_stream(stream, &mut blocks);
                let lanes: [Lane; 4] = std::array::from_fn(|lane| Lane {
                    nonce: nonces[i],
                    counter: counter + lane as u32,
                });
                let mut expected = [Block([0; BLOCK_LEN]); 4];
                token.pass::<2>(&key, &lanes, &mut expected, &mut Nothing);
                assert_eq!(
                    blocks.map(|block| block.0),
                    expected.map(|block| block.0),
                    "{count_a} {count_b}"
                );
                let mut alone = polys[i];
                (data[i].iter()).for_each(|block| alone.block(u128::from_le_bytes(*block)));
                assert_eq!(h, alone.h, "{count_a} {count_b}");
            }
        }
    }
}
