//! Endpoints and connections without I/O. One program, which links once; `memory` counts
//! allocations and `key_log` starts itself again, so they are separate programs.

#[path = "../common/mod.rs"]
mod common;

mod datagram_sizes;
mod datagrams;
mod early_data;
mod endpoint;
mod fixed_bit;
mod limits;
mod new_token;
mod observations;
mod packet_protection;
mod retry;
mod streams;
mod tls;
mod transfer;
mod versions;
