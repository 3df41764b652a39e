//! The certificate of a run, and rustls' configurations that use it: the same suite, group and
//! signature for all contenders.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, process};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, NamedGroup, RootCertStore, ServerConfig,
    SignatureScheme,
};
use squall_yard::error::{Failure, Result, context};

use super::case::Workload;
use super::job::{ALPN, Job, NAME};
use super::process::Count;

/// A self-signed certificate with a P-256 key in two PEM files, which are removed on drop.
pub(super) struct Files {
    folder: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Files {
    /// Makes them, in a folder for temporary files.
    pub(super) fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])
            .map_err(context("cannot make a certificate"))?;
        let folder = std::env::temp_dir().join(format!("squall-peers-{}", process::id()));
        let write = |name: &str, text: String| -> std::io::Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path)
        };
        let error = context("cannot write the certificate");
        fs::create_dir_all(&folder).map_err(&error)?;
        let certificate = write("certificate.pem", made.cert.pem()).map_err(&error)?;
        let key = write("key.pem", made.signing_key.serialize_pem()).map_err(&error)?;
        Ok(Self {
            folder,
            certificate,
            key,
        })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // The system cleans its folder for temporary files anyway.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The provider with TLS_AES_128_GCM_SHA256 and X25519 only.
pub(super) fn limited(provider: &CryptoProvider) -> Arc<CryptoProvider> {
    let mut provider = provider.clone();
    provider
        .cipher_suites
        .retain(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
        .kx_groups
        .retain(|group| group.name() == NamedGroup::X25519);
    Arc::new(provider)
}

fn read_certificate(path: &Path) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_file(path).map_err(context("reading the certificate"))
}

/// A server's configuration for a job: one ticket per handshake if tickets are wanted.
pub(super) fn server(job: &Job, provider: Arc<CryptoProvider>) -> Result<ServerConfig> {
    let key = PrivateKeyDer::from_pem_file(&job.key).map_err(context("reading the key"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(context("TLS 1.3"))?
        .with_no_client_auth()
        .with_single_cert(vec![read_certificate(&job.certificate)?], key)
        .map_err(context("the certificate and the key do not go together"))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    if job.case.workload == Workload::W4Resumed {
        config.send_tls13_tickets = 1;
        config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().map_err(context("tickets"))?;
    } else {
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

/// A client's configuration for a job.
pub(super) fn client(
    job: &Job,
    provider: Arc<CryptoProvider>,
    count: &Arc<Count>,
) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(read_certificate(&job.certificate)?)
        .map_err(context("the certificate as a root"))?;
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| Failure::new(format!("no verifier: {error}")))?;
    let verifier = Arc::new(Counting {
        inner,
        count: Arc::clone(count),
    });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(context("TLS 1.3"))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    if job.case.workload != Workload::W4Resumed {
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}

/// rustls' own verifier, which counts its calls.
#[derive(Debug)]
struct Counting {
    inner: Arc<WebPkiServerVerifier>,
    count: Arc<Count>,
}

impl ServerCertVerifier for Counting {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        self.count.add_full();
        self.inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
