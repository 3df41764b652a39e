//! Keys, which C holds by pointer.

use protect::{HeaderKeyMaterial, KeyMaterial, Pair, Suite, initial};

use crate::call::{Status, array, check_out, guarded};

/// AES-128-GCM, by its number in TLS (RFC 8446, section B.4).
pub const SQUALL_AES_128_GCM: u16 = 0x1301;
/// AES-256-GCM.
pub const SQUALL_AES_256_GCM: u16 = 0x1302;
/// ChaCha20-Poly1305.
pub const SQUALL_CHACHA20_POLY1305: u16 = 0x1303;

/// Length in bytes of an IV.
pub const SQUALL_IV_LEN: usize = 12;

/// An expanded AEAD key of one direction. Threads may share it; only `squall_packet_key_shrink` and
/// `squall_packet_key_free` need exclusive access.
pub struct PacketKey(pub(crate) protect::PacketKey);

/// An expanded header-protection key of one direction. Threads may share it.
pub struct HeaderKey(pub(crate) protect::HeaderKey);

/// The keys of both directions. Each is freed by its own function.
#[repr(C)]
pub struct Keys {
    /// What this endpoint seals with.
    pub local_packet: *mut PacketKey,
    /// What this endpoint protects headers with.
    pub local_header: *mut HeaderKey,
    /// What this endpoint opens with.
    pub remote_packet: *mut PacketKey,
    /// What this endpoint removes header protection with.
    pub remote_header: *mut HeaderKey,
}

/// Expands an AEAD key (RFC 9001, section 5.1: "quic key" and "quic iv") and stores it in `*out`.
///
/// `key_len` is 16 for AES-128-GCM and 32 for the others. The caller keeps the bytes that it
/// passes, and wipes them. The key is freed with `squall_packet_key_free`.
///
/// # Safety
///
/// `key` is null or points to `key_len` bytes, `iv` is null or points to 12 bytes, and `out` is
/// null or points to a pointer that can be written.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_packet_key_new(
    suite: u16,
    key: *const u8,
    key_len: usize,
    iv: *const u8,
    out: *mut *mut PacketKey,
) -> Status {
    guarded(|| {
        check_out(out)?;
        let suite = Suite::from_tls_id(suite).ok_or(Status::Suite)?;
        // SAFETY: as the caller promises.
        let (key, iv) = unsafe { (array(key, key_len)?, array(iv, SQUALL_IV_LEN)?) };
        let iv = iv.try_into().map_err(|_| Status::Length)?;
        let material = KeyMaterial::new(suite, key, iv).ok_or(Status::Length)?;
        let key = Box::new(PacketKey(protect::PacketKey::new(&material)));
        // SAFETY: not null and aligned, as checked, and the caller promises that it can be written.
        unsafe { out.write(Box::into_raw(key)) };
        Ok(())
    })
}

/// Wipes and frees a key. Null is ignored.
///
/// # Safety
///
/// `key` is null, or comes from this library, was not freed before, and is not in use.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_packet_key_free(key: *mut PacketKey) {
    guarded(|| {
        if !key.is_null() {
            // SAFETY: it was made by `Box::into_raw`, and the caller gives it back.
            drop(unsafe { Box::from_raw(key) });
        }
        Ok(())
    });
}

/// Builds the larger tables of a busy key, up to 3 kB, unless they exist: for a caller that passes
/// full packets one at a time, since only calls with eight or more build them automatically. A
/// further call costs next to nothing.
///
/// # Safety
///
/// `key` is null or comes from this library, and is not freed meanwhile.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_packet_key_grow(key: *const PacketKey) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        unsafe { crate::call::one(key)? }.0.grow();
        Ok(())
    })
}

/// Drops the larger tables of a key, for a connection that becomes idle.
///
/// # Safety
///
/// `key` is null or comes from this library, and nothing else uses it meanwhile.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_packet_key_shrink(key: *mut PacketKey) -> Status {
    guarded(|| {
        check_out(key)?;
        // SAFETY: not null, and not shared, as the caller promises.
        unsafe { &mut *key }.0.shrink();
        Ok(())
    })
}

/// Expands a header-protection key (RFC 9001, section 5.1: "quic hp") and stores it in `*out`.
///
/// `key_len` is 16 for AES-128-GCM and 32 for the others. The caller keeps the bytes that it
/// passes, and wipes them. The key is freed with `squall_header_key_free`.
///
/// # Safety
///
/// `key` is null or points to `key_len` bytes, and `out` is null or points to a pointer that can be
/// written.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_header_key_new(
    suite: u16,
    key: *const u8,
    key_len: usize,
    out: *mut *mut HeaderKey,
) -> Status {
    guarded(|| {
        check_out(out)?;
        let suite = Suite::from_tls_id(suite).ok_or(Status::Suite)?;
        // SAFETY: as the caller promises.
        let key = unsafe { array(key, key_len)? };
        let material = HeaderKeyMaterial::new(suite, key).ok_or(Status::Length)?;
        let key = Box::new(HeaderKey(protect::HeaderKey::new(&material)));
        // SAFETY: not null and aligned, as checked, and the caller promises that it can be written.
        unsafe { out.write(Box::into_raw(key)) };
        Ok(())
    })
}

/// Wipes and frees a key. Null is ignored.
///
/// # Safety
///
/// `key` is null, or comes from this library, was not freed before, and is not in use.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_header_key_free(key: *mut HeaderKey) {
    guarded(|| {
        if !key.is_null() {
            // SAFETY: it was made by `Box::into_raw`, and the caller gives it back.
            drop(unsafe { Box::from_raw(key) });
        }
        Ok(())
    });
}

/// Derives the Initial keys of a connection (RFC 9001, section 5.2; RFC 9369, section 3.3) from the
/// destination connection id of the client's first packet, and stores them in `*out`.
///
/// `version` is 1 or 0x6b3343cf; any other gets the constants of version 1. `is_client` says whose
/// view it is: a client's local keys are the server's remote keys. An id has at most 20 bytes.
///
/// # Safety
///
/// `dcid` is null or points to `dcid_len` bytes, and `out` is null or can be written.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_initial_keys(
    version: u32,
    dcid: *const u8,
    dcid_len: usize,
    is_client: bool,
    out: *mut Keys,
) -> Status {
    guarded(|| {
        check_out(out)?;
        // RFC 9000, section 17.2.
        if dcid_len > 20 {
            return Err(Status::Length);
        }
        // SAFETY: as the caller promises.
        let dcid = unsafe { array(dcid, dcid_len)? };
        let Pair { local, remote } = initial::keys(version, dcid, is_client);
        let keys = Keys {
            local_packet: Box::into_raw(Box::new(PacketKey(local.packet))),
            local_header: Box::into_raw(Box::new(HeaderKey(local.header))),
            remote_packet: Box::into_raw(Box::new(PacketKey(remote.packet))),
            remote_header: Box::into_raw(Box::new(HeaderKey(remote.header))),
        };
        // SAFETY: not null and aligned, as checked, and the caller promises that it can be written.
        unsafe { out.write(keys) };
        Ok(())
    })
}
