//! The two processes of a measurement, from both sides: the parent's handle of a child, and the
//! child's main function.

use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use squall_yard::error::{Failure, Result, context};
use squall_yard::latency::Histogram;
use squall_yard::sys;

use super::job::{Job, Message, Sample, Sent};
use super::network::Namespace;

/// How glibc's allocator works in all ends: it keeps freed memory. By default it returns the top of
/// the heap to the system again and again, or never, depending on what happens to lie above it: TLS
/// over TCP then takes up to 1.6 times as long, TCP 2.3 times and quiche 1.4 times, in page faults.
const MALLOC: [(&str, &str); 2] = [
    ("MALLOC_TRIM_THRESHOLD_", "268435456"),
    ("MALLOC_MMAP_THRESHOLD_", "4194304"),
];

/// The hidden subcommand that makes this program one end of a measurement.
pub(crate) const SUBCOMMAND: &str = "transport-end";

/// How long a child may take to answer. A case of `interop` takes a fifth of a second, and ten
/// times that next to four busy loops on two cores; CI's machines may be busier.
const PATIENCE: Duration = Duration::from_secs(120);

/// A child that is killed when it is dropped.
pub(super) struct End {
    who: String,
    child: Child,
    input: ChildStdin,
    messages: Receiver<Message>,
}

impl End {
    /// Starts this program again with this job, in the given network namespace or in this one.
    pub(super) fn start(job: &Job, namespace: Option<&Namespace>) -> Result<Self> {
        let who = format!("{} {:?}", job.contender.name(), job.role);
        let program = std::env::current_exe().map_err(context("this program's own path"))?;
        let mut command = match namespace {
            Some(namespace) => namespace.command(&program),
            None => Command::new(program),
        };
        let mut child = command
            .arg(SUBCOMMAND)
            .envs(MALLOC)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(context("cannot start this program again"))?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("a child without pipes"));
        };
        let (sender, messages) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output)
                .lines()
                .map_while(std::io::Result::ok)
            {
                let message = serde_json::from_str(&line)
                    .unwrap_or_else(|error| Message::Failed(format!("{line:?}: {error}")));
                // Nobody listens to a child being dropped.
                let _ = sender.send(message);
            }
        });
        let line = serde_json::to_string(job).map_err(context("the job as JSON"))?;
        writeln!(input, "{line}").map_err(context(&who))?;
        Ok(Self {
            who,
            child,
            input,
            messages,
        })
    }

    /// Its next message.
    fn next(&self) -> Result<Message> {
        match self.messages.recv_timeout(PATIENCE) {
            Ok(Message::Failed(why)) => Err(Failure::new(format!("{}: {why}", self.who))),
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => Err(Failure::new(format!(
                "{}: no message for {} s",
                self.who,
                PATIENCE.as_secs()
            ))),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::new(format!("{}: ended", self.who)))
            }
        }
    }

    /// The child's process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a server, and returns its address.
    pub(super) fn listening(&self) -> Result<SocketAddr> {
        match self.next()? {
            Message::Listening(address) => Ok(address),
            other => Err(Failure::new(format!("{}: said {other:?}", self.who))),
        }
    }

    /// Waits until a client's connections are established.
    pub(super) fn working(&self) -> Result<()> {
        match self.next()? {
            Message::Working => Ok(()),
            other => Err(Failure::new(format!("{}: said {other:?}", self.who))),
        }
    }

    /// Requests its counters.
    pub(super) fn ask(&mut self) -> Result<()> {
        writeln!(self.input, "sample").map_err(context(&self.who))
    }

    /// Its counters, requested before.
    pub(super) fn sample(&self) -> Result<Sample> {
        match self.next()? {
            Message::Sample(sample) | Message::Done(sample) => Ok(sample),
            other => Err(Failure::new(format!("{}: said {other:?}", self.who))),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A child that has already ended is not a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an end has done up to now.
#[derive(Default)]
pub(super) struct Count {
    bytes: AtomicU64,
    units: AtomicU64,
    full: AtomicU64,
    /// Since the last sample.
    latency: Mutex<Histogram>,
    /// Reads a server's counters.
    sent: OnceLock<Box<dyn Fn() -> Sent + Send + Sync>>,
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Count")
    }
}

impl Count {
    /// More bytes of an answer have arrived.
    pub(super) fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// This many more requests are answered, or handshakes done.
    pub(super) fn add_units(&self, units: u64) {
        self.units.fetch_add(units, Ordering::Relaxed);
    }

    /// One more certificate was verified: the handshake was a full one.
    pub(super) fn add_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    /// A request took this long.
    pub(super) fn add_latency(&self, time: Duration) {
        self.latency().record(time);
    }

    /// From now on, samples include this server's counters.
    pub(super) fn set_sent(&self, sent: impl Fn() -> Sent + Send + Sync + 'static) {
        // There is one server in a process.
        let _ = self.sent.set(Box::new(sent));
    }

    fn latency(&self) -> MutexGuard<'_, Histogram> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sample(&self) -> Sample {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Sample {
            at: START.elapsed().as_secs_f64(),
            cpu: own_cpu().as_secs_f64(),
            bytes: self.bytes.load(Ordering::Relaxed),
            units: self.units.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
            sent: self.sent.get().map(|sent| sent()),
            latency: std::mem::take(&mut *self.latency())
                .percentiles()
                .map(|one| one.all()),
        }
    }
}

fn own_cpu() -> Duration {
    i32::try_from(std::process::id())
        .ok()
        .and_then(sys::process_cpu_of)
        .unwrap_or_default()
}

/// Sends a message to the parent.
pub(super) fn say(message: &Message) {
    let line = serde_json::to_string(message).unwrap_or_default();
    // One write, so that two threads' lines never mix. Errors mean that the parent is gone.
    let _ = std::io::stdout()
        .lock()
        .write_all(format!("{line}\n").as_bytes());
}

/// The child's main function: reads its job, answers questions on a thread of its own, and works.
pub(super) fn run(work: impl FnOnce(&Job, &Arc<Count>) -> Result<()>) -> Result<()> {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(context("reading the job"))?;
    let job: Job = serde_json::from_str(&line).map_err(context("not a job"))?;
    if let Some(core) = job.core {
        // Threads inherit it.
        sys::pin(core).map_err(context("cannot pin the process"))?;
    }
    let count = Arc::new(Count::default());
    let asked = Arc::clone(&count);
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
            if line == "sample" {
                say(&Message::Sample(asked.sample()));
            }
        }
        // The parent is gone.
        std::process::exit(0);
    });
    match work(&job, &count) {
        Ok(()) => say(&Message::Done(count.sample())),
        Err(error) => say(&Message::Failed(error.to_string())),
    }
    // The parent ends this process, through the thread above.
    loop {
        thread::park();
    }
}
