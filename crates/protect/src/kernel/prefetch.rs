//! Prefetching memory before it is read.
//!
//! The application's data is mostly cold when it is sealed: when a sender gets its turn on a link,
//! others have pushed that memory out of the caches. The hardware follows the reads within a
//! packet, but not to a packet's last bytes, which are read first, nor across page boundaries.

/// Bytes from one packet's data to the next one's, approximately: as in a full-sized bundle, whose
/// data mostly lies in one piece.
const NEXT_PACKET: usize = 1472;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the data of a packet, at its first and its last bytes.
#[inline(always)]
pub(crate) fn ends(data: &[u8]) {
    if let (Some(first), Some(last)) = (data.first(), data.last()) {
        line(first);
        line(last);
    }
}

/// Prefetches the next packet's bytes in the place of the `len` bytes at `here`, and one line more:
/// packets do not end with a whole number of lines.
#[inline(always)]
pub(crate) fn next_packet<T>(here: &[T], len: usize) {
    let here = here.as_ptr().cast::<u8>();
    for offset in (0..=len).step_by(LINE) {
        line(here.wrapping_add(NEXT_PACKET + offset));
    }
}

/// Prefetches the memory of a value that will be read soon, such as the key of a connection that
/// was idle for some time. Does nothing on CPUs other than x86-64.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_memory(std::ptr::from_ref(value).cast(), size_of_val(value));
}

/// Prefetches the `len` bytes of memory from `start` on, as [`prefetch`] does for a value. They
/// need not exist: nothing is read or written.
#[inline(always)]
pub fn prefetch_memory(start: *const u8, len: usize) {
    for offset in (0..len).step_by(LINE) {
        line(start.wrapping_add(offset));
    }
}

/// Prefetches the cache line of a byte, which need not exist.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn line(byte: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    // SAFETY: every x86-64 CPU has the instruction. It faults on no address, and reads and writes
    // nothing that a program can see.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(byte.cast()) }
}

/// Stable Rust has no way to ask.
#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
const fn line(_byte: *const u8) {}
