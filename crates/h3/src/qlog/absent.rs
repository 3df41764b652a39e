//! The log of a build without the feature `qlog`.

use squall::{Connection, StreamId};

use super::{Frame, Side};
use crate::qpack::{Field, FieldSection};
use crate::settings::Settings;

/// Writes nothing.
#[derive(Debug)]
pub(crate) struct Qlog;

/// The fields of a section being encoded: none of them is kept.
pub(crate) struct Fields;

impl Fields {
    #[inline]
    pub(crate) fn push(&mut self, _: &Field<'_>) {}
}

impl Qlog {
    #[inline]
    pub(crate) fn of(_: &Connection) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        false
    }

    #[inline]
    pub(crate) fn parameters_set(&self, _: Side, _: &Settings) {}

    #[inline]
    pub(crate) fn stream_type_set(&self, _: Side, _: StreamId, _: u64) {}

    #[inline]
    pub(crate) fn frame(&self, _: Side, _: StreamId, _: Frame<'_>) {}

    #[inline]
    pub(crate) fn headers_parsed(&self, _: StreamId, _: &FieldSection) {}

    #[inline]
    pub(crate) fn static_headers_created(&self, _: StreamId, _: &[u8]) {}

    #[inline]
    pub(crate) fn fields(&self) -> Fields {
        Fields
    }

    #[inline]
    pub(crate) fn headers_created(&self, _: StreamId, _: Fields) {}

    #[inline]
    pub(crate) fn priority_updated(&self, _: StreamId, _: &[u8]) {}

    #[inline]
    pub(crate) fn datagram(&self, _: Side, _: u64, _: usize) {}
}
