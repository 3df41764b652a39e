//! GHASH (NIST SP 800-38D §6.4) over a table of powers of H.
//!
//! GHASH is a sum: each block times a power of H. The powers are in a table, so that the products
//! of a whole packet are added up unreduced (Karatsuba: low, high and middle parts) and are reduced
//! once. Two blocks that are not payload, the associated data in front and the lengths at the end,
//! make one register of their own, the *edge*.
//!
//! ```text
//!   blocks     A      c1    c2   ...   cn    L
//!   powers     n+2    n+1   n    ...   2     1      the table is descending and ends with H
//! ```
//! A packet with more blocks than the table has powers is hashed in passes, each with a reduction.

use super::Job;
use super::acc::{Acc, POLYNOMIAL};
use super::lanes::Lanes;
use super::registers::{Block, Crypto, Registers, wipe};

/// Powers of H, descending, and for each the sum of its halves. Each is multiplied by x, which
/// makes up for the mirrored bit order.
#[repr(C, align(16))]
pub(super) struct Powers<const N: usize> {
    h: [Block; N],
    halves: [Block; N],
}

/// A class of powers, in use.
#[derive(Copy, Clone)]
pub(super) struct Table<'k> {
    h: &'k [Block],
    halves: &'k [Block],
    /// Powers in the table; after them is room that may be read.
    count: usize,
}

impl Table<'_> {
    /// Blocks that one pass can hash, not counting those of the edge.
    #[inline(always)]
    pub(super) fn blocks(&self) -> usize {
        self.count - 2
    }

    #[inline(always)]
    fn power<S: Lanes<Bytes = Block>>(&self, s: S, at: usize) -> S::V {
        match self.h.get(at) {
            Some(power) => s.load(power),
            None => s.zero(),
        }
    }

    /// H itself.
    #[inline(always)]
    fn h<S: Lanes<Bytes = Block>>(&self, s: S) -> S::V {
        self.power(s, self.count - 1)
    }
}

impl<const N: usize> Drop for Powers<N> {
    fn drop(&mut self) {
        wipe(&mut self.h, [0; 16]);
        wipe(&mut self.halves, [0; 16]);
    }
}

impl<const N: usize> Powers<N> {
    pub(super) const EMPTY: Self = Self {
        h: [[0; 16]; N],
        halves: [[0; 16]; N],
    };

    #[inline(always)]
    pub(super) fn table(&self, count: usize) -> Table<'_> {
        Table {
            h: &self.h,
            halves: &self.halves,
            count,
        }
    }

    /// Fills in H^count to H^1; `count` is a multiple of a register's lanes.
    #[inline(always)]
    pub(super) fn fill<L: Lanes>(&mut self, l: L, h: u128, count: usize) {
        let s = l.single();
        // Times x: a shift by one, and a reduction without a branch.
        let carry = 0_u128.wrapping_sub(h >> 127);
        let h = h << 1 ^ carry & (u128::from(POLYNOMIAL) << 64 | 1);
        let h = s.splat(h as u64, (h >> 64) as u64);
        let first = count - L::BLOCKS;
        self.set(s, count - 1, h);
        let mut power = h;
        for i in (first..count - 1).rev() {
            power = multiply(s, power, h);
            self.set(s, i, power);
        }
        // From here on, a register at a time: each product waits for the previous one.
        let step = l.broadcast(&self.h[first]);
        let mut powers = l.load_part(self.h[first..].as_flattened());
        for next in self.h[..first]
            .chunks_exact_mut(L::BLOCKS)
            .rev()
            .zip(self.halves[..first].chunks_exact_mut(L::BLOCKS).rev())
        {
            powers = multiply(l, powers, step);
            l.store_part(next.0.as_flattened_mut(), powers);
            l.store_part(next.1.as_flattened_mut(), l.xor(powers, l.swap(powers)));
        }
    }

    /// Fills in H^count to H^1 from a smaller table.
    #[inline(always)]
    pub(super) fn extend<L: Lanes<Bytes = Block>>(
        &mut self,
        l: L,
        short: &Table<'_>,
        count: usize,
    ) {
        let step = short.power(l, 0);
        for i in (0..count).rev() {
            let exponent = count - i;
            let power = match short
                .count
                .checked_sub(exponent)
                .and_then(|at| short.h.get(at))
            {
                Some(power) => l.load(power),
                // Independent of its neighbours, so that they overlap; in a chain each would wait
                // for the previous product.
                None => multiply(l, l.load(&self.h[i + short.count]), step),
            };
            self.set(l, i, power);
        }
    }

    #[inline(always)]
    fn set<L: Lanes>(&mut self, l: L, i: usize, power: L::V) {
        let (h, halves) = (&mut self.h[i], &mut self.halves[i]);
        l.store_part(h, power);
        l.store_part(halves, l.xor(power, l.swap(power)));
    }
}

/// A product in the field of two lanes' elements, one of which is multiplied by x.
#[inline(always)]
fn multiply<L: Lanes>(l: L, a: L::V, b: L::V) -> L::V {
    let mut acc = Acc::zero(l);
    acc.add_register(l, a, b, l.xor(b, l.swap(b)));
    acc.reduce(l)
}

impl<L: Lanes> Acc<L> {
    #[inline(always)]
    fn fold(self, l: L) -> Acc<L::Single> {
        Acc {
            low: l.fold(self.low),
            high: l.fold(self.high),
            middle: l.fold(self.middle),
        }
    }
}

/// Powers of H for `M` registers of data, and the sums of their halves.
pub(super) type PowersFor<'k, B, const M: usize> = (&'k [B; M], &'k [B; M]);

/// As [`PowersFor`], for each `M` registers.
type PowersForChunks<'k, B, const M: usize> = (&'k [[B; M]], &'k [[B; M]]);

/// How to hash a packet for which one pass is enough.
pub(super) struct Pass<'k, L: Lanes> {
    table: Table<'k>,
    /// The powers for the payload's registers, and the sums of their halves.
    h: &'k [L::Bytes],
    halves: &'k [L::Bytes],
    /// The power for the associated data.
    first: L::Lane,
    lengths: L::Lane,
}

impl<'k, L: Lanes> Pass<'k, L> {
    /// For a job and others of the same lengths. `None` if the table has too few powers.
    #[inline(always)]
    pub(super) fn new(l: L, table: Table<'k>, job: &Job<'_>) -> Option<Self> {
        let blocks = job.payload_len().div_ceil(16);
        let registers = blocks.div_ceil(L::BLOCKS);
        let at = table.count.checked_sub(blocks + 1)?;
        let powers =
            |powers: &'k [Block]| (L::vectors(powers.get(at..)?.as_flattened()).0).get(..registers);
        Some(Self {
            table,
            h: powers(table.h)?,
            halves: powers(table.halves)?,
            first: table.power(l.single(), at.checked_sub(1)?),
            lengths: lengths(l.single(), job),
        })
    }

    /// The sum that a packet's payload is added to.
    #[inline(always)]
    pub(super) fn start(&self, l: L, job: &Job<'_>) -> Acc<L> {
        let s = l.single();
        let (packet, header_len) = job.packet_and_header_len();
        let associated = associated_data(s, self.table, packet, header_len);
        edge(l, [associated, self.lengths], [self.first, self.table.h(s)])
    }

    /// The powers for each `M` registers of the payload.
    #[inline(always)]
    pub(super) fn chunks<const M: usize>(&self) -> PowersForChunks<'k, L::Bytes, M> {
        (self.h.as_chunks().0, self.halves.as_chunks().0)
    }

    /// The powers for the payload's last `M` registers.
    #[inline(always)]
    pub(super) fn last<const M: usize>(&self) -> PowersFor<'k, L::Bytes, M> {
        let powers = self.h.last_chunk().zip(self.halves.last_chunk());
        powers.expect("powers for every register")
    }
}

/// The sum of two blocks, each times a power.
#[inline(always)]
fn edge<L: Lanes>(l: L, blocks: [L::Lane; 2], powers: [L::Lane; 2]) -> Acc<L> {
    let mut acc = Acc::zero(l);
    if L::BLOCKS == 1 {
        // There is no second lane, so one after the other.
        for (block, h) in blocks.into_iter().zip(powers) {
            let (block, h) = (l.lanes([block; 4]), l.lanes([h; 4]));
            acc.add_register(l, block, h, l.xor(h, l.swap(h)));
        }
    } else {
        let [first, second] = powers;
        let h = l.pair(first, second);
        let [first, second] = blocks;
        acc.add_register(l, l.pair(first, second), h, l.xor(h, l.swap(h)));
    }
    acc
}

/// The tag, from a sum of products and a packet's pad.
#[inline(always)]
pub(super) fn tag<L: Lanes>(l: L, acc: Acc<L>, pad: L::Lane) -> Block {
    let s = l.single();
    let hash = acc.fold(l).reduce(s);
    let mut tag = [0; 16];
    s.store(&mut tag, s.xor(s.reverse(hash), pad));
    tag
}

/// The hash of one packet in progress, in as many passes as it takes.
pub(super) struct Hash<'k, L: Lanes> {
    pub(super) acc: Acc<L>,
    table: Table<'k>,
    /// Index of the next block's power.
    at: usize,
    /// Blocks that this pass leaves to another one; none if it is the last.
    later: Option<usize>,
    lengths: L::Lane,
}

impl<'k, L: Lanes> Hash<'k, L> {
    #[inline(always)]
    pub(super) fn new(l: L, table: Table<'k>, job: &Job<'_>) -> Self {
        let s = l.single();
        let blocks = job.payload_len().div_ceil(16);
        let (packet, header_len) = job.packet_and_header_len();
        let (associated, lengths) = (
            associated_data(s, table, packet, header_len),
            lengths(s, job),
        );
        let mut hash = Self {
            acc: Acc::zero(l),
            table,
            at: 0,
            later: None,
            lengths,
        };
        if blocks + 2 <= table.count {
            hash.at = table.count - (blocks + 1);
            hash.edge(l, associated, hash.lengths, hash.at - 1);
        } else {
            hash.pass(l, multiply(s, associated, table.h(s)), blocks);
        }
        hash
    }

    /// Starts the hash of a packet whose associated data comes with its payload, in the lane before
    /// it; also returns that block, as it would lie in a packet.
    #[inline(always)]
    pub(super) fn with_associated_data(l: L, table: Table<'k>, job: &Job<'_>) -> (Self, L::Lane) {
        let s = l.single();
        let blocks = job.payload_len().div_ceil(16);
        let (packet, header_len) = job.packet_and_header_len();
        let associated = associated_data(s, table, packet, header_len);
        let mut hash = Self {
            acc: Acc::zero(l),
            table,
            at: 0,
            later: None,
            lengths: lengths(s, job),
        };
        hash.pass(l, s.zero(), blocks + 1);
        (hash, s.reverse(associated))
    }

    /// Starts a sum with a block times the power at an index, and another times H.
    #[inline(always)]
    fn edge(&mut self, l: L, first: L::Lane, second: L::Lane, at: usize) {
        let s = l.single();
        let powers = [self.table.power(s, at), self.table.h(s)];
        self.acc = edge(l, [first, second], powers);
    }

    /// Starts a pass that continues the hash so far, with `blocks` to go.
    #[inline(always)]
    fn pass(&mut self, l: L, so_far: L::Lane, blocks: usize) {
        let s = l.single();
        if blocks < self.table.count {
            self.at = self.table.count - (blocks + 1);
            self.later = None;
            self.edge(l, so_far, self.lengths, self.at);
        } else {
            self.at = 0;
            self.later = Some(blocks - self.table.count);
            self.edge(l, so_far, s.zero(), 0);
        }
    }

    #[inline(always)]
    fn pass_if_due(&mut self, l: L) {
        if let Some(later) = self.later
            && self.at == self.table.count
        {
            let so_far = self.acc.fold(l).reduce(l.single());
            self.pass(l, so_far, later);
        }
    }

    /// The powers for the next `M` registers, which the caller adds to `acc`.
    #[inline(always)]
    pub(super) fn step<const M: usize>(&mut self, l: L) -> PowersFor<'k, L::Bytes, M> {
        self.pass_if_due(l);
        let at = self.at;
        self.at += M * L::BLOCKS;
        let powers = registers::<L, M>(self.table.h, at);
        let halves = registers::<L, M>(self.table.halves, at);
        powers.zip(halves).expect("powers for every block")
    }

    /// Adds the first `M` registers of a chunk.
    #[inline(always)]
    pub(super) fn add_registers<const M: usize>(&mut self, l: L, data: &[L::Bytes]) {
        let powers = self.step::<M>(l);
        for ((data, h), halves) in data.iter().zip(powers.0).zip(powers.1) {
            self.acc.add(l, data, h, halves);
        }
    }

    /// Adds registers, whose blocks are in the order of the packet.
    #[inline(always)]
    pub(super) fn add_values<const M: usize>(&mut self, l: L, data: &[L::V; M]) {
        let powers = self.step::<M>(l);
        for ((data, h), halves) in data.iter().zip(powers.0).zip(powers.1) {
            (self.acc).add_register(l, l.reverse(*data), l.load(h), l.load(halves));
        }
    }

    /// The tag: the hash encrypted with the packet's pad.
    #[inline(always)]
    pub(super) fn finish(self, l: L, pad: &Block) -> Block {
        self.finish_with(l, l.single().load(pad))
    }

    /// As [`finish`](Self::finish), with the pad in a register.
    #[inline(always)]
    pub(super) fn finish_with(mut self, l: L, pad: L::Lane) -> Block {
        self.pass_if_due(l);
        tag(l, self.acc, pad)
    }
}

/// The hashes of short packets of `N` blocks, one packet in each lane of `G` registers.
pub(super) struct Sum<'k, L: Lanes, const N: usize, const G: usize> {
    accs: [Acc<L>; G],
    /// H^(N+2) to H, and the sums of their halves.
    h: &'k [Block],
    halves: &'k [Block],
}

impl<'k, L: Lanes, const N: usize, const G: usize> Sum<'k, L, N, G> {
    /// Starts with associated data and lengths, each as GHASH takes them.
    #[inline(always)]
    pub(super) fn new(l: L, table: Table<'k>, associated: &[L::V; G], lengths: &[L::V; G]) -> Self {
        let in_use = table.count - (N + 2)..table.count;
        let mut sum = Self {
            accs: [Acc::zero(l); G],
            h: &table.h[in_use.clone()],
            halves: &table.halves[in_use],
        };
        sum.add_reversed(l, 0, associated);
        sum.add_reversed(l, N + 1, lengths);
        sum
    }

    /// Adds block `j` of the payloads.
    #[inline(always)]
    pub(super) fn add(&mut self, l: L, j: usize, data: &[L::V; G]) {
        let mut reversed = [l.zero(); G];
        for (reversed, data) in reversed.iter_mut().zip(data) {
            *reversed = l.reverse(*data);
        }
        self.add_reversed(l, j + 1, &reversed);
    }

    #[inline(always)]
    fn add_reversed(&mut self, l: L, at: usize, blocks: &[L::V; G]) {
        let (h, halves) = (l.broadcast(&self.h[at]), l.broadcast(&self.halves[at]));
        for (acc, block) in self.accs.iter_mut().zip(blocks) {
            acc.add_register(l, *block, h, halves);
        }
    }

    /// The hashes, in the order of bytes in a packet.
    #[inline(always)]
    pub(super) fn finish(&self, l: L) -> [L::V; G] {
        let mut hashes = [l.zero(); G];
        for (hash, acc) in hashes.iter_mut().zip(self.accs) {
            *hash = l.reverse(acc.reduce(l));
        }
        hashes
    }
}

/// `M` registers, starting at a block.
#[inline(always)]
fn registers<L: Lanes, const M: usize>(blocks: &[Block], at: usize) -> Option<&[L::Bytes; M]> {
    L::vectors(blocks.get(at..)?.as_flattened()).0.first_chunk()
}

/// The last block of a hash (SP 800-38D §7.1).
#[inline(always)]
pub(super) fn lengths<S: Lanes<Bytes = Block>>(s: S, job: &Job<'_>) -> S::V {
    s.splat(
        job.payload_len() as u64 * 8,
        job.packet_and_header_len().1 as u64 * 8,
    )
}

/// The last block of the associated data, with the hash of the previous ones added: all that GHASH
/// needs of it.
#[inline(always)]
fn associated_data<S: Lanes<Bytes = Block>>(
    s: S,
    table: Table<'_>,
    packet: &[u8],
    header_len: usize,
) -> S::V {
    let (mut rest, mut rest_len) = (packet, header_len);
    let mut hash = s.zero();
    while let Some((block, behind)) = rest.split_first_chunk() {
        let data = s.load(block);
        if rest_len <= 16 {
            // A tag's length follows every header, so there is a whole block to read and to cut.
            return s.xor(hash, s.reverse(s.and(data, block_mask(s, rest_len))));
        }
        let h = table
            .h
            .get(table.count - 1)
            .map_or(s.zero(), |block| s.load(block));
        hash = multiply(s, s.xor(hash, s.reverse(data)), h);
        (rest, rest_len) = (behind, rest_len - 16);
    }
    hash
}

/// 64 ones and 64 zeros: a mask of n ones starts at 64 - n.
#[repr(align(64))]
struct Masks([u8; 128]);

static MASKS: Masks = {
    let mut bytes = [0; 128];
    let mut i = 0;
    while i < 64 {
        bytes[i] = 0xff;
        i += 1;
    }
    Masks(bytes)
};

/// Ones in the first `len` bytes, at most a register; zeros after them.
#[inline(always)]
pub(super) fn mask<L: Lanes>(l: L, len: usize) -> L::V {
    let from = MASKS.0.get(64 - len.min(64)..).unwrap_or(&[]);
    L::vectors(from)
        .0
        .first()
        .map_or(l.zero(), |bytes| l.load(bytes))
}

/// Windows on ones followed by zeros.
static BLOCK_MASKS: [u8; 47] = {
    let mut bytes = [0; 47];
    let mut i = 0;
    while i < 31 {
        bytes[i] = 0xff;
        i += 1;
    }
    bytes
};

/// Ones in the first `len` bytes of a block, at most 31; zeros after them. This needs no
/// comparison.
#[inline(always)]
pub(super) fn block_mask<S: Lanes<Bytes = Block>>(s: S, len: usize) -> S::V {
    let window = BLOCK_MASKS[!len & 31..].first_chunk();
    window.map_or(s.zero(), |bytes| s.load(bytes))
}
