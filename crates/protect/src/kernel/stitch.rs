//! The inner step of both directions: AES on some registers while GHASH takes others.

use super::acc::Acc;
use super::registers::{Block, Crypto, wipe};

/// AES round keys; AES-128 uses eleven of them. Aligned for one block: with a larger alignment,
/// each key's allocation would cost three times as much.
#[repr(C, align(16))]
pub(crate) struct Rounds(pub(super) [Block; 15]);

impl Rounds {
    pub(super) const EMPTY: Self = Self([[0; 16]; 15]);

    /// The AES key schedule (FIPS 197 §5.2), for `R` rounds.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "a round key is made of earlier ones"
    )]
    pub(super) fn expand<S: Crypto<Bytes = Block>, const R: usize>(
        &mut self,
        s: S,
        key: &[u8; 32],
    ) {
        // Four words make a round key; a key of 16 bytes has one of them, a key of 32 bytes two.
        let key_blocks = (R - 6) / 4;
        let (blocks, _) = key.as_chunks();
        let mut constant = 1_u32;
        for i in 0..=R {
            if i < key_blocks {
                self.0[i] = blocks[i];
                continue;
            }
            let last_word = u64::from((u128::from_le_bytes(self.0[i - 1]) >> 96) as u32);
            // Through the S-box: with four equal columns, the shift of rows changes nothing.
            let column = last_word << 32 | last_word;
            let mut word = s.low(s.aes_last(s.splat(column, column), s.zero())) as u32;
            if i.is_multiple_of(key_blocks) {
                word = word.rotate_right(8) ^ constant;
                constant = (constant << 1) ^ ((constant >> 7) * 0x11b);
            }
            // Each word is the sum of the ones before it in the previous round key of its kind, and
            // of `word`.
            let mut block = u128::from_le_bytes(self.0[i - key_blocks]);
            block ^= block << 32;
            block ^= block << 64;
            block ^= u128::from(word) * 0x0000_0001_0000_0001_0000_0001_0000_0001;
            self.0[i] = block.to_le_bytes();
        }
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        wipe(&mut self.0, [0; 16]);
    }
}

/// Work to be done side by side: `N` counter blocks' registers to encrypt, `M` registers of
/// ciphertext to hash.
pub(crate) struct Stitch<'a, L: Crypto, const N: usize, const M: usize> {
    pub(super) rounds: &'a Rounds,
    /// A packet's nonce, and the first round key, in each lane.
    pub(super) base: L::V,
    pub(super) counters: &'a [L::Bytes; N],
    pub(super) acc: &'a mut Acc<L>,
    pub(super) data: &'a [L::Bytes; M],
    /// Powers of H for the data, and the sums of their halves.
    pub(super) powers: (&'a [L::Bytes; M], &'a [L::Bytes; M]),
}

/// Repeats a round for the rounds between the first and the last; unrolled, since a loop of this
/// length is not. Here and in `gcm`: no closures and no `map` with [`Crypto`] in them, since their
/// inlining is not guaranteed.
macro_rules! middle_rounds {
    ($rounds:expr, $round:ident, $($r:literal)*) => {
        $( if $r < $rounds { $round!($r); } )*
    };
}

#[cfg(target_arch = "aarch64")]
pub(super) use middle_rounds;

/// What `Lanes::aes_rounds` does, in the compiler's order.
#[inline(always)]
pub(super) fn aes_rounds<L: Crypto, const R: usize, const N: usize>(
    l: L,
    states: &mut [L::V; N],
    rounds: &Rounds,
) {
    macro_rules! round {
        ($r:literal) => {
            let key = l.broadcast(&rounds.0[$r]);
            for state in &mut *states {
                *state = l.aes(*state, key);
            }
        };
    }
    middle_rounds!(R, round, 1 2 3 4 5 6 7 8 9 10 11 12 13);
    let key = l.broadcast(&rounds.0[R]);
    for state in states {
        *state = l.aes_last(*state, key);
    }
}

impl<L: Crypto, const N: usize, const M: usize> Stitch<'_, L, N, M> {
    /// What `Lanes::stitch` does, in the compiler's order.
    #[inline(always)]
    pub(super) fn run<const R: usize>(&mut self, l: L) -> [L::V; N] {
        let mut states = [self.base; N];
        for (state, counter) in states.iter_mut().zip(self.counters) {
            *state = l.xor(self.base, l.load(counter));
        }
        macro_rules! round {
            ($r:literal) => {
                let key = l.broadcast(&self.rounds.0[$r]);
                for state in &mut states {
                    *state = l.aes(*state, key);
                }
                if $r <= M {
                    let (h, halves) = (&self.powers.0[$r - 1], &self.powers.1[$r - 1]);
                    self.acc.add(l, &self.data[$r - 1], h, halves);
                }
            };
        }
        middle_rounds!(R, round, 1 2 3 4 5 6 7 8 9 10 11 12 13);
        let key = l.broadcast(&self.rounds.0[R]);
        for state in &mut states {
            *state = l.aes_last(*state, key);
        }
        states
    }
}
