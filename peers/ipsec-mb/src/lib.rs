//! Intel's ipsec-mb behind the table of `squall-peers-table`: the functions for one packet, which
//! are in `glue.c`.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use squall_peers_table::{AES_128_GCM, AES_256_GCM, Table};

// SAFETY: declared so in `glue.c`.
unsafe extern "C" {
    fn glue_version() -> *const c_char;
    fn glue_kernel() -> *const c_char;
    fn glue_expand(
        is_256: bool,
        key: *const u8,
        iv: *const u8,
        header_key: *const u8,
    ) -> *mut c_void;
    fn glue_free(keys: *mut c_void);
    fn glue_seal(
        keys: *mut c_void,
        packet: *mut u8,
        header_len: usize,
        len: usize,
        number: u64,
    ) -> bool;
    fn glue_open(
        keys: *mut c_void,
        packet: *mut u8,
        header_len: usize,
        len: usize,
        number: u64,
    ) -> bool;
    fn glue_mask(keys: *mut c_void, sample: *const u8, mask: *mut u8) -> bool;
}

static TABLE: Table = Table {
    size: size_of::<Table>(),
    version: glue_version,
    kernel: glue_kernel,
    expand,
    free: glue_free,
    seal: glue_seal,
    open: glue_open,
    mask: glue_mask,
};

/// The one thing that this shared object exports.
// SAFETY: the name is the table's own, and nothing else in this shared object is exported under it.
#[unsafe(no_mangle)]
pub extern "C" fn squall_peer_table() -> *const Table {
    &raw const TABLE
}

/// # Safety
///
/// As [`Table::expand`] says.
unsafe extern "C" fn expand(
    suite: u32,
    key: *const u8,
    iv: *const u8,
    header_key: *const u8,
) -> *mut c_void {
    match suite {
        // SAFETY: the keys have the suite's lengths, the vector has `NONCE_LEN` bytes.
        AES_128_GCM | AES_256_GCM => unsafe {
            glue_expand(suite == AES_256_GCM, key, iv, header_key)
        },
        _ => null_mut(),
    }
}
