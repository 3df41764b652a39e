//! The certificate of a measurement: generated in memory or read from PEM files, and the rustls
//! configurations that use it. All contenders use the same one.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme, version,
};

use crate::error::{Failure, Result, context};
use crate::source::fingerprint;

/// The name in a generated certificate.
pub const NAME: &str = "localhost";

/// A certificate chain and its key.
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Certificate {
    /// Generates a self-signed certificate for `localhost` (ECDSA P-256).
    pub fn generate() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])
            .map_err(context("cannot generate a certificate"))?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self {
            chain: vec![made.cert.der().clone()],
            key: key.into(),
        })
    }

    /// Reads a chain and a key from PEM files.
    pub fn read(chain: &Path, key: &Path) -> Result<Self> {
        Ok(Self {
            chain: read_certificates(chain)?,
            key: PrivateKeyDer::from_pem_file(key)
                .map_err(context(&format!("no private key in {}", key.display())))?,
        })
    }

    /// The SHA-256 fingerprint of the end-entity certificate.
    pub fn fingerprint(&self) -> String {
        self.chain
            .first()
            .map_or_else(String::new, |end| fingerprint(end))
    }

    /// A TLS 1.3 server that presents this certificate.
    pub fn server(&self, provider: Arc<CryptoProvider>) -> Result<ServerConfig> {
        ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(context("TLS 1.3"))?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(context("the certificate and the key do not match"))
    }

    /// A TLS 1.3 client that trusts this certificate and no other.
    pub fn client(&self, provider: Arc<CryptoProvider>) -> Result<ClientConfig> {
        trusting(&self.chain, provider)
    }
}

/// The certificates in a PEM file, at least one.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let error = format!("cannot read certificates from {}", path.display());
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(context(&error))?;
    if chain.is_empty() {
        return Err(Failure::new(format!(
            "{} contains no certificate: pass a PEM file with one",
            path.display()
        )));
    }
    Ok(chain)
}

/// A TLS 1.3 client that trusts the given certificates as roots.
pub fn trusting(
    anchors: &[CertificateDer<'static>],
    provider: Arc<CryptoProvider>,
) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for anchor in anchors {
        roots
            .add(anchor.clone())
            .map_err(context("not usable as a trust anchor"))?;
    }
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(context("TLS 1.3"))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// A TLS 1.3 client that accepts any certificate (`-k`); it still verifies the handshake's
/// signature, which proves that the peer holds the certificate's key.
pub fn trusting_anyone(provider: Arc<CryptoProvider>) -> Result<ClientConfig> {
    let algorithms = provider.signature_verification_algorithms;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(context("TLS 1.3"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(algorithms)))
        .with_no_client_auth())
}

/// The verifier of `-k`.
#[derive(Debug)]
struct Anyone(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
