//! Where qlogs go, and what happens when one cannot be written.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use squall_core::{Connection, Time};
use squall_wire::Side;

use super::sink::{Guarded, QlogConnection, QlogSink};

/// Where the qlogs of an endpoint go.
#[derive(Clone, Debug)]
pub(crate) enum Qlogs {
    /// Files in this directory.
    Folder(PathBuf),
    /// Sinks of the application.
    Sink(QlogSink),
}

impl Qlogs {
    /// The application's sinks, or else files in a directory.
    ///
    /// # Errors
    /// The directory cannot be created, or is not a directory.
    pub(crate) fn wanted(
        sink: Option<&QlogSink>,
        folder: Option<&Path>,
    ) -> io::Result<Option<Self>> {
        if let Some(sink) = sink {
            return Ok(Some(Self::Sink(sink.clone())));
        }
        folder.map(Self::open).transpose()
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
        Ok(Self::Folder(path.to_owned()))
    }

    /// Logs a connection that was just made, if it is to be logged. `report` is called at most
    /// once, with the error that ends the log: the connection goes on without.
    pub(crate) fn begin(
        &self,
        now: Time,
        connection: &mut Connection,
        report: impl Fn(&str, &io::Error) + Send + 'static,
    ) {
        let id = connection.original_destination_id();
        let mut name = String::new();
        for byte in id.as_slice() {
            let _ = write!(name, "{byte:02x}");
        }
        let side = match connection.side() {
            Side::Client => "client",
            Side::Server => "server",
        };
        // Both ends may write into one folder.
        let mut name = format!("{name}_{side}.sqlog");
        let opened = match self {
            Self::Folder(folder) => {
                let path = folder.join(&name);
                name = path.display().to_string();
                File::create(&path).map(|file| Some(Target::File(BufWriter::new(file))))
            }
            Self::Sink(sink) => {
                let about = QlogConnection {
                    original_destination_id: id,
                    side: connection.side(),
                    remote_address: connection.path().remote,
                };
                (sink.choose(&about)).map(|sink| sink.map(Target::Sink))
            }
        };
        match opened {
            Ok(None) => {}
            Ok(target) => connection.set_qlog(
                now,
                Box::new(Log {
                    name,
                    target,
                    report,
                }),
            ),
            Err(error) => report(&name, &error),
        }
    }
}

/// What a log is written to.
enum Target {
    File(BufWriter<File>),
    Sink(Guarded),
}

impl Target {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::File(file) => file,
            Self::Sink(sink) => sink,
        }
    }
}

/// A log that reports when it cannot be written, and is then given up.
struct Log<R: Fn(&str, &io::Error)> {
    name: String,
    target: Option<Target>,
    report: R,
}

impl<R: Fn(&str, &io::Error)> Log<R> {
    fn attempt(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let Some(target) = &mut self.target else {
            return Ok(());
        };
        if let Err(error) = write(target.writer()) {
            (self.report)(&self.name, &error);
            // A buffered writer would try once more when dropped.
            if let Some(Target::File(file)) = self.target.take() {
                let _ = file.into_parts();
            }
        }
        Ok(())
    }
}

impl<R: Fn(&str, &io::Error)> Write for Log<R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|target| target.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(|target| target.flush())
    }
}

impl<R: Fn(&str, &io::Error)> Drop for Log<R> {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_full_disk_is_reported_once() {
        let reports = Cell::new(0);
        let path = "/dev/full";
        let mut log = Log {
            target: Some(Target::File(BufWriter::new(File::create(path).unwrap()))),
            name: path.to_owned(),
            report: |path: &str, error: &io::Error| {
                assert_eq!(path, "/dev/full");
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                reports.set(reports.get() + 1);
            },
        };
        log.write_all(b"short").unwrap();
        assert_eq!(reports.get(), 0, "the record is still buffered");
        for _ in 0..3 {
            log.write_all(&[b'x'; 100_000]).unwrap();
        }
        drop(log);
        assert_eq!(reports.get(), 1);
    }
}
