//! What a library that lives in a shared object of its own looks like to `squall-peers`.
//!
//! ```text
//!   squall-peers ── dlopen ──► libsquall_peers_boringssl.so ── squall_peer_table() ──► &Table
//!                ├─ dlopen ──► libsquall_peers_openssl.so   ── squall_peer_table() ──► &Table
//!                └─ dlopen ──► libsquall_peers_ipsec_mb.so  ── squall_peer_table() ──► &Table
//! ```
//!
//! Each shared object exports that one function and hides the library's own symbols, so that two
//! libraries with the same names live in one process. Plain C types only: both sides are built on
//! their own.

use std::ffi::{c_char, c_void};

/// The name of the one function that a shared object exports.
pub const ENTRY: &[u8] = b"squall_peer_table\0";

/// The type of that function.
pub type Entry = unsafe extern "C" fn() -> *const Table;

/// Bytes of an authentication tag.
pub const TAG_LEN: usize = 16;
/// Bytes of a nonce, and of the initialisation vector that it is made from.
pub const NONCE_LEN: usize = 12;
/// Bytes of the ciphertext that header protection reads.
pub const SAMPLE_LEN: usize = 16;
/// Bytes of a header-protection mask.
pub const MASK_LEN: usize = 5;

/// [`Table::expand`]'s name for AES-128-GCM.
pub const AES_128_GCM: u32 = 0;
/// [`Table::expand`]'s name for AES-256-GCM.
pub const AES_256_GCM: u32 = 1;
/// [`Table::expand`]'s name for ChaCha20-Poly1305.
pub const CHACHA20_POLY1305: u32 = 2;

/// A library's packet protection, one packet a call.
#[repr(C)]
pub struct Table {
    /// `size_of::<Table>()` where the shared object was built: a loader refuses another one.
    pub size: usize,
    /// The library's own words for its version; a static string.
    pub version: unsafe extern "C" fn() -> *const c_char,
    /// Which code the library chooses on this CPU; a static string.
    pub kernel: unsafe extern "C" fn() -> *const c_char,
    /// Expands the keys of one direction: `key` and `header_key` are of the suite's length, `iv`
    /// of [`NONCE_LEN`]. Null where the library refuses.
    pub expand: unsafe extern "C" fn(
        suite: u32,
        key: *const u8,
        iv: *const u8,
        header_key: *const u8,
    ) -> *mut c_void,
    /// Frees what `expand` returned.
    pub free: unsafe extern "C" fn(keys: *mut c_void),
    /// Seals the `len` bytes at `packet` in place: a header of `header_len` bytes, a payload, and
    /// room for a tag.
    pub seal: Work,
    /// Opens the same in place; false where the tag does not match.
    pub open: Work,
    /// Makes a header-protection mask of [`MASK_LEN`] bytes from a sample of [`SAMPLE_LEN`] bytes.
    pub mask: unsafe extern "C" fn(keys: *mut c_void, sample: *const u8, mask: *mut u8) -> bool,
}

/// What works on one packet with the given number.
pub type Work = unsafe extern "C" fn(
    keys: *mut c_void,
    packet: *mut u8,
    header_len: usize,
    len: usize,
    number: u64,
) -> bool;

/// The nonce of a packet (RFC 9001 §5.3): its number, in network order, over the last bytes of the
/// vector.
#[inline]
#[must_use]
pub fn nonce(iv: &[u8; NONCE_LEN], number: u64) -> [u8; NONCE_LEN] {
    let mut nonce = *iv;
    for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    nonce
}
