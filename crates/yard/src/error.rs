//! Errors as the user sees them: one line that says what to do.

use std::fmt;

/// A failure in the user's words.
#[derive(Debug)]
pub struct Failure(String);

/// The result of anything that can end the program.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with this text; several lines are joined into one.
    pub fn new(text: impl Into<String>) -> Self {
        let text: String = text.into();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        Self(lines.join(" "))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prefixes an error's own text with what was being done; for `map_err`.
pub fn context<E: fmt::Display>(doing: &str) -> impl Fn(E) -> Failure {
    move |error| Failure::new(format!("{doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure: Failure = context("reading key.pem")("no such file\n  (os error 2)");
        assert_eq!(
            failure.to_string(),
            "reading key.pem: no such file (os error 2)"
        );
    }
}
