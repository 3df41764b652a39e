//! `cargo xtask pgo`: the program, optimised by what it was observed to do (profile-guided
//! optimisation).
//!
//! ```text
//!   instrumented build ──► squall perf: bulk, requests, handshakes ──► raw profiles
//!                                                                         │ llvm-profdata merge
//!   target/pgo/optimised/release/squall ◄── build with the profile ◄──────┘
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::tree;

/// What the instrumented program does: what servers and clients do most.
const TRAINING: [&[&str]; 4] = [
    &["perf", "--only", "quic", "--time", "6", "--rounds", "2"],
    &[
        "perf", "--only", "quic", "--time", "6", "--rounds", "2", "-c", "10", "-s", "10",
    ],
    &["perf", "--requests", "--only", "quic", "--time", "6"],
    &["perf", "--handshakes", "--only", "quic", "--time", "6"],
];

/// Builds, trains, builds again, and prints where the program is.
pub(crate) fn run() -> ExitCode {
    match optimise() {
        Ok(program) => {
            println!("{}", program.display());
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("pgo: {what}");
            ExitCode::FAILURE
        }
    }
}

fn optimise() -> Result<PathBuf, String> {
    let merger = profdata()?;
    let folder = tree::root().join("target/pgo");
    let (raw, merged) = (folder.join("raw"), folder.join("merged.profdata"));
    // Profiles of another state of the code would only mislead.
    if raw.exists() {
        std::fs::remove_dir_all(&raw)
            .map_err(|error| format!("cannot empty {}: {error}", raw.display()))?;
    }
    let generate = format!("-Cprofile-generate={}", raw.display());
    let trained = build(&folder.join("instrumented"), &generate)?;
    for arguments in TRAINING {
        succeed(Command::new(&trained).args(arguments), "the training")?;
    }
    succeed(
        Command::new(merger)
            .args(["merge", "--output"])
            .arg(&merged)
            .arg(&raw),
        "llvm-profdata",
    )?;
    let using = format!("-Cprofile-use={}", merged.display());
    build(&folder.join("optimised"), &using)
}

fn build(target: &Path, flags: &str) -> Result<PathBuf, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--release", "--locked", "--package", "squall-cli"])
        .current_dir(tree::root())
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", flags);
    succeed(&mut cargo, "the build")?;
    Ok(target.join("release/squall"))
}

/// The tool from the compiler's own LLVM, since profiles of another version cannot be read.
fn profdata() -> Result<PathBuf, String> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir"])
        .output()
        .map_err(|error| format!("cannot ask rustc for its folder: {error}"))?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let tool = libraries.with_file_name("bin").join("llvm-profdata");
    if tool.exists() {
        Ok(tool)
    } else {
        Err("llvm-profdata is missing: rustup component add llvm-tools".to_owned())
    }
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed: {status}")),
        Err(error) => Err(format!("{what} could not be started: {error}")),
    }
}
