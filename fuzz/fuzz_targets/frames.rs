//! Any payload is read as frames, which are written and read again.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squall_sim::fuzz::frames(data));
