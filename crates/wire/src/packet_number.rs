//! Packet numbers on the wire: RFC 9000 §17.1 and appendices A.2 and A.3.
//!
//! A header carries the one to four low bytes of a packet number. The sender chooses how many from
//! what the peer has acknowledged; the receiver finds the number nearest to the one it expects.

use crate::cursor::Writer;
use crate::varint;

/// How many bytes the packet number `pn` needs, 1 to 4, so that a peer which has acknowledged
/// `largest_acked` (`None`: nothing yet) decodes it.
///
/// Before the first acknowledgement the full number has to be sent (RFC 9000 §17.1); a caller that
/// sends 2^31 unacknowledged packets gets 4 all the same.
#[inline]
#[must_use]
pub const fn encoded_len(pn: u64, largest_acked: Option<u64>) -> usize {
    let unacknowledged = match largest_acked {
        Some(largest) => pn.saturating_sub(largest),
        None => pn.saturating_add(1),
    };
    // RFC 9000 §17.1: able to represent *more than* twice the range. (The logarithm of A.2 is one
    // bit short of that if the range is a power of two.)
    let bits = 64 - unacknowledged.saturating_mul(2).leading_zeros();
    let bytes = bits.div_ceil(8) as usize;
    if bytes < 1 {
        1
    } else if bytes > 4 {
        4
    } else {
        bytes
    }
}

/// The packet number nearest to the next expected one whose low `len` bytes are `truncated` (RFC
/// 9000 A.3). `len` is 1 to 4; `largest` is the largest number received in an authenticated packet
/// of the same number space.
#[inline]
#[must_use]
pub const fn expand(truncated: u64, len: usize, largest: Option<u64>) -> u64 {
    let expected = match largest {
        // At the end of the number space nothing further can be expected.
        Some(largest) if largest < varint::MAX => largest + 1,
        Some(_) => varint::MAX,
        None => 0,
    };
    let window = 1u64 << (8 * (if len < 4 { len } else { 4 }));
    let half = window / 2;
    let candidate = (expected & !(window - 1)) | (truncated & (window - 1));
    if candidate + half <= expected && candidate < (1 << 62) - window {
        candidate + window
    } else if candidate > expected + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// Puts the low `len` bytes of `pn`.
#[inline]
pub(crate) fn write(w: &mut Writer<'_>, pn: u64, len: usize) {
    let bytes = pn.to_be_bytes();
    match bytes.get(bytes.len().saturating_sub(len)..) {
        Some(low) => w.bytes(low),
        None => debug_assert!(false, "a packet number has at most 8 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // test: RFC 9000 A.2
    #[test]
    fn encoded_len_matches_the_examples_of_the_rfc() {
        assert_eq!(encoded_len(0xac_5c02, Some(0xab_e8b3)), 2);
        assert_eq!(encoded_len(0xac_e8fe, Some(0xab_e8b3)), 3);
    }

    // test: RFC 9000 §17.1: "more than twice as large a range"
    #[test]
    fn encoded_len_grows_where_twice_the_range_fills_the_field() {
        for (pn, largest_acked, len) in [
            (0, None, 1),
            (126, None, 1),
            (127, None, 2),
            (255, None, 2),
            (100 + 127, Some(100), 1),
            (100 + 128, Some(100), 2),
            ((1 << 15) - 1, Some(0), 2),
            (1 << 15, Some(0), 3),
            ((1 << 23) - 1, Some(0), 3),
            (1 << 23, Some(0), 4),
            (varint::MAX, None, 4),
            (7, Some(7), 1),
            (7, Some(9), 1),
        ] {
            assert_eq!(
                encoded_len(pn, largest_acked),
                len,
                "{pn} {largest_acked:?}"
            );
        }
    }

    // test: RFC 9000 A.3
    #[test]
    fn expand_matches_the_example_of_the_rfc() {
        assert_eq!(expand(0x9b32, 2, Some(0xa82f_30ea)), 0xa82f_9b32);
    }

    // test: RFC 9000 A.3: above expected - half a window, up to and including expected + half of it
    #[test]
    fn expand_prefers_the_larger_of_two_equally_near() {
        assert_eq!(expand(0x00, 1, Some(0x17f)), 0x200);
        assert_eq!(expand(0x80, 1, Some(0x0ff)), 0x180);
    }

    #[test]
    fn expand_stays_in_the_number_space_at_both_ends() {
        assert_eq!(expand(0, 1, None), 0);
        assert_eq!(expand(0xff, 1, None), 0xff);
        assert_eq!(expand(0xff, 1, Some(0)), 0xff);
        assert_eq!(expand(0xff, 1, Some(varint::MAX)), varint::MAX);
        assert!(expand(0, 1, Some(varint::MAX)) <= varint::MAX);
        assert!(expand(0, 4, Some(varint::MAX)) <= varint::MAX);
    }

    proptest! {
        // The receiver understands what the sender chooses, whatever arrived in between.
        #[test]
        fn a_number_of_the_chosen_length_is_recovered(
            acked in proptest::option::of(0..varint::MAX - (1 << 33)),
            ahead in 1u64..1 << 31,
            seen in 0u64..1 << 31,
        ) {
            let pn = acked.map_or(ahead - 1, |acked| acked + ahead);
            let len = encoded_len(pn, acked);
            let truncated = pn & ((1 << (8 * len)) - 1);
            // The receiver has at least what it acknowledged, and at most the packet before this
            // one.
            let base = acked.unwrap_or(0);
            let largest = (base + seen).min(pn.saturating_sub(1)).max(base);
            let largest = if acked.is_none() && seen % 7 == 0 { None } else { Some(largest) };
            prop_assert_eq!(expand(truncated, len, largest), pn);
        }

        #[test]
        fn expand_returns_the_nearest_number(truncated in 0u64..1 << 32, len in 1usize..=4, largest in 1u64 << 33..1 << 61) {
            let window = 1u64 << (8 * len);
            let got = expand(truncated, len, Some(largest));
            prop_assert_eq!(got % window, truncated % window);
            prop_assert!(got.abs_diff(largest + 1) <= window / 2);
        }
    }
}
