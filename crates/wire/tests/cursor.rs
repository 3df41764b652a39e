//! Fields read and written: RFC 9000 §16 and A.1.

use proptest::prelude::*;
use squall_wire::{Reader, Truncated, Writer, varint};

/// The examples of RFC 9000 A.1.
const EXAMPLES: [(&[u8], u64); 4] = [
    (
        &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
        151_288_809_941_952_652,
    ),
    (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
    (&[0x7b, 0xbd], 15_293),
    (&[0x25], 37),
];

// test: RFC 9000 A.1
#[test]
fn the_varints_of_the_rfc_are_read() {
    for (bytes, value) in EXAMPLES.into_iter().chain([(&[0x40, 0x25][..], 37)]) {
        // At the end of the input and with more after it: two different paths through the reader.
        for behind in [0, 1, 7, 20] {
            let input = [bytes, &vec![0xff; behind]].concat();
            let mut r = Reader::new(&input);
            assert_eq!(r.varint(), Ok(value));
            assert_eq!((r.position(), r.remaining()), (bytes.len(), behind));
        }
    }
}

// test: RFC 9000 A.1
#[test]
fn the_varints_of_the_rfc_are_written() {
    for (bytes, value) in EXAMPLES {
        for spare in [0, 1, 7, 20] {
            let mut buf = vec![0; bytes.len() + spare];
            let mut w = Writer::new(&mut buf);
            w.varint(value);
            assert_eq!(
                (w.len(), w.remaining(), w.overflow()),
                (bytes.len(), spare, false)
            );
            assert_eq!(&buf[..bytes.len()], bytes);
        }
    }
    let mut buf = [0; 2];
    Writer::new(&mut buf).varint_of_size(37, 2);
    assert_eq!(buf, [0x40, 0x25]);
}

#[test]
fn a_truncated_field_leaves_the_reader_where_it_was() {
    let bytes = [0xc2, 0x19, 0x7c];
    let mut r = Reader::new(&bytes);
    assert_eq!(r.varint(), Err(Truncated));
    assert_eq!(r.u32(), Err(Truncated));
    assert_eq!(r.u64(), Err(Truncated));
    assert_eq!(r.bytes(4), Err(Truncated));
    assert_eq!(r.array::<4>(), Err(Truncated));
    assert_eq!(r.position(), 0);
    assert_eq!(r.peek_u8(), Some(0xc2));
    assert_eq!(r.u16(), Ok(0xc219));
    assert_eq!(r.rest(), [0x7c]);
    assert_eq!((r.is_empty(), r.position(), r.peek_u8()), (true, 3, None));
    assert_eq!(r.u8(), Err(Truncated));
    assert_eq!(r.varint(), Err(Truncated));
}

#[test]
fn a_put_that_does_not_fit_writes_nothing() {
    let puts: [fn(&mut Writer<'_>); 6] = [
        |w| w.u32(1),
        |w| w.u64(1),
        |w| w.varint(1 << 20),
        |w| w.varint(varint::MAX + 1),
        |w| w.varint_of_size(1 << 14, 2),
        |w| w.bytes(&[1; 4]),
    ];
    for put in puts {
        let mut buf = [7; 3];
        let mut w = Writer::new(&mut buf);
        put(&mut w);
        assert_eq!((w.len(), w.is_empty(), w.overflow()), (0, true, true));
        // Fields that fit are still written, and the mark stays.
        w.u8(9);
        assert_eq!((w.len(), w.overflow()), (1, true));
        assert_eq!(buf, [9, 7, 7]);
    }
    let mut buf = [0; 3];
    let mut w = Writer::new(&mut buf);
    w.advance(4);
    assert_eq!((w.len(), w.overflow()), (0, true));
}

#[test]
fn spare_bytes_can_be_filled_by_the_caller() {
    let mut buf = [0; 4];
    let mut w = Writer::new(&mut buf);
    w.u8(1);
    w.spare()[..2].copy_from_slice(&[2, 3]);
    w.advance(2);
    w.u8(4);
    assert_eq!((w.len(), w.remaining(), w.overflow()), (4, 0, false));
    assert_eq!(buf, [1, 2, 3, 4]);
}

/// Values of all four lengths, not only the eight-byte ones that a uniform choice would give.
fn any_varint() -> impl Strategy<Value = u64> {
    (0u32..62).prop_flat_map(|bits| (1u64 << bits) - 1..=(1 << bits).min(varint::MAX))
}

proptest! {
    #[test]
    fn varints_round_trip(value in any_varint(), spare in 0usize..10) {
        let size = varint::size(value);
        let mut buf = vec![0; size + spare];
        let mut w = Writer::new(&mut buf);
        w.varint(value);
        prop_assert_eq!((w.len(), w.overflow()), (size, false));
        let mut r = Reader::new(&buf);
        prop_assert_eq!(r.varint(), Ok(value));
        prop_assert_eq!(r.position(), size);
        // With one byte less, it is neither read nor written.
        prop_assert_eq!(Reader::new(&buf[..size - 1]).varint(), Err(Truncated));
        let mut w = Writer::new(&mut buf[..size - 1]);
        w.varint(value);
        prop_assert!(w.overflow());
    }

    // The reader's two paths agree on any bytes with the pseudocode of RFC 9000 A.1.
    #[test]
    fn varints_are_read_as_by_the_rfcs_pseudocode(bytes in proptest::collection::vec(any::<u8>(), 1..12)) {
        let len = 1 << (bytes[0] >> 6);
        let slow = bytes.get(..len).map(|b| {
            b[1..].iter().fold(u64::from(b[0] & 0x3f), |v, &byte| (v << 8) + u64::from(byte))
        });
        prop_assert_eq!(Reader::new(&bytes).varint().ok(), slow);
    }

    #[test]
    fn fixed_fields_round_trip(a: u8, b: u16, c: u32, d: u64, e: [u8; 5]) {
        let mut buf = [0; 20];
        let mut w = Writer::new(&mut buf);
        w.u8(a);
        w.u16(b);
        w.u32(c);
        w.u64(d);
        w.bytes(&e);
        prop_assert_eq!((w.remaining(), w.overflow()), (0, false));
        let mut r = Reader::new(&buf);
        prop_assert_eq!((r.u8(), r.u16(), r.u32(), r.u64(), r.array()), (Ok(a), Ok(b), Ok(c), Ok(d), Ok(e)));
        prop_assert!(r.is_empty());
    }
}
