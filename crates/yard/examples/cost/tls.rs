//! TLS without public-key cryptography: the messages, states and key schedule of a real handshake,
//! and instructions that are the same every time.
//!
//! Key exchange and signatures are most of a handshake's instructions. They belong to the crypto
//! library, differ from CPU to CPU, and depend on random numbers, so they would hide a change of
//! squall's own code. Here a key share is a number, its exchange adds two of them, and a signature
//! is empty bytes. **None of this protects anything**: it lives in an example that no library uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret,
    SupportedKxGroup,
};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ProducesTickets;
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, NamedGroup, ServerConfig, SignatureAlgorithm,
    SignatureScheme, version,
};
use squall_yard::error::{Result, context};
use squall_yard::tickets::Watch;

const ALPN: &[u8] = b"cost";
/// Bytes of the certificate: a usual size for one with a P-256 key.
const CERTIFICATE: usize = 600;
/// Bytes of a key share.
const SHARE: usize = 32;

/// squall's provider, with nothing that is random or expensive.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = CryptoProvider::clone(&squall::provider());
    provider.cipher_suites.truncate(1);
    provider.kx_groups = vec![&Sum];
    provider.secure_random = &Counter;
    Arc::new(provider)
}

/// A server that presents a certificate of zeroes and sends one ticket.
pub(crate) fn server() -> Result<Arc<ServerConfig>> {
    let certificate = CertificateDer::from(vec![0; CERTIFICATE]);
    let key = CertifiedKey::new(vec![certificate], Arc::new(Key));
    let mut tls = ServerConfig::builder_with_details(provider(), Arc::new(Midnight))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(context("TLS 1.3"))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.ticketer = Arc::new(Plain);
    tls.send_tls13_tickets = 1;
    Ok(Arc::new(tls))
}

/// A client that trusts any certificate. Its tickets are kept, and handed out once the watch is
/// told to.
pub(crate) fn client() -> Result<(Arc<ClientConfig>, Arc<Watch>)> {
    let mut tls = ClientConfig::builder_with_details(provider(), Arc::new(Midnight))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(context("TLS 1.3"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let watch = Watch::over(&mut tls);
    Ok((Arc::new(tls), watch))
}

/// Numbers in a row.
#[derive(Debug)]
struct Counter;

impl SecureRandom for Counter {
    fn fill(&self, buf: &mut [u8]) -> std::result::Result<(), GetRandomFailed> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        for piece in buf.chunks_mut(8) {
            let number = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            piece.copy_from_slice(&number[..piece.len()]);
        }
        Ok(())
    }
}

/// A group whose exchange is a sum.
#[derive(Debug)]
struct Sum;

impl SupportedKxGroup for Sum {
    fn start(&self) -> std::result::Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut share = [0; SHARE];
        Counter.fill(&mut share)?;
        Ok(Box::new(Exchange(share)))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct Exchange([u8; SHARE]);

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> std::result::Result<SharedSecret, Error> {
        let sum: Vec<u8> = self
            .0
            .iter()
            .zip(peer)
            .map(|(own, other)| own.wrapping_add(*other))
            .collect();
        Ok(SharedSecret::from(sum))
    }

    fn pub_key(&self) -> &[u8] {
        &self.0
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// A key whose signatures are zeroes.
#[derive(Debug)]
struct Key;

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let has = offered.contains(&SignatureScheme::ED25519);
        has.then(|| Box::new(Self) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for Key {
    fn sign(&self, _message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        Ok(vec![0; 64])
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// Accepts every certificate.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// Tickets that are the session itself.
#[derive(Debug)]
struct Plain;

impl ProducesTickets for Plain {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        86_400
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        Some(plain.to_vec())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        Some(cipher.to_vec())
    }
}

/// A clock that stands still.
#[derive(Debug)]
struct Midnight;

impl TimeProvider for Midnight {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            1_700_000_000,
        )))
    }
}
