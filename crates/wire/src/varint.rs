//! Variable-length integers: RFC 9000 §16. Reading and writing is in [`cursor`](crate::cursor).

/// The largest value that a variable-length integer holds: 2^62 - 1.
pub const MAX: u64 = (1 << 62) - 1;

/// The two-bit prefix of the shortest encoding of `v`: 0, 1, 2 or 3 (RFC 9000 §16, table 4).
///
/// A sum of comparisons, not a chain of branches: sizes vary from frame to frame and predict badly.
#[inline]
pub(crate) const fn prefix(v: u64) -> u32 {
    (v >= 1 << 6) as u32 + (v >= 1 << 14) as u32 + (v >= 1 << 30) as u32
}

/// How many bytes the shortest encoding of `v` takes: 1, 2, 4 or 8. `v` is at most [`MAX`].
#[inline]
#[must_use]
pub const fn size(v: u64) -> usize {
    1 << prefix(v)
}

/// The largest value whose encoding takes as many bytes as that of `v`, which is at most [`MAX`].
#[inline]
#[must_use]
pub const fn last_of_size(v: u64) -> u64 {
    MAX >> (64 - 8 * size(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 9000 §16, table 4
    #[test]
    fn size_changes_at_the_limits_of_the_table() {
        for (value, bytes) in [
            (0, 1),
            (63, 1),
            (64, 2),
            (16_383, 2),
            (16_384, 4),
            (1_073_741_823, 4),
            (1_073_741_824, 8),
            (MAX, 8),
        ] {
            let last = last_of_size(value);
            assert!(value <= last && size(last) == bytes);
            assert!(last == MAX || size(last + 1) > bytes);
            assert_eq!(size(value), bytes, "{value}");
        }
    }
}
