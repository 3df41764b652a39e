//! The wrapped provider: how key material leaves rustls.
//!
//! rustls derives the keys of every level and each key update (RFC 9001 §5.1, §6.1) and hands them
//! to the [`Algorithm`] of the negotiated suite, which is to make key objects of them. [`Capture`]
//! is such an algorithm; its key objects encrypt nothing, they remember.
//!
//! rustls then gives those objects back as boxed traits, so the bytes have to come out through a
//! method of the trait. This file is the only one that knows how: a call to `encrypt_in_place` with
//! a packet number that no packet can have and a fixed header writes the material into the
//! "payload". The material goes from here straight into the zeroised types of `squall-protect`.

use std::sync::{Arc, OnceLock};

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider, aws_lc_rs};
use rustls::quic::{Algorithm, DirectionalKeys, HeaderProtectionKey, Keys, PacketKey, Tag};
use rustls::{CipherSuite, Error, SupportedCipherSuite, Tls13CipherSuite};
use squall_protect::{HeaderKeyMaterial, KeyMaterial, Suite};
use zeroize::{Zeroize, Zeroizing};

/// What protects one direction of one encryption level (RFC 9001 §5.1).
pub struct DirectionMaterial {
    /// AEAD key and IV: "quic key" and "quic iv".
    pub packet: KeyMaterial,
    /// Header protection key: "quic hp". Key updates leave it as it is (RFC 9001 §6.1).
    pub header: HeaderKeyMaterial,
}

/// What protects one encryption level, both directions.
pub struct LevelMaterial {
    /// For what this endpoint sends.
    pub local: DirectionMaterial,
    /// For what the peer sends.
    pub remote: DirectionMaterial,
}

/// aws-lc-rs wrapped by [`wrap`], with the hybrid X25519MLKEM768 as the preferred key exchange and
/// AES-128-GCM, AES-256-GCM, ChaCha20-Poly1305 in this order. Made once a process.
///
/// Build `rustls` configurations on it:
///
/// ```
/// # let roots = rustls::RootCertStore::empty();
/// let config = rustls::ClientConfig::builder_with_provider(squall_tls::provider())
///     .with_protocol_versions(&[&rustls::version::TLS13])?
///     .with_root_certificates(roots)
///     .with_no_client_auth();
/// # Ok::<(), rustls::Error>(())
/// ```
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        use aws_lc_rs::{cipher_suite, kx_group};
        Arc::new(wrap(CryptoProvider {
            cipher_suites: vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS13_AES_256_GCM_SHA384,
                cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            ],
            // The order is stated, not left to a rustls feature flag that any crate of the build
            // may turn: the first group is the one whose share goes into the first ClientHello.
            kx_groups: vec![
                kx_group::X25519MLKEM768,
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
            ],
            ..aws_lc_rs::default_provider()
        }))
    };
    PROVIDER.get_or_init(make).clone()
}

/// Makes a provider whose QUIC sessions give their key material to squall; everything else, TLS
/// over TCP included, works as in `base`.
///
/// Only the TLS 1.3 suites that QUIC can use here are kept (RFC 9001 §5.3: AES-128-GCM,
/// AES-256-GCM, ChaCha20-Poly1305). rustls refers to suites for the life of the process, so each call leaks three
/// small structs: call it once a provider and keep the result.
#[must_use]
pub fn wrap(base: CryptoProvider) -> CryptoProvider {
    let cipher_suites = base.cipher_suites.iter().filter_map(wrap_suite).collect();
    CryptoProvider {
        cipher_suites,
        ..base
    }
}

fn wrap_suite(suite: &SupportedCipherSuite) -> Option<SupportedCipherSuite> {
    let original = suite.tls13()?;
    let capture: &'static Capture = match original.common.suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => &AES_128_GCM,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => &AES_256_GCM,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => &CHACHA20_POLY1305,
        _ => return None,
    };
    let wrapped: &'static Tls13CipherSuite = Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: original.common.suite,
            hash_provider: original.common.hash_provider,
            confidentiality_limit: original.common.confidentiality_limit,
        },
        hkdf_provider: original.hkdf_provider,
        aead_alg: original.aead_alg,
        quic: Some(capture),
    }));
    Some(SupportedCipherSuite::Tls13(wrapped))
}

/// Whether every suite that a QUIC session of this provider could negotiate is one of ours.
///
/// Statics have addresses of their own, so being one of ours is being at one of three addresses.
/// A key made as a probe would tell as well, but foreign algorithms panic on keys of a wrong
/// length, and the right way there (an Initial key schedule) costs ten HKDF calls a session.
pub(crate) fn is_wrapped(provider: &CryptoProvider) -> bool {
    let mut algorithms = provider
        .cipher_suites
        .iter()
        .filter_map(|suite| suite.tls13()?.quic)
        .peekable();
    algorithms.peek().is_some()
        && algorithms.all(|algorithm| {
            let address = std::ptr::from_ref(algorithm).cast::<()>();
            [&AES_128_GCM, &AES_256_GCM, &CHACHA20_POLY1305]
                .into_iter()
                .any(|ours| std::ptr::from_ref(ours).cast::<()>() == address)
        })
}

/// The material of a level, taken out of the key objects that rustls made for it; `None` when they
/// are not ours.
pub(crate) fn level_material(keys: &Keys) -> Option<LevelMaterial> {
    Some(LevelMaterial {
        local: direction_material(&keys.local)?,
        remote: direction_material(&keys.remote)?,
    })
}

fn direction_material(keys: &DirectionalKeys) -> Option<DirectionMaterial> {
    let exported = export_packet_key(&*keys.packet)?;
    let header = export_header_key(&*keys.header)?;
    Some(DirectionMaterial {
        header: HeaderKeyMaterial::new(exported.suite, header.key())?,
        packet: exported.material()?,
    })
}

/// The material of one packet key; `None` when the key object is not ours.
pub(crate) fn packet_material(key: &dyn PacketKey) -> Option<KeyMaterial> {
    export_packet_key(key)?.material()
}

static AES_128_GCM: Capture = Capture {
    suite: Suite::Aes128Gcm,
    tls_id: 0x1301,
};
static AES_256_GCM: Capture = Capture {
    suite: Suite::Aes256Gcm,
    tls_id: 0x1302,
};
static CHACHA20_POLY1305: Capture = Capture {
    suite: Suite::ChaCha20Poly1305,
    tls_id: 0x1303,
};

/// The QUIC algorithm of a wrapped suite.
struct Capture {
    suite: Suite,
    /// RFC 8446 §B.4.
    tls_id: u16,
}

impl Algorithm for Capture {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        let mut copy = [0; IV_LEN];
        copy.copy_from_slice(iv.as_ref());
        Box::new(CapturedPacketKey {
            suite: self.suite,
            tls_id: self.tls_id,
            key,
            iv: Zeroizing::new(copy),
        })
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        Box::new(CapturedHeaderKey { key })
    }

    fn aead_key_len(&self) -> usize {
        self.suite.key_len()
    }
}

// RFC 9000 §12.3: packet numbers end at 2^62 - 1, so no caller can mean a packet by this one.
const EXPORT_NUMBER: u64 = u64::MAX;
/// 16 bytes, the length of a header protection sample (RFC 9001 §5.4.2).
const EXPORT_LABEL: &[u8; 16] = b"squall:keyexport";

const IV_LEN: usize = 12;
const MAX_KEY_LEN: usize = 32;
/// suite (2), key length (1), IV, key
const EXPORT_LEN: usize = 2 + 1 + IV_LEN + MAX_KEY_LEN;

struct CapturedPacketKey {
    suite: Suite,
    tls_id: u16,
    /// Wiped by rustls when dropped.
    key: AeadKey,
    iv: Zeroizing<[u8; IV_LEN]>,
}

impl PacketKey for CapturedPacketKey {
    fn encrypt_in_place(&self, number: u64, label: &[u8], out: &mut [u8]) -> Result<Tag, Error> {
        let out: &mut [u8; EXPORT_LEN] = out.try_into().map_err(|_| Error::EncryptError)?;
        let key = self.key.as_ref();
        if number != EXPORT_NUMBER || label != EXPORT_LABEL || key.len() > MAX_KEY_LEN {
            return Err(Error::EncryptError);
        }
        out[..2].copy_from_slice(&self.tls_id.to_be_bytes());
        // At most 32, checked above.
        out[2] = key.len() as u8;
        out[3..3 + IV_LEN].copy_from_slice(&self.iv[..]);
        out[3 + IV_LEN..][..key.len()].copy_from_slice(key);
        Ok(Tag::from(&[0; 16][..]))
    }

    fn decrypt_in_place<'a>(&self, _: u64, _: &[u8], _: &'a mut [u8]) -> Result<&'a [u8], Error> {
        Err(Error::DecryptError)
    }

    fn tag_len(&self) -> usize {
        squall_protect::TAG_LEN
    }

    fn confidentiality_limit(&self) -> u64 {
        self.suite.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.suite.integrity_limit()
    }
}

struct CapturedHeaderKey {
    /// Wiped by rustls when dropped.
    key: AeadKey,
}

impl HeaderProtectionKey for CapturedHeaderKey {
    fn encrypt_in_place(
        &self,
        label: &[u8],
        key_len: &mut u8,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let key = self.key.as_ref();
        if label != EXPORT_LABEL || out.len() != MAX_KEY_LEN || key.len() > MAX_KEY_LEN {
            return Err(Error::EncryptError);
        }
        // At most 32, checked above.
        *key_len = key.len() as u8;
        out[..key.len()].copy_from_slice(key);
        Ok(())
    }

    fn decrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::DecryptError)
    }

    fn sample_len(&self) -> usize {
        EXPORT_LABEL.len()
    }
}

/// A key on its way from rustls to `squall-protect`, wiped when dropped.
struct Exported {
    suite: Suite,
    iv: [u8; IV_LEN],
    key: ExportedKey,
}

impl Exported {
    fn material(&self) -> Option<KeyMaterial> {
        KeyMaterial::new(self.suite, self.key.key(), &self.iv)
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

struct ExportedKey {
    bytes: Zeroizing<[u8; MAX_KEY_LEN]>,
    len: usize,
}

impl ExportedKey {
    fn key(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn export_packet_key(key: &dyn PacketKey) -> Option<Exported> {
    let mut buf = Zeroizing::new([0; EXPORT_LEN]);
    key.encrypt_in_place(EXPORT_NUMBER, EXPORT_LABEL, &mut buf[..])
        .ok()?;
    // A foreign key would have encrypted the zeros: the id of a suite in the right place together
    // with that suite's key length is what ours write.
    let suite = Suite::from_tls_id(u16::from_be_bytes([buf[0], buf[1]]))?;
    let len = usize::from(buf[2]);
    if len != suite.key_len() {
        return None;
    }
    let mut exported = Exported {
        suite,
        iv: [0; IV_LEN],
        key: ExportedKey {
            bytes: Zeroizing::new([0; MAX_KEY_LEN]),
            len,
        },
    };
    exported.iv.copy_from_slice(&buf[3..3 + IV_LEN]);
    exported.key.bytes.copy_from_slice(&buf[3 + IV_LEN..]);
    Some(exported)
}

fn export_header_key(key: &dyn HeaderProtectionKey) -> Option<ExportedKey> {
    let mut bytes = Zeroizing::new([0; MAX_KEY_LEN]);
    let mut len = 0;
    key.encrypt_in_place(EXPORT_LABEL, &mut len, &mut bytes[..])
        .ok()?;
    let len = usize::from(len);
    (len <= MAX_KEY_LEN).then_some(ExportedKey { bytes, len })
}

#[cfg(test)]
mod tests {
    use rustls::Side;
    use rustls::quic::Version;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Key, IV and header key of both directions of the client's Initial keys.
    fn initial(version: Version) -> [[String; 3]; 2] {
        let suite = provider().cipher_suites[0].tls13().unwrap();
        let dcid = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
        let keys = suite
            .quic_suite()
            .unwrap()
            .keys(&dcid, Side::Client, version);
        [&keys.local, &keys.remote].map(|direction| {
            let packet = export_packet_key(&*direction.packet).unwrap();
            let header = export_header_key(&*direction.header).unwrap();
            assert_eq!(packet.suite, Suite::Aes128Gcm);
            [hex(packet.key.key()), hex(&packet.iv), hex(header.key())]
        })
    }

    // test: RFC 9001 §A.1 — what rustls derives arrives here byte for byte.
    #[test]
    fn exports_the_initial_keys_of_version_1() {
        assert_eq!(
            initial(Version::V1),
            [
                [
                    "1f369613dd76d5467730efcbe3b1a22d",
                    "fa044b2f42a3fd3b46fb255c",
                    "9f50449e04a0e810283a1e9933adedd2",
                ],
                [
                    "cf3a5331653c364c88f0f379b6067e37",
                    "0ac1493ca1905853b0bba03e",
                    "c206b8d9b9f0f37644430b490eeaa314",
                ],
            ]
        );
    }

    // test: RFC 9369 §A.1 — the other salt and the other labels.
    #[test]
    fn exports_the_initial_keys_of_version_2() {
        assert_eq!(
            initial(Version::V2),
            [
                [
                    "8b1a0bc121284290a29e0971b5cd045d",
                    "91f73e2351d8fa91660e909f",
                    "45b95e15235d6f45a6b19cbcb0294ba9",
                ],
                [
                    "82db637861d55e1d011f19ea71d5d2a7",
                    "dd13c276499c0249d3310652",
                    "edf6d05c83121201b436e16877593c3a",
                ],
            ]
        );
    }

    #[test]
    fn every_suite_exports_its_own_key_length() {
        for (suite, expected) in provider().cipher_suites.iter().zip([
            Suite::Aes128Gcm,
            Suite::Aes256Gcm,
            Suite::ChaCha20Poly1305,
        ]) {
            let quic = suite.tls13().unwrap().quic_suite().unwrap();
            let keys = quic.keys(b"any", Side::Server, Version::V1);
            let packet = export_packet_key(&*keys.local.packet).unwrap();
            assert_eq!(packet.suite, expected);
            assert_eq!(packet.key.len, expected.key_len());
            let header = export_header_key(&*keys.local.header).unwrap();
            assert_eq!(header.len, expected.key_len());
        }
    }

    #[test]
    fn captured_keys_encrypt_nothing() {
        let quic = provider().cipher_suites[0].tls13().unwrap();
        let keys = quic
            .quic_suite()
            .unwrap()
            .keys(b"any", Side::Client, Version::V1);
        let key = &*keys.local.packet;
        let mut payload = [7; EXPORT_LEN];
        assert!(key.encrypt_in_place(0, EXPORT_LABEL, &mut payload).is_err());
        assert!(
            key.encrypt_in_place(EXPORT_NUMBER, b"header", &mut payload)
                .is_err()
        );
        assert!(
            key.encrypt_in_place(EXPORT_NUMBER, EXPORT_LABEL, &mut payload[1..])
                .is_err()
        );
        assert!(key.decrypt_in_place(0, b"header", &mut payload).is_err());
        assert_eq!(payload, [7; EXPORT_LEN]);
        let mut first = 0;
        let header = &*keys.local.header;
        assert!(
            header
                .encrypt_in_place(&[0; 16], &mut first, &mut payload[..4])
                .is_err()
        );
        assert!(
            header
                .decrypt_in_place(EXPORT_LABEL, &mut first, &mut payload[..4])
                .is_err()
        );
    }

    #[test]
    fn a_foreign_key_exports_nothing() {
        let quic = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256
            .tls13()
            .unwrap()
            .quic_suite()
            .unwrap();
        let keys = quic.keys(b"any", Side::Client, Version::V1);
        assert!(level_material(&keys).is_none());
        assert!(packet_material(&*keys.local.packet).is_none());
    }

    #[test]
    fn recognises_wrapped_providers_only() {
        assert!(is_wrapped(&provider()));
        assert!(is_wrapped(&wrap(aws_lc_rs::default_provider())));
        assert!(!is_wrapped(&aws_lc_rs::default_provider()));
        // One foreign suite among ours could be the one that is negotiated.
        let mut mixed = provider().as_ref().clone();
        mixed.cipher_suites[2] = aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
        assert!(!is_wrapped(&mixed));
        mixed.cipher_suites.clear();
        assert!(!is_wrapped(&mixed));
    }

    #[test]
    fn prefers_the_hybrid_key_exchange() {
        assert_eq!(
            provider().kx_groups[0].name(),
            rustls::NamedGroup::X25519MLKEM768
        );
    }
}
