//! TLS configurations from the files that people have: certificates and keys in PEM, roots, the
//! platform's verifier, and a self-signed certificate for development.
//!
//! An [`Identity`] is a certificate chain with its key. [`server`] and [`client`] make ordinary
//! rustls configurations, which [`ServerConfig::new`](crate::ServerConfig::new) and
//! [`ClientConfig::new`](crate::ClientConfig::new) take. They can be changed before that, for
//! example to allow early data. Only squall can use them for QUIC: rustls gets no packet keys from
//! [`provider`](crate::provider), and quinn panics without them. Other stacks need a configuration
//! with another provider, such as `rustls::crypto::aws_lc_rs::default_provider()`.
//!
//! ```no_run
//! use squall::tls::{self, Identity};
//! use squall::{ClientConfig, ServerConfig};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = Identity::from_pem("server.pem", "server.key")?;
//! let server = ServerConfig::new(tls::server(identity, &[b"echo"])?);
//!
//! let roots = tls::roots_from_pem("ca.pem")?;
//! let client = ClientConfig::new(tls::client(roots, &[b"echo"])?);
//! # Ok(()) }
//! ```
//!
//! For mutual TLS, use [`mutual_server`] and [`mutual_client`]. All functions use
//! [`provider`](crate::provider), and append secrets to the file named by `SSLKEYLOGFILE`, if set.
//! `alpn` lists the application protocols (RFC 7301) in order of preference. Leave it empty only if
//! both ends know the protocol by other means (RFC 9001 §8.1).
//!
//! Available with the feature `aws-lc-rs` or `ring`.

mod error;
mod pem;

use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ConfigBuilder, KeyLogFile, RootCertStore};

pub use error::Error;
pub use pem::roots_from_pem;

/// A certificate chain, end-entity certificate first, and the private key that belongs to it.
#[derive(Debug)]
pub struct Identity {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// A chain and a key in DER.
    ///
    /// # Errors
    /// The chain is empty, rustls does not accept the key, or the key does not belong to the first
    /// certificate.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, Error> {
        CertifiedKey::from_der(
            certificates.clone(),
            key.clone_key(),
            &squall_tls::provider(),
        )?;
        Ok(Self { certificates, key })
    }

    /// Reads a certificate chain and a private key from PEM files, which may be the same file. The
    /// server's own certificate comes first, then those that sign it; most authorities call such a
    /// file `fullchain.pem`. The key is in PKCS #8, PKCS #1 or SEC 1, and not encrypted.
    ///
    /// Blocks while it reads. To replace a certificate at run time, read it again and pass the new
    /// configuration to [`Endpoint::set_server_config`](crate::Endpoint::set_server_config).
    ///
    /// # Errors
    /// A file cannot be read or has no such content, or the key does not belong to the first
    /// certificate. The error names the file and what is wrong with it, in one line.
    pub fn from_pem(certificates: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, Error> {
        let (chain_path, key_path) = (certificates.as_ref(), key.as_ref());
        let chain = pem::certificates(chain_path)?;
        let key = pem::private_key(key_path)?;
        let signer = (squall_tls::provider().key_provider)
            .load_private_key(key.clone_key())
            .map_err(|error| Error::UnusableKey {
                path: key_path.to_owned(),
                error,
            })?;
        let mut belongs_to = None;
        for (index, certificate) in chain.iter().enumerate() {
            let parsed = ParsedCertificate::try_from(certificate).map_err(|error| {
                Error::InvalidCertificate {
                    path: chain_path.to_owned(),
                    number: index + 1,
                    error,
                }
            })?;
            // A key that does not reveal its public part is not compared, as in rustls.
            let same = (signer.public_key())
                .is_none_or(|public| public == parsed.subject_public_key_info());
            if same && belongs_to.is_none() {
                belongs_to = Some(index + 1);
            }
        }
        if belongs_to != Some(1) {
            return Err(Error::KeyMismatch {
                certificates: chain_path.to_owned(),
                key: key_path.to_owned(),
                belongs_to,
            });
        }
        Ok(Self {
            certificates: chain,
            key,
        })
    }

    /// A new key with a certificate that it signs itself, for development and tests: no client
    /// trusts it, except one that uses [`roots`](Self::roots). `names` are the DNS names and IP
    /// addresses that clients connect to. The certificate is valid until the year 4096, and the key
    /// is lost when the process ends.
    ///
    /// # Errors
    /// A name is not ASCII.
    #[cfg(feature = "self-signed")]
    pub fn self_signed(names: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, Error> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let made = rcgen::generate_simple_self_signed(names)
            .map_err(|error| Error::SelfSigned(error.to_string()))?;
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self {
            certificates: vec![made.cert.der().clone()],
            key: key.into(),
        })
    }

    /// The chain, end-entity certificate first.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Roots with only the last certificate of the chain. A client that uses them trusts this
    /// identity, and others that the certificate signs. Meant for self-signed certificates.
    ///
    /// # Errors
    /// The certificate cannot be a root.
    pub fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        if let Some(last) = self.certificates.last() {
            roots.add(last.clone())?;
        }
        Ok(roots)
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self {
            certificates: self.certificates.clone(),
            key: self.key.clone_key(),
        }
    }
}

/// Whose certificates a client accepts: those that chain up to given roots, or those that the
/// platform accepts.
#[derive(Clone, Debug)]
pub struct Trust(Verifier);

#[derive(Clone, Debug)]
enum Verifier {
    Roots(Arc<RootCertStore>),
    #[cfg(feature = "platform-verifier")]
    Platform(Arc<rustls_platform_verifier::Verifier>),
}

impl Trust {
    /// The platform's own verifier: the system's certificate store, and on macOS and Windows its
    /// revocation checks and what administrators have added. On Linux the roots come from where
    /// OpenSSL looks, or from the file named by `SSL_CERT_FILE`; they are read now, which blocks.
    /// Android needs the set-up that the documentation of rustls-platform-verifier describes.
    ///
    /// # Errors
    /// The platform's verifier cannot be used; on Linux, no root was found.
    #[cfg(feature = "platform-verifier")]
    pub fn platform() -> Result<Self, Error> {
        let verifier = rustls_platform_verifier::Verifier::new(squall_tls::provider());
        let verifier = verifier.map_err(Error::Platform)?;
        Ok(Self(Verifier::Platform(Arc::new(verifier))))
    }
}

impl From<Arc<RootCertStore>> for Trust {
    fn from(roots: Arc<RootCertStore>) -> Self {
        Self(Verifier::Roots(roots))
    }
}

impl From<RootCertStore> for Trust {
    fn from(roots: RootCertStore) -> Self {
        Arc::new(roots).into()
    }
}

/// A server configuration with this identity, without client authentication.
///
/// # Errors
/// rustls rejects the identity.
pub fn server(identity: Identity, alpn: &[&[u8]]) -> Result<rustls::ServerConfig, Error> {
    Ok(server_tls(identity.certificates, identity.key, alpn)?)
}

/// A server configuration for mutual TLS: clients must present a certificate that chains up to
/// `clients`. To read a client's certificate from its connection, set
/// [`keep_peer_certificates`](crate::TransportConfig::keep_peer_certificates).
///
/// # Errors
/// `clients` is empty, or rustls rejects the identity.
pub fn mutual_server(
    identity: Identity,
    clients: impl Into<Arc<RootCertStore>>,
    alpn: &[&[u8]],
) -> Result<rustls::ServerConfig, Error> {
    let provider = squall_tls::provider();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(clients.into(), Arc::clone(&provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.certificates, identity.key)?;
    Ok(finish_server(config, alpn))
}

/// A client configuration that accepts servers by `trust`: a
/// [`RootCertStore`], for example from [`roots_from_pem`] or
/// [`Identity::roots`], or the platform's verifier (`Trust::platform`, with the feature
/// `platform-verifier`).
///
/// # Errors
/// None in practice: rustls would have to lack TLS 1.3 support with this provider.
pub fn client(trust: impl Into<Trust>, alpn: &[&[u8]]) -> Result<rustls::ClientConfig, Error> {
    let config = trusting(trust.into())?.with_no_client_auth();
    Ok(finish_client(config, alpn))
}

/// A client configuration for mutual TLS: as [`client`], and the client presents `identity` when
/// the server asks for a certificate.
///
/// # Errors
/// rustls rejects the identity.
pub fn mutual_client(
    trust: impl Into<Trust>,
    identity: Identity,
    alpn: &[&[u8]],
) -> Result<rustls::ClientConfig, Error> {
    let config =
        trusting(trust.into())?.with_client_auth_cert(identity.certificates, identity.key)?;
    Ok(finish_client(config, alpn))
}

fn trusting(
    trust: Trust,
) -> Result<ConfigBuilder<rustls::ClientConfig, WantsClientCert>, rustls::Error> {
    let builder = rustls::ClientConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    Ok(match trust.0 {
        Verifier::Roots(roots) => builder.with_root_certificates(roots),
        #[cfg(feature = "platform-verifier")]
        Verifier::Platform(verifier) => builder
            .dangerous()
            .with_custom_certificate_verifier(verifier),
    })
}

/// A server TLS configuration with this certificate chain and key, without client authentication.
/// `alpn` lists the application protocols (RFC 7301) in order of preference. Leave it empty only if
/// both ends know the protocol by other means (RFC 9001 §8.1). Secrets are appended to the file
/// named by `SSLKEYLOGFILE`, if set. [`tls`](crate::tls) reads both from PEM files.
///
/// # Errors
/// rustls rejects the key, or the key does not belong to the certificate.
pub fn server_tls(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    alpn: &[&[u8]],
) -> Result<rustls::ServerConfig, rustls::Error> {
    let config = rustls::ServerConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    Ok(finish_server(config, alpn))
}

/// A client TLS configuration that trusts these roots and offers these application protocols.
/// Secrets are appended to the file named by `SSLKEYLOGFILE`, if set. [`tls`](crate::tls) reads
/// roots from a PEM file, and can ask the platform instead.
///
/// # Errors
/// None in practice: rustls would have to lack TLS 1.3 support with this provider.
pub fn client_tls(
    roots: impl Into<Arc<RootCertStore>>,
    alpn: &[&[u8]],
) -> Result<rustls::ClientConfig, rustls::Error> {
    let config = trusting(roots.into().into())?.with_no_client_auth();
    Ok(finish_client(config, alpn))
}

fn finish_server(mut config: rustls::ServerConfig, alpn: &[&[u8]]) -> rustls::ServerConfig {
    config.key_log = Arc::new(KeyLogFile::new());
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

fn finish_client(mut config: rustls::ClientConfig, alpn: &[&[u8]]) -> rustls::ClientConfig {
    config.key_log = Arc::new(KeyLogFile::new());
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}
