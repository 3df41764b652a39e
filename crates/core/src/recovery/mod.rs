//! Loss recovery (RFC 9002): round-trip times, loss detection, pacing.

pub(crate) mod loss;
pub(crate) mod pacer;
pub(crate) mod reordering;
pub(crate) mod rtt;
