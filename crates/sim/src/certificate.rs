//! TLS configurations of both sides, created once and shared by all runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;

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
    Demands::default().tls()
}

/// As [`tls`], with a certificate for these names; many names make it large.
///
/// # Errors
/// Whatever rustls or rcgen rejects.
pub fn tls_with(names: &[String]) -> Result<Configs, Box<dyn std::error::Error>> {
    make(names, Demands::default())
}

/// What a server may demand of a handshake beyond the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demands {
    /// Names in the certificate besides [`SERVER_NAME`]. Each adds 18 bytes to the flight of an end
    /// that presents it.
    pub names: usize,
    /// Whether the client must present a certificate, too.
    pub identity: bool,
    /// Whether the server supports only a group for which the first ClientHello has no share, so
    /// that it sends a HelloRetryRequest (RFC 8446 §4.1.4).
    pub other_group: bool,
}

impl Demands {
    /// Configurations for such handshakes, created once and shared by all runs.
    ///
    /// # Panics
    /// If rustls rejects the certificate or the key.
    #[must_use]
    pub fn tls(self) -> Configs {
        static CONFIGS: Mutex<BTreeMap<Demands, Configs>> = Mutex::new(BTreeMap::new());
        let mut configs = CONFIGS.lock().unwrap_or_else(PoisonError::into_inner);
        let names = (0..self.names).map(|i| format!("{i:04}.example.com"));
        let names: Vec<String> = names.chain([SERVER_NAME.to_owned()]).collect();
        let make = || make(&names, self).expect("rustls takes the certificate and the key");
        configs.entry(self).or_insert_with(make).clone()
    }
}

fn make(names: &[String], demands: Demands) -> Result<Configs, Box<dyn std::error::Error>> {
    let pkcs8 = PrivatePkcs8KeyDer::from(KEY.to_vec());
    let key = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &rcgen::PKCS_ED25519)?;
    let mut params = rcgen::CertificateParams::new(names.to_vec())?;
    params.serial_number = Some(1_u64.into());
    let certificate = params.self_signed(&key)?.der().clone();
    let chain = vec![certificate.clone()];
    let key = PrivateKeyDer::Pkcs8(pkcs8);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let roots = Arc::new(roots);
    let versions = [&rustls::version::TLS13];
    let provider = squall_tls::provider();
    let client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)?
        .with_root_certificates(Arc::clone(&roots));
    let mut client = match demands.identity {
        true => client.with_client_auth_cert(chain.clone(), key.clone_key())?,
        false => client.with_no_client_auth(),
    };
    // Session state of one run must not affect another.
    client.resumption = rustls::client::Resumption::disabled();
    let mut server_provider = (*provider).clone();
    if demands.other_group {
        server_provider
            .kx_groups
            .drain(..server_provider.kx_groups.len() - 1);
    }
    let server_provider = Arc::new(server_provider);
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&server_provider))
        .with_protocol_versions(&versions)?;
    let server = match demands.identity {
        true => server.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots, server_provider).build()?,
        ),
        false => server.with_no_client_auth(),
    };
    let mut server = server.with_single_cert(chain, key)?;
    client.alpn_protocols = vec![b"sim".to_vec()];
    server.alpn_protocols = vec![b"sim".to_vec()];
    Ok((Arc::new(client), Arc::new(server)))
}
