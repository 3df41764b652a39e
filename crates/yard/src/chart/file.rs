//! The file that a chart goes to.

use std::io::Write as _;
use std::path::Path;

use crate::error::{Result, context};

/// The file that a picture goes to, opened before anything is measured.
pub struct File {
    file: std::fs::File,
    name: String,
}

impl File {
    /// Opens the file, or empties it.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = std::fs::File::create(path)
            .map_err(context(&format!("cannot write {name} (--plot)")))?;
        Ok(Self { file, name })
    }

    /// Writes the picture.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(mut self, svg: &str) -> Result<()> {
        let written = self.file.write_all(svg.as_bytes());
        written.map_err(context(&format!("cannot write {}", self.name)))
    }
}
