//! RFC 9204 Appendix B.

use crate::{List, decode, hex, list, take};
use squall_h3::qpack::{Decoded, Decoder, FieldSection};

fn lines(lines: &[(&str, &str)]) -> List {
    lines
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn the_exchange_of_appendix_b() {
    // test: RFC 9204 Appendix B
    let mut decoder = Decoder::new(220, 100);

    // B.1: Literal Field Line with Name Reference
    let block = hex("0000 510b 2f69 6e64 6578 2e68 746d 6c");
    assert_eq!(
        decode(&mut decoder, 0, &block),
        Ok(lines(&[(":path", "/index.html")]))
    );
    assert!(decoder.instructions().is_empty());

    // B.2: Dynamic Table. The section arrives first here.
    let block = hex("0381 10 11");
    let mut out = FieldSection::new();
    let first = decoder.decode(4, &block, 1000, &mut out);
    assert_eq!(first, Ok(Decoded::Blocked));
    assert_eq!(decoder.on_encoder_stream(&hex("3fbd01")), Ok(false));
    let inserts =
        hex("c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468");
    assert_eq!(decoder.on_encoder_stream(&inserts), Ok(true));
    let second = decoder.decode(4, &block, 1000, &mut out);
    assert_eq!(second, Ok(Decoded::Done));
    let expected = lines(&[(":authority", "www.example.com"), (":path", "/sample/path")]);
    assert_eq!(list(&out), expected);
    // The names came from the static table.
    let names: Vec<_> = out.iter().map(|line| line.static_name).collect();
    assert_eq!(names, [Some(0), Some(1)]);
    assert_eq!(out.size(), 106);
    // The acknowledgement of the section covers the inserts.
    assert_eq!(take(decoder.instructions()), hex("84"));

    // B.3: Speculative Insert
    let insert = hex("4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565");
    assert_eq!(decoder.on_encoder_stream(&insert), Ok(true));
    assert_eq!(take(decoder.instructions()), hex("01"));

    // B.4: Duplicate Instruction, Stream Cancellation
    let block = hex("0500 80 c1 81");
    assert_eq!(
        decoder.decode(8, &block, 1000, &mut out),
        Ok(Decoded::Blocked)
    );
    decoder.cancel_stream(8);
    assert_eq!(take(decoder.instructions()), hex("48"));
    assert_eq!(decoder.on_encoder_stream(&hex("02")), Ok(true));
    // Not shown in the RFC: the section decodes to the lines that it describes.
    assert_eq!(
        decode(&mut decoder, 12, &block),
        Ok(lines(&[
            (":authority", "www.example.com"),
            (":path", "/"),
            ("custom-key", "custom-value"),
        ]))
    );
    assert_eq!(take(decoder.instructions()), hex("8c"));

    // B.5: Dynamic Table Insert, Eviction
    let insert = hex("810d 6375 7374 6f6d 2d76 616c 7565 32");
    assert_eq!(decoder.on_encoder_stream(&insert), Ok(true));
    assert_eq!(take(decoder.instructions()), hex("01"));
    // Base 5: the entries 4 to 1; entry 0 is gone.
    let block = hex("0600 80 81 82 83");
    assert_eq!(
        decode(&mut decoder, 16, &block),
        Ok(lines(&[
            ("custom-key", "custom-value2"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
            (":path", "/sample/path"),
        ]))
    );
    assert!(decoder.decode(20, &hex("0600 84"), 1000, &mut out).is_err());
}

#[test]
fn decoded_lines_report_their_origin() {
    let mut decoder = Decoder::new(220, 0);
    let mut out = FieldSection::new();
    // :method GET; :path /a; x: y, never indexed
    let block = hex("0000 d1 5102 2f61 31 78 01 79");
    assert_eq!(decoder.decode(0, &block, 200, &mut out), Ok(Decoded::Done));
    let lines: Vec<_> = out.iter().collect();
    assert_eq!(out.len(), 3);
    assert_eq!(out.size(), (7 + 3 + 32) + (5 + 2 + 32) + (1 + 1 + 32));
    assert_eq!(out.text(), b"/axy");
    assert_eq!(
        (lines[0].static_line, lines[0].static_name),
        (Some(17), Some(15))
    );
    assert_eq!(lines[0].value_range(), None);
    assert_eq!(
        (lines[1].static_line, lines[1].static_name),
        (None, Some(1))
    );
    assert_eq!(lines[1].value_range(), Some(0..2));
    assert_eq!(lines[2].value_range(), Some(3..4));
    let never: Vec<_> = lines.iter().map(|line| line.never_indexed).collect();
    assert_eq!(never, [false, false, true]);
    // When reused, nothing of it is left.
    assert_eq!(
        decoder.decode(0, &hex("0000"), 200, &mut out),
        Ok(Decoded::Done)
    );
    assert!(out.is_empty() && out.text_len() == 0 && out.size() == 0);
}
