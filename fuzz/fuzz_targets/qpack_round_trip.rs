//! A QPACK encoder and a decoder, with streams that deliver at any time; or a hostile decoder.

#![no_main]

#[path = "../../crates/h3/tests/qpack/scripts.rs"]
#[allow(dead_code, reason = "the other target has its body there too")]
mod scripts;

libfuzzer_sys::fuzz_target!(|data: &[u8]| scripts::round_trip(data));
