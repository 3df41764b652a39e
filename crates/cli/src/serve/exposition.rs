//! The text format of Prometheus.

use std::fmt::{Display, Write as _};

/// Writes the values of a metric.
pub(super) fn put_family(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    rows: &[(String, impl Display)],
) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in rows {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}
