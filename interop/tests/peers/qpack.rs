//! squall-h3's QPACK against ls-qpack's, which aioquic uses, both ways: lists of requests and
//! responses whose sections arrive before the entries that they refer to, and out of order.

use squall_h3::qpack::{Decoded, Decoder, Encoder, Field, FieldSection};

use crate::archive::{List, qif};
use crate::python::Peer;

/// Lists, and the table settings with which they are sent: bytes and blocked streams.
const LISTS: [&str; 3] = ["fb-req-hq", "fb-resp-hq", "netbsd-hq"];
const TABLES: [(usize, usize); 4] = [(0, 0), (256, 100), (4096, 100), (65_536, 16)];

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
    match digits {
        "-" => Vec::new(),
        digits => (0..digits.len()).step_by(2).map(pair).collect(),
    }
}

/// A list as the peer writes it.
fn written(list: &List) -> String {
    let digits = |bytes: &[u8]| match bytes {
        [] => String::new(),
        bytes => hex(bytes),
    };
    let lines: Vec<String> = list
        .iter()
        .map(|(name, value)| format!("{}:{}", digits(name), digits(value)))
        .collect();
    lines.join(" ")
}

/// A section that the peer has decoded: the instructions that it sends for it, and the list.
fn decoded(answer: &str) -> (Vec<u8>, String) {
    let mut words = answer.splitn(3, ' ');
    words.next();
    let instructions = unhex(words.next().expect("instructions"));
    (instructions, words.next().unwrap_or_default().to_owned())
}

#[test]
fn qpack_is_decoded_by_ls_qpack() {
    let mut peer = Peer::start("aioquic/qpack.py", &[]);
    let (mut referred, mut blocked_sections) = (0, 0);
    for (capacity, blocked) in TABLES {
        for name in LISTS {
            peer.command(&format!("new {capacity} {blocked}"));
            peer.line("settings");
            let mut encoder = Encoder::new();
            encoder.set_limits(capacity as u64, blocked as u64, 4096);
            for (number, list) in qif(name).iter().enumerate() {
                let stream_id = 4 * number;
                let mut section = Vec::new();
                let fields = list.iter().map(|(name, value)| Field::new(name, value));
                encoder.encode(stream_id as u64, fields, &mut section);
                let instructions = hex(&std::mem::take(encoder.instructions()));
                referred += usize::from(section[0] != 0);
                // Every third time, the section comes first.
                let late = number % 3 == 0;
                if !late {
                    peer.command(&format!("instructions {instructions}"));
                    assert_eq!(peer.line("unblocked"), "0");
                }
                peer.command(&format!("section {stream_id} {}", hex(&section)));
                let mut waits = false;
                if late {
                    peer.command(&format!("instructions {instructions}"));
                    waits = peer.line("unblocked") != "0";
                    blocked_sections += usize::from(waits);
                }
                let (acknowledgement, lines) = decoded(&peer.line("list"));
                if waits {
                    peer.line("blocked");
                }
                assert_eq!(lines, written(list), "{name} {capacity}, section {number}");
                encoder
                    .on_decoder_stream(&acknowledgement)
                    .expect("a peer's acknowledgement");
            }
        }
    }
    assert!(referred > 500, "{referred} sections refer to the table");
    assert!(
        blocked_sections > 10,
        "{blocked_sections} sections were blocked"
    );
}

#[test]
fn qpack_of_ls_qpack_is_decoded() {
    let mut peer = Peer::start("aioquic/qpack.py", &[]);
    let (mut referred, mut blocked_sections) = (0, 0);
    for (capacity, blocked) in TABLES {
        for name in LISTS {
            peer.command(&format!("new {capacity} {blocked}"));
            let settings = unhex(&peer.line("settings"));
            let mut decoder = Decoder::new(capacity, blocked);
            decoder
                .on_encoder_stream(&settings)
                .expect("a peer's instructions");
            let mut out = FieldSection::new();
            for (number, list) in qif(name).iter().enumerate() {
                let stream_id = 4 * number as u64;
                peer.command(&format!("encode {stream_id} {}", written(list)));
                let answer = peer.line("encoded");
                let (instructions, section) = answer.split_once(' ').expect("two words");
                let (instructions, section) = (unhex(instructions), unhex(section));
                referred += usize::from(section[0] != 0);
                let mut decode = |decoder: &mut Decoder| {
                    decoder
                        .decode(stream_id, &section, 1 << 20, &mut out)
                        .expect("a peer's section")
                };
                // Every third time, the section comes first.
                let before = (number % 3 == 0).then(|| decode(&mut decoder));
                decoder
                    .on_encoder_stream(&instructions)
                    .expect("a peer's instructions");
                if before != Some(Decoded::Done) {
                    assert_eq!(decode(&mut decoder), Decoded::Done);
                }
                blocked_sections += usize::from(before == Some(Decoded::Blocked));
                let lines = out
                    .iter()
                    .map(|line| (line.name.to_vec(), line.value.to_vec()));
                assert!(
                    lines.eq(list.iter().cloned()),
                    "{name} {capacity}, section {number}"
                );
                let acknowledgement = hex(&std::mem::take(decoder.instructions()));
                peer.command(&format!("acknowledge {acknowledgement}"));
                peer.line("done");
            }
        }
    }
    assert!(referred > 500, "{referred} sections refer to the table");
    assert!(
        blocked_sections > 10,
        "{blocked_sections} sections were blocked"
    );
}
