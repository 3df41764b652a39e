//! Peers in Python: child processes that tests control line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::setup::Identity;

/// How long a peer may take for its next line.
const PATIENCE: Duration = Duration::from_secs(60);

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Python in which the peers are installed.
///
/// # Panics
/// It is missing, or was set up for other versions: a test that cannot run has failed.
fn python() -> PathBuf {
    let wanted =
        std::fs::read(folder().join("aioquic/requirements.txt")).expect("requirements.txt");
    let installed = std::fs::read(folder().join(".venv/requirements.txt"));
    assert!(
        installed.is_ok_and(|installed| installed == wanted),
        "the peers in Python are not installed, or not in the versions wanted: run interop/aioquic/setup"
    );
    folder().join(".venv/bin/python")
}

/// The child process. When dropped, also by a failing test, it is killed by its id; if this process
/// is killed, it ends by itself because its command pipe breaks.
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
    /// Lines that arrived while waiting for another one.
    unread: Vec<String>,
}

impl Peer {
    /// Starts a program from this folder.
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(python())
            .arg(folder().join(program))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the peer starts");
        let commands = child.stdin.take().expect("the pipe for commands");
        let output = BufReader::new(child.stdout.take().expect("the pipe for lines"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            commands,
            lines,
            unread: Vec::new(),
        }
    }

    pub(crate) fn command(&mut self, line: &str) {
        writeln!(self.commands, "{line}").expect("the peer takes commands");
    }

    /// The rest of the next line that begins with `word`.
    pub(crate) fn line(&mut self, word: &str) -> String {
        let rest = |line: &str| {
            line.strip_prefix(word)
                .filter(|rest| rest.is_empty() || rest.starts_with(' '))
                .map(|rest| rest.trim().into())
        };
        let known = self.unread.iter().position(|line| rest(line).is_some());
        if let Some(line) = known.map(|at| self.unread.remove(at)) {
            return rest(&line).expect("found by its word");
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("the peer did not say {word:?}; it said {:?}", self.unread);
            };
            match rest(&line) {
                Some(rest) => return rest,
                None => self.unread.push(line),
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only for a child that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files for the peer, in their own folder, which is removed on drop.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(identity: &Identity) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("certificate.pem"), &identity.certificate_pem).expect("a file");
        std::fs::write(folder.join("key.pem"), &identity.key_pem).expect("a file");
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0
            .join(name)
            .to_str()
            .expect("a path in UTF-8")
            .to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // A folder left behind in the target folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
