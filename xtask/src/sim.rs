//! `cargo xtask sim` runs the simulator's seeds in the profile meant for them: optimised, with
//! every check on.

use crate::tree;
use std::process::{Command, ExitCode};

/// Runs `crates/sim/examples/seeds.rs` with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let ran = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--profile",
            "sim",
            "--package",
            "squall-sim",
        ])
        .args(["--example", "seeds", "--"])
        .args(arguments)
        .current_dir(tree::root())
        .status();
    match ran {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
