//! `cargo xtask ports [NAME]`: applications that use quinn, ported to squall, and their own tests.
//!
//! ```text
//!   cargo downloads the named version        packaging/ports/NAME/CRATE.patch and other files
//!                │                                            │
//!                ▼                                            ▼
//!   a folder outside the workspace:  CRATE, patched; squall's crates of this checkout
//!                │
//!                ▼
//!   cargo test, with the versions of the application's own lock file
//! ```
//! It downloads and builds several hundred crates, so it runs on demand rather than in `.ci/run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::tree;

/// An application and the parts of it that are tested.
struct Port {
    /// Its folder in `packaging/ports`.
    name: &'static str,
    /// The crates that have a patch, with their versions. The last one's lock file is used.
    crates: &'static [(&'static str, &'static str)],
    /// Crates of this checkout that they depend on.
    ours: &'static [&'static str],
    /// Arguments of `cargo test`. Tests are skipped only if they also fail with quinn; the port's
    /// README says why.
    arguments: &'static [&'static str],
}

const PORTS: [Port; 2] = [
    Port {
        name: "hickory",
        crates: &[("hickory-net", "0.26.3"), ("hickory-server", "0.26.3")],
        ours: &["squall", "h3-squall"],
        arguments: &[
            "--lib",
            "--features",
            "hickory-net/h3-ring,hickory-server/h3-ring",
            "--",
            "--skip=client::tests::async_client",
            "--skip=client::tests::readme_example",
            "--skip=store::file::tests::test_load_zone",
        ],
    },
    Port {
        name: "rusnel",
        crates: &[("rusnel", "0.11.2")],
        ours: &["squall"],
        // One after the other: its tests bind ports that were free a moment ago, and have tight
        // time limits.
        arguments: &[
            "--",
            "--test-threads=1",
            "--skip=test_udp_forward_many_packets",
        ],
    },
];

/// Tests the named ports, or all of them.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let chosen: Vec<&Port> = (PORTS.iter())
        .filter(|port| arguments.is_empty() || arguments.iter().any(|name| name == port.name))
        .collect();
    if chosen.len() < arguments.len().max(1) {
        let names: Vec<&str> = PORTS.iter().map(|port| port.name).collect();
        eprintln!("usage: cargo xtask ports [{}]", names.join(" | "));
        return ExitCode::from(2);
    }
    let outside = std::env::temp_dir().join(format!("squall-ports-{}", std::process::id()));
    let result = (chosen.iter()).try_for_each(|port| test(port, &outside.join(port.name)));
    // Leftovers do no harm: another run uses another name.
    let _ = fs::remove_dir_all(&outside);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("ports: {what}");
            ExitCode::FAILURE
        }
    }
}

fn test(port: &Port, work: &Path) -> Result<(), String> {
    println!("{}", port.name);
    let kept = tree::root().join("packaging/ports").join(port.name);
    copy_folder(&kept, work)?;
    let sources = download(port, &work.join("download"))?;
    for ((name, _), source) in port.crates.iter().zip(sources) {
        let folder = work.join(name);
        copy_folder(&source, &folder)?;
        let mut patch = Command::new("git");
        patch.current_dir(&folder).args(["apply", "-p1"]);
        patch.arg(kept.join(format!("{name}.patch")));
        // Not part of any repository, even if the folder for temporary files is.
        patch.env("GIT_CEILING_DIRECTORIES", work);
        succeed(&mut patch, &format!("the patch of {name}"))?;
        let lock = fs::copy(folder.join("Cargo.lock"), work.join("Cargo.lock"));
        lock.map_err(|error| format!("{name} has no Cargo.lock: {error}"))?;
    }
    let manifest = work.join("Cargo.toml");
    fs::write(&manifest, workspace(port))
        .map_err(|error| format!("cannot write {}: {error}", manifest.display()))?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(work)
        .env("CARGO_TARGET_DIR", target_folder()?.join("ports"))
        // Where hickory's tests look for their certificates.
        .env("TDNS_WORKSPACE_ROOT", work)
        .arg("test")
        .args(port.arguments);
    succeed(&mut cargo, &format!("cargo test of {}", port.name))
}

/// The manifest around the patched crates.
fn workspace(port: &Port) -> String {
    let names: Vec<String> = (port.crates.iter())
        .map(|(name, _)| format!("{name:?}"))
        .collect();
    let mut text = format!(
        "[workspace]\nresolver = \"2\"\nmembers = [{}]\n\n[patch.crates-io]\n",
        names.join(", ")
    );
    // They also depend on each other.
    for (name, _) in port.crates.iter().filter(|_| port.crates.len() > 1) {
        text.push_str(&format!("{name} = {{ path = {name:?} }}\n"));
    }
    for name in port.ours {
        let folder = tree::root().join("crates").join(name);
        text.push_str(&format!("{name} = {{ path = {folder:?} }}\n"));
    }
    text
}

/// Has cargo download the crates, in a package that depends on them; returns their folders.
fn download(port: &Port, work: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("cannot write to {}: {error}", work.display());
    fs::create_dir_all(work.join("src")).map_err(failed)?;
    fs::write(work.join("src/lib.rs"), "").map_err(failed)?;
    let mut manifest = String::from(
        "[package]\nname = \"download\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n",
    );
    for (name, version) in port.crates {
        manifest.push_str(&format!("{name} = \"={version}\"\n"));
    }
    fs::write(work.join("Cargo.toml"), manifest).map_err(failed)?;
    let output = Command::new(env!("CARGO"))
        .current_dir(work)
        .args(["metadata", "--format-version", "1", "--quiet"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata could not be started: {error}"))?;
    let metadata = String::from_utf8_lossy(&output.stdout);
    (port.crates.iter())
        .map(|(name, version)| {
            folder_of(&metadata, name, version)
                .ok_or_else(|| format!("cargo did not download {name} {version}"))
        })
        .collect()
}

/// The folder of a package, from the output of `cargo metadata`.
fn folder_of(metadata: &str, name: &str, version: &str) -> Option<PathBuf> {
    let end = format!("/{name}-{version}/Cargo.toml");
    let mut manifests = metadata.split("\"manifest_path\":\"").skip(1);
    let manifest = manifests.find_map(|rest| {
        let path = rest.split('"').next()?;
        path.ends_with(&end).then_some(path)
    })?;
    Path::new(manifest).parent().map(Path::to_path_buf)
}

/// Where cargo builds.
fn target_folder() -> Result<PathBuf, String> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(folder)
            .map_err(|error| format!("CARGO_TARGET_DIR has no absolute path: {error}")),
        None => Ok(tree::root().join("target")),
    }
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
    fn a_package_is_found_in_the_metadata() {
        let metadata = r#"{"name":"a-b","manifest_path":"/r/a-b-1.2.3/Cargo.toml"},{"name":"b","manifest_path":"/r/b-1.2.3/Cargo.toml","x":1}"#;
        let folder = folder_of(metadata, "b", "1.2.3");
        // Not the one whose name has the same ending.
        assert_eq!(folder, Some(PathBuf::from("/r/b-1.2.3")));
        assert_eq!(folder_of(metadata, "b", "1.2.4"), None);
    }

    #[test]
    fn every_port_has_its_files_and_every_folder_is_a_port() {
        let ports = tree::root().join("packaging/ports");
        let mut folders: Vec<_> = fs::read_dir(&ports)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        folders.sort_unstable();
        assert_eq!(folders, PORTS.map(|port| port.name));
        for port in &PORTS {
            let folder = ports.join(port.name);
            let readme = fs::read_to_string(folder.join("README.md")).unwrap();
            for (name, version) in port.crates {
                assert!(folder.join(format!("{name}.patch")).is_file(), "{name}");
                assert!(
                    readme.contains(&format!("{name} {version}")),
                    "{name}'s version is not in its README"
                );
            }
        }
    }
}
