//! AArch64: the tokens that prove what a CPU has, and its registers.
//!
//! ```text
//!   here        token Neon, and its entry points: ChaCha20-Poly1305
//!   aes         token NeonAes, and its entry points: AES-GCM
//! ```

pub(super) mod aes;

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use super::chacha::block::{BLOCK_LEN, Block, Lane, Row, Rows};
use super::chacha::entry::define_chacha;
use super::chacha::forms::Forms;
use super::chacha::parallel::NoParallel;
use super::chacha::{self, HeaderKey, Key, LeastAlone, NEVER};
use crate::kernel::Job;
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::SAMPLE_LEN;
use crate::suite::Suite;

/// Groups of registers in a pass: sixteen of the 32 registers, and what is in progress. Not
/// measured: the kernel has only run under an emulator.
const GROUPS: usize = 4;

/// Proof that Advanced SIMD was detected; only [`Neon::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct Neon(());

impl Neon {
    pub(crate) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

impl Rows for Neon {
    type V = uint32x4_t;
    /// The table that rotates each word left by 8 bits; 16 bits have an instruction.
    type Rotations = uint8x16_t;
    type Parallel<'a> = NoParallel<Self>;

    const HAS_PARALLEL: bool = false;
    const WIDTH: usize = 1;
    // Not measured.
    const LEAST_ALONE: LeastAlone = LeastAlone {
        of_few: NEVER,
        of_many: NEVER,
    };

    #[inline(always)]
    fn splat(self, row: &Row) -> uint32x4_t {
        // SAFETY: `row` is 16 readable bytes; the token proves NEON.
        unsafe { vld1q_u32(row.as_ptr()) }
    }

    #[inline(always)]
    fn inputs(self, lanes: &[Lane]) -> uint32x4_t {
        let Lane { nonce, counter } = lanes[0];
        // SAFETY: `nonce` is 16 readable bytes; the token proves NEON.
        unsafe {
            vaddq_u32(
                vld1q_u32(nonce.as_ptr()),
                vsetq_lane_u32::<0>(counter, vdupq_n_u32(0)),
            )
        }
    }

    #[inline(always)]
    fn add(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vaddq_u32(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { veorq_u32(a, b) }
    }

    #[inline(always)]
    fn rotations(self) -> uint8x16_t {
        const BY_8: [u8; 16] = [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14];
        // SAFETY: the table is 16 readable bytes; the token proves NEON.
        unsafe { vld1q_u8(BY_8.as_ptr()) }
    }

    #[inline(always)]
    fn rotate_16(self, v: uint32x4_t, _: uint8x16_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(v))) }
    }

    #[inline(always)]
    fn rotate_12(self, v: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vsliq_n_u32::<12>(vshrq_n_u32::<20>(v), v) }
    }

    #[inline(always)]
    fn rotate_8(self, v: uint32x4_t, by_8: uint8x16_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(v), by_8)) }
    }

    #[inline(always)]
    fn rotate_7(self, v: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vsliq_n_u32::<7>(vshrq_n_u32::<25>(v), v) }
    }

    #[inline(always)]
    fn turn_1(self, v: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vextq_u32::<1>(v, v) }
    }

    #[inline(always)]
    fn turn_2(self, v: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vextq_u32::<2>(v, v) }
    }

    #[inline(always)]
    fn turn_3(self, v: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON.
        unsafe { vextq_u32::<3>(v, v) }
    }

    #[inline(always)]
    fn store_row(self, v: uint32x4_t, rows: &mut [Row]) {
        // SAFETY: a row is 16 writable bytes; the token proves NEON.
        unsafe { vst1q_u32(rows[0].as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn store(self, rows: [uint32x4_t; 4], blocks: &mut [Block]) {
        for (row, bytes) in rows.into_iter().zip(blocks[0].0.as_chunks_mut::<16>().0) {
            // SAFETY: `bytes` is 16 writable bytes; the token proves NEON.
            unsafe { vst1q_u8(bytes.as_mut_ptr(), vreinterpretq_u8_u32(row)) }
        }
    }

    #[inline(always)]
    fn apply(self, input: Option<&[u8; BLOCK_LEN]>, pad: &Block, output: &mut [u8; BLOCK_LEN]) {
        let to = output.as_mut_ptr();
        let from = input.map_or(to.cast_const(), |input| input.as_ptr());
        for at in (0..BLOCK_LEN).step_by(16) {
            // SAFETY: all three are 64 bytes, of which `output`'s are writable, and `at` is at most
            // 48; the token proves NEON.
            unsafe {
                let pad = vld1q_u8(pad.0.as_ptr().add(at));
                vst1q_u8(to.add(at), veorq_u8(vld1q_u8(from.add(at)), pad));
            }
        }
    }
}

impl Forms for Neon {}

define_chacha!(Neon, GROUPS, 2, "neon");
