//! The block function of ChaCha20 (RFC 8439 §2.3): for many blocks at once in vector registers, and
//! for one without them.
//!
//! ```text
//!   register   a row of the state, four words, of as many blocks as a register has room for
//!   group      the four rows of those blocks; groups side by side hide each other's latency
//!   pass       twenty rounds of one or more groups, with some other work between the rounds
//! ```

use super::LeastAlone;
use super::meanwhile::Meanwhile;
use super::parallel::Parallel;
use super::poly1305::{self, POLY_BLOCK_LEN};

/// Bytes of a key-stream block.
pub(in crate::kernel) const BLOCK_LEN: usize = 64;

/// A key-stream block.
#[derive(Copy, Clone)]
#[repr(C, align(64))]
pub(in crate::kernel) struct Block(pub(in crate::kernel) [u8; BLOCK_LEN]);

impl Block {
    pub(super) const ZERO: Self = Self([0; BLOCK_LEN]);
}

/// Four words of the state.
pub(in crate::kernel) type Row = [u32; 4];

/// RFC 8439 §2.3: "expand 32-byte k".
pub(in crate::kernel) const CONSTANTS: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// What the kernel needs from a CPU: registers that hold a row of each of [`WIDTH`](Rows::WIDTH)
/// blocks. A value proves that the CPU has them.
pub(in crate::kernel) trait Rows: Copy {
    type V: Copy;
    /// What the rotations by whole bytes need in registers, if anything.
    type Rotations: Copy;

    /// Poly1305 of many packets in parallel.
    type Parallel<'a>: Parallel<'a, Token = Self>;

    /// Whether the CPU has it.
    const HAS_PARALLEL: bool;
    /// Blocks in a register.
    const WIDTH: usize;
    /// Which packets are processed by themselves.
    const LEAST_ALONE: LeastAlone;

    /// The same row for all blocks.
    fn splat(self, row: &Row) -> Self::V;
    /// A row for each block, from the inputs of as many lanes: a nonce with its counter added.
    fn inputs(self, lanes: &[Lane]) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    fn rotations(self) -> Self::Rotations;
    /// Rotates each word left.
    fn rotate_16(self, v: Self::V, rotations: Self::Rotations) -> Self::V;
    fn rotate_12(self, v: Self::V) -> Self::V;
    fn rotate_8(self, v: Self::V, rotations: Self::Rotations) -> Self::V;
    fn rotate_7(self, v: Self::V) -> Self::V;
    /// Rotates the words of each row by one, two or three places.
    fn turn_1(self, v: Self::V) -> Self::V;
    fn turn_2(self, v: Self::V) -> Self::V;
    fn turn_3(self, v: Self::V) -> Self::V;
    /// Writes a row of each block.
    fn store_row(self, v: Self::V, rows: &mut [Row]);
    /// Writes the rows of a group as its blocks.
    fn store(self, rows: [Self::V; 4], blocks: &mut [Block]);
    /// Adds a block of key stream to the input, if there is one, or else to the output in place.
    fn apply(self, input: Option<&[u8; BLOCK_LEN]>, pad: &Block, output: &mut [u8; BLOCK_LEN]);

    /// Adds a block to Poly1305's h and multiplies by r.
    #[inline(always)]
    fn absorb(self, h: &mut [u64; 3], r: &[u64; 3], block: &[u8; POLY_BLOCK_LEN]) {
        poly1305::absorb(h, r, u128::from_le_bytes(*block));
    }

    /// Adds some blocks to Poly1305's h, multiplying by r after each: one after the other, unless
    /// the CPU has a better way.
    #[inline(always)]
    fn absorb_all(self, h: &mut [u64; 3], r: &[u64; 3], blocks: &[[u8; POLY_BLOCK_LEN]]) {
        for block in blocks {
            self.absorb(h, r, block);
        }
    }

    /// The blocks of `G` groups, with some other work between the rounds: this way, unless the CPU
    /// has a better one.
    #[inline(always)]
    fn pass<const G: usize>(
        self,
        key: &[u32; 8],
        lanes: &[Lane],
        blocks: &mut [Block],
        meanwhile: &mut impl Meanwhile,
    ) {
        let [a, b, c, d] = states::<Self, G>(self, key, lanes, meanwhile);
        for (g, blocks) in blocks.chunks_exact_mut(Self::WIDTH).take(G).enumerate() {
            self.store([a[g], b[g], c[g], d[g]], blocks);
        }
    }
}

/// How a lane of a pass gets the last row of its state: the row of a nonce, with a number added to
/// its first word.
#[derive(Copy, Clone)]
pub(in crate::kernel) struct Lane {
    pub(in crate::kernel) nonce: Row,
    pub(in crate::kernel) counter: u32,
}

impl Lane {
    pub(super) const EMPTY: Self = Self {
        nonce: [0; 4],
        counter: 0,
    };
}

/// The states of `G` groups after the twenty rounds and the final addition. `meanwhile` steps
/// between the rounds.
#[inline(always)]
pub(in crate::kernel) fn states<W: Rows, const G: usize>(
    w: W,
    key: &[u32; 8],
    lanes: &[Lane],
    meanwhile: &mut impl Meanwhile,
) -> [[W::V; G]; 4] {
    let (rows, _) = key.as_chunks();
    let (row_0, row_1, row_2) = (w.splat(&CONSTANTS), w.splat(&rows[0]), w.splat(&rows[1]));
    let (mut a, mut b, mut c) = ([row_0; G], [row_1; G], [row_2; G]);
    let mut d = a;
    for (d, lanes) in d.iter_mut().zip(lanes.chunks_exact(W::WIDTH)) {
        *d = w.inputs(lanes);
    }
    let inputs = d;
    let rotations = w.rotations();
    macro_rules! quarter_rounds {
        () => {
            for g in 0..G {
                a[g] = w.add(a[g], b[g]);
                d[g] = w.rotate_16(w.xor(d[g], a[g]), rotations);
            }
            for g in 0..G {
                c[g] = w.add(c[g], d[g]);
                b[g] = w.rotate_12(w.xor(b[g], c[g]));
            }
            for g in 0..G {
                a[g] = w.add(a[g], b[g]);
                d[g] = w.rotate_8(w.xor(d[g], a[g]), rotations);
            }
            for g in 0..G {
                c[g] = w.add(c[g], d[g]);
                b[g] = w.rotate_7(w.xor(b[g], c[g]));
            }
        };
    }
    for _ in 0..10 {
        quarter_rounds!();
        // Columns become diagonals, and back.
        for g in 0..G {
            (b[g], c[g], d[g]) = (w.turn_1(b[g]), w.turn_2(c[g]), w.turn_3(d[g]));
        }
        meanwhile.step();
        quarter_rounds!();
        for g in 0..G {
            (b[g], c[g], d[g]) = (w.turn_3(b[g]), w.turn_2(c[g]), w.turn_1(d[g]));
        }
        meanwhile.step();
    }
    for g in 0..G {
        a[g] = w.add(a[g], row_0);
        b[g] = w.add(b[g], row_1);
        c[g] = w.add(c[g], row_2);
        d[g] = w.add(d[g], inputs[g]);
    }
    [a, b, c, d]
}

/// The first rows of the blocks of `G` groups, with some other work between the rounds.
#[inline(always)]
pub(super) fn first_rows<W: Rows, const G: usize>(
    w: W,
    key: &[u32; 8],
    lanes: &[Lane],
    rows: &mut [Row],
    meanwhile: &mut impl Meanwhile,
) {
    let [a, ..] = states::<W, G>(w, key, lanes, meanwhile);
    for (a, rows) in a.into_iter().zip(rows.chunks_exact_mut(W::WIDTH)) {
        w.store_row(a, rows);
    }
}

/// One block in general registers. It takes two thirds of the time of a pass, and hardly any beside
/// one.
pub(super) struct Scalar {
    input: [u32; 16],
    x: [u32; 16],
}

impl Scalar {
    #[inline(always)]
    pub(super) fn new(key: &[u32; 8], input: &Row) -> Self {
        let input = state(key, input);
        Self { input, x: input }
    }

    /// Two of the twenty rounds.
    #[inline(always)]
    pub(super) fn double_round(&mut self) {
        double_round(&mut self.x);
    }

    /// The first row, after ten times two rounds.
    #[inline(always)]
    pub(super) fn row(&self) -> Row {
        [0, 1, 2, 3].map(|i| self.x[i].wrapping_add(self.input[i]))
    }

    /// The block, after ten times two rounds.
    #[inline(always)]
    pub(super) fn block(&self) -> Block {
        let mut block = Block::ZERO;
        let words = block.0.as_chunks_mut().0;
        for ((bytes, x), input) in words.iter_mut().zip(self.x).zip(self.input) {
            *bytes = x.wrapping_add(input).to_le_bytes();
        }
        block
    }
}

/// The state before the rounds (RFC 8439 §2.3), with the given last row.
#[inline(always)]
fn state(key: &[u32; 8], last: &Row) -> [u32; 16] {
    let mut x = [0; 16];
    x[..4].copy_from_slice(&CONSTANTS);
    x[4..12].copy_from_slice(key);
    x[12..].copy_from_slice(last);
    x
}

/// The first row of one block, without vector registers.
#[inline(always)]
pub(super) fn first_row(key: &[u32; 8], input: &Row) -> Row {
    let mut x = state(key, input);
    for _ in 0..10 {
        double_round(&mut x);
    }
    let mut row = CONSTANTS;
    for (row, x) in row.iter_mut().zip(x) {
        *row = row.wrapping_add(x);
    }
    row
}

/// Hides a word from the optimizer, which would otherwise put the four quarter rounds side by side
/// into vector registers.
#[inline(always)]
fn opaque(word: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let same;
        // SAFETY: there is no instruction.
        unsafe {
            std::arch::asm!(
                "/* {0:e} */",
                inlateout(reg) word => same,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        same
    }
    #[cfg(not(target_arch = "x86_64"))]
    word
}

/// Two of the twenty rounds.
#[inline(always)]
fn double_round(x: &mut [u32; 16]) {
    macro_rules! quarter_round {
        ($a:literal, $b:literal, $c:literal, $d:literal) => {
            x[$a] = opaque(x[$a].wrapping_add(x[$b]));
            x[$d] = (x[$d] ^ x[$a]).rotate_left(16);
            x[$c] = opaque(x[$c].wrapping_add(x[$d]));
            x[$b] = (x[$b] ^ x[$c]).rotate_left(12);
            x[$a] = opaque(x[$a].wrapping_add(x[$b]));
            x[$d] = (x[$d] ^ x[$a]).rotate_left(8);
            x[$c] = opaque(x[$c].wrapping_add(x[$d]));
            x[$b] = (x[$b] ^ x[$c]).rotate_left(7);
        };
    }
    quarter_round!(0, 4, 8, 12);
    quarter_round!(1, 5, 9, 13);
    quarter_round!(2, 6, 10, 14);
    quarter_round!(3, 7, 11, 15);
    quarter_round!(0, 5, 10, 15);
    quarter_round!(1, 6, 11, 12);
    quarter_round!(2, 7, 8, 13);
    quarter_round!(3, 4, 9, 14);
}
