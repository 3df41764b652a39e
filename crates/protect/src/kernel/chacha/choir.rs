//! Poly1305 of many messages side by side, where a CPU has registers for that.

use super::block::Meanwhile;
use super::poly1305::POLY_BLOCK_LEN;

/// Messages side by side.
pub(in crate::kernel) const VOICES: usize = 8;

/// One message: its key, what was computed so far, and blocks to come.
#[derive(Copy, Clone)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only AVX-512 has a choir")
)]
pub(in crate::kernel) struct Part<'a> {
    pub(in crate::kernel) r: [u64; 2],
    pub(in crate::kernel) h: [u64; 3],
    pub(in crate::kernel) data: &'a [[u8; POLY_BLOCK_LEN]],
}

impl Part<'_> {
    pub(super) const SILENT: Self = Self {
        r: [0; 2],
        h: [0; 3],
        data: &[],
    };
}

pub(in crate::kernel) type Voices<'a> = [Part<'a>; VOICES];

/// Messages on their way.
pub(in crate::kernel) trait Choir<'a>: Meanwhile {
    /// The proof that the CPU has the registers.
    type Token;

    /// Each part has at least `count` blocks, of which as many are hashed.
    fn new(token: Self::Token, voices: Voices<'a>, count: usize) -> Self;

    /// Hashes the blocks that are left; what was computed of each message.
    fn finish(self) -> [[u64; 3]; VOICES];
}

/// For a CPU without such registers, whose `CHOIR` is false.
pub(in crate::kernel) struct NoChoir<W>(std::marker::PhantomData<W>);

impl<W> Meanwhile for NoChoir<W> {
    #[inline(always)]
    fn step(&mut self) {}
}

impl<'a, W> Choir<'a> for NoChoir<W> {
    type Token = W;

    fn new(_: W, _: Voices<'a>, _: usize) -> Self {
        unreachable!("there is no choir")
    }

    fn finish(self) -> [[u64; 3]; VOICES] {
        unreachable!("there is no choir")
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::kernel::chacha::block::Rows;
    use crate::kernel::chacha::poly1305::Poly;
    use crate::kernel::x86_64::avx512::Avx512;

    /// Keys and messages at the edges of the limbs: all ones, all zeros, and what lies around.
    #[test]
    fn a_choir_does_what_one_message_at_a_time_does() {
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
        for turn in 0..VOICES {
            for count in [1, 2, 3, 41] {
                let messages: Vec<Vec<[u8; POLY_BLOCK_LEN]>> = (0..VOICES)
                    .map(|voice| {
                        // One message is the same number throughout, the next one walks through all of them.
                        let number = |i| numbers[(voice + i * (voice % 2)) % VOICES];
                        (0..count).map(|i| number(i).to_le_bytes()).collect()
                    })
                    .collect();
                let mut polys: Vec<Poly> = (0..VOICES)
                    .map(|voice| Poly::new(numbers[(voice + turn) % VOICES], 0))
                    .collect();
                // Not from zero, and with the limb above 2^128 in use.
                polys.iter_mut().for_each(|poly| poly.block(u128::MAX));
                let mut voices = [Part::SILENT; VOICES];
                for ((part, poly), data) in voices.iter_mut().zip(&polys).zip(&messages) {
                    (part.r, part.h, part.data) = ([poly.r[0], poly.r[1]], poly.h, data);
                }
                let hashed = <Avx512 as Rows>::Choir::new(token, voices, count).finish();
                for ((poly, data), h) in polys.iter_mut().zip(&messages).zip(hashed) {
                    let mut together = *poly;
                    together.h = h;
                    (data.iter()).for_each(|block| poly.block(u128::from_le_bytes(*block)));
                    assert_eq!(together.tag(), poly.tag(), "{turn} {count} {data:?}");
                }
            }
        }
    }
}
