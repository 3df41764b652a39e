//! HTTP/3's events in a connection's qlog (draft-ietf-quic-qlog-h3-events).
//!
//! Without a qlog an event costs one branch. Without the feature `qlog` there is no branch.

#[cfg(not(feature = "qlog"))]
mod absent;
#[cfg(feature = "qlog")]
mod writer;

use crate::settings::Settings;

#[cfg(not(feature = "qlog"))]
pub(crate) use absent::Qlog;
#[cfg(feature = "qlog")]
pub(crate) use writer::Qlog;

/// Which end caused the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Local,
    Remote,
}

/// A frame, as far as it is logged.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "qlog"),
    expect(dead_code, reason = "only the writer reads it")
)]
pub(crate) enum Frame<'a> {
    /// The length of its payload.
    Data(u64),
    GoAway(u64),
    /// The id of the request, and the value of the field.
    PriorityUpdate(u64, &'a [u8]),
    Settings(&'a Settings),
}
