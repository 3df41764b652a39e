//! A qlog for each connection: in a directory, or where the application says. Without the feature
//! `qlog` there is neither.

#[cfg(not(feature = "qlog"))]
mod absent;
#[cfg(feature = "qlog")]
mod sink;
#[cfg(feature = "qlog")]
mod target;

#[cfg(not(feature = "qlog"))]
pub(crate) use absent::Qlogs;
#[cfg(feature = "qlog")]
pub use sink::{QlogConnection, QlogSink};
#[cfg(feature = "qlog")]
pub(crate) use target::Qlogs;
