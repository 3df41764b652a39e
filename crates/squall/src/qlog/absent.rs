//! The qlogs of a build without the feature `qlog`: none can be made.

use std::io;

use squall_core::{Connection, Time};

/// No endpoint has one.
#[derive(Clone, Debug)]
pub(crate) enum Qlogs {}

impl Qlogs {
    pub(crate) fn begin(
        &self,
        _: Time,
        _: &mut Connection,
        _: impl Fn(&str, &io::Error) + Send + 'static,
    ) {
        match *self {}
    }
}
