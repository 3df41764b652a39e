//! squall against QUIC stacks of other houses, over loopback sockets, both ways and in both roles.
//!
//! ```text
//!  payload    bytes that follow from a seed and an offset: made, checked and digested as they flow
//!  setup      certificates, squall's endpoints, a time limit for every test
//!  relay      a bad network between two sockets: loss, reordering, duplicates
//!     │
//!  quinn      a Rust peer in this process        aioquic    a Python peer, a child process
//! ```
//!
//! `SQUALL_INTEROP_BYTES` (default 1M; K, M and G are powers of ten) sets how much is moved each way. aioquic is slow:
//! its tests move at most 10 MB.

mod aioquic;
mod payload;
mod quinn;
mod relay;
mod setup;
