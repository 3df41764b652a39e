//! Finds out which commit the command is built from, for `squall --version`.
//!
//! ```text
//!   SQUALL_COMMIT           an image's build, whose context has no history
//!   .cargo_vcs_info.json    a package, in which cargo has noted the commit
//!   git                     a working tree of squall
//! ```
//! The first that knows decides. Changes in a working tree that are not committed are not noticed.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SQUALL_COMMIT");
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let commit = std::env::var("SQUALL_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty())
        .or_else(|| from_package(&here))
        .or_else(|| from_git(&here));
    if let Some(commit) = commit {
        println!("cargo::rustc-env=SQUALL_COMMIT={commit}");
    }
}

/// The commit that a package was made from.
fn from_package(here: &Path) -> Option<String> {
    let text = std::fs::read_to_string(here.join(".cargo_vcs_info.json")).ok()?;
    let hash = text.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
    let changed = if text.contains("\"dirty\": true") {
        " with changes"
    } else {
        ""
    };
    Some(format!("{}{changed}", hash.get(..12)?))
}

/// The commit of squall's own working tree; a tree that only contains a copy has other commits.
fn from_git(here: &Path) -> Option<String> {
    let root = here.join("../..").canonicalize().ok()?;
    let top = git(here, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    // Every commit and every checkout appends a line to it.
    let log = here.join(git(here, &["rev-parse", "--git-path", "logs/HEAD"])?);
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    git(here, &["rev-parse", "--short=12", "HEAD"])
}

fn git(here: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(here)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
