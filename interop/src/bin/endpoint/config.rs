//! What a case requires of TLS and of the transport.

use std::sync::Arc;
use std::time::Duration;

use squall::rustls::client::{Resumption, WebPkiServerVerifier};
use squall::rustls::{self, CipherSuite, ClientConfig, KeyLogFile, ServerConfig};
use squall::tls::{Identity, roots_from_pem};
use squall::{TransportConfig, VERSION_1, VERSION_2};

use crate::Outcome;
use crate::http3;
use crate::http09;
use crate::settings::{Case, Role, Settings};
use crate::verifier::LongChains;

/// Handshakes of `handshakeloss` may suffer several bursts of losses.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Small, so that `transfer` proves that windows grow.
const CLIENT_STREAM_WINDOW: u64 = 64 * 1024;
const CLIENT_WINDOW: u64 = 128 * 1024;

/// The application protocol of a case.
pub(crate) fn alpn(case: Case) -> &'static [u8] {
    match case {
        Case::Http3 => http3::ALPN,
        _ => http09::ALPN,
    }
}

/// The transport of a case.
pub(crate) fn transport(settings: &Settings) -> TransportConfig {
    let transport = TransportConfig::default()
        .handshake_timeout(TIMEOUT)
        .max_idle_timeout(TIMEOUT);
    match (settings.role, settings.case) {
        // The preference of both ends; clients begin with version 1 anyway.
        (_, Case::Version2) => transport.versions(vec![VERSION_2, VERSION_1]),
        (Role::Server, Case::ConnectionMigration) => transport
            .preferred_ipv4(settings.preferred_ipv4)
            .preferred_ipv6(settings.preferred_ipv6),
        (Role::Server, _) => transport,
        (Role::Client, _) => transport
            .initial_stream_window(CLIENT_STREAM_WINDOW)
            .initial_window(CLIENT_WINDOW),
    }
}

/// The server's TLS.
pub(crate) fn server_tls(settings: &Settings) -> Outcome<ServerConfig> {
    let certs = &settings.certs;
    let identity = Identity::from_pem(certs.join("cert.pem"), certs.join("priv.key"))?;
    let mut tls = squall::tls::server(identity, &[alpn(settings.case)])?;
    match settings.case {
        Case::ChaCha20 => {
            let mut only = ServerConfig::builder_with_provider(chacha20_only())
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_no_client_auth()
                .with_cert_resolver(Arc::clone(&tls.cert_resolver));
            only.key_log = tls.key_log;
            only.alpn_protocols = tls.alpn_protocols;
            tls = only;
        }
        // RFC 9001 §4.6.1: the only value besides none that QUIC allows.
        Case::ZeroRtt => tls.max_early_data_size = u32::MAX,
        _ => {}
    }
    Ok(tls)
}

/// The client's TLS.
pub(crate) fn client_tls(settings: &Settings) -> Outcome<ClientConfig> {
    let provider = match settings.case {
        Case::ChaCha20 => chacha20_only(),
        _ => squall::provider(),
    };
    let roots = Arc::new(roots_from_pem(settings.certs.join("ca.pem"))?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(LongChains(verifier.build()?)))
        .with_no_client_auth();
    tls.key_log = Arc::new(KeyLogFile::new());
    tls.alpn_protocols = vec![alpn(settings.case).to_vec()];
    match settings.case {
        Case::ZeroRtt => tls.enable_early_data = true,
        Case::Resumption => {}
        // Every handshake is a full one.
        _ => tls.resumption = Resumption::disabled(),
    }
    Ok(tls)
}

fn chacha20_only() -> Arc<rustls::crypto::CryptoProvider> {
    let mut provider = (*squall::provider()).clone();
    provider
        .cipher_suites
        .retain(|suite| suite.suite() == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    Arc::new(provider)
}
