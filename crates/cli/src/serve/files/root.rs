//! The folder that is served: files are opened below it, and never outside.
//!
//! Linux resolves a name below a folder in one step (openat2 with `RESOLVE_BENEATH`), so that a
//! symbolic link replaced at the wrong moment cannot lead out. Elsewhere, or if a sandbox forbids
//! that call, the resolved path is compared with the root's before the file is opened.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// A folder whose files are served.
#[derive(Debug)]
pub(super) struct Root {
    /// Resolved once, when the server starts.
    path: PathBuf,
    /// The same folder, if the system can resolve names below it.
    #[cfg(target_os = "linux")]
    folder: Option<File>,
}

impl Root {
    /// Opens a folder.
    ///
    /// # Errors
    /// It does not exist, is not a folder, or cannot be read.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        std::fs::read_dir(&path)?;
        Ok(Self {
            #[cfg(target_os = "linux")]
            folder: beneath::folder(&path)?,
            path,
        })
    }

    /// As [`open`](Self::open), but compares paths.
    #[cfg(test)]
    pub(super) fn open_by_comparison(path: &Path) -> io::Result<Self> {
        Ok(Self {
            #[cfg(target_os = "linux")]
            folder: None,
            path: path.canonicalize()?,
        })
    }

    /// Opens a file or folder for reading; an empty name is the root. A named pipe does not block.
    ///
    /// # Errors
    /// The system's, and [`io::ErrorKind::NotFound`] for anything outside of the root.
    pub(super) fn find(&self, name: &[u8]) -> io::Result<File> {
        let name = relative(name)?;
        #[cfg(target_os = "linux")]
        if let Some(folder) = &self.folder {
            return beneath::open(folder, &name, beneath::READ);
        }
        File::open(self.resolve(&name)?)
    }

    /// The kind of file that a name stands for, and its size and times.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(super) fn look(&self, name: &[u8]) -> io::Result<Metadata> {
        let name = relative(name)?;
        #[cfg(target_os = "linux")]
        if let Some(folder) = &self.folder {
            return beneath::open(folder, &name, beneath::LOOK)?.metadata();
        }
        self.resolve(&name)?.metadata()
    }

    /// The names in a folder, at most `limit`, in the system's order.
    ///
    /// # Errors
    /// As [`find`](Self::find), or it is not a folder.
    pub(super) fn names(&self, name: &[u8], limit: usize) -> io::Result<Vec<OsString>> {
        let name = relative(name)?;
        #[cfg(target_os = "linux")]
        if let Some(folder) = &self.folder {
            return beneath::names(folder, &name, limit);
        }
        std::fs::read_dir(self.resolve(&name)?)?
            .take(limit)
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    /// The path with all links resolved, if it lies below the root.
    fn resolve(&self, name: &Path) -> io::Result<PathBuf> {
        let path = self.path.join(name).canonicalize()?;
        // Opening anything else could block.
        let kind = path.metadata()?.file_type();
        if path.starts_with(&self.path) && (kind.is_file() || kind.is_dir()) {
            Ok(path)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

/// A name as the system's path, which remains relative when joined to another.
fn relative(name: &[u8]) -> io::Result<PathBuf> {
    #[cfg(unix)]
    let path = {
        use std::os::unix::ffi::OsStrExt as _;
        Path::new(std::ffi::OsStr::from_bytes(name)).to_owned()
    };
    #[cfg(not(unix))]
    let path = PathBuf::from(
        std::str::from_utf8(name).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?,
    );
    if path.is_relative() {
        Ok(path)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Resolves names below a folder on Linux.
#[cfg(target_os = "linux")]
mod beneath {
    use std::ffi::OsString;
    use std::fs::File;
    use std::io;
    use std::os::unix::ffi::OsStringExt as _;
    use std::path::Path;

    use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
    use rustix::io::Errno;

    /// For reading, without waiting for the other end of a named pipe.
    pub(super) const READ: OFlags = OFlags::RDONLY
        .union(OFlags::NONBLOCK)
        .union(OFlags::NOCTTY)
        .union(OFlags::CLOEXEC);
    /// For `stat`.
    pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

    /// How often to resolve a name again if something on its path was renamed in between.
    const ATTEMPTS: u32 = 4;

    /// The root, unless the kernel lacks openat2 or a sandbox forbids it.
    pub(super) fn folder(path: &Path) -> io::Result<Option<File>> {
        let folder = File::open(path)?;
        match open(&folder, Path::new(""), LOOK) {
            Ok(_) => Ok(Some(folder)),
            Err(_) => Ok(None),
        }
    }

    pub(super) fn open(folder: &File, name: &Path, flags: OFlags) -> io::Result<File> {
        let name = if name.as_os_str().is_empty() {
            Path::new(".")
        } else {
            name
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut attempts = 1;
        loop {
            match openat2(folder, name, flags, Mode::empty(), resolve) {
                Ok(file) => return Ok(file.into()),
                Err(Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS => attempts += 1,
                // A link leads out of the root.
                Err(Errno::XDEV) => return Err(io::ErrorKind::NotFound.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn names(folder: &File, name: &Path, limit: usize) -> io::Result<Vec<OsString>> {
        let folder = open(folder, name, READ | OFlags::DIRECTORY)?;
        let entries = Dir::new(folder)?.map(|entry| {
            let name = entry?.file_name().to_bytes().to_vec();
            Ok(OsString::from_vec(name))
        });
        let is_name = |name: &io::Result<OsString>| {
            (name.as_ref()).map_or(true, |name| name != "." && name != "..")
        };
        entries.filter(is_name).take(limit).collect()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::serve::scratch::Scratch;

    #[test]
    fn symbolic_links_may_point_only_below_the_root() {
        let scratch = Scratch::new("root");
        scratch.write("secret", b"secret");
        scratch.write("root/a/file", b"file");
        let at = |name: &str| scratch.path().join("root").join(name);
        symlink("a/file", at("inside")).expect("a link");
        symlink("a/../a/file", at("around")).expect("a link");
        symlink("a", at("folder")).expect("a link");
        symlink("../secret", at("outside")).expect("a link");
        symlink("..", at("up")).expect("a link");
        symlink(scratch.path().join("secret"), at("absolute")).expect("a link");
        symlink("/etc", at("etc")).expect("a link");
        symlink("/proc/self/root", at("magic")).expect("a link");
        symlink("loop", at("loop")).expect("a link");
        symlink("nothing", at("dangling")).expect("a link");
        let root = scratch.path().join("root");
        for root in [
            Root::open(&root).expect("a folder"),
            Root::open_by_comparison(&root).expect("a folder"),
        ] {
            for name in ["a/file", "inside", "around", "folder/file"] {
                assert!(root.find(name.as_bytes()).is_ok(), "{name} by {root:?}");
                assert!(
                    root.look(name.as_bytes())
                        .is_ok_and(|there| there.is_file())
                );
            }
            for name in [
                "outside",
                "up/secret",
                "up",
                "absolute",
                "etc/hostname",
                "etc",
                "magic/etc/hostname",
                "loop",
                "dangling",
                "../secret",
                "/etc/hostname",
                "a/file/b",
                "missing",
            ] {
                assert!(root.find(name.as_bytes()).is_err(), "{name} by {root:?}");
                assert!(root.look(name.as_bytes()).is_err(), "{name} by {root:?}");
            }
            let mut names = root.names(b"folder", 10).expect("a folder");
            assert_eq!(names.pop().expect("a name"), "file");
            assert!(names.is_empty());
            assert_eq!(root.names(b"", 3).expect("the root").len(), 3);
            assert!(root.names(b"up", 3).is_err());
        }
    }

    #[test]
    fn a_pipe_does_not_block() {
        let scratch = Scratch::new("pipe");
        scratch.write("root/file", b"");
        let pipe = scratch.path().join("root/pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if !made.is_ok_and(|made| made.success()) {
            return;
        }
        let root = Root::open(&scratch.path().join("root")).expect("a folder");
        let found = root.find(b"pipe").and_then(|file| file.metadata());
        assert!(found.is_ok_and(|found| !found.is_file()));
    }

    #[test]
    fn a_root_must_be_a_folder() {
        let scratch = Scratch::new("no-folder");
        scratch.write("file", b"");
        assert!(Root::open(&scratch.path().join("file")).is_err());
        assert!(Root::open(&scratch.path().join("missing")).is_err());
    }
}
