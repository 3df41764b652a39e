//! Any transport parameters are read, written and read again.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squall_sim::fuzz::transport_parameters(data));
