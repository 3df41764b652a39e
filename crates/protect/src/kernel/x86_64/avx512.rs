//! AVX-512, for ChaCha20-Poly1305. Chosen only on CPU families where a gain was measured: see
//! `choice`.

use std::arch::x86_64::*;

use super::poly1305x8::{Poly1305x8, long_message};
use super::tokens::Avx512;
use crate::kernel::Job;
use crate::kernel::chacha::block::{BLOCK_LEN, Block, Lane, Row, Rows};
use crate::kernel::chacha::entry::define_chacha;
use crate::kernel::chacha::forms::Forms;
use crate::kernel::chacha::poly1305::POLY_BLOCK_LEN;
use crate::kernel::chacha::{self, HeaderKey, Key, LeastAlone, alone, halves};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::SAMPLE_LEN;
use crate::suite::Suite;

/// Groups of registers in a pass. Zen 5 takes 9.2 ns a block with four and 8.0 ns with six; eight
/// do not fit into the 32 registers.
const GROUPS: usize = 6;

/// From this many blocks of one message on, eight at a time are faster, even with the computation
/// of the key's powers.
const LEAST_LONG: usize = 24;

impl Rows for Avx512 {
    type V = __m512i;
    type Rotations = ();

    type Parallel<'a> = Poly1305x8<'a>;

    const HAS_PARALLEL: bool = true;
    const WIDTH: usize = 4;
    // At 1,450 bytes 0.90 of the time in calls of eight and 0.72 in calls of two on Zen 5, 0.87 to
    // 0.94 and 0.85 on Emerald Rapids.
    const LEAST_ALONE: LeastAlone = LeastAlone {
        of_few: 700,
        of_many: 1250,
    };

    #[inline(always)]
    fn splat(self, row: &Row) -> __m512i {
        // SAFETY: `row` is 16 readable bytes, and the load is an unaligned one; the token proves
        // AVX-512F.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(row.as_ptr().cast())) }
    }

    #[inline(always)]
    fn inputs(self, lanes: &[Lane]) -> __m512i {
        // SAFETY: `nonce` is 16 readable bytes, and the loads are unaligned ones; the token proves
        // AVX-512F.
        unsafe {
            let input = |lane: &Lane| {
                let nonce = _mm_loadu_si128(lane.nonce.as_ptr().cast());
                _mm_add_epi32(nonce, _mm_cvtsi32_si128(lane.counter as i32))
            };
            let low = _mm256_set_m128i(input(&lanes[1]), input(&lanes[0]));
            let high = _mm256_set_m128i(input(&lanes[3]), input(&lanes[2]));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn rotations(self) {}

    #[inline(always)]
    fn rotate_16(self, v: __m512i, (): ()) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_rol_epi32::<16>(v) }
    }

    #[inline(always)]
    fn rotate_12(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_rol_epi32::<12>(v) }
    }

    #[inline(always)]
    fn rotate_8(self, v: __m512i, (): ()) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_rol_epi32::<8>(v) }
    }

    #[inline(always)]
    fn rotate_7(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_rol_epi32::<7>(v) }
    }

    #[inline(always)]
    fn turn_1(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_shuffle_epi32::<0x39>(v) }
    }

    #[inline(always)]
    fn turn_2(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_shuffle_epi32::<0x4e>(v) }
    }

    #[inline(always)]
    fn turn_3(self, v: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_shuffle_epi32::<0x93>(v) }
    }

    #[inline(always)]
    fn store_row(self, v: __m512i, rows: &mut [Row]) {
        let rows = &mut rows[..Self::WIDTH];
        // SAFETY: `rows` is 64 writable bytes, and the store is an unaligned one; the token proves
        // AVX-512F.
        unsafe { _mm512_storeu_si512(rows.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn store(self, rows: [__m512i; 4], blocks: &mut [Block]) {
        let [a, b, c, d] = rows;
        let to: *mut __m512i = blocks[..Self::WIDTH].as_mut_ptr().cast();
        // SAFETY: `to` is 256 writable bytes, four registers' worth, and the stores are unaligned
        // ones; the token proves AVX-512F.
        unsafe {
            // Four by four lanes, transposed.
            let ab_low = _mm512_shuffle_i32x4::<0x44>(a, b);
            let ab_high = _mm512_shuffle_i32x4::<0xee>(a, b);
            let cd_low = _mm512_shuffle_i32x4::<0x44>(c, d);
            let cd_high = _mm512_shuffle_i32x4::<0xee>(c, d);
            _mm512_storeu_si512(to, _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low));
            _mm512_storeu_si512(to.add(1), _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low));
            _mm512_storeu_si512(to.add(2), _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high));
            _mm512_storeu_si512(to.add(3), _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high));
        }
    }

    #[inline(always)]
    fn absorb_all(self, h: &mut [u64; 3], r: &[u64; 3], blocks: &[[u8; POLY_BLOCK_LEN]]) {
        let mut rest = blocks;
        if blocks.len() >= LEAST_LONG {
            let (eights, after) = blocks.as_chunks();
            // SAFETY: the token proves AVX-512 F and IFMA.
            unsafe { long_message(h, r, eights) };
            rest = after;
        }
        for block in rest {
            self.absorb(h, r, block);
        }
    }

    #[inline(always)]
    fn apply(self, input: Option<&[u8; BLOCK_LEN]>, pad: &Block, output: &mut [u8; BLOCK_LEN]) {
        let to: *mut __m512i = output.as_mut_ptr().cast();
        let from: *const __m512i = input.map_or(to.cast_const(), |input| input.as_ptr().cast());
        // SAFETY: all three are 64 bytes, of which `output`'s are writable; loads and stores are
        // unaligned ones; the token proves AVX-512F.
        unsafe {
            let pad = _mm512_loadu_si512(pad.0.as_ptr().cast());
            _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_loadu_si512(from), pad));
        }
    }
}

impl Avx512 {
    /// Whether a packet by itself takes less time in 256-bit registers. Decided by what is visible
    /// of a received packet (RFC 9001 §9.5).
    #[inline(always)]
    fn is_narrow(self, job: &Job<'_>) -> bool {
        // Negative if there is no number, or a short one and hardly any payload.
        let len = job.public_lens().1.cast_signed().max(0);
        len < self.narrow_below.cast_signed()
    }
}

impl Forms for Avx512 {
    #[inline(always)]
    fn seal_alone<const MIDDLE: usize, const G: usize, const LANES: usize>(
        self,
        key: &Key,
        header: Option<&HeaderKey>,
        job: &mut Job<'_>,
    ) {
        if self.is_narrow(job) {
            halves::seal(self.narrow(), key, header, job);
        } else {
            alone::seal::<Self, MIDDLE, G, LANES>(self, key, header, job);
        }
    }

    #[inline(always)]
    fn open_alone<const MIDDLE: usize, const G: usize, const LANES: usize>(
        self,
        key: &Key,
        job: &mut Job<'_>,
    ) -> bool {
        if self.is_narrow(job) {
            halves::open(self.narrow(), key, job)
        } else {
            alone::open::<Self, MIDDLE, G, LANES>(self, key, job)
        }
    }
}

define_chacha!(
    Avx512,
    GROUPS,
    4,
    "avx512f,avx512bw,avx512vl,avx512ifma,avx2,bmi2"
);
