//! A QPACK decoder whose peer sends arbitrary bytes, on the encoder stream and as field sections.

#![no_main]

#[path = "../../crates/h3/tests/qpack/scripts.rs"]
#[allow(dead_code, reason = "the other target has its body there too")]
mod scripts;

libfuzzer_sys::fuzz_target!(|data: &[u8]| scripts::decoder(data));
