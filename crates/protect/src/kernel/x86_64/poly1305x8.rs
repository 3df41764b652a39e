//! Poly1305 (RFC 8439 §2.5) of eight messages in parallel, a lane of a 512-bit register each.
//!
//! ```text
//!   h, r    limbs of 44, 44 and 42 bits, in three registers; products by IFMA, which adds the low
//!           or the high 52 bits of a product to a sum
//! ```
//! Each message has its own key and its own chain of blocks, so there are no powers of r and
//! nothing to add up at the end. The cipher's rounds hide the wait for a multiplication.

use std::arch::x86_64::*;

use super::tokens::Avx512;
use crate::kernel::chacha::meanwhile::{Meanwhile, PAUSES};
use crate::kernel::chacha::parallel::{Messages, PARALLEL, Parallel};
use crate::kernel::chacha::poly1305::{POLY_BLOCK_LEN, multiply};
use crate::kernel::registers::wipe;

/// Eight messages in progress.
pub(crate) struct Poly1305x8<'a> {
    r: [__m512i; 3],
    /// The upper limbs of r times 20: 2^132 is 20.
    s: [__m512i; 2],
    h: [__m512i; 3],
    /// Each has `count` blocks.
    data: [&'a [[u8; POLY_BLOCK_LEN]]; PARALLEL],
    at: usize,
    count: usize,
    stride: usize,
}

/// Turns numbers in limbs of 64 bits into limbs of 44 bits and the rest.
#[inline]
#[target_feature(enable = "avx512f")]
fn split(low: __m512i, high: __m512i, above: __m512i) -> [__m512i; 3] {
    let mask = _mm512_set1_epi64((1 << 44) - 1);
    let middle = _mm512_or_si512(_mm512_srli_epi64::<44>(low), _mm512_slli_epi64::<20>(high));
    let top = _mm512_or_si512(
        _mm512_srli_epi64::<24>(high),
        _mm512_slli_epi64::<40>(above),
    );
    [
        _mm512_and_si512(low, mask),
        _mm512_and_si512(middle, mask),
        top,
    ]
}

/// Adds a block to each number and multiplies by r.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn round(
    h: [__m512i; 3],
    r: &[__m512i; 3],
    s: &[__m512i; 2],
    low: __m512i,
    high: __m512i,
) -> [__m512i; 3] {
    let zero = _mm512_setzero_si512();
    let mask_44 = _mm512_set1_epi64((1 << 44) - 1);
    let mask_42 = _mm512_set1_epi64((1 << 42) - 1);
    // RFC 8439 §2.5: one bit beyond the block.
    let block = split(low, high, _mm512_set1_epi64(1));
    let [h0, h1, h2] = [
        _mm512_add_epi64(h[0], block[0]),
        _mm512_add_epi64(h[1], block[1]),
        _mm512_add_epi64(h[2], block[2]),
    ];
    // A limb of the product: three products, with their low and high parts kept apart.
    let limb = |a: __m512i, b: __m512i, c: __m512i| {
        let low = _mm512_madd52lo_epu64(zero, h0, a);
        let low = _mm512_madd52lo_epu64(low, h1, b);
        let low = _mm512_madd52lo_epu64(low, h2, c);
        let high = _mm512_madd52hi_epu64(zero, h0, a);
        let high = _mm512_madd52hi_epu64(high, h1, b);
        (low, _mm512_madd52hi_epu64(high, h2, c))
    };
    let (d0, e0) = limb(r[0], s[1], s[0]);
    let (d1, e1) = limb(r[1], r[0], s[1]);
    let (d2, e2) = limb(r[2], r[1], r[0]);

    // A high part is worth 2^52, the next limb 2^44.
    let d1 = _mm512_add_epi64(d1, _mm512_slli_epi64::<8>(e0));
    let d2 = _mm512_add_epi64(d2, _mm512_slli_epi64::<8>(e1));
    let d1 = _mm512_add_epi64(d1, _mm512_srli_epi64::<44>(d0));
    let d2 = _mm512_add_epi64(d2, _mm512_srli_epi64::<44>(d1));
    // The bits above 2^130 come back times five; the last high part is worth 2^140.
    let above = _mm512_add_epi64(_mm512_srli_epi64::<42>(d2), _mm512_slli_epi64::<10>(e2));
    let five = _mm512_add_epi64(above, _mm512_slli_epi64::<2>(above));
    let d0 = _mm512_add_epi64(_mm512_and_si512(d0, mask_44), five);
    [
        _mm512_and_si512(d0, mask_44),
        _mm512_add_epi64(_mm512_and_si512(d1, mask_44), _mm512_srli_epi64::<44>(d0)),
        _mm512_and_si512(d2, mask_42),
    ]
}

/// A block.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; POLY_BLOCK_LEN]) -> __m128i {
    // SAFETY: a block is 16 readable bytes, and the load is an unaligned one.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

/// A block of each message: their low halves and their high halves, in the order of [`ORDER`].
#[inline]
#[target_feature(enable = "avx512f")]
fn gather([a, b, c, d, e, f, g, h]: [&[u8; POLY_BLOCK_LEN]; PARALLEL]) -> (__m512i, __m512i) {
    let first = _mm512_castsi128_si512(load(a));
    let first = _mm512_inserti32x4::<1>(first, load(b));
    let first = _mm512_inserti32x4::<2>(first, load(c));
    let first = _mm512_inserti32x4::<3>(first, load(d));
    let second = _mm512_castsi128_si512(load(e));
    let second = _mm512_inserti32x4::<1>(second, load(f));
    let second = _mm512_inserti32x4::<2>(second, load(g));
    let second = _mm512_inserti32x4::<3>(second, load(h));
    (
        _mm512_unpacklo_epi64(first, second),
        _mm512_unpackhi_epi64(first, second),
    )
}

/// The order of the messages in a register.
const ORDER: [usize; PARALLEL] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The reverse: where in a register a message is.
const LANE: [usize; PARALLEL] = [0, 2, 4, 6, 1, 3, 5, 7];

impl<'a> Parallel<'a> for Poly1305x8<'a> {
    type Token = Avx512;

    #[inline(always)]
    fn new(_: Avx512, messages: Messages<'a>, count: usize) -> Self {
        let mut columns = [[0; PARALLEL]; 5];
        let mut data = [&[][..]; PARALLEL];
        for (lane, i) in ORDER.into_iter().enumerate() {
            let message = &messages[i];
            [columns[0][lane], columns[1][lane]] = message.r;
            [columns[2][lane], columns[3][lane], columns[4][lane]] = message.h;
            data[i] = &message.data[..count];
        }
        // SAFETY: each column is 64 readable bytes, and the loads are unaligned ones; the token
        // proves AVX-512 F.
        unsafe {
            let row = |row: usize| _mm512_loadu_si512(columns[row].as_ptr().cast());
            let [r0, r1, h0, h1, h2] = [row(0), row(1), row(2), row(3), row(4)];
            let r = split(r0, r1, _mm512_setzero_si512());
            let twenty = |v| _mm512_add_epi64(_mm512_slli_epi64::<4>(v), _mm512_slli_epi64::<2>(v));
            Self {
                s: [twenty(r[1]), twenty(r[2])],
                r,
                h: split(h0, h1, h2),
                data,
                at: 0,
                count,
                stride: count.div_ceil(PAUSES),
            }
        }
    }

    #[inline(always)]
    fn finish(mut self) -> [[u64; 3]; PARALLEL] {
        while self.at < self.count {
            self.one();
        }
        let mut limbs = [[0_u64; PARALLEL]; 3];
        for (limb, h) in limbs.iter_mut().zip(self.h) {
            // SAFETY: `limb` is 64 writable bytes, and the store is an unaligned one; the token
            // that made the value proves AVX-512 F.
            unsafe { _mm512_storeu_si512(limb.as_mut_ptr().cast(), h) };
        }
        let mut out = [[0; 3]; PARALLEL];
        for (lane, i) in ORDER.into_iter().enumerate() {
            let [l0, l1, l2] = limbs.map(|limb| u128::from(limb[lane]));
            // The limbs may be a little longer than 44 bits, so they are added, not joined.
            let low = l0 + (l1 << 44);
            let (low, carry) = low.overflowing_add(l2 << 88);
            out[i] = [
                low as u64,
                (low >> 64) as u64,
                (l2 >> 40) as u64 + u64::from(carry),
            ];
        }
        out
    }
}

impl Poly1305x8<'_> {
    #[inline(always)]
    fn one(&mut self) {
        let at = self.at;
        // SAFETY: each slice has `count` blocks, and `at` is less. The token that made the value
        // proves AVX-512 F and IFMA.
        unsafe {
            let block = |i: usize| self.data[i].get_unchecked(at);
            let (low, high) = gather([
                block(0),
                block(1),
                block(2),
                block(3),
                block(4),
                block(5),
                block(6),
                block(7),
            ]);
            self.h = round(self.h, &self.r, &self.s, low, high);
        }
        self.at += 1;
    }
}

impl Meanwhile for Poly1305x8<'_> {
    #[inline(always)]
    fn step(&mut self) {
        for _ in 0..self.stride {
            if self.at < self.count {
                self.one();
            }
        }
    }
}

/// Adds blocks to h, multiplying by r after each: eight blocks at a time, by the powers of r that
/// their places require.
///
/// ```text
///   h = (h + b0) r^8 + b1 r^7 + … + b7 r     each lane has r^8 until the last eight blocks
/// ```
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn long_message(
    h: &mut [u64; 3],
    r: &[u64; 3],
    blocks: &[[[u8; POLY_BLOCK_LEN]; PARALLEL]],
) {
    let Some((last, before)) = blocks.split_last() else {
        return;
    };
    let mut columns = [[0; PARALLEL]; 3];
    let mut power = [r[0], r[1], 0];
    for exponent in 1..=PARALLEL {
        let lane = LANE[PARALLEL - exponent];
        for (column, limb) in columns.iter_mut().zip(power) {
            column[lane] = limb;
        }
        if exponent < PARALLEL {
            multiply(&mut power, r);
        }
    }
    let twenty = |v| _mm512_add_epi64(_mm512_slli_epi64::<4>(v), _mm512_slli_epi64::<2>(v));
    let key = |[r0, r1, r2]: [__m512i; 3]| {
        let r = split(r0, r1, r2);
        (r, [twenty(r[1]), twenty(r[2])])
    };
    let (eighth, eighth_20) = key(power.map(|limb| _mm512_set1_epi64(limb.cast_signed())));
    // SAFETY: each column is 64 readable bytes, and the loads are unaligned ones.
    let (powers, powers_20) =
        key(columns.map(|column| unsafe { _mm512_loadu_si512(column.as_ptr().cast()) }));
    let first = |limb: u64| _mm512_zextsi128_si512(_mm_cvtsi64_si128(limb.cast_signed()));
    let mut sum = split(first(h[0]), first(h[1]), first(h[2]));
    for eight in before {
        let (low, high) = load_eight(eight);
        sum = round(sum, &eighth, &eighth_20, low, high);
    }
    let (low, high) = load_eight(last);
    sum = round(sum, &powers, &powers_20, low, high);
    let [l0, l1, l2] = sum.map(|limb| _mm512_reduce_add_epi64(limb).cast_unsigned());
    // The limbs are longer than 44 bits, so they are added, not joined.
    let (low, carry) =
        (u128::from(l0) + (u128::from(l1) << 44)).overflowing_add(u128::from(l2) << 88);
    let above = (l2 >> 40) + u64::from(carry);
    // The bits above 2^130 come back times five.
    let (low, carry) = low.overflowing_add(u128::from((above >> 2) * 5));
    *h = [
        low as u64,
        (low >> 64) as u64,
        (above & 3) + u64::from(carry),
    ];
    wipe(&mut columns, [0; PARALLEL]);
}

/// Eight blocks of one message: their low halves and their high halves, in the order of [`ORDER`].
#[inline]
#[target_feature(enable = "avx512f")]
fn load_eight(blocks: &[[u8; POLY_BLOCK_LEN]; PARALLEL]) -> (__m512i, __m512i) {
    let from: *const __m512i = blocks.as_ptr().cast();
    // SAFETY: the blocks are 128 readable bytes, and the loads are unaligned ones.
    let (first, second) = unsafe { (_mm512_loadu_si512(from), _mm512_loadu_si512(from.add(1))) };
    (
        _mm512_unpacklo_epi64(first, second),
        _mm512_unpackhi_epi64(first, second),
    )
}
