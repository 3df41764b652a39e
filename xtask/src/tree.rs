//! The files of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// A text file: its path from the root, with slashes, and what is in it.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// Whether this is a Rust source of the crate in this folder (`crates/core`), tests not counted.
    pub(crate) fn is_source_of(&self, folder: &str) -> bool {
        self.path.ends_with(".rs")
            && self
                .path
                .strip_prefix(folder)
                .is_some_and(|rest| rest.starts_with("/src/"))
    }
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
            // Not UTF-8 is not text.
            Ok(bytes) => files.extend(String::from_utf8(bytes).ok().map(|text| File {
                path: path.to_owned(),
                text,
            })),
            // A tracked file that was deleted, or a link to a folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
