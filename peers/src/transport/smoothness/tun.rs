//! What the router needs from the system: a TUN device in a namespace, precise waiting, and
//! priority over other threads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use squall_yard::error::{Failure, Result, context};

/// The device of a namespace, which lives as long as this descriptor. It carries IP packets, one
/// per read and write, and the kernel splits what it would leave to a card's segmentation.
pub(super) fn open(namespace: &str, device: &str) -> Result<File> {
    let place = PathBuf::from("/run/netns").join(namespace);
    let doing = format!("cannot make a TUN device in {namespace}");
    // A separate thread, since it stays in the namespace.
    thread::scope(|scope| {
        let opened = scope.spawn(|| {
            enter(&File::open(place)?)?;
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open("/dev/net/tun")?;
            name(&file, device)?;
            Ok::<File, io::Error>(file)
        });
        opened.join()
    })
    .map_err(|_| Failure::new("a thread panicked"))?
    .map_err(context(&doing))
}

fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: no memory is passed; the descriptor is open, due to the borrow of its owner.
    let answer = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    succeed(answer)
}

fn name(file: &File, device: &str) -> io::Result<()> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    // The last byte stays zero.
    for (to, from) in ifr_name[..libc::IFNAMSIZ - 1]
        .iter_mut()
        .zip(device.bytes())
    {
        *to = from as libc::c_char;
    }
    let request = libc::ifreq {
        ifr_name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short,
        },
    };
    // SAFETY: TUNSETIFF reads and writes an `ifreq`, which lives until the call returns. It may
    // write the name, which nobody reads again, so a pointer from a shared borrow would be wrong.
    let answer = unsafe {
        let mut request = request;
        libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request)
    };
    succeed(answer)
}

/// Waits until one of them has something to read, or for this long, as precisely as the kernel's
/// timers allow.
pub(super) fn wait(files: [&File; 2], time: Duration) -> io::Result<()> {
    let mut polled = files.map(|file| libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: `polled` is writable for its length and `time` readable; the signal mask is optional.
    let answer = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &raw const time,
            std::ptr::null(),
        )
    };
    match succeed(answer.min(0)) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other,
    }
}

/// Runs this thread, and the threads and processes that it will start, before all others on its
/// core, except those with a higher priority.
pub(super) fn hurry(sched_priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the parameters are readable until the call returns; 0 is the calling thread.
    succeed(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) })
}

fn succeed(answer: libc::c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
