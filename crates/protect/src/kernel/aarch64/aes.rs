//! AES-GCM by the AES and PMULL instructions of the Cryptographic Extension, one lane wide.
//!
//! The AES instruction is split differently from x86's: AESE adds a key, *then* substitutes and
//! shifts; AESMC mixes the columns. So the next round's instruction adds the key of this one, the
//! first key comes with the counters, and only the last key needs an addition of its own:
//!
//! ```text
//!   x86         state ^ k0 | sub shift mix ^ k1 | ... | sub shift ^ kR
//!   here        AESE(base, counter) AESMC | AESE(.., k1) AESMC | ... | AESE(.., k(R-1)) | ^ kR
//! ```

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::registers::{Block, Crypto, Registers, one_lane};
use crate::kernel::stitch::{Rounds, Stitch, middle_rounds};

/// Proof that Advanced SIMD, AES and PMULL were detected; only [`NeonAes::detect`] makes one.
#[derive(Copy, Clone)]
pub(crate) struct NeonAes(());

impl NeonAes {
    pub(crate) fn detect() -> Option<Self> {
        // The code assumes that the registers' bytes are in the order of memory.
        let all = cfg!(target_endian = "little")
            && is_aarch64_feature_detected!("neon")
            && is_aarch64_feature_detected!("aes")
            && is_aarch64_feature_detected!("pmull");
        all.then_some(Self(()))
    }

    /// A round that adds its key first, without the mixing of columns.
    #[inline(always)]
    fn half_round(self, state: uint8x16_t, key: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves AES.
        unsafe { half_round(state, key) }
    }

    /// A round that adds its key first.
    #[inline(always)]
    fn round(self, state: uint8x16_t, key: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves AES.
        unsafe { round(state, key) }
    }
}

impl Registers for NeonAes {
    one_lane!(uint8x16_t);

    #[inline(always)]
    fn zero(self) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vdupq_n_u8(0) }
    }

    #[inline(always)]
    fn load(self, bytes: &Block) -> uint8x16_t {
        // SAFETY: `bytes` is 16 readable bytes, of any alignment; the token proves NEON.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, bytes: &mut Block, v: uint8x16_t) {
        // SAFETY: `bytes` is 16 writable bytes, of any alignment; the token proves NEON.
        unsafe { vst1q_u8(bytes.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn splat(self, low: u64, high: u64) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high))) }
    }

    #[inline(always)]
    fn low(self, v: uint8x16_t) -> u64 {
        // SAFETY: the token proves NEON.
        unsafe { vgetq_lane_u64::<0>(vreinterpretq_u64_u8(v)) }
    }

    #[inline(always)]
    fn xor(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { veorq_u8(a, b) }
    }

    #[inline(always)]
    fn and(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vandq_u8(a, b) }
    }

    #[inline(always)]
    fn add32(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b))) }
    }
}

impl Crypto for NeonAes {
    #[inline(always)]
    fn reverse(self, v: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        let halves = unsafe { vrev64q_u8(v) };
        self.swap(halves)
    }

    #[inline(always)]
    fn swap(self, v: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vextq_u8::<8>(v, v) }
    }

    #[inline(always)]
    fn raise(self, v: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vextq_u8::<8>(self.zero(), v) }
    }

    #[inline(always)]
    fn lower(self, v: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vextq_u8::<8>(v, self.zero()) }
    }

    #[inline(always)]
    fn multiply_low(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves PMULL.
        unsafe { multiply_low(a, b) }
    }

    #[inline(always)]
    fn multiply_high(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves PMULL.
        unsafe { multiply_high(a, b) }
    }

    #[inline(always)]
    fn aes(self, state: uint8x16_t, key: uint8x16_t) -> uint8x16_t {
        self.xor(self.round(state, self.zero()), key)
    }

    #[inline(always)]
    fn aes_last(self, state: uint8x16_t, key: uint8x16_t) -> uint8x16_t {
        self.xor(self.half_round(state, self.zero()), key)
    }
}

impl Lanes for NeonAes {
    type Single = Self;

    #[inline(always)]
    fn single(self) -> Self {
        self
    }

    #[inline(always)]
    fn call<T, W: Work<Self, T>>(self, work: W) -> T {
        #[inline(never)]
        #[target_feature(enable = "neon,aes")]
        fn called<T, W: Work<NeonAes, T>>(l: NeonAes, work: W) -> T {
            work.run(l)
        }
        // SAFETY: the token proves the features.
        unsafe { called(self, work) }
    }

    #[inline(always)]
    fn aes_rounds<const R: usize, const N: usize>(
        self,
        states: &mut [uint8x16_t; N],
        rounds: &Rounds,
    ) {
        // The first key is in the states already.
        for state in &mut *states {
            *state = self.round(*state, self.zero());
        }
        macro_rules! round {
            ($r:literal) => {
                if $r < R - 1 {
                    let key = self.load(&rounds.0[$r]);
                    for state in &mut *states {
                        *state = self.round(*state, key);
                    }
                }
            };
        }
        middle_rounds!(R, round, 1 2 3 4 5 6 7 8 9 10 11 12);
        self.last_round::<R, N>(states, rounds);
    }

    #[inline(always)]
    fn stitch<const R: usize, const N: usize, const M: usize>(
        self,
        work: &mut Stitch<'_, Self, N, M>,
    ) -> [uint8x16_t; N] {
        let mut states = [work.base; N];
        for (state, counter) in states.iter_mut().zip(work.counters) {
            *state = self.round(work.base, self.load(counter));
        }
        macro_rules! round {
            ($r:literal) => {
                if $r < R - 1 {
                    let key = self.load(&work.rounds.0[$r]);
                    for state in &mut states {
                        *state = self.round(*state, key);
                    }
                    if $r <= M {
                        let (h, halves) = (&work.powers.0[$r - 1], &work.powers.1[$r - 1]);
                        work.acc.add(self, &work.data[$r - 1], h, halves);
                    }
                }
            };
        }
        middle_rounds!(R, round, 1 2 3 4 5 6 7 8 9 10 11 12);
        self.last_round::<R, N>(&mut states, work.rounds);
        states
    }
}

impl NeonAes {
    /// The last two keys.
    #[inline(always)]
    fn last_round<const R: usize, const N: usize>(
        self,
        states: &mut [uint8x16_t; N],
        rounds: &Rounds,
    ) {
        let (before, last) = (self.load(&rounds.0[R - 1]), self.load(&rounds.0[R]));
        for state in states {
            *state = self.xor(self.half_round(*state, before), last);
        }
    }
}

// Instructions that not every AArch64 has. Their intrinsics must always be inlined, which the
// compiler refuses to do in a method without the feature. These functions dissolve with the method,
// in an entry point that has it.

#[inline]
#[target_feature(enable = "neon,aes")]
fn half_round(state: uint8x16_t, key: uint8x16_t) -> uint8x16_t {
    vaeseq_u8(state, key)
}

#[inline]
#[target_feature(enable = "neon,aes")]
fn round(state: uint8x16_t, key: uint8x16_t) -> uint8x16_t {
    vaesmcq_u8(vaeseq_u8(state, key))
}

#[inline]
#[target_feature(enable = "neon,aes")]
fn multiply_low(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    let (a, b) = (vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b));
    vreinterpretq_u8_p128(vmull_p64(vgetq_lane_u64::<0>(a), vgetq_lane_u64::<0>(b)))
}

#[inline]
#[target_feature(enable = "neon,aes")]
fn multiply_high(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    let (a, b) = (vreinterpretq_p64_u8(a), vreinterpretq_p64_u8(b));
    vreinterpretq_u8_p128(vmull_high_p64(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::stitch::aes_rounds;

    /// The native order, and x86's.
    #[test]
    fn both_orders_of_the_rounds_agree() {
        let Some(l) = NeonAes::detect() else { return };
        let mut rounds = Rounds::EMPTY;
        for (i, key) in rounds.0.iter_mut().enumerate() {
            *key = [i as u8 * 13 + 1; 16];
        }
        let bytes = |v| {
            let mut bytes = [0; 16];
            l.store(&mut bytes, v);
            bytes
        };
        let (mut native, mut other) = (
            [l.splat(1, 2), l.splat(3, 4)],
            [l.splat(1, 2), l.splat(3, 4)],
        );
        l.aes_rounds::<10, 2>(&mut native, &rounds);
        aes_rounds::<_, 10, 2>(l, &mut other, &rounds);
        assert_eq!(native.map(bytes), other.map(bytes));
        l.aes_rounds::<14, 2>(&mut native, &rounds);
        aes_rounds::<_, 14, 2>(l, &mut other, &rounds);
        assert_eq!(native.map(bytes), other.map(bytes));
    }
}
