//! The log of one connection: qlog as a JSON text sequence (RFC 7464), after
//! draft-ietf-quic-qlog-main-schema and draft-ietf-quic-qlog-quic-events.
//!
//! When off, it is an absent box: one branch per packet. When on, it costs as much as formatting
//! does, and the frames of a packet are read a second time from its plaintext. Without the feature
//! `qlog` no value of [`Qlog`] exists, so everything behind the branch is compiled out.

#[cfg(not(feature = "qlog"))]
mod absent;
#[cfg(feature = "qlog")]
mod writer;

use squall_wire::PacketType;

#[cfg(not(feature = "qlog"))]
pub(crate) use absent::Qlog;
#[cfg(feature = "qlog")]
pub(crate) use writer::Qlog;

/// The metrics that `quic:recovery_metrics_updated` reports when they have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Metrics {
    pub(crate) min_rtt: f64,
    pub(crate) smoothed_rtt: f64,
    pub(crate) latest_rtt: f64,
    pub(crate) rtt_variance: f64,
    pub(crate) pto_count: u32,
    pub(crate) congestion_window: u64,
    pub(crate) bytes_in_flight: u64,
}

/// A packet, as far as events describe it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "qlog"),
    expect(dead_code, reason = "only the writer reads it")
)]
pub(crate) struct Packet<'a> {
    pub(crate) ty: PacketType,
    pub(crate) number: u64,
    /// Its bytes on the wire.
    pub(crate) len: usize,
    /// Its frames.
    pub(crate) payload: &'a [u8],
}
