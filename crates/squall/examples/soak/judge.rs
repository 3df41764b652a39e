//! Judges the samples of a process: does it use ever more?

use std::collections::BTreeMap;
use std::fmt::Write;

/// One second of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Since the start, in seconds.
    pub(crate) at: u64,
    pub(crate) rss_kb: u64,
    pub(crate) descriptors: u64,
    /// What it reports about itself.
    pub(crate) counts: BTreeMap<String, u64>,
}

impl Sample {
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or_default()
    }

    /// As a line of the report.
    pub(crate) fn line(&self) -> String {
        let mut text = String::new();
        let (rss, descriptors) = (self.rss_kb / 1024, self.descriptors);
        let _ = write!(text, "{rss:>4} MB {descriptors:>4} fd");
        let _ = write!(text, " {:>4} conn", self.count("connections"));
        text
    }
}

/// How much quarters of a steady run may differ.
struct Bound {
    name: &'static str,
    of: fn(&Sample) -> u64,
    /// How far the last quarter's median may exceed the second's, in percent and in absolute terms.
    percent: u64,
    more: u64,
}

const BOUNDS: [Bound; 3] = [
    Bound {
        name: "resident kB",
        of: |sample| sample.rss_kb,
        percent: 20,
        more: 8_192,
    },
    Bound {
        name: "descriptors",
        of: |sample| sample.descriptors,
        percent: 10,
        more: 16,
    },
    Bound {
        name: "connections",
        of: |sample| sample.count("connections"),
        percent: 50,
        more: 50,
    },
];

fn median(samples: &[Sample], of: fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(of).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Compares the last quarter with the second one; the first is warm-up. Returns a line per figure,
/// and the figures that grew beyond their bounds.
pub(crate) fn growth(who: &str, samples: &[Sample]) -> (Vec<String>, Vec<String>) {
    let quarter = samples.len() / 4;
    let (mut lines, mut failures) = (Vec::new(), Vec::new());
    if quarter == 0 {
        return (lines, failures);
    }
    for Bound {
        name,
        of,
        percent,
        more,
    } in BOUNDS
    {
        let parts = samples.chunks(quarter).take(4);
        let medians: Vec<u64> = parts.map(|part| median(part, of)).collect();
        let peak = samples.iter().map(of).max().unwrap_or_default();
        lines.push(format!(
            "{who}: {name}, median of each quarter {medians:?}, peak {peak}"
        ));
        let (second, last) = (medians[1], medians[3]);
        if last > second + second * percent / 100 + more {
            failures.push(format!("{who}: {name} grew from {second} to {last}"));
        }
    }
    (lines, failures)
}
