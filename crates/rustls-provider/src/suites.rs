//! Providers whose suites have squall's packet protection.

#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::{CipherSuite, SupportedCipherSuite, Tls13CipherSuite};
use squall_protect::{KernelKind, Suite, chosen_kernel};

use crate::keys::Algorithm;

/// A provider that equals `base` except for QUIC packet protection, which is squall's for
/// AES-128-GCM and AES-256-GCM.
///
/// ChaCha20-Poly1305 is squall's as well if its kernel uses 512-bit registers
/// (`squall_protect::chosen_kernel`), or if `base` has none for QUIC. Otherwise `base` keeps it:
/// for single packets, as rustls passes them, squall is no faster in narrower registers.
/// [`wrap_all`] wraps it everywhere. Other suites stay as they are, and so does everything that TLS
/// over TCP uses. The kernels are not validated (FIPS 140-3), so suites that were validated no
/// longer say so.
///
/// rustls refers to suites for the life of the process, so each call leaks three small structs:
/// call it once per provider, and keep the result.
#[must_use]
pub fn wrap(base: CryptoProvider) -> CryptoProvider {
    let is_chacha = |suite: &Tls13CipherSuite| {
        suite.common.suite == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
    };
    let has_wide_chacha = || chosen_kernel(Suite::ChaCha20Poly1305) == KernelKind::Avx512;
    let is_wanted =
        |suite: &Tls13CipherSuite| !is_chacha(suite) || suite.quic.is_none() || has_wide_chacha();
    wrap_if(base, is_wanted)
}

/// As [`wrap`], with squall's packet protection for every suite that it has (RFC 9001 §5.3:
/// AES-128-GCM, AES-256-GCM, ChaCha20-Poly1305).
#[must_use]
pub fn wrap_all(base: CryptoProvider) -> CryptoProvider {
    wrap_if(base, |_| true)
}

fn wrap_if(base: CryptoProvider, is_wanted: impl Fn(&Tls13CipherSuite) -> bool) -> CryptoProvider {
    let suites = base.cipher_suites.iter();
    let suites = suites.map(|suite| match suite.tls13() {
        Some(tls13) if is_wanted(tls13) => wrapped(*suite),
        _ => *suite,
    });
    CryptoProvider {
        cipher_suites: suites.collect(),
        ..base
    }
}

/// The default provider of rustls for aws-lc-rs, as [`wrap`]ped; with the feature `ring` alone, the
/// one for ring. Made once per process.
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    #[cfg(feature = "aws-lc-rs")]
    use rustls::crypto::aws_lc_rs as base;
    #[cfg(not(feature = "aws-lc-rs"))]
    use rustls::crypto::ring as base;

    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER
        .get_or_init(|| Arc::new(wrap(base::default_provider())))
        .clone()
}

fn wrapped(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let algorithm: Option<&'static Algorithm> = match Suite::from_tls_id(suite.suite().into()) {
        Some(Suite::Aes128Gcm) => Some(&Algorithm(Suite::Aes128Gcm)),
        Some(Suite::Aes256Gcm) => Some(&Algorithm(Suite::Aes256Gcm)),
        Some(Suite::ChaCha20Poly1305) => Some(&Algorithm(Suite::ChaCha20Poly1305)),
        None => None,
    };
    match (suite, algorithm) {
        (SupportedCipherSuite::Tls13(base), Some(algorithm)) => {
            let wrapped = Tls13CipherSuite {
                common: CipherSuiteCommon {
                    suite: base.common.suite,
                    hash_provider: base.common.hash_provider,
                    confidentiality_limit: base.common.confidentiality_limit,
                },
                hkdf_provider: base.hkdf_provider,
                aead_alg: base.aead_alg,
                quic: Some(algorithm),
            };
            SupportedCipherSuite::Tls13(Box::leak(Box::new(wrapped)))
        }
        (other, _) => other,
    }
}
