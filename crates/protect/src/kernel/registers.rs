//! What the vector kernels need from a CPU's registers.
//!
//! ```text
//!   Registers   registers of one or more 128-bit lanes: memory in and out, lanes in and out, sums
//!   Crypto      the instructions of AES and GHASH on them
//! ```
//! [`Lanes`](super::lanes::Lanes), which the kernels are written over, is both, and adds what an
//! implementation may do in its own order.
//!
//! A value of an implementing type is the proof that the CPU has the instructions: every operation
//! takes it, and none is unsafe to call. Nearly all methods are `#[inline(always)]`: they must
//! dissolve in a function that is compiled for the instructions, or each would be a call.

/// 16 bytes: a cipher block, a round key, a power of H.
pub(crate) type Block = [u8; 16];

/// Overwrites secrets by whole registers; `Zeroize` writes each byte separately.
#[inline(always)]
pub(super) fn wipe<T: Copy>(secrets: &mut [T], zero: T) {
    secrets.fill(zero);
    zeroize::optimization_barrier(secrets);
}

/// Registers of `BLOCKS` lanes, each of one block.
pub(crate) trait Registers: Copy + 'static {
    /// A register.
    type V: Copy;
    /// A register of one lane, on the same CPU.
    type Lane: Copy;
    /// A register's bytes in memory: `[u8; 16 * BLOCKS]`.
    type Bytes: Copy + 'static;

    /// Lanes in a register.
    const BLOCKS: usize;
    /// Bytes in a register.
    const WIDTH: usize = 16 * Self::BLOCKS;
    /// A register's worth of zeros in memory.
    const ZEROS: Self::Bytes;

    /// Memory as whole registers, and what is left.
    fn vectors(bytes: &[u8]) -> (&[Self::Bytes], &[u8]);
    fn vectors_mut(bytes: &mut [u8]) -> (&mut [Self::Bytes], &mut [u8]);

    fn zero(self) -> Self::V;
    fn load(self, bytes: &Self::Bytes) -> Self::V;
    fn store(self, bytes: &mut Self::Bytes, v: Self::V);
    /// As many whole blocks as there are, up to a register; zeros in the other lanes.
    fn load_part(self, bytes: &[u8]) -> Self::V;
    /// As many whole blocks as there is room for, up to a register.
    fn store_part(self, bytes: &mut [u8], v: Self::V);
    /// `WIDTH - 16` bytes in the lanes after the first one, zeros in that.
    fn load_after_first(self, bytes: &[u8]) -> Self::V;
    /// The lanes after the first one, `WIDTH - 16` bytes.
    fn store_after_first(self, bytes: &mut [u8], v: Self::V);
    /// One block in every lane.
    fn broadcast(self, block: &Block) -> Self::V;
    /// The block of two numbers, the first in its low half, in every lane.
    fn splat(self, low: u64, high: u64) -> Self::V;
    /// Two blocks in the lowest lanes, zeros in the others. Not to be called if there is one lane.
    fn pair(self, first: Self::Lane, second: Self::Lane) -> Self::V;
    /// A block for each lane, from the lowest on; with fewer than four lanes the rest is not used.
    fn lanes(self, lanes: [Self::Lane; 4]) -> Self::V;
    /// A lane's block; `at` is below [`Registers::BLOCKS`].
    fn lane(self, v: Self::V, at: usize) -> Self::Lane;
    /// The low half of the lowest lane.
    fn low(self, v: Self::V) -> u64;
    /// The sum (exclusive or) of the lanes.
    fn fold(self, v: Self::V) -> Self::Lane;

    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    fn and(self, a: Self::V, b: Self::V) -> Self::V;
    /// Adds 32-bit numbers.
    fn add32(self, a: Self::V, b: Self::V) -> Self::V;
}

/// The instructions of AES and GHASH.
pub(crate) trait Crypto: Registers {
    /// Reverses the bytes of each lane, since GHASH's bit order mirrors the CPU's.
    fn reverse(self, v: Self::V) -> Self::V;
    /// Swaps the halves of each lane.
    fn swap(self, v: Self::V) -> Self::V;
    /// The low half of each lane into its high half, zeros below.
    fn raise(self, v: Self::V) -> Self::V;
    /// The high half of each lane into its low half, zeros above.
    fn lower(self, v: Self::V) -> Self::V;
    /// Carry-less product of the low halves of each lane.
    fn multiply_low(self, a: Self::V, b: Self::V) -> Self::V;
    /// Carry-less product of the high halves of each lane.
    fn multiply_high(self, a: Self::V, b: Self::V) -> Self::V;
    /// One AES round, except for the last.
    fn aes(self, state: Self::V, key: Self::V) -> Self::V;
    /// The last AES round.
    fn aes_last(self, state: Self::V, key: Self::V) -> Self::V;
}

/// What [`Registers`] is for a register `$v` of one lane, on any CPU.
macro_rules! one_lane {
    ($v:ty) => {
        type V = $v;
        type Bytes = Block;
        type Lane = $v;

        const BLOCKS: usize = 1;
        const ZEROS: Block = [0; 16];

        #[inline(always)]
        fn vectors(bytes: &[u8]) -> (&[Block], &[u8]) {
            bytes.as_chunks()
        }

        #[inline(always)]
        fn vectors_mut(bytes: &mut [u8]) -> (&mut [Block], &mut [u8]) {
            bytes.as_chunks_mut()
        }

        #[inline(always)]
        fn load_part(self, bytes: &[u8]) -> $v {
            bytes
                .first_chunk()
                .map_or(self.zero(), |block| self.load(block))
        }

        #[inline(always)]
        fn store_part(self, bytes: &mut [u8], v: $v) {
            if let Some(block) = bytes.first_chunk_mut() {
                self.store(block, v);
            }
        }

        #[inline(always)]
        fn load_after_first(self, _: &[u8]) -> $v {
            self.zero()
        }

        #[inline(always)]
        fn store_after_first(self, _: &mut [u8], _: $v) {}

        #[inline(always)]
        fn broadcast(self, block: &Block) -> $v {
            self.load(block)
        }

        #[inline(always)]
        fn pair(self, _: $v, _: $v) -> $v {
            unreachable!("one lane does not hold two blocks")
        }

        #[inline(always)]
        fn lanes(self, [a, ..]: [$v; 4]) -> $v {
            a
        }

        #[inline(always)]
        fn lane(self, v: $v, _: usize) -> $v {
            v
        }

        #[inline(always)]
        fn fold(self, v: $v) -> $v {
            v
        }
    };
}

pub(super) use one_lane;
