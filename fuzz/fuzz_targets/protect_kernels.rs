//! Every packet-protection kernel behaves as the portable one does, whatever the input.

#![no_main]

#[path = "../../crates/protect/tests/common/kernels_agree.rs"]
mod kernels_agree;

libfuzzer_sys::fuzz_target!(|data: &[u8]| kernels_agree::kernels_agree(data));
