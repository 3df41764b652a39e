//! The inner step in a fixed order.
//!
//! Left to itself the compiler does all of AES and then all of GHASH, spills registers in between,
//! and nothing overlaps. Here each AES round carries one register's worth of GHASH, and the order
//! is the assembler's: 15 % fewer cycles on Zen 3, 10 % on Zen 5. [`Stitch::run`] is the same work
//! in the compiler's order; a test compares the two.
//!
//! ```text
//!   s0..s7      AES states                      low high middle   GHASH, unreduced
//!   k           round key                       x y               a register of data, a product
//! ```
//! One text serves all numbers of states: a `#` in front turns the lines that a smaller number does
//! not use into comments. And it serves 256-bit and 512-bit registers, whose instructions have
//! different names; these, and a register's bytes, are the list `$f`. Only the rounds with data
//! differ: with 512 bits there are 32 registers, and an instruction that adds three.

use std::arch::asm;
use std::arch::x86_64::{__m128i, __m256i, __m512i};

use super::Vaes128;
use super::tokens::{Vaes256, Vaes512};
use crate::kernel::acc::Acc;
use crate::kernel::lanes::Lanes;
use crate::kernel::stitch::{Rounds, Stitch, aes_rounds};

/// A round with a register of data: its product with a power of H by Karatsuba, three
/// multiplications.
#[rustfmt::skip]
macro_rules! round {
    ([$broadcast:literal $xor:literal $load:literal $width:literal], $r:literal, $i:literal,
     [$s0:literal $s1:literal $s2:literal $s3:literal $s4:literal $s5:literal $s6:literal $s7:literal]) => {
        concat!(
            $broadcast, " {k}, [{rounds} + 16 * ", $r, "]\n",
            $load, " {x}, [{data} + ", $width, " * ", $i, "]\n",
            $s0, "vaesenc {s0}, {s0}, {k}\n",
            $s1, "vaesenc {s1}, {s1}, {k}\n",
            "vpshufb {x}, {x}, {reverse}\n",
            $s2, "vaesenc {s2}, {s2}, {k}\n",
            "vpclmulqdq {y}, {x}, [{h} + ", $width, " * ", $i, "], 0x00\n",
            $s3, "vaesenc {s3}, {s3}, {k}\n",
            $s4, "vaesenc {s4}, {s4}, {k}\n",
            $xor, " {low}, {low}, {y}\n",
            "vpclmulqdq {y}, {x}, [{h} + ", $width, " * ", $i, "], 0x11\n",
            $s5, "vaesenc {s5}, {s5}, {k}\n",
            $xor, " {high}, {high}, {y}\n",
            "vpshufd {y}, {x}, 0x4e\n",
            $s6, "vaesenc {s6}, {s6}, {k}\n",
            $xor, " {x}, {x}, {y}\n",
            "vpclmulqdq {x}, {x}, [{halves} + ", $width, " * ", $i, "], 0x00\n",
            $s7, "vaesenc {s7}, {s7}, {k}\n",
            $xor, " {middle}, {middle}, {x}\n",
        )
    };
}

/// The same for 512 bits. Of two such rounds the first one, `even`, leaves its products to the
/// second one, `odd`, which adds both in one instruction; `alone` has no second one. A power is
/// loaded once for its two products.
#[rustfmt::skip]
macro_rules! wide_round {
    (even, $r:literal, $i:literal, $s:tt) => { wide_round!($r, $i, $s, "x", "y", "z", "#", "#") };
    (odd, $r:literal, $i:literal, $s:tt) => { wide_round!($r, $i, $s, "x2", "y2", "y2", "", "#") };
    (alone, $r:literal, $i:literal, $s:tt) => { wide_round!($r, $i, $s, "x", "y", "y", "#", "") };
    ($r:literal, $i:literal,
     [$s0:literal $s1:literal $s2:literal $s3:literal $s4:literal $s5:literal $s6:literal $s7:literal],
     $x:literal, $y:literal, $z:literal, $both:literal, $one:literal) => {
        concat!(
            "vbroadcasti32x4 {k}, [{rounds} + 16 * ", $r, "]\n",
            "vmovdqu64 {", $x, "}, [{data} + 64 * ", $i, "]\n",
            "vmovdqu64 {p}, [{h} + 64 * ", $i, "]\n",
            $s0, "vaesenc {s0}, {s0}, {k}\n",
            $s1, "vaesenc {s1}, {s1}, {k}\n",
            "vpshufb {", $x, "}, {", $x, "}, {reverse}\n",
            $s2, "vaesenc {s2}, {s2}, {k}\n",
            "vpclmulqdq {", $y, "}, {", $x, "}, {p}, 0x00\n",
            $s3, "vaesenc {s3}, {s3}, {k}\n",
            $s4, "vaesenc {s4}, {s4}, {k}\n",
            $both, "vpternlogq {low}, {y}, {y2}, 0x96\n",
            $one, "vpxorq {low}, {low}, {y}\n",
            "vpclmulqdq {", $z, "}, {", $x, "}, {p}, 0x11\n",
            $s5, "vaesenc {s5}, {s5}, {k}\n",
            $both, "vpternlogq {high}, {z}, {y2}, 0x96\n",
            $one, "vpxorq {high}, {high}, {y}\n",
            "vpshufd {p}, {", $x, "}, 0x4e\n",
            $s6, "vaesenc {s6}, {s6}, {k}\n",
            "vpxorq {", $x, "}, {", $x, "}, {p}\n",
            "vpclmulqdq {", $x, "}, {", $x, "}, [{halves} + 64 * ", $i, "], 0x00\n",
            $s7, "vaesenc {s7}, {s7}, {k}\n",
            $both, "vpternlogq {middle}, {x}, {x2}, 0x96\n",
            $one, "vpxorq {middle}, {middle}, {x}\n",
        )
    };
}

/// Two rounds, with two registers of data, one, or none.
#[rustfmt::skip]
macro_rules! rounds {
    (ymm_reg, $f:tt, two, $s:tt, $r:literal $i:literal, $r2:literal $i2:literal) => {
        concat!(round!($f, $r, $i, $s), round!($f, $r2, $i2, $s))
    };
    (ymm_reg, $f:tt, one, $s:tt, $r:literal $i:literal, $r2:literal $i2:literal) => {
        concat!(round!($f, $r, $i, $s), plain_round!($f, "vaesenc", $r2, $s))
    };
    (zmm_reg, $f:tt, two, $s:tt, $r:literal $i:literal, $r2:literal $i2:literal) => {
        concat!(wide_round!(even, $r, $i, $s), wide_round!(odd, $r2, $i2, $s))
    };
    (zmm_reg, $f:tt, one, $s:tt, $r:literal $i:literal, $r2:literal $i2:literal) => {
        concat!(wide_round!(alone, $r, $i, $s), plain_round!($f, "vaesenc", $r2, $s))
    };
    ($class:ident, $f:tt, none, $s:tt, $r:literal $i:literal, $r2:literal $i2:literal) => {
        concat!(plain_round!($f, "vaesenc", $r, $s), plain_round!($f, "vaesenc", $r2, $s))
    };
}

/// A round without data.
#[rustfmt::skip]
macro_rules! plain_round {
    ([$broadcast:literal $xor:literal $load:literal $width:literal], $op:literal, $r:literal,
     [$s0:literal $s1:literal $s2:literal $s3:literal $s4:literal $s5:literal $s6:literal $s7:literal]) => {
        concat!(
            $broadcast, " {k}, [{rounds} + 16 * ", $r, "]\n",
            $s0, $op, " {s0}, {s0}, {k}\n",
            $s1, $op, " {s1}, {s1}, {k}\n",
            $s2, $op, " {s2}, {s2}, {k}\n",
            $s3, $op, " {s3}, {s3}, {k}\n",
            $s4, $op, " {s4}, {s4}, {k}\n",
            $s5, $op, " {s5}, {s5}, {k}\n",
            $s6, $op, " {s6}, {s6}, {k}\n",
            $s7, $op, " {s7}, {s7}, {k}\n",
        )
    };
}

/// Adds the first round key, with the nonce in `k` already mixed in, to the counters.
#[rustfmt::skip]
macro_rules! first_round {
    ([$broadcast:literal $xor:literal $load:literal $width:literal], [$s0:literal $s1:literal $s2:literal $s3:literal $s4:literal $s5:literal $s6:literal $s7:literal]) => {
        concat!(
            $s0, $xor, " {s0}, {k}, [{counters} + ", $width, " * 0]\n",
            $s1, $xor, " {s1}, {k}, [{counters} + ", $width, " * 1]\n",
            $s2, $xor, " {s2}, {k}, [{counters} + ", $width, " * 2]\n",
            $s3, $xor, " {s3}, {k}, [{counters} + ", $width, " * 3]\n",
            $s4, $xor, " {s4}, {k}, [{counters} + ", $width, " * 4]\n",
            $s5, $xor, " {s5}, {k}, [{counters} + ", $width, " * 5]\n",
            $s6, $xor, " {s6}, {k}, [{counters} + ", $width, " * 6]\n",
            $s7, $xor, " {s7}, {k}, [{counters} + ", $width, " * 7]\n",
        )
    };
}

/// The rounds after the eighth.
#[rustfmt::skip]
macro_rules! last_rounds {
    ($f:tt, 10, $s:tt) => {
        concat!(plain_round!($f, "vaesenc", 9, $s), plain_round!($f, "vaesenclast", 10, $s))
    };
    ($f:tt, 14, $s:tt) => {
        concat!(
            plain_round!($f, "vaesenc", 9, $s),
            plain_round!($f, "vaesenc", 10, $s),
            plain_round!($f, "vaesenc", 11, $s),
            plain_round!($f, "vaesenc", 12, $s),
            plain_round!($f, "vaesenc", 13, $s),
            plain_round!($f, "vaesenclast", 14, $s),
        )
    };
}

/// The whole step: `$s` has an empty string for each state that is in use and a `#` for the others.
/// The other lists say how many registers of data each two rounds have, and name the registers to
/// work in.
#[rustfmt::skip]
macro_rules! step {
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt,
     [$d0:ident $d2:ident $d4:ident $d6:ident] [$($t:ident)*]) => {{
        let (s0, s1, s2, s3, s4, s5, s6, s7): ($v, $v, $v, $v, $v, $v, $v, $v);
        // Named, because the compiler writes a wrong name for an unnamed 512-bit register.
        let _k: $v;
        $( let $t: $v; )*
        // SAFETY: what is read are the eleven or fifteen round keys of `rounds`, `N` registers at
        // `counters` and `M` each at `data` and the powers, all behind references to arrays of
        // these lengths; nothing is written to memory. The caller's features are those of the
        // instructions.
        unsafe {
            asm!(
                concat!(
                    first_round!($f, $s),
                    rounds!($class, $f, $d0, $s, 1 0, 2 1),
                    rounds!($class, $f, $d2, $s, 3 2, 4 3),
                    rounds!($class, $f, $d4, $s, 5 4, 6 5),
                    rounds!($class, $f, $d6, $s, 7 6, 8 7),
                    last_rounds!($f, $rounds, $s),
                ),
                s0 = out($class) s0,
                s1 = out($class) s1,
                s2 = out($class) s2,
                s3 = out($class) s3,
                s4 = out($class) s4,
                s5 = out($class) s5,
                s6 = out($class) s6,
                s7 = out($class) s7,
                low = inout($class) $work.acc.low,
                high = inout($class) $work.acc.high,
                middle = inout($class) $work.acc.middle,
                k = inout($class) $work.base => _k,
                $( $t = out($class) $t, )*
                reverse = in($class) $work.reverse,
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
#[rustfmt::skip]
macro_rules! step_of {
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 1 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "#" "#" "#" "#" "#" "#" "#"], $m) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 2 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "" "#" "#" "#" "#" "#" "#"], $m) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 3 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "" "" "#" "#" "#" "#" "#"], $m) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 4 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "" "" "" "#" "#" "#" "#"], $m) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 5 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "" "" "" "" "#" "#" "#"], $m) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 6 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "" "" "" "" "" "#" "#"], $m) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 7 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "" "" "" "" "" "" "#"], $m) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, 8 $m:tt) => { step_with!($f, $class, $v, $work, $n, $rounds, ["" "" "" "" "" "" "" ""], $m) };
}

#[rustfmt::skip]
macro_rules! step_with {
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 1) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [one none none none]) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 2) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [two none none none]) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 3) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [two one none none]) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 4) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [two two none none]) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 5) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [two two one none]) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 6) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [two two two none]) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 7) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [two two two one]) };
    ($f:tt, $class:ident, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, 8) => { step_in!($f, $class, $v, $work, $n, $rounds, $s, [two two two two]) };
}

/// [`step`] with its working registers.
#[rustfmt::skip]
macro_rules! step_in {
    ($f:tt, ymm_reg, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, $data:tt) => { step!($f, ymm_reg, $v, $work, $n, $rounds, $s, $data [x y]) };
    ($f:tt, zmm_reg, $v:ty, $work:ident, $n:ident, $rounds:tt, $s:tt, $data:tt) => { step!($f, zmm_reg, $v, $work, $n, $rounds, $s, $data [x x2 y y2 z p]) };
}

/// What the text refers to.
struct Work<'a, L: Lanes> {
    acc: &'a mut Acc<L>,
    base: L::V,
    reverse: L::V,
    rounds: *const Rounds,
    counters: *const L::Bytes,
    data: *const L::Bytes,
    h: *const L::Bytes,
    halves: *const L::Bytes,
}

/// The numbers of registers that packets need: whole chunks; a tail with the chunk before it; a
/// chunk with the tail of the packet before; a tail that is opened.
#[rustfmt::skip]
macro_rules! by_registers {
    (packets, $($rest:tt)*) => {
        by_registers!(
            [8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 1 1 2 2 3 3 4 4 5 5 6 6 7 7], $($rest)*
        )
    };
    ([$($a:tt $b:tt)*], $f:tt, $class:ident, $v:ty, $work:ident, $stitch:ident, $token:ident,
     $r:ident, $n:ident, $m:ident, $rounds:tt) => {
        match ($n, $m) {
            $( ($a, $b) => step_of!($f, $class, $v, $work, $n, $rounds, $a $b), )*
            _ => $stitch.run::<$r>($token),
        }
    };
}

/// Defines [`Stitch::run`] in a fixed order for a register width, for the numbers of registers that
/// packets need.
macro_rules! define_stitch {
    ($name:ident, $token:ty, $class:ident, $v:ty, $f:tt, $features:literal) => {
        #[inline]
        #[allow(unused_variables, unused_assignments, reason = "registers to work in")]
        #[target_feature(enable = $features)]
        pub(super) fn $name<const R: usize, const N: usize, const M: usize>(
            stitch: &mut Stitch<'_, $token, N, M>,
            token: $token,
        ) -> [$v; N] {
            let work = Work::<$token> {
                base: stitch.base,
                reverse: token.reversal(),
                rounds: stitch.rounds,
                counters: stitch.counters.as_ptr(),
                data: stitch.data.as_ptr(),
                h: stitch.powers.0.as_ptr(),
                halves: stitch.powers.1.as_ptr(),
                acc: &mut *stitch.acc,
            };
            match R {
                10 => by_registers!(packets, $f, $class, $v, work, stitch, token, R, N, M, 10),
                14 => by_registers!(packets, $f, $class, $v, work, stitch, token, R, N, M, 14),
                _ => stitch.run::<R>(token),
            }
        }
    };
}

define_stitch!(
    stitch_256,
    Vaes256,
    ymm_reg,
    __m256i,
    ["vbroadcasti128" "vpxor" "vmovdqu" 32],
    "vaes,vpclmulqdq,avx2"
);

define_stitch!(
    stitch_512,
    Vaes512,
    zmm_reg,
    __m512i,
    ["vbroadcasti32x4" "vpxorq" "vmovdqu64" 64],
    "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl"
);

/// The rounds of some states side by side, each round for all of them before the next one. The
/// compiler would take two states through all rounds and then the next two, and keep one of two
/// pipelines waiting.
#[rustfmt::skip]
macro_rules! rounds_of {
    ($broadcast:literal, $class:ident, $v:ty, $states:ident, $rounds:ident, [$($r:literal)*], $last:literal, $names:tt) => {{
        let _k: $v;
        rounds_of!(asm $class, $states, $rounds, _k, concat!(
            $( $broadcast, " {k}, [{rounds} + 16 * ", $r, "]\n", rounds_of!(round "vaesenc", $names), )*
            $broadcast, " {k}, [{rounds} + 16 * ", $last, "]\n", rounds_of!(round "vaesenclast", $names),
        ), $names)
    }};
    (round $op:literal, [$($i:tt $s:ident)*]) => {
        concat!($( $op, " {", stringify!($s), "}, {", stringify!($s), "}, {k}\n", )*)
    };
    (asm $class:ident, $states:ident, $rounds:ident, $k:ident, $text:expr, [$($i:tt $s:ident)*]) => {
        // SAFETY: what is read are the eleven or fifteen round keys of `rounds`; nothing is written
        // to memory. The caller's features are those of the instructions.
        unsafe {
            asm!(
                $text,
                $( $s = inout($class) $states[$i], )*
                k = out($class) $k,
                rounds = in(reg) $rounds,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
    };
}

/// Defines [`Lanes::aes_rounds`] in a fixed order for a register width.
#[rustfmt::skip]
macro_rules! define_rounds {
    ($name:ident, $token:ty, $class:ident, $v:ty, $broadcast:literal, $features:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn $name<const R: usize, const N: usize>(
            token: $token,
            states: &mut [$v; N],
            keys: &Rounds,
        ) {
            let rounds = keys.0.as_ptr();
            define_rounds!([
                1 [0 s0]
                2 [0 s0 1 s1]
                3 [0 s0 1 s1 2 s2]
                4 [0 s0 1 s1 2 s2 3 s3]
                5 [0 s0 1 s1 2 s2 3 s3 4 s4]
                6 [0 s0 1 s1 2 s2 3 s3 4 s4 5 s5]
                7 [0 s0 1 s1 2 s2 3 s3 4 s4 5 s5 6 s6]
                8 [0 s0 1 s1 2 s2 3 s3 4 s4 5 s5 6 s6 7 s7]
                10 [0 s0 1 s1 2 s2 3 s3 4 s4 5 s5 6 s6 7 s7 8 s8 9 s9]
                12 [0 s0 1 s1 2 s2 3 s3 4 s4 5 s5 6 s6 7 s7 8 s8 9 s9 10 s10 11 s11]
            ] $class, $v, states, rounds, $broadcast, R, N, token, keys)
        }
    };
    ([$($n:literal $names:tt)*] $class:ident, $v:ty, $states:ident, $rounds:ident, $broadcast:literal, $r:ident, $nn:ident,
     $token:ident, $keys:ident) => {
        match ($r, $nn) {
            $( (10, $n) => rounds_of!($broadcast, $class, $v, $states, $rounds, [1 2 3 4 5 6 7 8 9], 10, $names), )*
            $( (14, $n) => rounds_of!(
                $broadcast, $class, $v, $states, $rounds, [1 2 3 4 5 6 7 8 9 10 11 12 13], 14, $names
            ), )*
            _ => aes_rounds::<_, $r, $nn>($token, $states, $keys),
        }
    };
}

define_rounds!(
    rounds_128,
    Vaes128,
    xmm_reg,
    __m128i,
    "vmovdqu",
    "vaes,avx2,aes"
);
define_rounds!(
    rounds_256,
    Vaes256,
    ymm_reg,
    __m256i,
    "vbroadcasti128",
    "vaes,avx2"
);
define_rounds!(
    rounds_512,
    Vaes512,
    zmm_reg,
    __m512i,
    "vbroadcasti32x4",
    "vaes,avx512f"
);

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! compare_all {
        ($token:expr, $stitch:ident, $($n:literal $m:literal)*) => { $(
            compare!($token, $stitch, 10, $n, $m);
            compare!($token, $stitch, 14, $n, $m);
        )* };
    }

    macro_rules! compare {
        ($token:expr, $stitch:ident, $r:literal, $n:literal, $m:literal) => {{
            // SAFETY: the token proves the features.
            let pinned = outcome::<_, $n, $m>($token, |work| unsafe {
                $stitch::<$r, $n, $m>(work, $token)
            });
            let twin = outcome::<_, $n, $m>($token, |work| work.run::<$r>($token));
            assert_eq!(pinned, twin, "{} rounds, {} and {} registers", $r, $n, $m);
        }};
    }

    /// Every number of registers that packets need, in the fixed order and in the compiler's.
    #[test]
    fn the_fixed_order_agrees_with_the_compilers() {
        if let Some(token) = Vaes256::detect() {
            compare_all!(token, stitch_256,
                8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 1 1 2 2 3 3 4 4 5 5 6 6 7 7);
        }
        if let Some(token) = Vaes512::detect() {
            compare_all!(token, stitch_512,
                8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 8 8 1 8 2 8 3 8 4 8 5 8 6 8 7 1 1 2 2 3 3 4 4 5 5 6 6 7 7);
        }
    }

    fn registers<L: Lanes, const N: usize>(seed: usize) -> [L::Bytes; N] {
        let bytes: Vec<u8> = (0..N * L::WIDTH)
            .map(|i| (i * 37 + seed * (i / 7 + 1)) as u8)
            .collect();
        *L::vectors(&bytes)
            .0
            .first_chunk()
            .expect("the requested number of registers")
    }

    /// The states and the sums that a step leaves.
    fn outcome<L: Lanes, const N: usize, const M: usize>(
        l: L,
        step: impl FnOnce(&mut Stitch<'_, L, N, M>) -> [L::V; N],
    ) -> Vec<u8> {
        let mut rounds = Rounds::EMPTY;
        for (i, key) in rounds.0.iter_mut().enumerate() {
            *key = [i as u8 * 13 + 1; 16];
        }
        let mut acc = Acc::zero(l);
        let states = step(&mut Stitch {
            rounds: &rounds,
            base: l.load(&registers::<L, 1>(5)[0]),
            counters: &registers::<L, N>(1),
            acc: &mut acc,
            data: &registers::<L, M>(2),
            powers: (&registers::<L, M>(3), &registers::<L, M>(4)),
        });
        let mut out = Vec::new();
        for v in states.into_iter().chain([acc.low, acc.high, acc.middle]) {
            let mut bytes = vec![0; L::WIDTH];
            l.store_part(&mut bytes, v);
            out.append(&mut bytes);
        }
        out
    }
}
