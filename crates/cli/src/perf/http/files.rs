//! The folder that is served: files of fixed sizes, and the segments of a film.

use std::path::{Path, PathBuf};

use squall_yard::error::{Result, context};

/// Bytes of the files that are requested over and over.
pub(super) const SIZES: [u64; 3] = [1_024, 100_000, 1_000_000];

/// Playing time of a segment, in seconds.
pub(super) const SEGMENT_S: u64 = 2;
/// The bitrate of audio, in bit/s.
const AUDIO: u64 = 128_000;
/// The bitrates of video, in bit/s: up and down again, one step per segment.
const VIDEO: [u64; 6] = [
    1_000_000, 2_500_000, 5_000_000, 8_000_000, 5_000_000, 2_500_000,
];

/// A file that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    /// Its path, which starts with a slash.
    pub(super) path: String,
    /// Its length in bytes.
    pub(super) len: u64,
}

impl File {
    /// The file of that many bytes.
    pub(super) fn of_size(len: u64) -> Self {
        Self {
            path: format!("/{len}.bin"),
            len,
        }
    }

    /// A segment of audio.
    pub(super) fn audio() -> Self {
        Self::segment("audio", AUDIO)
    }

    /// Segments of video in the order of the schedule, which then starts over.
    pub(super) fn video() -> Vec<Self> {
        let segments = VIDEO.iter();
        segments.map(|rate| Self::segment("video", *rate)).collect()
    }

    fn segment(kind: &str, bits_per_s: u64) -> Self {
        Self {
            path: format!("/{kind}-{}k.m4s", bits_per_s / 1_000),
            len: bits_per_s * SEGMENT_S / 8,
        }
    }
}

/// The folder, in the system's temporary directory; removed when dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Writes all files.
    ///
    /// # Errors
    /// The system's, such as a lack of space or permission.
    pub(super) fn create() -> Result<Self> {
        let name = format!("squall-perf-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let failed = format!("cannot make the folder to serve, {}", path.display());
        std::fs::create_dir(&path).map_err(context(&failed))?;
        // From here on it is removed whatever happens.
        let folder = Self(path);
        let mut files: Vec<File> = SIZES.map(File::of_size).into();
        files.push(File::audio());
        files.extend(File::video());
        for file in files {
            let name = folder.0.join(file.path.trim_start_matches('/'));
            let content: Vec<u8> = (0..file.len).map(|at| (at % 251) as u8).collect();
            std::fs::write(name, content).map_err(context(&failed))?;
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If it stays, the system's temporary directory is the right place for it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_holds_the_requested_files_and_is_removed() {
        let folder = Folder::create().expect("a folder");
        let path = folder.path().to_owned();
        for file in File::video().into_iter().chain([File::audio()]) {
            let name = path.join(file.path.trim_start_matches('/'));
            assert_eq!(
                std::fs::metadata(name).expect("the file exists").len(),
                file.len
            );
        }
        assert_eq!(File::audio().len, 32_000);
        assert_eq!(File::video()[3].len, 2_000_000);
        drop(folder);
        assert!(!path.exists());
    }
}
