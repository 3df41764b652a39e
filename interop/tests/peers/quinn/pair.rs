//! A connection between squall and quinn, seen from both ends.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::quic::Suite;
use squall::TransportConfig;

use crate::setup::{ALPN, ANY, Identity, NAME, squall_client, squall_server};

/// Which side of the connection is squall.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SquallIs {
    Client,
    Server,
}

pub(super) const BOTH: [SquallIs; 2] = [SquallIs::Client, SquallIs::Server];

/// A connection, seen from both ends; the endpoints live as long as it does.
pub(super) struct Pair {
    pub(super) squall: squall::Connection,
    pub(super) quinn: quinn::Connection,
    pub(super) endpoints: (squall::Endpoint, quinn::Endpoint),
}

/// What quinn's TLS offers and accepts.
pub(super) fn quinn_tls() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// The suite of Initial packets, regardless of the handshake's choice (RFC 9001 §5).
fn initial_suite() -> Suite {
    TLS13_AES_128_GCM_SHA256
        .tls13()
        .and_then(rustls::Tls13CipherSuite::quic_suite)
        .expect("a suite for QUIC")
}

pub(super) fn quinn_server(identity: &Identity, tls: CryptoProvider) -> quinn::Endpoint {
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(tls))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(
            vec![identity.certificate.clone()],
            identity.key.clone_key().into(),
        )
        .expect("the certificate");
    tls.max_early_data_size = u32::MAX;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto =
        QuicServerConfig::with_initial(Arc::new(tls), initial_suite()).expect("quinn's server TLS");
    quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(crypto)), ANY)
        .expect("quinn's server")
}

pub(super) fn quinn_client(
    roots: Arc<rustls::RootCertStore>,
    tls: CryptoProvider,
) -> quinn::Endpoint {
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(tls))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.enable_early_data = true;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto =
        QuicClientConfig::with_initial(Arc::new(tls), initial_suite()).expect("quinn's client TLS");
    let mut endpoint = quinn::Endpoint::client(ANY).expect("quinn's client");
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
    endpoint
}

impl Pair {
    pub(super) async fn new(role: SquallIs) -> Self {
        Self::with(role, TransportConfig::default(), quinn_tls()).await
    }

    pub(super) async fn with(
        role: SquallIs,
        transport: TransportConfig,
        tls: CryptoProvider,
    ) -> Self {
        let identity = Identity::new();
        match role {
            SquallIs::Client => {
                let server = quinn_server(&identity, tls);
                let to = server.local_addr().expect("an address");
                Self::of_squall_client(squall_client(&identity, transport), server, to).await
            }
            SquallIs::Server => {
                let server = squall_server(&identity, transport);
                let to = server.local_addr().expect("an address");
                Self::of_squall_server(server, quinn_client(identity.roots(), tls), to).await
            }
        }
    }

    /// squall connects to the address `to`, which leads to quinn.
    pub(super) async fn of_squall_client(
        client: squall::Endpoint,
        server: quinn::Endpoint,
        to: SocketAddr,
    ) -> Self {
        let connecting = client.connect(to, NAME).expect("a start");
        let (squall, quinn) = tokio::join!(connecting, async {
            server.accept().await.expect("an attempt").await
        });
        Self {
            squall: squall.expect("squall's handshake"),
            quinn: quinn.expect("quinn's handshake"),
            endpoints: (client, server),
        }
    }

    /// quinn connects to the address `to`, which leads to squall.
    pub(super) async fn of_squall_server(
        server: squall::Endpoint,
        client: quinn::Endpoint,
        to: SocketAddr,
    ) -> Self {
        let connecting = client.connect(to, NAME).expect("a start");
        let (quinn, squall) = tokio::join!(connecting, async {
            server.accept().await.expect("an attempt").await
        });
        Self {
            squall: squall.expect("squall's handshake"),
            quinn: quinn.expect("quinn's handshake"),
            endpoints: (server, client),
        }
    }
}
