//! The controls: plain TCP and TLS over TCP, doing the work that QUIC is measured with.
//!
//! ```text
//!   channel      what one end of a connection can do: send, receive, finish
//!     ├─ tcp     plain TCP
//!     └─ tls     TLS 1.3 with rustls' own record ciphers
//!   requests     pipelined requests on a channel       handshakes   one TLS handshake over TCP
//!   in_turn      one request at a time on a channel    scattered    the same on many, in one loop
//!   threads      one end as a thread on its core
//!     ├─ bulk         rounds of bulk transfer
//!     ├─ operations   rounds of requests
//!     └─ tls_handshakes       of handshakes
//! ```
//! `peers/` runs the same channels in separate processes.

pub mod bulk;
pub mod channel;
pub mod handshakes;
pub mod in_turn;
pub mod operations;
pub mod requests;
#[cfg(unix)]
pub mod scattered;
pub mod tcp;
mod threads;
pub mod tls;
pub mod tls_handshakes;
