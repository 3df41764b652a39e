//! Header-protection masks for callers that apply them themselves.

use protect::{MASK_LEN, SAMPLE_LEN};

use crate::call::{Status, array, array_mut, guarded, one};
use crate::keys::HeaderKey;

/// Length in bytes of the ciphertext sample that header protection reads (RFC 9001, section 5.4.2).
pub const SQUALL_SAMPLE_LEN: usize = 16;
/// Length in bytes of a header-protection mask.
pub const SQUALL_MASK_LEN: usize = 5;

const _: () = assert!(SQUALL_SAMPLE_LEN == SAMPLE_LEN && SQUALL_MASK_LEN == MASK_LEN);

/// Computes the header-protection masks of `count` samples (RFC 9001, sections 5.4.3 and 5.4.4).
///
/// The first byte of a mask, limited to its low four bits for a long header and five for a short
/// one, is XORed onto the first byte of the packet, and the others onto the packet number. Many
/// samples in one call cost less than one call for each.
///
/// # Safety
///
/// `key` is null or comes from this library. `samples` and `masks` are null or point to `count`
/// samples and masks, which do not overlap.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_masks(
    key: *const HeaderKey,
    samples: *const [u8; SQUALL_SAMPLE_LEN],
    masks: *mut [u8; SQUALL_MASK_LEN],
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, samples, masks) =
            unsafe { (one(key)?, array(samples, count)?, array_mut(masks, count)?) };
        key.0.masks(samples, masks);
        Ok(())
    })
}
