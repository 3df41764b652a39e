//! OpenSSL behind the table of `squall-peers-table`: the `EVP_CIPHER` interface, keys set once and
//! only the vector set for each packet, as its QUIC users do.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use openssl_sys as ffi;
use squall_peers_table::{
    AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, MASK_LEN, NONCE_LEN, SAMPLE_LEN, TAG_LEN, Table,
    nonce,
};

/// `OPENSSL_INFO_CPU_SETTINGS` of `openssl/crypto.h`: the CPU features that the library found.
const CPU_SETTINGS: c_int = 1008;

// SAFETY: declared so in `openssl/crypto.h`; `openssl-sys` leaves it out.
unsafe extern "C" {
    fn OPENSSL_info(kind: c_int) -> *const c_char;
}

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

/// A cipher context.
struct Context(*mut ffi::EVP_CIPHER_CTX);

impl Context {
    /// With cipher and key set, without a vector.
    ///
    /// # Safety
    ///
    /// `key` is of the cipher's length.
    unsafe fn new(cipher: *const ffi::EVP_CIPHER, key: *const u8, encrypts: bool) -> Option<Self> {
        let set = if encrypts {
            ffi::EVP_EncryptInit_ex
        } else {
            ffi::EVP_DecryptInit_ex
        };
        // SAFETY: a context that is used only where it is not null; the key has the cipher's
        // length.
        unsafe {
            let context = Self(ffi::EVP_CIPHER_CTX_new());
            let done = !context.0.is_null() && set(context.0, cipher, null_mut(), key, null()) == 1;
            done.then_some(context)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: from `EVP_CIPHER_CTX_new`, freed once; null is allowed.
        unsafe { ffi::EVP_CIPHER_CTX_free(self.0) }
    }
}

/// The keys of one direction, for sealing and for opening.
struct Keys {
    seal: Context,
    open: Context,
    header: Context,
    header_is_chacha20: bool,
    iv: [u8; NONCE_LEN],
}

extern "C" fn version() -> *const c_char {
    // SAFETY: a static string of the library.
    unsafe { ffi::OpenSSL_version(ffi::OPENSSL_VERSION) }
}

extern "C" fn kernel() -> *const c_char {
    // SAFETY: a static string of the library, or null.
    let told = unsafe { OPENSSL_info(CPU_SETTINGS) };
    if told.is_null() {
        c"not reported by the library".as_ptr()
    } else {
        told
    }
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
    let (cipher, header) = unsafe {
        match suite {
            AES_128_GCM => (ffi::EVP_aes_128_gcm(), ffi::EVP_aes_128_ecb()),
            AES_256_GCM => (ffi::EVP_aes_256_gcm(), ffi::EVP_aes_256_ecb()),
            CHACHA20_POLY1305 => (ffi::EVP_chacha20_poly1305(), ffi::EVP_chacha20()),
            _ => return null_mut(),
        }
    };
    // SAFETY: the keys have the suite's lengths, the vector has `NONCE_LEN` bytes.
    let (seal, open, header, iv) = unsafe {
        (
            Context::new(cipher, key, true),
            Context::new(cipher, key, false),
            Context::new(header, header_key, true),
            iv.cast::<[u8; NONCE_LEN]>().read(),
        )
    };
    let (Some(seal), Some(open), Some(header)) = (seal, open, header) else {
        return null_mut();
    };
    let keys = Keys {
        seal,
        open,
        header,
        header_is_chacha20: suite == CHACHA20_POLY1305,
        iv,
    };
    Box::into_raw(Box::new(keys)).cast()
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
    let (context, nonce) = (keys.seal.0, nonce(&keys.iv, number));
    let payload_len = len - header_len - TAG_LEN;
    let mut written = 0;
    // SAFETY: the packet has `len` bytes: header, payload and room for a tag. Input and output may
    // be the same place.
    unsafe {
        let payload = packet.add(header_len);
        let tag = payload.add(payload_len);
        ffi::EVP_EncryptInit_ex(context, null(), null_mut(), null(), nonce.as_ptr()) == 1
            && ffi::EVP_EncryptUpdate(
                context,
                null_mut(),
                &raw mut written,
                packet,
                header_len as c_int,
            ) == 1
            && ffi::EVP_EncryptUpdate(
                context,
                payload,
                &raw mut written,
                payload,
                payload_len as c_int,
            ) == 1
            && ffi::EVP_EncryptFinal_ex(context, tag, &raw mut written) == 1
            && ffi::EVP_CIPHER_CTX_ctrl(
                context,
                ffi::EVP_CTRL_GCM_GET_TAG,
                TAG_LEN as c_int,
                tag.cast(),
            ) == 1
    }
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
    let (context, nonce) = (keys.open.0, nonce(&keys.iv, number));
    let payload_len = len - header_len - TAG_LEN;
    let mut written = 0;
    // SAFETY: the packet has `len` bytes: header, ciphertext and tag. Input and output may be the
    // same place.
    unsafe {
        let payload = packet.add(header_len);
        let tag = payload.add(payload_len);
        ffi::EVP_DecryptInit_ex(context, null(), null_mut(), null(), nonce.as_ptr()) == 1
            && ffi::EVP_DecryptUpdate(
                context,
                null_mut(),
                &raw mut written,
                packet,
                header_len as c_int,
            ) == 1
            && ffi::EVP_DecryptUpdate(
                context,
                payload,
                &raw mut written,
                payload,
                payload_len as c_int,
            ) == 1
            && ffi::EVP_CIPHER_CTX_ctrl(
                context,
                ffi::EVP_CTRL_GCM_SET_TAG,
                TAG_LEN as c_int,
                tag.cast(),
            ) == 1
            && ffi::EVP_DecryptFinal_ex(context, tag, &raw mut written) == 1
    }
}

/// # Safety
///
/// As [`Table::mask`] says.
unsafe extern "C" fn mask(keys: *mut c_void, sample: *const u8, mask: *mut u8) -> bool {
    const ZEROS: [u8; MASK_LEN] = [0; MASK_LEN];
    // SAFETY: `keys` came from `expand`.
    let keys = unsafe { &*keys.cast::<Keys>() };
    let context = keys.header.0;
    let mut written = 0;
    if keys.header_is_chacha20 {
        // SAFETY: a vector of this cipher is counter and nonce, 16 bytes, as the sample (RFC 9001
        // §5.4.4); `MASK_LEN` bytes in and out.
        return unsafe {
            ffi::EVP_EncryptInit_ex(context, null(), null_mut(), null(), sample) == 1
                && ffi::EVP_EncryptUpdate(
                    context,
                    mask,
                    &raw mut written,
                    ZEROS.as_ptr(),
                    MASK_LEN as c_int,
                ) == 1
        };
    }
    let mut block = [0_u8; SAMPLE_LEN];
    // SAFETY: one whole block in, one block out (an encrypting context holds none back); the mask
    // has `MASK_LEN` bytes.
    unsafe {
        let done = ffi::EVP_EncryptUpdate(
            context,
            block.as_mut_ptr(),
            &raw mut written,
            sample,
            SAMPLE_LEN as c_int,
        );
        mask.copy_from_nonoverlapping(block.as_ptr(), MASK_LEN);
        done == 1
    }
}
