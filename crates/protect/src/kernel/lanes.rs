//! What AES-GCM is written over: a CPU's registers and instructions ([`Registers`], [`Crypto`]),
//! and the work that a CPU may do in its own order.
//!
//! [`Lanes::call`] begins a function that is compiled for the instructions. Each pass is such a
//! function, not a whole direction: compile time grows faster than the size of a function.

use super::registers::{Block, Crypto};
use super::stitch::{Rounds, Stitch, aes_rounds};

/// Work for [`Lanes::call`], all inlined into the function that is compiled for it.
pub(crate) trait Work<L, T> {
    fn run(self, l: L) -> T;
}

/// A CPU that AES-GCM runs on, at one register width.
pub(crate) trait Lanes: Crypto {
    /// The same CPU, one lane wide.
    type Single: Lanes<V = Self::Lane, Bytes = Block>;

    fn single(self) -> Self::Single;

    /// Does some work in a function of its own, compiled for the instructions that this value
    /// proves.
    fn call<T, W: Work<Self, T>>(self, work: W) -> T;

    /// All AES rounds but the first key, for `N` states side by side; see [`aes_rounds`].
    #[inline(always)]
    fn aes_rounds<const R: usize, const N: usize>(
        self,
        states: &mut [Self::V; N],
        rounds: &Rounds,
    ) {
        aes_rounds::<Self, R, N>(self, states, rounds);
    }

    /// Encrypts `N` counter blocks while hashing `M` registers of data; see [`Stitch`].
    /// Implementations whose compiler does not keep the order of the work override it.
    #[inline(always)]
    fn stitch<const R: usize, const N: usize, const M: usize>(
        self,
        work: &mut Stitch<'_, Self, N, M>,
    ) -> [Self::V; N] {
        work.run::<R>(self)
    }
}
