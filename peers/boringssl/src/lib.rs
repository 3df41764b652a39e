//! BoringSSL behind the table of `squall-peers-table`: the `EVP_AEAD` interface, which its QUIC
//! users call too.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use boring_sys as ffi;
use squall_peers_table::{
    AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, MASK_LEN, NONCE_LEN, SAMPLE_LEN, TAG_LEN, Table,
    nonce,
};

static TABLE: Table = Table {
    size: size_of::<Table>(),
    version,
    kernel,
    expand,
    free,
    seal,
    open,
    mask,
};

/// The one thing that this shared object exports.
// SAFETY: the name is the table's own, and nothing else in this shared object is exported under it.
#[unsafe(no_mangle)]
pub extern "C" fn squall_peer_table() -> *const Table {
    &raw const TABLE
}

/// The keys of one direction.
struct Keys {
    aead: *mut ffi::EVP_AEAD_CTX,
    iv: [u8; NONCE_LEN],
    header: Header,
}

#[allow(
    clippy::large_enum_variant,
    reason = "two exist in a run; a box would be one more pointer to follow for each packet"
)]
enum Header {
    Aes(ffi::AES_KEY),
    ChaCha20([u8; 32]),
}

impl Drop for Keys {
    fn drop(&mut self) {
        // SAFETY: `aead` came from `EVP_AEAD_CTX_new` and is freed once.
        unsafe { ffi::EVP_AEAD_CTX_free(self.aead) }
    }
}

extern "C" fn version() -> *const c_char {
    // The library has no release number of its own; this is the level of its interface.
    const { assert!(ffi::BORINGSSL_API_VERSION == 44, "the text below names it") }
    c"BoringSSL, API level 44".as_ptr()
}

/// `crypto/fipsmodule/aes/gcm.cc.inc` chooses by these features, in this order; the library has no
/// function that reports the choice.
extern "C" fn kernel() -> *const c_char {
    if std::env::var_os("OPENSSL_ia32cap").is_some() {
        return c"not reported by the library; OPENSSL_ia32cap is set and changes its choice"
            .as_ptr();
    }
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let wide = has!("vaes") && has!("vpclmulqdq") && has!("avx2");
        let zmm = has!("avx512bw") && has!("avx512vl") && has!("bmi2");
        if wide && zmm {
            return c"by its rule for these CPU features: aes_gcm_*_vaes_avx512 (not on Intel before Sapphire Rapids)"
                .as_ptr();
        }
        if wide {
            return c"by its rule for these CPU features: aes_gcm_*_vaes_avx2".as_ptr();
        }
        if has!("aes") && has!("pclmulqdq") {
            return c"by its rule for these CPU features: aesni_gcm_*, 128 bits".as_ptr();
        }
    }
    c"not reported by the library".as_ptr()
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
    // SAFETY: these return pointers to the library's own constants.
    let (aead, key_len) = unsafe {
        match suite {
            AES_128_GCM => (ffi::EVP_aead_aes_128_gcm(), 16),
            AES_256_GCM => (ffi::EVP_aead_aes_256_gcm(), 32),
            CHACHA20_POLY1305 => (ffi::EVP_aead_chacha20_poly1305(), 32),
            _ => return null_mut(),
        }
    };
    // SAFETY: `key` has `key_len` bytes, which is the length of that AEAD's keys.
    let aead = unsafe { ffi::EVP_AEAD_CTX_new(aead, key, key_len, TAG_LEN) };
    if aead.is_null() {
        return null_mut();
    }
    let header = if suite == CHACHA20_POLY1305 {
        // SAFETY: a header key of this suite has 32 bytes.
        Header::ChaCha20(unsafe { header_key.cast::<[u8; 32]>().read() })
    } else {
        // SAFETY: plain integers, for which zeros are valid.
        let mut aes: ffi::AES_KEY = unsafe { std::mem::zeroed() };
        // SAFETY: `header_key` has `key_len` bytes, `aes` is exclusive.
        if unsafe { ffi::AES_set_encrypt_key(header_key, 8 * key_len as u32, &raw mut aes) } != 0 {
            // SAFETY: made above and not kept.
            unsafe { ffi::EVP_AEAD_CTX_free(aead) };
            return null_mut();
        }
        Header::Aes(aes)
    };
    // SAFETY: the vector has `NONCE_LEN` bytes.
    let iv = unsafe { iv.cast::<[u8; NONCE_LEN]>().read() };
    Box::into_raw(Box::new(Keys { aead, iv, header })).cast()
}

/// # Safety
///
/// As [`Table::free`] says.
unsafe extern "C" fn free(keys: *mut c_void) {
    // SAFETY: `keys` came from `expand` and is freed once.
    drop(unsafe { Box::from_raw(keys.cast::<Keys>()) });
}

/// # Safety
///
/// As [`Table::seal`] says.
unsafe extern "C" fn seal(
    keys: *mut c_void,
    packet: *mut u8,
    header_len: usize,
    len: usize,
    number: u64,
) -> bool {
    // SAFETY: `keys` came from `expand`.
    let keys = unsafe { &*keys.cast::<Keys>() };
    let nonce = nonce(&keys.iv, number);
    let mut written = 0;
    // SAFETY: the packet has `len` bytes: the payload's place and the tag's behind `header_len`
    // bytes of header. Input and output may be the same place.
    let done = unsafe {
        let payload = packet.add(header_len);
        let room = len - header_len;
        ffi::EVP_AEAD_CTX_seal(
            keys.aead,
            payload,
            &raw mut written,
            room,
            nonce.as_ptr(),
            NONCE_LEN,
            payload,
            room - TAG_LEN,
            packet,
            header_len,
        )
    };
    done == 1
}

/// # Safety
///
/// As [`Table::open`] says.
unsafe extern "C" fn open(
    keys: *mut c_void,
    packet: *mut u8,
    header_len: usize,
    len: usize,
    number: u64,
) -> bool {
    // SAFETY: `keys` came from `expand`.
    let keys = unsafe { &*keys.cast::<Keys>() };
    let nonce = nonce(&keys.iv, number);
    let mut written = 0;
    // SAFETY: the packet has `len` bytes: ciphertext and tag behind `header_len` bytes of header.
    // Input and output may be the same place.
    let done = unsafe {
        let payload = packet.add(header_len);
        let room = len - header_len;
        ffi::EVP_AEAD_CTX_open(
            keys.aead,
            payload,
            &raw mut written,
            room,
            nonce.as_ptr(),
            NONCE_LEN,
            payload,
            room,
            packet,
            header_len,
        )
    };
    done == 1
}

/// # Safety
///
/// As [`Table::mask`] says.
unsafe extern "C" fn mask(keys: *mut c_void, sample: *const u8, mask: *mut u8) -> bool {
    // SAFETY: `keys` came from `expand`.
    let keys = unsafe { &*keys.cast::<Keys>() };
    match &keys.header {
        Header::Aes(aes) => {
            let mut block = [0_u8; SAMPLE_LEN];
            // SAFETY: one block in, one block out; the mask has `MASK_LEN` bytes.
            unsafe {
                ffi::AES_encrypt(sample, block.as_mut_ptr(), aes);
                mask.copy_from_nonoverlapping(block.as_ptr(), MASK_LEN);
            }
        }
        Header::ChaCha20(key) => {
            const ZEROS: [u8; MASK_LEN] = [0; MASK_LEN];
            // SAFETY: the sample is 4 bytes of counter and a nonce of 12 (RFC 9001 §5.4.4);
            // `MASK_LEN` bytes in and out.
            unsafe {
                let counter = u32::from_le_bytes(sample.cast::<[u8; 4]>().read());
                ffi::CRYPTO_chacha_20(
                    mask,
                    ZEROS.as_ptr(),
                    MASK_LEN,
                    key.as_ptr(),
                    sample.add(4),
                    counter,
                );
            }
        }
    }
    true
}
