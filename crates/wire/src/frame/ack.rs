//! ACK frames: RFC 9000 §19.3. Both directions, because the arithmetic of ranges is the same.
//!
//! ```text
//!            ┌ first_range ┐     gap + 1      ┌ length ┐
//!   ◄────────┤             │◄────────────────┤        │◄──── … descending packet numbers
//!      largest         smallest           next largest
//! ```

use super::ty;
use crate::cursor::{Reader, Writer};
use crate::error_code::{TransportError, TransportErrorCode};
use crate::varint;
use std::ops::RangeInclusive;

/// How many packets arrived with each ECN mark (RFC 9000 §19.3.2).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct EcnCounts {
    /// With ECT(0).
    pub ect0: u64,
    /// With ECT(1).
    pub ect1: u64,
    /// With CE, congestion experienced.
    pub ce: u64,
}

/// An ACK frame whose ranges have been validated.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ack<'a> {
    /// The largest packet number that is acknowledged.
    pub largest: u64,
    /// The delay as sent: microseconds, to be shifted left by the sender's ack_delay_exponent.
    pub delay: u64,
    /// How many packets right below `largest` are acknowledged with it.
    pub first_range: u64,
    /// How many ranges follow the first.
    pub range_count: u64,
    /// `range_count` pairs of gap and length.
    ranges: &'a [u8],
    /// ECN counts, in frames of type 0x03.
    pub ecn: Option<EcnCounts>,
}

impl<'a> Ack<'a> {
    /// The acknowledged packet numbers, from the largest downwards; at least one range.
    #[inline]
    #[must_use]
    pub fn ranges(&self) -> AckRanges<'a> {
        AckRanges {
            next: Some((self.largest, self.first_range)),
            rest: Reader::new(self.ranges),
        }
    }

    /// Reads the fields after the type.
    #[inline]
    pub(super) fn read(reader: &mut Reader<'a>, with_ecn: bool) -> Result<Self, TransportError> {
        // A copy that stays in registers.
        let mut r = *reader;
        let largest = r.varint()?;
        let delay = r.varint()?;
        let range_count = r.varint()?;
        let first_range = r.varint()?;
        let mut smallest = largest.checked_sub(first_range).ok_or(NEGATIVE)?;
        let mut ahead = r;
        for _ in 0..range_count {
            let (gap, len) = (ahead.varint()?, ahead.varint()?);
            // RFC 9000 §19.3.1: largest = previous_smallest - gap - 2; smallest = largest - length.
            // Both are below 2^62, so the sum cannot overflow.
            smallest = smallest.checked_sub(gap + len + 2).ok_or(NEGATIVE)?;
        }
        // The bytes read here are those that `ranges` walks later.
        let ranges = r.bytes(r.remaining() - ahead.remaining())?;
        let ecn = if with_ecn {
            Some(EcnCounts {
                ect0: r.varint()?,
                ect1: r.varint()?,
                ce: r.varint()?,
            })
        } else {
            None
        };
        *reader = r;
        Ok(Self {
            largest,
            delay,
            first_range,
            range_count,
            ranges,
            ecn,
        })
    }
}

const NEGATIVE: TransportError = TransportError::new(
    TransportErrorCode::FRAME_ENCODING_ERROR,
    "ACK range below packet number 0",
);

/// The ranges of an [`Ack`], in descending order.
#[derive(Clone, Debug)]
pub struct AckRanges<'a> {
    /// Largest packet number and length less one of the next range.
    next: Option<(u64, u64)>,
    rest: Reader<'a>,
}

impl Iterator for AckRanges<'_> {
    type Item = RangeInclusive<u64>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (largest, len) = self.next?;
        // `Ack::read` has already checked these subtractions; wrapping ones need no branch.
        let smallest = largest.wrapping_sub(len);
        self.next = match (self.rest.varint(), self.rest.varint()) {
            (Ok(gap), Ok(len)) => Some((smallest.wrapping_sub(gap).wrapping_sub(2), len)),
            _ => None,
        };
        Some(smallest..=largest)
    }
}

/// Writes an ACK frame with as many of the ranges as fit, and returns their number. If there is
/// none, or not even the first fits, it writes nothing and returns 0.
///
/// `ranges_descending` starts with the largest packet numbers; between two ranges at least one
/// number is missing. `delay` is already divided by this end's ack_delay_exponent. The frame has
/// type 0x03 when there are ECN counts.
pub(super) fn write(
    w: &mut Writer<'_>,
    mut ranges_descending: impl Iterator<Item = RangeInclusive<u64>> + Clone,
    delay: u64,
    ecn: Option<EcnCounts>,
) -> usize {
    let Some(first) = ranges_descending.next() else {
        return 0;
    };
    let (largest, first_range) = (*first.end(), first.end().saturating_sub(*first.start()));
    let ecn_size = ecn.map_or(0, |ecn| {
        varint::size(ecn.ect0) + varint::size(ecn.ect1) + varint::size(ecn.ce)
    });
    let fixed =
        1 + varint::size(largest) + varint::size(delay) + varint::size(first_range) + ecn_size;

    // The count comes before the ranges: one pass finds how many fit, a second one writes them.
    let additional = Gaps::new(*first.start(), ranges_descending);
    let (mut size, mut count) = (fixed, 0);
    if size + varint::size(0) > w.remaining() {
        return 0;
    }
    for (gap, len) in additional.clone() {
        size += varint::size(gap) + varint::size(len);
        if size + varint::size(count as u64 + 1) > w.remaining() {
            break;
        }
        count += 1;
    }

    w.u8(if ecn.is_some() { ty::ACK_ECN } else { ty::ACK } as u8);
    w.varint(largest);
    w.varint(delay);
    w.varint(count as u64);
    w.varint(first_range);
    for (gap, len) in additional.take(count) {
        w.varint(gap);
        w.varint(len);
    }
    if let Some(ecn) = ecn {
        w.varint(ecn.ect0);
        w.varint(ecn.ect1);
        w.varint(ecn.ce);
    }
    1 + count
}

/// Lengthens the ACK frame that `w` ends with, and that begins at `at`, to `len` bytes, with longer
/// encodings of its first four numbers: a varint need not be short (RFC 9000 §16). Changes nothing
/// if that is impossible: the frame is longer, there is no room, or the difference is too large.
pub(super) fn lengthen(w: &mut Writer<'_>, at: usize, len: usize) {
    let before = w.len();
    let Some(more) = (at + len).checked_sub(before).filter(|more| *more > 0) else {
        return;
    };
    if more > w.remaining() {
        return;
    }
    let mut reader = Reader::new(w.written_mut().get(at + 1..).unwrap_or_default());
    let (mut values, mut sizes) = ([0; 4], [0; 4]);
    for (value, size) in values.iter_mut().zip(&mut sizes) {
        let Ok(read) = reader.varint() else {
            return;
        };
        (*value, *size) = (read, varint::size(read));
    }
    let short = reader.position();
    let Some(sizes) = sizes_of_sum(sizes, short + more) else {
        return;
    };
    w.advance(more);
    let Some(numbers) = w.written_mut().get_mut(at + 1..) else {
        return;
    };
    numbers.copy_within(short..before - at - 1, short + more);
    let mut numbers = Writer::new(numbers);
    for (value, size) in values.into_iter().zip(sizes) {
        numbers.varint_of_size(value, size);
    }
}

/// Sizes of encodings, none below that in `least`, whose sum is `sum`.
fn sizes_of_sum(least: [usize; 4], sum: usize) -> Option<[usize; 4]> {
    const SIZES: [usize; 4] = [1, 2, 4, 8];
    let [a, b, c, d] = least.map(|least| SIZES.into_iter().filter(move |size| *size >= least));
    for d in d {
        for c in c.clone() {
            for b in b.clone() {
                let rest = sum.checked_sub(b + c + d);
                if let Some(a) = a.clone().find(|a| Some(*a) == rest) {
                    return Some([a, b, c, d]);
                }
            }
        }
    }
    None
}

/// Turns ranges into the pairs of gap and length in the frame.
#[derive(Clone)]
struct Gaps<I> {
    smallest: u64,
    ranges: I,
}

impl<I: Iterator<Item = RangeInclusive<u64>>> Gaps<I> {
    const fn new(smallest: u64, ranges: I) -> Self {
        Self { smallest, ranges }
    }
}

impl<I: Iterator<Item = RangeInclusive<u64>>> Iterator for Gaps<I> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let range = self.ranges.next()?;
        let gap = self.smallest.checked_sub(range.end().saturating_add(2));
        debug_assert!(gap.is_some(), "ACK ranges descend and do not touch");
        self.smallest = *range.start();
        Some((gap?, range.end().saturating_sub(*range.start())))
    }
}
