//! The sum of GHASH's products, and its reduction.

use super::registers::Crypto;

/// The reduction's constant: the field's polynomial x^128 + x^7 + x^2 + x + 1 in mirrored bit
/// order, upper half.
pub(super) const POLYNOMIAL: u64 = 0xc200_0000_0000_0000;

/// Unreduced products: the parts of a sum of `a * b` by Karatsuba.
#[derive(Copy, Clone)]
pub(crate) struct Acc<L: Crypto> {
    pub(super) low: L::V,
    pub(super) high: L::V,
    pub(super) middle: L::V,
}

impl<L: Crypto> Acc<L> {
    #[inline(always)]
    pub(super) fn zero(l: L) -> Self {
        Self {
            low: l.zero(),
            high: l.zero(),
            middle: l.zero(),
        }
    }

    /// Adds the products of blocks as they lie in a packet.
    #[inline(always)]
    pub(super) fn add(&mut self, l: L, data: &L::Bytes, h: &L::Bytes, halves: &L::Bytes) {
        self.add_register(l, l.reverse(l.load(data)), l.load(h), l.load(halves));
    }

    #[inline(always)]
    pub(super) fn add_register(&mut self, l: L, x: L::V, h: L::V, halves: L::V) {
        self.low = l.xor(self.low, l.multiply_low(x, h));
        self.high = l.xor(self.high, l.multiply_high(x, h));
        let sum = l.xor(x, l.swap(x));
        self.middle = l.xor(self.middle, l.multiply_low(sum, halves));
    }

    /// Each lane's sum as an element of the field (Gueron and Kounavis, "Intel Carry-Less
    /// Multiplication Instruction and its Usage for Computing the GCM Mode", in the form with two
    /// multiplications).
    #[inline(always)]
    pub(super) fn reduce(self, l: L) -> L::V {
        let polynomial = l.splat(POLYNOMIAL, 0);
        let middle = l.xor(self.middle, l.xor(self.low, self.high));
        let mut low = l.xor(self.low, l.raise(middle));
        let high = l.xor(self.high, l.lower(middle));
        for _ in 0..2 {
            low = l.xor(l.swap(low), l.multiply_low(low, polynomial));
        }
        l.xor(high, low)
    }
}
