//! `cargo xtask soak`: two processes under load and faults, for any length of time, optimised and
//! with every check on.

use crate::tree;
use std::process::{Command, ExitCode};

/// Runs `crates/squall/examples/soak` with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let ran = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--profile", "sim", "--package", "squall"])
        .args(["--example", "soak", "--"])
        .args(arguments)
        .current_dir(tree::root())
        .status();
    match ran {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
