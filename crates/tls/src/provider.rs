//! The provider of a build with `aws-lc-rs` or `ring`.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as base;
#[cfg(not(feature = "aws-lc-rs"))]
use rustls::crypto::ring as base;

use crate::hkdf::{HKDF_SHA256, HKDF_SHA384};
use crate::wrap::wrap_suite;

/// aws-lc-rs wrapped as by [`wrap`](crate::wrap), with the hybrid X25519MLKEM768 as the preferred
/// key exchange and AES-128-GCM, AES-256-GCM, ChaCha20-Poly1305 in this order. Created once per
/// process. If only the feature `ring` is enabled, ring takes its place; it has no X25519MLKEM768.
///
/// Its key schedule (HKDF) is RustCrypto's, which derives a key, an IV and a mask key from a secret
/// in half the time; key exchange, signatures and the transcript's hash are those of the library.
///
/// Build `rustls` configurations on it:
///
/// ```
/// # let roots = rustls::RootCertStore::empty();
/// # use squall_tls as squall;
/// let config = rustls::ClientConfig::builder_with_provider(squall::provider())
///     .with_protocol_versions(&[&rustls::version::TLS13])?
///     .with_root_certificates(roots)
///     .with_no_client_auth();
/// # Ok::<(), rustls::Error>(())
/// ```
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        use base::{cipher_suite, kx_group};
        let suites = [
            (cipher_suite::TLS13_AES_128_GCM_SHA256, HKDF_SHA256),
            (cipher_suite::TLS13_AES_256_GCM_SHA384, HKDF_SHA384),
            (cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, HKDF_SHA256),
        ];
        let wrapped = suites
            .iter()
            .filter_map(|(suite, hkdf)| wrap_suite(suite.tls13()?, *hkdf));
        Arc::new(CryptoProvider {
            cipher_suites: wrapped.collect(),
            // The order is explicit rather than left to a rustls feature flag that any crate of the
            // build may set: the first group's share goes into the first ClientHello.
            kx_groups: [
                #[cfg(feature = "aws-lc-rs")]
                kx_group::X25519MLKEM768,
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
            ]
            .to_vec(),
            ..base::default_provider()
        })
    };
    PROVIDER.get_or_init(make).clone()
}

#[cfg(test)]
mod tests {
    use rustls::{CipherSuite, NamedGroup};

    use super::*;

    #[test]
    fn groups_and_suites_have_the_documented_order() {
        let groups: Vec<NamedGroup> = provider().kx_groups.iter().map(|kx| kx.name()).collect();
        let hybrid: &[NamedGroup] = if cfg!(feature = "aws-lc-rs") {
            &[NamedGroup::X25519MLKEM768]
        } else {
            &[]
        };
        let classical = [
            NamedGroup::X25519,
            NamedGroup::secp256r1,
            NamedGroup::secp384r1,
        ];
        assert_eq!(groups, [hybrid, &classical].concat());
        let suites: Vec<CipherSuite> = (provider().cipher_suites.iter())
            .map(rustls::SupportedCipherSuite::suite)
            .collect();
        assert_eq!(
            suites,
            [
                CipherSuite::TLS13_AES_128_GCM_SHA256,
                CipherSuite::TLS13_AES_256_GCM_SHA384,
                CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
            ]
        );
    }
}
