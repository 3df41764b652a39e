//! A qlog file for each connection.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use squall_core::{Connection, Time};
use squall_wire::Side;

/// A folder of qlogs.
#[derive(Clone, Debug)]
pub(crate) struct QlogFolder(PathBuf);

impl QlogFolder {
    /// Makes the folder where it is missing.
    ///
    /// # Errors
    /// It cannot be made, or is no folder.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let tell = |error: io::Error| {
            let text = format!("cannot write qlogs to {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        std::fs::create_dir_all(path).map_err(tell)?;
        Ok(Self(path.to_owned()))
    }

    /// Logs a connection that was just made. One whose file cannot be made goes on without.
    pub(crate) fn begin(&self, now: Time, connection: &mut Connection) {
        let mut name = String::new();
        for byte in connection.original_destination_id().as_slice() {
            let _ = write!(name, "{byte:02x}");
        }
        let side = match connection.side() {
            Side::Client => "client",
            Side::Server => "server",
        };
        // Both ends may write into one folder.
        let path = self.0.join(format!("{name}_{side}.sqlog"));
        match File::create(&path) {
            Ok(file) => connection.set_qlog(now, Box::new(BufWriter::new(file))),
            Err(error) => tracing::warn!(path = %path.display(), %error, "no qlog"),
        }
    }
}
