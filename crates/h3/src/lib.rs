//! HTTP/3 (RFC 9114) over [`squall`], a QUIC transport for the lowest CPU cost per byte.

mod error;

pub use error::Code;
