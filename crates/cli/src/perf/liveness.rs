//! Whether the server is still there: if its port is closed, that is noticed within two seconds.
//!
//! ```text
//!   datagrams arrive ──────────────────────────────► fine, whatever else is heard
//!   none for a while ──► probe, every 0.25 s: a byte from a connected socket of its own
//!                          refused twice, and still nothing arrives ──► the server is gone
//!   none for 2, 5, 10 … s ──► a line that says so
//! ```
//! A closed port answers with an ICMP message (RFC 1122 §4.1.3.1), which systems report on
//! connected sockets only. Anyone who guesses the ports can forge one, so it is a hint: while
//! anything arrives from the server, it changes nothing (compare RFC 9000 §14.2.1 on messages about
//! sizes). A QUIC server drops the byte, since the fixed bit is not set (RFC 9000 §17.3).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use squall::Endpoint;
use squall_yard::error::Failure;

/// The interval between two checks of the counters.
const TICK: Duration = Duration::from_millis(250);
/// Silence on a connection after which probes are sent.
const PROBE_AFTER: Duration = Duration::from_millis(750);
/// Likewise before there is a connection to lose.
const PROBE_CONNECTING_AFTER: Duration = Duration::from_millis(250);
/// Probes that must be refused. One may have met a server that was just starting.
const REFUSALS: u32 = 2;
/// Seconds of silence after which a line is printed; after the last of them, every 30 s.
const TOLD_AT: [u64; 5] = [2, 5, 10, 20, 30];

// Refused probes must be detected within two seconds of silence.
const _: () = assert!(
    PROBE_AFTER.as_millis() + (REFUSALS as u128 + 2) * TICK.as_millis() < 2_000
        && PROBE_CONNECTING_AFTER.as_millis() <= PROBE_AFTER.as_millis()
);

/// What to do after checking the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Finding {
    /// Send a probe.
    probe: bool,
    /// Print that nothing has arrived for this many seconds.
    tell: Option<u64>,
    /// The server is gone.
    gone: bool,
}

/// The rule, without clocks and sockets.
#[derive(Debug)]
struct Rule {
    probe_after: Duration,
    received: u64,
    /// When something was last received.
    at: Duration,
    refused: u32,
    told: u64,
}

impl Rule {
    fn new(phase: Phase) -> Self {
        Self {
            probe_after: match phase {
                Phase::Connecting => PROBE_CONNECTING_AFTER,
                Phase::Working => PROBE_AFTER,
            },
            received: 0,
            at: Duration::ZERO,
            refused: 0,
            told: 0,
        }
    }

    /// Checks at time `now`: `received` counts all datagrams so far, and `refused` says whether a
    /// probe was refused since the last check.
    fn look(&mut self, now: Duration, received: u64, refused: bool) -> Finding {
        if received != self.received {
            (self.received, self.at) = (received, now);
            (self.refused, self.told) = (0, 0);
            return Finding::default();
        }
        let silence = now.saturating_sub(self.at);
        // A refusal from before the silence is an old answer, or a forged one.
        let is_silent = silence >= self.probe_after;
        self.refused += u32::from(refused && is_silent);
        let seconds = silence.as_secs();
        let due = TOLD_AT.into_iter().filter(|at| *at <= seconds).max();
        let due = due.map(|at| at.max(seconds - seconds % 30));
        let tell = due.filter(|due| *due > self.told);
        self.told = tell.unwrap_or(self.told);
        Finding {
            probe: is_silent,
            tell,
            gone: self.refused >= REFUSALS,
        }
    }

    fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }
}

/// What the client is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A connection.
    Connecting,
    /// Data on established connections.
    Working,
}

/// A socket that learns whether the server's port is closed.
///
/// # Errors
/// The system has no route to the server's address, or none from the local one.
pub(super) fn probe_socket(
    address: SocketAddr,
    local: Option<SocketAddr>,
) -> io::Result<UdpSocket> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(local.unwrap_or((any, 0).into()))?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Watches a client's endpoint while it waits for its server.
pub(super) struct Guard {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<Failure>>>,
}

impl Guard {
    /// Starts watching. `print` is given lines for people; if the server is gone, the endpoint is
    /// closed, which ends everything that waits for it.
    pub(super) fn start(
        endpoint: &Endpoint,
        address: SocketAddr,
        local: Option<SocketAddr>,
        phase: Phase,
        print: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let (endpoint, ended) = (endpoint.clone(), Arc::clone(&done));
        let watch = move || {
            // Without such a socket there are no hints, only silence.
            let socket = probe_socket(address, local).ok();
            watch(&endpoint, address, socket.as_ref(), phase, &ended, &print)
        };
        let builder = thread::Builder::new().name("liveness".to_owned());
        Self {
            done,
            thread: builder.spawn(watch).ok(),
        }
    }

    /// Stops watching; returns why the server is thought to be gone, if it is.
    pub(super) fn finish(mut self) -> Option<Failure> {
        self.end()
    }

    fn end(&mut self) -> Option<Failure> {
        self.done.store(true, Ordering::Relaxed);
        let thread = self.thread.take()?;
        thread.thread().unpark();
        // If it panicked, it has found nothing.
        thread.join().ok().flatten()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

fn watch(
    endpoint: &Endpoint,
    address: SocketAddr,
    socket: Option<&UdpSocket>,
    phase: Phase,
    done: &AtomicBool,
    print: &impl Fn(&str),
) -> Option<Failure> {
    let begin = Instant::now();
    let mut rule = Rule::new(phase);
    while !done.load(Ordering::Relaxed) {
        thread::park_timeout(TICK);
        let (now, udp) = (begin.elapsed(), endpoint.stats().udp);
        let refused = socket.is_some_and(is_refused);
        let finding = rule.look(now, udp.datagrams_received, refused);
        if finding.gone {
            endpoint.close(0, b"");
            let silence = rule.silence(now).as_secs_f64();
            return Some(Failure::new(match phase {
                Phase::Connecting => format!(
                    "nothing listens on {address} (ICMP port unreachable): start squall perf server there"
                ),
                Phase::Working => format!(
                    "the server at {address} is gone: no data for {silence:.1} s, and its port is closed (ICMP port unreachable)"
                ),
            }));
        }
        if let Some(seconds) = finding.tell {
            let what = match phase {
                Phase::Connecting => "answer",
                Phase::Working => "data",
            };
            // The system's errors about our own datagrams.
            let failed = udp.errors.iter().filter(|error| error.errno != 0);
            let failed = failed.max_by_key(|error| error.sends);
            let why = failed.filter(|error| error.sends > 0).map(|error| {
                let error = io::Error::from_raw_os_error(error.errno);
                format!("; sending has failed: {error}")
            });
            let why = why.unwrap_or_default();
            print(&format!(
                "squall: no {what} from {address} for {seconds} s{why}"
            ));
        }
        if let Some(socket) = socket.filter(|_| finding.probe) {
            // If sending fails, there is no answer either.
            let _ = socket.send(&[0]);
        }
    }
    None
}

/// Whether a probe has met a closed port. Reading this clears it.
fn is_refused(socket: &UdpSocket) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    socket
        .recv(&mut [0; 16])
        .is_err_and(|error| refused(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every tick for `seconds`, with the given `received` and `refused` of each tick.
    fn looks(
        seconds: u64,
        received: impl Fn(u64) -> u64,
        refused: impl Fn(u64) -> bool,
    ) -> Vec<(Duration, Finding)> {
        let mut rule = Rule::new(Phase::Working);
        let ticks = seconds * 4;
        (1..=ticks)
            .map(|tick| {
                let now = TICK * u32::try_from(tick).expect("few");
                (now, rule.look(now, received(tick), refused(tick)))
            })
            .collect()
    }

    #[test]
    fn forged_icmp_does_not_end_a_connection_that_still_receives() {
        // One datagram in half a second, a forged message at every check.
        let looks = looks(600, |tick| tick / 2, |_| true);
        assert!(
            looks
                .iter()
                .all(|(_, finding)| *finding == Finding::default())
        );
    }

    #[test]
    fn a_closed_port_is_noticed_within_two_seconds() {
        let begin = 40;
        for phase in [Phase::Connecting, Phase::Working] {
            // Data until ten seconds; each probe is refused before the next check.
            let mut rule = Rule::new(phase);
            let mut probed = false;
            let looks = 1_u32..begin + 8;
            let gone = looks.into_iter().find(|tick| {
                let finding = rule.look(TICK * *tick, u64::from((*tick).min(begin)), probed);
                probed = finding.probe;
                finding.gone
            });
            let after = TICK * (gone.expect("noticed") - begin);
            assert!(after < Duration::from_secs(2), "{phase:?}: {after:?}");
        }
    }

    #[test]
    fn one_refusal_is_not_enough() {
        let looks = looks(60, |_| 0, |tick| tick == 8);
        assert!(looks.iter().all(|(_, finding)| !finding.gone));
    }

    #[test]
    fn silence_is_reported_at_growing_intervals_and_ends_nothing() {
        let looks = looks(100, |_| 0, |_| false);
        assert!(looks.iter().all(|(_, finding)| !finding.gone));
        let told = looks.iter().filter_map(|(now, finding)| {
            let seconds = finding.tell?;
            assert_eq!(now.as_secs(), seconds);
            Some(seconds)
        });
        assert_eq!(told.collect::<Vec<_>>(), [2, 5, 10, 20, 30, 60, 90]);
    }

    #[test]
    fn every_datagram_restarts_the_count_of_silence() {
        // A datagram every three seconds: reported and probed each time.
        let looks = looks(30, |tick| tick / 12, |_| false);
        let told = looks.iter().filter(|(_, finding)| finding.tell == Some(2));
        assert_eq!(told.count(), 10);
        assert!(
            looks
                .iter()
                .all(|(_, finding)| finding.tell.is_none_or(|s| s == 2))
        );
    }
}
