//! An unmodified quinn with squall's packet protection at one end, at the other, and at both.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::net::Ipv4Addr;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, ServerConfig};
use rustls::CipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;

/// Sent in each direction: a hundred or so full packets under each key.
const LEN: usize = 200_000;

const SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Which end uses squall's packet protection.
#[derive(Copy, Clone, Debug)]
struct Squall {
    client: bool,
    server: bool,
}

/// Initial packets need AES-128 (RFC 9001 §5.2), so both ends keep it but prefer another.
fn provider(is_squall: bool, preferred: CipherSuite) -> Arc<CryptoProvider> {
    let base = aws_lc_rs::default_provider();
    let mut provider = if is_squall {
        squall_rustls::wrap_all(base)
    } else {
        base
    };
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != preferred);
    Arc::new(provider)
}

fn server(
    certificate: &rcgen::CertifiedKey<rcgen::KeyPair>,
    provider: Arc<CryptoProvider>,
) -> ServerConfig {
    let key = PrivateKeyDer::Pkcs8(certificate.signing_key.serialize_der().into());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

fn client(certificate: &CertificateDer<'static>, provider: Arc<CryptoProvider>) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// Sends back what arrives on each stream, each time with the next keys.
async fn echo(endpoint: Endpoint) {
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        let bytes = receive.read_to_end(LEN).await.unwrap();
        send.write_all(&bytes).await.unwrap();
        send.finish().unwrap();
    }
}

async fn exchange(suite: CipherSuite, squall: Squall) {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let config = server(&certificate, provider(squall.server, suite));
    let listening = Endpoint::server(config, any).unwrap();
    let address = listening.local_addr().unwrap();
    let server = tokio::spawn(echo(listening));

    let mut endpoint = Endpoint::client(any).unwrap();
    let provider = provider(squall.client, suite);
    endpoint.set_default_client_config(client(certificate.cert.der(), provider));
    let connection = endpoint
        .connect(address, "localhost")
        .unwrap()
        .await
        .unwrap();
    for round in 0..3_usize {
        let sent: Vec<u8> = (0..LEN).map(|i| (i * 7 + round) as u8).collect();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&sent).await.unwrap();
        send.finish().unwrap();
        let received = receive.read_to_end(LEN).await.unwrap();
        assert!(received == sent, "{suite:?} {squall:?} round {round}");
        // RFC 9001 §6: the next round uses the next keys at both ends.
        connection.force_key_update();
    }
    let stats = connection.stats();
    // Loopback loses nothing, so losses would be packets that cannot be opened.
    assert!(
        stats.path.lost_packets < 20,
        "{suite:?} {squall:?} {stats:?}"
    );
    connection.close(0_u32.into(), b"");
    server.await.unwrap();
}

#[tokio::test]
async fn quinn_interoperates_with_either_or_both_ends_wrapped() {
    for suite in SUITES {
        for (client, server) in [(true, false), (false, true), (true, true)] {
            exchange(suite, Squall { client, server }).await;
        }
    }
}
