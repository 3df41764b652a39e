//! Integers that begin within a byte: RFC 7541 §5.1, RFC 9204 §4.1.1.

/// The largest value: 62 bits, which an implementation must be able to read.
pub(super) const MAX: u64 = (1 << 62) - 1;

/// The most bytes after the first: nine hold 63 bits.
const MAX_CONTINUATION: u32 = 9;

/// Why no integer could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntegerError {
    /// The input ends within it.
    Truncated,
    /// It is larger than [`MAX`], or takes more than nine bytes after the first.
    TooLarge,
}

/// Reads the integer whose prefix is the low `PREFIX` bits of `first`, and which may continue in
/// `rest`; advances `rest`.
///
/// # Errors
/// See [`IntegerError`].
#[inline]
pub(super) fn read<const PREFIX: u32>(first: u8, rest: &mut &[u8]) -> Result<u64, IntegerError> {
    let mask = ((1u16 << PREFIX) - 1) as u8;
    let value = first & mask;
    if value < mask {
        return Ok(u64::from(value));
    }
    read_rest(u64::from(value), rest)
}

fn read_rest(mut value: u64, rest: &mut &[u8]) -> Result<u64, IntegerError> {
    for at in 0..MAX_CONTINUATION {
        let (byte, after) = rest.split_first().ok_or(IntegerError::Truncated)?;
        *rest = after;
        // At most 2^8 + 9 × 7 bits of ones, which is less than 2^64.
        value += u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return if value <= MAX {
                Ok(value)
            } else {
                Err(IntegerError::TooLarge)
            };
        }
    }
    Err(IntegerError::TooLarge)
}

/// Appends `value` with a prefix of `PREFIX` bits, below the bits of `first`.
#[inline]
pub(super) fn write<const PREFIX: u32>(first: u8, value: u64, out: &mut Vec<u8>) {
    let mask = (1u64 << PREFIX) - 1;
    if value < mask {
        out.push(first | value as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut left = value - mask;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<const PREFIX: u32>(value: u64) {
        let mut bytes = Vec::new();
        write::<PREFIX>(0, value, &mut bytes);
        let (first, mut rest) = bytes.split_first().unwrap();
        assert_eq!(read::<PREFIX>(*first, &mut rest), Ok(value));
        assert!(rest.is_empty());
        for cut in 1..bytes.len() {
            let mut rest = &bytes[1..cut];
            assert_eq!(
                read::<PREFIX>(bytes[0], &mut rest),
                Err(IntegerError::Truncated)
            );
        }
    }

    #[test]
    fn integers_round_trip() {
        for bits in 0..62 {
            for value in [(1 << bits) - 1, 1 << bits, (1 << bits) + 1, MAX - bits] {
                round_trip::<3>(value);
                round_trip::<4>(value);
                round_trip::<5>(value);
                round_trip::<6>(value);
                round_trip::<7>(value);
                round_trip::<8>(value);
            }
        }
    }

    #[test]
    fn the_examples_of_the_rfc_are_reproduced() {
        // test: RFC 7541 §C.1
        let mut out = Vec::new();
        write::<5>(0, 10, &mut out);
        write::<5>(0, 1337, &mut out);
        write::<8>(0, 42, &mut out);
        assert_eq!(out, [10, 31, 154, 10, 42]);
    }

    #[test]
    fn integers_above_2_62_are_rejected() {
        // 2^62 - 1 can be read, 2^62 cannot.
        let mut largest = Vec::new();
        write::<8>(0, MAX, &mut largest);
        let mut larger = Vec::new();
        write::<8>(0, MAX + 1, &mut larger);
        assert_eq!(read::<8>(255, &mut &largest[1..]), Ok(MAX));
        assert_eq!(
            read::<8>(255, &mut &larger[1..]),
            Err(IntegerError::TooLarge)
        );
        assert_eq!(
            read::<8>(255, &mut &[0xff; 20][..]),
            Err(IntegerError::TooLarge)
        );
        // Zeros that add nothing do not continue for ever either.
        assert_eq!(
            read::<8>(255, &mut &[0x80; 20][..]),
            Err(IntegerError::TooLarge)
        );
        let mut padded = [0x80; 9];
        padded[8] = 0;
        assert_eq!(read::<8>(255, &mut &padded[..]), Ok(255));
    }
}
