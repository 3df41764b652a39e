//! squall against other QUIC stacks, over loopback sockets, both ways and in both roles.
//!
//! ```text
//!  payload    bytes derived from a seed and an offset: made, checked and digested as they flow
//!  setup      certificates, squall's endpoints, a time limit for every test
//!  python     child processes that tests control line by line
//!  proxy      a bad network between two sockets: the one of squall's own tests
//!     │
//!  quinn      a Rust peer in this process        aioquic    a Python peer, a child process
//!  qpack      the QPACK of squall-h3 and of ls-qpack, without a connection; archive: the lists
//!  http3      h3 over squall: libcurl and aioquic as its clients, also child processes
//! ```
//!
//! `SQUALL_INTEROP_BYTES` (default 1M; K, M and G are powers of ten) sets how much is sent each
//! way. aioquic is slow: its tests move at most 10 MB.

mod aioquic;
#[path = "../../../crates/h3/tests/qpack/archive.rs"]
#[allow(
    dead_code,
    reason = "files that other encoders made are read there, too"
)]
mod archive;
mod http3;
mod payload;
#[path = "../../../crates/squall/tests/common/proxy.rs"]
mod proxy;
mod python;
mod qpack;
mod quinn;
mod setup;
