//! A qlog file for each connection. Without the feature `qlog` there is no directory to write to.

#[cfg(not(feature = "qlog"))]
mod absent;
#[cfg(feature = "qlog")]
mod folder;

#[cfg(not(feature = "qlog"))]
pub(crate) use absent::QlogFolder;
#[cfg(feature = "qlog")]
pub(crate) use folder::QlogFolder;
