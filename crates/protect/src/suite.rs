//! The cipher suites of TLS 1.3 that QUIC uses, and how much one key may protect.

/// An AEAD with its header-protection cipher (RFC 9001 §5.3, §5.4).
///
/// `TLS_AES_128_CCM_SHA256` is not offered: no one negotiates it. `TLS_AES_128_CCM_8_SHA256` must
/// not be (RFC 9001 §5.3).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Suite {
    /// AEAD_AES_128_GCM; header protection with AES-128.
    Aes128Gcm,
    /// AEAD_AES_256_GCM; header protection with AES-256.
    Aes256Gcm,
    /// AEAD_CHACHA20_POLY1305; header protection with ChaCha20.
    ChaCha20Poly1305,
}

impl Suite {
    /// The suite of a TLS 1.3 cipher suite number (RFC 8446 §B.4).
    #[must_use]
    pub const fn from_tls_id(id: u16) -> Option<Self> {
        match id {
            0x1301 => Some(Self::Aes128Gcm),
            0x1302 => Some(Self::Aes256Gcm),
            0x1303 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Length in bytes of the AEAD key, and of the header-protection key.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// How many packets may be sealed with one key before it must be updated.
    #[must_use]
    pub const fn confidentiality_limit(self) -> u64 {
        match self {
            // RFC 9001 §6.6, for packets of up to 2^11 bytes (§B.1.1): 2^23 packets.
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 23,
            // RFC 9001 §6.6: greater than the number of possible packets, 2^62.
            Self::ChaCha20Poly1305 => 1 << 62,
        }
    }

    /// How many forged packets may be tried over all keys of a connection before it must be closed.
    #[must_use]
    pub const fn integrity_limit(self) -> u64 {
        match self {
            // RFC 9001 §6.6.
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 52,
            Self::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // test: RFC 9001 §6.6, RFC 8446 §B.4
    fn limits_and_code_points_match_the_rfcs() {
        for (id, suite, key_len, confidentiality, integrity) in [
            (
                0x1301,
                Suite::Aes128Gcm,
                16,
                8_388_608,
                4_503_599_627_370_496,
            ),
            (
                0x1302,
                Suite::Aes256Gcm,
                32,
                8_388_608,
                4_503_599_627_370_496,
            ),
            (0x1303, Suite::ChaCha20Poly1305, 32, 1 << 62, 68_719_476_736),
        ] {
            assert_eq!(Suite::from_tls_id(id), Some(suite));
            assert_eq!(suite.key_len(), key_len);
            assert_eq!(suite.confidentiality_limit(), confidentiality);
            assert_eq!(suite.integrity_limit(), integrity);
        }
        assert_eq!(Suite::from_tls_id(0x1304), None);
        assert_eq!(Suite::from_tls_id(0x1305), None);
    }
}
