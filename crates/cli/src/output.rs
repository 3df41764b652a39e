//! What goes to standard output: lines for people, one JSON object for programs.

use std::io::{ErrorKind, Write as _};
use std::sync::OnceLock;

use squall_yard::error::{Failure, Result, context};

/// What became of lines that could not be written.
static LOST: OnceLock<String> = OnceLock::new();

/// Prints one JSON object.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(context("JSON"))?;
    say(&text);
    Ok(())
}

/// Prints a line. A reader that has gone away (`| head`) is no reason to stop or to complain; a
/// full disk is reported by [`complaint`] at the end.
pub(crate) fn say(text: &str) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        // The first one counts.
        let _ = LOST.set(error.to_string());
    }
}

/// Fails when something that was said has got lost.
///
/// # Errors
/// With the system's reason.
pub(crate) fn complaint() -> Result<()> {
    LOST.get().map_or(Ok(()), |why| {
        Err(Failure::new(format!(
            "cannot write the results to standard output: {why}"
        )))
    })
}
