//! Charts as SVG: stacked bars, and panels of lines on logarithmic axes.
//!
//! The few lines, texts and boxes are written by hand. With plotters 0.3.7 (only its SVG backend)
//! the same two charts lost what makes them useful: its elements have no `<title>`, so a part of a
//! bar has no figure under the pointer; it rounds to whole pixels, which swallows stages below 0.2
//! %; and one dashed line became 91 polylines.

mod bars;
mod file;
mod panels;
mod text;

pub use bars::{Bar, Bars, NOT_SPLIT};
pub use file::File;
pub use panels::{Panels, Point};
