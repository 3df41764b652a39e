//! Poly1305 of two messages in step: two chains of multiplications take little longer than one.

use std::iter::Zip;
use std::slice::Iter;

use super::block::Rows;
use super::meanwhile::{Meanwhile, PAUSES};
use super::poly1305::{POLY_BLOCK_LEN, Poly};

/// One message of a pair. The key stays where it is: there are no registers for two.
#[derive(Copy, Clone)]
pub(super) struct Half<'a> {
    r: &'a [u64; 3],
    pub(super) h: [u64; 3],
}

/// Two messages in step while both have blocks, then the rest of one.
pub(super) struct Pair<'a, W> {
    w: W,
    pub(super) a: Half<'a>,
    pub(super) b: Half<'a>,
    both: Zip<Iter<'a, [u8; POLY_BLOCK_LEN]>, Iter<'a, [u8; POLY_BLOCK_LEN]>>,
    rest: Iter<'a, [u8; POLY_BLOCK_LEN]>,
    /// Steps between two rounds of the cipher.
    stride: usize,
}

impl<'a, W: Rows> Pair<'a, W> {
    /// `a` has at least as many blocks as `b`.
    #[inline(always)]
    pub(super) fn new(
        w: W,
        (a, blocks_a): (&'a Poly, &'a [[u8; POLY_BLOCK_LEN]]),
        (b, blocks_b): (&'a Poly, &'a [[u8; POLY_BLOCK_LEN]]),
    ) -> Self {
        let (in_step, rest) = blocks_a.split_at(blocks_a.len().min(blocks_b.len()));
        Self {
            w,
            a: Half { r: &a.r, h: a.h },
            b: Half { r: &b.r, h: b.h },
            both: in_step.iter().zip(blocks_b),
            rest: rest.iter(),
            stride: blocks_a.len().div_ceil(PAUSES),
        }
    }

    /// All the steps that are left.
    #[inline(always)]
    pub(super) fn finish(&mut self) {
        for (a, b) in self.both.by_ref() {
            self.w.absorb(&mut self.a.h, self.a.r, a);
            self.w.absorb(&mut self.b.h, self.b.r, b);
        }
        for a in self.rest.by_ref() {
            self.w.absorb(&mut self.a.h, self.a.r, a);
        }
    }
}

impl<W: Rows> Meanwhile for Pair<'_, W> {
    #[inline(always)]
    fn step(&mut self) {
        for _ in 0..self.stride {
            if let Some((a, b)) = self.both.next() {
                self.w.absorb(&mut self.a.h, self.a.r, a);
                self.w.absorb(&mut self.b.h, self.b.r, b);
            } else if let Some(a) = self.rest.next() {
                self.w.absorb(&mut self.a.h, self.a.r, a);
            }
        }
    }
}
