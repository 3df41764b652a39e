//! `cargo xtask package`: the packages as a registry would get them, and as an application would
//! use them.
//!
//! ```text
//!   cargo package --workspace, cargo publish --dry-run
//!        │ tarballs of the published crates
//!        ▼
//!   a folder outside the workspace:  packages/squall-…-0.1.0   unpacked
//!        │                              packaging/downstream      copied, the packages patched in
//!        ▼
//!   echo, without-c, squall --version   built without our profiles, and run
//!   http3                               built
//! ```
//! Dependencies have the versions of the repository's lock file, so what a build of the workspace
//! has fetched is enough, except for the registry's index.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::tree;

/// What is published, lowest first.
const PUBLISHED: [&str; 11] = [
    "squall-wire",
    "squall-protect",
    "squall-rustls",
    "squall-tls",
    "squall-core",
    "squall-udp",
    "squall",
    "squall-h3",
    "h3-squall",
    "squall-yard",
    "squall-cli",
];

/// What every package holds besides its sources.
const EVERY_PACKAGE_HAS: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// What the example `echo` prints: the answers of its server.
const ANSWERS: &str = "Is anybody there?\nA packet never travels alone.\n";

/// Crates that a build without features must not contain: C compilers, and what the features of
/// `squall` enable.
const LEFT_OUT: [&str; 8] = [
    "cc",
    "cmake",
    "aws-lc-rs",
    "aws-lc-sys",
    "ring",
    "serde_json",
    "tracing",
    "futures-io",
];

/// Packages, unpacks, builds and runs.
pub(crate) fn run() -> ExitCode {
    let outside = std::env::temp_dir().join(format!("squall-package-{}", std::process::id()));
    let result = check(&outside);
    // Leftovers do no harm: another run uses another name.
    let _ = fs::remove_dir_all(&outside);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("package: {what}");
            ExitCode::FAILURE
        }
    }
}

fn check(outside: &Path) -> Result<(), String> {
    let target = target_folder()?;
    // Not verified one by one: the programs below build them all once.
    let flags = ["--workspace", "--no-verify", "--allow-dirty", "--locked"];
    cargo(&tree::root(), &target, &["package"], &flags)?;
    cargo(&tree::root(), &target, &["publish", "--dry-run"], &flags)?;
    let folders = unpack(&target.join("package"), &outside.join("packages"))?;
    let app = outside.join("downstream");
    lay_out(&app, &folders)?;

    let echo = output(&app, &target, &["run", "--quiet", "--package", "echo"])?;
    if echo != ANSWERS {
        return Err(format!("the example `echo` printed {echo:?}"));
    }
    cargo(&app, &target, &["build", "--package", "http3"], &[])?;
    let tree = output(
        &app,
        &target,
        &[
            "tree",
            "--package",
            "without-c",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ],
    )?;
    if let Some(found) = left_out(&tree) {
        return Err(format!("squall without features still needs `{found}`"));
    }
    print!(
        "{echo}{}{}",
        output(&app, &target, &["run", "--quiet", "--package", "without-c"])?,
        output(
            &app,
            &target,
            &[
                "run",
                "--quiet",
                "--package",
                "squall-cli",
                "--",
                "--version"
            ],
        )?
    );
    Ok(())
}

/// The crate of [`LEFT_OUT`] that the output of `cargo tree` names, if any.
fn left_out(list: &str) -> Option<&'static str> {
    let names = || list.lines().filter_map(|line| line.split(' ').next());
    LEFT_OUT
        .into_iter()
        .find(|left_out| names().any(|name| name == *left_out))
}

/// Where cargo builds and puts packages.
fn target_folder() -> Result<PathBuf, String> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(folder)
            .map_err(|error| format!("CARGO_TARGET_DIR has no absolute path: {error}")),
        None => Ok(tree::root().join("target")),
    }
}

/// Unpacks the published packages; returns their names and folders.
fn unpack(from: &Path, to: &Path) -> Result<Vec<(&'static str, PathBuf)>, String> {
    fs::create_dir_all(to).map_err(|error| format!("cannot create {}: {error}", to.display()))?;
    let mut folders = Vec::new();
    for name in PUBLISHED {
        let versioned = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let mut tar = Command::new("tar");
        tar.arg("-xzf")
            .arg(from.join(format!("{versioned}.crate")))
            .arg("-C")
            .arg(to);
        succeed(&mut tar, &format!("unpacking {versioned}"))?;
        let folder = to.join(versioned);
        for file in EVERY_PACKAGE_HAS {
            let packed = fs::read(folder.join(file));
            let packed = packed.map_err(|error| format!("{name} has no {file}: {error}"))?;
            // A licence is the root's; a README is the package's own.
            if file.starts_with("LICENSE") && fs::read(tree::root().join(file)).ok() != Some(packed)
            {
                return Err(format!("{file} of {name} differs from the root's"));
            }
        }
        folders.push((name, folder));
    }
    Ok(folders)
}

/// Copies the programs that depend on the packages, and points them at the unpacked ones.
fn lay_out(app: &Path, packages: &[(&str, PathBuf)]) -> Result<(), String> {
    let from = tree::root().join("packaging/downstream");
    copy_folder(&from, app)?;
    let failed = |error| format!("cannot write to {}: {error}", app.display());
    let manifest = app.join("Cargo.toml");
    let mut text = fs::read_to_string(&manifest).map_err(failed)?;
    text.push_str("\n[patch.crates-io]\n");
    for (name, folder) in packages {
        if *name == "squall" {
            fs::create_dir_all(app.join("echo/src")).map_err(failed)?;
            let (example, main) = (folder.join("examples/echo.rs"), "echo/src/main.rs");
            fs::copy(example, app.join(main)).map_err(failed)?;
        }
        if *name == "h3-squall" {
            fs::create_dir_all(app.join("http3/src")).map_err(failed)?;
            let (example, main) = (folder.join("examples/client.rs"), "http3/src/main.rs");
            fs::copy(example, app.join(main)).map_err(failed)?;
        }
        if *name == "squall-cli" {
            // A program, so a member rather than a dependency.
            copy_folder(folder, &app.join(name))?;
            continue;
        }
        text.push_str(&format!("{name} = {{ path = {folder:?} }}\n"));
    }
    let text = text.replace("\"http3\"]", "\"http3\", \"squall-cli\"]");
    fs::write(manifest, text).map_err(failed)?;
    fs::copy(tree::root().join("Cargo.lock"), app.join("Cargo.lock")).map_err(failed)?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error| format!("cannot copy {}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &copy)?;
        } else {
            fs::copy(&path, &copy).map_err(failed)?;
        }
    }
    Ok(())
}

fn cargo(folder: &Path, target: &Path, command: &[&str], flags: &[&str]) -> Result<(), String> {
    let mut cargo = command_of_cargo(folder, target);
    cargo.args(command).args(flags).arg("--quiet");
    succeed(&mut cargo, &format!("cargo {}", command.join(" ")))
}

fn output(folder: &Path, target: &Path, arguments: &[&str]) -> Result<String, String> {
    let what = format!("cargo {}", arguments.join(" "));
    let output = command_of_cargo(folder, target)
        .args(arguments)
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("{what} could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("{what} failed: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn command_of_cargo(folder: &Path, target: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(folder).env("CARGO_TARGET_DIR", target);
    // These programs are only run, and they build faster without debug information.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "none");
    cargo
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed: {status}")),
        Err(error) => Err(format!("{what} could not be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_recognised_by_their_whole_name() {
        assert_eq!(
            left_out("squall v0.1.0\nring-buffer v1.0.0\nccc v1.0.0"),
            None
        );
        assert_eq!(left_out("squall v0.1.0\n\nring v0.17.14 (*)"), Some("ring"));
        assert_eq!(left_out("cc v1.2.0\nring v0.17.14"), Some("cc"));
    }

    #[test]
    fn the_published_crates_are_those_without_publish_false() {
        let files = tree::files(&tree::root()).unwrap();
        let mut published: Vec<&str> = files
            .iter()
            .filter(|file| file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml"))
            .filter(|file| !file.text.contains("publish.workspace = true"))
            .filter_map(|file| file.text.split('"').nth(1))
            .collect();
        let mut expected = PUBLISHED;
        published.sort_unstable();
        expected.sort_unstable();
        assert_eq!(published, expected);
    }
}
