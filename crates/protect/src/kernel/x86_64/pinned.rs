//! The inner step in a fixed order.
//!
//! Left to itself the compiler does all of AES and then all of GHASH, spills registers in between, and nothing overlaps.
//! Here each AES round carries one register's worth of GHASH, and the order is the assembler's: 15 % fewer cycles on
//! Zen 3, 20 % on Zen 5. The same work in the compiler's order is [`Stitch::run`], which a test compares with this.
//!
//! ```text
//!   s0..s7      AES states                      low high middle   GHASH, unreduced
//!   k           round key                       x y               a register of data, a product
//! ```
//! One text serves all numbers of states and of data registers: lines that a smaller number has no use for are
//! turned into comments by a `#` in front.

use std::arch::asm;
use std::arch::x86_64::__m256i;

use super::Vaes256;
use crate::kernel::ghash::Acc;
#[cfg(test)]
use crate::kernel::lanes::Lanes;
use crate::kernel::stitch::{Rounds, Stitch};

/// A round with a register of data: its product with a power of H by Karatsuba, three multiplications.
macro_rules! round {
    ($r:literal, $at:literal, $h:literal, [$s0:literal $s1:literal $s2:literal $s3:literal $s4:literal $s5:literal $s6:literal $s7:literal]) => {
        concat!(
            "vbroadcasti128 {k}, [{rounds} + 16 * ",
            $r,
            "]\n",
            $h,
            "vmovdqu {x}, [{data} + ",
            $at,
            "]\n",
            $s0,
            "vaesenc {s0}, {s0}, {k}\n",
            $s1,
            "vaesenc {s1}, {s1}, {k}\n",
            $h,
            "vpshufb {x}, {x}, {reverse}\n",
            $s2,
            "vaesenc {s2}, {s2}, {k}\n",
            $h,
            "vpclmulqdq {y}, {x}, [{h} + ",
            $at,
            "], 0x00\n",
            $s3,
            "vaesenc {s3}, {s3}, {k}\n",
            $s4,
            "vaesenc {s4}, {s4}, {k}\n",
            $h,
            "vpxor {low}, {low}, {y}\n",
            $h,
            "vpclmulqdq {y}, {x}, [{h} + ",
            $at,
            "], 0x11\n",
            $s5,
            "vaesenc {s5}, {s5}, {k}\n",
            $h,
            "vpxor {high}, {high}, {y}\n",
            $h,
            "vpshufd {y}, {x}, 0x4e\n",
            $s6,
            "vaesenc {s6}, {s6}, {k}\n",
            $h,
            "vpxor {x}, {x}, {y}\n",
            $h,
            "vpclmulqdq {x}, {x}, [{halves} + ",
            $at,
            "], 0x00\n",
            $s7,
            "vaesenc {s7}, {s7}, {k}\n",
            $h,
            "vpxor {middle}, {middle}, {x}\n",
        )
    };
}

/// A round without data.
macro_rules! plain_round {
    ($op:literal, $r:literal, [$s0:literal $s1:literal $s2:literal $s3:literal $s4:literal $s5:literal $s6:literal $s7:literal]) => {
        concat!(
            "vbroadcasti128 {k}, [{rounds} + 16 * ",
            $r,
            "]\n",
            $s0,
            $op,
            " {s0}, {s0}, {k}\n",
            $s1,
            $op,
            " {s1}, {s1}, {k}\n",
            $s2,
            $op,
            " {s2}, {s2}, {k}\n",
            $s3,
            $op,
            " {s3}, {s3}, {k}\n",
            $s4,
            $op,
            " {s4}, {s4}, {k}\n",
            $s5,
            $op,
            " {s5}, {s5}, {k}\n",
            $s6,
            $op,
            " {s6}, {s6}, {k}\n",
            $s7,
            $op,
            " {s7}, {s7}, {k}\n",
        )
    };
}

/// The rounds after the eighth.
macro_rules! last_rounds {
    (10, $s:tt) => {
        concat!(
            plain_round!("vaesenc", 9, $s),
            plain_round!("vaesenclast", 10, $s)
        )
    };
    (14, $s:tt) => {
        concat!(
            plain_round!("vaesenc", 9, $s),
            plain_round!("vaesenc", 10, $s),
            plain_round!("vaesenc", 11, $s),
            plain_round!("vaesenc", 12, $s),
            plain_round!("vaesenc", 13, $s),
            plain_round!("vaesenclast", 14, $s),
        )
    };
}

/// The whole step: `$s` has an empty string for each state that is in use and a `#` for the others, `$h` likewise for
/// the registers of data.
macro_rules! step {
    ($work:ident, $n:ident, $rounds:tt,
     [$s0:literal $s1:literal $s2:literal $s3:literal $s4:literal $s5:literal $s6:literal $s7:literal],
     [$h1:literal $h2:literal $h3:literal $h4:literal $h5:literal $h6:literal $h7:literal $h8:literal]) => {{
        let (s0, s1, s2, s3, s4, s5, s6, s7): (
            __m256i, __m256i, __m256i, __m256i, __m256i, __m256i, __m256i, __m256i,
        );
        // SAFETY: what is read are the eleven or fifteen round keys of `rounds`, `N` registers at `counters` and `M`
        // each at `data` and the powers, all behind references to arrays of these lengths; nothing is
        // written to memory. The caller's features are those of the instructions.
        unsafe {
            asm!(
                concat!(
                    $s0, "vpxor {s0}, {k}, [{counters}]\n",
                    $s1, "vpxor {s1}, {k}, [{counters} + 32]\n",
                    $s2, "vpxor {s2}, {k}, [{counters} + 64]\n",
                    $s3, "vpxor {s3}, {k}, [{counters} + 96]\n",
                    $s4, "vpxor {s4}, {k}, [{counters} + 128]\n",
                    $s5, "vpxor {s5}, {k}, [{counters} + 160]\n",
                    $s6, "vpxor {s6}, {k}, [{counters} + 192]\n",
                    $s7, "vpxor {s7}, {k}, [{counters} + 224]\n",
                    round!(1, 0, $h1, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    round!(2, 32, $h2, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    round!(3, 64, $h3, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    round!(4, 96, $h4, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    round!(5, 128, $h5, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    round!(6, 160, $h6, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    round!(7, 192, $h7, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    round!(8, 224, $h8, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                    last_rounds!($rounds, [$s0 $s1 $s2 $s3 $s4 $s5 $s6 $s7]),
                ),
                s0 = out(ymm_reg) s0,
                s1 = out(ymm_reg) s1,
                s2 = out(ymm_reg) s2,
                s3 = out(ymm_reg) s3,
                s4 = out(ymm_reg) s4,
                s5 = out(ymm_reg) s5,
                s6 = out(ymm_reg) s6,
                s7 = out(ymm_reg) s7,
                low = inout(ymm_reg) $work.acc.low,
                high = inout(ymm_reg) $work.acc.high,
                middle = inout(ymm_reg) $work.acc.middle,
                k = inout(ymm_reg) $work.base => _,
                x = out(ymm_reg) _,
                y = out(ymm_reg) _,
                reverse = in(ymm_reg) $work.reverse,
                rounds = in(reg) $work.rounds,
                counters = in(reg) $work.counters,
                data = in(reg) $work.data,
                h = in(reg) $work.h,
                halves = in(reg) $work.halves,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        let all = [s0, s1, s2, s3, s4, s5, s6, s7];
        let mut states = [s0; $n];
        states.copy_from_slice(&all[..$n]);
        states
    }};
}

/// [`step`] with its lists of states and of data registers by their numbers.
macro_rules! step_of {
    ($work:ident, $n:ident, $rounds:tt, 1 $m:tt) => { step_with!($work, $n, $rounds, ["" "#" "#" "#" "#" "#" "#" "#"], $m) };
    ($work:ident, $n:ident, $rounds:tt, 2 $m:tt) => { step_with!($work, $n, $rounds, ["" "" "#" "#" "#" "#" "#" "#"], $m) };
    ($work:ident, $n:ident, $rounds:tt, 3 $m:tt) => { step_with!($work, $n, $rounds, ["" "" "" "#" "#" "#" "#" "#"], $m) };
    ($work:ident, $n:ident, $rounds:tt, 4 $m:tt) => { step_with!($work, $n, $rounds, ["" "" "" "" "#" "#" "#" "#"], $m) };
    ($work:ident, $n:ident, $rounds:tt, 5 $m:tt) => { step_with!($work, $n, $rounds, ["" "" "" "" "" "#" "#" "#"], $m) };
    ($work:ident, $n:ident, $rounds:tt, 6 $m:tt) => { step_with!($work, $n, $rounds, ["" "" "" "" "" "" "#" "#"], $m) };
    ($work:ident, $n:ident, $rounds:tt, 7 $m:tt) => { step_with!($work, $n, $rounds, ["" "" "" "" "" "" "" "#"], $m) };
    ($work:ident, $n:ident, $rounds:tt, 8 $m:tt) => { step_with!($work, $n, $rounds, ["" "" "" "" "" "" "" ""], $m) };
}

macro_rules! step_with {
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 1) => { step!($work, $n, $rounds, $s, ["" "#" "#" "#" "#" "#" "#" "#"]) };
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 2) => { step!($work, $n, $rounds, $s, ["" "" "#" "#" "#" "#" "#" "#"]) };
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 3) => { step!($work, $n, $rounds, $s, ["" "" "" "#" "#" "#" "#" "#"]) };
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 4) => { step!($work, $n, $rounds, $s, ["" "" "" "" "#" "#" "#" "#"]) };
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 5) => { step!($work, $n, $rounds, $s, ["" "" "" "" "" "#" "#" "#"]) };
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 6) => { step!($work, $n, $rounds, $s, ["" "" "" "" "" "" "#" "#"]) };
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 7) => { step!($work, $n, $rounds, $s, ["" "" "" "" "" "" "" "#"]) };
    ($work:ident, $n:ident, $rounds:tt, $s:tt, 8) => { step!($work, $n, $rounds, $s, ["" "" "" "" "" "" "" ""]) };
}

/// What the text refers to.
struct Work<'a> {
    acc: &'a mut Acc<Vaes256>,
    base: __m256i,
    reverse: __m256i,
    rounds: *const Rounds,
    counters: *const [u8; 32],
    data: *const [u8; 32],
    h: *const [u8; 32],
    halves: *const [u8; 32],
}

/// [`Stitch::run`] in a fixed order, for the numbers of registers that packets need.
#[inline]
#[target_feature(enable = "vaes,vpclmulqdq,avx2")]
pub(super) fn stitch<const R: usize, const N: usize, const M: usize>(
    stitch: &mut Stitch<'_, Vaes256, N, M>,
    token: Vaes256,
) -> [__m256i; N] {
    let work = Work {
        base: stitch.base,
        reverse: token.reversal(),
        rounds: stitch.rounds,
        counters: stitch.counters.as_ptr(),
        data: stitch.data.as_ptr(),
        h: stitch.powers.0.as_ptr(),
        halves: stitch.powers.1.as_ptr(),
        acc: &mut *stitch.acc,
    };
    macro_rules! by_registers {
        ($rounds:tt, $($n:tt $m:tt)*) => {
            match (N, M) {
                $( ($n, $m) => step_of!(work, N, $rounds, $n $m), )*
                _ => stitch.run::<R>(token),
            }
        };
    }
    // Whole chunks; a tail with the chunk before it; a chunk with the tail of the packet before; a tail that is opened.
    match R {
        10 => by_registers!(10,
            8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 1 1 2 2 3 3 4 4 5 5 6 6 7 7),
        14 => by_registers!(14,
            8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 1 1 2 2 3 3 4 4 5 5 6 6 7 7),
        _ => stitch.run::<R>(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of registers that packets need, in the fixed order and in the compiler's.
    #[test]
    fn fixed_order_does_what_the_compilers_order_does() {
        let Some(token) = Vaes256::detect() else {
            return;
        };
        macro_rules! compare {
            ($($n:literal $m:literal)*) => { $(
                compare::<10, $n, $m>(token);
                compare::<14, $n, $m>(token);
            )* };
        }
        compare!(8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 1 1 2 2 3 3 4 4 5 5 6 6 7 7);
    }

    fn bytes<const N: usize>(seed: u8) -> [[u8; 32]; N] {
        std::array::from_fn(|i| {
            std::array::from_fn(|j| (i * 37 + j * 11) as u8 ^ seed.rotate_left(j as u32))
        })
    }

    fn compare<const R: usize, const N: usize, const M: usize>(token: Vaes256) {
        let mut rounds = Rounds::EMPTY;
        for (i, key) in rounds.0.iter_mut().enumerate() {
            *key = [i as u8 * 13 + 1; 16];
        }
        let (counters, data, h, halves) = (bytes(1), bytes(2), bytes(3), bytes(4));
        let base = token.load(&bytes::<1>(5)[0]);
        let run = |pinned: bool| {
            let mut acc = Acc::zero(token);
            let mut work = Stitch::<'_, _, N, M> {
                rounds: &rounds,
                base,
                counters: &counters,
                acc: &mut acc,
                data: &data,
                powers: (&h, &halves),
            };
            let states = if pinned {
                // SAFETY: the token proves the features.
                unsafe { stitch::<R, N, M>(&mut work, token) }
            } else {
                work.run::<R>(token)
            };
            let mut out = Vec::new();
            for v in states.into_iter().chain([acc.low, acc.high, acc.middle]) {
                let mut bytes = [0; 32];
                token.store(&mut bytes, v);
                out.push(bytes);
            }
            out
        };
        assert_eq!(run(true), run(false), "{R} rounds, {N} and {M} registers");
    }
}
