//! HTTP/3 (RFC 9114) over [`squall`], a QUIC transport for the lowest CPU cost per byte.

mod error;
// Public for the tests and fuzz targets of this workspace only.
#[doc(hidden)]
pub mod qpack;

pub use error::Code;
