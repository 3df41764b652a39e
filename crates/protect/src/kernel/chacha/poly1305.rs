//! Poly1305 (RFC 8439 §2.5) of one message.
//!
//! ```text
//!   h = (h + block) * r   modulo 2^130 - 5      h and r in limbs of 64 bits
//! ```
//! At times h is a little above the modulus.
//! It is a chain of multiplications, each waiting for the last one: `pair` runs two chains in step.

use zeroize::Zeroize;

use crate::span::TAG_LEN;

/// Bytes that Poly1305 takes at a time.
pub(in crate::kernel) const POLY_BLOCK_LEN: usize = 16;

/// A message in progress.
#[derive(Copy, Clone)]
pub(in crate::kernel) struct Poly {
    /// The key in two limbs, and what the second one becomes above 2^130.
    pub(in crate::kernel) r: [u64; 3],
    pub(in crate::kernel) h: [u64; 3],
    /// What is added at the end.
    pad: u128,
}

impl Zeroize for Poly {
    fn zeroize(&mut self) {
        self.r.zeroize();
        self.pad.zeroize();
    }
}

#[inline(always)]
fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// Adds a block to h and multiplies by r.
#[inline(always)]
pub(in crate::kernel) fn absorb(h: &mut [u64; 3], r: &[u64; 3], block: u128) {
    let [h0, h1, h2] = *h;
    let (h0, carry) = h0.overflowing_add(block as u64);
    let sum = u128::from(h1) + (block >> 64) + u128::from(carry);
    *h = [h0, sum as u64, h2 + (sum >> 64) as u64 + 1];
    multiply(h, r);
}

/// Multiplies h by r.
#[inline(always)]
pub(in crate::kernel) fn multiply(h: &mut [u64; 3], [r0, r1, s]: &[u64; 3]) {
    let (r0, r1, s) = (*r0, *r1, *s);
    let [h0, h1, h2] = *h;
    // h2 stays below 8, so its products fit 64 bits.
    let d0 = wide(h0, r0) + wide(h1, s);
    let d1 = wide(h0, r1) + wide(h1, r0) + u128::from(h2 * s) + (d0 >> 64);
    let d2 = h2 * r0 + (d1 >> 64) as u64;

    // What lies above 2^130 comes back times five.
    let five = (d2 >> 2) + (d2 & !3);
    let (h0, carry) = (d0 as u64).overflowing_add(five);
    let (h1, carry) = (d1 as u64).overflowing_add(u64::from(carry));
    *h = [h0, h1, (d2 & 3) + u64::from(carry)];
}

impl Poly {
    pub(super) const EMPTY: Self = Self {
        r: [0; 3],
        h: [0; 3],
        pad: 0,
    };

    /// RFC 8439 §2.6: the key is the first half of a key-stream block.
    #[inline(always)]
    pub(in crate::kernel) fn new(r: u128, pad: u128) -> Self {
        // RFC 8439 §2.5: the clamp.
        let r = r & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        let (r0, r1) = (r as u64, (r >> 64) as u64);
        Self {
            // r1 * 5/4: the clamp makes r1 divisible by four, and 2^130 is 5.
            r: [r0, r1, r1 + (r1 >> 2)],
            h: [0; 3],
            pad,
        }
    }

    /// Adds a block and multiplies by r.
    #[inline(always)]
    pub(in crate::kernel) fn block(&mut self, block: u128) {
        absorb(&mut self.h, &self.r, block);
    }

    /// The last bytes of a part of the message, filled up with zeros to a block (RFC 8439 §2.8):
    /// the first `len`, up to 15, of `bytes`.
    #[inline(always)]
    pub(super) fn part(&mut self, bytes: &[u8; POLY_BLOCK_LEN], len: usize) {
        if len > 0 {
            self.block(u128::from_le_bytes(*bytes) & ((1 << (8 * len)) - 1));
        }
    }

    /// Takes the last `len` bytes of a payload, up to 15, and the lengths (RFC 8439 §2.8). Returns
    /// the tag.
    #[inline(always)]
    pub(super) fn end(
        &mut self,
        last: &[u8; POLY_BLOCK_LEN],
        len: usize,
        header_len: usize,
        payload_len: usize,
    ) -> [u8; TAG_LEN] {
        self.part(last, len);
        self.block((payload_len as u128) << 64 | header_len as u128);
        self.tag()
    }

    #[inline(always)]
    pub(super) fn tag(&self) -> [u8; TAG_LEN] {
        let [h0, h1, h2] = self.h;
        let low = u128::from(h1) << 64 | u128::from(h0);
        // h - p = h + 5 - 2^130, if that is not negative, without a branch.
        let (reduced, carry) = low.overflowing_add(5);
        let above = h2 + u64::from(carry);
        let mask = 0_u128.wrapping_sub(u128::from(above >> 2));
        let h = (reduced & mask) | (low & !mask);
        h.wrapping_add(self.pad).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8439 Appendix A.3, vectors 7 to 11: these test carries and the modulus.
    #[test]
    fn carries_and_the_edge_of_the_modulus_match_the_rfc() {
        let ones = u128::MAX;
        let cases: [(u128, u128, &[u128], u128); 7] = [
            (2, 0, &[ones], 3),
            (2, ones, &[2], 3),
            (1, 0, &[ones, ones - 0x0f, 0x11], 5),
            (
                1,
                0,
                &[
                    ones,
                    0xfefe_fefe_fefe_fefe_fefe_fefe_fefe_fefb,
                    0x0101_0101_0101_0101_0101_0101_0101_0101,
                ],
                0,
            ),
            (2, 0, &[ones - 2], ones - 5),
            (
                1 | 4 << 64,
                0,
                &[0xb943_5e50_d794_35e3, 0x01_cd79_435e_50d7_9433, 0, 1],
                0x14 | 0x55 << 64,
            ),
            (
                1 | 4 << 64,
                0,
                &[0xb943_5e50_d794_35e3, 0x01_cd79_435e_50d7_9433, 0],
                0x13,
            ),
        ];
        for (r, pad, blocks, tag) in cases {
            let mut poly = Poly::new(r, pad);
            blocks.iter().for_each(|block| poly.block(*block));
            assert_eq!(u128::from_le_bytes(poly.tag()), tag, "{r:x} {blocks:x?}");
        }
    }
}
