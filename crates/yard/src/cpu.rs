//! CPU time, and the end that it is charged to.
//!
//! An end is one or more OS threads; its CPU is the user and system time on those threads' own
//! scheduler clocks (nanoseconds), plus that of `ksoftirqd` on the core that the end is pinned
//! to. Packets that one end sends over loopback are delivered to the other end's socket in a
//! soft interrupt on the sender's core, before the system call returns; unless the kernel was built
//! with `CONFIG_IRQ_TIME_ACCOUNTING`, that time is part of the sending thread's system time, for
//! TCP and UDP alike, and is counted there. Work that the kernel defers under load is done by
//! `ksoftirqd/N`, so its time is counted as well.

use std::time::{Duration, Instant};

use crate::sys;

/// The cores of the two ends; `None`: not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The server's core.
    pub server: Option<usize>,
    /// The client's core.
    pub client: Option<usize>,
}

impl Cores {
    /// Neither end is pinned, or pinning is not up to us.
    pub const NONE: Self = Self {
        server: None,
        client: None,
    };

    /// The first two cores that this process may use; with fewer than two, nothing is pinned.
    pub fn pick(allowed: &[usize]) -> Self {
        match allowed {
            [server, client, ..] => Self {
                server: Some(*server),
                client: Some(*client),
            },
            _ => Self::NONE,
        }
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.server, self.client) {
            (Some(server), Some(client)) => {
                write!(f, "server on core {server}, client on core {client}")
            }
            _ => f.write_str("not pinned"),
        }
    }
}

/// CPU time of `ksoftirqd` on the cores of the two ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftInterrupts {
    /// On the server's core.
    pub server: Duration,
    /// On the client's core.
    pub client: Duration,
}

/// The `ksoftirqd` threads that can do an end's work.
pub struct Ksoftirqd {
    cores: Cores,
    /// Core and process id.
    threads: Vec<(usize, i32)>,
}

impl Ksoftirqd {
    /// Looks up the threads by name. In a container that hides them, the list is empty.
    pub fn find(cores: Cores) -> Self {
        let threads = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let name = entry.ok()?.file_name();
                let pid: i32 = name.to_str()?.parse().ok()?;
                let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
                let core = comm.trim_end().strip_prefix("ksoftirqd/")?.parse().ok()?;
                Some((core, pid))
            })
            .filter(|&(core, _)| match (cores.server, cores.client) {
                (Some(server), Some(client)) => core == server || core == client,
                _ => true,
            })
            .collect();
        Self { cores, threads }
    }

    /// How many threads are watched.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Their CPU time up to now, by end. A thread on a core that both ends use, or on any core if
    /// the ends are not pinned, is split evenly.
    pub fn now(&self) -> SoftInterrupts {
        let mut sum = SoftInterrupts::default();
        for &(core, pid) in &self.threads {
            let time = sys::process_cpu_of(pid).unwrap_or_default();
            let (server, client) = (self.cores.server, self.cores.client);
            if server != client && server == Some(core) {
                sum.server += time;
            } else if server != client && client == Some(core) {
                sum.client += time;
            } else {
                sum.server += time / 2;
                sum.client += time / 2;
            }
        }
        sum
    }
}

/// Time in which cores were not idle, whatever they were doing.
///
/// On a link that is slower than the stack, much of the kernel's work happens in soft interrupts on
/// an otherwise idle core: a timer releases the next packet from a queue, and the packet is
/// delivered, or its acknowledgement lets TCP send more. No process is charged for that time, and
/// TCP has far more of it than QUIC, whose acknowledgements are read by a process.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    at: Instant,
    /// Since the machine started, summed over the cores.
    idle: Duration,
    cores: u32,
}

impl Busy {
    /// The cores' clocks now; `None` if `/proc/stat` does not have them.
    pub fn now(cores: &[usize]) -> Option<Self> {
        let table = std::fs::read_to_string("/proc/stat").ok()?;
        Some(Self {
            at: Instant::now(),
            idle: idle(&table, cores)?,
            cores: u32::try_from(cores.len()).ok()?,
        })
    }

    /// How many cores were busy on average since an earlier moment; the clocks have steps of 10 ms.
    /// This covers the whole machine, so it says something about two ends only while nothing else
    /// runs.
    pub fn cores_since(&self, earlier: &Self) -> f64 {
        let wall = (self.at - earlier.at).as_secs_f64();
        let idle = self.idle.saturating_sub(earlier.idle).as_secs_f64();
        (f64::from(self.cores) - idle / wall).max(0.0)
    }
}

/// The time in which cores had nothing to do, or were given to another virtual machine: `idle`,
/// `iowait` and `steal` of proc(5), in hundredths of a second (`USER_HZ`).
fn idle(table: &str, cores: &[usize]) -> Option<Duration> {
    let of = |core: &usize| {
        let name = format!("cpu{core}");
        let mut lines = table.lines().map(str::split_ascii_whitespace);
        let counts = lines.find_map(|mut words| (words.next()? == name).then_some(words))?;
        let counts: Vec<u64> = counts.map_while(|word| word.parse().ok()).collect();
        let [
            _user,
            _nice,
            _system,
            idle,
            iowait,
            _irq,
            _softirq,
            steal,
            ..,
        ] = *counts
        else {
            return None;
        };
        Some(Duration::from_millis(10 * (idle + iowait + steal)))
    };
    cores.iter().map(of).sum()
}

impl std::ops::Sub for SoftInterrupts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            server: self.server.saturating_sub(earlier.server),
            client: self.client.saturating_sub(earlier.client),
        }
    }
}

/// The core's clock under load in GHz, measured by a chain of dependent additions; `None` if there
/// is no such chain for this architecture. The time-stamp counter ticks at a different rate.
pub fn core_ghz() -> Option<f64> {
    const ROUNDS: u64 = 100_000;
    let once = || {
        let start = Instant::now();
        let known = sys::addition_chain(ROUNDS);
        known.then(|| start.elapsed().as_secs_f64())
    };
    // The shortest of many: an interrupt can only make one longer, and the first ones raise the
    // core's clock.
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        best = best.min(once()?);
    }
    Some(ROUNDS as f64 * 64.0 / best / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_allowed_cores_are_taken() {
        let two = Cores::pick(&[2, 5, 7]);
        assert_eq!((two.server, two.client), (Some(2), Some(5)));
        let one = Cores::pick(&[3]);
        assert_eq!((one.server, one.client), (None, None));
    }

    #[test]
    fn idle_time_is_summed_over_the_requested_cores() {
        let table = "cpu  9 9 9 9 9 9 9 9 0 0\n\
            cpu0 1 0 2 300 4 0 6 50 0 0\n\
            cpu1 1 0 2 1000 0 0 6 0 0 0\n\
            cpu10 1 0 2 7 0 0 6 0 0 0\n\
            intr 5\n";
        let millis = |cores: &[usize]| idle(table, cores).map(|time| time.as_millis());
        assert_eq!(millis(&[0]), Some(3540));
        assert_eq!(millis(&[1, 10]), Some(10_070));
        assert_eq!((millis(&[2]), idle("cpu0 1 2", &[0])), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_working_core_is_busy() {
        let core = sys::allowed_cores()[0];
        let measured = std::thread::spawn(move || {
            sys::pin(core).expect("the core is allowed");
            let before = Busy::now(&[core]).expect("/proc/stat");
            while before.at.elapsed() < Duration::from_millis(200) {
                std::hint::spin_loop();
            }
            let after = Busy::now(&[core]).expect("/proc/stat");
            after.cores_since(&before)
        });
        let busy = measured.join().expect("no panic");
        // The hypervisor may take the core away, but an idle core would count nothing.
        assert!((0.1..=1.0).contains(&busy), "{busy}");
    }

    #[test]
    fn the_cores_clock_is_plausible() {
        if let Some(ghz) = core_ghz() {
            assert!((0.2..8.0).contains(&ghz), "{ghz}");
        }
    }
}
