//! Lists of requests and responses, as encoded by other encoders and by ours.

use crate::archive::{self, List};
use crate::{UNLIMITED, take};
use squall_h3::Code;
use squall_h3::qpack::{DecodeError, Decoded, Decoder, Encoder, Field, FieldSection};
use std::collections::BTreeMap;

fn list(section: &FieldSection) -> List {
    section
        .iter()
        .map(|line| (line.name.to_vec(), line.value.to_vec()))
        .collect()
}

/// Sections in the order of their streams. `split` is how many bytes of the encoder stream arrive
/// at a time.
fn decode_file(file: &[u8], capacity: usize, blocked: usize, split: usize) -> Vec<List> {
    let mut decoder = Decoder::new(capacity, blocked);
    // Before RFC 9204 a table began with its full capacity, as these files do.
    let set_capacity = crate::hex(match capacity {
        0 => "20",
        220 => "3fbd01",
        256 => "3fe101",
        512 => "3fe103",
        4096 => "3fe11f",
        _ => panic!("no file has a table of {capacity} bytes"),
    });
    decoder.on_encoder_stream(&set_capacity).unwrap();
    let mut done = BTreeMap::new();
    let mut waiting = BTreeMap::new();
    let mut out = FieldSection::new();
    for (stream_id, block) in archive::blocks(file) {
        if stream_id != 0 {
            waiting.insert(stream_id, block);
        }
        let instructions = if stream_id == 0 { block } else { &[] };
        for part in instructions.chunks(split) {
            decoder.on_encoder_stream(part).unwrap();
        }
        waiting.retain(|stream_id, block| {
            let decoded = decoder
                .decode(*stream_id, block, UNLIMITED, &mut out)
                .unwrap();
            if decoded == Decoded::Done {
                done.insert(*stream_id, list(&out));
            }
            decoded == Decoded::Blocked
        });
    }
    assert!(waiting.is_empty(), "{} sections are blocked", waiting.len());
    done.into_values().collect()
}

/// What `examples.out` holds: an older form of RFC 9204 Appendix B. `draft-examples.qif` is an even
/// older one, with another host.
fn examples() -> Vec<List> {
    let line = |name: &str, value: &str| (name.into(), value.into());
    vec![
        vec![line(":path", "/index.html")],
        vec![
            line(":authority", "www.example.com"),
            line(":path", "/sample/path"),
        ],
        vec![
            line(":authority", "www.example.com"),
            line(":path", "/"),
            line("custom-key", "custom-value"),
        ],
    ]
}

#[test]
fn sections_of_other_encoders_are_decoded() {
    let mut count = 0;
    for (name, file) in archive::files("encoded/qpack-05/") {
        let (base, numbers) = name.split_once(".out.").unwrap();
        let numbers: Vec<usize> = numbers
            .split('.')
            .map(|number| number.parse().unwrap())
            .collect();
        let wanted = match base.split_once('/').unwrap().1 {
            "examples" => examples(),
            qif => archive::qif(qif),
        };
        for split in [usize::MAX, 3] {
            let decoded = decode_file(file, numbers[0], numbers[1], split);
            assert!(decoded == wanted, "{name}");
        }
        count += 1;
    }
    assert_eq!(count, 265);
}

#[test]
fn malformed_files_are_rejected() {
    let mut codes = BTreeMap::new();
    for (name, file) in archive::files("encoded/errors/") {
        let mut decoder = Decoder::new(4096, 100);
        let mut out = FieldSection::new();
        for (stream_id, block) in archive::blocks(file) {
            let code = if stream_id == 0 {
                decoder.on_encoder_stream(block).err()
            } else {
                match decoder.decode(stream_id, block, UNLIMITED, &mut out) {
                    Ok(Decoded::Done) => None,
                    Err(DecodeError::Connection(code)) => Some(code),
                    other => panic!("{name}: {other:?}"),
                }
            };
            codes.insert(name, code);
        }
    }
    assert_eq!(codes.len(), 12);
    for (name, code) in codes {
        let expected = match name {
            // Valid by now, as the README next to them says.
            "err9" | "err10" => None,
            "err11" | "err12" => Some(Code::QPACK_ENCODER_STREAM_ERROR),
            _ => Some(Code::QPACK_DECOMPRESSION_FAILED),
        };
        assert_eq!(code, expected, "{name}");
    }
}

/// The result of sending a list from our encoder to our decoder.
#[derive(Debug, Default)]
struct Sent {
    sections: usize,
    instructions: usize,
}

/// Sends all sections of a list, and compares each with what arrives. Acknowledgements take
/// `delay` sections.
fn send(name: &str, capacity: usize, blocked: usize, delay: usize) -> Sent {
    let mut encoder = Encoder::new();
    encoder.set_limits(capacity as u64, blocked as u64, capacity);
    let mut decoder = Decoder::new(capacity, blocked);
    let mut sent = Sent::default();
    let mut out = FieldSection::new();
    let mut acknowledgements = Vec::new();
    for (number, section) in archive::qif(name).iter().enumerate() {
        let mut block = Vec::new();
        let stream_id = 4 * number as u64;
        let fields = section.iter().map(|(name, value)| Field::new(name, value));
        encoder.encode(stream_id, fields, &mut block);
        let instructions = take(encoder.instructions());
        sent.sections += block.len();
        sent.instructions += instructions.len();
        decoder.on_encoder_stream(&instructions).unwrap();
        let decoded = decoder.decode(stream_id, &block, UNLIMITED, &mut out);
        assert_eq!(decoded, Ok(Decoded::Done));
        assert!(list(&out) == *section, "{name}, section {number}");
        acknowledgements.push(take(decoder.instructions()));
        if let Some(due) = acknowledgements.len().checked_sub(delay + 1) {
            encoder.on_decoder_stream(&acknowledgements[due]).unwrap();
        }
    }
    sent
}

#[test]
fn our_encoder_compresses() {
    // The largest share, in percent, of the size with static table and Huffman code alone.
    for (name, capacity, blocked, delay, most) in [
        ("fb-req-hq", 4096, 0, 3, 39),
        ("fb-req-hq", 4096, 100, 3, 36),
        ("fb-req-hq", 65_536, 0, 10, 41),
        ("fb-resp-hq", 4096, 0, 3, 36),
        ("fb-resp-hq", 4096, 100, 3, 30),
        ("fb-resp-hq", 65_536, 0, 10, 32),
        ("netbsd-hq", 256, 100, 0, 53),
        ("netbsd-hq", 4096, 0, 3, 49),
    ] {
        let plain = send(name, 0, 0, 0);
        assert_eq!(plain.instructions, 0);
        let sent = send(name, capacity, blocked, delay);
        let share = (sent.sections + sent.instructions) * 100 / plain.sections;
        assert!(
            share <= most,
            "{name} {capacity} {blocked} {delay}: {share} %, {sent:?}"
        );
    }
}
