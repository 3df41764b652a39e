//! `cargo xtask service`: the systemd unit and the image that run the command elsewhere.
//!
//! ```text
//!   packaging/squall.service   systemd-analyze verify, if installed
//!   packaging/Dockerfile       docker build and run, with a daemon
//! ```
//! Checks that are impossible on this machine are named, but are not failures. A test of squall-cli
//! (`crates/cli/tests/packaging.rs`) checks that squall accepts the arguments in both files.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::tree;

const UNIT: &str = "packaging/squall.service";
const DOCKERFILE: &str = "packaging/Dockerfile";

/// Where the unit expects the command.
const INSTALLED: &str = "/usr/local/bin/squall";

/// The name that the image has on this machine while it is checked.
const IMAGE: &str = "squall-checked";

/// Checks both, up to the first failure.
pub(crate) fn run() -> ExitCode {
    match unit().and_then(|()| image()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("service: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The systemd unit, as systemd reads it.
fn unit() -> Result<(), String> {
    if !answers("systemd-analyze", &["--version"]) {
        println!("{UNIT}: systemd-analyze is not installed here, not checked by it");
        return Ok(());
    }
    // systemd also asks whether the command exists, which only an installation can answer.
    let folder = std::env::temp_dir().join(format!("squall-unit-{}", std::process::id()));
    let copy = folder.join("squall.service");
    let text = read(UNIT)?.replace(INSTALLED, "/bin/true");
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&copy, text));
    let verified = written.map_err(|error| error.to_string()).and_then(|()| {
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(&copy)
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Unknown settings are warnings to systemd, which then ignores them.
        if output.status.success() && !said.contains("squall.service") {
            Ok(())
        } else {
            Err(format!("systemd-analyze verify {UNIT}:\n{said}"))
        }
    });
    // A leftover copy does no harm: another run uses another name.
    let _ = fs::remove_dir_all(&folder);
    verified.inspect(|()| println!("{UNIT}: verified by systemd-analyze"))
}

/// The image: built, and its command run.
fn image() -> Result<(), String> {
    if !answers("docker", &["version"]) {
        println!("{DOCKERFILE}: no docker with a daemon here, not built");
        return Ok(());
    }
    let build = ["build", "--file", DOCKERFILE, "--tag", IMAGE, "."];
    succeeds("docker", &build)?;
    succeeds("docker", &["run", "--rm", IMAGE, "--version"])?;
    println!("{DOCKERFILE}: built, and the command runs in it");
    Ok(())
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(Path::new(&tree::root()).join(path))
        .map_err(|error| format!("{path}: {error}"))
}

/// Whether a tool is installed and works.
fn answers(tool: &str, arguments: &[&str]) -> bool {
    let status = Command::new(tool)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn succeeds(tool: &str, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(tool)
        .current_dir(tree::root())
        .args(arguments)
        .status();
    if status.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err(format!("{tool} {} failed", arguments.join(" ")))
    }
}
