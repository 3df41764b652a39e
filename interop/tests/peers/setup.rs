//! What every test needs: a certificate, squall's endpoints, and a time limit.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use squall::TransportConfig;

/// The application protocol of these tests.
pub(crate) const ALPN: &[u8] = b"squall-interop";
/// The name in the certificate.
pub(crate) const NAME: &str = "localhost";

/// A free port of this machine.
pub(crate) const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A self-signed certificate and its key.
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivatePkcs8KeyDer<'static>,
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        Self {
            certificate: made.cert.der().clone(),
            key: PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()),
            certificate_pem: made.cert.pem(),
            key_pem: made.signing_key.serialize_pem(),
        }
    }

    /// The roots of a client that trusts this certificate.
    pub(crate) fn roots(&self) -> Arc<rustls::RootCertStore> {
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(self.certificate.clone())
            .expect("the certificate as a root");
        Arc::new(roots)
    }
}

/// squall as a server, with this transport.
pub(crate) fn squall_server(identity: &Identity, transport: TransportConfig) -> squall::Endpoint {
    let mut tls = squall::server_tls(
        vec![identity.certificate.clone()],
        identity.key.clone_key().into(),
        &[ALPN],
    )
    .expect("squall's server TLS");
    // For clients that ask for it.
    tls.max_early_data_size = u32::MAX;
    let config = squall::ServerConfig::new(tls).transport(transport);
    squall::Endpoint::server(ANY, config).expect("squall's server")
}

/// squall as a client, with this transport.
pub(crate) fn squall_client(identity: &Identity, transport: TransportConfig) -> squall::Endpoint {
    let mut tls = squall::client_tls(identity.roots(), &[ALPN]).expect("squall's client TLS");
    tls.enable_early_data = true;
    let config = squall::ClientConfig::new(tls).transport(transport);
    squall::Builder::new(ANY)
        .client(config)
        .bind()
        .expect("squall's client")
}

/// Runs a test, for at most 60 seconds plus one for every 10 MB that it sends according to `bytes`.
///
/// # Panics
/// It takes longer.
pub(crate) fn run<T>(bytes: u64, test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60 + bytes / 10_000_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let result = runtime.block_on(async { tokio::time::timeout(limit, test).await });
    // A peer that hangs must not block the test.
    runtime.shutdown_background();
    result.unwrap_or_else(|_| panic!("not done after {} seconds", limit.as_secs()))
}
