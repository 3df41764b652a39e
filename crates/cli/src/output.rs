//! What goes to standard output: lines for people, one JSON object for programs.

use std::io::Write as _;

use crate::error::{Result, context};

/// Prints one JSON object.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(context("JSON"))?;
    say(&text);
    Ok(())
}

/// Prints a line. A reader that has gone away (`| head`) is no reason to stop or to complain.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
