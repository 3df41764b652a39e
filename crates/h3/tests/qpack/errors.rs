//! What decoders and encoders must not accept, and the effect of limits.

use crate::{hex, list, take};
use squall_h3::Code;
use squall_h3::qpack::{DecodeError, Decoded, Decoder, Encoder, Field, FieldSection};

const FAILED: DecodeError = DecodeError::Connection(Code::QPACK_DECOMPRESSION_FAILED);

/// A decoder with a table of 220 bytes, in which there is one entry, `:authority`.
fn decoder(blocked: usize) -> Decoder {
    let mut decoder = Decoder::new(220, blocked);
    let instructions = hex("3fbd01 c00f 7777772e6578616d706c652e636f6d");
    assert_eq!(decoder.on_encoder_stream(&instructions), Ok(true));
    assert_eq!(take(decoder.instructions()), hex("01"));
    decoder
}

fn decode(decoder: &mut Decoder, digits: &str) -> Result<Decoded, DecodeError> {
    decoder.decode(0, &hex(digits), 10_000, &mut FieldSection::new())
}

#[test]
fn invalid_sections_are_rejected() {
    for (digits, why) in [
        ("", "no prefix"),
        ("00", "half a prefix"),
        ("0080", "a negative Base (RFC 9204 §4.5.1.2)"),
        ("0281", "a negative Base"),
        (
            "0e00 80",
            "a Required Insert Count out of range (RFC 9204 §4.5.1.1)",
        ),
        (
            "0000 80",
            "more than the Required Insert Count allows (RFC 9204 §2.2.3)",
        ),
        ("0200 81", "before the first entry"),
        ("0201 80", "an entry not below the Required Insert Count"),
        (
            "0280 11",
            "a post-Base entry not below the Required Insert Count",
        ),
        ("0000 ff24", "static index 99 (RFC 9204 §3.1)"),
        ("0000 5f54 00", "a name with static index 99"),
        ("0000 ffffffffffffffffff7f", "an index of more than 62 bits"),
        ("0000 ff", "half an index"),
        ("0000 51", "a name without a value"),
        ("0000 5103 2f61", "half a value"),
        ("0000 5182 07ff", "more than seven bits of padding"),
        ("0000 5184 ffffffff", "EOS in a string"),
        ("0000 27", "half a name"),
        ("0000 21 61", "a literal name without a value"),
        ("0000 41 00", "a dynamic name that is not there"),
        ("0000 00 00", "a post-Base name that is not there"),
    ] {
        assert_eq!(decode(&mut decoder(0), digits), Err(FAILED), "{why}");
    }
    // The same in correct form.
    for digits in [
        "0000",
        "0200 80",
        "0280 10",
        "0000 ff23",
        "0000 5f53 00",
        "0000 5181 07",
    ] {
        assert_eq!(
            decode(&mut decoder(0), digits),
            Ok(Decoded::Done),
            "{digits}"
        );
    }
}

#[test]
fn references_to_evicted_entries_are_rejected() {
    // test: RFC 9204 §2.2.3
    let mut decoder = decoder(0);
    assert_eq!(decode(&mut decoder, "0200 80"), Ok(Decoded::Done));
    // 217 bytes, which leave no room for another entry.
    let instruction = [&hex("4161 7f39")[..], &[b'v'; 0x39 + 0x7f]].concat();
    assert_eq!(decoder.on_encoder_stream(&instruction), Ok(true));
    assert_eq!(decode(&mut decoder, "0300 80"), Ok(Decoded::Done));
    assert_eq!(decode(&mut decoder, "0300 81"), Err(FAILED));
}

#[test]
fn invalid_encoder_instructions_are_rejected() {
    for (digits, why) in [
        ("3fbe01", "a capacity above the limit (RFC 9204 §4.3.1)"),
        ("3fffffffffffffffffff7f", "a capacity of more than 62 bits"),
        ("01", "a duplicate of an entry that is not there"),
        ("8101 61", "a name that is not there"),
        ("ff24", "a name with static index 99 (RFC 9204 §3.1)"),
        ("c17f3e", "a value longer than the table (RFC 9204 §3.2.2)"),
        (
            "c1ff8105",
            "a value in Huffman code that is longer than the table",
        ),
        ("5f9e01", "a name longer than the table"),
        ("c182 07ff", "more than seven bits of padding"),
        ("20 c1 00", "an entry without a table"),
    ] {
        let mut decoder = decoder(0);
        let result = decoder.on_encoder_stream(&hex(digits));
        assert_eq!(result, Err(Code::QPACK_ENCODER_STREAM_ERROR), "{why}");
    }
    // Without a table only one instruction can be followed.
    let mut decoder = Decoder::new(0, 0);
    assert_eq!(decoder.on_encoder_stream(&hex("20")), Ok(false));
    assert!(decoder.on_encoder_stream(&hex("c100")).is_err());
}

#[test]
fn an_entry_one_byte_too_large_for_the_table_is_rejected() {
    // :path and 183 bytes are 220; 184 are one too many.
    for (len, fits) in [(183, true), (184, false)] {
        let mut decoder = decoder(0);
        let instruction = [
            &[0xc1, 0x7f, len - 0x7f][..],
            &[b'v'; 256][..usize::from(len)],
        ]
        .concat();
        assert_eq!(decoder.on_encoder_stream(&instruction).is_ok(), fits);
    }
}

#[test]
fn instructions_may_arrive_byte_by_byte() {
    let instructions = hex(
        "3fbd01 c00f 7777772e6578616d706c652e636f6d 4a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    );
    let mut decoder = Decoder::new(220, 0);
    let grew = instructions
        .iter()
        .filter(|byte| decoder.on_encoder_stream(&[**byte]).unwrap())
        .count();
    assert_eq!(grew, 2);
    assert_eq!(take(decoder.instructions()), hex("02"));
}

#[test]
fn blocking_more_streams_than_allowed_is_an_error() {
    // test: RFC 9204 §2.1.2
    let mut decoder = decoder(2);
    let mut out = FieldSection::new();
    let block = hex("0300 80");
    for stream_id in [0, 4, 4, 0] {
        let decoded = decoder.decode(stream_id, &block, 1000, &mut out);
        assert_eq!(decoded, Ok(Decoded::Blocked));
    }
    assert_eq!(decoder.decode(8, &block, 1000, &mut out), Err(FAILED));
    // A cancelled stream makes room.
    decoder.cancel_stream(4);
    assert_eq!(take(decoder.instructions()), hex("44"));
    assert_eq!(
        decoder.decode(8, &block, 1000, &mut out),
        Ok(Decoded::Blocked)
    );
    assert_eq!(decoder.on_encoder_stream(&hex("00")), Ok(true));
    for stream_id in [0, 8] {
        let decoded = decoder.decode(stream_id, &block, 1000, &mut out);
        assert_eq!(decoded, Ok(Decoded::Done));
        assert_eq!(list(&out)[0].1, "www.example.com");
    }
    assert_eq!(take(decoder.instructions()), hex("80 88"));
    assert_eq!(
        self::decode(&mut self::decoder(0), "0300 80"),
        Err(FAILED),
        "no stream may be blocked"
    );
}

#[test]
fn without_a_table_no_cancellation_is_sent() {
    // test: RFC 9204 §2.2.2.2
    let mut decoder = Decoder::new(0, 0);
    decoder.cancel_stream(4);
    assert!(decoder.instructions().is_empty());
}

#[test]
fn the_section_limit_counts_decoded_bytes() {
    // A section of 4 kB that refers 4,000 times to an entry of 4 kB: 16 MB if expanded.
    let mut decoder = Decoder::new(8192, 0);
    // The capacity, and x: with a value of 127 + 33 + 30 × 128 bytes.
    let mut instructions = hex("3fe13f 41 78 7fa11e");
    instructions.extend([b'v'; 4000]);
    assert_eq!(decoder.on_encoder_stream(&instructions), Ok(true));
    let block = [&hex("0200")[..], &[0x80; 4000]].concat();
    let mut out = FieldSection::new();
    let decoded = decoder.decode(4, &block, 16_384, &mut out);
    assert_eq!(decoded, Err(DecodeError::TooLarge));
    assert!(out.size() <= 16_384);
    assert!(out.text_len() <= 16_384);
    // The encoder may evict the entry: the section will not be looked at again.
    assert_eq!(take(decoder.instructions()), hex("84"));
    // The decoder continues.
    let block = hex("0200 80");
    assert_eq!(
        decoder.decode(8, &block, 16_384, &mut out),
        Ok(Decoded::Done)
    );
    assert_eq!(out.size(), 1 + 4000 + 32);
}

#[test]
fn the_section_limit_is_exact() {
    for (digits, size) in [
        ("0000 d1", 42),          // :method GET
        ("0000 5102 2f61", 39),   // :path /a
        ("0000 5181 07", 38),     // the same way, in Huffman code
        ("0000 21 61 01 62", 34), // a: b
        ("0200 80", 57),          // :authority www.example.com
        ("0200 40 01 61", 43),    // :authority a
        ("0000 d1 d1 21 61 01 62", 2 * 42 + 34),
    ] {
        let mut out = FieldSection::new();
        let block = hex(digits);
        assert_eq!(
            decoder(0).decode(0, &block, size, &mut out),
            Ok(Decoded::Done)
        );
        assert_eq!(out.size(), size, "{digits}");
        let result = decoder(0).decode(0, &block, size - 1, &mut out);
        assert_eq!(result, Err(DecodeError::TooLarge), "{digits}");
    }
}

/// An encoder that has an entry, and refers to it in a section of stream 4.
fn encoder() -> Encoder {
    let mut encoder = Encoder::new();
    encoder.set_limits(4096, 100, 4096);
    let field = Field::new(b"x-name", b"a value that recurs");
    let mut out = Vec::new();
    encoder.encode(0, [field].into_iter(), &mut out);
    assert!(encoder.instructions().is_empty());
    encoder.encode(4, [field].into_iter(), &mut out);
    assert!(!take(encoder.instructions()).is_empty());
    encoder
}

#[test]
fn invalid_decoder_instructions_are_rejected() {
    for (digits, why) in [
        ("80", "a section without references (RFC 9204 §4.4.1)"),
        ("8484", "a section twice"),
        ("4484", "a section that was cancelled"),
        ("00", "an increment of 0 (RFC 9204 §4.4.3)"),
        ("02", "more inserts than there were"),
        ("0101", "more inserts than there were"),
        ("8401", "an insert that the section implied"),
        ("ffffffffffffffffff7f", "a stream id of more than 62 bits"),
    ] {
        let result = encoder().on_decoder_stream(&hex(digits));
        assert_eq!(result, Err(Code::QPACK_DECODER_STREAM_ERROR), "{why}");
        // Byte by byte, too.
        let mut encoder = encoder();
        let result = hex(digits)
            .iter()
            .try_for_each(|byte| encoder.on_decoder_stream(&[*byte]));
        assert_eq!(result, Err(Code::QPACK_DECODER_STREAM_ERROR), "{why}");
    }
    for digits in ["84", "01", "0184", "44", "4444", "01 7f8001", "48 84"] {
        assert_eq!(
            encoder().on_decoder_stream(&hex(digits)),
            Ok(()),
            "{digits}"
        );
    }
}

#[test]
fn never_indexed_lines_are_not_indexed() {
    let mut encoder = Encoder::new();
    encoder.set_limits(4096, 100, 4096);
    let mut decoder = Decoder::new(4096, 100);
    let secret = Field {
        sensitive: true,
        ..Field::new(b"x-token", b"a token that recurs each time")
    };
    let fields = [
        secret,
        // In the static table, and still a literal.
        Field {
            sensitive: true,
            ..Field::new(b":method", b"GET")
        },
        Field::new(b"authorization", b"Bearer of a token"),
        Field::new(b"cookie", b"id=1234"),
    ];
    let changing = [
        Field::new(b":path", b"/index.html"),
        Field::new(b"date", b"Mon, 23 Nov 2026 13:00:00 GMT"),
    ];
    let mut out = FieldSection::new();
    for stream_id in 0..5 {
        let mut block = Vec::new();
        encoder.encode(
            4 * stream_id,
            fields.into_iter().chain(changing),
            &mut block,
        );
        assert!(encoder.instructions().is_empty(), "nothing is inserted");
        assert!(decoder.decode(0, &block, 10_000, &mut out).is_ok());
        let never = out.iter().map(|line| line.never_indexed);
        assert!(never.eq([true, true, true, true, false, false]));
    }
    // The same line, if not secret, is inserted but not used for the secret one.
    for _ in 0..3 {
        encoder.encode(
            40,
            [Field {
                sensitive: false,
                ..secret
            }]
            .into_iter(),
            &mut Vec::new(),
        );
    }
    assert!(!encoder.instructions().is_empty());
    let mut block = Vec::new();
    encoder.encode(44, [secret].into_iter(), &mut block);
    // Never indexed, its name in Huffman code.
    assert_eq!(block[..3], [0, 0, 0x3e]);
}

#[test]
fn outstanding_sections_are_bounded() {
    let mut encoder = Encoder::new();
    encoder.set_limits(4096, 0, 4096);
    let field = Field::new(b"x-name", b"a value that recurs");
    let mut out = Vec::new();
    for _ in 0..2 {
        encoder.encode(0, [field].into_iter(), &mut out);
    }
    encoder.on_decoder_stream(&[1]).unwrap();
    let mut references = 0;
    for stream_id in 0..2000 {
        out.clear();
        encoder.encode(stream_id, [field].into_iter(), &mut out);
        references += u32::from(out.len() == 3);
    }
    assert_eq!(references, 256);
    // An acknowledged stream makes room for another.
    encoder.on_decoder_stream(&[0x81]).unwrap();
    for len in [3, 2 + 1 + 5 + 1 + 14] {
        out.clear();
        encoder.encode(9000, [field].into_iter(), &mut out);
        assert_eq!(out.len(), len);
    }
}
