//! `cargo xtask viewers`: viewers of a film while the server's certificate is renewed and the
//! server is restarted; any number of them, for any length of time.

use crate::tree;
use std::process::{Command, ExitCode};

/// Where the test finds its arguments.
const ARGUMENTS: &str = "SQUALL_VIEWERS";

/// Runs the test `viewers::as_planned` of `crates/cli/tests/serve` with these arguments: optimised
/// with every check on, or, for figures, with `--release` as installed.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let (release, others): (Vec<&str>, Vec<&str>) = arguments
        .iter()
        .map(String::as_str)
        .partition(|argument| *argument == "--release");
    let profile = if release.is_empty() { "sim" } else { "release" };
    let ran = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--profile", profile])
        .args(["--package", "squall-cli", "--test", "serve", "--"])
        .args(["viewers::as_planned", "--exact", "--ignored", "--nocapture"])
        .env(ARGUMENTS, others.join(" "))
        .current_dir(tree::root())
        .status();
    match ran {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
