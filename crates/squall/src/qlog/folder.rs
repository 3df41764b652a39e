//! A directory of qlog files, and what happens when one cannot be written.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use squall_core::{Connection, Time};
use squall_wire::Side;

use crate::config::Builder;

/// A directory of qlogs.
#[derive(Clone, Debug)]
pub(crate) struct QlogFolder(PathBuf);

impl QlogFolder {
    /// The directory of these settings, if they name one.
    ///
    /// # Errors
    /// It cannot be created, or is not a directory.
    pub(crate) fn wanted(settings: &Builder) -> io::Result<Option<Self>> {
        settings.qlog_dir.as_deref().map(Self::open).transpose()
    }

    /// Creates the directory if it is missing.
    ///
    /// # Errors
    /// It cannot be created, or is not a directory.
    fn open(path: &Path) -> io::Result<Self> {
        let tell = |error: io::Error| {
            let text = format!("cannot write qlogs to {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        std::fs::create_dir_all(path).map_err(tell)?;
        Ok(Self(path.to_owned()))
    }

    /// Logs a connection that was just made. `report` is called at most once, with the error that
    /// ends the log: the connection goes on without.
    pub(crate) fn begin(
        &self,
        now: Time,
        connection: &mut Connection,
        report: impl Fn(&Path, &io::Error) + Send + 'static,
    ) {
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
            Ok(file) => connection.set_qlog(
                now,
                Box::new(LogFile {
                    path,
                    file: Some(BufWriter::new(file)),
                    report,
                }),
            ),
            Err(error) => report(&path, &error),
        }
    }
}

/// A log that says when it cannot be written, and is then given up.
struct LogFile<R: Fn(&Path, &io::Error)> {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    report: R,
}

impl<R: Fn(&Path, &io::Error)> LogFile<R> {
    fn attempt(
        &mut self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if let Err(error) = write(file) {
            (self.report)(&self.path, &error);
            // Not by dropping the writer, which would try once more.
            let _ = self.file.take().map(BufWriter::into_parts);
        }
        Ok(())
    }
}

impl<R: Fn(&Path, &io::Error)> io::Write for LogFile<R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|file| file.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(BufWriter::flush)
    }
}

impl<R: Fn(&Path, &io::Error)> Drop for LogFile<R> {
    fn drop(&mut self) {
        let _ = io::Write::flush(self);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::cell::Cell;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_full_disk_is_reported_once() {
        let reports = Cell::new(0);
        let path = PathBuf::from("/dev/full");
        let mut log = LogFile {
            file: Some(BufWriter::new(File::create(&path).unwrap())),
            path,
            report: |path: &Path, error: &io::Error| {
                assert_eq!(path, Path::new("/dev/full"));
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                reports.set(reports.get() + 1);
            },
        };
        log.write_all(b"short").unwrap();
        assert_eq!(reports.get(), 0, "it lies in the buffer");
        for _ in 0..3 {
            log.write_all(&[b'x'; 100_000]).unwrap();
        }
        drop(log);
        assert_eq!(reports.get(), 1);
    }
}
