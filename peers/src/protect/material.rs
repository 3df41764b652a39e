//! The keys of a run: fixed, since no measurement depends on them.

use squall_protect::{HeaderKeyMaterial, KeyMaterial};

use super::args::Suite;

/// The IV for every suite.
pub(crate) const IV: [u8; 12] = *b"\x0d\x11\x17\x1f\x25\x2b\x35\x3b\x43\x49\x53\x5f";
const KEY: [u8; 32] = [0x5a; 32];
const HEADER_KEY: [u8; 32] = [0xc3; 32];

/// The AEAD key, of the suite's length.
pub(crate) fn key(suite: Suite) -> &'static [u8] {
    &KEY[..suite.own().key_len()]
}

/// The header-protection key, of the suite's length.
pub(crate) fn header_key(suite: Suite) -> &'static [u8] {
    &HEADER_KEY[..suite.own().key_len()]
}

/// The same for squall.
pub(crate) fn own(suite: Suite) -> (KeyMaterial, HeaderKeyMaterial) {
    (
        KeyMaterial::new(suite.own(), key(suite), &IV).expect("the key has the suite's length"),
        HeaderKeyMaterial::new(suite.own(), header_key(suite))
            .expect("the key has the suite's length"),
    )
}
