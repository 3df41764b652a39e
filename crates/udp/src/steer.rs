//! Selects which socket of a group that shares a port gets a datagram: in the kernel, by one byte
//! of the datagram.
//!
//! ```text
//!   first byte   byte that decides
//!   0xxxxxxx     1      where short headers have their destination connection id   RFC 8999 §5.2
//!   1xxxxxxx     6      where long headers have it, after version and length       RFC 8999 §5.1
//! ```
//! `byte % targets.len()` names a target, and the target says which socket gets the datagram, in
//! the order in which they were bound: while a worker is down, another one's socket stands in for
//! its own. The program is classic BPF, which needs no privilege. It sees only the first datagram
//! of a GRO bundle; the rest goes to the same socket.

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;

/// Attaches the program to the group of `socket`, replacing any previous one.
///
/// # Errors
/// Those of `setsockopt(2)`: the kernel does not support such programs (before Linux 4.5), or the
/// socket does not share its port.
pub(crate) fn attach(socket: &impl AsRawFd, targets: &[u8]) -> io::Result<()> {
    let filter = program(targets);
    let program = libc::sock_fprog {
        len: filter.len() as libc::c_ushort,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the pointer is to a live sock_fprog, whose filter is live and has the length that it
    // says; the kernel copies both and writes to neither.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Loads count from the start of the UDP payload; one beyond its end makes the program's result 0.
fn program(targets: &[u8]) -> Vec<libc::sock_filter> {
    use libc::{
        BPF_A, BPF_ABS, BPF_ALU, BPF_B, BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_MOD,
        BPF_RET,
    };
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let count = targets.len().clamp(1, usize::from(u8::MAX)) as u32;
    let mut program = vec![
        op(BPF_LD | BPF_B | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JSET | BPF_K, 0x80, 0, 2),
        op(BPF_LD | BPF_B | BPF_ABS, 6, 0, 0),
        op(BPF_JMP | BPF_JA, 1, 0, 0),
        op(BPF_LD | BPF_B | BPF_ABS, 1, 0, 0),
        op(BPF_ALU | BPF_MOD | BPF_K, count, 0, 0),
    ];
    for (index, target) in (0_u32..count).zip(targets) {
        let target = u32::from(*target);
        if target != index {
            program.push(op(BPF_JMP | BPF_JEQ | BPF_K, index, 0, 1));
            program.push(op(BPF_RET | BPF_K, target, 0, 0));
        }
    }
    program.push(op(BPF_RET | BPF_A, 0, 0, 0));
    program
}
