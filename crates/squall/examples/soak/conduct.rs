//! Creates the two networks, starts both processes, injects faults, and judges the reports.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::Asked;
use crate::content::Random;
use crate::faults::{FAULTS, Fault, SERVER};
use crate::judge::{Sample, growth};

/// The tools that produce the faults.
const TOOLS: [&str; 7] = ["unshare", "nsenter", "ip", "tc", "nft", "prlimit", "sh"];
/// Failures that are printed; further ones are only counted.
const SHOWN: usize = 50;
/// How long a process may be silent while nothing is wrong.
const SILENCE: Duration = Duration::from_secs(20);
/// How long all connections may take to end: the idle timeout and a margin.
const DRAIN: Duration = Duration::from_secs(40);

/// Runs this program again in its own network namespace.
pub(crate) fn enter(arguments: &[String]) -> ExitCode {
    for tool in TOOLS {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$0\" >/dev/null", tool])
            .status();
        if !found.is_ok_and(|status| status.success()) {
            eprintln!("the soak needs {tool} (Debian: iproute2, nftables, util-linux)");
            return ExitCode::from(2);
        }
    }
    let flags: [&[&str]; 2] = [&["--net"], &["--net", "--user", "--map-root-user"]];
    let works = |flags: &&[&str]| {
        let made = Command::new("unshare").args(*flags).arg("true").status();
        made.is_ok_and(|status| status.success())
    };
    let (Some(flags), Ok(own)) = (flags.into_iter().find(works), std::env::current_exe()) else {
        eprintln!("the soak needs network namespaces, and unshare(1) cannot make one here");
        return ExitCode::from(2);
    };
    let error = Command::new("unshare")
        .args(flags)
        .arg(own)
        .arg("conduct")
        .args(arguments)
        .exec();
    eprintln!("unshare: {error}");
    ExitCode::from(2)
}

/// A line from a process, or its end.
enum Word {
    Line(&'static str, String),
    End(&'static str),
}

/// The server or the client. Killed when dropped; if the conductor dies, its standard input ends.
struct Process {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    samples: Vec<Sample>,
    heard: Instant,
    ended: bool,
}

impl Process {
    fn start(name: &'static str, mut command: Command, words: &Sender<Word>) -> Option<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let (input, output) = (child.stdin.take()?, child.stdout.take()?);
        let words = words.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = words.send(Word::Line(name, line));
            }
            let _ = words.send(Word::End(name));
        });
        Some(Self {
            name,
            child,
            input,
            samples: Vec::new(),
            heard: Instant::now(),
            ended: false,
        })
    }

    fn say(&mut self, what: &str) {
        // A process that is gone is noticed by its end of output.
        let _ = writeln!(self.input, "{what}").and_then(|()| self.input.flush());
    }

    fn descriptors(&self) -> u64 {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        folder.map_or(0, |entries| entries.count() as u64)
    }

    fn rss_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is in effect.
enum Weather {
    /// A fault, until this time.
    Fault(&'static Fault, Instant),
    /// Its after-effects, until this time.
    Recovery(Instant),
    /// Nothing, until this time.
    Calm(Instant),
}

struct Conductor {
    began: Instant,
    random: Random,
    server: Process,
    client: Process,
    /// The last octet of the client's address.
    address: u8,
    /// Faults that come before any is repeated.
    deck: Vec<&'static Fault>,
    counts: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
    errors: Vec<String>,
    /// Connections that the client still had when it ended.
    left: Option<u64>,
}

pub(crate) fn run(asked: Asked) -> ExitCode {
    let (say, words) = channel();
    let Some(mut conductor) = Conductor::start(asked, &say, &words) else {
        eprintln!("the soak cannot be set up");
        return ExitCode::from(2);
    };
    conductor.conduct(Duration::from_secs_f64(asked.minutes * 60.0), &words);
    conductor.drain(&words);
    conductor.report()
}

/// Runs a shell script in the client's network; returns its output.
fn shell(script: &str, variables: &[(&str, String)]) -> Result<String, String> {
    let script = format!("set -e\nfar() {{ nsenter -t $SERVER -n \"$@\"; }}\n{script}");
    let run = Command::new("sh")
        .args(["-c", &script])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .map_err(|error| error.to_string())?;
    if run.status.success() {
        Ok(String::from_utf8_lossy(&run.stdout).into_owned())
    } else {
        let text = String::from_utf8_lossy(&run.stderr);
        Err(text.lines().next().unwrap_or("failed").to_owned())
    }
}

impl Conductor {
    fn start(asked: Asked, say: &Sender<Word>, words: &Receiver<Word>) -> Option<Self> {
        let own = std::env::current_exe().ok()?;
        let mut command = Command::new("unshare");
        command.arg("--net").arg(&own).arg("server");
        let server = Process::start("server", command, say)?;
        // The first word comes from inside the new network.
        let certificate = words.iter().find_map(|word| match word {
            Word::Line(_, line) => line.strip_prefix("certificate ").map(str::to_owned),
            Word::End(_) => Some(String::new()),
        })?;
        let links = "ip link set lo up; far ip link set lo up
            ip link add c0 type veth peer name s0 netns $SERVER
            far ip addr add 10.9.0.1/24 dev s0; far ip link set s0 up
            ip addr add 10.9.0.2/32 dev c0; ip link set c0 up; ip route add 10.9.0.1/32 dev c0 src 10.9.0.2";
        if let Err(why) = shell(links, &[("SERVER", server.child.id().to_string())]) {
            eprintln!("the network: {why}");
            return None;
        }
        let mut command = Command::new(own);
        command.args(["client", &certificate, &asked.seed.to_string()]);
        let client = Process::start("client", command, say)?;
        Some(Self {
            began: Instant::now(),
            random: Random(asked.seed),
            server,
            client,
            address: 2,
            deck: Vec::new(),
            counts: BTreeMap::new(),
            failures: Vec::new(),
            errors: Vec::new(),
            left: None,
        })
    }

    fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    fn fail(&mut self, what: String) {
        println!("{:>6} s  FAILURE: {what}", self.seconds());
        self.failures.push(what);
    }

    fn say(&mut self, what: &str) {
        self.server.say(what);
        self.client.say(what);
    }

    fn hear(&mut self, word: Word) {
        match word {
            Word::Line(name, line) => self.line(name, &line),
            Word::End(name) => {
                self.process(name).ended = true;
            }
        }
    }

    fn process(&mut self, name: &str) -> &mut Process {
        match name {
            "server" => &mut self.server,
            _ => &mut self.client,
        }
    }

    fn line(&mut self, name: &'static str, line: &str) {
        let at = self.seconds();
        let process = self.process(name);
        process.heard = Instant::now();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "sample" => {
                let pairs = rest
                    .split_whitespace()
                    .filter_map(|pair| pair.split_once('='));
                let counts = pairs.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
                process.samples.push(Sample {
                    at,
                    rss_kb: process.rss_kb(),
                    descriptors: process.descriptors(),
                    counts: counts.collect(),
                });
            }
            "error" => self.errors.push(format!("{name}: {rest}")),
            "left" => {
                let left = rest.strip_prefix("connections=");
                self.left = left.and_then(|left| left.parse().ok());
            }
            "fail" => self.fail(format!("{name}: {rest}")),
            _ => self.fail(format!("{name} says {line:?}")),
        }
    }

    /// Begins the next fault.
    fn begin(&mut self) -> Weather {
        if self.deck.is_empty() {
            self.deck = FAULTS.iter().collect();
        }
        let drawn = self.random.within(0, self.deck.len() as u64) as usize;
        let fault = self.deck.swap_remove(drawn);
        let lasts = Duration::from_millis(self.random.within(fault.ms.start, fault.ms.end));
        println!(
            "{:>6} s  {}, {:.1} s",
            self.seconds(),
            fault.name,
            lasts.as_secs_f64()
        );
        *self.counts.entry(fault.name).or_default() += 1;
        self.say("fault");
        self.script(fault, fault.begin);
        Weather::Fault(fault, Instant::now() + lasts)
    }

    fn end(&mut self, fault: &'static Fault) {
        self.script(fault, fault.end);
        if fault.moves {
            self.address = next(self.address);
        }
    }

    fn script(&mut self, fault: &Fault, script: &str) {
        if script.is_empty() {
            return;
        }
        let ip = |last: u8| format!("10.9.0.{last}");
        let (old, new) = match fault.moves {
            true => (ip(self.address), ip(next(self.address))),
            false => (ip(self.address), ip(self.address)),
        };
        let route = format!("ip route replace {SERVER}/32 dev c0 src {new}");
        let variables = [
            ("SERVER", self.server.child.id().to_string()),
            ("CLIENT", self.client.child.id().to_string()),
            ("OLD", old),
            ("NEW", new),
            ("ROUTE", route),
        ];
        match shell(script, &variables) {
            Ok(said) => said.lines().for_each(|line| self.client.say(line)),
            Err(why) => self.fail(format!("the fault itself, {}: {why}", fault.name)),
        }
    }

    /// Alternates faults and calms until the time is up.
    fn conduct(&mut self, time: Duration, words: &Receiver<Word>) {
        let interval = (time / 60).clamp(Duration::from_secs(5), Duration::from_secs(60));
        let mut lines = 0;
        self.say("calm");
        let mut weather = Weather::Calm(Instant::now() + Duration::from_secs(12));
        while self.began.elapsed() < time {
            let now = Instant::now();
            weather = match weather {
                Weather::Fault(fault, until) if now >= until => {
                    self.end(fault);
                    // Probe timeouts have doubled meanwhile, and an end that has lost its
                    // connection learns of it only by a timeout.
                    let lasted = Duration::from_millis(fault.ms.end);
                    Weather::Recovery(now + lasted + Duration::from_secs(3))
                }
                Weather::Recovery(until) if now >= until => {
                    self.say("calm");
                    (self.server.heard, self.client.heard) = (now, now);
                    Weather::Calm(now + Duration::from_millis(self.random.within(4_000, 14_000)))
                }
                Weather::Calm(until) if now >= until => self.begin(),
                other => other,
            };
            match words.recv_timeout(Duration::from_millis(50)) {
                Ok(word) => self.hear(word),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if matches!(weather, Weather::Calm(_)) {
                for name in ["server", "client"] {
                    if self.process(name).heard.elapsed() > SILENCE {
                        self.process(name).heard = Instant::now();
                        self.fail(format!("{name} is silent, without a fault"));
                    }
                }
            }
            if self.server.ended || self.client.ended {
                self.fail("a process has ended".to_owned());
                break;
            }
            if self.began.elapsed() > interval * lines {
                lines += 1;
                self.progress();
            }
        }
        if let Weather::Fault(fault, _) = weather {
            self.end(fault);
        }
    }

    fn progress(&self) {
        if let (Some(server), Some(client)) =
            (self.server.samples.last(), self.client.samples.last())
        {
            println!(
                "{:>6} s  server {}  client {}  {:>6} MB {:>7} requests {:>7} datagrams",
                self.seconds(),
                server.line(),
                client.line(),
                (client.count("bytes") + server.count("bytes")) / 1_000_000,
                server.count("requests"),
                server.count("datagrams"),
            );
        }
    }

    /// Ends the client; then the server must end up with no connections.
    fn drain(&mut self, words: &Receiver<Word>) {
        let first = self
            .server
            .samples
            .iter()
            .find(|sample| sample.at >= 1)
            .cloned();
        self.say("fault");
        self.client.say("stop");
        let began = Instant::now();
        let mut alone = false;
        while began.elapsed() < DRAIN && !(self.client.ended && alone) && !self.server.ended {
            if let Ok(word) = words.recv_timeout(Duration::from_millis(100)) {
                self.hear(word);
            }
            let last = self.server.samples.last();
            alone = last.is_some_and(|last| last.count("connections") == 0);
        }
        if !self.client.ended {
            self.fail("the client does not end".to_owned());
        }
        if !alone && !self.server.ended {
            let left = self
                .server
                .samples
                .last()
                .map_or(0, |last| last.count("connections"));
            self.fail(format!("the server still has {left} connections"));
        }
        if let Some(left @ 1..) = self.left {
            self.fail(format!("the client still has {left} connections"));
        }
        let descriptors = self.server.descriptors();
        if let Some(first) = first
            && descriptors > first.descriptors + 2
        {
            let before = first.descriptors;
            self.fail(format!(
                "the server has {descriptors} descriptors, at first {before}"
            ));
        }
        self.server.say("stop");
        let began = Instant::now();
        while !self.server.ended && began.elapsed() < DRAIN {
            if let Ok(word) = words.recv_timeout(Duration::from_millis(100)) {
                self.hear(word);
            }
        }
        for process in [&mut self.server, &mut self.client] {
            let status = if process.ended {
                process.child.wait().ok()
            } else {
                None
            };
            if !status.is_some_and(|status| status.success()) {
                let (name, status) = (process.name, status);
                self.failures.push(format!("{name} ended with {status:?}"));
            }
        }
    }

    fn report(&mut self) -> ExitCode {
        println!("\nfaults:");
        for (name, count) in &self.counts {
            println!("{count:>8}  {name}");
        }
        println!("errors by kind:");
        for error in &self.errors {
            println!("    {error}");
        }
        for process in [&self.server, &self.client] {
            let last = process.samples.last().cloned().unwrap_or_default();
            println!("{}: {:?}", process.name, last.counts);
            if last.count("worker_ends") > 0 {
                let ends = last.count("worker_ends");
                self.failures
                    .push(format!("{}: {ends} workers ended", process.name));
            }
            let (lines, grown) = growth(process.name, &process.samples);
            lines.iter().for_each(|line| println!("{line}"));
            self.failures.extend(grown);
        }
        let failures = self.failures.len();
        if failures == 0 {
            println!("the soak has passed, after {} s", self.seconds());
            return ExitCode::SUCCESS;
        }
        println!("FAILED, {failures} times:");
        for failure in self.failures.iter().take(SHOWN) {
            println!("    {failure}");
        }
        ExitCode::FAILURE
    }
}

/// 2 to 250, then around again.
fn next(address: u8) -> u8 {
    if address >= 250 { 2 } else { address + 1 }
}
