//! Key bytes on their way from the handshake to an expanded key; wiped when dropped.

use std::fmt;

use zeroize::{Zeroize, Zeroizing};

use crate::suite::Suite;

/// Long enough for every suite's key.
const MAX_KEY_LEN: usize = 32;

/// AEAD key and initialisation vector of one direction (RFC 9001 §5.1: "quic key" and "quic iv").
#[derive(Clone)]
pub struct KeyMaterial {
    suite: Suite,
    key: [u8; MAX_KEY_LEN],
    iv: [u8; 12],
}

/// Header-protection key of one direction (RFC 9001 §5.1: "quic hp").
#[derive(Clone)]
pub struct HeaderKeyMaterial {
    suite: Suite,
    key: [u8; MAX_KEY_LEN],
}

fn padded(suite: Suite, key: &[u8]) -> Option<Zeroizing<[u8; MAX_KEY_LEN]>> {
    if key.len() != suite.key_len() {
        return None;
    }
    let mut out = Zeroizing::new([0; MAX_KEY_LEN]);
    out.get_mut(..key.len())?.copy_from_slice(key);
    Some(out)
}

impl KeyMaterial {
    /// `None` if the key's length is not the suite's.
    #[must_use]
    pub fn new(suite: Suite, key: &[u8], iv: &[u8; 12]) -> Option<Self> {
        let key = padded(suite, key)?;
        Some(Self {
            suite,
            key: *key,
            iv: *iv,
        })
    }

    /// The suite that the key is for.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The key, padded with zeros to 32 bytes if the suite's is shorter.
    pub(crate) fn padded_key(&self) -> &[u8; MAX_KEY_LEN] {
        &self.key
    }

    pub(crate) fn iv(&self) -> &[u8; 12] {
        &self.iv
    }
}

impl HeaderKeyMaterial {
    /// `None` if the key's length is not the suite's.
    #[must_use]
    pub fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        let key = padded(suite, key)?;
        Some(Self { suite, key: *key })
    }

    /// The suite that the key is for.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The key, padded with zeros to 32 bytes if the suite's is shorter.
    pub(crate) fn padded_key(&self) -> &[u8; MAX_KEY_LEN] {
        &self.key
    }
}

impl Drop for KeyMaterial {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
    }
}

impl Drop for HeaderKeyMaterial {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

// Secrets never reach a log: only the suite is shown.
impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyMaterial")
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HeaderKeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderKeyMaterial")
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_must_have_the_suites_length() {
        let bytes = [7; 33];
        for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
            for len in 0..=33 {
                let fits = len == suite.key_len();
                assert_eq!(
                    KeyMaterial::new(suite, &bytes[..len], &[0; 12]).is_some(),
                    fits
                );
                assert_eq!(HeaderKeyMaterial::new(suite, &bytes[..len]).is_some(), fits);
            }
        }
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let key = KeyMaterial::new(Suite::Aes128Gcm, &[0xab; 16], &[0xcd; 12]).unwrap();
        assert_eq!(format!("{key:?}"), "KeyMaterial { suite: Aes128Gcm, .. }");
    }
}
