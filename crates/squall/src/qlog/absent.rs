//! The directory of a build without the feature `qlog`: none can be made.

use std::io;
use std::path::Path;

use squall_core::{Connection, Time};

use crate::config::Builder;

/// What no endpoint has.
#[derive(Clone, Debug)]
pub(crate) enum QlogFolder {}

impl QlogFolder {
    pub(crate) const fn wanted(_: &Builder) -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn begin(
        &self,
        _: Time,
        _: &mut Connection,
        _: impl Fn(&Path, &io::Error) + Send + 'static,
    ) {
        match *self {}
    }
}
