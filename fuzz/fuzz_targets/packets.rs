//! Any datagram is parsed, written again and routed.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squall_sim::fuzz::packets(data));
