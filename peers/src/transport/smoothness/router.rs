//! The router between the two namespaces.
//!
//! ```text
//!   server's TUN ─► read, time stamp ─► queue of the link ─► half of the RTT ─► client's TUN
//!   client's TUN ─► read ────────────────────────────────► half of the RTT ─► server's TUN
//! ```
//! One thread: it reads everything available, then writes one packet that is due, so that no time
//! stamp is late by more than a write takes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use squall_yard::error::{Failure, Result, context};
use squall_yard::sys;

use super::link::{Link, Queue};
use super::record::Arrival;
use super::tun;

/// How often the thread checks whether it should end.
const LOOK: Duration = Duration::from_millis(20);
/// More than a packet of a device's MTU.
const PACKET: usize = 2048;

/// A router at work.
pub(super) struct Router {
    start: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Seen>>>,
}

/// What it has seen.
pub(super) struct Seen {
    /// The server's packets, in order.
    pub(super) arrivals: Vec<Arrival>,
    /// How late each of them was forwarded.
    pub(super) late: Vec<Duration>,
}

impl Router {
    /// Starts between the server's device and the client's, on this core.
    pub(super) fn start(
        devices: [File; 2],
        link: Link,
        rtt: Duration,
        core: Option<usize>,
    ) -> Result<Self> {
        let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("router".to_owned())
            .spawn(move || {
                if let Some(core) = core {
                    sys::pin(core).map_err(context("cannot pin the router"))?;
                }
                tun::hurry(2).map_err(context("the router's priority"))?;
                let mut work = Work {
                    start,
                    devices,
                    delay: rtt / 2,
                    queue: Queue::new(link),
                    under_way: [VecDeque::new(), VecDeque::new()],
                    seen: Seen {
                        arrivals: Vec::new(),
                        late: Vec::new(),
                    },
                };
                work.run(&stopped).map_err(context("the router"))?;
                Ok(work.seen)
            })
            .map_err(context("cannot start a thread"))?;
        Ok(Self {
            start,
            stop,
            thread: Some(thread),
        })
    }

    /// The time on its clock.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends it.
    pub(super) fn finish(mut self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_else(|| Err(Failure::new("the router panicked")))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The caller that drops it has its own error to report.
            let _ = thread.join();
        }
    }
}

/// A packet, and when it is due at the other side.
type Due = (Duration, Vec<u8>);

struct Work {
    start: Instant,
    /// The server's and the client's; an index tells from which one a packet comes.
    devices: [File; 2],
    delay: Duration,
    queue: Queue,
    under_way: [VecDeque<Due>; 2],
    seen: Seen,
}

const SERVER: usize = 0;
const CLIENT: usize = 1;

impl Work {
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            for from in [SERVER, CLIENT] {
                while self.take(from)? {}
            }
            let next = [SERVER, CLIENT]
                .into_iter()
                .filter_map(|from| Some((self.under_way[from].front()?.0, from)))
                .min();
            let now = self.start.elapsed();
            match next {
                Some((due, from)) if due <= now => self.pass(from, now - due),
                next => {
                    let time = next.map_or(LOOK, |(due, _)| (due - now).min(LOOK));
                    let [server, client] = &self.devices;
                    tun::wait([server, client], time)?;
                }
            }
        }
        Ok(())
    }

    /// Takes one packet from a device; false if there is none.
    fn take(&mut self, from: usize) -> io::Result<bool> {
        let mut packet = [0; PACKET];
        let bytes = match (&self.devices[from]).read(&mut packet) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let packet = &packet[..bytes];
        // The kernel also sends neighbour discovery over IPv6.
        if packet.first().is_none_or(|first| first >> 4 != 4) {
            return Ok(true);
        }
        let now = self.start.elapsed();
        let left_at = match from {
            SERVER => {
                let passage = self.queue.offer(now, bytes as u64);
                self.seen.arrivals.push(Arrival {
                    at: now,
                    bytes: bytes as u32,
                    wait: passage.map(|passage| passage.wait),
                });
                passage.map(|passage| passage.left_at)
            }
            _ => Some(now),
        };
        if let Some(left_at) = left_at {
            self.under_way[from].push_back((left_at + self.delay, packet.to_vec()));
        }
        Ok(true)
    }

    /// Passes the next packet from one device to the other.
    fn pass(&mut self, from: usize, late: Duration) {
        let Some((_, packet)) = self.under_way[from].pop_front() else {
            return;
        };
        if from == SERVER {
            self.seen.late.push(late);
        }
        // What the other end's kernel does not accept is lost, as on any network.
        let _ = (&self.devices[1 - from]).write(&packet);
    }
}
