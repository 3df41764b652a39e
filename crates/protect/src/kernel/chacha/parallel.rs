//! Poly1305 of many messages in parallel, on CPUs that have registers for it.

use super::meanwhile::Meanwhile;
use super::poly1305::POLY_BLOCK_LEN;

/// Messages hashed in parallel.
pub(in crate::kernel) const PARALLEL: usize = 8;

/// One message: its key, its hash so far, and the blocks to come.
#[derive(Copy, Clone)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only AVX-512 hashes in parallel")
)]
pub(in crate::kernel) struct Message<'a> {
    pub(in crate::kernel) r: [u64; 2],
    pub(in crate::kernel) h: [u64; 3],
    pub(in crate::kernel) data: &'a [[u8; POLY_BLOCK_LEN]],
}

impl Message<'_> {
    pub(super) const EMPTY: Self = Self {
        r: [0; 2],
        h: [0; 3],
        data: &[],
    };
}

pub(in crate::kernel) type Messages<'a> = [Message<'a>; PARALLEL];

/// Messages in progress.
pub(in crate::kernel) trait Parallel<'a>: Meanwhile {
    /// The proof that the CPU has the registers.
    type Token;

    /// Each message has at least `count` blocks, and `count` of each are hashed.
    fn new(token: Self::Token, messages: Messages<'a>, count: usize) -> Self;

    /// Hashes the blocks that are left; returns the messages' hashes.
    fn finish(self) -> [[u64; 3]; PARALLEL];
}

/// For a CPU without such registers, whose `HAS_PARALLEL` is false.
pub(in crate::kernel) struct NoParallel<W>(std::marker::PhantomData<W>);

impl<W> Meanwhile for NoParallel<W> {
    #[inline(always)]
    fn step(&mut self) {}
}

impl<'a, W> Parallel<'a> for NoParallel<W> {
    type Token = W;

    fn new(_: W, _: Messages<'a>, _: usize) -> Self {
        unreachable!("this CPU does not hash in parallel")
    }

    fn finish(self) -> [[u64; 3]; PARALLEL] {
        unreachable!("this CPU does not hash in parallel")
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::kernel::chacha::block::Rows;
    use crate::kernel::chacha::poly1305::Poly;
    use crate::kernel::x86_64::tokens::Avx512;

    /// Keys and messages at the edges of the limbs: all ones, all zeros, and their neighbours.
    #[test]
    fn parallel_hashing_agrees_with_one_message_at_a_time() {
        let Some(token) = Avx512::detect() else {
            return;
        };
        let numbers = [
            u128::MAX,
            0,
            1,
            u128::MAX - 4,
            (1 << 44) - 1,
            ((1 << 88) - 1) ^ ((1 << 44) - 1),
            u128::MAX << 88,
            0x0123_4567_89ab_cdef_fedc_ba98_7654_3210,
        ];
        for turn in 0..PARALLEL {
            for count in [1, 2, 3, 41] {
                let messages: Vec<Vec<[u8; POLY_BLOCK_LEN]>> = (0..PARALLEL)
                    .map(|m| {
                        // One message is the same number throughout, the next one goes through all
                        // of them.
                        let number = |i| numbers[(m + i * (m % 2)) % PARALLEL];
                        (0..count).map(|i| number(i).to_le_bytes()).collect()
                    })
                    .collect();
                let mut polys: Vec<Poly> = (0..PARALLEL)
                    .map(|i| Poly::new(numbers[(i + turn) % PARALLEL], 0))
                    .collect();
                // Not from zero, and with the limb above 2^128 in use.
                polys.iter_mut().for_each(|poly| poly.block(u128::MAX));
                let mut parallel = [Message::EMPTY; PARALLEL];
                for ((message, poly), data) in parallel.iter_mut().zip(&polys).zip(&messages) {
                    (message.r, message.h, message.data) = ([poly.r[0], poly.r[1]], poly.h, data);
                }
                let hashed = <Avx512 as Rows>::Parallel::new(token, parallel, count).finish();
                for ((poly, data), h) in polys.iter_mut().zip(&messages).zip(hashed) {
                    let mut together = *poly;
                    together.h = h;
                    (data.iter()).for_each(|block| poly.block(u128::from_le_bytes(*block)));
                    assert_eq!(together.tag(), poly.tag(), "{turn} {count} {data:?}");
                }
            }
        }
    }

    /// The same edges, in one message that is hashed eight blocks at a time.
    #[test]
    fn a_long_message_hashes_as_block_by_block() {
        let Some(token) = Avx512::detect() else {
            return;
        };
        let numbers = [
            u128::MAX,
            0,
            1,
            u128::MAX - 4,
            ((1 << 88) - 1) ^ ((1 << 44) - 1),
            0x0123_4567_89ab_cdef_fedc_ba98_7654_3210,
        ];
        for key in numbers {
            for count in [23, 24, 31, 32, 40, 91, 700] {
                for step in 0..3 {
                    let number = |i: usize| numbers[i * step % numbers.len()].to_le_bytes();
                    let blocks: Vec<[u8; POLY_BLOCK_LEN]> = (0..count).map(number).collect();
                    let mut poly = Poly::new(key, 0);
                    poly.block(u128::MAX);
                    let mut long = poly;
                    token.absorb_all(&mut long.h, &long.r, &blocks);
                    (blocks.iter()).for_each(|block| poly.block(u128::from_le_bytes(*block)));
                    assert_eq!(long.tag(), poly.tag(), "{key:x} {count} {step}");
                    // A block requires this of the limb above 2^128.
                    assert!(long.h[2] < 8);
                }
            }
        }
    }
}
