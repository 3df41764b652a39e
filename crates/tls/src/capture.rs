//! The wrapped provider: how secrets leave rustls.
//!
//! rustls derives a traffic secret for every direction of every level (RFC 9001 §5.1), expands it
//! into keys with the labels of the QUIC version that the session was made for, and hands those to
//! the [`Algorithm`] of the negotiated suite, which is to make key objects of them. But the version
//! may still change in the middle of a handshake (compatible version negotiation, RFC 9368 §2.3),
//! and with it the labels (RFC 9369 §3.3.2). So it is the secrets that are taken out here, not the
//! keys:
//!
//! ```text
//!  rustls: secret ─▶ SecretHkdf::expander_for_okm ─▶ expand "quic key", 31 bytes ─▶ bytes 0..31
//!                                                 └▶ expand "quic hp",  31 bytes ─▶ the rest
//!                    Capture: key objects that encrypt nothing, they remember
//!  squall: exported(keys) ─▶ the secret ─▶ schedule.rs: keys of whatever version
//! ```
//! The exporter secret (RFC 8446 §7.5) comes out in a similar way, by [`exporter_secret`].
//!
//! No suite has a key of 31 bytes, so an expansion of that length is one that [`Capture`] asked
//! for; all others, those of TLS over TCP included, are done as by the provider below.
//!
//! rustls gives the key objects back as boxed traits, so the bytes have to come out through a
//! method of the trait. This file is the only one that knows how: a call to `encrypt_in_place` with
//! a packet number that no packet can have and a fixed header writes them into the "payload".

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use rustls::crypto::{ActiveKeyExchange, CipherSuiteCommon, CryptoProvider, hmac};
use rustls::quic::{Algorithm, DirectionalKeys, HeaderProtectionKey, Keys, PacketKey, Tag};
use rustls::{CipherSuite, Error, SupportedCipherSuite, Tls13CipherSuite};
use squall_protect::Suite;
use zeroize::{Zeroize, Zeroizing};

/// Wraps a provider so that its QUIC sessions give their key material to squall. Everything else,
/// TLS over TCP included, works as in `base`: key exchange, signatures and random numbers are its
/// own. QUIC packets are sealed and opened by squall's packet protection, whatever the provider; so
/// a provider that is validated (FIPS 140-3) does not make a validated QUIC stack.
///
/// `base` can be any provider, whether or not it supports QUIC itself. Of its TLS 1.3 suites only
/// those are kept that QUIC can use here (RFC 9001 §5.3: AES-128-GCM, AES-256-GCM,
/// ChaCha20-Poly1305); those of TLS 1.2 are kept for TLS over TCP, so the result can be a process's
/// default provider. rustls refers to suites for the life of the process, so each call leaks six
/// small structs: call it once for a provider, and keep the result.
///
/// ```
/// # let roots = rustls::RootCertStore::empty();
/// # use squall_tls as squall;
/// # use std::sync::Arc;
/// let provider = Arc::new(squall::wrap(rustls_graviola::default_provider()));
/// let config = rustls::ClientConfig::builder_with_provider(provider)
///     .with_protocol_versions(&[&rustls::version::TLS13])?
///     .with_root_certificates(roots)
///     .with_no_client_auth();
/// # Ok::<(), rustls::Error>(())
/// ```
#[must_use]
pub fn wrap(base: CryptoProvider) -> CryptoProvider {
    let suites = base.cipher_suites.iter();
    let kept = suites.filter_map(|suite| match suite.tls13() {
        Some(tls13) => wrap_suite(tls13, tls13.hkdf_provider),
        None => Some(*suite),
    });
    CryptoProvider {
        cipher_suites: kept.collect(),
        ..base
    }
}

pub(crate) fn wrap_suite(
    original: &Tls13CipherSuite,
    hkdf: &'static dyn Hkdf,
) -> Option<SupportedCipherSuite> {
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
        hkdf_provider: Box::leak(Box::new(SecretHkdf(hkdf))),
        aead_alg: original.aead_alg,
        quic: Some(capture),
    }));
    Some(SupportedCipherSuite::Tls13(wrapped))
}

/// Whether every suite that a QUIC session of this provider could negotiate is one of ours.
///
/// Statics have addresses of their own, so being one of ours is being at one of three addresses.
/// Making a key would show it as well, but foreign algorithms panic on keys of a wrong length, and
/// the right way there (an Initial key schedule) costs ten HKDF calls a session.
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

/// The traffic secrets of one level, both directions.
pub(crate) struct LevelSecrets {
    pub(crate) local: Secret,
    pub(crate) remote: Secret,
}

/// A traffic secret and the suite that it is for.
pub(crate) struct Secret {
    pub(crate) suite: Suite,
    /// Wiped by rustls when dropped.
    pub(crate) okm: OkmBlock,
}

/// The secrets of a level, taken out of the key objects that rustls made for it; `None` when they
/// are not ours.
pub(crate) fn level_secrets(keys: &Keys) -> Option<LevelSecrets> {
    Some(LevelSecrets {
        local: direction_secret(&keys.local)?,
        remote: direction_secret(&keys.remote)?,
    })
}

/// The secret of one direction; `None` when the key objects are not ours.
pub(crate) fn direction_secret(keys: &DirectionalKeys) -> Option<Secret> {
    let (tls_id, front) = export_packet_key(&*keys.packet)?;
    // A foreign key would have encrypted the zeros: the id of a suite in the right place is what
    // ours write.
    let suite = Suite::from_tls_id(tls_id)?;
    let rest = export_header_key(&*keys.header)?;
    let mut whole = Zeroizing::new([0; 2 * PIECE]);
    whole[..PIECE].copy_from_slice(&front[..]);
    whole[PIECE..].copy_from_slice(&rest[..]);
    Some(Secret {
        suite,
        okm: OkmBlock::new(&whole[..secret_len(suite)]),
    })
}

/// Bytes of a secret: those of the suite's hash (RFC 8446 §7.1, §B.4).
pub(crate) const fn secret_len(suite: Suite) -> usize {
    match suite {
        Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => 32,
        Suite::Aes256Gcm => 48,
    }
}

/// Bytes of a secret that one key object carries: a length that no cipher's key has.
const PIECE: usize = 31;
const _: () = assert!(2 * PIECE >= secret_len(Suite::Aes256Gcm));

/// The exporter secret of a session whose `export` is given: a function that fills a buffer with
/// the key material that rustls exports for a label. `None` before the handshake is complete.
///
/// rustls derives a secret for the label, and expands that. For the label [`HAND_OVER`] the derived
/// secret is the exporter secret itself with a byte behind it, and an expander made of a secret
/// with such a byte gives the secret away.
pub(crate) fn exporter_secret(
    suite: &Tls13CipherSuite,
    export: impl FnOnce(&mut [u8], &[u8]) -> Result<(), Error>,
) -> Option<OkmBlock> {
    let mut secret = Zeroizing::new([0; OkmBlock::MAX_LEN]);
    let secret = &mut secret[..suite.common.hash_provider.output_len()];
    export(secret, HAND_OVER).ok()?;
    Some(OkmBlock::new(secret))
}

/// The label for which the exporter secret itself is exported. It cannot be an application's:
/// RFC 5705 §4 has labels be printable.
const HAND_OVER: &[u8] = b"\0squall: exporter secret";

/// An HKDF whose expanders give the secret itself where [`Capture`] asks for keys.
struct SecretHkdf(&'static dyn Hkdf);

impl Hkdf for SecretHkdf {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        self.0.extract_from_zero_ikm(salt)
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        self.0.extract_from_secret(salt, secret)
    }

    fn extract_from_kx_shared_secret(
        &self,
        salt: Option<&[u8]>,
        kx: Box<dyn ActiveKeyExchange>,
        peer_pub_key: &[u8],
    ) -> Result<Box<dyn HkdfExpander>, Error> {
        self.0.extract_from_kx_shared_secret(salt, kx, peer_pub_key)
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        let mut secret = Zeroizing::new([0; OkmBlock::MAX_LEN]);
        let bytes = okm.as_ref();
        secret[..bytes.len()].copy_from_slice(bytes);
        // Secrets are as long as the hash. One byte more: it is to be handed over.
        if let [exported @ .., _] = bytes
            && [32, 48].contains(&exported.len())
        {
            return Box::new(HandOver {
                secret,
                len: exported.len(),
            });
        }
        Box::new(SecretExpander {
            inner: self.0.expander_for_okm(okm),
            secret,
        })
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> hmac::Tag {
        self.0.hmac_sign(key, message)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

struct SecretExpander {
    inner: Box<dyn HkdfExpander>,
    secret: Zeroizing<[u8; OkmBlock::MAX_LEN]>,
}

impl HkdfExpander for SecretExpander {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        // HkdfLabel (RFC 8446 §7.1): length, label's length, "tls13 ", label, context.
        let at = match info {
            [length, _, _, label, ..] if *length == (PIECE as u16).to_be_bytes() => match *label {
                b"quic key" | b"quicv2 key" => Some(0),
                b"quic hp" | b"quicv2 hp" => Some(PIECE),
                _ => None,
            },
            _ => None,
        };
        let Some(at) = at else {
            return self.inner.expand_slice(info, output);
        };
        // rustls expands into the longest key that there is and cuts it to the length asked for.
        let len = output.len().min(PIECE);
        output[..len].copy_from_slice(&self.secret[at..at + len]);
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        if let [_, _, _, label, ..] = info
            && *label == HAND_OVER
        {
            return OkmBlock::new(&self.secret[..=self.inner.hash_len()]);
        }
        self.inner.expand_block(info)
    }

    fn hash_len(&self) -> usize {
        self.inner.hash_len()
    }
}

/// The expander of a secret that is to be handed over.
struct HandOver {
    secret: Zeroizing<[u8; OkmBlock::MAX_LEN]>,
    len: usize,
}

impl HkdfExpander for HandOver {
    fn expand_slice(&self, _: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        if output.len() != self.len {
            return Err(OutputLengthError);
        }
        output.copy_from_slice(&self.secret[..self.len]);
        Ok(())
    }

    fn expand_block(&self, _: &[&[u8]]) -> OkmBlock {
        OkmBlock::new(&self.secret[..self.len])
    }

    fn hash_len(&self) -> usize {
        self.len
    }
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
    fn packet_key(&self, key: AeadKey, _: Iv) -> Box<dyn PacketKey> {
        Box::new(CapturedPacketKey {
            suite: self.suite,
            tls_id: self.tls_id,
            key,
        })
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        Box::new(CapturedHeaderKey { key })
    }

    fn aead_key_len(&self) -> usize {
        PIECE
    }
}

// RFC 9000 §12.3: packet numbers end at 2^62 - 1, so no caller can mean a packet by this one.
const EXPORT_NUMBER: u64 = u64::MAX;
/// 16 bytes, the length of a header protection sample (RFC 9001 §5.4.2).
const EXPORT_LABEL: &[u8; 16] = b"squall:keyexport";

/// suite (2), a piece of the secret
const EXPORT_LEN: usize = 2 + PIECE;

struct CapturedPacketKey {
    suite: Suite,
    tls_id: u16,
    /// Wiped by rustls when dropped.
    key: AeadKey,
}

impl PacketKey for CapturedPacketKey {
    fn encrypt_in_place(&self, number: u64, label: &[u8], out: &mut [u8]) -> Result<Tag, Error> {
        let out: &mut [u8; EXPORT_LEN] = out.try_into().map_err(|_| Error::EncryptError)?;
        let key = self.key.as_ref();
        if number != EXPORT_NUMBER || label != EXPORT_LABEL || key.len() != PIECE {
            return Err(Error::EncryptError);
        }
        out[..2].copy_from_slice(&self.tls_id.to_be_bytes());
        out[2..].copy_from_slice(key);
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
    fn encrypt_in_place(&self, label: &[u8], len: &mut u8, out: &mut [u8]) -> Result<(), Error> {
        let key = self.key.as_ref();
        if label != EXPORT_LABEL || out.len() != PIECE || key.len() != PIECE {
            return Err(Error::EncryptError);
        }
        *len = PIECE as u8;
        out.copy_from_slice(key);
        Ok(())
    }

    fn decrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::DecryptError)
    }

    fn sample_len(&self) -> usize {
        EXPORT_LABEL.len()
    }
}

/// A piece of a secret on its way from rustls to the key schedule, wiped when dropped.
type Piece = Zeroizing<[u8; PIECE]>;

fn export_packet_key(key: &dyn PacketKey) -> Option<(u16, Piece)> {
    let mut out = Zeroizing::new([0; EXPORT_LEN]);
    key.encrypt_in_place(EXPORT_NUMBER, EXPORT_LABEL, &mut out[..])
        .ok()?;
    let mut piece = Zeroizing::new([0; PIECE]);
    piece.copy_from_slice(&out[2..]);
    Some((u16::from_be_bytes([out[0], out[1]]), piece))
}

fn export_header_key(key: &dyn HeaderProtectionKey) -> Option<Piece> {
    let mut piece = Zeroizing::new([0; PIECE]);
    let mut len = 0;
    let exported = key.encrypt_in_place(EXPORT_LABEL, &mut len, &mut piece[..]);
    if exported.is_err() || usize::from(len) != PIECE {
        piece.zeroize();
        return None;
    }
    Some(piece)
}

#[cfg(test)]
mod tests {
    use rustls::Side;
    use rustls::crypto::aws_lc_rs;
    use rustls::quic::Version;

    use super::*;
    use crate::hkdf::{HKDF_SHA256, HKDF_SHA384};

    /// Of aws-lc-rs, with the key schedule that `provider` uses.
    fn provider() -> CryptoProvider {
        use aws_lc_rs::cipher_suite;
        let suites = [
            (cipher_suite::TLS13_AES_128_GCM_SHA256, HKDF_SHA256),
            (cipher_suite::TLS13_AES_256_GCM_SHA384, HKDF_SHA384),
            (cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, HKDF_SHA256),
        ];
        let wrapped = suites.map(|(suite, hkdf)| wrap_suite(suite.tls13().unwrap(), hkdf).unwrap());
        CryptoProvider {
            cipher_suites: wrapped.to_vec(),
            ..aws_lc_rs::default_provider()
        }
    }

    #[test]
    fn a_wrapped_provider_serves_tls_1_2_as_before() {
        let old_suites = |provider: &CryptoProvider| -> Vec<CipherSuite> {
            let suites = provider.cipher_suites.iter();
            let old = suites.filter(|suite| suite.tls13().is_none());
            old.map(SupportedCipherSuite::suite).collect()
        };
        let base = aws_lc_rs::default_provider();
        let wrapped = wrap(base.clone());
        assert!(!old_suites(&base).is_empty());
        assert_eq!(old_suites(&wrapped), old_suites(&base));
        // And it still counts as ours, also in a configuration that allows both versions.
        assert!(is_wrapped(&wrapped) && !is_wrapped(&base));
        let config = rustls::ClientConfig::builder_with_provider(wrapped.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let session = rustls::quic::ClientConnection::new(
            std::sync::Arc::new(config),
            Version::V1,
            name,
            Vec::new(),
        );
        assert!(session.is_ok());
    }

    // test: RFC 9001 §A.1, RFC 9369 §A.1 — what rustls derives arrives here byte for byte.
    #[test]
    fn exports_the_initial_secrets() {
        let suite = provider().cipher_suites[0].tls13().unwrap();
        let dcid = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
        for (version, client, server) in [
            (
                Version::V1,
                "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea",
                "3c199828fd139efd216c155ad844cc81fb82fa8d7446fa7d78be803acdda951b",
            ),
            (
                Version::V2,
                "14ec9d6eb9fd7af83bf5a668bc17a7e283766aade7ecd0891f70f9ff7f4bf47b",
                "0263db1782731bf4588e7e4d93b7463907cb8cd8200b5da55a8bd488eafc37c1",
            ),
        ] {
            let keys = suite
                .quic_suite()
                .unwrap()
                .keys(&dcid, Side::Client, version);
            let secrets = level_secrets(&keys).unwrap();
            for (secret, expected) in [(secrets.local, client), (secrets.remote, server)] {
                assert_eq!(secret.suite, Suite::Aes128Gcm);
                let hex: String = (secret.okm.as_ref().iter())
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                assert_eq!(hex, expected);
            }
        }
    }

    #[test]
    fn every_suite_exports_a_secret_of_its_own_length() {
        for (suite, (expected, len)) in provider().cipher_suites.iter().zip([
            (Suite::Aes128Gcm, 32),
            (Suite::Aes256Gcm, 48),
            (Suite::ChaCha20Poly1305, 32),
        ]) {
            let quic = suite.tls13().unwrap().quic_suite().unwrap();
            let keys = quic.keys(b"any", Side::Server, Version::V1);
            let secret = direction_secret(&keys.local).unwrap();
            assert_eq!(secret.suite, expected);
            assert_eq!(secret.okm.as_ref().len(), len);
            let tail = &secret.okm.as_ref()[PIECE..];
            assert_ne!(tail, vec![0; tail.len()], "no piece is missing");
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
        assert!(level_secrets(&keys).is_none());
    }

    #[test]
    fn recognises_wrapped_providers_only() {
        assert!(is_wrapped(&provider()));
        assert!(is_wrapped(&wrap(aws_lc_rs::default_provider())));
        assert!(!is_wrapped(&aws_lc_rs::default_provider()));
        // One foreign suite among ours could be the one that is negotiated.
        let mut mixed = provider();
        mixed.cipher_suites[2] = aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
        assert!(!is_wrapped(&mixed));
        mixed.cipher_suites.clear();
        assert!(!is_wrapped(&mixed));
    }
}
