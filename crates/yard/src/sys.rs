//! The machine below the measurement: cores, clocks of threads and processes, the core's clock
//! rate.
//!
//! The only `unsafe` of this crate. Most of this is for Linux; elsewhere the clocks report what the
//! platform has, and pinning returns an error. Systems other than Unix have no such clocks here,
//! and [`can_measure`] says so before anything is measured.

use std::io;
use std::net::TcpStream;
#[cfg(unix)]
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A stream between two ends in this process, which avoids the network if the system can do that.
#[cfg(unix)]
pub type Stream = std::os::unix::net::UnixStream;
#[cfg(not(unix))]
pub type Stream = TcpStream;

/// Both ends of a [`Stream`].
///
/// # Errors
/// The system's.
#[cfg(unix)]
pub fn stream_pair() -> io::Result<(Stream, Stream)> {
    Stream::pair()
}

#[cfg(not(unix))]
pub fn stream_pair() -> io::Result<(Stream, Stream)> {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}

/// Checks that this system has the CPU clocks that every measurement here relies on.
///
/// # Errors
/// It has none: `Unsupported`, with the reason.
pub fn can_measure() -> io::Result<()> {
    if cfg!(unix) {
        return Ok(());
    }
    let why = "it measures by the CPU clocks of Unix systems, and this is none";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// The calling thread's CPU time, user and system, in nanoseconds of resolution.
#[cfg(unix)]
pub fn thread_cpu() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// The CPU time of all threads of this process, user and system, ended ones included.
#[cfg(unix)]
pub fn process_cpu() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// Never called: [`can_measure`] has returned an error.
#[cfg(not(unix))]
pub fn thread_cpu() -> Duration {
    Duration::ZERO
}

/// Never called: [`can_measure`] has returned an error.
#[cfg(not(unix))]
pub fn process_cpu() -> Duration {
    Duration::ZERO
}

/// The signals that ask a program to end: those of Ctrl-C, and of `kill` and service managers.
#[cfg(unix)]
fn end_signals() -> libc::sigset_t {
    // SAFETY: all-zero bytes are memory that sigemptyset then makes a set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable, and both numbers are signals.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
    }
    set
}

/// Blocks SIGINT and SIGTERM in the calling thread and those that it starts, for
/// [`wait_for_end_signal`].
#[cfg(unix)]
pub fn block_end_signals() {
    let set = end_signals();
    // SAFETY: `set` is a valid set; the old one is not asked for. Fails only for a bad first
    // argument.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for SIGINT or SIGTERM, which [`block_end_signals`] blocks; false if it cannot wait.
#[cfg(unix)]
pub fn wait_for_end_signal() -> bool {
    let set = end_signals();
    let mut signal = 0;
    // SAFETY: `set` is a valid set and `signal` is writable.
    unsafe { libc::sigwait(&raw const set, &raw mut signal) == 0 }
}

/// Nothing is blocked: Ctrl-C ends the process at once.
#[cfg(not(unix))]
pub fn block_end_signals() {}

#[cfg(not(unix))]
pub fn wait_for_end_signal() -> bool {
    false
}

/// Lets this process open as many files as the system allows, often more than the default of 1,024:
/// a thousand TCP connections take two thousand if both ends are in this process.
#[cfg(unix)]
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is readable. If the system refuses, the limit stays as it is.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

#[cfg(not(unix))]
pub fn raise_descriptor_limit() {}

/// The CPU time, user and system, of the thread `tid` of this process; `None` once it has ended.
#[cfg(target_os = "linux")]
pub fn thread_cpu_of(tid: i32) -> Option<Duration> {
    clock(cpu_clock_id(tid, CLOCK_OF_THREAD))
}

/// The CPU time of the process `pid`, user and system. A kernel thread such as `ksoftirqd/0` is a
/// process in this sense. `None` if it is not visible (another PID namespace).
#[cfg(target_os = "linux")]
pub fn process_cpu_of(pid: i32) -> Option<Duration> {
    clock(cpu_clock_id(pid, 0))
}

#[cfg(not(target_os = "linux"))]
pub fn thread_cpu_of(_tid: i32) -> Option<Duration> {
    None
}

#[cfg(not(target_os = "linux"))]
pub fn process_cpu_of(_pid: i32) -> Option<Duration> {
    None
}

/// How often the kernel took the CPU away from the thread `tid` of this process while it had work
/// (involuntary context switches); `None` once it has ended.
#[cfg(target_os = "linux")]
pub fn preemptions_of(tid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

#[cfg(not(target_os = "linux"))]
pub fn preemptions_of(_tid: i32) -> Option<u64> {
    None
}

/// Bit of a CPU clock id: the id names a thread, not a process.
#[cfg(target_os = "linux")]
const CLOCK_OF_THREAD: i32 = 4;
/// Value in a CPU clock id: the scheduler's count in nanoseconds, not the tick's.
#[cfg(target_os = "linux")]
const CLOCK_OF_SCHEDULER: i32 = 2;

/// The kernel's encoding of "CPU clock of this task" (what `pthread_getcpuclockid` and
/// `clock_getcpuclockid` build), which needs no `pthread_t`.
#[cfg(target_os = "linux")]
const fn cpu_clock_id(id: i32, kind: i32) -> libc::clockid_t {
    (!id << 3) | CLOCK_OF_SCHEDULER | kind
}

#[cfg(unix)]
fn clock(id: libc::clockid_t) -> Option<Duration> {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a timespec that lives through the call; the kernel refuses an id it does
    // not know with EINVAL.
    let answer = unsafe { libc::clock_gettime(id, &raw mut at) };
    if answer != 0 {
        return None;
    }
    Some(Duration::new(
        u64::try_from(at.tv_sec).ok()?,
        u32::try_from(at.tv_nsec).ok()?,
    ))
}

/// The cores that this process may run on, ascending.
#[cfg(target_os = "linux")]
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: a cpu_set_t is an array of integers; all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size is that of `set`, which is writable; 0 names the calling thread.
    let answer = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if answer != 0 {
        return Vec::new();
    }
    let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    (0..limit)
        // SAFETY: `core` is below CPU_SETSIZE, so the bit lies inside `set`.
        .filter(|&core| unsafe { libc::CPU_ISSET(core, &set) })
        .collect()
}

/// Pins the calling thread to one core.
///
/// # Errors
/// From the kernel: the core does not exist or is not allowed here.
#[cfg(target_os = "linux")]
pub fn pin(core: usize) -> io::Result<()> {
    if core >= usize::try_from(libc::CPU_SETSIZE).unwrap_or(0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a cpu_set_t is an array of integers; all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `core` is below CPU_SETSIZE, so the bit lies inside `set`.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the size is that of `set`, which is readable; 0 names the calling thread.
    let answer =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(not(target_os = "linux"))]
pub fn allowed_cores() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
pub fn pin(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sets an option of a TCP or generic socket.
#[cfg(target_os = "linux")]
fn set_option(
    socket: &TcpStream,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: `value` is readable for `len` bytes; the descriptor is open, due to the borrow of
    // its owner.
    let answer =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets a TCP socket's congestion control by its name in the kernel.
///
/// # Errors
/// From the kernel: it has none of that name, or reserves it for privileged processes.
#[cfg(target_os = "linux")]
pub fn set_congestion_control(socket: &TcpStream, name: &str) -> io::Result<()> {
    let name = name.as_bytes();
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name)
}

/// The name of a TCP socket's congestion control.
#[cfg(target_os = "linux")]
pub fn congestion_control(socket: &TcpStream) -> Option<String> {
    let mut name = [0_u8; 16];
    let mut len = libc::socklen_t::try_from(name.len()).ok()?;
    // SAFETY: `name` is writable for `len` bytes and both live through the call; the descriptor
    // is open, due to the borrow of its owner.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let name = name.split(|&byte| byte == 0).next()?;
    (answer == 0).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Makes a blocking read wait until this many bytes have arrived, or the end.
///
/// # Errors
/// The kernel's.
#[cfg(target_os = "linux")]
pub fn set_receive_low_water(socket: &TcpStream, bytes: i32) -> io::Result<()> {
    let bytes = bytes.to_ne_bytes();
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes)
}

#[cfg(not(target_os = "linux"))]
pub fn set_congestion_control(_socket: &TcpStream, _name: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
pub fn congestion_control(_socket: &TcpStream) -> Option<String> {
    None
}

#[cfg(not(target_os = "linux"))]
pub fn set_receive_low_water(_socket: &TcpStream, _bytes: i32) -> io::Result<()> {
    Ok(())
}

/// Columns of text of a terminal; `None` if it is not a terminal, or does not know.
#[cfg(unix)]
pub fn terminal_columns(terminal: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is writable and of the type that this request fills in; the descriptor is
    // open, due to the borrow of its owner.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (answer == 0 && size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Never called: [`can_measure`] returns false on this system.
#[cfg(not(unix))]
pub fn terminal_columns<T>(_terminal: &T) -> Option<usize> {
    None
}

/// Adds to each of some registers in turn, `$repeats` times per round; returns whether there is
/// such a loop for this architecture. Additions of two registers take one cycle on every core we
/// know and, unlike additions of a constant, are never folded away by renaming.
macro_rules! additions {
    ($rounds:ident, $repeats:literal, $($x:ident)*) => {{
        #[cfg(target_arch = "x86_64")]
        // SAFETY: register arithmetic only: no memory, no stack, the flags declared clobbered by
        // default.
        unsafe {
            std::arch::asm!(
                "2:",
                concat!(".rept ", $repeats),
                $( concat!("add {", stringify!($x), "}, {y}"), )*
                ".endr",
                "dec {n}",
                "jnz 2b",
                $( $x = inout(reg) 1_u64 => _, )*
                y = in(reg) 3_u64,
                n = inout(reg) $rounds.max(1) => _,
                options(nomem, nostack),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: register arithmetic only: no memory, no stack, the flags declared clobbered by
        // default.
        unsafe {
            std::arch::asm!(
                "2:",
                concat!(".rept ", $repeats),
                $( concat!("add {", stringify!($x), "}, {", stringify!($x), "}, {y}"), )*
                ".endr",
                "subs {n}, {n}, #1",
                "b.ne 2b",
                $( $x = inout(reg) 1_u64 => _, )*
                y = in(reg) 3_u64,
                n = inout(reg) $rounds.max(1) => _,
                options(nomem, nostack),
            );
        }
        let _ = $rounds;
        cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
    }};
}

/// Runs `rounds` × 64 additions, each of which depends on the previous one, and returns whether
/// there is such a chain for this architecture.
pub fn addition_chain(rounds: u64) -> bool {
    additions!(rounds, 64, a)
}

/// Runs `rounds` × 64 additions in eight independent chains, and returns whether they exist for
/// this architecture. They keep all adders busy, so they take longer as soon as a sibling thread
/// works on the same core. [`addition_chain`] leaves room for the sibling, so it does not.
pub fn additions_side_by_side(rounds: u64) -> bool {
    additions!(rounds, 8, a b c d e f g h)
}

/// EAX, EBX, ECX and EDX of a CPUID leaf; sub-leaf 0.
#[cfg(target_arch = "x86_64")]
pub fn cpuid(leaf: u32) -> [u32; 4] {
    let answer = std::arch::x86_64::__cpuid(leaf);
    [answer.eax, answer.ebx, answer.ecx, answer.edx]
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_threads_clock_by_id_is_the_threads_own_clock() {
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = unsafe { libc::gettid() };
        let before = thread_cpu();
        let by_id = thread_cpu_of(tid).expect("own thread");
        let after = thread_cpu();
        assert!(before <= by_id && by_id <= after);
    }

    #[test]
    fn a_thread_that_does_not_exist_has_no_clock() {
        assert_eq!(thread_cpu_of(i32::MAX - 1), None);
    }

    #[test]
    fn threads_that_share_a_core_are_preempted() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};

        let done = Arc::new(AtomicBool::new(false));
        let spin = || {
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                let core = *allowed_cores().last().expect("at least one core");
                pin(core).expect("an allowed core");
                // SAFETY: gettid has no arguments and cannot fail.
                let tid = unsafe { libc::gettid() };
                let before = preemptions_of(tid).expect("own thread");
                // Neither ever waits, so only the kernel can switch between them.
                while !done.load(Ordering::Relaxed) {
                    addition_chain(10_000);
                    if preemptions_of(tid).expect("own thread") > before {
                        done.store(true, Ordering::Relaxed);
                    }
                }
            })
        };
        for thread in [spin(), spin()] {
            thread.join().expect("no panic");
        }
        assert_eq!(preemptions_of(i32::MAX - 1), None);
    }

    #[test]
    fn the_columns_of_a_terminal_are_read() {
        use std::os::fd::{FromRawFd as _, OwnedFd};

        let (mut near, mut far) = (0, 0);
        let size = libc::winsize {
            ws_row: 24,
            ws_col: 133,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: both descriptors are writable, no name is asked for, no settings are given, and
        // `size` is readable.
        let answer = unsafe {
            libc::openpty(
                &raw mut near,
                &raw mut far,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(answer, 0);
        // SAFETY: openpty opened both, and nothing else owns them.
        let [_near, far] = [near, far].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        assert_eq!(terminal_columns(&far), Some(133));
        let file = std::fs::File::open("/dev/null").expect("Linux has /dev/null");
        assert_eq!(terminal_columns(&file), None);
    }

    #[test]
    fn pinning_restricts_a_thread_to_one_core() {
        std::thread::spawn(|| {
            let core = *allowed_cores().last().expect("at least one core");
            pin(core).expect("an allowed core");
            assert_eq!(allowed_cores(), [core]);
        })
        .join()
        .expect("no panic");
        assert!(pin(usize::MAX).is_err());
    }

    #[test]
    fn independent_additions_use_more_than_one_unit() {
        let time = |work: fn(u64) -> bool| {
            let once = || {
                let start = thread_cpu();
                work(20_000);
                thread_cpu() - start
            };
            (0..20).map(|_| once()).min().expect("twenty")
        };
        let (chain, side_by_side) = (time(addition_chain), time(additions_side_by_side));
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert!(side_by_side * 3 < chain * 2, "{side_by_side:?} {chain:?}");
        }
    }

    #[test]
    fn additions_take_time_proportional_to_their_number() {
        let time = |rounds| {
            let start = thread_cpu();
            addition_chain(rounds);
            thread_cpu() - start
        };
        time(10_000);
        let short = (0..5).map(|_| time(2_000)).min().expect("five");
        let long = (0..5).map(|_| time(200_000)).min().expect("five");
        assert!(long > short * 20, "{short:?} {long:?}");
    }
}

/// Makes the allocator return free memory to the system, if it can.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim_memory() {
    // SAFETY: takes an integer, and moves nothing that is allocated.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators have no such call.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim_memory() {}

/// The features of a network device by their names in ethtool, and whether each is on.
///
/// # Errors
/// From the system: no such device, or the call is not allowed.
#[cfg(target_os = "linux")]
pub fn device_features(device: &str) -> io::Result<Vec<(String, bool)>> {
    // linux/ethtool.h.
    const ETHTOOL_GSTRINGS: u32 = 0x1b;
    const ETHTOOL_GSSET_INFO: u32 = 0x37;
    const ETHTOOL_GFEATURES: u32 = 0x3a;
    const ETH_SS_FEATURES: u32 = 4;
    const ETH_GSTRING_LEN: usize = 32;
    /// Words of `ethtool_get_features_block`: available, requested, active, never_changed.
    const BLOCK: usize = 4;
    const ACTIVE: usize = 2;
    /// More features than any kernel has: limits what its answer makes us allocate.
    const MAX_FEATURES: u32 = 1 << 12;

    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // ethtool_sset_info: cmd, reserved, sset_mask of 64 bits, one count.
    let [low, high] = if cfg!(target_endian = "little") {
        [1 << ETH_SS_FEATURES, 0]
    } else {
        [0, 1 << ETH_SS_FEATURES]
    };
    let mut info = [ETHTOOL_GSSET_INFO, 0, low, high, 0];
    ethtool(&socket, device, &mut info)?;
    // The mask is cleared if the device has no such strings.
    let count = if info[2..4] == [0, 0] { 0 } else { info[4] };
    if count > MAX_FEATURES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let len = count as usize;

    // ethtool_gstrings: cmd, string_set, len, the strings.
    let mut strings = vec![0; 3 + len * ETH_GSTRING_LEN / size_of::<u32>()];
    strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count]);
    ethtool(&socket, device, &mut strings)?;
    let names: Vec<u8> = strings[3..]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();

    // ethtool_gfeatures: cmd, size in blocks, the blocks.
    let blocks = count.div_ceil(u32::BITS);
    let mut features = vec![0; 2 + blocks as usize * BLOCK];
    features[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks]);
    ethtool(&socket, device, &mut features)?;

    let names = names.chunks_exact(ETH_GSTRING_LEN).enumerate();
    let named = names.map(|(at, name)| {
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let active = features[2 + at / 32 * BLOCK + ACTIVE] >> (at % 32) & 1;
        (String::from_utf8_lossy(name).into_owned(), active == 1)
    });
    Ok(named.filter(|(name, _)| !name.is_empty()).collect())
}

/// One of ethtool's commands: `words` is its structure, with room for the answer.
#[cfg(target_os = "linux")]
fn ethtool(socket: &std::net::UdpSocket, device: &str, words: &mut [u32]) -> io::Result<()> {
    /// linux/sockios.h.
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    // SAFETY: all-zero bytes are an ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if device.len() >= request.ifr_name.len() || device.contains('\0') {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the name ends with a zero byte, and the kernel writes to `words` no more than there
    // is room for: one count, the names of all features, of which there are as many as that count
    // (a constant of the running kernel), or as many blocks as `words` says.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Other systems have different calls.
///
/// # Errors
/// Always: `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn device_features(_device: &str) -> io::Result<Vec<(String, bool)>> {
    Err(io::ErrorKind::Unsupported.into())
}
