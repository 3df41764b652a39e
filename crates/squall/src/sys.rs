//! What std and tokio do not offer as safe calls: pinning a thread, its number, a cheap clock, and
//! readiness of our own sockets. The only `unsafe` of this crate.

use std::io;
#[cfg(unix)]
use std::os::fd::{AsFd, OwnedFd};
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd as _, FromRawFd as _};
#[cfg(unix)]
use std::sync::Arc;
#[cfg(unix)]
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(unix)]
use squall_udp::Socket;
#[cfg(unix)]
use tokio::io::Interest;
#[cfg(unix)]
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

#[cfg(not(unix))]
pub(crate) use crate::readiness::{Guard, Readable, Writable, readable, writable};

/// A sign that there is something to receive.
#[cfg(unix)]
pub(crate) type Guard<'a> = AsyncFdReadyGuard<'a, Arc<Socket>>;

/// Readiness of a socket to send.
#[cfg(unix)]
pub(crate) type Writable = AsyncFd<Arc<OwnedFd>>;

/// A socket that tokio watches for something to receive.
#[cfg(unix)]
pub(crate) struct Readable {
    socket: Arc<Socket>,
    /// `None` while it is not watched.
    watched: Option<AsyncFd<Arc<Socket>>>,
    /// A second descriptor of it, since a descriptor can be registered only once. Made at the
    /// start: when the socket is full, the process may have no descriptor left.
    second: Arc<OwnedFd>,
}

#[cfg(unix)]
impl Readable {
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Guard<'_>>> {
        match &self.watched {
            Some(watched) => watched.poll_read_ready(cx),
            None => Poll::Pending,
        }
    }

    /// Starts or stops watching. Must be called on a runtime's thread.
    #[inline]
    pub(crate) fn watch(&mut self, watch: bool) -> io::Result<()> {
        if watch != self.watched.is_some() {
            self.watched = match watch {
                true => Some(watched(Arc::clone(&self.socket))?),
                false => None,
            };
        }
        Ok(())
    }
}

#[cfg(unix)]
fn watched(socket: Arc<Socket>) -> io::Result<AsyncFd<Arc<Socket>>> {
    // SAFETY: the socket owns its descriptor until it is dropped, always names the same one, and
    // the `AsyncFd` holds a share of the socket.
    unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }.map_err(Into::into)
}

/// Readiness of the socket to receive. Not to send as well: the kernel would then wake the worker
/// for every packet that leaves the machine.
///
/// Must be called on a runtime's thread.
#[cfg(unix)]
pub(crate) fn readable(socket: Arc<Socket>) -> io::Result<Readable> {
    let second = Arc::new(socket.as_fd().try_clone_to_owned()?);
    Ok(Readable {
        watched: Some(watched(Arc::clone(&socket))?),
        socket,
        second,
    })
}

/// Readiness of the socket to send, for as long as it is needed. Takes no new descriptor, only a
/// little kernel memory.
#[cfg(unix)]
pub(crate) fn writable(readable: &Readable) -> io::Result<Writable> {
    let second = Arc::clone(&readable.second);
    // SAFETY: an `OwnedFd` keeps its one descriptor open until it is dropped, and the `AsyncFd`
    // holds a share of it.
    unsafe { AsyncFd::register_with_interest(second, Interest::WRITABLE) }.map_err(Into::into)
}

/// A descriptor that tokio watches for something to read.
#[cfg(target_os = "linux")]
pub(crate) type Watched = AsyncFd<OwnedFd>;

/// Watches a descriptor for something to read. Must be called on a runtime's thread.
#[cfg(target_os = "linux")]
pub(crate) fn watch(fd: OwnedFd) -> io::Result<Watched> {
    // SAFETY: an `OwnedFd` keeps its one descriptor open until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}

/// A kernel timer, as precise as the machine's clock. tokio's fires at the end of a millisecond,
/// and its wait for sockets ends at the end of another one.
#[cfg(target_os = "linux")]
pub(crate) struct PreciseTimer(Watched);

#[cfg(target_os = "linux")]
impl PreciseTimer {
    /// `None` if the system has none left. Must be called on a runtime's thread.
    pub(crate) fn new() -> Option<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        watch(fd).ok().map(Self)
    }

    /// Fires once, after `time`; any earlier setting is forgotten, even if it has fired.
    pub(crate) fn set(&self, time: Duration) {
        // The runtime may still remember the descriptor as readable: make it forget that.
        let _ = self.poll_fired(&mut Context::from_waker(std::task::Waker::noop()));
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
                // Zero would turn it off.
                tv_nsec: libc::c_long::from(time.subsec_nanos().max(1)),
            },
        };
        // SAFETY: `value` is readable until the call returns, and the old setting is not asked for;
        // the descriptor is open, due to the borrow of its owner.
        let _ = unsafe {
            let fd = self.0.get_ref().as_raw_fd();
            libc::timerfd_settime(fd, 0, &raw const value, std::ptr::null_mut())
        };
    }

    /// Ready when it has fired since this was last ready.
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.0.poll_read_ready(cx) {
            // The count of expirations need not be read: the next `set` erases it.
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                Poll::Ready(())
            }
            _ => Poll::Pending,
        }
    }
}

/// Elsewhere tokio's timers have to do.
#[cfg(not(target_os = "linux"))]
pub(crate) struct PreciseTimer;

#[cfg(not(target_os = "linux"))]
impl PreciseTimer {
    pub(crate) fn new() -> Option<Self> {
        None
    }

    pub(crate) fn set(&self, _: Duration) {}

    pub(crate) fn poll_fired(&self, _: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        std::task::Poll::Pending
    }
}

/// A sign that the machine's addresses have changed.
#[cfg(target_os = "linux")]
pub(crate) struct AddressWatch(AsyncFd<squall_udp::AddressWatch>);

#[cfg(target_os = "linux")]
impl AddressWatch {
    /// Watches from now on; `None` if the system does not allow it. Must be called on a runtime's
    /// thread.
    pub(crate) fn new() -> Option<Self> {
        let watch = squall_udp::AddressWatch::new().ok()?;
        // SAFETY: the watch owns its descriptor until it is dropped, and always names the same one.
        let watched = unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) };
        watched.ok().map(Self)
    }

    /// Ready when there is something to look at.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_read_ready(cx).map(drop)
    }

    /// Ready when the addresses may have changed since this was last ready.
    pub(crate) fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(Ok(mut guard)) = self.0.poll_read_ready(cx) {
            let changed = self.0.get_ref().take();
            guard.clear_ready();
            if changed {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

/// Address changes are only seen on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) struct AddressWatch;

#[cfg(not(target_os = "linux"))]
impl AddressWatch {
    pub(crate) fn new() -> Option<Self> {
        None
    }

    pub(crate) fn poll_ready(&self, _: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        std::task::Poll::Pending
    }

    pub(crate) fn poll_changed(&self, _: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        std::task::Poll::Pending
    }
}

/// Pins the calling thread to one CPU.
#[cfg(target_os = "linux")]
pub(crate) fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("there is no CPU {cpu}"),
        ));
    }
    // SAFETY: all-zero bytes are a valid, empty cpu_set_t: it is an array of integers.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below CPU_SETSIZE, due to the check above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer is to a live cpu_set_t and the length is its size; 0 is the calling
    // thread.
    let rc = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Pinning is only implemented for Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin_to_cpu(_: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The calling thread's number in the system's lists; 0 if there is none.
#[cfg(target_os = "linux")]
pub(crate) fn thread_id() -> i32 {
    // SAFETY: no arguments, no memory accessed, cannot fail.
    unsafe { libc::gettid() }
}

/// The calling thread's number in the system's lists; 0 if there is none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_id() -> i32 {
    0
}

/// The calling thread's CPU time, user and system: a system call of some hundred nanoseconds.
/// `None` if there is no such clock.
#[cfg(unix)]
pub(crate) fn thread_cpu() -> Option<Duration> {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live, writable timespec.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut at) };
    let (seconds, nanoseconds) = (at.tv_sec.try_into().ok()?, at.tv_nsec.try_into().ok()?);
    (rc == 0).then(|| Duration::new(seconds, nanoseconds))
}

/// Windows counts a thread's time by the tick of its scheduler.
#[cfg(not(unix))]
pub(crate) fn thread_cpu() -> Option<Duration> {
    None
}

/// Ticks of the cheapest monotonic counter of this machine: the clock of stage accounting. Its rate
/// is the machine's own; scale by the thread's CPU time.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 and only writes registers.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Ticks of the cheapest monotonic counter of this machine: the clock of stage accounting. Its rate
/// is the machine's own; scale by the thread's CPU time.
#[cfg(target_arch = "aarch64")]
#[must_use]
pub fn ticks() -> u64 {
    let count: u64;
    // SAFETY: the virtual counter may be read from user mode on the systems that std supports; no
    // memory is touched.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
    count
}

/// Ticks of the cheapest monotonic counter of this machine: the clock of stage accounting. Its rate
/// is the machine's own; scale by the thread's CPU time.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[must_use]
pub fn ticks() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_do_not_run_backwards() {
        let first = ticks();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(ticks() > first);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_precise_timer_fires_once_each_time_and_never_early() {
        let timer = PreciseTimer::new().expect("a descriptor");
        for micros in [0, 300, 2_000] {
            let time = Duration::from_micros(micros);
            let begin = std::time::Instant::now();
            // The last setting counts.
            timer.set(Duration::from_secs(3600));
            timer.set(time);
            std::future::poll_fn(|cx| timer.poll_fired(cx)).await;
            assert!(begin.elapsed() >= time);
            let again = std::future::poll_fn(|cx| timer.poll_fired(cx));
            let again = tokio::time::timeout(Duration::from_millis(5), again).await;
            assert!(again.is_err(), "the timer fires only once");
            // If it fired before it was set again, that is not reported.
            timer.set(Duration::ZERO);
            tokio::time::sleep(Duration::from_millis(5)).await;
            timer.set(Duration::from_secs(3600));
            let stale = std::future::poll_fn(|cx| timer.poll_fired(cx));
            let stale = tokio::time::timeout(Duration::from_millis(5), stale).await;
            assert!(
                stale.is_err(),
                "an expiry from before the reset is not reported"
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_runs_where_it_was_pinned() {
        std::thread::spawn(|| {
            assert!(thread_id() > 0);
            // Whatever CPUs this process may use, the one it runs on now is among them.
            // SAFETY: no arguments, no memory accessed.
            let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
            pin_to_cpu(cpu).unwrap();
            std::thread::yield_now();
            // SAFETY: as above.
            assert_eq!(unsafe { libc::sched_getcpu() }, cpu as i32);
            assert!(pin_to_cpu(100_000).is_err());
        })
        .join()
        .unwrap();
    }
}
