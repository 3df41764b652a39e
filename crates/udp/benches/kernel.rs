//! What it costs the kernel to send a message of datagrams over loopback, including delivery to the
//! receiving socket: per bundle, per datagram and per byte, and whether the memory or the socket's
//! buffer makes a difference (`docs/measuring/kernel.md`).
//!
//! One thread sends, another receives without sleeping, so that no thread is woken. The figures are
//! the sender's CPU time, medians of interleaved rounds.
#![cfg_attr(not(target_os = "linux"), allow(unused))]

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("there are no bundles here (UDP GSO, on Linux)");
}

#[cfg(target_os = "linux")]
#[path = "../src/option.rs"]
mod option;

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::net::UdpSocket;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::option::set;

    const ROUNDS: usize = 7;
    const MESSAGES: usize = 8_000;
    const FULL: usize = 1472;
    /// Datagrams of a full bundle.
    const BUNDLE: usize = 44;
    /// What messages are cut from, in turn: the send buffer of a worker.
    const SPAN: usize = 256 << 10;
    const HUGE_PAGE: usize = 2 << 20;
    const MEMORY: usize = 8 << 20;
    const SOCKET_BUFFER: libc::c_int = 4 << 20;

    #[derive(Clone, Copy, PartialEq)]
    struct Case {
        datagrams: usize,
        size: usize,
        huge_pages: bool,
        span: usize,
        socket_buffer: libc::c_int,
    }

    const CASE: Case = Case {
        datagrams: BUNDLE,
        size: FULL,
        huge_pages: false,
        span: SPAN,
        socket_buffer: SOCKET_BUFFER,
    };

    impl Case {
        const fn of(datagrams: usize, size: usize) -> Self {
            Self {
                datagrams,
                size,
                ..CASE
            }
        }
    }

    pub(super) fn main() -> io::Result<()> {
        let mut cases = Vec::new();
        for datagrams in [1, 2, 8, 16, 32, BUNDLE] {
            cases.extend([100, 736, FULL].map(|size| Case::of(datagrams, size)));
        }
        for span in [64 << 10, SPAN, 1 << 20, MEMORY] {
            cases.extend([false, true].map(|huge_pages| Case {
                huge_pages,
                span,
                ..CASE
            }));
        }
        cases.extend([64 << 10, 208 << 10, 1 << 20].map(|socket_buffer| Case {
            socket_buffer,
            ..CASE
        }));
        let memory = [Memory::new(false)?, Memory::new(true)?];
        let receiver = Receiver::new()?;
        let mut samples = vec![Vec::new(); cases.len()];
        for _ in 0..ROUNDS {
            for (case, samples) in cases.iter().zip(&mut samples) {
                samples.push(send(
                    case,
                    &memory[usize::from(case.huge_pages)],
                    &receiver,
                )?);
            }
        }
        let medians: Vec<f64> = samples.into_iter().map(median).collect();
        println!("datagrams  bytes  pages  span, KiB  send buffer, KiB  ns a message  a datagram");
        for (case, ns) in cases.iter().zip(&medians) {
            println!(
                "{:9}  {:5}  {:>5}  {:9}  {:16}  {ns:12.0}  {:10.1}",
                case.datagrams,
                case.size,
                if case.huge_pages { "huge" } else { "4 K" },
                case.span >> 10,
                case.socket_buffer >> 10,
                ns / case.datagrams as f64,
            );
        }
        let of = |datagrams, size| {
            let at = cases
                .iter()
                .position(|case| *case == Case::of(datagrams, size));
            at.map_or(f64::NAN, |at| medians[at])
        };
        let byte = (of(BUNDLE, FULL) - of(BUNDLE, 100)) / (BUNDLE * (FULL - 100)) as f64;
        let datagram = (of(BUNDLE, 100) - of(2, 100)) / (BUNDLE - 2) as f64 - 100.0 * byte;
        let message = of(2, 100) - 2.0 * datagram - 200.0 * byte;
        println!(
            "a bundle: {message:.0} ns, and {datagram:.1} a datagram, and {:.1} for {FULL} bytes",
            byte * FULL as f64
        );
        Ok(())
    }

    fn median(mut samples: Vec<f64>) -> f64 {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }

    /// Memory that messages are sent from.
    struct Memory {
        start: *mut u8,
    }

    impl Memory {
        fn new(huge_pages: bool) -> io::Result<Self> {
            let (access, kind) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            // SAFETY: a new mapping, at no address of ours; it is never unmapped.
            let mapped = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    MEMORY + HUGE_PAGE,
                    access,
                    kind,
                    -1,
                    0,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let start = mapped.cast::<u8>();
            let start = start.wrapping_add(start.align_offset(HUGE_PAGE));
            let advice = match huge_pages {
                true => libc::MADV_HUGEPAGE,
                false => libc::MADV_NOHUGEPAGE,
            };
            // SAFETY: the aligned part of the mapping is MEMORY bytes long at least, and nothing
            // else refers to it.
            unsafe {
                // If the kernel has no huge pages, the rows are the same.
                libc::madvise(start.cast(), MEMORY, advice);
                start.write_bytes(7, MEMORY);
            }
            Ok(Self { start })
        }
    }

    /// A socket that is soon emptied again.
    struct Receiver {
        port: u16,
        ends: Arc<AtomicBool>,
        thread: Option<thread::JoinHandle<()>>,
    }

    impl Receiver {
        fn new() -> io::Result<Self> {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BUFFER)?;
            set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
            socket.set_nonblocking(true)?;
            let (port, ends) = (
                socket.local_addr()?.port(),
                Arc::new(AtomicBool::new(false)),
            );
            let end = Arc::clone(&ends);
            let thread = thread::spawn(move || {
                pin(0);
                let mut buffer = vec![0; 65_536];
                while !end.load(Ordering::Relaxed) {
                    // Nothing has arrived yet, or there is more.
                    let _ = socket.recv(&mut buffer);
                }
            });
            Ok(Self {
                port,
                ends,
                thread: Some(thread),
            })
        }
    }

    impl Drop for Receiver {
        fn drop(&mut self) {
            self.ends.store(true, Ordering::Relaxed);
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
        }
    }

    /// Sends messages; returns the CPU time per message, in nanoseconds.
    fn send(case: &Case, memory: &Memory, receiver: &Receiver) -> io::Result<f64> {
        pin(1);
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(("127.0.0.1", receiver.port))?;
        set(
            &socket,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            case.socket_buffer,
        )?;
        if case.datagrams > 1 {
            let size = case.size as libc::c_int;
            set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, size)?;
        }
        let len = case.datagrams * case.size;
        let (mut at, mut begun) = (0, 0.0);
        for message in 0..MESSAGES + MESSAGES / 10 {
            if message == MESSAGES / 10 {
                begun = cpu_ns();
            }
            if at + len > case.span {
                at = 0;
            }
            // SAFETY: the span lies in the memory, which is initialised and never written again.
            let bytes = unsafe { std::slice::from_raw_parts(memory.start.add(at), len) };
            socket.send(bytes)?;
            at += len.next_multiple_of(64);
        }
        Ok((cpu_ns() - begun) / MESSAGES as f64)
    }

    /// CPU time of this thread.
    fn cpu_ns() -> f64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a place for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }

    /// Pins this thread to its own core, if there is one.
    fn pin(core: usize) {
        // SAFETY: a set of cores is plain data; the calls read and write it only.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}
