//! The resources that processes use, as the system reports them (proc(5)).

use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use squall_yard::sys;

const INTERVAL: Duration = Duration::from_millis(100);
/// A window with fewer samples says nothing about growth.
const LEAST: usize = 40;

/// What a process used at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) resident: u64,
    pub(super) descriptors: u64,
    pub(super) cpu: Duration,
}

/// A process while it ran.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) name: &'static str,
    id: u32,
    pub(super) samples: Vec<Sample>,
}

/// Samples processes until stopped.
pub(super) struct Watch {
    processes: Arc<Mutex<Vec<Process>>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub(super) fn start() -> Self {
        let processes = Arc::<Mutex<Vec<Process>>>::default();
        let over = Arc::<AtomicBool>::default();
        let (looked_at, ended) = (Arc::clone(&processes), Arc::clone(&over));
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for process in &mut *looked_at.lock().expect("no panic") {
                    process.samples.extend(sample(process.id));
                }
                thread::sleep(INTERVAL);
            }
        });
        Self {
            processes,
            over,
            thread,
        }
    }

    pub(super) fn add(&self, name: &'static str, id: u32) {
        let process = Process {
            name,
            id,
            samples: Vec::new(),
        };
        self.processes.lock().expect("no panic").push(process);
    }

    pub(super) fn stop(self) -> Vec<Process> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
        std::mem::take(&mut self.processes.lock().expect("no panic"))
    }
}

/// `None` when it has ended.
pub(super) fn sample(id: u32) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    // A zombie process no longer has memory.
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Sample {
        at: Instant::now(),
        resident: kilobytes * 1024,
        descriptors: fs::read_dir(format!("/proc/{id}/fd")).ok()?.count() as u64,
        cpu: sys::process_cpu_of(i32::try_from(id).ok()?)?,
    })
}

impl Process {
    pub(super) fn most(&self, what: impl Fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(what).max().unwrap_or_default()
    }

    /// Share of one core over its whole lifetime.
    pub(super) fn cores(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else {
            return 0.0;
        };
        let time = (last.at - first.at).as_secs_f64().max(f64::MIN_POSITIVE);
        (last.cpu.saturating_sub(first.cpu)).as_secs_f64() / time
    }

    /// The medians of the first and of the second half of a window; `None` if it is too short.
    pub(super) fn halves(
        &self,
        window: &Range<Instant>,
        what: impl Fn(&Sample) -> u64,
    ) -> Option<[u64; 2]> {
        let samples = self
            .samples
            .iter()
            .filter(|sample| window.contains(&sample.at));
        let samples: Vec<u64> = samples.map(what).collect();
        if samples.len() < LEAST {
            return None;
        }
        let (first, second) = samples.split_at(samples.len() / 2);
        Some([first, second].map(|half| {
            let mut half = half.to_vec();
            half.sort_unstable();
            half[half.len() / 2]
        }))
    }
}

/// Busy time and total time of all cores since the machine started, in the machine's units.
pub(super) fn machine() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let times = stat.lines().next()?.split_whitespace().skip(1).take(8);
    let times: Vec<u64> = times.map(str::parse).collect::<Result<_, _>>().ok()?;
    let all = times.iter().sum();
    // Idle, and idle while a disk works.
    Some((all - times.get(3)? - times.get(4)?, all))
}

/// Datagrams that found no room in a receive buffer since this machine started (IPv4).
pub(super) fn overflows() -> Option<u64> {
    let snmp = fs::read_to_string("/proc/net/snmp").ok()?;
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, values) = (
        lines.next()?.split_whitespace(),
        lines.next()?.split_whitespace(),
    );
    let (_, value) = names
        .zip(values)
        .find(|(name, _)| *name == "RcvbufErrors")?;
    value.parse().ok()
}
