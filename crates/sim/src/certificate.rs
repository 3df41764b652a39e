//! TLS configurations of both sides, created once and shared by all runs.

use std::sync::{Arc, OnceLock};

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The name in the certificate.
pub const SERVER_NAME: &str = "localhost";

/// An Ed25519 key in PKCS #8 (RFC 8410 §7). Its length and that of its signatures never vary, so
/// every run of a seed sends datagrams of the same sizes.
const KEY: [u8; 48] = {
    let head = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
    let mut key = [7; 48];
    let mut i = 0;
    while i < head.len() {
        key[i] = head[i];
        i += 1;
    }
    key
};

/// TLS configurations of the client and the server.
pub type Configs = (Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>);

/// The client's configuration, which trusts the server's certificate, and the server's.
///
/// # Panics
/// If rustls rejects the certificate or the key.
#[must_use]
pub fn tls() -> Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    CONFIGS
        .get_or_init(|| {
            tls_with(&[SERVER_NAME.to_owned()])
                .expect("rustls takes the provider, the certificate and the key")
        })
        .clone()
}

/// The same for a certificate with these names; many names make it large.
///
/// # Errors
/// Whatever rustls or rcgen rejects.
pub fn tls_with(names: &[String]) -> Result<Configs, Box<dyn std::error::Error>> {
    let pkcs8 = PrivatePkcs8KeyDer::from(KEY.to_vec());
    let key = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &rcgen::PKCS_ED25519)?;
    let mut params = rcgen::CertificateParams::new(names.to_vec())?;
    params.serial_number = Some(1_u64.into());
    let certificate = params.self_signed(&key)?.der().clone();

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone())?;
    let versions = [&rustls::version::TLS13];
    let mut client = rustls::ClientConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Session state of one run must not affect another.
    client.resumption = rustls::client::Resumption::disabled();
    let mut server = rustls::ServerConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&versions)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(pkcs8))?;
    client.alpn_protocols = vec![b"sim".to_vec()];
    server.alpn_protocols = vec![b"sim".to_vec()];
    Ok((Arc::new(client), Arc::new(server)))
}
