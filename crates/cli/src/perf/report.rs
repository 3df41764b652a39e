//! How results leave a measurement: a chart if one was asked for, then JSON, rows or text.

use serde::Serialize;
use squall_yard::chart::{Bars, File};
use squall_yard::error::Result;
use squall_yard::layout;
use squall_yard::rows::{self, Row};

use super::args::Output;
use crate::output::{print_json, say};

/// The results of a measurement: text for people, an object for programs.
pub(crate) trait Report: Serialize {
    /// The results for people. Tables take at most `width` columns; other lines may be longer.
    fn text(&self, width: usize) -> String;

    /// A row per workload and contender.
    fn rows(&self) -> Vec<Row>;

    /// The cost by stage.
    fn chart(&self) -> Bars;
}

/// Draws and prints results in the form that was asked for.
///
/// # Errors
/// The chart cannot be written.
pub(crate) fn tell(report: &impl Report, output: &Output, plot: Option<File>) -> Result<()> {
    if let Some(plot) = plot {
        plot.write(&report.chart().svg())?;
    }
    if output.json {
        return print_json(report);
    }
    if output.csv {
        say(&rows::csv(&report.rows()));
    } else {
        let width = layout::width();
        say(layout::wrap(&report.text(width), width).trim_end());
    }
    Ok(())
}
