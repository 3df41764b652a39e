//! QPACK: the examples and the error rules of the RFC, what other encoders send, and round trips
//! through streams that arrive late.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod archive;
mod cost;
mod errors;
mod examples;
mod policy;
mod qifs;
mod round_trip;
mod scripts;
mod seeds;

use squall_h3::qpack::{DecodeError, Decoded, Decoder, FieldSection};

/// The largest section of tests that are not about limits.
const UNLIMITED: usize = 1 << 20;

/// Lines as text.
type List = Vec<(String, String)>;

fn list(section: &FieldSection) -> List {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    section
        .iter()
        .map(|line| (text(line.name), text(line.value)))
        .collect()
}

/// The lines of a section that can be decoded at once.
fn decode(decoder: &mut Decoder, stream_id: u64, block: &[u8]) -> Result<List, DecodeError> {
    let mut out = FieldSection::new();
    match decoder.decode(stream_id, block, UNLIMITED, &mut out)? {
        Decoded::Done => Ok(list(&out)),
        Decoded::Blocked => panic!("blocked"),
    }
}

/// Bytes from hexadecimal digits, possibly separated by spaces.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| *digit != b' ').collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

/// What an encoder or a decoder wants to send.
fn take(instructions: &mut Vec<u8>) -> Vec<u8> {
    std::mem::take(instructions)
}
