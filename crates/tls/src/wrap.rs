//! Providers whose QUIC sessions make no keys of their own.

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::tls13::Hkdf;
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::quic::{Algorithm, HeaderProtectionKey, PacketKey, Tag};
use rustls::{Error, SupportedCipherSuite, Tls13CipherSuite};
use squall_protect::Suite;

use crate::schedule::suite_of;

/// Makes a provider usable for QUIC whether or not it supports QUIC itself, and saves rustls from
/// making packet keys that squall never uses. A provider that supports QUIC also works unwrapped.
///
/// Keeps only those TLS 1.3 suites for which squall has packet protection (RFC 9001 §5.3:
/// AES-128-GCM, AES-256-GCM, ChaCha20-Poly1305). TLS 1.2 suites are kept for TLS over TCP, so the
/// result can be a process's default provider, unless the process also runs another QUIC stack:
/// that stack would get packet keys that seal and open nothing. Everything else works as in `base`:
/// key exchange, signatures and random numbers are its own. QUIC packets are sealed and opened by
/// squall's packet protection, whatever the provider; so a validated provider (FIPS 140-3) does not
/// make a validated QUIC stack.
///
/// rustls keeps references to suites for the life of the process, so each call leaks three small
/// structs: call it once per provider, and keep the result.
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

/// A suite with another key schedule and without packet keys; `None` if squall does not support it.
pub(crate) fn wrap_suite(
    original: &Tls13CipherSuite,
    hkdf: &'static dyn Hkdf,
) -> Option<SupportedCipherSuite> {
    let quic: &'static NoKeys = match suite_of(original)? {
        Suite::Aes128Gcm => &NoKeys(Suite::Aes128Gcm),
        Suite::Aes256Gcm => &NoKeys(Suite::Aes256Gcm),
        Suite::ChaCha20Poly1305 => &NoKeys(Suite::ChaCha20Poly1305),
    };
    let wrapped: &'static Tls13CipherSuite = Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: original.common.suite,
            hash_provider: original.common.hash_provider,
            confidentiality_limit: original.common.confidentiality_limit,
        },
        hkdf_provider: hkdf,
        aead_alg: original.aead_alg,
        quic: Some(quic),
    }));
    Some(SupportedCipherSuite::Tls13(wrapped))
}

/// The QUIC algorithm of a wrapped suite: its keys exist for rustls to hold, and protect nothing.
struct NoKeys(Suite);

impl Algorithm for NoKeys {
    fn packet_key(&self, _: AeadKey, _: Iv) -> Box<dyn PacketKey> {
        Box::new(Self(self.0))
    }

    fn header_protection_key(&self, _: AeadKey) -> Box<dyn HeaderProtectionKey> {
        Box::new(Self(self.0))
    }

    fn aead_key_len(&self) -> usize {
        self.0.key_len()
    }
}

impl PacketKey for NoKeys {
    fn encrypt_in_place(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<Tag, Error> {
        Err(Error::EncryptError)
    }

    fn decrypt_in_place<'a>(&self, _: u64, _: &[u8], _: &'a mut [u8]) -> Result<&'a [u8], Error> {
        Err(Error::DecryptError)
    }

    fn tag_len(&self) -> usize {
        squall_protect::TAG_LEN
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}

impl HeaderProtectionKey for NoKeys {
    fn encrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::EncryptError)
    }

    fn decrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::DecryptError)
    }

    fn sample_len(&self) -> usize {
        // RFC 9001 §5.4.2.
        16
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs;
    use rustls::quic::Version;
    use rustls::{CipherSuite, Side};

    use super::*;

    #[test]
    fn a_wrapped_provider_still_serves_tls_1_2() {
        let old_suites = |provider: &CryptoProvider| -> Vec<CipherSuite> {
            let suites = provider.cipher_suites.iter();
            let old = suites.filter(|suite| suite.tls13().is_none());
            old.map(SupportedCipherSuite::suite).collect()
        };
        let base = aws_lc_rs::default_provider();
        let wrapped = wrap(base.clone());
        assert!(!old_suites(&base).is_empty());
        assert_eq!(old_suites(&wrapped), old_suites(&base));
        // It also serves QUIC in a configuration that allows both versions.
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

    #[test]
    fn wrapping_a_provider_without_quic_keeps_all_its_suites() {
        let mut base = aws_lc_rs::default_provider();
        for suite in &mut base.cipher_suites {
            if let Some(with) = suite.tls13() {
                *suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                    common: CipherSuiteCommon {
                        suite: with.common.suite,
                        hash_provider: with.common.hash_provider,
                        confidentiality_limit: with.common.confidentiality_limit,
                    },
                    hkdf_provider: with.hkdf_provider,
                    aead_alg: with.aead_alg,
                    quic: None,
                })));
            }
        }
        let quic = |provider: &CryptoProvider| {
            let suites = provider.cipher_suites.iter();
            suites
                .filter(|suite| suite.tls13().is_some_and(|it| it.quic.is_some()))
                .count()
        };
        assert_eq!(quic(&base), 0);
        assert_eq!(quic(&wrap(base)), 3);
    }

    #[test]
    fn the_keys_of_a_wrapped_suite_refuse_to_protect_packets() {
        for suite in wrap(aws_lc_rs::default_provider()).cipher_suites {
            let Some(quic) = suite.tls13().and_then(Tls13CipherSuite::quic_suite) else {
                continue;
            };
            let keys = quic.keys(b"any", Side::Client, Version::V1);
            let (packet, header) = (&*keys.local.packet, &*keys.local.header);
            let (mut payload, mut first) = ([7; 40], 0x40);
            assert!(packet.encrypt_in_place(0, b"header", &mut payload).is_err());
            assert!(packet.decrypt_in_place(0, b"header", &mut payload).is_err());
            let sample = [0; 16];
            assert!(
                header
                    .encrypt_in_place(&sample, &mut first, &mut payload[..4])
                    .is_err()
            );
            assert!(
                header
                    .decrypt_in_place(&sample, &mut first, &mut payload[..4])
                    .is_err()
            );
            assert_eq!((payload, first), ([7; 40], 0x40));
        }
    }
}
