//! The access log: one line per request, written by a separate thread.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde::Serialize;

/// Lines that wait for a slow disk before further ones are dropped.
const WAITING: usize = 8_192;

/// The format of a line.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The Common Log Format of Apache and nginx
    Common,
    /// One JSON object a line
    Json,
}

/// A completed request.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// When it arrived.
    pub(crate) at: SystemTime,
    pub(crate) remote: IpAddr,
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) uri: &'a str,
    /// As in request lines.
    pub(crate) version: &'static str,
    /// Zero if it was cancelled before there was one.
    pub(crate) status: u16,
    /// Of the response's body.
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    pub(crate) referer: &'a str,
    pub(crate) user_agent: &'a str,
}

impl Line<'_> {
    /// The line, including its end.
    fn text(&self, format: Format) -> String {
        match format {
            Format::Common => self.common(),
            Format::Json => self.json(),
        }
    }

    fn common(&self) -> String {
        let mut text = format!("{} - - [{}] \"", self.remote.to_canonical(), date(self.at));
        for (field, end) in [(self.method, ' '), (self.uri, ' '), (self.version, '"')] {
            escape(field, &mut text);
            text.push(end);
        }
        // Writing to a string does not fail.
        let _ = writeln!(text, " {:03} {}", self.status, self.bytes);
        text
    }

    fn json(&self) -> String {
        #[derive(Serialize)]
        struct Object<'a> {
            /// Seconds since 1970.
            ts: f64,
            remote: IpAddr,
            protocol: &'a str,
            method: &'a str,
            host: &'a str,
            uri: &'a str,
            status: u16,
            bytes: u64,
            duration_ms: f64,
            referer: &'a str,
            user_agent: &'a str,
        }
        let since = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let object = Object {
            ts: since.as_millis() as f64 / 1e3,
            remote: self.remote.to_canonical(),
            protocol: self.version,
            method: self.method,
            host: self.host,
            uri: self.uri,
            status: self.status,
            bytes: self.bytes,
            duration_ms: self.took.as_micros() as f64 / 1e3,
            referer: self.referer,
            user_agent: self.user_agent,
        };
        // Strings and numbers always serialize.
        let mut text = serde_json::to_string(&object).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// `10/Oct/2000:13:55:36 +0000`, from `Tue, 10 Oct 2000 13:55:36 GMT`.
fn date(at: SystemTime) -> String {
    let date = httpdate::fmt_http_date(at);
    let mut words = date.split(' ').skip(1);
    let mut next = || words.next().unwrap_or_default();
    format!("{}/{}/{}:{} +0000", next(), next(), next(), next())
}

/// Appends text that cannot end a quoted string or a line; bytes become `\xHH`, as in nginx.
fn escape(text: &str, line: &mut String) {
    for character in text.chars() {
        if matches!(character, '"' | '\\') || character.is_control() {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                let _ = write!(line, "\\x{byte:02X}");
            }
        } else {
            line.push(character);
        }
    }
}

enum Message {
    Line(String),
    /// The file was renamed, for example by logrotate.
    Reopen,
}

/// Where requests are logged.
#[derive(Debug)]
pub(crate) struct Log {
    format: Format,
    /// Taken when the log is closed.
    writer: Option<(SyncSender<Message>, JoinHandle<()>)>,
}

impl Log {
    /// Starts writing to the end of a file, or to standard output.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn start(format: Format, file: Option<&Path>) -> io::Result<Self> {
        let mut output = Output {
            path: file.map(Path::to_owned),
            writer: BufWriter::new(open(file)?),
            complained: false,
        };
        let (sender, lines) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("access log".to_owned())
            .spawn(move || output.run(&lines))?;
        Ok(Self {
            format,
            writer: Some((sender, thread)),
        })
    }

    /// Logs a request. `false`: the line is dropped because the file is too slow.
    pub(crate) fn write(&self, line: &Line<'_>) -> bool {
        let text = line.text(self.format);
        (self.writer.as_ref())
            .is_some_and(|(sender, _)| sender.try_send(Message::Line(text)).is_ok())
    }

    /// Reopens the file by its name.
    pub(crate) fn reopen(&self) {
        if let Some((sender, _)) = &self.writer {
            // Without its thread, there is nothing to reopen.
            let _ = sender.send(Message::Reopen);
        }
    }
}

impl Drop for Log {
    /// Waits until all lines are written.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

type Sink = Box<dyn Write + Send>;

fn open(path: Option<&Path>) -> io::Result<Sink> {
    Ok(match path {
        Some(path) => Box::new(append(path)?),
        None => Box::new(io::stdout()),
    })
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

struct Output {
    path: Option<PathBuf>,
    writer: BufWriter<Sink>,
    complained: bool,
}

impl Output {
    /// Writes lines until all senders are gone. Flushes when no line is waiting.
    fn run(&mut self, lines: &Receiver<Message>) {
        while let Ok(mut message) = lines.recv() {
            let ended = loop {
                self.take(&message);
                match lines.try_recv() {
                    Ok(next) => message = next,
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            let flushed = self.writer.flush();
            self.complain(flushed);
            if ended {
                return;
            }
        }
    }

    fn take(&mut self, message: &Message) {
        let result = match message {
            Message::Line(line) => self.writer.write_all(line.as_bytes()),
            Message::Reopen => self.writer.flush().and_then(|()| {
                self.writer = BufWriter::new(open(self.path.as_deref())?);
                self.complained = false;
                Ok(())
            }),
        };
        self.complain(result);
    }

    /// Reports a full disk once, not for each line.
    fn complain(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && !std::mem::replace(&mut self.complained, true)
        {
            eprintln!("squall: cannot write the access log: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::scratch::Scratch;

    fn line<'a>(uri: &'a str, user_agent: &'a str) -> Line<'a> {
        Line {
            at: UNIX_EPOCH + Duration::from_millis(971_186_136_250),
            remote: "::ffff:192.0.2.1".parse().expect("an address"),
            method: "GET",
            host: "example.org",
            uri,
            version: "HTTP/2.0",
            status: 200,
            bytes: 2_326,
            took: Duration::from_micros(1_500),
            referer: "",
            user_agent,
        }
    }

    #[test]
    fn lines_follow_the_common_log_format_or_are_json() {
        assert_eq!(
            line("/a?b", "x").text(Format::Common),
            "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"GET /a?b HTTP/2.0\" 200 2326\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&line("/a?b", "x").text(Format::Json)).expect("JSON");
        assert_eq!(json["ts"], 971_186_136.25);
        assert_eq!(json["remote"], "192.0.2.1");
        assert_eq!(json["duration_ms"], 1.5);
        assert_eq!(json["user_agent"], "x");
    }

    #[test]
    fn a_request_cannot_forge_a_line() {
        let forged = "/\" 200 1\n192.0.2.9 - - \\\u{9b}";
        let common = line(forged, "").text(Format::Common);
        assert_eq!(common.lines().count(), 1);
        assert!(common.contains("GET /\\x22 200 1\\x0A192.0.2.9 - - \\x5C\\xC2\\x9B HTTP/2.0\""));
        let json = line(forged, "a\nb").text(Format::Json);
        assert_eq!(json.lines().count(), 1);
    }

    #[test]
    fn closing_a_log_flushes_it_and_reopening_follows_its_name() {
        let scratch = Scratch::new("log");
        let path = scratch.path().join("access.log");
        let log = Log::start(Format::Common, Some(&path)).expect("a log");
        for _ in 0..100 {
            assert!(log.write(&line("/before", "")));
        }
        // The writer must have seen the earlier lines.
        let old = scratch.path().join("access.log.1");
        std::fs::rename(&path, &old).expect("the log exists");
        log.reopen();
        assert!(log.write(&line("/after", "")));
        drop(log);
        let count = |path, what| {
            let text = std::fs::read_to_string(path).expect("a log");
            text.lines().filter(|line| line.contains(what)).count()
        };
        assert_eq!(count(&old, "/before"), 100);
        assert_eq!(count(&old, "/after"), 0);
        assert_eq!(count(&path, "/after"), 1);
        let unwritable = scratch.path().join("missing/access.log");
        assert!(Log::start(Format::Json, Some(&unwritable)).is_err());
    }
}
