//! Connections with crypto providers of other libraries. Compiles with any features, so it also
//! shows that a build without a built-in provider works.

#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use squall::rustls::crypto::{self, CipherSuiteCommon, CryptoProvider};
use squall::rustls::pki_types::PrivatePkcs8KeyDer;
use squall::rustls::{self, RootCertStore, SupportedCipherSuite, Tls13CipherSuite};
use squall::{Builder, ClientConfig, ServerConfig, TransportConfig};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const BYTES: usize = 100_000;

/// Configurations of both ends that are built on these providers.
fn configs(
    server: Arc<CryptoProvider>,
    client: Arc<CryptoProvider>,
) -> (ServerConfig, ClientConfig) {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = identity.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    let mut tls = rustls::ServerConfig::builder_with_provider(server)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())
        .unwrap();
    tls.alpn_protocols = vec![b"test".to_vec()];
    let transport = Arc::new(TransportConfig::default());
    let server = ServerConfig::new(tls).transport(Arc::clone(&transport));
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let mut tls = rustls::ClientConfig::builder_with_provider(client)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"test".to_vec()];
    let client = ClientConfig::new(tls).transport(transport);
    (server, client)
}

/// A handshake, and some data in both directions.
async fn exchange(server: &Arc<CryptoProvider>, client: &Arc<CryptoProvider>) {
    let (server, client) = configs(Arc::clone(server), Arc::clone(client));
    let server = Builder::new(ANY).server(server).bind().unwrap();
    let client = Builder::new(ANY).client(client).bind().unwrap();
    let echo = async {
        let connection = server.accept().await.unwrap().accept().await.unwrap();
        let (mut send, mut recv) = connection.accept_bi().await.unwrap();
        let received = recv.read_to_end(BYTES).await.unwrap();
        send.write_all(&received).await.unwrap();
        send.finish().unwrap();
        connection.closed().await;
    };
    let ask = async {
        let to = server.local_addr().unwrap();
        let connection = client.connect(to, "localhost").unwrap().await.unwrap();
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
        send.write_all(&sent).await.unwrap();
        send.finish().unwrap();
        assert!(recv.read_to_end(BYTES).await.unwrap() == sent);
        connection.close(0, b"");
    };
    tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(echo, ask) })
        .await
        .unwrap();
}

fn providers() -> Vec<(&'static str, Arc<CryptoProvider>)> {
    let wrap = |base| Arc::new(squall::wrap(base));
    [
        #[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
        ("squall's own", squall::provider()),
        ("aws-lc-rs", wrap(crypto::aws_lc_rs::default_provider())),
        ("ring", wrap(crypto::ring::default_provider())),
        (
            "aws-lc-rs, not wrapped",
            Arc::new(crypto::aws_lc_rs::default_provider()),
        ),
        (
            "ring, not wrapped",
            Arc::new(crypto::ring::default_provider()),
        ),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        ("graviola", wrap(rustls_graviola::default_provider())),
    ]
    .to_vec()
}

#[tokio::test]
async fn every_provider_interoperates_with_every_other() {
    let providers = providers();
    for (name, server) in &providers {
        for (other, client) in &providers {
            println!("server: {name}, client: {other}");
            exchange(server, client).await;
        }
    }
}

#[tokio::test]
async fn the_error_for_a_provider_without_quic_names_the_remedy() {
    let mut without = crypto::ring::default_provider();
    for suite in &mut without.cipher_suites {
        if let Some(tls13) = suite.tls13() {
            *suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: CipherSuiteCommon {
                    suite: tls13.common.suite,
                    hash_provider: tls13.common.hash_provider,
                    confidentiality_limit: tls13.common.confidentiality_limit,
                },
                hkdf_provider: tls13.hkdf_provider,
                aead_alg: tls13.aead_alg,
                quic: None,
            })));
        }
    }
    let without = Arc::new(without);
    let (server, client) = configs(Arc::clone(&without), without);
    for builder in [
        Builder::new(ANY).server(server),
        Builder::new(ANY).client(client),
    ] {
        let error = builder.bind().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        let text = error.to_string();
        assert!(text.contains("squall::wrap"), "{text}");
        assert!(!text.contains("squall_tls"), "{text}");
    }
}
