//! Which kernels run.

use std::ffi::{CStr, c_char};
use std::panic::catch_unwind;

use protect::{KernelKind, Suite, chosen_kernel};

/// The name of the kernel that keys of a suite use on this CPU, such as `vaes512`; null for an
/// unknown suite. The text is static.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub extern "C" fn squall_kernel_name(suite: u16) -> *const c_char {
    let name = || Some(name_of(chosen_kernel(Suite::from_tls_id(suite)?)));
    match catch_unwind(name) {
        Ok(Some(name)) => name.as_ptr(),
        _ => std::ptr::null(),
    }
}

/// [`KernelKind::name`] as a C string.
fn name_of(kind: KernelKind) -> &'static CStr {
    match kind {
        KernelKind::Portable => c"portable",
        KernelKind::Neon => c"neon",
        KernelKind::NeonAes => c"neon-aes",
        KernelKind::Avx2 => c"avx2",
        KernelKind::Aesni => c"aesni",
        KernelKind::Vaes256 => c"vaes256",
        KernelKind::Avx512 => c"avx512",
        KernelKind::Vaes512 => c"vaes512",
        _ => c"unnamed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_names_match_those_of_rust() {
        for kind in protect::kernels_available() {
            assert_eq!(name_of(kind).to_str(), Ok(kind.name()));
        }
        assert!(squall_kernel_name(0x1304).is_null());
        assert!(!squall_kernel_name(0x1303).is_null());
    }
}
