//! Poly1305 of many messages side by side, where a CPU has registers for that.

use super::block::Meanwhile;
use super::poly1305::POLY_BLOCK_LEN;

/// Messages side by side.
pub(in crate::kernel) const VOICES: usize = 8;

/// One message: its key, what was computed so far, and blocks to come.
#[derive(Copy, Clone)]
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
