//! AES-GCM, compiled for each register width.

use crate::kernel::entry::define_kernel;

define_kernel!(
    aesni,
    crate::kernel::x86_64::Aesni,
    gcm::SHORT,
    "aes,pclmulqdq,ssse3,sse4.1"
);

define_kernel!(
    vaes256,
    crate::kernel::x86_64::Vaes256,
    gcm::SHORT,
    "vaes,vpclmulqdq,avx2,aes,pclmulqdq"
);

// A chunk is twice as long, and the table must hold the powers of one.
define_kernel!(
    vaes512,
    crate::kernel::x86_64::vaes512::Vaes512,
    2 * gcm::SHORT,
    "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq"
);
