//! Loss recovery (RFC 9002): round-trip times, loss detection, pacing.

pub mod loss;
pub mod pacer;
pub mod rtt;
