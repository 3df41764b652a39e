//! The files of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// A text file: its path from the root, with slashes, and its contents.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The folders that hold the `lib.rs` or `main.rs` of a workspace member's crates: `src`, and tests
/// and examples that have their own folder.
pub(crate) fn crate_roots<'a>(member: &str, files: &'a [File]) -> Vec<&'a str> {
    let within = format!("{member}/");
    let mut roots: Vec<&str> = files
        .iter()
        .filter_map(|file| {
            let folder =
                (file.path.strip_suffix("/lib.rs")).or(file.path.strip_suffix("/main.rs"))?;
            folder.starts_with(&within).then_some(folder)
        })
        .collect();
    roots.dedup();
    roots
}

/// The folder of the workspace member that a file lies in. `peers/` and `fuzz/` are separate
/// workspaces, with other rules.
pub(crate) fn member_of(path: &str) -> Option<&str> {
    for member in ["interop", "xtask"] {
        if path
            .strip_prefix(member)
            .is_some_and(|rest| rest.starts_with('/'))
        {
            return Some(member);
        }
    }
    let name = path.strip_prefix("crates/")?.split('/').next()?;
    path.get(.."crates/".len() + name.len())
}

/// Whether there is a file with this name: a path from the root, or the end of one.
pub(crate) fn has(files: &[File], name: &str) -> bool {
    let end = format!("/{name}");
    (files.iter()).any(|file| file.path == name || file.path.ends_with(&end))
}

/// The root of the repository: the folder above this crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// All text files that git tracks, or would after `git add`.
pub(crate) fn files(root: &Path) -> io::Result<Vec<File>> {
    let listing = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()?;
    if !listing.status.success() {
        let reason = String::from_utf8_lossy(&listing.stderr);
        return Err(io::Error::other(format!("git ls-files: {}", reason.trim())));
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&listing.stdout).split_terminator('\0') {
        match fs::read(root.join(path)) {
            // A file that is not UTF-8 is not text.
            Ok(bytes) => files.extend(String::from_utf8(bytes).ok().map(|text| File {
                path: path.to_owned(),
                text,
            })),
            // A tracked file that has been deleted, or a link to a folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_the_folders_of_crates_interop_and_xtask() {
        assert_eq!(member_of("crates/core/src/a/b.rs"), Some("crates/core"));
        assert_eq!(member_of("xtask/Cargo.toml"), Some("xtask"));
        assert_eq!(member_of("interop/tests/peers/main.rs"), Some("interop"));
        assert_eq!(member_of("peers/quinn/src/main.rs"), None);
        assert_eq!(member_of("Cargo.toml"), None);
    }

    #[test]
    fn crates_are_found_by_their_main_files() {
        let file = |path: &str| File {
            path: path.to_owned(),
            text: String::new(),
        };
        let files = [
            "a/examples/one.rs",
            "a/examples/two/main.rs",
            "a/src/lib.rs",
            "a/src/main.rs",
            "ab/src/lib.rs",
        ]
        .map(file);
        assert_eq!(crate_roots("a", &files), ["a/examples/two", "a/src"]);
    }
}
