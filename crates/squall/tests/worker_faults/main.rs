//! Faults that the operating system may cause in a worker: the endpoint lives on, or reports why
//! not.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod refusals;

use common::{ALPN, ANY, Identity};
use squall::{Builder, Endpoint, TransportConfig};

const EAGAIN: i32 = 11;
const EBADF: i32 = 9;

/// Bytes of a message of a few packets.
const MESSAGE: usize = 5_000;

fn server(identity: &Identity, workers: usize) -> Endpoint {
    let config = identity.server(ALPN, TransportConfig::default());
    let builder = Builder::new(ANY).server(config).workers(workers);
    builder.bind().unwrap()
}

fn client(identity: &Identity) -> Endpoint {
    let config = identity.client(ALPN, TransportConfig::default());
    Builder::new(ANY).client(config).bind().unwrap()
}
