//! quinn, with hyperium's h3.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode, Uri};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CipherSuite, KeyLogFile, RootCertStore};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::files;
use super::settings::{Case, Role, Settings};
use super::verifier::LongChains;
use super::{HTTP09, Outcome};

const HTTP3: &[u8] = b"h3";
/// Handshakes of `handshakeloss` may suffer several bursts of losses.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a ticket may take to arrive after a handshake. quinn does not report its arrival.
const TICKET_PATIENCE: Duration = Duration::from_millis(200);

/// What quinn lacks.
pub(super) fn missing(settings: &Settings) -> Option<&'static str> {
    (settings.case == Case::Version2)
        .then_some("quinn does not change the version during a handshake")
}

/// Does one end's work.
pub(super) async fn run(settings: &Settings) -> Outcome<()> {
    match settings.role {
        Role::Server => serve(settings).await,
        Role::Client => fetch_all(settings).await,
    }
}

fn alpn(case: Case) -> Vec<Vec<u8>> {
    let name = if case == Case::Http3 { HTTP3 } else { HTTP09 };
    vec![name.to_vec()]
}

fn provider(case: Case) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if case == Case::ChaCha20 {
        provider
            .cipher_suites
            .retain(|suite| suite.suite() == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    }
    Arc::new(provider)
}

/// The suite that protects Initial packets, whatever TLS chooses.
fn initial_suite() -> Outcome<rustls::quic::Suite> {
    let suite = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13();
    Ok(suite
        .and_then(rustls::Tls13CipherSuite::quic_suite)
        .ok_or("no suite for Initial packets")?)
}

fn transport() -> Outcome<Arc<quinn::TransportConfig>> {
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(Some(IDLE_TIMEOUT.try_into()?));
    Ok(Arc::new(transport))
}

async fn serve(settings: &Settings) -> Outcome<()> {
    let certs = &settings.certs;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certs.join("cert.pem"))?.collect();
    let key = PrivateKeyDer::from_pem_file(certs.join("priv.key"))?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider(settings.case))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain?, key)?;
    tls.key_log = Arc::new(KeyLogFile::new());
    tls.alpn_protocols = alpn(settings.case);
    if settings.case == Case::ZeroRtt {
        tls.max_early_data_size = u32::MAX;
    }
    let crypto = QuicServerConfig::with_initial(Arc::new(tls), initial_suite()?)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport()?);
    if settings.case == Case::ConnectionMigration {
        config
            .preferred_address_v4(settings.preferred_ipv4)
            .preferred_address_v6(settings.preferred_ipv6);
    }
    let endpoint = quinn::Endpoint::server(config, settings.listen)?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        () = accept(&endpoint, settings) => {}
        _ = terminate.recv() => {}
    }
    endpoint.close(0_u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

async fn accept(endpoint: &quinn::Endpoint, settings: &Settings) {
    while let Some(incoming) = endpoint.accept().await {
        if settings.case == Case::Retry && incoming.may_retry() {
            if let Err(error) = incoming.retry() {
                eprintln!("{error}");
            }
            continue;
        }
        let (www, case) = (settings.www.clone(), settings.case);
        tokio::spawn(async move {
            let served = async {
                let connecting = incoming.accept()?;
                // Before the handshake is done only where early data is the point: streams that a
                // server opens before it has the whole ClientHello never open.
                let connection = match case {
                    Case::ZeroRtt => connecting.into_0rtt().map(|(early, _)| early),
                    _ => Err(connecting),
                };
                let connection = match connection {
                    Ok(connection) => connection,
                    Err(connecting) => connecting.await?,
                };
                match case {
                    Case::Http3 => serve_http3(connection, www).await,
                    _ => serve_http09(connection, www).await,
                }
            };
            if let Err(error) = served.await {
                eprintln!("{error}");
            }
        });
    }
}

async fn serve_http09(connection: quinn::Connection, www: PathBuf) -> Outcome<()> {
    loop {
        let (mut send, mut recv) = match connection.accept_bi().await {
            Ok(stream) => stream,
            Err(quinn::ConnectionError::ApplicationClosed(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let www = www.clone();
        tokio::spawn(async move {
            let answered = async {
                let line = recv.read_to_end(4096).await?;
                send.write_chunk(files::answer(&www, &line)?.into()).await?;
                send.finish()?;
                Outcome::Ok(())
            };
            if let Err(error) = answered.await {
                eprintln!("{error}");
                // A stream that is dropped would look complete.
                let _ = send.reset(1_u32.into());
            }
        });
    }
}

async fn serve_http3(connection: quinn::Connection, www: PathBuf) -> Outcome<()> {
    let mut http = h3::server::builder()
        .build::<_, Bytes>(h3_quinn::Connection::new(connection))
        .await?;
    loop {
        let request = match http.accept().await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            // H3_NO_ERROR is a regular end too.
            Err(error) if error.is_h3_no_error() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let www = www.clone();
        tokio::spawn(async move {
            let answered = async {
                let (request, mut stream) = request.resolve_request().await?;
                let Ok(file) = files::read(&www, request.uri().path()) else {
                    let head = Response::builder().status(StatusCode::NOT_FOUND);
                    stream.send_response(head.body(())?).await?;
                    return Ok(stream.finish().await?);
                };
                let head = Response::builder().header("content-length", file.len());
                stream.send_response(head.body(())?).await?;
                stream.send_data(file.into()).await?;
                stream.finish().await?;
                Outcome::Ok(())
            };
            if let Err(error) = answered.await {
                eprintln!("{error}");
            }
        });
    }
}

struct Client<'a> {
    endpoint: quinn::Endpoint,
    settings: &'a Settings,
}

async fn fetch_all(settings: &Settings) -> Outcome<()> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(settings.certs.join("ca.pem"))? {
        roots.add(root?)?;
    }
    let provider = provider(settings.case);
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(LongChains(verifier.build()?)))
        .with_no_client_auth();
    tls.key_log = Arc::new(KeyLogFile::new());
    tls.alpn_protocols = alpn(settings.case);
    tls.enable_early_data = settings.case == Case::ZeroRtt;
    if !matches!(settings.case, Case::Resumption | Case::ZeroRtt) {
        tls.resumption = rustls::client::Resumption::disabled();
    }
    let crypto = QuicClientConfig::with_initial(Arc::new(tls), initial_suite()?)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport()?);
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let mut endpoint = quinn::Endpoint::client(any)?;
    endpoint.set_default_client_config(config);
    let client = Client { endpoint, settings };
    let urls = &settings.requests[..];
    let (first, others) = urls.split_first().ok_or("REQUESTS is empty")?;
    match settings.case {
        Case::MultiConnect => {
            for url in urls {
                let connection = client.connect(url, false).await?;
                client.fetch(connection, std::slice::from_ref(url)).await?;
            }
        }
        Case::Resumption | Case::ZeroRtt => {
            let connection = client.connect(first, false).await?;
            tokio::time::sleep(TICKET_PATIENCE).await;
            client
                .fetch(connection, std::slice::from_ref(first))
                .await?;
            let is_early = settings.case == Case::ZeroRtt;
            let connection = client.connect(first, is_early).await?;
            client.fetch(connection, others).await?;
        }
        _ => {
            let connection = client.connect(first, false).await?;
            if settings.case == Case::KeyUpdate {
                connection.force_key_update();
            }
            client.fetch(connection, urls).await?;
        }
    }
    client.endpoint.wait_idle().await;
    Ok(())
}

impl Client<'_> {
    async fn connect(&self, url: &Uri, is_early: bool) -> Outcome<quinn::Connection> {
        let (mut address, name) = files::server(self.settings, url)?;
        if let SocketAddr::V4(v4) = address {
            // The socket is an IPv6 one.
            address = (v4.ip().to_ipv6_mapped(), v4.port()).into();
        }
        let connecting = self.endpoint.connect(address, name)?;
        if !is_early {
            return Ok(connecting.await?);
        }
        match connecting.into_0rtt() {
            Ok((connection, _)) => Ok(connection),
            Err(_) => Err("there is no ticket for early data".into()),
        }
    }

    /// Downloads files concurrently, then closes the connection.
    async fn fetch(&self, connection: quinn::Connection, urls: &[Uri]) -> Outcome<()> {
        if self.settings.case == Case::Http3 {
            return self.fetch_http3(connection, urls).await;
        }
        let mut fetches = JoinSet::new();
        for url in urls {
            let (connection, request) = (connection.clone(), files::request(url));
            let target = files::target(self.settings, url)?;
            fetches.spawn(async move {
                let (mut send, mut recv) = connection.open_bi().await?;
                send.write_all(request.as_bytes()).await?;
                send.finish()?;
                std::fs::write(target, recv.read_to_end(usize::MAX).await?)?;
                Outcome::Ok(())
            });
        }
        while let Some(fetched) = fetches.join_next().await {
            fetched??;
        }
        connection.close(0_u32.into(), b"");
        Ok(())
    }

    async fn fetch_http3(&self, connection: quinn::Connection, urls: &[Uri]) -> Outcome<()> {
        let http = h3_quinn::Connection::new(connection);
        let (mut driver, requests) = h3::client::new(http).await?;
        let driver = tokio::spawn(async move { driver.wait_idle().await });
        let mut fetches = JoinSet::new();
        for url in urls {
            let (mut requests, url) = (requests.clone(), url.clone());
            let target = files::target(self.settings, &url)?;
            fetches.spawn(async move {
                let mut stream = requests.send_request(Request::get(url).body(())?).await?;
                stream.finish().await?;
                let response = stream.recv_response().await?;
                if response.status() != StatusCode::OK {
                    return Err(response.status().to_string().into());
                }
                let mut file = Vec::new();
                while let Some(mut data) = stream.recv_data().await? {
                    file.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
                std::fs::write(target, file)?;
                Outcome::Ok(())
            });
        }
        while let Some(fetched) = fetches.join_next().await {
            fetched??;
        }
        // The last handle ends the connection.
        drop(requests);
        driver.await?;
        Ok(())
    }
}
