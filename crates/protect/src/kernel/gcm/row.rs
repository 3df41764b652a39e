//! Rows: neighbours of one length, as most packets of a call are. What depends on the length alone
//! is worked out once for all of them, and the numbers of registers are constants. So a packet of
//! 1,450 bytes is sealed with 900 instructions instead of 1,160.

use super::{CHUNK, COUNTERS, Key, Shape};
use crate::kernel::lanes::Lanes;
use crate::span::MAX_NUMBER_LEN;

/// Registers that wait to be hashed. They begin a cache line: when each lay across two, depending
/// on the stack, a packet took up to a fifth longer.
#[repr(align(64))]
pub(super) struct Stash<T>(pub(super) [T; CHUNK]);

/// The shape of a row's packets with this many bytes of payload. `None` if they have no payload, or
/// one that takes several passes of the hash or other counters than the static ones.
#[inline(always)]
pub(super) fn shape<L: Lanes, const R: usize, const S: usize>(
    key: &Key<R, S>,
    payload_len: usize,
) -> Option<Shape> {
    let blocks = payload_len.div_ceil(16);
    let is_row = (blocks > 0) & (blocks <= key.table().blocks().min(COUNTERS.0.len()));
    is_row.then(|| Shape::of::<L>(payload_len))
}

/// The shape of received packets with this many bytes of payload, or more if their numbers are
/// shorter than four bytes. `None` if it depends on the length of the number, which nothing may
/// reveal (RFC 9001 §9.5), or if a row gains nothing: for packets of less than a chunk.
#[inline(always)]
pub(super) fn shape_of_received<L: Lanes, const R: usize, const S: usize>(
    key: &Key<R, S>,
    payload_len: usize,
) -> Option<Shape> {
    let shortest = Shape::of::<L>(payload_len);
    if shortest.chunks == 0 {
        return None;
    }
    let longest = shape::<L, R, S>(key, payload_len.wrapping_add(MAX_NUMBER_LEN - 1))?;
    let is_one = (longest.chunks, longest.registers) == (shortest.chunks, shortest.registers);
    is_one.then_some(longest)
}
