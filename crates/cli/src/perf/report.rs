//! Outputs results of a measurement: a chart if requested, then JSON, rows or text.

use std::time::Duration;

use serde::Serialize;
use squall_yard::chart::{Bars, File};
use squall_yard::error::Result;
use squall_yard::rows::{self, Row};
use squall_yard::{layout, live};

use super::args::Output;
use super::work::Work;
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

/// What was done in a part of the time, and by which contender.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Interval {
    /// Counts from 0; over loopback only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) round: Option<usize>,
    /// Over loopback only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) contender: Option<&'static str>,
    /// `W3` and the like; for requests and handshakes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workload: Option<&'static str>,
    /// Present if several numbers of connections are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<usize>,
    /// `closed` or `open`; for requests only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) figures: live::Interval,
}

/// Reports intervals as they end, if requested: a line for each, after the name of the measurement.
pub(crate) fn telling(work: &Work, output: &Output, name: &str) -> Option<(Duration, live::Tell)> {
    let is_text = output.is_text();
    let name = if name.is_empty() {
        String::new()
    } else {
        format!("{name:<8}")
    };
    let tell = move |interval: &live::Interval| {
        if is_text {
            say(&format!("{name}{interval}"));
        }
    };
    let every = work.interval()?;
    Some((every, Box::new(tell)))
}

/// Draws and prints results in the requested form.
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
