//! Writes to standard output: lines for people, one JSON object for programs.

use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Serialize;
use squall_yard::error::{Failure, Result, context};

/// The version of all JSON objects of this command, their key `schema`. It is incremented when a
/// key changes its meaning, unit or type, or is removed, but not for new keys. The objects are
/// described in docs/measuring.
const SCHEMA: u32 = 1;

/// Whether a JSON object was printed: a program reads only one.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// A JSON object with its version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// Why output was lost, if it could not be written.
static LOST: OnceLock<String> = OnceLock::new();

/// Prints one JSON object, with its version.
///
/// # Errors
/// The value is not an object.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let versioned = Versioned {
        schema: SCHEMA,
        value,
    };
    let text = serde_json::to_string_pretty(&versioned).map_err(context("JSON"))?;
    PRINTED.store(true, Ordering::Relaxed);
    say(&text);
    Ok(())
}

/// Results from before a failure, with their key.
static PARTIAL: Mutex<Option<(&'static str, serde_json::Value)>> = Mutex::new(None);

/// Keeps the results so far, for the object that [`print_json_error`] prints.
pub(crate) fn keep(key: &'static str, value: &impl Serialize) {
    let mut partial = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
    *partial = serde_json::to_value(value).ok().map(|value| (key, value));
}

/// Prints why a command failed as a JSON object with the key `error`, together with anything
/// [kept](keep), unless results have already been printed.
pub(crate) fn print_json_error(failure: &Failure) {
    if PRINTED.load(Ordering::Relaxed) {
        return;
    }
    let mut object = serde_json::json!({ "error": failure.to_string() });
    let mut partial = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((key, value)) = partial.take() {
        object[key] = value;
    }
    // An object with these keys can always be written.
    let _ = print_json(&object);
}

/// Prints a line. A closed pipe (`| head`) is no reason to stop or to complain; a full disk is
/// reported by [`complaint`] at the end.
pub(crate) fn say(text: &str) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        // The first one counts.
        let _ = LOST.set(error.to_string());
    }
}

/// Fails if any output was lost.
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
