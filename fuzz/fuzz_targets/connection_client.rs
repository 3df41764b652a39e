//! A client against a server, an application and a clock that do what the input says.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squall_sim::fuzz::connection_client(data));
