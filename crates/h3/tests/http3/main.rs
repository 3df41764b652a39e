//! HTTP/3 over loopback sockets. One program, which links once.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;
mod hostile;
mod messages;
mod pool;
mod priorities;
#[cfg(feature = "qlog")]
mod qlog;
mod rules;
mod session_end;
mod shutdown;
mod slow;
mod stages;
#[cfg(feature = "tracing")]
mod trace;
mod trials;
mod webtransport;
